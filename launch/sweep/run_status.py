"""The status of a sweep's runs, from the files beside the traces alone: records, begun attempts, copies, plans."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc.model.evidence import exit_of
from hpc.model.files import BEGIN, BEGIN_RECORD, EXIT, AttemptFiles
from hpc.model.outcome import (
    MAX_PLAN_BYTES,
    BeginRecord,
    ExitRecord,
    Outcome,
    RecordAway,
    RecordError,
    exit_records,
    final_record,
    is_final,
    read_begin_record,
    read_object,
    requested_reruns,
)
from hpc.model.spec import PLAN_VERSION, RunSpec, SpecError
from hpc.model.trace_file import visible_defect
from hpc.recovery.folders import JournalError
from hpc.recovery.journal_reader import read_journals
from hpc.system.groups import grouped

_RECORD = re.compile(r"(?P<run_id>.+)\.\d+\.(?:begin|exit)\.json")


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The status of one run: the number of attempts that began, and the number of the last one that ended.

    `record` gives its outcome: the final one, else the last. `open` is the last attempt if it began and has no record;
    `last_step` and `copy_age_s` are of that attempt, None if nothing was copied. `final`: the run needs no further
    attempt. `rerun_requested`: it would need none, but a rerun was requested. `problems` names its unreadable files,
    each with what to do. `held`: one of these may be the final record, so the run must not be run. `trace_damaged`: the
    trace of the final record is not whole.
    """

    run_id: str
    attempts: int = 0
    ended: int = 0
    record: ExitRecord | None = None
    open: BeginRecord | None = None
    final: bool = False
    rerun_requested: bool = False
    last_step: int | None = None
    copy_age_s: float | None = None
    problems: tuple[str, ...] = ()
    held: bool = False
    trace_damaged: bool = False

    @property
    def state(self) -> str:
        """The outcome as text, or the state of a run without one."""
        if self.held and not self.final:
            return "held back"
        if self.open is not None and not self.final:
            return "begun"
        if self.record is None:
            return "never ran"
        if self.rerun_requested:
            return f"{self.record.outcome}, wanted again"
        return f"{self.record.outcome}, trace damaged" if self.trace_damaged else self.record.outcome


def run_statuses(run_ids: Iterable[str], traces: Path) -> list[RunStatus]:
    """The status of each run, in the order given."""
    broken: list[RecordError] = []
    records, rerun_requests = exit_records(traces, broken), requested_reruns(traces)
    begun = _last_begun(traces, broken)
    errors = _by_run(broken)
    return [
        _run_status(run, records.get(run, []), rerun_requests, begun.get(run), traces, errors.get(run, []))
        for run in run_ids
    ]


def pending_runs(run_ids: Sequence[str], traces: Path) -> list[str]:
    """The runs to be done: not final, and without an unreachable record that may be final.

    Raises OSError if the folder does not exist: an unmounted one must not look like one without records.
    """
    traces.stat()
    broken: list[RecordError] = []
    records, rerun_requests = exit_records(traces, broken), requested_reruns(traces)
    held = {run_id for run_id, errors in _by_run(broken).items() if _may_be_final(errors)}
    return [run for run in run_ids if run not in held and not is_final(records.get(run, []), rerun_requests)]


def planned_sweeps(traces: Path, broken: list[RecordError]) -> dict[str, tuple[RunSpec, ...]]:
    """The sweeps whose plans are in the folder, by sweep id. Errors of unreadable plans are appended to `broken`."""
    sweeps = {}
    for path in sorted(traces.glob("plan.*.json")):
        try:
            values = read_object(path, MAX_PLAN_BYTES, "a plan of ours")
            if (version := values.get("schema_version")) != PLAN_VERSION:
                raise SpecError(f"it is of schema {version!r:.40}, this version reads schema {PLAN_VERSION}")
            sweeps[str(values["sweep_id"])] = tuple(RunSpec.from_json(run) for run in values["runs"])
        except (ValueError, KeyError, TypeError, AttributeError, SpecError) as error:
            reason = f"no plan that this version can read ({error}); the command that planned it writes it again"
            broken.append(RecordError(f"{path}: {reason}"))
    return sweeps


