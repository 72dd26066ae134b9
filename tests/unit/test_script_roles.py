"""Ranks that never update, in the steps of a rank that does."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc.model.groups import RankGroup
from hpc.observe.events import COLLECTIVE_IN, COLLECTIVE_OUT, GroupRecord, Recorder
from hpc.observe.stamps import ObservedStep, ObservedSteps
from hpc.run.script_roles import calls_by_step, in_steps_of_others
from hpc.run.script_steps import RankSteps

NOTHING = RankSteps(observed=ObservedSteps(steps=(), remarks=(), reason="no backward was seen"))
MS = 1_000_000


def process(folder: Path, calls: str, every_ms: int) -> Path:
    """The events of a process that calls these, each 1 ms long: w of all ranks, l of ranks 0 and 1, g of 2 and 3."""
    folder.mkdir()
    recorder = Recorder(str(folder))
    groups = {"w": None, "l": GroupRecord((0, 1), "learners"), "g": GroupRecord((2, 3), "generators")}
    for at, letter in enumerate(calls, 1):
        which = recorder.name("broadcast", 0 if letter != "g" else 2, groups[letter])
        place = recorder.note(at * every_ms * MS, COLLECTIVE_IN, which)
        recorder.note((at * every_ms + 1) * MS, COLLECTIVE_OUT, which, place)
    return folder


def steps(*ends_ms: int) -> list[ObservedStep]:
    return [
        ObservedStep(
            stamps=(0, 0, 0, 0, 0, end * MS), absent={}, samples=1, fetches=1, fetch_ns=0, backwards=1, updates=(1,),
            skipped=False, new_epoch=False, called_ns=(0, end * MS),
        )
        for end in ends_ms
    ]  # fmt: skip


def test_a_step_ends_with_the_last_call_that_is_shared_in_it(tmp_path: Path) -> None:
    shared = calls_by_step(process(tmp_path / "learner", "wlwlwl", 10), steps(25, 30, 65))
    its = in_steps_of_others(NOTHING, process(tmp_path / "generator", "gwgwggw", 100), ["", shared], 2)
    assert [(step.stamps[0] // MS, step.stamps[-1] // MS) for step in its.steps] == [(100, 201), (201, 401), (401, 701)]
    assert [len(step.collectives) for step in its.steps] == [2, 2, 3]
    assert all(step.stamps[1] == step.stamps[0] and {*step.stamps[2:]} == {step.stamps[-1]} for step in its.steps)
    assert its.steps[0].collectives[0].group == RankGroup(ranks=(2, 3), dimension="generators")
    assert its.observed.remarks == (
        "it updates nothing: its steps end with the last call that it shares with rank 1 in each",
    )


def test_a_learner_that_updates_several_times_between_two_calls_has_steps_without_any(tmp_path: Path) -> None:
    shared = calls_by_step(process(tmp_path / "learner", "ww", 20), steps(10, 25, 30, 45))
    its = in_steps_of_others(NOTHING, process(tmp_path / "generator", "ww", 100), [shared], 2)
    assert [step.stamps[-1] // MS for step in its.steps] == [100, 101, 101, 201]


@pytest.mark.parametrize("calls", ["", "ggg"])
def test_one_that_shares_no_calls_has_no_steps(tmp_path: Path, calls: str) -> None:
    shared = calls_by_step(process(tmp_path / "learner", "wl", 10), steps(25))
    assert in_steps_of_others(NOTHING, process(tmp_path / "generator", calls, 100), [shared], 2) == NOTHING
    assert calls_by_step(tmp_path / "learner", ()) == ""
