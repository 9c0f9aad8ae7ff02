"""`dovetail models`: the catalogue, one model's figures, import or trace of a Hugging Face config."""

from __future__ import annotations

import json
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
_STRICT = "Refuse operators that the traced graph can only approximate."

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
    out: Annotated[Path | None, typer.Option("--out", help="Write the model file here (YAML).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Allow --out to overwrite a file.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help=_TRACE)] = False,
    strict: Annotated[bool, typer.Option("--strict", help=_STRICT)] = False,
    seq_len: SeqLen = None,
    as_json: AsJson = False,
) -> None:
    """Read a Hugging Face config.json, local or of the Hub; show it, or write it as a model file."""
    _check_seq_len(seq_len)
    if strict and not trace:
        raise InputError("--strict", "needs --trace", "add it, or leave --strict out")
    if out is not None:
        _check_out(out, Path(config), force=force, traced=trace)
    model = _traced(config, strict=strict) if trace else _imported(config)
    summary = dt.models.summarise(model, seq_len)
    if out is not None:
        _write(out, model)
    _present(model, summary, as_json)


def _imported(config: str) -> AnyModel:
    return dt.models.from_huggingface(config) if _is_path(config) else dt.models.load(config)


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


def _write(out: Path, model: AnyModel) -> None:
    from dovetail.documents import MAX_YAML_BYTES, write_text
    from dovetail.models.catalogue import document_of

    if out.suffix.lower() == ".json":
        write_text(out, json.dumps(document_of(model)) + "\n")
        return
    text = dt.models.to_yaml(model)
    if len(text.encode()) > MAX_YAML_BYTES:
        what = f"would be longer than the {MAX_YAML_BYTES:,} bytes that a YAML file may have"
        raise InputError(str(out), what, "add --trace, and give it the ending .json")
    write_text(out, text)


def _check_out(out: Path, config: Path, *, force: bool, traced: bool) -> None:
    if out.suffix.lower() not in (".yaml", ".yml", *((".json",) if traced else ())):
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


def _present(model: AnyModel, summary: ModelSummary, as_json: bool) -> None:
    from dovetail.models.traced import approximations

    approximated, left_out = approximations(model), getattr(model, "left_out", ())
    if as_json:
        more: dict[str, object] = {"approximated": [asdict(each) for each in approximated]} if approximated else {}
        print_json(_fields(summary) | more | ({"left_out": list(left_out)} if left_out else {}))
        return
    _print_summary(summary)
    for title, lines in (
        ("approximated", _grouped(approximated)),
        ("left out", left_out),
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
