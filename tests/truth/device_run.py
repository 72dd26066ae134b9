"""Known delays of host and device on a simulated accelerator, and none, against what the ledger says of them.

`python -m tests.truth.device_run [--keep DIR]`; `--folder DIR` looks once more at what an earlier run kept. A script
trains under `rankwise observe` on ranks of this machine whose CPU counts as an accelerator: the host queues
kernels and runs up to 20 steps ahead, clocks of the devices differ by 50 ppm, and in one run no anchor is had for 10 s.
The true times of the device are exact under any load. Ends with 1 where kind, rank and phase are right of fewer than 95
of 100 delays, a term of a rank is off in more than 5 of 100 windows, or somebody is named in more than 3 of 100 windows
without a delay whom the true times do not bear out.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from parse.ledger.types import Ledger
from tests.truth.delays import DelayCase, Judged, findings_of, judge
from tests.truth.exact import TERMS, Ms
from tests.truth.programs import SCRIPTS, judge_trainings, run_windows, windows_of
from tests.truth.script_marks import Noted
from tests.truth.windows import ledger_of

WINDOW = 40
"""Measured steps of a case."""
FURTHER = 5
"""So many steps and those that the host is ahead by the script makes behind its last case."""
ALLOWED_MS, ALLOWED = 0.3, 0.03
"""What a term may differ from the truth, whichever is larger."""
RIGHT, INVENTED = 0.95, 0.03
HOST, DEVICE = "host", "device"
PLACES = {
    "dataset": (HOST, "data"),
    "python": (HOST, "compute"),
    "item": (HOST, "optimizer"),
    "collective": (HOST, "compute"),
    "forward": (DEVICE, "compute"),
    "backward": (DEVICE, "compute"),
    "update": (DEVICE, "optimizer"),
}
"""Of each place of a delay: who is slow, and in which phase."""
HOST_MS, DEVICE_MS = (25, 35, 45), (3, 6, 10)
"""A host's delay counts from what it is ahead by: for layers of 1 ms."""
LAYERS = 4


@dataclass(frozen=True, kw_only=True)
class DeviceTraining:
    """A run of tests/observe_scripts/on_device.py. Before each window are `lead` steps: a host loses there what it is
    ahead by. `layer_ms` is what a layer's forward takes on the device: it is ahead only of a step that takes the device
    longer than its own Python, which for FSDP2 on two busy cores is tens of ms."""

    name: str
    parallel: str
    ahead: int
    lead: int
    ranks: int = 2
    layer_ms: float = 1.0
    places: tuple[str, ...] = tuple(place for place in PLACES if place != "collective")
    controls: int = 14
    simulated: tuple[tuple[str, Any], ...] = ()

    def cases(self) -> list[DelayCase]:
        """In an order of chance, which is always the same."""
        ranks = cycle(range(1, self.ranks))
        longer_ms = round(3 * LAYERS * (self.layer_ms - 1))
        amounts = {HOST: cycle(longer_ms + ms for ms in HOST_MS), DEVICE: cycle(DEVICE_MS)}
        cases = [self._case(place, next(amounts[PLACES[place][0]]), next(ranks)) for place in self.places * 2]
        cases += [DelayCase(training=self.name)] * self.controls
        random.Random(self.name).shuffle(cases)
        return cases

    def _case(self, place: str, ms: int, rank: int) -> DelayCase:
        return DelayCase(training=self.name, place=place, rank=rank, ms=ms, phase=PLACES[place][1])


