"""The simulation of a training in groups of ranks: what it records is what happened, and what a delay costs."""

from __future__ import annotations

import numpy as np
import pytest

from hpc.model.timestamps import ABSENT
from tests.unit.simulated_graph import Delay, Mesh, Model, simulate_graph
from tests.unit.traces import make_run

pytestmark = pytest.mark.all
MS = 1_000_000
MESHES = [
    (Mesh(pp=4, dp=2), Model()),
    (Mesh(pp=2, dp=2, tp=2), Model(eager=False, clips=True)),
    (Mesh(dp=4, tp=2, ep=2), Model(wrapper=True, experts=(1.0, 1.5))),
    (Mesh(dp=4), Model(gathers=True, reduce_every=3)),
]


@pytest.mark.parametrize(("mesh", "model"), MESHES)
def test_own_work_waits_and_communication_add_up_to_a_step(mesh, model):
    run = make_run(ranks_per_node=mesh.ranks, measured_steps=6)
    simulated = simulate_graph(mesh, model, np.random.default_rng(1), run=run)
    parts = simulated.work_ns, simulated.wait_ns, simulated.communication_ns
    whole = sum(part.sum(axis=2) for part in parts)
    assert (whole == simulated.stamps_ns[..., 5] - simulated.stamps_ns[..., 0]).all()
    assert all((part >= 0).all() for part in parts)
    arrives, waits, ends = np.moveaxis(simulated.meetings_ns, 3, 0)
    present = ends != ABSENT
    assert (
        (present == (arrives != ABSENT)).all() and (arrives <= waits)[present].all() and (waits <= ends)[present].all()
    )


@pytest.mark.parametrize(("mesh", "model"), MESHES)
def test_a_delay_costs_what_the_training_is_quicker_without_it(mesh, model):
    delay = Delay(ranks=(1,), phase="backward", ns=20 * MS)
    simulated = simulate_graph(mesh, model, np.random.default_rng(2), delays=[delay])
    (cost,) = simulated.costs_ms()
    assert 3 < cost < 21
    assert (simulated.ends_ns[1] == simulated.ends_ns[2]).all()


def test_calls_of_one_meeting_are_of_ranks_that_wait_for_one_another():
    mesh = Mesh(pp=2, dp=2, tp=2)
    table = simulate_graph(mesh, Model(), np.random.default_rng(3)).trace.calls
    assert table is not None
    dimensions = {group.dimension: len(group.ranks) for group in table.groups}
    assert dimensions == {"tp": 2, "dp": 2, "pp": 2}
