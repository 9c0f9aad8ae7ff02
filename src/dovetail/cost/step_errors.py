"""How far measured step times are from predicted ones, by kind of job: quantiles over runs of families left out."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Annotated, Literal

from pydantic import Field

from dovetail.documents import Spec, parse_document, validate

Seen = Literal["fitted", "transfer"]
"""fitted: other families have runs of the chip's generation at the precision; transfer: none has"""
Scale = Literal["node", "cluster", "large"]
"""up to 8 chips, up to 512, more"""


class ErrorClass(Spec):
    """Jobs whose errors are alike; None: of any kind. Quantiles of measured over predicted step time."""

    seen: Seen | None = None
    framework: str | None = None
    experts: bool | None = None
    scale: Scale | None = None
    rows: Annotated[int, Field(ge=1)]
    low: Annotated[float, Field(gt=0)]
    high: Annotated[float, Field(gt=0)]

    @property
    def key(self) -> JobClass:
        """What its jobs have in common."""
        return self.seen, self.framework, self.experts, self.scale

    @property
    def words(self) -> str:
        """What its jobs have in common, in short."""
        kinds = {None: "", True: "with experts", False: "without experts"}
        scales = {None: "", "node": "on up to 8 chips", "cluster": "on 9 to 512 chips", "large": "on over 512 chips"}
        chips = {None: "", "fitted": "", "transfer": "on chips that no other source has"}
        of = f"of {self.framework}" if self.framework else ""
        return " ".join(filter(None, (of, kinds[self.experts], scales[self.scale], chips[self.seen])))


class ErrorClasses(Spec):
    """The file of them."""

    coverage: Annotated[float, Field(gt=0, lt=1)]
    """part of measured step times between the quantiles"""
    classes: Annotated[tuple[ErrorClass, ...], Field(strict=False, min_length=1)]


JobClass = tuple[Seen | None, str | None, bool | None, Scale | None]


def scale_of(chips: int) -> Scale:
    """The scale of a job on so many chips."""
    return "node" if chips <= 8 else "cluster" if chips <= 512 else "large"


def merged_upward(of: JobClass) -> tuple[JobClass, ...]:
    """A class and those it is part of, the smallest first."""
    seen, framework, experts, _ = of
    return (
        of,
        (seen, framework, experts, None),
        (seen, framework, None, None),
        (seen, None, None, None),
        (None, None, None, None),
    )


@lru_cache(maxsize=1)
def shipped_errors() -> ErrorClasses:
    """Those this version comes with."""
    text = (files("dovetail.cost") / "data" / "step_errors.yaml").read_text(encoding="utf-8")
    return validate(ErrorClasses, parse_document(text, "step_errors", ours=True), "step_errors")


def errors_of_class(of: JobClass) -> ErrorClass:
    """The smallest class a job belongs to that has runs enough."""
    by_key = {each.key: each for each in shipped_errors().classes}
    return next(by_key[key] for key in merged_upward(of) if key in by_key)
