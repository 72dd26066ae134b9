"""A published point as a result like any other, with the printed figures beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpc.model.outcome import Outcome
from parse.runs.attempt import Attempt, Measured, RequestedRun, RunFields
from parse.runs.result import Claimed, Result, Run, of_runs
from parse.stats import Interval


@dataclass(frozen=True, kw_only=True)
class PublishedPoint:
    """What is printed of a point: its first run with the fields that are known, the speeds of its single runs by their
    numbers, its figures, the interval of its one speed, and the words in the place of a speed."""

    requested: RequestedRun
    claimed: Claimed
    speeds: tuple[tuple[int, float], ...] = ()
    interval: Interval | None = None
    placeholders: tuple[str, ...] = ()


def requested_run(fields: RunFields, extra: Mapping[str, Any]) -> RequestedRun:
    """The first run of a point; empty fields of `extra` are left out."""
    known = {name: value for name, value in extra.items() if value}
    return RequestedRun(run=fields, run_id=fields.partial_id(known), extra=known)


def point_result(point: PublishedPoint) -> Result:
    """The result of the point, still without speedup: over its single runs, else of the one speed that is printed."""
    if point.speeds:
        return replace(of_runs([*_runs(point)]), published=point.claimed)
    claimed = point.claimed
    speed = claimed.median if claimed.median is not None else claimed.average
    placeholder = " and ".join(dict.fromkeys(point.placeholders)) or ("only packed jobs" if claimed.packed else "")
    runs: tuple[Run, ...] = ()
    if speed is None and placeholder:
        unnumbered = replace(point.requested, run=replace(point.requested.run, is_numbered=False))
        runs = (Run(requested=unnumbered, attempt=None, attempts=0, placeholder=placeholder),)
    return Result(
        requested=point.requested, runs=runs, planned_runs=None, median_speed=speed, average_speed=claimed.average,
        published=claimed, interval=point.interval,
    )  # fmt: skip


def _runs(point: PublishedPoint) -> Iterator[Run]:
    for number, speed in point.speeds:
        run = replace(point.requested.run, repeat=number)
        requested = replace(point.requested, run=run, run_id=run.partial_id(point.requested.extra))
        measured = Measured(throughput=speed, mean_of_rates=None, step_s=np.empty(0), samples=0, clock_share=0.0)
        attempt = Attempt(
            run_id=requested.run_id, number=1, requested=requested, outcome=Outcome.OK, measured=measured, machine=None
        )
        yield Run(requested=requested, attempt=attempt, attempts=1, ok_attempts=(1,))
