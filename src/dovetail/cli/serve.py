"""`dovetail serve`: the same questions and views as a page on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.output import print_json
from dovetail.errors import InputError

_RUN = "The run directory of a study to watch while it runs."
_PORT = "Port on 127.0.0.1; default: any that is free."


def serve(
    run_dir: Annotated[Path | None, typer.Argument(help=_RUN)] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help=_PORT, show_default=False)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
) -> None:
    """Answer questions on a page in your browser: plans, comparisons, what-if, launch files, a study as it runs."""
    if run_dir is not None and not run_dir.is_dir():
        raise InputError(str(run_dir), "is not a directory", "name the run directory of a study")
    from dovetail.serve.server import Server

    with Server(port, run_dir) as server:
        if as_json:
            print_json({"address": server.address})
        else:
            typer.echo(f"open {server.address}\nCtrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("ended", err=True)
