"""`dovetail models`: the catalogue, one model's figures, import of a Hugging Face config."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import dovetail as dt
from dovetail.cli.output import print_facts, print_json, print_table
from dovetail.errors import InputError, quoted
from dovetail.units import bytes_text, count_text, flop_text

if TYPE_CHECKING:
    from dovetail.models import Model, ModelSummary

app = typer.Typer(help="Models: list the catalogue, show one, import a Hugging Face config.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
SeqLen = Annotated[int | None, typer.Option("--seq-len", help="Tokens per sequence for FLOPs and memory.")]

MAX_SEQ_LEN = 2**40


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """Every model of the catalogue."""
    summaries = [dt.models.summarise(dt.models.load(name)) for name in dt.models.names()]
    if as_json:
        print_json([_fields(summary) for summary in summaries])
        return
    rows = [
        (s.name, count_text(s.parameters), count_text(s.active_parameters), str(s.layers), str(s.hidden), str(s.vocab))
        for s in summaries
    ]
    print_table(("model", "parameters", "active", "layers", "hidden", "vocab"), rows)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A name of the catalogue, or the path of a model file.")],
    seq_len: SeqLen = None,
    as_json: AsJson = False,
) -> None:
    """Parameters, FLOPs and layer classes of one model."""
    _check_seq_len(seq_len)
    _present(dt.models.load(name), seq_len, as_json)


@app.command("import")
def import_config(
    config: Annotated[Path, typer.Argument(help="A Hugging Face config.json.")],
    out: Annotated[Path | None, typer.Option("--out", help="Write the model file here (YAML).")] = None,
    seq_len: SeqLen = None,
    as_json: AsJson = False,
) -> None:
    """Read a Hugging Face config.json; show it, or write it as a model file."""
    _check_seq_len(seq_len)
    model = dt.models.from_huggingface(config)
    if out is not None:
        try:
            out.write_text(dt.models.to_yaml(model), encoding="utf-8")
        except OSError as error:
            raise InputError(
                str(out), f"cannot be written ({error.strerror})", "name a file in a folder that exists"
            ) from None
    _present(model, seq_len, as_json)


def _check_seq_len(seq_len: int | None) -> None:
    if seq_len is not None and not 1 <= seq_len <= MAX_SEQ_LEN:
        fix = f"it should be a whole number from 1 to {MAX_SEQ_LEN}"
        raise InputError("--seq-len", f"is {quoted(seq_len)}", fix)


def _present(model: Model, seq_len: int | None, as_json: bool) -> None:
    summary = dt.models.summarise(model, seq_len)
    if as_json:
        print_json(_fields(summary))
    else:
        _print_summary(summary)


def _fields(summary: ModelSummary) -> dict[str, object]:
    return asdict(summary)


def _print_summary(s: ModelSummary) -> None:
    active = "" if s.active_parameters == s.parameters else f" ({count_text(s.active_parameters)} active per token)"
    facts = [
        ("model", s.name),
        ("parameters", f"{s.parameters:,}{active}"),
        ("layers", f"{s.layers}, hidden {s.hidden}, vocabulary {s.vocab}"),
        (
            "training",
            f"{flop_text(s.flops_per_token)} per token at {s.seq_len} tokens "
            f"({flop_text(s.causal_flops_per_token)} with causal attention)",
        ),
    ]
    if s.multi_token_prediction_parameters:
        facts.append(
            ("prediction", f"{s.multi_token_prediction_parameters:,} parameters in multi-token-prediction modules")
        )
    if s.published_parameters is not None:
        facts.append(("published", f"{count_text(s.published_parameters)} parameters"))
    facts += [(label, text) for label, text in (("source", s.source), ("note", s.note)) if text]
    print_facts(facts)
    rows = [
        (
            c.name,
            str(c.count),
            count_text(c.parameters),
            flop_text(c.forward_flops_per_token),
            bytes_text(c.saved_bytes_per_token),
        )
        for c in s.layer_classes
    ]
    print_table(("layer class", "count", "parameters", "forward / token", "saved / token"), rows)
