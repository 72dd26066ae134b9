"""What checkpoints that are written while a script trains on (`async_save`) take from its steps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import sqrt

import numpy as np

from hpc.model.timestamps import ABSENT, BEGIN, END
from hpc.model.trace import RankReport, Trace
from parse import stats
from parse.ledger.finding import BackgroundWrites
from parse.rules import FEW
from parse.stats import Mean

LEAST_STEPS = 2
"""A write is compared where it has as many steps, and as many are before it."""
CONFIDENCE = 0.99
"""Within this interval of the difference, by Student's t, there is no zero where it is named."""


@dataclass(frozen=True, kw_only=True)
class RunWrites:
    """Of a run with `of_steps` measured steps: how many `steps` each of its writes has, and by how many ms these take
    `longer` than as many before it."""

    steps: tuple[int, ...]
    longer: tuple[float, ...]
    of_steps: int


def writes_of(trace: Trace) -> RunWrites | None:
    """The writes of all ranks in the measured steps that have steps before them; None without any."""
    numbers = np.concatenate([np.arange(first, stop) for first, stop in trace.blocks.tolist()])
    written = np.zeros(int(numbers[-1]) + 1, np.bool_)
    for report in trace.reports:
        for first, last in _writes(report):
            written[first : last + 1] = True
    if not written.any():
        return None
    within = written[numbers]
    ends = np.concatenate([trace.stamps[:, first:stop][..., [BEGIN, END]] for first, stop in trace.blocks.tolist()], 1)
    if (ends == ABSENT).any():
        return None
    length_ms = (ends[..., 1] - ends[..., 0]).mean(axis=0) / 1e6
    steps, longer, begin, free = list[int](), list[float](), 0, 0
    for is_write, group in groupby(within.tolist()):
        end = begin + len([*group])
        size = min(end - begin, free)
        if is_write and size >= LEAST_STEPS:
            before = length_ms[begin - size : begin]
            steps.append(end - begin)
            longer.append(float(length_ms[begin:end].mean() - before.mean()))
        begin, free = end, 0 if is_write else end - begin
    return RunWrites(steps=tuple(steps), longer=tuple(longer), of_steps=len(numbers))


def _writes(report: RankReport) -> list[tuple[int, int]]:
    """First and last step of each, as the rank states them; none where that is no statement of writes."""
    try:
        its = [(int(first), int(last)) for first, last in report.script.get("writes", ())]
    except (TypeError, ValueError, OverflowError):
        return []
    return [(first, last) for first, last in its if 0 <= first <= last]


def background_writes_of(runs: Sequence[RunWrites]) -> BackgroundWrites | None:
    """What the steps take longer in the writes of all runs of a point; None where that may be chance."""
    longer = [each for run in runs for each in run.longer]
    steps = [each for run in runs for each in run.steps]
    if len(longer) < FEW:
        return None
    mean = statistics.fmean(longer)
    margin = stats.student(CONFIDENCE, len(longer) - 1) * statistics.stdev(longer) / sqrt(len(longer))
    if mean <= margin:
        return None
    return BackgroundWrites(
        times=len(longer) / len(runs), steps=sum(steps) / len(runs),
        of_steps=statistics.fmean(run.of_steps for run in runs),
        longer=Mean(value=mean, low=mean - margin, high=mean + margin, coverage=CONFIDENCE),
    )  # fmt: skip
