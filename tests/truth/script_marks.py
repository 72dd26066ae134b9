"""What tests/observe_scripts/delayed.py noted of itself: its sleeps, and when each step came how far, by the clock that
all ranks of a machine share. No figure here comes from hpc.measure, hpc.observe or parse.ledger."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from parse.ledger.types import PERSISTENT, TRANSIENT, Verdict
from tests.truth.exact import Ms
from tests.truth.verdicts import after_median

ALLOWED_MS, ALLOWED = 0.5, 0.03
"""What a figure may differ from the truth, whichever is larger."""
MATERIAL = 0.01
"""A rank that is late is so by this share of a step at least."""
PHASES = {"data": ("end", "called"), "compute": ("inside", "grads"), "optimizer": ("reduced", "updated")}
"""The marks between which a phase lies; that of `end` is of the step before."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Noted:
    """By place the sleeps, and by name the marks, each [rank, step] ms; of some marks there are none. `numbers` [step]
    are those of the steps in the verdicts."""

    slept: dict[str, Ms]
    marks: dict[str, Ms]
    numbers: npt.NDArray[np.int64]

    @classmethod
    def of(cls, folder: Path, ranks: int) -> Noted:
        """What the ranks of a run wrote to a folder."""
        read = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]
        slept, marks = (
            {name: np.array([its[kind][name] for its in read]) / 1e6 for name in read[0][kind]}
            for kind in ("slept_ns", "marks_ns")
        )
        return cls(slept=slept, marks=marks, numbers=np.arange(marks["end"].shape[1]))

    def window(self, first: int, steps: int, number: int) -> Noted:
        """So many steps from `first` on, which becomes step `number`; it begins at the end of the one before."""
        stop = first + steps
        marks = {name: its[:, first:stop] for name, its in self.marks.items()}
        marks["end"] = self.marks["end"][:, first - 1 : stop - 1]
        slept = {name: its[:, first:stop] for name, its in self.slept.items()}
        return Noted(slept=slept, marks=marks, numbers=np.arange(number, number + steps))

    def phase(self, name: str) -> Ms | None:
        """How long a phase took by the marks [rank, step] ms; None where one of the two is not there."""
        begin, end = (self.marks.get(mark) for mark in PHASES[name])
        return None if begin is None or end is None else end - begin

    def bears_out(self, verdict: Verdict, calls: Sequence[str]) -> bool:
        """Whether a rank that a verdict names was late by so much in what these marks see, summed over them; of a
        persistent one also whether it was so in more than half of the steps, which equal ranks are not."""
        if len(verdict.ranks) != 1 or not calls or verdict.kind not in (PERSISTENT, TRANSIENT):
            return False
        (rank,) = verdict.ranks
        later = np.sum([after_median(self.marks[call]) for call in calls], axis=0)[rank]
        if verdict.kind == TRANSIENT:
            late = np.isin(self.numbers, verdict.steps)
        else:
            late = later > MATERIAL * float(np.diff(self.marks["end"]).mean())
            if late.mean() <= 0.5:
                return False
        return not is_off(verdict.arrival_skew - float(later[late].mean()), verdict.arrival_skew)


def is_off(error: float, true: float) -> bool:
    """Whether a figure errs by too much, ms."""
    return abs(error) > max(ALLOWED_MS, ALLOWED * true)


def more_than_usual(times: Ms, rank: int) -> float:
    """By how much the mean [rank, step] of a rank exceeds that of the median rank."""
    means = times.mean(axis=1)
    return float(means[rank] - np.sort(means)[(len(means) - 1) // 2])
