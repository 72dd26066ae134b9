"""Which collectives of an unchanged script end a reduction, and in which step they are."""

from __future__ import annotations

from typing import Any

import pytest

from hpc.model.timestamps import ABSENT, INNER
from hpc.observe import events as e
from hpc.observe.events import GroupRecord
from hpc.run.script_groups import reduces_by_calls, reduction_of
from hpc.run.script_steps import RankSteps
from tests.unit.observed_events import DDP, Script, reasons


@pytest.mark.parametrize("armed", [False, True])
def test_the_last_reduction_of_a_step_is_its_stamps_and_each_before_a_collective(armed: bool) -> None:
    script = Script(**DDP)
    first = last = (0, 0, 0)
    for _ in range(3):
        first = script.micro()
        last = script.micro(armed=armed)  # accumulation without no_sync; two backwards behind one forward
        script.update()
    observed = script.observed()
    assert not observed.absent
    assert observed.steps[-1].stamps[2:5] == (last if armed else first)
    assert [(call.name, call.arrives_ns, call.waits_ns, call.ends_ns) for call in observed.steps[-1].collectives] == (
        [(e.OF_GRADIENTS, first[1], first[1], first[2])] if armed else []
    )


@pytest.mark.parametrize("hooked", [False, True])
def test_of_ddp_with_a_communication_hook_a_rank_arrives_with_the_first_call_behind_its_last_gradient(
    hooked: bool,
) -> None:
    script = Script(**DDP, comm_hook=hooked)
    gradient, called, returned = 0, (0,), 0
    for calls in (2, 2, 0, 2):
        script.play("fetch forward")
        script.at(e.BACKWARD_IN)
        script.collective("all-reduce", waited=False)  # of an earlier bucket
        gradient = script.at(e.GRADIENT)
        for call in range(calls):
            script.sleep(40)
            its = script.collective("all-reduce", waited=False)
            called = its if call == 0 else called
        returned = script.at(e.BACKWARD_OUT)
        script.update()
        assert script.observed().steps[-1].stamps[3:5] == (called[0] if hooked and calls else gradient, returned)


def test_models_that_reduce_in_one_backward_are_ready_with_the_last_and_each_reduces_in_its_own() -> None:
    """Both are armed before the first backward: a model reduces where its own last gradient comes."""
    script = Script(**DDP)
    backwards: list[tuple[int, ...]] = []
    for together in (True, True, False):
        script.fetch()
        for model in (1, 2):
            script.at(e.FORWARD_IN)
            script.at(e.ARMED, model, 100 * model)
        for models in [(1, 2)] if together else [(2,), (1,)]:
            began = script.at(e.BACKWARD_IN)
            backwards.append((began, *(script.at(e.GRADIENT, each) for each in models), script.at(e.BACKWARD_OUT)))
        script.update()
    _, joint, separate = script.observed().steps
    assert joint.stamps[2:5] == (backwards[1][0], *backwards[1][2:]) and not joint.collectives
    assert separate.stamps[2:5] == backwards[3]
    assert [(call.arrives_ns, call.ends_ns, call.bytes) for call in separate.collectives] == [(*backwards[2][1:], 200)]


def test_a_model_of_which_the_last_gradient_is_not_yet_seen_leaves_it_open_when_all_are_ready() -> None:
    script = Script(**DDP)
    for number in range(3):
        script.fetch()
        for model in (1, 2):
            script.at(e.FORWARD_IN)
            script.at(e.ARMED, model)
        script.at(e.BACKWARD_IN)
        script.at(e.GRADIENT, 1)
        if number:
            script.at(e.GRADIENT, 2)
        script.at(e.BACKWARD_OUT)
        script.update()
    first, *others = script.observed().steps
    assert first.absent == {"grads_ready": "DDP had not yet named the parameter whose gradient comes last"}
    assert not reasons(tuple(others))


@pytest.mark.parametrize(
    ("armed", "reason"),
    [
        (False, "DDP reduces in no backward of the step"),
        (True, "the gradient that DDP had named as the last did not come"),
    ],
)
def test_a_step_in_which_no_reduction_is_seen_has_no_inner_stamps(armed: bool, reason: str) -> None:
    script = Script(**DDP).play("step step step fetch")
    script.forward(armed=armed)
    script.backward(gradient=False)
    *others, last = script.play("update").observed().steps
    assert reasons((last,)) == {reason} and set(last.absent) == set(INNER)
    assert not reasons(tuple(others))


def test_of_ddp_with_the_optimizer_inside_the_backward_the_end_of_the_reduction_is_not_known() -> None:
    script = Script(**DDP)
    grads = 0
    for _ in range(3):
        script.play("fetch forward")
        script.at(e.BACKWARD_IN)
        grads = script.at(e.GRADIENT)
        script.update()
        script.at(e.BACKWARD_OUT)
    step = script.observed().steps[-1]
    assert step.stamps[3:5] == (grads, ABSENT)
    assert step.absent == {"reduced": "the optimizer works inside the backward"}


