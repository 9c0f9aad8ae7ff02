"""What the GPT-2 and BERT lines share: heads that split the stream, plain feed-forwards, dropout."""

from __future__ import annotations

from typing import Any

from dovetail.errors import InputError, quoted
from dovetail.models.huggingface.decoder import BlockFields, activation, assemble
from dovetail.models.huggingface.reader import ConfigReader
from dovetail.models.limits import MAX_HEADS
from dovetail.models.model import Model


def split_heads(reader: ConfigReader, hidden: int, *names: str, **options: object) -> BlockFields:
    """Attention whose heads split the stream evenly, without rotary positions unless options say so."""
    names = names or ("num_attention_heads",)
    heads = reader.integer(*names, high=MAX_HEADS)
    reader.divides(names[0], heads, "the hidden size", hidden)
    fields: BlockFields = {
        "kind": "attention",
        "heads": heads,
        "kv_heads": heads,
        "head_dim": hidden // heads,
    }
    return fields | {"rotary": False} | options


def biased(bias: bool = True) -> dict[str, Any]:
    """Biases on all four projections of an attention, as its options."""
    return {"qkv_bias": bias, "output_bias": bias}


def plain(
    reader: ConfigReader, size: int, *, field: str = "hidden_act", default: str = "gelu", bias: bool = True
) -> BlockFields:
    """A feed-forward without gate."""
    kind = activation(reader, gated=False, name=field, default=default)
    return {"kind": "dense", "size": size, "activation": kind, "bias": bias}


def dropout(reader: ConfigReader, name: str, default: float) -> bool:
    """Whether the stream is trained with dropout."""
    value = reader.fields.get(name)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise InputError(reader.at(name), f"is {quoted(value)}", "it should be a number from 0 to 1")
    return value > 0


def without_cross_attention(reader: ConfigReader) -> None:
    """Refuses the decoder half of an encoder-decoder."""
    if reader.flag("add_cross_attention", default=False):
        raise reader.refuse("add_cross_attention", "cross-attention")


def only(reader: ConfigReader, name: str, value: object) -> None:
    """Refuses any value but the one the model type is defined for."""
    given = reader.fields.get(name)
    if given is not None and given != value:
        raise InputError(reader.at(name), f"is {quoted(given)}", f"it should be {quoted(value)} for this model type")


def uniform(reader: ConfigReader, name: str, block: BlockFields, layers: tuple[str, ...] = (), **fields: Any) -> Model:
    """A model of one block, repeated as often as the first of the fields `layers` says."""
    return assemble(reader, name, {"layer": block}, ["layer"] * reader.layers(*layers), **fields)
