"""What became of an attempt: exactly one of ten outcomes, and the evidence for it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, TypeVar

from hpc.system.sanitize import without_secrets
from hpc.system.whole_file import write_whole


class Outcome(StrEnum):
    """The ten words; docs/outcomes.md has their meaning."""

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
"""A run with an attempt that ended so is not run again unless somebody asks."""

EXIT = ".exit.json"
EXIT_RECORD = re.compile(r"(?P<run_id>.+)\.(?P<attempt>\d+)\.exit\.json")
BEGIN = ".begin.json"
BEGIN_RECORD = re.compile(r"(?P<run_id>.+)\.(?P<attempt>\d+)\.begin\.json")
AGAIN = ".again"
"""What the name of the file ends with that asks for another attempt after this one."""
RANK_NOTE = re.compile(r"(?P<run_id>.+)\.(?P<attempt>\d+)\.rank(?P<rank>\d+)\.json")
DAMAGED = ".damaged"
"""What is appended to the name of a file that cannot be read, and of which another one takes the place."""
MAX_BYTES = 1 << 22
"""No record is larger: what is, was not written by us, and is not read."""
MAX_PLAN_BYTES = 1 << 28
_Record = TypeVar("_Record", "ExitRecord", "BeginRecord", "RankNote")


class RecordError(ValueError):
    """A record beside the traces cannot be read; the text names the file, and `path` is it where it is one file's."""

    path: Path | None = None

    @classmethod
    def of(cls, path: Path, reason: str) -> Self:
        """The error of this file."""
        error = cls(f"{path}: {reason}")
        error.path = path
        return error


class RecordAway(RecordError):
    """A record is there and cannot be got at, by its permissions or for the file system: it may be whole."""


@dataclass(frozen=True, kw_only=True)
class ExitRecord:
    """What became of an attempt, written by launch.step after the launcher had returned, else by who found it dead.

    `evidence` is what the outcome was decided from, a sentence each, the deciding one first. `kept` is where copies of
    what was measured are that did not come to the traces, as HOST:PATH; empty where all came.
    """

    run_id: str
    attempt: int
    outcome: Outcome
    exit_status: int
    job_id: str
    begin_unix_s: int
    end_unix_s: int
    restart_count: int = 0
    nodelist: str = ""
    evidence: tuple[str, ...] = ()
    kept: str = ""

    @property
    def is_final(self) -> bool:
        """Whether the run needs no further attempt."""
        return self.outcome in FINAL_OUTCOMES

    def write(self, folder: Path) -> Path:
        """Writes `<run id>.<attempt>.exit.json`, beside and renamed."""
        return _write(folder / f"{stem(self.run_id, self.attempt)}{EXIT}", asdict(self))


@dataclass(frozen=True, kw_only=True)
class BeginRecord:
    """What is written before an attempt is launched; making the file is what takes the attempt's number.

    `job_name` is Slurm's name of the job: a job of another name with the same number is another job. Empty in records
    of earlier versions and on this machine.
    """

    run_id: str
    attempt: int
    job_id: str
    begin_unix_s: int
    restart_count: int = 0
    nodelist: str = ""
    job_name: str = ""

    def take(self, folder: Path) -> bool:
        """Makes `<run id>.<attempt>.begin.json`; False where that is there already: another job took the number.

        Raises OSError where it cannot be written; then nothing is left of it.
        """
        path = folder / f"{stem(self.run_id, self.attempt)}{BEGIN}"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            return False
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(json.dumps(asdict(self)) + "\n")
        except OSError:
            with suppress(OSError):
                path.unlink()
            raise
        return True


@dataclass(frozen=True, kw_only=True)
class RankNote:
    """What a rank that failed left behind: `step` is the last one it completed, -1 before the first.

    `kept` is where it kept a trace that did not come to the traces, as HOST:PATH. `notes_before` is how many notes of
    other ranks of the attempt were there when this one was written: a rank that failed first sees none.
    """

    rank: int
    outcome: Outcome
    exception: str
    message: str
    step: int
    hostname: str
    kept: str = ""
    notes_before: int = 0

    def write(self, folder: Path, stem: str) -> Path:
        """Writes `<stem>.rank<rank>.json`."""
        return _write(folder / f"{stem}.rank{self.rank}.json", asdict(self))


def after(step: int) -> str:
    """When it happened to a rank whose last completed step this is, -1 for none, in words."""
    return "before the first step" if step < 0 else f"after step {step}"


def stem(run_id: str, attempt: int) -> str:
    """What the names of all files of an attempt begin with."""
    return f"{run_id}.{attempt}"


def read_object(path: Path, max_bytes: int = MAX_BYTES, what: str = "a JSON object") -> Mapping[str, Any]:
    """The JSON object in the file; `what` names it in errors. Raises RecordError where the file holds none, or more
    than `max_bytes`."""
    try:
        with path.open("rb") as file:
            stored = file.read(max_bytes + 1)
    except OSError as error:
        listed = os.path.lexists(path) and not path.is_symlink()
        nothing = isinstance(error, IsADirectoryError) or (isinstance(error, FileNotFoundError) and not listed)
        raise (RecordError if nothing else RecordAway).of(path, f"cannot be read ({error.strerror})") from None
    if not stored.strip(b"\0"):
        raise RecordError.of(path, f"cannot be read ({'nothing but zeros' if stored else 'it is empty'})")
    try:
        if len(stored) > max_bytes:
            raise ValueError(f"more than {max_bytes} bytes")
        values = json.loads(stored)
    except (ValueError, RecursionError) as error:
        raise RecordError.of(path, f"cannot be read ({error})") from None
    if not isinstance(values, dict):
        raise RecordError.of(path, f"not {what}")
    return values


