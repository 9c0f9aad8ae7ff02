"""Modules written in unusual ways count what autograd counts, and what is not known of them is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import torch.nn.functional as F  # noqa: N812
from autograd_flops import autograd_flops
from torch import nn
from traced_models import products
from transformers_configs import CONFIGS
from unusual_modules import BATCH, CASES, HIDDEN, SEQ, Attention, Block, Net, tokens

from dovetail.errors import InputError
from dovetail.graph import Kind, Mask
from dovetail.models import from_torch, model_graph
from dovetail.models.importing import trace_config
from dovetail.models.traced import longest_seq_len
from dovetail.models.tracing import trace_document, transformers_model
from timing import within

pytestmark = pytest.mark.torch


def trained(out: torch.Tensor) -> None:
    out.float().sum().backward()


@pytest.mark.parametrize("name", CASES)
def test_products_and_parameters_are_those_of_the_module(name: str) -> None:
    torch.manual_seed(0)
    module, inputs = CASES[name]()
    # its loss is no product
    plain: Any = module if name != "returns its loss" else Net(module.blocks)
    truth = autograd_flops(plain, inputs)[:2]
    trained(plain(*inputs))
    used = sum(p.numel() for p in plain.parameters() if p.grad is not None)
    model = from_torch(module, inputs)
    unused = sum(p.numel() for p in plain.parameters()) - used
    assert model.left_out == ((f"{unused:,} parameters on which the loss does not depend",) if unused else ())
    assert model.approximated == {}
    assert model_graph(model).parameters() == used
    seq = SEQ if inputs[0].dim() == 2 else longest_seq_len(model)
    assert products(model_graph(model), BATCH, seq) == pytest.approx(truth, rel=1e-9)


def hidden_where(seen: Callable[[Any, Any], Any], size: int = SEQ) -> torch.Tensor:
    query, key = torch.arange(size)[:, None], torch.arange(size)[None]
    return ~seen(query, key)


#: What a query sees → the mask that attention has.
MASKS = {
    "the past": (lambda q, k: k <= q, Mask(True)),
    "a window": (lambda q, k: (k <= q) & (q - k < 8), {"causal": True, "span": "window", "width": 8}),
    "a window on both sides": (lambda q, k: (q - k).abs() < 4, {"causal": False, "span": "window", "width": 7}),
    "chunks": (lambda q, k: q // 8 == k // 8, {"causal": False, "span": "chunk", "width": 8}),
    "everything": (lambda q, k: (q >= 0) & (k >= 0), Mask(False)),
}


@pytest.mark.parametrize("written", ["given", "filled in", "added", "chosen"])
@pytest.mark.parametrize("name", MASKS)
def test_masks_are_asked_what_they_let_see(name: str, written: str) -> None:
    seen, wanted = MASKS[name]

    def attend(layer: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        hidden = layer.mask[: q.shape[2], : q.shape[2]]
        if written == "given":
            return F.scaled_dot_product_attention(q, k, v, attn_mask=~hidden)
        scores = q @ k.transpose(-1, -2) / 4
        if written == "filled in":
            scores = scores.masked_fill(hidden, -torch.inf)
        elif written == "added":
            scores = scores + torch.zeros(hidden.shape).masked_fill(hidden, -1e9)
        else:
            scores = torch.where(hidden, torch.finfo(scores.dtype).min, scores)
        return scores.softmax(-1) @ v

    module = Net([Attention(attend, mask=hidden_where(seen, 2 * SEQ)) for _ in range(2)])
    masks = [o.mask for o in model_graph(from_torch(module, (tokens(),))).layers["block"].operators if o.mask]
    assert len(masks) == 1
    facts = {"causal": masks[0].causal, "span": masks[0].span.value, "width": masks[0].width}
    if isinstance(wanted, Mask):
        wanted = {"causal": wanted.causal, "span": wanted.span.value, "width": wanted.width}
    assert facts == wanted


def test_what_a_mask_leaves_and_we_count_is_told() -> None:
    def attend(_: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        padding = torch.arange(q.shape[2]) < 12
        return F.scaled_dot_product_attention(q, k, v, attn_mask=padding.expand(q.shape[2], -1))

    model = from_torch(Net([Attention(attend) for _ in range(2)]), (tokens(),))
    assert [said for said in model.left_out if said.startswith("a mask leaves 32% of the pairs")]


def test_a_mask_without_contents_is_told() -> None:
    def attend(layer: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=layer.mask)

    module = Net([Attention(attend, mask=torch.ones(SEQ, SEQ).tril().bool())]).to("meta")
    assert "without contents is taken to hide the future" in from_torch(module, (tokens().to("meta"),)).left_out[0]


def test_where_gradients_stop_is_told() -> None:
    def stopped(blocks: Any, x: torch.Tensor) -> torch.Tensor:
        return blocks[1](blocks[0](x).detach())

    def without(blocks: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = blocks[0](x)
        return blocks[1](x)

    for run in (stopped, without):
        (said,) = from_torch(Net([Block(), Block()], run), (tokens(),)).left_out
        assert said.startswith("gradients stop at ")


def test_a_module_that_goes_token_by_token_has_one_length() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.cell = nn.Embedding(131, HIDDEN), nn.GRU(HIDDEN, HIDDEN, batch_first=True)
            self.head = nn.Linear(HIDDEN, 131)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.cell(self.table(ids))[0])

    assert from_torch(Recurrent(), (tokens(),)).fixed_seq_len == SEQ


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        (torch.zeros(1, SEQ, dtype=torch.int64), {}, "example_inputs: have one sample"),
        (torch.zeros(2, 1, dtype=torch.int64), {}, "example_inputs: have one token"),
        (tokens(), {"name": "my model"}, "module: name: is 'my model'"),
        (tokens(), {"max_seq_len": 0}, "module: max_seq_len: is 0"),
    ],
)
def test_what_is_given_wrongly_is_one_sentence(given: torch.Tensor, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        from_torch(Net([Block() for _ in range(2)]), (given,), **options)


def test_settings_that_hold_themselves_are_compared() -> None:
    def again(x: torch.Tensor, times: int = 2) -> torch.Tensor:
        return again(F.gelu(x), times - 1) if times else x

    ring: list[Any] = [1]
    ring.append(ring)
    model = from_torch(Net([Block(0, ring, again) for _ in range(3)]), (tokens(),))
    assert [run.count for run in model_graph(model).chain] == [1, 3, 1]


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(InputError, match=r"module: is a function; it should be a torch\.nn\.Module"):
        from_torch(lambda x: x, (tokens(),))


def test_branches_on_sums_of_many_things_are_followed_once() -> None:
    """Each of forty values is made of the one before in two ways: more ways than can be gone one by one."""

    def deep(blocks: Any, x: torch.Tensor) -> torch.Tensor:
        y = x
        for _ in range(40):
            y = y + y.tanh()
        return blocks[0](x) if y.sum() > 0 else x

    with within(5):
        model = from_torch(Net([Block()], deep), (tokens(),))
    assert any("took the side of 1" in said for said in model.left_out)


def test_a_config_runs_no_code_of_its_own(tmp_path: Path) -> None:
    """Neither what it names itself nor what a part of it names, and nobody is asked."""
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()\nclass X: pass\n")
    code = {"auto_map": {"AutoConfig": "evil.X", "AutoModel": "evil.X", "AutoModelForCausalLM": "evil.X"}}
    named = {"_name_or_path": str(tmp_path), **code}
    config = {
        "model_type": "llava", **named, "vision_config": {"model_type": "clip_vision_model", **named},
        "text_config": {**CONFIGS["llama"], **named},
    }  # fmt: skip
    cleaned = transformers_model.without_references(config)
    assert "auto_map" not in json.dumps(cleaned)
    assert str(tmp_path) not in json.dumps(cleaned)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIGS["llama"], **named}))
    assert model_graph(trace_config(path)).parameters() > 0
    assert not list(tmp_path.rglob("ran"))


def test_more_modules_than_any_model_has_are_not_built() -> None:
    with within(20), pytest.raises(InputError, match="describes more than 50,000 modules"):
        trace_document({**CONFIGS["t5"], "num_layers": 10**8}, "config.json", "deep")


def test_a_config_its_reader_finds_wrong_is_not_traced() -> None:
    with pytest.raises(InputError, match="num_key_value_heads"):
        trace_document({**CONFIGS["llama"], "num_key_value_heads": 4}, "config.json", "wrong")


def test_distances_in_classes_are_no_positions() -> None:
    model = trace_document(CONFIGS["t5"], "config.json", "t5")
    assert not model.learned_positions
    assert any(o.kind is Kind.EMBEDDING for layer in model_graph(model).layers.values() for o in layer.operators)
