"""Known delays of host and device, and none, in virtual time: no machine and no load has a part in what comes out.

`python -m tests.truth.device_simulated`. Ranks on simulated accelerators train as tests/simulated_training.py has it,
recorded by the product's own recorder and device clock. 100 delays on one of 2 or 4 ranks, 100 runs without; the host
is 1 to 20 steps ahead, and then waits before a forward or, in half of the runs, wherever a queue is full; the devices'
clocks differ by up to 100 ppm, and a third of the runs has no anchor for 10 s. Then 100 clocks that jump. Ends with 1
where kind, rank, phase and terms are right of fewer than 95 of 100, or the straggler's host or device is rightly called
slow in fewer, somebody is named in more than 3 of 100 without a delay, a time lies outside of its bound, or a jump is
no alarm.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter

import numpy as np

from hpc.model.trace import Trace
from hpc.observe.device_times import with_device_times
from hpc.observe.steps import steps_of
from hpc.run.script_steps import clock_contradiction, host_bound
from parse.ledger.types import PERSISTENT, Ledger, Paces, Verdict
from tests.simulated_device import MS
from tests.simulated_training import START_NS, VirtualRun, train
from tests.truth.device_run import PLACES, RIGHT, Point, judge_point, report
from tests.truth.fault_schedule import NOTHING
from tests.truth.faults import Answer, FaultCase
from tests.truth.script_marks import Noted
from tests.truth.windows import ledger_of
from tests.unit.traces import make_ranks, make_run, make_trace

TRIALS, JUMPS = 100, 100
AHEAD = (1, 2, 3, 5, 10, 20)
RATES = (0.0, 25e-6, 50e-6)
LEAD, WINDOW = 45, 60
HOST_MS, DEVICE_MS = (20, 30, 40), (2, 4, 8)
IN_TRAINING = tuple(place for place in PLACES if place != "collective")


def case_of(number: int, ranks: int, *, late: bool) -> FaultCase:
    """The case of a trial: each place, amount and rank in turn; or none."""
    if not late:
        return FaultCase(name="nothing", fault=NOTHING)
    place = IN_TRAINING[number % len(IN_TRAINING)]
    ms = (HOST_MS if PLACES[place][0] == "host" else DEVICE_MS)[number // len(IN_TRAINING) % 3]
    rank = number % ranks
    answer = Answer(kinds=(PERSISTENT,), ranks=(rank,), phase=PLACES[place][1], shape=None)
    return FaultCase(name=place, fault=f"sleep:{place}:{ms}@{rank}", answers=(answer,))


def trial(number: int, folder: Path, *, late: bool) -> tuple[Point, Ledger, Sequence[VirtualRun]]:
    """Trains as the number has it, and judges what the ledger says of it."""
    ranks = 4 if number % 5 == 4 else 2
    case = case_of(number, ranks, late=late)
    (fault,) = case.faults or (None,)

    def delays(place: str, rank: int, step: int) -> float:
        return float(fault.amount) if fault and place == fault.phase and rank in fault.ranks else 0.0

    round_of = number // len(IN_TRAINING)
    without = [(START_NS + 400 * MS, START_NS + 10_400 * MS)] if number % 3 == 2 else []
    runs = train(
        folder / "events", ranks=ranks, steps=LEAD + WINDOW, ahead=AHEAD[(number + round_of) % len(AHEAD)],
        full=bool(round_of % 2), delays=delays,
        rate=RATES[number // 2 % len(RATES)], held=without,
    )  # fmt: skip
    ledger = ledger_of([trace_of(runs)], folder / "traces")
    return judge_point(case, ledger, noted_of(runs)), ledger, runs


def trace_of(runs: Sequence[VirtualRun]) -> Trace:
    """Of the steps that the product finds in what the ranks recorded."""
    observed = [steps_of(run.recorded) for run in runs]
    count = min(len(each.steps) for each in observed)
    stamps = np.array([[step.stamps for step in each.steps[:count]] for each in observed], np.int64)
    run = make_run(ranks_per_node=len(runs), warmup_steps=LEAD, measured_steps=count - LEAD)
    points = np.array([[START_NS, int(stamps.max()) + 1000]] * len(runs))
    ranks = [
        {**report, "script": {"host_bound": host_bound(its.steps[LEAD:count])}}
        for report, its in zip(make_ranks(run), observed, strict=True)
    ]
    return make_trace(
        run, stamps=stamps, ranks=ranks, clock_domains=["machine"] * len(runs), clock_local_ns=points,
        clock_offset_ns=np.zeros(points.shape), barrier_exits_ns=points,
    )  # fmt: skip


def noted_of(runs: Sequence[VirtualRun]) -> Noted:
    """What the devices really did in the measured steps."""
    marks = np.stack([run.marks_ns for run in runs])[:, LEAD - 1 :]
    return Noted(slept={}, marks=marks, meetings=np.zeros((*marks.shape[:2], 0, 3), np.int64), first=LEAD)


def is_host_right(point: Point, ledger: Ledger) -> bool:
    """Whether the ledger says of the straggler rightly that its host is slow, or its device."""
    (fault,) = point.case.faults
    paces = next((its for each, its in paced(ledger) if each.ranks == fault.ranks), None)
    return paces is not None and paces.pacer == PLACES[fault.phase][0]


def paced(ledger: Ledger) -> Iterator[tuple[Verdict, Paces | None]]:
    """Each straggler, and whether its host or its device is slow."""
    further = ledger.further_paces or [None] * len(ledger.further)
    return zip((ledger.verdict, *ledger.further), (ledger.paces, *further), strict=True)


def outside(runs: Sequence[VirtualRun]) -> Iterator[tuple[float, bool]]:
    """The bound of each time of a device, ns, and whether the true time lies outside of it."""
    for run in runs:
        times = with_device_times(run.recorded)
        for at, bound in times.bounds_ns.items():
            yield bound, abs(times.events[at].done_ns - run.true_ns[at]) > bound


def jumping(number: int, folder: Path) -> tuple[bool, bool]:
    """Whether a device's clock that jumps is an alarm; whether a time lies outside of its bound."""
    chance = random.Random(number)
    at, by = START_NS + chance.randint(1500, 4500) * MS, round(10 ** chance.uniform(4.7, 7.5)) * chance.choice((1, -1))
    runs = train(folder, steps=350, ahead=AHEAD[number % len(AHEAD)], jumps=[(at, by)])
    return all(clock_contradiction(steps_of(run.recorded)) for run in runs), any(wrong for _, wrong in outside(runs))


