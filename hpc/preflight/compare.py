"""The checks themselves: pure functions of what all ranks know, so that every rank comes to the same.

Each returns what it found, or None where the check says nothing of such a run. `hpc.checks` declares them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby

from hpc.checks import CHECKS, Finding, Level, State, level_of
from hpc.preflight.nouns import RankFacts, Seen
from hpc.preflight.transports import fits, goes_by_network

BUSY_CORES = 0.5
"""Cores that processes of others may keep busy before it is a load: a node's own services stay far below."""
USED_SHARE = 0.05
"""Of a GPU's memory before the start: the driver itself takes less."""
FREE_SHARE = 0.1
FREE_PER_RANK_BYTES = 512 << 20
SHOWN = 8
_GIB = 1 << 30


class Stage(IntEnum):
    """When there is enough to look at: MPI has started; ranks have met; the backend is built; steps were made."""

    STARTED, MET, BUILT, STEPPED = range(4)


@dataclass(frozen=True)
class Found:
    """What a look came to, before its level is known; `cure` stands in for the declared one."""

    state: State
    text: str
    cure: str = ""


Look = Callable[[Seen], Found | None]


def judge(stage: Stage, seen: Seen, levels: Mapping[str, Level]) -> list[Finding]:
    """What the checks of a stage find, in the order of their declaration; those that are off are not made."""
    findings = []
    for name in CHECKS:
        level = level_of(name, levels)
        if name not in LOOKS[stage] or level is Level.OFF:
            continue
        found = LOOKS[stage][name](seen)
        if found is not None:
            cure = (found.cure or CHECKS[name].cure) if found.state is State.FAILED else ""
            findings.append(Finding(name=name, level=level, state=found.state, text=found.text, cure=cure))
    return findings


def mpi_size(seen: Seen) -> Found:
    """Fewer ranks than asked are mostly singletons, that each believe to be rank 0 of 1."""
    run, here = seen.run, seen.launched
    if here.size == run.ranks:
        return _ok(f"MPI sees the {run.ranks} ranks asked for")
    said = ", ".join(f"{name}={value}" for name, value in here.variables.items())
    if here.size == 1 and not here.variables:
        cure = "start it with srun or mpiexec"
    elif "SLURM_NTASKS" not in here.variables:
        cure = (
            f"the launcher is not of the MPI that mpi4py loads ({here.library}): start it with that MPI's own mpiexec, "
            "or name the library of this one by MPI4PY_LIBMPI"
        )
    else:
        cure = (
            "the launcher and the MPI library do not speak the same PMI: try mpi = pmix or pmi2 in the site "
            "(srun --mpi=list shows what there is), or launcher = mpirun"
        )
    found = f"asked for {run.ranks} ranks, MPI sees {here.size} ({said or 'no launcher variables are set'})"
    return _failed(found, cure)


def ranks_per_node(seen: Seen) -> Found:
    """The launcher may have placed the right number of ranks otherwise."""
    run = seen.run
    ranks_on = [count for _, count in sorted(Counter(rank.node for rank in seen.ranks).items())]
    if ranks_on == [run.ranks_per_node] * run.nodes:
        return _ok(f"{run.nodes} nodes with {run.ranks_per_node} ranks each, as asked")
    there = f"{', '.join(map(str, ranks_on[:SHOWN]))}{', …' if len(ranks_on) > SHOWN else ''}"
    return _failed(
        f"asked for {run.nodes} nodes with {run.ranks_per_node} ranks each; found {len(ranks_on)} with {there}"
    )


def gpu_per_rank(seen: Seen) -> Found | None:
    """Two ranks on one GPU halve its speed without a word."""
    run = seen.run
    if not run.gpus_per_node:
        return None
    driven = run.devices // run.ranks
    users: dict[str, list[int]] = {}
    for rank in seen.ranks:
        for uuid in rank.devices or ():
            users.setdefault(uuid, []).append(rank.rank)
    shared = [f"ranks {numbers(ranks)} share GPU {uuid}" for uuid, ranks in users.items() if len(ranks) > 1]
    lacking = [
        f"rank {rank.rank} on {rank.hostname} needs {driven} and finds {len(rank.devices)} "
        f"({len(rank.in_sight or ())} in sight)"
        for rank in seen.ranks
        if rank.devices is not None and len(rank.devices) < driven
    ]
    if shared or lacking:
        return _failed(f"asked for {run.gpus_per_node} GPUs per node, {driven} a rank: {_some(shared + lacking)}")
    if unread := _unread(seen.ranks):
        return _unknown(unread)
    return _ok(f"every rank has {driven} of its own")


