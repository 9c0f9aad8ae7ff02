"""What of a model neither Megatron-LM nor torchtitan has words for: refused by name, never left out."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.models import Model
from dovetail.models.attention import Attention


def unusual_frame(model: Model) -> Iterator[str]:
    """What stands around mixers and feed-forwards."""
    embedding, head, blocks = model.embedding, model.head, model.blocks.values()
    for present, what in (
        (embedding.token_types is not None, "has segments"),
        (embedding.width is not None, "has token embeddings of another width"),
        (embedding.norm is not None, "normalises its embeddings"),
        (embedding.scale != 1, f"scales its embeddings by {embedding.scale:g}"),
        (head.bias, "has a bias on its logits"),
        (head.transform, "has a dense layer before its logits"),
        (head.softcap is not None, f"squashes its logits to {head.softcap} (final_logit_softcapping)"),
        (head.scale != 1, f"scales its logits by {head.scale:g}"),
        (model.residual_scale != 1, f"scales what its halves add by {model.residual_scale:g}"),
        (bool(model.rotary.further), f"has rotary positions with {', '.join(model.rotary.further)}"),
        (any(block.parallel for block in blocks), "has parallel halves in its blocks"),
        (any(block.norm_position != "before" for block in blocks), "has norms that are not before its halves"),
        (any(block.mixer is None or block.feed_forward is None for block in blocks), "has blocks with one half"),
    ):
        if present:
            yield what


def unusual_attention(mixer: Attention, norm: str) -> Iterator[str]:
    """What stands inside attention; `norm` is that of the block."""
    for present, what in (
        (not mixer.causal, "has attention to later tokens"),
        (mixer.value_dim not in (None, mixer.head_dim), "has values of another width than keys"),
        (mixer.chunk is not None, "has chunked attention"),
        (mixer.qk_norm not in ("none", "head"), "normalises queries and keys over all heads"),
        (mixer.qk_norm != "none" and mixer.qk_norm_kind != norm, "normalises queries and keys in its own way"),
        (mixer.qk_norm_after_rotary, "normalises queries and keys after their rotary positions"),
        (mixer.value_norm, "normalises values"),
        (mixer.key_is_value, "has keys that are values"),
        (mixer.output_gate == "head" or mixer.gate_bias, "has gates on its attention heads"),
        (mixer.indexer is not None, "chooses its keys by an indexer"),
        (mixer.alibi, "has ALiBi positions"),
        (mixer.rotary_base is not None, f"has the rotary base {mixer.rotary_base} in some layers"),
        (mixer.softcap is not None, f"squashes its scores to {mixer.softcap} (attn_logit_softcapping)"),
        (mixer.scale is not None, f"scales its scores by {mixer.scale}"),
        (mixer.value_scale != 1, f"scales its values by {mixer.value_scale}"),
    ):
        if present:
            yield what
