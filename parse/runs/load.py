"""Reads folders of traces, plans, records and logs; each file that cannot be read becomes one line."""

from __future__ import annotations

import dataclasses
import filecmp
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hpc.model.files import BEGIN_RECORD, EXIT_RECORD, OF_SWEEP, PLAN, RANK_NOTE
from hpc.model.outcome import (
    MAX_PLAN_BYTES,
    BeginRecord,
    ExitRecord,
    Outcome,
    RankNote,
    RecordError,
    read_begin_record,
    read_exit_record,
    read_object,
    read_rank_note,
)
from hpc.model.run_fields import RunFields
from hpc.model.spec import PLAN_VERSION, SCRIPT
from hpc.model.trace import Trace, TraceCutOff, TraceError, run_of
from hpc.model.trace_file import open_trace
from hpc.recovery.folders import PARTIAL
from hpc.system.regular_file import existing, open_regular
from hpc.system.text import grouped
from parse.faults import fault
from parse.runs.attempt import (
    Attempt,
    MeasuredFolder,
    NoSamplesError,
    RequestedRun,
    clock_shift_of,
    cpus_decided,
    describe,
    measure,
)
from parse.runs.measurements import AttemptFile, FileContent, Measurements, days
from parse.runs.summary_file import SCHEMA, read_summary_file

if TYPE_CHECKING:
    from parse.logs.benchmarks import Benchmarks
    from parse.runs.load_logs import HowToRead, Progress

T = TypeVar("T")

# Joins traces, records and plans to attempts, in each measurement by itself.

FolderAttempt = tuple[str, str, int]
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


def _is_launch(attempt: Attempt) -> bool:
    """Whether it ran somebody's script, which needs no plan."""
    return attempt.requested is not None and attempt.requested.run.backend == SCRIPT


