"""Published configs of current models: the imported count is transformers' own, or the config is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from huggingface_reference import language_config, reference_parameters

from dovetail.errors import InputError
from dovetail.models import model_graph, prediction_parameters
from dovetail.models.huggingface import from_huggingface

pytestmark = pytest.mark.torch

CONFIGS = Path(__file__).parents[2] / "../shared/data/hf_configs"
FILES = 32
MATCHES = 26

#: Sizes their authors state, for architectures transformers lacks.
PUBLISHED = {"moonshotai__Kimi-K3": 2.8e12}
PUBLISHED_TOLERANCE = 0.01


def outcome(path: Path) -> str:
    """`match`, `refused`, or how the counts differ."""
    try:
        graph = model_graph(from_huggingface(path))
    except InputError as refusal:
        sentence = str(refusal)
        return "refused" if sentence.endswith(".") and "\n" not in sentence else f"no sentence: {sentence!r}"
    ours = graph.parameters() - prediction_parameters(graph)
    config = language_config(json.loads(path.read_text(encoding="utf-8")))
    if config is None:
        expected = PUBLISHED[path.stem]
        near = abs(ours - expected) <= PUBLISHED_TOLERANCE * expected
    else:
        expected = reference_parameters(config)
        near = ours == expected
    return "match" if near else f"{ours} instead of {expected}"


def test_published_configs() -> None:
    if not CONFIGS.is_dir():
        pytest.skip("../shared/data/hf_configs is not beside the repository")
    paths = sorted(CONFIGS.glob("*.json"))
    assert len(paths) == FILES
    outcomes = {path.stem: outcome(path) for path in paths}
    wrong = {name: text for name, text in outcomes.items() if text not in ("match", "refused")}
    assert not wrong
    assert list(outcomes.values()).count("match") >= MATCHES, outcomes
