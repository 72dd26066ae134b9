"""The checks: pure functions of the facts of all ranks, so that every rank has the same results.

Each returns a result, or None where the check does not apply to the run. `hpc.model.findings` declares them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum

from hpc.model.findings import CHECKS, CheckFinding, Level, Severity, State, level_of
from hpc.model.options import data_source, steps_per_epoch
from hpc.model.spec import RunSpec
from hpc.preflight.transports import MNNVL, fits, goes_by_network
from hpc.preflight.types import ImagesSeen, NodeFacts, RankFacts, Seen
from hpc.system.job_facts import SIZES
from hpc.system.text import grouped, inflect, plural, ranges
from hpc.workloads import WORKLOADS

# What a check finds, its name, level and declared fix to be added, and helpers that name ranks and nodes.

SHOWN = 8


Look = Callable[[Seen], CheckFinding | None]


def ok(text: str) -> CheckFinding:
    return CheckFinding(name="", state=State.OK, text=text)


def failed(text: str, fix: str = "") -> CheckFinding:
    return CheckFinding(name="", text=text, fix=fix)


def unknown(text: str) -> CheckFinding:
    return CheckFinding(name="", state=State.UNKNOWN, text=text)


def result_of(failures: Sequence[str], unread: Sequence[str] | str, text: str) -> CheckFinding:
    """Failed for any failure, else unknown for anything unread, else ok with the text."""
    if failures:
        return failed(some(failures))
    if unread:
        return unknown(unread if isinstance(unread, str) else some(unread))
    return ok(text)


def numbers(values: Iterable[int]) -> str:
    """Whole numbers as `0-3, 8`, of many the first."""
    return ranges(values, SHOWN)


def some(texts: Sequence[str]) -> str:
    """The first of them, and the number of the others."""
    more = f"; and {len(texts) - 3} more" if len(texts) > 3 else ""
    return "; ".join(texts[:3]) + more


def alike(ranks: Sequence[RankFacts], values: Mapping[int, str], name: str) -> CheckFinding:
    """Compares one value, by rank, across all ranks; `name` names it in the text."""
    by_value = grouped((value, rank) for rank, value in values.items())
    if len(by_value) > 1:
        listing = "; ".join(f"{value} on rank {numbers(whose)}" for value, whose in by_value.items())
        return failed(f"ranks differ in {name}: {listing}")
    if len(values) < len(ranks):
        absent = next(rank for rank in ranks if rank.rank not in values)
        reason = f" ({absent.devices_unread})" if absent.devices_unread else ""
        return unknown(f"rank {absent.rank} does not say its {name}{reason}")
    return ok(f"{name} {next(iter(by_value), '')} on all ranks")


def unread_gpus(ranks: Sequence[RankFacts]) -> str:
    """The reason why a rank's GPUs could not be read; empty if all ranks could."""
    return some(
        [f"rank {rank.rank} on {rank.hostname}: {rank.devices_unread}" for rank in ranks if rank.devices_unread]
    )


# The checks of runs on GPUs: assignment, model, other processes, and NCCL's connections.

USED_SHARE = 0.05
"""Memory of a GPU that may be in use before the start: the driver itself takes less."""
_GIB = 1 << 30


def gpu_per_rank(seen: Seen) -> CheckFinding:
    """Compares the GPUs of each rank: two ranks on one GPU halve its speed silently."""
    run = seen.run
    driven = run.devices // run.ranks
    users = grouped((uuid, rank.rank) for rank in seen.ranks for uuid in rank.devices or ())
    failures = [f"ranks {numbers(ranks)} share GPU {uuid}" for uuid, ranks in users.items() if len(ranks) > 1]
    failures += [
        f"rank {rank.rank} on {rank.hostname} needs {driven} and finds {len(rank.devices)} "
        f"({len(rank.in_sight or ())} in sight)"
        for rank in seen.ranks
        if rank.devices is not None and len(rank.devices) < driven
    ]
    if failures:
        return failed(f"{run.gpus_per_node} GPUs per node were requested; {some(failures)}")
    return result_of((), unread_gpus(seen.ranks), f"every rank has {driven} of its own")


