"""The status of a sweep's runs, from the files beside the traces alone; which are wanted again."""

from __future__ import annotations

import functools
import json
import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Any

from hpc.backends import BACKENDS
from hpc.model.evidence import close_attempt, corrected_record, damaged_attempts, describe, exit_of
from hpc.model.files import BEGIN, EXIT, AttemptFiles
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
    request_reruns,
    requested_reruns,
)
from hpc.model.spec import COLLECTIVES, PLAN_VERSION, RunSpec, SpecError
from hpc.model.trace import TraceError
from hpc.model.trace_file import read_trace, visible_defect
from hpc.model.verdict import JobEnd
from hpc.recovery.collect import bring_home, close_unidentified, collect
from hpc.recovery.folders import JournalError, attempt_folders, living_ranks
from hpc.recovery.journal import read_journals
from hpc.system.atomic import write_atomic
from hpc.system.environment import describe_project
from hpc.system.sanitize import plain
from hpc.system.text import grouped, plural
from hpc.system.tool import run_tool
from launch.follow import last_attempts, write_missing_records
from launch.jobs.script import Folders
from launch.jobs.site import Site
from launch.sweep.request import SweepOptions

if TYPE_CHECKING:
    from parse.runs.attempt import Measured

_RECORD = re.compile(r"(?P<run_id>.+)\.\d+\.(?:begin|exit)\.json")


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The status of one run: the number of attempts that began, and the number of the last one that ended.

    `record` gives its outcome: the final one, else the last. `open` is the last attempt if it began and has no record;
    `last_step` and `copy_age_s` are of that attempt, None if nothing was copied. `final`: the run needs no further
    attempt. `rerun_requested`: it would need none, but a rerun was requested. `problems` names its unreadable files,
    each with what to do. `held`: one of these may be the final record, so the run must not be run. `trace_damaged`: the
    trace of the final record is not whole. `pending`: the job that waits to run it, where the queue was queried.
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
    pending: str = ""

    @property
    def state(self) -> str:
        """The outcome as text, or the state of a run without one."""
        if self.held and not self.final:
            return "held back"
        if self.open is not None and not self.final:
            return "begun"
        if self.record is None:
            return "pending" if self.pending else "never ran"
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
        return f"{error}: the next sweep decides the outcome again, from what else the attempt left"
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
    begun = {}
    for run_id, attempt in last_attempts([path.name for path in traces.glob(f"*{BEGIN}")]).items():
        path = AttemptFiles(traces, run_id, attempt).begin_record
        try:
            begun[run_id] = read_begin_record(path)
        except RecordError as error:  # or half-written by a job that is starting now
            if not exit_of(path).exists():
                broken.append(error)
    return begun


def _copied(partial: Path) -> tuple[int | None, float | None]:
    """The last step that all copied ranks have completed, and the age of the newest copy in seconds."""
    changed: list[float] = []
    try:
        for path in partial.iterdir():
            with suppress(FileNotFoundError):  # it is taken away meanwhile
                changed.append(path.stat().st_mtime)
    except OSError:
        return None, None
    if not changed:
        return None, None
    try:
        steps = [journal.steps_completed for journal in read_journals(partial)]
    except (JournalError, OSError):
        steps = []  # a copy that is being written
    return (min(steps) - 1 if steps else None), max(0.0, time.time() - max(changed))


# What a run measured, from its trace by the formula of the summary.


def measured_in(trace_path: Path) -> Measured | None:
    """The numbers of a trace; None where it is no training, or cannot be read: the summary names the file and its
    defect."""
    from parse.faults import fault
    from parse.runs.attempt import measure

    try:
        trace = read_trace(trace_path)
        return None if trace.run.diagnostic == COLLECTIVES else measure(trace)
    except TraceError:
        return None
    except Exception as error:  # noqa: BLE001 - the line says which; the sweep goes on
        print(plain(fault(error, trace_path)), file=sys.stderr)
        return None


# Closes attempts that ended without a record, makes traces of their copies, and marks cancelled sweeps.


def close_ended(
    ends: Mapping[str, JobEnd], folders: Folders, say: Callable[[str], None], last_lines: dict[str, str] | None = None
) -> None:
    """Records the end of attempts whose jobs ended without doing so; makes traces of their copies.

    `last_lines` has the last line about each attempt: a caller that tries again says it once, until it changes.
    """
    last_lines = {} if last_lines is None else last_lines

    def recover(name: str) -> None:
        line = _recover(folders, name)
        if line and last_lines.get(name) != line:
            say(line)
        last_lines[name] = line

    write_missing_records(folders.traces, ends, folders.logs, recover)


Fetch = Callable[[str, Sequence[str]], str]
"""Runs a program on another machine; why that failed, empty if it did not."""


