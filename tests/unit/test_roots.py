"""Whose delay it was in the first place: named, with its cost and its chain, in simulated steps of several groups."""

from __future__ import annotations

import numpy as np
import pytest

from parse.graph.chain import chain
from parse.graph.peers import Peers
from parse.graph.reading import GraphReader
from parse.graph.roots import Compared, compared, roots, without
from parse.graph.terms import GraphSteps
from parse.ledger.breakdown import step_breakdown
from parse.ledger.verdict import CANNOT_TELL, NONE, PERSISTENT, TRANSIENT, Because, Verdict
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
