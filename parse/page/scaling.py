"""Speed, speedup and efficiency against the ideal; the table of all points and their warnings; the page's verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from hpc.system.text import capitalized, first_of, plural
from parse.alarms.nodes import nodes_tables
from parse.page.figures import (
    Chart,
    Choice,
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
    shareable,
)
from parse.report.ledger import NOTHING
from parse.report.notices import (
    CAUTION,
    INVALID,
    NO_RESULT,
    NOTE,
    Notice,
    all_notices,
    before_the_numbers,
    below_the_table,
    beyond_ideal,
    merged,
    no_scaling_result,
    run_counts,
    scaling_lines,
    setting_names,
    unscaled_text,
    without_speed,
)
from parse.report.summary import Summary, by_unit, labels, names_of_points, varying
from parse.report.table import of_tables, points_tables
from parse.runs.result import Base, Result, by_setting, scaling_text
from parse.say.findings import words
from parse.say.numbers import level, speed_text
from parse.say.paragraph import largest, text_of
from parse.text import cut

if TYPE_CHECKING:
    from parse.page.forecast import Forecasts
    from parse.trend.series import Sample

NAMING = ("document", "backend", "workload", "batch_size", "precision")
"""Settings in front of the speeds in the table of points: the source, and what was measured."""
NAMED = 6
"""Points named before a warning that is about several."""
MAX_SERIES = 6
"""Settings in one chart; the tables have all."""


def scaling_section(summary: Summary, point: Result | None, forecasts: Forecasts | None = None) -> Section:
    """The charts and tables by unit; `point` is that of the verdict, whose setting is always drawn, `forecasts` the
    further sizes in the charts."""
    blocks: list[PageBlock] = []
    units = by_unit([result for result in summary.results if result.median_speed is not None])
    for number, of_unit in enumerate(units):
        blocks += _charts(of_unit, point, f"-{number}" if number else "", forecasts)
    blocks += _tables(summary)
    for table, left_out in nodes_tables(summary.results):
        blocks.append(Table.of(table, f"nodes-{len(blocks)}", "; ".join([table.caption, *left_out])))
    notices = all_notices(summary)
    remarks = [notice_text(notice) for notice in notices if notice.weight is NOTE]
    panels = [Panel(id="remarks", title="Remarks", blocks=[Listing(title="", lines=remarks)])] if remarks else []
    is_scaled = any(result.speedup is not None and not is_base(result) for result in summary.results)
    title = "Speed, speedup and efficiency" if is_scaled else "Speed"
    return Section(id="scaling", title=title, blocks=blocks or [Paragraph(text="No point.")], panels=panels)


def warnings_section(summary: Summary) -> Section | None:
    """Why it is no result of scaling, if so, then all warnings, as many as the card counts; None if there is none."""
    notices = [notice for notice in merged(all_notices(summary)) if notice.weight is not NOTE]
    if not notices:
        return None
    notices.sort(key=lambda notice: notice.weight is not INVALID)
    count = sum(notice.weight is CAUTION for notice in notices)
    titles = ["why it is no result"] if count < len(notices) else []
    titles += [plural(count, "warning")] if count else []
    listing = Listing(title="", lines=[notice_text(notice) for notice in notices], warnings=True)
    return Section(id="warnings", title=capitalized(", and ".join(titles)), blocks=[listing])


def notice_text(notice: Notice, max_named: int = NAMED) -> str:
    """The notice with the names of the first of its points, and the number of the others."""
    text = f"{first_of(notice.labels, max_named)}: {notice.text}" if notice.labels else notice.text
    return shareable(text)


def chosen_settings(
    results: Sequence[Result], point: Result | None
) -> tuple[list[tuple[str, list[Result]]], list[list[Result]]]:
    """The names and points of the settings that one chart has, that of `point` among them; and all settings."""
    settings = list(by_setting(results).values())
    names = setting_names([setting[0] for setting in settings])
    largest = sorted(
        range(len(settings)),
        key=lambda at: (
            all(each is not point for each in settings[at]),
            -len(settings[at]),
            -settings[at][-1].devices,
            at,
        ),
    )
    return [(names[at], settings[at]) for at in sorted(largest[:MAX_SERIES])], settings


def scaled_by_base(
    settings: Sequence[tuple[str, Sequence[Result]]],
) -> list[tuple[Base, list[tuple[str, list[Result]]]]]:
    """The settings whose points have speedups against the same case, few devices first: no axis has two bases. None
    where there is no point but the bases themselves, which are no scaling."""
    bases: dict[tuple[int, str], Base] = {}
    by_base: dict[tuple[int, str], list[tuple[str, list[Result]]]] = {}
    for name, setting in settings:
        points = [result for result in setting if result.speedup]
        if points and (base := points[0].base):
            key = base.devices, base.case
            bases.setdefault(key, base)
            by_base.setdefault(key, []).append((name, points))
    return [
        (bases[key], of_base)
        for key, of_base in sorted(by_base.items())
        if any(not is_base(result) for _, points in of_base for result in points)
    ]


def is_base(result: Result) -> bool:
    """Whether it is what its setting is measured against."""
    return result.base is not None and result.base.point == result.requested.point


def are_drawn(settings: Sequence[tuple[str, Sequence[Result]]]) -> bool:
    """Whether a line of any setting has two ends: the table has what single points say."""
    return any(
        len({result.devices for result in setting if result.median_speed is not None}) > 1 for _, setting in settings
    )


def _charts(
    results: Sequence[Result], point: Result | None, suffix: str, forecasts: Forecasts | None
) -> Iterator[PageBlock]:
    chosen, settings = chosen_settings(results, point)
    if not are_drawn(chosen):
        return
    if len(settings) > len(chosen):
        yield Paragraph(
            text=f"The charts have {len(chosen)} of {len(settings)} settings, those with most cases; the table has all."
        )
    names = [name for name, _ in chosen]
    chart = _chart(chosen, names, "speed", suffix, forecasts)
    charts = {"Speed": replace(chart, title=f"Speed ({results[0].unit})")}
    scaled = [(base, of_base) for base, of_base in scaled_by_base(chosen) if are_drawn(of_base)]
    for number, (base, of_base) in enumerate(scaled):
        its_suffix = f"{suffix}-base-{number}" if number else suffix
        against = f" against {base.case}"
        for quantity in ("speedup", "efficiency"):
            drawn = _chart(of_base, names, quantity, its_suffix, forecasts, base)
            title = f"{capitalized(quantity)}{against}{' (%)' if quantity == 'efficiency' else ''}"
            short = f"{capitalized(quantity)}{against if len(scaled) > 1 else ''}"
            charts[short] = replace(drawn, title=title)
    yield Choice(id=f"choice{suffix}", charts=charts)
    dashed = [f"{capitalized(forecasts.drawn)}."] if forecasts and continued(chosen, names, "speed", forecasts) else []
    of = covered([result for _, setting in chosen for result in setting])
    bars = [f"Bars: the interval of each median{of}."] if of else []
    yield Paragraph(text=" ".join([*bars, *dashed, "Axes of devices, speed and speedup are logarithmic."]))


def covered(points: Sequence[Result | Sample]) -> str:
    """What the intervals of their medians cover; empty where there are none."""
    intervals = [each.interval for each in points if each.interval]
    return f" ({level(intervals)})" if intervals else ""


def _chart(
    settings: Sequence[tuple[str, Sequence[Result]]],
    names: Sequence[str],
    quantity: str,
    suffix: str,
    forecasts: Forecasts | None,
    base: Base | None = None,
) -> Chart:
    """The `quantity` of these settings by devices; `names` are those of all settings, by whose order each has its
    colour. Speedup and efficiency are against this base."""
    cases = cases_of([result for _, setting in settings for result in setting], forecasts)
    further = continued(settings, names, quantity, forecasts)
    series = [series_of(name, setting, quantity, names.index(name)) for name, setting in settings]
    ideal = _ideal(settings, [devices for devices, _ in cases], quantity, base)
    return Chart(
        id=f"chart-{quantity}{suffix}", title=capitalized(quantity), text=_reached(settings),
        figure=Lines(
            series=[*([ideal] if ideal else []), *series, *further], x_title="devices", categories=cases,
            log_y=quantity != "efficiency", unit="%" if quantity == "efficiency" else "",
        ),
    )  # fmt: skip


def _ideal(
    settings: Sequence[tuple[str, Sequence[Result]]], devices: Sequence[int], quantity: str, base: Base | None
) -> Line | None:
    """That against the base; of speed through the base of the only setting: several have different ones."""
    if quantity == "speed":
        points = settings[0][1] if len(settings) == 1 else ()
        of_base = next((result for result in points if is_base(result)), None)
        if of_base is None or of_base.median_speed is None:
            return None
        y = [of_base.median_speed * device / of_base.devices for device in devices]
    else:
        assert base
        y = [100.0 if quantity == "efficiency" else device / base.devices for device in devices]
    return Line(name="ideal", x=devices, y=y, style=LineStyle.IDEAL)


def continued(
    settings: Sequence[tuple[str, Sequence[Result]]], names: Sequence[str], quantity: str, forecasts: Forecasts | None
) -> list[Line]:
    """The forecasts that follow the lines of these settings; each has the colour that its name has by `names`."""
    if forecasts is None:
        return []
    lines_of = [
        forecasts.continued(series_of(name, setting, quantity, names.index(name)), setting, quantity)
        for name, setting in settings
    ]
    return [line for line in lines_of if line]


def cases_of(results: Sequence[Result], forecasts: Forecasts | None = None) -> list[tuple[int, str]]:
    """The marks of the axis: every number of devices with its first case."""
    cases: dict[int, str] = {}
    for result in results:
        cases.setdefault(result.devices, result.requested.case)
    for setting in by_setting(results).values() if forecasts else ():
        for devices, case in forecasts.cases(setting) if forecasts else ():
            cases.setdefault(devices, case)
    return sorted(cases.items())


def by_devices(results: Sequence[Result]) -> list[Result]:
    """Few devices first; of equally many those on fewer nodes."""
    return sorted(results, key=lambda result: (result.devices, result.run.nodes or 1))


def factor(result: Result, quantity: str, devices: int) -> float:
    """What a speed on so many devices is multiplied with to become the quantity, against the base of the point."""
    if quantity == "speed" or not (result.speedup and result.median_speed and result.base):
        return 1.0
    times = result.speedup / result.median_speed
    return times if quantity == "speedup" else times * 100 * result.base.devices / devices


def series_of(name: str, setting: Sequence[Result], quantity: str, number: int | None = None) -> Line:
    """The `speed`, `speedup` or `efficiency` (in %) of a setting by devices, with the intervals of the medians; in all
    charts with the colour and the symbol of this number."""
    unit = {"speed": f" {setting[0].unit}", "speedup": " ×", "efficiency": " % of ideal"}[quantity]
    points = []
    for result in by_devices(setting):
        times, its, value, within = factor(result, quantity, result.devices), result.interval, None, ""
        if its:
            within = f" ({speed_text(its.low * times)} to {speed_text(its.high * times)}, {level([its])})"
        if result.median_speed is not None:
            value = result.median_speed * times
        title = "" if value is None else f"{name}, {result.requested.case}: {speed_text(value)}{unit}{within}"
        points.append((result.devices, value, its and (its.low * times, its.high * times), title))
    x, y, intervals, titles = zip(*points, strict=True)
    return Line(name=name, number=number, x=x, y=y, intervals=intervals, titles=titles)


def _reached(settings: Sequence[tuple[str, Sequence[Result]]]) -> str:
    """What the largest point of each setting reaches."""
    last = ((name, by_devices(setting)[-1]) for name, setting in settings)
    return " ".join(
        f"{name}: {result.requested.case} runs {', '.join(scaling_text(result))} of ideal."
        for name, result in last
        if result.speedup is not None and not is_base(result)
    )


def _tables(summary: Summary) -> Iterator[Table]:
    """A row per point; the last column counts its warnings."""
    names = names_of_points(summary)
    notices = all_notices(summary)
    counts = {
        name: sum(notice.weight is CAUTION and name in notice.labels for notice in notices)
        for name in {*names.values()}
    }
    differ = varying(summary.results)
    for number, (table, of_unit) in enumerate(zip(points_tables(summary), of_tables(summary.results), strict=True)):
        counted = [str(counts[names[result.requested.point]] or "-") for result in of_unit]
        shown = _order([name for name, _ in table.heads], differ)
        yield Table(
            id=f"points-{number}" if number else "points",
            caption="All points; median and average over the runs, the interval of the median",
            heads=[table.heads[at] if at >= 0 else ("warnings", "") for at in shown],
            rows=[[row[at] if at >= 0 else n for at in shown] for row, n in zip(table.rows, counted, strict=True)],
        )


def _order(names: Sequence[str], settings: Sequence[str]) -> list[int]:
    """The columns in their order, -1 for the warnings: settings beyond NAMING come last; the case has the nodes."""
    last = [at for at, name in enumerate(names) if name in settings and name not in NAMING]
    return [*(at for at, name in enumerate(names) if at not in last and name != "nodes"), -1, *last]


# The page's verdict.

WIDTH = 160
"""Names of settings are shortened as for a line of so many cells."""
WARNINGS_NAMED = 2
"""Points named in a warning there."""
WARNINGS, WARNING_WIDTH = 1, 80
"""Warnings shown in the verdict, and the cells of each: its card is as high as the others."""
CARD_WORDS = 40
"""Words of a card's sentences: it is read at a glance."""
SMALLER = 4
"""Smaller points whose speedup is shown beside that of the point of the verdict."""


