"""Clusters for the tests of one file, and jobs on them."""

from __future__ import annotations

import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.processes import Process, processes, signal_all
from tests.sweeps import sweep_argv, with_checkout
from tests.waiting import until
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import Shape

TWO_RANKS = ("--ranks-per-node", "2", "--cpus-per-rank", "1", "--no-baseline", "--backend", "mpi")
"""Two ranks on a node, and nothing beside what is requested."""
_ENDED = frozenset(
    ["BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"]
)  # what squeue calls a job that runs no more


@contextmanager
def new_cluster(shape: Shape) -> Iterator[DevCluster]:
    """A cluster that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="rw-", dir="/var/tmp"))  # short: sockets lie below it
    with DevCluster(folder, shape) as running:
        yield running
    shutil.rmtree(folder)


def write_scripts(cluster: DevCluster, folder: Path, *options: str, site: Path | None = None) -> Path:
    """Writes the scripts of a sweep into the folder, and submits none; the folder of the scripts."""
    argv = sweep_argv("--site", str(site or cluster.site_file), *options, "--dry-run")
    done = subprocess.run(
        argv, cwd=folder, env=with_checkout(cluster.environ), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "jobs"


def submit(cluster: DevCluster, script: Path, *arguments: str) -> str:
    """Hands a script to sbatch by hand, in a folder that is none of its sweep's; the id of the job."""
    return cluster.run("sbatch", "--parsable", script, *arguments, cwd=cluster.root).strip()


def state(cluster: DevCluster, job_id: str) -> str:
    """squeue's word for a job."""
    return cluster.run("squeue", "-h", "-t", "all", "-j", job_id, "-o", "%T").strip()


def has_ended(cluster: DevCluster, job_id: str) -> bool:
    """Whether nothing of a job runs any more, and it is not put back into the queue."""
    return state(cluster, job_id) in _ENDED


def limit_soon(cluster: DevCluster, job_id: str) -> None:
    """Gives a job that runs a time limit which is one to two minutes away, however long it has run."""
    used = cluster.run("squeue", "-h", "-j", job_id, "-o", "%M").strip()  # 1:59, or 1:00:05
    hours, minutes, _ = (int(part) for part in f"0:{used}".split(":")[-3:])
    cluster.run("scontrol", "update", f"JobId={job_id}", f"TimeLimit={60 * hours + minutes + 2}")


def save_state(cluster: DevCluster, job_id: str) -> None:
    """Returns when the controller has written to disk all that it knows now.

    It writes a few seconds late: killed before, it would not know that it had started a job, and start it once more.
    """
    mark = f"saved-{secrets.token_hex(8)}"
    cluster.run("scontrol", "update", f"JobId={job_id}", f"Comment={mark}")
    until(lambda: mark.encode() in _saved(cluster), "the controller's state is written")


def _saved(cluster: DevCluster) -> bytes:
    with suppress(FileNotFoundError):  # for a moment, while the next one takes its place
        return (cluster.root / "state" / "job_state").read_bytes()
    return b""


def printed_by(folder: Path) -> str:
    """The output of the jobs and runs of the sweep in this folder, with the names of the files."""
    logs = sorted((folder / "jobs" / "logs").glob("*[!h]"))
    return "".join(f"\n== {path.name}\n{path.read_text(errors='replace')}" for path in logs)


def kill_script(cluster: DevCluster, job_id: str) -> None:
    """Ends a job's script and its launch.step by SIGKILL, and nothing else of it."""

    def of_the_script() -> list[Process]:
        every = (process for process in processes() if is_of_job(process, cluster, job_id))
        return [each for each in every if "launch.step" in each.words or _is_script(each)]

    assert signal_all(of_the_script, signal.SIGKILL)


def is_of_job(process: Process, cluster: DevCluster, job_id: str) -> bool:
    """Whether the process was started with the job's number. Another cluster may have a job of the same number."""
    conf = f"SLURM_CONF={cluster.root}/"
    return f"SLURM_JOB_ID={job_id}" in process.environ and any(each.startswith(conf) for each in process.environ)


def _is_script(process: Process) -> bool:
    return any(argument.endswith("/slurm_script") for argument in process.words)
