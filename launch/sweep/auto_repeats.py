"""`--repeats auto`: sweeps of more and more repeats, until the speed of every point is known as well as requested."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

from hpc.model.outcome import Outcome, RecordError
from hpc.model.spec import RunSpec
from hpc.system.text import grouped, inflect, plural
from launch.sweep.expansion import in_block
from launch.sweep.prepare import Prepared, Say, with_jobs
from launch.sweep.run_status import measured_in, pending_runs, planned_sweeps, run_statuses, whole
from launch.sweep.spec import DEFAULT_CI, DEFAULT_MAX_REPEATS, FIRST_REPEATS, SweepSpec
from launch.sweep.submit import Batches
from parse import stats
from parse.comparison.types import upper_scatter

Speeds = dict[Path, tuple[float, float | None] | None]
"""By trace: the run's speed with the error that the scatter of its steps makes; None without a speed."""


def repeats_until_known(prepared: Prepared, say: Say) -> Batches:
    """The first repeats of every point, then as many as `more_repeats` decides. Runs that an earlier command has added
    are done first."""
    traces, process = prepared.folders.traces, os.getpid()
    runs: Sequence[RunSpec] = prepared.plan.runs
    every, speeds = list(runs), Speeds()
    while runs:
        status = yield with_jobs(prepared, runs)
        if os.getpid() != process:  # --detach on this machine: the child that goes on
            process, prepared = os.getpid(), _with_options(prepared, detach=False)
        options = prepared.request.options
        missing = _pending(runs, traces)
        if missing and (options.dry_run or options.detach):
            here = "by that process" if prepared.site is None else "by the same command"
            say(f"note: more repeats are decided on once these have ended{f', {here}' if options.detach else ''}")
            return status
        if missing:
            say(f"{plural(len(missing), 'run')} to be done: the same command goes on, and then decides about more")
            return 1
        known = {run.run_id for run in every}
        earlier = [run for run in _planned(prepared, say) if run.run_id not in known]
        undone = set(_pending(earlier, traces))
        runs = earlier if options.reruns else [run for run in earlier if run.run_id in undone]
        every += earlier
        if not runs:
            prepared = _with_options(prepared, retry=(), force=False, rerun_if_changed=False)
            runs = _added(every, prepared.request.sweeps[0], traces, speeds, say)
            every += runs
    return 0 if whole(run_statuses([run.run_id for run in every], traces)) else 1


def _with_options(prepared: Prepared, **changes: Any) -> Prepared:
    options = dataclasses.replace(prepared.request.options, **changes)
    return dataclasses.replace(prepared, request=dataclasses.replace(prepared.request, options=options))


def _pending(runs: Sequence[RunSpec], traces: Path) -> list[str]:
    ids = [run.run_id for run in runs]
    return pending_runs(ids, traces) if traces.is_dir() else ids


def _planned(prepared: Prepared, say: Say) -> list[RunSpec]:
    """The runs of these points that any plan in the folder has."""
    broken: list[RecordError] = []
    points = {run.point_id for run in prepared.plan.runs}
    planned = {run.run_id: run for runs in planned_sweeps(prepared.folders.traces, broken).values() for run in runs}
    for error in broken:
        say(str(error))
    return sorted(
        (run for run in planned.values() if run.point_id in points),
        key=lambda run: (run.repeat, run.nodes, run.point_id),
    )


