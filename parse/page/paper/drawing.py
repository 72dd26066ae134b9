"""The figure of the section as PDF or SVG. The only file that imports matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from parse.page.figures import Line
from parse.page.paper.content import Curves, Panel
from parse.text import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NO_MATPLOTLIB = "matplotlib, which draws the figure, is not installed here: pip install -e '.[report]'"
SIZE_INCHES = (4.6, 3.2)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Those of Okabe and Ito, which people with any colour vision tell apart, in print and on white."""
MARKERS = ("o", "s", "D", "^", "X", "*")
"""Beside the colours, so that no series is known by its colour alone."""
NAME_WIDTH = 48
MAX_MARKS = 10


class DrawingError(ValueError):
    """The figure cannot be drawn here; the text says what to install."""


def draw(curves: Curves, form: str) -> bytes:
    """The figure as a file of that form, `pdf` or `svg`: the same bytes for the same curves and version of matplotlib.

    Raises DrawingError where matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise DrawingError(NO_MATPLOTLIB) from None
    with mpl.rc_context():
        mpl.rcdefaults()  # a matplotlibrc may hand texts to TeX
        mpl.rcParams["font.size"] = 9
        mpl.rcParams["pdf.fonttype"] = 42  # publishers refuse fonts of type 3
        mpl.rcParams["svg.hashsalt"] = "rankwise"  # else ids are drawn by chance
        width, height = SIZE_INCHES
        figure = Figure(figsize=(width, height * len(curves.panels)), layout="constrained")
        for axes, panel in zip(figure.subplots(len(curves.panels), squeeze=False)[:, 0], curves.panels, strict=True):
            _draw_panel(axes, panel)
        written = io.BytesIO()
        nothing = {"CreationDate": None} if form == "pdf" else {"Date": None}
        figure.savefig(written, format=form, metadata=nothing)
        return written.getvalue()


def _draw_panel(axes: Axes, panel: Panel) -> None:
    """The speedups against one base, and the ideal through it."""
    names = _names([each.name for each in panel.series])
    handles = [
        axes.errorbar(
            [float(device or 0) for device in series.x], [math.nan if y is None else y for y in series.y],
            yerr=_errors(series), color=COLOURS[at % len(COLOURS)], marker=MARKERS[at % len(MARKERS)],
            markersize=5, linewidth=1.2, capsize=3,
        )
        for at, series in enumerate(panel.series)
    ]  # fmt: skip
    devices = [device for device, _ in panel.cases]
    (ideal,) = axes.plot(
        devices, [device / panel.base_devices for device in devices], "--", color="#808890", linewidth=1, zorder=0
    )
    marks = _marks(devices)
    for set_scale, axis, unit in (
        (axes.set_xscale, axes.xaxis, 1), (axes.set_yscale, axes.yaxis, panel.base_devices),
    ):  # fmt: skip
        set_scale("log", base=2)
        axis.set_ticks([mark / unit for mark in marks], labels=[f"{mark / unit:.3g}" for mark in marks])
        axis.set_ticks([], minor=True)
    axes.set_xlabel("devices")
    axes.set_ylabel(f"speedup against {panel.base}")
    axes.grid(visible=True, color="#dddddd", linewidth=0.5)
    legend = axes.legend([*handles, ideal], ["series"] * len(handles) + ["ideal"], frameon=False, fontsize=8)
    for text, name in zip(legend.get_texts(), names, strict=False):
        text.set_parse_math(False)  # before the text: a $ in a name is no formula
        text.set_text(name)


def _errors(series: Line) -> list[list[float]]:
    """How far the intervals reach below and above the values; 0 where there is none."""
    pairs = [
        (y - interval[0], interval[1] - y) if y is not None and interval else (0.0, 0.0)
        for y, interval in zip(series.y, series.intervals, strict=True)
    ]
    return [[max(0.0, low) for low, _ in pairs], [max(0.0, high) for _, high in pairs]]


def _marks(devices: Sequence[int]) -> list[int]:
    """The numbers of devices on an axis; of many the powers of two."""
    if len(devices) <= MAX_MARKS:
        return [*devices]
    return [2**power for power in range(devices[-1].bit_length()) if 2**power >= devices[0]]


def _names(names: Sequence[str]) -> list[str]:
    """The names cut to the width of the legend; characters that the font lacks as their escapes."""
    from matplotlib.font_manager import findfont, get_font

    known = get_font(findfont("DejaVu Sans")).get_charmap()
    short = shortened(names, NAME_WIDTH)
    return ["".join(c if ord(c) in known else ascii(c)[1:-1] for c in short[name]) for name in names]