def gpus_in_sight(seen: Seen) -> Found | None:
    """Those that cgroups hide, as --gpus-per-task has it, no NVLink reaches; CUDA_VISIBLE_DEVICES hides none so."""
    if not seen.run.gpus_per_node:
        return None
    blind = []
    for ranks in seen.machines().values():
        known = {uuid for rank in ranks for uuid in rank.in_sight or ()}  # slices of a GPU are named otherwise
        used = {uuid for rank in ranks for uuid in rank.devices or ()} & known
        for rank in ranks:
            if rank.in_sight is not None and not used <= set(rank.in_sight):
                seen_there = len(used & set(rank.in_sight))
                blind.append(f"rank {rank.rank} on {rank.hostname} sees {seen_there} of the {len(used)} GPUs in use")
    if blind:
        return _failed(_some(blind))
    if any(rank.in_sight is None for rank in seen.ranks):
        return _unknown(_unread(seen.ranks))
    return _ok("each rank sees the GPUs of all ranks on its node")


def same_device(seen: Seen) -> Found | None:
    """Of GPUs; processors are compared in the summary."""
    if not seen.run.gpus_per_node:
        return None
    return _alike(seen.ranks, {rank.rank: rank.device for rank in seen.ranks if rank.device}, "device")


def same_driver(seen: Seen) -> Found | None:
    """As each node's driver says of itself."""
    if not seen.run.gpus_per_node:
        return None
    return _alike(seen.ranks, {rank.rank: rank.gpus[0].driver for rank in seen.ranks if rank.gpus}, "driver")


def same_nccl(seen: Seen) -> Found | None:
    """As the framework says which one it has loaded."""
    versions = {rank.rank: rank.software["nccl"] for rank in seen.ranks if rank.software.get("nccl")}
    return _alike(seen.ranks, versions, "NCCL") if versions else None


def same_framework(seen: Seen) -> Found | None:
    """And all else that has a version."""
    names = sorted({name for rank in seen.ranks for name in rank.software} - {"nccl"})
    apart = []
    for name in names:
        found = _alike(seen.ranks, {rank.rank: rank.software.get(name, "none") for rank in seen.ranks}, name)
        if found.state is State.FAILED:
            apart.append(found.text)
    return _failed("; ".join(apart)) if apart else _ok("the same versions on all ranks")


def cores(seen: Seen) -> Found:
    """Ranks of equal masks are not bound, which costs little where there are cores enough for all of them."""
    each, wrong, unbound = seen.run.cpus_per_rank, [], False
    for ranks in seen.machines().values():
        where = ranks[0].hostname
        masks: dict[tuple[int, ...], list[int]] = {}
        for rank in ranks:
            masks.setdefault(rank.cores, []).append(rank.rank)
        for mask, theirs in masks.items():
            unbound = unbound or len(theirs) > 1
            if len(mask) < each * len(theirs):
                who = f"ranks {numbers(theirs)} have {len(mask)} between them" if len(theirs) > 1 else (
                    f"rank {theirs[0]} has {len(mask)}"
                )  # fmt: skip
                wrong.append(f"{where}: {who} (core {numbers(mask)}), asked for {each} each")
        owners: dict[int, list[tuple[int, ...]]] = {}
        for mask in masks:
            for core in mask:
                owners.setdefault(core, []).append(mask)
        both = {core: sharing for core, sharing in owners.items() if len(sharing) > 1}
        if both:
            who_both = sorted({rank for sharing in both.values() for mask in sharing for rank in masks[mask]})
            wrong.append(f"{where}: ranks {numbers(who_both)} overlap on core {numbers(both)}")
    if wrong:
        return _failed(_some(wrong))
    return _ok("ranks are not bound; there are cores enough" if unbound else "each rank has cores of its own")


