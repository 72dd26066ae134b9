"""The GPUs of this machine by its kernel, and the Python modules of their drivers: pynvml, and of AMD's amdsmi."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

NVIDIA = Path("/proc/driver/nvidia/gpus")
AMD = Path("/sys/class/kfd/kfd/topology/nodes")
INSTALL_AMDSMI = "pip install amdsmi, of the version of the machine's ROCm"


class NoDriver(Exception):
    """The driver's Python module is not there, or the driver does not answer; the text has the reason."""


def gpus_of_kernel(nvidia: Path = NVIDIA, amd: Path = AMD) -> int | None:
    """The number of GPUs by NVIDIA's driver, with those that this process may not use, else by AMD's; None for none."""
    if nvidia.is_dir():
        return len(list(nvidia.iterdir()))
    return amd_gpus_of_kernel(amd) or None


def amd_gpus_of_kernel(nodes: Path = AMD) -> int:
    """The number of AMD's GPUs that this process may use. Each has an identity, which the graphics inside a processor
    lacks."""
    return sum(each.get("unique_id", "0") != "0" for each in _properties(nodes))


def has_amd_gpus(nvidia: Path = NVIDIA, amd: Path = AMD) -> bool:
    """Whether this machine's GPUs are AMD's: where there is NVIDIA's driver they are not."""
    return not nvidia.is_dir() and bool(_properties(amd))


def _properties(nodes: Path) -> list[dict[str, str]]:
    """Those of each GPU; a processor has no units that compute many numbers at once."""
    properties = [dict(map(str.split, _lines(node / "properties"))) for node in nodes.glob("*")]
    return [each for each in properties if each.get("simd_count", "0") != "0"]


def _lines(path: Path) -> Iterator[str]:
    """The lines of a name and a value; none where this process may not read the file, as of a GPU of another job."""
    try:
        text = path.read_text()
    except OSError:
        return
    yield from (line for line in text.splitlines() if len(line.split()) == 2)


def load_nvml() -> ModuleType:
    """The module pynvml. Raises NoDriver where it is not installed."""
    try:
        import pynvml
    except ImportError:
        raise NoDriver(
            "nvidia-ml-py is not installed (pip install nvidia-ml-py), and the kernel shows no AMD GPU"
        ) from None
    module: ModuleType = pynvml
    return module


def load_amdsmi() -> ModuleType:
    """The module amdsmi. Raises NoDriver where it is not installed, or finds no library of ROCm."""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):  # it prints that its library is absent, and fails by a KeyError then
            import amdsmi
    except ImportError:
        raise NoDriver(f"amdsmi is not installed: {INSTALL_AMDSMI}") from None
    except (KeyError, OSError, AttributeError) as error:
        reason = printed.getvalue().partition("\n")[0] or f"{type(error).__name__}: {error}"
        raise NoDriver(f"amdsmi does not load ({reason}): install amd-smi-lib of ROCm") from None
    module: ModuleType = amdsmi
    return module


@dataclass(frozen=True)
class AmdGpu:
    """A GPU by amdsmi: its handle there, its UUID as `bare_uuid` has it, its number in HIP, and in the name of its
    render node."""

    handle: Any
    uuid: str
    hip_index: int
    render_node: int


def amd_gpus(amdsmi: ModuleType | Any) -> list[AmdGpu]:
    """All GPUs that amdsmi shows, in HIP's order. Raises NoDriver where it does not name that, or where two have one
    UUID, and amdsmi's own exceptions.
    """
    if not hasattr(amdsmi, "amdsmi_get_gpu_enumeration_info"):
        raise NoDriver("this amdsmi does not say in which order HIP numbers the GPUs: that of ROCm 6.4 or later does")
    amdsmi.amdsmi_init()
    gpus = [_amd_gpu(amdsmi, handle) for handle in amdsmi.amdsmi_get_processor_handles()]
    if len({gpu.uuid for gpu in gpus}) < len(gpus):
        raise NoDriver("amdsmi has one UUID for several GPUs, as for partitions of one: only HIP distinguishes them")
    return sorted(gpus, key=lambda gpu: gpu.hip_index)


def _amd_gpu(amdsmi: Any, handle: Any) -> AmdGpu:
    facts = amdsmi.amdsmi_get_gpu_enumeration_info(handle)
    if not all(isinstance(facts[name], int) for name in ("hip_id", "drm_render")):
        raise NoDriver(f"amdsmi does not number a GPU ({facts})")
    return AmdGpu(
        handle=handle, uuid=bare_uuid(facts["hip_uuid"]), hip_index=facts["hip_id"], render_node=facts["drm_render"]
    )


def bare_uuid(uuid: str | bytes) -> str:
    """The UUID alone, as every source writes it: frameworks leave out the driver's prefix, old modules give bytes."""
    return (uuid.decode(errors="replace") if isinstance(uuid, bytes) else uuid).removeprefix("GPU-").lower()
