"""Sections beside the table of points: speeds by node, the values of find-max."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpc.model.outcome import Outcome
from hpc.model.spec import BATCH_SIZE, FIND_MAX
from hpc.system.text import grouped, plural
from parse.alarms.nodes import CONFIDENCE, NodeAlarm, NodeSpeed, PerNode, per_node
from parse.report.summary import Summary, requested_values, telling
from parse.runs.result import Result
from parse.text import (
    Page,
    TableData,
    TextBlock,
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


def nodes_blocks(summary: Summary, page: Page | None = None) -> list[TextBlock]:
    """A table for each site whose nodes are distinguishable; names fit the page where there is one."""
    blocks: list[TextBlock] = []
    for table, left_out in nodes_tables(summary):
        blocks += ["", table.shortened(0, int(page.width * NAME_SHARE)) if page else table, *left_out]
    return blocks[1:]


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
    """Alarms about nodes, a line each."""
    alarms = []
    for site in per_node(summary.results):
        alarms += [f"nodes of {site.name}: {node_alarm_text(alarm)}" for alarm in site.alarms[:NAMED]]
        if len(site.alarms) > NAMED:
            alarms.append(f"nodes of {site.name}: {len(site.alarms) - NAMED} more differ; --format json names them all")
    return alarms


def _title(site: PerNode) -> str:
    scatter = missing_text(site) if site.scatter is None else f"runs on one node scatter by {site.scatter:.2%}"
    runs = f"one-node runs of {plural(site.points, 'point')}"
    return f"speed by node of {site.name}: {runs}, against the median node; {scatter}"


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
