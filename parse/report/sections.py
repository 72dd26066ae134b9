"""Sections beside the table of points: speeds by node, bandwidths of nccl-tests, the values of find-max."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpc.model.outcome import Outcome
from hpc.model.spec import BATCH_SIZE, FIND_MAX
from hpc.system.text import grouped, plural
from parse.alarms.nodes import CONFIDENCE, Drift, NodeAlarm, NodeSpeed, PerNode, drifts, per_node
from parse.logs.nccl_tests import NcclTest
from parse.report.summary import Summary, requested_values, telling
from parse.runs.result import Result
from parse.text import (
    Page,
    TableData,
    TextBlock,
    distinct,
    number,
)

MISSING = "no node has two runs of one point: node and run variation cannot be separated; increase --repeats"
SLOWEST, FASTEST = 12, 4
"""Nodes shown of each end, where there are more than both together."""
NAMED = 5
"""Nodes that differ and are named, at most."""
HEADS = (("node", ""), ("runs", ""), ("apart", "%"))
NAME_SHARE = 0.6
"""Share of a line that a node's name takes, at most."""


def missing_text(site: PerNode) -> str:
    """The reason where there is no scatter, else nothing."""
    return MISSING if site.scatter is None else ""


def node_alarm_text(alarm: NodeAlarm) -> str:
    direction = "slower" if alarm.relative < 0 else "faster"
    return (
        f"{alarm.node} is {abs(alarm.relative):.1%} {direction} than the other nodes; "
        f"runs on one node leave {alarm.margin:.1%} open at {CONFIDENCE:.0%} ({alarm.runs} runs on it, "
        f"{alarm.other_runs} on others)"
    )


def drift_alarm_text(drift: Drift) -> str:
    """The alarm where the change is beyond the margin, else nothing."""
    if not drift.is_beyond:
        return ""
    return (
        f"job {drift.name}: speeds change by {drift.change:+.1%} (± {drift.margin:.1%} at {CONFIDENCE:.0%}) from its "
        f"first run to its last, {drift.minutes:.1f} min later: what ran early and what ran late do not compare"
    )


def nodes_blocks(summary: Summary, page: Page | None = None) -> list[TextBlock]:
    """A table for each site whose nodes are distinguishable, and a line for the course of each job with nested runs;
    names fit the page where there is one."""
    blocks: list[TextBlock] = []
    for table, left_out in nodes_tables(summary):
        blocks += ["", table.shortened(0, int(page.width * NAME_SHARE)) if page else table, *left_out]
    return [*blocks[1:], _courses(summary)]


def nodes_tables(summary: Summary) -> Iterator[tuple[TableData, list[str]]]:
    """A table for each site whose nodes are distinguishable, and a line for the nodes that it does not show."""
    for site in per_node(summary.results):
        shown: Sequence[NodeSpeed] = site.nodes
        omitted = shown[SLOWEST:-FASTEST] if len(shown) > SLOWEST + FASTEST else ()
        rows = [[node.node, str(node.runs), f"{node.relative * 100:+.2f}"] for node in shown if node not in omitted]
        between = [f"and {len(omitted)} nodes between {omitted[0].relative:+.2%} and {omitted[-1].relative:+.2%}"
                   for _ in omitted[:1]]  # fmt: skip
        yield TableData(caption=_title(site), heads=HEADS, rows=rows), between


def nodes_alarms(summary: Summary) -> list[str]:
    """Alarms about nodes and about the course of jobs, a line each."""
    alarms = []
    for site in per_node(summary.results):
        alarms += [f"nodes of {site.name}: {node_alarm_text(alarm)}" for alarm in site.alarms[:NAMED]]
        if len(site.alarms) > NAMED:
            alarms.append(f"nodes of {site.name}: {len(site.alarms) - NAMED} more differ; --format json names them all")
    return [*alarms, *filter(None, map(drift_alarm_text, drifts(summary.results)))]


def _title(site: PerNode) -> str:
    scatter = missing_text(site) if site.scatter is None else f"runs on one node scatter by {site.scatter:.2%}"
    runs = f"one-node runs of {plural(site.points, 'point')}"
    return f"speed by node of {site.name}: {runs}, against the median node; {scatter}"


