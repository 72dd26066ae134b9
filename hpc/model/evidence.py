"""The evidence of an attempt, collected from what it left beside the traces, and the exit record made of it.

launch.step judges the attempt whose launcher it saw return (`judge_ended`). An attempt that another job, or an earlier
start of this one, left without a record is closed by the first process that finds it (`close_attempt`).
docs/outcomes.md has the rules.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hpc.model.files import BEGIN, EXIT, AttemptFiles, host_path, set_aside
from hpc.model.outcome import (
    BeginRecord,
    ExitRecord,
    Outcome,
    RecordError,
    is_damaged,
    read_begin_record,
    read_rank_notes,
)
from hpc.model.verdict import EndedBy, Evidence, JobEnd, decide
from hpc.system.regular_file import open_regular, parse_json
from hpc.system.sanitize import plain, without_secrets

LOOK_PAUSES_S = (0.2, 0.5, 1.0, 2.0)
"""Between looks at a trace that should be there."""
_PASSING = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR, errno.EAGAIN})


@dataclass(frozen=True, kw_only=True)
class TraceLook:
    """The result of a look at an attempt's trace.

    `whole`: rank 0 wrote it itself. `steps` is the largest number that a rank completed by it, -1 where nothing is
    known. `unreadable` is the reason why it could not be looked at, else empty.
    """

    whole: bool = False
    steps: int = -1
    unreadable: str = ""


def look_at_trace(
    path: Path, *, expected: bool = False, trusted: bool = False, sleep: Callable[[float], None] = time.sleep
) -> TraceLook:
    """Looks at a trace; repeats the look if the file system does not answer, since one failed look proves no absence.

    `expected`: the trace's writer ended well, but NFS may report for a while that the name does not exist.
    `trusted`: the trace is known to be rank 0's own and is not opened as HDF5.
    """
    look = TraceLook()
    for pause_s in (0.0, *(LOOK_PAUSES_S if expected else ())):
        sleep(pause_s)
        try:
            return _look_once(path, trusted)
        except FileNotFoundError:
            look = TraceLook()
            _renew(path.parent)
        except OSError as error:
            look = TraceLook(unreadable=f"{path}: {error.strerror or error}")
    with suppress(OSError):  # the folder was renewed since
        return _look_once(path, trusted)
    return look


def _look_once(path: Path, trusted: bool) -> TraceLook:
    with open_regular(path) as file:
        file.read(1)
    if trusted:
        return TraceLook(whole=True)
    from hpc.model.trace import TraceError
    from hpc.model.trace_file import open_trace

    try:
        with open_trace(path) as trace:
            return TraceLook(whole=not trace.recovered, steps=int(max(trace.steps_completed, default=-1)))
    except TraceError as error:
        cause = error.__cause__ or error.__context__
        if isinstance(cause, OSError) and cause.errno in _PASSING:
            raise cause from None
        print(f"rankwise: {plain(str(error))}", file=sys.stderr)
        return TraceLook()


def _renew(folder: Path) -> None:
    """Changes the folder, so that an NFS client forgets which names it believes to be absent."""
    beside = folder / f".look.{os.uname().nodename}.{os.getpid()}"
    with suppress(OSError):
        beside.touch()
        beside.unlink()


ERROR_BYTES = 1 << 18
_LINE_BYTES = 1 << 12
"""The rest of a longer line in standard error is no sentence of anybody's."""
STARTED_AGAIN = "rankwise: started again: "
"""The start of the line in standard error after which the launcher's next start prints: what is before it is over."""
_MAX_TEXT_BYTES = 1 << 16
_SIGNAL_LENGTH, _RECEIVED = 200, "the job received "
WARNING_S = 60.0
WARNING_EARLY_S = 90.0
"""Slurm sends its warning up to a minute earlier than requested; the rest is for its own delays."""


@dataclass(frozen=True, kw_only=True)
class JobNow:
    """What the scheduler says of a running job, queried from inside it: whether it `answered`, how it is about to end
    (None: that is not shown), and when its time limit ends it."""

    answered: bool
    end: JobEnd | None = None
    end_unix_s: int | None = None


