"""From evidence to an outcome: what is believed of an attempt, in which order, and the sentences that say why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from hpc.outcome import Outcome, RankNote


class EndedBy(StrEnum):
    """Why the job script ended a step, or was ended in the middle of one."""

    TIME_LIMIT = "time limit"
    PREEMPTION = "preemption"
    HANG = "hang"
    SIGNAL = "signal"
    REQUEUE = "requeue"


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """How a job ended, as the scheduler tells it.

    `word` is Slurm's own (`NODE_FAIL`), empty where every command that answered has forgotten the job; `source` is the
    command that knew. `requeued` says that by the cluster's settings this end is none: the job goes back to the queue.
    """

    word: str
    source: str
    reason: str = ""
    nodelist: str = ""
    restarts: int = 0
    requeued: bool = False


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known of an attempt that has ended.

    `exit_status` is the launcher's, None where nobody saw it return. `trace` says that rank 0 wrote a whole trace,
    `steps` the most steps that any rank is known to have completed, -1 where nothing is known. `error` is the end of
    the step's standard error. `job` is None where the scheduler was not asked or did not answer.
    """

    exit_status: int | None
    trace: bool
    steps: int = -1
    ended_by: EndedBy | None = None
    said: str = ""
    notes: Sequence[RankNote] = ()
    error: str = ""
    job: JobEnd | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome, and what it was decided from: sentences, the deciding one first."""

    outcome: Outcome
    evidence: tuple[str, ...]


def decide(evidence: Evidence) -> Verdict:
    """The outcome of an attempt, from the first of these that tells it: whole trace and exit status 0; why the script
    ended the step; the ranks' notes; the step's standard error; the scheduler."""
    raise NotImplementedError
