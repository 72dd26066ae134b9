"""The charts of the page as plain values, and what they are read from: steps, delays, telemetry, groups of ranks."""

from __future__ import annotations

import dataclasses
import json
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest

from hpc.model.groups import Call, CallTable, RankGroup
from hpc.model.outcome import Outcome
from hpc.model.timestamps import ABSENT, GRADS_READY
from hpc.model.trace import Trace
from parse.graph.mesh import rank_mesh
from parse.graph.step_graph import step_calls
from parse.ledger.types import DimensionPart, DimensionTerms, Ledger
from parse.page.build import build_page
from parse.page.figures import Axes, Line, heat_map, label, labels_of, lines, stacked, steps_figure
from parse.page.html import render
from parse.page.points import BINS, ROWS, read_groups, read_run
from parse.report.summary import Summary
from parse.runs.load import load
from parse.runs.result import results
from parse.stats import Mean
from tests.unit.ledger_traces import on, run_of, trace_of
from tests.unit.ledgers import make_ledger
from tests.unit.page_folders import ENDLESS, MARKUP, with_telemetry
from tests.unit.pages import Elements
from tests.unit.simulated_graph import Delay, Mesh, Model, SimulatedGraph, simulate_graph
from tests.unit.traces import cut_short, make_run, make_trace, put

AXES = Axes(x_title="devices", y_title="speed", categories=[(1, "1n1g"), (8, "1n8g")], log_y=True)


def test_a_line_has_its_points_and_intervals_around_them():
    figure = lines([Line(name="a", x=[1, 8], y=[10.0, 60.0], intervals=[(9.0, 12.0), None])], AXES)
    (line,) = figure["data"]
    assert (line["x"], line["y"]) == ([1, 8], [10.0, 60.0])
    assert line["error_y"]["array"] == [2.0, None] and line["error_y"]["arrayminus"] == [1.0, None]
    assert figure["layout"]["xaxis"]["tickvals"] == [1, 8] and figure["layout"]["xaxis"]["type"] == "log"


def test_the_ideal_is_dashed_and_behind_the_others():
    figure = lines([Line(name="a", x=[1], y=[1.0])], AXES, ideal=Line(name="ideal", x=[1, 8], y=[1, 8]))
    assert [trace["name"] for trace in figure["data"]] == ["ideal", "a"]
    assert figure["data"][0]["line"]["dash"] == "dash" and figure["layout"]["showlegend"]


def test_marks_of_a_logarithmic_axis_enclose_all_values():
    figure = lines([Line(name="a", x=[1, 8], y=[9.0, 130.0], intervals=[(8.0, 9.5), (120.0, 230.0)])], AXES)
    axis = figure["layout"]["yaxis"]
    assert axis["tickvals"] == [5, 10, 20, 50, 100, 200, 500] and axis["type"] == "log"


@pytest.mark.parametrize("values", [[0.0, 5.0], [-1.0, 5.0], [None, nan]])
def test_an_axis_with_values_that_have_no_logarithm_is_linear(values):
    figure = lines([Line(name="a", x=[1, 8], y=values)], AXES)
    assert figure["layout"]["yaxis"].get("type") != "log"


def test_numbers_that_are_not_finite_are_absent():
    figure = lines([Line(name="a", x=[1, 2, 3], y=[nan, inf, 2.0], intervals=[(nan, 1.0), None, (1.0, inf)])], AXES)
    assert figure["data"][0]["y"] == [None, None, 2.0]
    assert figure["data"][0]["error_y"]["array"] == [None, None, None]
    json.dumps(figure, allow_nan=False)


def test_bars_are_stacked_by_part_and_what_is_absent_stays_absent():
    parts = {"compute": [5.0, 6.0], "wait": [None, 2.0]}
    figure = stacked(["1n1g", "2n1g"], parts, x_title="ms", shown={"compute": ["±1", "±2"], "wait": ["", "±3"]})
    assert [trace["x"] for trace in figure["data"]] == [[5.0, 6.0], [None, 2.0]]
    assert figure["data"][1]["customdata"] == ["", "±3"] and figure["layout"]["barmode"] == "relative"


def test_the_warm_up_and_what_lies_between_blocks_is_shaded():
    line = [Line(name="a", x=[1, 2], y=[1.0, 1.0])]
    shapes = steps_figure(line, [(20, 50), (60, 90)], y_title="ms")["layout"]["shapes"]
    assert [(shape["x0"], shape["x1"]) for shape in shapes] == [(0, 19.5), (49.5, 59.5)]
    assert steps_figure([], [], y_title="ms")["layout"]["shapes"] == []


def test_a_heat_map_ends_its_colours_at_the_top_and_keeps_larger_values():
    figure = heat_map(["rank 0", "rank 1"], [1, 2], [[0.0, 90.0], [nan, 1.0]], top=5.0, unit="ms", warmup=1)
    (trace,) = figure["data"]
    assert trace["zmax"] == 5.0 and trace["z"] == [[0.0, 90.0], [None, 1.0]]


def test_the_pointer_shows_the_whole_of_a_name_that_the_legend_cuts():
    name = "/".join(["measurements", *(f"folder-{number}" for number in range(12)), "trace.h5"])
    (line,) = lines([Line(name=name, x=[1], y=[1])], Axes(x_title="", y_title=""))["data"]
    assert len(line["name"]) <= 48 and "…" in line["name"]
    extra = line["hovertemplate"].partition("<extra>")[2].removesuffix("</extra>")
    assert extra.replace("<br>", "") == name and max(map(len, extra.split("<br>"))) <= 48


