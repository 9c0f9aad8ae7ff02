"""Models of the catalogue as if they had been traced."""

from __future__ import annotations

from typing import Any

from dovetail.models import TracedModel, from_catalogue, model_graph
from dovetail.models.graph_document import document_of_graph


def traced(name: str, /, **fields: Any) -> TracedModel:
    """A catalogue model as if it had been traced."""
    model = from_catalogue(name)
    own = {"name": name, "hidden": model.hidden, "vocab": model.vocab, "max_seq_len": model.max_seq_len}
    return TracedModel(**{"kind": "traced", "graph": document_of_graph(model_graph(model)), **own, **fields})


LLAMA = traced("llama-3.1-8b")
(BLOCK,) = LLAMA.graph.layers.keys() - {"embedding", "head"}
SOME = {BLOCK: {"attention": "a scan as attention"}}
