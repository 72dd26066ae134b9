"""A job's state as the scheduler tells it: squeue, else scontrol, else sacct. What none of them knows is said."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from enum import StrEnum

from hpc.outcome import Outcome

COMMAND_TIMEOUT_S = 60


class JobState(StrEnum):
    """As much of Slurm's many states as a sweep needs to follow its jobs."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"
    UNREACHABLE = "unreachable"


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
_OUTCOME = {
    "TIMEOUT": Outcome.TIMEOUT,
    "DEADLINE": Outcome.TIMEOUT,
    "PREEMPTED": Outcome.PREEMPTED,
    "NODE_FAIL": Outcome.NODE_FAIL,
    "BOOT_FAIL": Outcome.NODE_FAIL,
    "OUT_OF_MEMORY": Outcome.OOM,
    "CANCELLED": Outcome.CANCELLED,
    "REVOKED": Outcome.CANCELLED,
}


def slurm_words(job_ids: Sequence[str]) -> dict[str, str]:
    """Slurm's own word for each job's state; empty where no command knows the job."""
    words = dict.fromkeys(job_ids, "")
    if not job_ids:
        return words
    for line in _answer("squeue", "-h", "-t", "all", "-o", "%i|%T", "-j", ",".join(job_ids)).splitlines():
        job_id, _, word = line.strip().partition("|")
        if job_id in words:
            words[job_id] = word
    for job_id in [job_id for job_id, word in words.items() if not word]:
        found = re.search(r"\bJobState=(\S+)", _answer("scontrol", "-o", "show", "job", job_id))
        if found is None:
            # "CANCELLED by 1000" is one state: the first word counts.
            found = re.search(r"(\S+)", _answer("sacct", "-X", "-n", "-P", "-o", "State", "-j", job_id))
        words[job_id] = found[1] if found else ""
    return words


def job_state(word: str) -> JobState:
    """What one of Slurm's words means for who follows the job."""
    return _LIVE.get(word, JobState.ENDED) if word else JobState.UNKNOWN


def outcome_from_scheduler(word: str) -> Outcome:
    """The outcome of an attempt that began and left no exit record, from how its job ended.

    A job that ended by itself without a record for the attempt (its script was killed, its folder vanished) is `lost`.
    """
    return _OUTCOME.get(word, Outcome.LOST)


def _answer(*command: str) -> str:
    """What a command prints, empty where it fails, is missing or does not answer in time."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
