"""Renders a page as one HTML file that loads nothing and runs only its own script; the door for jinja2 in parse."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hpc.system.sanitize import plain
from hpc.system.version import __version__
from parse.page.figures import Chart, HtmlPage, shareable
from parse.page.svg import PLOTS, legend, percent
from parse.term_kinds import TERM_KINDS

HERE = Path(__file__).parent
MAX_TEXT = 2000
"""Characters of a text on the page; of a longer one the begin, and its length."""
LONG_WORD = re.compile(r"\S{201,}")
"""No name is longer, and few paths; its middle is left out."""


def render(page: HtmlPage) -> str:
    """The HTML of the page. Every text is escaped; what a policy in its head forbids is everything but its script."""
    script, template = _text(HERE / "templates" / "page.js"), _environment().get_template("page.html.j2")
    return template.render(
        page=page, style=Markup(style()), script=Markup(script), policy=content_policy(script), version=__version__
    )


def draw(chart: Chart) -> str:
    """The chart as an `<svg>` element; its label says what it shows."""
    return _environment().get_template("chart.svg.j2").render(chart=chart, plot=PLOTS[type(chart.figure)](chart.figure))


def draw_alone(chart: Chart, width_px: int = 720) -> str:
    """The chart as an SVG file with its title, on a light ground."""
    opening, _, content = draw(chart).strip().partition(">")
    above, after, below, before, height = map(float, re.findall(r"[\d.]+(?=px)", opening.partition('style="')[2]))
    return _environment().get_template("chart_file.svg.j2").render(
        chart=chart, colours=" ".join(style().partition("{")[2].partition("}")[0].split()), width=width_px,
        height=height, x=before, y=above, plot_width=width_px - before - after, plot_height=height - above - below,
        content=Markup(content),
    )  # fmt: skip


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, finalize=_shown,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["drawn"] = lambda chart: Markup(draw(chart))
    environment.filters["percent"] = percent
    environment.globals["legend"] = legend
    return environment


def style() -> str:
    """The stylesheet, with the colours of terms."""
    css = _text(HERE / "templates" / "page.css")
    for at, ground in enumerate(("light", "dark")):
        colours = " ".join(f"--{kind.name}: {kind.colours[at]};" for kind in TERM_KINDS)
        css = css.replace(f"/* the terms of a step, on a {ground} ground */", colours)
    return css


def content_policy(script: str) -> str:
    """The Content-Security-Policy: nothing is loaded, and no script runs but this; a style can load nothing, and heat
    maps are images in the page."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _shown(value: Any) -> Any:
    """A value as the template writes it: a text that may be handed on, without control characters and not endless;
    escaped afterwards."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    text = LONG_WORD.sub(lambda match: f"{match[0][:150]}…{match[0][-40:]}", shareable(plain(value)))
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text)} characters)"


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