def test_labels_hold_nothing_that_plotly_would_interpret():
    shown = label(MARKUP, 500)
    assert "<" not in shown and ">" not in shown and "%{" not in shown and "\u202e" not in shown
    assert len(label(ENDLESS)) < 60
    assert "&amp;amp;" in shown


def test_labels_of_different_names_differ():
    names = [ENDLESS, f"{ENDLESS}1", f"1{ENDLESS}", "short"]
    assert len({*labels_of(names)}) == 4 and labels_of(["short"]) == ["short"]


# What is drawn of a run, read from its trace


def test_step_times_are_those_between_latest_ends_warm_up_included(tmp_path: Path) -> None:
    step_s = [0.1] * 5 + [0.2, 0.3] + [0.1] * 8
    reading = read_run(put(tmp_path, make_trace(step_s=step_s)), with_ranks=True)
    assert reading.times.first.tolist() == list(range(1, 15))
    assert reading.times.mean_ms.tolist() == pytest.approx([1e3 * value for value in step_s[1:]])
    assert reading.times.blocks == ((5, 15),) and reading.delays is None


def test_many_steps_are_binned_and_the_longest_of_each_bin_stays(tmp_path: Path) -> None:
    run = make_run(measured_steps=3 * BINS)
    step_s = np.full(run.steps, 0.01)
    step_s[400] = 0.5
    times = read_run(put(tmp_path, make_trace(run, step_s=step_s.tolist())), with_ranks=False).times
    assert len(times.first) <= BINS and times.width == 4
    assert times.max_ms.max() == pytest.approx(500) and times.mean_ms.max() == pytest.approx((500 + 30) / 4)
    at = int(times.max_ms.argmax())
    assert times.first[at] <= 400 < times.first[at] + times.width


def test_the_late_rank_is_behind_the_median_and_the_others_are_not(tmp_path: Path) -> None:
    delays = read_run(put(tmp_path, trace_of(run_of(), backward=on(3, ms=6.0))), with_ranks=True).delays
    assert delays is not None and delays.delay_ms.shape == (4, 45)
    late = np.median(delays.delay_ms, axis=1)
    assert late[3] == pytest.approx(6.0, abs=0.1) and np.abs(late[:3]).max() < 0.1


def test_rows_of_a_heat_map_are_bounded_and_keep_the_latest_rank(tmp_path: Path) -> None:
    run = run_of(nodes=2, ranks_per_node=ROWS + 1)
    delays = read_run(put(tmp_path, trace_of(run, backward=on(200, ms=6.0))), with_ranks=True).delays
    assert delays is not None and len(delays.delay_ms) <= ROWS and delays.ranks_per_row == 3
    assert delays.delay_ms.mean(axis=1).argmax() == 200 // 3


def test_delays_are_absent_where_stamps_are(tmp_path: Path) -> None:
    trace = trace_of(run_of())
    stamps = trace.stamps.copy()
    stamps[1, 7, GRADS_READY] = ABSENT
    reading = read_run(put(tmp_path, dataclasses.replace(trace, stamps=stamps)), with_ranks=True)
    assert reading.delays is None and len(reading.times.first)


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_without_two_steps_has_no_step_time(tmp_path: Path, steps: int) -> None:
    times = read_run(put(tmp_path, cut_short(make_trace(), steps, Outcome.TIMEOUT)), with_ranks=True).times
    assert not len(times.first)


def test_telemetry_lies_at_the_steps_of_its_moments(tmp_path: Path) -> None:
    trace = with_telemetry(trace_of(run_of()), samples=11)
    clock, power = read_run(put(tmp_path, trace), with_ranks=True).courses
    assert clock.quantity.name == "SM clock" and clock.hosts == ("n0", "n1")
    assert clock.steps[0][0] == 0 and clock.steps[0][-1] == trace.run.steps - 1
    assert (np.diff(clock.steps[0]) > 0).all()
    assert clock.values[0].tolist() == [1980.0] * 11 and clock.values[1].tolist() == [1500.0] * 11
    assert power.values[0].tolist() == [480.0 + 3 * at for at in range(11)]


def test_a_counter_is_shown_as_its_rate(tmp_path: Path) -> None:
    trace = with_telemetry(trace_of(run_of()))
    assert trace.telemetry is not None
    counted = np.cumsum(np.ones(trace.telemetry.values.shape[:2]), axis=1)[:, :, None] * 1000
    telemetry = dataclasses.replace(trace.telemetry, values=counted, series=["local_rank0.minor_faults"])
    (course,) = read_run(put(tmp_path, dataclasses.replace(trace, telemetry=telemetry)), with_ranks=True).courses
    span_s = np.diff(telemetry.local_ns[0]) / 1e9
    assert course.values[0].tolist() == pytest.approx((1000 / span_s).tolist())


# Ranks in groups: their mesh, own work beyond their peers


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
    assert "Whose own work is long, run 1: ms more than in the ranks that do the same" in elements.text
    assert "by rank and groups" in elements.text.lower() and "Who is waited for, run" not in elements.text


def test_bars_of_names_with_the_same_begin_stay_apart():
    names = [f"{'x' * 200} {at} {'y' * 200}" for at in range(3)]
    assert len({*stacked(names, {"wait": [1.0, 2.0, 3.0]}, x_title="ms")["data"][0]["y"]}) == 3
