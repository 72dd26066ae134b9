"""Signals to the ranks of an unchanged script: it has each once, is waited for, and ends as its rank does."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hpc.backends import missing_modules
from hpc.model.outcome import Outcome
from hpc.model.spec import SCRIPT
from hpc.model.trace import Trace
from hpc.model.trace_file import read_trace
from tests.mpi.script_runs import ROOT, SCRIPTS
from tests.mpi.test_observe_launchers import TORCHRUN
from tests.processes import processes
from tests.sweeps import outcomes, sweep_argv, with_checkout
from tests.waiting import until

pytestmark = pytest.mark.skipif(bool(missing_modules(SCRIPT)), reason="; ".join(missing_modules(SCRIPT)))


class Training:
    """saves.py under hpc.observe in a folder, on ranks that are started one by one, or by the words of a launcher."""

    def __init__(
        self, folder: Path, *how: str, ranks: int = 1, launcher: tuple[str, ...] = (), warmup: int = 10
    ) -> None:
        self.folder, self.ranks, self._stack = folder, ranks, ExitStack()
        script = ["-m", "hpc.observe", "--warmup", str(warmup), "--", str(SCRIPTS / "saves.py"), str(folder), *how]
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1])
        place = {} if ranks == 1 else {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        self.processes = [
            subprocess.Popen(
                [*launcher, *script] if launcher else [sys.executable, *script], cwd=folder, text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
                     **({} if launcher or ranks == 1 else {**place, "RANK": str(rank)})},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
            for rank in range(1 if launcher else ranks)
        ]  # fmt: skip

    def await_files(self, name: str, content: str = "", ranks: int | None = None) -> None:
        paths = [self.folder / f"rank{rank}.{name}" for rank in range(self.ranks if ranks is None else ranks)]

        def are_there() -> bool:
            assert all(process.poll() is None for process in self.processes), self.output()
            return all(path.exists() and content in path.read_text() for path in paths)

        until(are_there, f"{name} of the scripts")

    def got(self, rank: int = 0) -> list[str]:
        return (self.folder / f"rank{rank}.got").read_text().split()

    def save(self) -> None:
        (self.folder / "go").touch()

    def output(self) -> str:
        return "".join(process.communicate()[0] for process in self.processes if process.poll() is not None)

    def end(self) -> list[int]:
        return [process.wait() for process in self.processes]

    def trace(self) -> Trace:
        (path,) = (self.folder / "traces").glob("*.h5")
        return read_trace(path)

    def children(self) -> list[int]:
        """All processes with the folder in their command line but those that were started here: scripts, witnesses."""
        started = {process.pid for process in self.processes}
        return [each.pid for each in processes() if str(self.folder) in each.words and each.pid not in started]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def training(stack: ExitStack, folder: Path, *how: str, **where: object) -> Training:
    made = Training(folder, *how, **where)  # type: ignore[arg-type] - as given above
    for process in made.processes:
        stack.callback(process.wait)
        stack.callback(process.kill)
    made.await_files("runs")
    return made


@pytest.mark.parametrize(
    "name", ["SIGTERM", *(pytest.param(each, marks=pytest.mark.all) for each in ("SIGUSR1", "SIGUSR2", "SIGINT"))]
)
def test_a_script_that_saves_on_a_signal_is_waited_for(tmp_path: Path, stack: ExitStack, name: str) -> None:
    made = training(stack, tmp_path)
    made.processes[0].send_signal(signal.Signals[name])
    made.await_files("got")
    made.processes[0].send_signal(signal.SIGHUP)  # it gets others, too, while it saves
    until(lambda: made.got()[-1] == "SIGHUP" and len(made.got()) == 2, "the second signal")
    made.save()
    assert made.end() == [0], made.output()
    trace = made.trace()
    assert trace.outcome is Outcome.OK and not trace.recovered
    steps = int((tmp_path / "rank0.saved").read_text())
    assert trace.stamps.shape[1] in (steps, steps - 1)
    assert re.search(r"ended early at step \d+ by SIGHUP(;|$)", trace.evidence), trace.evidence


@pytest.mark.parametrize(
    ("how", "status"), [("status=7", 7), pytest.param("default", -signal.SIGUSR1, marks=pytest.mark.all)]
)
def test_the_end_of_the_script_is_that_of_its_rank(tmp_path: Path, stack: ExitStack, how: str, status: int) -> None:
    made = training(stack, tmp_path, how)
    made.save()
    made.processes[0].send_signal(signal.SIGUSR1)
    assert made.end() == [status], made.output()
    trace = made.trace()
    assert (trace.outcome, trace.recovered) == (Outcome.CANCELLED, True)
    ended = "exit status 7" if status > 0 else "signal 10 (SIGUSR1)"
    assert trace.evidence.startswith(f"rank 0: the script ended with {ended}; ")
    assert "by SIGUSR1" in trace.evidence


def test_a_signal_to_all_processes_reaches_the_script_once(tmp_path: Path, stack: ExitStack) -> None:
    """As from a launcher that signals a tree of processes: a second one would end the script with 99."""
    made = training(stack, tmp_path, "once")
    for pid in made.children():
        os.kill(pid, signal.SIGINT)
    made.processes[0].send_signal(signal.SIGINT)
    made.await_files("got")
    made.processes[0].send_signal(signal.SIGTERM)  # comes behind the first, had that been handed on
    until(lambda: "SIGTERM" in made.got(), "the signal to the rank alone")
    made.save()
    assert made.end() == [0], made.output()
    assert made.got() == ["SIGINT", "SIGTERM"]


def test_a_script_that_ends_on_a_signal_before_the_window_is_no_invalid_run(tmp_path: Path, stack: ExitStack) -> None:
    made = training(stack, tmp_path, warmup=1000)
    made.save()
    made.processes[0].send_signal(signal.SIGTERM)
    assert made.end() == [0]
    output = made.output()
    assert "nothing was measured: the script made" in output and "by SIGTERM" in output
    assert (tmp_path / "rank0.saved").exists()


@pytest.mark.all
def test_a_rank_that_fails_on_a_signal_does_not_end_the_script_of_another(tmp_path: Path, stack: ExitStack) -> None:
    made = training(stack, tmp_path, "fails=1", ranks=2)
    for process in made.processes:
        process.send_signal(signal.SIGUSR1)
    made.await_files("got")
    until(lambda: len(made.children()) == 3, "the script of rank 1 ends")
    made.processes[0].send_signal(signal.SIGHUP)
    until(lambda: "SIGHUP" in made.got(), "a signal behind that")
    made.save()
    assert made.end() == [0, 3], made.output()
    assert made.got() == ["SIGUSR1", "SIGHUP"]
    assert (tmp_path / "rank0.saved").exists()
    trace = made.trace()
    assert (trace.outcome, len(trace.stamps)) == (Outcome.CANCELLED, 2)
    assert "rank 1: the script ended with exit status 3" in trace.evidence


@pytest.mark.all
def test_torchrun_ends_two_ranks_that_save(tmp_path: Path, stack: ExitStack) -> None:
    made = training(stack, tmp_path, ranks=2, launcher=TORCHRUN)
    made.processes[0].terminate()
    made.await_files("got")
    made.save()
    made.end()
    assert (tmp_path / "rank0.saved").exists() and (tmp_path / "rank1.saved").exists()
    trace = made.trace()
    assert trace.outcome is Outcome.OK and len(trace.stamps) == 2
    assert "by SIGTERM" in trace.evidence


@pytest.mark.all
def test_torchrun_starts_ranks_again_that_end_on_a_signal(tmp_path: Path, stack: ExitStack) -> None:
    """The second launch is the second attempt of the run."""
    made = training(stack, tmp_path, "status=7", ranks=2, launcher=(*TORCHRUN, "--max-restarts", "1"))
    made.save()
    for each in processes():
        if "hpc.observe" in each.words and "torch.distributed.run" not in each.words and str(tmp_path) in each.words:
            os.kill(each.pid, signal.SIGUSR1)
    until(lambda: [*(tmp_path / "traces").glob("*_r1.2.begin.json")], "the second attempt")
    assert read_trace(next((tmp_path / "traces").glob("*_r1.1.h5"))).outcome is Outcome.CANCELLED
    assert (tmp_path / "rank0.saved").exists() and (tmp_path / "rank1.saved").exists()
    made.processes[0].terminate()
    made.end()


# tests/slurm/test_signals.py shows it.
@pytest.mark.all
@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM"])
def test_the_script_of_a_sweep_has_the_signals_of_its_job(tmp_path: Path, stack: ExitStack, name: str) -> None:
    words = ("--cluster", "local", "--gpus-per-node", "0", "--repeats", "1", "--warmup", "10", "--no-baseline")
    script = ("--script", str(SCRIPTS / "saves.py"), "--", str(tmp_path), "once")
    argv = sweep_argv("--nodes", "1", "--ranks-per-node", "2", *words, *script)
    sweep = subprocess.Popen(argv, cwd=tmp_path, env=with_checkout(os.environ), stdout=subprocess.PIPE, text=True)
    stack.callback(sweep.communicate)
    stack.callback(sweep.terminate)
    files = [tmp_path / f"rank{rank}" for rank in range(2)]

    def all_have(ending: str) -> bool:
        assert sweep.poll() is None, sweep.communicate()
        return all(path.with_suffix(ending).exists() for path in files)

    until(lambda: all_have(".runs"), "the scripts train")
    job = str(tmp_path / "jobs" / "1n.sh")
    (pid,) = (each.pid for each in processes() if each.words[0].endswith("bash") and job in each.words)
    os.kill(pid, signal.Signals[name])
    until(lambda: all_have(".got"), "the signal reaches the scripts")
    (tmp_path / "go").touch()
    sweep.wait()
    assert all(path.with_suffix(".saved").exists() for path in files)
    assert list(outcomes(tmp_path).values()) == ["ok"]
    (trace,) = (tmp_path / "traces").glob("*.h5")
    assert f"by {name}" in read_trace(trace).evidence
