"""Progress of a running attempt, from a journal on this node or a copy beside the traces; reads one file per look."""

from __future__ import annotations

from pathlib import Path

from hpc.recovery.folders import PARTIAL, attempt_folders
from hpc.recovery.progress import RankProgress, median_step_s, read_one_rank
from launch.follow.rows import MIN_STEPS_FOR_PACE, StepCount


class StepReader:
    """Reads step counts of attempts whose files come to a folder of traces."""

    def __init__(self, traces: Path) -> None:
        self._traces = traces
        self._known: dict[str, RankProgress] = {}

    def read(self, stem: str) -> StepCount | None:
        """Steps that one rank of the attempt has completed; None where nothing is known or reading failed.

        Ranks reduce gradients at each step, so one rank stands for all. A copy is as old as the copier's interval.
        After the files have been removed, as at the end of a run, the last count is returned, without a pace.
        """
        try:
            return self._read(stem)
        except OSError:  # the figure is missing from the display; the run goes on
            return None

    def forget(self, stem: str) -> None:
        """The attempt has ended."""
        self._known.pop(stem, None)

    def _read(self, stem: str) -> StepCount | None:
        known = self._known.get(stem)
        for folder in (*attempt_folders(self._traces, stem), self._traces / f"{stem}{PARTIAL}"):
            if (progress := read_one_rank(folder, known)) is None:
                continue
            self._known[stem] = progress
            timed = progress.completed >= MIN_STEPS_FOR_PACE
            return StepCount(
                completed=progress.completed, planned=progress.steps,
                median_step_s=median_step_s(progress) if timed else None,
            )  # fmt: skip
        return None if known is None else StepCount(completed=known.completed, planned=known.steps)
