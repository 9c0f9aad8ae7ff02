"""The command line: thin, one file per command, loaded when it is called; heavy packages when it needs them."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer

import dovetail as dt
from dovetail.cli.commands import SETTINGS, CommandLine
from dovetail.cli.compiling_line import show_compiling
from dovetail.cli.exit_codes import EXIT_ANSWERED, EXIT_INTERRUPTED, EXIT_WRONG_INPUT
from dovetail.errors import InputError

app = typer.Typer(
    name="dovetail",
    cls=CommandLine,
    help="Find the chip, the wafer or cluster, and the parallel plan that train a model best, with a proof.",
    **SETTINGS,
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"dovetail {dt.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Runs before every command."""
    if getattr(signal.getsignal(signal.SIGINT), "__name__", "") == "leave_early":
        # the command has begun: what it does about an interrupt is its own business
        signal.signal(signal.SIGINT, signal.default_int_handler)


def main(arguments: list[str] | None = None) -> None:
    """Runs a command; a user's mistake becomes one sentence on standard error and exit code 2."""
    show_compiling(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(arguments, standalone_mode=False)
    except InputError as error:
        _fail(error)
    except typer.TyperException as error:
        _fail(_usage_error(error))
    except (typer.Abort, KeyboardInterrupt):
        typer.echo("dovetail: was interrupted; let it run longer.", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        sys.exit(EXIT_ANSWERED)
    else:
        sys.exit(code if isinstance(code, int) else EXIT_ANSWERED)


def _usage_error(error: typer.TyperException) -> InputError:
    message = getattr(error, "format_message", error.__str__)()
    what = " ".join(str(message).split()).rstrip(".?")
    return InputError("dovetail", what, "run the command with --help to see its options")


def _fail(error: InputError) -> None:
    typer.echo(str(error), err=True)
    sys.exit(EXIT_WRONG_INPUT)
