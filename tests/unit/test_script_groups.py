"""Calls in groups: which are one meeting, and who did not come to one."""

from __future__ import annotations

from dataclasses import replace

from hpc.model.groups import MESSAGE, NAME, NUMBER, Call, CallTable, RankGroup
from hpc.observe.events import NO_ROOT, UNCLEAR, GroupRecord
from hpc.run.script_groups import (
    are_grouped,
    grouped_collectives,
    in_run,
    lacking_calls,
    place_in_world,
    reduces_by_calls,
    reduction_of,
    unseen_in_graphs,
    without_groups,
    worlds_of,
)
from hpc.run.script_steps import RankSteps, kinds_of, patterns_of
from tests.unit.observed_events import DDP, Script

TP = RankGroup(ranks=(0, 1), dimension="tp")
ALL = Call("all-reduce", NO_ROOT)
GATHER = Call("all-gather", NO_ROOT, TP)
SENT = Call(MESSAGE, 0, RankGroup(ranks=(0, 2), dimension="pp"))


def test_groups_of_all_ranks_are_none() -> None:
    whole = Call("all-gather", NO_ROOT, RankGroup(ranks=(0, 1), dimension="tp"))
    assert not are_grouped([(whole, ALL)], ranks=2)
    assert without_groups([(whole, ALL)]) == [(Call("all-gather", NO_ROOT), ALL)]
    assert are_grouped([(), (whole,)], ranks=4) and not are_grouped([(), (ALL,)], ranks=4)
    assert are_grouped([(Call(MESSAGE, 0, RankGroup(ranks=(0, 1))),)], ranks=2)


def test_a_call_is_known_by_how_many_of_its_like_are_before_it_in_the_step() -> None:
    steps = [(GATHER, ALL), (GATHER, GATHER, ALL), (GATHER, ALL), (GATHER, ALL, SENT)]
    collectives = grouped_collectives(steps, range(4))
    assert collectives.kinds == (GATHER, GATHER, ALL, SENT)
    assert collectives.columns == [(0, 2), (0, 1, 2), (0, 2), (0, 2, 3)]
    assert not collectives.unmatched
    table = CallTable.of([collectives.kinds, [GATHER, GATHER, ALL], [ALL, SENT]])
    assert table.calls[0, :3, NUMBER].tolist() == table.calls[1, :3, NUMBER].tolist() == [0, 1, 0]
    assert table.calls[2, 0].tolist() == table.calls[0, 2].tolist()
    assert table.names[table.calls[2, 1, NAME]] == MESSAGE


def test_steps_that_call_in_another_order_than_most_are_recorded_on_no_rank() -> None:
    steps = [(GATHER, ALL), (GATHER, ALL), (ALL, GATHER)]
    collectives = grouped_collectives(steps, range(3))
    assert collectives.columns == [(0, 1), (0, 1), (None, None)]
    assert collectives.unmatched == {"calls in another order than in most": [2]}
    of_other = grouped_collectives([(ALL,)] * 3, range(3), other_order=[2])
    assert of_other.columns == [(0,), (0,), (None,)]
    assert of_other.unmatched == {"calls in another order than in most": [2]}


def test_who_did_not_come_to_a_call_is_named_with_the_steps() -> None:
    whole = [(GATHER, GATHER, ALL)] * 5
    late = [(GATHER, ALL) if step in (2, 4) else (GATHER, GATHER, ALL) for step in range(5)]
    others = [(ALL, SENT) if step == 3 else (ALL,) for step in range(5)]
    of_gather, of_message = lacking_calls([patterns_of(whole), patterns_of(late), patterns_of(others)], range(1, 5))
    assert (of_gather.call, of_gather.missing, of_gather.steps) == (GATHER, (1,), (2, 4))
    assert str(of_gather) == "all-gather of ranks 0-1 (tp): rank 1 did not come in 2 steps, first in step 2"
    assert (of_message.call, of_message.missing, of_message.steps) == (SENT, (0,), (3,))
    assert of_message.as_json() == {
        "name": MESSAGE, "dimension": "pp", "ranks": [0, 2], "missing": [0], "steps": 1, "first_step": 3,
    }  # fmt: skip
    assert lacking_calls([patterns_of(whole)] * 2, range(5)) == []