def test_fsdp_has_its_gradients_at_the_last_reduce_scatter() -> None:
    script = Script(size=2, sharded=True)
    scattered: tuple[int, ...] = ()
    for _ in range(3):
        script.play("fetch forward")
        script.collective("all-gather")
        script.at(e.BACKWARD_IN)
        script.collective("reduce-scatter", waited=False)
        scattered = script.collective("reduce-scatter")
        script.at(e.BACKWARD_OUT)
        script.update()
    observed = script.observed()
    assert observed.steps[-1].stamps[3] == scattered[0]
    last = observed.steps[-1].collectives
    assert [call.name for call in last] == ["all-gather", "reduce-scatter", "reduce-scatter"]
    assert (last[2].arrives_ns, last[2].waits_ns, last[2].ends_ns) == scattered
    assert (last[1].waits_ns, last[1].ends_ns) == (ABSENT, ABSENT)
    assert last[0].bytes == 64


@pytest.mark.parametrize(("size", "seen"), [(100, True), (99, False)])
def test_all_reduces_by_hand_count_from_the_bytes_of_the_gradients_on(size: int, seen: bool) -> None:
    script = Script(size=2, gradient_bytes=100)
    for _ in range(3):
        script.micro()
        called, *_, done = script.collective("all-reduce", size=size)
        script.update()
    observed = script.observed()
    if seen:
        assert observed.steps[-1].stamps[3:5] == (called, done)
    else:
        assert reasons(observed.steps) == {"nothing was seen that reduces the gradients"}


def test_ranks_that_train_alone_reduce_nothing() -> None:
    observed = Script(size=1, joined=False, world_size=4).play("step step").observed()
    assert observed.steps[0].stamps[3] == observed.steps[0].stamps[4] != ABSENT
    assert "WORLD_SIZE is 4, but it is in no process group: it trains alone" in observed.remarks


def test_a_collective_after_the_update_is_in_the_step_it_ends() -> None:
    script = Script(**DDP).play("step")
    script.collective("all-reduce")  # of the loss, to be logged
    first, second = script.play("step").observed().steps
    assert [call.name for call in first.collectives] == ["all-reduce"]
    assert second.collectives == ()


def test_collectives_of_an_evaluation_are_in_no_step() -> None:
    script = Script(**DDP).play("step step step evaluate")
    script.collective("all-gather")
    script.evaluate(1)
    assert not any(step.collectives for step in script.play("step step step").observed().steps)


def test_where_calls_reduce_a_ranks_gradients_are_complete_when_its_last_backward_returns() -> None:
    script = Script(size=4, gradient_bytes=64)
    dp, pp = GroupRecord((0, 2), "dp"), GroupRecord((0, 1), "pp")
    last = returned = 0
    for _ in range(3):
        script.fetch()
        for _ in range(2):
            script.forward()
            script.collective("message", root=0, group=pp)
            last, _, returned = script.backward()
        script.collective("reduce-scatter", group=dp)
        script.collective("all-reduce")
        script.update()
    observed = script.observed(by_calls=True)
    assert observed.steps[-1].stamps[2:5] == (last, returned, returned) and not observed.absent
    groups = [call.group and (call.group.ranks, call.group.dimension) for call in observed.steps[-1].collectives]
    assert groups == [((0, 1), "pp")] * 2 + [((0, 2), "dp"), None]


@pytest.mark.parametrize(
    ("ddp_groups", "wrapper"),
    [
        ([{"ranks": [0, 2], "dimension": "dp"}], {"by": "wrapper", "ranks": [0, 2], "dimension": "dp"}),
        ([{"ranks": None, "dimension": "dp"}], {"by": "wrapper", "ranks": [0, 1, 2, 3], "dimension": "dp"}),
        ([{"ranks": [0], "dimension": "dp"}], {"by": "calls"}),
        ([], {"by": "calls"}),
    ],
)
def test_ddp_reduces_in_its_group_where_that_has_several_ranks(
    ddp_groups: list[dict[str, Any]], wrapper: dict[str, Any]
) -> None:
    script = Script(**DDP, ddp_groups=ddp_groups)
    last = gradient = returned = 0
    for _ in range(3):
        script.play("fetch forward")
        script.collective("all-gather", group=GroupRecord((0, 1), "tp"))
        last, gradient, returned = script.backward()
        script.update()
    assert reduction_of(script.facts, ranks=4) == wrapper
    complete = returned if wrapper["by"] == "calls" else gradient
    assert script.observed(by_calls=True).steps[-1].stamps[2:5] == (last, complete, returned)


def test_other_reductions_than_those_between_all_ranks_need_the_calls_of_each_rank() -> None:
    def needs(name: str, *, facts: dict[str, Any], group: GroupRecord | None = None, early: bool = False) -> bool:
        script = Script(**facts)
        for number in range(6):
            script.micro()
            if not early or number < 2:
                script.collective(name, group=group)
            script.update()
        return reduces_by_calls(RankSteps(observed=script.observed(), facts=script.facts), warmup_steps=2, ranks=2)

    by_hand = {"size": 2, "gradient_bytes": 64}
    whole = [{"ranks": None, "dimension": "dp"}]
    assert not needs("all-reduce", facts=by_hand)
    assert needs("reduce-scatter", facts=by_hand)
    assert needs("all-reduce", facts={"size": 2, "gradient_bytes": 65})
    assert not needs("all-reduce", facts={**DDP, "ddp_groups": whole})
    assert needs("all-to-all", facts={**DDP, "ddp_groups": whole})
    assert needs("all-reduce", facts={**DDP, "ddp_groups": [{"ranks": [0, 2], "dimension": "dp"}]})
    assert needs("all-reduce", facts={**DDP, "ddp_groups": whole}, group=GroupRecord((1,), "tp"))
    assert not needs("all-reduce", facts={**DDP, "ddp_groups": whole}, group=GroupRecord((1,), "tp"), early=True)
