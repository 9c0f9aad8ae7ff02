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
MATCHES = 29


def outcome(path: Path) -> str:
    """`match`, `refused` where an operator is missing, or how the counts differ."""
    try:
        graph = model_graph(from_huggingface(path))
    except InputError as refusal:
        sentence = str(refusal)
        named = "needs " in sentence and sentence.endswith(".") and "\n" not in sentence
        return "refused" if named else f"no operator named: {sentence!r}"
    ours = graph.parameters() - prediction_parameters(graph)
    config = language_config(json.loads(path.read_text(encoding="utf-8")))
    if config is None:
        return "imported though transformers cannot check it"
    expected = reference_parameters(config)
    return "match" if ours == expected else f"{ours} instead of {expected}"


def test_published_configs() -> None:
    if not CONFIGS.is_dir():
        pytest.skip("../shared/data/hf_configs is not beside the repository")
    paths = sorted(CONFIGS.glob("*.json"))
    assert len(paths) == FILES
    outcomes = {path.stem: outcome(path) for path in paths}
    wrong = {name: text for name, text in outcomes.items() if text not in ("match", "refused")}
    assert not wrong
    assert list(outcomes.values()).count("match") >= MATCHES, outcomes
