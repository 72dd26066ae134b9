"""Jobs as Slurm shows them: the controller's word while it knows a job, the accounts' when it has forgotten it.

`squeue` is asked before `sacct`, though `sacct` knows more: the accounts lag (a job that goes back to the queue stands
there as PREEMPTED for seconds, one that has ended as RUNNING), and where slurmdbd is down they lag until it is back.
A command that does not answer is told from one that answers and does not know the job: an outage is no end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from hpc.model.verdict import JobEnd
from hpc.system.tool import Failure, run_tool

COMMAND_TIMEOUT_S = 60
HERE = "this machine"
"""The source of what is known of jobs that no scheduler runs."""


class StateError(RuntimeError):
    """The scheduler has not answered for too long; the text says since when, and what its commands said."""


class JobState(StrEnum):
    """As much of Slurm's many states as a sweep needs to follow its jobs.

    UNKNOWN: the scheduler answered and has forgotten the job. UNREACHABLE: it did not answer, so that nobody knows.
    """

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, kw_only=True)
class Sight:
    """A job as it is seen now.

    `end` is how it ended, with an empty word where whoever answered has forgotten it, None while it lives and where
    nobody answered. `reason` is why it is pending, in Slurm's word. `said` is what commands said in place of an answer,
    in their own words. `name` is the job's name, empty where it is not known.
    """

    state: JobState
    name: str = ""
    partition: str = ""
    end: JobEnd | None = None
    reason: str = ""
    said: str = ""


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """What of a cluster's configuration an end follows from, in Slurm's own words; partitions may differ in one."""

    values: Mapping[str, str]
    preempt_modes: Mapping[str, str]

    def behind(self, word: str, partition: str) -> list[str]:
        """The settings that this end follows from, as `Name=value`."""
        values = {**self.values, "PreemptMode": self.preempt_modes.get(partition, self.values.get("PreemptMode", ""))}
        return [f"{name}={values[name]}" for name in _OF_SETTINGS.get(word, ()) if values.get(name)]


@dataclass(frozen=True)
class _Answer:
    """What a command printed; `refused` is empty where it answered, else what it said in place of that."""

    text: str = ""
    refused: str = ""


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A job as one command shows it; what the command does not tell is empty."""

    word: str
    source: str
    name: str = ""
    nodelist: str = ""
    partition: str = ""
    restarts: int = 0
    reason: str = ""


_LIVE = {
    "PENDING": JobState.PENDING,
    "CONFIGURING": JobState.PENDING,
    "REQUEUED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "COMPLETING": JobState.RUNNING,
    "STAGE_OUT": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "STOPPED": JobState.RUNNING,
    "SUSPENDED": JobState.RUNNING,
}
_GOES_BACK = frozenset({"PREEMPTED", "NODE_FAIL", "BOOT_FAIL"})
"""Ends after which a job may be put back into the queue. The controller then calls it PENDING at once."""
_OF_SETTINGS = {
    "PREEMPTED": ("PreemptMode",),
    "NODE_FAIL": ("SlurmdTimeout",),
    "": ("MinJobAge", "AccountingStorageType"),
}
"""Slurm's words for ends, "" where it has forgotten the job, and the settings that they follow from."""
_QUEUE_FIELDS = ("JobID", "State", "NodeList", "Partition", "RestartCnt", "Requeue", "Name", "Reason")
_ACCOUNT_FIELDS = ("JobID", "State", "NodeList", "Partition", "JobName", "Reason")
_JOB_ID = re.compile(r"[0-9]+(?:_[0-9]+|\+[0-9]+)?")
_NO_NAMES: Mapping[str, str] = MappingProxyType({})
_FORGOTTEN = re.compile(r"Invalid job id", re.IGNORECASE)
_SILENT = re.compile(
    r"contact|connect|timed out|no answer|Zero Bytes|standby|Message (send|receive)|shut ?down", re.IGNORECASE
)
"""What a client says that did not reach its controller: another client would not reach it either."""


def is_job_id(text: str) -> bool:
    """Whether the text has the form of a Slurm job id: `17`, an array task `17_3`, a component `17+1`.

    No other text may reach a command of Slurm's: a damaged record's `--version` would be an option.
    """
    return _JOB_ID.fullmatch(text) is not None


def job_name_of(job_id: str) -> str | None:
    """The name of the job that has this number now.

    Empty where the scheduler answered and knows no such job, or where the text is no job id; None where it did not
    answer. A controller that lost its state gives numbers again: compare with the name that the job was given.
    """
    seen = look([job_id])[job_id]
    return None if seen.state is JobState.UNREACHABLE else seen.name