def _courses(summary: Summary) -> list[str]:
    nested = any(result.run.placement == "nested" for result in summary.results)
    return [
        f"job {drift.name}: {drift.runs} runs in {drift.minutes:.1f} min; from the first to the last, speeds change by "
        f"{drift.change:+.1%} (± {drift.margin:.1%} at {CONFIDENCE:.0%})"
        for drift in drifts(summary.results)
        if nested and not drift.is_beyond
    ]


# Bandwidths that nccl-tests measured.

UNIT = "GB/s"


def bandwidths_blocks(summary: Summary) -> list[TextBlock]:
    """A table for each operation, a row per size and a column per test; empty where nothing was tested."""
    blocks: list[TextBlock] = []
    for operation, tests in _by_operation(summary.nccl_tests).items():
        heads, rows = _table(tests)
        blocks += [""] if blocks else []
        blocks += [_operation_title(operation, tests), _legend(tests)]
        blocks += [TableData(heads=heads, rows=rows, label_columns=0, keys=1)]
    return blocks


def problems(test: NcclTest) -> list[str]:
    """What is wrong with a test; wrong results first."""
    what = f"{test.operation or 'a collective'} of nccl-tests on {test.case}"
    texts = []
    if test.wrong:
        texts.append(f"{what}: {plural(test.wrong, 'wrong element')}: its results are wrong, whatever its bandwidth")
    if test.cpu_time:
        texts.append(f"{what}: its times are those of the launches (-C), which give no bandwidth")
    elif not test.rows:
        texts.append(f"{what}: it ended before its first size")
    if test.average is None:
        texts.append(f"{what}: it did not come to its end, sizes may be missing")
    if test.groups > 1:
        texts.append(f"{what}: {test.groups} groups of devices reduced at once, the bandwidth is that of one")
    return texts


def _by_operation(tests: Sequence[NcclTest]) -> dict[str, list[NcclTest]]:
    """The tests that have a bandwidth, by operation, on fewer devices first."""
    ordered = sorted(tests, key=lambda test: (test.devices or 0, test.nodes or 0))
    return grouped((test.operation, test) for test in ordered if test.rows)


def _operation_title(operation: str, tests: Sequence[NcclTest]) -> str:
    elsewhere = any(row.in_place is None and row.timing for test in tests for row in test.rows)
    place = "in place, where a test has that, else out of place" if elsewhere else "in place"
    return f"bus bandwidth of {operation or 'an unnamed collective'} by nccl-tests, {place}"


def _names(tests: Sequence[NcclTest]) -> list[str]:
    """The cases; of several tests of one case with a number."""
    return distinct((test.case for test in tests), "{} [{}]")


def _legend(tests: Sequence[NcclTest]) -> list[str]:
    """A line per test: its file, devices, NCCL, and the average over sizes that it prints."""
    lines = []
    for name, test in zip(_names(tests), tests, strict=True):
        facts = [test.file, *test.models]
        library = "RCCL" if any(model.startswith("AMD ") for model in test.models) else "NCCL"
        facts += [f"{library} {test.nccl}"] if test.nccl else []
        facts += ["results not checked"] if test.wrong is None else []
        facts += ["bus bandwidth is 0 on one device, by definition"] if test.devices == 1 else []
        facts += [] if test.average is None else [f"average {test.average:g} {UNIT}"]
        lines.append(f"{name}: {', '.join(facts)}")
    return lines


def _table(tests: Sequence[NcclTest]) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """Heads as (name, unit), and a row per size; the mean of a size that a test has several times."""
    columns = [_busbw(test) for test in tests]
    sizes = sorted({size for column in columns for size in column})
    heads = [("size", "B"), *((name, UNIT) for name in _names(tests))]
    return heads, [
        [str(size), *(number(column[size]) if size in column else "" for column in columns)] for size in sizes
    ]


def _busbw(test: NcclTest) -> dict[int, float]:
    by_size = grouped((row.bytes, row.timing.busbw) for row in test.rows if row.timing is not None)
    return {size: sum(values) / len(values) for size, values in by_size.items()}


# The largest values that hpc.sweep find-max knows to fit.

TITLE = "largest values that fit into the memory (hpc.sweep find-max)"
_LARGEST_HEADS = [("fits", ""), ("does not", ""), ("tries", "")]
OPTION = "option."


