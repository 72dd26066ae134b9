"""A sweep that meets faults on a real cluster: a workload that does as it is output, and who follows."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from hpc.model.outcome import ExitRecord, exit_records
from tests.slurm.jobs import TWO_RANKS, kill_script, printed_by
from tests.sweeps import sweep_argv, with_checkout
from tests.waiting import LIMIT_S, until
from tools.devcluster.cluster import DevCluster

WORKLOAD = '''
import os
import signal
import time
from pathlib import Path

from tests.mpi.ranks.user_workloads import Line


class Faults(Line):
    """Does what DOES says in step 3: `hold` waits for as long as the file `hold` is there, all else is for one rank."""

    def __init__(self, run, device, rank):
        super().__init__(run, device, rank)
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
        return super().batch(step)
'''


class Followed:
    """A sweep that a process of its own follows; its runs do what `does` says, a run for each word of it."""

    def __init__(self, cluster: DevCluster, folder: Path, *args: str, does: str = "hold", **env: str) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "faults.py").write_text(WORKLOAD)
        (folder / "hold").touch()
        self.cluster, self.folder, self.traces = cluster, folder, folder / "traces"
        self._argv = sweep_argv(
            "--site", str(cluster.site_file), "--nodes", "1", *TWO_RANKS, "--repeats", "1",
            "--workload", f"{folder}/faults.py:Faults", "--steps", "12", "--warmup", "5", "--env", f"DOES={does}",
            *args,
        )  # fmt: skip
        self._env = {**with_checkout(cluster.environ), **env}
        self._printed = folder / "printed"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the sweep; it submits and follows."""
        with self._printed.open("ab") as out:
            self._process = subprocess.Popen(self._argv, cwd=self.folder, env=self._env, stdout=out, stderr=out)

    def hold(self) -> str:
        """Waits until a run holds in its step; the id of its job."""
        until((self.folder / "holding").exists, "a run holds", lambda: self.output)
        (self.folder / "holding").unlink()
        return self.job_id

    def let_go(self) -> None:
        """Lets the run that holds go on, and those after it."""
        (self.folder / "hold").unlink(missing_ok=True)

    def end(self) -> int:
        """Waits until the sweep has ended; its exit status."""
        assert self._process is not None
        try:
            return self._process.wait(timeout=LIMIT_S)
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
        """The node of its job."""
        return self.cluster.run("squeue", "-h", "-o", "%N", "-j", self.job_id).strip()

    def kill_script(self) -> None:
        """Ends the job's script and launch.step by SIGKILL, and nothing else of it."""
        kill_script(self.cluster, self.job_id)

    @property
    def job_id(self) -> str:
        """The id of the job that this sweep submitted."""
        _, _, rest = self.printed.partition("submitted as ")
        assert rest, self.printed
        return rest.partition(",")[0]

    @property
    def printed(self) -> str:
        """All that the sweep has printed until now."""
        return self._printed.read_text()

    @property
    def output(self) -> str:
        """The output of the sweep, its job and its runs."""
        return self.printed + printed_by(self.folder)

    @property
    def records(self) -> list[ExitRecord]:
        """All exit records, by run and attempt."""
        return [record for records in exit_records(self.traces).values() for record in records]

    @property
    def outcomes(self) -> list[str]:
        """The outcomes of these records."""
        return [str(record.outcome) for record in self.records]
