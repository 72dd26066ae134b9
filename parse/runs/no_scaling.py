"""Why the speed of a run is no scaling result; each returns the reason, empty where it does not apply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpc.model.spec import RunSpec
from hpc.model.trace import RankReport
from hpc.system.text import grouped, plural, ranges


def oversubscribed(run: RunSpec, reports: Sequence[RankReport]) -> str:
    """What ranks share of which each is to have its own: in short, a colon, the figures."""
    uuids = [str((report.device or {}).get("uuid") or "") for report in reports]
    if run.gpus_per_node and all(uuids) and len(set(uuids)) < len(reports):
        return f"more ranks than GPUs: {len(reports)} ranks share {plural(len(set(uuids)), 'GPU')}"
    for on_host in _by_host(reports).values():
        cores = _cores(on_host)
        if cores and len(on_host) * run.cpus_per_rank > cores:
            each = plural(run.cpus_per_rank, "core")
            lacking = "more ranks than cores" if len(on_host) > cores else "too few cores"
            return f"{lacking}: {plural(len(on_host), 'rank')} of {each} on {plural(cores, 'core')}"
    return ""


def nodes_simulated(run: RunSpec, reports: Sequence[RankReport]) -> str:
    """Nodes that are only groups of ranks."""
    machines = len(_by_host(reports))
    if run.nodes > 1 and (machines < run.nodes or any(report.nodes_simulated for report in reports)):
        return f"{plural(run.nodes, 'node')} on {plural(machines, 'machine')}"
    return ""


def apart(reports: Sequence[RankReport]) -> str:
    """Ranks of a script that train each a copy, and meet nobody."""
    outside = [rank for rank, report in enumerate(reports) if _joined(report) is False]
    if len(reports) == 1 or not outside:
        return ""
    if len(outside) == len(reports):
        return f"none of the {len(reports)} ranks joins a process group: each trains a copy by itself"
    who = f"rank{'s' if len(outside) > 1 else ''} {ranges(outside)} of {len(reports)}"
    return f"{who} in no process group: what trains there is a copy by itself"


def _joined(report: RankReport) -> object:
    """Whether its script is in a process group, as hooks saw it; None where they did not."""
    facts: object = report.extra.get("script")
    for name in ("facts", "joined"):
        facts = facts.get(name) if isinstance(facts, Mapping) else None
    return facts


def _by_host(reports: Sequence[RankReport]) -> dict[str | None, list[RankReport]]:
    """The ranks of each machine; a boot id is one machine's, a host name may be a container's."""
    return grouped((report.boot_id or report.hostname, report) for report in reports)


def _cores(reports: Sequence[RankReport]) -> int | None:
    """The number of cores that the ranks of one machine may use together; None if not reported."""
    affinities = [report.affinity or () for report in reports]
    return len({str(core) for affinity in affinities for core in affinity}) if all(affinities) else reports[0].cpus
