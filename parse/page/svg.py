"""Draws the charts of a page as SVG: no script is needed, and a chart is as wide as there is room.

Lengths along x are percentages of the plot, those along y pixels; what lies beside the plot is in the padding of the
element. Colours are names of the page's stylesheet, which has them for the light and the dark theme, after Okabe and
Ito: people with any colour vision can distinguish them.
"""

from __future__ import annotations

import base64
import html
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import cycle, groupby, zip_longest
from math import ceil, floor, isfinite, log10

from parse.page.figures import Bars, Chart, HeatMap, Line, Lines, LineStyle, Number, shareable
from parse.term_kinds import TERMS, parts_of
from parse.text import cut, shortened

BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, GREY, INK, SOFT, GRID, LINE = (
    f"var(--{name})"
    for name in ("blue", "orange", "green", "vermilion", "sky", "purple", "grey", "ink", "soft", "grid", "line")
)
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
SYMBOLS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z", "M-4-4h8v8h-8Z", "M0-5.5L5.5 0L0 5.5L-5.5 0Z", "M0-5.5L5 4H-5Z",
    "M-4-4L4 4M4-4L-4 4", "M-5 0H5M0-5V5",
)  # fmt: skip
"""Circle, square, diamond, triangle, two crosses: no series is known by its colour alone."""
TERM_COLOURS = {name: f"var(--{name})" for name in TERMS}
LATE, ABSENT = (208, 84, 20), (128, 128, 128)
"""Colours of a heat map's image, seen on both grounds: the more of the first, the larger a value; none is the other."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif"
FONT_PX, CELL_PX = 12, 6.9
"""Height of the text, and the width of its average character."""
NARROW_PX = 290
"""Width of a plot on a telephone: what stands side by side has room there."""
LABEL_WIDTH, ROW_LABEL_WIDTH, TITLE_WIDTH = 38, 24, 200
"""Cells of a name in a legend, of a row of a heat map, and of what the pointer shows."""
HEIGHT_PX, ROW_PX, LEGEND_PX = 220, 54, 18
"""Of a plot with lines, of a bar with its names, of a line of the legend."""
MAX_NAMES, MAX_MARKS, MAX_ROW_NAMES, DATES = 7, 10, 16, 4
"""Names of sizes; marks on a logarithmic axis, beyond which only powers of ten have one; names of rows; dates."""
STEP_MARKS = 6
"""Marks on a line along steps."""
HUGE = 1e100
TITLE_PX = 24
"""Of a chart by itself, above all else."""
INSET = 0.03
"""Of the width, beside the first and the last size, so that their marks are whole."""
WHOLE_PERCENT, FAR_BEYOND_PERCENT = 100, 120
"""Marks end at the first where values, or their intervals, are not beyond the second."""


def draw(chart: Chart) -> str:
    """The chart as an `<svg>` element; every text is escaped, and its label says what it shows."""
    match chart.figure:
        case Lines():
            return _lines(chart, chart.figure)
        case Bars():
            return _bars(chart, chart.figure)
        case HeatMap():
            return _heat_map(chart, chart.figure)


def draw_alone(chart: Chart, colours: str, width_px: int = 720) -> str:
    """The chart as an SVG file with its title; `colours` are the declarations of the stylesheet's names."""
    opening, _, content = draw(chart).partition(">")
    top, after, below, before, height = map(float, re.findall(r"[\d.]+(?=px)", opening.partition('style="')[2]))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width_px}" height="{height + TITLE_PX:.0f}" role="img" '
        f'aria-label="{_escaped(f"{chart.title}. {chart.text}", 2000)}" style="{html.escape(colours)}" '
        f'font-family="{FONT}" font-size="{FONT_PX}" fill="{INK}"><rect width="100%" height="100%" '
        f'fill="var(--ground)"/><text x="8" y="18" font-weight="600">{_escaped(chart.title, 100)}</text>'
        f'<svg x="{before:.0f}" y="{top + TITLE_PX:.0f}" width="{width_px - before - after:.0f}" '
        f'height="{height - top - below:.0f}" overflow="visible">{content}</svg>'
    )


