"""The alarms on the figures of tables, and of the five reference documents as recipes have them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from hpc.model.reference import read_recipe
from hpc.system.text import grouped
from parse.alarms.table import judge, sentence
from parse.command_options import read_columns
from parse.extrapolation.rule import Refusal, series_of_results
from parse.report.against import recipe_results
from parse.runs.result import Result
from parse.tables import published
from tests.unit.alarm_figures import figures, same
from tests.unit.test_tables import SIZED, table

SERIES = Path(__file__).parents[2].parent / "shared" / "scaling" / "series.csv"


def judged(folder: Path, text: str, columns: str = SIZED) -> tuple[Result, ...]:
    path = folder / "report.md"
    path.write_text(text, encoding="utf-8")
    return judge(published([path], read_columns([columns])).results)


def cases(folder: Path, **speeds: str) -> tuple[Result, ...]:
    """Points of a table with those speeds and, behind a blank, speedups: `cases(g1="100", n2g8="1600 16")`."""
    rows = []
    for name, printed in speeds.items():
        nodes, _, each = name.removeprefix("n").rpartition("g")
        speed, _, speedup = printed.partition(" ")
        rows.append(f"| {nodes or 1} | {each} | {speed} | {speedup or '-'} |")
    columns = "nodes=nodes,gpus_per_node=each,speed=samples/s,speedup=speedup"
    return judged(folder, table("| nodes | each | samples/s | speedup |", *rows), columns)


def test_rows_of_one_size_that_are_far_apart_are_no_repeats(tmp_path: Path) -> None:
    rows = [f"| {size} | {speed} |" for size, speed in ((8, 800), (16, 1590), (16, 800), (32, 3150))]
    results = judged(tmp_path, table("| GPUs | img/s |", *rows))
    (actual,) = figures(results, "contradictory")
    assert actual == {"rows": 2, "least": 800, "largest": 1590, "ratio": 1590 / 800}
    (series,) = series_of_results(results)
    assert [point.devices for point in series.points] == [8, 16, 16, 32]
    assert series.contradiction[0] is Refusal.CONTRADICTORY
    close = judged(tmp_path, table("| GPUs | img/s |", *rows[:2], "| 16 | 1500 |"))
    assert not figures(close, "contradictory") and len(series_of_results(close)[0].points) == 2


@pytest.mark.parametrize(
    ("speedup", "alarms"), [("10.28", 0), ("10.3", 0), ("10", 0), ("10.2", 1), ("10.27", 1), ("11", 1)]
)
def test_a_printed_speedup_and_its_own_figures(tmp_path, speedup, alarms):
    actual = figures(cases(tmp_path, g1="1034.64 1", n4g8=f"10633.22 {speedup}"), "as_published")
    assert [(item["printed"], item["source"]) for item in actual] == [
        ({"speedup": {speedup: [4]}}, "document")
    ] * alarms
    assert [round(item["computed"]["speedup"], 2) for item in actual] == [10.28] * alarms


@pytest.mark.parametrize(
    ("first", "last", "alarms"),
    [
        ("1.00", "3.14", 0),
        ("1", "3.1", 0),
        ("1.0", "3.5", 1),
        ("7.81", "24.54", 0),
        ("7.81", "3.5", 0),
        ("-", "3.5", 0),
    ],
)
def test_a_document_states_its_base_by_a_speedup_of_one(tmp_path, first, last, alarms):
    """A smallest case that prints 7.81 is against a case that the document does not have."""
    results = cases(tmp_path, n1g8=f"116.36 {first}", n2g8="213.33 -", n4g8=f"365.71 {last}")
    assert [(result.base and result.base.case, round(result.speedup or 0, 2)) for result in results] == [
        ("1n8g", 1.0), ("1n8g", 1.83), ("1n8g", 3.14),
    ]  # fmt: skip
    actual = figures(results, "as_published")
    assert [(item["printed"], round(item["computed"]["speedup"], 2)) for item in actual] == [
        ({"speedup": {last: [5]}}, 3.14)
    ] * alarms


@pytest.mark.parametrize(
    ("name", "speeds", "expected", "silent"),
    [
        ("superlinear", {"g1": "100", "g2": "205"}, {"speedup": 2.05, "speedup_low": 2.01},
         {"g1": "100", "g2": "203.9"}),
        ("rising", {"n2g8": "2384.3", "n4g8": "5552.77"},
         {"per_device_low": 171.8, "smaller_case": "2n8g", "smaller_per_device_high": 150.5, "speed_ratio": 2.33},
         {"n2g8": "1000", "n4g8": "2039"}),
        ("falling", {"g8": "6862.17", "n2g8": "6018.46"}, {"speed_high": 6078.64, "smaller_speed_low": 6793.55},
         {"g8": "1000", "n2g8": "981"}),
    ],
)  # fmt: skip
def test_single_figures_are_compared_beyond_two_percent(tmp_path, name, speeds, expected, silent):
    (actual,) = figures(cases(tmp_path, **speeds), name)
    assert same(actual, expected | {"single_figures": True})
    assert "with 2% allowed between single published figures" in sentence(name, actual)
    assert figures(cases(tmp_path, **silent), name) == []


# The reference documents, whose figures recipes have (test_recipes holds them against the documents).

JUDGED = {
    "ngc-pytorch-resnet50": {
        "average_and_median": ["1n8g b128"], "as_published": ["1n8g b128"], "packed": ["1n8g b128"],
    },
    "pytorch-examples-resnet50": {
        "rising": ["2n8g b32", "4n8g b32", "4n8g b64", "4n8g b128", "2n8g b160", "4n8g b160"],
    },
    "paddle-resnet50": {"rising": ["1n4g b128"], "falling": ["2n8g b196"], "as_published": ["4n8g b224"]},
    "plsc-arcface": {"rising": ["2n8g b128", "4n8g b128"]},
    "ngc-tensorflow-resnet50": {"rates_and_wall_clock": ["1n1g b256"]},
}  # fmt: skip


@pytest.mark.parametrize("name", JUDGED)
def test_alarms_of_the_reference_documents(name):
    alarms: dict[str, list[str]] = {}
    for result in judge(list(recipe_results(read_recipe(name)).values())):
        for alarm in result.alarms:
            alarms.setdefault(alarm.name, []).append(f"{result.requested.case} b{result.run.batch_size}")
    assert alarms == JUDGED[name]


def test_what_is_wrong_with_a_document_is_said():
    results = judge(list(recipe_results(read_recipe("ngc-pytorch-resnet50")).values()))
    (point,) = (result for result in results if result.requested.case == "1n8g")
    assert (point.median_speed, round(point.speedup, 2), len(point.ok)) == (2806.66, 7.67, 5)
    texts = {alarm.name: alarm.text for alarm in point.alarms}
    assert texts["as_published"] == (
        "its document prints average 2014.63 (line 172), median 2802.14 (lines 174, 193), speedup 7.65 (lines 175, 193)"
        "; its 5 clean runs give 2810.55, 2806.66, 7.67"
    )
    assert "5 logs of packed jobs, several on the same devices, set aside" in texts["packed"]
    results = judge(list(recipe_results(read_recipe("ngc-tensorflow-resnet50")).values()))
    (alarm,) = (alarm for result in results for alarm in result.alarms)
    assert alarm.text == (
        "it reports 1149.21 samples/s, but 120 epochs of the 1,281,167 images of ImageNet in 148,720 s are 1033.75 "
        "by the clock: +11.2% apart"
    )


@pytest.mark.skipif(not SERIES.is_file(), reason=f"no public scaling series at {SERIES}")
def test_public_series_have_the_efficiency_that_they_state_against_their_smallest_case(tmp_path):
    """35 series, of which most begin above 8 devices: a table of each, with speeds in samples/s."""
    series = grouped((row["series"], row) for row in csv.DictReader(SERIES.open(encoding="utf-8")))
    checked = 0
    for rows in series.values():
        devices = [int(row["devices"]) for row in rows]
        if len(rows) < 2 or len({*devices}) < len(rows):
            continue
        speeds = [float(row["speed_per_device_any_unit"]) * n * 1e4 for row, n in zip(rows, devices, strict=True)]
        results = cases(tmp_path, **{f"g{n}": f"{speed:.6f}" for n, speed in zip(devices, speeds, strict=True)})
        assert {result.base and result.base.devices for result in results} == {min(devices)}
        expected = {n: float(row["efficiency_against_smallest"]) for n, row in zip(devices, rows, strict=True)}
        actual = {result.run.devices: result.scaling_efficiency for result in results}
        assert actual == pytest.approx(expected, abs=1e-4)
        checked += 1
    assert checked > 20
