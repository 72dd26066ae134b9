"""Where the marks of a page's charts are; `templates/chart.svg.j2` writes them as SVG, which needs no script.

Lengths along x are percentages of the plot, so that a chart is as wide as there is room, those along y pixels; what is
beside the plot is in the padding of the element. Colours are names of the page's stylesheet, which has them for the
light and the dark theme, after Okabe and Ito: people with any colour vision can distinguish them.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import cycle, groupby, zip_longest
from math import ceil, floor, isfinite, log10

from parse.page.figures import Bars, HeatMap, Line, Lines, LineStyle, Number, Part, shareable
from parse.term_kinds import TERMS, parts_of
from parse.text import cut, shortened

BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, GREY = (
    f"var(--{name})" for name in ("blue", "orange", "green", "vermilion", "sky", "purple", "grey")
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
Scale = Callable[[float], float]
Point = tuple[float, float, tuple[float, float] | None, str]
"""Its x, y, interval, and what the pointer shows."""
CELL_PX, NARROW_PX = 6.9, 290
"""Widths of an average character, and of a plot on a telephone: what stands side by side has room there."""
LABEL_WIDTH, ROW_LABEL_WIDTH = 38, 24
"""Cells of a name in a legend, and of a row of a heat map."""
HEIGHT_PX, ROW_PX, LEGEND_PX, MAP_PX = 220, 54, 18, 320
"""Of a plot with lines, of a bar with its names, of a line of the legend, of a heat map of many rows."""
MAX_NAMES, MAX_MARKS, MAX_ROW_NAMES, DATES = 7, 10, 16, 4
"""Names of sizes; marks on a logarithmic axis, beyond which only powers of ten have one; names of rows; dates."""
STEP_MARKS = 6
"""Marks on a line along steps."""
HUGE = 1e100
"""What is not below is not drawn."""
INSET = 0.03
"""Of the width, beside the first and the last size, so that their marks are whole."""
WHOLE_PERCENT, FAR_BEYOND_PERCENT = 100, 120
"""Marks end at the first where values, or their intervals, are not beyond the second."""


def percent(share: float) -> str:
    """`12.50%`."""
    return f"{100 * share:.2f}%"


def legend(names: Sequence[str]) -> list[tuple[int, int]]:
    """Where the entries are above the plot, x and y: as many side by side as have room on a telephone."""
    longest = max(map(len, names), default=0) * CELL_PX + 26
    columns = max(1, min(3, len(names), int(NARROW_PX / longest)))
    rows = -(-len(names) // columns)
    return [
        (at % columns * NARROW_PX // columns + 9, -LEGEND_PX * (rows - at // columns) - 2) for at in range(len(names))
    ]


def _distinct(names: Sequence[str], width: int = LABEL_WIDTH) -> list[str]:
    """The names, cut in the middle so that different ones stay different."""
    shown = [shareable(name) for name in names]
    short = shortened(shown, width)
    return [short[name] for name in shown]


# Axes


def scale_of(low: float, high: float, *, is_log: bool = False, inset: float = 0.0) -> Scale:
    """From values to shares of an axis, 0…1."""
    of: Scale = log10 if is_log else float
    span = of(high) - of(low)
    return lambda value: inset + (1 - 2 * inset) * ((of(value) - of(low)) / span if span else 0.5)


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


def moment(ms: float) -> str:
    """`2026-05-14 12:30`, of ms since 1970."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M}"


def named_sizes(values: Sequence[float]) -> list[float]:
    """Those of a logarithmic axis whose names have room: the ends, and between them what is not too near another."""
    first, last = min(values), max(values)
    gap = log10(last / first) / MAX_NAMES
    named = [first]
    for value in sorted(values):
        if log10(value / named[-1]) > gap * 0.99 and log10(last / value) > gap * 0.99:
            named.append(value)
    return [*named, last]


def _known(values: Iterable[Number]) -> list[float]:
    return [value for value in values if value is not None and abs(value) < HUGE]


