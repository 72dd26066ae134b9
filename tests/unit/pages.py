"""What tests look at in a page: its elements, texts and scripts, and its charts before they are rendered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser

from parse.page.figures import (
    Bars,
    Chart,
    Choice,
    Costs,
    HeatMap,
    HtmlPage,
    Line,
    Lines,
    LineStyle,
    Listing,
    PageBlock,
    Paragraph,
    Table,
)


class Elements(HTMLParser):
    """The elements of a page with their attributes, its texts, and those of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        (self.scripts if self.inside == "script" else self.texts).append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def charts(page: HtmlPage) -> dict[str, Chart]:
    blocks = [block for section in page.sections for block in section.blocks]
    blocks += [block for section in page.sections for panel in section.panels for block in panel.blocks]
    blocks += [chart for block in blocks if isinstance(block, Choice) for chart in block.charts.values()]
    return {block.id: block for block in blocks if isinstance(block, Chart)}


def lines_of(chart: Chart) -> dict[str, Line]:
    """The lines of a chart by their names."""
    assert isinstance(chart.figure, Lines)
    return {line.name: line for line in chart.figure.series}


def says_something(chart: Chart) -> bool:
    """Whether it has more than one point along its axis, more than one bar, or a value that changes."""
    if isinstance(chart.figure, HeatMap):
        return True
    if isinstance(chart.figure, Bars):
        return len({*chart.figure.names}) > 1
    series = [line for line in chart.figure.series if line.style is not LineStyle.IDEAL]
    points = [(x, y) for line in series for x, y in zip(line.x, line.y, strict=True) if y is not None]
    changes = any(len({y for y in line.y if y is not None}) > 1 for line in series)
    return len({x for x, _ in points}) > 1 and (changes or "telemetry" not in chart.id)


def _rounded(values: object) -> object:
    """The numbers of a chart to four digits."""
    if isinstance(values, list | tuple):
        return [_rounded(value) for value in values]
    return float(f"{values:.4g}") if isinstance(values, float) else values


def _block_lines(block: PageBlock) -> Iterator[str]:
    match block:
        case Paragraph(text=text):
            yield f"  {text}"
        case Listing(title=title, lines=lines):
            yield f"  {title}"
            yield from (f"    {line}" for line in lines)
        case Table(caption=caption, heads=heads, rows=rows, marked=marked):
            yield f"  table {block.id}: {caption}"
            yield f"    {' | '.join(' '.join(head).strip() for head in heads)}"
            yield from (f"    {' | '.join(row)}{' (marked)' if at in marked else ''}" for at, row in enumerate(rows))
        case Choice(charts=charts):
            for name, chart in charts.items():
                yield f"  choice: {name}"
                yield from _block_lines(chart)
        case Costs(title=title, conclusion=conclusion, costs=costs, remarks=remarks):
            yield f"  {title}: {conclusion}"
            yield from (f"    {each.cost or '-'} ({each.share}) {each.text}" for each in costs)
            yield f"    {' '.join(remarks)}"
        case Chart(title=title, text=text, figure=figure):
            yield f"  chart {block.id}: {title}"
            yield f"    {text}"
            yield from _figure_lines(figure)


def _figure_lines(figure: Lines | Bars | HeatMap) -> Iterator[str]:
    match figure:
        case Lines(series=series, shades=shades):
            for line in series:
                values = json.dumps({"x": _rounded(line.x), "y": _rounded(line.y)})
                yield f"    {line.name} ({line.style.name}): {values}"
            yield from (f"    shaded: {text}" for _, _, text in shades)
        case Bars(names=names, notes=notes):
            yield from (f"    {name}: {note}" for name, note in zip(names, notes, strict=True))
        case HeatMap(rows=rows, z=z):
            yield from (f"    {row}: {json.dumps(_rounded(values))}" for row, values in zip(rows, z, strict=True))


def page_lines(page: HtmlPage) -> Iterator[str]:
    """All that a page says, as text."""
    yield from (page.title, page.subtitle)
    for its in page.verdict:
        yield f"{its.question} {its.figure} {its.of}{' (doubt)' if its.doubt else ''} -> {its.link}: {its.link_text}"
        yield from (f"  {sentence}" for sentence in its.sentences)
    for section in page.sections:
        yield f"== {section.id}: {section.title}"
        for block in section.blocks:
            yield from _block_lines(block)
        for panel in section.panels:
            yield f"-- {panel.title}{' (open)' if panel.is_open else ''}"
            for block in panel.blocks:
                yield from _block_lines(block)