def read_begin_record(path: Path) -> BeginRecord:
    """Raises RecordError where the file is no begin record."""
    return _of_values(BeginRecord, read_object(path), path, "a begin record")


def read_exit_record(path: Path) -> ExitRecord:
    """Raises RecordError where the file is no exit record."""
    return _of_values(ExitRecord, read_object(path), path, "an exit record")


def read_rank_note(path: Path) -> RankNote:
    """Raises RecordError where the file is no note of a rank."""
    return _of_values(RankNote, read_object(path), path, "a rank's note")


def read_own_record(path: Path) -> ExitRecord:
    """The exit record in the file. Raises RecordError where it holds none, or that of another attempt than its name."""
    record = read_exit_record(path)
    if path.name != f"{stem(record.run_id, record.attempt)}{EXIT}":
        raise RecordError.of(path, f"holds the record of {stem(record.run_id, record.attempt)}, by its name another's")
    return record


def is_damaged(path: Path) -> bool:
    """Whether something lies where an attempt's exit record belongs that cannot be read as one.

    A power cut leaves files without content, or of zeros. One that only cannot be got at may be whole.
    """
    try:
        status = path.lstat()
        return _is_damaged(path, status.st_ino, status.st_size, status.st_mtime_ns)
    except (RecordAway, OSError):
        return False


@lru_cache(maxsize=1 << 16)
def _is_damaged(path: Path, *_version: int) -> bool:
    """The same of one version of the file: of thousands of records each is read once. Raises RecordAway."""
    try:
        read_own_record(path)
    except RecordAway:
        raise
    except RecordError:
        return True
    return False


def aside_of(path: Path) -> Path:
    """Under which name a damaged file or folder is kept: one that nothing has yet."""
    aside, number = path.with_name(f"{path.name}{DAMAGED}"), 1
    while os.path.lexists(aside):
        number += 1
        aside = path.with_name(f"{path.name}{DAMAGED}.{number}")
    return aside


def set_aside(path: Path) -> Path:
    """Gives a damaged file or folder another name, so that another one can take its place; returns that."""
    return path.rename(aside_of(path))


def exit_records(folder: Path, broken: list[RecordError] | None = None) -> dict[str, list[ExitRecord]]:
    """Every run's exit records in the folder, attempts in order.

    A record that cannot be read counts as absent, and the attempt is decided anew; its error is added to `broken`.
    """
    by_run: dict[str, list[ExitRecord]] = {}
    for path in sorted(folder.glob(f"*{EXIT}")):
        try:
            record = read_own_record(path)
        except RecordError as error:
            if broken is not None:
                broken.append(error)
            continue
        by_run.setdefault(record.run_id, []).append(record)
    for records in by_run.values():
        records.sort(key=lambda record: record.attempt)
    return by_run


def final_record(records: Iterable[ExitRecord]) -> ExitRecord | None:
    """The latest `ok` attempt, else the latest that is final, else None: --force asks for a new one that counts."""
    final = [record for record in records if record.is_final]
    ok = [record for record in final if record.outcome is Outcome.OK]
    return max(ok or final, key=lambda record: record.attempt, default=None)


def ask_again(folder: Path, records: Iterable[ExitRecord]) -> None:
    """Writes `<run id>.<attempt>.again` beside each of these records: somebody wants the run once more after it."""
    for record in records:
        (folder / f"{stem(record.run_id, record.attempt)}{AGAIN}").touch()


def asked_again(folder: Path) -> frozenset[str]:
    """The stems of all attempts after which somebody asked to run again."""
    return frozenset(path.name.removesuffix(AGAIN) for path in folder.glob(f"*{AGAIN}"))


def is_final(records: Iterable[ExitRecord], again: Collection[str]) -> bool:
    """Whether a run with these records needs no further attempt; `again` holds stems, as `asked_again` returns them."""
    return any(record.is_final and stem(record.run_id, record.attempt) not in again for record in records)


def _write(path: Path, values: Mapping[str, Any]) -> Path:
    """Written whole: whoever writes a record may be ended at any moment. No secret comes into one."""
    write_whole(path, json.dumps({name: _redacted(value) for name, value in values.items()}, indent=1) + "\n")
    return path


def _redacted(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_redacted(item) for item in value]
    return without_secrets(value) if isinstance(value, str) else value


def _of_values(kind: type[_Record], values: Mapping[str, Any], path: Path, what: str) -> _Record:
    """The record with these values; unknown fields are from later versions and are ignored."""
    taken: dict[str, Any] = {}
    for each in fields(kind):
        if each.name not in values:
            if each.default is MISSING:
                raise RecordError.of(path, f"not {what} (it has no {each.name})")
            continue
        value = values[each.name]
        match each.type:
            case "int" if isinstance(value, int) and not isinstance(value, bool):
                taken[each.name] = value
            case "str" if isinstance(value, str) or (each.name == "job_id" and isinstance(value, int)):
                taken[each.name] = str(value)
            case "Outcome" if isinstance(value, str) and value in set(Outcome):
                taken[each.name] = Outcome(value)
            case "tuple[str, ...]" if isinstance(value, list) and all(isinstance(item, str) for item in value):
                taken[each.name] = tuple(value)
            case _:
                raise RecordError.of(path, f"not {what} (its {each.name} is {value!r:.99})")
    return kind(**taken)