def verdict_point(summary: Summary) -> Result | None:
    """The point that the verdict is about: the largest one with a speedup, else with a speed; of several the first.

    Traces come before logs, and these before what a document only prints.
    """
    measured = [result for result in summary.results if result.median_speed is not None]

    def rank(result: Result) -> tuple[bool, bool, bool, int, int]:
        scaled, traced = result.speedup is not None and not is_base(result), any(run.trace for run in result.ok)
        return traced, bool(result.ok), scaled, result.devices, result.run.nodes or 1

    return max(measured, key=rank, default=None)


def verdict(summary: Summary) -> list[Statement]:
    """The statements, in the order of their questions; a page without a result has them, too."""
    notices = [*before_the_numbers(summary), *below_the_table(summary)]
    result = verdict_point(summary)
    cards = (_scaling(summary, result), _loss(summary, result), _trust(summary, result, notices))
    return [replace(card, sentences=_first_words(card.sentences)) for card in cards]


def _first_words(sentences: Sequence[str]) -> list[str]:
    """The first of the sentences, CARD_WORDS at most unless the first is longer: the sections below have all."""
    words = accumulate(len(text.split()) for text in sentences)
    return [
        text for at, (text, so_far) in enumerate(zip(sentences, words, strict=True)) if not at or so_far <= CARD_WORDS
    ]