def _y_axis(figure: Lines) -> tuple[Scale, list[float]]:
    """Its scale, and the values that have a mark."""
    values = _known(y for line in figure.series for y in line.y)
    values += _known(end for line in figure.series for interval in line.intervals if interval for end in interval)
    low, high = figure.scale or (min(values, default=0.0), max(values, default=1.0))
    if figure.log_y and low > 1 / HUGE:
        marks = log_ticks(low, high)
        return scale_of(marks[0], marks[-1], is_log=True), marks
    low = min(0.0, low) if figure.from_zero else low
    ends_at_whole = figure.unit.startswith("%") and WHOLE_PERCENT < high <= FAR_BEYOND_PERCENT
    marks = nice_ticks(low, WHOLE_PERCENT if ends_at_whole else high)
    return scale_of(marks[0], max(high, marks[-1])), marks


def _x_axis(figure: Lines) -> tuple[Scale, list[tuple[float, str]]]:
    """Its scale, and its marks with their names."""
    if figure.categories:
        sizes = [value for value, _ in figure.categories]
        named = named_sizes(sizes)
        scale = scale_of(min(sizes), max(sizes), is_log=True, inset=INSET)
        return scale, [(value, cut(name, 16) if value in named else "") for value, name in figure.categories]
    values = _known(x for line in figure.series for x in line.x)
    values += [end for begin, stop, _ in figure.shades for end in (begin, stop)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    if figure.are_dates:
        at = [low + (high - low) * part / (DATES - 1) for part in range(DATES)]
        return scale_of(low, high, inset=INSET), [(each, moment(each)[:10]) for each in at]
    return scale_of(low, high), [(mark, tick_text(mark)) for mark in nice_ticks(low, high) if low <= mark <= high]


class LinePlot:
    """Where the marks of lines are: along x in shares of the width, along y in px."""

    height = HEIGHT_PX

    def __init__(self, figure: Lines) -> None:
        self.figure = figure
        (self.x, x_marks), (self.y_scale, y_marks) = _x_axis(figure), _y_axis(figure)
        self.x_marks = [(percent(self.x(x)), name) for x, name in x_marks]
        self.y_marks = [(self.y(mark), tick_text(mark)) for mark in y_marks]
        self.names = _distinct([line.name for line in figure.series]) if len(figure.series) > 1 else []
        self.beside = 16 + CELL_PX * max(len(name) for _, name in self.y_marks)

    def y(self, value: float) -> float:
        return round(HEIGHT_PX * (1 - self.y_scale(value)), 1)

    def colour(self, line: Line) -> str:
        usual = {LineStyle.IDEAL: GREY, LineStyle.RUNS: GREY, LineStyle.LEVEL: ORANGE}
        return usual.get(line.style, COLOURS[self._number(line) % len(COLOURS)])

    def symbol(self, line: Line) -> str:
        return SYMBOLS[0 if line.style is LineStyle.RUNS else self._number(line) % len(SYMBOLS)]

    def _number(self, line: Line) -> int:
        return self.figure.series.index(line) if line.number is None else line.number

    def described(self) -> str:
        """What the marks say, for those who do not see them."""
        marked = (line for line in self.figure.series if line.style in (LineStyle.MEASURED, LineStyle.FORECAST))
        return "; ".join(title for line in marked for *_, title in self.marked(line))

    def points(self, line: Line) -> list[Point]:
        """Those that can be drawn, each with its interval and what the pointer shows."""
        unit = f" {self.figure.unit}" if self.figure.unit else ""
        points = []
        for x, y, interval, title in zip_longest(line.x, line.y, line.intervals, line.titles):
            if x is None or y is None or len(_known((x, y))) < 2:
                continue
            ends = interval if interval and len(_known(interval)) == 2 else None
            within = f" ({ends[0]:.5g} to {ends[1]:.5g})" if ends else ""
            points.append((x, y, ends, title or f"{line.name}: {tick_text(x)}, {y:.5g}{unit}{within}"))
        return points

    def marked(self, line: Line) -> list[Point]:
        """The points with a mark: of a forecast not the first, which is measured, of a line along steps a few."""
        points = self.points(line)
        if line.style is LineStyle.STEPS:
            points = [each for each in points if 0 <= self.y(each[1]) <= HEIGHT_PX]
            return points[:: max(1, len(points) // STEP_MARKS)]
        return points[line.style is LineStyle.FORECAST :]

    def way(self, line: Line) -> str:
        """The line as a path, x in thousandths of the width, broken where a value is absent."""
        pairs = groupby(zip(line.x, line.y, strict=True), lambda pair: len(_known(pair)) == 2)
        return "".join(
            self._way((x, y) for x, y in part if x is not None and y is not None) for known, part in pairs if known
        )

    def bands(self, line: Line) -> Iterator[str]:
        """The paths around its intervals."""
        for known, part in groupby(self.points(line), lambda point: point[2] is not None):
            ends = [(x, interval) for x, _, interval, _ in part if interval]
            if known and len(ends) > 1:
                way = [(x, high) for x, (_, high) in ends] + [(x, low) for x, (low, _) in reversed(ends)]
                yield f"{self._way(way)}Z"

    def _way(self, points: Iterable[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{1000 * self.x(x):.1f} {self.y(y)}" for x, y in points)


class BarPlot:
    """Where the parts of bars are: begin and width in shares of the width."""

    y_marks: Sequence[tuple[float, str]] = ()
    beside, row_px = 4, ROW_PX

    def __init__(self, figure: Bars) -> None:
        self.figure, self.height, self.names = figure, ROW_PX * len(figure.names), [*figure.parts]
        self.names += [figure.lost] if figure.lost else []
        bars = [*zip(*figure.parts.values(), strict=True)]
        marks = nice_ticks(0.0, max((sum(max(0.0, part.value) for part in bar if part) for bar in bars), default=1.0))
        self.x_marks = [(percent(mark / marks[-1]), tick_text(mark)) for mark in marks]
        other = cycle((GREEN, GREY))
        self.colours = [TERM_COLOURS.get(parts_of(name)[0]) or next(other) for name in figure.parts]
        self.bars = [
            (name, note, [*self._segments(bar, marks[-1])])
            for name, note, bar in zip(_distinct(figure.names), figure.notes, bars, strict=True)
        ]

    def _segments(
        self, bar: Sequence[Part | None], whole: float
    ) -> Iterator[tuple[str, str, Part, float, float, float]]:
        """Name, colour, part; where it begins, its width and that of what is lost at its end."""
        begin = 0.0
        for name, colour, part in zip(self.names, self.colours, bar, strict=False):
            if part and part.value > 0:
                yield name, colour, part, begin, part.value / whole, max(0.0, min(part.lost, part.value)) / whole
                begin += part.value / whole

    def described(self) -> str:
        terms = ((f"{name} {note}", segments) for name, note, segments in self.bars)
        return "; ".join(f"{of}: {', '.join(f'{each[0]} {each[2].title}' for each in parts)}" for of, parts in terms)

    def has_room(self, name: str, width: float) -> bool:
        return (len(name) + 1) * CELL_PX <= width * NARROW_PX


class MapPlot:
    """A heat map as an image of a pixel for each value, stretched."""

    y_marks: Sequence[tuple[float, str]] = ()

    def __init__(self, figure: HeatMap) -> None:
        self.figure, self.names, rows = figure, list[str](), len(figure.rows)
        self.late = f"rgb{LATE}"
        self.row_px = max(3.0, min(18.0, MAP_PX / rows))
        self.height = round(rows * self.row_px)
        first, last = figure.x[0], figure.x[-1]
        scale = scale_of(first, last + 1)
        self.x_marks = [(percent(scale(at)), tick_text(at)) for at in nice_ticks(first, last) if first <= at <= last]
        self.warmup = percent(scale(figure.warmup)) if first < figure.warmup <= last else ""
        every = ceil(rows / MAX_ROW_NAMES)
        self.rows = [(at, name) for at, name in enumerate(_distinct(figure.rows, ROW_LABEL_WIDTH)) if at % every == 0]
        self.beside = 16 + CELL_PX * max(len(name) for _, name in self.rows)
        self.image = base64.b64encode(png(figure.z, figure.top)).decode()

    def described(self) -> str:
        return ""


PLOTS = {Lines: LinePlot, Bars: BarPlot, HeatMap: MapPlot}
"""What knows the places of all that a figure shows."""


def png(z: Sequence[Sequence[Number]], top: float) -> bytes:
    """An image of a pixel for each of the values [row, column]: LATE, the more opaque the nearer it is to `top`."""

    def level(value: Number) -> int:
        return 1 + round(254 * min(1.0, max(0.0, value / top))) if value is not None and isfinite(value) else 0

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
