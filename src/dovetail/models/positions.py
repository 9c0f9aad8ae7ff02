"""Rotary positions: what turns queries and keys, and how that reaches beyond the length first trained on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dovetail.documents import Spec
from dovetail.errors import InputError
from dovetail.models.limits import Factor, Text, Tokens

Base = Annotated[float, Field(ge=1, le=1e12)]


class RotaryScaling(Spec):
    """How angles are changed for sequences longer than those a model was first trained on."""

    kind: Literal["linear", "dynamic", "llama3", "yarn", "longrope", "proportional"]
    """the rule, as config.json names it"""
    factor: Factor = 1.0
    """how many times longer"""
    original_seq_len: Tokens | None = None
    """the length first trained on"""
    low_frequency: Factor = 1.0
    """llama3: low_freq_factor"""
    high_frequency: Factor = 4.0
    """llama3: high_freq_factor"""
    beta_fast: Factor = 32.0
    """yarn: turns over the original length above which angles stay"""
    beta_slow: Factor = 1.0
    """yarn: turns below which angles are divided by the factor"""
    mscale: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """yarn: weight of the correction of queries and keys"""
    mscale_all_dim: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """yarn: weight of the correction of all of a head"""
    attention_factor: Factor | None = None
    """multiplies queries and keys; left out: follows from the factor"""
    truncate: bool = True
    """yarn: the ends of the ramp are whole dims"""
    short_factors: Annotated[tuple[Factor, ...], Field(strict=False, max_length=4096)] = ()
    """longrope: a factor per pair of dims within the original length"""
    long_factors: Annotated[tuple[Factor, ...], Field(strict=False, max_length=4096)] = ()
    """longrope: and beyond it"""

    @model_validator(mode="after")
    def _consistent(self) -> RotaryScaling:
        if self.kind in ("llama3", "yarn", "longrope") and self.original_seq_len is None:
            raise InputError("original_seq_len", "is missing", f"{self.kind} needs the length first trained on")
        return self


class Rotary(Spec):
    """The rotary positions of a model; which of its mixers have them is said there."""

    base: Base = 10_000.0
    """rope_theta: the longest wavelength over 2π"""
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """part of each head that is turned"""
    scaling: RotaryScaling | None = None
    """for long sequences"""
    further: Annotated[tuple[Text, ...], Field(strict=False, max_length=64)] = ()
    """what config.json says besides, which no launch file has a word for"""
