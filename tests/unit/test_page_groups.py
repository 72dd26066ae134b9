"""Ranks in groups on the page: their mesh, own work beyond their peers."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from hpc.model.groups import Call, CallTable, RankGroup
from hpc.model.timestamps import ABSENT
from hpc.model.trace import Trace
from parse.graph.mesh import rank_mesh
from parse.graph.step_graph import step_calls
from parse.ledger.types import DimensionPart, DimensionTerms, Ledger, Mean
from parse.page.build import build_page
from parse.page.html import render
from parse.page.points import read_groups
from parse.report.summary import Summary
from parse.runs.load import load
from parse.runs.result import results
from tests.unit.ledgers import make_ledger
from tests.unit.pages import Elements
from tests.unit.simulated_graph import Delay, Mesh, Model, SimulatedGraph, simulate_graph
from tests.unit.traces import make_run, put

MS = 1_000_000
MESHES = [
    (Mesh(pp=2, dp=2, tp=2), Model()),
    (Mesh(pp=4), Model(eager=False)),
    (Mesh(dp=4, tp=2, ep=2), Model(wrapper=True)),
    (Mesh(dp=4), Model(gathers=True, reduce_every=3)),
]


def simulated(mesh: Mesh, model: Model) -> SimulatedGraph:
    """The last rank but one does 8 ms more in each step."""
    late = Delay(ranks=(mesh.ranks - 2,), phase="forward", ns=8 * MS)
    run = make_run(ranks_per_node=mesh.ranks // 2, nodes=2, measured_steps=8)
    return simulate_graph(mesh, model, np.random.default_rng(3), run=run, delays=[late])


def with_calls(trace: Trace, by_rank: list[list[Call]]) -> Trace:
    """The same ranks with other calls, which it has no moments of."""
    table = CallTable.of(by_rank)
    meetings = np.full((*trace.stamps.shape[:2], table.calls.shape[1], 3), ABSENT)
    return dataclasses.replace(trace, calls=table, meetings=meetings)


@pytest.mark.parametrize(
    ("mesh", "model", "rows", "columns"),
    [
        (*MESHES[0], ["pp 0, dp 0", "pp 0, dp 1", "pp 1, dp 0", "pp 1, dp 1"], ["tp 0", "tp 1"]),
        (*MESHES[1], [""], ["pp 0", "pp 1", "pp 2", "pp 3"]),
        (*MESHES[2], ["dp 0", "dp 1", "dp 2", "dp 3"], ["tp 0", "tp 1"]),
    ],
)
def test_ranks_are_in_the_order_of_their_mesh(mesh, model, rows, columns):
    made = rank_mesh(step_calls(simulated(mesh, model).trace))
    assert made is not None
    assert [*made.rows] == rows and [*made.columns] == columns
    assert made.ranks.ravel().tolist() == [*range(mesh.ranks)]


def test_ranks_that_all_meet_have_no_mesh():
    assert rank_mesh(step_calls(simulated(*MESHES[3]).trace)) is None


def test_what_no_group_tells_apart_is_a_replica():
    pairs = [RankGroup(ranks=(first, first + 1), dimension="tp") for first in (0, 2, 4, 6)]
    trace = simulated(*MESHES[0]).trace
    made = rank_mesh(step_calls(with_calls(trace, [[Call("all-reduce", -1, pairs[rank // 2])] for rank in range(8)])))
    assert made is not None
    assert [*made.rows] == [f"replica {at}" for at in range(4)] and [*made.columns] == ["tp 0", "tp 1"]
    assert made.ranks.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_every_fourth_rank_is_a_column_of_its_group():
    groups = [RankGroup(ranks=(first, first + 4)) for first in range(4)]
    trace = simulated(*MESHES[0]).trace
    made = rank_mesh(step_calls(with_calls(trace, [[Call("all-gather", -1, groups[rank % 4])] for rank in range(8)])))
    assert made is not None
    assert made.ranks[:, 0].tolist() == [0, 1, 2, 3] and made.ranks[:, 1].tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(("mesh", "model"), MESHES)
def test_own_work_is_compared_with_that_of_ranks_that_do_the_same(mesh, model):
    truth = simulated(mesh, model)
    reading = read_groups(truth.trace, 13)
    assert reading is not None
    late, own_ns = mesh.ranks - 2, truth.work_ns.sum(axis=2)
    if mesh.pp == mesh.ranks:  # no rank has a peer
        medians = np.sort(own_ns, axis=1)[:, 6, None]
        assert abs(reading.beyond_ns - (own_ns - medians)).max() < 100  # clocks are read to ns
    else:
        usual = reading.beyond_ns.mean(axis=1)
        assert usual[late] == pytest.approx(8 * MS, abs=MS)
        assert np.delete(usual, late).max() < MS


def test_a_run_without_groups_or_stamps_has_no_reading():
    trace = simulated(*MESHES[0]).trace
    assert read_groups(dataclasses.replace(trace, calls=None, meetings=None), 13) is None
    stamps = trace.stamps.copy()
    stamps[3, 5, 5] = ABSENT
    assert read_groups(dataclasses.replace(trace, stamps=stamps), 13) is None
    assert read_groups(trace, 0) is None


def ledger_of(truth: SimulatedGraph, folder) -> Ledger:
    """A ledger whose dimensions are those that happened."""
    put(folder, truth.trace)
    (point,) = results(load([folder]))
    wait, communication = (its.mean(axis=1) / 1e6 for its in (truth.wait_ns, truth.communication_ns))
    terms = {"data": 1.0, "compute": 30.0, "wait": 9.0, "communication": 4.0, "optimizer": 1.0}
    dimensions = tuple(
        DimensionTerms(
            dimension=name, wait=Mean(value=float(wait[:, at].mean())),
            communication=Mean(value=float(communication[:, at].mean())),
            ranks=tuple(
                DimensionPart(wait=its, communication=rest)
                for its, rest in zip(wait[:, at].tolist(), communication[:, at].tolist(), strict=True)
            ),
        )
        for at, name in enumerate(truth.dimensions)
    )  # fmt: skip
    return make_ledger(point, terms, None, dimensions=dimensions)


def test_the_page_shows_own_work_in_the_order_of_the_mesh(tmp_path):
    truth = simulated(*MESHES[0])
    ledger = ledger_of(truth, tmp_path)
    page = render(build_page(Summary(results=(ledger.result,), ledgers=(ledger,)), source="a test"))
    elements = Elements(page)
    data = json.loads(next(script for script in elements.scripts if script.lstrip().startswith("{")))
    (delays,) = data["chart-delays-0"]["data"]
    assert delays["y"][6] == "rank 6: pp 1, dp 1, tp 0"
    assert "Whose own work is long, run 1: ms more than the median of its peers" in elements.text
    assert "by rank and groups" in elements.text.lower() and "Who is waited for, run" not in elements.text