def _added(every: Sequence[RunSpec], sweep: SweepSpec, traces: Path, speeds: Speeds, say: Say) -> list[RunSpec]:
    """The runs that are added to the points, in the order in which they are measured; says why, of each point."""
    ci, max_repeats = sweep.ci or DEFAULT_CI, sweep.max_repeats or DEFAULT_MAX_REPEATS
    points = grouped((run.point_id, run) for run in every if not run.diagnostic)
    cases = Counter(runs[0].case for runs in points.values())
    goals: dict[str, int] = {}
    for point, runs in points.items():
        decision = _decide(runs, ci, max_repeats, traces, speeds)
        goals[point] = len(runs) + decision.more
        say(f"{runs[0].case if cases[runs[0].case] == 1 else point}: {describe_repeats(decision, ci)}")
    if sweep.placement == "nested" and any(goals[point] > len(runs) for point, runs in points.items()):
        goals = dict.fromkeys(points, max(goals.values()))
        say(f"nested: every point gets {max(goals.values())} repeats, so that each block has every point")
    added = []
    for repeat in range(1, max(goals.values(), default=0) + 1):
        lacking = {point: runs[0] for point, runs in points.items() if len(runs) < repeat <= goals[point]}
        added += [run.repeated(repeat) for run in in_block(lacking, repeat, sweep)]
    return added


def _decide(runs: Sequence[RunSpec], ci: float, max_repeats: int, traces: Path, speeds: Speeds) -> RepeatDecision:
    known = []
    for status in run_statuses([run.run_id for run in runs], traces):
        if status.record is not None and status.record.outcome is Outcome.OK:
            trace = status.record.files(traces).trace
            if trace not in speeds:
                measured = measured_in(trace)
                error = None if measured is None else stats.series_error(measured.step_s.tolist())
                speeds[trace] = None if measured is None else (measured.throughput, error)
            known += [speed for speed in (speeds[trace],) if speed is not None]
    step_errors = [error for _, error in known]
    return more_repeats([speed for speed, _ in known], ci, max_repeats, len(runs) - len(known), step_errors)


# `--repeats auto`: how many more runs a point gets, a decision from the speeds of its runs alone.

CONFIDENCE = 0.95
MOSTLY = 0.5
"""From this share of the scatter on, steps are its main part."""
MAX_GROWTH = 2
"""A decision at most multiplies the runs by this: the scatter that it is planned with is that of few runs."""


class RepeatReason(StrEnum):
    """The reason why a point gets more runs, or none."""

    NOT_OK = "not_ok"  # a run did not end ok, or has no speed: a person must look first
    NARROW = "narrow"  # the interval is as narrow as requested
    MAX_REPEATS = "max_repeats"  # it is not, and there are as many runs as allowed
    WIDE = "wide"  # it is not: more runs
    FEW_RUNS = "few_runs"  # too few runs for an interval: more runs


@dataclass(frozen=True, kw_only=True)
class RepeatDecision:
    """How many runs are added to a point that has `runs` of them with a speed, and `missing` without.

    `half_width` is half of the 95 % interval of the median speed, as a share of the median; None without an interval.
    `scatter` is the coefficient of variation of the runs, None for fewer than two. `of_steps` is the share of its
    square that the scatter of steps within runs explains; None where runs have too few steps for it.
    """

    reason: RepeatReason
    runs: int
    missing: int = 0
    more: int = 0
    half_width: float | None = None
    scatter: float | None = None
    of_steps: float | None = None


