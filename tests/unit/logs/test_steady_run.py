"""A log's whole steady run beside its window: added up in the same way, and named where the two are apart."""

from __future__ import annotations

import dataclasses

import pytest

from parse.summarize import main
from tests.unit.logs import made
from tests.unit.logs.made_lines import PER_EPOCH, WHOLE, OtherLine, Row, read, steady

SLOW_THEN_FAST = [0.5] * 130 + [0.25] * 2000


def times(durations, first=0):
    rows, at = [], 1.6e9 + 0.25
    for step, duration in enumerate(durations, first):
        at += duration
        rows.append(Row(step, time=at, rate=50 / duration, duration=duration))
    return rows


def test_the_window_is_kept_and_the_run_is_added_up_beside_it():
    reading = read(times(SLOW_THEN_FAST), cut=300)
    window, run = reading.window, reading.steady_run
    assert (window.begin, window.end, window.seconds) == (20, 120, pytest.approx(50))
    assert (run.begin, run.end, run.steps) == (20, 2129, 2109)
    assert run.seconds == pytest.approx(109 * 0.5 + 2000 * 0.25)
    assert run.duration_s == pytest.approx(run.seconds / run.steps)
    assert run.pauses == () and len(run.step_s) == 0


def test_pauses_and_ends_of_epochs_stay_out_of_the_run():
    epochs = [
        dataclasses.replace(row, epoch=epoch, step=row.step, time=row.time + 1000 * epoch)
        for epoch in range(3)
        for row in steady(range(0, 200))
    ]
    lines = [*epochs[:150], OtherLine("pause"), *epochs[150:]]
    run = read(lines, PER_EPOCH, cut=77).steady_run
    assert run.steps == (199 - 20) + 2 * 199 - 1 and run.seconds == pytest.approx(run.steps * 0.5)


@pytest.mark.parametrize(
    ("lines", "protocol"), [(times(SLOW_THEN_FAST), WHOLE), (times([0.5] * 50), None)], ids=["all", "too short"]
)
def test_without_a_window_of_the_protocol_there_is_no_run_beside_it(lines, protocol):
    assert read(lines, protocol=protocol).steady_run is None


def test_what_stands_behind_the_window_alone_makes_no_remark():
    lines = times(SLOW_THEN_FAST)
    late = dataclasses.replace(lines[200], duration=9.0)
    assert read([*lines, late], cut=10).remarks == ()


def test_a_summary_says_both_speeds_and_keeps_the_window(tmp_path, capsys):
    step_s = [0.128] * 130 + [0.064] * 1000
    path = made.put(tmp_path, "1n1g/r50_b128_fp32_1.log", made.ngc_pytorch(step_s, batch=128))
    assert main([str(path), "--verbose"]) == 0
    out = " ".join("".join(capsys.readouterr()).split())
    assert "1000.00" in out
    run = 128 * 1110 / (110 * 0.128 + 1000 * 0.064)
    assert (
        f"steps 20 to 120 of epoch 0 is the result, 1000.00 samples/s: {1000 / run - 1:+.1%} from the {run:.2f}" in out
    )
    assert "of the whole steady run (steps 20 to 1130 of epoch 0)" in out
    assert main(["--explain", str(path)]) == 0
    assert "whole steady run: steps 20 to 1130 of epoch 0, 1110 steps in " in capsys.readouterr().out