def _scaling(summary: Summary, result: Result | None) -> Statement:
    question, link, link_text = "How does it scale?", "scaling", "Speed, speedup, efficiency"
    others = [as_sentence(line) for line in scaling_lines(summary.results, WIDTH, beside=result)]
    if result is None or result.median_speed is None:
        return Statement(
            question=question, figure="no speed", of="no run has one", sentences=others, link="outcomes",
            link_text="What became of the runs", doubt=True,
        )  # fmt: skip
    if result.speedup is None or is_base(result):
        return Statement(
            question=question, figure=speed_text(result.median_speed), of=f"{result.unit} on {_case(summary, result)}",
            sentences=[
                *(f"{capitalized(text)}." for text in no_scaling_result(result)), *_origin(result),
                f"{capitalized(unscaled_text(result))}.", *others,
            ],
            link=link, link_text=link_text, doubt=True,
        )  # fmt: skip
    speedup, efficiency = scaling_text(result)
    if void := no_scaling_result(result):
        return Statement(
            question=question, figure="no result", of=f"of scaling {void[0].removeprefix(NO_RESULT)}",
            sentences=[
                f"{_case(summary, result)} runs {speedup}, {efficiency} of ideal.", *_origin(result),
                *_beside(summary, result), *others,
            ],
            link=link, link_text=link_text, doubt=True,
        )  # fmt: skip
    return Statement(
        question=question,
        figure=efficiency,
        of=f"of ideal on {_case(summary, result)}: {speedup}",
        sentences=[*_origin(result), *_beside(summary, result), *others],
        link=link,
        link_text=link_text,
        doubt=bool(beyond_ideal(result, summary.results)),
    )


