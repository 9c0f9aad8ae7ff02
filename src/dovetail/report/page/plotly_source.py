"""Plotly's script, which draws the charts: the only place that knows the package."""
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from functools import cache

from dovetail.errors import InputError


@cache
def plotly_source() -> str:
    """The script as the installed package has it; nothing is fetched."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        fix = 'run `pip install "dovetail[report]"`'
        raise InputError("report", "needs plotly for its charts, which is not installed", fix) from None
    return str(get_plotlyjs())
