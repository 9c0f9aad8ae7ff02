"""The page itself: the form, and where answers go."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from dovetail.report.page.document import asset
from dovetail.serve.questions import choices

#: What the page may load and ask: itself alone.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; "
    "img-src data: blob:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)


def page_html(run_dir: str | None) -> str:
    """The page; with the place for a study where one is watched."""
    offered = choices()
    lists = "".join(
        f"<datalist id='{name}'>{_options(values)}</datalist>"
        for name, values in offered.items()
        if name != "frameworks"
    )
    frameworks = _options(offered["frameworks"])
    watched = (
        "" if run_dir is None else f"<section id='study' aria-label='Study' data-run='{escape(run_dir)}'></section>"
    )
    page = _asset("serve.html")
    parts = {"style": asset("page.css"), "frameworks": frameworks, "lists": lists, "watched": watched}
    for name, part in parts.items():
        page = page.replace(f"{{{{{name}}}}}", part)
    return page


def script() -> str:
    """What the page does besides drawing."""
    return _asset("serve.js")


def _asset(name: str) -> str:
    return (files("dovetail.serve") / "assets" / name).read_text(encoding="utf-8")


def _options(values: Sequence[str]) -> str:
    return "".join(f"<option value='{escape(value)}'>{escape(value)}</option>" for value in values)
