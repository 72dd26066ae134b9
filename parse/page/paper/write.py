"""The section and its figure as files beside one another."""

from __future__ import annotations

import argparse
import io
import math
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hpc.system.atomic import open_output, write_output
from hpc.system.import_guard import install_command
from hpc.system.sanitize import plain
from parse.extrapolation.outlook import RequestError
from parse.page.figures import Line
from parse.page.forecast import FORECAST, Forecasts
from parse.page.paper.content import DEFAULT_EFFICIENCY, Content, Curves, ProposedWork, SpeedupPanel, content
from parse.report.summary import Summary
from parse.text import markdown_text, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The figure of the section as PDF or SVG. The only file that imports matplotlib.

NO_MATPLOTLIB = f"matplotlib, which draws the figure, is not installed here: {install_command('report')}"
SIZE_INCHES = (4.6, 3.2)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Those of Okabe and Ito, which people with any colour vision can distinguish, in print and on white."""
MARKERS = ("o", "s", "D", "^", "X", "*")
"""Beside the colours, so that no series is known by its colour alone."""
NAME_WIDTH = 48
MAX_MARKS = 10


def draw(curves: Curves, form: str) -> bytes | None:
    """The figure as a file of that form, `pdf` or `svg`: the same bytes for the same curves and version of matplotlib;
    None where that is not installed."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return None
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


def _draw_panel(axes: Axes, panel: SpeedupPanel) -> None:
    """The speedups against one base, and the ideal through it."""
    names = _names([each.name for each in panel.series])
    handles = [_draw_line(axes, series, at, "-") for at, series in enumerate(panel.series)]
    forecasts = [_draw_line(axes, series, series.number or 0, "--") for series in panel.forecasts]
    handles, names = handles + forecasts[:1], names + [FORECAST] * bool(forecasts)
    devices = [device for device, _ in panel.cases]
    (ideal,) = axes.plot(
        devices, [device / panel.base_devices for device in devices], "--", color="#808890", linewidth=1, zorder=0
    )
    marks = _marks(devices)
    for set_scale, axis, unit in (
        (axes.set_xscale, axes.xaxis, 1), (axes.set_yscale, axes.yaxis, panel.base_devices),
    ):  # fmt: skip
        set_scale("log", base=2)
        axis.set_ticks([mark / unit for mark in marks], labels=[_whole(mark / unit) for mark in marks])
        axis.set_ticks([], minor=True)
    axes.set_xlabel("devices")
    axes.set_ylabel(f"speedup against {panel.base}")
    axes.grid(visible=True, color="#dddddd", linewidth=0.5)
    legend = axes.legend([*handles, ideal], ["series"] * len(handles) + ["ideal"], frameon=False, fontsize=8)
    for text, name in zip(legend.get_texts(), names, strict=False):
        text.set_parse_math(False)  # before the text: a $ in a name is no formula
        text.set_text(name)


def _draw_line(axes: Axes, series: Line, number: int, style: str) -> Any:
    """A line with its marks and intervals; a dashed one has open marks. Returns what the legend shows."""
    colour = COLOURS[number % len(COLOURS)]
    return axes.errorbar(
        [float(device or 0) for device in series.x], [math.nan if y is None else y for y in series.y],
        yerr=_errors(series), color=colour, marker=MARKERS[number % len(MARKERS)], markersize=5, linewidth=1.2,
        capsize=3, linestyle=style, markerfacecolor=colour if style == "-" else "white",
    )  # fmt: skip


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


def _whole(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _names(names: Sequence[str]) -> list[str]:
    """The names cut to the width of the legend; characters that the font lacks as their escapes."""
    from matplotlib.font_manager import findfont, get_font

    known = get_font(findfont("DejaVu Sans")).get_charmap()
    short = shortened(names, NAME_WIDTH)
    return ["".join(c if ord(c) in known else ascii(c)[1:-1] for c in short[name]) for name in names]


# The section in LaTeX that needs plain packages only, pure ASCII, and in Markdown; every text in it is escaped.

TEMPLATES = Path(__file__).parents[1] / "templates"
MAX_ROWS = 36
"""Rows of a table that fit on a page; the others follow in further tables."""
COMMANDS = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\char34{}", "`": r"\textasciigrave{}",
    **{special: f"\\{special}" for special in "{}$&#_%"},
    # Behind a line's end `[` and `*` would be read as its arguments.
    "[": "{[}", "]": "{]}", "*": "{*}",
    "\u00a0": " ", "\u2009": " ", "\u202f": " ", "…": r"\dots{}", "–": "--", "—": "---", "−": "$-$",
    "‘": "{`}", "’": "{'}", "“": "{``}", "”": "{''}", "×": r"$\times$", "±": r"$\pm$", "·": r"$\cdot$",
    "µ": r"\textmu{}", "μ": r"\textmu{}", "°": r"\textdegree{}", "≤": r"$\leq$", "≥": r"$\geq$", "≈": r"$\approx$",
    "→": r"$\rightarrow$", "Σ": r"$\Sigma$", "Δ": r"$\Delta$", "σ": r"$\sigma$", "²": r"$^2$", "³": r"$^3$",
    "₂": r"$_2$",
    "ß": r"\ss{}", "ø": r"\o{}", "Ø": r"\O{}", "æ": r"\ae{}", "Æ": r"\AE{}", "ł": r"\l{}", "Ł": r"\L{}",
    "®": r"\textregistered{}", "™": r"\texttrademark{}", "©": r"\textcopyright{}",
}  # fmt: skip
"""What a character is written as; a table so that nothing depends on the encoding of the document."""
ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0304": "=", "\u0306": "u", "\u0307": ".",
    "\u0308": '"', "\u030a": "r", "\u030b": "H", "\u030c": "v", "\u0327": "c",
}  # fmt: skip
"""LaTeX's accents by the combining character."""
LIGATURES = "-',"
"""Two of these in a row would become another character."""


