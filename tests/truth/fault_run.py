"""Real faults, and none, against what the ledger says of them, on a real Slurm whose nodes have clocks of their own.

`python -m tests.truth.fault_run [--keep DIR]`; `--folder DIR` looks once more at what an earlier run kept. Ends with 1
where less than 95 of 100 faults above the stated limit are named rightly, or somebody who was not late by the exact
stamps is named in more than 3 of 100 points of equal ranks. A machine makes ranks late by itself: who is named without
a fault, and was late by the exact stamps, is counted and shown, and no failure.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hpc.model.trace import Trace
from hpc.model.trace_file import read_trace
from tests.truth.cases import NOBODY, Sweep
from tests.truth.fault_exact import Exact, bears_out, somebody_late
from tests.truth.fault_schedule import NOTHING, WARMUP, WINDOW
from tests.truth.fault_verdicts import Judged, judge, without_fault
from tests.truth.faults import EQUAL, REAL, WORKLOAD, FaultCase
from tests.truth.programs import TruthError, cluster_in, command
from tests.truth.run import run_sweep
from tests.truth.windows import cut, ledger_of
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import CLOCK_DISTANCE_S

RUNS, POINTS = 2, 3
"""Runs of a point, and points of a case. Each window of a run has another case."""
EQUAL_WINDOWS = 17
RIGHT, INVENTED = 0.95, 0.03
LOADS = ("idle", "loaded")
SHUFFLES, LATE_BY_LOT = 20, 0.01
"""So often the names of equal ranks are drawn by lot in each block of a point; the judgement by exact stamps is worth
something where it then holds somebody for late in at most this share of them."""


@dataclass(frozen=True, kw_only=True)
class Equal:
    """A point of equal ranks: whether somebody is late by the exact stamps, and in how many of SHUFFLES."""

    judged: Judged
    late: bool
    by_lot: int


def main() -> int:
    """Command line: 0 where the ledger is right often enough, 1 where not, 2 where the runs could not be made."""
    windows = {"type": int, "default": EQUAL_WINDOWS, "metavar": "N", "help": "windows of each run of equal ranks"}
    no_equal = {"action": "store_true", "help": "only faults"}
    return command(__doc__, judge_all, ("--windows", windows), ("--no-equal", no_equal))


def judge_all(options: argparse.Namespace, folder: Path, scratch: Path) -> bool:
    """Runs the chosen cases, or looks at what is there; whether too much is wrong."""
    cases = [case for case in REAL if options.only is None or options.only in case.name]
    loads = [load for load in LOADS if options.only is None or options.only in f"nothing, {load}"]
    loads = [] if options.no_equal else loads
    if options.folder is None:
        run_all(cases, loads, folder, scratch / "cluster", options.windows)
    points = [*fault_points(folder / "faults", scratch / "points")] if cases else []
    return report(points, {load: [*equal_points(folder / load, scratch / load)] for load in loads})


def run_all(cases: Sequence[FaultCase], loads: Sequence[str], folder: Path, root: Path, equal_windows: int) -> None:
    """Makes the runs of the cases, and those of equal ranks with so many windows, on a new development cluster.

    Raises TruthError if a run does not end ok.
    """
    with cluster_in(root) as cluster:
        if cases:
            print(f"{len(cases)} faults, {RUNS * POINTS} runs", flush=True)
            faults = {";".join(case.fault for case in cases): NOBODY}
            sweep = Sweep(backend="torch-ddp", workload=WORKLOAD, varied="FAULT", cases=faults, repeats=RUNS * POINTS)
            _run(sweep, folder / "faults", cluster, len(cases))
        for load in loads:
            print(f"nothing, {load}", flush=True)
            with busy_cores() if load == "loaded" else nullcontext():
                for sweep in EQUAL:
                    _run(sweep, folder / load, cluster, equal_windows)


def _run(sweep: Sweep, folder: Path, cluster: DevCluster, windows: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    run_sweep(sweep, folder, cluster, steps=WARMUP + windows * WINDOW, warmup=WARMUP)


@contextmanager
def busy_cores() -> Iterator[None]:
    """A busy loop on each core."""
    loops = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(100000))"]
        )
        for _ in sorted(os.sched_getaffinity(0))
    ]
    for loop, core in zip(loops, sorted(os.sched_getaffinity(0)), strict=True):
        os.sched_setaffinity(loop.pid, {core})
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def fault_points(folder: Path, scratch: Path) -> Iterator[Judged]:
    """Each window of every two runs, judged by its case."""
    traces = runs_in(folder)
    of_fault = {case.fault: case for case in REAL}
    for first in range(0, len(traces), RUNS):
        runs = traces[first : first + RUNS]
        cases = [of_fault[text] for text in runs[0].run.env["FAULT"].split(";")]
        yield from (judged for judged, _ in _points(cases, runs, scratch / str(first)))


def equal_points(folder: Path, scratch: Path) -> Iterator[Equal]:
    """Each window of the runs of equal ranks, judged."""
    random = np.random.default_rng(0)
    points: dict[str, list[Trace]] = {}
    for trace in runs_in(folder):
        points.setdefault(trace.point_id, []).append(trace)
    for point, runs in points.items():
        name = f"nothing: {runs[0].run.backend} {runs[0].run.workload.rpartition('/')[2]}"
        for judged, exact in _points([FaultCase(name=name, fault=NOTHING)], runs, scratch / point):
            by_lot = sum(somebody_late([run.shuffled(random) for run in exact]) for _ in range(SHUFFLES))
            yield Equal(judged=judged, late=somebody_late(exact), by_lot=by_lot)


def _points(
    cases: Sequence[FaultCase], runs: Sequence[Trace], scratch: Path
) -> Iterator[tuple[Judged, Sequence[Exact]]]:
    """Each window of these runs, whose cases come one after another, and its exact stamps."""
    for number, windows in enumerate(zip(*(cut(run, WINDOW) for run in runs), strict=True)):
        case, ledger = cases[number % len(cases)], ledger_of(windows, scratch / str(number))
        exact = [Exact.of(window, CLOCK_DISTANCE_S) for window in windows]
        faulty = {rank for fault in case.faults for rank in fault.ranks}
        named = without_fault(case, ledger)
        borne_out = sum(bears_out(each, exact, [*faulty]) for each in named)
        judged = judge(case, ledger, [run.truth.entries for run in exact])
        yield replace(judged, named=len(named), borne_out=borne_out), exact


def runs_in(folder: Path) -> list[Trace]:
    """The trace of each run's last attempt; of one that was made again, the attempts before it are not whole."""
    traces = sorted(map(read_trace, (folder / "traces").glob("*.h5")), key=lambda trace: trace.attempt)
    if not traces:
        raise TruthError(f"{folder} holds no traces")
    last = {trace.run_id: trace for trace in traces}
    return sorted(last.values(), key=lambda trace: (trace.point_id, trace.run.repeat))


