"""The checks of runs on GPUs: assignment, model, other processes, and NCCL's connections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hpc.preflight.result import CheckResult, Look, alike, failed, numbers, result_of, some, unknown, unread_gpus
from hpc.preflight.transports import fits, goes_by_network
from hpc.preflight.types import Seen
from hpc.system.groups import grouped

USED_SHARE = 0.05
"""Memory of a GPU that may be in use before the start: the driver itself takes less."""
_GIB = 1 << 30


def gpu_per_rank(seen: Seen) -> CheckResult:
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


def gpus_in_sight(seen: Seen) -> CheckResult:
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


def same_device(seen: Seen) -> CheckResult:
    """Compares the GPUs' names; processors are compared in the summary."""
    return alike(seen.ranks, {rank.rank: rank.device for rank in seen.ranks if rank.device}, "device")


def same_driver(seen: Seen) -> CheckResult:
    """Compares the driver's versions."""
    return alike(seen.ranks, {rank.rank: rank.gpus[0].driver for rank in seen.ranks if rank.gpus}, "driver")


def cores_near_gpu(seen: Seen) -> CheckResult:
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


def gpu_idle(seen: Seen) -> CheckResult:
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


def transport(seen: Seen) -> CheckResult | None:
    """Compares the transport between nodes: where the promised one fails, NCCL silently uses a slower one."""
    if not (seen.expect_transport and seen.run.nodes > 1) or seen.simulated:
        return None
    wrong, used = [], set()
    for rank, names in _transports(seen):
        between_nodes = [name for name in names if name.startswith("NET/")]  # COLLNET is beside it
        used.update(between_nodes)
        wrong += [f"{rank} goes by {name}" for name in between_nodes if not fits(name, seen.expect_transport)]
    if wrong:
        return failed(f"the site promises {seen.expect_transport}; {some(wrong)}")
    unread = _unread_transports(seen) or ([] if used else ["NCCL says nothing of going from node to node"])
    return result_of((), unread, f"NCCL goes from node to node by {', '.join(sorted(used))}")


def transport_in_node(seen: Seen) -> CheckResult | None:
    """Finds GPUs of one node that use host memory or the network where they could reach each other directly."""
    if seen.run.ranks_per_node == 1:
        return None
    slow, used = [], set()
    for rank, peers_by_name in _transports(seen):
        for name, peers in peers_by_name.items():
            if name.startswith("SHM") or (goes_by_network(name) and seen.run.nodes == 1):
                slow.append(f"{rank} goes by {name} to rank {numbers(peers)}")
            elif not goes_by_network(name):
                used.add(name)
    unread = _unread_transports(seen) or ([] if used else ["NCCL says nothing of going inside a node"])
    return result_of(slow, unread, f"by {', '.join(sorted(used))}")


def _transports(seen: Seen) -> Iterator[tuple[str, Mapping[str, tuple[int, ...]]]]:
    for rank in seen.ranks:
        if rank.transports is not None and not rank.transports.unread:
            yield f"rank {rank.rank} on {rank.hostname}", rank.transports.peers


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