def main() -> int:
    """Command line: 0 where the product is right often enough."""
    begin = perf_counter()
    points: list[Point] = []
    hosts: list[tuple[str, bool]] = []
    bounds: list[tuple[float, bool]] = []
    with tempfile.TemporaryDirectory(prefix="rw-", dir="/var/tmp") as scratch:
        for late in (True, False):
            for number in range(TRIALS):
                point, ledger, runs = trial(number, Path(scratch) / f"{late}{number}", late=late)
                points.append(point)
                hosts += [(point.case.name, is_host_right(point, ledger))] if late else []
                bounds += outside(runs)
        jumps = [jumping(number, Path(scratch) / f"jump{number}") for number in range(JUMPS)]
    failed = report(points)
    wrong, widths = sum(is_wrong for _, is_wrong in bounds), np.array([bound for bound, _ in bounds]) / 1e3
    alarms, false = sum(alarm for alarm, _ in jumps), sum(is_wrong for _, is_wrong in jumps)
    low, high = np.percentile(widths, (50, 99))
    print(
        f"times of devices: {wrong} of {len(bounds)} outside of their bounds; these, µs: median {low:.1f}, 99 of 100 "
        f"under {high:.1f}, largest {widths.max():.1f}"
    )
    for place in IN_TRAINING:
        its = [is_right for name, is_right in hosts if name == place]
        print(f"host or device, {place}: right in {sum(its)} of {len(its)}")
    print(f"clocks that jump: an alarm in {alarms} of {JUMPS}, a wrong time in {false}")
    print(f"{perf_counter() - begin:.0f} s")
    failed |= sum(is_right for _, is_right in hosts) < RIGHT * len(hosts)
    return 1 if failed or wrong or alarms < JUMPS or false else 0


if __name__ == "__main__":
    sys.exit(main())
