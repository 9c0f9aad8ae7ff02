"""How large a field of a model file may be: far above any model, low enough to refuse nonsense at once."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

MAX_LAYERS = 100_000
MAX_WIDTH = 2**22
MAX_HEADS = 2**16
MAX_EXPERTS = 2**20
MAX_VOCABULARY = 2**28
MAX_TOKENS = 2**40
MAX_SMALL = 4096

Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]
Heads = Annotated[int, Field(ge=1, le=MAX_HEADS)]
Experts = Annotated[int, Field(ge=1, le=MAX_EXPERTS)]
Vocabulary = Annotated[int, Field(ge=1, le=MAX_VOCABULARY)]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Layers = Annotated[int, Field(ge=1, le=MAX_LAYERS)]
Small = Annotated[int, Field(ge=1, le=MAX_SMALL)]
Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Factor = Annotated[float, Field(gt=0, le=1e9)]
Text = Annotated[str, Field(max_length=2000)]
