"""The deterministic loop: whatever finishes first, the same tasks are made and the same state comes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.exploration.executor import Executor, Inline
from dovetail.exploration.executors import EXECUTORS
from dovetail.exploration.ordered import run_ordered

#: A state is all that was absorbed; a task names its batch and the state it was made from.
State = tuple[int, ...]


def work(task: tuple[int, State]) -> int:
    number, state = task
    return 1000 * number + sum(state) % 997


class Shuffled:
    """Finishes in any order, and lets more or fewer in flight as it goes."""

    workers = 1

    def __init__(self, work: Callable[[Any], Any], seed: int, most: int) -> None:
        self._work, self._random, self._most = work, np.random.default_rng(seed), most
        self.waiting: dict[int, Any] = {}
        self.limits: list[int] = []
        self.submitted: list[int] = []

    @property
    def in_flight(self) -> int:
        self.limits.append(int(self._random.integers(1, self._most + 1)))
        return self.limits[-1]

    def submit(self, number: int, task: Any) -> None:
        assert number not in self.waiting
        assert len(self.waiting) < self.limits[-1]
        self.waiting[number] = task
        self.submitted.append(number)

    def take(self) -> tuple[int, Any]:
        number = int(self._random.choice(sorted(self.waiting)))
        return number, self._work(self.waiting.pop(number))

    def close(self) -> None:
        raise AssertionError("the caller closes")


class Study:
    """Batches of a made-up study, and all that the loop asked of it."""

    def __init__(self, batches: int, known: dict[int, int] | None = None, first: int = 0) -> None:
        self.batches, self.first, self.results = batches, first, known or {}
        self.made: list[tuple[int, State]] = []
        self.absorbed: list[tuple[int, int]] = []
        self.written: list[tuple[int, int]] = []

    def task_of(self, number: int, state: State) -> tuple[int, State] | None:
        self.made.append((number, state))
        return (number, state) if number < self.first + self.batches else None

    def absorb(self, state: State, number: int, result: int) -> State:
        assert (number, result) in self.written or number in self.results
        self.absorbed.append((number, result))
        return (*state, result)

    def on_result(self, number: int, result: int) -> None:
        self.written.append((number, result))

    def run(self, executor: Executor, window: int) -> State:
        return run_ordered(
            executor, self.task_of, (7,), self.absorb, window, self.results.get, self.first, self.on_result
        )


def one_by_one(batches: int, window: int, first: int = 0) -> tuple[list[tuple[int, State]], State]:
    """What the definition says, without any executor."""
    states: list[State] = [(7,)]
    made: list[tuple[int, State]] = []
    for k in range(batches):
        made.append((first + k, states[max(0, k - window + 1)]))
        states.append((*states[-1], work(made[-1])))
    return [*made, (first + batches, states[max(0, batches - window + 1)])], states[-1]


@given(
    batches=st.integers(0, 30),
    window=st.integers(1, 12),
    most=st.integers(1, 15),
    seed=st.integers(0, 2**32),
    first=st.sampled_from([0, 3]),
)
def test_the_order_of_completion_changes_nothing(batches, window, most, seed, first):
    made, state = one_by_one(batches, window, first)
    study, executor = Study(batches, first=first), Shuffled(work, seed, most)
    assert study.run(executor, window) == state
    assert study.made == made
    assert [number for number, _ in study.absorbed] == list(range(first, first + batches))
    assert sorted(study.written) == study.absorbed
    assert executor.waiting == {}


@given(
    batches=st.integers(0, 25),
    window=st.integers(1, 8),
    seed=st.integers(0, 2**32),
    numbers=st.sets(st.integers(0, 24)),
)
def test_known_results_are_not_computed_again_and_change_nothing(batches, window, seed, numbers):
    made, state = one_by_one(batches, window)
    results = {number: work((number, before)) for number, before in made if number in numbers and number < batches}
    study, executor = Study(batches, results), Shuffled(work, seed, 5)
    assert study.run(executor, window) == state
    assert study.made == made
    assert sorted(executor.submitted) == [k for k in range(batches) if k not in results]
    assert sorted(number for number, _ in study.written) == sorted(executor.submitted)


@pytest.mark.parametrize("window", [1, 3, 100])
def test_inline_gives_what_the_definition_says(window):
    made, state = one_by_one(20, window)
    study = Study(20)
    assert study.run(EXECUTORS["inline"](work, None, None), window) == state
    assert study.made == made


def test_work_is_in_flight_up_to_the_window_and_the_executor_s_limit():
    class Full(Shuffled):
        most_seen = 0

        @property
        def in_flight(self) -> int:
            self.limits.append(4)
            return 4

        def submit(self, number: int, task: Any) -> None:
            super().submit(number, task)
            self.most_seen = max(self.most_seen, len(self.waiting))

    for window, most in ((2, 2), (4, 4), (9, 4)):
        executor = Full(work, 1, 1)
        Study(20).run(executor, window)
        assert executor.most_seen == most


def test_no_more_states_are_kept_than_the_window():
    class Counted:
        alive = 0
        most = 0

        def __init__(self) -> None:
            Counted.alive += 1
            Counted.most = max(Counted.most, Counted.alive)

        def __del__(self) -> None:
            Counted.alive -= 1

    def task_of(number: int, state: Counted) -> int | None:
        return number if number < 60 else None

    def absorb(state: Counted, number: int, result: int) -> Counted:
        return Counted()

    window = 5
    run_ordered(Shuffled(lambda task: task, 3, 9), task_of, Counted(), absorb, window)
    # absorb makes the next one while it is given the last, and the caller holds the first
    assert Counted.most <= window + 2


@pytest.mark.parametrize("window", [1, 4, 50])
def test_what_the_work_raises_passes_and_what_was_there_before_is_written(window):
    def failing(task: tuple[int, State]) -> int:
        if task[0] == 6:
            raise ZeroDivisionError("batch 6")
        return work(task)

    study, executor = Study(20), Shuffled(failing, 5, 4)
    with pytest.raises(ZeroDivisionError, match="batch 6"):
        study.run(executor, window)
    # the one that failed, those under way, and those written are all there were
    left = {6, *executor.waiting}
    assert sorted([*left, *(number for number, _ in study.written)]) == sorted(executor.submitted)
    # and a second run goes on from what was written
    again = Study(20, dict(study.written))
    made, state = one_by_one(20, window)
    assert again.run(Inline(work), window) == state
    assert again.made == made


def test_an_interrupted_inline_task_is_still_under_way():
    interrupts = [KeyboardInterrupt()]

    def interrupted(task: int) -> int:
        if interrupts:
            raise interrupts.pop()
        return 2 * task

    executor = Inline(interrupted)
    executor.submit(4, 21)
    with pytest.raises(KeyboardInterrupt):
        executor.take()
    assert executor.take() == (4, 42)
    executor.submit(5, 1)
    executor.close()
    executor.close()
    with pytest.raises(AssertionError, match="no task is pending"):
        executor.take()


def test_inline_runs_in_the_order_of_submission():
    executor = Inline(lambda task: task + 1)
    for number in (5, 2, 9):
        executor.submit(number, number)
    with pytest.raises(AssertionError, match="task 2 is already pending"):
        executor.submit(2, 0)
    assert [executor.take() for _ in range(3)] == [(5, 6), (2, 3), (9, 10)]
    assert (executor.workers, executor.in_flight) == (1, 1)
