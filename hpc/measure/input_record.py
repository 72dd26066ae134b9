"""What a rank records of the batches that it reads from files."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from hpc.model.options import INPUT_FIGURES
from hpc.model.timestamps import ABSENT

MAX_NAMED = 20
"""The maximum of skipped files that a rank names."""


class InputRecord:
    """The figures of every step, and the files that were skipped because they cannot be decoded.

    `figures` is flat int64 [steps × INPUT_FIGURES]. `facts` say how the rank reads.
    """

    def __init__(self, steps: int, facts: Mapping[str, Any]) -> None:
        self.facts = dict(facts)
        self.figures = memoryview(array("q", [ABSENT]) * (steps * len(INPUT_FIGURES)))
        self._skipped: dict[str, str] = {}
        self._skips = 0

    def record(self, step: int, figures: Sequence[int]) -> None:
        """Stores the figures of a step, in the order of INPUT_FIGURES; of none after the steps of the run."""
        at = step * len(INPUT_FIGURES)
        if at >= len(self.figures):
            return
        self.figures[at : at + len(INPUT_FIGURES)] = array("q", figures)

    def skip(self, name: str, reason: str) -> None:
        """Counts a file that cannot be decoded, each time that it is met."""
        self._skips += 1
        self._skipped[name] = reason

    def as_json(self) -> dict[str, Any]:
        """The facts, and what was skipped: how often, how many files, the first of them with their reasons."""
        named = dict(list(self._skipped.items())[:MAX_NAMED])
        return {**self.facts, "skips": self._skips, "skipped_files": len(self._skipped), "skipped": named}


def input_record_of(workload: Any) -> InputRecord | None:
    """That of a workload that reads files, by its attribute `input`."""
    record = getattr(workload, "input", None)
    return record if isinstance(record, InputRecord) else None
