"""Decides the outcome of an attempt from its evidence, by rules in order, with a sentence for each."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from hpc.model.outcome import Outcome, RankNote


class EndedBy(StrEnum):
    """Why launch.step ended the launcher, or was ended itself before the launcher returned."""

    TIME_LIMIT = "time limit"
    PREEMPTION = "preemption"
    HANG = "hang"
    SIGNAL = "signal"
    REQUEUE = "requeue"


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """The end of a job, from the scheduler.

    `state` is Slurm's own (`NODE_FAIL`), empty if every command that answered has forgotten the job; `source` is the
    command that gave the state. `requeued`: by the cluster's settings the job goes back to the queue.
    `name` and `partition` are the job's, empty if unknown.
    """

    state: str
    source: str
    name: str = ""
    partition: str = ""
    reason: str = ""
    nodelist: str = ""
    restarts: int = 0
    requeued: bool = False


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The evidence on an attempt that has ended.

    `exit_status` is the launcher's, None if its return was not observed. `trace`: rank 0 wrote a whole trace.
    `steps` is the most steps that any rank is known to have completed, -1 if unknown. `error` is the end of
    the step's standard error. `job` is None if the scheduler was not queried or did not answer; `job_id` is the number
    that Slurm's own messages in standard error must name to be believed. `unreadable` is the reason why the presence of
    a trace could not be determined. `kept_trace` is the place, HOST:PATH, of a whole trace that rank 0 could not write
    to the traces, empty without one; `local_copies` is as in ExitRecord.
    """

    exit_status: int | None
    trace: bool
    steps: int = -1
    ended_by: EndedBy | None = None
    reason: str = ""
    notes: Sequence[RankNote] = ()
    error: str = ""
    job: JobEnd | None = None
    job_id: str = ""
    unreadable: str = ""
    kept_trace: str = ""
    local_copies: str = ""


Decided = tuple[Outcome, str]
"""An outcome, and the sentence that it was decided from."""

