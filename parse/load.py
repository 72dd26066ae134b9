"""Reads folders of traces, plans, records and logs; each file that cannot be read becomes one line."""

from __future__ import annotations

import dataclasses
import filecmp
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc.model.files import BEGIN_RECORD, EXIT_RECORD, RANK_NOTE
from hpc.model.outcome import (
    MAX_PLAN_BYTES,
    ExitRecord,
    Outcome,
    RankNote,
    RecordError,
    read_exit_record,
    read_object,
    read_rank_note,
)
from hpc.model.spec import PLAN_VERSION
from hpc.model.trace import Trace, TraceError, run_of
from hpc.model.trace_file import read_trace
from hpc.recovery.folders import PARTIAL
from parse.attempt import Attempt, RequestedRun, describe, measure
from parse.run_fields import RunFields

if TYPE_CHECKING:
    from parse.load_logs import HowToRead, Progress

PLAN = re.compile(r"plan\..+\.json")

RECORDS = (PLAN, EXIT_RECORD, RANK_NOTE, BEGIN_RECORD)
HDF5 = b"\x89HDF\r\n\x1a\n"
DLLOGGER = b"DLLL {"
"""The beginning of a line of dllogger's JSON; its files are called raport.json, or anything."""
SNIFFED_BYTES = 1 << 16
STACKS_TEXT = ".stacks.txt"
"""Suffix of the file with an attempt's stacks, which is not a log."""
LOG_NAME = re.compile(r".+\.(log|txt|out)(\.gz)?", re.IGNORECASE)
"""Names that are tried as logs in folders; other files only if named explicitly."""
LOG_BY_NAME = re.compile(r".+\.log(\.gz)?", re.IGNORECASE)
"""Names that claim to be a log, so that the file is reported if it is not."""

