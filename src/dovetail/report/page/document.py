"""A page of sections as one HTML file: styles, script, charts and data are inside, so it opens from disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from dovetail.frozen import frozen

#: What a page may load: nothing but what is in it.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"

#: The charts of Plotly that have two axes, as its makers build them (MIT, see plotly-LICENSE.txt).
PLOTLY = "plotly-cartesian.min.js"
#: As JSON may write it, so that no text can end the script it is in.
LESS = "\\u003c"


@frozen
class Table:
    """Rows of texts; the first column is the rows' heading."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@frozen
class Chart:
    """What Plotly draws, and what it shows in words for those who cannot see it."""

    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    words: str
    height: int = 320


@frozen
class Widget:
    """Something the page's own script draws: the pipeline timeline or the designs of a study."""

    kind: str
    data: Mapping[str, Any]
    words: str


@frozen
class Section:
    """A heading, a sentence to read first, pictures, and the figures behind them."""

    key: str
    title: str
    lead: str = ""
    #: drawn one below the other; a text is SVG
    pictures: tuple[Chart | Widget | str, ...] = ()
    table: Table | None = None
    #: whether the table is what the section shows, not what stands behind a picture
    open: bool = False
    #: more sentences, each a list item
    notes: tuple[str, ...] = ()


@frozen
class Page:
    """An answer for a reader."""

    title: str
    sentence: str
    #: the figures to see first: a name, a value and a remark each
    cards: tuple[tuple[str, str, str], ...]
    sections: tuple[Section, ...]
    #: what reproduces it
    command: str
    provenance: Mapping[str, str]


def to_html(page: Page) -> str:
    """The page as one file."""
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{escape(page.title)} · Dovetail</title>\n<link rel='icon' href='data:,'>\n"
        f"<style>\n{asset('page.css')}</style>\n</head>\n"
    )
    links = "".join(f'<a href="#{each.key}">{escape(each.title)}</a>' for each in page.sections)
    top = (
        '<body>\n<a class="skip" href="#main">Skip to the answer</a>\n<header class="bar"><strong>Dovetail</strong>'
        f'<nav aria-label="Sections">{links}</nav>'
        '<button type="button" id="theme" aria-pressed="false">Dark</button></header>\n'
    )
    scripts = f"<script>{asset(PLOTLY)}</script>\n<script>\n{asset('page.js')}</script>\n"
    return f'{head}{top}<main id="main">\n{answer_html(page)}</main>\n{scripts}</body>\n</html>\n'


def answer_html(page: Page) -> str:
    """The page without what surrounds it, as another page can hold it."""
    cards = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd><dd class='remark'>{escape(remark)}</dd></div>"
        for name, value, remark in page.cards
    )
    sections = "".join(section_html(section) for section in page.sections)
    made = "".join(f"<tr><th scope='row'>{escape(n)}</th><td>{escape(t)}</td></tr>" for n, t in page.provenance.items())
    provenance = escape(f"Provenance of {page.title}", quote=True)
    return (
        f"<h1>{escape(page.title)}</h1>\n<p class='answer'>{escape(page.sentence)}</p>\n"
        f"<dl class='cards'>{cards}</dl>\n"
        f"{sections}<section id='provenance'><h2>How to reproduce it</h2>\n"
        f"<pre tabindex='0'><code>{escape(page.command)}</code></pre>\n"
        f"<div class='scroll' tabindex='0' role='region' aria-label='{provenance}'><table>{made}</table></div>\n"
        "</section>\n"
    )


def section_html(section: Section) -> str:
    """A section with its pictures' data beside them."""
    lead = f"<p>{escape(section.lead)}</p>" if section.lead else ""
    notes = "".join(f"<li>{escape(note)}</li>" for note in section.notes)
    notes = f"<ul>{notes}</ul>" if notes else ""
    pictures = "".join(_picture_html(section, number) for number in range(len(section.pictures)))
    table = "" if section.table is None else _table_html(section.table, section.title)
    if table and not section.open:
        table = f"<details><summary>Figures as a table</summary>{table}</details>"
    return f"<section id='{section.key}'><h2>{escape(section.title)}</h2>\n{lead}{pictures}{notes}{table}</section>\n"


def _picture_html(section: Section, number: int) -> str:
    picture, name = section.pictures[number], f"{section.key}-{number}"
    if isinstance(picture, str):
        return f"<div class='drawing' tabindex='0' role='group' aria-label='{escape(section.title)}'>{picture}</div>\n"
    words = f"role='img' aria-label='{escape(picture.words, quote=True)}'"
    if isinstance(picture, Widget):
        place, data = f"<div class='widget' data-kind='{picture.kind}' id='{name}'></div>", picture.data
        words = f"<p class='caption'>{escape(picture.words)}</p>"
        return f"{words}{place}{_data_html(name, data)}\n"
    place = f"<div class='chart' id='{name}' {words} style='height:{picture.height}px'></div>"
    return place + _data_html(name, {"data": picture.data, "layout": picture.layout}) + "\n"


def _data_html(name: str, data: Mapping[str, Any]) -> str:
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return f"<script type='application/json' data-of='{name}'>{text.replace('<', LESS)}</script>"


def _table_html(table: Table, caption: str) -> str:
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in table.columns)
    rows = "".join(
        f"<tr><th scope='row'>{escape(row[0])}</th>{''.join(f'<td>{escape(text)}</td>' for text in row[1:])}</tr>"
        for row in table.rows
    )
    name = escape(caption, quote=True)
    return (
        f"<div class='scroll' tabindex='0' role='region' aria-label='{name}, as a table'>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def asset(name: str) -> str:
    """A style sheet or script of the package."""
    return (files("dovetail.report.page") / "assets" / name).read_text(encoding="utf-8")