def more_repeats(
    speeds: Sequence[float], ci: float, max_repeats: int, missing: int = 0, step_errors: Sequence[float | None] = ()
) -> RepeatDecision:
    """Decides by the first reason that holds; see RepeatReason.

    `speeds` are those of the ok runs, positive; `ci` is the requested half width as a share. `missing` runs have none.
    `step_errors` has for each run the relative standard error of its speed that the scatter of its steps makes
    (`stats.series_error`), None where that is not known.

    Runs are the highest level of repetition: the scatter between them contains that of steps within them, and only
    more runs average it (Kalibera and Jones, Rigorous benchmarking in reasonable time, 2013, 6.1). Their number is
    planned with the scatter at the upper end of its interval: planned with the scatter itself, points would stop
    because they happen to scatter little, and their intervals cover less than 95 % (tests/unit/test_auto_repeats.py).
    """
    runs = len(speeds)
    scatter = stats.coefficient_of_variation(speeds)
    interval = stats.median_interval(speeds)
    half_width, planned, reason = None, FIRST_REPEATS, RepeatReason.FEW_RUNS
    if interval is not None and interval.coverage >= CONFIDENCE:
        assert scatter is not None  # positive speeds, six or more
        half_width = (interval.high - interval.low) / 2 / stats.median(speeds)
        reason = RepeatReason.NARROW if half_width <= ci else RepeatReason.WIDE
        if reason is RepeatReason.WIDE:
            upper = upper_scatter(scatter**2 * (runs - 1), runs - 1)
            planned = max(runs + 1, _runs_for(ci / upper, MAX_GROWTH * runs))
    if missing:
        reason = RepeatReason.NOT_OK
    elif reason is not RepeatReason.NARROW and runs >= max_repeats:
        reason = RepeatReason.MAX_REPEATS
    adds = reason in (RepeatReason.WIDE, RepeatReason.FEW_RUNS)
    return RepeatDecision(
        reason=reason, runs=runs, missing=missing, more=min(planned, max_repeats) - runs if adds else 0,
        half_width=half_width, scatter=scatter, of_steps=_share_of_steps(scatter, step_errors),
    )  # fmt: skip


def _runs_for(wanted: float, max_runs: int) -> int:
    """The least number of runs, at most `max_runs`, with an interval of this expected half width, in standard
    deviations."""
    return next((runs for runs in range(FIRST_REPEATS, max_runs) if expected_half_width(runs) <= wanted), max_runs)


@cache
def expected_half_width(runs: int) -> float:
    """Half of the interval of the median of so many normal runs, in standard deviations: the expected value of the
    order statistic at its end (Blom 1958)."""
    interval = stats.median_interval(range(1, runs + 1))
    assert interval is not None
    return NormalDist().inv_cdf((interval.high - 0.375) / (runs + 0.25))


def _share_of_steps(scatter: float | None, step_errors: Sequence[float | None]) -> float | None:
    """The part of the squared scatter that steps explain, at most 1; None where it is not known of every run."""
    errors = [error for error in step_errors if error is not None]
    if not scatter or not errors or len(errors) < len(step_errors):
        return None
    return min(1.0, stats.mean([error**2 for error in errors]) / scatter**2)


def describe_repeats(decision: RepeatDecision, ci: float) -> str:
    """What was decided about the repeats of a point, and why."""
    runs, scatter = plural(decision.runs, "run"), f"{100 * (decision.scatter or 0):.2g} %"
    width = "" if decision.half_width is None else f"half width {100 * decision.half_width:.2g} % after {runs}"
    match decision.reason:
        case RepeatReason.NOT_OK:
            all_runs = plural(decision.runs + decision.missing, "run")
            return f"{decision.missing} of {all_runs} without a speed: none is added before these are looked at (retry)"
        case RepeatReason.FEW_RUNS:
            return f"{runs}, too few for an interval of 95 %: {decision.more} more"
        case RepeatReason.NARROW:
            return f"{width}, at most {100 * ci:g} % as requested"
        case RepeatReason.MAX_REPEATS if not width:
            return f"{runs}, too few for an interval of 95 %, and no more are allowed (--repeats auto:CI:MAX)"
    known = f"{width}; between-run scatter {scatter}{_of_steps(decision)}"
    if decision.reason is RepeatReason.MAX_REPEATS:
        return f"{known}; not {100 * ci:g} %, and no more runs are allowed (--repeats auto:CI:MAX)"
    return f"{known}; {decision.more} more {inflect(decision.more, 'run')}"


def _of_steps(decision: RepeatDecision) -> str:
    if decision.of_steps is None:
        return ""
    share = f", {100 * decision.of_steps:.0f} % of its square from steps within runs"
    return f"{share}: longer runs (--steps) would need fewer of them" if decision.of_steps > MOSTLY else share
