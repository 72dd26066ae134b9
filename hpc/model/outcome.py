"""The outcome of an attempt, exactly one of ten, and the records that it and its ranks leave."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from hpc.model.files import EXIT, RERUN, AttemptFiles
from hpc.model.typed import TypeMismatchError, read_fields
from hpc.system.atomic import create_durable, write_durable
from hpc.system.regular_file import MAX_BYTES, NotRegularError, TooLargeError, parse_json, read_whole
from hpc.system.sanitize import without_secrets


class Outcome(StrEnum):
    """docs/outcomes.md has the meanings."""

    OK = "ok"
    OOM = "oom"
    TIMEOUT = "timeout"
    PREEMPTED = "preempted"
    NODE_FAIL = "node_fail"
    LAUNCH_FAIL = "launch_fail"
    RANK_FAIL = "rank_fail"
    INVALID = "invalid"
    CANCELLED = "cancelled"
    LOST = "lost"


FINAL_OUTCOMES = frozenset({Outcome.OK, Outcome.INVALID, Outcome.OOM, Outcome.RANK_FAIL})
"""Outcomes after which a run is not run again unless requested."""

MAX_PLAN_BYTES = 1 << 28
_Record = TypeVar("_Record", "ExitRecord", "BeginRecord", "RankNote")


class RecordError(ValueError):
    """A record beside the traces cannot be read; the text names the file, as does `path` where there is one."""

    def __init__(self, text: str, path: Path | None = None) -> None:
        super().__init__(text if path is None else f"{path}: {text}")
        self.path = path


class RecordAway(RecordError):
    """A record exists and cannot be opened, by its permissions or for the file system: it may be whole."""


@dataclass(frozen=True, kw_only=True)
class _OfAttempt:
    """`begin_ms` is when the attempt began and `job_begin_ms` when its job's script did, by the monotonic clock that
    `clock` names (hpc.system.host); -1 where nobody saw that, and in records before version 0.3."""

    run_id: str
    attempt: int
    begin_ms: int = -1
    job_begin_ms: int = -1
    clock: str = ""

    @property
    def stem(self) -> str:
        """The name of the attempt: `<run id>.<attempt>`."""
        return f"{self.run_id}.{self.attempt}"

    def files(self, traces: Path) -> AttemptFiles:
        """The files of the attempt in this folder."""
        return AttemptFiles(traces, self.run_id, self.attempt)


def clock_shift_s(wall_s: float, monotonic_s: float) -> float:
    """The difference of two durations; 0 where whole seconds and the slewing of clocks explain it (adjtime(3): half a
    millisecond a second at most)."""
    shift_s = wall_s - monotonic_s
    return shift_s if abs(shift_s) > 5.0 + 1e-3 * monotonic_s else 0.0


@dataclass(frozen=True, kw_only=True)
class ExitRecord(_OfAttempt):
    """The end of an attempt, written by launch.step once the launcher returned, else by the process that saw it dead.

    `evidence` is the basis of the outcome, a sentence each, the deciding one first. `local_copies` names the
    copies of measurements that did not reach the traces, as HOST:PATH; empty where all did. `step_refusal` is srun's
    message if no rank was started only because the controller was away; empty otherwise. `duration_ms` is by the
    monotonic clock of the process that saw begin and end; -1 where none saw both, and in records before version 0.3.
    """

    outcome: Outcome
    exit_status: int
    job_id: str
    begin_unix_s: int
    end_unix_s: int
    restart_count: int = 0
    nodelist: str = ""
    evidence: tuple[str, ...] = ()
    local_copies: str = ""
    step_refusal: str = ""
    duration_ms: int = -1

    @property
    def elapsed_s(self) -> float | None:
        """What the attempt took: by the monotonic clock, else by the wall clock; None where that went back."""
        wall_s = self.end_unix_s - self.begin_unix_s
        return self.duration_ms / 1e3 if self.duration_ms >= 0 else float(wall_s) if wall_s >= 0 else None

    @property
    def clock_shift_s(self) -> float:
        """By how much the wall clock was set while the attempt ran; 0 where nothing shows that."""
        if self.duration_ms < 0:
            return 0.0
        return clock_shift_s(self.end_unix_s - self.begin_unix_s, self.duration_ms / 1e3)

    @property
    def is_final(self) -> bool:
        """Whether the run needs no further attempt."""
        return self.outcome in FINAL_OUTCOMES

    def write(self, folder: Path) -> Path:
        """Writes the exit record, beside and renamed."""
        return _write(self.files(folder).exit_record, asdict(self))


@dataclass(frozen=True, kw_only=True)
class BeginRecord(_OfAttempt):
    """Written before an attempt is launched; making the file takes the attempt's number.

    `job_name` is Slurm's name of the job: a job of another name with the same number is another job. Empty on this
    machine. `launch` names a launch that no job script made, the same in all its
    restarts; empty where that has no name.
    """

    job_id: str
    begin_unix_s: int
    restart_count: int = 0
    nodelist: str = ""
    job_name: str = ""
    launch: str = ""

    def take(self, folder: Path) -> bool:
        """Makes the begin record; False where it is there already: another job took the number.

        It is on the disk then: all that an attempt leaves is recognised by it. Raises OSError where it cannot be
        written; then the file is removed.
        """
        return create_durable(self.files(folder).begin_record, (json.dumps(asdict(self)) + "\n").encode())


@dataclass(frozen=True, kw_only=True)
class RankNote:
    """Written by a rank that failed. `step` is the last one it completed, -1 before the first.

    `local_copies` names a trace that did not reach the traces, as HOST:PATH. `notes_before` is the number of notes of
    other ranks of the attempt when this one was written: a rank that failed first sees none.
    """

    rank: int
    outcome: Outcome
    exception: str
    message: str
    step: int
    hostname: str
    local_copies: str = ""
    notes_before: int = 0

    @property
    def origin(self) -> str:
        """Who failed, when, and by which exception: `rank 3 on node2 after step 7: ValueError`."""
        return f"rank {self.rank} on {self.hostname} {after(self.step)}: {self.exception}"

    def write(self, folder: Path, stem: str) -> Path:
        """Writes `<stem>.rank<rank>.json`."""
        return _write(AttemptFiles.of_stem(folder, stem).rank_note(self.rank), asdict(self))


def after(step: int) -> str:
    """A phrase for the time after the last completed step; -1 for none."""
    return "before the first step" if step < 0 else f"after step {step}"


def read_object(path: Path, max_bytes: int = MAX_BYTES, what: str = "a JSON object") -> Mapping[str, Any]:
    """The JSON object in the file; `what` names it in errors. Raises RecordError where the file holds none, or more
    than `max_bytes`."""
    try:
        stored = read_whole(path, max_bytes)
    except TooLargeError as error:
        raise RecordError(f"cannot be read ({error.strerror})", path) from None
    except OSError as error:
        listed = os.path.lexists(path) and not path.is_symlink()
        nothing = isinstance(error, IsADirectoryError | NotRegularError) or (
            isinstance(error, FileNotFoundError) and not listed
        )
        raise (RecordError if nothing else RecordAway)(f"cannot be read ({error.strerror})", path) from None
    if not stored.strip(b"\0"):
        raise RecordError(f"cannot be read ({'nothing but zeros' if stored else 'it is empty'})", path)
    try:
        values = parse_json(stored)
    except ValueError as error:
        raise RecordError(f"cannot be read ({error})", path) from None
    if not isinstance(values, dict):
        raise RecordError(f"not {what}", path)
    return values


def read_begin_record(path: Path) -> BeginRecord:
    """Raises RecordError where the file is no begin record."""
    return _of_values(BeginRecord, path, "a begin record")


def read_exit_record(path: Path) -> ExitRecord:
    """Raises RecordError where the file is no exit record."""
    return _of_values(ExitRecord, path, "an exit record")


def read_rank_note(path: Path) -> RankNote:
    """Raises RecordError where the file is no note of a rank."""
    return _of_values(RankNote, path, "a rank's note")


def read_rank_notes(files: AttemptFiles, errors: list[RecordError]) -> tuple[RankNote, ...]:
    """The notes of an attempt's ranks that can be read; the errors of the others are added to `errors`."""
    notes = []
    for path in files.rank_notes():
        try:
            notes.append(read_rank_note(path))
        except RecordError as error:
            errors.append(error)
    return tuple(notes)


