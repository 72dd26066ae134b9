"""What keeps an interval out of the window, and windows over several epochs."""

from __future__ import annotations

import dataclasses

import pytest

from parse.logs.engine.log_format import NO_NUMBER
from parse.logs.window import remark
from tests.unit.logs.made_lines import PER_EPOCH, T0, THROUGH, WHOLE, OtherLine, Row, read, steady, window_of

PATTERNS = [
    (OtherLine("pause", values=(("reason", "checkpoint"),)), "checkpoint"),
    (OtherLine("pause"), "pause"),
    (OtherLine("evaluation", values=(("top1", "76.2"),)), "validation"),
    (OtherLine("mllog", values=(("key", "eval_start"),)), "validation"),
    (OtherLine("mllog", values=(("key", "eval_accuracy"), ("value", "0.4"))), "validation"),
    (OtherLine("mllog", values=(("key", "epoch_stop"),)), "end of an epoch"),
    (OtherLine("mllog", values=(("key", "block_stop"),)), "end of an epoch"),
    (OtherLine("mark", values=(("mark", "eval_accuracy"),)), "validation"),
]


@pytest.mark.parametrize(("line", "reason"), PATTERNS)
def test_an_interval_with_a_pause_is_kept_out(line, reason) -> None:
    lines: list[Row | OtherLine] = [
        dataclasses.replace(row, time=row.time + (40 if row.step > 60 else 0)) for row in steady(range(10, 200, 10))
    ]
    lines[6:6] = [line]
    window = window_of(lines)
    assert (window.begin, window.end, window.steps, window.seconds) == (20, 120, 90, pytest.approx(45))
    assert window.printed == 9 and len(window.step_s) == 9
    (pause,) = window.pauses
    assert (pause.reason, pause.from_step, pause.to_step, pause.seconds) == (reason, 60, 70, pytest.approx(45))


@pytest.mark.parametrize(
    "line",
    [
        OtherLine("facts", values=(("batch_size", "4"),)),
        OtherLine("summary", values=(("rate", "3"),)),
        OtherLine("mllog", values=(("key", "seed"),)),
        OtherLine("mark", values=(("mark", "avg_ips"),)),
    ],
)
def test_other_records_keep_nothing_out(line) -> None:
    lines: list[Row | OtherLine] = [*steady(range(10, 200, 10))]
    lines[6:6] = [line]
    assert window_of(lines).pauses == ()


def test_several_pauses_in_one_interval_are_one() -> None:
    lines: list[Row | OtherLine] = [*steady(range(10, 200, 10))]
    lines[6:6] = [
        OtherLine("evaluation"),
        OtherLine("pause", values=(("reason", "checkpoint"),)),
        OtherLine("evaluation"),
    ]
    (pause,) = window_of(lines).pauses
    assert pause.reason == "validation, checkpoint"


def test_a_pause_belongs_to_its_rank() -> None:
    """Rank 1 prints step 60 after rank 0 has gone to its validation; and its own validation comes later still."""
    lines: list[Row | OtherLine] = []
    for step in range(10, 200, 10):
        lines += [Row(step, time=T0 + step, rank=0), Row(step, time=T0 + step, rank=1)]
        if step == 60:
            lines[-1:-1] = [OtherLine("evaluation", rank=0)]
            lines += [OtherLine("evaluation", rank=1)]
    window = window_of(lines)
    assert [(pause.from_step, pause.to_step) for pause in window.pauses] == [(60, 70)]


def test_a_pause_of_a_rank_that_prints_no_steps() -> None:
    lines: list[Row | OtherLine] = [dataclasses.replace(row, rank=0) for row in steady(range(10, 200, 10))]
    lines[6:6] = [OtherLine("evaluation", rank=5)]
    assert [(pause.from_step, pause.to_step) for pause in window_of(lines).pauses] == [(60, 70)]