def gpus_in_sight(seen: Seen) -> CheckFinding:
    """NVLink does not reach GPUs that cgroups hide, as with --gpus-per-task; CUDA_VISIBLE_DEVICES does no such harm."""
    blind = []
    for ranks in seen.machines().values():
        shown = {uuid for rank in ranks for uuid in rank.in_sight or ()}  # slices of a GPU are named otherwise
        used = {uuid for rank in ranks for uuid in rank.devices or ()} & shown
        blind += [
            f"rank {rank.rank} on {rank.hostname} sees {len(used & set(rank.in_sight))} of the {len(used)} GPUs in use"
            for rank in ranks
            if rank.in_sight is not None and not used <= set(rank.in_sight)
        ]
    if not blind and any(rank.in_sight is None for rank in seen.ranks):
        return unknown(unread_gpus(seen.ranks))
    return result_of(blind, (), "each rank sees the GPUs of all ranks on its node")


def same_device(seen: Seen) -> CheckFinding:
    """Compares the GPUs' names; processors are compared in the summary."""
    return alike(seen.ranks, {rank.rank: rank.device for rank in seen.ranks if rank.device}, "device")


def same_driver(seen: Seen) -> CheckFinding:
    """Compares the driver's versions."""
    return alike(seen.ranks, {rank.rank: rank.gpus[0].driver for rank in seen.ranks if rank.gpus}, "driver")


def cores_near_gpu(seen: Seen) -> CheckFinding:
    """Memory of another NUMA node is farther from the GPU and from its network adapter."""
    far, nodes_known = [], False
    for rank in seen.ranks:
        near = {core for gpu in rank.gpus for core in gpu.near_cores}
        nodes_known = nodes_known or bool(near)
        away = set(rank.cores) - near if near else ()
        if away:
            far.append(
                f"rank {rank.rank} on {rank.hostname} may run on {len(away)} of its {len(rank.cores)} cores away from "
                f"its GPU, whose NUMA node has cores {numbers(near)}"
            )
    unread = "" if nodes_known else unread_gpus(seen.ranks) or "the kernel names no NUMA node of the GPUs"
    return result_of(far, unread, "each rank runs on the NUMA node of its GPU")


def gpu_idle(seen: Seen) -> CheckFinding:
    """Compares use of the GPUs before this run touches them with none."""
    used = [
        f"GPU {gpu.uuid} of rank {rank.rank} on {rank.hostname} has {gpu.used_bytes / _GIB:.1f} of "
        f"{gpu.memory_bytes / _GIB:.1f} GiB in use before the start"
        f"{f': {some(gpu.processes)}' if gpu.processes else ''}"
        for rank in seen.ranks
        for gpu in rank.gpus
        if gpu.processes or gpu.used_bytes > USED_SHARE * gpu.memory_bytes
    ]
    return result_of(used, unread_gpus(seen.ranks), "nothing ran on the GPUs before the start")


def transport(seen: Seen) -> CheckFinding | None:
    """Compares the transport between nodes: where the promised one fails, NCCL silently uses a slower one."""
    if not (seen.expect_transport and seen.run.nodes > 1) or seen.simulated:
        return None
    wrong, used = [], set()
    for rank, name, peers in _transports(seen):
        # COLLNET is beside it. NVLink of a rack is called so inside a node, too.
        if name.startswith("NET/") or (name == MNNVL and any(_apart(seen, rank, peer) for peer in peers)):
            used.add(name)
            wrong += [] if fits(name, seen.expect_transport) else [f"{_place(rank)} goes by {name}"]
    if wrong:
        return failed(f"the site promises {seen.expect_transport}; {some(wrong)}")
    unread = _unread_transports(seen) or ([] if used else ["NCCL says nothing of going from node to node"])
    return result_of((), unread, f"NCCL goes from node to node by {', '.join(sorted(used))}")


