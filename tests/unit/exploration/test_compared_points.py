"""Points of a Pareto front: which figures a measurement would tell from the best of the front."""

from dovetail.exploration.objective import OBJECTIVES
from dovetail.exploration.result import compared_points

SCORED = [OBJECTIVES[name] for name in ("step_time", "tokens_per_joule", "area")]


def point(step_time, tokens_per_joule, area):
    return {"objectives": {"step_time": step_time, "tokens_per_joule": tokens_per_joule, "area": area}}


def test_figures_within_the_error_of_ratios_are_not_distinguishable():
    points = compared_points(SCORED, [point(1.0, 5.0, 800.0), point(1.1, 7.5, 700.0), point(1.5, 9.9, 699.0)])
    # nine in ten ratios are predicted within 20 %, areas exactly
    assert [each["distinguishable"] for each in points] == [
        {"step_time": False, "tokens_per_joule": True, "area": True},
        {"step_time": False, "tokens_per_joule": True, "area": True},
        {"step_time": True, "tokens_per_joule": False, "area": False},
    ]


def test_a_front_of_one_point_has_nothing_to_tell_it_from():
    (only,) = compared_points(SCORED, [point(1.0, 5.0, 800.0)])
    assert set(only["distinguishable"].values()) == {False}
