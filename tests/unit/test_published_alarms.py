"""The alarms on published results: short samples, then all alarms on the five reference documents."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import pytest

from hpc.system.text import grouped
from parse.alarms.table import judge
from parse.alarms.text import sentence
from parse.extrapolation.series import Refusal, series_of_results
from parse.published.points import published
from parse.runs.result import Result, against_base
from tests.unit.alarm_figures import figures, same
from tests.unit.test_published import BLOCK, RUNS, TABLE, TITLE, table

SERIES = Path(__file__).parents[2].parent / "shared" / "scaling" / "series.csv"
REFERENCE = Path(__file__).parents[2].parent / "shared" / "reference"
needs_reference = pytest.mark.skipif(not REFERENCE.is_dir(), reason=f"no published documents at {REFERENCE}")


def judged(folder: Path, text: str) -> tuple[Result, ...]:
    path = folder / "report.md"
    path.write_text(text, encoding="utf-8")
    return judge(published([path]).results)


def cases(folder: Path, **speeds: str) -> tuple[Result, ...]:
    """Points of a table with those speeds and, behind a blank, speedups: `cases(g1="100", n2g8="1600 16")`."""
    rows = []
    for name, printed in speeds.items():
        nodes, _, each = name.removeprefix("n").rpartition("g")
        speed, _, speedup = printed.partition(" ")
        rows.append(f"| {nodes or 1} | {each} | {speed} | {speedup or '-'} |")
    return judged(folder, table("| nodes | gpu_num_per_node | samples/s | speedup |", *rows))


def test_rows_of_one_size_that_are_far_apart_are_no_repeats(tmp_path: Path) -> None:
    rows = [f"| {size} | {speed} |" for size, speed in ((8, 800), (16, 1590), (16, 800), (32, 3150))]
    results = judged(tmp_path, table("| GPUs | images/s |", *rows))
    (actual,) = figures(results, "contradictory")
    assert actual == {"rows": 2, "least": 800, "largest": 1590, "ratio": 1590 / 800}
    (series,) = series_of_results(results)
    assert [point.devices for point in series.points] == [8, 16, 16, 32]
    assert series.contradiction[0] is Refusal.CONTRADICTORY
    close = judged(tmp_path, table("| GPUs | images/s |", *rows[:2], "| 16 | 1500 |"))
    assert not figures(close, "contradictory") and len(series_of_results(close)[0].points) == 2


def test_a_clean_document_has_no_alarms(tmp_path):
    clean = RUNS.replace("r50_b128_fp32_4_6.log {4: 200.5}", "r50_b128_fp32_2.log {2: 782.0}")
    clean = clean.replace("4: 200.5, 1: 790.0", "2: 782.0, 1: 778.0")
    clean = clean.replace("fp32_4.log {4: 780.0, 1: 790.0}", "fp32_3.log {2: 782.0, 1: 778.0, 3: 780.0}")
    results = judged(tmp_path, TITLE + clean + BLOCK.replace("590.17", "780.0") + TABLE)
    assert [(len(result.ok), result.alarms) for result in results] == [(3, ()), (3, ()), (0, ())]


def test_printed_figures_that_differ_from_their_runs(tmp_path):
    results = judged(tmp_path, TITLE + RUNS + BLOCK + TABLE)
    printed = {"median": {"780.0": [17, 26]}, "average": {"590.17": [15]}, "speedup": {"7.79": [18, 26]}}
    (actual,) = figures(results, "as_published")
    assert same(actual, {"printed": printed, "source": "clean runs", "runs": 2})
    assert actual["computed"] == pytest.approx({"median": 785, "average": 785, "speedup": 7.84}, abs=0.005)
    (actual,) = figures(results, "average_and_median", "1n8g")
    assert same(actual, {"average": 590.17, "median": 780.0, "difference": -0.2434, "source": "document"})
    assert figures(results, "packed") == [{"logs": [{"log": "r50_b128_fp32_4_6.log", "speed": 200.5}]}]
    assert figures(results, "as_published", "1n1g") + figures(results, "packed", "1n1g") == []
    assert [alarm.text for alarm in results[1].alarms][1:] == [
        "as published, average 590.17 and median 780.00 are -24.3% apart",
        "its document prints median 780.0 (lines 17, 26), average 590.17 (line 15), speedup 7.79 (lines 18, 26); "
        "its 2 clean runs give 785.00, 785.00, 7.84",
        "1 log of packed jobs, several on the same devices, set aside: r50_b128_fp32_4_6.log (200.50); "
        "the result is of the other runs",
    ]


@pytest.mark.parametrize(
    ("speedup", "alarms"), [("10.28", 0), ("10.3", 0), ("10", 0), ("10.2", 1), ("10.27", 1), ("11", 1)]
)
def test_a_printed_speedup_and_its_own_figures(tmp_path, speedup, alarms):
    actual = figures(cases(tmp_path, g1="1034.64 1", n4g8=f"10633.22 {speedup}"), "as_published")
    assert [(item["printed"], item["source"]) for item in actual] == [
        ({"speedup": {speedup: [4]}}, "document")
    ] * alarms
    assert [round(item["computed"]["speedup"], 2) for item in actual] == [10.28] * alarms


def test_a_speedup_without_its_base_cannot_be_checked(tmp_path):
    (result,) = cases(tmp_path, n4g8="10633.22 10.2")
    assert (figures([result], "as_published"), result.speedup) == ([], None)


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


def test_as_many_devices_on_more_nodes_are_slower(tmp_path):
    results = cases(tmp_path, n1g8="1000 -", n2g4="900 -", n4g2="985 -")
    actual = {result.requested.case: figures([*results], "more_nodes", result.requested.case) for result in results}
    assert {case: [item["smaller_case"] for item in items] for case, items in actual.items()} == {
        "1n8g": [], "2n4g": ["1n8g"], "4n2g": [],
    }  # fmt: skip


def test_a_document_may_measure_against_another_case_than_one_device(tmp_path):
    results = cases(tmp_path, g1="15.00 -", n1g8="116.36 1.00", n4g8="365.71 3.14")
    assert [round(result.speedup or 0, 2) for result in results] == [1.0, 7.76, 24.38]
    assert figures(results, "as_published") == []
    assert len(figures(against_base(results, "4n8g"), "as_published")) == 0


def test_a_table_that_prints_another_median_than_the_result(tmp_path):
    other = TABLE.replace("| 1        | 8       | 780.0 ", "| 1        | 8       | 870.0 ")
    other = other.replace("| 100.1     | 1 ", "| 100.1     | 1.00 ") + "| 1 | 4 | 390 | 3.9 |\n"
    block = BLOCK.replace("'1n8g'", "'1n4g': {'batch_size_per_device': 128, 'median_speed': 390},\n '1n8g'")
    results = judged(tmp_path, TITLE + block + other)
    assert {(result.run.batch_size, result.run.precision) for result in results} == {(128, "fp32")}
    (actual,) = figures(results, "as_published")
    assert same(actual, {"printed": {"median": {"870.0": [20]}}, "computed": {"median": 780}, "source": "document"})


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


def test_a_column_with_the_figures_of_another(tmp_path):
    def columns(second: str) -> tuple[Result, ...]:
        first = table("| nodes | devices | OneFlow |", "| 1 | 1 | 383.76 |", "| 1 | 2 | 747.295 |")
        return judged(tmp_path, f"## bsz = 160\n{first}\n\n## {second}\n{first}\n")

    copies = figures(columns("bsz = 128"), "copied", "1n1g")
    assert copies == [{"differences": {"batch_size": size}, "cases": 2} for size in (160, 128)]
    assert sentence("copied", copies[0]) == (
        "the same figures as batch_size 160 in all 2 cases: one of the two columns is a copy, no measurement"
    )
    assert figures(columns("bsz = 128"), "copied", "1n2g") == []
    # Nothing known differs.
    assert figures(columns("again"), "copied") == figures(columns("bsz = 160"), "copied") == []
    assert len(columns("again")) == 4


def trained(folder: Path, epochs: int) -> tuple[Result, ...]:
    rows = table("| | Time2train(sec) | images/sec |", "| 1卡 | 148,720 | 1149.207 |")
    return judged(folder, f"# NGC TensorFlow, ImageNet\n训练经过148,720秒完成了{epochs}个epoch。\n\n{rows}\n")


def test_a_throughput_and_the_time_to_train(tmp_path):
    (alarm,) = (alarm for result in trained(tmp_path, 120) for alarm in result.alarms)
    assert (alarm.name, alarm.figures["source"]) == ("rates_and_wall_clock", "document")
    assert alarm.text == (
        "it reports 1149.21 samples/s, but 120 epochs of the 1,281,167 images of ImageNet in 148,720 s are 1033.75 "
        "by the clock: +11.2% apart"
    )
    assert figures(trained(tmp_path, 133), "rates_and_wall_clock") == []


# The reference documents


@pytest.fixture(scope="module")
def reference() -> Mapping[str, tuple[Result, ...]]:
    """The judged points of the five documents, by the three digits that their names begin with."""
    documents = published([REFERENCE])
    assert (documents.remarks, documents.refusals) == ((), ())
    by_name: dict[str, tuple[Result, ...]] = {}
    for result in judge(documents.results):
        name = str(result.requested.extra["document"])[:3]
        by_name[name] = (*by_name.get(name, ()), result)
    return by_name


def label(result: Result) -> str:
    """System, batch size, place and case of a point, unique in its document."""
    size = "" if result.run.batch_size is None else f"b{result.run.batch_size}"
    parts = (result.run.backend, size, result.requested.extra.get("printed_at", ""), result.requested.case)
    return " ".join(part for part in parts if part)


def alarms(results: tuple[Result, ...]) -> dict[str, list[str]]:
    """The points with an alarm, by its name."""
    labels: dict[str, list[str]] = {}
    for result in results:
        for alarm in result.alarms:
            labels.setdefault(alarm.name, []).append(label(result))
    return {name: sorted(points) for name, points in labels.items()}


@needs_reference
def test_000_pytorch(reference):
    points = {result.requested.case: result for result in reference["000"]}
    speeds = {case: (round(point.median_speed, 2), round(point.average_speed, 2)) for case, point in points.items()}
    assert speeds == {"1n1g": (366.14, 366.05), "1n4g": (1448.06, 1447.67), "1n8g": (2806.66, 2810.55)}
    assert [(round(point.speedup, 2), len(point.ok)) for point in points.values()] == [(1, 5), (3.95, 5), (7.67, 5)]
    assert alarms(reference["000"]) == {
        name: ["ngc-pytorch b128 1n8g"] for name in ("average_and_median", "as_published", "packed")
    }
    (text,) = [alarm.text for alarm in points["1n8g"].alarms if alarm.name == "as_published"]
    assert text == (
        "its document prints median 2802.14 (lines 174, 193), average 2014.63 (line 172), speedup 7.65 (lines 175, 193)"
        "; its 5 clean runs give 2806.66, 2810.55, 7.67"
    )
    assert points["1n8g"].published.packed == (
        ("r50_b128_fp32_7_9.log", 688.8), ("r50_b128_fp32_4_6.log", 682.28), ("r50_b128_fp32_1_3.log", 672.63),
        ("r50_b128_fp32_10_12.log", 701.07), ("r50_b128_fp32_13_15.log", 674.42),
    )  # fmt: skip


@needs_reference
def test_001_tables_of_several_systems(reference):
    results = reference["001"]
    absent = {label(result): result.runs[0].outcome_text for result in results if result.median_speed is None}
    assert absent == {"tensorflow b160 2n8g": "OOM"} | {
        f"{backend} b{size} {case}": "TODO"
        for backend, sizes in (("mxnet", (32, 64, 128, 160)), ("oneflow", (32, 64)))
        for size in sizes
        for case in ("1n1g", "1n2g", "1n4g", "1n8g", "2n8g", "4n8g")
    }
    assert len(results) == 20 * 6
    assert alarms(results) == {
        "copied": ["oneflow b128 1n1g", "oneflow b160 1n1g"],
        "superlinear": ["tensorflow b32 1n2g", "tensorflow b32 1n4g"],
        "rising": [
            *(f"paddle b{size} {case}" for size in (128, 160, 32, 64) for case in ("2n8g", "4n8g")),
            "pytorch b128 4n8g",
            *(f"pytorch b{size} {case}" for size in (160, 32) for case in ("2n8g", "4n8g")),
            "pytorch b64 4n8g",
            "tensorflow b128 1n8g", "tensorflow b128 2n8g",
            "tensorflow b160 1n8g", "tensorflow b160 4n8g",
            "tensorflow b64 1n8g",
        ],
    }  # fmt: skip
    (point,) = (result for result in results if label(result) == "pytorch b128 4n8g")
    assert same(figures([point], "rising")[0], {"speed_ratio": 2.33, "device_ratio": 2.0})


@needs_reference
def test_002_paddle(reference):
    results = [result for result in reference["002"] if result.run.batch_size is not None]
    assert {result.requested.case: (round(result.average_speed, 2), round(result.speedup, 2), len(result.ok))
            for result in results} == {
        "1n1g": (353.1, 1.0, 6), "1n2g": (642.92, 1.83, 6), "1n4g": (1358.32, 3.85, 6), "1n8g": (2626.41, 7.44, 6),
        "2n8g": (4898.59, 13.88, 6), "4n8g": (9328.72, 26.5, 6),
    }  # fmt: skip
    medians = [352.72, 644.66, 1358.64, 2625.38, 4895.27, 9348.17]
    assert [result.median_speed for result in results] == pytest.approx(medians, abs=0.0051)
    assert alarms(reference["002"]) == {
        "rising": ["paddle b128 1n4g"],
        "falling": ["paddle line 164 2n8g"],
        "as_published": ["paddle line 149 4n8g"],
    }
    # Of all rows of the first table this one alone: 661.22 at most on two devices, 1353.06 or more on four.
    (actual,) = figures(reference["002"], "rising")
    assert same(actual, {"per_device_low": 338.3, "smaller_case": "1n2g", "smaller_per_device_high": 330.6})
    (actual,) = figures(reference["002"], "as_published")
    assert same(actual, {"printed": {"speedup": {"10.2": [155]}}, "source": "document"})


@needs_reference
def test_003_plsc(reference):
    results = reference["003"]
    assert {result.requested.case: (result.median_speed, round(result.average_speed, 2), round(result.speedup, 2))
            for result in results} == {
        "1n1g": (397.78, 397.98, 1.0), "1n4g": (1539.66, 1541.03, 3.87), "1n8g": (2545.3, 2548.18, 6.4),
        "2n8g": (5953.84, 5956.61, 14.97), "4n8g": (11084.53, 11086.97, 27.87),
    }  # fmt: skip
    assert {(result.run.backend, result.run.workload) for result in results} == {("plsc", "arcface_resnet50")}
    assert alarms(results) == {"rising": ["plsc b128 2n8g", "plsc b128 4n8g"]}


@needs_reference
def test_004_tensorflow(reference):
    results = reference["004"]
    speeds = [(result.requested.case, result.median_speed) for result in results]
    assert speeds == [("1n1g", 1149.207), ("8g", None), ("32g", None)]
    assert alarms(results) == {"rates_and_wall_clock": ["ngc-tensorflow 1n1g"]}


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
