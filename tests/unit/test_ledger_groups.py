"""The ledger of ranks in several groups: terms that add up, by dimension, and what is left out of them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hpc.model.timestamps import ABSENT
from parse.ledger.breakdown import step_breakdown
from tests.unit.simulated import draw_clocks
from tests.unit.simulated_graph import Mesh, Model, SimulatedGraph, simulate_graph
from tests.unit.test_graph import MESHES
from tests.unit.traces import make_run


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
