"""parse.forecast: figures at sizes that were not measured, their intervals, their score, and where it cannot tell."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc.model.outcome import Outcome
from parse import summarize
from parse.extrapolation.intervals import Fit, half_width, misses, shipped_misses
from parse.extrapolation.outlook import ForecastBasis, Open, Outlook, SizeForecast, SizeRequest, outlook
from parse.extrapolation.rules import OUR_RULE, fitted, ring_over_nodes, work_overhead_doublings
from parse.extrapolation.score import FORECASTERS, LeakError, Scores, score, shipped_scores
from parse.extrapolation.series import SHIPPED, ScalingKind, ScalingSeries, SizePoint, read_series, shipped_series
from parse.extrapolation.text import open_text, rule_text
from parse.forecast import main
from tests.unit.comparisons import folder, times
from tests.unit.traces import make_run, put_exit_record, put_plan

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "summary.schema.json").read_text())
LINE = "line in log₂ n"
HEAD = "series,kind,devices,speed_per_device,batch_per_device\n"


def weak(*speeds: float, first: int = 16, nodes: bool = True, **changes: Any) -> ScalingSeries:
    """Speeds per device at doubled sizes, of nodes of 8 devices."""
    sizes = [first * 2**at for at in range(len(speeds))]
    points = tuple(
        SizePoint(devices=size, speed=speed, batch=4, nodes=max(1, size // 8) if nodes else None, name=f"{size}g")
        for size, speed in zip(sizes, speeds, strict=True)
    )
    return ScalingSeries(name="s", family="f", points=points, base=points[0], **changes)


def strong(times_s: dict[int, float], total: float = 4096) -> ScalingSeries:
    """Times per sample and device at one global batch."""
    points = tuple(
        SizePoint(devices=size, speed=1 / time, batch=total / size, name=f"{size}g") for size, time in times_s.items()
    )
    return ScalingSeries(name="s", family="f", points=points, base=points[0])


def single(series: ScalingSeries, **request: Any) -> SizeForecast:
    (size,) = outlook(series, SizeRequest(**request)).sizes
    return size


@pytest.fixture(scope="module")
def scores() -> Scores:
    return score(shipped_series())


# --- the rules ---


def test_weak_series_are_a_line_in_the_logarithm_of_the_devices() -> None:
    devices, times_s = np.array([16.0, 32, 64, 128]), np.array([1.0, 1.03, 1.02, 1.05])
    slope, level = np.polyfit(np.log2(devices), times_s, 1)
    given = work_overhead_doublings(devices, np.ones(4), times_s, 1024, 1)
    assert given == pytest.approx(level + slope * 10)
    assert work_overhead_doublings(devices, np.ones(4), times_s[::-1], 1024, 1) == pytest.approx(times_s.mean())


def test_strong_series_are_work_overhead_and_doublings() -> None:
    def time(size: float) -> float:
        return 1 + 3 * size / 4096 + 0.02 * float(np.log2(size))

    series = strong({size: time(size) for size in (8, 16, 64, 128)})
    size = single(series, devices=(512,), devices_per_node=8)
    assert size.batch == 8 and size.speed is not None
    assert size.speed.value == pytest.approx(512 / time(512))
    # Two sizes decide two unknowns, and the answer says so.
    two = outlook(strong({8: 1.0, 16: 1.1}), SizeRequest(devices=(32,), devices_per_node=8))
    assert (two.unknowns, two.deciding, two.fit) == (3, 2, Fit.TWO)


def test_no_term_is_negative_and_the_best_subset_is_taken() -> None:
    devices = np.array([1.0, 2, 4, 8])
    assert fitted(("w", "c"), devices, np.ones(4), 5 - np.log2(devices)) == pytest.approx([3.5, 0])
    assert fitted(("w", "f", "c"), devices, 8 / devices, 2 + devices / 8) == pytest.approx([2, 1, 0])


def test_one_size_between_nodes_is_extrapolated_as_a_ring_over_the_nodes() -> None:
    assert weak(10, 9, first=8).group is ScalingKind.CROSSING
    assert [weak(10, 9, 9, first=8).group, weak(10, 9).group] == [ScalingKind.WEAK, ScalingKind.WEAK]
    given = ring_over_nodes(np.array([8.0, 16]), np.ones(2), np.array([1.0, 1.2]), 32, 1)
    assert given == pytest.approx(1.2 + 0.4 * (3 / 4 - 1 / 2))


# --- the score, and that nothing is scored that was known before ---


def test_the_scores_on_the_public_series_hold_what_the_document_says(scores: Scores) -> None:
    for distance in (4, 8):
        ours, line = (rule_score(scores, ScalingKind.WEAK, distance, name) for name in (OUR_RULE, LINE))
        assert ours.median <= 1.05 * line.median and ours.p90 <= line.p90
    ours, line = (rule_score(scores, ScalingKind.STRONG, 8, name) for name in (OUR_RULE, LINE))
    assert ours.median <= line.median / 3
    assert rule_score(scores, ScalingKind.STRONG, 2, OUR_RULE).p90 <= 0.18
    for group in (ScalingKind.WEAK, ScalingKind.STRONG):
        for distance in (2, 4):
            at = scores.at(group, distance)
            assert at is not None and at.family_coverage is not None
            assert 0.85 <= at.family_coverage <= 0.95


def rule_score(scores: Scores, group: ScalingKind, distance: int, rule: str) -> Any:
    at = scores.at(group, distance)
    assert at is not None
    return next(each for each in at.rules if each.rule == rule)


def test_a_forecast_that_knows_what_it_is_scored_on_is_caught() -> None:
    series = weak(10, 9.8, 9.7, 9.5)
    assert score([series]).series_scored == 1

    def leaking(series: ScalingSeries, count: int, at: int) -> float:
        return FORECASTERS[LINE](series, count + 1, at)

    with pytest.raises(LeakError, match="cheat: its forecast of 64 devices of s changes"):
        score([series], {"cheat": leaking})


def test_an_interval_does_not_know_the_family_that_it_is_for() -> None:
    pool = [miss for miss in shipped_misses() if miss.group is ScalingKind.WEAK]
    changed = [
        dataclasses.replace(miss, log_ratio=9 * miss.log_ratio) if "grok" in miss.family else miss for miss in pool
    ]
    (name,) = {miss.family for miss in pool if "grok" in miss.family}
    request: dict[str, Any] = {"group": ScalingKind.WEAK, "fit": Fit.TWO, "distance": 4}
    assert half_width(pool, **request, without=name) == half_width(changed, **request, without=name)
    assert half_width(pool, **request) != half_width(changed, **request)


def test_a_family_counts_once_however_many_series_it_has() -> None:
    pool = [miss for miss in shipped_misses() if miss.group is ScalingKind.WEAK]
    request: dict[str, Any] = {"group": ScalingKind.WEAK, "fit": Fit.SMOOTH, "distance": 2}
    repeated = [miss for miss in pool if "llm-foundry" in miss.family]
    assert repeated and half_width(pool + 50 * repeated, **request) == half_width(pool, **request)


def test_intervals_do_not_get_narrower_with_distance() -> None:
    for group in (ScalingKind.WEAK, ScalingKind.STRONG):
        for fit in Fit:
            halves = [
                half_width(shipped_misses(), group=group, fit=fit, distance=distance) for distance in (2, 4, 8, 16)
            ]
            widths = [half.width for half in halves if half is not None]
            assert widths == sorted(widths) and widths


def test_rising_sizes_and_batches_that_were_not_measured_are_not_scored() -> None:
    assert not [*misses(weak(10, 12, 11.9, 11.8))]
    points = (*weak(10, 9.9).points, SizePoint(devices=64, speed=9, batch=1, nodes=8))
    assert not [*misses(dataclasses.replace(weak(10, 9.9), points=points))]
    assert score([weak(10, 12, 11.9)]).rising == ("s",)


def test_every_public_series_has_its_source() -> None:
    rows = [*csv.DictReader(SHIPPED.read_text().splitlines())]
    assert all(row["source"].count("@") == 1 and ":" in row["source"] for row in rows)
    assert len({series.name for series in shipped_series()}) > 150


# --- what is told, and how sure ---


def test_figures_are_arithmetic_on_the_forecast_speed() -> None:
    size = single(weak(10, 9.8, 9.6), nodes=(16,), work=7.2e6)
    assert size.speed and size.efficiency and size.hours and size.speed.low and size.hours.high
    assert (size.devices, size.basis, size.distance) == (128, ForecastBasis.FORECAST, 2)
    assert size.efficiency.value == pytest.approx(size.speed.value / 128 / 10)
    assert size.hours.value == pytest.approx(16 * 7.2e6 / size.speed.value / 3600)
    assert size.hours.high == pytest.approx(16 * 7.2e6 / size.speed.low / 3600)
    assert size.score and size.score.of_forecast.count > 50


def test_the_scatter_of_the_largest_size_widens_the_interval() -> None:
    series = weak(10, 9.8, 9.6)
    scattered = dataclasses.replace(series.points[-1], scatter=0.2)
    halves = [
        single(each, nodes=(16,)).half_width
        for each in (series, dataclasses.replace(series, points=(*series.points[:-1], scattered)))
    ]
    assert halves[0] and halves[1] and halves[1] == pytest.approx(np.hypot(halves[0], 0.2))


@pytest.mark.parametrize(
    ("nodes", "basis"),
    [
        (8, ForecastBasis.MEASURED), (16, ForecastBasis.FORECAST), (32, ForecastBasis.FORECAST),
    ],
)  # fmt: skip
def test_sizes_that_are_near_have_an_interval(nodes: int, basis: ForecastBasis) -> None:
    size = single(weak(10, 9.8, 9.6), nodes=(nodes,))
    assert size.basis is basis and size.speed is not None
    assert (size.speed.low is None) is (basis is ForecastBasis.MEASURED)


@pytest.mark.parametrize(
    ("nodes", "reason", "text"),
    [
        (64, Open.TOO_WIDE, "interval of 90 % would be -47.7 to +91.1 %, and beyond ± 50 % a forecast says nothing."),
        (128, Open.TOO_WIDE, "interval of 90 % would be -47.7 to +91.1 %"),
        (512, Open.TOO_WIDE, "interval of 90 % would be at least -47.7 to +91.1 %"),
        (513, Open.TOO_FAR, "It is more than 64 times the largest measured size, 64g: no rule was ever held against"),
        (1_000_000, Open.TOO_FAR, "Measure larger sizes."),
    ],
)
def test_far_sizes_are_refused_with_the_reason(nodes: int, reason: Open, text: str) -> None:
    size = single(weak(10, 9.8, 9.6), nodes=(nodes,))
    assert (size.basis, size.reason, size.speed) == (ForecastBasis.OPEN, reason, None)
    request = SizeRequest(nodes=(nodes,))
    each = outlook(weak(10, 9.8, 9.6), request)
    assert text in open_text(size, each, request)
    assert each.next_size is None or each.next_size.devices <= 16 * 64


def test_nothing_absurd_is_worth_measuring_next() -> None:
    """A million nodes from four ranks, alone and beside a size that can be told."""
    assert outlook(weak(10, 9.8), SizeRequest(nodes=(1_000_000,))).next_size is None
    both = outlook(weak(10, 9.8, 9.6), SizeRequest(nodes=(32, 1_000_000)))
    assert both.next_size is None or both.next_size.at == 256


@pytest.mark.parametrize(
    ("series", "request_of", "reason"),
    [
        (weak(10), {"nodes": (8,)}, Open.SINGLE_POINT), (weak(10, 9, first=4), {"nodes": (8,)}, Open.INSIDE_NODE),
        (weak(10, 12.2), {"nodes": (8,)}, Open.RISING), (weak(10, 10.2, 10.4), {"nodes": (16,)}, Open.RISING),
        (weak(10, 9.9, nodes=False), {"nodes": (8,)}, Open.NODES_NEED_DEVICES),
        (weak(10, 9.9, first=4, nodes=False), {"devices": (64,)}, Open.UNKNOWN_NODES),
        (weak(10, 9.9), {"nodes": (8,), "switch_nodes": 4}, Open.INSIDE_SWITCH),
        (weak(10, 9.9, nodes=False), {"devices": (64,), "switch_nodes": 4}, Open.NODES_NEED_DEVICES),
        (weak(10, 9.9), {"nodes": (1,)}, Open.SMALLER),
        (weak(10, 9.9), {"nodes": (8,), "global_batch": 64.0}, Open.BATCH_NOT_MEASURED),
        (strong({32: 1.0, 64: 1.1}, total=256), {"devices": (512,)}, Open.BELOW_SAMPLE),
    ],
    ids=lambda value: value.value if isinstance(value, Open) else "",
)  # fmt: skip
def test_what_cannot_be_told_has_its_reason(series: ScalingSeries, request_of: Any, reason: Open) -> None:
    size = single(series, **request_of)
    assert (size.basis, size.reason, size.speed) == (ForecastBasis.OPEN, reason, None)


def test_devices_per_node_and_a_global_batch_tell_what_a_table_lacks() -> None:
    assert single(weak(10, 9.9, nodes=False), nodes=(8,), devices_per_node=8).basis is ForecastBasis.FORECAST
    three = weak(10, 9.9, 9.5)
    mixed = dataclasses.replace(three, points=(three.points[0], *(
        dataclasses.replace(point, batch=2) for point in three.points[1:]
    )))  # fmt: skip
    assert single(mixed, nodes=(16,)).reason is Open.MIXED_BATCH
    assert single(mixed, nodes=(16,), global_batch=256.0).batch == 2


def test_contradictory_sizes_are_named() -> None:
    points = (*weak(10, 9.9).points, SizePoint(devices=32, speed=6, batch=4, nodes=4, name="32g"))
    size = single(dataclasses.replace(weak(10, 9.9), points=points), nodes=(8,))
    assert size.reason is Open.CONTRADICTORY and {point.speed for point in size.points} == {9.9, 6}


def test_a_size_that_is_there_twice_is_one_size() -> None:
    series = weak(10, 9.9, first=8)
    doubled = dataclasses.replace(series, points=(dataclasses.replace(series.points[0], speed=10.02), *series.points))
    once, twice = (outlook(each, SizeRequest(nodes=(1, 4))) for each in (series, doubled))
    assert twice.fit is Fit.TWO and twice.sizes[1].distance == 2
    assert [size.basis for size in twice.sizes] == [ForecastBasis.MEASURED, ForecastBasis.FORECAST]
    assert twice.sizes[0].speed and twice.sizes[0].speed.value == pytest.approx(80.08)
    assert twice.sizes[1].half_width == once.sizes[1].half_width  # the ring's, not that of a smooth series


def test_sizes_far_from_the_fit_have_no_interval() -> None:
    result = outlook(weak(10, 5, 1), SizeRequest(nodes=(16,)))
    assert result.sizes[0].basis is ForecastBasis.NOT_SCORED and "doubtful" in rule_text(result)


def test_the_size_that_is_worth_measuring_next_narrows_the_interval() -> None:
    result: Outlook = outlook(weak(10, 9.99, 9.97), SizeRequest(nodes=(32,)))
    assert result.next_size and (result.next_size.nodes, result.next_size.at) == (16, 256)
    assert result.next_size.then and result.next_size.half_width
    assert result.next_size.then < result.next_size.half_width
    inside = outlook(weak(10, 9, first=4), SizeRequest(nodes=(8,), devices_per_node=8)).next_size
    assert inside and inside.nodes == 2 and inside.then is None


def test_devices_of_a_node_are_not_guessed_from_sizes_inside_one() -> None:
    series = weak(10, 9.9, 9.8, first=1)
    assert single(series, nodes=(8,)).devices is None
    assert single(series, devices=(3,)).nodes == 1
    assert single(series, devices=(8,)).reason is Open.INSIDE_NODE
    assert single(series, devices=(8,), devices_per_node=8).speed is not None


# --- the command ---


def run_main(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        status = main(argv)
    except SystemExit as ended:
        status = int(str(ended.code))
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_traces_are_forecast_and_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [
        (make_run(nodes=nodes, ranks_per_node=4), times(factor)) for nodes, factor in ((1, 4), (2, 7.8), (4, 15.4))
    ]
    folder(tmp_path / "traces", (make_run(), times(1.02)), *sizes)
    status, text, _ = run_main(capsys, str(tmp_path / "traces"), "--nodes", "8,64")
    assert status == 0
    assert "not used: 1n1g" in text and "efficiency is speed per device against 1n1g" in text
    assert "on public series of weak scaling the rule erred by" in " ".join(text.split())
    status, text, _ = run_main(capsys, str(tmp_path / "traces"), "--nodes", "8", "--format", "json")
    (series,) = json.loads(text)["series"]
    assert [size["devices"] for size in series["sizes"]] == [32] and series["sizes"][0]["speed"]["low"] > 0
    status, text, _ = run_main(capsys, str(tmp_path / "traces"), "--score", "--format", "markdown")
    assert status == 0 and "| Amdahl |" in text


def test_summaries_forecast_where_requested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [(make_run(nodes=nodes, ranks_per_node=4), times(factor)) for nodes, factor in ((2, 7.8), (4, 15.4))]
    folder(tmp_path / "traces", *sizes)
    path = str(tmp_path / "traces")
    assert summarize.main([path]) == 0
    measured = capsys.readouterr().out
    assert summarize.main([path, "--forecast", "8,64,4g", "--samples", "90e6"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(measured) and "forecast" not in measured
    assert "hours are for 90,000,000 samples" in text and "1 node: cannot tell. Nothing is forecast below" in text
    assert summarize.main([path, "--forecast", "8,64,4g", "--format", "markdown"]) == 0
    assert "| 8 | 32 |" in capsys.readouterr().out
    assert summarize.main([path, "--forecast", "4g,8,64n,4", "--format", "json"]) == 0
    page = json.loads(capsys.readouterr().out)
    pytest.importorskip("jsonschema").Draft202012Validator(SCHEMA).validate(page)
    (series,) = page["forecast"]["series"]
    assert [(size["nodes"], size["basis"]) for size in series["sizes"]] == [
        (4, "measured"), (8, "forecast"), (64, "few_families"), (1, "cannot_tell"),
    ]  # fmt: skip
    for wrong, sentence in {
        "--forecast 0": "'0' is no size", "--forecast 1000000000": "'1000000000' is no size",
        "--forecast 2n8g": "a size is nodes, 2, or all devices, 256g", "--samples 9": "--samples: of a forecast",
        "--forecast 8 --devices-per-node 4": "only where no input says it",
        "--forecast 8 --samples 0": "no number above 0",
        "--forecast 8 --format csv": "a forecast has the formats table, markdown, json",
    }.items():  # fmt: skip
        with pytest.raises(SystemExit):
            summarize.main([path, *wrong.split()])
        assert sentence in " ".join(capsys.readouterr().err.split())


def test_failed_runs_are_named_and_leave_too_little(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two, four = (make_run(nodes=nodes, ranks_per_node=4) for nodes in (2, 4))
    folder(tmp_path / "traces", (two, times(7.8)))
    put_plan(tmp_path / "traces", [four])
    put_exit_record(tmp_path / "traces", four, Outcome.OOM)
    status, text, _ = run_main(capsys, str(tmp_path / "traces"), "--nodes", "8")
    assert status == 1
    assert "Only 2n4g was measured" in text and "left out: 4n4g: no speed (oom)" in text
    assert "worth measuring" not in text
    smaller = folder(tmp_path / "smaller", (make_run(nodes=1, ranks_per_node=4), times(7.7)))
    status, text, _ = run_main(capsys, str(tmp_path / "traces"), str(smaller), "--nodes", "4,8")
    text = " ".join(text.split())
    assert status == 0 and "4 nodes: cannot tell. This size was tried, and ran out of memory" in text
    assert "4n4g ran out of memory: whether 8 nodes would fit" in text


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("x.csv", "--nodes", "0"), "'0' is no size: a whole number from 1 to 1,000,000 is needed"),
        (("x.csv", "--devices", "1000000000"), "'1000000000' is no size"),
        (("x.csv", "--nodes", "8,"), "'' is no size"),
        (("x.csv",), "--nodes N,… or --devices N,… is missing"), (("--nodes", "8"), "PATH is missing"),
        (("x.csv", "--score", "--nodes", "8"), "not with --nodes"),
        (("x.csv", "--score", "--samples", "8"), "not with --samples"),
        (("x.csv", "--nodes", "8", "--where", "case=2n8g"), "--where and --kind: not for CSV files"),
        ((str(SHIPPED), "--nodes", "8", "--devices-per-node", "8"), "has sizes of several nodes"),
        (("x.csv", "--nodes", "8", "--samples", "nan"), "'nan' is no number above 0"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_usage(argv: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, errors = run_main(capsys, *argv)
    assert status == 2 and sentence in " ".join(errors.split())


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ("s,weak,8,,1\n", "line 2: devices must be"), ("s,weak,8,nan,1\n", "speed_per_device is 'nan'"),
        ("s,weak,0,1,1\n", "devices is '0'"), ("s,weak,8,1e300,1\n", "cannot be"), ("", "no table of series"),
        ("s,weak,1e9,1,1\n", "from 1 to 100,000,000"),
        ("s,weak,8,1,32\ns,weak,16,1,\ns,weak,32,1,64\n", "differs between sizes"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_table_is_named(
    rows: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.csv").write_text(HEAD + rows)
    status, _, errors = run_main(capsys, str(tmp_path / "x.csv"), "--devices", "64")
    assert status == 1 and reason in errors and "x.csv" in errors


@pytest.mark.parametrize(
    ("columns", "reason"), [("1e300,1", "batch_per_device is '1e300'"), ("1,1e300", "spread_percent is '1e300'")]
)
def test_a_number_that_no_size_has_is_named(
    columns: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"s,{size},{size // 8},9{size % 9},{columns}\n" for size in (32, 64, 128))
    (tmp_path / "x.csv").write_text(f"series,devices,nodes,speed_per_device,batch_per_device,spread_percent\n{rows}")
    status, _, errors = run_main(capsys, str(tmp_path / "x.csv"), "--devices", "1024")
    assert status == 1 and f"line 2: {reason}, not a number from" in errors


def test_a_csv_file_is_read_with_its_families(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.csv"
    path.write_text("series,kind,devices,speed_per_device_any_unit,source\n" + "".join(
        f"s,weak,{size},{10 - size / 1000},mlcommons/training_results_v9@a:b/c/bert\n" for size in (64, 128, 256)
    ))  # fmt: skip
    (series,) = read_series(path)
    assert (series.family, series.group, len(series.points)) == ("MLPerf bert", ScalingKind.WEAK, 3)
    status, text, _ = run_main(capsys, str(path), "--nodes", "64", "--devices-per-node", "8")
    assert status == 0 and "512" in text


def test_without_a_path_the_public_series_are_scored(capsys: pytest.CaptureFixture[str]) -> None:
    status, text, _ = run_main(capsys, "--score", "--format", "json")
    content = json.loads(text)
    assert status == 0 and content["series_scored"] > 150
    assert {rule["rule"] for rule in content["distances"][0]["rules"]} == {*FORECASTERS}
    ours = shipped_scores().at(ScalingKind.WEAK, 4)
    assert ours and ours.of_forecast.rule == OUR_RULE
