"""One small run in a folder of its own, with the library for faults, on this machine or on a development Slurm."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.processes import processes
from tests.sweeps import sweep_argv, with_checkout
from tests.torture import fault_workload
from tests.torture.injector import build, counts, every_call, injections
from tools.devcluster.cluster import DevCluster

RANKS, STEPS, WARMUP = 2, 16, 5
LIMIT_S = 300.0
"""The time limit of a command; only one that hangs reaches it."""
COPY_S = 0.05
START_LIMIT_S = 10
"""The start limit of ranks, which also holds at their exit."""


class TrialError(RuntimeError):
    """A trial could not be made; the text has the request and what there was."""


Start = Callable[["Trial", Mapping[str, str]], None]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place for trials: a folder of this machine, the options of its sweeps, and its Slurm if it has one.

    `calls` is how often each process makes each call in each area, from a run without faults started in each way.
    """

    folder: Path
    where: Sequence[str]
    environ: Mapping[str, str]
    cluster: DevCluster | None = None
    calls: Mapping[Start, Mapping[tuple[str, str, str], int]] = field(default_factory=dict)

    @property
    def library(self) -> Path:
        """The library that makes calls fail."""
        return self.folder / "faults.so"

    @property
    def template(self) -> Path:
        """The sweep that a dry run wrote."""
        return self.folder / "template"

    def sweep_argv(self, out: Path, *more: str) -> list[str]:
        """The sweep of one run that all trials make."""
        return sweep_argv(
            *self.where, "--backend", "mpi", "--workload", f"{self.folder}/fault_workload.py:Faulted", "--steps",
            str(STEPS), "--warmup", str(WARMUP), "--repeats", "1", "--no-baseline", "--cpus-per-rank", "1",
            "--telemetry", "off", "--copy-s", f"{COPY_S:g}", "--start-limit-s", str(START_LIMIT_S), "--out",
            str(out), *more,
        )  # fmt: skip


def local_place(folder: Path) -> Place:
    """Trials by mpiexec on this machine, two ranks each. Raises InjectorError, TrialError."""
    where = ("--cluster", "local", "--nodes", "1", "--ranks-per-node", str(RANKS))
    return _prepared(Place(folder=folder, where=where, environ=with_checkout(os.environ)))


def slurm_place(folder: Path, cluster: DevCluster) -> Place:
    """Trials on a Slurm of two nodes, a rank on each. Raises InjectorError, TrialError."""
    where = ("--site", str(cluster.site_file), "--nodes", str(RANKS), "--ranks-per-node", "1")
    return _prepared(Place(folder=folder, where=where, environ=with_checkout(cluster.environ), cluster=cluster))


def _prepared(place: Place) -> Place:
    """The place with its library, its template, and the calls that a run without faults makes."""
    place.folder.mkdir(parents=True)
    shutil.copy(fault_workload.__file__, place.folder / "fault_workload.py")
    argv = place.sweep_argv(place.template, "--dry-run")
    dry = subprocess.run(argv, env=place.environ, cwd=place.folder, capture_output=True, text=True, check=False)
    if dry.returncode != 0:
        raise TrialError(f"the dry run ended with {dry.returncode}: {dry.stdout}{dry.stderr}")
    build(place.folder)
    calls: dict[Start, Mapping[tuple[str, str, str], int]] = {}
    for start in (by_hand, by_sweep) if place.cluster is None else (by_sweep,):
        trial = Trial(place, place.folder / f"without-faults-{start.__name__}")
        start(trial, every_call(list(trial.areas.values())).variables(place.library, trial.state))
        calls[start] = counts(injections(trial.state), trial.areas)
    return replace(place, calls=calls)


class Trial:
    """One run in a folder of its own, written by the dry run for another folder."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.place, self.folder, self.out = place, folder, folder / "out"
        self.traces, self.truth, self.state = self.out / "traces", folder / "truth", folder / "state"
        self.hold = folder / "hold"
        self.hanging: list[str] = []
        shutil.copytree(place.template, self.out)
        self.traces.mkdir(exist_ok=True)  # by hand on a real cluster: the dry run leaves it
        self.truth.mkdir()
        for path in self.out.rglob("*"):
            if path.is_file():
                path.write_text(path.read_text().replace(str(place.template), str(self.out)))

    @property
    def areas(self) -> dict[str, str]:
        """The places where calls may fail, and the beginnings of their paths."""
        return {
            "traces": str(self.traces),
            "logs": f"{self.out}/jobs/logs",
            "node": f"/dev/shm/rankwise-{os.getuid()}/",
        }

    @property
    def script(self) -> Path:
        """The job script."""
        (script,) = (self.out / "jobs").glob("*.sh")
        return script

    @property
    def run_id(self) -> str:
        """The only run's."""
        (path,) = (self.out / "jobs" / "runs").glob("*.json")
        return path.stem

    def run(self, argv: Sequence[str], variables: Mapping[str, str]) -> None:
        """Runs a command to its end; one that does not end within LIMIT_S is ended and noted."""
        with self.started(argv, variables) as process:
            self.wait(process)

    @contextmanager
    def started(self, argv: Sequence[str], variables: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
        """A command that runs, with its output in `output.txt`."""
        env = {**self.place.environ, "TORTURE_TRUTH": str(self.truth), **variables}
        with (self.folder / "output.txt").open("ab") as output:
            process = subprocess.Popen(
                argv, cwd=self.folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
            try:
                yield process
            finally:
                if process.poll() is None:
                    self.end_all(process)

    def wait(self, process: subprocess.Popen[bytes]) -> None:
        """Waits for the command's end."""
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.hanging.append(f"{process.args!r:.100} had not ended after {LIMIT_S:g} s")
            self.end_all(process)

    def end_all(self, process: subprocess.Popen[bytes]) -> None:
        """Ends the command and what it started."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for other in processes():
            if any(str(self.folder) in argument for argument in other.words):
                with suppress(ProcessLookupError):
                    os.kill(other.pid, signal.SIGKILL)

    def next_command(self) -> None:
        """The same sweep once more, without faults: it goes on with what is not final, and corrects what can be."""
        self.run(self.place.sweep_argv(self.out), {})


def by_hand(trial: Trial, variables: Mapping[str, str]) -> None:
    """The job script, as a person runs it."""
    trial.run(["bash", str(trial.script)], variables)


def by_sweep(trial: Trial, variables: Mapping[str, str]) -> None:
    """The sweep, which writes the script, submits it and follows."""
    trial.run(trial.place.sweep_argv(trial.out), variables)
