"""How the runs of a sweep stand, from the files beside the traces alone: records, begun attempts, copies, plans."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc.journal.folders import PARTIAL, JournalError
from hpc.journal.remains import read_journals
from hpc.outcome import (
    BEGIN_RECORD,
    BeginRecord,
    ExitRecord,
    Outcome,
    RecordError,
    asked_again,
    exit_records,
    is_settled,
    read_begin_record,
    settling_record,
    stem,
)
from hpc.spec import RunSpec, SpecError


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How one run stands: how many attempts began, the number of the last one that ended.

    `record` is the one that its outcome is from: the settling one, else the last. `open` is the last attempt where
    that began and left no record; `last_step` and `copy_age_s` tell of that one, None where nothing was copied.
    `settled` says that the run needs no further attempt, `asked_again` that it would not but that somebody asked.
    """

    run_id: str
    attempts: int = 0
    ended: int = 0
    record: ExitRecord | None = None
    open: BeginRecord | None = None
    settled: bool = False
    asked_again: bool = False
    last_step: int | None = None
    copy_age_s: float | None = None

    @property
    def word(self) -> str:
        """The outcome, or what there is in place of one."""
        if self.open is not None and not self.settled:
            return "begun"
        if self.record is None:
            return "never ran"
        return f"{self.record.outcome}, wanted again" if self.asked_again else self.record.outcome


def standings(run_ids: Iterable[str], traces: Path) -> list[Standing]:
    """How each run stands, in the order given. Raises RecordError where a record cannot be read."""
    records, again, begun = exit_records(traces), asked_again(traces), _last_begun(traces)
    return [_standing(run_id, records.get(run_id, []), again, begun.get(run_id), traces) for run_id in run_ids]


def left_of(run_ids: Sequence[str], traces: Path) -> list[str]:
    """Which of the runs are not settled. Raises RecordError where a record cannot be read, OSError where the folder is
    not there: one that was unmounted must not look like one without records."""
    traces.stat()
    records, again = exit_records(traces), asked_again(traces)
    return [run_id for run_id in run_ids if not is_settled(records.get(run_id, []), again)]


def planned_sweeps(traces: Path) -> dict[str, tuple[RunSpec, ...]]:
    """The sweeps whose plans lie in the folder, by their ids. Raises RecordError where one cannot be read."""
    sweeps = {}
    for path in sorted(traces.glob("plan.*.json")):
        try:
            values = json.loads(path.read_text())
            sweeps[str(values["sweep_id"])] = tuple(RunSpec.from_json(run) for run in values["runs"])
        except (OSError, ValueError, KeyError, TypeError, SpecError) as error:
            raise RecordError(f"{path}: no plan that this version can read ({error})") from None
    return sweeps


def whole(standing: Iterable[Standing]) -> bool:
    """Whether every run is `ok`."""
    return all(run.record is not None and run.record.outcome is Outcome.OK and run.settled for run in standing)


def _standing(
    run_id: str, records: Sequence[ExitRecord], again: Collection[str], begun: BeginRecord | None, traces: Path
) -> Standing:
    last = max((record.attempt for record in records), default=0)
    open_attempt = begun if begun is not None and begun.attempt > last else None
    settled = is_settled(records, again)
    last_step, age = _copied(traces / f"{stem(run_id, open_attempt.attempt)}{PARTIAL}") if open_attempt else (None,) * 2
    return Standing(
        run_id=run_id,
        attempts=max(last, begun.attempt if begun else 0),
        ended=last,
        record=settling_record(records) or (records[-1] if records else None),
        open=open_attempt,
        settled=settled,
        asked_again=not settled and any(record.settles for record in records),
        last_step=last_step,
        copy_age_s=age,
    )


def _last_begun(traces: Path) -> dict[str, BeginRecord]:
    last: dict[str, int] = {}
    for path in traces.glob("*.begin.json"):
        if found := BEGIN_RECORD.fullmatch(path.name):
            last[found["run_id"]] = max(last.get(found["run_id"], 0), int(found["attempt"]))
    begun = {}
    for run_id, attempt in last.items():
        with contextlib.suppress(RecordError):  # half-written by a job that is starting now
            begun[run_id] = read_begin_record(traces / f"{stem(run_id, attempt)}.begin.json")
    return begun


def _copied(partial: Path) -> tuple[int | None, float | None]:
    """The last step that every rank copied has completed, and the age of the newest copy in seconds."""
    try:
        newest = max((path.stat().st_mtime for path in partial.iterdir()), default=None)
    except OSError:
        return None, None
    if newest is None:
        return None, None
    try:
        steps = [journal.steps_completed for journal in read_journals(partial)]
    except (JournalError, OSError):
        steps = []  # a copy in the making
    return (min(steps) - 1 if steps else None), max(0.0, time.time() - newest)
