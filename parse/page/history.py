"""The page of a history: what became slower, and the speed of each point over time with its levels and changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hpc.system.text import capitalized, first_of, plural
from parse.page.figures import (
    Chart,
    HtmlPage,
    Line,
    Lines,
    LineStyle,
    Listing,
    PageBlock,
    Panel,
    Paragraph,
    Section,
    Statement,
    Table,
)
from parse.page.points import MAX_PANELS
from parse.page.scaling import as_sentence, covered
from parse.page.svg import moment
from parse.text import number
from parse.trend.series import MAX_P_VALUE, MIN_MEASUREMENTS, DatedChange, History, Sample, Series, Trend
from parse.trend.text import NO_SAMPLES, change_text, points_table, samples_table, size_text

ORDER = (Trend.SLOWER, Trend.FASTER, Trend.STEADY, Trend.TOO_FEW)
"""Of the panels."""
FOLDERS_NAMED = 3
OVER_TIME, LEFT_OUT = "over-time", "What was left out"


def history_page(history: History) -> HtmlPage:
    """The verdict, a row per point, and for each point a chart, its changes and its measurements."""
    count, dates = len(history.series), sorted({each.date for series in history.series for each in series.samples})
    table = Table.of(points_table(_ordered(history)), "all-points", "All points and their latest change")
    points = Section(id="points", title="All points", blocks=[table])
    sections = [points, _over_time_section(history), _left_out_section(history)]
    return HtmlPage(
        title=f"Speed of {history.series[0].name if count == 1 else plural(count, 'point')} over time",
        subtitle=f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))} (UTC)" if dates else "",
        source=first_of(history.folders, FOLDERS_NAMED),
        command="rankwise history",
        verdict=[_verdict(history)],
        sections=[section for section in sections if section is not None],
    )


def _verdict(history: History) -> Statement:
    """What became slower, and the change that matters most: the largest slowdown that no later change followed."""
    judged = [series for series in history.series if series.verdict is not Trend.TOO_FEW]
    slower = history.with_verdict(Trend.SLOWER)
    worst = min(slower, default=None, key=lambda series: series.changes[-1].change.size)
    sentences = [f"{worst.name}: {change_text(worst.changes[-1], worst.unit)}"] if worst else []
    sentences += [*_interval(worst.changes[-1])] if worst else []
    sentences.append(
        f"A change is significant (p < {MAX_P_VALUE:g}) and larger than {100 * history.threshold:g} %; a verdict needs "
        f"{MIN_MEASUREMENTS} measurements, which {plural(len(judged), 'point')} of {len(history.series)} "
        f"{'has' if len(judged) == 1 else 'have'}."
    )
    missing = [*_missing(history)]
    sentences += missing
    return Statement(
        question="Is anything slower than it was?",
        figure=f"{len(slower)} of {len(judged)}" if slower else "nothing" if judged else "no verdict",
        of="points: the latest change is a slowdown" if slower else f"of {plural(len(judged), 'point')} with a verdict",
        sentences=[as_sentence(sentence) for sentence in sentences],
        link="left-out" if missing else "points",
        link_text=LEFT_OUT if missing else "All points",
        doubt=bool(slower or missing) or not judged,
    )


def _missing(history: History) -> Iterator[str]:
    """What the verdict does not rest on, though it was named."""
    if count := len(history.refusals):
        yield f"{count} {'folder or file' if count == 1 else 'folders or files'} could not be read"
    if gaps := sum(len(series.gaps) for series in history.series):
        was, it = ("was", "it has") if gaps == 1 else ("were", "they have")
        yield f"{plural(gaps, 'measurement')} of a point {was} left out, as {it} no speed or no date"


def _interval(change: DatedChange) -> Iterator[str]:
    """The interval of the size, where it has one."""
    if its := change.interval:
        ends = f"[{100 * (its.low - 1):+.2f}, {100 * (its.high - 1):+.2f}] %"
        yield f"Its size is within {ends} (95 %)"


def _ordered(history: History) -> list[Series]:
    return sorted(history.series, key=lambda series: ORDER.index(series.verdict))


def _over_time_section(history: History) -> Section:
    shown = _ordered(history)[:MAX_PANELS]
    blocks: list[PageBlock] = []
    if len(shown) < len(history.series):
        blocks.append(
            Paragraph(text=f"Shown are {len(shown)} of {len(history.series)} points, those that became slower first.")
        )
    panels = [
        Panel(id=f"point-{at}", title=_title(series), blocks=[*_blocks(series, at)], is_open=not at)
        for at, series in enumerate(shown)
    ]
    return Section(id=OVER_TIME, title="Speed over time", blocks=blocks, panels=panels)


def _title(series: Series) -> str:
    latest = f", {size_text(series.changes[-1])} on {series.changes[-1].first.date}" if series.changes else ""
    return f"{series.name}: {series.verdict}{latest}"


def _blocks(series: Series, at: int) -> Iterator[PageBlock]:
    if not series.samples:
        yield Paragraph(text=f"{capitalized(NO_SAMPLES)}.")
    elif len(series.samples) > 1:
        yield Chart(
            id=f"chart-{at}", title=f"Speed ({series.unit})", text=_described(series), figure=_drawn(series),
        )  # fmt: skip
        yield Paragraph(
            text=f"Blue: the median of each measurement, with its exact interval{covered(series.samples)} where it has "
            "several runs. Grey: its runs. Orange: the levels. Shaded: from the last measurement before a change to "
            "the first after it."
        )
    if series.changes:
        yield Listing(
            title=f"Changes of {series.name}, the latest first",
            lines=[
                ". ".join([change_text(change, series.unit), *_interval(change)]) for change in series.changes[::-1]
            ],
        )
    if series.samples:
        yield Table.of(
            replace(samples_table(series), label_columns=0), f"measurements-{at}",
            f"Measurements of {series.name}, in {series.unit}",
        )  # fmt: skip


def _drawn(series: Series) -> Lines:
    """Its runs, its levels, and over them the medians; the changes are shaded."""
    samples = series.samples
    runs = [(sample, speed) for sample in samples for speed in sample.speeds]
    ends = [(_ms(samples[start]), _ms(samples[stop - 1]), None) for start, stop, _ in series.levels]
    lines = [
        Line(
            name="runs", style=LineStyle.RUNS, x=[_ms(sample) for sample, _ in runs], y=[speed for _, speed in runs],
            titles=[f"a run of {_named(sample)}: {number(speed)} {series.unit}" for sample, speed in runs],
        ),
        Line(
            name="level", style=LineStyle.LEVEL, x=[end for each in ends for end in each],
            y=[y for *_, value in series.levels for y in (value, value, None)],
        ),
        Line(
            name="median", number=0, x=[_ms(sample) for sample in samples], y=[sample.median for sample in samples],
            intervals=[(each.interval.low, each.interval.high) if each.interval else None for each in samples],
            titles=[f"{_named(each)}: {number(each.median)} {series.unit}" for each in samples],
        ),
    ]  # fmt: skip
    changes = [(_ms(each.previous), _ms(each.first), size_text(each)) for each in series.changes]
    return Lines(
        series=[line for line in lines if line.x], unit=series.unit, from_zero=False, are_dates=True, shades=changes
    )


def _named(sample: Sample) -> str:
    return f"{sample.folder}, {moment(_ms(sample))}"


def _ms(sample: Sample) -> int:
    return 1000 * sample.begin_unix_s


def _described(series: Series) -> str:
    """The levels in order of time."""
    samples = series.samples
    levels = [
        f"{number(value)} from {samples[start].date} to {samples[stop - 1].date}"
        for start, stop, value in series.levels
    ]
    return f"Levels: {', '.join(levels)}." if levels else "Too few for a verdict."


def _left_out_section(history: History) -> Section | None:
    listings = [
        (f"Left out of {series.name}", [f"{gap.folder}: {gap.reason}" for gap in series.gaps])
        for series in history.series
    ]
    remarks = [f"{text}{f' ({count} times)' if count > 1 else ''}" for text, count in Counter(history.remarks).items()]
    listings += [("Not read", list(history.refusals)), ("Remarks", remarks)]
    blocks: Sequence[PageBlock] = [Listing(title=title, lines=lines) for title, lines in listings if lines]
    return Section(id="left-out", title=LEFT_OUT, blocks=blocks) if blocks else None
