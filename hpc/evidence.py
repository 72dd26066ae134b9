"""What is known of an attempt, collected from what it left beside the traces; and the exit record made of it.

`python -m hpc.evidence decide` is what the job script calls after each launcher has returned, `close` what it calls for
attempts that another job, or its own former life before it was requeued, left without a record. Nobody else has to:
hpc.sweep closes what jobs left open. docs/outcomes.md has the rules.

Exit status 0: recorded, or nothing to record; 1: the record could not be written; 2: usage; 3: nothing was written,
since the script was told to end and the scheduler does not say why.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path

from hpc.outcome import (
    BEGIN,
    BEGIN_RECORD,
    EXIT,
    BeginRecord,
    ExitRecord,
    RankNote,
    RecordAway,
    RecordError,
    is_damaged,
    read_begin_record,
    read_rank_note,
    set_aside,
    stem,
)
from hpc.outside import deny_world_writing, plain, without_secrets
from hpc.verdict import EndedBy, Evidence, JobEnd, decide

SIGNAL = ".signal"
"""`<stem>.signal` is the script's note that it was told to end: the signal's name and the time."""
KEPT = ".kept"
HANG = ".hang.json"
ERROR_BYTES = 1 << 18
_LINE_BYTES = 1 << 12
"""Of a longer line in standard error the rest is no sentence of anybody's."""
_WORD_BYTES = 1 << 16
_SIGNAL_LENGTH = 200
_FIELD = re.compile(r"(?:^|\s)(\w+)=(\S*)")
_NOT_YET = frozenset({"", "RUNNING", "COMPLETING", "PENDING", "SUSPENDED", "REQUEUED", "CONFIGURING"})


@dataclass(frozen=True, kw_only=True)
class Left:
    """What an attempt left beside the traces. `trace` and `steps` as Evidence has them, `kept` as ExitRecord has it;
    `hang` is the watchdog's reason for ending the run, `signal` which one told the script to end, and when.
    `written_unix_s` is when the trace was, by the file server; None without a trace.
    """

    notes: tuple[RankNote, ...]
    trace: bool
    steps: int
    hang: str
    signal: str
    kept: str
    written_unix_s: int | None = None


def read_left(traces: Path, stem: str, whole: bool | None = None) -> Left:
    """Reads what the attempt left; what cannot be read counts as not left, and is said on standard error.

    `whole` is for who knows whether the trace there was written by rank 0 itself; else it is opened to see.
    """
    notes = []
    for path in sorted(traces.glob(f"{escape(stem)}.rank*.json")):
        try:
            notes.append(read_rank_note(path))
        except RecordError as error:
            print(f"rankwise: {plain(str(error))}", file=sys.stderr)
    trace = traces / f"{stem}.h5"
    found, steps = (True, -1) if whole else _look_at_trace(trace)
    kept = [note.kept for note in notes if note.kept]
    kept += [line.removeprefix("kept:").strip() for line in _text(traces / f"{stem}{KEPT}").splitlines()]
    return Left(
        notes=tuple(notes),
        trace=found if whole is None else whole,
        steps=max([steps, *(note.step + 1 for note in notes)]),
        hang=_why_hung(_text(traces / f"{stem}{HANG}")),
        signal="".join(_text(traces / f"{stem}{SIGNAL}").strip().splitlines()[:1])[:_SIGNAL_LENGTH],
        kept=", ".join(filter(None, dict.fromkeys(kept))),
        written_unix_s=int(trace.stat().st_mtime) if found else None,
    )


