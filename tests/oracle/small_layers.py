"""Whole layers of the architectures in use, a few numbers wide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dovetail.graph import LayerGraph
from dovetail.models import Model, model_graph
from dovetail.models.attention import Attention, Indexer
from dovetail.models.block import Block
from dovetail.models.feed_forward import Dense, DenseAndMixture, Mixture
from dovetail.models.latent_attention import LatentAttention
from dovetail.models.linear_attention import GatedDelta, KimiDelta, Lightning
from dovetail.models.model import EMBEDDING, HEAD, PREDICTION, Embedding, Head, MultiTokenPrediction, Repeat
from dovetail.models.state_space import StateSpace

Layer = Callable[[], LayerGraph]

HIDDEN, VOCAB, BLOCK = 6, 11, "block"


def layer(block: Block, name: str = BLOCK, *, fused: bool = True, **model: Any) -> Layer:
    """One layer class of a model of this block alone."""

    def build() -> LayerGraph:
        described = Model(
            name="small",
            hidden=HIDDEN,
            vocab=VOCAB,
            max_seq_len=9,
            blocks={BLOCK: block},
            layers=(Repeat(blocks=(BLOCK,)),),
            **model,
        )
        return model_graph(described, fused_attention=fused).layers[name]

    return build


GPT_ATTENTION = Attention(
    kind="attention", heads=2, kv_heads=2, head_dim=3, rotary=False, qkv_bias=True, output_bias=True
)
GPT = Block(mixer=GPT_ATTENTION, feed_forward=Dense(kind="dense", size=7, activation="gelu", bias=True), norm="layer")
GQA = Attention(kind="attention", heads=4, kv_heads=2, head_dim=4)
SWIGLU = Dense(kind="dense", size=7)
LLAMA = Block(mixer=GQA, feed_forward=SWIGLU)
GPT_OSS = Block(
    mixer=Attention(
        kind="attention", heads=4, kv_heads=2, head_dim=4, window=3, sinks=True, qkv_bias=True, output_bias=True
    ),
    feed_forward=Mixture(
        kind="mixture",
        experts=5,
        top_k=2,
        size=4,
        activation="swiglu_clamped",
        bias=True,
        router_bias=True,
        score="top_k_softmax",
    ),
)
MIXTRAL = Block(mixer=GQA, feed_forward=Mixture(kind="mixture", experts=4, top_k=2, size=5))
LATENT = LatentAttention(kind="latent_attention", heads=2, query_rank=5, kv_rank=4, nope_dim=3, rope_dim=2, value_dim=3)
DEEPSEEK = Block(
    mixer=LATENT,
    feed_forward=Mixture(
        kind="mixture", experts=6, top_k=2, size=4, score="sigmoid", correction_bias=True, shared_size=5
    ),
)
INDEXER = Indexer(heads=2, head_dim=3, top_k=3)
SPARSE_LATENT = LATENT.model_copy(update={"indexer": INDEXER.model_copy(update={"query_from": "latent"})})
GATED = Attention(kind="attention", heads=4, kv_heads=2, head_dim=4, qk_norm="head", output_gate="channel")
QWEN_MIXTURE = Mixture(kind="mixture", experts=4, top_k=2, size=3, shared_size=5, shared_gate=True)
GEMMA = Block(
    mixer=Attention(
        kind="attention", heads=4, kv_heads=2, head_dim=4, qk_norm="heads", value_norm=True, key_is_value=True
    ),
    feed_forward=DenseAndMixture(
        kind="dense_beside_mixture",
        dense=Dense(kind="dense", size=5, activation="geglu_tanh"),
        mixture=Mixture(kind="mixture", experts=4, top_k=2, size=3, activation="geglu_tanh", router_scale=True),
    ),
    norm_position="around",
)
BERT_HEAD = Head(tied=True, bias=True, norm=None, transform=True)
NEOX = Block(mixer=GPT_ATTENTION, feed_forward=SWIGLU, norm="layer", parallel=True)
PREDICTION_MODULE = MultiTokenPrediction(modules=1, block=BLOCK)

#: Layers by name; each is checked whole.
LAYERS: Mapping[str, Layer] = {
    "GPT block": layer(GPT, fused=False, dropout=True),
    "GPT block, fused attention": layer(GPT, dropout=True),
    "Llama block": layer(LLAMA),
    "Llama block, unfused": layer(LLAMA, fused=False),
    "sliding window": layer(Block(mixer=GQA.model_copy(update={"window": 2}), feed_forward=SWIGLU)),
    "sliding window, unfused": layer(Block(mixer=GQA.model_copy(update={"window": 2})), fused=False),
    "chunked": layer(Block(mixer=GQA.model_copy(update={"chunk": 2}), feed_forward=SWIGLU)),
    "chunked, unfused": layer(Block(mixer=GQA.model_copy(update={"chunk": 2})), fused=False),
    "GPT-OSS block": layer(GPT_OSS),
    "Mixtral block": layer(MIXTRAL),
    "DeepSeek-V3 block": layer(DEEPSEEK),
    "DeepSeek-V3 block, unfused": layer(DEEPSEEK, fused=False, dropout=True),
    "DeepSeek-V3.2 block": layer(Block(mixer=SPARSE_LATENT, feed_forward=SWIGLU)),
    "indexed attention, heads alike": layer(
        Block(
            mixer=GQA.model_copy(
                update={"indexer": INDEXER.model_copy(update={"weighted": False, "query_norm": "rms"})}
            )
        )
    ),
    "ERNIE block": layer(
        Block(feed_forward=Mixture(kind="mixture", experts=5, top_k=2, size=3, trained_correction=True))
    ),
    "indexed attention": layer(Block(mixer=GQA.model_copy(update={"indexer": INDEXER}))),
    "Gated DeltaNet block": layer(
        Block(
            mixer=GatedDelta(kind="gated_delta", key_heads=2, value_heads=4, key_dim=4, value_dim=3, conv_kernel=3),
            feed_forward=QWEN_MIXTURE,
        )
    ),
    "gated attention": layer(Block(mixer=GATED, feed_forward=QWEN_MIXTURE)),
    "attention gated per head": layer(Block(mixer=GATED.model_copy(update={"output_gate": "head", "qk_norm": "all"}))),
    "Kimi delta block": layer(
        Block(mixer=KimiDelta(kind="kimi_delta", heads=2, head_dim=3, conv_kernel=3), feed_forward=SWIGLU)
    ),
    "lightning block": layer(Block(mixer=Lightning(kind="lightning", heads=2, head_dim=4), feed_forward=SWIGLU)),
    "Mamba-2 block": layer(
        Block(mixer=StateSpace(kind="state_space", heads=4, head_dim=3, state=4, groups=2, conv_kernel=3))
    ),
    "latent mixture": layer(
        Block(feed_forward=Mixture(kind="mixture", experts=4, top_k=2, size=3, latent=4, activation="relu2"))
    ),
    "Gemma 4 block": layer(GEMMA),
    "parallel residual": layer(NEOX, dropout=True),
    "parallel residual, one norm": layer(NEOX.model_copy(update={"shared_norm": True})),
    "BERT block": layer(
        Block(
            mixer=GPT_ATTENTION.model_copy(update={"causal": False}),
            feed_forward=Dense(kind="dense", size=7, activation="gelu", bias=True),
            norm="layer",
            norm_position="residual",
        ),
        dropout=True,
    ),
    "norms after": layer(Block(mixer=GQA, feed_forward=SWIGLU, norm_position="after")),
    "embedding": layer(LLAMA, EMBEDDING),
    "GPT embedding": layer(GPT, EMBEDDING, embedding=Embedding(positions=9), dropout=True),
    "BERT embedding": layer(GPT, EMBEDDING, embedding=Embedding(positions=9, token_types=2, width=4, norm="layer")),
    "head": layer(LLAMA, HEAD),
    "tied head": layer(GPT, HEAD, head=Head(tied=True, bias=True, norm="layer", softcap=30.0)),
    "BERT head": layer(GPT, HEAD, head=BERT_HEAD),
    "narrow tied head": layer(GPT, HEAD, head=BERT_HEAD, embedding=Embedding(width=4)),
    "head before prediction": layer(LLAMA, HEAD, multi_token_prediction=PREDICTION_MODULE),
    "prediction": layer(DEEPSEEK, PREDICTION, multi_token_prediction=PREDICTION_MODULE),
    "prediction with a tied head": layer(
        LLAMA, PREDICTION, head=Head(tied=True), multi_token_prediction=PREDICTION_MODULE
    ),
}
