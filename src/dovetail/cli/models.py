"""`dovetail models`: the catalogue, one model's figures, import of a Hugging Face config."""

from __future__ import annotations

import os
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

_NAME = "A name of the catalogue, a model file, a config.json or its folder, or a Hugging Face id."

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
SeqLen = Annotated[int | None, typer.Option("--seq-len", help="Tokens per sequence for FLOPs and memory.")]


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List the models of the catalogue."""
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
    name: Annotated[str, typer.Argument(help=_NAME)],
    seq_len: SeqLen = None,
    as_json: AsJson = False,
) -> None:
    """Show one model: parameters, FLOPs and layer classes."""
    _check_seq_len(seq_len)
    _present(dt.models.summarise(dt.models.load(name), seq_len), as_json)


@app.command("import")
def import_config(
    config: Annotated[str, typer.Argument(help="A Hugging Face config.json, its folder, or an id org/name.")],
    out: Annotated[Path | None, typer.Option("--out", help="Write the model file here (YAML).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Allow --out to overwrite a file.")] = False,
    seq_len: SeqLen = None,
    as_json: AsJson = False,
) -> None:
    """Read a Hugging Face config.json, local or of the Hub; show it, or write it as a model file."""
    _check_seq_len(seq_len)
    if out is not None:
        _check_out(out, Path(config), force=force)
    model = _imported(config)
    summary = dt.models.summarise(model, seq_len)
    if out is not None:
        from dovetail.documents import write_text

        write_text(out, dt.models.to_yaml(model))
    _present(summary, as_json)


def _imported(config: str) -> Model:
    path = Path(config)
    is_path = path.suffix.lower() in (".json", ".yaml", ".yml") or os.path.isdir(config)
    return dt.models.from_huggingface(path) if is_path else dt.models.load(config)


def _check_out(out: Path, config: Path, *, force: bool) -> None:
    if out.suffix.lower() not in (".yaml", ".yml"):
        raise InputError(str(out), "does not end in .yaml", "a model file is YAML: give it that ending")
    if out.resolve() == config.resolve():
        raise InputError(str(out), "is the config itself", "name another file")
    if out.is_file() and not force:
        raise InputError(str(out), "already exists", "name another file or add --force")


def _check_seq_len(seq_len: int | None) -> None:
    from dovetail.models.limits import MAX_TOKENS

    if seq_len is not None and not 1 <= seq_len <= MAX_TOKENS:
        fix = f"it should be a whole number from 1 to {MAX_TOKENS}"
        raise InputError("--seq-len", f"is {quoted(seq_len)}", fix)


def _present(summary: ModelSummary, as_json: bool) -> None:
    if as_json:
        print_json(_fields(summary))
    else:
        _print_summary(summary)


def _fields(summary: ModelSummary) -> dict[str, object]:
    return asdict(summary)


def _print_summary(s: ModelSummary) -> None:
    active = "" if s.active_parameters == s.parameters else f" ({count_text(s.active_parameters)} active per token)"
    tokens = "token" if s.seq_len == 1 else "tokens"
    masked = s.causal_flops_per_token < s.flops_per_token
    causal = f" ({flop_text(s.causal_flops_per_token)} with causal attention)" if masked else ""
    facts = [
        ("model", s.name),
        ("parameters", f"{s.parameters:,}{active}"),
        ("layers", f"{s.layers}, hidden {s.hidden}, vocabulary {s.vocab}"),
        ("training", f"{flop_text(s.flops_per_token)} per token at {s.seq_len} {tokens}{causal}"),
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
