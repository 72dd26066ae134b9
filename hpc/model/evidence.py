"""What is known of an attempt, collected from what it left beside the traces; and the exit record made of it.

launch.step judges the attempt whose launcher it saw return (`judge_ended`). What another job, or a former life of this
one, left without a record is closed by whoever finds it (`close_attempt`). docs/outcomes.md has the rules.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path

from hpc.model.outcome import (
    BEGIN,
    BEGIN_RECORD,
    EXIT,
    BeginRecord,
    ExitRecord,
    Outcome,
    RankNote,
    RecordAway,
    RecordError,
    is_damaged,
    read_begin_record,
    read_rank_note,
    set_aside,
    stem,
)
from hpc.model.trace_look import TraceLook, look_at_trace
from hpc.model.verdict import EndedBy, Evidence, JobEnd, decide
from hpc.system.sanitize import plain, without_secrets

SIGNAL = ".signal"
"""`<stem>.signal` is the note of launch.step that it was told to end: the signal's name and the time."""
KEPT = ".kept"
HANG = ".hang.json"
ERROR_BYTES = 1 << 18
_LINE_BYTES = 1 << 12
"""Of a longer line in standard error the rest is no sentence of anybody's."""
_WORD_BYTES = 1 << 16
_SIGNAL_LENGTH = 200
_FIELD = re.compile(r"(?:^|\s)(\w+)=(\S*)")
WARNING_S = 60.0
WARNING_EARLY_S = 90.0
"""Slurm sends its warning up to a minute before it was asked to (sbatch --signal); the rest is for its own delays."""
_NOT_YET = frozenset({"", "RUNNING", "COMPLETING", "PENDING", "SUSPENDED", "REQUEUED", "CONFIGURING"})


@dataclass(frozen=True, kw_only=True)
class Left:
    """What an attempt left beside the traces. `trace` and `steps` as Evidence has them, `kept` as ExitRecord has it;
    `hang` is the watchdog's reason for ending the run, `signal` which one told the job to end, and when.
    `written_unix_s` is when the trace was, by the file server; None without a trace.
    """

    notes: tuple[RankNote, ...]
    trace: bool
    steps: int
    hang: str
    signal: str
    kept: str
    unreadable: str = ""
    written_unix_s: int | None = None


def read_left(traces: Path, stem: str, look: TraceLook | None = None) -> Left:
    """Reads what the attempt left; what cannot be read counts as not left, and is said on standard error.

    `look` is for a caller who has looked at the trace already.
    """
    notes = []
    for path in sorted(traces.glob(f"{escape(stem)}.rank*.json")):
        try:
            notes.append(read_rank_note(path))
        except RecordError as error:
            print(f"rankwise: {plain(str(error))}", file=sys.stderr)
    trace = traces / f"{stem}.h5"
    if look is None:
        look = look_at_trace(trace)
    kept = [note.kept for note in notes if note.kept]
    kept += [line.removeprefix("kept:").strip() for line in _text(traces / f"{stem}{KEPT}").splitlines()]
    return Left(
        notes=tuple(notes),
        trace=look.whole,
        unreadable=look.unreadable,
        steps=max([look.steps, *(note.step + 1 for note in notes)]),
        hang=_why_hung(_text(traces / f"{stem}{HANG}")),
        signal="".join(_text(traces / f"{stem}{SIGNAL}").strip().splitlines()[:1])[:_SIGNAL_LENGTH],
        kept=", ".join(filter(None, dict.fromkeys(kept))),
        written_unix_s=_written_unix_s(trace) if look.whole else None,
    )


def _written_unix_s(trace: Path) -> int | None:
    try:
        return int(trace.stat().st_mtime)
    except OSError:  # seen a moment ago: when it was written is the lesser loss
        return None


def evidence_of(left: Left, error: Path, *, exit_status: int | None = None, job: JobEnd | None = None) -> Evidence:
    """The evidence of an attempt whose step wrote its standard error to `error`; `job` as Evidence has it."""
    ended_by, said = None, ""
    if left.hang:
        ended_by, said = EndedBy.HANG, left.hang
    elif left.signal:
        ended_by, said = EndedBy.SIGNAL, f"the job was told to end by {left.signal}"
    return Evidence(
        exit_status=exit_status, trace=left.trace, steps=left.steps, ended_by=ended_by, said=said, notes=left.notes,
        error=_end_of(error), job=job, unreadable=left.unreadable,
    )  # fmt: skip


def record_of(begin: BeginRecord, left: Left, evidence: Evidence, nodelist: str = "") -> ExitRecord:
    """The exit record that the evidence makes; where nobody saw the attempt end, it did when its trace was written,
    else nobody knows better than now."""
    verdict = decide(evidence)
    ended_unix_s = int(time.time())
    if evidence.exit_status is None and left.trace and left.written_unix_s is not None:
        ended_unix_s = max(begin.begin_unix_s, min(left.written_unix_s, ended_unix_s))
    return ExitRecord(
        run_id=begin.run_id, attempt=begin.attempt, outcome=verdict.outcome,
        exit_status=-1 if evidence.exit_status is None else evidence.exit_status,
        job_id=begin.job_id, restart_count=begin.restart_count, nodelist=nodelist or begin.nodelist,
        begin_unix_s=begin.begin_unix_s, end_unix_s=ended_unix_s, evidence=verdict.evidence, kept=left.kept,
    )  # fmt: skip


