"""Our recorders in the places where `transformers` calls kernels: attention, masks, experts and scans.

The one place that imports `transformers`.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportMissingTypeArgument=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportDeprecated=false
from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import huggingface_hub
import transformers
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.models.auto import auto_factory

from dovetail.models.tracing.flow import MIXING, SHAPED
from dovetail.models.tracing.pytorch import really, torch
from dovetail.models.tracing.recorder import Recorder, whole
from dovetail.models.tracing.trace import Node, Value

#: What we are called among the kernels of `transformers`, and among those that take sequences one behind another.
OURS, PACKED = "dovetail", "dovetail_flash"

#: A scan that would run token by token.
SELECTIVE_SCAN = "selective_scan"

#: Functions of modelling files that kernels replace → the operator they are recorded as.
KERNELS: Mapping[str, str] = {
    "causal_conv1d_fn": "causal_conv1d",
    "mamba2_chunk_scan": "state_space",
    "torch_chunk_gated_delta_rule": "gated_delta",
    "chunk_kimi_delta_attention": "kimi_delta",
    "mamba_selective_scan": SELECTIVE_SCAN,
}


@contextmanager
def confined() -> Iterator[None]:
    """Whatever a config names, no code but that of `transformers` runs, and nothing is downloaded or printed."""
    with ExitStack() as stack:
        # that kernels are not installed is told to those who train
        stack.callback(transformers.logging.set_verbosity, transformers.logging.get_verbosity())
        transformers.logging.set_verbosity_error()
        stack.enter_context(warnings.catch_warnings(action="ignore"))
        stack.enter_context(patch.object(huggingface_hub.constants, "HF_HUB_OFFLINE", True))
        stack.enter_context(patch.object(auto_factory, "resolve_trust_remote_code", lambda *_, **__: False))
        yield


@contextmanager
def kernels(module: Any, recorder: Recorder, batch: int) -> Iterator[None]:
    """Kernels that a module calls are recorded, each as one operator."""
    ours = _Kernels(recorder, batch)
    with ExitStack() as stack:
        stack.enter_context(registered(ours))
        for each in module.modules():
            config = getattr(each, "config", None)
            if config is None:
                continue
            if hasattr(config, "_experts_implementation"):
                stack.enter_context(patch.object(config, "_experts_implementation_internal", OURS, create=True))
            if config._attn_implementation == OURS and "cu_seqlens" in inspect.signature(type(each).forward).parameters:
                stack.enter_context(patch.object(config, "_attn_implementation_internal", PACKED))
        for name in {type(each).__module__ for each in module.modules()}:
            if not name.startswith("transformers.models."):
                continue
            file = sys.modules[name]
            for function, operator in KERNELS.items():
                if hasattr(file, function):
                    kernel = getattr(file, function)
                    made = whole(recorder, operator, kernel, alike=operator == SELECTIVE_SCAN)
                    stack.enter_context(patch.object(file, function, made))
        yield


@contextmanager
def registered(ours: _Kernels | None) -> Iterator[None]:
    """Ours are among the kernels that `transformers` knows; without any it only knows their names."""
    places = {
        "attention": transformers.AttentionInterface._global_mapping,
        "mask": transformers.AttentionMaskInterface._global_mapping,
        "experts": type(ALL_EXPERTS_FUNCTIONS)._global_mapping,
    }
    with ExitStack() as stack:
        for name, place in places.items():
            stack.enter_context(patch.dict(place, dict.fromkeys((OURS, PACKED), getattr(ours, name, None))))
        yield


class _Kernels:
    """One recorder for each."""

    def __init__(self, recorder: Recorder, batch: int) -> None:
        self._recorder, self._batch = recorder, batch
        self._masks = _Masks(recorder)

    def attention(self, layer: Any, query: Any, key: Any, value: Any, mask: Any = None, **options: Any) -> Any:
        """Attention, of whatever sees what."""
        if (ends := options.pop("cu_seq_lens_q", None)) is not None:
            return self._packed(layer, query, key, value, ends, options)
        with self._recorder.paused():
            batch, heads, rows, _ = query.shape
            out = query.new_empty((batch, rows, heads, value.shape[-1]))
        said = self._masks.of(mask)
        causal = options.get("is_causal")
        causal = getattr(layer, "is_causal", True) if causal is None else causal
        if query.shape[2] != key.shape[2]:
            causal = False
        scale = options.get("scaling")
        facts = {
            "scale": float(scale) if scale is not None else query.shape[-1] ** -0.5,
            "causal": bool(causal), "window": options.get("sliding_window"), "softcap": options.get("softcap"),
            "sinks": options.get("s_aux"), "bias": options.get("position_bias"), "chunk": options.get("chunk"), **said,
        }  # fmt: skip
        if said:
            facts["window"] = said.get("window")
        if (selection := self._masks.selection(mask) or self._masks.selection(options.get("indices"))) is not None:
            scores, most, *_ = selection.args
            facts |= {"choice": selection.results[1], "most": most, "of": scores.shape[-1]}
        return self._recorder.note("attention", (query, key, value), facts, out), None

    def _packed(self, layer: Any, query: Any, key: Any, value: Any, ends: Any, options: dict[str, Any]) -> Any:
        """Images one behind another, or windows of one behind another, which are all as long."""
        images = [each.squeeze(0).unflatten(1, (self._batch, -1)).transpose(0, 1) for each in (query, key, value)]
        lengths = self._recorder.differences(ends)
        chunk = max(lengths) if len(lengths) > self._batch else None
        out, _ = self.attention(layer, *images, **{**options, "chunk": chunk, "attention_mask": None})
        return out.flatten(0, 1).unsqueeze(0), None

    def experts(self, layer: Any, tokens: Any, choice: Any, gates: Any) -> Any:
        """All experts of a mixture."""
        with self._recorder.paused():
            out = tokens.new_empty(tokens.shape)
        down = layer.down_proj.shape
        options = {
            "gated": layer.has_gate, "biased": layer.has_bias, "activation": _activation(layer),
            "count": down[0], "inner": down[1] if layer.is_transposed else down[2],
        }  # fmt: skip
        return self._recorder.note("experts", (tokens, choice, gates), options, out)

    def mask(self, batch_size: int, q_length: int, kv_length: int, *_: Any, mask_function: Any = None,
             local_size: int | None = None, **__: Any) -> Any:  # fmt: skip
        """A mask, of which its function says what it lets see."""
        with self._recorder.paused():
            said = torch.empty((batch_size, 1, q_length, kv_length), dtype=torch.bool)
        self._masks.add(said, _probe(mask_function, local_size))
        return said


class _Masks:
    """What the masks let a query see that a model asked for."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._facts: dict[int, dict[str, Any]] = {}

    def add(self, mask: Any, facts: dict[str, Any]) -> None:
        """Notes what a mask says."""
        value = self._recorder.declare(mask, "constant", "causal mask" if facts.get("causal") else "mask")
        self._facts[value.id] = facts

    def of(self, mask: Any) -> dict[str, Any]:
        """What a mask says, or the one it was made from."""
        return next((self._facts[value.id] for value, _ in self._above(mask) if value.id in self._facts), {})

    def selection(self, mask: Any) -> Node | None:
        """What chose the keys that a mask lets see, where it was made of such a choice."""
        return next((maker for _, maker in self._above(mask) if maker is not None and maker.target == "topk"), None)

    def _above(self, mask: Any) -> Iterator[tuple[Value, Node | None]]:
        """A mask and all that it was made of down to products, each with what made it."""
        waiting = [] if mask is None else [self._recorder.value(mask)]
        seen = {value.id for value in waiting}
        for value in waiting:
            maker = self._recorder.maker.get(value.id)
            yield value, maker
            if maker is None or maker.target in SHAPED | MIXING | {"topk"}:
                continue
            more = [v for v in maker.inputs() if v.id not in seen]
            seen.update(v.id for v in more)
            waiting += more