# Slurm's states of an ended job that override the notes of its ranks.
_OUTSIDE = {
    "TIMEOUT": Outcome.TIMEOUT, "DEADLINE": Outcome.TIMEOUT, "PREEMPTED": Outcome.PREEMPTED,
    "NODE_FAIL": Outcome.NODE_FAIL, "BOOT_FAIL": Outcome.NODE_FAIL, "OUT_OF_MEMORY": Outcome.OOM,
    "CANCELLED": Outcome.CANCELLED, "REVOKED": Outcome.CANCELLED,
}  # fmt: skip
# slurmstepd writes it when the scheduler ends the job: "*** STEP 7.0 ON node1 CANCELLED AT … DUE TO NODE FAILURE, …".
# A program can print the same: the number of the job has to be this one's.
_ENDED_BY_SCHEDULER = re.compile(
    r"\*\*\* (?:JOB|STEP) (?P<job>\d+)\S* ON \S+ CANCELLED AT \S+ "
    r"DUE TO (?P<reason>TIME LIMIT|PREEMPTION|NODE FAILURE|JOB REQUEUE)"
)
_REASONS = {
    "TIME LIMIT": Outcome.TIMEOUT, "PREEMPTION": Outcome.PREEMPTED, "NODE FAILURE": Outcome.NODE_FAIL,
    "JOB REQUEUE": Outcome.PREEMPTED,
}  # fmt: skip
_NODE_GONE = re.compile(
    r"srun: error: Node failure on \S+|Task launch for StepId=\S+ failed on node \S+: Communication connection failure"
    r"|An ORTE daemon has unexpectedly failed|PRTE has lost communication with a remote daemon"
)  # fmt: skip
# Slurm's messages about a step that was killed for its memory, and those of programs, which need not die of it.
_MEMORY_KILL = re.compile(r"exceeded memory limit|\boom[-_]kill", re.IGNORECASE)
_MEMORY = re.compile(r"out of memory|cannot allocate memory", re.IGNORECASE)
GROUP_KILLS = "processes of this node's control group that the kernel killed"
"""What a job writes of kills for memory in its control group, which others may share."""
_HARMLESS = re.compile(r"not a failure")  # TensorFlow's allocator requests too much memory, and goes on without it
# Messages about a rank that did not start or died: of srun, Open MPI's mpirun, MPICH's, any process.
_DEATHS = (
    re.compile(
        r"srun: error: (?P<launch>.*\blaunch\b.* failed\b.*|Unable to (?:confirm allocation|create step) for job.*)"
    ),
    re.compile(r"Watchdog caught (?P<nccl>collective operation timeout.*)"),
    re.compile(
        r"srun: error: (?P<node>\S+): tasks? (?P<ranks>[\d,\[\]-]+): "
        r"(?P<how>Killed|Bus error|Segmentation fault|Aborted|Floating point exception|Illegal instruction)"
    ),
    re.compile(
        r"(?:mpirun|mpiexec|prterun) noticed that process rank (?P<ranks>\d+) with PID \d+ on node (?P<node>\S+)\s+"
        r"exited\s+on\s+(?P<how>signal \d+ \([^)]*\))"
    ),
    re.compile(r"RANK (?P<ranks>\d+) PID \d+ RUNNING AT (?P<node>\S+)[^K]{0,40}KILLED BY (?P<how>SIGNAL: [^\n]*)"),
    re.compile(r"(?P<how>\bBus error\b)"),
)
# Messages about ranks that ended by themselves with a status: of srun, Open MPI's mpirun.
_EXITS = (
    re.compile(r"srun: error: (?P<node>\S+): tasks? (?P<ranks>[\d,\[\]-]+): Exited with exit code (?P<code>\d+)"),
    re.compile(r"Process name: \[[^\n]*,\s?(?P<ranks>\d+)\]\s+Exit code:\s+(?P<code>\d+)"),
)
# Messages of an MPI, and of Slurm, for ranks that the site's `mpi` cannot bring together; what follows them is long.
_WRONG_MPI = re.compile(
    r"OMPI was not built with SLURM(?:'s PMI)? support|PMI2_Init failed to intialize|Invalid MPI type '[^'\n]*'"
)
# The words of C++ before it aborts a process, which says no more by its signal.
_ABORT = re.compile(r"terminate called [^\n]*(?:\n[\d:\s]*what\(\): [^\n]*)?")
_ABORTED = re.compile(r"\bSIGABRT\b|\bAborted\b|signal:? 6\b", re.IGNORECASE)
_KILLED = re.compile(r"\bSIGKILL\b|\bKilled\b|signal:? 9\b", re.IGNORECASE)
WHO_KILLS = ", as the kernel's OOM killer does: see dmesg, or the job's memory"
_OF_LAUNCHER = re.compile(r"(?:srun|slurmstepd\S*|mpirun|mpiexec|prterun): ")
# A rank's messages when another one is gone: it is not the cause.
_PEER = re.compile(
    r"connection (?:was )?(?:reset|closed|refused|aborted|lost|broken)|closed by (?:remote )?peer|broken pipe"
    r"|socket closed|remote (?:process|peer)|ncclRemoteError|MPI_ERR_PROC_FAILED|peer .*(?:died|gone|exited|fail)"
    r"|has been shut ?down|worker .* (?:died|disconnected)|collective operation timeout",
    re.IGNORECASE,
)
_PEER_ERRORS = frozenset(
    {"BrokenPipeError", "ConnectionResetError", "ConnectionRefusedError", "ConnectionAbortedError"}
)
_SEVERITY = (Outcome.INVALID, Outcome.OOM)
RANK_STATUSES = frozenset({1, 3, 4, 5})
"""Exit statuses of our ranks: hpc.run.rank_state.EXIT_STATUS."""


