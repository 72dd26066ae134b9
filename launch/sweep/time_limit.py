"""The time limit of a job, by the durations of earlier attempts of its points: checked, and requested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from hpc.model.outcome import ExitRecord, Outcome
from hpc.model.spec import RunSpec
from hpc.system.groups import grouped
from launch.jobs.plan import JobPlan


class TimeLimitTooShort(Exception):
    """Not even the first run of a job fits its time limit; the text has the figures and the fix."""


START_S = 120
"""Seconds that a run is allowed to start, and to be ended and recorded before the limit."""
SHORTEST_MIN = 5
"""No job requests less, if its limit allows that."""
_NEARLY = 0.8
"""An attempt that was cut off after this fraction of the present time limit may be cut off again: it began later than
its job."""


@dataclass(frozen=True, kw_only=True)
class TimeBudget:
    """The time of a job: its name, its limit, and the margin before the limit at which runs are ended."""

    job: str
    limit_s: float
    margin_s: float


def durations_s(
    runs: Sequence[RunSpec], records: Mapping[str, Sequence[ExitRecord]], outcome: Outcome
) -> dict[str, list[float]]:
    """By point id: the durations in seconds of its attempts that ended with this outcome."""
    return grouped(
        (run.point_id, float(record.end_unix_s - record.begin_unix_s))
        for run in runs
        for record in records.get(run.run_id, ())
        if record.outcome is outcome
    )


def minutes_to_request(
    job: JobPlan,
    remaining: Sequence[RunSpec],
    took: Mapping[str, Sequence[float]],
    cut_off: Mapping[str, Sequence[float]],
) -> int:
    """The minutes to request for the job's remaining runs, at most its limit.

    Each run is allowed twice what the longest attempt of its point that ended `ok` took, and START_S; the
    minutes of the plan where none has ended so, or a time limit has ended one. A limit that was requested for whole
    jobs stays.
    """
    if job.minutes_per_run is None:
        return job.time_min
    planned_s = 60 * job.minutes_per_run
    allowed_s = sum(
        min(planned_s, 2 * max(took[run.point_id]) + START_S)
        if took.get(run.point_id) and not cut_off.get(run.point_id)
        else planned_s
        for run in remaining
    )
    return min(job.time_min, max(SHORTEST_MIN, ceil(allowed_s / 60)))


def check_budget(
    budget: TimeBudget,
    remaining: Sequence[RunSpec],
    took: Mapping[str, Sequence[float]],
    cut_off: Mapping[str, Sequence[float]],
) -> list[str]:
    """Warnings about a job with these remaining runs, in order.

    `took` and `cut_off` are the durations of attempts that ended `ok` and of those that a time limit ended. Runs whose
    points are in neither have no estimate and no warning. Raises TimeLimitTooShort if every earlier attempt of the
    first run's point took too long.
    """
    usable_s = budget.limit_s - budget.margin_s
    has = f"{budget.job} has {budget.limit_s / 60:g} min, less {budget.margin_s:g} s before its end"
    fix = "raise --minutes-per-run or --time"
    known = [(run, took[run.point_id]) for run in remaining if took.get(run.point_id)]
    for run, durations in known:
        if run is remaining[0] and min(durations) > usable_s:
            raise TimeLimitTooShort(
                f"{has}: its first run, {run.run_id}, cannot end in that; attempts of its point took "
                f"{_range(durations)}: {fix}"
            )
        if max(durations) > usable_s:
            return [f"{has}: {run.run_id} may not end in that, attempts of its point took {_range(durations)}: {fix}"]
    for run in remaining:
        longest_s = max(cut_off.get(run.point_id, ()), default=0.0)
        if not took.get(run.point_id) and longest_s > _NEARLY * usable_s:
            return [
                f"{has}: {run.run_id} may not end in that, an attempt of its point was cut off after {longest_s:.0f} "
                f"s, and none has ended yet: {fix}"
            ]
    if len(known) == len(remaining) and (together_s := sum(max(durations) for _, durations in known)) > usable_s:
        return [
            f"{has}: its {len(remaining)} runs took up to {together_s:.0f} s together before; those that do not fit "
            f"are left for another job: the same command submits it, or {fix}"
        ]
    return []


def _range(seconds: Sequence[float]) -> str:
    shortest, longest = min(seconds), max(seconds)
    return f"{shortest:.0f} s" if shortest == longest else f"{shortest:.0f} to {longest:.0f} s"