def read_own_record(path: Path) -> ExitRecord:
    """The exit record in the file. Raises RecordError where it holds none, or that of another attempt than its name."""
    record = read_exit_record(path)
    if path.name != record.files(path.parent).exit_record.name:
        raise RecordError(f"holds the record of {record.stem}, by its name another's", path)
    return record


def is_damaged(path: Path) -> bool:
    """Whether there is something in the place of an attempt's exit record that cannot be read as one.

    A power cut leaves files without content, or of zeros. One that cannot be opened may be whole.
    """
    try:
        status = path.lstat()
        return _is_damaged(path, status.st_ino, status.st_size, status.st_mtime_ns)
    except (RecordAway, OSError):
        return False


@lru_cache(maxsize=1 << 16)
def _is_damaged(path: Path, *_version: int) -> bool:
    """As is_damaged for one version of the file: each of thousands of records is read once. Raises RecordAway."""
    try:
        read_own_record(path)
    except RecordAway:
        raise
    except RecordError:
        return True
    return False


def exit_records(folder: Path, errors: list[RecordError] | None = None) -> dict[str, list[ExitRecord]]:
    """Every run's exit records in the folder, attempts in order.

    A record that cannot be read counts as absent, and the attempt is decided again; its error is added to `errors`.
    """
    by_run: dict[str, list[ExitRecord]] = {}
    for path in sorted(folder.glob(f"*{EXIT}")):
        try:
            record = read_own_record(path)
        except RecordError as error:
            if errors is not None:
                errors.append(error)
            continue
        by_run.setdefault(record.run_id, []).append(record)
    for records in by_run.values():
        records.sort(key=lambda record: record.attempt)
    return by_run


