"""The GPUs of a rank's node, from NVIDIA's driver: by nvidia-ml-py where that is installed, else nvidia-smi."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from hpc.preflight.types import Gpu
from hpc.system.groups import grouped
from hpc.system.sanitize import plain
from hpc.system.text import read_ranges
from hpc.system.tool import Failure, run_tool

NVIDIA_SMI_S = 30.0
_FIELDS = ("uuid", "pci.bus_id", "name", "driver_version", "memory.total", "memory.used")
_PROCESS_FIELDS = ("gpu_uuid", "pid", "process_name", "used_memory")
_DEVICES = Path("/sys/bus/pci/devices")
_MIB = 1 << 20


class NoDriver(Exception):
    """The driver does not answer; the text names what was tried."""


def gpus_in_sight() -> list[Gpu]:
    """All GPUs that the driver shows this process, in its order (that of the PCI bus). Raises NoDriver."""
    try:
        import pynvml
    except ImportError:
        return by_nvidia_smi(_nvidia_smi)
    return by_nvml(pynvml)


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


def by_nvidia_smi(ask: Callable[[Sequence[str]], str], devices: Path = _DEVICES) -> list[Gpu]:
    """The GPUs by nvidia-smi, which `ask` runs. Raises NoDriver."""
    query = f"--query-compute-apps={','.join(_PROCESS_FIELDS)}"
    processes = _rows(ask([query]), len(_PROCESS_FIELDS))
    running = grouped((bare(uuid), _process(pid, name, _mib(used))) for uuid, pid, name, used in processes)
    return [
        Gpu(
            uuid=bare(uuid), name=name, driver=driver, memory_bytes=_mib(total) or 0, used_bytes=_mib(used) or 0,
            pci=pci, near_cores=near_cores(pci, devices), processes=tuple(running.get(bare(uuid), ())),
        )
        for uuid, pci, name, driver, total, used in _rows(ask([f"--query-gpu={','.join(_FIELDS)}"]), len(_FIELDS))
    ]  # fmt: skip


def bare(uuid: str) -> str:
    """The UUID alone, as every source writes it: frameworks leave out the driver's prefix."""
    return uuid.removeprefix("GPU-").lower()


def devices_of_rank(
    in_sight: Sequence[Gpu], place: int, driven: int, environ: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """The UUIDs of the GPUs that a rank will drive, by the rule of all backends: the only visible one, else the one for
    its `place` on the node; `driven` of them from the first on where it drives several. Empty where there is none.

    Raises NoDriver if CUDA_VISIBLE_DEVICES names slices of a GPU, which only the framework can distinguish.
    """
    visible = _visible(in_sight, environ.get("CUDA_VISIBLE_DEVICES"))
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


def _visible(in_sight: Sequence[Gpu], visible_devices: str | None) -> list[str]:
    """The UUIDs of the GPUs that CUDA shows; it stops at the first name in CUDA_VISIBLE_DEVICES that is unknown."""
    if visible_devices is None:
        return [gpu.uuid for gpu in in_sight]
    uuids: list[str] = []
    for entry in visible_devices.split(","):
        name = entry.strip()
        if name.isdigit() and int(name) < len(in_sight):
            uuids.append(in_sight[int(name)].uuid)
        elif name.startswith("GPU-"):
            fitting = [gpu.uuid for gpu in in_sight if gpu.uuid.startswith(bare(name))]
            if len(fitting) != 1:
                break
            uuids += fitting
        elif name.startswith("MIG"):
            raise NoDriver("CUDA_VISIBLE_DEVICES names slices of a GPU (MIG), which only the framework can tell apart")
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
        uuid=bare(_text(nvml.nvmlDeviceGetUUID(handle))),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        driver=driver,
        memory_bytes=int(memory.total),
        used_bytes=int(memory.used),
        pci=pci,
        near_cores=near_cores(pci, devices),
        processes=tuple(_process(str(each.pid), _name_of(each.pid), each.usedGpuMemory) for each in running),
    )


def _process(pid: str, name: str, used_bytes: int | None) -> str:
    text = f"{plain(name)} (pid {plain(pid)})" if name else f"pid {plain(pid)}"
    return text if used_bytes is None else f"{text} {used_bytes / (1 << 30):.1f} GiB"


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:  # in another namespace, or another's
        return ""


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _rows(text: str, fields: int) -> list[list[str]]:
    rows = [[field.strip() for field in line.split(",")] for line in text.splitlines() if line.strip()]
    return [row for row in rows if len(row) == fields]


def _mib(text: str) -> int | None:
    return int(text) * _MIB if text.isdigit() else None


def _nvidia_smi(arguments: Sequence[str]) -> str:
    """The output of nvidia-smi, without heads and units. Raises NoDriver where it is not installed or fails."""
    answer = run_tool(["nvidia-smi", *arguments, "--format=csv,noheader,nounits"], timeout_s=NVIDIA_SMI_S)
    if answer.failure is Failure.ABSENT:
        raise NoDriver("neither nvidia-ml-py (pip install nvidia-ml-py) nor nvidia-smi is there to ask")
    if not answer.ok:
        raise NoDriver(answer.describe())
    return answer.stdout
