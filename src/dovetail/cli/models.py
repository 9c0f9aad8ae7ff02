"""`dovetail models`: the catalogue, one model's figures, import or trace of a Hugging Face config."""

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
    from collections.abc import Iterable

    from dovetail.models import AnyModel, ModelSummary
    from dovetail.models.traced import Approximation

app = typer.Typer(help="Models: list the catalogue, show one, import a Hugging Face config.")

_NAME = "A name of the catalogue, a model file, a config.json or its folder, or a Hugging Face id."

_TRACE = "Trace the model through its PyTorch module, also where its family is known (needs torch and transformers)."
_OUT = "Write the model file here (YAML; JSON where it ends in .json)."
_STRICT = "Refuse a traced model with operators that its graph can only approximate."

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
    model = dt.models.load(name)
    _present(model, dt.models.summarise(model, seq_len), as_json)


@app.command("import")
def import_config(
    config: Annotated[str, typer.Argument(help="A Hugging Face config.json, its folder, or an id org/name.")],
    out: Annotated[Path | None, typer.Option("--out", help=_OUT)] = None,
    force: Annotated[bool, typer.Option("--force", help="Allow --out to overwrite a file.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help=_TRACE)] = False,
    strict: Annotated[bool, typer.Option("--strict", help=_STRICT)] = False,
    seq_len: SeqLen = None,
    as_json: AsJson = False,
) -> None:
    """Read a Hugging Face config.json, local or of the Hub; show it, or write it as a model file."""
    _check_seq_len(seq_len)
    if out is not None:
        _check_out(out, Path(config), force=force)
    model = _traced(config, strict=strict) if trace else _imported(config, strict=strict)
    summary = dt.models.summarise(model, seq_len)
    if out is not None:
        dt.models.save(model, out)
    _present(model, summary, as_json)
    if out is not None and not as_json:
        typer.echo(f"\nwrote {out}")


def _imported(config: str, *, strict: bool) -> AnyModel:
    read = dt.models.from_huggingface if _is_path(config) else dt.models.load
    model = read(config, strict=strict)
    if strict and not isinstance(model, dt.models.TracedModel):
        raise InputError(
            "--strict", f"is for traced models, and {model.name} is not traced", "add --trace, or leave it out"
        )
    return model


def _traced(config: str, *, strict: bool) -> AnyModel:
    from dovetail.models.hub import from_hub, hub_id
    from dovetail.models.importing import trace_config

    if _is_path(config):
        return trace_config(config, strict=strict)
    asked = hub_id(config)
    if asked is None:
        what = f"{quoted(config)} is neither a config.json, nor a folder that holds one, nor a Hugging Face id"
        raise InputError("--trace", what, "name one of them, or leave --trace out")
    return from_hub(asked, traced=True, strict=strict)


def _is_path(config: str) -> bool:
    return Path(config).suffix.lower() in (".json", ".yaml", ".yml") or os.path.isdir(config)


def _check_out(out: Path, config: Path, *, force: bool) -> None:
    from dovetail.models.catalogue import check_file_name

    check_file_name(out)
    if out.resolve() == config.resolve():
        raise InputError(str(out), "is the config itself", "name another file")
    if out.is_file() and not force:
        raise InputError(str(out), "already exists", "name another file or add --force")


def _check_seq_len(seq_len: int | None) -> None:
    from dovetail.models.limits import MAX_TOKENS

    if seq_len is not None and not 1 <= seq_len <= MAX_TOKENS:
        fix = f"it should be a whole number from 1 to {MAX_TOKENS}"
        raise InputError("--seq-len", f"is {quoted(seq_len)}", fix)


def _present(model: AnyModel, summary: ModelSummary, as_json: bool) -> None:
    from dovetail.models.traced import approximations, left_out

    approximated, lost = approximations(model), left_out(model)
    if as_json:
        more: dict[str, object] = {"approximated": [asdict(each) for each in approximated]} if approximated else {}
        print_json(_fields(summary) | more | ({"left_out": list(lost)} if lost else {}))
        return
    _print_summary(summary, _layers_text(model, summary))
    for title, lines in (
        ("approximated", _grouped(approximated)),
        ("left out", lost),
    ):
        if lines:
            typer.echo(f"\n{title}")
        for line in lines:
            typer.echo(f"  {line}")


def _grouped(approximated: Iterable[Approximation]) -> list[str]:
    """What stands for something else, each kind once with how often and where."""
    places: dict[str, list[Approximation]] = {}
    for each in approximated:
        places.setdefault(each.words, []).append(each)
    return [
        f"{words}: {len(found)} in {', '.join(dict.fromkeys(each.layer for each in found))}, first {found[0].operator}"
        for words, found in places.items()
    ]


def _fields(summary: ModelSummary) -> dict[str, object]:
    return asdict(summary)


def _layers_text(model: AnyModel, summary: ModelSummary) -> str:
    """How many layers there are; of a traced model also of what kind, where there are several."""
    kinds = model.layers_by_kind() if isinstance(model, dt.models.TracedModel) else {}
    words = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return f"{summary.layers} ({words})" if len(kinds) > 1 else str(summary.layers)


def _print_summary(s: ModelSummary, layers: str) -> None:
    active = "" if s.active_parameters == s.parameters else f" ({count_text(s.active_parameters)} active per token)"
    tokens = "token" if s.seq_len == 1 else "tokens"
    masked = s.causal_flops_per_token < s.flops_per_token
    causal = f" ({flop_text(s.causal_flops_per_token)} with causal attention)" if masked else ""
    facts = [
        ("model", s.name),
        ("parameters", f"{s.parameters:,}{active}"),
        ("layers", f"{layers}, hidden {s.hidden}, vocabulary {s.vocab}"),
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
