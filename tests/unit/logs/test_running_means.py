"""Means since the epoch began: differenced between lines, where these print nothing better."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from parse.logs.engine.log_format import LogFormat
from parse.logs.path_facts import PathFacts
from parse.logs.window import Protocol
from parse.runs.log_attempt import attempt_of
from tests.unit.logs.made_lines import Row, read, window_of

BY_STEPS = LogFormat(name="by-steps", title="", steps=(), numbered="epoch", printed="durations")

# PaddlePaddle/Perf, ResNet50V1.5/logs/V100-LOG/PaddleClas_ResNet50_bs256_fp32_DP_N1C8_log


def running(durations, every=1, first=0, left_out=0):
    """Lines of the mean of all steps so far but for the first `left_out`; numbers begin at `first`."""
    total, rows = 0.0, []
    for done, duration in enumerate(durations, 1):
        total += duration if done > left_out else 0.0
        number = done - 1 + first
        if number % every == 0:
            rows.append(Row(number, mean=total / max(done - left_out, 1)))
    return rows


SLOWER = [4.0] * 10 + [0.5] * 50 + [1.0] * 80


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("every", [1, 10])
def test_differences_of_running_means_are_the_durations(first, every):
    window = window_of(running(SLOWER, every, first), BY_STEPS)
    steps = range(window.begin - first + 1, window.end - first + 1)
    assert window.duration_s == pytest.approx(sum(SLOWER[step] for step in steps) / 100)
    assert window.mean_duration_s == pytest.approx(window.duration_s)


def test_steps_that_the_means_leave_out():
    lines = running(SLOWER, 10, first=1, left_out=4)
    window = window_of(lines, dataclasses.replace(BY_STEPS, mean_from=4))
    assert window.duration_s == pytest.approx(sum(SLOWER[20:120]) / 100)
    assert window_of(lines, BY_STEPS).duration_s != pytest.approx(window.duration_s, rel=1e-3)


def test_a_running_mean_says_nothing_over_the_end_of_an_epoch():
    lines = [*running([0.5] * 71), *(dataclasses.replace(row, epoch=1) for row in running([1.0] * 71))]
    lines = [dataclasses.replace(row, epoch_steps=71) for row in lines]
    window = window_of(lines, BY_STEPS)
    assert window.steps == 99 and window.duration_s == pytest.approx((50 * 0.5 + 49 * 1.0) / 99)


def test_means_that_fall_too_steeply_to_be_true_are_no_durations():
    lines = running([0.5] * 140)
    lines[60] = dataclasses.replace(lines[60], mean=0.4)
    window = window_of(lines, BY_STEPS)
    assert window.printed == 99 and window.duration_s > 0


def test_the_time_of_the_step_itself_stands_before_the_mean():
    rows = [dataclasses.replace(row, duration=0.25) for row in running([0.5] * 140)]
    window = window_of(rows, BY_STEPS)
    assert (window.duration_s, window.mean_duration_s) == (pytest.approx(0.25), pytest.approx(0.5))
    assert window_of([Row(step, duration=0.25) for step in range(140)], BY_STEPS).mean_duration_s is None


def attempt(reading, devices=8):
    return attempt_of(Path("x.log"), reading, PathFacts(devices=devices, batch_size=256), Protocol())


@pytest.mark.parametrize(("every", "single", "says"), [(1, 0.6, False), (10, 0.6, True), (10, 0.502, False)])
def test_the_time_of_one_step_in_ten_is_compared_with_that_of_all(every, single, says):
    rows = [dataclasses.replace(row, duration=single) for row in running([0.5] * 140, every)]
    result = attempt(read(rows, BY_STEPS))
    assert result.measured.throughput == pytest.approx(8 * 256 / (0.5 if says else single))
    assert any(f"one step in 10, {single:g} s on average" in remark for remark in result.log.remarks) == says
