"""`--repeats auto`: sweeps of more and more repeats, until the speed of every point is known as well as requested."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from hpc.model.outcome import Outcome, RecordError
from hpc.model.spec import RunSpec
from hpc.system.text import grouped, plural
from launch.sweep.expansion import in_block
from launch.sweep.prepare import Prepared, Say, prepare, with_runs
from launch.sweep.request import Request
from launch.sweep.run_status import measured_in, pending_runs, planned_sweeps, run_statuses, whole
from launch.sweep.spec import DEFAULT_CI, DEFAULT_MAX_REPEATS, RepeatDecision, SweepSpec, more_repeats
from launch.sweep.submit import echo, run_prepared
from launch.sweep.text import describe_repeats
from parse import stats

Speeds = dict[Path, tuple[float, float | None] | None]
"""By trace: the run's speed with the error that the scatter of its steps makes; None without a speed."""


def sweep_until_known(request: Request) -> int:
    """Runs the first repeats of every point, then as many as `more_repeats` decides; the exit status of the command
    line. Runs that an earlier command has added are done first. Raises what `submit.sweep` raises.
    """
    console = Console(soft_wrap=True)
    say = echo(console)
    prepared = prepare(request)
    traces, process = prepared.folders.traces, os.getpid()
    runs: Sequence[RunSpec] = prepared.plan.runs
    every, speeds = list(runs), Speeds()
    while runs:
        status = run_prepared(with_runs(prepared, runs), console)
        if status not in (0, 1):
            return status
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
            runs = _added(every, request.sweeps[0], traces, speeds, say)
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
    return [
        run.repeated(repeat)
        for repeat in range(1, max(goals.values(), default=0) + 1)
        for run in in_block(_lacking(points, goals, repeat), repeat, sweep)
    ]


def _lacking(points: Mapping[str, Sequence[RunSpec]], goals: Mapping[str, int], repeat: int) -> dict[str, RunSpec]:
    """The points to which this repeat is added."""
    return {point: runs[0] for point, runs in points.items() if len(runs) < repeat <= goals[point]}


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
