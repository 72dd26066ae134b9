"""The ledger of ranks in several groups: terms that add up, by dimension, and what is left out of them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from hpc.model.groups import MESSAGE, Call, CallTable, RankGroup
from hpc.model.spec import SCRIPT, UNKNOWN, script_blocks
from hpc.model.timestamps import ABSENT
from hpc.model.trace import Trace, TraceError
from parse.graph.step_graph import step_calls
from parse.ledger.breakdown import step_breakdown
from parse.ledger.first_steps import first_steps_of_point
from parse.ledger.graph_what_if import ReplayCase
from parse.ledger.types import Change
from parse.ledger.what_if import replayed_speeds
from parse.term_kinds import TERMS
from tests.unit.simulated import draw_clocks
from tests.unit.simulated_graph import Delay, Mesh, Model, SimulatedGraph, simulate_graph
from tests.unit.test_graph import MESHES
from tests.unit.traces import make_run, make_trace

MS = 1_000_000


def simulated(mesh: Mesh, model: Model, *, clocks: bool = True, steps: int = 24) -> SimulatedGraph:
    run = make_run(ranks_per_node=mesh.ranks // 2, nodes=2, measured_steps=steps)
    generator = np.random.default_rng(5)
    return simulate_graph(
        mesh, model, generator, run=run, clocks=draw_clocks(generator, 2) if clocks else (), bound_ns=1e4 * clocks
    )


@pytest.mark.parametrize(("mesh", "model"), MESHES)
def test_the_five_terms_are_the_sums_of_the_dimensions(mesh, model):
    truth = simulated(mesh, model)
    breakdown = step_breakdown(truth.trace)
    assert breakdown.merged is None and not breakdown.problems and not breakdown.unmatched
    steps_ns = np.diff(truth.trace.global_stamps(4, 29)[:, :, 5]).mean(axis=1)
    assert breakdown.rank_ns.sum(axis=1) == pytest.approx(steps_ns, abs=1e-3)
    by_dimension = sum(times.rank_ns for times in breakdown.by_dimension.values())
    assert breakdown.rank_ns[:, 2:4] == pytest.approx(by_dimension, abs=1e-3)
    of_pieces = sum(times.piece_ns for times in breakdown.by_dimension.values())
    assert breakdown.piece_ns[:, 2:4] == pytest.approx(of_pieces, abs=1e-3)
    work = truth.work_ns[:, 5:29].mean(axis=1)
    assert abs(breakdown.rank_ns[:, [0, 1, 4]] - work).max() < 100_000


def test_a_meeting_of_every_third_step_counts_in_these():
    truth = simulated(Mesh(dp=4), Model(gathers=True, reduce_every=3), clocks=False)
    breakdown = step_breakdown(truth.trace)
    of_truth = np.stack([truth.wait_ns, truth.communication_ns], axis=3)[:, 5:29].mean(axis=1)[:, 0]
    assert breakdown.by_dimension["dp"].rank_ns == pytest.approx(of_truth)
    assert not breakdown.unmatched


def test_a_meeting_to_which_not_all_come_holds_nobody_and_is_named():
    truth = simulated(Mesh(dp=2, tp=2), Model(layers=1, micro_batches=1), clocks=False)
    meetings = truth.trace.meetings.copy()
    meetings[3, 10:12, 0] = ABSENT
    breakdown = step_breakdown(dataclasses.replace(truth.trace, meetings=meetings))
    assert breakdown.unmatched == ("all-reduce 1 of ranks 2, 3 (tp), to which rank 3 does not come in 2 of 24",)
    whole = step_breakdown(truth.trace)
    assert breakdown.rank_ns.sum(axis=1) == pytest.approx(whole.rank_ns.sum(axis=1))
    assert (breakdown.by_dimension["tp"].rank_ns[:2] == whole.by_dimension["tp"].rank_ns[:2]).all()


def test_a_wrapper_that_reduces_in_a_group_is_a_meeting_of_that_group():
    truth = simulated(Mesh(dp=4, tp=2), Model(wrapper=True), clocks=False)
    breakdown = step_breakdown(truth.trace)
    assert [*breakdown.by_dimension] == ["dp", "tp"]
    in_dp = np.stack([truth.wait_ns, truth.communication_ns], axis=3)[:, 5:29, 0].mean(axis=1)
    assert breakdown.by_dimension["dp"].rank_ns == pytest.approx(in_dp)


def test_without_a_word_of_who_reduces_all_ranks_do():
    truth = simulated(Mesh(dp=2, tp=2), Model(wrapper=True, spread=0.2), clocks=False)
    unknown = [{name: value for name, value in facts.items() if name != "backend"} for facts in truth.trace.ranks]
    breakdown = step_breakdown(dataclasses.replace(truth.trace, ranks=unknown))
    assert [*breakdown.by_dimension] == ["tp", "all ranks"]
    grads_ns, reduced_ns = truth.stamps_ns[:, 5:29, 3], truth.stamps_ns[:, 5:29, 4]
    waited = np.minimum(reduced_ns, grads_ns.max(axis=0)) - grads_ns
    assert breakdown.by_dimension["all ranks"].rank_ns[:, 0] == pytest.approx(waited.mean(axis=1))


def test_a_training_whose_gradients_are_not_reduced_has_all_terms():
    mesh, model = Mesh(dp=2, tp=2), Model()
    run = make_run(ranks_per_node=4, measured_steps=12, reduction="off")
    truth = simulate_graph(mesh, model, np.random.default_rng(1), run=run)
    breakdown = step_breakdown(truth.trace)
    assert breakdown.merged is None and [*breakdown.by_dimension] == ["dp", "tp"]


@pytest.mark.parametrize("stamp", [1, 3, 4], ids=["batch_ready", "grads_ready", "reduced"])
def test_a_step_without_a_stamp_is_in_no_term_and_no_replay_and_the_others_are_as_they_were(stamp):
    truth = simulated(Mesh(pp=2, dp=2), Model(), clocks=False)
    stamps = truth.trace.stamps.copy()
    stamps[1, 9, stamp] = ABSENT
    trace = dataclasses.replace(truth.trace, stamps=stamps)
    breakdown = step_breakdown(trace)
    assert breakdown.merged is not None and breakdown.merged.unsplit is not None
    assert (breakdown.merged.unsplit.steps, breakdown.merged.unsplit.of_steps) == (1, 24)
    others = np.delete(np.arange(5, 29), 4)
    work = truth.work_ns[:, others].mean(axis=1)
    assert abs(breakdown.rank_ns[:, [0, 1, 4]] - work).max() < 100_000
    assert breakdown.rank_ns[:, 2:4] == pytest.approx(
        sum(times.rank_ns for times in breakdown.by_dimension.values()), abs=1e-3
    )
    terms, case = {*TERMS}, ReplayCase(change=Change.COMMUNICATION)
    recorded, whole = (
        replayed_speeds(each, terms, [ReplayCase(change=Change.STRAGGLER), case], [[]], in_groups=True)
        for each in (trace, truth.trace)
    )
    assert recorded == pytest.approx(whole, rel=0.01)


def test_where_no_batch_is_seen_data_is_a_part_of_compute():
    truth = simulated(Mesh(pp=2, dp=2), Model(), clocks=False)
    stamps = truth.trace.stamps.copy()
    stamps[1, 5:, 1] = ABSENT
    breakdown = step_breakdown(dataclasses.replace(truth.trace, stamps=stamps))
    whole = step_breakdown(truth.trace)
    assert breakdown.merged is not None and "batch_ready" not in breakdown.borders
    assert breakdown.rank_ns[:, 0] == pytest.approx(0)
    assert breakdown.rank_ns[:, 1] == pytest.approx(whole.rank_ns[:, :2].sum(axis=1))
    assert breakdown.rank_ns[:, 2:] == pytest.approx(whole.rank_ns[:, 2:])


@pytest.mark.parametrize(("rank", "phase"), [(3, "forward"), (0, "data"), (None, "")])
def test_who_is_late_in_the_first_steps_behind_pauses_is_named_among_its_peers(rank, phase):
    mesh, paused = Mesh(dp=4, tp=2), np.arange(20, 200, 12)
    run = make_run(ranks_per_node=mesh.ranks, warmup_steps=6, measured_steps=200)
    behind = np.isin(np.arange(run.steps), paused)
    delays = [] if rank is None else [Delay(ranks=(rank,), phase=phase, ns=20 * MS, steps=behind)]
    truth = simulate_graph(mesh, Model(layers=1), np.random.default_rng(3), run=run, delays=delays).trace
    pause = 30 * MS * np.cumsum(behind)
    stamps = np.where(truth.stamps == ABSENT, ABSENT, truth.stamps + pause[None, :, None])
    meetings = np.where(truth.meetings == ABSENT, ABSENT, truth.meetings + pause[None, :, None, None])
    facts = [{"step": step, "kind": "evaluation", "seconds": 0.03} for step in paused.tolist()]
    trace = dataclasses.replace(
        truth, stamps=stamps, meetings=meetings, run_id="", point_id="",
        run=dataclasses.replace(run, backend=SCRIPT, workload="/here/train.py", batch_size=0, precision=UNKNOWN),
        blocks=np.array(script_blocks(run.warmup_steps, run.steps, tuple(paused.tolist())), np.int64),
        ranks=[{**its, "script": {"pauses": facts}} for its in truth.ranks],
    )  # fmt: skip
    findings = first_steps_of_point([step_breakdown(trace)])
    assert [its.ranks for its in findings] == ([] if rank is None else [(rank,)])
    for its in findings:
        assert (its.steps, its.times) == (1, len(paused))
        assert its.costs == pytest.approx(20 * len(paused) / 200, rel=0.1)


# Of few calls with known times, at nobody's mercy: each rank works, calls, and has the result.


def made(ranks: int, steps: Sequence[Sequence[tuple[Call, Mapping[int, tuple[int, int]]]]]) -> Trace:
    """A training of steps of 100 ms, whose calls are at (arrival, end) ms of some ranks; each step has its own calls.

    The gradients are ready where the step ends.
    """
    run = make_run(ranks_per_node=ranks, warmup_steps=5, measured_steps=len(steps))
    calls: list[list[Call]] = [[] for _ in range(ranks)]
    seen: list[dict[tuple[Call, int], int]] = [{} for _ in range(ranks)]
    placed: list[tuple[int, int, int, tuple[int, int]]] = []
    for step, its in enumerate(steps):
        so_many: Counter[Call] = Counter()
        for call, moments in its:
            number = so_many[call]
            so_many[call] += 1
            for rank, when in moments.items():
                if (call, number) not in seen[rank]:
                    seen[rank][call, number] = len(calls[rank])
                    calls[rank].append(call)
                placed.append((rank, 5 + step, seen[rank][call, number], when))
    table = CallTable.of(calls)
    begin = 10**9 + 100 * MS * np.arange(run.steps)
    stamps = np.repeat((begin[:, None] + MS * np.array([0, 0, 0, 100, 100, 100]))[None], ranks, axis=0)
    meetings = np.full((ranks, run.steps, table.calls.shape[1], 3), ABSENT)
    for rank, step, at, (arrives, ends) in placed:
        meetings[rank, step, at] = begin[step] + MS * np.array([arrives, arrives, ends])
    facts = [{"backend": {"reduction": {"by": "calls"}, "unrecorded_collectives": []}} for _ in range(ranks)]
    none = np.zeros((ranks, 0))
    return make_trace(
        run, stamps=stamps, meetings=meetings, calls=table, ranks=facts, clock_domains=["here"] * ranks,
        clock_local_ns=none.astype(np.int64), clock_offset_ns=none, clock_bound_ns=none,
        barrier_exits_ns=none.astype(np.int64),
    )  # fmt: skip


def of_dimension(trace: Trace, dimension: str) -> list[list[float]]:
    """Wait and communication of each rank, ms."""
    return (step_breakdown(trace).by_dimension[dimension].rank_ns / MS).tolist()


def test_a_receiver_waits_for_its_sender_and_an_eager_sender_for_nobody():
    down = Call(MESSAGE, 0, RankGroup(ranks=(0, 1), dimension="pp"))
    trace = made(2, 4 * [[(down, {0: (30, 31), 1: (10, 33)})]])
    assert of_dimension(trace, "pp") == [[0, 1], [20, 3]]


def test_a_sender_that_has_its_result_only_then_waits_for_its_receiver():
    down = Call(MESSAGE, 0, RankGroup(ranks=(0, 1), dimension="pp"))
    trace = made(2, 4 * [[(down, {0: (30, 52), 1: (50, 53)})]])
    assert of_dimension(trace, "pp") == [[20, 2], [0, 3]]


def test_messages_in_both_directions_between_two_stages_are_told_apart():
    down, up = (Call(MESSAGE, ranks[0], RankGroup(ranks=ranks, dimension="pp")) for ranks in ((0, 1), (1, 0)))
    step = [
        (down, {0: (10, 11), 1: (5, 12)}), (down, {0: (30, 31), 1: (20, 32)}), (up, {1: (60, 61), 0: (40, 63)}),
    ]  # fmt: skip
    trace = made(2, 4 * [step])
    assert of_dimension(trace, "pp") == [[20, 5], [15, 5]]


def test_a_rank_in_two_pipelines_waits_in_each():
    first, second = (Call(MESSAGE, sender, RankGroup(ranks=(sender, 2), dimension="pp")) for sender in (0, 1))
    trace = made(3, 4 * [[(first, {0: (20, 20), 2: (5, 21)}), (second, {1: (50, 50), 2: (30, 54)})]])
    assert of_dimension(trace, "pp") == [[0, 0], [0, 0], [35, 5]]
    assert step_calls(trace).depths.tolist() == [0, 0, 1]


def test_where_it_is_not_known_who_waits_a_rank_waits_until_the_last_that_came_before_it_had_the_result():
    reduced = Call("reduce", -2, RankGroup(ranks=(0, 1, 2), dimension="dp"))
    trace = made(3, 4 * [[(reduced, {0: (10, 42), 1: (20, 21), 2: (40, 43)})]])
    assert of_dimension(trace, "dp") == [[30, 2], [0, 1], [0, 3]]


def test_groups_that_change_in_mid_run_are_meetings_of_the_steps_that_have_them():
    before, after = (
        [Call("all-gather", -1, RankGroup(ranks=ranks, dimension="tp")) for ranks in pairs]
        for pairs in (((0, 1), (2, 3)), ((0, 2), (1, 3)))
    )
    first = [(before[0], {0: (10, 31), 1: (30, 31)}), (before[1], {2: (10, 11), 3: (10, 11)})]
    second = [(after[0], {0: (10, 11), 2: (10, 11)}), (after[1], {1: (10, 51), 3: (50, 51)})]
    trace = made(4, 3 * [first] + 3 * [second])
    assert of_dimension(trace, "tp") == [[10, 1], [20, 1], [0, 1], [0, 1]]
    assert not step_breakdown(trace).unmatched


def test_a_group_of_one_waits_for_nobody_and_a_subgroup_of_a_subgroup_is_a_group():
    inner, outer, single = (
        RankGroup(ranks=ranks, dimension=name) for ranks, name in (((0, 1), "tp"), ((0, 1, 2, 3), ""), ((3,), "ep"))
    )
    step = [
        (Call("all-gather", -1, inner), {0: (10, 21), 1: (20, 21)}),
        (Call("all-to-all", -1, single), {3: (40, 41)}),
        (Call("all-reduce", -1, outer), {rank: (50 + 5 * rank, 66) for rank in range(4)}),
    ]
    trace = made(4, 4 * [step])
    assert of_dimension(trace, "tp") == [[10, 1], [0, 1], [0, 0], [0, 0]]
    assert of_dimension(trace, "ep") == [[0, 0], [0, 0], [0, 0], [0, 1]]
    assert of_dimension(trace, "all ranks") == [[15, 1], [10, 1], [5, 1], [0, 1]]


def test_calls_in_orders_that_cannot_meet_are_named():
    pair = RankGroup(ranks=(0, 1), dimension="tp")
    swapped = [
        (Call("all-gather", -1, pair), {0: (10, 20), 1: (60, 70)}),
        (Call("all-to-all", -1, pair), {0: (60, 70), 1: (10, 20)}),
    ]
    with pytest.raises(
        TraceError, match=r"in a circle: rank 0 in all-gather 1 of ranks 0, 1 .*, rank 1 in all-to-all 1"
    ):
        step_breakdown(made(2, 4 * [swapped]))


@pytest.mark.all
def test_thousands_of_ranks_in_four_dimensions_add_up():
    mesh = Mesh(pp=16, dp=32, tp=8, ep=8)
    run = make_run(ranks_per_node=8, nodes=512, measured_steps=4)
    generator = np.random.default_rng(1)
    truth = simulate_graph(mesh, Model(layers=1), generator, run=run, clocks=draw_clocks(generator, 512))
    breakdown = step_breakdown(truth.trace)
    assert breakdown.rank_ns.shape == (4096, 5) and [*breakdown.by_dimension] == ["dp", "tp", "pp", "ep"]
    steps_ns = np.diff(truth.trace.global_stamps(4, 9)[:, :, 5]).mean(axis=1)
    assert breakdown.rank_ns.sum(axis=1) == pytest.approx(steps_ns, abs=1e-3)
