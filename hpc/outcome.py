"""What became of an attempt: exactly one of ten outcomes, and the evidence for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any


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
RANK_NOTE = re.compile(r"(?P<run_id>.+)\.(?P<attempt>\d+)\.rank(?P<rank>\d+)\.json")


class RecordError(ValueError):
    """A record beside the traces cannot be read; the text names the file."""


@dataclass(frozen=True, kw_only=True)
class ExitRecord:
    """What the job script wrote after an attempt's launcher had returned."""

    run_id: str
    attempt: int
    outcome: Outcome
    exit_status: int
    job_id: str
    restart_count: int
    nodelist: str
    begin_unix_s: int
    end_unix_s: int

    @property
    def settles(self) -> bool:
        """Whether the run needs no further attempt."""
        return self.outcome in SETTLING

    def write(self, folder: Path) -> Path:
        """Writes `<run id>.<attempt>.exit.json`, beside and renamed, in the form that the job script writes."""
        return _write(folder / f"{stem(self.run_id, self.attempt)}.exit.json", asdict(self))


@dataclass(frozen=True, kw_only=True)
class RankNote:
    """What a rank that failed left behind: `step` is the last one it completed, -1 before the first."""

    rank: int
    outcome: Outcome
    exception: str
    message: str
    step: int
    hostname: str

    def write(self, folder: Path, stem: str) -> Path:
        """Writes `<stem>.rank<rank>.json`; the outcome is on a line of its own, which the job script looks for."""
        return _write(folder / f"{stem}.rank{self.rank}.json", asdict(self))


def stem(run_id: str, attempt: int) -> str:
    """What the names of all files of an attempt begin with."""
    return f"{run_id}.{attempt}"


def read_exit_record(path: Path) -> ExitRecord:
    """Raises RecordError where the file is no exit record."""
    values = _read(path)
    try:
        known = {f.name for f in fields(ExitRecord)}
        return ExitRecord(**{k: v for k, v in values.items() if k in known} | {"outcome": Outcome(values["outcome"])})
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


def _write(path: Path, values: Mapping[str, Any]) -> Path:
    """Written aside and renamed: whoever writes a record may be ended at any moment."""
    aside = path.with_name(f".{path.name}.part")
    aside.write_text(json.dumps(values, indent=1) + "\n")
    return aside.replace(path)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read ({error})") from None
    if not isinstance(values, dict):
        raise RecordError(f"{path}: not a JSON object")
    return values
