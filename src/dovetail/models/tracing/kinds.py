"""What is asked of modules and tensors as they are: which layers of a list are equal, and what is known of an index."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportMissingTypeArgument=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportDeprecated=false
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

#: Settings that only say where a layer stands.
_POSITIONS = frozenset({"layer_idx", "layer_id", "layer_index", "layer_number", "idx", "index", "training"})


#: Modules that hold others in order.
_LISTS = frozenset({"ModuleList", "Sequential"})


def kind_of(module: Any) -> tuple[object, ...]:
    """What two layers of a list share when they compute the same."""
    return tuple(_facts(module))


def _facts(module: Any) -> Iterator[object]:
    for prefix, each in module.named_modules():
        yield prefix, type(each).__qualname__
        for table in (each._parameters, each._buffers):
            yield tuple(
                (name, tuple(t.shape), str(t.dtype), t.requires_grad) for name, t in table.items() if t is not None
            )
        settings = ((name, value) for name, value in vars(each).items() if name not in _POSITIONS)
        yield tuple((name, _plain(value)) for name, value in sorted(settings) if _is_setting(value))


def _is_setting(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_setting(each) for each in value)
    return isinstance(value, bool | int | float | str | None)


def _plain(value: Any) -> object:
    return tuple(value) if isinstance(value, list) else value


def units_of(module: Any) -> Iterator[tuple[str, Any]]:
    """The children of lists of modules that are not inside another such list."""
    found: list[str] = []
    for name, each in module.named_modules():
        if any(name.startswith(f"{outer}.") for outer in found):
            continue
        if type(each).__name__ in _LISTS and len(each) and _has_layers(each):
            found.append(name)
            for key, child in each.named_children():
                yield f"{name}.{key}".lstrip("."), child


def shared_by_units(module: Any) -> frozenset[int]:
    """The parameters, by identity, that several layers hold, each as its own."""
    owners: dict[int, set[str]] = {}
    for name, unit in units_of(module):
        for parameter in unit.parameters():
            owners.setdefault(id(parameter), set()).add(name)
    return frozenset(parameter for parameter, names in owners.items() if len(names) > 1)


def _has_layers(modules: Any) -> bool:
    """Whether a list holds layers, and not single operators of one."""
    return all(any(True for _ in child.children()) for child in modules.children())


def known_place(args: Sequence[Any], contents: Callable[[Any], Any]) -> tuple[int, int, int] | None:
    """Dim, start and end where an index is one known place."""
    if sum(each is not None for each in args[1]) != 1:
        return None
    dim = next(i for i, each in enumerate(args[1]) if each is not None)
    known = contents(args[1][dim])
    if known is None or known.numel() != 1 or str(known.dtype) == "torch.bool":
        return None
    start = int(known) % args[0].shape[dim]
    return dim, start, start + 1


def takes_all(args: Sequence[Any], contents: Callable[[Any], Any]) -> bool:
    """Whether an index is a mask of the first axes that leaves nothing out."""
    masks = [each for each in args[1] if each is not None]
    known = contents(masks[0]) if len(masks) == 1 and args[1][0] is not None else None
    return known is not None and str(known.dtype) == "torch.bool" and bool(known.all())
