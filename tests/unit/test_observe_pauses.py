"""What of an unchanged script is no training, and which of its loaders and batches feed the training."""

from __future__ import annotations

import pytest

from hpc.model.timestamps import BATCH_READY, BEGIN, END
from tests.unit.observed_events import DDP, OTHER, VALIDATION, Script, pauses, samples


def test_evaluation_is_a_pause() -> None:
    observed = Script(**DDP).play("step step step evaluate", 3).observed()
    paused = pauses(observed)
    assert [*paused] == [3, 6]
    assert paused[3].kind == "another loader and evaluation"
    assert paused[3].begin_ns == observed.steps[2].stamps[END]
    assert paused[3].end_ns == observed.steps[3].stamps[BEGIN]
    assert samples(observed) == [8] * 9


def test_evaluation_of_what_is_no_known_model_is_seen_by_its_loader() -> None:
    script = Script(**DDP)
    for _ in range(3):
        script.play("step step step")
        script.fetch(VALIDATION)
        script.fetch(VALIDATION)
    observed = script.observed()
    assert [pause.kind for pause in pauses(observed).values()] == ["another loader"] * 2
    assert samples(observed) == [8] * 9


def test_evaluation_without_a_loader_is_a_pause() -> None:
    script = Script(**DDP).play("forward backward update", 3)
    script.evaluate(loader=None)
    observed = script.play("forward backward update", 3).observed()
    assert [pause.kind for pause in pauses(observed).values()] == ["evaluation"]
    assert samples(observed) == [None] * 6
    assert any(text.startswith("no DataLoader: a step begins where the") for text in observed.remarks)


def test_a_rollout_before_one_of_four_steps_is_a_phase_of_it() -> None:
    script = Script(**DDP)
    for _ in range(6):
        script.evaluate(3, loader=None)
        script.play("forward backward update", 4)
    observed = script.observed()
    assert not pauses(observed)
    phases = {at: step.phase for at, step in enumerate(observed.steps) if step.phase}
    assert [*phases] == [4, 8, 12, 16, 20]  # what is before the first step is in none
    assert {phase.kind for phase in phases.values()} == {"rollout"}
    for at, phase in phases.items():
        step = observed.steps[at]
        assert step.stamps[BEGIN] == observed.steps[at - 1].stamps[END] == phase.begin_ns
        assert phase.end_ns == step.stamps[BATCH_READY] > phase.begin_ns
    assert "a rollout before one of 4 steps is a part of it, in its data" in observed.remarks


@pytest.mark.parametrize("steps", [(10,) * 6, (4, 4, 5, 4, 4, 4), (4, 4, 4), (30, 4, 4, 4, 4, 4)])
def test_rare_and_irregular_pauses_and_those_of_a_part_of_the_run_stay_pauses(steps: tuple[int, ...]) -> None:
    script = Script(**DDP)
    for count in steps:
        script.evaluate(3, loader=None)
        script.play("forward backward update", count)
    assert len(pauses(script.observed())) == len(steps) - 1


def test_a_teacher_in_every_step_is_no_pause() -> None:
    script = Script(**DDP)
    for _ in range(5):
        script.fetch()
        script.evaluate(1, loader=None)
        script.play("forward backward update")
    observed = script.observed()
    assert not pauses(observed)
    assert "evaluation in more than half of the steps is a part of them" in observed.remarks


def test_a_checkpoint_is_a_pause_in_which_what_a_rank_waits_is_known() -> None:
    script = Script(**DDP).play("step step step step save")
    _, waits, ends = script.collective("barrier")
    ((number, pause),) = pauses(script.play("step step").observed()).items()
    assert (number, pause.kind) == (4, "checkpoint")
    assert pause.waited_ns == ends - waits > 0


def test_the_end_of_an_epoch_is_data_of_the_next_step() -> None:
    script = Script(**DDP).play("step step")
    requested = script.exhaust()
    observed = script.play("iterate step step").observed()
    assert [step.new_epoch for step in observed.steps] == [False, False, True, False]
    assert observed.steps[2].stamps[BEGIN] == requested == observed.steps[1].stamps[END]
    assert not pauses(observed)
    assert "1 step after the end of an epoch: data includes a new iterator" in observed.remarks


def test_an_evaluation_at_the_end_of_an_epoch_begins_after_the_last_request() -> None:
    script = Script(**DDP).play("step step")
    requested = script.exhaust()
    script.evaluate()
    second = script.iterate()
    pause = pauses(script.play("step step").observed())[2]
    assert (pause.begin_ns, pause.end_ns) == (requested, second)


def test_a_new_loader_for_each_epoch_feeds_the_training() -> None:
    script = Script(**DDP)
    for loader in (1, 1, 1, 2, 2, 2, 3, 3, 3):
        script.step(loader=loader)
    observed = script.observed()
    assert not pauses(observed) and samples(observed) == [8] * 9


def test_two_loaders_of_each_step_both_feed_it() -> None:
    script = Script(**DDP)
    for _ in range(5):
        script.fetch(OTHER)
        script.step()
    observed = script.observed()
    assert not pauses(observed) and samples(observed) == [16] * 5


def test_batches_of_unknown_length_have_no_samples() -> None:
    script = Script(**DDP)
    for _ in range(3):
        script.step(samples=0)
    observed = script.observed()
    assert samples(observed) == [None] * 3
    assert any("a batch has is not known; --batch-size N states" in text for text in observed.remarks)


@pytest.mark.parametrize("exhausted", [False, True])
def test_a_batch_that_is_only_looked_at_is_no_sample(exhausted: bool) -> None:
    """`next(iter(loader))`, of which the script wants a shape."""
    looks = "iterate fetch exhaust" if exhausted else "iterate fetch"
    observed = Script(**DDP).play(f"{looks} iterate step step step step exhaust", 2).observed()
    # A loader that has come to its end may have been read ahead: then all of it is trained.
    first = 16 if exhausted else 8
    assert samples(observed) == [first, 8, 8, 8] * 2
    assert [step.fetches for step in observed.steps] == [first // 8, 1, 1, 1] * 2
    stated = "2 times a batch was fetched and its loader restarted: not trained, not counted" in observed.remarks
    assert stated is not exhausted


def test_a_loader_begun_anew_for_each_batch_is_read_so() -> None:
    observed = Script(**DDP).play("iterate fetch iterate fetch forward backward update", 6).observed()
    assert samples(observed) == [16] * 6
    assert not any("begun anew" in remark for remark in observed.remarks)


def test_a_loader_that_is_read_ahead_leaves_the_last_step_without_a_fetch() -> None:
    script = Script(**DDP).play("fetch").play("fetch forward backward update", 3).play("forward backward update")
    observed = script.observed()
    assert samples(observed) == [16, 8, 8, 0]
    assert "1 of the last 2 steps read nothing: batches are read ahead, or used again" in observed.remarks
