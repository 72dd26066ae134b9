"""What of an unchanged script is no training, and which of its loaders feed the training."""

from __future__ import annotations

from hpc.model.timestamps import BEGIN, END
from hpc.observe import events as e
from tests.unit.observed_events import DDP, OTHER, VALIDATION, Script


def test_evaluation_is_a_pause() -> None:
    script = Script(**DDP)
    for number in range(9):
        script.step()
        if number % 3 == 2:
            ended = script.ns
            script.evaluate()
    observed = script.observed()
    assert [number for number, step in enumerate(observed.steps) if step.pause] == [3, 6]
    pause = observed.steps[3].pause
    assert pause is not None
    assert pause.kind == "another loader and evaluation"
    assert pause.begin_ns == observed.steps[2].stamps[END]
    assert pause.end_ns == observed.steps[3].stamps[BEGIN]
    assert ended > 0
    assert [step.samples for step in observed.steps] == [8] * 9


def test_evaluation_of_what_is_no_known_model_is_seen_by_its_loader() -> None:
    script = Script(**DDP)
    for number in range(9):
        script.step()
        if number % 3 == 2:
            script.fetch(VALIDATION)
            script.fetch(VALIDATION)
    observed = script.observed()
    assert [step.pause.kind for step in observed.steps if step.pause] == ["another loader"] * 2
    assert [step.samples for step in observed.steps] == [8] * 9


def test_evaluation_without_a_loader_is_a_pause() -> None:
    script = Script(**DDP)
    for number in range(6):
        script.forward()
        script.backward()
        script.update()
        if number == 2:
            script.evaluate(loader=None)
    observed = script.observed()
    assert [step.pause.kind for step in observed.steps if step.pause] == ["evaluation"]
    assert observed.steps[0].samples is None
    assert any(text.startswith("no DataLoader: a step begins where the") for text in observed.remarks)


def test_a_teacher_in_every_step_is_no_pause() -> None:
    script = Script(**DDP)
    for _ in range(5):
        script.fetch()
        script.evaluate(1, loader=None)
        script.forward()
        script.backward()
        script.update()
    observed = script.observed()
    assert not any(step.pause for step in observed.steps)
    assert "evaluation in more than half of the steps is a part of them" in observed.remarks


def test_a_checkpoint_is_a_pause() -> None:
    script = Script(**DDP)
    for number in range(6):
        script.step()
        if number == 3:
            script.save()
    observed = script.observed()
    assert [(at, step.pause.kind) for at, step in enumerate(observed.steps) if step.pause] == [(4, "checkpoint")]


def test_what_a_rank_waits_in_a_pause_is_known() -> None:
    script = Script(**DDP)
    for number in range(6):
        script.step()
        if number == 3:
            script.save()
            _, waits, ends = script.collective("barrier")
    pause = script.observed().steps[4].pause
    assert pause is not None
    assert pause.waited_ns == ends - waits > 0


def test_the_end_of_an_epoch_is_data_of_the_next_step() -> None:
    script = Script(**DDP)
    script.step()
    script.step()
    requested = script.end_epoch()
    script.step()
    script.step()
    observed = script.observed()
    assert [step.new_epoch for step in observed.steps] == [False, False, True, False]
    assert observed.steps[2].stamps[BEGIN] == requested == observed.steps[1].stamps[END]
    assert not any(step.pause for step in observed.steps)
    assert "1 step after the end of an epoch: data includes a new iterator" in observed.remarks


def test_an_evaluation_at_the_end_of_an_epoch_begins_after_the_last_request() -> None:
    script = Script(**DDP)
    script.step()
    script.step()
    requested = script.at(e.FETCH_IN, 1)
    script.at(e.FETCH_END, 1)
    script.evaluate()
    second = script.at(e.ITERATE_IN, 1)
    script.at(e.ITERATE_OUT, 1)
    script.step()
    script.step()
    observed = script.observed()
    pause = observed.steps[2].pause
    assert pause is not None
    assert (pause.begin_ns, pause.end_ns) == (requested, second)


def test_a_new_loader_for_each_epoch_feeds_the_training() -> None:
    script = Script(**DDP)
    for loader in (1, 2, 3):
        for _ in range(3):
            script.step(loader=loader)
    observed = script.observed()
    assert not any(step.pause for step in observed.steps)
    assert [step.samples for step in observed.steps] == [8] * 9


def test_two_loaders_of_each_step_both_feed_it() -> None:
    script = Script(**DDP)
    for _ in range(5):
        script.fetch(OTHER)
        script.step()
    observed = script.observed()
    assert not any(step.pause for step in observed.steps)
    assert [step.samples for step in observed.steps] == [16] * 5


def test_batches_of_unknown_length_have_no_samples() -> None:
    script = Script(**DDP)
    for _ in range(3):
        script.step(samples=0)
    observed = script.observed()
    assert [step.samples for step in observed.steps] == [None] * 3
    assert any("a batch has is not known; --batch-size N states" in text for text in observed.remarks)
