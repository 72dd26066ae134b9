"""Lines of several ranks, and of several runs, in one log."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest

from parse.logs import window as window_module
from parse.logs.engine import step_merge
from parse.logs.engine.log_format import NO_NUMBER
from parse.logs.window import Reading, remark
from tests.unit.logs.made_lines import PER_EPOCH, T0, WHOLE, WIDTH, OtherLine, Row, batch, read, steady, window_of


def test_ranks_that_print_behind_the_window_are_none_of_it() -> None:
    lines = [dataclasses.replace(row, rank=rank) for row in steady(range(0, 200)) for rank in range(3)]
    assert window_of([row for row in lines if row.rank < 2 or row.step > 150]).ranks == (0, 1)


def test_a_ranks_late_line_does_not_make_a_log_go_back() -> None:
    lines = steady(range(200))
    late = [line for at in range(0, 200, 2) for line in (lines[at], lines[at + 1], lines[at], lines[at + 1])]
    reading = read(late)
    assert reading.remarks == () and reading.window is not None
    assert (reading.window.steps, reading.window.seconds) == (100, pytest.approx(50))


def goes_back(reading: Reading) -> tuple[tuple[int, int], tuple[int, int]]:
    """From and to which (epoch, step) the log goes back."""
    (back,) = (each.figures for each in reading.remarks if each.name == "another_run")
    return back["passed"], back["to"]


def blocks(sizes: Sequence[int], ranks: int, upto: int) -> list[Row]:
    """Unlabelled, unstamped lines as ranks leave them whose output is buffered: a block of each in turn."""
    lines: list[Row] = []
    begun = [0] * ranks
    while min(begun) < upto:
        for rank in range(ranks):
            stop = min(begun[rank] + sizes[rank % len(sizes)], upto)
            lines += [Row(step, duration=0.25 + rank / 100) for step in range(begun[rank], stop)]
            begun[rank] = stop
    return lines


@pytest.mark.parametrize("sizes", [[60], [61, 59, 60], [30, 31]])
def test_buffered_blocks_of_ranks_are_not_taken_for_runs(sizes) -> None:
    lines = blocks(sizes, 8, 300)
    lines = [line for at, line in enumerate(lines) if at % 61 != 60]  # torn where blocks meet
    reading = read(lines)
    assert reading.remarks == () and reading.window is not None
    assert (reading.window.begin, reading.window.end, reading.window.steps) == (20, 120, 100)
    assert reading.window.duration_s == pytest.approx(0.285, abs=0.005)
    assert reading.window.seconds is None and reading.window.lines_per_step in (7, 8)


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("stamped", [True, False])
@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize(("stopped", "second_run"), [(60, 0), (300, 0), (300, 251), (60, 20), (60, 57)])
def test_of_two_runs_in_one_file_the_first_counts(stamped, labelled, stopped, second_run, small, monkeypatch) -> None:
    if small:
        monkeypatch.setattr(step_merge, "BLOCK", 16)
        monkeypatch.setattr(step_merge, "HOLD", 8)
        monkeypatch.setattr(window_module, "HEAD", 8)
    rank = 0 if labelled else NO_NUMBER

    def run(begin: int, end: int, start: float, every_s: float) -> list[Row]:
        return [
            Row(step, time=start + every_s * step if stamped else math.nan, rate=1 / every_s, rank=rank)
            for step in range(begin, end)
        ]

    lines = [*run(0, stopped + 1, T0, 0.5), *run(second_run, 400, T0 + 1000, 1.0)]
    reading = read(lines, cut=11 if small else 1000)
    back = remark("another_run", passed=(0, stopped), to=(0, second_run), byte=(stopped + 1) * WIDTH)
    assert back in reading.remarks
    assert reading.last == (0, stopped) and reading.step_lines == len(lines)
    if stopped < 120:
        assert reading.window is None and f"last printed step is {stopped}" in reading.reason
    else:
        assert reading.window is not None and reading.window.rate == pytest.approx(2)
        assert reading.window.seconds == (pytest.approx(50) if stamped else None)


def test_of_two_runs_of_buffered_ranks_the_first_counts() -> None:
    first, second = blocks([60], 4, 300), blocks([50], 4, 300)
    reading = read([*first, *[dataclasses.replace(row, duration=9.0) for row in second]])
    assert goes_back(reading) == ((0, 299), (0, 0))
    assert reading.window is not None and reading.window.duration_s == pytest.approx(0.265)


def test_the_furthest_step_is_named_though_a_slower_rank_printed_last() -> None:
    lines = [*steady(range(0, 200)), *steady([198]), *steady(range(0, 200), every_s=10.0)]
    lines[200] = dataclasses.replace(lines[200], time=lines[199].time)
    lines[201:] = [dataclasses.replace(row, time=row.time + 600) for row in lines[201:]]
    assert goes_back(read(lines)) == ((0, 199), (0, 0))


def test_buffered_blocks_are_followed_however_much_of_them_is_read_at_once(monkeypatch) -> None:
    monkeypatch.setattr(step_merge, "BLOCK", 50)
    monkeypatch.setattr(step_merge, "HOLD", 600)
    reading = read(blocks([60], 8, 300), cut=20)
    assert reading.remarks == () and reading.window is not None and reading.window.steps == 100


def test_ranks_that_took_up_their_lines_long_ago_are_known(monkeypatch) -> None:
    monkeypatch.setattr(step_merge, "BLOCK", 50)
    monkeypatch.setattr(step_merge, "HOLD", 250)
    single = [Row(step, duration=0.5) for step in range(120, 620)]
    reading = read([*blocks([60], 2, 120), *single, *blocks([60], 2, 700)], cut=20)
    assert goes_back(reading) == ((0, 619), (0, 0))


def test_lines_behind_the_window_make_up_the_steady_run(monkeypatch) -> None:
    monkeypatch.setattr(step_merge, "BLOCK", 50)
    monkeypatch.setattr(step_merge, "HOLD", 20)
    monkeypatch.setattr(window_module, "HEAD", 30)
    reading = read(steady(range(0, 3000)), cut=10)
    assert reading.step_lines == 3000 and reading.last == (0, 2999)
    assert reading.window is not None and (reading.window.begin, reading.window.end) == (20, 120)
    assert reading.steady_run is not None
    assert (reading.steady_run.begin, reading.steady_run.end, reading.steady_run.steps) == (20, 2999, 2979)
    assert reading.steady_run.seconds == pytest.approx(2979 * 0.5) and reading.steady_run.rate == pytest.approx(100)


@pytest.mark.parametrize(
    ("continued", "judged", "expected"),
    [
        (False, range(240), (None, True)),
        (False, range(100), (None, False)),  # taken up later, at line 180
        (True, range(240), (60, True)),
        (True, range(61, 240), (None, True)),
        (True, range(60), (None, True)),
    ],
)
def test_ranks_begin_before_any_line_is_taken_up_again(continued, judged, expected) -> None:
    lines = step_merge.StepMerge()._lines(batch(blocks([60], 2, 120)).steps)
    assert step_merge.another_run(lines, continued, judged) == expected


def test_a_log_is_followed_beyond_its_window_in_bounded_memory() -> None:
    following = step_merge.StepMerge()
    following.closed = True
    given = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_merge, "BLOCK", 16)
        patch.setattr(step_merge, "HOLD", 8)
        for at in range(0, 200, 10):
            given += len(following.add(batch(steady(range(at, at + 10)), at).steps, ()))
            assert sum(map(len, following._waiting)) < 40
        assert 180 < following.last < 200 + (1 << 40) and 160 < given < 200
        second_run = [dataclasses.replace(row, time=row.time + 600) for row in steady(range(0, 50))]
        following.add(batch(second_run, 200).steps, ())
    assert following.back is not None and following.back.offset == 200 * WIDTH


def test_a_run_of_two_lines_is_recognised_by_its_stamps() -> None:
    died = [Row(10, time=T0, rate=1.0), Row(20, time=T0 + 5, rate=1.0)]
    lines = [*died, *steady(range(10, 200, 10), rank=NO_NUMBER)]
    lines[2:] = [dataclasses.replace(row, time=row.time + 600) for row in lines[2:]]
    reading = read(lines)
    assert reading.window is None and goes_back(reading) == ((0, 20), (0, 10))


def test_an_older_run_behind_a_newer_one_is_another_run_too() -> None:
    newer = steady(range(0, 200))
    older = [dataclasses.replace(row, time=row.time - 5000, rate=7.0) for row in newer]
    reading = read([*newer, *older])
    assert reading.window is not None and reading.window.rate == pytest.approx(100)
    assert goes_back(reading) == ((0, 199), (0, 0))


def test_a_log_that_goes_back_to_an_epoch_before_is_another_run() -> None:
    first = [Row(step, epoch=epoch, time=T0 + 200 * epoch + step) for epoch in range(3) for step in range(150)]
    second_run = [Row(step, epoch=1, time=T0 + 5000 + step) for step in range(150)]
    reading = read([*first, *second_run], PER_EPOCH)
    assert goes_back(reading) == ((2, 149), (1, 0))
    assert reading.last == (2, 149)


def test_facts_of_the_second_run_are_dropped() -> None:
    lines: list[Row | OtherLine] = [
        OtherLine("facts", values=(("batch_size", "64"),)),
        *steady(range(0, 200)),
        OtherLine("facts", values=(("batch_size", "128"), ("seed", "7"))),
        *[dataclasses.replace(row, time=row.time + 900) for row in steady(range(0, 200))],
    ]
    reading = read(lines)
    assert dict(reading.facts) == {"batch_size": "64"} and dict(reading.facts_at) == {"batch_size": 0}
    assert "contradiction" not in {each.name for each in reading.remarks}


def test_repeated_numbers_of_one_rank_do_not_become_steps() -> None:
    """BERT's `Iteration: 30` again and again: the optimizer skipped those steps."""
    lines = [Row(step, time=T0 + step + (3 if step >= 30 else 0), rate=100.0) for step in range(0, 200)]
    lines[31:31] = [Row(30, time=T0 + 33 + 0.0, rate=100.0)] * 3
    lines[30] = dataclasses.replace(lines[30], time=T0 + 30)
    reading = read(lines)
    assert reading.window is not None
    assert (reading.window.begin, reading.window.end, reading.window.steps) == (20, 120, 100)
    assert reading.window.seconds == pytest.approx(103)  # what the skipped steps took counts
    assert remark("repeated_steps", steps=1) in reading.remarks
    reading = read([*steady(range(0, 20)), *steady([20]) * 4, *steady(range(21, 200))])
    assert reading.window is not None and reading.window.steps == 100
    assert remark("repeated_steps", steps=1) in reading.remarks


