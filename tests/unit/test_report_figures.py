"""The charts of the page as plain values, and the texts in them."""

from __future__ import annotations

import json
from math import inf, nan

import pytest

from parse.page.figures import Axes, Line, heat_map, label, labels_of, lines, stacked, steps_figure
from tests.unit.page_folders import ENDLESS, MARKUP

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


def test_series_differ_without_colour():
    figure = lines([Line(name=str(at), x=[1], y=[1.0]) for at in range(6)], AXES)
    assert len({trace["marker"]["symbol"] for trace in figure["data"]}) == 6
    assert len({trace["line"]["color"] for trace in figure["data"]}) == 6


def test_bars_are_stacked_by_part_and_what_is_absent_stays_absent():
    parts = {"compute": [5.0, 6.0], "wait": [None, 2.0]}
    figure = stacked(["1n1g", "2n1g"], parts, x_title="ms", shown={"compute": ["±1", "±2"], "wait": ["", "±3"]})
    assert [trace["x"] for trace in figure["data"]] == [[5.0, 6.0], [None, 2.0]]
    assert figure["data"][1]["customdata"] == ["", "±3"] and figure["layout"]["barmode"] == "relative"


def test_terms_keep_their_colour_whichever_are_there():
    first, second = (stacked(["a"], {name: [1.0]}, x_title="ms")["data"][0] for name in ("wait", "wait+communication"))
    assert first["marker"] == second["marker"]


def test_bars_of_names_with_the_same_begin_stay_apart():
    names = [f"{'x' * 200} {at} {'y' * 200}" for at in range(3)]
    assert len({*stacked(names, {"wait": [1.0, 2.0, 3.0]}, x_title="ms")["data"][0]["y"]}) == 3


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