def cores_near_gpu(seen: Seen) -> Found | None:
    """Memory of another NUMA node is farther from the GPU and from its network adapter."""
    if not seen.run.gpus_per_node:
        return None
    far, known = [], False
    for rank in seen.ranks:
        near = {core for gpu in rank.gpus for core in gpu.near_cores}
        known = known or bool(near)
        away = sorted(set(rank.cores) - near) if near else []
        if away:
            far.append(
                f"rank {rank.rank} on {rank.hostname} may run on {len(away)} of its {len(rank.cores)} cores away from "
                f"its GPU, whose NUMA node has cores {numbers(near)}"
            )
    if far:
        return _failed(_some(far))
    if not known:
        return _unknown(_unread(seen.ranks) or "the kernel names no NUMA node of the GPUs")
    return _ok("each rank runs on the NUMA node of its GPU")


def gpu_idle(seen: Seen) -> Found | None:
    """Looked at before this run touches its GPUs."""
    if not seen.run.gpus_per_node:
        return None
    used = []
    for rank in seen.ranks:
        for gpu in rank.gpus:
            if gpu.processes or gpu.used_bytes > USED_SHARE * gpu.memory_bytes:
                by = f": {_some(gpu.processes)}" if gpu.processes else ""
                used.append(
                    f"GPU {gpu.uuid} of rank {rank.rank} on {rank.hostname} has {gpu.used_bytes / _GIB:.1f} of "
                    f"{gpu.memory_bytes / _GIB:.1f} GiB in use before the start{by}"
                )
    if used:
        return _failed(_some(used))
    if unread := _unread(seen.ranks):
        return _unknown(unread)
    return _ok("nothing ran on the GPUs before the start")


def load(seen: Seen) -> Found:
    """What is busy and not of this job; its own ranks, which wait for each other, do not count."""
    busy, most, unread = [], 0.0, []
    for rank in seen.ranks:
        if (node := rank.about_node) is None:
            continue
        if node.busy_cores is None:
            unread.append(f"{rank.hostname}: {node.unread.get('busy_cores', 'not looked')}")
            continue
        most = max(most, node.busy_cores)
        if node.busy_cores > BUSY_CORES:
            average = f", load average {node.load_average[0]:.2f}" if node.load_average else ""
            busy.append(
                f"{rank.hostname}: processes of others keep {node.busy_cores:.2f} cores busy "
                f"({', '.join(node.busiest)}{average})"
            )
    if busy:
        return _failed(_some(busy))
    if unread:
        return _unknown(_some(unread))
    return _ok(f"processes of others keep at most {most:.2f} cores of a node busy")


def host_memory(seen: Seen) -> Found:
    """A node that begins without room ends as oom, or swaps."""
    short, unread, least = [], [], float("inf")
    for ranks in seen.machines().values():
        node = next((rank.about_node for rank in ranks if rank.about_node), None)
        if node is None or node.memory_bytes is None or node.memory_free_bytes is None:
            unread.append(f"{ranks[0].hostname}: {(node and node.unread.get('memory_free_bytes')) or 'not looked'}")
            continue
        free, total = node.memory_free_bytes, node.memory_bytes
        least = min(least, free)
        if free < FREE_SHARE * total or free < FREE_PER_RANK_BYTES * len(ranks):
            short.append(
                f"{ranks[0].hostname}: {free / _GIB:.1f} of {total / _GIB:.1f} GiB free for {len(ranks)} ranks"
            )
    if short:
        return _failed(_some(short))
    return _unknown(_some(unread)) if unread else _ok(f"at least {least / _GIB:.1f} GiB free on each node")


def fabric(seen: Seen) -> Found | None:
    """Before anything can say which transport it took: a node without an adapter takes none of those promised."""
    if not seen.expect_transport.startswith("ib") or seen.run.nodes == 1 or seen.simulated:
        return None
    there = {rank.hostname: rank.about_node.fabrics for rank in seen.ranks if rank.about_node}
    if lacking := [host for host, adapters in there.items() if not adapters]:
        return _failed(
            f"the site promises {seen.expect_transport}; no adapter with an active port is in /sys/class/infiniband of "
            f"{_some(lacking)}"
        )
    return _ok(f"every node has an adapter with an active port ({', '.join(next(iter(there.values()), ()))})")