def decide(evidence: Evidence) -> tuple[Outcome, tuple[str, ...]]:
    """The outcome of an attempt, and the sentences that it was decided from: that of the first rule that decides, then
    those of the others.

    The rules are those of docs/outcomes.md: a whole trace; one that is kept on a node; the reason why the step was
    ended; notes and messages with a cause of the run's own; an end by the scheduler; failed ranks; the scheduler's
    state; the number of steps.
    """
    if finished := _finished(evidence):
        return finished[0], (finished[1],)
    decisions = [decided for rule in _RULES if (decided := rule(evidence)) is not None] or [_otherwise(evidence)]
    sentences = [sentence for _, sentence in decisions]
    if (returned := _returned(evidence)) and returned not in sentences[0]:
        sentences.append(returned)
    return decisions[0][0], tuple(dict.fromkeys(sentences))


def is_secondary(note: RankNote) -> bool:
    """Whether a rank failed only because another one was gone."""
    return note.exception in _PEER_ERRORS or bool(_PEER.search(note.message))


def _finished(evidence: Evidence) -> Decided | None:
    if not evidence.trace:
        return None
    if evidence.exit_status == 0:
        end = "the launcher ended with exit status 0"
    elif evidence.ended_by is not None:
        end = f"only then the step was ended: {evidence.reason or evidence.ended_by}"
    elif evidence.exit_status is None:
        end = "no exit status of the launcher was recorded"
    else:
        end = f"only then {_returned(evidence)}"
    return Outcome.OK, f"rank 0 wrote a whole trace; {end}"


def _trace_kept(evidence: Evidence) -> Decided | None:
    """A run that was measured to its end, whose trace is still on a node: it is not measured again unless requested."""
    if not evidence.kept_trace:
        return None
    note = _first(note for note in evidence.notes if note.local_copies)
    return Outcome.RANK_FAIL, (
        _describe(note) if note else f"rank 0 could not write its whole trace, which is kept at {evidence.kept_trace}"
    )


def _ended(evidence: Evidence) -> Decided | None:
    match evidence.ended_by:
        case EndedBy.TIME_LIMIT:
            return Outcome.TIMEOUT, evidence.reason or "the step was ended because the job's time limit was near"
        case EndedBy.PREEMPTION:
            return Outcome.PREEMPTED, evidence.reason or "the step was ended because the job was about to be preempted"
        case EndedBy.HANG:
            return _died(evidence), evidence.reason or "the step was ended because no rank made a step"
    return None


def _run_cause(evidence: Evidence) -> Decided | None:
    """A cause in the run itself, which decides even where the scheduler ended the job at the same time."""
    for outcome in _SEVERITY:
        if note := _first(note for note in evidence.notes if note.outcome is outcome):
            return outcome, _describe(note)
    # A rank with a note of another outcome went on after it ran out of memory, or its note would give that outcome.
    patterns = (_MEMORY_KILL,) if any(not is_secondary(note) for note in evidence.notes) else (_MEMORY_KILL, _MEMORY)
    for line in evidence.error.splitlines():
        if any(pattern.search(line) for pattern in patterns) and not (_HARMLESS.search(line) or GROUP_KILLS in line):
            return Outcome.OOM, f"standard error: {_short(line)}"
    return None


def _ended_by_scheduler(evidence: Evidence) -> Decided | None:
    job = evidence.job
    if job is not None and job.state in _OUTSIDE:
        back = ", and the job went back to the queue" if job.requeued else ""
        reason = f" ({job.reason})" if job.reason not in ("", "None") else ""
        return _OUTSIDE[job.state], f"{job.source}: {job.state}{reason}{back}"
    messages = _ENDED_BY_SCHEDULER.finditer(evidence.error)
    if reasons := [message["reason"] for message in messages if message["job"] == evidence.job_id]:
        return _REASONS[reasons[-1]], f"standard error: the job was taken away due to {reasons[-1].lower()}"
    if gone := _NODE_GONE.search(evidence.error):
        return Outcome.NODE_FAIL, f"standard error: {_short(gone[0])}"
    if evidence.ended_by is EndedBy.REQUEUE or (job is not None and job.requeued):
        if evidence.ended_by is EndedBy.SIGNAL:
            return Outcome.PREEMPTED, f"{evidence.reason or 'a signal ended the job'}; the job went back to the queue"
        return Outcome.NODE_FAIL, evidence.reason or (
            "the job was started again, and the earlier start left no record: its node or its script was lost"
        )
    return None


