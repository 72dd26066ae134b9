"""Speeds by node, from runs of one point on different nodes, and their tables."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpc.system.text import natural, plural
from parse import stats
from parse.runs.result import Result
from parse.text import TableData

CONFIDENCE = 0.95
"""Confidence of all alarms on the nodes of a site together."""
ROUNDING = 1e-9
"""Smaller differences are none."""

Logs = Mapping[str, Sequence[float]]
"""Logarithms of the speeds of one point, by the node that its runs were on."""


@dataclass(frozen=True, kw_only=True)
class NodeSpeed:
    """The speed of one-node runs on a node, as a share of the median node's speed, less one; and their number."""

    node: str
    runs: int
    relative: float


@dataclass(frozen=True, kw_only=True)
class NodeAlarm:
    """A node that differs from the median of the others by more than `margin`, both as shares of their speed."""

    node: str
    relative: float
    margin: float
    runs: int
    other_runs: int


@dataclass(frozen=True, kw_only=True)
class PerNode:
    """The nodes of one site, slowest first, by the one-node runs of `points` points.

    `scatter` is the standard deviation of runs of one point on one node, as a share of their speed; None where no node
    has two. `alarms` has the nodes that differ from the others by more than that leaves open, the worst first. `folder`
    is that of its measurement, None if there is only one.
    """

    site: str
    folder: str | None
    points: int
    nodes: tuple[NodeSpeed, ...]
    scatter: float | None
    alarms: tuple[NodeAlarm, ...]

    @property
    def name(self) -> str:
        """Its site, and its folder if there are several measurements."""
        return f"{self.site} ({self.folder})" if self.folder else self.site


def _folder(result: Result) -> str | None:
    return result.requested.measurement.folder if result.requested.measurement else None


def per_node(results: Iterable[Result]) -> tuple[PerNode, ...]:
    """For each site and measurement the speeds of its nodes, where ok one-node runs of a point were on several."""
    sites: dict[tuple[str, str | None], list[Logs]] = defaultdict(list)
    for result in results:
        logs: dict[str, list[float]] = defaultdict(list)
        for run in result.ok if result.run.nodes == 1 else ():
            hosts = run.machine.hosts if run.machine else ()
            if len(hosts) == 1 and run.measured:
                logs[hosts[0]].append(math.log(run.measured.throughput))
        if len(logs) > 1:
            sites[result.run.site or "", _folder(result)].append(logs)
    return tuple(_site(site, folder, points) for (site, folder), points in sites.items())


def _site(site: str, folder: str | None, points: Sequence[Logs]) -> PerNode:
    """Each point is taken by itself against its median node; a node's effect is the mean over all runs on it."""
    apart: dict[str, list[float]] = defaultdict(list)
    for logs in points:
        centre = stats.median([stats.mean(of_node) for of_node in logs.values()])
        for node, of_node in logs.items():
            apart[node] += [value - centre for value in of_node]
    effects = {node: stats.mean(values) for node, values in apart.items()}
    runs = {node: len(values) for node, values in apart.items()}
    scatter = _scatter(points)
    return PerNode(
        site=site,
        folder=folder,
        points=len(points),
        nodes=tuple(
            NodeSpeed(node=node, runs=runs[node], relative=math.expm1(effects[node]))
            for node in sorted(effects, key=lambda node: (effects[node], natural(node)))
        ),
        scatter=scatter and scatter[0],
        alarms=tuple(_different(effects, runs, *scatter)) if scatter else (),
    )


def _scatter(points: Sequence[Logs]) -> tuple[float, int] | None:
    """The standard deviation of runs of one point on one node, over all of them, and its degrees of freedom."""
    groups = [of_node for logs in points for of_node in logs.values() if len(of_node) > 1]
    if not groups:
        return None
    free = sum(len(values) - 1 for values in groups)
    return math.sqrt(sum((value - stats.mean(values)) ** 2 for values in groups for value in values) / free), free


def _different(effects: Mapping[str, float], runs: Mapping[str, int], scatter: float, free: int) -> list[NodeAlarm]:
    """The nodes that differ from the median of the others by more than their runs' scatter leaves open, the worst
    first; each is left out before the next is looked for, so that it makes none of the healthy ones look odd.

    The margin is Student's t, shared out over all nodes (Bonferroni), times the standard error of the difference; a
    median of n > 2 means is π/2 times as uncertain as their mean at most.
    """
    students = stats.student(1 - (1 - CONFIDENCE) / len(effects), free)
    remaining, alarms = dict(effects), list[NodeAlarm]()
    while len(remaining) > 1:
        judged, others = [], len(remaining) - 1
        ordered, shares = sorted(remaining, key=remaining.__getitem__), sum(1 / runs[node] for node in remaining)
        for at, node in enumerate(ordered):
            factor = math.pi / 2 if others > 2 else 1.0
            its_median = factor * (shares - 1 / runs[node]) / others**2
            margin = students * scatter * math.sqrt(1 / runs[node] + its_median)
            apart = remaining[node] - stats.median([remaining[name] for name in (*ordered[:at], *ordered[at + 1 :])])
            judged.append((abs(apart) - margin, -apart, node, margin))
        beyond, slower, node, margin = max(judged)
        if beyond <= ROUNDING:
            break
        alarms.append(
            NodeAlarm(
                node=node, relative=math.expm1(-slower), margin=math.expm1(margin), runs=runs[node],
                other_runs=sum(runs.values()) - runs[node],
            )
        )  # fmt: skip
        del remaining[node]
    return alarms


# Speeds by node, in words and tables.

MISSING = "no node has two runs of one point: node and run variation cannot be separated; increase --repeats"
SLOWEST, FASTEST = 12, 4
"""Nodes shown of each end, where there are more than both together."""
NAMED = 5
"""Nodes that differ and are named, at most."""
HEADS = (("node", ""), ("runs", ""), ("apart", "%"))


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


def nodes_tables(results: Iterable[Result]) -> Iterator[tuple[TableData, list[str]]]:
    """A table for each site whose nodes are distinguishable, and a line for the nodes that it does not show."""
    for site in per_node(results):
        shown: Sequence[NodeSpeed] = site.nodes
        omitted = shown[SLOWEST:-FASTEST] if len(shown) > SLOWEST + FASTEST else ()
        rows = [[node.node, str(node.runs), f"{node.relative * 100:+.2f}"] for node in shown if node not in omitted]
        between = [f"and {len(omitted)} nodes between {omitted[0].relative:+.2%} and {omitted[-1].relative:+.2%}"
                   for _ in omitted[:1]]  # fmt: skip
        yield TableData(caption=_title(site), heads=HEADS, rows=rows), between


def nodes_alarms(results: Iterable[Result]) -> list[str]:
    """Alarms about nodes, a line each."""
    alarms = []
    for site in per_node(results):
        alarms += [f"nodes of {site.name}: {node_alarm_text(alarm)}" for alarm in site.alarms[:NAMED]]
        if len(site.alarms) > NAMED:
            alarms.append(f"nodes of {site.name}: {len(site.alarms) - NAMED} more differ; --format json names them all")
    return alarms


def _title(site: PerNode) -> str:
    scatter = missing_text(site) if site.scatter is None else f"runs on one node scatter by {site.scatter:.2%}"
    runs = f"one-node runs of {plural(site.points, 'point')}"
    return f"speed by node of {site.name}: {runs}, against the median node; {scatter}"