class _Joiner:
    def __init__(self, plans: Mapping[Path, Sequence[RequestedRun]]) -> None:
        self.plans = plans
        self.remarks: list[str] = []
        self.exits: dict[FolderAttempt, ExitRecord] = {}
        self.notes: dict[FolderAttempt, list[RankNote]] = {}
        self.begun: dict[FolderAttempt, BeginRecord | None] = {}
        self.traces: dict[FolderAttempt, Attempt] = {}
        self.set_aside: dict[FolderAttempt, str] = {}

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
        everyone = (each for of_folder in attempts.values() for each in of_folder)
        for each in sorted((each for each in everyone if each.requested is None), key=lambda each: each.run_id):
            ended = f"{each.outcome}: {each.evidence}; " if each.outcome and each.evidence else ""
            unknown = f"{each.run_id}: {ended}no plan and no trace here describes this run; it is in no point below"
            self.remarks += [unknown] if unknown not in self.remarks else []
        for name in attempts:
            if not requested[name] and not all(map(_is_launch, attempts[name])):
                where = f"{name}: " if name else ""
                self.remarks.append(f"{where}no plan (plan.*.json) is here: whether runs are missing is not known")
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
                measurement = MeasuredFolder(folder=name, date=days(attempt.begin_unix_s for attempt in here))
            runs += (dataclasses.replace(run, measurement=measurement) for run in of_name.values())
            for attempt in here:
                run = attempt.requested and dataclasses.replace(attempt.requested, measurement=measurement)
                marked.append(dataclasses.replace(attempt, requested=run))
        return Attempts(attempts=tuple(marked), requested=tuple(runs), remarks=tuple(self.remarks))

    def _keep(self, file: AttemptFile, key: FolderAttempt) -> None:
        match file.content:
            case Attempt() as read:
                self._keep_trace(file.path, key, read)
            case ExitRecord() as record:
                self._keep_exit_record(file.path, key, record)
            case RankNote() as note:
                self.notes.setdefault(key, []).append(note)
            case begun:
                self.begun[key] = self.begun.get(key) or begun

    def _keep_exit_record(self, path: Path, key: FolderAttempt, record: ExitRecord) -> None:
        if self.exits.setdefault(key, record) != record:
            first = self.exits[key].outcome
            self.remarks.append(
                f"{path}: a second exit record of {_name(key)} says {record.outcome}; the first one, {first}, counts"
            )

    def _keep_trace(self, path: Path, key: FolderAttempt, read: Attempt) -> None:
        if path.name != f"{read.run_id}.{read.number}.h5":
            self.remarks.append(f"{path}: holds {_name(key)}; it is counted as what it holds")
        first = self.traces.setdefault(key, read).trace
        if first is None or first == path:
            return
        if filecmp.cmp(first, path, shallow=False):
            self.remarks.append(f"{path}: the same as {first}, byte for byte; counted once")
        else:
            hint = "" if first.parent == path.parent else "; if they are two measurements, name each folder"
            self.set_aside[key] = f"two traces of one attempt, {first} and {path}, differ: neither is counted{hint}"

    def _attempt(self, key: FolderAttempt, requested: RequestedRun | None) -> Attempt:
        from hpc.model.verdict import cause  # of runs: logs have none

        record, read, begun = self.exits.get(key), self.traces.get(key), self.begun.get(key)
        note = cause(self.notes.get(key, []))
        outcome = next((each.outcome for each in (record, read, note) if each is not None), None)
        # A recovered trace has the outcome known when it was recovered: the record has the final one.
        if record and read and record.outcome != read.outcome and not read.recovered:
            self.remarks.append(
                f"{read.trace}: says {read.outcome}; its exit record, written later, says {record.outcome}, "
                "which counts"
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


def _name(key: FolderAttempt) -> str:
    return f"run {key[1]} attempt {key[2]}"


RECORDS = (PLAN, EXIT_RECORD, RANK_NOTE, BEGIN_RECORD)
RECORD_SUFFIXES = (".exit.json", ".begin.json")
HDF5 = b"\x89HDF\r\n\x1a\n"
DLLOGGER = b"DLLL {"
"""The beginning of a line of dllogger's JSON; its files are called raport.json, or anything."""
SNIFFED_BYTES = 1 << 16
STACKS_TEXT = ".stacks.txt"
"""Suffix of the file with an attempt's stacks, which is not a log."""
LOG_NAME = re.compile(r".+\.(log|txt|out)(\.gz)?", re.IGNORECASE | re.DOTALL)
"""Names that logs have. Where only logs are requested, each such file that is none is refused."""
LOG_BY_NAME = re.compile(r".+\.log(\.gz)?", re.IGNORECASE | re.DOTALL)
"""Names that claim to be a log, so that the file is refused if it is not."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """All attempts. `refusals` name the files that were not read, `remarks` the oddities of the others; `benchmarks`
    are what outputs of benchmarks have. `logs` counts the logs that were read."""

    attempts: tuple[Attempt, ...]
    requested: tuple[RequestedRun, ...]
    reduced: tuple[str, ...]
    refusals: tuple[str, ...]
    remarks: tuple[str, ...]
    benchmarks: Benchmarks | None = None
    logs: int = 0


def load(
    paths: Sequence[Path],
    progress: Progress[Path] | None = None,
    kind: str = "auto",
    how: HowToRead | None = None,
    *,
    verbose: bool = False,
) -> Loaded:
    """Reads files and folders, with everything below them. Never raises because of a file's content.

    `kind` is `traces`, `logs`, or `auto` for both; `how` has the options for reading logs. Files of folders that are no
    logs are counted in one remark, or named in one each with `verbose`.
    """
    return _Loader(kind, verbose).load(paths, progress or (lambda files: files), how)


class _Loader:
    def __init__(self, kind: str, verbose: bool) -> None:
        self.kind, self.verbose = kind, verbose
        self.no_logs: list[str] = []
        """Files of folders that are no logs, each with the reason."""
        self.refusals: list[str] = []
        self.remarks: list[str] = []
        self.plans: dict[Path, list[RequestedRun]] = {}
        self.reduced: list[str] = []
        self.attempt_files: list[AttemptFile] = []
        self.benchmarks: Benchmarks | None = None
        self.summarized: list[Attempt] = []
        self.summarized_requests: list[RequestedRun] = []
        self.logs = 0

    def load(self, paths: Sequence[Path], progress: Progress[Path], how: HowToRead | None) -> Loaded:
        paths, self.refusals = existing(paths)
        named = frozenset(paths)
        files = self._files(paths)
        logs = [path for path in files if self._caught(path, self._is_log, path, path in named)]
        files = [] if self.kind == "logs" else sorted({*files} - {*logs})
        for path in files:
            if path.suffix == ".json":
                self._caught(path, self._read_json, path, path in named)
        traces = [path for path in files if path.suffix != ".json"]
        if traces:
            from parse.runs.processes import each_in_processes, processes_for  # slow, and for traces alone

            attempts = each_in_processes(_attempt_in, traces, processes_for(traces))
            for path, read in zip(progress(traces), attempts, strict=True):
                if isinstance(read, Attempt):
                    self._take(path, read.run_id, read.number, read)
                else:
                    self.refusals.append(read)
        joined = attempts_of(self.attempt_files, self.plans, [path for path in paths if path.is_dir()])
        self.remarks += joined.remarks
        of_logs = self._from_logs(logs, named, progress, how)
        self.remarks += self._about_no_logs(nothing_else=not joined.attempts and not of_logs)
        return Loaded(
            attempts=(*joined.attempts, *of_logs, *self.summarized),
            requested=(*joined.requested, *self.summarized_requests),
            reduced=tuple(dict.fromkeys(self.reduced)),
            refusals=tuple(self.refusals),
            remarks=tuple(self.remarks),
            benchmarks=self.benchmarks,
            logs=self.logs,
        )

    def _caught(self, path: Path, read: Callable[..., T], *arguments: Any) -> T | None:
        """What reads a file; None, and a refusal, where that has a fault."""
        try:
            return read(*arguments)
        except Exception as error:  # noqa: BLE001 - the line says which
            self.refusals.append(fault(error, path))
        return None

    def _files(self, paths: Sequence[Path]) -> list[Path]:
        """The named files, and those in the named folders, each once; without hidden files and those of a sweep that
        no reader is for."""
        files: dict[Path, Path] = {}
        for path in paths:
            if path.is_dir():
                for folder, _, names in os.walk(path, onerror=self._refuse_folder):
                    if folder.endswith(PARTIAL) and self.kind != "logs":
                        self.remarks.append(_of_partial(Path(folder)))
                    for name in sorted(names):
                        if not name.startswith(".") and self._may_be_read(Path(folder).relative_to(path), name):
                            self._keep(Path(folder) / name, files)
            else:
                self._keep(path, files, named=True)
        return sorted(files.values())

    def _keep(self, path: Path, files: dict[Path, Path], *, named: bool = False) -> None:
        """Adds a file, unless it is a pipe or a device: reading from these may never end."""
        if path.is_file():
            files.setdefault(path.resolve(), path)
            return
        problem = f"{path}: cannot be read (no regular file)"
        (self.refusals if named or _has_reader(path.name) else self.no_logs).append(problem)

    def _may_be_read(self, folder: Path, name: str) -> bool:
        """Whether to look at a file; `folder` is its folder in the one that was named."""
        if name.endswith(STACKS_TEXT):
            return False
        if self.kind == "traces":
            return name.endswith((".h5", ".json"))
        if _has_reader(name):
            return True
        hidden_or_journals = any(part.startswith(".") or part.endswith(PARTIAL) for part in folder.parts)
        return not hidden_or_journals and OF_SWEEP.fullmatch(name) is None

    def _is_log(self, path: Path, named: bool) -> bool:
        """Whether to read it as a log. JSON is one if it shows a format, and no record of an attempt."""
        if named and self.kind == "logs":
            return True
        if self.kind == "traces" or path.suffix == ".h5":
            return False
        if path.suffix == ".json":
            return not _is_record(path.name) and self._is_json_log(path, named)
        return not named or LOG_NAME.fullmatch(path.name) is not None or _begin_of(path, len(HDF5)) != HDF5

    def _is_json_log(self, path: Path, named: bool) -> bool:
        if DLLOGGER in _begin_of(path, SNIFFED_BYTES):
            return True
        from parse.logs.engine.log_format import LogError
        from parse.logs.formats import recognise

        try:
            recognise(path)
        except LogError as error:
            if not named:
                self.no_logs.append(str(error))
            return False
        return True

    def _from_logs(
        self, paths: Sequence[Path], named: frozenset[Path], progress: Progress[Path], how: HowToRead | None
    ) -> tuple[Attempt, ...]:
        """The attempts of logs. A sweep's own job outputs are in its folders, too: those are only counted."""
        if not paths:
            return ()
        from parse.runs.load_logs import HowToRead, load_logs

        claims = LOG_NAME if self.kind == "logs" else LOG_BY_NAME
        silently = {path for path in paths if path not in named and not claims.fullmatch(path.name)}
        loaded = load_logs(paths, how or HowToRead(), progress, frozenset(silently))
        self.no_logs += loaded.no_logs
        self.refusals += loaded.refusals
        self.remarks += loaded.remarks
        self.benchmarks = loaded.benchmarks
        self.logs = loaded.logs
        return loaded.attempts

    def _about_no_logs(self, *, nothing_else: bool) -> list[str]:
        """Remarks on files that are no logs. Those of a sweep's own jobs are expected, and named where nothing else is
        there (`nothing_else`)."""
        jobs = {line: folder for line in self.no_logs if (folder := _jobs_folder(Path(line.partition(": ")[0])))}
        others = [line for line in self.no_logs if line not in jobs]
        traces = [
            f"{folder}: jobs of a sweep, whose measurements are in {folder.parent / 'traces'}"
            for folder in dict.fromkeys(jobs.values()) if nothing_else
        ]  # fmt: skip
        if self.verbose or not others:
            return [*traces, *sorted(others)]
        if len(others) == 1:
            return [*traces, "1 file is no log of a known system: list it with --verbose"]
        return [*traces, f"{len(others)} files are no logs of a known system: list them with --verbose"]

    def _refuse_folder(self, error: OSError) -> None:
        self.refusals.append(f"{error.filename}: cannot be read ({error.strerror})")

    def _read_json(self, path: Path, named: bool) -> None:
        try:
            if EXIT_RECORD.fullmatch(path.name):
                record = read_exit_record(path)
                self._take(path, record.run_id, record.attempt, record)
            elif match := RANK_NOTE.fullmatch(path.name):
                self._take(path, match["run_id"], int(match["attempt"]), read_rank_note(path))
            elif match := BEGIN_RECORD.fullmatch(path.name):
                self._take(path, match["run_id"], int(match["attempt"]), _begin_record(path))
            elif PLAN.fullmatch(path.name):
                self._read_plan(path)
            elif named and SCHEMA.encode() in _begin_of(path, SNIFFED_BYTES):
                attempts, requested = read_summary_file(path)
                self.summarized += attempts
                self.summarized_requests += requested
            elif named or path.name.endswith(RECORD_SUFFIXES):
                self.refusals.append(f"{path}: by its name neither a plan nor a record of an attempt, and no summary")
        except (RecordError, TraceError) as error:
            self.refusals.append(str(error))

    def _take(self, path: Path, run_id: str, number: int, content: FileContent | None) -> None:
        self.attempt_files.append(AttemptFile(path=path, key=(run_id, number), content=content))

    def _read_plan(self, path: Path) -> None:
        plan = read_object(path, MAX_PLAN_BYTES, "a plan of ours")
        if plan.get("schema") != "rankwise-plan":
            raise TraceError(f"{path}: not a plan of ours")
        version, runs, reduced = plan.get("schema_version"), plan.get("runs"), plan.get("reduced", [])
        if version != PLAN_VERSION:
            raise TraceError(f"{path}: a plan of schema {version!r:.40}; this version reads schema {PLAN_VERSION}")
        if not isinstance(runs, list) or not isinstance(reduced, list):
            raise TraceError(f"{path}: a plan without a list of runs")
        target = plan.get("target")
        try:
            requested = [_requested(described, _target_env(target)) for described in runs]
        except TraceError as error:
            raise TraceError(f"{path}: {error}") from None
        self.reduced += [str(line) for line in reduced]
        self.plans[path] = requested


def _attempt_in(path: Path) -> Attempt | str:
    """The attempt in a trace, or why there is none."""
    try:
        with open_trace(path) as trace:
            return _without_stamps(path, trace)
    except TraceCutOff as error:
        return f"{path}: {error}"
    except TraceError as error:
        return str(error)
    except OSError as error:
        return f"{path}: cannot be read ({error.strerror})"
    except Exception as error:  # noqa: BLE001 - the line says which
        return fault(error, path)


def _jobs_folder(path: Path) -> Path | None:
    """The folder of a sweep's jobs that has this file itself, among its logs or among its runs; None for others."""
    folder = path.parent.parent if path.parent.name in ("logs", "runs") else path.parent
    return folder if (folder / "runs").is_dir() and any(folder.glob("plan.*.json")) else None


def _has_reader(name: str) -> bool:
    """Whether the name is that of a trace, a record or a log, so that it is refused where it cannot be read."""
    return name.endswith(".h5") or _is_record(name) or LOG_NAME.fullmatch(name) is not None


def _is_record(name: str) -> bool:
    return name.endswith(RECORD_SUFFIXES) or any(form.fullmatch(name) for form in RECORDS)


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
    measured, problem, lacks_samples = None, "", False
    try:
        measured = measure(trace)
    except TraceCutOff:
        raise
    except TraceError as error:
        problem, lacks_samples = str(error), isinstance(error, NoSamplesError)
    return Attempt(
        run_id=trace.run_id,
        number=trace.attempt,
        requested=RequestedRun(
            run=RunFields.of(trace.run),
            run_id=trace.run_id,
            extra=trace.run_extra,
            cpus_decided=trace.run.is_script and cpus_decided(trace.reports),
        ),
        outcome=trace.outcome,
        evidence=trace.evidence,
        measured=measured,
        machine=describe(trace),
        steps_completed=int(trace.steps_completed.min()),
        trace=path,
        problem=problem,
        begin_unix_s=_begin_unix_s(trace),
        recovered=trace.recovered,
        history=trace.history,
        lacks_samples=lacks_samples,
        clock_shift_s=clock_shift_of(trace),
    )


def _begin_unix_s(trace: Trace) -> int | None:
    """When the attempt began, in s since 1970; only the trace of a whole training has it."""
    begun = trace.history.begun if trace.history else ()
    return next((each.unix_ns // 10**9 for each in begun if each.attempt == trace.attempt), None)


def _begin_record(path: Path) -> BeginRecord | None:
    """None where it cannot be read: that the attempt began is known by its name."""
    try:
        return read_begin_record(path)
    except RecordError:
        return None


def _of_partial(folder: Path) -> str:
    """The remark on a folder of journals: of a run that goes on, or not yet recovered."""
    stem = folder.name.removesuffix(PARTIAL)
    if folder.with_name(f"{stem}.h5").exists():
        reason = "left over beside its trace, to be removed"
    elif any(folder.parent.glob(f"{escape(stem)}.rank*.json")) or folder.with_name(f"{stem}.exit.json").exists():
        reason = "unrecovered timestamps of terminated ranks"
    else:
        reason = "timestamps of a run that goes on, or whose job was lost"
    return f"{folder}: {reason}: rankwise sweep recover {shlex.quote(str(folder.parent))}"


def _begin_of(path: Path, size: int) -> bytes:
    """The first bytes; none if it cannot be read, which its reader reports."""
    try:
        with open_regular(path) as file:
            return file.read(size)
    except OSError:
        return b""
