"""Horovod's group of ranks, the same for torch and TensorFlow: made from MPI's communicator, with its settings told."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc.backends import InvalidRun
from hpc.backends.horovod_build import build_problem, built_against
from hpc.options import OptionValue

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.spec import RunSpec

_MIB = 2**20


def join_horovod(
    hvd: Any, framework: str, options: Mapping[str, OptionValue], run: RunSpec, comm: Intracomm
) -> dict[str, OptionValue]:
    """Starts Horovod on the ranks of `comm`; `hvd` is horovod.torch or horovod.tensorflow. Returns what holds.

    What the run sets by its environment goes before the options. Raises InvalidRun where Horovod sees other ranks
    than MPI does, or would reduce a GPU's gradients without NCCL.
    """
    if (problem := build_problem(framework)) and comm.rank == 0:
        print(f"rankwise: {problem}", file=sys.stderr, flush=True)
    holding = dict(options)
    for option, variable, unit in (
        ("fusion_threshold_mb", "HOROVOD_FUSION_THRESHOLD", _MIB),
        ("cycle_time_ms", "HOROVOD_CYCLE_TIME", 1),
    ):
        if variable in run.env:
            holding[option] = float(run.env[variable]) / unit
        else:
            os.environ[variable] = f"{float(options[option]) * unit:.10g}"
    hvd.init(comm)
    if (hvd.rank(), hvd.size()) != (comm.rank, comm.size):
        raise InvalidRun(
            f"Horovod says rank {hvd.rank()} of {hvd.size()} where MPI says {comm.rank} of {comm.size}; "
            f"loaded are {', '.join(_mpi_libraries()) or 'no libmpi'}: make horovod builds it against this MPI"
        )
    if run.gpus_per_node and not hvd.nccl_built():
        raise InvalidRun(
            "this Horovod was built without NCCL and would reduce on the host: HOROVOD_GPU_OPERATIONS=NCCL make horovod"
        )
    return holding


def describe_horovod(hvd: Any, run: RunSpec) -> dict[str, Any]:
    """What it was built with, and by what it reduces here."""
    import horovod

    return {
        "horovod": horovod.__version__,
        "horovod_built_against": built_against(),
        "horovod_mpi_libraries": _mpi_libraries(),
        "horovod_controller": "mpi" if hvd.mpi_enabled() else "gloo",
        "horovod_operations": "nccl" if run.gpus_per_node else os.environ.get("HOROVOD_CPU_OPERATIONS", "mpi").lower(),
    }


def _mpi_libraries() -> list[str]:
    """The MPI libraries in this process: more than one says that Horovod and mpi4py do not share theirs."""
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libmpi.so" in line}
    return sorted(paths)