def transport_in_node(seen: Seen) -> CheckFinding | None:
    """Finds GPUs of one node, or of one NVLink domain, that use host memory or the network where they could reach each
    other directly."""
    slow, used = [], set()
    for rank, name, peers in _transports(seen):
        near = [peer for peer in peers if _in_domain(seen, rank, peer)]
        if name.startswith("SHM") or (goes_by_network(name) and (seen.run.nodes == 1 or near)):
            whom = near or peers
            slow.append(f"{_place(rank)} goes by {name}{f' to rank {numbers(whom)}' if whom else ''}")
        elif not goes_by_network(name):
            used.add(name)
    if seen.run.ranks_per_node == 1 and not slow:
        return None
    unread = _unread_transports(seen) or ([] if used else ["NCCL says nothing of going inside a node"])
    return result_of(slow, unread, f"by {', '.join(sorted(used))}")


def _transports(seen: Seen) -> Iterator[tuple[RankFacts, str, tuple[int, ...]]]:
    """Each rank with each of its transports and the peers that it reaches by it."""
    for rank in seen.ranks:
        if rank.transports is not None and not rank.transports.unread:
            yield from ((rank, name, peers) for name, peers in rank.transports.peers.items())


def _place(rank: RankFacts) -> str:
    return f"rank {rank.rank} on {rank.hostname}"


def _apart(seen: Seen, rank: RankFacts, peer: int) -> bool:
    """Whether NCCL's rank `peer` is on another node; its numbers are those of the run where all ranks form one
    communicator."""
    return peer < len(seen.ranks) and seen.ranks[peer].node != rank.node


def _in_domain(seen: Seen, rank: RankFacts, peer: int) -> bool:
    """Whether NCCL's rank `peer` is on another node of the same NVLink domain."""
    return _apart(seen, rank, peer) and bool(_domain(rank)) and _domain(rank) == _domain(seen.ranks[peer])


def _domain(rank: RankFacts) -> str:
    return rank.transports.domain if rank.transports else ""


def _unread_transports(seen: Seen) -> list[str]:
    return [
        f"rank {rank.rank}: {rank.transports.unread if rank.transports else 'not looked'}"
        for rank in seen.ranks
        if rank.transports is None or rank.transports.unread
    ]


CHECKS_OF_GPUS: Mapping[str, Look] = {
    look.__name__: look
    for look in (
        gpu_per_rank, gpus_in_sight, same_device, same_driver, cores_near_gpu, gpu_idle, transport, transport_in_node
    )
}  # fmt: skip
"""The checks that are not made of runs on CPUs."""


# The check of the images that a run trains on: pure, as those in hpc.preflight.compare.


def images(seen: Seen) -> CheckFinding | None:
    """Compares what ranks find at the path, and its size with that of a step; None for a run that reads no files."""
    source = data_source(seen.run.data)
    listings = [(rank.hostname, rank.images) for rank in seen.ranks if rank.images is not None]
    if source is None or not listings:
        return None
    if problems := [*_problems(seen)]:
        return failed(some(problems))
    held_out = [(host, listing.evaluation) for host, listing in listings if listing.evaluation is not None]
    for compared, name in ((listings, "images"), (held_out, "held-out images")):
        if any(listing.sha256 != compared[0][1].sha256 for _, listing in compared):
            return failed(f"not all ranks find the same {name} in {source.path}: {some([*_differences(compared)])}")
    _, first = listings[0]
    if misfit := _misfit(seen.run, source.path, first):
        return misfit
    text = f"{plural(first.images, 'image')} in {_groups(first)}"
    text += f", {held_out[0][1].images} to evaluate on" if held_out else ""
    return ok(f"{text}, the same on all ranks")


