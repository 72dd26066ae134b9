"""Journals with completed steps."""

from __future__ import annotations

from array import array

from hpc.model.timestamps import BEGIN, END, STAMPS
from hpc.recovery.journal import Journal


def complete(journal: Journal, steps: range, step_s: int = 2) -> None:
    """Writes the time stamps and sample counts of these steps, each of `step_s` seconds."""
    for step in steps:
        row = array("q", [0]) * len(STAMPS)
        row[BEGIN], row[END] = 10**9 * step_s * step, 10**9 * step_s * (step + 1)
        journal.stamps[len(STAMPS) * step : len(STAMPS) * (step + 1)] = row
        journal.samples[step] = 4
