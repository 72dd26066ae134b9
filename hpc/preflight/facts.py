"""Reads the facts of a rank and its node that need no framework."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from hpc.backends import BACKENDS
from hpc.measure.world import World
from hpc.model.options import DALI, DataSource, data_source
from hpc.model.spec import RunSpec
from hpc.preflight.types import Gpu, ImagesSeen, Launched, NodeFacts, RankFacts
from hpc.system.gpus import (
    AmdGpu,
    NoDriver,
    amd_gpus,
    bare_uuid,
    gpus_of_kernel,
    has_amd_gpus,
    load_amdsmi,
    load_nvml,
)
from hpc.system.import_guard import install_command
from hpc.system.job_facts import JOB_IDS, SIZES
from hpc.system.sanitize import plain
from hpc.system.text import grouped, read_ranges

# Cores that processes of other jobs keep busy on this node.

LOOK_S = 0.25
NAMED = 2
"""The maximum of busy processes that are named."""

PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD of the kernel's include/linux/sched.h
_JOB_OF_CGROUP = re.compile(r"/job_(\d+)(?:/|$)")
_HIDING = re.compile(r"hidepid=(?!0|off)\w+")


class Hidden(Exception):
    """The kernel hides other users' processes; the text names the setting."""


@dataclass(frozen=True)
class Process:
    """One process at one moment; `busy_ticks` is its CPU time so far."""

    pid: int
    parent: int
    name: str
    kernel: bool
    begun_ticks: int
    busy_ticks: int


def processes(proc: Path = PROC) -> dict[int, Process]:
    """All visible processes by number. Raises Hidden where processes of others are hidden."""
    mounts = (proc / "self/mounts").read_text(errors="replace") if (proc / "self/mounts").exists() else ""
    for line in mounts.splitlines():
        fields = line.split()
        if fields[1:3] == ["/proc", "proc"] and _HIDING.search(fields[3]) and os.geteuid() != 0:
            raise Hidden(f"the kernel hides processes of others ({fields[3]})")
    by_pid = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            try:
                process = _process(int(folder.name), (folder / "stat").read_text(errors="replace"))
            except (OSError, IndexError, ValueError):  # it has just ended
                continue
            by_pid[process.pid] = process
    return by_pid


def busy_others(
    before: Mapping[int, Process], after: Mapping[int, Process], lasted_s: float, ours: set[int]
) -> tuple[float, tuple[str, ...]]:
    """Cores that other processes used between two looks, and the busiest of these processes, in descending order."""
    cores: list[tuple[float, Process]] = []
    for pid, process in after.items():
        was = before.get(pid)
        if pid in ours or process.kernel or was is None or was.begun_ticks != process.begun_ticks:
            continue
        if process.busy_ticks > was.busy_ticks:
            cores.append(((process.busy_ticks - was.busy_ticks) / _TICKS_PER_S / lasted_s, process))
    cores.sort(key=lambda each: (-each[0], each[1].pid))
    named = tuple(f"{plain(process.name)} (pid {process.pid}) {busy:.2f}" for busy, process in cores[:NAMED])
    return sum((busy for busy, _ in cores), 0.0), named


def of_this_job(
    pids: Iterable[int], by_pid: Mapping[int, Process], proc: Path = PROC, me: int | None = None
) -> set[int]:
    """The processes of this job among `pids`: they carry its number, are in its cgroup, descend from this rank's
    launcher, or are its ancestors. `by_pid` has all processes."""
    me = os.getpid() if me is None else me
    launcher = by_pid[me].parent if me in by_pid else 0
    ours = _ancestors(me, by_pid) | (_descendants(launcher, by_pid) if launcher > 1 else set())
    jobs, group = _jobs_of(me, proc), _job_of_cgroup(me, proc)
    members = set()
    for pid in pids:
        of_group = bool(group) and _job_of_cgroup(pid, proc) == group
        if pid in ours or of_group or jobs & _jobs_of(pid, proc):
            members.add(pid)
    return members


