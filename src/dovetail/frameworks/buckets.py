"""How a framework sends weights and gradients of a layer: together in buckets, or one by one."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from dovetail.arrays import Floats
from dovetail.documents import Spec
from dovetail.frozen import frozen


@frozen
class Buckets:
    """Parameters that travel together: those of a layer, and at the end of a step at least so many."""

    least: float = 0.0
    #: for each chip of the group
    per_chip: float = 0.0

    def parameters(self, chips: Floats) -> Floats:
        """Of a bucket at the end of a step, in a group of so many chips."""
        return np.maximum(self.least, self.per_chip * chips)


class BucketsSpec(Spec):
    """The same in a framework's file."""

    least: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    per_chip: Annotated[float, Field(ge=0, le=1e12)] = 0.0
