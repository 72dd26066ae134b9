"""Alarms about nested runs: smaller cases must run on some of the nodes of larger ones, block by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hpc.model.findings import Figures
from hpc.system.groups import grouped
from hpc.system.text import plural
from parse.alarms.scaling import Neighbours
from parse.result import Result, by_setting


def not_nested(result: Result, neighbours: Neighbours) -> Iterator[Figures]:
    """A smaller case of the same block ran on a node that this one did not run on."""
    outside: list[Figures] = [
        {"run": repeat, "case": other.requested.case, "outside": sorted(smaller - nodes), "nodes": sorted(nodes)}
        for other, repeat, smaller, nodes in _pairs(result, neighbours.setting)
        if smaller - nodes
    ]
    if outside:
        yield {"outside": outside}


def other_nodes(result: Result, neighbours: Neighbours) -> Iterator[Figures]:
    """The blocks of the largest nested case ran on different nodes: in several jobs, or after a requeue."""
    largest = max(other.run.nodes or 0 for other in neighbours.setting)
    if result.run.placement != "nested" or (result.run.nodes or 0) < largest:
        return
    runs_by_nodes = grouped((" ".join(sorted(hosts)), repeat) for repeat, hosts in _hosts(result).items())
    if len(runs_by_nodes) > 1:
        yield {"runs": runs_by_nodes}


def nested_summary(results: Sequence[Result]) -> str:
    """Returns the line on nested points for the head of a summary; empty if there are none, or not all are nested."""
    nested = [result for result in results if result.run.placement == "nested"]
    if not nested or any(alarm.name == "not_nested" for result in nested for alarm in result.alarms):
        return ""
    settings = by_setting(nested)
    if any(result.run.nodes != 1 and result.ok and not _hosts(result) for result in nested):
        return "placement nested: the order of the runs was shuffled; their nodes have no names of their own"
    pairs = [pair for result in nested for pair in _pairs(result, settings[result.requested.setting])]
    if not pairs:
        return "placement nested: no block has two cases with known nodes, so nesting cannot be checked"
    hosts = {host for _, _, smaller, nodes in pairs for host in smaller | nodes}
    blocks = {repeat for _, repeat, _, _ in pairs}
    return (
        f"placement nested (same nodes): in {plural(len(blocks), 'block')} every smaller case ran on nodes of the "
        f"larger ones; {plural(len(hosts), 'node')} in all"
    )


def _pairs(result: Result, setting: Iterable[Result]) -> Iterator[tuple[Result, int, frozenset[str], frozenset[str]]]:
    """Yields each run of a smaller case in the same block: the case, the block, its nodes and those of `result`."""
    if result.run.placement != "nested":
        return
    size, hosts = (result.run.nodes or 0, result.run.devices), _hosts(result)
    for other in setting:
        if (other.run.nodes or 0, other.run.devices) < size:
            smaller = _hosts(other)
            yield from ((other, at, smaller[at], hosts[at]) for at in sorted(smaller.keys() & hosts.keys()))


def _hosts(result: Result) -> dict[int, frozenset[str]]:
    """Returns the nodes of each ok run by its repeat, without runs whose nodes have no names of their own."""
    return {
        run.requested.run.repeat: frozenset(run.attempt.machine.hosts)
        for run in result.ok
        if run.attempt and run.attempt.machine and len(run.attempt.machine.hosts) == run.requested.run.nodes
    }
