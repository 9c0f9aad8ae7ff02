"""Importers of dense decoders of the Llama line: rotary positions, RMS norms, gated feed-forwards."""

from __future__ import annotations

from dovetail.models.huggingface.decoder import assemble, dense, grouped_attention
from dovetail.models.huggingface.reader import ConfigReader
from dovetail.models.model import Model


def llama(reader: ConfigReader, name: str) -> Model:
    """Llama 1 to 3.x."""
    bias = reader.flag("attention_bias", default=False)
    block = {
        "mixer": grouped_attention(reader, qkv_bias=bias, output_bias=bias),
        "feed_forward": dense(reader, bias=reader.flag("mlp_bias", default=False)),
    }
    return assemble(reader, name, {"decoder": block}, ["decoder"] * reader.layers())