def _stopped(evidence: Evidence) -> Decided | None:
    forgotten = evidence.job is not None and not evidence.job.state
    if evidence.ended_by is not EndedBy.SIGNAL or forgotten:
        return None
    return Outcome.CANCELLED, evidence.reason or "a signal ended the job"


def _group_killed(evidence: Evidence) -> Decided | None:
    """A kill for memory in the job's control group. Others may share it: the end of a job is not explained by it."""
    lines = [line for line in evidence.error.splitlines() if GROUP_KILLS in line]
    if not lines or any(not is_secondary(note) for note in evidence.notes):
        return None
    return Outcome.OOM, f"standard error: {_short(lines[0])}"


def _not_brought_together(evidence: Evidence) -> Decided | None:
    """Ranks that MPI could not connect. Each may end with any status, and says so many lines after the cause."""
    message = _WRONG_MPI.search(evidence.error)
    if message is None or evidence.steps > 0 or any(not is_secondary(note) for note in evidence.notes):
        return None
    return Outcome.LAUNCH_FAIL, (
        f"standard error: {message[0]}: the site's `mpi` does not fit; "
        "`rankwise doctor --site SITE` names one that does"
    )


def _exited(evidence: Evidence) -> Decided | None:
    """A rank that ended with its own exit status and left no note, as by `os._exit(7)`.

    A status in RANK_STATUSES proves nothing by itself: a rank that writes a note aborts all ranks with that status.
    """
    noted = {note.rank for note in evidence.notes}
    for message in chain.from_iterable(pattern.finditer(evidence.error) for pattern in _EXITS):
        ranks, code = _ranks_in(message["ranks"]), int(message["code"])
        if evidence.ended_by is not None or noted & ranks or (code in RANK_STATUSES and evidence.notes):
            continue
        node = message.groupdict().get("node")
        who = f"rank{'s' if len(ranks) > 1 else ''} {message['ranks']}{f' on {node}' if node else ''}"
        quoted = _error_ending(_without_launcher(evidence.error))
        return _died(evidence), f"standard error: {who} exited with status {code} and left no note{quoted}"
    return None


def _ranks_in(text: str) -> set[int]:
    """The ranks in srun's list: `3`, `0-2,5`, `[0-2,5]`."""
    parts = (part.partition("-") for part in text.strip("[]").split(","))
    numbers = ((first, last or first) for first, _, last in parts if first.isdigit() and (last or first).isdigit())
    return {rank for first, last in numbers for rank in range(int(first), int(last) + 1)}


def _failed(evidence: Evidence) -> Decided | None:
    """A rank that failed by itself: from its note, else from its death in standard error."""
    if note := _first(note for note in evidence.notes if not is_secondary(note) and note.outcome not in _SEVERITY):
        return note.outcome, f"{_describe(note)}{_abort_in(evidence.error) if _ABORTED.search(note.message) else ''}"
    if evidence.ended_by is not None:
        return None  # the ranks died of that
    for fields in (death.groupdict() for pattern in _DEATHS if (death := pattern.search(evidence.error))):
        # If the launcher's return was not observed, ranks were usually killed with their job.
        if evidence.exit_status is not None or fields.get("how") != "Killed":
            how = fields.get("how") or ""
            quoted = _abort_in(evidence.error) if _ABORTED.search(how) else WHO_KILLS if _KILLED.search(how) else ""
            return _died(evidence), f"standard error: {_describe_death(fields)}{quoted}"
    return None


def _secondary(evidence: Evidence) -> Decided | None:
    """A rank that lost another rank, for an unknown cause."""
    note = _first(note for note in evidence.notes if is_secondary(note))
    return None if note is None else (note.outcome, f"{_describe(note)}; the rank it lost left no note")