@dataclass(frozen=True, kw_only=True)
class Largest:
    """The tries of one point. `fits` is the largest value that ended ok, `too_large` the smallest that ended with oom;
    None where there is none. `others` counts the tries that ended otherwise, by outcome."""

    case: str
    sought: str
    settings: dict[str, str]
    fits: int | None
    too_large: int | None
    tries: int
    others: dict[str, int]

    @property
    def problem(self) -> str:
        """Why the row is not to be trusted; empty where nothing speaks against it."""
        others = ", ".join(f"{count} {outcome}" for outcome, count in self.others.items())
        if self.fits is not None and self.too_large is not None and self.fits > self.too_large:
            return (
                f"{self.too_large} does not fit and {self.fits} does: what fits is not only a matter of {self.sought}"
            )
        return f"tries that are no answer: {others}" if others else ""


def largest(diagnostics: Sequence[Result]) -> tuple[Largest, ...]:
    """A row for each point that was searched, in their order."""
    tries = [result for result in diagnostics if result.run.diagnostic == FIND_MAX]
    return tuple(map(_largest, grouped((_without_value(result), result) for result in tries).values()))


def _without_value(result: Result) -> str:
    """Equal for the tries of one point."""
    run, sought = result.run, result.run.search
    options = {name: value for name, value in run.options.items() if name != sought}
    size = 1 if sought == BATCH_SIZE else run.batch_size
    return dataclasses.replace(run, options=options, batch_size=size, repeat=1).key(result.requested.distinction)


def _value(result: Result) -> int:
    run = result.run
    return (run.batch_size or 0) if run.search == BATCH_SIZE else int(run.options[str(run.search)])


def _largest(tries: Sequence[Result]) -> Largest:
    ended = [(_value(result), run.outcome_text) for result in tries for run in result.runs]
    first = tries[0]
    sought = str(first.run.search)
    value_name = "batch_size" if sought == BATCH_SIZE else f"{OPTION}{sought}"
    return Largest(
        case=first.requested.case,
        sought=sought,
        settings={name: value for name, value in requested_values(first).items() if name not in (value_name, "search")},
        fits=max((value for value, outcome in ended if outcome == Outcome.OK), default=None),
        too_large=min((value for value, outcome in ended if outcome == Outcome.OOM), default=None),
        tries=len(ended),
        others=dict(Counter(outcome for _, outcome in ended if outcome not in (Outcome.OK, Outcome.OOM))),
    )


def _rows(searches: Sequence[Largest]) -> list[list[str]]:
    names = telling([row.settings for row in searches])
    return [
        [
            row.case, row.sought, *(row.settings.get(name, "") for name in names),
            *("-" if value is None else str(value) for value in (row.fits, row.too_large)), str(row.tries),
        ]
        for row in searches
    ]  # fmt: skip


def _shared(searches: Sequence[Largest]) -> list[str]:
    """A line of what else decides how much fits and is the same for all; none where the points differ in all of it."""
    names = [
        name
        for name in dict.fromkeys(name for row in searches for name in row.settings)
        if name in ("batch_size", "precision", "on") or name.startswith(OPTION)
    ]
    values = {name: {row.settings.get(name, "") for row in searches} for name in names}
    same = [f"{name} {value.pop()}" for name, value in values.items() if len(value) == 1]
    return [", ".join(same)] if same else []


def _heads(searches: Sequence[Largest]) -> list[tuple[str, str]]:
    return [
        ("case", ""),
        ("of", ""),
        *((name, "") for name in telling([row.settings for row in searches])),
        *_LARGEST_HEADS,
    ]


def _problems(searches: Sequence[Largest]) -> list[str]:
    folders = [row.settings.get("folder") for row in searches]
    return [
        f"{row.case}, {row.sought}{f', {folder}' if folder else ''}: {row.problem}"
        for row, folder in zip(searches, folders, strict=True)
        if row.problem
    ]


def largest_blocks(summary: Summary) -> list[TextBlock]:
    """What is shown of searches; empty where nothing was sought."""
    searches = largest(summary.diagnostics)
    if not searches:
        return []
    heads = _heads(searches)
    table = TableData(heads=heads, rows=_rows(searches), label_columns=len(heads) - len(_LARGEST_HEADS))
    return [TITLE, *_shared(searches), table, _problems(searches)]
