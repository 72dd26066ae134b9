"""From a summary to the page: all sections in their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hpc.model.spec import USUAL
from hpc.system.text import capitalized, first_of, inflect, natural, plural
from parse.ledger.types import Ledger
from parse.page.figures import (
    Bars,
    Chart,
    Cost,
    Costs,
    HtmlPage,
    Line,
    Lines,
    Listing,
    PageBlock,
    Panel,
    Paragraph,
    Part,
    Section,
    Table,
)
from parse.page.points import points_section
from parse.page.scaling import (
    are_drawn,
    by_devices,
    cases_of,
    chosen_settings,
    scaling_section,
    series_of,
    verdict,
    verdict_point,
    warnings_section,
)
from parse.report.against import against_lines
from parse.report.costs import time_tables
from parse.report.ledger import NOTHING, about_terms, dimension_tables, term_columns, term_table
from parse.report.notices import setting_names
from parse.report.summary import Summary, differences, labels, named_ledgers, provenance, shared
from parse.runs.result import Result, Run, by_setting
from parse.runs.summary_file import MACHINE
from parse.say.findings import words
from parse.say.numbers import Figures, change_ms, level_of, ms
from parse.say.paragraph import doubts, headline, sentence

if TYPE_CHECKING:
    from parse.page.forecast import Forecasts

# Where the time of a step goes: the terms as stacked bars, what is lost, what changes would be worth.

MAX_BARS = 16
"""Points in the chart; the table has all."""


def ledger_section(summary: Summary, point: Result | None) -> Section:
    """The terms of all points as a chart, what the findings of `point` cost, and folded the rest; why there is none
    where no run has a trace."""
    section_id, title = "ledger", "Where the time of a step goes"
    named = named_ledgers(summary)
    if not named:
        return Section(id=section_id, title=title, blocks=[Paragraph(text=f"{capitalized(NOTHING)}.")])
    blocks: list[PageBlock] = [*_terms_chart(named)]
    blocks += [_costs(name, ledger) for name, ledger in named if point and ledger.result is point]
    if errors := list(about_terms(named)):
        blocks.append(Listing(title="About the terms", lines=errors, warnings=True))
    terms = term_table(summary, named)
    heads = [(name or "of", unit) for name, unit in terms.heads]
    further: list[PageBlock] = [
        Listing(title="In words", lines=[sentence(ledger, name) for name, ledger in named]),
        Table.of(replace(terms, heads=heads), "terms", capitalized(terms.caption)),
    ]
    further += (Table.of(table, "dimensions", capitalized(table.caption)) for table in dimension_tables(named))
    further += (Table.of(table, "whole-time", capitalized(table.caption)) for table in time_tables(summary))
    panel = Panel(id="ledger-figures", title="All points: in words, terms, losses", blocks=further)
    return Section(id=section_id, title=title, blocks=blocks, panels=[panel])


def _terms_chart(named: Sequence[tuple[str, Ledger]]) -> Iterator[PageBlock]:
    """A bar for each point; none for a single one, of which the words and the table have all."""
    shown = named[:MAX_BARS]
    if len(shown) < len(named):
        yield Paragraph(text=f"The chart has the first {len(shown)} of {len(named)} points; the table has all.")
    if len(shown) < 2:
        return
    ledgers = [ledger for _, ledger in shown]
    write = Figures(ledgers)
    bases = [*{ledger.result.base_case for ledger in ledgers if ledger.loss is not None}]
    lost = f"lost{f' against {bases[0]}' if len(bases) == 1 else ''}" if bases else ""
    parts = {name: [_part(ledger, name, write) for ledger in ledgers] for name in term_columns(ledgers)}
    notes = [_note(ledger) for ledger in ledgers]
    yield Chart(
        id="chart-terms", title=f"A step, by what it is spent on{f'; hatched: {lost}' if lost else ''} (ms)",
        text=f"{shown[-1][0]}: {headline(ledgers[-1])}.",
        figure=Bars(
            names=[name for name, _ in shown], notes=notes, parts=parts, lost=lost,
            x_title="ms per step, mean over ranks and steps",
        ),
    )  # fmt: skip


def _note(ledger: Ledger) -> str:
    """`713 ms, +467 ms against 1n1g`."""
    against = "" if ledger.loss is None else f", {change_ms(ledger.loss)} against {ledger.result.base_case}"
    return f"{ms(ledger.step.value)}{against}"


def _part(ledger: Ledger, name: str, write: Figures) -> Part | None:
    """The term of that name, and what of it is lost as far as 0 is outside its interval; None where there is none."""
    term = next((term for term in ledger.terms if term.name == name), None)
    if term is None:
        return None
    interval = f" {write.interval(term.mean)} ({level_of(term.mean)})" if term.mean.shown else ""
    loss = "" if term.loss is None else f", {change_ms(term.loss)} against {ledger.result.base_case}"
    lost = term.loss.value if term.loss and term.loss.resolved else 0.0
    return Part(value=term.mean.value, lost=lost, title=f"{write.bare(term.mean.value)} ms{interval}{loss}")


def _costs(name: str, ledger: Ledger) -> Costs:
    """What each finding costs, the most first, as a share of the loss, or of a step where none is proven."""
    is_lost = ledger.loss is not None and ledger.is_resolved and ledger.loss.value > 0
    whole = ledger.loss.value if ledger.loss is not None and is_lost else ledger.step.value
    rows = []
    for finding in sorted(ledger.findings, key=ledger.lost_to, reverse=True):
        costs, text = ledger.lost_to(finding), ". ".join(words(finding, ledger).sentences)
        if text:
            known = costs >= 0
            rows.append(
                Cost(cost=ms(costs) if known else "", share=min(1.0, costs / whole) if known else None, text=f"{text}.")
            )
    last, any_bar = doubts(ledger), any(row.share is not None for row in rows)
    return Costs(
        title=f"What {name} loses" if ledger.loss else f"What a step of {name} is spent on",
        conclusion=f"{capitalized(headline(ledger, terms=False))}.",
        costs=rows,
        remarks=[
            *([f"A full bar is the whole {'loss' if is_lost else 'step'}, {ms(whole)}."] if any_bar else []),
            *(["Findings may overlap."] if len(rows) > 1 else []),
            *([f"{last}."] if last else []),
        ],
    )


# What was measured: the settings of all points, the environment of all runs, and in what runs differ.

RUNS_NAMED = 4
"""Runs named beside a value that only some have."""
LONG_NAME = 30
"""Runs whose names are longer are counted by backend."""
HOSTS_NAMED = 16
IN_SUBTITLE = 3
"""Names of a kind in the line below the title."""
FRAMEWORKS = ("torch", "tensorflow", "paddle", "horovod", "mxnet", "oneflow")
"""Versions shown there."""
ALL, NODES = "all", "nodes"


def measured_section(summary: Summary) -> Section:
    """Settings and environment once, what differs between runs in marked rows with the runs that have it."""
    blocks: list[PageBlock] = []
    runs = [run for result in (*summary.results, *summary.diagnostics) for run in result.runs]
    if not runs:
        return Section(id="measured", title="What was measured", blocks=[Paragraph(text="No run is here.")])
    settings = {name: value for name, value in shared(summary.results).items() if USUAL.get(name) != value}
    rows = [[name, value] for name, value in settings.items()]
    marked = range(len(rows), len(rows) + len(differences(summary.results)))
    rows += [[name, ", ".join(values)] for name, values in differences(summary.results).items()]
    of = " of the points that state them" if any(result.requested.partly for result in summary.results) else ""
    if rows:
        blocks.append(
            Table(
                id="settings", caption=f"Settings{of}; marked: what differs between points", rows=rows, label_columns=2,
                heads=(("setting", ""), ("value", "")), marked=frozenset(marked),
            )
        )  # fmt: skip
    blocks += environment_table(summary)
    panel = Panel(id="measured-figures", title="Settings and environment", blocks=blocks)
    return Section(id="measured", title="What was measured", blocks=[], panels=[panel])


def subtitle(summary: Summary) -> str:
    """When, where and on what: `2026-05-14 (UTC), site mysite, nodes n1 and n2: NVIDIA H100, driver 570.1, torch 2.13`.

    What no run recorded is left out; empty where none recorded any of it.
    """
    runs = [run for result in summary.results for run in result.runs]
    facts = provenance(runs)
    hosts = sorted({host for run in runs if run.machine for host in run.machine.hosts or ()}, key=natural)
    sites = sorted({site for result in summary.results if (site := result.run.site)})
    when = [f"{facts['date']} (UTC)"] if facts["date"] else []
    where = [f"{inflect(len(sites), 'site')} {first_of(sites, IN_SUBTITLE)}"] if sites else []
    where += [f"{inflect(len(hosts), 'node')} {first_of(hosts, IN_SUBTITLE)}"] if hosts else []
    devices = [name for name in facts["device"] if name != "cpu"] or facts["cpu"] or facts["device"]
    what = [first_of(devices, IN_SUBTITLE)] if devices else []
    what += [f"driver {first_of(facts['driver'], IN_SUBTITLE)}"] if facts["driver"] else []
    versions = {**facts["header"], **facts["versions"]}
    frameworks = [name for name in FRAMEWORKS if name in versions]
    what += [f"{name} {first_of(versions[name], IN_SUBTITLE)}" for name in frameworks]
    measured = ", ".join([*when, *where])
    return ": ".join(filter(None, [measured, ", ".join(what)]))


def environment_table(summary: Summary) -> Iterator[Table]:
    """A row for each fact, the device first, and each of its values, with the runs that have it; marked where other
    runs have other values, or the ranks of these have several."""
    names = labels(summary.results)
    named = [
        ((f"{name} run {run.requested.run.repeat or '?'}", run.requested.run.backend), run)
        for name, result in zip(names, summary.results, strict=True)
        for run in result.runs
        if run.machine
    ]
    facts: dict[str, dict[tuple[str, ...], list[tuple[str, str]]]] = {}
    for name, run in named:
        for fact, values in _facts(run).items():
            facts.setdefault(fact, {}).setdefault(values, []).append(name)
    if hosts := sorted({host for _, run in named for host in _hosts(run)}, key=natural):
        facts[NODES] = {(first_of(hosts, HOSTS_NAMED),): [name for name, run in named if _hosts(run)]}
    rows = [
        [fact, ", ".join(values), ALL if len(of) == len(named) else _runs_text(of)]
        for fact, by_value in facts.items()
        for values, of in by_value.items()
    ]
    differ = [len(by_value) > 1 or len(values) > 1 for by_value in facts.values() for values in by_value]
    if rows:
        yield Table(
            id="environment", caption="Environment; marked: what differs between runs or ranks", label_columns=3,
            heads=(("fact", ""), ("value", ""), ("runs", "")), rows=rows,
            marked=frozenset(at for at, differs in enumerate(differ) if differs),
        )  # fmt: skip


def _hosts(run: Run) -> Sequence[str]:
    return (run.machine and run.machine.hosts) or ()


def _runs_text(runs: Sequence[tuple[str, str]]) -> str:
    """The first of these runs, each a name and a backend; where names are long, how many of each backend."""
    names = [name for name, _ in runs]
    if max(map(len, names)) <= LONG_NAME:
        return first_of(names, RUNS_NAMED)
    return ", ".join(f"{count} of {backend}" for backend, count in Counter(backend for _, backend in runs).items())


def _facts(run: Run) -> dict[str, tuple[str, ...]]:
    """The facts of its machine, the device first."""
    machine = run.machine
    if machine is None:
        return {}
    names = [name for name in MACHINE.values() if name in machine.facts]
    names += [name for name in machine.facts if name not in names]
    return {name: machine.facts[name] for name in names}


# What became of every run, with the evidence; the files that were not read, and what the page leaves out.

MAX_ROWS = 300
"""Runs in a table."""


def outcomes_section(summary: Summary) -> Section:
    """A row for each run that did not end ok, folded the others, and what was not read."""
    named = [*zip(summary.results, labels(summary.results), strict=True)]
    named += [(result, f"{result.requested.case} ({result.run.diagnostic})") for result in summary.diagnostics]
    rows = [(run, row) for result, name in named for run, row in _rows(result, name)]
    counts = Counter(row[2] for _, row in rows)
    listed = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    title = f"{plural(len(rows), 'run')}: {listed}"
    failed = _runs_table("failed-runs", "Runs that did not end ok", [row for run, row in rows if not run.measured])
    ok = _runs_table("ok-runs", "Runs that ended ok", [row for run, row in rows if run.measured])
    blocks: list[PageBlock] = [failed] if failed.rows else [] if rows else [Paragraph(text="No run is here.")]
    if summary.refusals:
        blocks.append(Listing(title="Files that were not read", lines=summary.refusals, warnings=True))
    panels = [Panel(id="runs-rows", title=title, blocks=[ok])] if ok.rows else []
    return Section(id="outcomes", title="What became of the runs", blocks=blocks, panels=panels)


def _runs_table(table_id: str, caption: str, rows: Sequence[Sequence[str]]) -> Table:
    of = f": {MAX_ROWS} of {len(rows)}" if len(rows) > MAX_ROWS else ""
    heads = (("point", ""), ("run", ""), ("outcome", ""), ("attempts", ""), ("speed", "per s"), ("evidence", ""))
    return Table(id=table_id, caption=f"{caption}{of}", label_columns=3, heads=heads, rows=rows[:MAX_ROWS])


def _rows(result: Result, name: str) -> Iterator[tuple[Run, list[str]]]:
    for run in result.runs:
        if result.published and not result.ok:
            continue  # a document's figure, no run of anybody's here
        attempt = run.attempt
        evidence = "" if attempt is None else attempt.problem or attempt.evidence
        yield (
            run,
            [
                name,
                str(run.requested.run.repeat or "?"),
                run.outcome_text,
                str(run.attempts),
                f"{run.measured.throughput:.2f}" if run.measured else "-",
                evidence or _source(result, run) or "-",
            ],
        )


def _source(result: Result, run: Run) -> str:
    """The document or the log that its speed is from; empty where it is from a trace."""
    log = run.log
    if result.published is not None:
        return f"printed in {result.published.document.name}{f', of {log.path.name}' if log else ''}"
    return "" if log is None else f"{log.path.name}: {log.window}"


def left_out_section(summary: Summary) -> Section | None:
    """What was measured, and is in the summary of the terminal only; None if nothing is."""
    lines = []
    if any(result.run.epochs or result.run.target_accuracy for result in summary.results):
        lines.append("times to train, which rankwise summarize prints")
    if summary.benchmarks:
        lines.append("what benchmarks measured, which rankwise summarize prints")
    return Section(id="left-out", title="Not on this page", blocks=[Listing(title="", lines=lines)]) if lines else None


# Published values beside those measured here.


def published_section(summary: Summary) -> Section | None:
    """What the published values are, and a chart of them; None without any."""
    if summary.against is None:
        return None
    about = list(against_lines(summary.against, summary.results, labels(summary.results)))
    listing = Listing(title="Published values, beside the points in the table above", lines=about)
    return Section(id="published", title="Published values", blocks=[listing, *_ratios(summary)])


def _ratios(summary: Summary) -> Iterator[Chart]:
    """Own speeds and the published ones by devices, where any point has one; two lines for each setting."""
    against = summary.against
    beside = {
        id(result): published.speed
        for result in summary.results
        if against and (published := against.beside(result)) and published.speed and result.median_speed is not None
    }
    settings, _ = chosen_settings([result for result in summary.results if id(result) in beside], None)
    if not are_drawn(settings):
        return
    ratios, series = [], []
    for name, setting in settings:
        of = f"{name}, " if len(settings) > 1 else ""
        here = series_of(f"{of}here", setting, "speed")
        points = [(result, beside[id(result)]) for result in by_devices(setting)]
        series += [here, Line(name=f"{of}published", x=here.x, y=[speed for _, speed in points])]
        ratios += [
            f"{of}{result.requested.case} runs at {100 * (result.median_speed or 0) / speed:.3g} % of the published"
            for result, speed in points
        ]
    cases = cases_of([result for _, setting in settings for result in setting])
    yield Chart(
        id="chart-against", title="Measured here and published (samples/s)", text=f"{'; '.join(ratios)}.",
        figure=Lines(series=series, x_title="devices", categories=cases, log_y=True),
    )  # fmt: skip


def build_page(
    summary: Summary,
    source: str,
    progress: Callable[[Sequence[Result]], Iterable[Result]] | None = None,
    forecasts: Forecasts | None = None,
) -> HtmlPage:
    """The page of a summary with its ledgers, and with forecasts where requested; `source` says what it was made of.
    Reads the traces once more."""
    point = verdict_point(summary)
    sections = [
        scaling_section(summary, point, forecasts),
        ledger_section(summary, point),
        warnings_section(summary),
        forecasts.section() if forecasts else None,
        points_section(summary, point, progress),
        published_section(summary),
        measured_section(summary),
        outcomes_section(summary),
        left_out_section(summary),
    ]
    return HtmlPage(
        title=title(summary),
        subtitle=subtitle(summary),
        source=source,
        command="rankwise report",
        verdict=verdict(summary),
        sections=[section for section in sections if section is not None],
    )


def title(summary: Summary) -> str:
    """`Scaling of torch-ddp resnet50, 1n1g to 4n1g`, `Speed of … on 1n2g`; of several settings their number."""
    settings = by_setting(summary.results)
    if not settings:
        return "Scaling: nothing was measured"
    names = list(dict.fromkeys(setting_names([setting[0] for setting in settings.values()])))
    of = names[0] if len(names) == 1 else f"{len(settings)} settings"
    cases = list(dict.fromkeys(result.requested.case for result in by_devices(summary.results)))
    return f"Speed of {of} on {cases[0]}" if len(cases) == 1 else f"Scaling of {of}, {cases[0]} to {cases[-1]}"
