"""Renders a page as one HTML file that loads nothing and runs only its own scripts; the door for jinja2 in parse."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hpc.system.sanitize import plain
from hpc.system.version import __version__
from parse.page.figures import Chart, HtmlPage, PageBlock, PlotlyFigure
from parse.term_kinds import TERM_KINDS

HERE = Path(__file__).parent
PLOTLY = HERE / "assets" / "plotly-cartesian.min.js"
LICENCE = HERE / "assets" / "LICENSE.plotly"
MAX_TEXT = 2000
"""Characters of a text on the page; of a longer one the begin, and its length."""
LONG_WORD = re.compile(r"\S{201,}")
"""No name is longer, and few paths; its middle is left out."""
UNSAFE = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def render(page: HtmlPage) -> str:
    """The HTML of the page. Every text is escaped; what a policy in its head forbids is everything but its scripts.

    The charts' library is in a page that has a chart.
    """
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, finalize=_shown,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    figures = {chart.id: chart.figure for chart in _charts(page)}
    plotly, script = _text(PLOTLY) if figures else "", _text(HERE / "templates" / "page.js")
    return environment.get_template("page.html.j2").render(
        page=page,
        data=Markup(as_script_data(figures)) if figures else "",
        style=Markup(style()),
        plotly=Markup(plotly),
        script=Markup(script),
        licence=Markup(_text(LICENCE).replace("--", "- -")),
        policy=content_policy([plotly, script] if figures else [script]),
        version=__version__,
    )


def style() -> str:
    """The stylesheet, with the colours of terms."""
    css = _text(HERE / "templates" / "page.css")
    for at, ground in enumerate(("light", "dark")):
        colours = " ".join(f"--{kind.name}: {kind.colours[at]};" for kind in TERM_KINDS)
        css = css.replace(f"/* the terms of a step, on a {ground} ground */", colours)
    return css


def content_policy(scripts: list[str]) -> str:
    """The Content-Security-Policy: nothing is loaded, and no script runs but these.

    Plotly sets style attributes and draws heat maps into images of its own, which are data; a style can load nothing.
    """
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )


def as_script_data(value: Mapping[str, PlotlyFigure]) -> str:
    """JSON for a `<script type="application/json">`: nothing in it ends the element or opens a comment.

    Raises ValueError for a number that is not finite.
    """
    text = json.dumps(_plain(value), allow_nan=False, separators=(",", ":"))
    return text.translate(UNSAFE)


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _charts(page: HtmlPage) -> list[Chart]:
    blocks: list[PageBlock] = []
    for section in page.sections:
        blocks += section.blocks
        for panel in section.panels:
            blocks += panel.blocks
    return [block for block in blocks if isinstance(block, Chart)]


def _shown(value: Any) -> Any:
    """A value as the template writes it: a text without control characters, and not endless; escaped afterwards."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    text = LONG_WORD.sub(lambda match: f"{match[0][:150]}…{match[0][-40:]}", plain(value))
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text)} characters)"


def _plain(value: Any) -> Any:
    """The value with every text in it, at any depth, without control characters."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return {plain(str(name)): _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
