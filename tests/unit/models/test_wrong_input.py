"""One field of a valid model file or config made wrong: always one sentence that names it, and at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from valid_documents import (
    CONFIGS,
    MODEL_FILES,
    REQUIRED_IN_CONFIGS,
    REQUIRED_IN_FILES,
    ZERO_IN_CONFIGS,
    Document,
)

from dovetail.documents import validate
from dovetail.models import Model, summarise
from dovetail.models.huggingface import import_config
from made_wrong import Path, changed, nodes, replaced
from timing import least_cpu_seconds, within

#: Beyond every bound: sequences end at 2^40 tokens, all other sizes earlier.
HUGE = st.integers(min_value=2**41, max_value=10**40)
NUMBERS = st.integers() | st.floats()
MAPPINGS = st.dictionaries(st.text(max_size=5), st.integers(), min_size=1, max_size=3)
WRONG_SIZES = st.integers(max_value=-2) | HUGE | st.floats() | st.booleans() | st.text(max_size=20) | MAPPINGS
WRONG_FLAGS = NUMBERS | st.text(max_size=20) | MAPPINGS | st.just([True])
WRONG_NAMES = NUMBERS | st.sampled_from(["", "two words", "-", "x" * 101, "a\nb", "\x1b[31m"]) | MAPPINGS
UNKNOWN_WORDS = NUMBERS | st.sampled_from(["nonsense", "", "Attention", "swigluu", "x" * 200, "a\nb"]) | MAPPINGS
WRONG_LISTS = NUMBERS | st.text(max_size=20) | MAPPINGS
WRONG_PARTS = NUMBERS | st.text(max_size=20) | st.lists(st.integers(), max_size=3)

FILE_NAMES = {"name", "block"}
FILE_TEXTS = {"source", "note"}


def removed(document: Document, path: Path) -> Document:
    return changed(document, path, lambda container, name: container.pop(name))


def field_of(path: Path) -> str:
    """The name the sentence must hold: of the field, or of the list an entry stands in."""
    return next(part for part in reversed(path) if isinstance(part, str))


def refused_at_once(refusal: Callable[..., str], function: Callable[..., Any], *args: Any) -> str:
    with within(1):
        sentence = refusal(function, *args)
    assert len(sentence) < 1000
    return sentence


def wrong_in_file(path: Path, value: Any) -> st.SearchStrategy[Any]:
    """Values that are wrong for a field of a model file, judged by the right one it has."""
    field = path[-1]
    match value:
        case bool():
            wrong = WRONG_FLAGS
        case int():
            wrong = WRONG_SIZES | st.sampled_from([-1, 0]) | st.just([1])
        case float():
            wrong = st.floats(max_value=0) | st.sampled_from([float("nan"), float("inf"), 10**400, "1", True, [1.0]])
        case str() if field in FILE_TEXTS:
            wrong = NUMBERS | MAPPINGS | st.just("x" * 2001) | st.none()
        case str() if field in FILE_NAMES or isinstance(field, int):
            wrong = WRONG_NAMES | st.just("unknown" if field != "name" else "two words")
        case str():
            wrong = UNKNOWN_WORDS
        case list():
            wrong = WRONG_LISTS | st.sampled_from([[], [3], [None], [[]]])
        case _:
            wrong = WRONG_PARTS
    nothing = field in REQUIRED_IN_FILES or isinstance(value, bool)
    return wrong | st.none() if nothing else wrong


@st.composite
def wrong_files(draw: st.DrawFn) -> tuple[Document, str]:
    """A model file with one wrong value, and the name of its field."""
    document = MODEL_FILES[draw(st.sampled_from(sorted(MODEL_FILES)))]
    path, value = draw(st.sampled_from(list(nodes(document))))
    return replaced(document, path, draw(wrong_in_file(path, value))), field_of(path)


@st.composite
def incomplete_files(draw: st.DrawFn) -> tuple[Document, str]:
    """A model file without one field it needs."""
    document = MODEL_FILES[draw(st.sampled_from(sorted(MODEL_FILES)))]
    needed = [path for path, _ in nodes(document) if path[-1] in REQUIRED_IN_FILES]
    if len(document["blocks"]) > 1:
        needed += [("blocks", name) for name in document["blocks"]]
    path = draw(st.sampled_from(needed))
    return removed(document, path), field_of(path)


@st.composite
def misspelt_files(draw: st.DrawFn) -> tuple[Document, str, str]:
    """A model file with one field under a slightly wrong name; the wrong and the right name."""
    document = MODEL_FILES[draw(st.sampled_from(sorted(MODEL_FILES)))]
    named = [path for path, _ in nodes(document) if isinstance(path[-1], str) and path[:-1] != ("blocks",)]
    path = draw(st.sampled_from(named))
    right = str(path[-1])
    at = draw(st.integers(min_value=0, max_value=len(right) - 1))
    wrong = draw(st.sampled_from([right[:at] + right[at] + right[at:], right[:at] + "x" + right[at:], right.upper()]))

    def rename(container: Document, name: str) -> None:
        container[wrong] = container.pop(name)

    return changed(document, path, rename), wrong, right


@st.composite
def overfull_files(draw: st.DrawFn) -> tuple[Document, str]:
    """A model file with a field no part of it has."""
    document = MODEL_FILES[draw(st.sampled_from(sorted(MODEL_FILES)))]
    parts = [path for path, value in nodes(document) if isinstance(value, dict) and path != ("blocks",)]
    path = draw(st.sampled_from([(), *parts]))
    name = draw(st.sampled_from(["colour", "rope_theta", "hidden_size", "x", "__class__", "kind_"]))
    value = draw(st.none() | NUMBERS | st.text(max_size=10) | MAPPINGS)
    return replaced(document, (*path, name), value), name


def as_file(document: Document) -> Model:
    return validate(Model, document, "model.yaml")


def as_config(document: Document) -> Model:
    return import_config(document, "config.json")


@pytest.mark.parametrize("name", MODEL_FILES)
def test_the_unchanged_model_files_are_right(name):
    assert summarise(as_file(MODEL_FILES[name])).parameters > 0


@pytest.mark.parametrize("name", CONFIGS)
def test_the_unchanged_configs_are_right(name):
    assert summarise(as_config(CONFIGS[name])).parameters > 0


@settings(max_examples=max(600, settings().max_examples))
@given(case=wrong_files())
def test_a_wrong_value_in_a_model_file(case, refusal):
    document, field = case
    sentence = refused_at_once(refusal, as_file, document)
    assert sentence.startswith("model.yaml: ")
    assert field in sentence


@given(case=incomplete_files())
def test_a_missing_field_in_a_model_file(case, refusal):
    document, field = case
    assert field in refused_at_once(refusal, as_file, document)


@settings(max_examples=max(600, settings().max_examples))
@given(case=misspelt_files())
def test_a_misspelt_field_in_a_model_file(case, refusal):
    document, wrong, right = case
    sentence = refused_at_once(refusal, as_file, document)
    assert right == "kind" or wrong in sentence
    assert right in sentence


@given(case=overfull_files())
def test_an_unknown_field_in_a_model_file(case, refusal):
    document, field = case
    assert field in refused_at_once(refusal, as_file, document)


def wrong_in_config(path: Path, value: Any) -> st.SearchStrategy[Any]:
    """Values that are wrong for a field of a config; null is none of them, it means the default."""
    match value:
        case bool():
            return WRONG_FLAGS
        case int():
            low = [] if path[-1] in ZERO_IN_CONFIGS or isinstance(path[-1], int) else [0]
            return WRONG_SIZES | st.just([1]) | st.sampled_from([-2, *low])
        case float():
            share = st.floats(max_value=0, exclude_max=True) | st.floats(min_value=1, exclude_min=True)
            return share | st.sampled_from([float("nan"), 10**400, True, "0.1", [0.1]])
        case str() if path[-1] == "hybrid_override_pattern":
            return NUMBERS | MAPPINGS | st.sampled_from(["", "MX", "M" * 100_001])
        case str():
            return UNKNOWN_WORDS | st.just([]) | (st.just([value]) if isinstance(path[-1], int) else st.just(["silu"]))
        case list():
            short = [] if path[-1] in ("mlp_only_layers", "full_attn_layers") else [value[:-1]]
            # published Llama 4 configs leave this list empty
            short += [[]] if short and path[-1] != "no_rope_layers" else []
            return WRONG_LISTS | st.sampled_from([[["nested"]] * len(value), [None] * len(value), *short])
        case _:
            return WRONG_PARTS


@st.composite
def wrong_configs(draw: st.DrawFn) -> tuple[Document, str]:
    """A config with one wrong value, and the name of its field."""
    document = CONFIGS[draw(st.sampled_from(sorted(CONFIGS)))]
    outer = "text_config" in document
    path, value = draw(st.sampled_from([n for n in nodes(document) if not outer or n[0] != ("model_type",)]))
    return replaced(document, path, draw(wrong_in_config(path, value))), field_of(path)


@st.composite
def incomplete_configs(draw: st.DrawFn) -> tuple[Document, str]:
    """A config without one field it needs, or with null in its place."""
    name = draw(
        st.sampled_from(sorted(n for n, fields in REQUIRED_IN_CONFIGS.items() if "text_config" not in CONFIGS[n]))
    )
    field = draw(st.sampled_from(sorted(REQUIRED_IN_CONFIGS[name])))
    if draw(st.booleans()):
        return removed(CONFIGS[name], (field,)), field
    return replaced(CONFIGS[name], (field,), None), field


@pytest.mark.parametrize("name", CONFIGS)
def test_every_field_of_a_config_is_read(name, refusal):
    for path, value in nodes(CONFIGS[name]):
        if path != ("model_type",) or "text_config" not in CONFIGS[name]:
            wrong = 3 if isinstance(value, dict) else {"not": "this"}
            assert field_of(path) in refused_at_once(refusal, as_config, replaced(CONFIGS[name], path, wrong))


@settings(max_examples=max(600, settings().max_examples))
@given(case=wrong_configs())
def test_a_wrong_value_in_a_config(case, refusal):
    document, field = case
    sentence = refused_at_once(refusal, as_config, document)
    assert sentence.startswith("config.json: ")
    assert field in sentence


@given(case=incomplete_configs())
def test_a_missing_field_in_a_config(case, refusal):
    document, field = case
    assert field in refused_at_once(refusal, as_config, document)


INDEXER = {"heads": 4, "head_dim": 8, "top_k": 16}

#: Values that are right alone and wrong beside the others: file, where, value, what the sentence must name.
FILE_RELATIONS = [
    ("dense", ("blocks", "full", "mixer", "kv_heads"), 3, "blocks.full.mixer.kv_heads"),
    ("dense", ("blocks", "full", "shared_norm"), True, "blocks.full.shared_norm"),
    ("dense", ("blocks", "local", "norm_position"), "after", "blocks.local.parallel"),
    ("dense", ("blocks", "local", "mixer", "chunk"), 64, "blocks.local.mixer.chunk"),
    ("dense", ("blocks", "spare"), {"feed_forward": {"kind": "dense", "size": 8}}, "blocks.spare"),
    ("dense", ("blocks", "head"), {"feed_forward": {"kind": "dense", "size": 8}}, "blocks.head"),
    ("dense", ("blocks", "full"), {"norm": "rms"}, "blocks.full.mixer"),
    ("dense", ("layers", 0, "repeat"), 50_001, "layers"),
    ("dense", ("layers", 0, "blocks"), ["local", "ful"], "did you mean 'full'"),
    ("mixture", ("blocks", "sparse", "feed_forward", "top_k"), 17, "blocks.sparse.feed_forward.top_k"),
    ("mixture", ("blocks", "sparse", "feed_forward", "top_groups"), 5, "blocks.sparse.feed_forward.top_groups"),
    ("mixture", ("blocks", "sparse", "feed_forward", "shared_size"), None, "blocks.sparse.feed_forward.shared_gate"),
    ("mixture", ("blocks", "sparse", "feed_forward", "groups"), 3, "blocks.sparse.feed_forward.groups"),
    ("mixture", ("blocks", "sparse", "feed_forward", "trained_correction"), True, "trained_correction"),
    ("dense", ("blocks", "local", "feed_forward"), None, "blocks.local.parallel"),
    ("dense", ("blocks", "local", "mixer", "gate_bias"), True, "blocks.local.mixer.gate_bias"),
    ("dense", ("blocks", "local", "mixer", "indexer"), INDEXER, "blocks.local.mixer.indexer"),
    ("dense", ("blocks", "full", "mixer", "indexer"), INDEXER | {"query_from": "latent"}, "indexer.query_from"),
    ("beside", ("blocks", "layer", "feed_forward", "mixture", "shared_size"), 8, "mixture.shared_size"),
    ("beside", ("blocks", "layer", "feed_forward", "mixture", "shared_bias"), True, "mixture.shared_bias"),
    ("encoder", ("max_seq_len",), 513, "max_seq_len"),
    ("latent", ("multi_token_prediction", "block"), "absent", "multi_token_prediction.block"),
    ("latent", ("embedding",), {"width": 64}, "embedding.width"),
    ("gated_delta", ("blocks", "linear", "mixer", "value_heads"), 6, "blocks.linear.mixer.value_heads"),
    ("state_space", ("blocks", "mamba", "mixer", "groups"), 3, "blocks.mamba.mixer.groups"),
    ("beside", ("blocks", "layer", "mixer", "value_dim"), 8, "blocks.layer.mixer.value_dim"),
    ("encoder", ("head", "transform_activation"), "swiglu", "head.transform_activation"),
]

CONFIG_RELATIONS = [
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads"),
    ("llama", {"num_attention_heads": 6, "head_dim": None}, "num_attention_heads"),
    ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
    ("mixtral", {"num_local_experts": 0}, "num_local_experts"),
    ("gpt_oss", {"experts_per_token": 17}, "experts_per_token"),
    ("ernie4_5_moe", {"moe_k": 17}, "moe_k"),
    ("step3p5", {"moe_top_k": 17}, "moe_top_k"),
    ("step3p5", {"num_attention_groups": 5}, "num_attention_groups"),
    ("step3p5", {"num_sliding_attention_heads": 5}, "num_sliding_attention_heads"),
    ("qwen3_next", {"linear_num_key_heads": 3}, "linear_num_key_heads"),
    ("nemotron_h", {"n_groups": 3}, "n_groups"),
    ("granitemoehybrid", {"mamba_n_heads": 15, "mamba_d_head": "auto"}, "mamba_n_heads"),
    ("granitemoehybrid", {"mamba_d_head": 15}, "mamba_d_head"),
    ("mamba2", {"n_groups": 3}, "n_groups"),
    ("gpt2", {"n_head": 7}, "n_head"),
    ("bert", {"num_attention_heads": 7}, "num_attention_heads"),
    ("llama", {"is_encoder_decoder": True}, "is_encoder_decoder"),
    ("llama", {"model_type": "bart", "is_encoder_decoder": True}, "attention from a decoder to an encoder"),
    ("llama", {"model_type": "Llama"}, "did you mean 'llama'"),
    ("llama", {"model_type": "qwen2-moe"}, "did you mean 'qwen2_moe'"),
    ("llama", {"model_type": "lama"}, "did you mean 'llama'"),
    ("llama", {"model_type": "novel"}, "we do not read this family"),
    ("llama", {"text_config": 3}, "text_config"),
]


@pytest.mark.parametrize(("name", "path", "value", "named"), FILE_RELATIONS)
def test_fields_of_a_model_file_that_contradict_each_other(name, path, value, named, refusal):
    assert named in refused_at_once(refusal, as_file, replaced(MODEL_FILES[name], path, value))


@pytest.mark.parametrize(("name", "fields", "named"), CONFIG_RELATIONS)
def test_fields_of_a_config_that_contradict_each_other(name, fields, named, refusal):
    assert named in refused_at_once(refusal, as_config, CONFIGS[name] | fields)


@pytest.mark.parametrize("layers", [10**12, 100_001, 2**63])
def test_more_layers_than_any_model_has_are_refused_before_they_are_built(layers, refusal):
    with within(0.2):
        assert "num_hidden_layers" in refusal(as_config, CONFIGS["llama"] | {"num_hidden_layers": layers})
        assert "repeat" in refusal(as_file, replaced(MODEL_FILES["dense"], ("layers", 0, "repeat"), layers))


def _mixture_of_ten_trillion() -> Document:
    latent = {
        "kind": "latent_attention", "heads": 128, "query_rank": 2048, "kv_rank": 512, "nope_dim": 128,
        "rope_dim": 64, "value_dim": 128,
    }  # fmt: skip
    experts = {"kind": "mixture", "experts": 512, "top_k": 8, "size": 5376, "shared_size": 5376}
    return {
        "name": "mixture-10t", "hidden": 12288, "vocab": 163840,
        "blocks": {"layer": {"mixer": latent, "feed_forward": experts}},
        "layers": [{"blocks": ["layer"], "repeat": 100}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("document", "seq_len", "parameters"),
    [
        (_mixture_of_ten_trillion(), 4096, 10e12),
        (MODEL_FILES["latent"], 2**20, 0),
        (MODEL_FILES["state_space"], 2**20, 0),
        (replaced(MODEL_FILES["dense"], ("layers", 0, "repeat"), 50_000), 8192, 1e9),
        (replaced(MODEL_FILES["dense"], ("layers",), [{"blocks": ["local", "full"] * 50_000}]), 8192, 1e9),
        (replaced(MODEL_FILES["dense"], ("layers",), [{"blocks": [n]} for n in ("local", "full")] * 50_000), 8192, 1e9),
    ],
    ids=["10T parameters", "1M tokens", "1M tokens scanned", "100k layers", "100k names", "100k parts"],
)
def test_a_huge_but_right_model_is_summarised_in_two_seconds(document, seq_len, parameters):
    with within(2):
        summary = summarise(as_file(document), seq_len)
    assert summary.parameters >= parameters
    assert summary.flops_per_token > 6 * summary.hidden


def test_a_config_of_a_hundred_thousand_layers_is_imported_in_two_seconds():
    kinds = ["sliding_attention", "full_attention"] * 50_000

    def imported() -> None:
        model = as_config(CONFIGS["gpt_oss"] | {"num_hidden_layers": 100_000, "layer_types": kinds})
        assert summarise(model).layers == 100_000

    assert least_cpu_seconds(imported, 2) < 2