def _otherwise(evidence: Evidence) -> Decided:
    """The outcome where no rule decides: by the steps made where the launcher returned, else LOST."""
    if evidence.unreadable:
        return Outcome.LOST, f"whether there is a trace could not be seen: {evidence.unreadable}"
    if evidence.exit_status is not None:
        made = "no step was made" if evidence.steps < 1 else f"up to {evidence.steps} steps were made"
        return _died(evidence), f"{_returned(evidence)}; {made}, and no rank left a note{_error_ending(evidence.error)}"
    job = evidence.job
    if job is None:
        scheduler = "the scheduler was not queried or did not answer"
    elif not job.state:
        scheduler = f"the scheduler ({job.source}) has forgotten the job"
    else:
        scheduler = f"{job.source}: {job.state}"
    return Outcome.LOST, f"no exit status of the launcher was recorded; {scheduler}"


_RULES: tuple[Callable[[Evidence], Decided | None], ...] = (
    _trace_kept, _ended, _run_cause, _ended_by_scheduler, _stopped, _group_killed, _not_brought_together,
    _exited, _failed, _secondary,
)  # fmt: skip


def _died(evidence: Evidence) -> Outcome:
    return Outcome.RANK_FAIL if evidence.steps > 0 or evidence.trace else Outcome.LAUNCH_FAIL


def _without_launcher(error: str) -> str:
    """The programs' standard error, without srun's and mpirun's own lines and frames."""
    lines = [line for line in error.splitlines() if not _OF_LAUNCHER.match(line)]
    return re.sub(r"(?ms)^\s*-{20,}\s*$.*?^\s*-{20,}\s*$", "", "\n".join(lines))


def _error_ending(error: str) -> str:
    """A phrase that quotes standard error: what C++ says before it aborts, else its end, which is the beginning of
    mpiexec's last message framed by dashes, else the last line."""
    if quoted := _abort_in(error):
        return quoted
    blocks = [" ".join(block.split()) for block in re.split(r"(?m)^\s*-{20,}\s*$", error)]
    if not (len(blocks) > 2 and not blocks[-1]):
        blocks = error.splitlines()
    ending = _short(next((block for block in reversed(blocks) if block.strip()), ""))
    return f"; standard error ends with: {ending}" if ending else ""


def _abort_in(error: str) -> str:
    """A phrase that quotes what C++ said before it aborted a process; empty where it said nothing."""
    message = _ABORT.search(error)
    return "" if message is None else f"; standard error has: {_short(message[0])}"


def _first(notes: Iterable[RankNote]) -> RankNote | None:
    """The note that was written first; where several ranks saw no other note, that of the rank that came least far."""
    return min(notes, key=lambda note: (note.notes_before, note.step, note.rank), default=None)


def cause(notes: Sequence[RankNote]) -> RankNote | None:
    """The note that names the cause: a rank that lost a peer is passed over where another one failed by itself."""
    return _first(note for note in notes if not is_secondary(note)) or _first(notes)


def _describe(note: RankNote) -> str:
    return f"{note.origin}: {_short(note.message)}"


def _describe_death(fields: Mapping[str, str]) -> str:
    if "launch" in fields:
        return _short(fields["launch"])
    if "nccl" in fields:
        return f"NCCL waited in vain for a rank: {_short(fields['nccl'])}"
    several = "s" if re.search(r"\D", fields.get("ranks", "")) else ""
    who = f"rank{several} {fields['ranks']} on {fields['node']}: " if "ranks" in fields else ""
    cause = " (a full /dev/shm is the usual cause)" if fields["how"] == "Bus error" else ""
    return f"{who}{_short(fields['how'])}{cause}"


def _returned(evidence: Evidence) -> str:
    status = evidence.exit_status
    if status is None:
        return ""
    try:
        name = f" ({signal.Signals(status - 128).name})" if status > 128 else ""
    except ValueError:
        name = ""
    return f"the launcher ended with exit status {status}{name}"


def _short(text: str, max_length: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"
