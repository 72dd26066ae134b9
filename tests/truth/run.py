"""Delays that are known against what the ledger makes of them, on a real Slurm whose nodes have clocks of their own.

`python -m tests.truth.run [--keep DIR]`; `--folder DIR` looks once more at what an earlier run kept. Ends with 1 where
the ledger is wrong. Where it is right by the exact stamps, and the machine took more time than the sleeps, that is
counted and shown, and no failure.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from hpc.model.trace_file import read_trace
from parse.ledger.point import ledgers
from parse.ledger.types import Ledger
from parse.runs.load import load
from parse.runs.result import Result, results
from tests.truth.cases import NODES, RANKS_PER_NODE, STEPS, SWEEPS, WARMUP, Sweep
from tests.truth.compare import MERGED, Comparison, compare, compare_loss
from tests.truth.exact import TERMS, Known, known_of
from tests.truth.programs import ROOT, TruthError, call, cluster_in, command, named
from tests.truth.verdicts import Miss, step_without_ms, stragglers_of
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import CLOCK_DISTANCE_S

_NAME, _CELL = 69, 17
WHAT_IF = 0.05
"""By how much the speed without the straggler may differ from that without the sleeps."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Point:
    """A measured point: its sweep and value, its ledger, the ground truth of its runs and of its baseline."""

    sweep: Sweep
    value: str
    ledger: Ledger
    runs: Sequence[Known]
    baseline: Sequence[Known]

    @property
    def name(self) -> str:
        """The sweep and the injected value."""
        return f"{self.sweep.name}={self.value}"


def main() -> int:
    """Command line: 0 where the ledger is right, 1 where not, 2 where the runs could not be made."""
    return command(__doc__, judge_all)


def judge_all(options: argparse.Namespace, folder: Path, scratch: Path) -> int:
    """Runs the chosen sweeps, or looks at what is there. Returns how often the ledger was wrong."""
    if options.folder is None:
        run_all(named(SWEEPS, options.only), folder, scratch / "cluster")
    return report(points_of(folder / "traces", SWEEPS, distance_s=CLOCK_DISTANCE_S))


def run_all(sweeps: Sequence[Sweep], folder: Path, root: Path) -> None:
    """Makes the runs of these sweeps on a new development cluster; their traces are written to `folder`/traces.

    Raises TruthError if a run does not end ok.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with cluster_in(root) as cluster:
        for number, sweep in enumerate(sweeps, 1):
            print(f"{number} of {len(sweeps)}: {sweep.name}, {sweep.runs} runs", flush=True)
            run_sweep(sweep, folder, cluster)
    shutil.rmtree(root)


def run_sweep(sweep: Sweep, folder: Path, cluster: DevCluster, *, steps: int = STEPS, warmup: int = WARMUP) -> None:
    """Makes the runs of one sweep. Raises TruthError if a run does not end ok."""
    varied = f"{sweep.varied}={','.join(sweep.cases)}"
    argv = [
        sys.executable, "-m", "hpc.sweep", "--site", str(cluster.site_file), "--nodes", str(NODES),
        "--ranks-per-node", str(RANKS_PER_NODE), "--cpus-per-rank", "1", "--steps", str(steps), "--warmup", str(warmup),
        "--repeats", str(sweep.repeats), "--backend", sweep.backend, "--workload", sweep.workload,
        "--option" if sweep.is_option else "--env", varied, "--minutes-per-run", "4", "--out", str(folder),
        *(argument for name, value in sweep.options.items() for argument in ("--option", f"{name}={value}")),
        *(() if sweep.baseline else ("--no-baseline",)),
    ]  # fmt: skip
    env = {**cluster.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
    call(argv, folder, env, timeout_s=None)


def points_of(traces: Path, sweeps: Sequence[Sweep], *, distance_s: int) -> list[Point]:
    """All measured points of the sweeps with their ground truth; node k's clock is `distance_s` * k ahead.

    Raises TruthError if there is none.
    """
    read = results(load([traces]))
    by_point = {result.requested.point: result for result in read}
    points = []
    for ledger in ledgers(read):
        for sweep in sweeps:
            value = sweep.value_of(ledger.result.run)
            if value is not None:
                baseline = by_point.get(ledger.result.requested.setting) if sweep.baseline else None
                points.append(
                    Point(
                        sweep=sweep,
                        value=value,
                        ledger=ledger,
                        runs=_known(ledger.result, distance_s),
                        baseline=_known(baseline, distance_s) if baseline else (),
                    )
                )
    if not points:
        raise TruthError(f"{traces} holds none of the requested runs")
    return points


def report(points: Sequence[Point]) -> int:
    """Prints the table and the misses. Returns how often the ledger was wrong."""
    print(_heading())
    misses: dict[str, tuple[Miss, ...]] = {}
    for point in points:
        expected = point.sweep.cases[point.value]
        comparison = compare(point.ledger, point.runs, expected, measured=point.sweep.measured)
        lost = compare_loss(point.ledger, point.runs, point.baseline) if point.baseline else ()
        misses[point.name] = (*comparison.misses, *lost)
        print(_line(point.name, len(point.runs), comparison, len(misses[point.name])))
    for point in points:
        print(_misses_of(point.name, point.ledger, misses[point.name]), end="")
    misses["what ifs"] = report_what_ifs(points)
    runs = sum(len(point.runs) for point in points)
    hit = sum(len(point.runs) for point in points if not misses[point.name])
    all_misses = [miss for of_point in misses.values() for miss in of_point]
    wrong = sum(not miss.machine for miss in all_misses)
    print(
        f"\n{runs} runs, {hit} without a miss; {len(all_misses)} misses: {wrong} of the ledger, "
        f"{len(all_misses) - wrong} of the machine (the exact stamps say what the ledger says)"
    )
    return wrong


def _heading() -> str:
    """The table's head."""
    terms = " ".join(f"{name:>{_CELL}}" for name in TERMS)
    return (
        "\nmeans over ranks and steps in ms: ledger/sleeps+background; largest difference over ranks and means\n"
        f"{'':{_NAME}} runs {terms} {'of sleeps':>9} {'of stamps':>9}  misses, verdict"
    )


