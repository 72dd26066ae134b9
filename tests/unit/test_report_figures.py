"""The charts of the page as SVG, and what they are read from: steps, delays, telemetry, groups of ranks."""

from __future__ import annotations

import dataclasses
import zlib
from math import inf, nan
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, fromstring, tostring

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
from parse.page.figures import Bars, Chart, HeatMap, Line, Lines, LineStyle, Part
from parse.page.html import draw, render
from parse.page.points import BINS, ROWS, read_groups, read_run
from parse.page.svg import log_ticks, nice_ticks, png
from parse.report.summary import Summary, read_summary
from parse.runs.load import load
from parse.runs.result import results
from parse.stats import Mean
from tests.unit.ledger_traces import on, run_of, trace_of
from tests.unit.ledgers import make_ledger
from tests.unit.page_folders import ENDLESS, MARKUP, with_telemetry
from tests.unit.pages import Elements, charts, lines_of
from tests.unit.simulated_graph import Delay, Mesh, Model, SimulatedGraph, simulate_graph
from tests.unit.traces import cut_short, make_run, make_trace, put

SVG = "{http://www.w3.org/2000/svg}"
CASES = [(1, "1n1g"), (8, "1n8g")]


def svg_of(figure: Lines | Bars | HeatMap, title: str = "Speed", text: str = "as ideal") -> Element:
    drawn = draw(Chart(id="chart", title=title, text=text, figure=figure))
    return fromstring(drawn.replace("<svg ", f'<svg xmlns="{SVG[1:-1]}" ', 1))


def texts(svg: Element, tag: str = "text") -> list[str]:
    return ["".join(each.itertext()) for each in svg.iter(f"{SVG}{tag}")]


def paths(svg: Element, **attributes: str) -> list[str]:
    """The ways of the paths with these attributes, `_` for `-`."""
    return [
        path.attrib["d"]
        for path in svg.iter(f"{SVG}path")
        if all(path.get(name.replace("_", "-")) == value for name, value in attributes.items())
    ]


def speeds(*series: Line, log_y: bool = True, **changes: Any) -> Lines:
    return Lines(**{"series": series, "x_title": "devices", "categories": CASES, "log_y": log_y, **changes})


def test_a_line_has_a_mark_for_each_point_with_its_interval_and_its_figures():
    svg = svg_of(speeds(Line(name="a", x=[1, 8], y=[10.0, 60.0], intervals=[(9.0, 12.0), None]), unit="img/s"))
    assert texts(svg, "title") == ["a", "a: 1, 10 img/s (9 to 12)", "a: 8, 60 img/s"]
    marks = [each for each in svg.iter(f"{SVG}svg") if each.get("class") == "mark"]
    assert [mark.attrib["x"] for mark in marks] == ["3.00%", "97.00%"]
    assert [sum("V" in path.get("d", "") for path in mark) for mark in marks] == [1, 0]
    assert {"1n1g", "1n8g", "devices"} <= {*texts(svg)}
    assert (
        svg.attrib["role"] == "img"
        and svg.attrib["aria-label"] == "Speed. as ideal a: 1, 10 img/s (9 to 12); a: 8, 60 img/s"
    )


def test_the_ideal_is_dashed_and_has_no_marks():
    ideal = Line(name="ideal", x=[1, 8], y=[1, 8], style=LineStyle.IDEAL)
    svg = svg_of(speeds(ideal, Line(name="a", x=[1], y=[1.0])))
    assert len(paths(svg, stroke_dasharray="6 4")) == 2  # the line and its key
    assert texts(svg, "title") == ["ideal", "a", "a: 1, 1"] and {"ideal", "a"} <= {*texts(svg)}


def test_a_forecast_is_dashed_with_a_band_and_begins_at_the_last_measured_point():
    ahead = Line(name="a", x=[1, 8], y=[1.0, 6.0], intervals=[(1.0, 1.0), (5.0, 7.0)], style=LineStyle.FORECAST)
    svg = svg_of(speeds(ahead))
    (band,) = paths(svg, fill_opacity=".22")
    assert band.endswith("Z") and band.count("L") == 3
    assert texts(svg, "title") == ["a", "a: 8, 6 (5 to 7)"] and paths(svg, fill="var(--ground)")