def test_a_window_of_nothing_but_pauses_is_none() -> None:
    lines: list[Row | OtherLine] = []
    for row in steady(range(10, 200, 10)):
        lines += [row, OtherLine("pause")]
    reading = read(lines)
    assert reading.window is None and "free of pauses" in reading.reason and "120" in reading.reason


def test_where_numbers_go_through_the_end_of_an_epoch_is_kept_out() -> None:
    lines = [dataclasses.replace(row, epoch=row.step // 55) for row in steady(range(10, 200, 10))]
    window = window_of(lines, THROUGH)
    assert [(pause.reason, pause.from_step, pause.to_step) for pause in window.pauses] == [
        ("epoch 1 begins", 50, 60),
        ("epoch 2 begins", 100, 110),
    ]
    assert (window.begin_epoch, window.end_epoch, window.steps) == (0, 2, 80)
    everything = window_of(lines, THROUGH, WHOLE)
    assert (everything.steps, everything.pauses, everything.seconds) == (180, (), pytest.approx(90))


def short_epochs(is_printed: bool) -> list[Row]:
    """13 steps an epoch from 0, 1 s each, 5 s between epochs."""
    return [
        Row(step, epoch=epoch, time=T0 + 18 * epoch + step, epoch_steps=13 if is_printed else NO_NUMBER)
        for epoch in range(20)
        for step in range(13)
    ]


def test_a_window_goes_on_into_the_next_epochs_where_their_steps_are_known() -> None:
    window = window_of(short_epochs(True), PER_EPOCH)
    assert (window.begin_epoch, window.begin, window.end_epoch, window.end) == (1, 7, 9, 3)  # 20 and 120 from the start
    assert (window.steps, window.seconds, len(window.pauses)) == (92, pytest.approx(92), 8)
    assert read(short_epochs(True), PER_EPOCH).remarks == ()


def test_a_fact_can_tell_the_steps_of_an_epoch() -> None:
    lines = [OtherLine("facts", values=(("steps_per_epoch", "13"),)), *short_epochs(False)]
    window = window_of(lines, PER_EPOCH)
    assert (window.begin_epoch, window.begin, window.end_epoch, window.end) == (1, 7, 9, 3)


@pytest.mark.parametrize("fact", ["", "0", "-3", "many", "9" * 30])
def test_without_steps_per_epoch_only_intervals_within_epochs_count(fact) -> None:
    lines = [OtherLine("facts", values=(("steps_per_epoch", fact),)), *short_epochs(False)]
    reading = read(lines, PER_EPOCH)
    assert reading.window is not None
    assert (reading.window.begin_epoch, reading.window.begin) == (1, 8)  # 12 steps in an epoch's prints
    assert reading.window.steps == 100 and reading.window.seconds == pytest.approx(100)
    assert [each.name for each in reading.remarks] == ["epochs_of_unknown_length"]


def test_whole_counts_over_epochs_where_their_steps_are_known() -> None:
    window = window_of(short_epochs(True), PER_EPOCH, WHOLE)
    assert (window.steps, window.seconds) == (20 * 13 - 1, pytest.approx(19 * 18 + 12))
    reading = read(short_epochs(False), PER_EPOCH, WHOLE)
    assert reading.window is not None and reading.window.steps == 20 * 12
    assert len(reading.window.pauses) == 19 and remark("epochs_of_unknown_length", ends=19) in reading.remarks


def test_a_number_beyond_the_epochs_steps_does_not_count_backwards() -> None:
    """pytorch/examples of old: `[13/13]` where numbers begin at 0."""
    lines = [
        Row(step, epoch=epoch, time=T0 + 20 * epoch + step, epoch_steps=13) for epoch in range(20) for step in range(14)
    ]
    assert window_of(lines, PER_EPOCH, WHOLE).steps == 20 * 14 - 1


def test_numbers_that_start_anew_though_the_format_numbers_the_run() -> None:
    window = window_of(short_epochs(True), THROUGH)
    assert (window.begin_epoch, window.begin, window.end_epoch, window.end) == (1, 7, 9, 3)
