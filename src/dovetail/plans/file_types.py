"""Types of plan-file fields that are more than a number or a word."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from dovetail.documents import Spec
from dovetail.errors import InputError
from dovetail.frameworks.framework import Offloaded
from dovetail.layout.encoding import MeshAxis, Strings, TileLayouts
from dovetail.layout.encoding.tile_layouts import string_of, string_text


def _in_order(value: tuple[Offloaded, ...]) -> tuple[Offloaded, ...]:
    """Each once, in one order."""
    return tuple(part for part in get_args(Offloaded) if part in value)


Degree = Annotated[int, Field(ge=1, le=2**24)]
Blocks = Annotated[int, Field(ge=0, le=2**24)]
OperatorName = Annotated[str, Field(min_length=1, max_length=100)]
Side = Annotated[int, Field(ge=1, le=4096)]
LayoutText = Annotated[str, Field(max_length=10_000)]
ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zb_h1", "dualpipe"]
#: How tokens go to experts: one message for each of a token's experts, or one for all of them on a node.
Dispatcher = Literal["alltoall", "deepep"]
#: What hosts hold: the optimizer's state, saved activations.
Offload = Annotated[tuple[Offloaded, ...], Field(strict=False, max_length=2), AfterValidator(_in_order)]
Fp8Recipe = Literal["tensorwise", "delayed", "blockwise", "mxfp8"]


def _named(choice: Any) -> Any:
    return (choice,) if isinstance(choice, str) and choice not in ("none", "selective", "full") else choice


#: What blocks recompute: a word, a policy by its name, or operators and modules.
RecomputeChoice = Annotated[
    Literal["none", "selective", "full"] | Annotated[tuple[OperatorName, ...], Field(strict=False, max_length=1000)],
    BeforeValidator(_named),
]


#: Words that files used to have, and what they are called now.
RENAMED = {"again": "recompute", "cuts": "partition"}


def refuse_renamed(name: str, where: str) -> None:
    """Refuses a field by the name it used to have."""
    if name in RENAMED:
        raise InputError(where, f"is called {RENAMED[name]} now", f"write {RENAMED[name]} instead")


class CurrentWords(Spec):
    """A part of a file in which a renamed field is refused with its new name."""

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, document: Any) -> Any:
        for name in document if isinstance(document, dict) else ():  # pyright: ignore[reportUnknownVariableType]
            refuse_renamed(str(name), str(name))  # pyright: ignore[reportUnknownArgumentType]
        return document  # pyright: ignore[reportUnknownVariableType]


class RecomputeRun(CurrentWords):
    """Blocks that follow each other and recompute the same."""

    blocks: Annotated[int, Field(ge=1, le=2**24)]
    recompute: RecomputeChoice


class StringsSpec(Spec):
    """How an operator or the stream is sharded along the rows and columns of a tile: `4 seq, 2 replicate`."""

    rows: LayoutText = ""
    cols: LayoutText = ""

    def strings(self, where: str) -> Strings:
        """The strings that the texts mean."""
        return Strings(string_of(self.rows, where), string_of(self.cols, where))


class LayoutsSpec(Spec):
    """Layouts of every operator instead of a named strategy."""

    tile: Annotated[tuple[Side, Side], Field(strict=False)]
    """rows and columns of a stage's dies; 1 and all chips of a stage where there is no grid"""
    stream: StringsSpec = StringsSpec.unchecked()
    """layout of what layers hand on"""
    classes: Annotated[dict[OperatorName, dict[OperatorName, StringsSpec]], Field(max_length=1000)]
    """layer class, then operator"""

    def layouts(self) -> TileLayouts:
        """The layouts a file describes."""
        classes = {
            layer: {name: spec.strings(f"plan: layouts.{layer}.{name}") for name, spec in operators.items()}
            for layer, operators in self.classes.items()
        }
        return TileLayouts.of(*self.tile, self.stream.strings("plan: layouts.stream"), classes)


RecomputeRuns = Annotated[tuple[RecomputeRun, ...], Field(strict=False, max_length=100_000)]
LayersPerStage = Annotated[tuple[Blocks, ...], Field(strict=False, max_length=100_000)]


def plain(value: Any) -> Any:
    """A value as documents have it: lists for tuples."""
    return list(value) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]


def runs_document(runs: tuple[tuple[int, str | tuple[str, ...]], ...]) -> list[dict[str, Any]]:
    """Runs of blocks as a plan file has them."""
    return [{"blocks": blocks, "recompute": plain(choice)} for blocks, choice in runs]


def layouts_document(layouts: TileLayouts) -> dict[str, Any]:
    """Layouts as a plan file has them."""
    classes = {
        layer: {name: _strings_document(strings) for name, strings in operators} for layer, operators in layouts.classes
    }
    return {"tile": [layouts.rows, layouts.cols], "stream": _strings_document(layouts.stream), "classes": classes}


def _strings_document(strings: Strings) -> dict[str, str]:
    texts = {str(axis): string_text(strings.along(axis)) for axis in MeshAxis}
    return {axis: text for axis, text in texts.items() if text}
