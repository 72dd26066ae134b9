"""The checks: pure functions of the facts of all ranks, so that every rank has the same results.

Each returns a result, or None where the check does not apply to the run. `hpc.model.checks` declares them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import IntEnum

from hpc.model.checks import CHECKS, Level, level_of
from hpc.model.findings import Finding, Severity, State
from hpc.preflight.compare_gpus import CHECKS_OF_GPUS
from hpc.preflight.compare_images import images
from hpc.preflight.result import SHOWN, CheckResult, Look, alike, failed, numbers, ok, result_of, some
from hpc.preflight.types import NodeFacts, RankFacts, Seen
from hpc.system.groups import grouped
from hpc.system.text import plural

BUSY_CORES = 0.5
"""Cores that processes of others may keep busy before it is a load: a node's own services stay far below."""
FREE_SHARE = 0.1
FREE_PER_RANK_BYTES = 512 << 20
_GIB = 1 << 30


class Stage(IntEnum):
    """When there is enough to look at: MPI has started; ranks have met; the backend is built; steps were made."""

    STARTED, MET, BUILT, STEPPED = range(4)


def judge(stage: Stage, seen: Seen, levels: Mapping[str, Level]) -> list[Finding]:
    """The findings of a stage's checks, in the order of their declaration; checks that are off are not made."""
    findings = []
    for name, look in ((name, LOOKS[stage][name]) for name in CHECKS if name in LOOKS[stage]):
        level = level_of(name, levels)
        if level is Level.OFF or (name in CHECKS_OF_GPUS and not seen.run.gpus_per_node):
            continue
        if result := look(seen):
            declared = (seen.simulated and CHECKS[name].fix_here) or CHECKS[name].fix
            fix = (result.fix or declared) if result.state is State.FAILED else ""
            severity = Severity(level)
            findings.append(Finding(name=name, severity=severity, state=result.state, text=result.text, fix=fix))
    return findings


def mpi_size(seen: Seen) -> CheckResult:
    """Compares the ranks that MPI sees. Too few are mostly singletons, each of which believes to be rank 0 of 1."""
    run, here = seen.run, seen.launched
    if here.size == run.ranks:
        return ok(f"{'MPI sees' if here.library else 'TCP connects'} {plural(run.ranks, 'rank')}, as requested")
    variables = ", ".join(f"{name}={value}" for name, value in here.variables.items())
    if here.size == 1 and not here.variables:
        fix = "start it with srun or mpiexec"
    elif str(here.size) in here.variables.values():
        fix = (
            f"the launcher started no more, or no less: give it --nodes={run.nodes} "
            f"--ntasks-per-node={run.ranks_per_node} (mpiexec: -n {run.ranks})"
        )
    elif "SLURM_NTASKS" not in here.variables:
        fix = (
            f"the launcher is not of the MPI that mpi4py loads ({here.library}): start it with that MPI's own mpiexec, "
            "or name the library of this one by MPI4PY_LIBMPI"
        )
    else:
        fix = (
            "the launcher and the MPI library do not speak the same PMI: try mpi = pmix or pmi2 in the site "
            "(srun --mpi=list shows what there is), or launcher = mpirun"
        )
    text = f"{run.ranks} ranks requested, MPI sees {here.size} ({variables or 'no launcher variables are set'})"
    return failed(text, fix)


def ranks_per_node(seen: Seen) -> CheckResult:
    """Compares the ranks on each node: the launcher may have placed the right number of ranks differently."""
    run = seen.run
    ranks_on = [count for _, count in sorted(Counter(rank.node for rank in seen.ranks).items())]
    if ranks_on == [run.ranks_per_node] * run.nodes:
        return ok(f"{plural(run.nodes, 'node')} with {plural(run.ranks_per_node, 'rank')} each, as requested")
    placement = f"{', '.join(map(str, ranks_on[:SHOWN]))}{', …' if len(ranks_on) > SHOWN else ''}"
    return failed(f"{run.nodes} nodes with {run.ranks_per_node} ranks each requested; {len(ranks_on)} with {placement}")


def same_nccl(seen: Seen) -> CheckResult | None:
    """Compares the NCCL versions that the framework has loaded."""
    versions = {rank.rank: rank.software["nccl"] for rank in seen.ranks if rank.software.get("nccl")}
    return alike(seen.ranks, versions, "NCCL") if versions else None


def same_framework(seen: Seen) -> CheckResult | None:
    """Compares all other software versions."""
    names = sorted({name for rank in seen.ranks for name in rank.software} - {"nccl"})
    apart = []
    for name in names:
        result = alike(seen.ranks, {rank.rank: rank.software.get(name, "none") for rank in seen.ranks}, name)
        if result.state is State.FAILED:
            apart.append(result.text)
    return failed("; ".join(apart)) if apart else ok("the same versions on all ranks")


