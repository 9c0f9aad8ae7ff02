"""Numbered batches in a fixed order on any executor: workers and timing change the run time, never the result.

Batch k is made from the state after batch k − W, with a fixed window W. In whatever order batches finish, we absorb
their results in the order of their numbers; so each task, and each state, depends only on the study.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from dovetail.exploration.executor import Executor

S = TypeVar("S")
R = TypeVar("R")


def run_ordered(
    executor: Executor,
    task_of: Callable[[int, S], Any | None],
    state: S,
    absorb: Callable[[S, int, R], S],
    window: int,
    finished: Callable[[int], R | None] = lambda _: None,
    first: int = 0,
    on_result: Callable[[int, R], None] = lambda _number, _result: None,
) -> S:
    """The state after all batches from `first` on, starting from `state`; states are never changed in place.

    `task_of(k, state after batch k - window)` makes a batch; None means that there are no more. We call it for every
    number in turn, with the same arguments whether or not `finished(k)` has the result of an earlier run; such a batch
    does not run again. `on_result` gets each new result as soon as it arrives. To resume an interrupted study, start
    at the same `first` and pass the finished results.
    """
    assert window >= 1, "a batch cannot wait for itself"
    #: the states after batches (following - window) to (absorbed - 1); the initial state stands for those before
    #: the first
    states: deque[S] = deque([state])
    arrived: dict[int, R] = {}
    absorbed = following = first
    under_way = 0
    ended = False
    while True:
        while absorbed in arrived:
            state = absorb(state, absorbed, arrived.pop(absorbed))
            states.append(state)
            absorbed += 1
        if not ended and following < absorbed + window and under_way < max(1, executor.in_flight):
            task = task_of(following, states[0])
            if task is None:
                ended = True
                continue
            result = finished(following)
            if result is None:
                executor.submit(following, task)
                under_way += 1
            else:
                arrived[following] = result
            following += 1
            if following - first >= window:
                states.popleft()
        elif under_way:
            number, result = executor.take()
            under_way -= 1
            on_result(number, result)
            arrived[number] = result
        else:
            return state