AttemptKey = tuple[str, int]
"""Run id and the attempt's number."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """All attempts. `refusals` name the files that were not read, `remarks` the oddities of the others."""

    attempts: tuple[Attempt, ...]
    requested: tuple[RequestedRun, ...]
    reduced: tuple[str, ...]
    refusals: tuple[str, ...]
    remarks: tuple[str, ...]


def load(
    paths: Sequence[Path], progress: Progress | None = None, kind: str = "auto", how: HowToRead | None = None
) -> Loaded:
    """Reads files and folders, with everything below them. Never raises because of a file's content.

    `kind` is `traces`, `logs`, or `auto` for both; `how` has the options for reading logs.
    """
    return _Loader(kind).load(paths, progress or (lambda files: files), how)


class _Loader:
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.refusals: list[str] = []
        self.remarks: list[str] = []
        self.requested: dict[str, RequestedRun] = {}
        self.reduced: list[str] = []
        self.exits: dict[AttemptKey, ExitRecord] = {}
        self.notes: dict[AttemptKey, list[RankNote]] = {}
        self.begun: set[AttemptKey] = set()
        self.traces: dict[AttemptKey, Attempt] = {}
        self.recovered: set[AttemptKey] = set()
        self.set_aside: dict[AttemptKey, str] = {}

    def load(self, paths: Sequence[Path], progress: Progress, how: HowToRead | None) -> Loaded:
        named = frozenset(paths)
        files = self._files(paths)
        logs = [path for path in files if self._is_log(path, path in named)]
        files = [] if self.kind == "logs" else sorted({*files} - {*logs})
        for path in files:
            if path.suffix == ".json":
                self._read_json(path, named=path in named)
        traces = [path for path in files if path.suffix != ".json"]
        for path in progress(traces) if traces else ():
            self._read_trace(path)
        by_id = {read.run_id: read.requested for read in self.traces.values() if read.requested}
        by_id |= {requested.run_id: requested for requested in self.requested.values()}
        keys = sorted({*self.exits, *self.notes, *self.begun, *self.traces, *self.set_aside})
        attempts = tuple(self._attempt(key, by_id.get(key[0])) for key in keys)
        for run_id in sorted({attempt.run_id for attempt in attempts if attempt.requested is None}):
            self.remarks.append(f"{run_id}: no plan and no trace here describes this run; it is in no point below")
        if attempts and not self.requested:
            self.remarks.append("no plan (plan.*.json) is here, so nobody can say whether runs are missing")
        return Loaded(
            attempts=(*attempts, *self._from_logs(logs, named, progress, how)),
            requested=tuple(self.requested.values()),
            reduced=tuple(dict.fromkeys(self.reduced)),
            refusals=tuple(self.refusals),
            remarks=tuple(self.remarks),
        )

    def _files(self, paths: Sequence[Path]) -> list[Path]:
        """The named files, and those in the named folders whose names fit, each once."""
        files: dict[Path, Path] = {}
        for path in paths:
            if path.is_dir():
                for folder, _, names in os.walk(path, onerror=self._refuse_folder):
                    if folder.endswith(PARTIAL) and self.kind != "logs":
                        self.remarks.append(_of_partial(Path(folder)))
                    for name in sorted(names):
                        if not name.startswith(".") and self._may_be_read(name):
                            self._keep(Path(folder) / name, files)
            elif path.exists():
                self._keep(path, files)
            else:
                self.refusals.append(f"{path}: no such file or folder")
        return sorted(files.values())

    def _keep(self, path: Path, files: dict[Path, Path]) -> None:
        """Adds a file, unless it is a pipe or a device: reading from these may never end."""
        if path.is_file():
            files.setdefault(path.resolve(), path)
        else:
            self.refusals.append(f"{path}: cannot be read (no regular file)")

    def _may_be_read(self, name: str) -> bool:
        if name.endswith(STACKS_TEXT):
            return False
        return name.endswith((".h5", ".json")) or (self.kind != "traces" and LOG_NAME.fullmatch(name) is not None)

    def _is_log(self, path: Path, named: bool) -> bool:
        """Whether to read it as a log; JSON is one if it is dllogger's."""
        if named and self.kind == "logs":
            return True
        if self.kind == "traces" or path.suffix == ".h5":
            return False
        if path.suffix == ".json":
            ours = any(form.fullmatch(path.name) for form in RECORDS)
            return not ours and DLLOGGER in _begin_of(path, SNIFFED_BYTES)
        return LOG_NAME.fullmatch(path.name) is not None or _begin_of(path, len(HDF5)) != HDF5

    def _from_logs(
        self, paths: Sequence[Path], named: frozenset[Path], progress: Progress, how: HowToRead | None
    ) -> tuple[Attempt, ...]:
        """The attempts of logs. A sweep's own job outputs lie in its folders, too: those are only counted."""
        if not paths:
            return ()
        from parse.load_logs import HowToRead, load_logs

        quietly = {path for path in paths if path not in named and not LOG_BY_NAME.fullmatch(path.name)}
        loaded = load_logs(paths, how or HowToRead(), progress, frozenset(quietly if self.kind == "auto" else ()))
        self.refusals += loaded.refusals
        self.remarks += loaded.remarks
        return loaded.attempts

    def _refuse_folder(self, error: OSError) -> None:
        self.refusals.append(f"{error.filename}: cannot be read ({error.strerror})")

    def _read_json(self, path: Path, named: bool) -> None:
        try:
            if EXIT_RECORD.fullmatch(path.name):
                self._keep_exit_record(path, read_exit_record(path))
            elif match := RANK_NOTE.fullmatch(path.name):
                note = read_rank_note(path)
                self.notes.setdefault((match["run_id"], int(match["attempt"])), []).append(note)
            elif match := BEGIN_RECORD.fullmatch(path.name):
                self.begun.add((match["run_id"], int(match["attempt"])))
            elif PLAN.fullmatch(path.name):
                self._read_plan(path)
            elif named or path.name.endswith((".exit.json", ".begin.json")):
                self.refusals.append(f"{path}: by its name neither a plan nor a record of an attempt")
        except (RecordError, TraceError) as error:
            self.refusals.append(str(error))

    def _keep_exit_record(self, path: Path, record: ExitRecord) -> None:
        key = record.run_id, record.attempt
        if self.exits.setdefault(key, record) != record:
            stands = self.exits[key].outcome
            self.remarks.append(
                f"{path}: a second exit record of {_name(key)} says {record.outcome}; the first one, {stands}, stands"
            )

    def _read_plan(self, path: Path) -> None:
        plan = read_object(path, MAX_PLAN_BYTES, "a plan of ours")
        if plan.get("schema") != "rankwise-plan":
            raise TraceError(f"{path}: not a plan of ours")
        version, runs, reduced = plan.get("schema_version"), plan.get("runs"), plan.get("reduced", [])
        if not isinstance(version, int) or version > PLAN_VERSION:
            raise TraceError(f"{path}: a plan of schema {version!r}; this version reads up to {PLAN_VERSION}")
        if not isinstance(runs, list) or not isinstance(reduced, list):
            raise TraceError(f"{path}: a plan without a list of runs")
        target_env = _target_env(plan.get("target"))
        try:
            requested = [_requested(described, target_env) for described in runs]
        except TraceError as error:
            raise TraceError(f"{path}: {error}") from None
        self.reduced += [str(line) for line in reduced]
        for run in requested:
            self.requested.setdefault(run.key, run)

    def _read_trace(self, path: Path) -> None:
        try:
            trace = read_trace(path)
        except TraceError as error:
            self.refusals.append(str(error))
            return
        key = trace.run_id, trace.attempt
        if path.name != f"{trace.run_id}.{trace.attempt}.h5":
            self.remarks.append(f"{path}: holds {_name(key)}; it is counted as what it holds")
        if key not in self.traces:
            self.traces[key] = _without_stamps(path, trace)
            self.recovered |= {key} if trace.recovered else set()
        elif filecmp.cmp(first := str(self.traces[key].trace), path, shallow=False):
            self.remarks.append(f"{path}: the same as {first}, byte for byte; counted once")
        else:
            self.set_aside[key] = f"two traces of one attempt, {first} and {path}, differ: neither is counted"

    def _attempt(self, key: AttemptKey, requested: RequestedRun | None) -> Attempt:
        record, read = self.exits.get(key), self.traces.get(key)
        notes = sorted(self.notes.get(key, []), key=lambda note: (note.step, note.rank))
        outcome = record.outcome if record else read.outcome if read else notes[0].outcome if notes else None
        # A recovered trace has the outcome known when it was recovered: the record has the final one.
        if record and read and record.outcome != read.outcome and key not in self.recovered:
            self.remarks.append(
                f"{read.trace}: says {read.outcome}, its exit record, written later, {record.outcome}: "
                "the record stands"
            )
        evidence, problem = _evidence(record, read, notes), self.set_aside.get(key, "")
        if problem:
            self.remarks.append(problem)
        elif read:
            problem = f"{read.trace}: {read.problem}" if read.problem and outcome is Outcome.OK else ""
        elif outcome is Outcome.OK:
            problem = "ended ok, but no readable trace of it is here"
        if read is None or key in self.set_aside:
            read = Attempt(run_id=key[0], number=key[1], requested=requested, outcome=outcome)
        return dataclasses.replace(
            read, requested=requested, outcome=outcome, evidence=evidence, problem=problem, record=record
        )