def cores(seen: Seen) -> CheckResult:
    """Compares cores with threads. Ranks with equal masks are not bound, which is fine where there are enough cores."""
    cpus, wrong, unbound = seen.run.cpus_per_rank, [], False
    for host, _, ranks in _nodes(seen):
        masks = grouped((rank.cores, rank.rank) for rank in ranks)
        for mask, theirs in masks.items():
            unbound = unbound or len(theirs) > 1
            if len(mask) < cpus * len(theirs):
                who = f"ranks {numbers(theirs)} have {len(mask)} between them" if len(theirs) > 1 else (
                    f"rank {theirs[0]} has {len(mask)}"
                )  # fmt: skip
                wrong.append(f"{host}: {who} (core {numbers(mask)}), {cpus} each requested")
        owners = grouped((core, mask) for mask in masks for core in mask)
        both = {core: sharing for core, sharing in owners.items() if len(sharing) > 1}
        if both:
            who_both = sorted({rank for sharing in both.values() for mask in sharing for rank in masks[mask]})
            wrong.append(f"{host}: ranks {numbers(who_both)} overlap on core {numbers(both)}")
    if wrong:
        return failed(some(wrong))
    return ok("ranks are not bound; there are cores enough" if unbound else "each rank has cores of its own")


def load(seen: Seen) -> CheckResult:
    """Compares the cores that other processes keep busy with BUSY_CORES; this job's waiting ranks do not count."""
    busy, max_busy, unread = [], 0.0, []
    for host, node, _ in _nodes(seen):
        if node is None or node.busy_cores is None:
            unread.append(_unread(host, node, "busy_cores"))
            continue
        max_busy = max(max_busy, node.busy_cores)
        if node.busy_cores > BUSY_CORES:
            average = f", load average {node.load_average[0]:.2f}" if node.load_average else ""
            processes = f"{', '.join(node.busiest)}{average}"
            busy.append(f"{host}: processes of others keep {node.busy_cores:.2f} cores busy ({processes})")
    return result_of(busy, unread, f"processes of others keep at most {max_busy:.2f} cores of a node busy")


def host_memory(seen: Seen) -> CheckResult:
    """Compares free memory with the memory needed: a node that starts with too little ends as oom, or swaps."""
    short, unread, least = [], [], float("inf")
    for host, node, ranks in _nodes(seen):
        if node is None or node.memory_bytes is None or node.memory_free_bytes is None:
            unread.append(_unread(host, node, "memory_free_bytes"))
            continue
        free, total = node.memory_free_bytes, node.memory_bytes
        least = min(least, free)
        if free < FREE_SHARE * total or free < FREE_PER_RANK_BYTES * len(ranks):
            users = plural(len(ranks), "rank")
            short.append(f"{host}: {free / _GIB:.1f} of {total / _GIB:.1f} GiB free for {users}")
    return result_of(short, unread, f"at least {least / _GIB:.1f} GiB free on each node")


def fabric(seen: Seen) -> CheckResult | None:
    """Checks the adapters before any transport is known: a node without an adapter cannot use the promised one."""
    if not seen.expect_transport.startswith("ib") or seen.run.nodes == 1 or seen.simulated:
        return None
    by_host = {rank.hostname: rank.about_node.fabrics for rank in seen.ranks if rank.about_node}
    if lacking := [host for host, adapters in by_host.items() if not adapters]:
        return failed(
            f"the site promises {seen.expect_transport}; no adapter with an active port is in /sys/class/infiniband of "
            f"{some(lacking)}"
        )
    return ok(f"every node has an adapter with an active port ({', '.join(next(iter(by_host.values()), ()))})")


def _nodes(seen: Seen) -> Iterator[tuple[str, NodeFacts | None, list[RankFacts]]]:
    """Host name, facts and ranks of each machine."""
    for ranks in seen.machines().values():
        yield ranks[0].hostname, next((rank.about_node for rank in ranks if rank.about_node), None), ranks


def _unread(host: str, node: NodeFacts | None, name: str) -> str:
    return f"{host}: {(node and node.unread.get(name)) or 'not looked'}"


_BUILT = ("gpu_per_rank", "gpus_in_sight", "same_device")
_STEPPED = ("transport", "transport_in_node")
LOOKS: Mapping[Stage, Mapping[str, Look]] = {
    Stage.STARTED: {"mpi_size": mpi_size},
    Stage.MET: {
        "ranks_per_node": ranks_per_node,
        **{name: look for name, look in CHECKS_OF_GPUS.items() if name not in _STEPPED},
        "cores": cores,
        "load": load,
        "host_memory": host_memory,
        "images": images,
        "fabric": fabric,
    },
    Stage.BUILT: {
        **{name: CHECKS_OF_GPUS[name] for name in _BUILT},
        "same_nccl": same_nccl,
        "same_framework": same_framework,
    },
    Stage.STEPPED: {name: CHECKS_OF_GPUS[name] for name in _STEPPED},
}
"""The checks of each stage; a later stage has more facts, so its findings replace those of an earlier one."""
