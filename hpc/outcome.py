"""What became of an attempt: exactly one of ten outcomes, and the evidence for it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from hpc.outside import without_secrets


class Outcome(StrEnum):
    """The ten words; docs/measurement of the product has their meaning."""

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


SETTLING = frozenset({Outcome.OK, Outcome.INVALID, Outcome.OOM, Outcome.RANK_FAIL})
"""A run with an attempt that ended so is not run again unless somebody asks."""

EXIT_RECORD = re.compile(r"(?P<run_id>.+)\.(?P<attempt>\d+)\.exit\.json")
BEGIN_RECORD = re.compile(r"(?P<run_id>.+)\.(?P<attempt>\d+)\.begin\.json")
AGAIN = ".again"
"""The name of the file that asks for another attempt after this one ends with it; the job script looks for it too."""
RANK_NOTE = re.compile(r"(?P<run_id>.+)\.(?P<attempt>\d+)\.rank(?P<rank>\d+)\.json")


class RecordError(ValueError):
    """A record beside the traces cannot be read; the text names the file."""


@dataclass(frozen=True, kw_only=True)
class ExitRecord:
    """What became of an attempt, written by the job script after its launcher had returned, else by who found it dead.

    `evidence` is what the outcome was decided from, a sentence each, the deciding one first. `kept` is where copies of
    what was measured are that did not come to the traces, as HOST:PATH; empty where all came.
    """

    run_id: str
    attempt: int
    outcome: Outcome
    exit_status: int
    job_id: str
    restart_count: int
    nodelist: str
    begin_unix_s: int
    end_unix_s: int
    evidence: tuple[str, ...] = ()
    kept: str = ""

    @property
    def settles(self) -> bool:
        """Whether the run needs no further attempt."""
        return self.outcome in SETTLING

    def write(self, folder: Path) -> Path:
        """Writes `<run id>.<attempt>.exit.json`, beside and renamed, in the form that the job script writes."""
        return _write(folder / f"{stem(self.run_id, self.attempt)}.exit.json", asdict(self))


@dataclass(frozen=True, kw_only=True)
class BeginRecord:
    """What the job script wrote before it launched an attempt; making the file is what takes the attempt's number."""

    run_id: str
    attempt: int
    job_id: str
    begin_unix_s: int
    restart_count: int = 0
    nodelist: str = ""


@dataclass(frozen=True, kw_only=True)
class RankNote:
    """What a rank that failed left behind: `step` is the last one it completed, -1 before the first.

    `kept` is where it kept a trace that did not come to the traces, as HOST:PATH.
    """

    rank: int
    outcome: Outcome
    exception: str
    message: str
    step: int
    hostname: str
    kept: str = ""

    def write(self, folder: Path, stem: str) -> Path:
        """Writes `<stem>.rank<rank>.json`; the outcome is on a line of its own, which the job script looks for."""
        return _write(folder / f"{stem}.rank{self.rank}.json", asdict(self))


def stem(run_id: str, attempt: int) -> str:
    """What the names of all files of an attempt begin with."""
    return f"{run_id}.{attempt}"


def read_begin_record(path: Path) -> BeginRecord:
    """Raises RecordError where the file is no begin record."""
    values = _read(path)
    try:
        known = {f.name for f in fields(BeginRecord)}
        return BeginRecord(**{k: v for k, v in values.items() if k in known} | {"job_id": str(values["job_id"])})
    except (KeyError, TypeError) as error:
        raise RecordError(f"{path}: not a begin record ({error})") from None


def read_exit_record(path: Path) -> ExitRecord:
    """Raises RecordError where the file is no exit record."""
    values = _read(path)
    try:
        known = {f.name for f in fields(ExitRecord)}
        typed = {"outcome": Outcome(values["outcome"]), "evidence": tuple(values.get("evidence", ()))}
        return ExitRecord(**{k: v for k, v in values.items() if k in known} | typed)
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{path}: not an exit record ({error})") from None


def read_rank_note(path: Path) -> RankNote:
    """Raises RecordError where the file is no note of a rank."""
    values = _read(path)
    try:
        known = {f.name for f in fields(RankNote)}
        return RankNote(**{k: v for k, v in values.items() if k in known} | {"outcome": Outcome(values["outcome"])})
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{path}: not a rank's note ({error})") from None


def exit_records(folder: Path) -> dict[str, list[ExitRecord]]:
    """Every run's exit records in the folder, attempts in order. Raises RecordError on a broken one."""
    found: dict[str, list[ExitRecord]] = {}
    for path in sorted(folder.glob("*.exit.json")):
        record = read_exit_record(path)
        found.setdefault(record.run_id, []).append(record)
    for records in found.values():
        records.sort(key=lambda record: record.attempt)
    return found


def settling_record(records: Iterable[ExitRecord]) -> ExitRecord | None:
    """The latest `ok` attempt, else the latest that settles, else None: --force asks for a new one that counts."""
    settled = [record for record in records if record.settles]
    ok = [record for record in settled if record.outcome is Outcome.OK]
    return max(ok or settled, key=lambda record: record.attempt, default=None)


def ask_again(folder: Path, records: Iterable[ExitRecord]) -> None:
    """Writes `<run id>.<attempt>.again` beside each of these records: somebody wants the run once more after it."""
    for record in records:
        (folder / f"{stem(record.run_id, record.attempt)}{AGAIN}").touch()


def asked_again(folder: Path) -> frozenset[str]:
    """The stems of all attempts after which somebody asked to run again."""
    return frozenset(path.name.removesuffix(AGAIN) for path in folder.glob(f"*{AGAIN}"))


def is_settled(records: Iterable[ExitRecord], again: Collection[str]) -> bool:
    """Whether a run with these records needs no further attempt; `again` holds stems, as `asked_again` returns them."""
    return any(record.settles and stem(record.run_id, record.attempt) not in again for record in records)


def _write(path: Path, values: Mapping[str, Any]) -> Path:
    """Written aside and renamed: whoever writes a record may be ended at any moment. No secret comes into one."""
    aside = path.with_name(f".{path.name}.part")
    try:
        aside.write_text(json.dumps({name: _kept(value) for name, value in values.items()}, indent=1) + "\n")
        return aside.replace(path)
    except OSError:
        with suppress(OSError):  # a full disk takes names, and no content
            aside.unlink(missing_ok=True)
        raise


def _kept(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_kept(one) for one in value]
    return without_secrets(value) if isinstance(value, str) else value


def _read(path: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read ({error})") from None
    if not isinstance(values, dict):
        raise RecordError(f"{path}: not a JSON object")
    return values
