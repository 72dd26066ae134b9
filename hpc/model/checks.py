"""The preflight checks: name, level, what each compares, and the fix where it fails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class CheckError(ValueError):
    """A check or a level that does not exist was asked for; the text lists those that do."""


class Level(StrEnum):
    """A failed check ends the run as `invalid` or raises an alarm beside its speed; `off`: the check is not made."""

    FATAL = "fatal"
    ALARM = "alarm"
    OFF = "off"


@dataclass(frozen=True, kw_only=True)
class Check:
    """A declared check. `fixed`: no site can change its level, because no run is valid without it."""

    level: Level
    compares: str
    fix: str
    fixed: bool = False


CHECKS: Mapping[str, Check] = {
    "mpi_size": Check(
        level=Level.FATAL,
        fixed=True,
        compares="how many ranks MPI sees with how many were asked for",
        fix="start the ranks by the launcher that belongs to the MPI library that mpi4py loads",
    ),
    "ranks_per_node": Check(
        level=Level.FATAL,
        fixed=True,
        compares="how many ranks lie on each node with how many were asked for",
        fix="give the launcher --nodes and --ntasks-per-node (mpirun: --map-by ppr:N:node)",
    ),
    "gpu_per_rank": Check(
        level=Level.FATAL,
        compares="that every rank has as many GPUs as it drives, and no GPU two ranks (by UUID)",
        fix="give each node as many GPUs as ranks and leave all of them visible to each, or bind one to each",
    ),
    "gpus_in_sight": Check(
        level=Level.ALARM,
        compares="that each rank sees the GPUs of all ranks on its node",
        fix="ask for GPUs per node (--gpus-per-node), not per task (--gpus-per-task, --gpu-bind): where they are "
        "hidden from one another NCCL goes by host memory or the network instead of NVLink",
    ),
    "same_device": Check(
        level=Level.FATAL,
        compares="the device of all ranks",
        fix="ask for nodes of one kind (constraint in the site), or measure the kinds apart",
    ),
    "same_driver": Check(
        level=Level.ALARM,
        compares="the GPU driver of all nodes",
        fix="have the nodes brought to one driver, or leave those that differ out (exclude in the site)",
    ),
    "same_nccl": Check(
        level=Level.FATAL,
        compares="the version of NCCL on all ranks",
        fix="run one environment, module or container on all nodes",
    ),
    "same_framework": Check(
        level=Level.FATAL,
        compares="the versions of framework, CUDA, MPI and Python on all ranks",
        fix="run one environment, module or container on all nodes",
    ),
    "cores": Check(
        level=Level.ALARM,
        compares="the cores of each rank with its threads, and with the cores of the other ranks on its node",
        fix="give each rank cores of its own: --cpus-per-task and --cpu-bind=cores (mpirun: --bind-to core)",
    ),
    "cores_near_gpu": Check(
        level=Level.ALARM,
        compares="the cores of each rank with the NUMA node of its GPU",
        fix="bind ranks beside their GPUs: --gpu-bind=closest hides GPUs, so rather order the ranks' cores by "
        "--cpu-bind=map_ldom or mask_cpu",
    ),
    "gpu_idle": Check(
        level=Level.ALARM,
        compares="processes and memory on each GPU before the start with none",
        fix="end what runs there, or take the node exclusively (exclusive = true in the site)",
    ),
    "load": Check(
        level=Level.ALARM,
        compares="cores that processes of others keep busy on each node before the start with none",
        fix="take the nodes exclusively (exclusive = true in the site), or leave the busy ones out (exclude)",
    ),
    "host_memory": Check(
        level=Level.ALARM,
        compares="free memory of each node, or what is left of the job's limit, with a tenth of it and 512 MiB a rank",
        fix="ask for more memory (--mem), or end what else fills the node",
    ),
    "fabric": Check(
        level=Level.FATAL,
        compares="the network adapters of each node with the transport that the site promises",
        fix="leave the nodes without one out (exclude in the site), have adapter or driver repaired, or correct "
        "expect_transport in the site",
    ),
    "transport": Check(
        level=Level.FATAL,
        compares="how NCCL goes from node to node, as it says itself, with the transport that the site promises",
        fix="see why NCCL took another: NCCL_IB_HCA, NCCL_SOCKET_IFNAME and NCCL_NET, the adapter's driver inside the "
        "container; or correct expect_transport in the site",
    ),
    "transport_in_node": Check(
        level=Level.ALARM,
        compares="how NCCL goes from GPU to GPU inside a node with NVLink or PCIe directly",
        fix="leave all GPUs of a node visible to each rank, and see NCCL_P2P_DISABLE, NCCL_P2P_LEVEL, IOMMU and ACS",
    ),
}
"""All checks, in the order in which they are made; the essential ones come before anything that relies on them."""


def read_levels(settings: Iterable[str]) -> dict[str, Level]:
    """Levels by check name, from settings as `load=fatal`.

    Raises CheckError where a check or a level is unknown, or the level of the check is fixed.
    """
    levels = {}
    for setting in settings:
        name, _, level = setting.partition("=")
        if name not in CHECKS:
            raise CheckError(f"unknown check {name!r}; known: {', '.join(CHECKS)}")
        if level not in list(Level):
            raise CheckError(f"check {name}: level {level!r} is not one of {', '.join(Level)}")
        if CHECKS[name].fixed and level != CHECKS[name].level:
            raise CheckError(f"check {name} is always {CHECKS[name].level}: without it a run is not what it says")
        levels[name] = Level(level)
    return levels


def level_of(name: str, levels: Mapping[str, Level]) -> Level:
    """The requested level of a check, else the declared one."""
    return levels.get(name, CHECKS[name].level)
