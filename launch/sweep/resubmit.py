"""Whether the script of a job that has ended is submitted again: a decision from its history alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from hpc.model.outcome import Outcome

MAX_IN_VAIN = 3
"""The number of a script's jobs in a row without a measurement (preempted, a node lost, no rank started) after which a
person must look."""
_CUT_OFF = frozenset({Outcome.TIMEOUT, Outcome.PREEMPTED, Outcome.NODE_FAIL})
"""Outcomes that the attempt did not cause, and that another job may not have."""
_ENDED_BY_SCHEDULER = frozenset({"PREEMPTED", "NODE_FAIL"})
"""Slurm's states of jobs that ended through no fault of their own."""
FORGOTTEN = ""
"""The state of an ended job that the scheduler has forgotten."""


class Decision(StrEnum):
    """The reason why a script is submitted again, or not."""

    DONE = "done"  # every run is final
    CANCELLED = "cancelled"  # a job was cancelled
    FAILED = "failed"  # a run ended by its own fault, and no rerun is requested
    IN_VAIN = "in_vain"  # no run was measured, and there is no reason to expect more of another job
    FORGOTTEN = "forgotten"  # the scheduler has forgotten the job: again, once
    REQUESTED = "requested"  # a rerun is requested for a run that the job had passed
    REST_CUT_OFF = "rest_cut_off"  # some runs were measured, and only the scheduler cut off the rest
    ENDED_BY_SCHEDULER = "ended_by_scheduler"  # the job was preempted or lost a node
    STEP_REFUSED = "step_refused"  # a run was not started, since the controller was away

    @property
    def resubmits(self) -> bool:
        """Whether the script is submitted again."""
        return self not in (self.DONE, self.CANCELLED, self.FAILED, self.IN_VAIN)


@dataclass(frozen=True, kw_only=True)
class JobHistory:
    """The end of a script's jobs, and the remaining runs.

    `states` are the last states of the jobs, in Slurm's words; `remaining` has by run that is not final the outcome of
    its last attempt, None before the first. `refused` are those of them whose last attempt started no rank, since the
    controller was away. `requested` are runs whose last attempt has a rerun request. `measured`:
    these jobs made a run final. `in_vain` counts jobs in a row that did not, these included. `forgotten_before`: the
    script was submitted again for that reason already.
    """

    states: frozenset[str]
    remaining: Mapping[str, Outcome | None]
    refused: frozenset[str] = frozenset()
    requested: frozenset[str] = frozenset()
    measured: bool = False
    in_vain: int = 0
    forgotten_before: bool = False


def resubmit(history: JobHistory) -> Decision:
    """Decides by the first of these that holds; see Decision."""
    forgotten = history.states == {FORGOTTEN} and not history.forgotten_before
    no_fault = _CUT_OFF | ({Outcome.LOST, None} if forgotten else {None})
    failed = {run for run, outcome in history.remaining.items() if outcome not in no_fault} - history.refused
    ended_by_scheduler = bool(history.states) and history.states <= _ENDED_BY_SCHEDULER
    rules = (
        (Decision.DONE, not history.remaining),
        (Decision.CANCELLED, any(state.startswith("CANCELLED") for state in history.states)),
        (Decision.FAILED, not history.requested.issuperset(failed)),
        (Decision.FORGOTTEN, forgotten),
        (Decision.REQUESTED, bool(history.requested)),
        (Decision.REST_CUT_OFF, history.measured),
        (Decision.ENDED_BY_SCHEDULER, ended_by_scheduler and history.in_vain < MAX_IN_VAIN),
        (Decision.STEP_REFUSED, bool(history.refused) and history.in_vain < MAX_IN_VAIN),
    )
    return next((decision for decision, holds in rules if holds), Decision.IN_VAIN)
