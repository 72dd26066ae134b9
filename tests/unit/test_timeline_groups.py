"""Timelines of ranks in groups: a track for each dimension, messages as arrows."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest

from hpc.model.groups import MESSAGE
from hpc.model.timestamps import ABSENT, END
from tests.unit.simulated import draw_clocks
from tests.unit.simulated_graph import SEND_NS, Delay, Mesh, Model, SimulatedGraph, simulate_graph
from tests.unit.timelines import FLOWS, draw
from tests.unit.trace_processor import query
from tests.unit.traces import make_run

MS = 1_000_000
MESHES = [
    (Mesh(pp=2, dp=2, tp=2), Model()),
    (Mesh(pp=4, dp=2), Model(eager=False, clips=True)),
    (Mesh(dp=4, tp=2, ep=2), Model(wrapper=True)),
    (Mesh(dp=4), Model(gathers=True, reduce_every=3)),
]
LATE_STEP = 9


def simulated(mesh: Mesh, model: Model, **changes) -> SimulatedGraph:
    """Rank 6, or the last one, does 20 ms more in one step."""
    run = make_run(ranks_per_node=mesh.ranks // 2, nodes=2, measured_steps=8)
    late = Delay(ranks=(min(6, mesh.ranks - 1),), phase="forward", ns=20 * MS, steps=np.arange(run.steps) == LATE_STEP)
    return simulate_graph(mesh, model, np.random.default_rng(1), run=run, delays=[late], **changes)


@pytest.mark.parametrize(("mesh", "model"), MESHES)
def test_what_ranks_wait_in_each_dimension_is_what_happened(tmp_path, mesh, model):
    truth = simulated(mesh, model, bound_ns=0)
    drawn = draw(tmp_path, truth.trace)
    assert {name for name in drawn.threads.values() if ": " in name} == {
        f"rank {rank}: {dimension}" for rank in range(mesh.ranks) for dimension in truth.dimensions
    }
    for rank in range(mesh.ranks):
        for number, dimension in enumerate(truth.dimensions):
            slices = drawn.slices(f"rank {rank}: {dimension}")
            waited = sum(end - begin for name, begin, end in slices if name == "wait")
            whole = sum(end - begin for name, begin, end in slices if name not in ("wait", "communication"))
            happened = int(truth.wait_ns[rank, :, number].sum())
            assert whole == happened + int(truth.communication_ns[rank, :, number].sum())
            # Waits that are shorter than what the clocks leave open are not proven; an eager sender may wait for who
            # calls meanwhile, or not.
            assert abs(waited - happened) <= SEND_NS * len(slices)


@pytest.mark.parametrize(("mesh", "model"), [MESHES[0], pytest.param(*MESHES[1], marks=pytest.mark.all)])
def test_every_message_is_an_arrow_from_its_sender_to_its_receiver(tmp_path, mesh, model):
    truth = simulated(mesh, model, bound_ns=0)
    drawn = draw(tmp_path, truth.trace)
    (flows,) = query(drawn.path, FLOWS)
    arrows = Counter(
        (source.partition(":")[0], target.partition(":")[0])
        for _, source, name, target, _ in flows
        if target.endswith(": pp")
    )
    table = truth.trace.calls
    messages = Counter[tuple[str, str]]()
    for name, group, root, _ in table.calls.reshape(-1, 4).tolist():
        if name >= 0 and table.names[name] == MESSAGE:
            sender, receiver = table.groups[group].ranks
            assert root == sender
            messages[f"rank {sender}", f"rank {receiver}"] += 1
    steps = truth.trace.stamps.shape[1]
    assert arrows == Counter({pair: count // 2 * steps for pair, count in messages.items()})


def test_nothing_is_drawn_across_nodes_that_the_bounds_do_not_support(tmp_path, capsys):
    truth = simulated(*MESHES[0], clocks=draw_clocks(np.random.default_rng(1), 2), bound_ns=1e9)
    drawn = draw(tmp_path, truth.trace)
    for rank in range(8):
        names = {name for name, _, _ in drawn.slices(f"rank {rank}: pp")}  # stages are on two nodes
        assert "wait" not in names and any(name.startswith("message") for name in names)
        assert "wait" in {name for name, _, _ in drawn.slices(f"rank {rank}: tp")}
    assert "in 13 a rank provably waits for another, 0 have no provable order" in " ".join(
        capsys.readouterr().out.split()
    )


def test_in_a_step_that_a_rank_does_not_end_nobody_is_known_to_wait(tmp_path):
    trace = simulated(*MESHES[0]).trace
    stamps = trace.stamps.copy()
    stamps[3, 12, END] = ABSENT
    drawn = draw(tmp_path, dataclasses.replace(trace, stamps=stamps))
    whole = drawn.slices("rank 0")
    (last,) = [begin for name, begin, _ in whole if name == "step 12"]
    its = [name for name, begin, _ in drawn.slices("rank 0: pp") if begin >= last]
    assert any(name.startswith("message") for name in its) and "wait" not in its