def mend_records(folders: Folders, say: Callable[[str], None], fetch: Fetch | None = None) -> None:
    """Judges attempts with unreadable or lost records again, brings home the traces that nodes kept (`fetch`: from
    others), and removes stale parts of traces. The folder must be locked."""
    from hpc.recovery.recover import tidy

    def recover(name: str) -> None:
        if line := _recover(folders, name):
            say(line)

    for begin in damaged_attempts(folders.traces):
        name = begin.stem
        recover(name)
        try:
            here = attempt_folders(folders.traces, name)
            record = close_attempt(begin, folders.logs, folders.traces, None, here)
        except OSError as error:
            say(f"{folders.traces / name}: its exit record cannot be read, nor written again ({error})")
            continue
        say(
            f"{folders.traces / name}: its exit record cannot be read; decided again from what else it left: "
            f"{record.outcome}: {record.evidence[0]}"
        )

    close_unidentified(folders.traces, folders.logs, recover=recover, say=say)
    for line in (*bring_home(folders.traces), *tidy(folders.traces)):
        say(line)
    _correct_records(folders, say)
    last_records = [records[-1] for records in exit_records(folders.traces).values()]
    fetched = [_fetched(record, folders, say, fetch) for record in last_records]
    if any(fetched):
        for line in tidy(folders.traces):
            say(line)
        _correct_records(folders, say)


def _fetched(last: ExitRecord, folders: Folders, say: Callable[[str], None], fetch: Fetch | None) -> bool:
    """Whether the trace of this attempt was fetched from another machine, with what others keep of it; else shows how
    that is done."""
    places = [place.partition(":")[::2] for place in last.local_copies.split(", ") if place]
    program = [sys.executable, "-m", "rankwise", "hpc.recovery", "collect"]
    program += ["--stem", last.stem, "--to", str(folders.traces)]
    host, path = next((place for place in places if place[1].endswith(f"/{last.stem}.h5")), ("", ""))
    if host in ("", socket.gethostname()):
        return False
    problem = "" if fetch is None else fetch(host, program)
    where = f"{last.stem}: its whole trace is kept at {host}:{path}"
    if problem or fetch is None:
        failed = f" ({problem})" if problem else ""
        say(f"{where}{failed}; this on {host} brings it home, and the same sweep again: {join(program)}")
        return False
    say(f"{where}: fetched by a job on it")
    for other in {other: None for other, _ in places if other != host}:
        fetch(other, program)  # of its ranks nothing is needed any more: what stays is removed after a week
    return True


def _correct_records(folders: Folders, say: Callable[[str], None]) -> None:
    """Makes `ok` of recorded attempts that a whole trace contradicts."""
    traces = {path.name.removesuffix(".h5") for path in folders.traces.glob("*.h5")}
    for records in exit_records(folders.traces).values():
        for record in records:
            name = record.stem
            if name not in traces or (corrected := corrected_record(record, folders.traces)) is None:
                continue
            try:
                corrected.write(folders.traces)
            except OSError as error:
                say(f"{folders.traces / name}: its trace is whole, and its record cannot be corrected ({error})")
            else:
                say(f"{name}: {describe(corrected)}; {corrected.evidence[1]}")


def _recover(folders: Folders, name: str) -> str:
    """Fetches what this node has of the attempt, whose ranks have ended, and makes a trace of it and of the copies; a
    line about it, empty where there is nothing."""
    partial = AttemptFiles.of_stem(folders.traces, name).partial
    from hpc.recovery.recover import recover

    try:
        if attempt_folders(folders.traces, name) and not living_ranks(folders.traces, name):
            collect(folders.traces, name)
        return recover(partial) if partial.is_dir() else ""
    except (JournalError, TraceError, RecordError, OSError) as error:
        return f"not recovered: {error}; rankwise sweep recover {partial.parent} tries again"


def note_cancel(folders: Folders, sweep_id: str) -> None:
    """Marks the sweep as cancelled: a process that follows it, on any machine, submits no more of it."""
    write_atomic(folders.jobs / f"{sweep_id}.cancel", "")


def cancelled_at_ns(folders: Folders, sweep_id: str) -> int:
    """When the sweep was last cancelled, by the file server's clock; 0 for never."""
    try:
        return (folders.jobs / f"{sweep_id}.cancel").stat().st_mtime_ns
    except FileNotFoundError:
        return 0


# Which final runs are wanted again, and what has changed since they were measured.

# Changes since a run was measured that this machine can see: packages, Python, MPI, the project.

