"""Sweeps that meet faults on a real cluster: a workload that does as it is told, and a sweep that is followed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from hpc.outcome import ExitRecord, exit_records
from launch.devcluster.cluster import DevCluster

ROOT = Path(__file__).resolve().parents[2]
WORKLOAD = '''
import os
import signal
import time
from pathlib import Path

import numpy as np


class Faults:
    """Does what DOES says in step 3: `hold` waits for as long as the file `hold` is there, all else is for one rank."""

    def __init__(self, run, device, rank):
        self.parameters = [np.zeros(4, np.float32)]
        self.does = run.env["DOES"] if rank == run.ranks - 1 or run.env["DOES"] == "hold" else "well"
        if self.does == "refuse":
            raise RuntimeError("no such thing here")

    def batch(self, step):
        time.sleep(0.002)
        if step == 3 and self.does == "raise":
            raise ValueError("no\\x1b]0;owned\\x07 luck")
        if step == 3 and self.does == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 3 and self.does == "hoard":
            hoard = bytearray(b"x") * (2 << 30)
            time.sleep(3600)
        here = Path(__file__).parent
        if step == 3 and self.does == "hold" and (here / "hold").exists():
            (here / "holding").touch()
            while (here / "hold").exists():
                time.sleep(0.01)
        return step

    def forward(self, batch):
        return 0.5

    def backward(self):
        return [np.ones(4, np.float32)]

    def receive(self, gradients):
        pass

    def update(self):
        pass

    def samples(self, batch):
        return 8
'''


def until(ready: Callable[[], object], what: str, limit_s: float = 180) -> None:
    """Waits for what must come about; the limit is there for a test that fails."""
    end_s = time.monotonic() + limit_s
    while not ready():
        assert time.monotonic() < end_s, f"{what}: not after {limit_s:.0f} s"
        time.sleep(0.1)


def save_state(cluster: DevCluster, job_id: str) -> None:
    """Waits until the controller has written to disk that this job runs.

    It writes a few seconds late: killed before, it would not know that it had started the job, and start it once more.
    """
    changed_unix_s = time.time()
    cluster.run("scontrol", "update", f"JobId={job_id}", "Comment=saved")
    written = cluster.root / "state" / "job_state"
    until(lambda: written.stat().st_mtime > changed_unix_s, "the controller's state is written")


class Followed:
    """A sweep that a process of its own follows; its runs do what `does` says, a run for each word of it."""

    def __init__(self, cluster: DevCluster, folder: Path, *args: str, does: str = "hold", **env: str) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "faults.py").write_text(WORKLOAD)
        (folder / "hold").touch()
        self.cluster, self.folder, self.traces = cluster, folder, folder / "traces"
        self._argv = [
            sys.executable, "-m", "hpc.sweep", "--site", str(cluster.site_file), "--nodes", "1", "--ranks-per-node",
            "2", "--cpus-per-rank", "1", "--no-baseline", "--repeats", "1", "--backend", "mpi",
            "--workload", f"{folder}/faults.py:Faults", "--steps", "12", "--warmup", "5", "--env", f"DOES={does}",
            *args,
        ]  # fmt: skip
        self._env = {**cluster.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", **env}
        self._printed = folder / "printed"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the sweep; it submits and follows."""
        with self._printed.open("ab") as out:
            self._process = subprocess.Popen(self._argv, cwd=self.folder, env=self._env, stdout=out, stderr=out)

    def hold(self) -> str:
        """Waits until a run holds in its step; the id of its job."""
        until((self.folder / "holding").exists, f"a run holds: {self.printed}")
        (self.folder / "holding").unlink()
        return self.job_id

    def let_go(self) -> None:
        """Lets the run that holds go on, and those after it."""
        (self.folder / "hold").unlink(missing_ok=True)

    def end(self, limit_s: float = 300) -> int:
        """Waits until the sweep has ended; its exit status."""
        assert self._process is not None
        try:
            return self._process.wait(timeout=limit_s)
        finally:
            if self._process.poll() is None:
                self._process.kill()

    def abandon(self) -> None:
        """Ends who follows, if that is still there."""
        self.let_go()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to who follows."""
        assert self._process is not None
        os.kill(self._process.pid, number)

    @property
    def node(self) -> str:
        """Where its job runs."""
        return self.cluster.run("squeue", "-h", "-o", "%N", "-j", self.job_id).strip()

    def kill_script(self) -> None:
        """Ends the job's script by SIGKILL, and nothing else of it."""
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                variables = (entry / "environ").read_bytes().split(b"\0")
                is_script = any(word.endswith(b"/slurm_script") for word in words)
                if is_script and f"SLURM_JOB_ID={self.job_id}".encode() in variables:
                    os.kill(int(entry.name), signal.SIGKILL)

    @property
    def job_id(self) -> str:
        """Of the job that this sweep submitted."""
        _, _, rest = self.printed.partition("submitted as ")
        assert rest, self.printed
        return rest.partition(",")[0]

    @property
    def printed(self) -> str:
        """All that the sweep has printed until now."""
        return self._printed.read_text()

    @property
    def told(self) -> str:
        """What the sweep, its job and its runs printed."""
        logs = sorted((self.folder / "jobs" / "logs").glob("*[!h]"))
        return self.printed + "".join(f"\n== {path.name}\n{path.read_text(errors='replace')}" for path in logs)

    @property
    def records(self) -> list[ExitRecord]:
        """All exit records, by run and attempt."""
        return [record for records in exit_records(self.traces).values() for record in records]

    @property
    def outcomes(self) -> list[str]:
        """Theirs."""
        return [str(record.outcome) for record in self.records]
