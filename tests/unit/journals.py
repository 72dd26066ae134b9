"""Journals with completed steps."""

from __future__ import annotations

from array import array
from pathlib import Path

from hpc.model.timestamps import BEGIN, END, STAMPS
from hpc.recovery.journal import Journal

STEM = "1n2g_mpi_delay_r1.1"


def complete(journal: Journal, steps: range, step_s: int = 2) -> None:
    """Writes the time stamps and sample counts of these steps, each of `step_s` seconds."""
    for step in steps:
        row = array("q", [0]) * len(STAMPS)
        row[BEGIN], row[END] = 10**9 * step_s * step, 10**9 * step_s * (step + 1)
        journal.stamps[len(STAMPS) * step : len(STAMPS) * (step + 1)] = row
        journal.samples[step] = 4


def written(traces: Path, rank: int, steps: int = 3, completed: int = 2) -> Journal:
    made = Journal(traces, STEM, rank, steps)
    for step in range(completed):
        made.stamps[6 * step : 6 * step + 6] = array("q", range(6 * step, 6 * step + 6))
        made.samples[step] = 4
    made.note(world={"rank": rank})
    return made