def cost_bar(share: float) -> str:
    """A bar, 0…1 of its width."""
    label = f"{100 * share:.0f} %"
    return (
        f'<svg class="cost" role="img" aria-label="{label}"><rect width="100%" height="100%" fill="{GRID}"/>'
        f'<rect width="{_percent(share)}" height="100%" fill="{VERMILION}"/></svg>'
    )


def _escaped(text: str, width: int = LABEL_WIDTH) -> str:
    return html.escape(cut(shareable(text), width))


def _titled(text: str) -> str:
    return f"<title>{_escaped(text, TITLE_WIDTH)}</title>" if text else ""


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"


def _svg(chart: Chart, content: Iterable[str], height_px: float, padding: tuple[float, float, float, float]) -> str:
    """The element around a plot of this height; `padding` in px: above, right, below, left."""
    top, _, bottom, _ = padding
    sides = " ".join(f"{side:.0f}px" for side in padding)
    return (
        f'<svg class="plot" role="img" aria-label="{_escaped(f"{chart.title}. {chart.text}", 2000)}" '
        f'style="padding:{sides};height:{top + height_px + bottom:.0f}px" font-family="{FONT}" '
        f'font-size="{FONT_PX}" fill="{INK}">{"".join(content)}</svg>'
    )


def _text(x: str, y: float, text: str, anchor: str = "middle", fill: str = "", width: int = LABEL_WIDTH) -> str:
    """A text, its middle at this height; `text` is from outside."""
    colour = f' fill="{fill}"' if fill else ""
    return f'<text x="{x}" y="{y + 4:.1f}" text-anchor="{anchor}"{colour}>{_escaped(text, width)}</text>'


def _rule(x1: str, y1: float, x2: str, y2: float, colour: str) -> str:
    return f'<line x1="{x1}" x2="{x2}" y1="{y1:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _stretched(content: Iterable[str], height_px: float) -> str:
    """Paths whose x is in thousandths of the width; what is outside the plot is cut off."""
    return (
        f'<svg width="100%" height="{height_px:.0f}" viewBox="0 0 1000 {height_px:.0f}" preserveAspectRatio="none" '
        f'fill="none">{"".join(content)}</svg>'
    )