def _beside(summary: Summary, result: Result) -> Iterator[str]:
    """The speeds behind the speedup of the point, the speedups of smaller points of its setting, and what is wrong."""
    assert result.median_speed is not None and result.speedup is not None and result.base
    setting = next(each for each in by_setting(summary.results).values() if any(point is result for point in each))
    yield from (f"{capitalized(text)}." for text in beyond_ideal(result, summary.results))
    base = next((each.median_speed for each in setting if each.requested.point == result.base.point), None)
    against = "" if base is None else f", on {result.base.case} {speed_text(base)}"
    yield f"{speed_text(result.median_speed)} {result.unit}{against}."
    smaller = [
        f"{each.requested.case} {each.speedup:.2f} ×"
        for each in sorted(setting, key=lambda each: -each.devices)
        if each.speedup is not None and result.base.devices < each.devices < result.devices
    ]
    if smaller:
        yield f"Speedup of smaller points: {first_of(smaller, SMALLER)}."
    yield from (f"{capitalized(text)}." for text in without_speed(setting, result))


def _origin(result: Result) -> list[str]:
    """Where its speed is from, if not from traces."""
    if result.published is not None:
        return [f"Not measured here: {result.published.document.name} prints it."]
    formats = sorted({run.log.log_format for run in result.ok if run.log})
    return [f"Read from logs of {' and '.join(formats)}."] if formats else []


