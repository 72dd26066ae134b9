"""The steps of a script while it runs, for its journal: each look reads what is new."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpc.observe.stamps import ObservedStep, ObservedSteps
from hpc.run.script_groups import reduces_by_calls
from hpc.run.script_steps import RankSteps, pauses_of, read_steps

CONTEXT_STEPS, MIN_CONTEXT, CONTEXT_RECORDS = 16, 3, 1 << 14
"""Steps that a look reads again, but not beyond so many records; at least these."""
WIDER = 4
"""How many times as many are read again once these were too few, and until when all are."""


class LiveSteps:
    """A look reads the events since the last one and those of some steps before: without these, events do not show
    which loaders train and which pauses recur. Where those steps come out as others than before, it reads all anew."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._wider = folder, 1
        self._forget()

    def _forget(self) -> None:
        self.recorded = RankSteps(observed=ObservedSteps(steps=(), remarks=()))
        self._first = self._place = self._evaluated = 0  # step and record with which `recorded` begins; before these
        self._called_ns: list[tuple[int, int]] = []  # of its steps that are known from before
        self._pauses: dict[str, list[dict[str, Any]]] = {"pause": [], "phase": []}

    def look(self) -> None:
        """Reads what is new: `recorded` are the steps from some before the new ones on."""
        self._leave_behind()
        recorded = read_steps(self._folder, first=self._place)
        repeated = [step.called_ns for step in recorded.steps[: len(self._called_ns)]]
        begin = min(1, self._place)  # of the first step, what came before it is not read
        if len(repeated) < len(self._called_ns) or repeated[begin:] != self._called_ns[begin:]:
            if self._place:
                self._wider *= WIDER
                recorded = read_steps(self._folder)
            self._forget()
        self.recorded = recorded

    def _leave_behind(self) -> None:
        over = self.recorded.steps[:-1]
        records = over[-1].place // len(over) + 1 if over else 1  # of a step
        context = self._wider * max(MIN_CONTEXT, min(CONTEXT_STEPS, CONTEXT_RECORDS // records))
        behind = max(0, len(over) - context) if self._place or len(over) >= WIDER * context else 0
        self._called_ns = [step.called_ns for step in over[behind:]]
        if behind:
            for which, pauses in self._pauses.items():
                pauses += [each for each in self._read_pauses(which) if each["step"] <= self._first + behind]
            self._evaluated += sum(place < over[behind].place for place in self.recorded.evaluated)
            self._place += over[behind].place
            self._first += behind

    @property
    def new(self) -> tuple[int, Sequence[ObservedStep]]:
        """The steps that no look before this one had, and the number of the first; without the last, which may not be
        over."""
        return self._first + len(self._called_ns), self.recorded.steps[len(self._called_ns) : -1]

    @property
    def evaluated(self) -> int:
        """How many batches the script has evaluated so far."""
        return self._evaluated + len(self.recorded.evaluated)

    def _read_pauses(self, which: str) -> list[dict[str, Any]]:
        its = pauses_of(self.recorded.steps, which)
        return [{**each, "step": self._first + each["step"]} for each in its if each["step"] or not self._first]

    def facts(self, warmup_steps: int, ranks: int) -> dict[str, Any]:
        """What a reader of the journal has to know of the script; all else is known at its end."""
        in_groups = reduces_by_calls(self.recorded, max(0, warmup_steps - self._first), ranks)
        return {
            "pauses": self._pauses["pause"] + self._read_pauses("pause"),
            "phases": self._pauses["phase"] + self._read_pauses("phase"),
            "meets_as_one": self.recorded.facts.get("size", ranks) == ranks and not in_groups,
        }
