"""Checks of a rank's device that are the same in every framework; each raises InvalidRun."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpc.backends import InvalidRun
from hpc.backends.limits import DEFAULT_BACKEND
from hpc.model.options import DALI, data_source
from hpc.system.text import plural

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World
    from hpc.model.spec import RunSpec

_AMPERE = (8, 0)
_WITH_BF16 = ("gfx908", "gfx90a", "gfx94", "gfx95", "gfx11", "gfx12")
"""Beginnings of AMD's architectures that compute in bf16: CDNA and, from its third generation on, RDNA
(rocm.docs.amd.com, Data types and precision support)."""


def check_sees_gpus(visible: int, run: RunSpec, world: World, framework: str, lacking: str, build: str) -> None:
    """`framework` is its name and version, `lacking` what it was built without, empty where it drives GPUs, `build` the
    one to install where it sees no GPU."""
    if not visible:
        name = framework.split(maxsplit=1)[0]
        reason = f"this {name} was built without {lacking}" if lacking else "no driver or no visible GPU"
        raise InvalidRun(
            f"{run.gpus_per_node} GPUs per node were requested; {framework} finds none on {world.hostname} ({reason}). "
            f"Install {build}, or state gpus_per_node = 0 in the site"
        )


def check_nvidia_only(run: RunSpec, framework: str, is_rocm: bool) -> None:
    """Refuses a build for AMD GPUs of a framework whose backends here drive NVIDIA's only."""
    if is_rocm:
        raise InvalidRun(
            f"{run.gpus_per_node} GPUs per node were requested; {framework} is built for ROCm, and {run.backend} "
            f"drives NVIDIA GPUs only: take {DEFAULT_BACKEND} on AMD GPUs, or state gpus_per_node = 0 in the site"
        )


def check_amd_data(run: RunSpec) -> None:
    source = data_source(run.data)
    if source is not None and source.kind == DALI:
        raise InvalidRun(
            f"data {run.data} was requested; DALI decodes on NVIDIA GPUs and on CPUs, not on AMD GPUs: take "
            f"imagefolder:{source.path}"
        )


def check_visible_once(environ: Mapping[str, str] = os.environ) -> None:
    """Refuses variables that hide an AMD GPU twice: HIP numbers the GPUs that ROCR_VISIBLE_DEVICES leaves from 0 on,
    and its own variable names numbers among these. Slurm sets both alike unless its gres.conf has a flag."""
    remaining = environ.get("ROCR_VISIBLE_DEVICES")
    variable = next((name for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES") if environ.get(name)), None)
    if remaining is None or variable is None:
        return
    gpus = len(remaining.split(","))
    if beyond := [entry for entry in environ[variable].split(",") if entry.strip().isdigit() and int(entry) >= gpus]:
        raise InvalidRun(
            f"ROCR_VISIBLE_DEVICES={remaining} leaves {plural(gpus, 'GPU')}, and HIP looks for {variable}="
            f"{environ[variable]} among these, of which there is no {beyond[0].strip()}: set HIP_VISIBLE_DEVICES="
            f"{','.join(map(str, range(gpus)))}, or Flags=amd_gpu_env in Slurm's gres.conf"
        )


def index_of_rank(world: World, visible: int) -> int:
    """The index of this rank's GPU among the `visible` ones."""
    place, needed = (world.rank, world.size) if world.nodes_simulated else (world.local_rank, world.local_size)
    index = 0 if visible == 1 else place  # one visible GPU: the launcher has bound each rank to its own
    if index >= visible:
        raise InvalidRun(f"{needed} ranks of {world.hostname} need a GPU each; rank {world.rank} sees {visible}")
    return index


def check_not_shared(world: World, comm: Intracomm, uuid: str | None) -> None:
    """Of GPUs without a UUID nothing is known. Collective."""
    mine = (world.hostname, uuid or f"of rank {world.rank}")
    sharing = [rank for rank, theirs in enumerate(comm.allgather(mine)) if theirs == mine]
    if len(sharing) > 1:
        raise InvalidRun(f"ranks {', '.join(map(str, sharing))} share one GPU of {world.hostname}: bind one to each")


def check_gpu_precision(precision: str, name: str, capability: tuple[int, int]) -> None:
    if precision in ("tf32", "bf16") and capability < _AMPERE:
        raise InvalidRun(f"precision {precision} was requested; {name} is before Ampere")


def check_amd_precision(precision: str, name: str, architecture: str) -> None:
    """`architecture` is the GPU's gcnArchName, as `gfx90a:sramecc+:xnack-`."""
    target = architecture.partition(":")[0]
    if precision == "tf32":
        raise InvalidRun(
            f"precision tf32 was requested; it is a mode of NVIDIA GPUs from Ampere on, and {name} ({target}) is an "
            "AMD GPU: take fp32 or bf16"
        )
    if precision == "bf16" and not target.startswith(_WITH_BF16):
        raise InvalidRun(
            f"precision bf16 was requested; {name} ({target}) is none of the AMD GPUs that are known to compute in it "
            f"({', '.join(_WITH_BF16)}): take fp32 or amp-fp16"
        )
