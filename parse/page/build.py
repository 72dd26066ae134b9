"""From a summary to the page: all sections in their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpc.model.spec import USUAL
from hpc.system.text import capitalized, first_of, grouped, inflect, natural, plural
from parse.ledger.types import Ledger, WhatIf
from parse.page.figures import (
    Axes,
    Chart,
    HtmlPage,
    Line,
    Listing,
    PageBlock,
    Panel,
    Paragraph,
    Section,
    Table,
    lines,
    stacked,
)
from parse.page.points import points_section
from parse.page.scaling import (
    are_drawn,
    by_devices,
    cases_of,
    chosen_settings,
    headline,
    scaling_section,
    series_of,
    verdict,
    warnings_section,
)
from parse.report.against import against_lines
from parse.report.costs import time_tables
from parse.report.ledger import NOTHING, about_terms, dimension_tables, term_columns, term_table
from parse.report.notices import setting_names
from parse.report.summary import Summary, differences, labels, named_ledgers, provenance, shared
from parse.runs.result import Result, Run, by_setting
from parse.runs.summary_file import MACHINE
from parse.say.numbers import Figures, level_of
from parse.say.paragraph import sentence
from parse.stats import Mean

if TYPE_CHECKING:
    from parse.page.forecast import Forecasts

# Where the time of a step goes: the terms as stacked bars, what is lost, what changes would be worth.

MAX_BARS = 40
"""Points in one chart; the table has all."""
BAR_PX = 34


def ledger_section(summary: Summary) -> Section:
    """Charts, table and a sentence for each point; why there is none where no run has a trace."""
    section_id, title = "ledger", "Where the time of a step goes"
    named = named_ledgers(summary)
    if not named:
        return Section(id=section_id, title=title, blocks=[Paragraph(text=f"{capitalized(NOTHING)}.")])
    blocks: list[PageBlock] = [*_charts(named)]
    if errors := list(about_terms(named)):
        blocks.append(Listing(title="About the terms", lines=errors, warnings=True))
    blocks.append(Listing(title="In words", lines=[sentence(ledger, name) for name, ledger in named]))
    terms = term_table(summary, named)
    heads = [(name or "of", unit) for name, unit in terms.heads]
    further: list[PageBlock] = [
        Table.of(replace(terms, heads=heads), "terms", capitalized(terms.caption)),
        *_loss_charts(named[:MAX_BARS]),
    ]
    further += (Table.of(table, "dimensions", capitalized(table.caption)) for table in dimension_tables(named))
    further += _what_ifs(named)
    further += (Table.of(table, "whole-time", capitalized(table.caption)) for table in time_tables(summary))
    panel = Panel(id="ledger-figures", title="All figures: terms, losses, what changes would be worth", blocks=further)
    return Section(id=section_id, title=title, blocks=blocks, panels=[panel])


def _charts(named: Sequence[tuple[str, Ledger]]) -> Iterator[PageBlock]:
    shown = named[:MAX_BARS]
    if len(shown) < len(named):
        yield Paragraph(text=f"The charts have the first {len(shown)} of {len(named)} points; the table has all.")
    columns = term_columns([ledger for _, ledger in shown])
    names = [name for name, _ in shown]
    ledgers = [ledger for _, ledger in shown]
    write = Figures(ledgers)
    if len(shown) < 2:
        return  # the table and the words have what a single bar says
    means = {name: [_term(ledger, name, "mean") for ledger in ledgers] for name in columns}
    height = 130 + BAR_PX * len(names)
    yield Chart(
        id="chart-terms", title="A step, by what it is spent on (ms)", height_px=height,
        text="; ".join(f"{name}: {_described(ledger, write, 'mean')}" for name, ledger in shown),
        figure=stacked(
            names, {name: [_value(mean) for mean in of] for name, of in means.items()},
            x_title="ms per step, mean over ranks and steps",
            shown=_shown(write, means),
        ),
    )  # fmt: skip


def _shown(write: Figures, means: Mapping[str, Sequence[Mean | None]]) -> dict[str, list[str]]:
    """What a bar says when it is pointed at, beside its length: by term the interval of each point."""
    return {
        name: [f" ms {write.interval(mean)} ({level_of(mean)})" if mean and mean.shown else "" for mean in of]
        for name, of in means.items()
    }


def _loss_charts(shown: Sequence[tuple[str, Ledger]]) -> Iterator[PageBlock]:
    """A chart for each base that several points lose against."""
    ledgers = [ledger for _, ledger in shown]
    columns, write = term_columns(ledgers), Figures(ledgers)
    losing: dict[str, list[tuple[str, Ledger]]] = grouped(
        (ledger.result.base_case, (name, ledger)) for name, ledger in shown if ledger.loss is not None
    )
    several = {base: of_base for base, of_base in losing.items() if len(of_base) > 1}
    for number, (base, of_base) in enumerate(several.items()):
        losses = {name: [_term(ledger, name, "loss") for _, ledger in of_base] for name in columns}
        yield Chart(
            id=f"chart-loss{f'-{number}' if number else ''}", height_px=130 + BAR_PX * len(of_base),
            title=f"What a step loses against {base} (ms)",
            text="; ".join(f"{name}: {_described(ledger, write, 'loss')}" for name, ledger in of_base),
            figure=stacked(
                [name for name, _ in of_base], {name: [_value(mean) for mean in of] for name, of in losses.items()},
                x_title=f"ms per step more than on {base}",
                shown=_shown(write, losses),
            ),
        )  # fmt: skip


def _term(ledger: Ledger, name: str, which: str) -> Mean | None:
    """The `mean` or the `loss` of the term of that name; None where the ledger has no such term."""
    return next((getattr(term, which) for term in ledger.terms if term.name == name), None)


def _value(mean: Mean | None) -> float | None:
    return None if mean is None else mean.value


def _described(ledger: Ledger, write: Figures, which: str) -> str:
    parts = [(term.name, getattr(term, which)) for term in ledger.terms]
    return ", ".join(f"{name} {write.bare(mean.value)} ms" for name, mean in parts if mean is not None)


def _what_ifs(named: Sequence[tuple[str, Ledger]]) -> Iterator[Table]:
    """What each change would be worth, where that was read: for the point of the verdict."""
    by_unit: dict[str, list[list[str]]] = {}
    for name, ledger in named:
        by_unit.setdefault(ledger.result.unit, []).extend(
            [
                name,
                what_if.name,
                f"{what_if.speed:.2f}",
                _interval(what_if),
                f"{what_if.gain * 100:+.1f}",
                _possible(what_if),
            ]
            for what_if in ledger.what_ifs or ()
        )
    for number, (unit, rows) in enumerate((unit, rows) for unit, rows in by_unit.items() if rows):
        yield Table(
            id=f"what-if-{number}" if number else "what-if",
            caption="What changes would be worth: the recorded steps replayed without one cause each",
            heads=(
                ("point", ""), ("change", ""), ("speed", unit), ("interval", unit), ("gain", "%"),
                ("if ranks share cores", unit),
            ),
            rows=rows, label_columns=2,
        )  # fmt: skip


def _possible(what_if: WhatIf) -> str:
    """What the speed would be where ranks share cores; `-` where they do not."""
    its = what_if.possible
    return "-" if its is None else f"{its.low:.2f} to {its.high:.2f}"


def _interval(what_if: WhatIf) -> str:
    """The interval of its speed."""
    its = what_if.interval
    return "-" if its is None else f"[{its.low:.2f}, {its.high:.2f}]"


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


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A fact of the environment with its values on the `runs` in words, `all` or their names.

    `differs`: other runs have other values, or the ranks of these have several.
    """

    name: str
    values: str
    runs: str
    differs: bool