def _misfit(run: RunSpec, path: str, first: ImagesSeen) -> CheckFinding | None:
    """The reason why the run cannot train on as many images and classes as there are."""
    if first.images < run.global_batch_size:
        return failed(
            f"{path} has {plural(first.images, 'training image')}; a step takes {run.global_batch_size}, "
            f"{run.local_batch_size} for each of {plural(run.devices, 'device')}: no batch would be whole",
            "take more images, or a smaller --batch-size",
        )
    max_classes = WORKLOADS[run.workload].max_classes
    if first.group == "class" and first.groups > max_classes:
        return failed(
            f"{path} has {first.groups} classes; {run.workload} has {max_classes} at most",
            f"take an image set with at most {max_classes} class folders",
        )
    if run.epochs and run.steps > (in_epoch := steps_per_epoch(run, first.images)):
        return failed(
            f"the measured steps must be in one epoch: with the warm-up the run has {run.steps} steps, and an epoch "
            f"of the {plural(first.images, 'image')} in {path} has {in_epoch}, {run.global_batch_size} a step",
            f"take --steps {in_epoch} or fewer, a smaller --batch-size, or more images",
        )
    return None


def _problems(seen: Seen) -> Iterator[str]:
    ranks_by_problem: dict[tuple[str, str], list[int]] = {}
    for rank in seen.ranks:
        for listing in (rank.images, rank.images and rank.images.evaluation):
            if listing is not None and listing.problem:
                ranks_by_problem.setdefault((rank.hostname, listing.problem), []).append(rank.rank)
    for (host, problem), ranks in ranks_by_problem.items():
        yield f"rank {numbers(ranks)} on {host}: {problem}"


def _differences(listings: Sequence[tuple[str, ImagesSeen]]) -> Iterator[str]:
    """A text for each node that finds others than rank 0's."""
    host, first = listings[0]
    for hostname, here in {name: here for name, here in listings if here.sha256 != first.sha256}.items():
        yield f"{hostname} finds {here.images} in {_groups(here)}, {host} {first.images} in {first.groups}"


def _groups(listing: ImagesSeen) -> str:
    """`2 classes` or `8 files`."""
    return f"{listing.groups} {'classes' if listing.group == 'class' else inflect(listing.groups, 'file')}"


BUSY_CORES = 0.5
"""Cores that processes of others may keep busy before it is a load: a node's own services stay far below."""
FREE_SHARE = 0.1
FREE_PER_RANK_BYTES = 512 << 20


class CheckStage(IntEnum):
    """When there is enough to look at: MPI has started; ranks have met; the backend is built; steps were made."""

    STARTED, MET, BUILT, STEPPED = range(4)


def judge(stage: CheckStage, seen: Seen, levels: Mapping[str, Level]) -> list[CheckFinding]:
    """The findings of a stage's checks, in the order of their declaration; checks that are off are not made."""
    findings = []
    for name, look in ((name, LOOKS[stage][name]) for name in CHECKS if name in LOOKS[stage]):
        level = level_of(name, levels)
        if level is Level.OFF or (name in CHECKS_OF_GPUS and not seen.run.gpus_per_node):
            continue
        if result := look(seen):
            declared = (seen.simulated and CHECKS[name].fix_here) or CHECKS[name].fix
            fix = (result.fix or declared) if result.state is State.FAILED else ""
            findings.append(replace(result, name=name, severity=Severity(level), fix=fix))
    return findings


def mpi_size(seen: Seen) -> CheckFinding:
    """Compares the ranks that MPI sees. Too few are mostly singletons, each of which believes to be rank 0 of 1."""
    run, here = seen.run, seen.launched
    if here.size == run.ranks:
        return ok(f"{'MPI sees' if here.library else 'TCP connects'} {plural(run.ranks, 'rank')}, as requested")
    variables = ", ".join(f"{name}={value}" for name, value in here.variables.items())
    if here.size == 1 and not here.variables:
        fix = "start it with srun or mpiexec"
    elif str(here.size) in here.variables.values():
        fix = (
            f"the launcher started as many: give it --nodes={run.nodes} "
            f"--ntasks-per-node={run.ranks_per_node} (mpiexec: -n {run.ranks})"
        )
    elif not set(SIZES) & set(here.variables):
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