def test_collectives_in_compiled_graphs_are_those_of_torchs_record_beyond_what_was_seen() -> None:
    script = Script(compiled=True)
    for _ in range(4):
        script.step()
        script.collective("functional all-reduce")
        script.collective(MESSAGE)
    steps = script.observed().steps[:3]
    record = {"kinds": [{"per_step": 2.0}, {"per_step": 1.0}]}
    assert unseen_in_graphs(script.facts, record, steps) == ["2 collectives a step in compiled graphs"]
    assert unseen_in_graphs(script.facts, {"kinds": [{"per_step": 1.0}]}, steps) == []
    assert unseen_in_graphs({"compiled": False}, record, steps) == []
    assert unseen_in_graphs(script.facts, {}, steps) == [
        "collectives of compiled graphs, of which torch kept no record"
    ]


def test_groups_that_change_in_mid_run_are_calls_of_the_steps_that_have_them() -> None:
    other = Call("all-gather", NO_ROOT, RankGroup(ranks=(0, 2), dimension="tp"))
    steps = [(GATHER, ALL)] * 3 + [(other, ALL)] * 2
    collectives = grouped_collectives(steps, range(5))
    assert {*collectives.columns[0]} == {*collectives.columns[2]} and not collectives.unmatched
    assert {collectives.kinds[place or 0] for place in collectives.columns[4]} == {other, ALL}
    of_second, of_third = [(GATHER, ALL)] * 3 + [(ALL,)] * 2, [(ALL,)] * 3 + [(other, ALL)] * 2
    assert lacking_calls([patterns_of(its) for its in (steps, of_second, of_third)], range(5)) == []


def test_ranks_of_several_worlds_are_those_of_the_run() -> None:
    places = [place_in_world({"rank": at % 2, "size": 2, "rendezvous": f"here:{at // 2}"}, at, 4) for at in range(4)]
    assert worlds_of(places) == [(0, 1), (0, 1), (2, 3), (2, 3)]
    assert worlds_of([place_in_world({}, rank, 4) for rank in range(4)]) == [(0, 1, 2, 3)] * 4
    same = [place_in_world({"rank": at % 2, "size": 2, "rendezvous": "here"}, at, 4) for at in range(4)]
    assert worlds_of(same) == [()] * 4
    script = Script(**DDP, ddp_groups=[{"ranks": None, "dimension": "dp"}])
    for _ in range(3):
        script.step()
        script.collective("all-reduce")
        script.collective("broadcast", root=1)
        script.collective(MESSAGE, root=0, group=GroupRecord((0, 1), "pp", 3))
    recorded = RankSteps(observed=script.observed(), facts=script.facts)
    assert in_run(recorded, range(4), 4) is recorded
    moved = in_run(recorded, (2, 3), 4)
    whole = RankGroup(ranks=(2, 3), dimension="world")
    assert kinds_of(moved.steps[0]) == (
        Call("all-reduce", NO_ROOT, whole), Call("broadcast", 3, whole),
        Call(MESSAGE, 2, RankGroup(ranks=(2, 3), dimension="pp", tag=3)),
    )  # fmt: skip
    assert reduction_of(moved.facts, 4) == {"by": "wrapper", "ranks": [2, 3], "dimension": "dp"}
    assert reduces_by_calls(moved, 0, 4) and not reduces_by_calls(replace(recorded, facts=DDP), 5, 4)
    unknown = kinds_of(in_run(recorded, (), 4).steps[0])
    assert {(call.root, call.group) for call in unknown} == {(UNCLEAR, None)}
    assert kinds_of(in_run(recorded, (1,), 4).steps[0]) == ()
