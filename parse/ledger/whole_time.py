"""The whole time of a run's attempts in rows that add up to it: what of its nodes' time trained, and what the rest was.

An attempt is a line of moments on rank 0's monotonic clock, which is the global one: each row is the time from one
moment to the next, so nothing counts twice and nothing is lost. What no moment explains is a row of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpc.model.outcome import ExitRecord, Outcome
from hpc.model.spec import MIN_WARMUP_STEPS
from hpc.model.timestamps import ABSENT, BEGIN, END
from hpc.model.trace import Ints, Trace, TraceError
from hpc.model.trace_file import open_trace
from hpc.model.training import TrainingHistory
from hpc.system.text import grouped
from parse.faults import fault
from parse.ledger.pauses import kinds_of, pause_table, seconds_of
from parse.runs.attempt import Attempt
from parse.runs.result import Result, Run

START, IMPORT, BUILD, FIRST_STEPS, STEPS, ROLLOUT = "start", "import", "build", "first steps", "steps", "rollout"
EVALUATION, CHECKPOINT, CLOCKS, END_OF_RUN = "evaluation", "checkpoint", "clocks", "end"
LOST_STEPS, RESTARTS, FAILURES, UNEXPLAINED = "lost steps", "restarts", "failures", "not accounted for"
ROWS = (
    START, IMPORT, BUILD, FIRST_STEPS, STEPS, ROLLOUT, EVALUATION, CHECKPOINT, CLOCKS, END_OF_RUN, LOST_STEPS,
    RESTARTS, FAILURES, UNEXPLAINED,
)  # fmt: skip
"""docs/ledger.md has what each is; a script's other pauses have rows by their kinds, before `clocks`."""
TRAINS = (STEPS, ROLLOUT)
"""Goodput is their share."""
_STARTS = (START, IMPORT, BUILD, FIRST_STEPS)
TimeRows = dict[str, int]
"""ns by row."""
Moments = Sequence[tuple[str, int]]
"""TimeRows in the order of time, each with the moment when it ends, ns of rank 0's clock."""


@dataclass(frozen=True, kw_only=True)
class RunTime:
    """The time of a run: `rows` in s add up to `wall_s`, that of `attempts` in their jobs. Of `unrecorded` attempts no
    record says how long they took: they are in no row."""

    repeat: int
    attempts: int
    unrecorded: int
    wall_s: float
    rows: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class WholeTime:
    """The time of a point: means over its runs, in s. `goodput` is the share of its node hours that trained."""

    result: Result
    wall_s: float
    rows: Mapping[str, float]
    goodput: float
    runs: tuple[RunTime, ...]


def whole_times(results: Sequence[Result], every: Sequence[Result], faults: list[str]) -> tuple[WholeTime, ...]:
    """That of each result with a recorded attempt. `every` are all points that share jobs with these. What cannot be
    read adds a line to `faults`, and its point has none."""
    leads_ns, made = _leads_ns(every), list[WholeTime]()
    for result in results:
        try:
            made += _of_point(result, leads_ns)
        except TraceError as error:
            faults.append(f"the whole time of {result.requested.run_id}: {error}")
        except Exception as error:  # noqa: BLE001 - the line says which
            faults.append(fault(error, f"the whole time of {result.requested.run_id}"))
    return tuple(made)


def _of_point(result: Result, leads_ns: Mapping[tuple[str, str], int]) -> Iterator[WholeTime]:
    runs = tuple(of_run for run in result.runs if (of_run := _of_run(run, _folder(result), leads_ns)) is not None)
    if not runs:
        return
    wall_s = sum(run.wall_s for run in runs) / len(runs)
    names = in_order({name for run in runs for name in run.rows})
    rows = {name: sum(run.rows.get(name, 0.0) for run in runs) / len(runs) for name in names}
    goodput = sum(rows.get(name, 0.0) for name in TRAINS) / wall_s
    yield WholeTime(result=result, wall_s=wall_s, rows=rows, goodput=goodput, runs=runs)


def in_order(names: set[str]) -> list[str]:
    """Names of rows in their order."""
    places = {name: at for at, name in enumerate(ROWS)}
    return sorted(names, key=lambda name: (places.get(name, places[CLOCKS] - 0.5), name))


def _of_run(run: Run, folder: str, leads_ns: Mapping[tuple[str, str], int]) -> RunTime | None:
    total: TimeRows = {}
    known = 0
    for attempt in run.every:
        rows = _of_attempt(run, attempt)
        if rows is not None:
            known += 1
            lead_ns = leads_ns.get((folder, attempt.record.stem), 0) if attempt.record else 0
            _add(total, {(START if attempt is run.every[0] else RESTARTS): lead_ns})
            _add(total, rows)
    wall_ns = sum(total.values())
    if not wall_ns:
        return None
    return RunTime(
        repeat=run.requested.run.repeat, attempts=known, unrecorded=len(run.every) - known, wall_s=wall_ns / 1e9,
        rows={name: total[name] / 1e9 for name in in_order({name for name, ns in total.items() if ns})},
    )  # fmt: skip


