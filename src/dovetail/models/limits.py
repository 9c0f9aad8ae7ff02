"""How large a field of a model file may be: far above any model, low enough to refuse nonsense at once."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

MAX_LAYERS = 100_000

Width = Annotated[int, Field(ge=1, le=2**22)]
Heads = Annotated[int, Field(ge=1, le=2**16)]
Experts = Annotated[int, Field(ge=1, le=2**20)]
Vocabulary = Annotated[int, Field(ge=1, le=2**28)]
Tokens = Annotated[int, Field(ge=1, le=2**40)]
Layers = Annotated[int, Field(ge=1, le=MAX_LAYERS)]
Small = Annotated[int, Field(ge=1, le=4096)]
Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Text = Annotated[str, Field(max_length=2000)]