def job_end(text: str, restarts: int) -> JobEnd | None:
    """How a job ends, from `scontrol -o show job`, asked from inside it in its life number `restarts`.

    While a job is on its way out Slurm calls it COMPLETING and nothing else; that it will come back shows in its
    restarts, that it is preempted in its PreemptTime. None where the text tells neither.
    """
    fields = dict(_FIELD.findall(text))
    word = fields.get("JobState", "")
    restarted = fields.get("Restarts", "0")
    started_again = int(restarted) if restarted.isdecimal() else 0
    preempted = fields.get("PreemptTime", "None") != "None"
    if word in _NOT_YET:
        word = "PREEMPTED" if preempted else ""
    if not word and started_again <= restarts:
        return None
    return JobEnd(
        word=word, source="scontrol show job", reason=fields.get("Reason", ""), restarts=started_again,
        requeued=started_again > restarts,
    )  # fmt: skip


def open_attempts(traces: Path, job_id: str, before: int | None = None) -> list[BeginRecord]:
    """The attempts that began in this job, in a life before number `before` if that is given, and have no record, or a
    damaged one."""
    found = []
    for path in sorted(traces.glob(f"*{BEGIN}")):
        record = exit_of(path)
        if record.exists() and not is_damaged(record):
            continue
        with suppress(RecordError):  # half-written by a job that is starting now, or foreign: the summary names it
            begin = read_begin_record(path)
            is_its_own = path.name == f"{stem(begin.run_id, begin.attempt)}{BEGIN}"
            if is_its_own and begin.job_id == job_id and (before is None or begin.restart_count < before):
                found.append(begin)
    return found


def damaged_attempts(traces: Path) -> list[BeginRecord]:
    """The attempts that have ended, and of which that cannot be read: their exit records are damaged, or the begin
    records and rank 0 wrote a whole trace. Their jobs need not be asked.

    Where the begin record is damaged, its job is unknown and it began when that was written.
    """
    found = []
    for path in sorted(traces.glob(f"*{BEGIN}")):
        named, record = BEGIN_RECORD.fullmatch(path.name), exit_of(path)
        damaged = is_damaged(record)
        if named is None or not (damaged or not record.exists()):
            continue
        try:
            begin = read_begin_record(path)
        except RecordAway:
            continue
        except RecordError:
            trace = path.with_name(f"{named['run_id']}.{named['attempt']}.h5")
            if not damaged and not look_at_trace(trace).whole:
                continue
            begun_unix_s = int(path.lstat().st_mtime)
            begin = BeginRecord(
                run_id=named["run_id"], attempt=int(named["attempt"]), job_id="", begin_unix_s=begun_unix_s
            )
            found.append(begin)
        else:
            if damaged and path.name == f"{stem(begin.run_id, begin.attempt)}{BEGIN}":
                found.append(begin)
    return found


def exit_of(begin: Path) -> Path:
    """The place of the exit record of the attempt that has this begin record."""
    return begin.with_name(f"{begin.name.removesuffix(BEGIN)}{EXIT}")


def close_attempt(begin: BeginRecord, logs: Path, traces: Path, job: JobEnd | None) -> ExitRecord:
    """Judges an attempt by what it left and writes its record; a damaged one that is there gets another name, which is
    said on standard error.

    Raises OSError where it cannot be written.
    """
    name = stem(begin.run_id, begin.attempt)
    left = read_left(traces, name)
    evidence = replace(evidence_of(left, logs / f"{name}.err", job=job), job_id=begin.job_id)
    record = record_of(begin, left, evidence, nodelist=job.nodelist if job is not None else "")
    path = traces / f"{name}{EXIT}"
    if is_damaged(path):
        said = f"an earlier record could not be read and is kept as {set_aside(path).name}"
        print(f"rankwise: {plain(str(path))}: {said}", file=sys.stderr)
        record = replace(record, evidence=(*record.evidence, said))
    record.write(traces)
    with suppress(OSError):
        (traces / f"{name}{SIGNAL}").unlink(missing_ok=True)  # the record has it now
    return record


def close_attempts(
    traces: Path, logs: Path, job_id: str, end: JobEnd, *, before: int | None = None, recover: Callable[[str], None],
    say: Callable[[str], None],
) -> None:  # fmt: skip
    """Closes what a job that has ended left open, or its lives before number `before`; `say` is told each outcome.

    `recover` is told each attempt's stem before it is judged, and makes a trace of what its ranks left.
    """
    for begin in open_attempts(traces, job_id, before):
        name = stem(begin.run_id, begin.attempt)
        recover(name)
        try:
            record = close_attempt(begin, logs, traces, end)
        except OSError as error:
            say(f"{name} cannot be closed: {error.filename or traces}: {error.strerror}")
        else:
            say(f"{name}: {describe(record)}")