def _of_attempt(run: Run, attempt: Attempt) -> TimeRows | None:
    """None where nothing says how long it took."""
    history = run.attempt.history if run.attempt else None
    counts = attempt is run.attempt and attempt.outcome is Outcome.OK
    rows = None
    if attempt.trace is not None:
        with open_trace(attempt.trace) as trace:
            ends_ns = attempt.measured.latest_end_ns if attempt.measured else None
            rows = traced(trace, attempt.record, history, ends_ns, counts=counts)
    elif attempt.record is not None and attempt.record.elapsed_s is not None:
        rows = {FAILURES if attempt.outcome is not Outcome.OK else UNEXPLAINED: _ns(attempt.record.elapsed_s)}
    if rows is None or attempt is run.every[0]:
        return rows
    restart_ns = sum(rows.pop(name, 0) for name in _STARTS)
    return {**rows, RESTARTS: restart_ns}


def traced(
    trace: Trace, record: ExitRecord | None, history: TrainingHistory | None = None, ends_ns: Ints | None = None, *,
    counts: bool = True,
) -> TimeRows | None:  # fmt: skip
    """The rows of an attempt with a trace; None where neither a record nor a moment says how long it took.

    `ends_ns` [step] is the latest end of each step on the global clock, where that is known already. Of an attempt that
    does not give the run its numbers (not `counts`) the steps are lost, but for epochs that `history` has.
    """
    moments = {name: at for name, at in (trace.reports[0].moments or {}).items() if isinstance(at, int)}
    elapsed_s = None if record is None else record.elapsed_s
    ends_ns = _ends_ns(trace) if ends_ns is None else ends_ns
    last_ns = [int(ends_ns[-1])] if len(ends_ns) else []
    first_ns = [int(trace.globally(trace.stamps[:, :1, BEGIN]).max())] if len(ends_ns) else []
    begun_ns = min(moments.values() or first_ns, default=None)
    if begun_ns is None or (elapsed_s is None and not moments):
        return None
    on_clock = record is not None and record.begin_ms >= 0 and record.clock == trace.clock_domains[0]
    if record is not None and on_clock:
        begun_ns = record.begin_ms * 10**6
    stop_ns = max([begun_ns, *moments.values(), *last_ns]) if elapsed_s is None else begun_ns + _ns(elapsed_s)
    line: list[tuple[str, int]] = [
        (row, moments[name])
        for row, name in ((START, "met_ns"), (IMPORT, "imported_ns"), (BUILD, "built_ns"))
        if name in moments
    ]
    before = CLOCKS if "built_ns" in moments else BUILD if "imported_ns" in moments else UNEXPLAINED
    line += [(before, at_ns) for at_ns in first_ns]
    epochs = _epochs(trace, history, moments.get("built_ns"), last=counts)
    stepped = [*_stepped(trace, ends_ns)]
    if not counts:
        rows = _laid(begun_ns, stop_ns, [*line, *epochs, *((LOST_STEPS, at_ns) for at_ns in last_ns)])
        _add(rows, {FAILURES if history is None else LOST_STEPS: stop_ns - begun_ns - sum(rows.values())})
        return rows
    rows = _laid(begun_ns, stop_ns, [*line, *(epochs or stepped)])
    if epochs:  # which have the clocks' comparisons in them
        _move(rows, STEPS, CLOCKS, _laid(begun_ns, stop_ns, [*line, *stepped]).get(CLOCKS, 0) - rows.get(CLOCKS, 0))
    _move(rows, STEPS, FIRST_STEPS, _beyond_usual_ns(trace, ends_ns))
    _move(rows, STEPS, ROLLOUT, _rollouts_ns(trace))
    rest_ns = stop_ns - begun_ns - sum(rows.values())
    ended_ns = max(0, min(stop_ns, moments.get("ended_ns", begun_ns)) - begun_ns - sum(rows.values()))
    _add(rows, {END_OF_RUN: rest_ns} if on_clock else {END_OF_RUN: ended_ns, UNEXPLAINED: rest_ns - ended_ns})
    return rows


def _laid(begun_ns: int, stop_ns: int, line: Moments) -> TimeRows:
    """The time between each moment and the one before it; none is before that, nor outside of the attempt."""
    rows: TimeRows = {}
    at_ns = begun_ns
    for name, moment_ns in line:
        until_ns = min(max(at_ns, moment_ns), stop_ns)
        _add(rows, {name: until_ns - at_ns})
        at_ns = until_ns
    return rows


def _ends_ns(trace: Trace) -> Ints:
    """The latest end of each step that some rank has completed [step]."""
    ends_ns = trace.globally(np.asarray(trace.stamps[:, : int(trace.steps_completed.max(initial=0)), END]))
    latest: Ints = ends_ns.max(axis=0, initial=ABSENT)
    return latest[: int(np.argmax(latest == ABSENT)) if (latest == ABSENT).any() else len(latest)]


