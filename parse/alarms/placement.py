"""Whether nested runs were nested: smaller cases on some of the nodes of larger ones, block by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hpc.system.text import first_of, plural
from parse.alarms.scaling import Beside
from parse.result import Result, by_setting

SHOWN = 3
"""As many runs that were not nested are named."""


def not_nested(result: Result, beside: Beside) -> Iterator[str]:
    """Asked to be nested, and a smaller case of the same block ran on a node that is none of this one's."""
    elsewhere = [
        f"run {repeat}: {other.requested.case} on {_list_of(its - mine)}, not among {_list_of(mine)}"
        for other, repeat, its, mine in _pairs(result, beside.setting)
        if its - mine
    ]
    if elsewhere:
        yield (
            f"asked to be nested, and is not: {first_of(elsewhere, SHOWN, '; ')}: "
            "a difference between nodes may pass for scaling"
        )


def other_nodes(result: Result, beside: Beside) -> Iterator[str]:
    """The largest nested case ran on different nodes in different blocks: in several jobs, or after a requeue."""
    if result.run.placement != "nested" or (result.run.nodes or 0) < max(
        other.run.nodes or 0 for other in beside.setting
    ):
        return
    sets: dict[frozenset[str], list[int]] = {}
    for repeat, hosts in _hosts(result).items():
        sets.setdefault(hosts, []).append(repeat)
    if len(sets) > 1:
        allocations = "; ".join(f"{_list_of(hosts)} (run {', '.join(map(str, runs))})" for hosts, runs in sets.items())
        yield f"its blocks had different allocations, so runs differ by their nodes, too: {allocations}"


def nested_summary(results: Sequence[Result]) -> str:
    """What the head of a summary says of nested points; empty where none was asked for, or not all are as asked."""
    nested = [result for result in results if result.run.placement == "nested"]
    if not nested or any(alarm.name == "not_nested" for result in nested for alarm in result.alarms):
        return ""
    settings = by_setting(nested)
    if any(result.run.nodes != 1 and result.ok and not _hosts(result) for result in nested):
        return "placement nested: the order of the runs was shuffled; their nodes have no names of their own"
    pairs = [pair for result in nested for pair in _pairs(result, settings[result.requested.baseline_point])]
    if not pairs:
        return "placement nested: no two cases of a block tell their nodes, so nobody can say whether they were nested"
    hosts = {host for _, _, its, mine in pairs for host in its | mine}
    blocks = {repeat for _, repeat, _, _ in pairs}
    return (
        f"placement nested (same nodes): in {plural(len(blocks), 'block')} every smaller case ran on nodes of the "
        f"larger ones; {plural(len(hosts), 'node')} in all"
    )


def _pairs(result: Result, setting: Iterable[Result]) -> Iterator[tuple[Result, int, frozenset[str], frozenset[str]]]:
    """Every run of a smaller case beside this one's of the same block: the case, the block, its nodes and these."""
    if result.run.placement != "nested":
        return
    size = result.run.nodes or 0, result.run.devices
    mine = _hosts(result)
    for other in setting:
        if (other.run.nodes or 0, other.run.devices) < size:
            its = _hosts(other)
            yield from ((other, repeat, its[repeat], mine[repeat]) for repeat in sorted(its.keys() & mine.keys()))


def _hosts(result: Result) -> dict[int, frozenset[str]]:
    """Of each ok run, by its repeat, its nodes; left out where they have no names of their own, as simulated ones."""
    return {
        run.requested.run.repeat: frozenset(run.attempt.machine.hosts)
        for run in result.ok
        if run.attempt and run.attempt.machine and len(run.attempt.machine.hosts) == run.requested.run.nodes
    }


def _list_of(hosts: Iterable[str]) -> str:
    names = sorted(hosts)
    return f"{' '.join(names[:4])} … ({len(names)} nodes)" if len(names) > 4 else " ".join(names)
