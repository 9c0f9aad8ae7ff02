"""Import of a Hugging Face config.json by `model_type`, without torch or transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dovetail.documents import read_document
from dovetail.errors import InputError, one_of, quoted
from dovetail.models.huggingface import dense_families
from dovetail.models.huggingface.reader import ConfigReader
from dovetail.models.model import Model

Importer = Callable[[ConfigReader, str], Model]

#: `model_type` → importer.
IMPORTERS: Mapping[str, Importer] = {
    "llama": dense_families.llama,
}
