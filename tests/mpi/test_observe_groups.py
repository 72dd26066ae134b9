"""Collectives in groups and messages between ranks, of unchanged scripts on real ranks: which are one meeting."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from hpc.model.groups import MESSAGE, NUMBER, ROOT, Call, RankGroup
from hpc.model.timestamps import ABSENT, END, FORWARD_END, GRADS_READY, REDUCED
from hpc.observe.events import NO_ROOT
from hpc.observe.steps import steps_of
from hpc.run.script_groups import lacking_calls, reduces_by_calls, reduction_of
from hpc.run.script_steps import RankSteps, kinds_of, patterns_of
from tests.mpi.attempts import Attempt, Ranks
from tests.mpi.observed import SCRIPTS, Ended, collectives_of, run
from tests.mpi.script_runs import script_spec


def grouped(folder: Path, kind: str, steps: int = 8, ranks: int = 4) -> Ended:
    ended = run(folder, "groups.py", kind, str(steps), ranks=ranks)
    assert ended.statuses == [0] * ranks, ended.errors
    assert not any("failed" in recorded.facts for recorded in ended.recorded)
    return ended


def steps_by_rank(ended: Ended) -> list[RankSteps]:
    """As the run of a script makes them where ranks call in groups."""
    for each in ended.recorded:
        before = RankSteps(observed=steps_of(each), facts=each.facts)
        assert reduces_by_calls(before, 2, len(ended.recorded))
    return [RankSteps(observed=steps_of(each, by_calls=True), facts=each.facts) for each in ended.recorded]


def all_come(ranks: list[RankSteps]) -> bool:
    """Whether the calls of all ranks match in the steps behind the warm-up."""
    called = [[kinds_of(step) for step in each.steps] for each in ranks]
    return lacking_calls([patterns_of(steps) for steps in called], range(2, len(called[0]) - 1)) == []


def test_each_call_has_its_group_and_each_message_its_pair(tmp_path: Path) -> None:
    ended = grouped(tmp_path, "calls", steps=0)
    by_rank = [
        Counter(Call(call.name, call.root, call.group) for call in collectives_of(each)) for each in ended.recorded
    ]
    tp, dp = RankGroup(ranks=(0, 1), dimension="tp"), RankGroup(ranks=(0, 2), dimension="dp")
    diagonal, three = RankGroup(ranks=(0, 3), dimension="every 3rd rank"), RankGroup(ranks=(0, 1, 3), dimension="ep")

    def message(sender: int, receiver: int, tag: int = 0) -> Call:
        return Call(MESSAGE, sender, RankGroup(ranks=(sender, receiver), dimension="messages", tag=tag))

    assert by_rank[0] == Counter({
        Call("all-reduce", NO_ROOT, tp): 1, Call("broadcast", 1, tp): 1, Call("functional all-reduce", NO_ROOT, tp): 1,
        Call("all-to-all", NO_ROOT, dp): 1, Call("all-to-all", NO_ROOT, tp): 1, Call("barrier", NO_ROOT): 1,
        Call("all-reduce", NO_ROOT, diagonal): 3, Call("all-reduce", NO_ROOT, three): 1,
        message(0, 1): 1, message(3, 0): 1, message(2, 0, tag=5): 1,
    })  # fmt: skip
    assert by_rank[1][Call("all-reduce", NO_ROOT, RankGroup(ranks=(1, 2), dimension="groups of 2 neighbours"))] == 3
    assert by_rank[2][message(2, 3)] == 2 and by_rank[3][message(2, 3)] == 2
    assert by_rank[2][message(2, 0, tag=5)] == 1
    called = [[[*counts.elements()]] for counts in by_rank]
    assert lacking_calls([patterns_of(steps) for steps in called], [0]) == []


@pytest.mark.all
def test_messages_in_a_mesh_of_all_ranks_have_the_name_of_its_dimension(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"steps": 5, "windows": [None]}))
    options = ["--shape", "ring", "--plan", str(plan), "--truth", str(tmp_path / "truth")]
    ended = run(tmp_path, "grouped.py", *options, ranks=2)
    assert ended.statuses == [0, 0], ended.errors
    messages = {call.group for each in ended.recorded for call in collectives_of(each) if call.name == MESSAGE}
    assert messages == {RankGroup(ranks=pair, dimension="cp") for pair in ((0, 1), (1, 0))}


@pytest.mark.all
def test_pairs_meet_in_the_forward_and_ddp_reduces_across_them(tmp_path: Path) -> None:
    ranks = steps_by_rank(grouped(tmp_path, "pairs"))
    for rank, its in enumerate(ranks):
        across = {"by": "wrapper", "ranks": [rank % 2, rank % 2 + 2], "dimension": "dp"}
        assert reduction_of(its.facts, 4) == across
        for step in its.steps[3:]:
            (call,) = step.collectives
            assert call.group == RankGroup(ranks=(rank // 2 * 2, rank // 2 * 2 + 1), dimension="tp")
            assert call.arrives_ns <= call.ends_ns < step.stamps[FORWARD_END] < step.stamps[GRADS_READY]
            assert step.stamps[GRADS_READY] < step.stamps[REDUCED]
    assert all_come(ranks)


@pytest.mark.all
def test_what_hybrid_shards_gather_and_scatter_is_in_their_dimension(tmp_path: Path) -> None:
    ranks = steps_by_rank(grouped(tmp_path, "hybrid"))
    for its in ranks:
        assert reduction_of(its.facts, 4) == {"by": "calls"}
        for step in its.steps[2:]:
            seen = Counter((call.name, call.group and call.group.dimension) for call in step.collectives)
            assert seen[("reduce-scatter", "dp_shard")] == seen[("all-reduce", "dp_replicate")] == 2
            assert seen[("all-gather", "dp_shard")] >= 2 and len(seen) == 3
            assert ABSENT != step.stamps[GRADS_READY] == step.stamps[REDUCED] < step.stamps[END]
    assert all_come(ranks)


@pytest.mark.all
def test_a_pipeline_sends_forth_and_back_and_its_gradients_are_complete_at_the_last_backward(tmp_path: Path) -> None:
    ranks = steps_by_rank(grouped(tmp_path, "pipeline", ranks=2))
    forth, back = RankGroup(ranks=(0, 1), dimension="pp"), RankGroup(ranks=(1, 0), dimension="pp")
    for rank, its in enumerate(ranks):
        shape = {
            "schedule": "Schedule1F1B", "microbatches": 4, "stages": 2, "its_stages": [rank], "layers": 2,
            "ranks": None,
        }  # fmt: skip
        assert its.facts["pipelines"] == [shape]
        for step in its.steps[2:]:
            assert Counter(kinds_of(step)) == Counter({Call(MESSAGE, 0, forth): 4, Call(MESSAGE, 1, back): 4})
            assert step.backwards == 4
            assert step.stamps[GRADS_READY] == step.stamps[REDUCED] != ABSENT
    assert all_come(ranks)


def test_a_trace_has_the_calls_of_each_rank_and_who_did_not_come(ranks: Ranks, tmp_path: Path) -> None:
    run = script_spec(tmp_path, "pipeline", "24", "unanswered", script=SCRIPTS / "groups.py", telemetry="off")
    attempt = Attempt(ranks, tmp_path, run)
    trace = attempt.trace()
    table = trace.calls
    assert table is not None and trace.meetings is not None
    assert [(group.ranks, group.dimension, group.tag) for group in table.groups] == [
        ((0, 1), "pp", 0), ((1, 0), "pp", 0), ((0, 1), "pp", 9),
    ]  # fmt: skip
    assert Counter(table.calls[1, :8, ROOT].tolist()) == {0: 4, 1: 4}
    assert sorted(table.calls[1, :8, NUMBER].tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]
    measured = trace.meetings[:, int(trace.blocks[0, 0]) : int(trace.blocks[-1, 1])]
    assert (measured[1, :, :8] != ABSENT).all()
    (lacking,) = trace.reports[0].as_json()["script"]["lacking_calls"]
    assert (lacking["name"], lacking["ranks"], lacking["missing"]) == (MESSAGE, [0, 1], [1])
    assert "message of ranks 0-1 (pp): rank 1 did not come in" in attempt.done.stderr
    assert all(report.backend_fact("reduction") == {"by": "calls"} for report in trace.reports)
