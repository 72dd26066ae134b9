"""Speeds by node and drift, as text and Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from hpc.system.text import plural
from parse.report.nodes import NodeSpeed, PerNode, drifts, per_node
from parse.report.summary import Summary
from parse.text import Page, aligned, markdown_list, markdown_table, markdown_text, shortened, with_units, wrapped

SLOWEST, FASTEST = 12, 4
"""Of more nodes than these together, so many are shown of each end."""
NAMED = 5
"""As many nodes that differ are named, the worst first."""
HEADS = (("node", ""), ("runs", ""), ("apart", "%"))
NAME_SHARE = 0.6
"""Of a line, the name of a node takes this share at most."""


def nodes_text(summary: Summary, page: Page) -> list[str]:
    """A table for each site whose nodes can be told apart, and a line for the course of each job with nested runs."""
    lines: list[str] = []
    for site in per_node(summary.results):
        rows, left_out = _rows(site)
        short = shortened([node for node, *_ in rows], int(page.width * NAME_SHARE))
        rows = [[short[node], *cells] for node, *cells in rows]
        lines += [*([""] if lines else []), *wrapped([_title(site)], page.width)]
        lines += aligned([*zip(*HEADS, strict=True), *rows])
        lines += wrapped([left_out] if left_out else [], page.width)
    return lines + wrapped(_courses(summary), page.width)


def nodes_markdown(summary: Summary) -> list[str]:
    """The same as paragraphs, tables and a list."""
    parts = []
    for site in per_node(summary.results):
        rows, left_out = _rows(site)
        parts += [markdown_text(_title(site))]
        parts += [markdown_table(with_units(HEADS), rows)]
        parts += [markdown_text(left_out)] if left_out else []
    return [*parts, markdown_list(_courses(summary))]


def nodes_alarms(summary: Summary) -> list[str]:
    """What is wrong with nodes and with the course of jobs, a line each."""
    alarms = []
    for site in per_node(summary.results):
        alarms += [f"nodes of {site.site}: {alarm}" for alarm in site.alarms[:NAMED]]
        if len(site.alarms) > NAMED:
            alarms.append(f"nodes of {site.site}: {len(site.alarms) - NAMED} more differ; --format json names them all")
    return [*alarms, *(drift.alarm for drift in drifts(summary.results) if drift.alarm)]


def _title(site: PerNode) -> str:
    scatter = site.missing if site.scatter is None else f"runs on one node scatter by {site.scatter:.2%}"
    runs = f"one-node runs of {plural(site.points, 'point')}"
    return f"speed by node of {site.site}: {runs}, against the median node; {scatter}"


def _rows(site: PerNode) -> tuple[list[list[str]], str]:
    """A row for each node shown, and a line for those that are not."""
    shown: Sequence[NodeSpeed] = site.nodes
    hidden = shown[SLOWEST:-FASTEST] if len(shown) > SLOWEST + FASTEST else ()
    left_out = ""
    if hidden:
        left_out = f"and {len(hidden)} nodes between {hidden[0].relative:+.2%} and {hidden[-1].relative:+.2%}"
    rows = [[node.node, str(node.runs), f"{node.relative * 100:+.2f}"] for node in shown if node not in hidden]
    return rows, left_out


def _courses(summary: Summary) -> list[str]:
    nested = any(result.run.placement == "nested" for result in summary.results)
    return [
        f"job {drift.job}: {drift.runs} runs in {drift.minutes:.1f} min; from the first to the last, speeds change by "
        f"{drift.change:+.1%} (± {drift.margin:.1%})"
        for drift in drifts(summary.results)
        if nested and not drift.alarm
    ]