def legend_rows(names: Sequence[str]) -> tuple[int, int]:
    """Entries side by side on a telephone, and the lines that they take."""
    longest = max(map(len, names), default=0) * CELL_PX + 26
    columns = max(1, min(3, len(names), int(NARROW_PX / longest)))
    return columns, -(-len(names) // columns)


def _legend(names: Sequence[str], keys: Sequence[str]) -> Iterator[str]:
    """The names behind their keys, which are drawn around 0, 0; above the plot."""
    columns, rows = legend_rows(names)
    for at, (name, key) in enumerate(zip(names, keys, strict=True)):
        x, y = (at % columns) * NARROW_PX // columns, -LEGEND_PX * (rows - at // columns) - 2
        yield f'<g transform="translate({x + 9},{y})">{key}{_text("15", 0, name, "start", width=LABEL_WIDTH)}</g>'


# Axes


class Scale:
    """From values to shares of an axis, 0…1."""

    def __init__(self, low: float, high: float, *, is_log: bool = False, inset: float = 0.0) -> None:
        self.is_log, self.inset = is_log, inset
        self.low, self.high = self._of(low), self._of(high)

    def _of(self, value: float) -> float:
        return log10(value) if self.is_log else value

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        share = (self._of(value) - self.low) / span if span else 0.5
        return self.inset + share * (1 - 2 * self.inset)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, from at most `low` to at least `high`, about `count` of them."""
    span = high - low or abs(high) or 1.0
    power = 10.0 ** floor(log10(span / count))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * count >= span * 0.999)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return [float(f"{step * at:.12g}") for at in range(first, max(last, first + 1) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, … from at most `low` to at least `high`, both above 0; of many the powers of ten between."""
    exponents = range(floor(log10(low)) - 1, ceil(log10(high)) + 2)
    marks = [step * 10.0**exponent for exponent in exponents for step in (1, 2, 5)]
    first, last = max(mark for mark in marks if mark <= low), min(mark for mark in marks if mark >= high)
    inside = [mark for mark in marks if first <= mark <= last]
    few = len(inside) <= MAX_MARKS
    return [mark for mark in inside if few or mark in (first, last) or f"{mark:e}".startswith("1")]


def tick_text(value: float) -> str:
    """`20,000`, `0.05`."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def named_sizes(values: Sequence[float]) -> list[float]:
    """Those of a logarithmic axis whose names have room: the ends, and between them what is not too near another."""
    first, last = min(values), max(values)
    gap = log10(last / first) / MAX_NAMES
    named = [first]
    for value in sorted(values):
        if log10(value / named[-1]) > gap * 0.99 and log10(last / value) > gap * 0.99:
            named.append(value)
    return [*named, last] if last > first else named


def _known(values: Iterable[Number]) -> list[float]:
    """Those that can be drawn: finite, and with no power of ten that a float has not."""
    return [value for value in values if value is not None and abs(value) < HUGE]


def _y_axis(figure: Lines) -> tuple[Scale, list[float]]:
    """Its scale, and the values that have a mark; those of percentages end at 100."""
    values = _known(y for line in figure.series for y in line.y)
    values += _known(end for line in figure.series for interval in line.intervals if interval for end in interval)
    if figure.scale:
        values = [*figure.scale]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if figure.log_y and low > 1 / HUGE:
        marks = log_ticks(low, high)
        return Scale(marks[0], marks[-1], is_log=True), marks
    low = min(0.0, low) if figure.from_zero else low
    if figure.unit.startswith("%") and WHOLE_PERCENT < high <= FAR_BEYOND_PERCENT:
        marks = nice_ticks(low, WHOLE_PERCENT)
        return Scale(marks[0], high), marks
    marks = nice_ticks(low, high)
    return Scale(marks[0], marks[-1]), marks


def _x_axis(figure: Lines) -> tuple[Scale, list[tuple[float, str]]]:
    """Its scale, and its marks with their names."""
    if figure.categories:
        sizes = [value for value, _ in figure.categories]
        named = named_sizes(sizes)
        scale = Scale(min(sizes), max(sizes), is_log=True, inset=INSET)
        return scale, [(value, name if value in named else "") for value, name in figure.categories]
    values = _known(x for line in figure.series for x in line.x)
    values += [end for begin, stop, _ in figure.shades for end in (begin, stop)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if figure.are_dates:
        at = [low + (high - low) * part / (DATES - 1) for part in range(DATES)]
        return Scale(low, high, inset=INSET), [(each, moment(each)[:10]) for each in at]
    return Scale(low, high), [(mark, tick_text(mark)) for mark in nice_ticks(low, high) if low <= mark <= high]


def moment(ms: float) -> str:
    """`2026-05-14 12:30`, of ms since 1970."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M}"


def _axes(x_marks: Sequence[tuple[str, str]], x_title: str, y_marks: Sequence[tuple[float, str]], bottom: float) -> str:
    """Lines and names of marks: along x at percentages, along y at pixels."""
    parts = [_rule("0", y, "100%", y, GRID) + _text("-8", y, name, "end", SOFT) for y, name in y_marks]
    parts.append(_rule("0", bottom, "100%", bottom, LINE))
    for x, name in x_marks:
        parts += [_rule(x, bottom, x, bottom + 4, LINE), _text(x, bottom + 14, name, fill=SOFT, width=16)]
    return "".join([*parts, _text("50%", bottom + 32, x_title, fill=SOFT) if x_title else ""])


# Lines


def _lines(chart: Chart, figure: Lines) -> str:
    (x_scale, x_marks), (y_scale, y_marks) = _x_axis(figure), _y_axis(figure)

    def y_of(value: float) -> float:
        return HEIGHT_PX * (1 - y_scale(value))

    drawn = [_Drawn(line, at, x_scale, y_of, figure) for at, line in enumerate(figure.series)]
    content = [
        _axes(
            [(_percent(x_scale(x)), name) for x, name in x_marks], figure.x_title,
            [(y_of(mark), tick_text(mark)) for mark in y_marks], HEIGHT_PX,
        )
    ]  # fmt: skip
    content.append(
        _stretched([*_shades(figure, x_scale), *(path for each in drawn for path in each.path())], HEIGHT_PX)
    )
    content += [mark for each in drawn for mark in each.marks()]
    content += [
        _text(_percent(x_scale((begin + end) / 2)), 8 + 16 * (at % 3), text, fill=SOFT)
        for at, (begin, end, text) in enumerate(figure.shades)
        if text
    ]
    names = _distinct([line.name for line in figure.series])
    legend = len(names) > 1
    content += _legend(names, [each.key() for each in drawn]) if legend else []
    beside = 16 + CELL_PX * max(len(tick_text(mark)) for mark in y_marks)
    top = 14 + (LEGEND_PX * legend_rows(names)[1] if legend else 0)
    return _svg(chart, content, HEIGHT_PX, (top, 22, 44 if figure.x_title else 26, beside))


def _distinct(names: Sequence[str], width: int = LABEL_WIDTH) -> list[str]:
    """The names, cut in the middle so that different ones stay different."""
    short = shortened([shareable(name) for name in names], width)
    return [short[shareable(name)] for name in names]


def _shades(figure: Lines, x_scale: Scale) -> Iterator[str]:
    for begin, end, _ in figure.shades:
        x, width = 1000 * x_scale(begin), 1000 * (x_scale(end) - x_scale(begin))
        yield f'<rect x="{x:.1f}" width="{width:.1f}" height="{HEIGHT_PX}" fill="{GREY}" fill-opacity=".18"/>'


class _Drawn:
    """A line on its scales; `number` is its place in the chart."""

    def __init__(self, line: Line, number: int, x_scale: Scale, y_of: Callable[[float], float], figure: Lines) -> None:
        self.line, self.x_scale, self.y_of, self.figure = line, x_scale, y_of, figure
        number = number if line.number is None else line.number
        usual = {LineStyle.IDEAL: GREY, LineStyle.RUNS: GREY, LineStyle.LEVEL: ORANGE}
        self.colour = usual.get(line.style, COLOURS[number % len(COLOURS)])
        self.symbol = SYMBOLS[0 if line.style is LineStyle.RUNS else number % len(SYMBOLS)]
        self.points = [
            (x, y, interval if interval and len(_known(interval)) == 2 else None, title)
            for x, y, interval, title in zip_longest(line.x, line.y, line.intervals, line.titles)
        ]

    def path(self) -> Iterator[str]:
        """The line, broken where a value is absent, behind it the band of its intervals."""
        style = self.line.style
        if style in (LineStyle.FORECAST, LineStyle.STEPS):
            for known, group in groupby(self.points, lambda point: point[2] is not None):
                ends = [(x, interval) for x, _, interval, _ in group if interval and x is not None]
                if known and len(ends) > 1:
                    around = [(x, high) for x, (_, high) in ends] + [(x, low) for x, (low, _) in reversed(ends)]
                    yield f'<path d="{self._way(around)}Z" fill="{self.colour}" fill-opacity=".22"/>'
        if style is LineStyle.RUNS:
            return
        dashes = ' stroke-dasharray="6 4"' if style in (LineStyle.IDEAL, LineStyle.FORECAST) else ""
        width = {LineStyle.STEPS: 1.2, LineStyle.IDEAL: 1.5, LineStyle.LEVEL: 3}.get(style, 2)
        parts = [
            self._way([(x, y) for x, y, _, _ in group])
            for known, group in groupby(self.points, lambda point: bool(_known(point[1:2]))) if known
        ]  # fmt: skip
        title = _titled(self.line.name) if style is LineStyle.STEPS else ""
        yield (
            f'<path d="{"".join(parts)}" stroke="{self.colour}" stroke-width="{width}"{dashes} stroke-linejoin="round" '
            f'vector-effect="non-scaling-stroke">{title}</path>'
        )

    def _way(self, points: Sequence[tuple[Number, Number]]) -> str:
        places = (
            f"{1000 * self.x_scale(x):.1f} {self.y_of(y):.1f}" for x, y in points if x is not None and y is not None
        )
        return "M" + "L".join(places)

    def marks(self) -> Iterator[str]:
        """A mark for each point, of a line along steps for a few, with its interval and what the pointer shows."""
        style, points = self.line.style, self.points
        if style in (LineStyle.IDEAL, LineStyle.LEVEL):
            return
        if style is LineStyle.FORECAST:
            points = points[1:]  # the first is the last measured one
        elif style is LineStyle.STEPS:
            points = points[:: max(1, len(points) // STEP_MARKS)]
        for x, y, interval, title in points:
            if x is None or y is None or not _known([y]) or not 0 <= self.y_of(y) <= HEIGHT_PX:
                continue
            at, bar = self.y_of(y), ""
            if interval and style is LineStyle.MEASURED:
                low, high = (self.y_of(end) - at for end in interval)
                bar = f'<path d="M-5 {low:.1f}h10M-5 {high:.1f}h10M0 {low:.1f}V{high:.1f}" stroke="{self.colour}"/>'
            unit = f" {self.figure.unit}" if self.figure.unit else ""
            ends = f" ({interval[0]:.5g} to {interval[1]:.5g})" if interval else ""
            shown = title or f"{self.line.name}: {tick_text(x)}, {y:.5g}{unit}{ends}"
            place = f'x="{_percent(self.x_scale(x))}" y="{at:.1f}" overflow="visible"'
            yield (
                f'<svg class="mark" {place}>{_titled(shown)}{bar}{self._mark()}<circle r="9" fill="transparent"/></svg>'
            )

    def _mark(self) -> str:
        fill = self.colour if self.line.style in (LineStyle.MEASURED, LineStyle.STEPS) else "var(--ground)"
        return f'<path d="{self.symbol}" fill="{fill}" stroke="{self.colour}" stroke-width="1.5"/>'

    def key(self) -> str:
        """What the legend has before its name."""
        if self.line.style is LineStyle.RUNS:
            return self._mark()
        dashes = ' stroke-dasharray="6 4"' if self.line.style in (LineStyle.IDEAL, LineStyle.FORECAST) else ""
        rule = f'<path d="M-9 0H9" stroke="{self.colour}" stroke-width="2"{dashes}/>'
        return rule + ("" if self.line.style in (LineStyle.IDEAL, LineStyle.LEVEL) else self._mark())


# Bars


def _bars(chart: Chart, figure: Bars) -> str:
    """Each name with its note above its bar, below the parts that have room for it their names."""
    totals = [sum(max(0.0, part.value) for part in bar if part) for bar in zip(*figure.parts.values(), strict=True)]
    marks = nice_ticks(0.0, max(totals, default=1.0))
    scale, height = Scale(0.0, marks[-1]), ROW_PX * len(figure.names)
    hatch = f"lost-{_escaped(chart.id)}"
    content = [
        f'<defs><pattern id="{hatch}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<path d="M1.5 0V6" stroke="var(--ground)" stroke-width="2.2"/></pattern></defs>',
        _axes([(_percent(scale(mark)), tick_text(mark)) for mark in marks], figure.x_title, [], height),
    ]
    other = cycle((GREEN, GREY))
    colours = {name: TERM_COLOURS.get(parts_of(name)[0]) or next(other) for name in figure.parts}
    for at, (name, note) in enumerate(zip(_distinct(figure.names), figure.notes, strict=True)):
        top, begin = ROW_PX * at, 0.0
        content.append(
            f'<text x="0" y="{top + 12}"><tspan font-weight="600">{_escaped(name)}</tspan>'
            f'<tspan dx="8" fill="{SOFT}">{_escaped(note, 60)}</tspan></text>'
        )
        for part_name, bar in figure.parts.items():
            part = bar[at]
            if part is None or part.value <= 0:
                continue
            x, width = _percent(scale(begin)), scale(part.value)
            rect = f'y="{top + 18}" height="17"'
            content.append(
                f'<g class="mark">{_titled(f"{name}: {part_name} {part.title}")}<rect x="{x}" '
                f'width="{_percent(width)}" {rect} fill="{colours[part_name]}" stroke="var(--ground)"/>'
            )
            if part.lost > 0:
                lost = scale(min(part.lost, part.value))
                content.append(
                    f'<rect x="{_percent(scale(begin + part.value) - lost)}" width="{_percent(lost)}" {rect} '
                    f'fill="url(#{hatch})"/>'
                )
            content.append("</g>")
            if (len(part_name) + 1) * CELL_PX <= width * NARROW_PX:
                content.append(_text(x, top + 42, part_name, "start", SOFT))
            begin += part.value
    names = [*figure.parts, *([figure.lost] if figure.lost else [])]
    keys = [f'<rect x="-9" y="-5" width="18" height="11" fill="{colour}"/>' for colour in colours.values()]
    keys.append(keys[0] + f'<rect x="-9" y="-5" width="18" height="11" fill="url(#{hatch})"/>')
    content += _legend(names, keys[: len(names)])
    return _svg(chart, content, height, (14 + LEGEND_PX * legend_rows(names)[1], 22, 44, 4))


# Heat maps


def _heat_map(chart: Chart, figure: HeatMap) -> str:
    """An image of a pixel for each value, stretched; a row says its figures to the pointer."""
    rows = len(figure.rows)
    row_px = max(3.0, min(18.0, 320 / rows))
    height = rows * row_px
    scale = Scale(figure.x[0], figure.x[-1] + 1)
    x_marks = [mark for mark in nice_ticks(figure.x[0], figure.x[-1]) if figure.x[0] <= mark <= figure.x[-1]]
    names = _distinct(figure.rows, ROW_LABEL_WIDTH)
    shades, late = f"shades-{_escaped(chart.id)}", f"rgb{LATE}"
    data = base64.b64encode(png(figure.z, figure.top)).decode()
    content = [
        f'<defs><linearGradient id="{shades}"><stop stop-color="{late}" stop-opacity="0"/>'
        f'<stop offset="1" stop-color="{late}"/></linearGradient></defs>',
        _text("0", -12, f"0 {figure.unit}", "start", SOFT),
        f'<rect x="36" y="-18" width="90" height="12" fill="url(#{shades})" stroke="{LINE}"/>',
        _text("132", -12, f"{figure.top:.3g} {figure.unit} and more", "start", SOFT),
        f'<image width="100%" height="{height:.0f}" preserveAspectRatio="none" image-rendering="pixelated" '
        f'href="data:image/png;base64,{data}"/>',
        _axes([(_percent(scale(mark)), tick_text(mark)) for mark in x_marks], "step", [], height),
        '<g class="mark" fill="transparent">',
        *(
            f'<rect y="{at * row_px:.1f}" width="100%" height="{row_px:.1f}">{_titled(title)}</rect>'
            for at, title in enumerate(figure.titles)
        ),
        f'</g><rect width="100%" height="{height:.0f}" fill="none" stroke="{LINE}"/>',
    ]
    every = ceil(rows / MAX_ROW_NAMES)
    content += [_text("-8", (at + 0.5) * row_px, names[at], "end", SOFT) for at in range(0, rows, every)]
    if figure.x[0] < figure.warmup <= figure.x[-1]:
        x = _percent(scale(figure.warmup))
        content.append(f'<line x1="{x}" x2="{x}" y2="{height:.0f}" stroke="{INK}" stroke-dasharray="2 3"/>')
    return _svg(chart, content, height, (30, 22, 44, 16 + CELL_PX * max(map(len, names))))


def png(z: Sequence[Sequence[Number]], top: float) -> bytes:
    """An image of a pixel for each of the values [row, column]: LATE, the more opaque the nearer it is to `top`."""

    def level(value: Number) -> int:
        return 0 if value is None or not isfinite(value) else 1 + round(254 * min(1.0, max(0.0, value / top)))

    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", len(z[0]), len(z), 8, 3, 0, 0, 0)),
        (b"PLTE", bytes((*ABSENT, *LATE * 255))),
        (b"tRNS", bytes((255, *range(255)))),
        (b"IDAT", zlib.compress(b"".join(b"\0" + bytes(map(level, row)) for row in z), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