def environment(summary: Summary) -> list[Fact]:
    """Each fact and each of its values, over the runs that recorded any; the device first."""
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
    rows = [
        Fact(
            name=fact,
            values=", ".join(values),
            runs=ALL if len(of) == len(named) else _runs_text(of),
            differs=len(by_value) > 1 or len(values) > 1,
        )
        for fact, by_value in facts.items()
        for values, of in by_value.items()
    ]
    on_hosts = [(name, run.machine.hosts) for name, run in named if run.machine and run.machine.hosts]
    if hosts := sorted({host for _, its_hosts in on_hosts for host in its_hosts}, key=natural):
        runs = ALL if len(on_hosts) == len(named) else _runs_text([name for name, _ in on_hosts])
        rows.append(Fact(name=NODES, values=first_of(hosts, HOSTS_NAMED), runs=runs, differs=False))
    return rows


def environment_table(summary: Summary) -> Iterator[Table]:
    """A row for each fact and each of its values; marked where not all runs have the same."""
    facts = environment(summary)
    if facts:
        yield Table(
            id="environment", caption="Environment; marked: what differs between runs or ranks", label_columns=3,
            heads=(("fact", ""), ("value", ""), ("runs", "")),
            rows=[[fact.name, fact.values, fact.runs] for fact in facts],
            marked=frozenset(at for at, fact in enumerate(facts) if fact.differs),
        )  # fmt: skip


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
"""Runs in the table; those that did not end ok come first."""


