"""What tests/observe_scripts/delayed.py noted of itself: its sleeps, its collectives, and when each step came how far.

By the clock that all ranks of a machine share. No figure here comes from hpc.measure, hpc.observe or parse.ledger.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from parse.ledger.verdict import PERSISTENT, TRANSIENT, Straggler
from tests.truth.exact import TERMS, Ms, Ns, Truth, stamped
from tests.truth.verdicts import after_median, beside_others, steps_of

ALLOWED_MS, ALLOWED = 0.5, 0.03
"""What a figure may differ from the truth, whichever is larger."""
MATERIAL = 0.01
"""A rank that is late is so by this share of a step at least."""
MARKS = ("called", "backward", "grads", "reduced", "end")
"""Of a step, in their order: when the model is called; the backward; the last own gradient is there; all are reduced;
the next step begins. Without a mark for the gradient it is the call of the last collective in the backward."""
_GRADS, _REDUCED, _END = range(2, 5)


@dataclass(frozen=True, kw_only=True, eq=False)
class Noted:
    """Consecutive steps, the first of which is only there for its end. `slept`: by place the sleeps [rank, step] ms;
    `marks` [rank, step, 5] ns, as MARKS; `meetings` [rank, step, meeting, 3] ns: when each collective that the script
    sees was called, waited for, and had its result. They send from rank `root`; None: all need all. `first` is the
    number of the first measured step."""

    slept: dict[str, Ms]
    marks: Ns
    meetings: Ns
    root: int | None = None
    first: int = 1

    @classmethod
    def of(cls, folder: Path, ranks: int, root: int | None) -> Noted:
        """What the ranks of a run wrote to a folder. Raises ValueError where steps have different collectives."""
        read = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]
        slept = {place: np.array([its["slept_ns"][place] for its in read]) / 1e6 for place in read[0]["slept_ns"]}
        meetings = np.array([its["meetings_ns"] for its in read], np.int64)
        meetings = meetings.reshape(*meetings.shape[:2], -1, 3)
        noted = {name: np.array([its["marks_ns"][name] for its in read], np.int64) for name in read[0]["marks_ns"]}
        if MARKS[_GRADS] not in noted:
            calls = meetings[..., 0]
            noted[MARKS[_GRADS]] = np.where(calls < noted[MARKS[_REDUCED]][..., None], calls, 0).max(axis=2)
        marks = np.stack([noted[name] for name in MARKS], axis=2)
        return cls(slept=slept, marks=marks, meetings=meetings, root=root)

    def window(self, first: int, steps: int, number: int) -> Noted:
        """So many steps from `first` on, which becomes step `number`."""
        its = slice(first - 1, first + steps)
        slept = {place: of[:, its] for place, of in self.slept.items()}
        return Noted(
            slept=slept, marks=self.marks[:, its], meetings=self.meetings[:, its], root=self.root, first=number
        )

    @cached_property
    def truth(self) -> Truth:
        """What each rank did in each measured step, in ms."""
        ranks, steps, marks = self.marks.shape
        stamps = np.empty((ranks, steps, 1 + marks), np.int64)
        stamps[..., 1:] = self.marks
        stamps[:, 1:, 0] = self.marks[:, :-1, _END]
        stamps[:, 0, 0] = self.marks[:, 0, 0]
        blocks = np.array([[1, steps]], np.int64)
        return stamped(stamps, [0] * ranks, blocks, self.meetings, [self._root] * self.meetings.shape[2])

    def slept_more(self, place: str, rank: int) -> float:
        """By how much more a rank slept than the median rank, ms a step."""
        return more_than_usual(self.slept[place][:, 1:], rank)

    def later_by(self, name: str, rank: int, verdict: Straggler | None = None) -> float:
        """How much more of a term a rank has than the median of the others, ms a step: of the steps of a verdict on it,
        else of all."""
        its = slice(None) if verdict is None else self._steps_of(verdict)
        return float(beside_others(self.truth.terms[..., TERMS.index(name)], self.later)[rank, its].mean())

    def late(self, rank: int) -> npt.NDArray[np.bool_]:
        """In which measured steps a rank is later than the median rank, by MATERIAL at least."""
        step_ms = float(np.diff(self.marks[..., _END]).mean()) / 1e6
        is_late: npt.NDArray[np.bool_] = self.later[rank] > MATERIAL * step_ms
        return is_late

    def bears_out(self, verdict: Straggler) -> bool:
        """Whether a rank that a verdict names was late by so much in what these marks see, summed over them: after the
        median rank; a persistent one after the median of the others, and so in more than half of the steps, which equal
        ranks are not."""
        if len(verdict.ranks) != 1 or verdict.kind not in (PERSISTENT, TRANSIENT):
            return False
        (rank,) = verdict.ranks
        its = self._steps_of(verdict)
        later = self.later[rank]
        if verdict.kind == PERSISTENT:
            later = beside_others(self.later, self.later)[rank]
            if self.late(rank)[its].mean() <= 0.5:
                return False
        return not is_off(verdict.arrival_skew - float(later[its].mean()), verdict.arrival_skew)

    def _steps_of(self, verdict: Straggler) -> npt.NDArray[np.bool_]:
        return steps_of(verdict, np.arange(self.first, self.first + self.later.shape[1]))

    @cached_property
    def later(self) -> Ms:
        """How much later than the median rank each rank came, [rank, step] ms: the sum over the collectives of a
        measured step in which it holds somebody, and the reduction of the gradients; less the sum of the median rank.
        """
        marks, total = self.marks[:, 1:], after_median(self.marks[:, 1:, _GRADS] / 1e6)
        for at in range(self.meetings.shape[2]):
            calls, ends = self.meetings[:, 1:, at, 0], self.meetings[:, 1:, at, 2]
            of_reduction = (calls >= marks[..., _GRADS]) & (calls < marks[..., _REDUCED])
            called_within = (calls[None] < calls[:, None]) & (calls[:, None] < ends[None])  # [rank, other rank, step]
            holds = called_within.any(axis=1) | (self.root is None)
            total += np.where(holds & ~of_reduction, after_median(calls / 1e6), 0.0)
        return after_median(total)

    @property
    def _root(self) -> int:
        return -1 if self.root is None else self.root


def is_off(error: float, true: float) -> bool:
    """Whether a figure errs by too much, ms."""
    return abs(error) > max(ALLOWED_MS, ALLOWED * true)


def more_than_usual(times: Ms, rank: int) -> float:
    """By how much the mean [rank, step] of a rank exceeds that of the median rank."""
    means = times.mean(axis=1)
    return float(means[rank] - np.sort(means)[(len(means) - 1) // 2])