_TIMEOUT_S = 60
_FRAMEWORK_OWN = frozenset({"cuda", "cudnn", "hip", "miopen", "nccl", "rccl"})
"""Versions that a framework reports of the libraries it was built with or loads; no package of that name has them."""
_VERSIONS = """
import json, platform, sys
from importlib.metadata import PackageNotFoundError, packages_distributions, version
distributions = packages_distributions()
def installed(name):
    for distribution in distributions.get(name, [name]):
        try: return version(distribution)
        except PackageNotFoundError: pass
try:
    import mpi4py
    mpi4py.rc.initialize = False
    from mpi4py import MPI
    mpi = MPI.Get_library_version().strip("\\0\\n ").splitlines()[0]
except Exception:
    mpi = None
print(json.dumps({**{name: installed(name) for name in sys.argv[1:]}, "python": platform.python_version(), "mpi": mpi}))
"""
"""Run by the interpreter of the runs, which may be another one than this."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Descriptions of what has changed, and of what could not be compared with the reason."""

    changed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def changes_since(run: RunSpec, trace: Path, site: Site | None) -> Changes:
    """Compares the environment that the trace of a run recorded with the present one of its interpreter here."""
    try:
        recorded = read_trace(trace).environment
    except TraceError as error:
        return Changes(unknown=(f"{run.run_id}: {error}",))
    changed, unknown = [], ["driver, kernel and devices of the nodes: only a run sees them"]
    software = {name: value for name, value in recorded.get("software", {}).items() if value is not None}
    site = None if site is None else site.at(run.nodes)
    if run.container:
        unknown.append(f"what is in the container image {run.container}, which has kept its name")
    elif site is not None and (site.modules or "PYTHONPATH" in site.env):
        unknown.append(f"packages that the modules or the PYTHONPATH of site {site.name} bring")
    else:
        python = sys.executable if site is None else site.python(BACKENDS[run.backend].framework, sys.executable)
        now = _installed(python, tuple(sorted(software)))
        if isinstance(now, str):
            unknown.append(f"packages of {python}: {now}")
        else:
            known = {name for name in software if name not in _FRAMEWORK_OWN and (name != "mpi" or now[name])}
            different = [name for name in sorted(known) if now[name] != str(software[name])]
            changed += [f"{name} was {software[name]}, is {now[name] or 'not there'}" for name in different]
            if rest := sorted(set(software) - known):
                unknown.append(f"{', '.join(rest)}: what a framework brings or loads itself, only a run sees")
    then, here = recorded.get("project", {}), describe_project()
    if "commit" not in then or "commit" not in here:
        problem = here.get("problem") or then.get("problem") or "it is no git repository here, or was none there"
        unknown.append(f"the project's commit: {problem}")
    else:
        changed += _project_changes(then, here)
    return Changes(changed=tuple(changed), unknown=tuple(unknown))


def _project_changes(then: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    if then["commit"] != here["commit"]:
        return [f"the project was at {then['commit'][:10]}, is at {here['commit'][:10]}"]
    if then["dirty"] != here["dirty"]:
        return ["the project had local changes" if then["dirty"] else "the project has local changes"]
    return []


@functools.cache
def _installed(python: str, names: tuple[str, ...]) -> Mapping[str, str | None] | str:
    """Versions of these packages, of the interpreter and of its MPI library; else the reason why they are not known."""
    answer = run_tool([python, "-c", _VERSIONS, *names], timeout_s=_TIMEOUT_S)
    try:
        return answer.describe() or dict(json.loads(answer.stdout))
    except ValueError:
        return f"its answer cannot be read ({answer.output[-200:]})"


def ended_so(run: RunSpec, record: ExitRecord, options: SweepOptions) -> bool:
    """Whether a run is to be retried that ended like this; the oom of a try of find-max is an answer."""
    return record.outcome in options.retry and not (record.outcome is Outcome.OOM and run.search)


def choose_reruns(
    options: SweepOptions, runs: Sequence[RunSpec], traces: Path, site: Site | None, say: Callable[[str], None]
) -> None:
    """Writes rerun requests beside the records of final runs; prints how many and why. The folder must be locked."""
    records, rerun_requests = exit_records(traces), requested_reruns(traces)
    final = [run for run in runs if is_final(records.get(run.run_id, []), rerun_requests)]
    latest = {run.run_id: record for run in final if (record := final_record(records[run.run_id])) is not None}
    chosen: list[str] = []
    if options.force:
        chosen += latest
        say(f"--force: {len(latest)} final runs once more")
    if options.retry:
        retried = [run.run_id for run in final if run.run_id in latest and ended_so(run, latest[run.run_id], options)]
        chosen += retried
        say(f"retry {','.join(options.retry)}: {plural(len(retried), 'run')} once more")
    if options.rerun_if_changed:
        measured = [(run, latest[run.run_id]) for run in final if latest[run.run_id].outcome is Outcome.OK]
        chosen += _changed(measured, traces, site, say)
    request_reruns(traces, [record for run_id in chosen for record in records[run_id] if record.is_final])


def _changed(
    measured: Sequence[tuple[RunSpec, ExitRecord]], traces: Path, site: Site | None, say: Callable[[str], None]
) -> list[str]:
    """The measured runs whose recorded environment differs from the present one."""
    chosen, unknown = [], set()
    for run, record in measured:
        changes = changes_since(run, record.files(traces).trace, site)
        unknown |= set(changes.unknown)
        if changes.changed:
            chosen.append(run.run_id)
            say(f"{run.run_id}: {'; '.join(changes.changed)}")
    say(f"--rerun-if-changed: {len(chosen)} of {len(measured)} runs that ended ok once more")
    for line in sorted(unknown):
        say(f"not compared: {line}")
    return chosen