def _target_env(target: Any) -> dict[str, str]:
    """The environment variables that a plan's target sets for every run; a plan without a target names none."""
    env = target.get("env") if isinstance(target, dict) else None
    return {str(name): str(value) for name, value in env.items()} if isinstance(env, dict) else {}


def _requested(described: Any, target_env: Mapping[str, str]) -> RequestedRun:
    if not isinstance(described, dict):
        raise TraceError("an entry of its runs describes none")
    run, extra = run_of(described)
    run_id = str(described.get("run_id", run.run_id))
    return RequestedRun(run=RunFields.of(run), run_id=run_id, extra=extra, target_env=target_env)


def _without_stamps(path: Path, trace: Trace) -> Attempt:
    measured, problem = None, ""
    try:
        measured = measure(trace)
    except TraceError as error:
        problem = str(error)
    return Attempt(
        run_id=trace.run_id,
        number=trace.attempt,
        requested=RequestedRun(run=RunFields.of(trace.run), run_id=trace.run_id, extra=trace.run_extra),
        outcome=trace.outcome,
        evidence=trace.evidence,
        measured=measured,
        machine=describe(trace),
        steps_completed=int(trace.steps_completed.min()),
        trace=path,
        problem=problem,
        history=trace.history,
    )


def _of_partial(folder: Path) -> str:
    """The remark on a folder of journals: of a run that goes on, or not yet recovered."""
    stem = folder.name.removesuffix(PARTIAL)
    if folder.with_name(f"{stem}.h5").exists():
        reason = "left over beside its trace, to be removed"
    elif folder.with_name(f"{stem}.exit.json").exists():
        reason = "stamps that dead ranks left, not yet a trace"
    else:
        reason = "stamps of a run that goes on, or whose job was lost; then they are not yet a trace"
    return f"{folder}: {reason}: python -m hpc.recovery.recover {shlex.quote(str(folder.parent))}"


def _evidence(record: ExitRecord | None, read: Attempt | None, notes: Sequence[RankNote]) -> str:
    if record and record.evidence and record.outcome is not Outcome.OK:
        return f"{record.evidence[0]}; kept at {record.local_copies}" if record.local_copies else record.evidence[0]
    if notes:
        first = notes[0]
        where = f"rank {first.rank} on {first.hostname} after {first.step + 1} steps"
        return f"{where}: {first.exception}: {first.message}"
    if read and read.evidence:
        return read.evidence
    if record is None or record.outcome is Outcome.OK:
        return ""
    return f"exit status {record.exit_status}, job {record.job_id}"


def _name(key: AttemptKey) -> str:
    return f"run {key[0]} attempt {key[1]}"


def _begin_of(path: Path, size: int) -> bytes:
    """The first bytes; none if it cannot be read, which its reader reports."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""