TRAININGS: Sequence[DeviceTraining] = (
    DeviceTraining(name="DDP, 1 step ahead", parallel="ddp", ahead=1, lead=10),
    DeviceTraining(name="DDP, 3 steps ahead", parallel="ddp", ahead=3, lead=15),
    DeviceTraining(
        name="DDP, 20 steps ahead, no anchors for 10 s", parallel="ddp", ahead=20, lead=40,
        simulated=(("held_s", [(15, 25)]),),
    ),
    DeviceTraining(
        name="by hand, 5 steps ahead", parallel="by-hand", ahead=5, lead=20, places=tuple(PLACES),
    ),
    DeviceTraining(name="DDP, 4 ranks, 3 steps ahead", parallel="ddp", ahead=3, lead=15, ranks=4),
    DeviceTraining(
        name="DDP, 4 ranks, 10 steps ahead, one hardware queue", parallel="ddp", ahead=10, lead=30, ranks=4,
        simulated=(("one_queue", True),),
    ),
    DeviceTraining(name="FSDP2, 3 steps ahead", parallel="fsdp2", ahead=3, lead=15, layer_ms=8),
    DeviceTraining(name="FSDP2, 4 ranks, 3 steps ahead", parallel="fsdp2", ahead=3, lead=15, ranks=4, layer_ms=12),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Point:
    """A window of a run. `of_ledger` and `of_device` are the mean terms by the ledger and by the device's true times,
    [rank, 5] ms a step; NaN where the ledger has not all of them."""

    case: DelayCase
    judged: Judged
    is_right: bool
    is_machine: bool
    of_ledger: Ms
    of_device: Ms

    @property
    def errors(self) -> Ms:
        return self.of_ledger - self.of_device

    @property
    def has_wrong_terms(self) -> bool:
        return not (np.abs(self.errors) <= np.maximum(ALLOWED_MS, ALLOWED * np.abs(self.of_device))).all()


def main() -> int:
    """Command line: 0 where the ledger is right often enough, 1 where not, 2 where the runs could not be made."""
    return judge_trainings(__doc__, TRAININGS, run_script, points_of, report)


def run_script(training: DeviceTraining, folder: Path) -> None:
    """Runs the script under hpc.observe, one window for each case. Raises TruthError if it does not end well."""
    script = [SCRIPTS / "on_device.py", "--parallel", training.parallel, "--ahead", training.ahead]
    script += ["--layers", LAYERS, "--forward-ms", training.layer_ms]
    simulated = json.dumps(dict(training.simulated))
    run_windows(
        training, folder, lead=training.lead, window=WINDOW, options=(), script=script, SIMULATED_DEVICE=simulated
    )


def points_of(training: DeviceTraining, folder: Path, scratch: Path) -> Iterator[Point]:
    """Each window of a run, judged by its case. Raises TruthError where the steps are not the script's."""
    noted, lead = Noted.of(folder / "truth", training.ranks, None), training.lead
    further = training.ahead + FURTHER
    for case, first, window in windows_of(training, folder, lead=lead, window=WINDOW, further=further):
        yield judge_point(case, ledger_of([window], scratch / str(first)), noted.window(first, WINDOW, lead))


def judge_point(case: DelayCase, ledger: Ledger, noted: Noted) -> Point:
    names = tuple(term.name for term in ledger.terms)
    judged = judge(case, ledger, noted.later_by(case.phase, case.rank) if case.place else 0.0)
    others = [each for each in findings_of(ledger) if not case.place or each.ranks != (case.rank,)]
    is_machine = judged.only_more and all(noted.bears_out(each) for each in others)
    true = noted.truth.per_rank
    of_ledger = np.array([place.terms for place in ledger.ranks]) if names == TERMS else true * np.nan
    return Point(
        case=case, judged=judged, is_right=not judged.wrong or is_machine, is_machine=is_machine,
        of_ledger=of_ledger, of_device=true,
    )  # fmt: skip


def report(points: Sequence[Point]) -> bool:
    """Prints a line for each place and training, and what is wrong; whether too much is."""
    names = sorted({point.case.name for point in points})
    right = Counter(point.case.name for point in points if point.is_right)
    total = Counter(point.case.name for point in points)
    for name in names:
        print(f"{name:50} right in {right[name]:2} of {total[name]:2}")
        for point in points:
            if point.case.name == name and (point.judged.wrong or point.has_wrong_terms):
                _show(point)
    late, equal = ([point for point in points if bool(point.case.place) is wanted] for wanted in (True, False))
    named = sum(point.is_right for point in late)
    invented = sum(not point.is_right for point in equal)
    wrong = sum(point.has_wrong_terms for point in points)
    machine = sum(point.is_machine for point in points)
    print(f"\nkind, rank and phase: right in {named} of {len(late)}")
    print(f"nothing: somebody is named in {invented} of {len(equal)}")
    print(f"somebody else is named, whom the true times bear out, in {machine} of {len(points)}")
    for at, name in enumerate(TERMS):
        its = np.concatenate([point.errors[:, at] for point in points])
        low, middle, high = np.nanpercentile(its, (5, 50, 95))
        print(
            f"{name:>14}: error ms: median {middle:+.3f}, 90 % from {low:+.3f} to {high:+.3f}, all from "
            f"{np.nanmin(its):+.3f} to {np.nanmax(its):+.3f}"
        )
    print(f"a term is off by more than {ALLOWED_MS} ms and {ALLOWED:.0%} in {wrong} of {len(points)} windows")
    return named < RIGHT * len(late) or invented > INVENTED * len(equal) or len(points) - wrong < RIGHT * len(points)


def _show(point: Point) -> None:
    reasons = [*point.judged.wrong]
    if point.has_wrong_terms:
        rank, term = np.unravel_index(np.nan_to_num(np.abs(point.errors)).argmax(), point.errors.shape)
        reasons.append(f"{TERMS[term]} of rank {rank} is off by {point.errors[rank, term]:+.3f} ms")
    print(f"    {point.case.window}: {'; '.join(reasons)} [{point.judged.effect:.2f}] {point.judged.verdict}")


if __name__ == "__main__":
    sys.exit(main())
