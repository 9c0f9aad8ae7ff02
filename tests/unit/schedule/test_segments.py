"""Problems fall into parts that run one after the other, and nothing a shortest schedule needs is lost."""

from __future__ import annotations

from dovetail.schedule.problem import Mode, ModePhase, Problem, Schedule, ScheduleTask, faults
from dovetail.schedule.segments import efficient, joined, replaces, segments


def on(cores: int, cycles: int) -> Mode:
    return Mode((ModePhase(cycles, tensor_cores=cores),))


def diamonds() -> Problem:
    """Two tasks side by side between single ones, twice."""
    both = (on(1, 4), on(2, 3))
    tasks = (
        ScheduleTask("in", both),
        ScheduleTask("left", both, (0,)),
        ScheduleTask("right", both, (0,)),
        ScheduleTask("middle", both, (0, 1, 2)),
        ScheduleTask("up", both, (3,)),
        ScheduleTask("down", both, (3, 0)),
        ScheduleTask("out", both, (4, 5)),
    )
    return Problem(tasks, 2, 0, 0)


def test_single_tasks_split_a_problem():
    assert [part.positions for part in segments(diamonds())] == [(0,), (1, 2), (3,), (4, 5), (6,)]


def test_needs_of_earlier_segments_and_implied_needs_are_left_out():
    one = (on(1, 1),)
    # the last runs beside all, so nothing splits
    tasks = (
        ScheduleTask("a", one),
        ScheduleTask("b", one, (0,)),
        ScheduleTask("c", one, (0, 1)),
        ScheduleTask("d", one),
    )
    (part,) = segments(Problem(tasks, 2, 0, 0))
    by_name = {task.name: {part.problem.tasks[need].name for need in task.after} for task in part.problem.tasks}
    assert by_name == {"a": set(), "b": {"a"}, "c": {"b"}, "d": set()}
    assert all(task.after == () for segment in segments(diamonds()) for task in segment.problem.tasks)


def test_groups_of_several_split_where_all_need_all():
    one = (on(1, 1),)
    tasks = (
        ScheduleTask("a", one),
        ScheduleTask("b", one),
        ScheduleTask("c", one, (0, 1)),
        ScheduleTask("d", one, (0, 1)),
    )
    assert [part.positions for part in segments(Problem(tasks, 2, 0, 0))] == [(0, 1), (2, 3)]


def test_schedules_join_one_after_the_other_in_the_numbers_of_the_whole():
    problem = diamonds()
    parts = segments(problem)
    pieces = [
        Schedule((0,) * len(part.positions), (0 if len(part.positions) == 1 else 1,) * len(part.positions))
        for part in parts
    ]
    whole = joined(problem, parts, pieces)
    assert faults(problem, whole) == []
    assert whole.starts == (0, 3, 3, 7, 10, 10, 14)
    # the shortest mode stands first in a part and second in the problem
    assert whole.modes == (1, 0, 0, 1, 0, 0, 1)
    assert whole.makespan(problem) == 17


def test_beaten_modes_are_left_out():
    assert efficient((on(2, 5), on(1, 5), on(4, 2), on(2, 6), on(1, 5)), (4, 0, 0)) == (2, 1)
    assert efficient((on(4, 2), on(1, 5)), (2, 0, 0)) == (1,)


def test_a_mode_replaces_another_only_if_it_uses_no_more_at_any_moment():
    apart = Mode((ModePhase(2, tensor_cores=1), ModePhase(3, vector_cores=1)))
    fused = Mode((ModePhase(5, tensor_cores=1, vector_cores=1),))
    later = Mode((ModePhase(3, tensor_cores=1), ModePhase(2, vector_cores=1)))
    assert replaces(apart, fused)
    assert not replaces(fused, apart)
    assert not replaces(apart, later)
    assert not replaces(later, apart)
    # shorter and leaner, but its second phase comes while the other one still has none
    assert not replaces(Mode((ModePhase(1, tensor_cores=1), ModePhase(3, vector_cores=1))), apart)
    assert replaces(Mode((ModePhase(2, tensor_cores=1), ModePhase(2, vector_cores=1))), apart)


def test_nothing_is_no_segment():
    problem = Problem((), 1, 1, 1)
    assert segments(problem) == []
    assert joined(problem, [], []) == Schedule((), ())
