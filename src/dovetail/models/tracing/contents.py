"""What is known of tensors without contents: those that no weight and no activation goes into are computed."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportMissingTypeArgument=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dovetail.models.tracing.pytorch import FakeTensor, really, torch, tree_leaves, tree_map

#: The largest tensors that are computed: positions and masks of an image, not those of pairs of tokens.
MOST_POINTS = 2**22

_UNWRITTEN = ("empty", "new_empty")


class _UnknownError(Exception):
    """An operand has no contents."""


class Contents:
    """Real tensors behind those without contents."""

    def __init__(self) -> None:
        self._real: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def keep(self, tensors: Any, real: Any) -> None:
        """Says what tensors hold; both may be nested alike."""
        for each, contents in zip(tree_leaves(tensors), tree_leaves(real), strict=True):
            if isinstance(each, torch.Tensor):
                self._real[id(each)] = (each, contents)

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """What a tensor holds; None where it is not known."""
        known = self._real.get(id(tensor))
        if known is not None and known[0] is tensor:
            return known[1]
        if isinstance(tensor, FakeTensor) or tensor.device.type != "cpu" or tensor.numel() > MOST_POINTS:
            return None
        with really():
            own = tensor.detach().clone()  # the module's own, which nothing here may change
        self.keep(tensor, own)
        return own

    def after(self, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """What an operator returns for what its operands hold; None where that is not known."""
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        if is_random or func._overloadpacket.__name__.startswith(_UNWRITTEN):
            return None
        try:
            given = tree_map(self._contents_of, (tuple(args), options))
        except _UnknownError:
            self._forget_written(func, args)
            return None
        with really():
            return func(*given[0], **given[1])

    def _contents_of(self, argument: Any) -> Any:
        if not isinstance(argument, torch.Tensor):
            return argument
        real = self.of(argument)
        if real is None:
            raise _UnknownError
        return real

    def _forget_written(self, func: Any, args: Sequence[Any]) -> None:
        """What is written to holds something else afterwards, and so does all that shares its memory."""
        for argument, given in zip(func._schema.arguments, args, strict=False):
            known = self._real.get(id(given)) if argument.is_write else None
            if known is not None:
                memory = known[1].untyped_storage().data_ptr()
                self._real = {i: k for i, k in self._real.items() if k[1].untyped_storage().data_ptr() != memory}


def needs_contents(func: Any) -> bool:
    """Whether the shape or the value an operator returns depends on what its operands hold."""
    return torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags


def is_small(result: Any) -> bool:
    """Whether a result is computed where it can be."""
    return sum(each.numel() for each in tree_leaves(result) if isinstance(each, torch.Tensor)) <= MOST_POINTS


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