def look(job_ids: Sequence[str], names: Mapping[str, str] = _NO_NAMES) -> dict[str, Sight]:
    """How every one of these jobs is now; a few commands, each ended after COMMAND_TIMEOUT_S.

    `names` holds the job names that are known, by job id: where another job has the number now, the one that was asked
    about has ended and is forgotten. A text that is no job id is reported as an unknown job, and no command sees it.
    """
    known = {job_id: _not_an_id(job_id) for job_id in job_ids if not is_job_id(job_id)}
    if asked := [job_id for job_id in job_ids if job_id not in known]:
        rows, refused = _in_the_queue(asked)
        sights = {job_id: _sight(row) for job_id, row in rows.items()}
        if missing := [job_id for job_id in asked if job_id not in sights]:
            accounts, refused_too = _in_the_accounts(missing, names)
            said = "; ".join(text for text in (refused, refused_too) if text)
            for job_id in missing:
                sights[job_id] = _second_sight(accounts.get(job_id), said, controller_answers=not refused)
        known |= {job_id: _of_name(job_id, sights[job_id], names.get(job_id, "")) for job_id in asked}
    return {job_id: known[job_id] for job_id in job_ids}


def ends(job_ids: Sequence[str], names: Mapping[str, str] = _NO_NAMES) -> dict[str, JobEnd]:
    """How those of these jobs ended that have ended for certain: for those alone attempts may be closed.

    With what of the cluster's settings the end follows from: that a preempted job is not put back, for one. `names` is
    as `look` has it.
    """
    sights = look(job_ids, names)
    seen = {job_id: (sight.end, sight.partition) for job_id, sight in sights.items() if sight.end is not None}
    settings = cluster_settings() if any(end.word in _OF_SETTINGS for end, _ in seen.values()) else None
    found = {}
    for job_id, (end, partition) in seen.items():
        earlier = lives(job_id, names.get(job_id, ""))[:-1] if end.source == "sacct" else ()
        told = [end.reason, *(settings.behind(end.word, partition) if settings else [])]
        restarts = max(end.restarts, len(earlier))
        found[job_id] = replace(end, reason=", ".join(filter(None, told)), restarts=restarts)
    return found


def lives(job_id: str, name: str = "") -> list[JobEnd]:
    """How each life of a job ended that was put back into the queue, in order; the last is the job's present one.

    The accounts alone keep them: empty where there are none, or where they do not answer. With a `name`, jobs of
    another name that had the same number are left out.
    """
    if not is_job_id(job_id):
        return []
    answer = _ask("sacct", "-X", "-D", "-n", "-P", "-o", ",".join(_ACCOUNT_FIELDS), "-j", job_id)
    found = [_end(row) for key, row in _account_rows(answer.text) if key == job_id and _is_named(row.name, name)]
    numbered = [replace(end, restarts=life, requeued=True) for life, end in enumerate(found)]
    return [*numbered[:-1], *(replace(end, requeued=False) for end in numbered[-1:])]


def cluster_settings() -> ClusterSettings | None:
    """What the controller says of its configuration; None where it does not answer."""
    config = _ask("scontrol", "show", "config")
    if config.refused:
        return None
    partitions = _ask("scontrol", "-o", "show", "partition").text
    modes = re.findall(r"^PartitionName=(\S+) .*\bPreemptMode=(\S+)", partitions, re.MULTILINE)
    values = dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", config.text, re.MULTILINE))
    return ClusterSettings(values=values, preempt_modes=dict(modes))


def _in_the_queue(job_ids: Sequence[str]) -> tuple[dict[str, _Row], str]:
    """What the controller knows of the jobs, and what its commands said where it did not answer."""
    columns = ",".join(f"{name}:|" for name in _QUEUE_FIELDS)
    queue = _ask("squeue", "-h", "-t", "all", "-O", columns, "-j", ",".join(job_ids))
    if not queue.refused:
        return dict(_queue_rows(queue.text)), ""
    if _SILENT.search(queue.refused):
        return {}, queue.refused
    rows: dict[str, _Row] = {}
    for job_id in job_ids:
        answer = _ask("scontrol", "-o", "show", "job", job_id)
        if answer.refused:
            return rows, f"{queue.refused}; {answer.refused}"
        if row := _shown(answer.text):
            rows[job_id] = row
    return rows, ""


def _in_the_accounts(job_ids: Sequence[str], names: Mapping[str, str]) -> tuple[dict[str, _Row], str]:
    answer = _ask("sacct", "-X", "-n", "-P", "-o", ",".join(_ACCOUNT_FIELDS), "-j", ",".join(job_ids))
    rows = _account_rows(answer.text)
    return {job_id: row for job_id, row in rows if _is_named(row.name, names.get(job_id, ""))}, answer.refused


def _not_an_id(text: str) -> Sight:
    end = JobEnd(word="", source="the record", reason=f"{text!r} is no Slurm job id: the record is damaged")
    return Sight(state=JobState.UNKNOWN, end=end)


