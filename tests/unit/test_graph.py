"""Steps of ranks in groups: what each does itself, waits for and communicates, exactly; and replayed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.model.groups import MESSAGE, Call, CallTable, RankGroup
from hpc.model.timestamps import ABSENT
from hpc.model.trace import Trace
from parse.graph.peers import Peers
from parse.graph.reading import GraphReader
from parse.graph.terms import GraphSteps, graph_terms
from tests.unit.simulated import draw_clocks
from tests.unit.simulated_graph import SEND_NS, Delay, Mesh, Model, SimulatedGraph, simulate_graph
from tests.unit.traces import make_run, make_trace

MS = 1_000_000
MESHES = [
    (Mesh(pp=4, dp=2), Model()),
    (Mesh(pp=2, dp=2, tp=2), Model(eager=False, clips=True)),
    (Mesh(dp=4, tp=2, ep=2), Model(wrapper=True, experts=(1.0, 1.5))),
    (Mesh(dp=4), Model(gathers=True)),
    (Mesh(pp=3, dp=2, tp=2, ep=2), Model(micro_batches=5, layers=1, gathers=True, clips=True)),
]


def read(trace: Trace, first: int, stop: int) -> GraphSteps:
    """These steps, which all have the same calls."""
    (steps,) = GraphReader(trace).read(first, trace.global_stamps(first - 1, stop))
    return steps


def simulated(mesh: Mesh, model: Model, **changes) -> SimulatedGraph:
    run = make_run(ranks_per_node=mesh.ranks // 2, nodes=2, measured_steps=8)
    return simulate_graph(
        mesh, model, np.random.default_rng(5), run=run, bound_ns=1e4 * ("clocks" in changes), **changes
    )


@pytest.mark.parametrize(("mesh", "model"), MESHES)
def test_terms_are_those_that_happened(mesh, model):
    truth = simulated(mesh, model, delays=[Delay(ranks=(2,), phase="forward", ns=7 * MS)])
    steps = read(truth.trace, 5, 13)
    terms = graph_terms(steps)
    assert steps.graph.calls.dimensions == tuple(
        sorted(truth.dimensions, key=("dp", "tp", "pp", "ep", "all ranks").index)
    )
    order = [truth.dimensions.index(name) for name in steps.graph.calls.dimensions]
    assert (terms.work == truth.work_ns[:, 5:13]).all()
    wait, communication = (its[:, 5:13, order] for its in (truth.wait_ns, truth.communication_ns))
    assert (terms.wait + terms.communication == wait + communication).all()
    # A receiver that calls while an eager sender sends may be what that waits for, or not.
    assert abs(terms.wait - wait).max() <= SEND_NS * model.eager * (mesh.pp > 1)


@pytest.mark.parametrize(("mesh", "model"), MESHES)
def test_terms_add_up_by_clocks_that_drift(mesh, model):
    truth = simulated(mesh, model, clocks=draw_clocks(np.random.default_rng(1), 2))
    steps = read(truth.trace, 5, 13)
    terms = graph_terms(steps)
    whole = sum(part.sum(axis=2) for part in (terms.work, terms.wait, terms.communication))
    assert (whole == (steps.end_ns - steps.begin_ns).T).all()
    assert (terms.wait >= 0).all() and (terms.communication >= 0).all()
    assert abs(terms.wait.sum(axis=2) - truth.wait_ns[:, 5:13].sum(axis=2)).max() < 2 * MS


@pytest.mark.parametrize(("mesh", "model"), MESHES)
def test_the_replay_gives_back_the_recorded_ends(mesh, model):
    truth = simulated(mesh, model, clocks=draw_clocks(np.random.default_rng(1), 2))
    steps = read(truth.trace, 5, 13)
    peers = Peers(steps)
    ends = peers.replay_in_turn([peers.work(steps)], steps.begin_ns[0][:, None])
    assert (ends[:, 0] == steps.end_ns[-1]).all()


@pytest.mark.parametrize(("mesh", "model"), MESHES)
def test_the_replay_without_a_delay_is_what_happens_without_it(mesh, model):
    truth = simulated(mesh, model, delays=[Delay(ranks=(1,), phase="backward", ns=16 * MS)])
    without = simulated(mesh, model)
    steps = read(truth.trace, 5, 13)
    peers = Peers(steps)
    work, usual = peers.work(steps), peers.work(read(without.trace, 5, 13))
    changed = dataclasses.replace(usual, communication=work.communication)
    ends = peers.replay_in_turn([work, changed], np.repeat(steps.begin_ns[0][:, None], 2, axis=1)).max(axis=0)
    cost = float((ends[0] - ends[1]) / 8 / MS)
    assert cost == pytest.approx(truth.costs_ms()[0], rel=0.05)


def test_ranks_of_a_stage_have_one_role():
    steps = read(simulated(Mesh(pp=4, dp=2), Model(micro_batches=8)).trace, 5, 13)
    assert steps.graph.calls.depths.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    roles = steps.graph.calls.roles.tolist()
    assert len({*roles}) == 4 and roles[::2] == roles[1::2]


# Graphs drawn at random: calls and waits in any order that a program can have, in any groups.


@st.composite
def programs(draw) -> tuple[int, list[list[tuple[str, int, list[int], int]]]]:
    """A number of ranks and global events in order: (name, root, ranks, how many later events before it is waited
    for)."""
    ranks = draw(st.integers(1, 6))
    events = []
    for _ in range(draw(st.integers(1, 12))):
        its = draw(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=ranks, unique=True))
        kind = draw(st.sampled_from(["all-reduce", "broadcast", MESSAGE, "reduce"]))
        if kind == MESSAGE and len(its) < 2:
            kind = "all-reduce"
        its = its[:2] if kind == MESSAGE else sorted(its)
        root = {"all-reduce": -1, "reduce": -2}.get(kind, its[0])
        events.append((kind, root, its, draw(st.integers(0, 3))))
    return ranks, events


def happened(ranks: int, events, generator: np.random.Generator, steps: int) -> Trace:
    """A trace of these events, each with random own work; who depends on whom is drawn too."""
    run = make_run(ranks_per_node=ranks, warmup_steps=5, measured_steps=steps)
    by_rank: list[list[Call]] = [[] for _ in range(ranks)]
    columns = []
    for name, root, its, _ in events:
        columns.append({rank: len(by_rank[rank]) for rank in its})
        for rank in its:
            by_rank[rank].append(
                Call(name, root, RankGroup(ranks=tuple(its), dimension="pp" if name == MESSAGE else ""))
            )
    table = CallTable.of(by_rank)
    stamps = np.zeros((ranks, run.steps, 6), np.int64)
    meetings = np.full((ranks, run.steps, table.calls.shape[1], 3), ABSENT)
    now = np.full(ranks, 10**9)
    for step in range(run.steps):
        stamps[:, step, 0] = now
        now = now + generator.integers(0, 1000, ranks)
        stamps[:, step, 1:3] = now[:, None]
        pending: list[tuple[int, int]] = [(at + 1 + later, at) for at, (*_, later) in enumerate(events)]
        called: dict[int, dict[int, int]] = {}
        for at in range(len(events) + 5):
            if at < len(events):
                for rank in events[at][2]:
                    now[rank] += generator.integers(0, 1000)
                    meetings[rank, step, columns[at][rank], 0] = now[rank]
                called[at] = {rank: int(now[rank]) for rank in events[at][2]}
            for _, waited in [each for each in pending if each[0] == at + 1]:
                name, root, its, _ = events[waited]
                for rank in its:
                    now[rank] += generator.integers(0, 1000)
                    meetings[rank, step, columns[waited][rank], 1] = now[rank]
                    if root < 0:
                        now[rank] = max(now[rank], *called[waited].values())
                    elif rank != root:
                        now[rank] = max(now[rank], called[waited][root])
                    now[rank] += generator.integers(0, 100)
                    meetings[rank, step, columns[waited][rank], 2] = now[rank]
        now = now + generator.integers(0, 1000, ranks)
        stamps[:, step, 3:5] = now[:, None]
        now = now + generator.integers(0, 1000, ranks)
        stamps[:, step, 5] = now
    facts = [{"backend": {"reduction": {"by": "calls"}}} for _ in range(ranks)]
    empty = {name: np.zeros((ranks, 0), dtype) for name, dtype in (
        ("clock_local_ns", np.int64), ("clock_offset_ns", np.float64), ("clock_bound_ns", np.float64),
        ("barrier_exits_ns", np.int64),
    )}  # fmt: skip
    return make_trace(
        run, stamps=stamps, meetings=meetings, calls=table, ranks=facts, clock_domains=["here"] * ranks, **empty
    )


@settings(max_examples=60, deadline=None)
@given(programs(), st.integers(0, 2**32))
def test_random_graphs_add_up_and_are_replayed_to_the_nanosecond(program, seed):
    trace = happened(*program, np.random.default_rng(seed), 6)
    steps = read(trace, 5, 11)
    terms = graph_terms(steps)
    whole = sum(part.sum(axis=2) for part in (terms.work, terms.wait, terms.communication))
    assert (whole == (steps.end_ns - steps.begin_ns).T).all()
    assert all((part >= 0).all() for part in (terms.work, terms.wait, terms.communication))
    peers = Peers(steps)
    work = peers.work(steps)
    for role in peers.roles:
        assert (role.block(work.pieces).sum(axis=0) == terms.work[role.ranks].sum(axis=2)).all()
    assert (peers.replay(work).ends == steps.end_ns.T).all()
    assert (peers.replay_in_turn([work], steps.begin_ns[0][:, None])[:, 0] == steps.end_ns[-1]).all()
