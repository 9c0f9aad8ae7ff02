"""Chakra traces of simulated steps, decoded by a reader of the wire format that knows nothing of the writer."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache

import pytest

from chakra_bytes import CountedStep
from dovetail.cli import main
from dovetail.errors import InputError
from dovetail.plans.plan_file import Task, task_of
from dovetail.simulation import chakra_trace
from dovetail.simulation.chakra_format import framed, int64, string, varint
from dovetail.simulation.chakra_ranks import PlanRanks
from dovetail.simulation.chakra_trace import ChakraTraces, RankChoice, chakra_traces
from dovetail.simulation.layer_steps import StepKind
from dovetail.simulation.simulate import simulate
from valid_plans import EXPERTS, model

SMALL = {"seq_len": 2048, "global_batch": 8}
H100 = {"chip": "h100-sxm", "chips": 8}

PLANS = {
    "dense": {
        "job": SMALL | {"model": model(2)}, "cluster": H100,
        "plan": {"tensor_parallel": 2, "pipeline_parallel": 2, "sequence_parallel": True, "zero_stage": 1},
    },
    "experts": {
        "job": SMALL | {"model": model(2, feed_forward=EXPERTS)}, "cluster": H100,
        "plan": {"tensor_parallel": 2, "expert_parallel": 8, "expert_tensor_parallel": 1, "sequence_parallel": True},
    },
    "ring": {
        "job": SMALL | {"model": model(2), "seq_len": 16384, "global_batch": 2}, "cluster": H100,
        "plan": {"tensor_parallel": 2, "context_parallel": 4, "context_kind": "ring", "sequence_parallel": True,
                 "recompute": "full", "recompute_share": 0.5},
    },
    "zero 3": {
        "job": SMALL | {"model": model(2)}, "cluster": H100 | {"framework": "fsdp"},
        "plan": {"zero_stage": 3, "recompute": "full"},
    },
    "interleaved": {
        "job": SMALL | {"model": model(8)}, "cluster": H100,
        "plan": {"pipeline_parallel": 4, "virtual_stages": 2, "pipeline_schedule": "interleaved"},
    },
    "dualpipe": {
        "job": SMALL | {"model": model(2)}, "cluster": H100 | {"framework": "ideal"},
        "plan": {"tensor_parallel": 2, "pipeline_parallel": 2, "pipeline_schedule": "dualpipe"},
    },
    "tied": {
        "job": SMALL | {"model": model(2) | {"head": {"tied": True}}}, "cluster": H100,
        "plan": {"tensor_parallel": 2, "pipeline_parallel": 2},
    },
}  # fmt: skip

COMP, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7


# -- an independent reader


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at


def fields_of(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        number, at = read_varint(data, at)
        if key & 7 == 2:
            yield key >> 3, data[at : at + number]
            at += number
        else:
            assert key & 7 == 0, "only varints and bytes"
            yield key >> 3, number
    assert at == len(data)


def messages_of(data: bytes) -> list[dict[int, list[int | bytes]]]:
    messages, at = [], 0
    while at < len(data):
        length, at = read_varint(data, at)
        message: dict[int, list[int | bytes]] = {}
        for number, value in fields_of(data[at : at + length]):
            message.setdefault(number, []).append(value)
        messages.append(message)
        at += length
    return messages


def numbers(packed: bytes) -> list[int]:
    values, at = [], 0
    while at < len(packed):
        value, at = read_varint(packed, at)
        values.append(value)
    return values


#: Attribute by name → the number of the field its value is in, as ASTRA-sim's reader expects.
TYPES = {
    "num_ops": 9, "tensor_size": 13, "comm_type": 9, "comm_size": 9, "comm_src": 7, "comm_dst": 7, "comm_tag": 7,
    "pg_name": 29, "is_cpu_op": 27,
}  # fmt: skip


class Node:
    """A node as the bytes say."""

    def __init__(self, message: dict[int, list]) -> None:
        (self.number,), (name,), (self.kind,) = message[1], message[2], message[3]
        self.name = name.decode()
        self.ctrl_deps, self.data_deps = (
            [n for part in message.get(field, ()) for n in numbers(part)] for field in (4, 5)
        )
        self.start_us, self.duration_us = message[6][0], message[7][0]
        self.said = {}
        for attribute in message.get(10, ()):
            (_, text), (field, value) = fields_of(attribute)
            assert isinstance(text, bytes)
            assert field == TYPES[text.decode()]
            self.said[text.decode()] = value.decode() if isinstance(value, bytes) else value


def nodes_of(traces: ChakraTraces, file) -> list[Node]:
    head, *nodes = messages_of(b"".join(traces.messages(file)))
    assert head[1] == [b"1.0.0"]
    return [Node(message) for message in nodes]


@cache
def exported(name: str, ranks: RankChoice = "distinct") -> tuple[Task, ChakraTraces, dict[int, list[Node]]]:
    task = task_of(PLANS[name], f"{name}.yaml")
    traces = chakra_traces(task.plan, task.job, task.cluster, task.framework, ranks)
    return task, traces, {file.rank: nodes_of(traces, file) for file in traces.files}


each = pytest.mark.parametrize("name", PLANS)


# -- the format


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**32, 2**63 - 1])
def test_numbers_are_varints(number):
    assert read_varint(varint(number), 0) == (number, len(varint(number)))


def test_a_message_follows_its_length():
    assert framed(b"x" * 300) == b"\xac\x02" + b"x" * 300


def test_a_value_of_zero_is_written():
    # all-reduce is type 0: without the value an attribute would have none
    assert int64("comm_type", 0)[-2:] == b"\x48\x00"
    assert string("pg_name", "12").endswith(b"\xea\x01\x0212")


# -- nodes


@each
def test_dependencies_are_earlier_nodes_that_ended(name):
    for nodes in exported(name)[2].values():
        assert [node.number for node in nodes] == list(range(len(nodes)))
        for node in nodes:
            needed = [*node.data_deps, *node.ctrl_deps]
            assert len(needed) == len(set(needed))
            assert all(before < node.number for before in needed)
            for before in (nodes[number] for number in needed):
                assert before.start_us + before.duration_us <= node.start_us


def test_receives_wait_for_no_data_and_follow_each_other():
    for nodes in exported("interleaved")[2].values():
        last: dict[int, int] = {}
        for node in (node for node in nodes if node.kind == RECEIVE):
            source = node.said["comm_src"]
            assert node.data_deps == []
            assert node.ctrl_deps in ([], [last.get(source)])
            last[source] = node.number
        assert any(node.ctrl_deps for node in nodes if node.kind == RECEIVE)
        # a stage begins with what it receives, and sends what it computed
        assert all(nodes[number].kind == COMP for node in nodes if node.kind == SEND for number in node.data_deps[-1:])


@each
def test_nodes_are_the_tasks_of_the_simulation(name):
    task, traces, by_rank = exported(name)
    step = simulate(task.plan, task.job, task.cluster, task.framework)
    graph, labels = step.tasks.graph, step.tasks.labels
    for file in traces.files:
        nodes, mine = by_rank[file.rank], labels.chip == file.stage
        kinds = Counter(node.kind for node in nodes)
        rings = sum(node.kind == SEND and "pg_name" in node.said for node in nodes)
        tied = sum(node.name == "tied embeddings" and file.stage != 0 for node in nodes)
        collectives = int((mine & (labels.kind == StepKind.COLLECTIVE)).sum())
        assert kinds[COLLECTIVE] + rings == collectives + tied
        assert kinds[SEND] - rings == (mine & (labels.kind == StepKind.TRANSFER)).sum()
        for_all = (labels.kind == StepKind.WAIT) & (labels.microbatch < 0)
        timed = (graph.seconds > 0) & (labels.kind < StepKind.COLLECTIVE) & (mine | for_all)
        assert kinds[COMP] == timed.sum()
        computed = sum(node.duration_us for node in nodes if node.kind == COMP)
        # each in whole microseconds
        assert computed == pytest.approx(1e6 * graph.seconds[timed].sum(), abs=0.5 * timed.sum())
    last = max(node.start_us + node.duration_us for nodes in by_rank.values() for node in nodes)
    assert last == round(1e6 * step.step_time_s)


def test_kernels_say_their_work():
    task, _, by_rank = exported("zero 3")
    products = [node for node in by_rank[0] if node.name.startswith("forward mlp.up")]
    tokens = task.plan.micro_batch * task.job.seq_len
    assert {node.said["num_ops"] for node in products} == {2 * tokens * 1024 * 4096}
    assert {node.said["tensor_size"] for node in products} == {2 * (tokens * 1024 + 1024 * 4096 + tokens * 4096)}
    waits = [node for node in by_rank[0] if node.said["is_cpu_op"]]
    assert {node.kind for node in waits} <= {COMP}


# -- messages


@each
def test_every_send_has_its_receive(name):
    # a ring is among ranks of one stage
    task, _, by_rank = exported(name, "all" if name in ("dense", "ring") else "distinct")
    ends = {SEND: Counter(), RECEIVE: Counter()}
    for rank, nodes in by_rank.items():
        for node in nodes:
            if node.kind in ends:
                said = node.said
                assert said["comm_src" if node.kind == SEND else "comm_dst"] == rank
                ends[node.kind][said["comm_src"], said["comm_dst"], said["comm_tag"], said["comm_size"]] += 1
    assert ends[SEND] == ends[RECEIVE]
    assert max(ends[SEND].values(), default=1) == 1
    assert bool(ends[SEND]) == (task.plan.pipeline_parallel > 1 or task.plan.context_kind == "ring")


@each
def test_groups_exchange_what_the_plan_says(name):
    task, traces, by_rank = exported(name)
    counted = CountedStep(task)
    groups = {str(number): ranks for ranks, number in traces.ranks.groups.items()}
    for file in traces.files:
        sent = Counter()
        for node in by_rank[file.rank]:
            if node.kind in (SEND, COLLECTIVE) and "pg_name" in node.said:
                assert file.rank in groups[node.said["pg_name"]]
                sent[groups[node.said["pg_name"]]] += node.said["comm_size"]
        expected = defaultdict[tuple[int, ...], float](float)
        for axes, bytes_ in counted.bytes_by_stage()[file.stage].items():
            expected[traces.ranks.along(file.stage, 0, sorted(axes))] += bytes_
        if counted.tied_bytes():
            expected[traces.ranks.across((0, 1), 0)] += counted.tied_bytes()
        assert sent == expected
        assert {traces.bytes_per_group[traces.ranks.groups[ranks]] for ranks in sent} == set(sent.values())


def test_collectives_have_the_kinds_of_their_plan():
    kinds = {
        name: {node.said["comm_type"] for nodes in exported(name)[2].values() for node in nodes if node.kind == 7}
        for name in ("dense", "experts", "zero 3", "tied")
    }
    all_reduce, all_gather, all_to_all, reduce_scatter = 0, 2, 6, 7
    assert kinds["zero 3"] == {all_gather, reduce_scatter}
    assert kinds["dense"] >= {all_gather, reduce_scatter}
    assert all_to_all in kinds["experts"]
    assert all_reduce in kinds["tied"]


def test_groups_partition_the_ranks():
    task, traces, _ = exported("dense", "all")
    groups = traces.groups()
    assert [0, 1] in groups.values()
    assert [0, 2] in groups.values()
    by_size = Counter()
    for ranks in groups.values():
        assert ranks == sorted(set(ranks))
        by_size[len(ranks)] += len(ranks)
    assert all(total % task.plan.chips == 0 for total in by_size.values())
    assert "0" not in groups


def test_stages_inside_replicas_have_neighbouring_ranks():
    document = PLANS["dense"] | {"plan": PLANS["dense"]["plan"] | {"axis_order": "tp-cp-pp-dp"}}
    task = task_of(document, "inside.yaml")
    ranks = PlanRanks(task.plan, {"tensor": 2, "data": 2})
    assert [[ranks.rank(stage, place) for place in range(4)] for stage in (0, 1)] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert ranks.along(1, 3, ["data"]) == (3, 7)
    assert ranks.along(0, 2, ["tensor"]) == (4, 5)


def test_all_ranks_of_a_stage_have_the_same_work():
    _, distinct, by_rank = exported("dense")
    _, traces, every_rank = exported("dense", "all")
    assert len(traces.files) == 8
    assert traces.num_nodes == 4 * distinct.num_nodes
    for file in traces.files:
        first = by_rank[traces.ranks.rank(file.stage, 0)]
        assert [n.name for n in first] == [n.name for n in every_rank[file.rank]]
        assert [n.said.get("comm_size") for n in first] == [n.said.get("comm_size") for n in every_rank[file.rank]]


# -- limits and the command


@pytest.mark.parametrize(
    ("limit", "words"), [("MOST_FILES", "files"), ("MOST_TASKS", "tasks"), ("MOST_NODES", "nodes")]
)
def test_too_much_is_refused(monkeypatch, limit, words):
    monkeypatch.setattr(chakra_trace, limit, 1)
    task = task_of(PLANS["dense"], "dense.yaml")
    with pytest.raises(InputError, match=f"{words}, more than 1"):
        chakra_traces(task.plan, task.job, task.cluster, task.framework)


@pytest.fixture
def plan_file(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLANS["dense"]))
    return path


@pytest.fixture
def run(capsys):
    """Runs the command; its exit code and what it printed."""

    def call(*arguments: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["export", *map(str, arguments), "--to", "chakra"])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out + printed.err

    return call


def test_the_command_writes_a_folder(run, plan_file, tmp_path):
    out = tmp_path / "traces"
    code, printed = run(plan_file, "--out", out, "--json")
    assert code == 0, printed
    answer = json.loads(printed)
    assert answer["files"] == ["trace.0.et", "trace.4.et"]
    assert {path.name for path in out.iterdir()} == {*answer["files"], "comm_groups.json", "index.json"}
    index = json.loads((out / "index.json").read_text())
    assert index["bytes_per_group"] == answer["bytes_per_group"]
    assert set(json.loads((out / "comm_groups.json").read_text())) == set(answer["bytes_per_group"])
    assert [stage["same_work"] for stage in index["stages"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert sum(stage["nodes"] for stage in index["stages"]) == answer["nodes"]


def test_a_folder_with_files_needs_force(run, plan_file, tmp_path):
    out = tmp_path / "traces"
    assert run(plan_file, "--out", out, "--ranks", "all")[0] == 0
    code, printed = run(plan_file, "--out", out)
    assert code == 2
    assert "--force" in printed
    assert run(plan_file, "--out", out, "--force")[0] == 0
    assert len(list(out.glob("*.et"))) == 2, "a file of the first export is left"


def test_a_folder_has_to_be_named(run, plan_file, tmp_path):
    code, printed = run(plan_file)
    assert code == 2
    assert "--out: is missing" in printed
    assert run(plan_file, "--out", plan_file)[0] == 2
    assert run(plan_file, "--out", tmp_path / "no" / "where")[0] == 2
