"""One field of a valid plan file made wrong: always one sentence that names it, and at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path as FilePath
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from dovetail.errors import InputError
from dovetail.plans.plan_file import Task, load_task, task_of
from dovetail.step.evaluate import evaluate
from made_wrong import Path, changed, nodes, replaced
from timing import within
from valid_plans import EXPERTS, GPT, PLAN_FILES, Document, model, with_changes

NUMBERS = st.integers() | st.floats()
MAPPINGS = st.dictionaries(st.text(max_size=5), st.integers(), min_size=1, max_size=3)
#: Beyond every bound: sequences end at 2^40 tokens, all other counts earlier.
HUGE = st.integers(min_value=2**41, max_value=10**40)
WRONG_COUNTS = (
    st.integers(max_value=-1) | HUGE | st.floats() | st.booleans() | st.text(max_size=20) | MAPPINGS | st.just([1])
)
WRONG_SHARES = st.sampled_from([0.0, -0.5, 1.5, 2, 10**400, float("nan"), float("inf"), "half", True, [0.5]])
WRONG_FLAGS = NUMBERS | st.text(max_size=20) | MAPPINGS | st.just([True])
UNKNOWN_WORDS = NUMBERS | st.sampled_from(["nonsense", "", "1F1B", "adamW ", "x" * 2000, "a\nb", "\x1b[31m"]) | MAPPINGS
WRONG_LISTS = NUMBERS | st.text(max_size=20) | MAPPINGS | st.just([[]])
WRONG_PARTS = NUMBERS | st.text(max_size=20) | st.lists(st.integers(), max_size=3)

#: Fields that may be left out, so that nothing in their place is right.
OPTIONAL = {
    "data_parallel", "zero_group", "expert_tensor_parallel", "pipeline_schedule", "layers_per_stage",
    "name", "chip", "chips", "tiers", "size", "technology",
}  # fmt: skip
#: What a described chip and its tiers may hold is tested with the hardware files.
OTHERS = {"model", "chip"}


def field_of(path: Path) -> str:
    """The name the sentence must hold: of the field, or of the list an entry stands in."""
    return next(part for part in reversed(path) if isinstance(part, str))


def as_task(document: Document) -> Task:
    return task_of(document, "case.yaml")


def read(path: FilePath) -> None:
    with suppress(InputError):
        load_task(path)


def refused_at_once(refusal: Callable[..., str], document: Document) -> str:
    with within(1):
        sentence = refusal(as_task, document)
    assert len(sentence) < 1000
    assert sentence.startswith("case.yaml: ")
    return sentence


def wrong(path: Path, value: Any) -> st.SearchStrategy[Any]:
    """Values that are wrong for a field, judged by the right one it has."""
    field = path[-1]
    match value:
        case bool():
            found = WRONG_FLAGS
        case int() if field == "zero_stage":
            found = WRONG_COUNTS | st.integers(min_value=4)
        case int() if "layers_per_stage" in path:
            found = WRONG_COUNTS | st.integers(min_value=9)
        case int():
            found = WRONG_COUNTS | st.just(0)
        case float():
            found = WRONG_SHARES
        case str() if field in ("bytes_per_s", "latency_s"):
            found = st.sampled_from(["", "many", "-3 GB/s", "80 apples", -1, True, [1]]) | MAPPINGS
        case str() if "tiers" in path and field == "name":
            found = st.sampled_from(["", "two words", "-", "x" * 101, "a\nb", 3]) | MAPPINGS
        case str():
            found = UNKNOWN_WORDS
        case list():
            found = WRONG_LISTS
        case _:
            found = WRONG_PARTS
    return found if field in OPTIONAL else found | st.none()


FILES = st.sampled_from(sorted(PLAN_FILES)).map(PLAN_FILES.__getitem__)


@st.composite
def wrong_files(draw: st.DrawFn) -> tuple[Document, str]:
    """A plan file with one wrong value, and the name of its field."""
    document = draw(FILES)
    path, value = draw(st.sampled_from([n for n in nodes(document, whole=OTHERS) if n[0][-2:-1] != ("tiers",)]))
    new = draw(wrong(path, value))
    assume(new != value or type(new) is not type(value))
    return replaced(document, path, new), field_of(path)


@st.composite
def incomplete_files(draw: st.DrawFn) -> tuple[Document, str]:
    """A plan file without a field it needs."""
    document = draw(FILES)
    path: Path = draw(st.sampled_from([("job",), ("cluster",), *(("job", n) for n in REQUIRED_OF_JOB)]))
    return changed(document, path, lambda container, name: container.pop(name)), str(path[-1])


REQUIRED_OF_JOB = ("model", "seq_len", "global_batch")


@st.composite
def misspelt_files(draw: st.DrawFn) -> tuple[Document, str, str]:
    """A plan file with one field under a slightly wrong name; the wrong and the right name."""
    document = draw(FILES)
    path = draw(st.sampled_from([path for path, _ in nodes(document, whole=OTHERS) if isinstance(path[-1], str)]))
    right = str(path[-1])
    at = draw(st.integers(min_value=0, max_value=len(right) - 1))
    word = draw(st.sampled_from([right[:at] + right[at] + right[at:], right[:at] + "x" + right[at:], right.upper()]))

    def rename(container: Document, name: str) -> None:
        container[word] = container.pop(name)

    return changed(document, path, rename), word, right


@st.composite
def overfull_files(draw: st.DrawFn) -> tuple[Document, str]:
    """A plan file with a field no part of it has."""
    document = draw(FILES)
    part = draw(st.sampled_from([(), ("job",), ("cluster",), ("plan",)]))
    name = draw(st.sampled_from(["colour", "tp", "tensor_model_parallel_size", "x", "__class__", "batch"]))
    value = draw(st.none() | NUMBERS | st.text(max_size=10) | MAPPINGS)
    return replaced(document, (*part, name), value), name


@pytest.mark.parametrize("name", PLAN_FILES)
def test_the_unchanged_plan_files_are_right(name):
    task = as_task(PLAN_FILES[name])
    assert evaluate(task.plan, task.job, task.cluster, task.framework).step_time_s > 0


@given(case=wrong_files())
def test_a_wrong_value(case, refusal):
    document, field = case
    assert field in refused_at_once(refusal, document)


@given(case=incomplete_files())
def test_a_missing_field(case, refusal):
    document, field = case
    assert field in refused_at_once(refusal, document)


@given(case=misspelt_files())
def test_a_misspelt_field(case, refusal):
    document, word, right = case
    sentence = refused_at_once(refusal, document)
    assert word in sentence
    assert right in sentence


@given(case=overfull_files())
def test_an_unknown_field(case, refusal):
    document, field = case
    assert field in refused_at_once(refusal, document)


DEGREES = ("tensor_parallel", "pipeline_parallel", "context_parallel")


@st.composite
def files_that_do_not_add_up(draw: st.DrawFn) -> tuple[Document, str]:
    """Values that are right alone and contradict the chips, the batch or the layers."""
    document = draw(FILES)
    task = as_task(document)
    plan, chips, batch = task.plan, task.cluster.chips, task.job.global_batch
    number = draw(st.integers(min_value=2, max_value=2**20))
    field = draw(st.sampled_from([*DEGREES, "data_parallel", "micro_batch", "zero_group", "layers_per_stage"]))
    if field in DEGREES:
        assume(chips % (plan.tensor_parallel * plan.pipeline_parallel * plan.context_parallel
                        // getattr(plan, field) * number))  # fmt: skip
        return with_changes(document, plan={field: number, "data_parallel": None}), field
    if field == "data_parallel":
        assume(number != plan.data_parallel)
    if field == "micro_batch":
        assume(batch % (number * plan.data_parallel))
    if field == "zero_group":
        assume(plan.data_parallel * plan.context_parallel % number)
    value: Any = number
    if field == "layers_per_stage":
        value = draw(wrong_stages(plan.layers_per_stage))
    return with_changes(document, plan={field: value}), field


@st.composite
def wrong_stages(draw: st.DrawFn, right: tuple[int, ...]) -> list[int]:
    """Layers per stage of a wrong length or sum, or with an empty stage in the middle."""
    stages = list(right)
    at = draw(st.integers(min_value=0, max_value=len(stages) - 1))
    match draw(st.sampled_from(["longer", "shorter", "more", "hole"])):
        case "longer":
            stages.insert(at, draw(st.integers(min_value=0, max_value=9)))
        case "shorter":
            stages.pop(at)
        case "more":
            stages[at] += draw(st.integers(min_value=1, max_value=2**20))
        case _:
            assume(len(stages) > 2)
            inner = 1 + at % (len(stages) - 2)
            stages[0] += stages[inner]
            stages[inner] = 0
    return stages


@given(case=files_that_do_not_add_up())
def test_degrees_that_contradict_chips_batch_or_layers(case, refusal):
    document, field = case
    assert field in refused_at_once(refusal, document)


def laid_out(job: Document, chips: int, **plan: Any) -> Document:
    """A plan file for so many chips in which nothing else can be wrong: a switch joins any number of them."""
    tiers = [{"name": "switch", "topology": "switch", "bytes_per_s": "100 GB/s", "latency_s": "1 us"}]
    cluster = {"chip": "h100-sxm", "chips": chips, "framework": "ideal"}
    if chips > 1:
        cluster["tiers"] = tiers
    return {"job": {"seq_len": 2048, "global_batch": 64} | job, "cluster": cluster, "plan": plan}


SMALL = st.integers(min_value=2, max_value=48)


@st.composite
def files_that_do_not_divide(draw: st.DrawFn) -> tuple[Document, str]:
    """Degrees that fit the chips and do not divide what they cut in the model."""
    degree, heads = draw(SMALL), draw(st.integers(min_value=1, max_value=32))
    stages = draw(st.sampled_from([1, 2, 4]))
    plan: Document
    match draw(st.sampled_from(["heads", "columns", "tokens", "gathered", "ulysses", "experts", "expert columns"])):
        case "heads":
            group = draw(st.sampled_from([1, 2, 4]))
            assume(heads * group % degree)
            mixer = {"kind": "attention", "heads": heads * group, "kv_heads": heads, "head_dim": 16}
            job = {"model": model(8, mixer=mixer, feed_forward={"kind": "dense", "size": 64 * degree})}
            plan, field = {"tensor_parallel": degree}, "tensor_parallel"
        case "columns":
            mixer = {"kind": "attention", "heads": degree, "kv_heads": degree, "head_dim": 16}
            job = {"model": model(8, mixer=mixer, feed_forward={"kind": "dense", "size": 64 * degree + 1})}
            plan, field = {"tensor_parallel": degree}, "tensor_parallel"
        case "tokens":
            length = draw(st.integers(min_value=1, max_value=10**6))
            assume(length % degree)
            job, field = {"model": model(8), "seq_len": length}, "context_parallel"
            kind = draw(st.sampled_from(["all_gather", "ring", "ulysses"]))
            plan = {"context_parallel": degree, "context_kind": kind}
        case "gathered":
            job = {"model": model(8), "seq_len": 8 * draw(SMALL) + 1}
            plan, field = {"tensor_parallel": 8, "sequence_parallel": True}, "sequence_parallel"
        case "ulysses":
            assume(16 % degree)
            job = {"model": GPT, "seq_len": degree}
            plan, field = {"context_parallel": degree, "context_kind": "ulysses"}, "context_parallel"
        case "experts":
            job = {"model": model(8, feed_forward=EXPERTS | {"experts": 4 * degree + 1})}
            chips = stages * degree
            plan = {"pipeline_parallel": stages, "expert_parallel": degree}
            return laid_out(job | {"global_batch": degree}, chips, **plan), "expert_parallel"
        case _:
            job = {"model": model(8, feed_forward=EXPERTS | {"size": 64 * 8 + 4})}
            plan, field = {"tensor_parallel": 8}, "expert_tensor_parallel"
    chips = stages * plan.get("tensor_parallel", 1) * plan.get("context_parallel", 1)
    return laid_out(job, chips, pipeline_parallel=stages, **plan), field


@given(case=files_that_do_not_divide())
def test_degrees_that_do_not_divide_what_they_cut(case, refusal):
    document, field = case
    assert f"plan.{field}" in refused_at_once(refusal, document)


@st.composite
def files_whose_groups_do_not_nest(draw: st.DrawFn) -> tuple[Document, str]:
    """Experts, tensor- and data-parallel chips in groups that cut across each other."""
    tensor, context, data = (draw(st.sampled_from([1, 2, 3, 4, 6, 8])) for _ in range(3))
    expert, inner = draw(SMALL), draw(st.sampled_from([1, 2, 3, 4]))
    stage = tensor * context * data
    ends = sorted({1, tensor, tensor * context, stage, inner, inner * expert})
    assume(stage % (inner * expert) or any(high % low for low, high in pairwise(ends)))
    job = {
        "model": model(8, feed_forward=EXPERTS | {"experts": 16 * expert, "size": 24 * tensor}),
        "global_batch": data,
    }
    plan = {
        "tensor_parallel": tensor, "context_parallel": context, "expert_parallel": expert,
        "expert_tensor_parallel": inner,
    }  # fmt: skip
    return laid_out(job, stage, **plan), "expert"


@given(case=files_whose_groups_do_not_nest())
def test_groups_of_chips_that_do_not_nest(case, refusal):
    document, field = case
    assert field in refused_at_once(refusal, document)


@given(
    name=st.sampled_from(sorted(PLAN_FILES)),
    cut=st.floats(min_value=0, max_value=1),
    noise=st.text(max_size=5) | st.sampled_from(["- ", "{", "&a *a", "!!x ", ": ", "\t", "\x00", "'", "|"]),
)
def test_a_damaged_file_is_read_or_refused(name, cut, noise, tmp_path_factory):
    text = yaml.safe_dump(PLAN_FILES[name], sort_keys=False)
    at = round(cut * len(text))
    path = tmp_path_factory.getbasetemp() / "case.yaml"
    path.write_text(text[:at] + noise + text[at + len(noise) :], encoding="utf-8", errors="replace")
    with within(1):
        read(path)
