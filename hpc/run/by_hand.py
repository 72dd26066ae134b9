"""A run that nobody planned: its layout and its attempt, from the ranks that a person started."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from glob import escape
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from hpc.measure.world import LaunchError, World, world_from_mpi
from hpc.model.options import OptionError
from hpc.model.spec import RunSpec, SpecError

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

_GPUS = Path("/proc/driver/nvidia/gpus")


def agreed(comm: Intracomm, make_run: Callable[[], RunSpec]) -> RunSpec:
    """The run of this launch. Collective; raises SpecError on all ranks where any rank cannot take part."""
    run, problem = None, ""
    try:
        run = make_run()
    except (SpecError, OptionError) as error:
        problem = str(error)
    reasons: list[str] = comm.allgather(problem)
    if any(reasons):
        rank = next(rank for rank, reason in enumerate(reasons) if reason)
        raise SpecError(reasons[rank] if all(reasons) else f"rank {rank}: {reasons[rank]}")
    assert run is not None
    return run


def layout(simulated_nodes: int, comm: Intracomm) -> tuple[int, int]:
    """The nodes, and the ranks on each. Collective. Raises SpecError where nodes differ in their ranks."""
    if simulated_nodes:
        if comm.size % simulated_nodes:
            raise SpecError(f"{comm.size} ranks do not make {simulated_nodes} nodes of equal size")
        return simulated_nodes, comm.size // simulated_nodes
    worlds: list[World] = comm.allgather(world_from_mpi(comm))
    sizes = sorted({world.local_size for world in worlds})
    if len(sizes) > 1:
        raise SpecError(
            f"nodes have {' and '.join(map(str, sizes))} ranks: give each as many (srun --ntasks-per-node, mpiexec "
            "--map-by ppr:N:node)"
        )
    return worlds[0].nodes, sizes[0]


def gpus_here() -> int:
    """The GPUs that the driver of this machine has."""
    return len(list(_GPUS.iterdir())) if _GPUS.is_dir() else 0


def cpus_per_rank(requested: int | None) -> int:
    """The threads of each rank: as requested, else as Slurm gave it."""
    if requested is not None:
        return requested
    cpus = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return int(cpus) if cpus.isdigit() else 1


def site_name(requested: str | None) -> str:
    """The name of the cluster: as requested, else Slurm's."""
    return requested or os.environ.get("SLURM_CLUSTER_NAME") or "local"


def variables(names: Sequence[str]) -> dict[str, str]:
    """These variables of the launch. Raises SpecError where one is not set."""
    if missing := [name for name in names if name not in os.environ]:
        raise SpecError(f"--env {', '.join(missing)}: not set here; set it for the launcher, and name it only")
    return {name: os.environ[name] for name in names}


def next_attempt(traces: Path, run: RunSpec, comm: Intracomm) -> int:
    """The number of this attempt: one more than the last attempt that has a file in the folder.

    Collective. Raises LaunchError on all ranks where rank 0 cannot write to the folder.
    """
    number: int | str = 0
    if comm.rank == 0:
        try:
            traces.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=traces) as file:
                file.write(b"room for a trace")
            name = re.compile(rf"{re.escape(run.run_id)}\.(\d+)\..*")
            matches = [name.fullmatch(path.name) for path in traces.glob(f"{escape(run.run_id)}.*")]
            number = 1 + max((int(match[1]) for match in matches if match), default=0)
        except OSError as error:
            number = f"--traces {traces} cannot be written ({error.strerror or error}): name a folder that can be"
    attempt: int | str = comm.bcast(number)
    if isinstance(attempt, str):
        raise LaunchError(attempt)
    return attempt