@dataclass(frozen=True, kw_only=True)
class AttemptOutput:
    """What an attempt left outside the traces folder.

    `error` is its launcher's standard error. `on_node` are its folders on this node, with what its ranks could not
    write to the traces. `collected` is what the collecting of these on all nodes printed, if `error` may lack it.
    """

    error: Path
    on_node: Sequence[Path] = ()
    collected: str = ""


def read_evidence(
    files: AttemptFiles, output: AttemptOutput, *, look: TraceLook | None = None, exit_status: int | None = None,
    job: JobEnd | None = None, job_id: str = "",
) -> Evidence:  # fmt: skip
    """The evidence of an attempt, from the files that it left. One that cannot be read counts as absent and is reported
    on standard error.

    `look` saves a second look at the trace where the caller has looked at it already. The others are as in Evidence.
    """
    unread: list[RecordError] = []
    notes = {note.rank: note for note in read_rank_notes(files, unread)}
    of_node = [AttemptFiles(folder, files.run_id, files.attempt) for folder in output.on_node]
    for each in of_node:
        notes = {note.rank: note for note in read_rank_notes(each, unread)} | notes
    for error in unread:
        print(f"rankwise: {plain(str(error))}", file=sys.stderr)
    look, printed = look or look_at_trace(files.trace), end_of_output(output.error)
    copies = [note.local_copies for note in notes.values()]
    copies += [line.removeprefix("kept:").strip() for line in _text(files.local_copies).splitlines()]
    copies += [host_path(each.trace) for each in of_node if look_at_trace(each.trace).whole]
    copies += places_in(f"{printed}\n{output.collected}", files.stem)
    remaining = _remaining_places(copies)
    if look.whole:
        remaining = [place for place in remaining if not place.endswith(f"/{files.trace.name}")]
    signal = "".join(_text(files.signal).strip().splitlines()[:1])[:_SIGNAL_LENGTH]
    ended_by, reason = EndedBy.SIGNAL if signal else None, f"{_RECEIVED}{signal}" if signal else ""
    if hang := _hang_reason(_text(files.hang)):
        ended_by, reason = EndedBy.HANG, hang
    return Evidence(
        exit_status=exit_status, trace=look.whole, steps=max([look.steps, *(note.step + 1 for note in notes.values())]),
        ended_by=ended_by, reason=reason, notes=tuple(notes[rank] for rank in sorted(notes)), error=printed, job=job,
        job_id=job_id, unreadable=look.unreadable, local_copies=", ".join(remaining),
        kept_trace=next((place for place in remaining if place.endswith(f"/{files.trace.name}")), ""),
    )  # fmt: skip


def places_in(output: str, stem: str) -> list[str]:
    """The places on nodes, HOST:PATH, that rank 0 and the collecting of an attempt's files name in their output.

    Only a path in the attempt's own folder on a node is believed.
    """
    folder = rf"[^\s:]+:/(?:\S.*?/)?rankwise-\d+/{re.escape(stem)}-[0-9a-f]{{8}}(?:/{re.escape(stem)}\.h5)?"
    return re.findall(rf"(?:the whole trace is kept at|kept:) ({folder})(?![^\s;,)])", output)


def _remaining_places(copies: Sequence[str]) -> list[str]:
    """The places that are named, without those on this node that are gone and folders of which a file is named."""
    here = host_path(Path("/"))
    places = [
        place
        for place in dict.fromkeys(filter(None, copies))
        if not place.startswith(here) or os.path.lexists(place[len(here) - 1 :])
    ]
    return [place for place in places if not any(other.startswith(f"{place}/") for other in places)]


def _record_of(begin: BeginRecord, files: AttemptFiles, evidence: Evidence) -> ExitRecord:
    """The record of an attempt. If its end was not observed, it is the time of its trace, else the current time."""
    outcome, sentences = decide(evidence)
    ended_unix_s = int(time.time())
    if evidence.exit_status is None and evidence.trace:
        with suppress(OSError):  # seen a moment ago: when it was written is the lesser loss
            ended_unix_s = max(begin.begin_unix_s, min(int(files.trace.stat().st_mtime), ended_unix_s))
    return ExitRecord(
        run_id=begin.run_id, attempt=begin.attempt, outcome=outcome,
        exit_status=-1 if evidence.exit_status is None else evidence.exit_status,
        job_id=begin.job_id, restart_count=begin.restart_count,
        nodelist=(evidence.job.nodelist if evidence.job else "") or begin.nodelist,
        begin_unix_s=begin.begin_unix_s, end_unix_s=ended_unix_s, evidence=sentences,
        local_copies=evidence.local_copies, begin_ms=begin.begin_ms, job_begin_ms=begin.job_begin_ms,
        clock=begin.clock,
    )  # fmt: skip