def final_record(records: Iterable[ExitRecord]) -> ExitRecord | None:
    """The latest `ok` attempt, else the latest that is final, else None: an attempt requested by --force counts."""
    final = [record for record in records if record.is_final]
    ok = [record for record in final if record.outcome is Outcome.OK]
    return max(ok or final, key=lambda record: record.attempt, default=None)


def request_reruns(folder: Path, records: Iterable[ExitRecord]) -> None:
    """Requests another attempt after each of these."""
    for record in records:
        record.files(folder).rerun_request.touch()


def requested_reruns(folder: Path) -> frozenset[str]:
    """The stems of all attempts after which another one is requested."""
    return frozenset(path.name.removesuffix(RERUN) for path in folder.glob(f"*{RERUN}"))


def is_final(records: Iterable[ExitRecord], rerun_requests: Collection[str]) -> bool:
    """Whether a run with these records needs no further attempt; `rerun_requests` holds stems."""
    return any(record.is_final and record.stem not in rerun_requests for record in records)


def _write(path: Path, values: Mapping[str, Any]) -> Path:
    """Whole and on the disk, because writer and machine may end at any moment; without secrets."""
    write_durable(path, json.dumps({name: _redacted(value) for name, value in values.items()}, indent=1) + "\n")
    return path


def _redacted(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_redacted(item) for item in value]
    return without_secrets(value) if isinstance(value, str) else value


def _of_values(kind: type[_Record], path: Path, what: str) -> _Record:
    """The record in the file; unknown fields are from later versions and are ignored. Raises RecordError."""
    values = read_object(path)
    try:
        return kind(**read_fields(kind, values, later=True))
    except TypeMismatchError as error:
        raise RecordError(f"not {what} ({error})", path) from None