@pytest.mark.parametrize(
    ("low", "high", "marks"),
    [(8.0, 230.0, [5, 10, 20, 50, 100, 200, 500]), (1.0, 2e5, [1, 10, 100, 1000, 10_000, 100_000, 200_000])],
)
def test_marks_of_a_logarithmic_axis_enclose_all_values(low: float, high: float, marks: list[float]):
    assert log_ticks(low, high) == marks


@pytest.mark.parametrize(
    ("low", "high", "marks"),
    [
        (0.0, 713.0, [0, 200, 400, 600, 800]),
        (0, 0, [0, 0.2]),
        (-3.0, 1.0, [-3, -2, -1, 0, 1]),
        (98, 103, [98, 99, 100, 101, 102, 103]),
    ],
)
def test_marks_of_a_linear_axis_are_round_and_enclose_all_values(low: float, high: float, marks: list[float]):
    assert nice_ticks(low, high) == marks


@pytest.mark.parametrize("values", [[0.0, 5.0], [-1.0, 5.0], [None, nan]])
def test_an_axis_with_values_that_have_no_logarithm_is_linear(values: list[float | None]):
    assert "0" in texts(svg_of(speeds(Line(name="a", x=[1, 8], y=values))))


def test_numbers_that_are_not_finite_are_not_drawn():
    line = Line(name="a", x=[1, 2, 3, 8], y=[nan, inf, 2.0, 3.0], intervals=[(nan, 1.0), None, (1.0, inf), None])
    svg = svg_of(speeds(line))
    assert texts(svg, "title") == ["a", "a: 3, 2", "a: 8, 3"] and "nan" not in tostring(svg, "unicode")


def test_marks_of_percentages_end_at_100_and_nothing_is_cut():
    line = Line(name="a", x=[1, 8], y=[100.0, 60.0], intervals=[(96.0, 107.0), None])
    svg = svg_of(speeds(line, log_y=False, unit="%"))
    assert texts(svg)[:6] == ["0", "20", "40", "60", "80", "100"] and "120" not in texts(svg)
    (mark,) = (each for each in svg.iter(f"{SVG}svg") if any("V" in path.get("d", "") for path in each))
    assert float(mark.attrib["y"]) > 0


def test_names_of_sizes_have_room_between_them():
    sizes = [(2**power, f"{2**power}n8g") for power in range(14)]
    svg = svg_of(speeds(Line(name="a", x=[1, 8192], y=[1, 8000]), categories=sizes))
    named = [text for text in texts(svg) if text.endswith("n8g")]
    assert named[0] == "1n8g" and named[-1] == "8192n8g" and 4 < len(named) < 9


def test_bars_are_stacked_by_part_and_what_is_lost_is_hatched():
    bars = Bars(
        names=["1n1g", "2n1g"], notes=["5 ms", "8 ms, +3 ms against 1n1g"], x_title="ms", lost="lost against 1n1g",
        parts={"compute": [Part(value=5.0), Part(value=6.0, lost=1.0, title="6 ms")], "wait": [None, Part(value=2.0)]},
    )  # fmt: skip
    svg = svg_of(bars)
    rects = [each for each in svg.iter(f"{SVG}rect") if each.get("height") == "17"]
    of = [(each.attrib["fill"], each.attrib["x"], each.attrib["width"]) for each in rects]
    assert of == [
        ("var(--compute)", "0.00%", "62.50%"), ("var(--compute)", "0.00%", "75.00%"),
        ("url(#lost-chart)", "62.50%", "12.50%"), ("var(--wait)", "75.00%", "25.00%"),
    ]  # fmt: skip
    assert texts(svg, "title")[1] == "2n1g: compute 6 ms" and "2n1g8 ms, +3 ms against 1n1g" in texts(svg)
    assert {"compute", "wait", "lost against 1n1g"} <= {*texts(svg)}


def test_steps_before_the_measured_ones_are_shaded_and_outside_the_scale():
    line = Line(name="a", x=[1, 2, 3], y=[900.0, 10.0, 12.0], style=LineStyle.STEPS)
    svg = svg_of(Lines(series=[line], x_title="step", scale=(0.0, 12.0), shades=[(0, 1.5, "")]))
    assert [text for text in texts(svg) if text.isdigit()][:6] == ["0", "5", "10", "15", "0", "1"]
    (shade,) = (each for each in svg.iter(f"{SVG}rect"))
    assert (shade.attrib["x"], shade.attrib["width"]) == ("0.0", "500.0")
    assert texts(svg, "title") == ["a", "a: 2, 10", "a: 3, 12"]


