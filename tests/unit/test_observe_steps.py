"""The rules by which events of an unchanged script become steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from hpc.model.timestamps import ABSENT, BATCH_READY, BEGIN, END, INNER, STAMPS
from hpc.observe import events as e
from hpc.observe.rounds import OuterSteps, outer_steps
from hpc.observe.types import ObservedStep
from tests.unit.observed_events import DDP, MS, TRAIN, Script, reasons


def starts(steps: tuple[ObservedStep, ...]) -> list[int]:
    return [step.stamps[BEGIN] for step in steps]


def test_a_plain_loop_has_all_six_stamps() -> None:
    script = Script(**DDP)
    expected = []
    for _ in range(4):
        stamps = [script.fetch(), script.forward(), *script.backward(), script.update()]
        expected.append(stamps)
    for before, after in pairwise(expected):
        before[END] = after[BEGIN]  # a step ends where the next requests its batch
    observed = script.observed()
    assert [list(step.stamps) for step in observed.steps] == expected
    assert [step.samples for step in observed.steps] == [8] * 4
    assert not any(step.absent or step.pause for step in observed.steps)
    assert observed.absent == {} and observed.reason == ""


def test_what_lies_between_update_and_fetch_is_the_updates() -> None:
    script = Script(**DDP)
    script.step()
    script.sleep(50)
    script.step()
    first, second = script.observed().steps
    assert first.stamps[END] == second.stamps[BEGIN] > 50 * MS


def test_of_the_data_the_loaders_take_their_fetches_alone() -> None:
    script = Script(**DDP)
    for _ in range(3):
        script.fetch()
        script.sleep(20)  # augmentation by the script itself, a copy to the device
        script.forward()
        script.fetch()  # a second micro batch
        script.forward()
        script.backward()
        script.update()
    steps = script.observed().steps
    assert [step.stamps[BATCH_READY] - step.stamps[BEGIN] for step in steps] == [22 * MS] * 3
    assert [step.loader_ns for step in steps] == [MS] * 3
    assert [step.later_ns for step in steps] == [MS] * 3


def test_later_fetches_end_with_the_gradients_where_that_is_known() -> None:
    script = Script(**DDP)
    for armed in (False, True, True):
        script.fetch()
        script.forward(armed=armed)
        script.fetch()
        script.backward()
        script.fetch()  # ahead, for the next step
        script.update()
    first, second, _ = script.observed().steps
    assert second.stamps[3] != ABSENT == first.stamps[3]
    assert (second.loader_ns, second.later_ns, first.later_ns) == (MS, MS, 2 * MS)
    assert any(text.startswith("fetches behind the last gradient, ") for text in script.observed().remarks)


def test_of_updates_in_turns_all_fetches_are_data() -> None:
    script = Script(**DDP)
    for optimizer in (1, 2) * 3:
        script.step(optimizer=optimizer)
    assert [step.later_ns for step in script.observed().steps] == [MS] * 3


def test_what_loaders_take_is_not_known_where_none_is_seen() -> None:
    script = Script(**DDP)
    for _ in range(3):
        script.forward()
        script.backward()
        script.update()
    assert [step.loader_ns for step in script.observed().steps] == [ABSENT] * 3


def test_accumulation_is_one_step() -> None:
    script = Script(**DDP)
    last = (0, 0, 0)
    for _ in range(3):
        for micro in range(4):
            last = script.micro(armed=micro == 3)
        script.update()
    observed = script.observed()
    assert [step.backwards for step in observed.steps] == [4, 4, 4]
    assert [step.samples for step in observed.steps] == [32, 32, 32]
    assert observed.steps[-1].stamps[2:5] == last
    assert "4 backwards a step in 2 of the last 2 steps" in observed.remarks
    assert [step.later_ns for step in observed.steps] == [3 * MS] * 3
    script.facts["pipelines"] = [{"schedule": "Schedule1F1B"}]
    assert not any("backwards a step" in remark for remark in script.observed().remarks)


def test_without_a_named_gradient_only_that_stamp_is_absent() -> None:
    script = Script(**DDP)
    script.fetch()
    script.forward()
    script.backward(gradient=False)
    script.update()
    (step,) = script.observed().steps
    assert list(step.absent) == ["grads_ready"]
    assert step.stamps[3] == ABSENT and step.stamps[2] < step.stamps[4]


def test_an_update_that_the_scaler_skips_ends_a_step() -> None:
    script = Script(**DDP)
    for skipped in (False, True, False):
        script.micro()
        script.at(e.SCALER_IN, 1)
        if not skipped:
            script.update()
        script.at(e.SCALER_OUT, 1)
    observed = script.observed()
    assert [step.skipped for step in observed.steps] == [False, True, False]
    assert [step.updates for step in observed.steps] == [(1,), (1,), (1,)]
    assert "the gradient scaler skipped 1 of 3 updates" in observed.remarks


def test_a_scaler_that_is_switched_off_counts_for_nothing() -> None:
    script = Script(**DDP)
    for _ in range(3):
        script.micro()
        script.at(e.SCALER_IN, 0)
        script.update()
        script.at(e.SCALER_OUT, 0)
    observed = script.observed()
    assert [step.skipped for step in observed.steps] == [False] * 3


def test_a_step_with_a_scaler_ends_with_its_update_and_not_with_the_scaler() -> None:
    script = Script(**DDP)
    script.micro()
    script.at(e.SCALER_IN, 1)
    updated = script.update()
    script.at(e.SCALER_OUT, 1)
    (step,) = script.observed().steps
    assert step.stamps[END] == updated


def test_a_scaler_that_is_switched_off_around_an_unseen_update_skips_nothing() -> None:
    script = Script(**DDP)
    for _ in range(3):
        script.micro()
        script.at(e.SCALER_IN, 0)
        script.at(e.SCALER_OUT, 0)
    assert script.observed().steps == ()


def test_the_last_of_several_named_gradients_counts() -> None:
    script = Script(**DDP)
    script.fetch()
    script.forward()
    script.at(e.BACKWARD_IN)
    script.at(e.GRADIENT)
    last = script.at(e.GRADIENT)
    script.at(e.BACKWARD_OUT)
    script.update()
    (step,) = script.observed().steps
    assert step.stamps[3] == last


def test_a_backward_that_raises_leaves_no_inner_stamps() -> None:
    script = Script(size=1)
    script.fetch()
    script.forward()
    script.at(e.BACKWARD_IN)
    script.backward()
    script.update()
    (step,) = script.observed().steps
    assert step.absent["reduced"] == "a backward did not return"


def test_a_validation_batch_in_every_step_is_no_sample() -> None:
    script = Script(**DDP)
    for _ in range(5):
        script.step()
        script.evaluate(1)
    observed = script.observed()
    assert [step.samples for step in observed.steps] == [8] * 5


def test_two_optimizers_at_once_are_one_step() -> None:
    script = Script(**DDP)
    for _ in range(3):
        script.micro()
        script.update(1)
        script.update(2)
    observed = script.observed()
    assert [step.updates for step in observed.steps] == [(1, 2)] * 3
    assert not reasons(observed.steps)


@pytest.mark.parametrize("turns", [(1, 2), (1, 1, 1, 2)])
def test_optimizers_that_take_turns_make_rounds(turns: tuple[int, ...]) -> None:
    script = Script(**DDP)
    for _ in range(4):
        for optimizer in turns:
            script.step(optimizer=optimizer)
    observed = script.observed()
    assert [step.updates for step in observed.steps] == [turns] * 4
    assert set(observed.absent) == set(INNER)
    assert [step.samples for step in observed.steps] == [8 * len(turns)] * 4
    assert starts(observed.steps[1:]) == [step.stamps[END] for step in observed.steps[:-1]]


@pytest.mark.parametrize("period", [3, 12])
def test_an_outer_optimizer_leaves_the_inner_step_the_step(period: int) -> None:
    script = Script(size=1)
    for number in range(1, 4 * period):
        script.step()
        if number % period == 0:
            script.update(2)
    observed = script.observed()
    assert len(observed.steps) == 4 * period - 1
    assert not reasons(observed.steps)
    assert outer_steps(observed.steps) == OuterSteps(optimizers=(2,), count=3, first=period - 1, every=period)
    assert any(f"optimizer 2 (by number) is stepped behind others in 1 of {period}" in x for x in observed.remarks)


@pytest.mark.parametrize("places", [(4, 5, 11), (4,)])
def test_an_outer_optimizer_in_no_order_is_one_too(places: Sequence[int]) -> None:
    script = Script(size=1)
    for number in range(20):
        script.step()
        if number in places:
            script.update(2)
    observed = script.observed()
    assert len(observed.steps) == 20 and outer_steps(observed.steps) == OuterSteps(
        optimizers=(2,), count=len(places), first=4, every=0
    )


@pytest.mark.parametrize("places", [range(12, 20), range(8)])
def test_an_optimizer_that_joins_for_good_or_leaves_is_no_outer_one(places: Sequence[int]) -> None:
    script = Script(size=1)
    for number in range(20):
        script.step()
        if number in places:
            script.update(2)
    observed = script.observed()
    assert len(observed.steps) == 20 and outer_steps(observed.steps) is None
    assert any(text.startswith("the optimizer changes at step ") for text in observed.remarks)


def test_an_update_that_no_hook_saw_ends_with_the_next_fetch() -> None:
    script = Script(size=1)
    ends = []
    for _ in range(4):
        script.micro()
        script.sleep(5)
        script.at(e.UPDATE_OUT, 0, e.UNSEEN)  # noted where the next fetch begins
        ends.append(script.ns + MS)
    observed = script.observed()
    assert [step.stamps[END] for step in observed.steps[:3]] == ends[:3]
    assert not reasons(observed.steps)
    assert any(text.startswith("4 updates that no hook saw, as of torch.compile") for text in observed.remarks)


def test_parameters_that_change_between_backwards_are_no_update_where_hooks_see_them() -> None:
    script = Script(size=1)
    for number in range(4):
        script.fetch()
        for _ in range(3):
            script.forward()
            script.backward()
            if number == 0:
                script.at(e.UPDATE_OUT, 0, e.UNSEEN)
        script.update()
    observed = script.observed()
    assert [step.backwards for step in observed.steps] == [3] * 4
    assert not any("no hook saw" in text for text in observed.remarks)


def test_turns_in_no_pattern_are_not_measured() -> None:
    script = Script(**DDP)
    for optimizer in (1, 2, 2, 1, 1, 1, 2, 1, 2, 1, 1):
        script.step(optimizer=optimizer)
    observed = script.observed()
    assert observed.steps == ()
    assert "no pattern" in observed.reason


def test_a_new_optimizer_is_no_turn() -> None:
    script = Script(**DDP)
    for optimizer in (1, 1, 1, 2, 2):
        script.step(optimizer=optimizer)
    observed = script.observed()
    assert len(observed.steps) == 5
    assert "the optimizer changes at step 3" in observed.remarks


def test_an_optimizer_that_calls_backward_several_times() -> None:
    script = Script(size=1)
    for _ in range(3):
        script.fetch()
        script.at(e.UPDATE_IN, 1)
        for _ in range(3):
            script.forward()
            script.backward()
        script.at(e.UPDATE_OUT, 1)
    observed = script.observed()
    assert len(observed.steps) == 3
    assert reasons(observed.steps) == {"the optimizer calls backward several times in one step"}


def test_the_first_update_with_a_closure_hides_whether_it_called_backward() -> None:
    script = Script(size=1)
    for number in (1, 0):
        script.micro()
        script.forward()
        script.backward()
        script.at(e.UPDATE_OUT, 1, number)
    first, second = script.observed().steps
    assert set(first.absent.values()) == {"whether the optimizer called backward was not yet seen"}
    assert not second.absent


def test_collectives_behind_the_last_update_are_its_steps_where_the_loop_requests_a_batch() -> None:
    script = Script(**DDP)
    for _ in range(3):
        script.step()
        script.collective("all-reduce", size=4)
    requested = script.at(e.FETCH_IN, TRAIN)
    script.at(e.FETCH_END, TRAIN)
    observed = script.observed()
    assert [len(step.collectives) for step in observed.steps] == [1, 1, 1]
    assert observed.steps[-1].stamps[END] == requested


def test_a_batch_that_is_requested_after_something_else_ends_no_step() -> None:
    script = Script(**DDP)
    for _ in range(3):
        updated = script.step()
    script.evaluate()
    script.fetch()
    assert script.observed().steps[-1].stamps[END] == updated


def test_forward_and_backward_inside_the_update_are_a_step() -> None:
    script = Script(size=1)
    for _ in range(3):
        script.fetch()
        script.at(e.UPDATE_IN, 1)
        script.forward()
        script.backward()
        script.at(e.UPDATE_OUT, 1)
    observed = script.observed()
    assert len(observed.steps) == 3
    assert not reasons(observed.steps)


def test_an_optimizer_inside_the_backward() -> None:
    script = Script(size=1)
    for _ in range(3):
        script.fetch()
        script.forward()
        script.at(e.BACKWARD_IN)
        script.update()
        script.update(2)
        returned = script.at(e.BACKWARD_OUT)
    observed = script.observed()
    assert [step.updates for step in observed.steps] == [(0,)] * 3
    assert observed.steps[-1].stamps[END] == returned
    assert reasons(observed.steps) == {"the optimizer works inside the backward"}


def test_stamps_of_a_device_are_not_the_hosts() -> None:
    script = Script(**{**DDP, "devices": ["cuda"]})
    script.step()
    (step,) = script.observed().steps
    assert set(step.absent) == set(INNER)
    assert "cuda" in step.absent["reduced"]


def test_a_step_without_a_known_forward() -> None:
    script = Script(size=1)
    for _ in range(3):
        script.fetch()
        script.backward()
        script.update()
    observed = script.observed()
    assert set(observed.absent) == {STAMPS[BATCH_READY]}


def test_stamps_out_of_order_are_absent() -> None:
    script = Script(size=1)
    script.fetch()
    script.backward()
    script.forward()  # of another model, for its loss alone
    script.update()
    (step,) = script.observed().steps
    assert "the time stamps are not in the order of a step" in step.absent.values()


def test_step_marks_alone_end_steps_where_there_are_any() -> None:
    script = Script(size=1)
    for _ in range(3):
        script.step()
        script.backward()
        script.update()
        script.at(e.STEP_END)
    observed = script.observed()
    assert len(observed.steps) == 3
    assert [step.backwards for step in observed.steps] == [2, 2, 2]


def test_marks_without_anything_else_make_steps() -> None:
    """A step has its batch when the first of each loader is there; later ones are of its accumulation."""
    script = Script()
    for _ in range(3):
        script.fetch()
        script.fetch()
        script.at(e.STEP_END)
    observed = script.observed()
    assert len(observed.steps) == 3 and observed.marked
    assert set(observed.absent) == {*INNER}
    fetches = [event.ns for event in script.events if event.kind == e.FETCH_OUT]
    assert [step.stamps[BATCH_READY] for step in observed.steps] == fetches[::2]


def test_no_event_no_step() -> None:
    observed = Script().observed()
    assert observed.steps == () and observed.reason.startswith("no backward was seen")


def test_backwards_without_an_update_are_no_steps() -> None:
    script = Script(size=1)
    for _ in range(3):
        script.micro()
    assert script.observed().reason.startswith("backwards and no step of an optimizer were seen")


def test_what_follows_the_last_update_is_no_step() -> None:
    script = Script(size=1)
    script.step()
    ended = script.fetch()
    script.forward()
    (step,) = script.observed().steps
    assert step.stamps[END] == ended


def test_a_failed_hook_and_a_full_file_are_stated() -> None:
    script = Script(failed="KeyError: 3", full=True)
    remarks = script.observed().remarks
    assert any("KeyError: 3" in remark for remark in remarks)
    assert any("the file was full" in remark for remark in remarks)


def test_what_only_warm_up_steps_lack_is_an_early_remark() -> None:
    script = Script(**DDP)
    for number in range(6):
        script.fetch()
        script.forward()
        script.backward(gradient=number > 1)
        script.update()
    observed = script.observed()
    (remark,) = (remark for remark in observed.remarks if "absent" in remark)
    assert remark.endswith("whose gradient comes last: 2 of 6 steps")
    assert observed.early_remarks(1) == ()
    assert observed.early_remarks(2) == (remark,)


def test_incomplete_records_are_passed_over() -> None:
    script = Script(size=1)
    script.step()
    script.events.insert(3, e.HookEvent(0, e.NOTHING))
    script.step()
    assert len(script.observed().steps) == 2
