"""`dovetail report`: a plan, an answer or the run of a study as one HTML file that opens from disk."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.output import check_target, print_json
from dovetail.errors import InputError

_SUBJECT = "A plan file, the run directory of a study, or what plan, estimate, explore or validate printed with --json."
_SEARCH = "Of a plan file: also search all plans, for the certificate, neighbours and marginal values."
_LIMIT = "Seconds each search may take at most."


def report(
    subject: Annotated[Path, typer.Argument(help=_SUBJECT)],
    out: Annotated[Path, typer.Option("--out", help="Write the page here (HTML).")],
    force: Annotated[bool, typer.Option("--force", help="Allow --out to overwrite a file.")] = False,
    search: Annotated[bool, typer.Option("--search/--no-search", help=_SEARCH)] = True,
    time_limit: Annotated[float | None, typer.Option("--time-limit", min=0.0, help=_LIMIT)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a sentence.")] = False,
) -> None:
    """Write one self-contained HTML file: the answer, its proof, and where time and memory go."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(str(out), "does not end in .html", "give it that ending")
    check_target(out, force=force)
    from dovetail.documents import write_text
    from dovetail.report.page.document import to_html
    from dovetail.report.page.subjects import page_of

    command = shlex.join(["dovetail", "report", str(subject), "--out", str(out)])
    page = page_of(subject, command, search=search, time_limit_s=time_limit)
    text = to_html(page)
    write_text(out, text)
    size = len(text.encode())
    if as_json:
        print_json({"path": str(out), "bytes": size, "title": page.title, "sentence": page.sentence})
    else:
        typer.echo(f"wrote {out} ({size / 2**20:.1f} MiB)")
