"""Reads the facts of a rank and its node that need no framework."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from hpc.backends import BACKENDS
from hpc.measure.world import World
from hpc.model.data_source import TEXT, DataSource, data_source
from hpc.model.spec import RunSpec
from hpc.preflight.background_load import Hidden, measure_load
from hpc.preflight.gpus import NoDriver, devices_of_rank, gpus_in_sight
from hpc.preflight.types import Gpu, ImagesSeen, Launched, NodeFacts, RankFacts
from hpc.workloads.image_folder import NoImages
from hpc.workloads.image_sets import PACKAGES, list_source

SIZES = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PALS_NRANKS")
"""The launchers' environment variables for the number of ranks."""

_UNLIMITED = 1 << 60
"""Memory limits above this mean "no limit" to the kernel."""


def launched(size: int, library: str, environ: Mapping[str, str] = os.environ) -> Launched:
    """The number of ranks by MPI, and by the launcher's variables."""
    return Launched(size=size, variables={n: environ[n] for n in SIZES if n in environ}, library=library)


def facts_of_rank(run: RunSpec, world: World) -> RankFacts:
    """This rank, and its node where it is the node's first, which takes a quarter of a second. Touches no framework."""
    in_sight: list[Gpu] | None = None
    devices: tuple[str, ...] | None = None
    unread = ""
    if run.gpus_per_node:
        try:
            in_sight = gpus_in_sight()
            place = world.rank if world.nodes_simulated else world.local_rank
            devices = devices_of_rank(in_sight, place, run.devices // run.ranks)
        except NoDriver as error:
            unread = str(error)
    return RankFacts(
        rank=world.rank,
        node=world.node_rank,
        hostname=world.hostname,
        cores=tuple(sorted(os.sched_getaffinity(0))),
        about_node=facts_of_node() if world.local_rank == 0 else None,
        in_sight=None if in_sight is None else tuple(gpu.uuid for gpu in in_sight),
        devices=devices,
        devices_unread=unread,
        gpus=tuple(gpu for gpu in in_sight or () if gpu.uuid in (devices or ())),
        images=images_seen(run, first_of_node=world.local_rank == 0),
        device=next((gpu.name for gpu in in_sight or () if gpu.uuid in (devices or ())), ""),
    )


def images_seen(run: RunSpec, *, first_of_node: bool) -> ImagesSeen | None:
    """The images at the path of the run, in a whole training also the held-out ones; None for a run without images."""
    source = data_source(run.data)
    if source is None or source.kind == TEXT:
        return None
    if BACKENDS[run.backend].framework != "tensorflow" and find_spec("PIL") is None:
        return ImagesSeen(problem="Pillow, which decodes images, is not installed: pip install -e '.[data]'")
    if (package := PACKAGES.get(source.kind)) and not _is_installed(package[0]):
        return ImagesSeen(problem=f"{package[0]}, which reads {source.kind}, is not installed: {package[1]}")
    training = _images_at(source, "train", first_of_node=first_of_node)
    if training.problem or not run.epochs:
        return training
    return replace(training, evaluation=_images_at(source, "val", first_of_node=first_of_node))


def _is_installed(package: str) -> bool:
    parts = package.split(".")
    return all(find_spec(".".join(parts[:count])) for count in range(1, len(parts) + 1))


def _images_at(source: DataSource, split: str, *, first_of_node: bool) -> ImagesSeen:
    try:
        listing = list_source(source, split)
    except NoImages as error:
        return ImagesSeen(problem=str(error))
    except OSError as error:
        return ImagesSeen(problem=f"{error.filename} cannot be read ({error.strerror})")
    by_group = listing.images_by_group()
    return ImagesSeen(
        images=len(listing),
        group=listing.group,
        groups=len(by_group),
        sha256=listing.sha256,
        by_group=by_group if first_of_node else None,
    )


def facts_of_node(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> NodeFacts:
    """The load by other processes, free memory, adapters and GPUs of this node."""
    unread = {}
    busy: float | None = None
    busiest: tuple[str, ...] = ()
    try:
        busy, busiest = measure_load()
    except (Hidden, OSError) as error:
        unread["busy_cores"] = str(error)
    memory, free, reason = free_memory(proc, sys)
    if reason:
        unread["memory_free_bytes"] = reason
    return NodeFacts(
        load_average=_load_average(proc),
        busy_cores=busy,
        busiest=busiest,
        memory_bytes=memory,
        memory_free_bytes=free,
        fabrics=fabrics(sys / "class/infiniband"),
        gpus=_gpus_of_node(proc / "driver/nvidia/gpus"),
        unread=unread,
    )


def free_memory(proc: Path, sys: Path) -> tuple[int | None, int | None, str]:
    """Total and free bytes of this node, or of this process's cgroup where its limit is lower, and the error.

    Total and free are None where /proc/meminfo cannot be read; the error is empty otherwise.
    """
    try:
        rows = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines() if ":" in line)
        total, free = (int(rows[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError, IndexError) as error:
        return None, None, f"{proc / 'meminfo'} does not tell it ({error})"
    for limit, used in _limits(proc / "self/cgroup", sys / "fs/cgroup"):
        total, free = min(total, limit), min(free, max(0, limit - used))
    return total, free, ""


def fabrics(folder: Path) -> tuple[str, ...]:
    """Network adapters for RDMA (InfiniBand, RoCE, EFA) that have a port which is up, by name."""
    active = []
    for adapter in sorted(folder.iterdir()) if folder.is_dir() else ():
        states = [_read(state) for state in sorted(adapter.glob("ports/*/state"))]
        if any("ACTIVE" in state for state in states):
            active.append(adapter.name)
    return tuple(active)


def _limits(cgroup: Path, root: Path) -> Sequence[tuple[int, int]]:
    """Limit and use in bytes of every cgroup that this process's memory counts in, without the file pages that can be
    dropped."""
    limits = []
    for line in _read(cgroup).splitlines():
        _, controllers, path = line.split(":", 2)
        second = not controllers
        if not second and "memory" not in controllers.split(","):
            continue
        base = root if second else root / "memory"
        names = (
            ("memory.max", "memory.current", "inactive_file")
            if second
            else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        )
        parts = Path(path.lstrip("/")).parts
        for depth in range(len(parts) + 1):
            folder = base.joinpath(*parts[:depth])
            limit, used = (_read(folder / name).strip() for name in names[:2])
            if limit.isdigit() and used.isdigit() and int(limit) < _UNLIMITED:
                limits.append((int(limit), int(used) - _droppable(folder / "memory.stat", names[2])))
    return limits


def _droppable(stat: Path, name: str) -> int:
    rows = dict(line.split(" ", 1) for line in _read(stat).splitlines() if " " in line)
    return int(rows.get(name, "0"))


def _load_average(proc: Path) -> tuple[float, ...] | None:
    averages = _read(proc / "loadavg").split()
    return tuple(float(average) for average in averages[:3]) if len(averages) >= 3 else None


def _gpus_of_node(folder: Path) -> int | None:
    """The number of the node's GPUs by its driver, including those that this process may not use."""
    return len(list(folder.iterdir())) if folder.is_dir() else None


def _read(path: Path) -> str:
    """The file's text; empty where this kernel has no such file, or keeps it to itself."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
