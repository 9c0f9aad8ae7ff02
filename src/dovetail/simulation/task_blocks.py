"""Tasks laid out from a pattern: arrays of them, and where each chip finds what it is to do."""

from __future__ import annotations

from dataclasses import dataclass, field

from dovetail.arrays import Floats, Ints
from dovetail.frozen import frozen
from dovetail.simulation.item_tasks import Pattern


@frozen
class TaskBlock:
    """Tasks of a pattern on the chips of a stage: columns, edges, and where each chip finds a step."""

    seconds: Floats
    bytes: Floats
    route: Ints
    chip: Ints
    kind: Ints
    stream: Ints
    name: Ints
    edges: tuple[Ints, Ints]
    #: steps × chips
    at: Ints


@frozen
class Laid:
    """A block in its place among all tasks, and the pattern it was made of."""

    pattern: Pattern
    block: TaskBlock
    offset: int

    def at(self, step: int) -> Ints:
        """The tasks of a step, by chip."""
        return self.block.at[step] + self.offset

    @property
    def begin(self) -> Ints:
        """What it begins with."""
        return self.at(0)

    @property
    def end(self) -> Ints:
        """What it ends with."""
        return self.at(-1)

    @property
    def loose(self) -> list[Ints]:
        """Messages that its end does not wait for."""
        return [self.at(step) for step in self.pattern.loose]


@dataclass(slots=True)
class Texts:
    """Texts by number."""

    numbers: dict[str, int] = field(default_factory=dict[str, int])

    def number(self, text: str) -> int:
        """The number of a text, a new one where it is not known yet."""
        return self.numbers.setdefault(text, len(self.numbers))
