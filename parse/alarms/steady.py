"""Alarms about steady state: a warm-up that was too short, runs far from the others."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import numpy as np
import numpy.typing as npt

from hpc.model.findings import Figures
from parse import stats
from parse.alarms.scaling import Neighbours
from parse.change_points import change_points
from parse.result import Result

MIN_SHARE = 0.01
"""The least share of the speed that steps of a warm-up in the window must cost."""


def short_warmup(result: Result, _: Neighbours) -> Iterator[Figures]:
    """In most runs the window begins with steps of another level, which a longer warm-up would have left out.

    The steps are those before the last change point in the first half of a window whose second half has none. Where a
    log prints means over several steps, a position counts as that many.
    """
    windows = [
        (run.requested.run.repeat, run.measured.step_s, run.measured.printed_every)
        for run in result.ok
        if run.measured and not run.measured.pauses_s and (run.measured.step_s > 0).all()
    ]
    warmup = result.run.warmup_steps
    if warmup is None:
        return
    begins = [(repeat, begin * every, *_effects(step_s, begin)) for repeat, step_s, every in windows
              if (begin := steady_from(step_s))]  # fmt: skip
    costly = [begin for begin in begins if abs(begin[3]) > MIN_SHARE]
    if not costly or 2 * len(costly) <= len(result.ok):
        return
    repeats, extra, levels, shares = zip(*costly, strict=True)
    yield {
        "extra": ceil(stats.median(extra)),
        "warmup": warmup,
        "runs": [*repeats],
        "ok": len(result.ok),
        "level": stats.median(levels),
        "share": stats.median(shares),
    }


def steady_from(step_s: npt.NDArray[np.float64]) -> int:
    """The position from which on the step times [n] keep one level, if that lies in their first half; else 0."""
    positions = change_points(step_s)
    return positions[-1] if positions and positions[-1] <= len(step_s) // 2 else 0


def _effects(step_s: npt.NDArray[np.float64], begin: int) -> tuple[float, float]:
    """By how much the median step before `begin` exceeds those behind it, and the speed of the whole window that of its
    steady part, as shares."""
    level = float(np.median(step_s[:begin]) / np.median(step_s[begin:])) - 1
    return level, float(step_s[begin:].mean() / step_s.mean()) - 1


def outlying_runs(result: Result, _: Neighbours) -> Iterator[Figures]:
    """Runs far from the others of their point."""
    runs = [(str(run.requested.run.repeat), run.measured.throughput) for run in result.ok if run.measured]
    speeds = [speed for _, speed in runs]
    if not all(np.isfinite(speeds)) or min(speeds, default=0) <= 0:
        return
    if positions := stats.outlying(speeds):
        yield {"runs": {runs[at][0]: runs[at][1] for at in positions}, "median": stats.median(speeds)}
