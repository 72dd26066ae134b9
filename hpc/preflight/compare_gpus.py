"""The checks of GPUs: whose they are, what they are, what else is on them, and which cores are near them."""

from __future__ import annotations

from hpc.preflight.result import CheckResult, alike, failed, numbers, ok, some, unknown, unread_gpus
from hpc.preflight.types import Seen

USED_SHARE = 0.05
"""Of a GPU's memory before the start: the driver itself takes less."""
_GIB = 1 << 30


def gpu_per_rank(seen: Seen) -> CheckResult | None:
    """Compares the GPUs of each rank: two ranks on one GPU halve its speed silently."""
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
        return failed(f"{run.gpus_per_node} GPUs per node were asked for; {some(shared + lacking)}")
    if unread := unread_gpus(seen.ranks):
        return unknown(unread)
    return ok(f"every rank has {driven} of its own")


def gpus_in_sight(seen: Seen) -> CheckResult | None:
    """NVLink does not reach GPUs that cgroups hide, as with --gpus-per-task; CUDA_VISIBLE_DEVICES does no such harm."""
    if not seen.run.gpus_per_node:
        return None
    blind = []
    for ranks in seen.machines().values():
        known = {uuid for rank in ranks for uuid in rank.in_sight or ()}  # slices of a GPU are named otherwise
        used = {uuid for rank in ranks for uuid in rank.devices or ()} & known
        for rank in ranks:
            if rank.in_sight is not None and not used <= set(rank.in_sight):
                visible = len(used & set(rank.in_sight))
                blind.append(f"rank {rank.rank} on {rank.hostname} sees {visible} of the {len(used)} GPUs in use")
    if blind:
        return failed(some(blind))
    if any(rank.in_sight is None for rank in seen.ranks):
        return unknown(unread_gpus(seen.ranks))
    return ok("each rank sees the GPUs of all ranks on its node")


def same_device(seen: Seen) -> CheckResult | None:
    """Of GPUs; processors are compared in the summary."""
    if not seen.run.gpus_per_node:
        return None
    return alike(seen.ranks, {rank.rank: rank.device for rank in seen.ranks if rank.device}, "device")


def same_driver(seen: Seen) -> CheckResult | None:
    """As each node's driver says of itself."""
    if not seen.run.gpus_per_node:
        return None
    return alike(seen.ranks, {rank.rank: rank.gpus[0].driver for rank in seen.ranks if rank.gpus}, "driver")


def cores_near_gpu(seen: Seen) -> CheckResult | None:
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
        return failed(some(far))
    if not known:
        return unknown(unread_gpus(seen.ranks) or "the kernel names no NUMA node of the GPUs")
    return ok("each rank runs on the NUMA node of its GPU")


def gpu_idle(seen: Seen) -> CheckResult | None:
    """Looked at before this run touches its GPUs."""
    if not seen.run.gpus_per_node:
        return None
    used = []
    for rank in seen.ranks:
        for gpu in rank.gpus:
            if gpu.processes or gpu.used_bytes > USED_SHARE * gpu.memory_bytes:
                by = f": {some(gpu.processes)}" if gpu.processes else ""
                used.append(
                    f"GPU {gpu.uuid} of rank {rank.rank} on {rank.hostname} has {gpu.used_bytes / _GIB:.1f} of "
                    f"{gpu.memory_bytes / _GIB:.1f} GiB in use before the start{by}"
                )
    if used:
        return failed(some(used))
    if unread := unread_gpus(seen.ranks):
        return unknown(unread)
    return ok("nothing ran on the GPUs before the start")
