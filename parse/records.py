"""Joins traces, records and plans to attempts, in each measurement by itself."""

from __future__ import annotations

import dataclasses
import filecmp
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc.model.outcome import BeginRecord, ExitRecord, Outcome, RankNote
from hpc.model.verdict import cause
from hpc.system.groups import grouped
from parse.attempt import Attempt, Measurement, RequestedRun
from parse.measurements import AttemptFile, Measurements, days

Key = tuple[str, str, int]
"""Name of the measurement, run id, and the attempt's number."""


@dataclass(frozen=True, kw_only=True)
class Attempts:
    """The attempts of all files, the runs of all plans, and remarks on what contradicts itself or is missing."""

    attempts: tuple[Attempt, ...]
    requested: tuple[RequestedRun, ...]
    remarks: tuple[str, ...]


def attempts_of(
    files: Sequence[AttemptFile], plans: Mapping[Path, Sequence[RequestedRun]], folders: Iterable[Path]
) -> Attempts:
    """Joins the files of each attempt; `plans` have the runs of each plan, `folders` are those of the command line."""
    return _Joiner(plans).join(files, folders)


class _Joiner:
    def __init__(self, plans: Mapping[Path, Sequence[RequestedRun]]) -> None:
        self.plans = plans
        self.remarks: list[str] = []
        self.exits: dict[Key, ExitRecord] = {}
        self.notes: dict[Key, list[RankNote]] = {}
        self.begun: dict[Key, BeginRecord | None] = {}
        self.traces: dict[Key, Attempt] = {}
        self.set_aside: dict[Key, str] = {}

    def join(self, files: Sequence[AttemptFile], folders: Iterable[Path]) -> Attempts:
        by_id = self._runs_by_id(files)
        names = {run_id: requested.key for run_id, requested in by_id.items()}
        measurements = Measurements(folders, self.plans, lambda run_id: names.get(run_id, run_id))
        measurements.distinguish(files)
        for file in files:
            self._keep(file, (measurements.name(file.path), *file.key))
        keys = sorted({*self.exits, *self.notes, *self.begun, *self.traces, *self.set_aside})
        attempts = grouped((key[0], self._attempt(key, by_id.get(key[1]))) for key in keys)
        requested: dict[str, dict[str, RequestedRun]] = {name: {} for name in attempts}
        for path, runs in self.plans.items():
            of_measurement = requested.setdefault(measurements.name(path), {})
            for run in runs:
                if not measurements.lacks(path, run.run_id):
                    of_measurement.setdefault(run.key, run)
        unknown = {each.run_id for of_folder in attempts.values() for each in of_folder if each.requested is None}
        for run_id in sorted(unknown):
            self.remarks.append(f"{run_id}: no plan and no trace here describes this run; it is in no point below")
        for name in attempts:
            if not requested[name]:
                where = f"{name}: " if name else ""
                self.remarks.append(f"{where}no plan (plan.*.json) is here, so nobody can say whether runs are missing")
        return self._measured(attempts, requested)

    def _runs_by_id(self, files: Sequence[AttemptFile]) -> dict[str, RequestedRun]:
        """The runs described by traces and plans; of a run that several plans describe, the first one's."""
        planned: dict[str, RequestedRun] = {}
        for run in (run for runs in self.plans.values() for run in runs):
            planned.setdefault(run.key, run)
        read = [file.content for file in files if isinstance(file.content, Attempt)]
        by_id = {trace.run_id: trace.requested for trace in read if trace.requested}
        return by_id | {requested.run_id: requested for requested in planned.values()}

    def _measured(
        self, attempts: Mapping[str, Sequence[Attempt]], requested: Mapping[str, Mapping[str, RequestedRun]]
    ) -> Attempts:
        """Marks attempts and runs with their measurement, where there are several."""
        marked: list[Attempt] = []
        runs: list[RequestedRun] = []
        for name, of_name in requested.items():
            here = attempts.get(name, ())
            measurement = None
            if name:
                measurement = Measurement(folder=name, date=days(attempt.begin_unix_s for attempt in here))
            runs += (dataclasses.replace(run, measurement=measurement) for run in of_name.values())
            for attempt in here:
                run = attempt.requested and dataclasses.replace(attempt.requested, measurement=measurement)
                marked.append(dataclasses.replace(attempt, requested=run))
        return Attempts(attempts=tuple(marked), requested=tuple(runs), remarks=tuple(self.remarks))

    def _keep(self, file: AttemptFile, key: Key) -> None:
        match file.content:
            case Attempt() as read:
                self._keep_trace(file.path, key, read)
            case ExitRecord() as record:
                self._keep_exit_record(file.path, key, record)
            case RankNote() as note:
                self.notes.setdefault(key, []).append(note)
            case begun:
                self.begun[key] = self.begun.get(key) or begun

    def _keep_exit_record(self, path: Path, key: Key, record: ExitRecord) -> None:
        if self.exits.setdefault(key, record) != record:
            stands = self.exits[key].outcome
            self.remarks.append(
                f"{path}: a second exit record of {_name(key)} says {record.outcome}; the first one, {stands}, stands"
            )

    def _keep_trace(self, path: Path, key: Key, read: Attempt) -> None:
        if path.name != f"{read.run_id}.{read.number}.h5":
            self.remarks.append(f"{path}: holds {_name(key)}; it is counted as what it holds")
        first = self.traces.setdefault(key, read).trace
        if first is None or first == path:
            return
        if filecmp.cmp(first, path, shallow=False):
            self.remarks.append(f"{path}: the same as {first}, byte for byte; counted once")
        else:
            hint = "" if first.parent == path.parent else "; name each folder to tell two measurements apart"
            self.set_aside[key] = f"two traces of one attempt, {first} and {path}, differ: neither is counted{hint}"

    def _attempt(self, key: Key, requested: RequestedRun | None) -> Attempt:
        record, read, begun = self.exits.get(key), self.traces.get(key), self.begun.get(key)
        note = cause(self.notes.get(key, []))
        outcome = next((each.outcome for each in (record, read, note) if each is not None), None)
        # A recovered trace has the outcome known when it was recovered: the record has the final one.
        if record and read and record.outcome != read.outcome and not read.recovered:
            self.remarks.append(
                f"{read.trace}: says {read.outcome}, its exit record, written later, {record.outcome}: "
                "the record stands"
            )
        evidence, problem = _evidence(record, read, note), self.set_aside.get(key, "")
        began = next((each.begin_unix_s for each in (read, record, begun) if each and each.begin_unix_s), None)
        if problem:
            self.remarks.append(problem)
        elif read:
            problem = f"{read.trace}: {read.problem}" if read.problem and outcome is Outcome.OK else ""
        elif outcome is Outcome.OK:
            problem = "ended ok, but no readable trace of it is here"
        if read is None or key in self.set_aside:
            read = Attempt(run_id=key[1], number=key[2], requested=requested, outcome=outcome)
        return dataclasses.replace(
            read, requested=requested, outcome=outcome, evidence=evidence, problem=problem, record=record,
            begin_unix_s=began,
        )  # fmt: skip


def _evidence(record: ExitRecord | None, read: Attempt | None, note: RankNote | None) -> str:
    if record and record.evidence and record.outcome is not Outcome.OK:
        return f"{record.evidence[0]}; kept at {record.local_copies}" if record.local_copies else record.evidence[0]
    if note is not None:
        return f"{note.origin}: {note.message}"
    if read and read.evidence:
        return read.evidence
    if record is None or record.outcome is Outcome.OK:
        return ""
    return f"exit status {record.exit_status}, job {record.job_id}"


def _name(key: Key) -> str:
    return f"run {key[1]} attempt {key[2]}"
