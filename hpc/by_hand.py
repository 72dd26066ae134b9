"""A run that nobody planned: the ranks that a person started agree on it, and make it."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from glob import escape
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from hpc.measure.connections import ConnectionLost
from hpc.measure.world import LaunchError, world_of
from hpc.model.files import AttemptFiles
from hpc.model.options import OptionError
from hpc.model.outcome import Outcome
from hpc.model.spec import RunSpec, SpecError
from hpc.preflight.run import Expectations
from hpc.rank import RankArguments, run_ranks
from hpc.run.rank_end import EXIT_STATUS
from hpc.system.command_line import called

if TYPE_CHECKING:
    from hpc.measure.connections import Communicator

_GPUS = Path("/proc/driver/nvidia/gpus")


def run_by_hand(
    program: str,
    connect: Callable[[], Communicator],
    make_run: Callable[[Communicator], RunSpec],
    *,
    traces: Path,
    simulate_nodes: bool,
    expectations: Expectations,
) -> tuple[int, Path | None]:
    """Connects the ranks, has them agree on a run and make it; the exit status of this one, and on rank 0 the trace
    where there is one. Collective.
    """
    try:
        comm = connect()
    except LaunchError as error:
        print(f"{called(program)}: {error}", file=sys.stderr)
        return EXIT_STATUS[Outcome.LAUNCH_FAIL], None
    try:
        run = _agreed(comm, partial(make_run, comm))
        attempt = _next_attempt(traces, run, comm)
    except (SpecError, LaunchError) as error:  # on all ranks alike
        if comm.rank == 0:
            print(f"{called(program)}: {error}", file=sys.stderr)
        return EXIT_STATUS[Outcome.LAUNCH_FAIL] if isinstance(error, LaunchError) else 2, None
    except ConnectionLost as error:
        print(f"{called(program)}: {error}", file=sys.stderr)
        comm.Abort(EXIT_STATUS[Outcome.LAUNCH_FAIL])
    except BaseException:
        traceback.print_exc()
        comm.Abort(EXIT_STATUS[Outcome.RANK_FAIL])  # the other ranks wait for this one
        raise
    arguments = RankArguments(
        run=None, attempt=attempt, traces=traces, script=None, simulate_nodes=simulate_nodes, expectations=expectations
    )
    status = run_ranks(arguments, run, comm)
    measured = status == 0 and comm.rank == 0
    return status, AttemptFiles(traces, run.run_id, attempt).trace if measured else None


def _agreed(comm: Communicator, make_run: Callable[[], RunSpec]) -> RunSpec:
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


def layout(simulated_nodes: int, comm: Communicator) -> tuple[int, int]:
    """The nodes, and the ranks on each. Collective. Raises SpecError where nodes differ in their ranks."""
    if simulated_nodes:
        if comm.size % simulated_nodes:
            raise SpecError(f"{comm.size} ranks do not make {simulated_nodes} nodes of equal size")
        return simulated_nodes, comm.size // simulated_nodes
    world = world_of(comm)
    sizes = sorted(set(comm.allgather(world.local_size)))
    if len(sizes) > 1:
        raise SpecError(
            f"nodes have {' and '.join(map(str, sizes))} ranks: give each as many (srun --ntasks-per-node, mpiexec "
            "--map-by ppr:N:node)"
        )
    return world.nodes, sizes[0]


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


def _next_attempt(traces: Path, run: RunSpec, comm: Communicator) -> int:
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