def open_attempts(traces: Path, job_id: str, before: int | None = None) -> list[BeginRecord]:
    """The attempts that began in this job and have no exit record, or a damaged one; with `before`, only those of
    earlier restarts."""
    begins = _begun(traces, lambda record: not record.exists() or is_damaged(record))
    return [each for each in begins if each.job_id == job_id and (before is None or each.restart_count < before)]


def damaged_attempts(traces: Path) -> list[BeginRecord]:
    """The attempts that have ended, but whose exit records are damaged. Their jobs need not be queried."""
    return _begun(traces, is_damaged)


def _begun(traces: Path, chosen: Callable[[Path], bool]) -> list[BeginRecord]:
    """The attempts whose exit record's path is chosen.

    Begin records that cannot be read are left out: half-written by a job that is starting now; foreign, which the
    summary names; or damaged, so that the job is not known and hpc.recovery.collect records the end.
    """
    begins = []
    for path in sorted(traces.glob(f"*{BEGIN}")):
        if chosen(exit_of(path)):
            with suppress(RecordError):
                begin = read_begin_record(path)
                if path.name == begin.files(traces).begin_record.name:
                    begins.append(begin)
    return begins


def exit_of(begin: Path) -> Path:
    """The place of the exit record of the attempt that has this begin record."""
    return begin.with_name(f"{begin.name.removesuffix(BEGIN)}{EXIT}")


def close_attempt(
    begin: BeginRecord, logs: Path, traces: Path, job: JobEnd | None, on_node: Sequence[Path] = (), *, remark: str = ""
) -> ExitRecord:
    """Decides an attempt by its files and writes its exit record; `on_node` is as in AttemptOutput, `remark` is the
    last sentence of the evidence.

    A damaged record is renamed first, which is reported on standard error. Raises OSError where the record cannot be
    written.
    """
    files = begin.files(traces)
    output = AttemptOutput(error=files.error(logs), on_node=on_node)
    evidence = read_evidence(files, output, job=job, job_id=begin.job_id)
    record = _record_of(begin, files, evidence)
    record = replace(record, evidence=(*record.evidence, *filter(None, [remark])))
    if is_damaged(files.exit_record):
        text = f"an earlier record could not be read and is kept as {set_aside(files.exit_record).name}"
        print(f"rankwise: {plain(str(files.exit_record))}: {text}", file=sys.stderr)
        record = replace(record, evidence=(*record.evidence, text))
    record.write(traces)
    with suppress(OSError):
        files.signal.unlink(missing_ok=True)  # the record has it now
    return record


def close_attempts(
    traces: Path, logs: Path, job_id: str, end: JobEnd, *, before: int | None = None, recover: Callable[[str], None],
    say: Callable[[str], None], on_node: Callable[[Path, str], Sequence[Path]] = lambda traces, stem: (),
) -> None:  # fmt: skip
    """Closes the open attempts of an ended job, or of its starts before number `before`; `say` gets each outcome.

    `recover` is called with each attempt's stem before it is judged, and makes a trace of its ranks' journals.
    `on_node` returns the folders of an attempt on this node.
    """
    for begin in open_attempts(traces, job_id, before):
        recover(begin.stem)
        try:
            record = close_attempt(begin, logs, traces, end, on_node(traces, begin.stem))
            say(f"{begin.stem}: {describe(record)}")
        except OSError as error:
            say(f"{begin.stem} cannot be closed: {error.filename or traces}: {error.strerror}")


