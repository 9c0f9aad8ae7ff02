"""Importers of dense decoders of the Llama line: rotary positions, RMS norms, gated feed-forwards."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.models.huggingface.decoder import (
    BlockFields,
    Importer,
    activation,
    assemble,
    dense,
    grouped_attention,
)
from dovetail.models.huggingface.reader import ConfigReader
from dovetail.models.model import Model

FULL, SLIDING = "full", "sliding"
#: What the text part of a published Gemma 3 config leaves out.
GEMMA3_DEFAULTS = {
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
    "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "sliding_window": 4096,
}  # fmt: skip
_LAYER_TYPES = {"full_attention": FULL, "sliding_attention": SLIDING}


def attention_spans(reader: ConfigReader, layers: int, *, period: int | None, window: int | None) -> list[str]:
    """`full` or `sliding` per layer: as listed, or every n-th layer full, or all alike."""
    listed = reader.words("layer_types", _LAYER_TYPES, layers)
    if listed is not None:
        spans = [_LAYER_TYPES[word] for word in listed]
        return spans if window is not None else [FULL] * layers
    if window is None:
        return [FULL] * layers
    if period is None:
        return [SLIDING] * layers
    return [FULL if (i + 1) % period == 0 else SLIDING for i in range(layers)]


def spanned(block: BlockFields, window: int | None) -> dict[str, BlockFields]:
    """The same block with full and with sliding attention."""
    if window is None:
        return {FULL: block}
    return {FULL: block, SLIDING: {**block, "mixer": {**block["mixer"], "window": window}}}


def llama(reader: ConfigReader, name: str, *, tied: bool = False) -> Model:
    """Llama 1 to 3.x and Granite: one bias switch for attention, one for the feed-forward."""
    bias = reader.flag("attention_bias", default=False)
    block = {
        "mixer": grouped_attention(reader, qkv_bias=bias, output_bias=bias),
        "feed_forward": dense(reader, bias=reader.flag("mlp_bias", default=False)),
    }
    return assemble(reader, name, {FULL: block}, [FULL] * reader.layers(), tied=tied)


def smollm3(reader: ConfigReader, name: str) -> Model:
    """SmolLM3: Llama with tied tables, every fourth layer without positions."""
    layers = reader.layers()
    interval = reader.integer("no_rope_layer_interval", default=4)
    rotary = reader.integers("no_rope_layers", layers, high=1) or [int((i + 1) % interval != 0) for i in range(layers)]
    bias = reader.flag("attention_bias", default=False)
    wide = dense(reader, bias=reader.flag("mlp_bias", default=False))
    mixer = grouped_attention(reader, qkv_bias=bias, output_bias=bias)
    blocks = {
        kind: {"mixer": {**mixer, "rotary": turned}, "feed_forward": wide}
        for kind, turned in (("rope", True), ("nope", False))
    }
    return assemble(reader, name, blocks, ["rope" if turned else "nope" for turned in rotary], tied=True)


def hunyuan(reader: ConfigReader, name: str) -> Model:
    """Hunyuan dense: Llama with normalised queries and keys."""
    bias = reader.flag("attention_bias", default=False)
    mixer = grouped_attention(reader, qkv_bias=bias, output_bias=bias, qk_norm="head", qk_norm_after_rotary=True)
    return assemble(reader, name, {FULL: {"mixer": mixer, "feed_forward": dense(reader)}}, [FULL] * reader.layers())


def arcee(reader: ConfigReader, name: str) -> Model:
    """Arcee: Llama with a plain squared-ReLU feed-forward."""
    bias = reader.flag("attention_bias", default=False)
    wide = dense(
        reader,
        gated=False,
        activation=activation(reader, gated=False, default="relu2"),
        bias=reader.flag("mlp_bias", default=False),
    )
    block = {"mixer": grouped_attention(reader, qkv_bias=bias, output_bias=bias), "feed_forward": wide}
    return assemble(reader, name, {FULL: block}, [FULL] * reader.layers())


def mistral(reader: ConfigReader, name: str) -> Model:
    """Mistral, Ministral: an optional sliding window on all or some layers."""
    window = reader.optional("sliding_window")
    block = {"mixer": grouped_attention(reader), "feed_forward": dense(reader)}
    spans = attention_spans(reader, reader.layers(), period=None, window=window)
    return assemble(reader, name, spanned(block, window), spans)


def qwen2(reader: ConfigReader, name: str) -> Model:
    """Qwen 2 and 2.5: biases on queries, keys and values."""
    return _qwen(reader, name, qkv_bias=True)


def qwen3(reader: ConfigReader, name: str) -> Model:
    """Qwen 3 dense: normalised queries and keys."""
    bias = reader.flag("attention_bias", default=False)
    return _qwen(
        reader,
        name,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm="head",
        head_dim=reader.optional("head_dim") or 128,
    )


def _qwen(reader: ConfigReader, name: str, **attention: object) -> Model:
    layers = reader.layers()
    window = reader.optional("sliding_window") if reader.flag("use_sliding_window", default=False) else None
    first = reader.integer("max_window_layers", default=layers, low=0)
    if reader.has("layer_types"):
        spans = attention_spans(reader, layers, period=None, window=window)
    else:
        spans = [SLIDING if window is not None and i >= first else FULL for i in range(layers)]
    block = {"mixer": grouped_attention(reader, **attention), "feed_forward": dense(reader)}
    return assemble(reader, name, spanned(block, window), spans)


def phi3(reader: ConfigReader, name: str) -> Model:
    """Phi-3, Phi-3.5 and Phi-4 text models."""
    return mistral(reader, name)


def glm(reader: ConfigReader, name: str) -> Model:
    """GLM-4-9B as `glm`: biased queries, keys and values."""
    block = {
        "mixer": grouped_attention(reader, qkv_bias=reader.flag("attention_bias", default=True)),
        "feed_forward": dense(reader),
    }
    return assemble(reader, name, {FULL: block}, [FULL] * reader.layers())


def glm4(reader: ConfigReader, name: str) -> Model:
    """GLM-4-0414: a norm before and after each half."""
    block = {
        "mixer": grouped_attention(reader, qkv_bias=reader.flag("attention_bias", default=True)),
        "feed_forward": dense(reader),
        "norm_position": "around",
    }
    return assemble(reader, name, {FULL: block}, [FULL] * reader.layers())


def ernie(reader: ConfigReader, name: str) -> Model:
    """ERNIE 4.5 dense: one bias switch for everything."""
    bias = reader.flag("use_bias", default=False)
    mixer = grouped_attention(reader, qkv_bias=bias, output_bias=bias)
    block = {"mixer": mixer, "feed_forward": dense(reader, bias=bias)}
    return assemble(reader, name, {FULL: block}, [FULL] * reader.layers(), tied=True)


def seed_oss(reader: ConfigReader, name: str) -> Model:
    """Seed-OSS: own bias switches for the inputs and the output of attention."""
    mixer = grouped_attention(
        reader,
        qkv_bias=reader.flag("attention_bias", default=True),
        output_bias=reader.flag("attention_out_bias", default=False),
    )
    block = {"mixer": mixer, "feed_forward": dense(reader, bias=reader.flag("mlp_bias", default=False))}
    return assemble(reader, name, {FULL: block}, [FULL] * reader.layers())


def exaone4(reader: ConfigReader, name: str) -> Model:
    """EXAONE 4: norms after each half, three sliding layers for each full one."""
    window = reader.optional("sliding_window")
    pattern = reader.fields.get("sliding_window_pattern")
    # published configs spell the pattern ("LLLG": three local layers, one global)
    period = len(pattern) if isinstance(pattern, str) else reader.integer("sliding_window_pattern", default=4)
    mixer = grouped_attention(reader, qk_norm="head")
    block = {"mixer": mixer, "feed_forward": dense(reader), "norm_position": "after"}
    spans = attention_spans(reader, reader.layers(), period=period, window=window)
    return assemble(reader, name, spanned(block, window), spans)


def gemma(reader: ConfigReader, name: str) -> Model:
    """Gemma 1: wide heads, tied tables."""
    bias = reader.flag("attention_bias", default=False)
    mixer = grouped_attention(reader, qkv_bias=bias, output_bias=bias, head_dim=reader.integer("head_dim", default=256))
    # early configs name exact GELU in hidden_act while the model always used the tanh form
    block = {"mixer": mixer, "feed_forward": dense(reader, activation="geglu_tanh")}
    return assemble(reader, name, {FULL: block}, [FULL] * reader.layers(), tied=True)


def gemma2(reader: ConfigReader, name: str) -> Model:
    """Gemma 2: norms around each half, every second layer sliding."""
    return _gemma(reader, name, period=2, qk_norm="none")


def gemma3(reader: ConfigReader, name: str) -> Model:
    """Gemma 3: normalised queries and keys, five sliding layers for each full one.

    The text part of a published config leaves out what equals the 4B model's defaults.
    """
    given = {n: v for n, v in reader.fields.items() if v is not None}
    reader = ConfigReader(GEMMA3_DEFAULTS | given, reader.where)
    period = reader.integer("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return _gemma(reader, name, period=period, qk_norm="head")


def _gemma(reader: ConfigReader, name: str, *, period: int, qk_norm: str) -> Model:
    bias = reader.flag("attention_bias", default=False)
    window = reader.optional("sliding_window")
    head_dim = reader.integer("head_dim", default=256)
    mixer = grouped_attention(reader, qkv_bias=bias, output_bias=bias, head_dim=head_dim, qk_norm=qk_norm)
    wide = dense(reader, activation="geglu_tanh")
    block = {"mixer": mixer, "feed_forward": wide, "norm_position": "around"}
    spans = attention_spans(reader, reader.layers(), period=period, window=window)
    return assemble(reader, name, spanned(block, window), spans, tied=True)


#: `model_type` → importer.
DENSE: Mapping[str, Importer] = {
    "arcee": arcee,
    "ernie4_5": ernie,
    "exaone4": exaone4,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "glm": glm,
    "glm4": glm4,
    "granite": llama,
    "hunyuan_v1_dense": hunyuan,
    "llama": llama,
    "ministral": mistral,
    "ministral3": mistral,
    "mistral": mistral,
    "phi3": phi3,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "seed_oss": seed_oss,
    "smollm3": smollm3,
}