def transport(seen: Seen) -> Found | None:
    """Between nodes; what NCCL takes when the promised one fails is slower, and it goes on without a word."""
    if not (seen.expect_transport and seen.run.gpus_per_node and seen.run.nodes > 1) or seen.simulated:
        return None
    wrong, taken, unread = [], set(), []
    for rank in seen.ranks:
        if rank.transports is None or rank.transports.unread:
            unread.append(f"rank {rank.rank}: {rank.transports.unread if rank.transports else 'not looked'}")
            continue
        names = [name for name in rank.transports.peers if name.startswith("NET/")]  # COLLNET is beside it
        taken.update(names)
        wrong += [
            f"rank {rank.rank} on {rank.hostname} goes by {name}"
            for name in names
            if not fits(name, seen.expect_transport)
        ]
    if wrong:
        return _failed(f"the site promises {seen.expect_transport}; {_some(wrong)}")
    if unread:
        return _unknown(_some(unread))
    if not taken:
        return _unknown("NCCL says nothing of going from node to node")
    return _ok(f"NCCL goes from node to node by {', '.join(sorted(taken))}")


def transport_in_node(seen: Seen) -> Found | None:
    """Host memory, or the network, between GPUs that could reach each other."""
    if not seen.run.gpus_per_node or seen.run.ranks_per_node == 1:
        return None
    slow, unread, taken = [], [], set()
    for rank in seen.ranks:
        if rank.transports is None or rank.transports.unread:
            unread.append(f"rank {rank.rank}: {rank.transports.unread if rank.transports else 'not looked'}")
            continue
        for name, peers in rank.transports.peers.items():
            if name.startswith("SHM") or (goes_by_network(name) and seen.run.nodes == 1):
                slow.append(f"rank {rank.rank} on {rank.hostname} goes by {name} to rank {numbers(peers)}")
            elif not goes_by_network(name):
                taken.add(name)
    if slow:
        return _failed(_some(slow))
    if unread:
        return _unknown(_some(unread))
    return _ok(f"by {', '.join(sorted(taken))}") if taken else _unknown("NCCL says nothing of going inside a node")


LOOKS: Mapping[Stage, Mapping[str, Look]] = {
    Stage.STARTED: {"mpi_size": mpi_size},
    Stage.MET: {
        "ranks_per_node": ranks_per_node,
        "gpu_per_rank": gpu_per_rank,
        "gpus_in_sight": gpus_in_sight,
        "same_device": same_device,
        "same_driver": same_driver,
        "cores": cores,
        "cores_near_gpu": cores_near_gpu,
        "gpu_idle": gpu_idle,
        "load": load,
        "host_memory": host_memory,
        "fabric": fabric,
    },
    Stage.BUILT: {
        "gpu_per_rank": gpu_per_rank,
        "gpus_in_sight": gpus_in_sight,
        "same_device": same_device,
        "same_nccl": same_nccl,
        "same_framework": same_framework,
    },
    Stage.STEPPED: {"transport": transport, "transport_in_node": transport_in_node},
}
"""Which checks are made when; those of a later stage know more, and stand in place of an earlier one's."""


def numbers(found: Iterable[int]) -> str:
    """Whole numbers as `0-3, 8`, of many the first."""
    runs = []
    for _, group in groupby(enumerate(sorted(found)), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in group]
        runs.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ", ".join(runs[:SHOWN]) + (", …" if len(runs) > SHOWN else "")


def _alike(ranks: Sequence[RankFacts], values: Mapping[int, str], what: str) -> Found:
    found: dict[str, list[int]] = {}
    for rank, value in values.items():
        found.setdefault(value, []).append(rank)
    if len(found) > 1:
        said = "; ".join(f"{value} on rank {numbers(whose)}" for value, whose in found.items())
        return _failed(f"ranks differ in {what}: {said}")
    if len(values) < len(ranks):
        absent = next(rank for rank in ranks if rank.rank not in values)
        return _unknown(f"rank {absent.rank} does not say its {what}{_because(absent.devices_unread)}")
    return _ok(f"{what} {next(iter(found), '')} on all ranks")


def _unread(ranks: Sequence[RankFacts]) -> str:
    """Why a rank knows nothing of its GPUs; empty where all do."""
    unread = [f"rank {rank.rank} on {rank.hostname}: {rank.devices_unread}" for rank in ranks if rank.devices_unread]
    return _some(unread)


def _because(why: str) -> str:
    return f" ({why})" if why else ""


def _some(texts: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f"; and {len(texts) - 3} more" if len(texts) > 3 else ""
    return "; ".join(texts[:3]) + more


def _ok(text: str) -> Found:
    return Found(State.OK, text)


def _failed(text: str, cure: str = "") -> Found:
    return Found(State.FAILED, text, cure)


def _unknown(text: str) -> Found:
    return Found(State.UNKNOWN, text)
