"""Whose delay it was in the first place: named, with its cost and its chain, in simulated steps of several groups."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from parse.graph.chain import chain
from parse.graph.findings import GraphFindings
from parse.graph.imbalance import findings
from parse.graph.peers import Peers, _without_counts
from parse.graph.reading import GraphReader
from parse.graph.roots import Compared, compared, roots, without
from parse.graph.terms import GraphSteps
from parse.ledger.breakdown import step_breakdown
from parse.ledger.types import CANNOT_TELL, NONE, PERSISTENT, TRANSIENT, Because, Verdict
from parse.ledger.verdicts import verdict
from tests.unit.simulated import MS, draw_clocks
from tests.unit.simulated_graph import Delay, Mesh, Model, SimulatedGraph, simulate_graph
from tests.unit.test_graph import MESHES
from tests.unit.traces import make_run


def simulated(mesh: Mesh, model: Model, *delays: Delay, steps: int = 100, seed: int = 1, nodes: int = 1):
    run = make_run(ranks_per_node=mesh.ranks // nodes, nodes=nodes, measured_steps=steps)
    generator = np.random.default_rng(seed)
    clocks = draw_clocks(generator, nodes) if nodes > 1 else ()
    return simulate_graph(mesh, model, generator, run=run, delays=delays, clocks=clocks)


def late(rank: int, phase: str, ms: int, **fields) -> Delay:
    return Delay(ranks=(rank,), phase=phase, ns=ms * MS, **fields)


def recorded(truth: SimulatedGraph) -> GraphSteps:
    """The measured steps, which all have the same calls."""
    first, stop = truth.trace.blocks[0].tolist()
    (steps,) = GraphReader(truth.trace).read(first, truth.trace.global_stamps(first - 1, stop))
    return steps


def beside_peers(truth: SimulatedGraph) -> Compared:
    steps = recorded(truth)
    return compared(Peers(steps), steps)


def judged(truth: SimulatedGraph) -> Verdict:
    return verdict(step_breakdown(truth.trace))


def findings_of(truth: SimulatedGraph) -> GraphFindings:
    return findings(step_breakdown(truth.trace).imbalance)


@pytest.mark.parametrize(("mesh", "model"), MESHES)
def test_the_replay_gives_back_what_was_recorded(mesh, model):
    truth = simulated(mesh, model, late(1, "backward", 7), steps=12)
    steps = recorded(truth)
    replayed = compared(Peers(steps), steps).recorded
    assert (replayed.ends == steps.end_ns.T).all()


@pytest.mark.parametrize("rank", [1, 6, 13])
@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer"])
def test_a_rank_is_late_by_its_own_work_and_costs_what_a_step_would_be_shorter(rank, phase):
    truth = simulated(Mesh(pp=2, dp=4, tp=2), Model(), late(rank, phase, 10), steps=20)
    steps = beside_peers(truth)
    of_steps = roots(steps)
    part = {"data": 0, "optimizer": 2}.get(phase, 1)
    (cost,) = truth.costs_ms()
    if cost > 1:  # else what a stage waits for others anyway is longer
        assert (of_steps.late.argmax(axis=0) == rank).all()
        assert float(of_steps.parts[part, rank].mean()) / MS == pytest.approx(10, abs=0.3)
    replayed = without(steps, np.arange(16)[:, None] == rank)
    saved = (steps.recorded.ends - steps.lead).max(axis=0) - (replayed.ends - steps.lead).max(axis=0)
    assert float(saved.mean()) / MS == pytest.approx(cost, abs=0.4)


def test_who_waits_for_a_rank_that_waits_is_not_late():
    truth = simulated(Mesh(pp=4, dp=2, tp=2), Model(micro_batches=8, eager=False), late(5, "forward", 10), steps=20)
    of_steps = roots(beside_peers(truth))
    assert np.delete(of_steps.late, 5, axis=0).mean(axis=1).max() < 0.1 * MS


@pytest.mark.parametrize(
    ("mesh", "model", "delay"),
    [
        (Mesh(pp=4, dp=2, tp=2), Model(micro_batches=8), late(5, "forward", 10)),
        (Mesh(pp=2, dp=2), Model(), late(2, "backward", 10)),
        (Mesh(dp=4, tp=2), Model(), late(3, "optimizer", 10)),
        (Mesh(dp=4, ep=2), Model(), late(2, "forward", 10)),
        (Mesh(dp=8), Model(wrapper=True, gathers=True), late(6, "data", 10)),
    ],
)
def test_the_root_is_named_with_its_phase(mesh, model, delay):
    truth = simulated(mesh, model, delay, nodes=2)
    named = judged(truth)
    phase = {"data": "data", "optimizer": "optimizer"}.get(delay.phase, "compute")
    assert (named.kind, named.ranks) == (PERSISTENT, delay.ranks)
    assert max(named.cause, key=lambda cause: named.cause[cause]) == phase
    assert named.costs == pytest.approx(truth.costs_ms()[0], rel=0.06, abs=0.2)


def test_a_delay_in_some_steps_is_named_in_these():
    its = np.arange(105) % 10 == 7
    truth = simulated(Mesh(pp=2, dp=4), Model(), late(3, "backward", 12, steps=its))
    named = judged(truth)
    assert (named.kind, named.ranks, named.steps) == (TRANSIENT, (3,), tuple(range(7, 105, 10)))


@pytest.mark.parametrize("seed", range(3))
def test_equal_ranks_are_not_named(seed):
    assert judged(simulated(Mesh(pp=2, dp=4, tp=2), Model(), seed=seed)).kind is NONE


def test_own_work_that_has_slack_costs_nothing():
    """The last stage waits for its first micro-batch longer than its data is late."""
    truth = simulated(Mesh(pp=4, dp=4), Model(micro_batches=8), late(13, "data", 4))
    assert truth.costs_ms()[0] < 0.1 and judged(truth).kind is NONE


def test_without_peers_it_is_not_known_who_is_late():
    named = judged(simulated(Mesh(pp=4), Model(), late(1, "forward", 10), steps=40))
    assert (named.kind, named.because) == (CANNOT_TELL, Because.NO_PEERS)


def test_a_chain_goes_from_the_root_to_those_who_wait_last():
    steps = beside_peers(simulated(Mesh(pp=2, dp=2, tp=2), Model(), late(2, "backward", 10), steps=20))
    links = chain(steps, (2,), np.ones(20, np.bool_))
    assert [(link.ranks, link.dimension) for link in links] == [
        ((3,), "tp"), ((6, 7), "pp"), ((0, 1, 4, 5), "dp"),
    ]  # fmt: skip
    assert links[0].waits == pytest.approx(10, abs=1)


def test_who_ends_a_step_late_is_waited_for_in_the_next():
    steps = beside_peers(simulated(Mesh(dp=2, tp=2), Model(), late(1, "optimizer", 10), steps=20))
    assert [(link.ranks, link.dimension) for link in chain(steps, (1,), np.ones(20, np.bool_))] == [
        ((0,), "tp"), ((2, 3), "dp"),
    ]  # fmt: skip


def test_without_its_ranks_nothing_changes():
    steps = beside_peers(simulated(Mesh(pp=2, dp=2), Model(), steps=12))
    assert (without(steps, np.zeros((4, 12), np.bool_)).ends == steps.recorded.ends).all()


def test_uneven_stages_are_a_finding_of_their_own():
    stages = findings_of(simulated(Mesh(pp=4), Model(micro_batches=8, stages=(1, 1, 1.25, 1)), steps=40)).stages
    assert stages is not None
    assert stages.slowest == 2
    assert stages.runs_at == pytest.approx(0.8, abs=0.01)
    even = simulated(Mesh(pp=4), Model(micro_batches=8, stages=(1.0625,) * 4), steps=40)
    uneven = simulated(Mesh(pp=4), Model(micro_batches=8, stages=(1, 1, 1.25, 1)), steps=40)
    first, stop = even.trace.blocks[0].tolist()
    took = [(its.ends_ns[0, stop - 1] - its.ends_ns[0, first - 1]) / (stop - first) / MS for its in (uneven, even)]
    assert stages.costs == pytest.approx(took[0] - took[1], rel=0.05)


@pytest.mark.parametrize(
    ("stated", "microbatches"), [([8, 8], 8), ([8, 4], 0), ([8, None], 0), ([None, None], 0), ([True, True], 0)]
)
def test_micro_batches_are_those_that_the_schedules_of_all_ranks_state(stated, microbatches):
    trace = simulated(Mesh(pp=2), Model(micro_batches=8, stages=(1, 1.25)), steps=40).trace
    shapes = [[] if count is None else [{"schedule": "Schedule1F1B", "microbatches": count}] for count in stated]
    ranks = [{**facts, "script": {"facts": {"pipelines": its}}} for facts, its in zip(trace.ranks, shapes, strict=True)]
    breakdown = step_breakdown(dataclasses.replace(trace, ranks=ranks))
    assert breakdown.microbatches == microbatches
    stages = findings(breakdown.imbalance, breakdown.microbatches).stages
    assert stages is not None and stages.microbatches == microbatches


def test_the_bubble_of_the_schedule_is_that_of_equal_stages():
    """One forward, one backward: each rank waits (stages − 1) / micro-batches of its compute, and for messages."""
    truth = findings_of(simulated(Mesh(pp=4, dp=2), Model(micro_batches=8, spread=0.0), steps=40))
    assert truth.bubble is not None and truth.stages is None
    assert truth.bubble.of_schedule == pytest.approx(3 * 6, abs=2)
    assert truth.bubble.waits == pytest.approx(truth.bubble.of_schedule, rel=0.05)


def test_uneven_experts_are_a_finding_where_others_do_not_share_their_position():
    truth = simulated(Mesh(dp=4, ep=4), Model(experts=(1, 1, 1.8, 1)), steps=40)
    experts = findings_of(truth).experts
    assert experts is not None and (experts.ranks, experts.by) == ((2,), "time")
    assert experts.times == pytest.approx(1.8 / 1.2, rel=0.03)
    assert judged(truth).kind is NONE


@pytest.mark.parametrize(
    ("exchanged", "times"),
    [
        ([[100, 100], [100, 100], [260, 100], [100, 100]], 260 / 140),
        ([[100, 260], [100, 100], [260, 100], [100, 100]], 260 / 140),
        ([[100, 100]] * 4, None), (None, None),
    ],
    ids=["to experts", "another, on the way back", "as many", "not known"],
)  # fmt: skip
def test_tokens_of_experts_are_told_where_all_to_alls_show_them(exchanged, times):
    """The third position takes 1.8 times as long; whether for its tokens is what sizes show."""
    truth = simulated(Mesh(dp=4, ep=4), Model(experts=(1, 1, 1.8, 1)), steps=40)
    ranks = [
        {**facts, "script": {} if exchanged is None else {"exchanged_bytes": exchanged[rank]}}
        for rank, facts in enumerate(truth.trace.ranks)
    ]
    breakdown = step_breakdown(dataclasses.replace(truth.trace, ranks=ranks))
    experts = findings(breakdown.imbalance, exchanged=[breakdown.exchanged]).experts
    assert experts is not None and experts.ranks == (2,)
    assert (experts.by, experts.times) == (
        ("time", pytest.approx(1.5, rel=0.03)) if times is None else ("tokens", pytest.approx(times))
    )


@pytest.mark.parametrize(
    "bad", [[[1.0], [1.0, 2.0]], [[1.0], []], [[1.0], ["a"]], [[1.0], [float("nan")]], [[1.0], [-1.0]]]
)
def test_sizes_that_cannot_be_are_not_known(bad):
    trace = simulated(Mesh(pp=2), Model(micro_batches=2), steps=12).trace
    ranks = [{**facts, "script": {"exchanged_bytes": its}} for facts, its in zip(trace.ranks, bad, strict=True)]
    assert step_breakdown(dataclasses.replace(trace, ranks=ranks)).exchanged is None


def test_a_slow_link_between_stages_is_named():
    link = findings_of(simulated(Mesh(pp=4, dp=2), Model(micro_batches=8, links={(1, 2): 3 * MS}), steps=40)).slow_link
    assert link is not None
    assert (link.sender, link.receiver) in ((2, 4), (3, 5))
    assert (link.takes, link.usual, link.messages) == (pytest.approx(3.1), pytest.approx(0.1), 8)


@pytest.mark.parametrize("mesh", [Mesh(pp=2, dp=2, tp=2), Mesh(pp=4), Mesh(dp=4, ep=4)])
def test_nothing_is_found_of_even_stages_and_experts(mesh):
    findings_of_even = findings_of(simulated(mesh, Model(), steps=40))
    assert (findings_of_even.stages, findings_of_even.experts, findings_of_even.slow_link) == (None, None, None)


@pytest.mark.parametrize(("count", "rest"), [(4, [0, 1, 2, 3]), (5, [1, 2, 3, 4]), (10, [1, 2, 4, 5, 6, 7, 8, 9])])
def test_all_to_alls_that_tell_how_many_tokens_come_bring_none(count, rest):
    """Forward a layer has three, of which the first is followed by the second at once; backward two."""
    layers = count // 5
    starts = np.cumsum([1 if at < 3 * layers and at % 3 == 1 else 20 for at in range(count)]) * MS
    calls_ns = np.stack([starts, starts, starts + MS // 10], axis=1)[None, None]
    assert _without_counts([*range(count)], calls_ns) == rest