def judge_ended(
    begin: BeginRecord, traces: Path, output: AttemptOutput, *, exit_status: int, job: JobNow | None = None,
    warning_s: float = WARNING_S, look: TraceLook | None = None,
) -> ExitRecord | None:  # fmt: skip
    """The record of an attempt whose launcher was seen to return with `exit_status`; nothing is written.

    `job` is what the scheduler says of its job, None where there is no scheduler. `look` is the trace before anything
    was recovered; without it the trace is opened, as it may be a recovered one. Returns None where a signal ended the
    job and the scheduler does not answer: the attempt is closed later, when the scheduler can be queried.
    """
    files = begin.files(traces)
    evidence = read_evidence(
        files, output, look=look if look is not None and look.whole else None,
        exit_status=exit_status, job=None if job is None else job.end, job_id=begin.job_id,
    )  # fmt: skip
    if look is not None and not evidence.trace:
        evidence = replace(evidence, unreadable=evidence.unreadable or look.unreadable)
    if evidence.ended_by is EndedBy.SIGNAL:
        if evidence.reason.startswith(f"{_RECEIVED}SIGUSR1"):
            evidence = _warned(evidence, job, warning_s)
        elif job is not None and not job.answered:
            return None
    return _record_of(begin, files, evidence)


def _warned(evidence: Evidence, job: JobNow | None, warning_s: float) -> Evidence:
    """The evidence with the reason for USR1: Slurm sends it before a preemption and before the time limit; at any other
    time a person sent it."""
    remaining_s = None if job is None or job.end_unix_s is None else job.end_unix_s - time.time()
    if evidence.job is not None and evidence.job.state == "PREEMPTED":
        ended_by, when = EndedBy.PREEMPTION, ", before the job's preemption"
    elif job is None:
        ended_by, when = EndedBy.SIGNAL, "; there is no scheduler here whose warning it could be"
    elif remaining_s is None:
        ended_by, when = (
            EndedBy.TIME_LIMIT, ", before the job's time limit (or its preemption: the scheduler did not answer)",
        )  # fmt: skip
    elif remaining_s <= warning_s + WARNING_EARLY_S:
        ended_by, when = EndedBy.TIME_LIMIT, ", before the job's time limit"
    else:
        ended_by, when = EndedBy.SIGNAL, f", {remaining_s / 60:.0f} min before the job's time limit: sent by a user"
    return replace(evidence, ended_by=ended_by, reason=evidence.reason + when)


def corrected_record(record: ExitRecord, traces: Path) -> ExitRecord | None:
    """The record corrected by a whole trace; None where no trace contradicts it.

    A look at the trace may have failed when the record was made: the trace's own content counts.
    """
    trace = record.files(traces).trace
    if record.outcome is Outcome.OK or not os.path.lexists(trace) or not look_at_trace(trace).whole:
        return None
    before = f"recorded before as {record.outcome}: {record.evidence[0] if record.evidence else 'without evidence'}"
    evidence = ("rank 0 wrote a whole trace", before, *record.evidence[1:])
    return replace(record, outcome=Outcome.OK, evidence=evidence, local_copies="")


def describe(record: ExitRecord) -> str:
    """The outcome and the sentence that decided it, as one line."""
    sentence = record.evidence[0] if record.evidence else "without evidence"
    return plain(without_secrets(f"{record.outcome}: {sentence}"))


def _hang_reason(text: str) -> str:
    """The watchdog's sentence, from its record of the hang."""
    if not text:
        return ""
    try:
        return str(parse_json(text)["text"])
    except (ValueError, KeyError, TypeError):
        return "the watchdog ended the step, and its record of why cannot be read"


def _text(path: Path) -> str:
    """The text of a small file without the zeros that a power cut leaves."""
    return _read(path, 0, _MAX_TEXT_BYTES).replace(b"\0", b"").decode(errors="replace")


def end_of_output(path: Path) -> str:
    """The last part of a file that the launcher's last start printed, each line shortened to its beginning."""
    lines = [line[:_LINE_BYTES].decode(errors="replace") for line in _read(path, ERROR_BYTES, ERROR_BYTES).splitlines()]
    starts = [number for number, line in enumerate(lines) if line.startswith(STARTED_AGAIN)]
    return "\n".join(lines[starts[-1] + 1 :] if starts else lines)


def _read(path: Path, from_end: int, max_bytes: int) -> bytes:
    """At most `max_bytes`, from the beginning or from that many bytes before the end; empty if the file cannot be
    read, which is reported on standard error unless it is absent."""
    try:
        with open_regular(path) as file:
            if from_end:
                file.seek(max(0, file.seek(0, os.SEEK_END) - from_end))
            return file.read(max_bytes)
    except FileNotFoundError:
        return b""
    except OSError as error:
        print(f"rankwise: {plain(str(path))}: cannot be read ({error.strerror})", file=sys.stderr)
        return b""