def ranks_per_node(seen: Seen) -> CheckFinding:
    """Compares the ranks on each node: the launcher may have placed the right number of ranks differently."""
    run = seen.run
    ranks_on = [count for _, count in sorted(Counter(rank.node for rank in seen.ranks).items())]
    if ranks_on == [run.ranks_per_node] * run.nodes:
        return ok(f"{plural(run.nodes, 'node')} with {plural(run.ranks_per_node, 'rank')} each, as requested")
    placement = f"{', '.join(map(str, ranks_on[:SHOWN]))}{', …' if len(ranks_on) > SHOWN else ''}"
    return failed(f"{run.nodes} nodes with {run.ranks_per_node} ranks each requested; {len(ranks_on)} with {placement}")


_COLLECTIVES = ("nccl", "rccl")


def same_nccl(seen: Seen) -> CheckFinding | None:
    """Compares the versions of NCCL, on AMD GPUs of RCCL, that the framework has loaded."""
    for library in _COLLECTIVES:
        if versions := {rank.rank: version for rank in seen.ranks if (version := rank.software.get(library))}:
            return alike(seen.ranks, versions, library.upper())
    return None


def same_framework(seen: Seen) -> CheckFinding | None:
    """Compares all other software versions."""
    names = sorted({name for rank in seen.ranks for name in rank.software} - {*_COLLECTIVES})
    apart = []
    for name in names:
        result = alike(seen.ranks, {rank.rank: rank.software.get(name, "none") for rank in seen.ranks}, name)
        if result.state is State.FAILED:
            apart.append(result.text)
    return failed("; ".join(apart)) if apart else ok("the same versions on all ranks")


def cores(seen: Seen) -> CheckFinding:
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


def load(seen: Seen) -> CheckFinding:
    """Compares the cores that other processes keep busy with BUSY_CORES; this job's waiting ranks do not count."""
    busy, max_busy, unread = [], 0.0, []
    for host, node, _ in _nodes(seen):
        if node is None or node.busy_cores is None:
            unread.append(_unread(host, node, "busy_cores"))
            continue
        max_busy = max(max_busy, node.busy_cores)
        if node.busy_cores > BUSY_CORES:
            busy.append(f"{host}: other processes keep {node.busy_cores:.2f} cores busy ({', '.join(node.busiest)})")
    return result_of(busy, unread, f"other processes keep at most {max_busy:.2f} cores of a node busy")


def host_memory(seen: Seen) -> CheckFinding:
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


def _nodes(seen: Seen) -> Iterator[tuple[str, NodeFacts | None, list[RankFacts]]]:
    """Host name, facts and ranks of each machine."""
    for ranks in seen.machines().values():
        yield ranks[0].hostname, next((rank.about_node for rank in ranks if rank.about_node), None), ranks


def _unread(host: str, node: NodeFacts | None, name: str) -> str:
    return f"{host}: {(node and node.unread.get(name)) or 'not looked'}"


_BUILT = ("gpu_per_rank", "gpus_in_sight", "same_device")
_STEPPED = ("transport", "transport_in_node")
LOOKS: Mapping[CheckStage, Mapping[str, Look]] = {
    CheckStage.STARTED: {"mpi_size": mpi_size},
    CheckStage.MET: {
        "ranks_per_node": ranks_per_node,
        **{name: look for name, look in CHECKS_OF_GPUS.items() if name not in _STEPPED},
        "cores": cores,
        "load": load,
        "host_memory": host_memory,
        "images": images,
    },
    CheckStage.BUILT: {
        **{name: CHECKS_OF_GPUS[name] for name in _BUILT},
        "same_nccl": same_nccl,
        "same_framework": same_framework,
    },
    CheckStage.STEPPED: {name: CHECKS_OF_GPUS[name] for name in _STEPPED},
}
"""The checks of each stage; a later stage has more facts, so its findings replace those of an earlier one."""