def evidence_of(left: Left, error: Path, *, exit_status: int | None = None, job: JobEnd | None = None) -> Evidence:
    """The evidence of an attempt whose step wrote its standard error to `error`; `job` as Evidence has it."""
    ended_by, said = None, ""
    if left.hang:
        ended_by, said = EndedBy.HANG, left.hang
    elif left.signal:
        ended_by, said = EndedBy.SIGNAL, f"the job script was told to end by {left.signal}"
    return Evidence(
        exit_status=exit_status, trace=left.trace, steps=left.steps, ended_by=ended_by, said=said, notes=left.notes,
        error=_end_of(error), job=job,
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
    """How a job ends, from `scontrol -o show job`, asked by its own script in its life number `restarts`.

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
            if not damaged and not _look_at_trace(path.with_name(f"{named['run_id']}.{named['attempt']}.h5"))[0]:
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
    evidence = evidence_of(left, logs / f"{name}.err", job=job)
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


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of `python -m hpc.evidence`."""
    deny_world_writing()
    asked = _arguments(argv)
    return {"decide": _decide, "list": _list, "close": _close}[asked.action](asked)


def _decide(asked: argparse.Namespace) -> int:
    """Writes the record of an attempt that this job's script saw end, and prints what became of it in one line.

    Where the script was told to end and the scheduler does not say why, it writes and prints nothing and ends with 3:
    whoever can ask the scheduler later closes the attempt.
    """
    found = BEGIN_RECORD.fullmatch(f"{asked.stem}.begin.json")
    if found is None:
        print(f"{plain(asked.stem)}: not <run id>.<attempt>", file=sys.stderr)
        return 2
    # Beside a step that failed there may be one that somebody had recovered while it still ran.
    own = asked.exit_status == 0 or not _is_recovered(asked.traces / f"{asked.stem}.h5")
    left = read_left(asked.traces, asked.stem, asked.trace == "yes" and own)
    job = job_end(asked.job_text or "", asked.restarts)
    evidence = evidence_of(left, asked.error, exit_status=asked.exit_status, job=job)
    if left.signal.startswith("SIGUSR1") and evidence.ended_by is EndedBy.SIGNAL:
        evidence = _warned(evidence, asked.job_text)
    elif evidence.ended_by is EndedBy.SIGNAL and asked.job_text == "":
        return 3
    begin = BeginRecord(
        run_id=found["run_id"], attempt=int(found["attempt"]), job_id=asked.job_id, begin_unix_s=asked.begin_unix_s,
        restart_count=asked.restarts, nodelist=asked.nodelist,
    )  # fmt: skip
    try:
        record = record_of(begin, left, evidence)
        record.write(asked.traces)
        (asked.traces / f"{asked.stem}{SIGNAL}").unlink(missing_ok=True)  # the record has it now
    except OSError as error:
        print(f"rankwise: {plain(str(error))}", file=sys.stderr)
        return 1
    print(_in_words(record))
    return 0


def _warned(evidence: Evidence, job_text: str | None) -> Evidence:
    """Slurm's warning comes before a time limit and before a preemption; which of them, the job's PreemptTime tells."""
    if evidence.job is not None and evidence.job.word == "PREEMPTED":
        return replace(evidence, ended_by=EndedBy.PREEMPTION, said=f"{evidence.said}, before the job's preemption")
    unsure = " (or its preemption: scontrol did not answer)" if job_text == "" else ""
    return replace(evidence, ended_by=EndedBy.TIME_LIMIT, said=f"{evidence.said}, before the job's time limit{unsure}")


def _list(asked: argparse.Namespace) -> int:
    """Prints the stems of the attempts that a job left open: what is left of them is brought before they are judged."""
    for begin in open_attempts(asked.traces, asked.job_id, asked.restarts):
        print(stem(begin.run_id, begin.attempt))
    return 0


def _close(asked: argparse.Namespace) -> int:
    """Writes the records of attempts that a job left open; prints their stems, and what became of them behind."""
    if asked.restarts is not None:
        job: JobEnd | None = JobEnd(word="", source="SLURM_RESTART_COUNT", restarts=asked.restarts, requeued=True)
    else:
        job = job_end(asked.job_text or "", sys.maxsize) or JobEnd(word="", source="squeue and scontrol")
    failed = 0
    for begin in open_attempts(asked.traces, asked.job_id, asked.restarts):
        name = stem(begin.run_id, begin.attempt)
        try:
            record = close_attempt(begin, asked.logs, asked.traces, job)
        except OSError as error:
            print(f"rankwise: {plain(str(error))}", file=sys.stderr)
            failed = 1
        else:
            print(name, _in_words(record))
    return failed


def _in_words(record: ExitRecord) -> str:
    return plain(without_secrets(f"{record.outcome}: {record.evidence[0]}"))


def _look_at_trace(path: Path) -> tuple[bool, int]:
    """Whether a trace is there that rank 0 wrote itself, and the most steps that a rank completed by it, else -1."""
    if not path.exists():
        return False, -1
    from hpc.trace import TraceError
    from hpc.trace_file import open_trace

    try:
        with open_trace(path) as trace:
            return not trace.recovered, int(max(trace.steps_completed, default=-1))
    except TraceError as error:
        print(f"rankwise: {plain(str(error))}", file=sys.stderr)
        return False, -1


def _is_recovered(path: Path) -> bool:
    """Whether a trace is there that was made of what ranks had left by then."""
    if not path.exists():
        return False
    from hpc.trace import TraceError
    from hpc.trace_file import open_trace

    try:
        with open_trace(path) as trace:
            return trace.recovered
    except TraceError:
        return False


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


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m hpc.evidence", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True)
    deciding = actions.add_parser("decide", help="the attempt whose launcher has returned")
    listing = actions.add_parser("list", help="which attempts `close` would close, one in a line")
    closing = actions.add_parser("close", help="what another job, or a former life of this one, left without a record")
    for action in (deciding, listing, closing):
        action.add_argument("--traces", type=Path, required=True, metavar="DIR", help="folder of traces and records")
        action.add_argument("--job-id", required=True, metavar="ID", help="the job in which the attempt began")
        action.add_argument("--job-text", metavar="TEXT", help="scontrol -o show job; empty: it did not answer")
    deciding.add_argument("--stem", required=True, help="<run id>.<attempt>")
    deciding.add_argument("--exit-status", type=int, required=True, metavar="N", help="the launcher's")
    deciding.add_argument("--trace", choices=("yes", "no"), required=True, help="whether rank 0 wrote one itself")
    deciding.add_argument("--error", type=Path, required=True, metavar="FILE", help="standard error of the step")
    deciding.add_argument("--restarts", type=int, default=0, metavar="N", help="how often the job was started before")
    deciding.add_argument("--nodelist", default="", metavar="NODES", help="where the attempt ran")
    deciding.add_argument("--begin-unix-s", type=int, required=True, metavar="S", help="when it began")
    closing.add_argument("--logs", type=Path, required=True, metavar="DIR", help="folder of what the steps printed")
    for action in (listing, closing):
        action.add_argument("--restarts", type=int, metavar="N", help="of what began in lives of the job before this")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
