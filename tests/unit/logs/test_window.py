"""The rule of the window, the numbers printed in it, what else is odd about a log, and real logs."""

from __future__ import annotations

import dataclasses
import math
import statistics

import numpy as np
import pytest

from parse.logs import formats
from parse.logs import window as window_module
from parse.logs.engine import intervals
from parse.logs.engine.log_format import LogError
from parse.logs.window import Protocol, remark
from tests.unit.logs.made_lines import PER_EPOCH, T0, THROUGH, WHOLE, WIDTH, OtherLine, Row, read, steady, window_of


@pytest.mark.parametrize(
    ("warmup", "total", "every", "first", "begin", "end"),
    [
        (20, 120, 1, 0, 20, 120),
        (20, 120, 1, 1, 20, 120),
        (20, 120, 10, 10, 20, 120),
        (20, 120, 20, 20, 20, 120),
        (20, 120, 100, 100, 100, 600),
        (50, 150, 100, 100, 100, 600),
        (100, 600, 100, 100, 100, 600),
        (20, 120, 32, 0, 32, 192),
        (20, 120, 21, 21, 21, 126),
        (20, 120, 7, 7, 21, 126),
        (50, 150, 10, 0, 50, 150),
        (50, 150, 50, 50, 50, 150),
        (0, 30, 1, 1, 1, 31),
        (0, 3, 1, 1, 1, 4),
        (0, 3, 2, 2, 2, 12),
    ],
)
def test_a_window_goes_by_printed_numbers(warmup, total, every, first, begin, end) -> None:
    window = window_of(steady(range(first, 1000, every)), protocol=Protocol(warmup=warmup, total=total))
    assert (window.begin, window.end, window.printed_every) == (begin, end, every)
    assert window.steps == end - begin
    assert window.seconds == pytest.approx((end - begin) / 2)
    assert (window.rate, window.printed) == (pytest.approx(100), (end - begin) // every)
    assert (window.begin_offset, window.end_offset) == (
        (begin - first) // every * WIDTH,
        (end - first) // every * WIDTH,
    )


def test_the_default_protocol_is_that_of_the_format() -> None:
    declared = dataclasses.replace(THROUGH, warmup=50, total=150)
    window = window_of(steady(range(0, 300)), declared)
    assert (window.begin, window.end) == (50, 150)
    window = window_of(steady(range(0, 300)), declared, Protocol(warmup=None, total=250))
    assert (window.begin, window.end) == (50, 250)


@pytest.mark.parametrize(("warmup", "total"), [(20, 20), (20, 10), (-1, 10)])
def test_a_window_without_steps_is_refused(warmup, total) -> None:
    with pytest.raises(LogError, match=f"{total} steps .* first {warmup} are warm-up"):
        read(steady(range(10)), protocol=Protocol(warmup=warmup, total=total))


def test_the_reason_of_a_short_log_names_its_last_step_and_the_needed_one() -> None:
    reading = read(steady(range(10, 90, 10)))
    assert reading.window is None
    assert "last printed step is 80" in reading.reason and "needs step 120" in reading.reason
    assert reading.last == (0, 80)
    reading = read(steady(range(1, 11)))
    assert "last printed step is 10" in reading.reason and "needs step 120" in reading.reason
    reading = read(steady(range(100, 600, 100)))
    assert "last printed step is 500" in reading.reason and "needs step 600" in reading.reason
    assert "no step line of a known form" in read([]).reason
    assert "no line of a step" in read([], formats.format_named("ngc-pytorch")).reason
    assert read(steady([500]), protocol=WHOLE).window is None
    assert "500" in read(steady([500]), protocol=WHOLE).reason


def test_the_reason_states_the_window_that_is_too_long_and_the_one_that_fits() -> None:
    reading = read(steady(range(1, 6)), THROUGH, Protocol(warmup=0, total=7))
    assert reading.reason == (
        "too short: the last printed step is 5 of epoch 0; the window of 7 steps from step 1 of epoch 0 needs step 8; "
        "--steps 4 takes what is there"
    )
    window = window_of(steady(range(1, 6)), protocol=Protocol(warmup=0, total=4))
    assert (window.begin, window.end, window.steps) == (1, 5, 4)


def test_the_commonest_difference_is_how_often_a_log_prints() -> None:
    window = window_of(steady([1, *range(100, 1000, 100)]))
    assert (window.printed_every, window.begin, window.end) == (100, 100, 600)
    window = window_of(steady([step for step in range(10, 1000, 10) if step not in (20, 60, 120)]))
    assert (window.printed_every, window.begin, window.end, window.steps) == (10, 30, 130, 100)


def test_how_often_a_log_prints_is_seen_within_epochs() -> None:
    lines = [Row(step, epoch=epoch, time=T0 + 700.0 * epoch + step) for epoch in range(30) for step in (0, 50, 53)]
    window = window_of([dataclasses.replace(row, epoch_steps=60) for row in lines], PER_EPOCH)
    assert window.printed_every == 3
    ends = np.cumsum([0, *(long for epoch in range(20) for long in (10 + epoch, 7))]).tolist()
    window = window_of([Row(step, epoch=at // 2, time=T0 + step) for at, step in enumerate(ends)])
    assert window.printed_every == 10  # between epochs it is always 7


def test_a_rate_belongs_to_the_interval_that_it_is_printed_with() -> None:
    lines = [Row(step, first=step - 20, time=T0 + step, rate=float(step)) for step in range(20, 300, 20) if step != 60]
    window = window_of(lines)
    assert (window.begin, window.end, window.printed) == (20, 120, 4)
    assert window.rate == pytest.approx(4 / (1 / 40 + 1 / 80 + 1 / 100 + 1 / 120))
    assert window.mean_of_rates == pytest.approx((40 + 80 + 100 + 120) / 4)
    lines = [Row(step, first=step - 20, time=T0 + step, rate=float(step)) for step in range(30, 300, 10)]
    window = window_of(lines, protocol=Protocol(warmup=30, total=130))
    assert window.begin == 30 and window.printed == 9
    assert window.rate == pytest.approx(statistics.harmonic_mean(range(50, 140, 10)))


def test_durations_are_averaged_and_intervals_by_their_elapsed_time() -> None:
    by_durations = dataclasses.replace(THROUGH, printed="durations")
    lines = [Row(step, duration=0.2 if step <= 70 else 0.4) for step in range(0, 200)]
    window = window_of(lines, by_durations)
    assert window.duration_s == pytest.approx(0.3) and window.printed == 100 and window.seconds is None
    assert window.rate is None and len(window.step_s) == 100 and window.step_s[0] == 0.2
    lines = [Row(step, first=step - 100, elapsed=6.5, rate=495.0) for step in range(100, 900, 100)]
    window = window_of(lines, THROUGH, Protocol(warmup=100, total=600))
    assert (window.duration_s, window.rate, window.printed) == (pytest.approx(0.065), pytest.approx(495), 5)


def test_the_mean_of_rates_is_not_that_of_durations() -> None:
    window = window_of([Row(step, duration=0.2 if step % 2 else 0.5) for step in range(0, 200)])
    assert (window.duration_s, window.mean_steps_per_s) == (pytest.approx(0.35), pytest.approx(3.5))
    still = window_of([Row(step, duration=0.5 if step != 50 else 0.0) for step in range(0, 200)])
    assert still.mean_steps_per_s is None and still.duration_s == pytest.approx(0.495)
    assert window_of(steady(range(0, 200))).mean_steps_per_s is None


def test_printed_rates_are_work_over_time() -> None:
    halves = [Row(step, rate=100.0 if step % 2 else 300.0) for step in range(0, 200)]
    window = window_of(halves)
    assert (window.rate, window.mean_of_rates) == (pytest.approx(150), pytest.approx(200))
    uneven = [Row(step, rate=100.0 if step <= 30 else 300.0) for step in (*range(20, 31), 120, 130)]
    assert window_of(uneven).rate == pytest.approx(100 / (10 / 100 + 90 / 300))
    growing = [dataclasses.replace(row, batch=3.0 if row.step % 2 else 1.0) for row in halves]
    assert window_of(growing).rate == pytest.approx(200 / (150 / 100 + 50 / 300))
    assert window_of([*growing[:70], *halves[70:]]).rate == pytest.approx(150)  # some lines do not say their work
    assert window_of([*halves[:70], Row(70, rate=0.0), *halves[71:]]).rate is None


def test_running_means_of_rates_are_differenced() -> None:
    seconds = [step / 100 if step <= 60 else 0.6 + (step - 60) / 300 for step in range(0, 201)]
    rows = [Row(step, rate=7.0, mean_rate=step / seconds[step]) for step in range(10, 201, 10)]
    window = window_of(rows)
    assert window.rate == pytest.approx(100 / (40 / 100 + 60 / 300))
    every_step = [Row(step, rate=7.0, mean_rate=step / seconds[step]) for step in range(1, 201)]
    assert window_of(every_step).rate == pytest.approx(7)
    later = [dataclasses.replace(row, mean_rate=(row.step - 2) / (seconds[row.step] - seconds[2])) for row in rows]
    assert window_of(later, dataclasses.replace(THROUGH, mean_from=2)).rate == pytest.approx(window.rate)
    single = [dataclasses.replace(row, rate=math.nan) for row in every_step]
    assert window_of(single).rate == pytest.approx(window.rate)


def test_impossible_printed_numbers_are_no_numbers() -> None:
    lines = [Row(step, time=T0 + step, rate=math.inf if step == 30 else 5.0) for step in range(0, 200)]
    window = window_of(lines)
    assert window.rate == pytest.approx(5) and window.printed == 99


def test_of_contradicting_counts_none_is_taken_and_of_other_facts_the_first() -> None:
    lines: list[Row | OtherLine] = [
        OtherLine("facts", values=(("batch_size", "64"), ("gpu", "0"), ("model", "r50"))),
        OtherLine("facts", values=(("batch_size", "32"), ("gpu", "1"), ("model", "vgg"))),
        *steady(range(0, 200)),
    ]
    reading = read(lines)
    assert dict(reading.facts) == {"gpu": "0", "model": "r50"}
    taken = {"batch_size": ("64", "32", "neither is taken"), "model": ("r50", "vgg", "the first counts")}
    assert reading.remarks == tuple(
        remark("contradiction", name=name, value=value, other=other, byte=WIDTH, taken=text)
        for name, (value, other, text) in taken.items()
    )


def test_the_number_of_records_is_bounded() -> None:
    lines: list[Row | OtherLine] = [
        *steady(range(0, 200)),
        *[OtherLine("mark")] * 30,
        OtherLine("pause"),
        OtherLine("facts"),
    ]
    assert len(read(lines).records) == 30
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_module, "MAX_RECORDS", 10)
        reading = read(lines)
    assert len(reading.records) == 10 and remark("dropped_records", records=20, most=10) in reading.remarks


def test_remarks_of_the_reader_are_passed_on() -> None:
    assert read([*steady(range(200)), OtherLine("remark", values=(("text", "cut off"),))]).remarks == (
        remark("of_format", text="cut off"),
    )


def test_a_log_that_begins_far_beyond_the_warm_up_is_remarked() -> None:
    assert remark("late_first_step", first=(0, 5000), warmup=20) in read(steady(range(5000, 5300))).remarks
    assert read(steady(range(100, 900, 100))).remarks == ()


def test_many_pauses_are_counted_beyond_those_listed() -> None:
    lines: list[Row | OtherLine] = []
    for row in steady(range(0, 200)):
        lines += [row, OtherLine("pause")] if row.step % 2 else [row]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "MAX_PAUSES", 3)
        reading = read(lines)
    assert reading.window is not None and len(reading.window.pauses) == 3 and reading.window.steps == 50
    assert remark("more_pauses", more=47) in reading.remarks


def test_of_a_long_window_the_first_step_times_are_kept() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "MAX_TIMES", 50)
        reading = read(steady(range(0, 200)))
    assert reading.window is not None and len(reading.window.step_s) == 50
    assert remark("first_step_times", first=50, intervals=100) in reading.remarks
