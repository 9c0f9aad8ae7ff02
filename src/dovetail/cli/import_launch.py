"""`dovetail import`: an existing launch file as a plan file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dovetail.cli.evaluation import plan_facts, question_facts
from dovetail.cli.output import check_target, print_facts, print_json, wrapped
from dovetail.cli.question import complete
from dovetail.errors import InputError

#: Launch files are short, encodings of many stages less so; anything longer is something else.
MAX_BYTES = 2**22


def import_launch(
    file: Annotated[Path, typer.Argument(help="A launch script, arguments, or a configuration.")],
    out: Annotated[Path | None, typer.Option("--out", help="Write the plan file here (YAML).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Allow --out to overwrite a file.")] = False,
    form: Annotated[
        Literal["megatron", "torchtitan", "deepspeed", "accelerate", "maxtext", "encoding"] | None,
        typer.Option("--format", help="Format of the launch file; default: detected."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="If the file names no model.")] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="A cluster of the catalogue or its file.")] = None,
    chip: Annotated[str | None, typer.Option("--chip", help="A chip of the catalogue or its file.")] = None,
    chips: Annotated[int | None, typer.Option("--chips", min=1, help="If the file does not say how many.")] = None,
    global_batch: Annotated[int | None, typer.Option("--global-batch", help="Sequences per step.")] = None,
    seq_len: Annotated[int | None, typer.Option("--seq-len", help="Tokens per sequence.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a view.")] = False,
) -> None:
    """Read an existing launch file as a plan; ask for what it leaves open, and list the options we do not know."""
    from dovetail.launch.targets import read_launch

    reading = read_launch(_text(file), str(file), form, chips, file.parent)
    given: dict[str, Any] = {"job.model": model, "job.seq_len": seq_len, "job.global_batch": global_batch}
    given |= {"cluster.name": cluster, "cluster.chip": chip, "cluster.chips": chips}
    parts = {
        "job": dict(reading.job),
        "cluster": {**reading.cluster, "framework": reading.framework},
        "plan": dict(reading.plan),
    }
    document = complete(parts, given, str(file))
    from dovetail.launch.encoding.read import EncodingReading
    from dovetail.plans.plan_file import task_of

    is_encoding = isinstance(reading, EncodingReading)
    task = reading.task(document, str(file)) if is_encoding else task_of(document, str(file))
    from dovetail.plans.write import plan_document, write_plan_file

    written = plan_document(task.plan, task.job, task.cluster, task.framework.name)
    if out is not None:
        check_target(out, force=force)
        write_plan_file(out, written)
    if as_json:
        extra = {"unknown": list(reading.unknown), "passed_over": list(reading.passed_over)}
        extra["assumed"] = list(reading.assumed)
        print_json({**written, **extra, "out": None if out is None else str(out)})
        return
    print_facts([*question_facts(task.job, task.cluster, task.framework), *plan_facts(task.plan)])
    for text in reading.assumed:
        print_facts(wrapped("assumed", text))
    if reading.unknown:
        print_facts(wrapped("unknown", f"{', '.join(reading.unknown)}: unknown options, which the plan ignores"))
    typer.echo(
        f"wrote {out}" if out is not None else "add --out plan.yaml to save it, then run `dovetail estimate plan.yaml`"
    )


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise InputError(str(file), f"has more than {MAX_BYTES} bytes", "give a launch script or its arguments")
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(str(file), "is not text", "give a launch script, arguments or a configuration") from None
    except OSError as error:
        raise InputError(str(file), f"cannot be read ({error.strerror})", "name an existing file") from None
