"""Outputs of nccl-tests: every layout its versions print, made up numbers, wrong text by one sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.accuracy.nccl_tests import MAX_FILE_BYTES, parse_nccl_tests, read_nccl_tests
from dovetail.errors import InputError
from dovetail.layout import CollectiveKind as Kind

FACTORS = {"all_reduce": lambda n: 2 * (n - 1) / n, "sendrecv": lambda _: 1.0}
H100 = "NVIDIA H100 80GB HBM3"


def output(
    program="all_reduce", hosts=("node1",), per_host=8, device=H100, announce=True, old=False,
    sizes=(0, 1024, 2**20, 2**30), wrong="0", rate=100.0,
):  # fmt: skip
    """What a program prints: out of place at `rate` GB/s, in place twice as fast."""
    ranks = len(hosts) * per_host
    factor = FACTORS.get(program, lambda n: (n - 1) / n)(ranks)
    lines = []
    if announce:
        lines += ["# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807"]
        lines += [f"# Collective test starting: {program}_perf"]
    lines += [
        f"# nThread 1 nGpus {per_host} minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20",
        "#",
        "# Using devices",
    ]
    for i in range(ranks):
        group = "" if old else " Group  0"
        bus = "[0x07]" if old else "[0000:07:00]"
        host = hosts[i // per_host]
        lines += [f"#  Rank {i:2}{group} Pid {4000 + i:6} on {host:>10} device {i % per_host:2} {bus} {device}"]
    lines += [
        "NCCL version 2.28.3+cuda12.9",
        "node1:4000:4100 [0] NCCL INFO 24 coll channels, 24 nvls channels",
        "#                                                        out-of-place                       in-place",
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
    ]
    redop = "sum" if program in ("all_reduce", "reduce_scatter") else "none"
    for size in sizes:
        root = "" if old else "     -1"
        time = size / rate / 1e3
        bad = "5e-07" if old else wrong
        cells = f"{time:8.2f} {rate:7.2f} {rate * factor:7.2f} {bad:>6}" if size else "    5.70    0.00    0.00      0"
        inner = f"{time / 2:8.2f} {2 * rate:7.2f} {2 * rate * factor:7.2f} {'N/A':>6}" if size else cells
        lines += [f"{size:12} {size // 4:13} {'float':>9} {redop:>7}{root} {cells} {inner}"]
    lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 123.4", "#", ""]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ("all_reduce", Kind.ALL_REDUCE),
        ("all_gather", Kind.ALL_GATHER),
        ("reduce_scatter", Kind.REDUCE_SCATTER),
        ("alltoall", Kind.ALL_TO_ALL),
    ],
)
def test_every_program(program, kind):
    timings = parse_nccl_tests(output(program), "output")
    assert [t.size_bytes for t in timings] == [1024, 2**20, 2**30]
    assert {(t.chip, t.kind, t.chips, t.nodes) for t in timings} == {("h100-sxm", kind, 8, 1)}
    assert timings[-1].seconds == pytest.approx(2**30 / 100e9, rel=1e-4)
    in_place = parse_nccl_tests(output(program), "output", in_place=True)
    assert in_place[-1].seconds == pytest.approx(2**30 / 200e9, rel=1e-4)


def test_a_send_to_the_next_chip():
    inside = parse_nccl_tests(output("sendrecv"), "output")[-1]
    assert (inside.kind, inside.chips, inside.nodes, inside.size_bytes) == (Kind.PERMUTE, 2, 1, 2.0**31)
    across = parse_nccl_tests(output("sendrecv", hosts=("a", "b")), "output")[-1]
    assert (across.chips, across.nodes) == (2, 2)


def test_nodes_and_their_network():
    text = output(hosts=("a", "b", "c", "d"))
    timing = parse_nccl_tests(text, "output", network_gbps_per_node=3200)[-1]
    assert (timing.chips, timing.nodes, timing.network_bytes_per_s) == (32, 4, 50e9)
    assert parse_nccl_tests(text, "output")[-1].network_bytes_per_s is None


def test_old_versions_without_announcement_groups_or_root():
    timings = parse_nccl_tests(output("all_gather", announce=False, old=True), "all_gather_8.log")
    assert {(t.kind, t.chips) for t in timings} == {(Kind.ALL_GATHER, 8)}


@pytest.mark.parametrize(
    ("program", "kind"),
    [("all_reduce", Kind.ALL_REDUCE), ("reduce_scatter", Kind.REDUCE_SCATTER), ("sendrecv", Kind.PERMUTE)],
)
def test_bandwidths_tell_the_operation(program, kind):
    assert parse_nccl_tests(output(program, announce=False), "output")[0].kind is kind


@pytest.mark.parametrize("program", ["all_gather", "alltoall"])
def test_a_gather_is_not_taken_for_an_exchange(program):
    with pytest.raises(InputError, match="does not say which operation"):
        parse_nccl_tests(output(program, announce=False), "output")
    got = parse_nccl_tests(output(program, announce=False), "output", operation=f"{program}_perf")
    assert got == parse_nccl_tests(output(program), "output")


def test_several_outputs_in_a_row(tmp_path):
    path = tmp_path / "all.txt"
    path.write_text(output("all_gather") + output("alltoall", per_host=4, device="NVIDIA A100-SXM4-80GB") + output())
    got = [(t.chip, t.kind, t.chips) for t in read_nccl_tests(path)]
    expected = [("h100-sxm", Kind.ALL_GATHER, 8), ("a100-80gb", Kind.ALL_TO_ALL, 4), ("h100-sxm", Kind.ALL_REDUCE, 8)]
    assert list(dict.fromkeys(got)) == expected
    assert len(got) == 9


@pytest.mark.parametrize("label", ["[1,0]<stdout>:", "0: "])
def test_labels_of_launchers(label):
    labelled = "\n".join(label + line for line in output().splitlines())
    assert parse_nccl_tests(labelled, "output") == parse_nccl_tests(output(), "output")


def test_a_chip_the_driver_names_differently():
    text = output(device="NVIDIA Graphics Device")
    assert parse_nccl_tests(text, "output", chip="b200")[0].chip == "b200"


@pytest.mark.parametrize(
    ("text", "options", "part"),
    [
        ("", {}, "holds no results"),
        ("hello\n1 2 3\n", {}, "holds no results"),
        (output(sizes=()), {}, "holds no results"),
        (output(device="NVIDIA L4"), {}, "which is not in the catalogue"),
        (output().replace(H100, "NVIDIA H200", 1), {}, "of one kind"),
        (output(), {"chip": "h1000"}, "chip: is 'h1000'"),
        (output(), {"operation": "broadcast"}, "operation: is 'broadcast'"),
        (output(), {"network_gbps_per_node": -1.0}, "network_gbps_per_node"),
        (output(program="broadcast"), {}, "measures 'broadcast'"),
        (output(wrong="3"), {}, "wrong values"),
        (output(hosts=("a", "b"), per_host=9), {}, "num_chips"),
        (output(per_host=1), {}, "num_chips"),
        ("\n".join(x for x in output().splitlines() if "Rank" not in x), {}, "without a list of ranks"),
        (output(sizes=(2**20,)).replace("10.49", "-10.5"), {}, "time: is -10.5"),
        (output(sizes=(2**20,)).replace("10.49", "inf"), {}, "time: is inf"),
        (output(sizes=(2**20,)).replace("10.49", "fast"), {}, "'fast'"),
        (output(sizes=(2**60,)), {}, "size: is"),
        (output(sizes=(2**20,)).replace("N/A", ""), {}, "columns"),
    ],
)
def test_wrong_text_gets_one_sentence(text, options, part):
    if "columns" in part:
        text = text.replace("     -1", "").replace("sum", "")
    with pytest.raises(InputError) as caught:
        parse_nccl_tests(text, "output", **options)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_files_get_one_sentence(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_nccl_tests(tmp_path / "none.txt")
    with pytest.raises(InputError, match="cannot be read"):
        read_nccl_tests(tmp_path)
    large = tmp_path / "large.txt"
    large.write_bytes(b" " * (MAX_FILE_BYTES + 1))
    with pytest.raises(InputError, match="more than"):
        read_nccl_tests(large)
    torn = tmp_path / "all_reduce.txt"
    torn.write_bytes(b"\xff\xfe\n" + output().encode())
    assert len(read_nccl_tests(torn)) == 3


@given(st.lists(st.tuples(st.integers(0, 5000), st.sampled_from("x9 \n#-\0\u0661")), max_size=5), st.integers(0, 5000))
def test_damaged_text_never_breaks_the_reader(changes, end):
    text = list(output())
    for place, character in changes:
        text[place % len(text)] = character
    damaged = "".join(text[: max(end, 1)])
    sentence = ""
    try:
        timings = parse_nccl_tests(damaged, "all_reduce.txt")
    except InputError as error:
        timings, sentence = (), str(error)
    assert "\n" not in sentence
    assert all(t.seconds > 0 for t in timings)
