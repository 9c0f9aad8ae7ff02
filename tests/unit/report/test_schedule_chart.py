"""Charts of schedules: bars where tasks run, traces that Chrome's format knows and that add up."""

from __future__ import annotations

import json

from dovetail.report.schedule_chart import chart, pieces, trace
from dovetail.schedule.problem import Schedule, problem_from

PROBLEM = problem_from(
    {
        "tensor_cores": 4,
        "vector_cores": 2,
        "bandwidth": 10,
        "tasks": [
            {"name": "product", "modes": [[{"cycles": 5, "tensor_cores": 2, "bandwidth": 6}]]},
            {"name": "other", "modes": [[{"cycles": 10, "tensor_cores": 2}]]},
            {
                "name": "attention",
                "modes": [[{"cycles": 3, "tensor_cores": 2, "vector_cores": 1}, {"cycles": 2, "vector_cores": 2}]],
                "after": ["product"],
            },
        ],
    },
    "x.json",
)
SCHEDULE = Schedule((0, 0, 5), (0, 0, 0))


def test_bars_stand_where_tasks_run():
    lines = chart(PROBLEM, SCHEDULE, width=10)
    bars = {line.split("|")[0].split()[0]: line.split("|")[1] for line in lines[:2]}
    assert bars == {"product": "█████     ", "other": "██████████"}
    assert [line.split("|")[1] for line in lines if line.startswith("attention")] == ["     ███  ", "        ██"]
    assert next(line for line in lines if line.startswith("tensor cores")).split("|")[1] == "████████▄▄"
    assert next(line for line in lines if line.startswith("vector cores")).split("|")[1] == "     ▄▄▄██"


def test_a_trace_has_every_phase_and_counts_what_is_in_use():
    found = json.loads(json.dumps(trace(PROBLEM, SCHEDULE, clock_hz=1e9)))
    slices = [event for event in found["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == len(pieces(PROBLEM, SCHEDULE)) == 4
    assert {event["name"] for event in slices} == {"product", "other", "attention"}
    # a cycle of 1 GHz is a thousandth of the format's microseconds
    assert max(event["ts"] + event["dur"] for event in slices) == 0.01
    rows = [(event["pid"], event["tid"], event["ts"], event["ts"] + event["dur"]) for event in slices]
    for pid, tid, start, end in rows:
        others = [row for row in rows if row[:2] == (pid, tid) and row[2:] != (start, end)]
        assert all(other[3] <= start or other[2] >= end for other in others)
    cores = {event["ts"]: event["args"]["in use"] for event in found["traceEvents"] if event["name"] == "tensor_cores"}
    assert cores == {0.0: 4, 0.005: 4, 0.008: 2, 0.01: 0}
