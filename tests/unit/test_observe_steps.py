"""The rules by which events of an unchanged script become steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from hpc.model.timestamps import ABSENT, BATCH_READY, BEGIN, END, GRADS_READY, INNER, STAMPS
from hpc.observe import events as e
from hpc.observe.events import HookEvent
from hpc.observe.joined_steps import OuterSteps, outer_steps
from tests.unit.observed_events import DDP, MS, Script, reasons, samples


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
    assert samples(observed) == [8] * 4
    assert not any(step.absent or step.pause for step in observed.steps)
    assert observed.absent == {} and observed.reason == ""


def test_the_first_step_begins_with_the_first_event_that_is_one() -> None:
    script = Script(**DDP)
    script.events.append(HookEvent(0, e.NOTHING))
    first = script.at(e.ARMED)
    assert script.play("forward backward update", 3).observed().steps[0].stamps[BEGIN] == first


def test_what_lies_between_update_and_fetch_is_the_updates() -> None:
    script = Script(**DDP).play("step")
    script.sleep(50)
    first, second = script.play("step").observed().steps
    assert first.stamps[END] == second.stamps[BEGIN] > 50 * MS


def test_of_the_data_the_loaders_take_their_fetches_alone() -> None:
    script = Script(**DDP)
    for _ in range(3):
        script.fetch()
        script.sleep(20)  # augmentation by the script itself, a copy to the device
        script.play("forward fetch forward backward update")  # a second micro batch
    steps = script.observed().steps
    assert [step.stamps[BATCH_READY] - step.stamps[BEGIN] for step in steps] == [22 * MS] * 3
    assert [step.loader_ns for step in steps] == [MS] * 3
    assert [step.later_ns for step in steps] == [MS] * 3


def test_later_fetches_end_with_the_gradients_where_that_is_known() -> None:
    script = Script(**DDP)
    for armed in (False, True, True):
        script.fetch()
        script.forward(armed=armed)
        script.play("fetch backward fetch update")  # the last is ahead, for the next step
    first, second, _ = script.observed().steps
    assert second.stamps[GRADS_READY] != ABSENT == first.stamps[GRADS_READY]
    assert (second.loader_ns, second.later_ns, first.later_ns) == (MS, MS, 2 * MS)
    assert any(text.startswith("fetches behind the last gradient, ") for text in script.observed().remarks)


def test_what_loaders_take_is_not_known_where_none_is_seen() -> None:
    observed = Script(**DDP).play("forward backward update", 3).observed()
    assert [step.loader_ns for step in observed.steps] == [ABSENT] * 3


def test_accumulation_is_one_step() -> None:
    script = Script(**DDP)
    last = (0, 0, 0)
    for _ in range(3):
        for micro in range(4):
            last = script.micro(armed=micro == 3)
        script.update()
    observed = script.observed()
    assert [step.backwards for step in observed.steps] == [4, 4, 4]
    assert samples(observed) == [32, 32, 32]
    assert observed.steps[-1].stamps[2:5] == last
    assert "4 backwards a step in 2 of the last 2 steps" in observed.remarks
    assert [step.later_ns for step in observed.steps] == [3 * MS] * 3
    script.facts["pipelines"] = [{"schedule": "Schedule1F1B"}]
    assert not any("backwards a step" in remark for remark in script.observed().remarks)


def test_an_update_that_the_scaler_skips_ends_a_step_and_another_ends_it_before_the_scaler() -> None:
    script = Script(**DDP)
    ends = []
    for skipped in (False, True, False):
        script.micro()
        script.at(e.SCALER_IN, 1)
        ends.append(0 if skipped else script.update())
        script.at(e.SCALER_OUT, 1)
    observed = script.observed()
    assert [step.skipped for step in observed.steps] == [False, True, False]
    assert [step.updates for step in observed.steps] == [(1,), (1,), (1,)]
    assert observed.steps[-1].stamps[END] == ends[-1]
    assert "the gradient scaler skipped 1 of 3 updates" in observed.remarks


@pytest.mark.parametrize(("seen", "skipped"), [(True, [False] * 3), (False, [])])
def test_a_scaler_that_is_switched_off_counts_for_nothing(seen: bool, skipped: list[bool]) -> None:
    script = Script(**DDP)
    for _ in range(3):
        script.micro()
        script.at(e.SCALER_IN, 0)
        script.play("update" if seen else "")
        script.at(e.SCALER_OUT, 0)
    assert [step.skipped for step in script.observed().steps] == skipped


def test_the_last_of_several_named_gradients_counts() -> None:
    script = Script(**DDP).play("fetch forward")
    _, _, last, _ = (script.at(kind) for kind in (e.BACKWARD_IN, e.GRADIENT, e.GRADIENT, e.BACKWARD_OUT))
    (step,) = script.play("update").observed().steps
    assert step.stamps[GRADS_READY] == last


def test_a_backward_that_raises_leaves_no_inner_stamps() -> None:
    script = Script(size=1).play("fetch forward")
    script.at(e.BACKWARD_IN)
    (step,) = script.play("backward update").observed().steps
    assert step.absent["reduced"] == "a backward did not return"


def test_a_validation_batch_in_every_step_is_no_sample() -> None:
    script = Script(**DDP)
    for _ in range(5):
        script.step()
        script.evaluate(1)
    assert samples(script.observed()) == [8] * 5


def test_two_optimizers_at_once_are_one_step() -> None:
    script = Script(**DDP)
    for _ in range(3):
        script.play("micro update")
        script.update(2)
    observed = script.observed()
    assert [step.updates for step in observed.steps] == [(1, 2)] * 3
    assert not reasons(observed.steps)


@pytest.mark.parametrize("turns", [(1, 2), (1, 1, 1, 2)])
def test_optimizers_that_take_turns_make_rounds_whose_fetches_all_are_data(turns: tuple[int, ...]) -> None:
    script = Script(**DDP)
    last = (0, 0, 0)
    for optimizer in turns * 4:
        last = script.micro()
        script.update(optimizer)
    observed = script.observed()
    assert [step.updates for step in observed.steps] == [turns] * 4
    assert not observed.absent and observed.steps[-1].stamps[2:5] == last
    assert [[call.name for call in step.collectives] for step in observed.steps] == (
        [[e.OF_GRADIENTS] * (len(turns) - 1)] * 4
    )
    assert samples(observed) == [8 * len(turns)] * 4
    assert [step.later_ns for step in observed.steps] == [(len(turns) - 1) * MS] * 4
    assert all(before.stamps[END] == after.stamps[BEGIN] for before, after in pairwise(observed.steps))


def with_outer(steps: int, places: Sequence[int]) -> Script:
    """In so many steps a second optimizer is stepped behind the first in these."""
    script = Script(size=1)
    for number in range(steps):
        script.step()
        if number in places:
            script.update(2)
    return script


@pytest.mark.parametrize("period", [3, 12])
def test_an_outer_optimizer_leaves_the_inner_step_the_step(period: int) -> None:
    observed = with_outer(4 * period - 1, range(period - 1, 4 * period - 1, period)).observed()
    assert len(observed.steps) == 4 * period - 1
    assert not reasons(observed.steps)
    assert outer_steps(observed.steps) == OuterSteps(optimizers=(2,), count=3, first=period - 1, every=period)
    assert any(f"optimizer 2 (by number) is stepped behind others in 1 of {period}" in x for x in observed.remarks)


@pytest.mark.parametrize("places", [(4, 5, 11), (4,)])
def test_an_outer_optimizer_in_no_order_is_one_too(places: Sequence[int]) -> None:
    steps = with_outer(20, places).observed().steps
    assert len(steps) == 20
    assert outer_steps(steps) == OuterSteps(optimizers=(2,), count=len(places), first=4, every=0)


@pytest.mark.parametrize("places", [range(12, 20), range(8)])
def test_an_optimizer_that_joins_for_good_or_leaves_is_no_outer_one(places: Sequence[int]) -> None:
    observed = with_outer(20, places).observed()
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
    script = Script(size=1).play("fetch")
    for _ in range(3):
        script.play("forward backward")
        script.at(e.UPDATE_OUT, 0, e.UNSEEN)
    script.play("update").play("fetch forward backward forward backward forward backward update", 3)
    observed = script.observed()
    assert [step.backwards for step in observed.steps] == [3] * 4
    assert not any("no hook saw" in text for text in observed.remarks)


@pytest.mark.parametrize(
    ("turns", "steps", "text"),
    [
        ((1, 2, 2, 1, 1, 1, 2, 1, 2, 1, 1), 0, "optimizers are stepped in no pattern that repeats"),
        ((1, 1, 1, 2, 2), 5, "the optimizer changes at step 3"),
    ],
)
def test_turns_in_no_pattern_are_not_measured_and_a_new_optimizer_is_no_turn(
    turns: Sequence[int], steps: int, text: str
) -> None:
    script = Script(**DDP)
    for optimizer in turns:
        script.step(optimizer=optimizer)
    observed = script.observed()
    assert len(observed.steps) == steps
    assert any(each.startswith(text) for each in (observed.reason, *observed.remarks))


@pytest.mark.parametrize("backwards", [1, 3])
def test_forward_and_backward_inside_the_update_are_a_step_whose_last_backward_counts(backwards: int) -> None:
    script = Script(size=1)
    returned = 0
    for _ in range(3):
        script.fetch()
        for _ in range(backwards):
            script.forward()
            *_, returned = script.backward()
        script.at(e.UPDATE_OUT, 1)
    observed = script.observed()
    assert len(observed.steps) == 3 and not reasons(observed.steps)
    assert observed.steps[-1].stamps[3] == returned


def test_collectives_behind_the_last_update_are_its_steps_where_the_loop_requests_a_batch() -> None:
    script = Script(**DDP)
    for _ in range(3):
        script.step()
        script.collective("all-reduce", size=4)
    requested = script.exhaust()
    observed = script.observed()
    assert [len(step.collectives) for step in observed.steps] == [1, 1, 1]
    assert observed.steps[-1].stamps[END] == requested


def test_a_batch_that_is_requested_after_something_else_ends_no_step() -> None:
    script = Script(**DDP).play("step step")
    updated = script.step()
    assert script.play("evaluate fetch").observed().steps[-1].stamps[END] == updated


def test_an_optimizer_inside_the_backward() -> None:
    script = Script(size=1)
    for _ in range(3):
        script.play("fetch forward")
        script.at(e.BACKWARD_IN)
        script.update()
        script.update(2)
        returned = script.at(e.BACKWARD_OUT)
    observed = script.observed()
    assert [step.updates for step in observed.steps] == [(0,)] * 3
    assert observed.steps[-1].stamps[END] == returned
    assert observed.steps[-1].stamps[3] == returned and not reasons(observed.steps)


def test_stamps_of_a_device_are_not_the_hosts() -> None:
    (step,) = Script(**{**DDP, "devices": ["cuda"]}).play("step").observed().steps
    assert set(step.absent) == set(INNER)
    assert "cuda" in step.absent["reduced"]


def test_a_step_without_a_known_forward() -> None:
    observed = Script(size=1).play("fetch backward update", 3).observed()
    assert set(observed.absent) == {STAMPS[BATCH_READY]}


def test_stamps_out_of_order_are_absent() -> None:
    (step,) = Script(size=1).play("fetch backward forward update").observed().steps  # of another model, for its loss
    assert "the time stamps are not in the order of a step" in step.absent.values()


def test_step_marks_alone_end_steps_where_there_are_any() -> None:
    observed = Script(size=1).play("step backward update mark", 3).observed()
    assert [step.backwards for step in observed.steps] == [2, 2, 2]


def test_marks_without_anything_else_make_steps() -> None:
    """A step has its batch when the first of each loader is there; later ones are of its accumulation."""
    script = Script().play("fetch fetch mark", 3)
    observed = script.observed()
    assert len(observed.steps) == 3 and observed.marked
    assert set(observed.absent) == {*INNER}
    fetches = [event.ns for event in script.events if event.kind == e.FETCH_OUT]
    assert [step.stamps[BATCH_READY] for step in observed.steps] == fetches[::2]


@pytest.mark.parametrize(
    ("moves", "reason"),
    [("", "no backward was seen"), ("micro micro micro", "backwards and no step of an optimizer were seen")],
)
def test_no_update_no_step(moves: str, reason: str) -> None:
    observed = Script(size=1).play(moves).observed()
    assert observed.steps == () and observed.reason.startswith(reason)


def test_what_follows_the_last_update_is_no_step() -> None:
    script = Script(size=1).play("step")
    ended = script.fetch()
    (step,) = script.play("forward").observed().steps
    assert step.stamps[END] == ended


def test_a_failed_hook_and_a_full_file_are_stated() -> None:
    remarks = Script(failed="KeyError: 3", full=True).observed().remarks
    assert any("KeyError: 3" in remark for remark in remarks)
    assert any("the file was full" in remark for remark in remarks)


def test_what_only_warm_up_steps_lack_is_an_early_remark_and_that_stamp_alone_is_absent() -> None:
    script = Script(**DDP)
    for number in range(6):
        script.play("fetch forward")
        script.backward(gradient=number > 1)
        script.update()
    observed = script.observed()
    first = observed.steps[0]
    assert list(first.absent) == ["grads_ready"] and first.stamps[2] < first.stamps[4]
    assert first.stamps[GRADS_READY] == ABSENT
    (remark,) = (remark for remark in observed.remarks if "not known when gradients were complete: " in remark)
    assert remark.endswith("whose gradient comes last: 2 of 6 steps")
    assert observed.early_remarks(1) == ()
    assert observed.early_remarks(2) == (remark,)


def test_what_a_step_has_after_its_update_is_known() -> None:
    script = Script(size=1)
    returned = script.step()
    script.sleep(7)  # an average of the weights, say
    requested = script.fetch()
    script.play("forward backward update")
    first, second = script.observed().steps
    assert (first.updated_ns, first.after_ns) == (returned, requested - returned)
    assert first.after_ns == 8 * MS and second.after_ns == 0


def test_incomplete_records_are_passed_over() -> None:
    script = Script(size=1).play("step")
    script.events.insert(3, e.HookEvent(0, e.NOTHING))
    assert len(script.play("step").observed().steps) == 2