def describe_states(runs: Iterable[RunStatus]) -> str:
    """The number of runs in each state: `3 ok, 1 oom`."""
    return ", ".join(f"{count} {state}" for state, count in Counter(run.state for run in runs).items())


def whole(runs: Iterable[RunStatus]) -> bool:
    """Whether every run is final with outcome `ok` and has no unreadable files."""
    return all(
        run.record is not None and run.record.outcome is Outcome.OK and run.final and not run.problems for run in runs
    )


def _run_status(
    run_id: str, records: Sequence[ExitRecord], rerun_requests: Collection[str], begun: BeginRecord | None,
    traces: Path, broken: Sequence[RecordError],
) -> RunStatus:  # fmt: skip
    last = max((record.attempt for record in records), default=0)
    open_attempt = begun if begun is not None and begun.attempt > last else None
    final = is_final(records, rerun_requests)
    last_step, age = _copied(open_attempt.files(traces).partial) if open_attempt else (None,) * 2
    latest = final_record(records)
    damage = _trace_damage(latest, traces)
    return RunStatus(
        run_id=run_id, attempts=max(last, begun.attempt if begun else 0), ended=last,
        record=latest or (records[-1] if records else None), open=open_attempt, final=final,
        rerun_requested=not final and any(record.is_final for record in records), last_step=last_step, copy_age_s=age,
        problems=(*map(_remedy, broken), *damage), held=_may_be_final(broken), trace_damaged=bool(damage),
    )  # fmt: skip


def _by_run(broken: Iterable[RecordError]) -> dict[str, list[RecordError]]:
    """The errors by run, of records that are named after an attempt."""
    return grouped(
        (match["run_id"], error) for error in broken if error.path and (match := _RECORD.fullmatch(error.path.name))
    )


def _may_be_final(broken: Iterable[RecordError]) -> bool:
    return any(isinstance(error, RecordAway) and str(error.path).endswith(EXIT) for error in broken)


def _remedy(error: RecordError) -> str:
    if isinstance(error, RecordAway):
        return f"{error}: it may be whole, so the run is left alone until it can be read"
    if str(error.path).endswith(EXIT):
        return f"{error}: the next sweep judges the attempt anew, from what else it left"
    return f"{error}: which job began the attempt is not known; unless that goes on, the run is done again"


def _trace_damage(record: ExitRecord | None, traces: Path) -> list[str]:
    """The damage of the trace of a final record, as far as its beginning and its length show it."""
    if record is None or record.outcome is not Outcome.OK:
        return []
    files = record.files(traces)
    path = files.trace
    problem = visible_defect(path) if path.exists() else ""  # else it was moved elsewhere
    if not problem:
        return []
    return [f"{path}: {problem}, and its record says ok: {files.rerun_request.name} beside it, an empty "
            "file, has the run done again"]  # fmt: skip


def _last_begun(traces: Path, broken: list[RecordError]) -> dict[str, BeginRecord]:
    last: dict[str, int] = {}
    for path in traces.glob(f"*{BEGIN}"):
        if match := BEGIN_RECORD.fullmatch(path.name):
            last[match["run_id"]] = max(last.get(match["run_id"], 0), int(match["attempt"]))
    begun = {}
    for run_id, attempt in last.items():
        path = AttemptFiles(traces, run_id, attempt).begin_record
        try:
            begun[run_id] = read_begin_record(path)
        except RecordError as error:  # or half-written by a job that is starting now
            if not exit_of(path).exists():
                broken.append(error)
    return begun


def _copied(partial: Path) -> tuple[int | None, float | None]:
    """The last step that all copied ranks have completed, and the age of the newest copy in seconds."""
    try:
        newest = max((path.stat().st_mtime for path in partial.iterdir()), default=None)
    except OSError:
        return None, None
    if newest is None:
        return None, None
    try:
        steps = [journal.steps_completed for journal in read_journals(partial)]
    except (JournalError, OSError):
        steps = []  # a copy that is being written
    return (min(steps) - 1 if steps else None), max(0.0, time.time() - newest)