def report(points: Sequence[Judged], equal: Mapping[str, Sequence[Equal]]) -> bool:
    """Prints a line for each case and what is wrong; whether too much is."""
    failed = _report_faults(points) if points else False
    for load, its in equal.items():
        failed |= _report_equal(load, its)
    return failed


def _report_faults(points: Sequence[Judged]) -> bool:
    print(f"\n{'case':42} {'points':>6} {'below':>6} {'right':>6} {'machine':>7}  effect, ms a step")
    for case in dict.fromkeys(point.case for point in points):
        its = [point for point in points if point.case == case]
        above = [point for point in its if not point.below]
        right, machine = sum(not point.wrong for point in above), sum(point.machine for point in above)
        effects = _range(point.effect for point in its)
        print(f"{case:42} {len(its):6} {len(its) - len(above):6} {right:6} {machine:7}  {effects}")
        for point in its:
            if point.wrong:
                _show(point)
    above = [point for point in points if not point.below]
    right, machine = sum(not point.wrong for point in above), sum(point.machine for point in above)
    print(
        f"{right + machine} of {len(above)} right above the stated limit; in {machine} of these somebody else is "
        f"named, too, who was late by the exact stamps; {len(points) - len(above)} below the limit"
    )
    return right + machine < RIGHT * len(above)


def _report_equal(load: str, points: Sequence[Equal]) -> bool:
    its = [point.judged for point in points]
    named = [point for point in its if point.wrong]
    machine, late = sum(point.machine for point in named), sum(point.late for point in points)
    by_lot, shuffled = sum(point.by_lot for point in points), SHUFFLES * len(points)
    limits = _range(point.limit for point in its if point.limit is not None)
    print(
        f"\nnothing, {load}: somebody is named in {len(named)} of {len(its)}, in {machine} of these as the exact "
        f"stamps bear out; invented in {len(named) - machine}; limits {limits} ms\n"
        f"by the exact stamps somebody is late in {late} of {len(its)}, and with names drawn by lot in each block of "
        f"steps in {by_lot} of {shuffled}"
    )
    for point in named:
        _show(point)
    return len(named) - machine > INVENTED * len(its) or by_lot > LATE_BY_LOT * shuffled


def _show(point: Judged) -> None:
    limit = "" if point.limit is None else f", limit {point.limit:.2f}"
    how = "below" if point.below else "machine" if point.machine else "WRONG"
    print(f"    {how}: {'; '.join(point.wrong)} [{point.effect:.2f}{limit}] {point.verdict}")


def _range(values: Iterable[float]) -> str:
    ordered = sorted(values)
    return f"{ordered[0]:.2f} to {ordered[-1]:.2f}" if ordered else "-"


if __name__ == "__main__":
    sys.exit(main())