def measure_load() -> tuple[float, tuple[str, ...]]:
    """Cores that processes of others keep busy on this node, and the busiest of them. Raises Hidden, OSError."""
    begin = time.perf_counter()
    before = processes()
    time.sleep(LOOK_S)
    after = processes()
    lasted_s = time.perf_counter() - begin
    busy = {pid: p for pid, p in after.items() if pid in before and p.busy_ticks > before[pid].busy_ticks}
    return busy_others(before, busy, lasted_s, of_this_job(busy, after))


def _process(pid: int, stat: str) -> Process:
    # The name in parentheses may hold anything, spaces and parentheses too.
    name, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    return Process(
        pid=pid,
        parent=int(fields[1]),
        name=name,
        kernel=bool(int(fields[6]) & _KERNEL_THREAD),
        begun_ticks=int(fields[19]),
        busy_ticks=int(fields[11]) + int(fields[12]),
    )


def _ancestors(pid: int, by_pid: Mapping[int, Process]) -> set[int]:
    ancestors: set[int] = set()
    while pid > 1 and pid not in ancestors:
        ancestors.add(pid)
        pid = by_pid[pid].parent if pid in by_pid else 0
    return ancestors


def _descendants(pid: int, by_pid: Mapping[int, Process]) -> set[int]:
    children = grouped((process.parent, process.pid) for process in by_pid.values())
    descendants, pending = set(), [pid]
    while pending:
        each = pending.pop()
        if each not in descendants:
            descendants.add(each)
            pending += children.get(each, [])
    return descendants