def test_many_steps_are_a_line_of_means_in_a_band_of_the_shortest_and_longest(tmp_path: Path):
    run = make_run(measured_steps=3 * BINS)
    put(tmp_path, make_trace(run, step_s=[0.01 + 0.002 * (step % 4) for step in range(run.steps)]))
    page = build_page(read_summary([tmp_path])[0], "traces")
    (line,) = lines_of(charts(page)["chart-steps-0"]).values()
    assert line.style is LineStyle.STEPS and [*line.intervals[0]] == pytest.approx([10, 16])
    assert 'fill-opacity=".22"' in draw(charts(page)["chart-steps-0"])


def test_a_heat_map_ends_its_colours_at_the_top_and_leaves_out_what_is_absent():
    image = png([[0.0, 90.0], [nan, 5.0]], top=5.0)
    assert image.startswith(b"\x89PNG") and zlib.decompress(image[image.index(b"IDAT") + 4 :]) == bytes(
        [0, 1, 255, 0, 0, 255]
    )
    figure = HeatMap(
        rows=["rank 0", "rank 1"], x=[1, 2], z=[[0.0, 90.0], [nan, 1.0]], top=5.0, unit="ms", warmup=2,
        titles=["rank 0: at most 90 ms", "rank 1: at most 1 ms"],
    )  # fmt: skip
    svg = svg_of(figure)
    assert {"rank 0", "rank 1", "5 ms and more"} <= {*texts(svg)} and texts(svg, "title") == [*figure.titles]
    (image_of,) = svg.iter(f"{SVG}image")
    assert image_of.attrib["href"].startswith("data:image/png;base64,")


def test_the_pointer_shows_the_whole_of_a_name_that_the_legend_cuts():
    name = "/".join(["measurements", *(f"folder-{number}" for number in range(12)), "trace.h5"])
    svg = svg_of(speeds(Line(name=name, x=[1], y=[1]), Line(name="b", x=[1], y=[2])))
    assert f"{name}: 1, 1" in texts(svg, "title")
    assert any("…" in text and len(text) <= 38 for text in texts(svg))


def test_texts_from_outside_are_text_and_not_endless():
    lines = speeds(
        Line(name=MARKUP, x=[1, 8], y=[1, 2]), Line(name=ENDLESS, x=[1, 8], y=[1, 2]), shades=[(1, 2, MARKUP)]
    )
    svg = svg_of(lines, MARKUP, MARKUP)
    assert not [*svg.iter("script"), *svg.iter("img"), *svg.iter(f"{SVG}script"), *svg.iter(f"{SVG}b")]
    drawn = tostring(svg, "unicode")
    assert "\u202e" not in drawn and "n" * 201 not in drawn and "<script>alert(1)</script>" in svg.attrib["aria-label"]


def test_names_with_the_same_begin_stay_apart():
    names = [f"{'x' * 200} {at} {'y' * 200}" for at in range(3)]
    svg = svg_of(speeds(*(Line(name=name, x=[1], y=[1]) for name in names)))
    assert len({text for text in texts(svg) if text.startswith("x")}) == 3


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
    assert times.min_ms.tolist() == pytest.approx([10] * len(times.first))
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
    beyond_ns, names = reading
    assert sorted(names) == [*range(mesh.ranks)]
    late, own_ns = mesh.ranks - 2, truth.work_ns.sum(axis=2)
    if mesh.pp == mesh.ranks:  # no rank has a peer
        medians = np.sort(own_ns, axis=1)[:, 6, None]
        assert abs(beyond_ns - (own_ns - medians)).max() < 100  # clocks are read to ns
    else:
        usual = beyond_ns.mean(axis=1)
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
    page = build_page(Summary(results=(ledger.result,), ledgers=(ledger,)), source="a test")
    delays = charts(page)["chart-delays-0"].figure
    assert isinstance(delays, HeatMap) and delays.rows[6] == "rank 6: pp 1, dp 1, tp 0"
    elements = Elements(render(page))
    assert "Whose own work is long, run 1: ms more than in the ranks that do the same" in elements.text
    assert "by rank and groups" in elements.text.lower() and "Who is waited for, run" not in elements.text