def test_a_garbled_number_far_ahead_is_left_out() -> None:
    lines = steady(range(0, 200))
    lines[50] = dataclasses.replace(lines[50], step=5049)
    reading = read(lines)
    assert reading.window is not None and reading.last == (0, 199)
    assert (reading.window.steps, reading.window.seconds) == (100, pytest.approx(50))
    assert remark("impossible_lines", lines=1) in reading.remarks


def test_numbers_beyond_counting_are_left_out() -> None:
    lines = [Row(1 << 50), Row(5, epoch=1 << 40), Row(-7), *steady(range(0, 200))]
    reading = read(lines)
    assert reading.window is not None and reading.window.steps == 100
    assert remark("impossible_lines", lines=3) in reading.remarks


def test_ranks_whose_lines_lie_too_far_apart_to_wait_for() -> None:
    lines = [dataclasses.replace(row, rank=rank) for rank in (0, 1) for row in steady(range(0, 400))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_merge, "BLOCK", 32)
        patch.setattr(step_merge, "HOLD", 16)
        patch.setattr(step_merge, "LIMIT", 64)
        reading = read(lines, protocol=WHOLE, cut=10)
    assert reading.window is not None and reading.window.steps == 399
    assert "late_lines" in {each.name for each in reading.remarks}
    assert read(lines, protocol=WHOLE).remarks == ()


@pytest.mark.parametrize(("factor", "rank", "is_one"), [(1.25, NO_NUMBER, True), (2, NO_NUMBER, False), (2, 1, True)])
def test_rates_of_one_step_that_are_far_apart_are_of_several_runs(factor: float, rank: int, is_one: bool) -> None:
    """Unless their lines say which rank prints each."""
    rows = [[Row(step, rate=100), Row(step, rate=100 * factor, rank=rank)] for step in range(150)]
    reading = read([dataclasses.replace(row, time=T0 + row.step) for both in rows for row in both])
    assert (reading.window is not None) == is_one
    assert ("of several runs or writers" in reading.reason) != is_one


def test_a_step_that_is_printed_again_by_itself_is_of_no_other_run() -> None:
    """BERT's first step is printed until its loss scale fits."""
    lines = [*[Row(1, rate=rate, time=T0 + 1 + rate / 1000) for rate in (244, 547, 546)], *steady(range(2, 150))]
    assert read(lines).window is not None