def judge_ended(
    begin: BeginRecord, traces: Path, error: Path, *, exit_status: int, job_text: str | None = None,
    end_unix_s: int | None = None, warning_s: float = WARNING_S, look: TraceLook | None = None,
) -> ExitRecord | None:  # fmt: skip
    """The record of an attempt whose launcher was seen to return with `exit_status`; nothing is written.

    `error` is the launcher's standard error. `job_text` is what `scontrol -o show job` prints of the job: empty where
    it does not answer, None where there is no scheduler. `end_unix_s` is when the job's time limit ends it, where that
    is known otherwise. None where the job was told to end and the scheduler does not say why: whoever can ask it later
    closes the attempt. `look` is what was seen of the trace before anything was recovered: a trace that is there now
    may be a recovered one, and is opened to see.
    """
    name = stem(begin.run_id, begin.attempt)
    left = read_left(traces, name, look if look is not None and look.whole else None)
    if look is not None and not left.trace:
        left = replace(left, unreadable=left.unreadable or look.unreadable)
    job = job_end(job_text or "", begin.restart_count)
    evidence = replace(evidence_of(left, error, exit_status=exit_status, job=job), job_id=begin.job_id)
    if evidence.ended_by is EndedBy.SIGNAL:
        if left.signal.startswith("SIGUSR1"):
            evidence = _warned(evidence, job_text, end_unix_s, warning_s)
        elif job_text == "":
            return None
    return record_of(begin, left, evidence)


def _warned(evidence: Evidence, job_text: str | None, end_unix_s: int | None, warning_s: float) -> Evidence:
    """Why the job was sent USR1: Slurm warns before a preemption and before the time limit; else somebody sent it."""
    if evidence.job is not None and evidence.job.word == "PREEMPTED":
        return replace(evidence, ended_by=EndedBy.PREEMPTION, said=f"{evidence.said}, before the job's preemption")
    if job_text is None:
        return replace(evidence, said=f"{evidence.said}; there is no scheduler here whose warning it could be")
    end_unix_s = _end_time(job_text) or end_unix_s
    if end_unix_s is None:
        said = f"{evidence.said}, before the job's time limit (or its preemption: scontrol did not answer)"
        return replace(evidence, ended_by=EndedBy.TIME_LIMIT, said=said)
    remaining_s = end_unix_s - time.time()
    if remaining_s <= warning_s + WARNING_EARLY_S:
        return replace(evidence, ended_by=EndedBy.TIME_LIMIT, said=f"{evidence.said}, before the job's time limit")
    said = f"{evidence.said}, {remaining_s / 60:.0f} min before the job's time limit: somebody sent it"
    return replace(evidence, said=said)


def _end_time(job_text: str) -> int | None:
    """When the job's time limit ends it, as Unix seconds, from `scontrol -o show job`; None where that does not say."""
    text = dict(_FIELD.findall(job_text)).get("EndTime", "")
    try:
        return int(time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))
    except (ValueError, OverflowError):
        return None


def corrected_record(record: ExitRecord, traces: Path) -> ExitRecord | None:
    """The record that a whole trace makes of one that says otherwise; None where no trace contradicts it.

    A look at the trace may have failed when the record was made: what the trace says of itself counts.
    """
    trace = traces / f"{stem(record.run_id, record.attempt)}.h5"
    if record.outcome is Outcome.OK or not os.path.lexists(trace) or not look_at_trace(trace).whole:
        return None
    before = f"recorded before as {record.outcome}: {record.evidence[0] if record.evidence else 'without evidence'}"
    return replace(record, outcome=Outcome.OK, evidence=("rank 0 wrote a whole trace", before, *record.evidence[1:]))


def describe(record: ExitRecord) -> str:
    """The outcome and the sentence that decided it, as one line."""
    sentence = record.evidence[0] if record.evidence else "without evidence"
    return plain(without_secrets(f"{record.outcome}: {sentence}"))


def _why_hung(text: str) -> str:
    """The watchdog's sentence, from its record of the hang."""
    if not text:
        return ""
    try:
        return str(json.loads(text)["text"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "the watchdog ended the step, and its record of why cannot be read"


def _text(path: Path) -> str:
    """What a small file says, without the zeros that a power cut leaves; what cannot be read is said."""
    try:
        with path.open("rb") as file:
            return file.read(_WORD_BYTES).replace(b"\0", b"").decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        print(f"rankwise: {plain(str(path))}: cannot be read ({error.strerror})", file=sys.stderr)
        return ""


def _end_of(path: Path) -> str:
    """The last part of a file, of each line its beginning; empty where there is none. What cannot be read is said."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - ERROR_BYTES))
            lines = file.read(ERROR_BYTES).splitlines()
    except FileNotFoundError:
        return ""
    except OSError as error:
        print(f"rankwise: {plain(str(path))}: cannot be read ({error.strerror})", file=sys.stderr)
        return ""
    return "\n".join(line[:_LINE_BYTES].decode(errors="replace") for line in lines)
