"""Time stamps: what they are good for, and where they are none."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import pytest

from parse import summarize
from parse.logs.engine.intervals import resolution_s
from parse.logs.window import remark
from tests.unit.logs.made_lines import T0, OtherLine, Row, read, steady, window_of


@pytest.mark.parametrize("zero", [0.0, -2_082_844_800.0 + 365 * 86_400], ids=["time of day", "no year"])
def test_stamps_that_begin_anew_are_put_on_one_axis(zero) -> None:
    """Over midnight, and over new year."""
    period = 86_400 if zero == 0.0 else 366 * 86_400
    begin = zero + 86_400 - 40.25
    lines = [Row(step, time=begin + step) for step in range(200)]
    lines = [
        dataclasses.replace(row, time=row.time - period if row.time >= zero + 86_400 else row.time) for row in lines
    ]
    assert min(row.time for row in lines) < lines[0].time
    for cut in (10**9, 7):
        reading = read(lines, cut=cut)
        assert reading.window is not None and reading.window.seconds == pytest.approx(100)
        assert reading.remarks == ()


def test_ranks_that_pass_midnight_one_after_the_other() -> None:
    lines = [Row(step, time=(86_360 + step + rank / 4) % 86_400) for step in range(200) for rank in (1, 0, 2)]
    window = window_of(lines)
    assert window.seconds == pytest.approx(100)


def test_whole_dates_are_never_moved() -> None:
    lines = steady(range(0, 200))
    lines = [dataclasses.replace(row, time=row.time - (200_000 if row.step >= 60 else 0)) for row in lines]
    reading = read(lines)
    assert reading.window is not None and reading.window.seconds is None and reading.window.rate == pytest.approx(100)
    assert remark("stamps_go_back", begin=59, end=60) in reading.remarks


def test_stamps_that_stand_still_are_no_clock() -> None:
    reading = read([Row(step, time=T0, rate=5.0) for step in range(200)])
    assert reading.window is not None and reading.window.seconds is None and reading.window.rate == pytest.approx(5)
    assert remark("stamps_stand_still") in reading.remarks


def test_stamps_that_go_back_where_a_pause_is_do_not_matter() -> None:
    lines: list[Row | OtherLine] = [
        dataclasses.replace(row, time=row.time - (90 if row.step > 60 else 0)) for row in steady(range(10, 200, 10))
    ]
    lines[6:6] = [OtherLine("evaluation")]
    assert window_of(lines).seconds == pytest.approx(45)


def test_lines_without_a_stamp_among_those_with_one_are_left_out() -> None:
    lines = [
        dataclasses.replace(row, time=math.nan if row.step in (20, 50) else row.time) for row in steady(range(200))
    ]
    reading = read(lines)
    assert reading.window is not None and (reading.window.begin, reading.window.end) == (21, 121)
    assert reading.window.seconds == pytest.approx(50)
    assert remark("unstamped_steps", steps=2) in reading.remarks


def test_a_log_with_hardly_any_stamp_has_no_wall_clock() -> None:
    lines = [
        dataclasses.replace(row, time=row.time if row.step in (20, 120) else math.nan) for row in steady(range(200))
    ]
    window = window_of(lines)
    assert window.seconds is None and window.resolution_s is None and window.steps == 100


@pytest.mark.parametrize(
    ("stamps", "unit"),
    [
        ([1.6e9, 1.6e9 + 7], 1.0),
        ([T0, T0 + 2e-5], 1e-6),
        ([1.6e9, T0 + 7], 1e-3),
        ([T0 + 0.123, T0 + 1.456], 1e-3),
        ([T0, T0 + 0.123456], 1e-6),
    ],
)
def test_the_finest_unit_that_stamps_use(stamps, unit) -> None:
    assert resolution_s(np.array([*stamps, math.nan])) == unit
    lines = [Row(step, time=1.6e9 + math.floor(step * 0.300037 / unit) * unit) for step in range(200)]
    assert window_of(lines).resolution_s == unit


def test_stamps_of_seconds_do_not_make_step_times() -> None:
    lines = [Row(step, time=float(int(T0 + 0.3 * step)), rate=5.0) for step in range(200)]
    reading = read(lines)
    assert reading.window is not None and reading.window.resolution_s == 1.0
    assert reading.window.seconds == pytest.approx(30, abs=1) and not len(reading.window.step_s)
    (coarse,) = reading.remarks
    assert (coarse.name, coarse.figures["resolution_s"]) == ("coarse_stamps", 1.0)
    durations = [dataclasses.replace(row, duration=0.3) for row in lines]
    assert window_of(durations).step_s.tolist() == [0.3] * 100


@pytest.mark.parametrize("printed", [True, False])
def test_step_times_are_those_of_the_finer_unit(printed: bool) -> None:
    """Megatron: steps of 10.35 s, printed to 0.1 ms, beside stamps of whole seconds."""
    each_s = [10.3503 + 0.1203 * (step % 2) for step in range(130)]
    rows = [Row(step, time=1.6e9 + int(sum(each_s[: step + 1])), duration=each_s[step]) for step in range(130)]
    window = window_of(rows if printed else [dataclasses.replace(row, duration=math.nan) for row in rows])
    assert window.seconds == pytest.approx(1041, abs=1)
    assert window.step_unit_s == pytest.approx(1e-4 if printed else 1)
    p50 = float(np.median(window.step_s))
    assert p50 == pytest.approx(10.41045) if printed else p50 == 10


def test_percentiles_are_no_finer_than_their_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (f"step {step} loss 2.0, 0.{250 + step % 2} s, batch 8" for step in range(130))
    (tmp_path / "1n1g.log").write_text("\n".join(lines))
    arguments = [str(tmp_path), "--pattern", "step {step} … {seconds} s", "--batch-size", "8"]
    assert summarize.main(arguments) == 0
    assert re.search(r" 250 +251\n", capsys.readouterr().out)


def test_means_that_do_not_resolve_a_step_make_no_step_times() -> None:
    means = (round(sum(0.25 + step % 2 / 100 for step in range(1, last + 1)) / last, 2) for last in range(1, 130))
    reading = read([Row(step, mean=mean) for step, mean in enumerate(means, 1)])
    assert reading.window is not None and not len(reading.window.step_s)
    assert any(each.name == "coarse_means" for each in reading.remarks)
