"""parse.forecast: figures at sizes that were not measured, their intervals, where it cannot tell; how it is shown."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.forecast_intervals import SERIES, Miss, half_width, misses, public_misses, rounded, table
from hpc.model.outcome import Outcome
from parse.extrapolation.outlook import ForecastBasis, SizeForecast, SizeRequest, outlook
from parse.extrapolation.rule import (
    TABLE,
    Fit,
    Refusal,
    ScalingKind,
    ScalingSeries,
    SizePoint,
    nonnegative,
    scores,
    time_at,
)
from parse.extrapolation.text import refusal_text
from parse.forecast import main
from parse.page.build import build_page
from parse.page.figures import LineStyle
from parse.page.forecast import forecasts_of
from parse.page.html import draw
from parse.page.paper import SECTIONS, content, rendered
from parse.report.__main__ import main as report
from parse.report.summary import Summary
from tests.unit.comparisons import folder, times
from tests.unit.page_folders import put_failed, put_hostile
from tests.unit.pages import charts, lines_of, page_lines
from tests.unit.papers import put_sizes, summary_of
from tests.unit.traces import make_run, make_trace, put, put_exit_record, put_plan, repeats


def weak(*speeds: float, first: int = 16, nodes: bool = True, **changes: Any) -> ScalingSeries:
    """Speeds per device at doubled sizes, of nodes of 8 devices."""
    sizes = [first * 2**at for at in range(len(speeds))]
    points = tuple(
        SizePoint(devices=size, speed=speed, batch=4, nodes=max(1, size // 8) if nodes else None, name=f"{size}g")
        for size, speed in zip(sizes, speeds, strict=True)
    )
    return ScalingSeries(name="s", points=points, base=points[0], **changes)


def strong(times_s: dict[int, float], total: float = 4096) -> ScalingSeries:
    """Times per sample and device at one global batch."""
    points = tuple(
        SizePoint(devices=size, speed=1 / time, batch=total / size, name=f"{size}g") for size, time in times_s.items()
    )
    return ScalingSeries(name="s", points=points, base=points[0])


def single(series: ScalingSeries, **request: Any) -> SizeForecast:
    (size,) = outlook(series, SizeRequest(**request)).sizes
    return size


@pytest.fixture(scope="module")
def pool() -> list[Miss]:
    return public_misses()


# --- the rule ---


def test_weak_series_are_a_line_in_the_logarithm_of_the_devices() -> None:
    times_s = (1.0, 1.03, 1.02, 1.05)
    slope, level = np.polyfit(np.log2([16, 32, 64, 128]), times_s, 1)
    assert time_at(weak(*(1 / time for time in times_s)), 1024, 4) == pytest.approx(level + slope * 10)
    falling = weak(*(1 / time for time in times_s[::-1]))
    assert time_at(falling, 1024, 4) == pytest.approx(np.mean(times_s))


def test_strong_series_are_work_overhead_and_doublings() -> None:
    def time(size: float) -> float:
        return 1 + 3 * size / 4096 + 0.02 * float(np.log2(size))

    series = strong({size: time(size) for size in (8, 16, 64, 128)})
    size = single(series, devices=(256,), devices_per_node=8)
    assert size.speed is not None
    assert size.speed.value == pytest.approx(256 / time(256))


def test_no_term_is_negative_and_the_best_subset_is_taken() -> None:
    devices = np.array([1.0, 2, 4, 8])
    line = np.stack([np.ones(4), np.log2(devices)], axis=1)
    assert nonnegative(line, 5 - np.log2(devices)) == pytest.approx([3.5, 0])
    three = np.stack([np.ones(4), devices / 8, np.log2(devices)], axis=1)
    assert nonnegative(three, 2 + devices / 8) == pytest.approx([2, 1, 0])


# --- the table of intervals ---


def test_the_table_of_intervals_is_that_of_the_public_series(pool: list[Miss]) -> None:
    assert json.loads(TABLE.read_text()) == rounded(table(pool))


def test_the_scores_on_the_public_series_hold_what_the_document_says(pool: list[Miss]) -> None:
    def error(kind: ScalingKind, distance: int, rule: str, percentile: float = 50) -> float:
        at = [miss.errors[rule] for miss in pool if (miss.kind, miss.distance) == (kind, distance)]
        return float(np.percentile(at, percentile))

    line = "line in log₂ n"
    assert error(ScalingKind.STRONG, 8, "forecast") <= error(ScalingKind.STRONG, 8, line) / 3
    assert error(ScalingKind.STRONG, 2, "forecast", 90) <= 0.18
    for kind in ScalingKind:
        for distance in (2, 4):
            assert 0.85 <= scores()[kind, distance].held <= 0.95


def test_an_interval_does_not_know_the_family_that_it_is_for(pool: list[Miss]) -> None:
    changed = [
        dataclasses.replace(miss, log_ratio=9 * miss.log_ratio) if "grok" in miss.family else miss for miss in pool
    ]
    (name,) = {miss.family for miss in pool if "grok" in miss.family}
    request: dict[str, Any] = {"kind": ScalingKind.WEAK, "fit": Fit.TWO, "distance": 4}
    assert half_width(pool, **request, without=name) == half_width(changed, **request, without=name)
    assert half_width(pool, **request) != half_width(changed, **request)


@pytest.mark.parametrize("kind", ScalingKind)
@pytest.mark.parametrize("fit", Fit)
def test_intervals_do_not_get_narrower_with_distance(kind: ScalingKind, fit: Fit) -> None:
    widths = [scores()[kind, distance].half_widths[fit.value] for distance in (2, 4, 8, 16)]
    assert widths == sorted(widths)


def test_rising_sizes_and_batches_that_were_not_measured_are_not_scored() -> None:
    assert not [*misses("f", weak(10, 12, 11.9, 11.8))]
    points = (*weak(10, 9.9).points, SizePoint(devices=64, speed=9, batch=1, nodes=8))
    assert not [*misses("f", dataclasses.replace(weak(10, 9.9), points=points))]


def test_every_public_series_has_its_source() -> None:
    rows = [*csv.DictReader(SERIES.read_text().splitlines())]
    assert all(row["source"].count("@") == 1 and ":" in row["source"] for row in rows)
    assert len({row["series"] for row in rows}) > 150


# --- what is told, and how sure ---


def test_figures_are_arithmetic_on_the_forecast_speed() -> None:
    size = single(weak(10, 9.8, 9.6), nodes=(16,), work=7.2e6)
    assert size.speed and size.efficiency and size.hours and size.speed.low and size.hours.high
    assert (size.devices, size.basis) == (128, ForecastBasis.FORECAST)
    assert size.efficiency.value == pytest.approx(size.speed.value / 128 / 10)
    assert size.hours.value == pytest.approx(16 * 7.2e6 / size.speed.value / 3600)
    assert size.hours.high == pytest.approx(16 * 7.2e6 / size.speed.low / 3600)
    assert size.score and size.score.distance == 2 and size.score.forecasts > 50


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
        (
            64,
            Refusal.TOO_WIDE,
            "-47.7 to +91.1 %, and beyond ± 50 % a forecast says nothing.",
        ),
        (128, Refusal.TOO_WIDE, "interval of 90 % would be -47.7 to +91.1 %"),
        (512, Refusal.TOO_WIDE, "interval of 90 % would be at least -47.7 to +91.1 %"),
        (
            513,
            Refusal.TOO_FAR,
            "more than 64 times the largest measured size, 64g: no rule was ever held against",
        ),
        (1_000_000, Refusal.TOO_FAR, "Measure larger sizes."),
    ],
)
def test_far_sizes_are_refused_with_the_reason(nodes: int, reason: Refusal, text: str) -> None:
    size = single(weak(10, 9.8, 9.6), nodes=(nodes,))
    assert (size.basis, size.reason, size.speed) == (ForecastBasis.REFUSED, reason, None)
    request = SizeRequest(nodes=(nodes,))
    each = outlook(weak(10, 9.8, 9.6), request)
    assert text in refusal_text(size, each)


@pytest.mark.parametrize(
    ("series", "request_of", "reason"),
    [
        (weak(10), {"nodes": (8,)}, Refusal.FEW_SIZES), (weak(10, 9, first=4), {"nodes": (8,)}, Refusal.INSIDE_NODE),
        (weak(10, 9, first=8), {"nodes": (4,)}, Refusal.INSIDE_NODE),
        (weak(10, 5, 1), {"nodes": (16,)}, Refusal.DEPARTS),
        (weak(10, 12.2), {"nodes": (8,)}, Refusal.RISING), (weak(10, 10.2, 10.4), {"nodes": (16,)}, Refusal.RISING),
        (weak(10, 9.9, nodes=False), {"nodes": (8,)}, Refusal.UNKNOWN_NODES),
        (weak(10, 9.9, first=4, nodes=False), {"devices": (64,)}, Refusal.UNKNOWN_NODES),
        (weak(10, 9.9), {"nodes": (1,)}, Refusal.SMALLER),
        (strong({32: 1.0, 64: 1.1}, total=256), {"devices": (512,)}, Refusal.BELOW_SAMPLE),
    ],
    ids=lambda value: value.value if isinstance(value, Refusal) else "",
)  # fmt: skip
def test_what_cannot_be_told_has_its_reason(series: ScalingSeries, request_of: Any, reason: Refusal) -> None:
    size = single(series, **request_of)
    assert (size.basis, size.reason, size.speed) == (ForecastBasis.REFUSED, reason, None)


def test_devices_per_node_tell_what_a_table_lacks() -> None:
    assert single(weak(10, 9.9, nodes=False), nodes=(8,), devices_per_node=8).basis is ForecastBasis.FORECAST


def test_contradictory_sizes_are_named() -> None:
    points = (*weak(10, 9.9).points, SizePoint(devices=32, speed=6, batch=4, nodes=4, name="32g"))
    size = single(dataclasses.replace(weak(10, 9.9), points=points), nodes=(8,))
    assert size.reason is Refusal.CONTRADICTORY and {point.speed for point in size.points} == {9.9, 6}


def test_devices_of_a_node_are_not_guessed_from_sizes_inside_one() -> None:
    series = weak(10, 9.9, 9.8, first=1)
    assert single(series, nodes=(8,)).devices is None
    assert single(series, devices=(3,)).nodes == 1
    assert single(series, devices=(8,)).reason is Refusal.INSIDE_NODE
    assert single(weak(10, 9.9, 9.8, first=4), devices=(16,), devices_per_node=8).basis is ForecastBasis.MEASURED


def test_two_sizes_go_as_far_as_64_times_without_an_interval() -> None:
    near, far, beyond = outlook(weak(10, 9.9), SizeRequest(nodes=(64, 256, 257))).sizes
    assert near.speed and near.speed.low and near.basis is ForecastBasis.FORECAST
    assert far.speed and far.speed.low is None and far.basis is ForecastBasis.NOT_SCORED
    assert beyond.reason is Refusal.TOO_FAR


# --- the command ---


def run_main(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        status = main(argv)
    except SystemExit as ended:
        status = int(str(ended.code))
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_traces_are_forecast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    status, text, _ = run_main(capsys, str(tmp_path / "traces"), "--nodes", "8", "--format", "markdown")
    assert status == 0 and "| 8 | 32 |" in text


def test_failed_runs_are_named_and_leave_too_little(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two, four = (make_run(nodes=nodes, ranks_per_node=4) for nodes in (2, 4))
    folder(tmp_path / "traces", (two, times(7.8)))
    put_plan(tmp_path / "traces", [four])
    put_exit_record(tmp_path / "traces", four, Outcome.OOM)
    status, text, _ = run_main(capsys, str(tmp_path / "traces"), "--nodes", "8")
    assert status == 1
    assert "Only 2n4g was measured" in text and "left out: 4n4g: no speed (oom)" in text
    smaller = folder(tmp_path / "smaller", (make_run(nodes=1, ranks_per_node=4), times(7.7)))
    status, text, _ = run_main(capsys, str(tmp_path / "traces"), str(smaller), "--nodes", "4,8")
    text = " ".join(text.split())
    assert status == 1 and "was not measured at two sizes (1n4g, 2n4g)" in text


def test_a_size_that_ran_out_of_memory_has_no_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [
        (make_run(nodes=nodes, ranks_per_node=4), times(factor)) for nodes, factor in ((1, 4), (2, 7.8), (4, 15.4))
    ]
    folder(tmp_path / "traces", *sizes)
    sixteen = make_run(nodes=16, ranks_per_node=4)
    put_plan(tmp_path / "traces", [sixteen])
    put_exit_record(tmp_path / "traces", sixteen, Outcome.OOM)
    status, text, _ = run_main(capsys, str(tmp_path / "traces"), "--nodes", "8,16", "--format", "json")
    smaller, tried = json.loads(text)["series"][0]["sizes"]
    assert (tried["reason"], tried["speed"]) == ("out_of_memory", None) and "ran out of memory" in tried["text"]
    assert status == 0 and smaller["speed"] is not None


# Where what was measured is shown: the charts of the page, its table, the section of a paper


def put_two_smooth(folder: Path) -> Summary:
    """Two settings that scale alike, of other sizes: 4 times the largest of the one is within what is forecast."""
    for backend, sizes in (("torch-ddp", (1, 2, 4)), ("paddle-fleet", (2, 4, 8))):
        for at, nodes in enumerate(sizes):
            run = make_run(backend=backend, workload="resnet50", nodes=nodes, ranks_per_node=2)
            for repeat in repeats(run, 2):
                put(folder, make_trace(repeat, speed=nodes * (100.0 - 2 * at)))
    return summary_of(folder)


@pytest.mark.parametrize(
    ("name", "put_traces", "nodes"),
    [
        ("two_smooth", put_two_smooth, (4, 8, 16, 512)),
        ("single", lambda folder: put_sizes(folder, {2: (100.0,)}), (16,)),
        ("rising", lambda folder: put_sizes(folder, {1: (100.0,), 2: (150.0,), 4: (900.0,)}), (16,)),
    ],
)
def test_the_page_goes_on_beyond_what_was_measured(
    tmp_path: Path, name: str, put_traces: Callable[[Path], Summary], nodes: tuple[int, ...],
    golden: Callable[[str, str], None],
) -> None:  # fmt: skip
    summary = put_traces(tmp_path)
    page = build_page(summary, "", forecasts=forecasts_of(summary, SizeRequest(nodes=nodes)))
    shown = dataclasses.replace(page, sections=[each for each in page.sections if each.id in ("scaling", "forecast")])
    golden(f"pages/forecast_{name}.txt", "\n".join(page_lines(shown)).replace(f"{tmp_path}/", "") + "\n")


def test_a_forecast_is_drawn_apart_from_what_was_measured(tmp_path: Path) -> None:
    summary = put_two_smooth(tmp_path)
    drawn = charts(build_page(summary, "", forecasts=forecasts_of(summary, SizeRequest(nodes=(*range(5, 17),)))))
    lines = lines_of(drawn["chart-speed"])
    measured, ahead = lines["torch-ddp resnet50"], lines["torch-ddp resnet50, forecast, not measured"]
    assert (measured.style, ahead.style, ahead.number) == (LineStyle.MEASURED, LineStyle.FORECAST, measured.number)
    assert all(ahead.intervals) and (ahead.x[0], ahead.y[0]) == (measured.x[-1], measured.y[-1])
    svg = draw(drawn["chart-speedup"])
    assert ">16n2g</text>" in svg and 2 < svg.count("n2g</text>") < 10


@pytest.mark.parametrize("form", SECTIONS)
def test_the_section_of_a_paper_has_them_too(tmp_path: Path, form: str) -> None:
    summary = put_two_smooth(tmp_path)
    whole = content(summary, forecasts_of(summary, SizeRequest(nodes=(16, 512))))
    assert [len(panel.forecasts) for panel in whole.panels] == [1, 1]
    text = rendered(whole, form, "scaling.pdf")
    assert "Forecast" in text and "U+" not in text and "not measured" in text
    assert "more than 64 times the largest measured size" in text and "erred by" in text
    assert "forecast" not in rendered(content(summary), form, "scaling.pdf").lower()


def test_devices_per_node_that_inputs_say_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_sizes(tmp_path, {2: (100.0,), 4: (200.0,)})
    for arguments in ("--forecast 8", "--samples 9 --format latex"):
        with pytest.raises(SystemExit):
            report([str(tmp_path), *arguments.split(), "--devices-per-node", "2", "--out", str(tmp_path / "out")])
        assert "only where no input says it" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("put_traces", [put_hostile, put_failed])
def test_every_input_has_a_forecast_or_its_reason(tmp_path: Path, put_traces: Callable[[Path], object]) -> None:
    put_traces(tmp_path / "traces")
    out = tmp_path / "out.html"
    assert report([str(tmp_path / "traces"), "--forecast", "8,1000000", "--out", str(out)]) == 0
    assert "cannot tell" in out.read_text() and "<img" not in out.read_text()
