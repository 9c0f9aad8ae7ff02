"""Importers of encoders of the BERT line: attention in both directions, norms after each addition."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.models.huggingface.classic_pieces import (
    biased,
    dropout,
    only,
    plain,
    split_heads,
    uniform,
    without_cross_attention,
)
from dovetail.models.huggingface.decoder import BlockFields, Importer, activation, hidden_size
from dovetail.models.huggingface.reader import ConfigReader
from dovetail.models.model import Model


def bert(reader: ConfigReader, name: str) -> Model:
    """BERT with its masked-language head."""
    return _bert_line(reader, name, reserved=0, head_act=activation(reader, gated=False, default="gelu"))


def roberta(reader: ConfigReader, name: str) -> Model:
    """RoBERTa, XLM-R, CamemBERT: positions count from behind the padding token's row."""
    return _bert_line(reader, name, reserved=reader.integer("pad_token_id", default=1, low=0) + 1, head_act="gelu")


def _bert_line(reader: ConfigReader, name: str, *, reserved: int, head_act: str) -> Model:
    without_cross_attention(reader)
    only(reader, "position_embedding_type", "absolute")
    hidden = hidden_size(reader)
    rows = reader.integer("max_position_embeddings", default=512, low=reserved + 1)
    causal = reader.flag("is_decoder", default=False)
    block = {
        "norm": "layer",
        "norm_position": "residual",
        "mixer": split_heads(reader, hidden, causal=causal, **biased()),
        "feed_forward": plain(reader, reader.integer("intermediate_size")),
    }
    return uniform(
        reader, name, block, tied=True, max_seq_len=rows - reserved,
        embedding={
            "positions": rows,
            "token_types": reader.integer("type_vocab_size", default=2, low=0) or None,
            "norm": "layer",
        },
        head=_masked_head(head_act), dropout=dropout(reader, "hidden_dropout_prob", 0.1),
    )  # fmt: skip


def distilbert(reader: ConfigReader, name: str) -> Model:
    """DistilBERT: BERT without segments."""
    hidden = reader.integer("dim", "hidden_size")
    rows = reader.integer("max_position_embeddings", default=512)
    block: BlockFields = {
        "norm": "layer",
        "norm_position": "residual",
        "mixer": split_heads(reader, hidden, "n_heads", "num_attention_heads", causal=False, **biased()),
        "feed_forward": plain(reader, reader.integer("hidden_dim"), field="activation"),
    }
    return uniform(
        reader, name, block, ("n_layers", "num_hidden_layers"), tied=True,
        hidden=hidden, max_seq_len=rows, embedding={"positions": rows, "norm": "layer"},
        head=_masked_head(block["feed_forward"]["activation"]), dropout=dropout(reader, "dropout", 0.1),
    )  # fmt: skip


def _masked_head(act: str) -> BlockFields:
    return {"norm": None, "bias": True, "transform": True, "transform_activation": act}


#: `model_type` → importer.
ENCODERS: Mapping[str, Importer] = {
    "bert": bert,
    "camembert": roberta,
    "distilbert": distilbert,
    "roberta": roberta,
    "xlm-roberta": roberta,
}