def outcomes_section(summary: Summary) -> Section:
    """A count of the outcomes, a row per run, and what was not read."""
    rows = [(not run.measured, row) for result, name in _named(summary) for run, row in _rows(result, name)]
    blocks, panels = list[PageBlock](), list[Panel]()
    if rows:
        counts = Counter(row[2] for _, row in rows)
        listed = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
        blocks.append(Paragraph(text=f"{plural(len(rows), 'run')}: {listed}."))
        ordered = [row for _, row in sorted(rows, key=lambda pair: not pair[0])]
        left_out = f"; {MAX_ROWS} of {len(ordered)} runs" if len(ordered) > MAX_ROWS else ""
        table = Table(
            id="runs-table", caption=f"Runs, those that did not end ok first{left_out}", label_columns=3,
            heads=(
                ("point", ""), ("run", ""), ("outcome", ""), ("attempts", ""), ("speed", "per s"), ("evidence", ""),
            ),
            rows=ordered[:MAX_ROWS], marked=frozenset(range(min(MAX_ROWS, sum(bad for bad, _ in rows)))),
        )  # fmt: skip
        panels.append(Panel(id="runs-rows", title="All runs", blocks=[table], is_open=any(bad for bad, _ in rows)))
    else:
        blocks.append(Paragraph(text="No run is here."))
    if summary.refusals:
        blocks.append(Listing(title="Files that were not read", lines=summary.refusals, warnings=True))
    return Section(id="outcomes", title="What became of the runs", blocks=blocks, panels=panels)


def _named(summary: Summary) -> Iterator[tuple[Result, str]]:
    yield from zip(summary.results, labels(summary.results), strict=True)
    for result in summary.diagnostics:
        yield result, f"{result.requested.case} ({result.run.diagnostic})"


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
    words, series = [], []
    for name, setting in settings:
        of = f"{name}, " if len(settings) > 1 else ""
        here = series_of(f"{of}here", setting, "speed")
        published_speeds = [beside[id(result)] for result in by_devices(setting)]
        series += [here, Line(name=f"{of}published", x=here.x, y=published_speeds)]
        words += [
            f"{of}{result.requested.case} {result.median_speed:.4g} against {beside[id(result)]:.4g}"
            for result in by_devices(setting)
        ]
    cases = cases_of([result for _, setting in settings for result in setting])
    yield Chart(
        id="chart-against", title="Measured here and published (samples/s)",
        text=f"Measured here against published: {'; '.join(words)}",
        figure=lines(
            series, Axes(x_title="devices", y_title="samples/s", categories=cases, log_y=True),
            hover="%{x} devices: %{y}",
        ),
    )  # fmt: skip


def build_page(
    summary: Summary,
    source: str,
    progress: Callable[[Sequence[Result]], Iterable[Result]] | None = None,
    forecasts: Forecasts | None = None,
) -> HtmlPage:
    """The page of a summary with its ledgers, and with forecasts where requested; `source` says what it was made of.
    Reads the traces once more."""
    point = headline(summary)
    sections = [
        scaling_section(summary, point, forecasts),
        warnings_section(summary),
        forecasts.section() if forecasts else None,
        ledger_section(summary),
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
    """`Scaling of torch-ddp resnet50`; of several settings their number."""
    settings = by_setting(summary.results)
    if not settings:
        return "Scaling: nothing was measured"
    names = list(dict.fromkeys(setting_names([setting[0] for setting in settings.values()])))
    return f"Scaling of {names[0] if len(names) == 1 else f'{len(settings)} settings'}"