def latex_text(text: str) -> str:
    """The text as LaTeX that shows it and does nothing. A character that plain packages lack is written as U+4E2D."""
    parts: list[str] = []
    before = ""
    for character in plain(text):
        if character == before and character in LIGATURES:
            parts.append("{}")
        parts.append(_character(character))
        before = character
    return "".join(parts)


def _character(character: str) -> str:
    if character in COMMANDS:
        return COMMANDS[character]
    if character.isascii():
        return character
    base, accent = unicodedata.normalize("NFD", character)[:1], unicodedata.normalize("NFD", character)[1:]
    if base.isascii() and base.isalpha() and accent in ACCENTS:
        letter = f"\\{base}" if base in "ij" else base  # without its dot
        return f"\\{ACCENTS[accent]}{{{letter}}}"
    return f"U+{ord(character):04X}"


SECTIONS = {"latex": "scaling.tex", "markdown-report": "scaling.md"}
"""Names of the section by format."""
FIGURES = {"latex": "scaling.pdf", "markdown-report": "scaling.svg"}
ESCAPED: dict[str, Callable[[str], str]] = {"latex": latex_text, "markdown-report": markdown_text}


def rendered(content: Content, form: str, figure: str = "") -> str:
    """The section with every text escaped; `figure` is the file name of its figure, empty where there is none.

    The marks of the templates are other than jinja's, whose braces are LaTeX's.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=False, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True, block_start_string="<%", block_end_string="%>",
        variable_start_string="<<", variable_end_string=">>", comment_start_string="<#", comment_end_string="#>",
        finalize=lambda value: value if isinstance(value, Markup) else ESCAPED[form](str(value)),
    )  # fmt: skip
    environment.filters["table"] = lambda table: Markup(table.markdown())
    figure = Markup(figure if content.curves else "")
    return environment.get_template(f"{SECTIONS[form]}.j2").render(content=content, figure=figure, max_rows=MAX_ROWS)


def outputs(out: Path, form: str) -> tuple[Path, Path]:
    """The files of the section and of its figure: the section is `out`, or the usual name in it where that is a folder
    or has no ending."""
    is_folder = out.is_dir() or (not out.suffix and not out.exists())
    section = out / SECTIONS[form] if is_folder else out
    return section, section.with_name(FIGURES[form])


def requested(
    summary: Summary,
    options: argparse.Namespace,
    parser: argparse.ArgumentParser,
    forecasts: Forecasts | None,
) -> list[str]:
    """Writes the section with what the options request, and beside it its figure; returns a line for each file, and one
    where there is no figure. Ends the command where an option contradicts what was read.

    Raises OSError with the file that cannot be written.
    """
    form = options.format
    path, figure = outputs(options.out or Path(), form)
    work = options.request_samples and ProposedWork(
        work=options.request_samples, efficiency=options.efficiency or DEFAULT_EFFICIENCY,
        devices_per_node=options.devices_per_node,
    )  # fmt: skip
    try:
        section = content(summary, forecasts, work)
    except RequestError as error:
        parser.error(plain(str(error)))
    drawn, reason = None, "no point has a speedup against another case"
    if path.exists() and not path.is_file():
        reason = f"{path} is no regular file; a figure is written beside a regular file only"
    elif section.curves is not None:
        drawn, reason = draw(section.curves, figure.suffix.removeprefix(".")), NO_MATPLOTLIB
    path.parent.mkdir(parents=True, exist_ok=True)
    if drawn is not None:
        with open_output(figure) as file:
            file.write(drawn)
    write_output(path, rendered(section, form, figure.name if drawn else ""))
    return [f"{path}: written", f"{figure}: written" if drawn else f"no figure: {reason}"]