def _stepped(trace: Trace, ends_ns: Ints) -> Iterator[tuple[str, int]]:
    """The steps, and what is between them: until the last rank begins the step behind it."""
    kinds, blocks = _kinds(trace), trace.blocks.tolist()
    ours = {first - MIN_WARMUP_STEPS for first, _ in blocks[:1]} | {stop for _, stop in blocks}
    for at in sorted(step for step in {*kinds, *ours} if 0 < step < len(ends_ns)):
        yield STEPS, int(ends_ns[at - 1])
        yield kinds.get(at, CLOCKS), int(trace.globally(trace.stamps[:, at : at + 1, BEGIN]).max())
    yield from ((STEPS, int(end_ns)) for end_ns in ends_ns[-1:])


def _kinds(trace: Trace) -> dict[int, str]:
    """What ranks did before a step that is no part of it, as far as hooks recorded that."""
    recorded = [pause_table(report, rank, "pauses") for rank, report in enumerate(trace.reports)]
    kinds = grouped((step, kinds_of(entry)) for its in recorded for step, entry in its.items())
    return {step: " and ".join(sorted(frozenset[str]().union(*its))) for step, its in kinds.items()}


def _rollouts_ns(trace: Trace) -> int:
    """What a script's steps have in them that recurs in few of them: of the rank that takes longest."""
    recorded = [pause_table(report, rank, "phases") for rank, report in enumerate(trace.reports)]
    longest = grouped(
        (step, seconds_of(entry, rank)) for rank, its in enumerate(recorded) for step, entry in its.items()
    )
    return sum(_ns(max(seconds)) for seconds in longest.values())


def _beyond_usual_ns(trace: Trace, ends_ns: Ints) -> int:
    """By how much the steps of the warm-up take longer than as many of the window, by the median of these."""
    blocks = [(first, stop) for first, stop in trace.blocks.tolist() if stop <= len(ends_ns)]
    if not blocks or (first := int(blocks[0][0])) < 1:
        return 0
    usual = float(np.median(np.concatenate([np.diff(ends_ns[begin - 1 : stop]) for begin, stop in blocks])))
    begin_ns = int(trace.globally(trace.stamps[:, :1, BEGIN]).max())
    taken = _laid(begin_ns, int(ends_ns[first - 1]), [*_stepped(trace, ends_ns[:first])])
    return int(taken.get(STEPS, 0)) - round(first * usual)


def _epochs(trace: Trace, history: TrainingHistory | None, built_ns: int | None, *, last: bool) -> Moments:
    """Those of a whole training that this attempt made and that count, by what each was spent on."""
    begun = next((each for each in history.begun if each.attempt == trace.attempt), None) if history else None
    if history is None or begun is None or built_ns is None:
        return []
    line: list[tuple[str, int]] = []
    for epoch in history.epochs:
        if epoch.attempt == trace.attempt:
            line += [(CHECKPOINT, epoch.begin_ns), (STEPS, epoch.trained_ns), (EVALUATION, epoch.evaluated_ns)]
    line += [(CHECKPOINT, history.stop_ns)] if last else []
    return [(name, at_ns - begun.unix_ns + built_ns) for name, at_ns in line]


def _leads_ns(results: Sequence[Result]) -> dict[tuple[str, str], int]:
    """By folder and attempt: the time of its job since the attempt before, or since the job's script began."""
    recorded = [(_folder(result), record) for result in results for run in result.runs for record in run.records]
    jobs = grouped(
        ((folder, record.job_id, record.restart_count, record.clock, record.job_begin_ms), record)
        for folder, record in recorded if record.begin_ms >= 0 <= record.job_begin_ms
    )  # fmt: skip
    leads = {}
    for (folder, *_, job_begin_ms), records in jobs.items():
        records.sort(key=lambda record: record.begin_ms)
        stops = [job_begin_ms, *(record.begin_ms + round(1e3 * (record.elapsed_s or 0)) for record in records)]
        for record, stop_ms in zip(records, stops, strict=False):
            leads[folder, record.stem] = max(0, record.begin_ms - stop_ms) * 10**6
    return leads


def _folder(result: Result) -> str:
    return result.requested.measurement.folder if result.requested.measurement else ""


def _ns(seconds: float) -> int:
    return round(1e9 * seconds)


def _add(rows: TimeRows, others: Mapping[str, int]) -> None:
    for name, ns in others.items():
        rows[name] = rows.get(name, 0) + ns


def _move(rows: TimeRows, name: str, to: str, ns: int) -> None:
    """Of that row as much as it has."""
    _add(rows, {to: (moved := max(0, min(ns, rows.get(name, 0))))})
    rows[name] = rows.get(name, 0) - moved
