"""A tensor of the forward in one layout: what recomputing it starts from, and what that takes."""

from __future__ import annotations

from dovetail.frozen import frozen
from dovetail.graph import Tensor
from dovetail.layout.collective import Collective
from dovetail.layout.convert import CollectiveKind
from dovetail.layout.layout import Layout


@frozen
class TensorVersion:
    """A tensor in one layout: as an operator wrote it (or the layer was handed it), or made of another layout."""

    tensor: Tensor
    layout: Layout
    #: the layout it was made of, by these collectives; None where an operator wrote it
    made_of: Layout | None
    collectives: tuple[Collective, ...]
    #: the operators that read it in this layout
    readers: tuple[str, ...]
    #: whether it is saved for the backward in this layout
    saved: bool

    @property
    def gathered(self) -> bool:
        """Whether it was gathered from shards: then the shards are saved and it is gathered again.

        Everything else (a sum that was completed, a slice, an exchange) is no larger than what it was made from, and
        is saved itself.
        """
        gathers = (CollectiveKind.ALL_GATHER, CollectiveKind.PERMUTE)
        return bool(self.collectives) and all(c.kind in gathers for c in self.collectives)