def _case(summary: Summary, result: Result) -> str:
    """Its case; with its backend and workload where there are several settings."""
    several = len(by_setting(summary.results)) > 1
    setting = " ".join(name for name in (result.run.backend, result.run.workload_name) if name)
    return f"{result.requested.case} ({setting})" if several else result.requested.case


def _loss(summary: Summary, result: Result | None) -> Statement:
    question, link, link_text = "What holds it back most?", "ledger", "Where the time of a step goes"
    ledgers = {ledger.result.requested.point: ledger for ledger in summary.ledgers or ()}
    ledger = ledgers.get(result.requested.point) if result else None
    if ledger is None:
        reason = f"{capitalized(NOTHING)}." if not ledgers or result is None else (
            f"No run of {_case(summary, result)} has a trace; the section has the ledgers of other points."
        )  # fmt: skip
        return Statement(
            question=question, figure="not known", of="only traces have the time stamps for it",
            sentences=[reason], link="outcomes", link_text="What became of the runs", doubt=True,
        )  # fmt: skip
    headline_text = largest(ledger)
    paragraph = text_of(ledger).paragraph
    if any(headline_text.of.endswith(words(each, ledger).name) for each in ledger.findings[:1]):
        paragraph = [*paragraph[1:2], paragraph[0], *paragraph[2:]]  # the finding that the figure is of comes first
    return Statement(
        question=question, figure=headline_text.figure, of=f"{headline_text.of} ({ledger.result.requested.case})",
        sentences=[capitalized(text) for text in paragraph], link=link, link_text=link_text,
        doubt=headline_text.doubt,
    )  # fmt: skip


def _trust(summary: Summary, result: Result | None, notices: Sequence[Notice]) -> Statement:
    question = "Can the numbers be trusted?"
    warnings = [notice for notice in merged(notices) if notice.weight is CAUTION]
    first = [notice for notice in merged(before_the_numbers(summary)) if notice.weight is CAUTION]
    shown = _about(result, summary, first or warnings)[:WARNINGS]
    texts = [(notice_text(notice, WARNINGS_NAMED), notice.in_full) for notice in shown]
    sentences = [as_sentence(text if in_full else cut(text, WARNING_WIDTH)) for text, in_full in texts]
    sentences += _interval(result)
    count, runs = len(warnings), run_counts(summary.results)
    if not summary.results:
        return Statement(
            question=question, figure="nothing", of="is here to be judged",
            sentences=[*map(as_sentence, runs), *sentences] or ["No run is here."],
            link="outcomes", link_text="What became of the runs", doubt=True,
        )  # fmt: skip
    return Statement(
        question=question,
        figure=plural(count, "warning") if count else "no warning",
        of="; ".join([*runs, *([] if count else ["all checks passed"])]),
        sentences=sentences,
        link="warnings" if count else "measured",
        link_text="All warnings" if count else "What was measured",
        doubt=bool(count),
    )


def _about(result: Result | None, summary: Summary, warnings: Sequence[Notice]) -> list[Notice]:
    """The warnings about the point of the verdict, then those about others."""
    names = zip(summary.results, labels(summary.results), strict=True)
    its_names = {name for each, name in names if each is result} | ({result.requested.case} if result else set())
    return sorted(warnings, key=lambda notice: not its_names & {*notice.labels})


def _interval(result: Result | None) -> list[str]:
    """How certain the speed of the point of the verdict is."""
    if result is None or not result.ok or not result.median_speed:
        return []
    runs = plural(len(result.ok), "run")
    if result.interval is None:
        return [f"The speed of {result.requested.case} is that of {runs}: its scatter is not known."]
    low, high = (100 * (end / result.median_speed - 1) for end in (result.interval.low, result.interval.high))
    ends = f"{low:+.2f} to {high:+.2f} %"
    if result.interval.of_few_runs:
        return [f"{runs} of {result.requested.case} differ from their median by {ends}."]
    return [f"The median of {runs} of {result.requested.case} is known to {ends} (95 %)."]


def as_sentence(text: str) -> str:
    """The text with a full stop at its end."""
    return text if text.endswith((".", "…")) else f"{text}."
