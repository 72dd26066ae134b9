"""Nodes and the course of jobs as text: tables, and the sentences of their alarms."""

from __future__ import annotations

from collections.abc import Sequence

from hpc.system.text import plural
from parse.alarms.nodes import CONFIDENCE, Drift, NodeAlarm, NodeSpeed, PerNode, drifts, per_node
from parse.report.summary import Summary
from parse.text import Head, Page, TableData, TextBlock, shortened

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
    for site in per_node(summary.results):
        rows, left_out = _rows(site)
        if page is not None:
            short = shortened([node for node, *_ in rows], int(page.width * NAME_SHARE))
            rows = [[short[node], *cells] for node, *cells in rows]
        blocks += [""] if blocks else []
        blocks += [_title(site), TableData(heads=HEADS, rows=rows), *([left_out] if left_out else [])]
    return [*blocks, _courses(summary)]


def nodes_tables(summary: Summary) -> list[tuple[str, Sequence[Head], list[list[str]]]]:
    """Title, heads and rows for each site whose nodes are distinguishable."""
    tables: list[tuple[str, Sequence[Head], list[list[str]]]] = []
    for site in per_node(summary.results):
        rows, left_out = _rows(site)
        tables.append((f"{_title(site)}{f'; {left_out}' if left_out else ''}", HEADS, rows))
    return tables


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


def _rows(site: PerNode) -> tuple[list[list[str]], str]:
    """A row for each node shown, and a line for those that are not."""
    shown: Sequence[NodeSpeed] = site.nodes
    omitted = shown[SLOWEST:-FASTEST] if len(shown) > SLOWEST + FASTEST else ()
    left_out = ""
    if omitted:
        left_out = f"and {len(omitted)} nodes between {omitted[0].relative:+.2%} and {omitted[-1].relative:+.2%}"
    rows = [[node.node, str(node.runs), f"{node.relative * 100:+.2f}"] for node in shown if node not in omitted]
    return rows, left_out


def _courses(summary: Summary) -> list[str]:
    nested = any(result.run.placement == "nested" for result in summary.results)
    return [
        f"job {drift.name}: {drift.runs} runs in {drift.minutes:.1f} min; from the first to the last, speeds change by "
        f"{drift.change:+.1%} (± {drift.margin:.1%} at {CONFIDENCE:.0%})"
        for drift in drifts(summary.results)
        if nested and not drift.is_beyond
    ]
