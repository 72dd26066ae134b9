"""The alarms on published results: short samples, then all that ring on the five reference documents, and no other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from parse.alarms.table import judge
from parse.published.documents import published
from parse.result import Result
from tests.unit.test_alarms import rung
from tests.unit.test_published import BLOCK, RUNS, TABLE, TITLE, table

REFERENCE = Path(__file__).parents[2].parent / "shared" / "reference"
needs_reference = pytest.mark.skipif(not REFERENCE.is_dir(), reason=f"no published documents at {REFERENCE}")


def judged(folder: Path, text: str) -> tuple[Result, ...]:
    path = folder / "report.md"
    path.write_text(text, encoding="utf-8")
    return judge(published([path]).results)


def cases(folder: Path, **speeds: str) -> tuple[Result, ...]:
    """Points of a table with those speeds and, behind a blank, speedups: `cases(g1="100", n2g8="1600 16")`."""
    rows = []
    for name, figures in speeds.items():
        nodes, _, each = name.removeprefix("n").rpartition("g")
        speed, _, speedup = figures.partition(" ")
        rows.append(f"| {nodes or 1} | {each} | {speed} | {speedup or '-'} |")
    return judged(folder, table("| nodes | gpu_num_per_node | samples/s | speedup |", *rows))


def test_a_clean_document_rings_nothing(tmp_path):
    clean = RUNS.replace("r50_b128_fp32_4_6.log {4: 200.5}", "r50_b128_fp32_2.log {2: 782.0}")
    clean = clean.replace("4: 200.5, 1: 790.0", "2: 782.0, 1: 778.0")
    clean = clean.replace("fp32_4.log {4: 780.0, 1: 790.0}", "fp32_3.log {2: 782.0, 1: 778.0, 3: 780.0}")
    found = judged(tmp_path, TITLE + clean + BLOCK.replace("590.17", "780.0") + TABLE)
    assert [len(result.ok) for result in found] == [3, 3, 0]
    assert [result.alarms for result in found] == [(), (), ()]


def test_printed_figures_that_their_runs_do_not_give(tmp_path):
    found = judged(tmp_path, TITLE + RUNS + BLOCK + TABLE)
    assert rung(found, "as_published") == [
        "its document prints median 780.0 (lines 17, 26), average 590.17 (line 15), speedup 7.79 (lines 18, 26); "
        "its 2 clean runs give 785.00, 785.00, 7.84"
    ]
    assert rung(found, "average_and_median", "1n8g") == [
        "as published, average 590.17 and median 780.00 are -24.3% apart"
    ]
    assert rung(found, "packed") == [
        "1 log of packed jobs, several on the same devices, set aside: r50_b128_fp32_4_6.log (200.50); "
        "the result is of the other runs"
    ]
    assert rung(found, "as_published", "1n1g") + rung(found, "packed", "1n1g") == []


@pytest.mark.parametrize("speedup", ["10.28", "10.3", "10"])
def test_a_speedup_that_is_printed_rounded_is_right(tmp_path, speedup):
    assert rung(cases(tmp_path, g1="1034.64 1", n4g8=f"10633.22 {speedup}"), "as_published") == []


@pytest.mark.parametrize("speedup", ["10.2", "10.27", "11"])
def test_a_speedup_that_its_own_figures_do_not_give(tmp_path, speedup):
    (said,) = rung(cases(tmp_path, g1="1034.64 1", n4g8=f"10633.22 {speedup}"), "as_published")
    assert said == f"its document prints speedup {speedup} (line 4); its own figures give 10.28"


def test_a_speedup_without_its_baseline_cannot_be_checked(tmp_path):
    (result,) = cases(tmp_path, n4g8="10633.22 10.2")
    assert rung([result], "as_published") == []
    assert result.speedup is None


def test_a_table_that_prints_another_median_than_the_result(tmp_path):
    other = TABLE.replace("| 1        | 8       | 780.0 ", "| 1        | 8       | 870.0 ")
    other = other.replace("| 100.1     | 1 ", "| 100.1     | 1.00 ") + "| 1 | 4 | 390 | 3.9 |\n"
    block = BLOCK.replace("'1n8g'", "'1n4g': {'batch_size_per_device': 128, 'median_speed': 390},\n '1n8g'")
    found = judged(tmp_path, TITLE + block + other)
    assert {(result.run.batch_size, result.run.precision) for result in found} == {(128, "fp32")}
    assert rung(found, "as_published") == ["its document prints median 870.0 (line 20); its own figures give 780.00"]


def test_single_figures_ring_beyond_two_percent(tmp_path):
    assert rung(cases(tmp_path, g1="100", g2="205"), "superlinear") == [
        "speedup 2.05 on 2 devices, at least 2.01 with 2% allowed between single published figures: more than linear"
    ]
    assert rung(cases(tmp_path, g1="100", g2="203.9"), "superlinear") == []
    (said,) = rung(cases(tmp_path, n2g8="2384.3", n4g8="5552.77"), "rising")
    assert said == (
        "171.8 samples/s per device or more, on 2n8g at most 150.5 with 2% allowed between single published figures: "
        "speed per device rises with the number of devices; 2.33 times the speed on 2 times the devices"
    )
    assert rung(cases(tmp_path, n2g8="1000", n4g8="2039"), "rising") == []
    (said,) = rung(cases(tmp_path, g8="6862.17", n2g8="6018.46"), "falling")
    assert said.startswith("6078.64 samples/s at most on 16 devices, on 8 (1n8g) 6793.55 or more with 2% allowed")
    assert rung(cases(tmp_path, g8="1000", n2g8="981"), "falling") == []


def test_a_column_with_the_figures_of_another(tmp_path):
    def columns(second: str) -> tuple[Result, ...]:
        first = table("| nodes | devices | OneFlow |", "| 1 | 1 | 383.76 |", "| 1 | 2 | 747.295 |")
        return judged(tmp_path, f"## bsz = 160\n{first}\n\n## {second}\n{first}\n")

    assert rung(columns("bsz = 128"), "copied", "1n1g") == [
        "the same figures as batch_size 160 in all 2 cases: one of the two columns is a copy, no measurement",
        "the same figures as batch_size 128 in all 2 cases: one of the two columns is a copy, no measurement",
    ]
    assert rung(columns("bsz = 128"), "copied", "1n2g") == []
    # Nothing says that it is of something else.
    assert rung(columns("again"), "copied") == []
    assert len(columns("again")) == 4
    assert rung(columns("bsz = 160"), "copied") == []


def trained(folder: Path, epochs: int) -> tuple[Result, ...]:
    rows = table("| | Time2train(sec) | images/sec |", "| 1卡 | 148,720 | 1149.207 |")
    return judged(folder, f"# NGC TensorFlow, ImageNet\n训练经过148,720秒完成了{epochs}个epoch。\n\n{rows}\n")


def test_a_throughput_against_the_time_to_train(tmp_path):
    assert rung(trained(tmp_path, 120), "rates_and_wall_clock") == [
        "it reports 1149.21 samples/s, but 120 epochs of the 1,281,167 images of ImageNet in 148,720 s are 1033.75 "
        "by the clock: +11.2% apart"
    ]
    assert rung(trained(tmp_path, 133), "rates_and_wall_clock") == []


# The reference documents


@pytest.fixture(scope="module")
def reference() -> Mapping[str, tuple[Result, ...]]:
    """The judged points of the five documents, by the three digits that their names begin with."""
    found = published([REFERENCE])
    assert (found.remarks, found.refusals) == ((), ())
    by_name: dict[str, tuple[Result, ...]] = {}
    for result in judge(found.results):
        name = str(result.requested.extra["document"])[:3]
        by_name[name] = (*by_name.get(name, ()), result)
    return by_name


def label(result: Result) -> str:
    """What tells a point from the others of its document: system, batch size, place, case."""
    size = "" if result.run.batch_size is None else f"b{result.run.batch_size}"
    parts = (result.run.backend, size, result.requested.extra.get("printed_at", ""), result.requested.case)
    return " ".join(part for part in parts if part)


def ringing(results: tuple[Result, ...]) -> dict[str, list[str]]:
    rang: dict[str, list[str]] = {}
    for result in results:
        for alarm in result.alarms:
            rang.setdefault(alarm.name, []).append(label(result))
    return {name: sorted(there) for name, there in rang.items()}


@needs_reference
def test_000_pytorch(reference):
    found = {result.requested.case: result for result in reference["000"]}
    assert {name: (round(one.median_speed, 2), round(one.average_speed, 2), round(one.speedup, 2), len(one.ok))
            for name, one in found.items()} == {
        "1n1g": (366.14, 366.05, 1.0, 5), "1n4g": (1448.06, 1447.67, 3.95, 5), "1n8g": (2806.66, 2810.55, 7.67, 5),
    }  # fmt: skip
    assert ringing(reference["000"]) == {
        name: ["ngc-pytorch b128 1n8g"] for name in ("average_and_median", "as_published", "packed")
    }
    (said,) = rung(reference["000"], "as_published")
    assert said == (
        "its document prints median 2802.14 (lines 174, 193), average 2014.63 (line 172), speedup 7.65 (lines 175, 193)"
        "; its 5 clean runs give 2806.66, 2810.55, 7.67"
    )
    assert found["1n8g"].published.packed == (
        ("r50_b128_fp32_7_9.log", 688.8), ("r50_b128_fp32_4_6.log", 682.28), ("r50_b128_fp32_1_3.log", 672.63),
        ("r50_b128_fp32_10_12.log", 701.07), ("r50_b128_fp32_13_15.log", 674.42),
    )  # fmt: skip


@needs_reference
def test_001_tables_of_several_systems(reference):
    found = reference["001"]
    absent = {label(one): one.runs[0].outcome_text for one in found if one.median_speed is None}
    assert absent == {"tensorflow b160 2n8g": "OOM"} | {
        f"{backend} b{size} {case}": "TODO"
        for backend, sizes in (("mxnet", (32, 64, 128, 160)), ("oneflow", (32, 64)))
        for size in sizes
        for case in ("1n1g", "1n2g", "1n4g", "1n8g", "2n8g", "4n8g")
    }
    assert len(found) == 20 * 6
    assert ringing(found) == {
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
    (said,) = (one for result in found if label(result) == "pytorch b128 4n8g" for one in rung([result], "rising"))
    assert said.endswith("2.33 times the speed on 2 times the devices")


@needs_reference
def test_002_paddle(reference):
    found = [one for one in reference["002"] if one.run.batch_size is not None]
    assert {one.requested.case: (round(one.average_speed, 2), round(one.speedup, 2), len(one.ok)) for one in found} == {
        "1n1g": (353.1, 1.0, 6), "1n2g": (642.92, 1.83, 6), "1n4g": (1358.32, 3.85, 6), "1n8g": (2626.41, 7.44, 6),
        "2n8g": (4898.59, 13.88, 6), "4n8g": (9328.72, 26.5, 6),
    }  # fmt: skip
    medians = [352.72, 644.66, 1358.64, 2625.38, 4895.27, 9348.17]
    assert [one.median_speed for one in found] == pytest.approx(medians, abs=0.0051)
    assert ringing(reference["002"]) == {
        "rising": ["paddle b128 1n4g"],
        "falling": ["paddle line 164 2n8g"],
        "as_published": ["paddle line 149 4n8g"],
    }
    # Of all rows of the first table this one alone: 661.22 at most on two devices, 1353.06 or more on four.
    (said,) = rung(reference["002"], "rising")
    assert said.startswith("338.3 samples/s per device or more, on 1n2g at most 330.6: ")
    (said,) = rung(reference["002"], "as_published")
    assert said == "its document prints speedup 10.2 (line 155); its own figures give 10.28"


@needs_reference
def test_003_plsc(reference):
    found = reference["003"]
    speeds = {
        one.requested.case: (one.median_speed, round(one.average_speed, 2), round(one.speedup, 2)) for one in found
    }
    assert speeds == {
        "1n1g": (397.78, 397.98, 1.0), "1n4g": (1539.66, 1541.03, 3.87), "1n8g": (2545.3, 2548.18, 6.4),
        "2n8g": (5953.84, 5956.61, 14.97), "4n8g": (11084.53, 11086.97, 27.87),
    }  # fmt: skip
    assert {(one.run.backend, one.run.workload) for one in found} == {("plsc", "arcface_resnet50")}
    assert ringing(found) == {"rising": ["plsc b128 2n8g", "plsc b128 4n8g"]}


@needs_reference
def test_004_tensorflow(reference):
    found = reference["004"]
    assert [(one.requested.case, one.median_speed) for one in found] == [
        ("1n1g", 1149.207),
        ("8g", None),
        ("32g", None),
    ]
    assert ringing(found) == {"rates_and_wall_clock": ["ngc-tensorflow 1n1g"]}
