"""What a mask lets attention see, asked of its contents where these are known."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateImportUsage=false, reportMissingTypeArgument=false
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail.models.tracing.pytorch import really, torch

#: Scores this low are as good as hidden.
_HIDDEN = -1e4


def seen_by(
    target: str, args: Sequence[Any], options: Mapping[str, Any], contents: Callable[[Any], Any]
) -> Mapping[str, Any] | None:
    """What an operator on scores leaves to be seen: causal, a window, a chunk, or a share; None where it is no mask."""
    with really():
        visible = _visible(target, args, options, contents)
        if visible is None or visible.dim() < 2 or min(visible.shape[-2:]) < 2:
            return None
        return _shape(visible.flatten(0, -3) if visible.dim() > 2 else visible[None])


def _visible(target: str, args: Sequence[Any], options: Mapping[str, Any], contents: Callable[[Any], Any]) -> Any:
    def contents_of(given: Any) -> Any:
        return contents(given) if isinstance(given, torch.Tensor) else given

    if "scaled_dot_product" in target:
        mask = contents_of(options.get("attn_mask", args[3] if target[0] != "_" and len(args) > 3 else None))
        return mask if mask is None or mask.dtype is torch.bool else mask > _HIDDEN
    if target == "masked_fill" and _hides(contents_of(args[2])):
        mask = contents_of(args[1])
        return None if mask is None else ~mask
    if target == "where" and len(args) == 3:
        mask, ones, others = (contents_of(each) for each in args)
        if mask is not None and _hides(others):
            return mask
        return ~mask if mask is not None and _hides(ones) else None
    if target in ("add", "baddbmm"):
        found = [t for t in map(contents_of, args[:2]) if isinstance(t, torch.Tensor) and t.is_floating_point()]
        return found[0] > _HIDDEN if found else None
    return None


def _hides(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and float(value) <= _HIDDEN
    return isinstance(value, int | float) and value <= _HIDDEN


def _shape(visible: Any) -> Mapping[str, Any]:
    one = visible[0]
    if bool(visible.all()):
        return {"causal": False}
    rows, columns = one.shape
    if rows == columns and bool((visible == one).all()):
        query, key = torch.arange(rows)[:, None], torch.arange(columns)[None]
        most = int(one.sum(-1).max())
        forms = {
            (True, None): key <= query,
            (True, "window"): (key <= query) & (query - key < most),
            (False, "window"): 2 * (query - key).abs() < most,
            (True, "chunk"): (key <= query) & (query // most == key // most),
            (False, "chunk"): query // most == key // most,
        }
        for (causal, name), form in forms.items():
            if torch.equal(form, one):
                return {"causal": causal, **({name: most} if name else {})}
    return {"causal": False, "share": float(visible.float().mean())}
