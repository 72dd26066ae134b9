"""The machine, the software and the job of a run, as its trace has them."""

from __future__ import annotations

import os
import platform
import re
import socket
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hpc.system.sanitize import REDACTED, is_secret
from hpc.system.tool import Answer, Failure, run_tool

_ROOT = Path(__file__).resolve().parents[2]
# Not recorded: variables that change with every launch and change no speed, as those of Open MPI's launcher for its own
# processes (orte, ess, pmix), of the meeting place of Paddle's ranks and of NCCL's log.
_RECORDED = re.compile(
    r"(AMD|CUDA|FI|FLAGS|GLOO|GPU|HIP|HIPBLASLT|HOROVOD|HSA|KERAS|MIOPEN|MKL|MPI4PY|NCCL(?!_DEBUG_FILE)|OMP"
    r"|OMPI(?!_MCA_orte|_MCA_ess|_MCA_pmix)|ONEDNN|OPENBLAS|PADDLE(?!_CURRENT_ENDPOINT|_MASTER|_TRAINER)|PYTORCH|RCCL"
    r"|ROCBLAS|ROCR|SBATCH|SLURM|TENSILE|TF|TORCH|UCX|XLA)_"
)
_GIT_TIMEOUT_S = 20.0
_PACKAGES = ("numpy", "mpi4py", "h5py")
_DIFFERING = ("software", "variables", "backend", "preflight")


def describe_host(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> dict[str, Any]:
    """This rank's machine: name, boot, processor, memory, driver, and the cores that it may use."""
    affinity = sorted(os.sched_getaffinity(0))
    memory = _field(_read(proc / "meminfo"), "MemTotal")
    return {
        "hostname": socket.gethostname(),
        "boot_id": _read(proc / "sys/kernel/random/boot_id"),
        "kernel": platform.release(),
        "cpu_model": _field(_read(proc / "cpuinfo"), "model name") or platform.machine(),
        "cpus": os.cpu_count(),
        "cpus_allowed": len(affinity),
        "affinity": affinity,
        "memory_bytes": int(memory.removesuffix("kB")) * 1024 if memory else None,
        "nvidia_driver": _first_line(_read(proc / "driver/nvidia/version")),
        "amdgpu_driver": _first_line(_read(sys / "module/amdgpu/version")),  # that in the kernel itself has none
    }


def describe_software() -> dict[str, Any]:
    """Versions of what every run uses; a backend adds its own."""
    versions: dict[str, Any] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return versions


def describe_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that can change a speed or identify the place; the value of a likely secret is redacted."""
    return {
        name: REDACTED if is_secret(name, value) else value
        for name, value in sorted(environ.items())
        if _RECORDED.match(name)
    }


def describe_project(root: Path = _ROOT) -> dict[str, Any]:
    """The project's commit, and whether files were changed since; empty where there is no git or no repository.

    Where git fails otherwise, only `problem` is set, to git's message.
    """
    if not (root / ".git").exists():
        return {}  # a repository above this folder is another project's
    answers = [_git(root, *arguments) for arguments in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno"))]
    if any(answer.failure is Failure.ABSENT for answer in answers):
        return {}
    if failed := [answer for answer in answers if not answer.ok]:
        return {"problem": f"git: {failed[0].output}" if failed[0].output else failed[0].describe()}
    commit, changes = (answer.stdout.strip() for answer in answers)
    return {"commit": commit, "dirty": bool(changes)}


def in_common(ranks: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The software, variables and backend facts that all ranks share, and each rank's facts without the shared ones."""
    shared: dict[str, Any] = {}
    for group in _DIFFERING:
        first = ranks[0].get(group, {})
        shared[group] = {
            name: value
            for name, value in first.items()
            if all(name in rank.get(group, {}) and rank[group][name] == value for rank in ranks)
        }
    individual = []
    for rank in ranks:
        remaining = {group: _without(rank.get(group, {}), shared[group]) for group in _DIFFERING}
        facts = {name: value for name, value in rank.items() if name not in _DIFFERING}
        individual.append({**facts, **{group: value for group, value in remaining.items() if value}})
    return shared, individual


def _without(values: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in shared}


def _git(root: Path, *arguments: str) -> Answer:
    return run_tool(["git", "-C", str(root), *arguments], timeout_s=_GIT_TIMEOUT_S)


def _read(path: Path) -> str | None:
    """The file's text; None where this kernel has no such file."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _field(text: str | None, name: str) -> str | None:
    match = re.search(rf"^{re.escape(name)}\s*:\s*(.*)$", text or "", re.MULTILINE)
    return match[1].strip() if match else None


def _first_line(text: str | None) -> str | None:
    return text.splitlines()[0] if text else None