def _is_named(found: str, expected: str) -> bool:
    """Whether a job of the name found may be the one expected; an empty name is an unknown one."""
    return not found or not expected or found == expected


def _of_name(job_id: str, sight: Sight, expected: str) -> Sight:
    """The sight of the job expected: forgotten where another job has its number."""
    if _is_named(sight.name, expected):
        end = sight.end and replace(sight.end, name=expected or sight.end.name)
        return replace(sight, end=end)
    reason = f"{job_id} is the number of another job now, {sight.name}"
    end = JobEnd(word="", source="squeue", name=expected, reason=reason)
    return Sight(state=JobState.UNKNOWN, name=sight.name, end=end)


def _sight(row: _Row, said: str = "") -> Sight:
    state = _LIVE.get(row.word, JobState.ENDED)
    end = _end(row) if state is JobState.ENDED else None
    reason = row.reason if state is JobState.PENDING else ""
    return Sight(state=state, name=row.name, partition=row.partition, end=end, reason=reason, said=said)


def _second_sight(row: _Row | None, said: str, *, controller_answers: bool) -> Sight:
    """A job that the controller does not show: what the accounts say of it, None where they do not know it."""
    if row is not None and row.word not in _LIVE and (controller_answers or row.word not in _GOES_BACK):
        return _sight(row, said)
    if not controller_answers:
        return Sight(state=JobState.UNREACHABLE, said=said)
    lagging = f"sacct still says {row.word}" if row else ""
    end = JobEnd(word="", source="squeue", reason="; ".join(filter(None, (lagging, said))))
    return Sight(state=JobState.UNKNOWN, end=end, said=said)


def _end(row: _Row) -> JobEnd:
    return JobEnd(
        word=row.word, source=row.source, name=row.name, reason=row.reason, nodelist=row.nodelist,
        restarts=row.restarts,
    )  # fmt: skip


def _queue_rows(text: str) -> list[tuple[str, _Row]]:
    rows = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split("|", len(_QUEUE_FIELDS) - 1)]
        if len(values) == len(_QUEUE_FIELDS):
            job_id, word, nodelist, partition, restarts, requeue, name, reason = values
            row = _Row(
                word=word, source="squeue", name=name, nodelist=nodelist, partition=partition,
                restarts=_number(restarts), reason=_reason(word, requeue, reason.removesuffix("|")),
            )  # fmt: skip
            rows.append((job_id, row))
    return rows


def _account_rows(text: str) -> list[tuple[str, _Row]]:
    rows = []
    for line in text.splitlines():
        values = line.split("|", len(_ACCOUNT_FIELDS) - 1)
        if len(values) == len(_ACCOUNT_FIELDS) and values[1].strip():
            job_id, state, nodelist, partition, name, reason = values
            word, _, by = state.partition(" ")  # "CANCELLED by 1000"
            why = " ".join(text for text in (by and f"{by} (user id)", _told(reason)) if text)
            row = _Row(word=word, source="sacct", name=name, nodelist=nodelist, partition=partition, reason=why)
            rows.append((job_id, row))
    return rows


def _shown(text: str) -> _Row | None:
    """What `scontrol -o show job` says, None where it says nothing of the kind."""
    found = dict(re.findall(r"\b(JobState|Reason|Partition|NodeList|Restarts|Requeue)=(\S*)", text))
    if "JobState" not in found:
        return None
    name = re.search(r"\bJobName=(.*?)(?: \w+=|$)", text, re.MULTILINE)
    return _Row(
        word=found["JobState"],
        source="scontrol",
        name=name[1] if name else "",
        nodelist=found.get("NodeList", "").replace("(null)", ""),
        partition=found.get("Partition", ""),
        restarts=_number(found.get("Restarts", "")),
        reason=_reason(found["JobState"], found.get("Requeue", ""), found.get("Reason", "")),
    )


def _told(reason: str) -> str:
    """Slurm's "None" is no reason."""
    return "" if reason.strip() in ("None", "(null)") else reason.strip()


def _reason(word: str, requeue: str, reason: str) -> str:
    """Slurm's reason; of an end after which a job could have gone back, whether it was submitted so."""
    own = f"Requeue={requeue}" if word in _GOES_BACK and requeue else ""
    return ", ".join(filter(None, (_told(reason), own)))


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _ask(*command: str) -> _Answer:
    """Runs a command of Slurm's. It has answered where it ends well, and where it says that there is no such job."""
    answer = run_tool(command, timeout_s=COMMAND_TIMEOUT_S)
    if answer.ok or (answer.failure is Failure.FAILING and _FORGOTTEN.search(answer.stderr)):
        return _Answer(text=answer.stdout)
    return _Answer(refused=answer.describe())
