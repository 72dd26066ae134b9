"""launch.sweep.submit: whether the script of an ended job is submitted again, by its history."""

from __future__ import annotations

from typing import Any

import pytest

from hpc.model.outcome import Outcome
from launch.sweep.submit import MAX_IN_VAIN, Decision, JobHistory, resubmit

TIMEOUT, PREEMPTED, LOST, OOM, NEVER = Outcome.TIMEOUT, Outcome.PREEMPTED, Outcome.LOST, Outcome.OOM, None


@pytest.mark.parametrize(
    ("states", "remaining", "changes", "decision"),
    [
        ("COMPLETED", (), {}, "done"),
        ("TIMEOUT", (), {"measured": True}, "done"),
        ("CANCELLED", (TIMEOUT, NEVER), {"measured": True}, "cancelled"),
        ("CANCELLED by 1000", (NEVER,), {"requested": {"0"}}, "cancelled"),
        ("TIMEOUT", (TIMEOUT, NEVER), {"measured": True}, "rest_cut_off"),
        ("TIMEOUT", (TIMEOUT, NEVER), {}, "in_vain"),
        ("COMPLETED", (NEVER,), {"measured": True}, "rest_cut_off"),
        ("COMPLETED", (NEVER,), {}, "in_vain"),
        ("FAILED", (TIMEOUT, LOST), {"measured": True}, "failed"),
        ("FAILED", (Outcome.LAUNCH_FAIL,), {"measured": True}, "failed"),
        ("COMPLETED", (OOM,), {"requested": {"0"}}, "requested"),
        ("COMPLETED", (OOM, TIMEOUT), {"requested": {"0"}}, "requested"),
        ("COMPLETED", (OOM, LOST), {"requested": {"0"}}, "failed"),
        ("PREEMPTED", (PREEMPTED, NEVER), {}, "ended_by_scheduler"),
        ("NODE_FAIL", (Outcome.NODE_FAIL,), {}, "ended_by_scheduler"),
        ("PREEMPTED", (PREEMPTED,), {"in_vain": MAX_IN_VAIN - 1}, "ended_by_scheduler"),
        ("PREEMPTED", (PREEMPTED,), {"in_vain": MAX_IN_VAIN}, "in_vain"),
        ("PREEMPTED", (PREEMPTED, LOST), {}, "failed"),
        ("PREEMPTED,COMPLETED", (PREEMPTED,), {}, "in_vain"),
        ("", (LOST, NEVER), {}, "forgotten"),
        ("", (LOST, NEVER), {"forgotten_before": True}, "failed"),
        ("", (NEVER,), {"forgotten_before": True}, "in_vain"),
        ("", (OOM,), {}, "failed"),
        (",COMPLETED", (NEVER,), {}, "in_vain"),
        (None, (NEVER,), {}, "in_vain"),
        ("FAILED", (Outcome.LAUNCH_FAIL, NEVER), {"refused": {"0"}}, "step_refused"),
        ("FAILED", (Outcome.LAUNCH_FAIL,), {"refused": {"0"}, "in_vain": MAX_IN_VAIN}, "in_vain"),
        ("FAILED", (Outcome.LAUNCH_FAIL, Outcome.LAUNCH_FAIL), {"refused": {"0"}}, "failed"),
        ("CANCELLED", (Outcome.LAUNCH_FAIL,), {"refused": {"0"}}, "cancelled"),
    ],
)
def test_the_decision_follows_from_the_history(
    states: str | None, remaining: tuple[Outcome | None, ...], changes: dict[str, Any], decision: str
) -> None:
    """`states` are those of the ended jobs, None where none is known; `remaining` the outcomes of runs 0, 1, …"""
    history = JobHistory(
        states=frozenset(() if states is None else states.split(",")),
        remaining={str(run): outcome for run, outcome in enumerate(remaining)}, **changes,
    )  # fmt: skip
    assert resubmit(history) is Decision(decision)


def test_five_decisions_submit_again() -> None:
    assert {decision for decision in Decision if decision.resubmits} == {
        Decision.FORGOTTEN, Decision.REQUESTED, Decision.REST_CUT_OFF, Decision.ENDED_BY_SCHEDULER,
        Decision.STEP_REFUSED,
    }  # fmt: skip