def _line(name: str, runs: int, compared: Comparison, misses: int) -> str:
    """One point."""
    cells = []
    for term, *ms in zip(compared.names, compared.means, compared.slept, compared.beside, strict=True):
        width = len(MERGED.get(term, (term,))) * (_CELL + 1) - 1  # a merged term is as wide as those that it stands for
        cells.append(f"{'{:.2f}/{:.2f}+{:.2f}'.format(*ms):>{width}}")
    return (
        f"{name:{_NAME}} {runs:>4} {' '.join(cells)} {compared.from_slept_ms:>6.2f} ms "
        f"{compared.from_stamped_ms * 1e3:>6.2f} µs  {misses or '-'} {compared.verdict}"
    )


def _misses_of(name: str, ledger: Ledger, misses: Sequence[Miss]) -> str:
    """Every miss of a point, with everything needed to explain it; empty where there is none."""
    if not misses:
        return ""
    lines = [f"\n{name} ({ledger.result.requested.run_id}):"]
    lines += [f"  {'machine' if miss.machine else 'LEDGER'}: {miss.text}" for miss in misses]
    return "\n".join(lines) + "\n"


def report_what_ifs(points: Sequence[Point]) -> tuple[Miss, ...]:
    """Prints the speed that each ledger gives for the step without its straggler, beside that by the exact stamps and
    the recorded sleeps of the same run, and the median speed of the runs of the same job without the delay.

    Returns a miss for each that differs from the exact one by more than WHAT_IF. Runs without the delay differ from one
    another by more than that where ranks share cores, and a rank that sleeps leaves its core to the others: they are
    shown, and decide nothing. Where a step has several collectives there is no exact one.
    """
    speeds: dict[str, list[float]] = {}
    for point in points:
        if point.value in point.sweep.undelayed and point.ledger.result.median_speed is not None:
            speeds.setdefault(point.sweep.name, []).append(point.ledger.result.median_speed)
    misses, count = [], 0
    print("\nsamples/s without the straggler: ledger, by exact stamps and sleeps, measured without the delay; ratios")
    for point in points:
        if point.value in point.sweep.undelayed:
            continue
        without = next((each.without for each in point.ledger.findings if each.without), None)
        exact = _exact_speed(point)
        measured = median(speeds[point.sweep.name]) if point.sweep.name in speeds else None
        count += exact is not None
        shown = "none" if without is None else f"{without.speed:.1f}"
        columns = [
            f"{'-':>7} {'-':>6}" if speed is None or without is None else f"{speed:7.1f} {without.speed / speed:6.3f}"
            for speed in (exact, measured)
        ]
        print(f"{point.name:72} {shown:>7} {'  '.join(columns)}")
        if exact is not None and (without is None or abs(without.speed / exact - 1) > WHAT_IF):
            text = f"{point.name}: {shown} samples/s without the straggler, {exact:.1f} by exact stamps and sleeps"
            misses.append(Miss(text=text))
    print(f"{count - len(misses)} of {count} within {WHAT_IF * 100:.0f} %")
    for miss in misses:
        print(f"  LEDGER: {miss.text}")
    return tuple(misses)


def _exact_speed(point: Point) -> float | None:
    """Samples/s had nobody slept longer; None where ranks meet several times a step."""
    batch = point.ledger.result.run.global_batch_size
    if any(each.meetings for each in point.ledger.stragglers[:1]) or batch is None:
        return None
    expected = point.sweep.cases[point.value]
    steps_ms = [step_without_ms(known, stragglers_of(known, expected)) for known in point.runs]
    return batch / (sum(steps_ms) / len(steps_ms)) * 1e3


def _known(result: Result, distance_s: int) -> list[Known]:
    """Ground truth of the point's ok runs."""
    paths = [run.attempt.trace for run in result.ok if run.attempt is not None and run.attempt.trace is not None]
    return [known_of(read_trace(path), distance_s) for path in paths]


if __name__ == "__main__":
    sys.exit(main())