def _jobs_of(pid: int, proc: Path) -> set[str]:
    """NAME=NUMBER of the scheduler's variables that a process carries; empty where it is another user's."""
    try:
        variables = (proc / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return set()
    wanted = tuple(f"{name}=".encode() for name in JOB_IDS)
    return {variable.decode(errors="replace") for variable in variables if variable.startswith(wanted)}


def _job_of_cgroup(pid: int, proc: Path) -> str:
    """The job of a process by Slurm's cgroups; empty where they name none."""
    try:
        match = _JOB_OF_CGROUP.search((proc / str(pid) / "cgroup").read_text(errors="replace"))
    except OSError:
        return ""
    return match[1] if match else ""


# The GPUs of a rank's node: of NVIDIA's driver by nvidia-ml-py, of AMD's by amdsmi.

_DEVICES = Path("/sys/bus/pci/devices")
_DRI = Path("/dev/dri")
_MIB = 1 << 20


def gpus_in_sight() -> list[Gpu]:
    """All GPUs that the driver shows this process, in the order in which frameworks number them. Raises NoDriver."""
    return by_amdsmi(load_amdsmi()) if has_amd_gpus() else by_nvml(load_nvml())


def by_nvml(nvml: ModuleType | Any, devices: Path = _DEVICES) -> list[Gpu]:
    """The GPUs by the module pynvml. Raises NoDriver."""
    try:
        nvml.nvmlInit()
        try:
            driver = _text(nvml.nvmlSystemGetDriverVersion())
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
            return [_gpu(nvml, handle, driver, devices) for handle in handles]
        finally:
            nvml.nvmlShutdown()
    except (nvml.NVMLError, AttributeError) as error:  # an old module lacks functions
        raise NoDriver(f"NVML: {error}") from None


def by_amdsmi(amdsmi: ModuleType | Any, devices: Path = _DEVICES, dri: Path = _DRI) -> list[Gpu]:
    """The GPUs that this process may open, by the module amdsmi. Raises NoDriver."""
    try:
        gpus = amd_gpus(amdsmi)
        try:
            return [_amd_gpu(amdsmi, gpu, devices) for gpu in gpus if _may_open(gpu, dri)]
        finally:
            amdsmi.amdsmi_shut_down()
    except (amdsmi.AmdSmiException, AttributeError, KeyError) as error:  # an old module lacks functions, or their keys
        raise NoDriver(f"amdsmi: {' '.join(str(error).split())}") from None


def _may_open(gpu: AmdGpu, dri: Path) -> bool:
    """Whether HIP shows the GPU: a job of others' has its render node, as far as cgroups hide that."""
    return os.access(dri / f"renderD{gpu.render_node}", os.R_OK | os.W_OK)


def devices_of_rank(
    in_sight: Sequence[Gpu], place: int, driven: int, environ: Mapping[str, str] = os.environ, *, is_amd: bool = False
) -> tuple[str, ...]:
    """The UUIDs of the GPUs that a rank will drive, by the rule of all backends: the only visible one, else the one for
    its `place` on the node; `driven` of them from the first on where it drives several. Empty where there is none.

    Raises NoDriver if CUDA_VISIBLE_DEVICES names slices of a GPU, which only the framework can distinguish.
    """
    visible = [gpu.uuid for gpu in in_sight]
    if is_amd:  # HIP's variable numbers the GPUs that ROCm's leaves, and counts as unset where it is empty
        for value in (
            environ.get("ROCR_VISIBLE_DEVICES"),
            environ.get("HIP_VISIBLE_DEVICES") or environ.get("CUDA_VISIBLE_DEVICES") or None,
        ):
            visible = _visible(visible, value)
    else:
        visible = _visible(visible, environ.get("CUDA_VISIBLE_DEVICES"))
    if driven > 1:
        return tuple(visible[:driven])
    if len(visible) == 1:
        return tuple(visible)
    return (visible[place],) if place < len(visible) else ()


def near_cores(pci: str, devices: Path = _DEVICES) -> tuple[int, ...]:
    """The cores of a PCI device's NUMA node; empty if the kernel has none (one node, a virtual machine)."""
    domain, _, rest = pci.lower().partition(":")
    folder = devices / f"{domain[-4:]}:{rest}"  # the driver writes domains with eight digits, the kernel with four
    try:
        if int((folder / "numa_node").read_text()) < 0:
            return ()
        return tuple(read_ranges((folder / "local_cpulist").read_text()))
    except (OSError, ValueError):
        return ()


def _visible(in_sight: list[str], visible_devices: str | None) -> list[str]:
    """Those of the UUIDs that a variable leaves; CUDA and HIP stop at the first name in it that is unknown."""
    if visible_devices is None:
        return in_sight
    uuids: list[str] = []
    for entry in visible_devices.split(","):
        name = entry.strip()
        if name.isdigit() and int(name) < len(in_sight):
            uuids.append(in_sight[int(name)])
        elif name.startswith("GPU-"):
            fitting = [uuid for uuid in in_sight if uuid.startswith(bare_uuid(name))]
            if len(fitting) != 1:
                break
            uuids += fitting
        elif name.startswith("MIG"):
            raise NoDriver("CUDA_VISIBLE_DEVICES names slices of a GPU (MIG), which only the framework can distinguish")
        else:
            break
    return uuids


def _gpu(nvml: Any, handle: Any, driver: str, devices: Path) -> Gpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    pci = _text(nvml.nvmlDeviceGetPciInfo(handle).busId)
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:  # a driver that hides them: the memory in use is known
        running = []
    return Gpu(
        uuid=bare_uuid(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        driver=driver,
        memory_bytes=int(memory.total),
        used_bytes=int(memory.used),
        pci=pci,
        near_cores=near_cores(pci, devices),
        processes=tuple(_gpu_process(str(each.pid), _name_of(each.pid), each.usedGpuMemory) for each in running),
    )


def _amd_gpu(amdsmi: Any, gpu: AmdGpu, devices: Path) -> Gpu:
    memory, pci = amdsmi.amdsmi_get_gpu_vram_usage(gpu.handle), amdsmi.amdsmi_get_gpu_device_bdf(gpu.handle)
    try:
        running = [each for each in amdsmi.amdsmi_get_gpu_process_list(gpu.handle) if isinstance(each, dict)]
    except amdsmi.AmdSmiException:  # those of others may be hidden: the memory in use is known
        running = []
    return Gpu(
        uuid=gpu.uuid,
        name=amdsmi.amdsmi_get_gpu_asic_info(gpu.handle)["market_name"],
        driver=amdsmi.amdsmi_get_gpu_driver_info(gpu.handle)["driver_version"],
        memory_bytes=memory["vram_total"] * _MIB,
        used_bytes=memory["vram_used"] * _MIB,
        pci=pci,
        near_cores=near_cores(pci, devices),
        processes=tuple(_gpu_process(str(each["pid"]), str(each["name"]), each["mem"]) for each in running),
    )


def _gpu_process(pid: str, name: str, used_bytes: int | None) -> str:
    text = f"{plain(name)} (pid {plain(pid)})" if name else f"pid {plain(pid)}"
    return text if used_bytes is None else f"{text} {used_bytes / (1 << 30):.1f} GiB"


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:  # in another namespace, or another's
        return ""


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


LAUNCHER_SIZES = (*SIZES, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PALS_NRANKS")
"""The schedulers' and launchers' environment variables for the number of ranks."""

_UNLIMITED = 1 << 60
"""Memory limits above this mean "no limit" to the kernel."""


def launched(size: int, library: str, environ: Mapping[str, str] = os.environ) -> Launched:
    """The number of ranks by MPI, and by the launcher's variables."""
    return Launched(size=size, variables={n: environ[n] for n in LAUNCHER_SIZES if n in environ}, library=library)


def facts_of_rank(run: RunSpec, world: World) -> RankFacts:
    """This rank, and its node where it is the node's first, which takes a quarter of a second. Touches no framework."""
    in_sight: list[Gpu] | None = None
    devices: tuple[str, ...] | None = None
    unread = ""
    if run.gpus_per_node:
        try:
            in_sight = gpus_in_sight()
            place = world.rank if world.nodes_simulated else world.local_rank
            devices = devices_of_rank(in_sight, place, run.devices // run.ranks, is_amd=has_amd_gpus())
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
        images=images_seen(run),
        device=next((gpu.name for gpu in in_sight or () if gpu.uuid in (devices or ())), ""),
    )


def images_seen(run: RunSpec) -> ImagesSeen | None:
    """The images at the path of the run, in a whole training also the held-out ones; None for a run without images."""
    source = data_source(run.data)
    if source is None:
        return None
    if BACKENDS[run.backend].framework != "tensorflow" and find_spec("PIL") is None:
        return ImagesSeen(problem=f"Pillow, which decodes images, is not installed: {install_command('data')}")
    if source.kind == DALI and not _is_installed("nvidia.dali"):
        return ImagesSeen(problem=f"nvidia.dali, which reads dali, is not installed: {install_command('dali')}")
    training = _images_at(source, "train")
    if training.problem or not run.epochs:
        return training
    return replace(training, evaluation=_images_at(source, "val"))


def _is_installed(package: str) -> bool:
    parts = package.split(".")
    return all(find_spec(".".join(parts[:count])) for count in range(1, len(parts) + 1))


def _images_at(source: DataSource, split: str) -> ImagesSeen:
    from hpc.workloads.image_sets import NoImages, list_source  # loads numpy: the threads are set by now

    try:
        listing = list_source(source, split)
    except NoImages as error:
        return ImagesSeen(problem=str(error))
    except OSError as error:
        return ImagesSeen(problem=f"{error.filename} cannot be read ({error.strerror})")
    return ImagesSeen(images=len(listing), group=listing.group, groups=listing.groups, sha256=listing.sha256)


def facts_of_node() -> NodeFacts:
    """The load by other processes, free memory and GPUs of this node."""
    sys, unread = Path("/sys"), {}
    busy: float | None = None
    busiest: tuple[str, ...] = ()
    try:
        busy, busiest = measure_load()
    except (Hidden, OSError) as error:
        unread["busy_cores"] = str(error)
    memory, free, reason = free_memory(PROC, sys)
    if reason:
        unread["memory_free_bytes"] = reason
    return NodeFacts(
        busy_cores=busy,
        busiest=busiest,
        memory_bytes=memory,
        memory_free_bytes=free,
        gpus=gpus_of_kernel(PROC / "driver/nvidia/gpus", sys / "class/kfd/kfd/topology/nodes"),
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
        return None, None, f"{proc / 'meminfo'} does not say it ({error})"
    for limit, used in _limits(proc / "self/cgroup", sys / "fs/cgroup"):
        total, free = min(total, limit), min(free, max(0, limit - used))
    return total, free, ""


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


def _read(path: Path) -> str:
    """The file's text; empty where this kernel has no such file, or keeps it to itself."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
