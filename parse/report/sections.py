"""Speeds by node, beside the table of points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpc.system.text import plural
from parse.alarms.nodes import CONFIDENCE, NodeAlarm, NodeSpeed, PerNode, per_node
from parse.report.summary import Summary
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