def _probe(function: Any, local: int | None) -> dict[str, Any]:
    """What a mask function lets a query see, asked at a few places."""
    if function is None:
        return {}

    def sees(query: int, key: int) -> bool:
        try:
            q, k, zero = (torch.tensor(n, device="cpu") for n in (query, key, 0))
            return bool(function(zero, zero, q, k))
        except Exception:  # it reads tensors that have no contents here
            return key <= query

    with really():
        causal = not sees(0, 1)
        if local is None:
            return {"causal": causal}
        near = sees(local, local - 1) and not _mentions(function, "chunked_overlay")
    return {"causal": causal, "window": local} if near else {"causal": causal, "chunk": local}


def _mentions(function: Any, name: str) -> bool:
    """Whether a mask function is put together from a certain one."""
    if name in getattr(function, "__qualname__", ""):
        return True
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    inner = [each for cell in cells for each in (cell if isinstance(cell, tuple) else (cell,))]
    return any(callable(each) and _mentions(each, name) for each in inner)


def _activation(layer: Any) -> str:
    act = getattr(layer, "act_fn", None)
    name = getattr(act, "__name__", "") or type(act).__name__
    own = type(layer)._apply_gate.__qualname__.split(".")[0] != "_default_apply_gate"
    return f"own:{name}" if own and layer.has_gate else name
