"""Horovod's group of ranks for torch and TensorFlow: made from MPI's communicator, with the run's settings."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc.backends import InvalidRun
from hpc.backends.training import HorovodFacts
from hpc.model.options import OptionValue

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.model.spec import RunSpec

# The versions that the installed Horovod was built against, from its metadata file; imports no framework.

_NAMES = {"torch": "pytorch", "tensorflow": "tensorflow"}
"""Frameworks by their names in Horovod's metadata."""


def installed_version(framework: str) -> str | None:
    """The version of an installed framework, read without importing it; None where it is not installed.

    torch's is read from its version.py: the version of its package lacks the CUDA build (2.13.0, not 2.13.0+cu130).
    """
    if (folder := _folder(framework)) is None:
        return None
    if framework == "torch":
        match = re.search(r"^__version__ = '(.+)'$", (folder / "version.py").read_text(), re.MULTILINE)
        return match[1] if match else version(framework)
    for package in (framework, f"{framework}-cpu"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    others = packages_distributions().get(framework, ())  # slow; tensorflow-rocm and tf-nightly are such
    return next((version(package) for package in others), None)


def built_for() -> dict[str, str | None]:
    """The ingredients of the installed Horovod as recorded by `make horovod`; empty if it was built otherwise."""
    return dict(_metadata().get("built_for", {}))


def built_against() -> dict[str, str]:
    """Versions of torch, tensorflow and MPI that Horovod was compiled with, as far as its metadata has them."""
    metadata = _metadata()
    versions = {framework: str(metadata[name]) for framework, name in _NAMES.items() if metadata.get(name)}
    mpi = built_for().get("mpi")
    return {**versions, "mpi": mpi} if mpi else versions


def build_problem(framework: str) -> str:
    """One line where the installed Horovod does not fit the installed framework; empty where it fits or is absent."""
    if _folder("horovod") is None or (installed := installed_version(framework)) is None:
        return ""
    built = built_against().get(framework)
    if built == installed:
        return ""
    target = f"against {framework} {built}" if built else f"without {framework}"
    return f"Horovod was built {target}, installed is {framework} {installed}: rebuild it by make horovod"


def _metadata() -> dict[str, Any]:
    if (folder := _folder("horovod")) is None:
        return {}
    try:
        return dict(json.loads((folder / "metadata.json").read_text()))
    except (FileNotFoundError, ValueError):
        return {}


def _folder(package: str) -> Path | None:
    """The folder of an installed package; None where only a leftover folder of it exists, or nothing."""
    spec = find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


_MIB = 2**20
_CRASHING = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
"""Horovod 0.28.1 started from MPI aborts with these."""
_NUMBER = re.compile(r"\d+(\.\d*)?")
"""Horovod's form of numbers: it would read 1e6 as 1."""
_LIBMPI = re.compile(r"/\S*/libmpi(?:ch)?\.so\S*")


def load_horovod(framework: str, comm: Intracomm) -> Any:
    """horovod.torch or horovod.tensorflow. Prints a build problem first, because the module may not load."""
    problem = build_problem(framework)
    if problem and comm.rank == 0:
        print(f"rankwise: {problem}", file=sys.stderr, flush=True)
    try:
        return import_module(f"horovod.{framework}")
    except ImportError as error:
        raise ImportError(f"horovod.{framework} does not load: {problem or 'rebuild it by make horovod'}") from error


def join_horovod(
    hvd: Any, framework: str, options: Mapping[str, OptionValue], run: RunSpec, comm: Intracomm
) -> dict[str, OptionValue]:
    """Starts Horovod on the ranks of `comm`. Returns the options in effect: the run's environment overrides them.

    Raises InvalidRun where Horovod sees other ranks than MPI does, could not share MPI with them, or would reduce a
    GPU's gradients without NCCL.
    """
    _check_before(hvd, framework, run)
    effective = dict(options)
    for option, variable, unit in (
        ("fusion_threshold_mb", "HOROVOD_FUSION_THRESHOLD", _MIB),
        ("cycle_time_ms", "HOROVOD_CYCLE_TIME", 1),
    ):
        if variable in run.env:
            effective[option] = _number(variable, run.env[variable]) / unit
        else:
            os.environ[variable] = f"{_number(option, options[option]) * unit:f}"
    hvd.init(comm)
    if (hvd.rank(), hvd.size()) != (comm.rank, comm.size):
        raise InvalidRun(
            f"Horovod says rank {hvd.rank()} of {hvd.size()} where MPI says {comm.rank} of {comm.size}: "
            "rebuild it against this MPI by make horovod"
        )
    return effective


def _check_before(hvd: Any, framework: str, run: RunSpec) -> None:
    """Raises InvalidRun for a setup in which Horovod would crash or do something else than requested."""
    from mpi4py import MPI

    for variable, value in _CRASHING.items():
        if os.environ.get(variable, "").lower() == value:
            raise InvalidRun(
                f"{variable}={value} was requested; ranks come from MPI here, and Horovod would crash with it"
            )
    if not hvd.mpi_built():
        raise InvalidRun(f"this horovod.{framework} was built without MPI: rebuild it by make horovod")
    if len(libraries := _mpi_libraries()) > 1:
        raise InvalidRun(
            f"Horovod and mpi4py do not share their MPI ({' and '.join(libraries)} are loaded): "
            "make horovod rebuilds it against the one that MPI4PY_LIBMPI names, or that mpi4py finds by itself"
        )
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise InvalidRun(
            "Horovod calls MPI from a thread of its own, and this MPI was not started for several threads "
            "(MPI_THREAD_MULTIPLE): unset MPI4PY_RC_THREAD_LEVEL, or take an MPI that was built with threads"
        )
    if run.gpus_per_node and not hvd.nccl_built():
        raise InvalidRun(
            "this Horovod was built without NCCL and would reduce on the host: HOROVOD_GPU_OPERATIONS=NCCL make "
            "horovod, on AMD GPUs with HOROVOD_GPU=ROCM too"
        )


def _number(name: str, value: OptionValue) -> float:
    if not _NUMBER.fullmatch(str(value)):
        raise InvalidRun(f"{name} is {value}; it must be a number, 0 or more, written as 0.5 or 64")
    return float(value)


def horovod_facts(hvd: Any, run: RunSpec) -> HorovodFacts:
    import horovod

    return HorovodFacts(
        version=horovod.__version__,
        built_against=built_against(),
        mpi_libraries=_mpi_libraries(),
        controller="mpi" if hvd.mpi_enabled() else "gloo",
        operations="nccl" if run.gpus_per_node else os.environ.get("HOROVOD_CPU_OPERATIONS", "mpi").lower(),
    )


def _mpi_libraries() -> list[str]:
    """The MPI libraries in this process; with more than one, Horovod and mpi4py do not share theirs."""
    return sorted(set(_LIBMPI.findall(Path("/proc/self/maps").read_text())))
