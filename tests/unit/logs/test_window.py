"""parse.logs.window: the rule of the window, ranks, pauses, epochs, stamps, against a plain reference and real logs."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parse.logs import families, intervals, merger, window
from parse.logs.family import NO_NUMBER, Batch, Family, LogError, Said, Steps
from parse.logs.intervals import Series, resolution_s
from parse.logs.points import merged
from parse.logs.window import Protocol, Reading, Window, read_batches, read_log

LOGS = Path(__file__).parents[3] / ".." / "shared" / "logs"
REAL = pytest.mark.skipif(not LOGS.is_dir(), reason=f"no real logs at {LOGS}")

PER_EPOCH = Family(name="by-epoch", title="numbers start anew", steps=(), numbered="epoch")
THROUGH = Family(name="through", title="numbers go on", steps=(), numbered="run")
T0 = 1.6e9 + 0.25
"""Not a whole second: whole ones alone would make a clock of seconds."""


@dataclass(frozen=True)
class Row:
    """A step line of a made log."""

    step: int
    epoch: int = 0
    time: float = math.nan
    rate: float = math.nan
    rank: int = NO_NUMBER
    first: int = NO_NUMBER
    duration: float = math.nan
    elapsed: float = math.nan
    epoch_steps: int = NO_NUMBER


@dataclass(frozen=True)
class Word:
    """Any other line of a made log."""

    kind: str
    rank: int | None = None
    values: tuple[tuple[str, str], ...] = ()


WIDTH = 100
"""Bytes of a line of a made log."""


def batch(lines: Sequence[Row | Word], before: int = 0) -> Batch:
    rows = [(number * WIDTH, line) for number, line in enumerate(lines, before) if isinstance(line, Row)]
    words = [(number * WIDTH, line) for number, line in enumerate(lines, before) if isinstance(line, Word)]

    def whole(name: str) -> np.ndarray:
        return np.array([getattr(row, name) for _, row in rows], np.int64)

    def real(name: str) -> np.ndarray:
        return np.array([getattr(row, name) for _, row in rows], np.float64)

    return Batch(
        steps=Steps(
            offset=np.array([offset for offset, _ in rows], np.int64),
            time_s=real("time"),
            epoch=whole("epoch"),
            step=whole("step"),
            first=whole("first"),
            rank=whole("rank"),
            rate=real("rate"),
            duration_s=real("duration"),
            elapsed_s=real("elapsed"),
            epoch_steps=whole("epoch_steps"),
        ),
        said=tuple(
            Said(kind=word.kind, offset=offset, time_s=None, rank=word.rank, values=dict(word.values))
            for offset, word in words
        ),
    )


def read(
    lines: Sequence[Row | Word], family: Family = THROUGH, protocol: Protocol | None = None, cut: int = 10**9
) -> Reading:
    stretches = [batch(lines[at : at + cut], at) for at in range(0, len(lines), cut)]
    return read_batches(stretches, family, protocol or Protocol())


def window_of(
    lines: Sequence[Row | Word], family: Family = THROUGH, protocol: Protocol | None = None, cut: int = 10**9
) -> Window:
    reading = read(lines, family, protocol, cut)
    assert reading.window is not None, reading.reason
    return reading.window


def steady(steps: Sequence[int], every_s: float = 0.5, **more: float) -> list[Row]:
    """Lines of steps of half a second each, at 100 samples/s."""
    return [Row(step, time=T0 + every_s * step, rate=100.0, **more) for step in steps]  # type: ignore[arg-type]


WHOLE = Protocol(whole=True)


# The rule


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
    ],
)
def test_a_window_goes_by_printed_numbers(warmup, total, every, first, begin, end) -> None:
    found = window_of(steady(range(first, 1000, every)), protocol=Protocol(warmup=warmup, total=total))
    assert (found.begin, found.end, found.printed_every) == (begin, end, every)
    assert found.steps == end - begin
    assert found.seconds == pytest.approx((end - begin) / 2)
    assert (found.rate, found.printed) == (100.0, (end - begin) // every)
    assert (found.begin_offset, found.end_offset) == ((begin - first) // every * WIDTH, (end - first) // every * WIDTH)


def test_the_protocol_is_the_familys_own_where_none_is_asked_for() -> None:
    own = dataclasses.replace(THROUGH, warmup=50, total=150)
    found = window_of(steady(range(0, 300)), own)
    assert (found.begin, found.end) == (50, 150)
    found = window_of(steady(range(0, 300)), own, Protocol(warmup=None, total=250))
    assert (found.begin, found.end) == (50, 250)


@pytest.mark.parametrize(("warmup", "total"), [(20, 20), (20, 10), (-1, 10)])
def test_a_window_without_steps_is_refused(warmup, total) -> None:
    with pytest.raises(LogError, match=f"{total} steps .* first {warmup} are warm-up"):
        read(steady(range(10)), protocol=Protocol(warmup=warmup, total=total))


def test_a_log_that_is_too_short_says_how_far_it_goes_and_what_it_lacks() -> None:
    reading = read(steady(range(10, 90, 10)))
    assert reading.window is None
    assert "last printed step is 80" in reading.reason and "needs step 120" in reading.reason
    assert reading.last == (0, 80)
    reading = read(steady(range(1, 11)))
    assert "last printed step is 10" in reading.reason and "needs step 120" in reading.reason
    reading = read(steady(range(100, 600, 100)))
    assert "last printed step is 500" in reading.reason and "needs step 600" in reading.reason
    assert "no steps" in read([]).reason
    assert "no line of a step" in read([], families.family("ngc-pytorch")).reason
    assert read(steady([500]), protocol=WHOLE).window is None
    assert "500" in read(steady([500]), protocol=WHOLE).reason


def test_one_more_step_makes_the_window() -> None:
    assert read(steady(range(10, 120, 10))).window is None
    assert read(steady(range(10, 130, 10))).window is not None


def test_the_commonest_difference_is_how_often_a_log_prints() -> None:
    found = window_of(steady([1, *range(100, 1000, 100)]))
    assert (found.printed_every, found.begin, found.end) == (100, 100, 600)
    found = window_of(steady([step for step in range(10, 1000, 10) if step not in (20, 60, 120)]))
    assert (found.printed_every, found.begin, found.end, found.steps) == (10, 30, 130, 100)


def test_how_often_a_log_prints_is_seen_within_epochs() -> None:
    lines = [Row(step, epoch=epoch, time=T0 + 700.0 * epoch + step) for epoch in range(30) for step in (0, 50, 53)]
    found = window_of([dataclasses.replace(row, epoch_steps=60) for row in lines], PER_EPOCH)
    assert found.printed_every == 3
    ends = np.cumsum([0, *(long for epoch in range(20) for long in (10 + epoch, 7))]).tolist()
    found = window_of([Row(step, epoch=at // 2, time=T0 + step) for at, step in enumerate(ends)])
    assert found.printed_every == 10  # between epochs it is always 7


def test_whole_goes_from_the_first_printed_step_to_the_last() -> None:
    lines: list[Row | Word] = [*steady(range(10, 210, 10))]
    lines[8:8] = [Word("evaluation")]
    found = window_of(lines, protocol=WHOLE)
    assert (found.begin, found.end, found.steps, found.seconds) == (10, 200, 190, pytest.approx(95))
    assert found.pauses == () and found.printed == 19


# Against a plain reference


@dataclass(frozen=True)
class Made:
    """A made log: lines in file order, the same by rank, and after which steps (epoch, step) it pauses."""

    lines: list[Row | Word]
    pauses: set[tuple[int, int]]
    per_epoch: int | None
    family: Family
    protocol: Protocol
    cut: int
    prints_per_epoch: int


@st.composite
def made_logs(draw: st.DrawFn) -> Made:
    every = draw(st.integers(1, 100))
    numbered = draw(st.sampled_from(("epoch", "run")))
    warmup = draw(st.integers(0, 40))
    protocol = draw(st.sampled_from((Protocol(warmup=warmup, total=warmup + draw(st.integers(1, 120))), WHOLE)))
    per_epoch = draw(st.integers(every, 12 * every))
    told = draw(st.booleans())
    epochs = draw(st.integers(1, 6))
    offset = draw(st.sampled_from((0, 1)))
    ranks = draw(st.integers(1, 4))
    labelled = draw(st.booleans())
    stamped = draw(st.booleans())
    skew = [draw(st.floats(0, 1.4)) * every for _ in range(ranks)]
    printed: list[tuple[int, int, float]] = []
    pauses: set[tuple[int, int]] = set()
    clock = 0.0
    for epoch in range(epochs):
        for within in range(offset, per_epoch + offset):
            clock += draw(st.sampled_from((1.0, 1.0, 1.25))) if per_epoch < 40 else 1.0
            step = within + (epoch * per_epoch if numbered == "run" else 0)
            if step % every == 0:
                printed.append((epoch, step, clock))
                if draw(st.integers(0, 9)) == 0:
                    pauses.add((epoch, step))
                    clock += 10 * every
        clock += 10 * every
    lines: list[tuple[float, Row | Word]] = []
    for epoch, step, when in printed:
        for rank in range(ranks):
            stamp = when + skew[rank]
            row = Row(
                step,
                epoch=epoch,
                time=T0 + stamp if stamped else math.nan,
                rate=draw(st.integers(1, 1000)) / 4,
                rank=rank if labelled else NO_NUMBER,
                epoch_steps=per_epoch if told else NO_NUMBER,
            )
            lines.append((stamp, row))
            if rank == 0 and (epoch, step) in pauses:
                lines.append((stamp, Word("pause", rank=0 if labelled and draw(st.booleans()) else None)))
    lines.sort(key=lambda line: line[0])
    return Made(
        lines=[line for _, line in lines],
        pauses=pauses,
        per_epoch=per_epoch if told else None,
        family=PER_EPOCH if numbered == "epoch" else THROUGH,
        protocol=protocol,
        cut=draw(st.integers(1, 200)),
        prints_per_epoch=per_epoch // every,
    )


@dataclass(frozen=True)
class Plain:
    """What the reference finds."""

    begin: tuple[int, int]
    end: tuple[int, int]
    steps: int
    seconds: float
    rates: list[float]
    every: int


def steps_between(points: list[tuple[int, int]], made: Made) -> list[int | None]:
    between: list[int | None] = []
    for (epoch, step), (next_epoch, next_step) in itertools.pairwise(points):
        if next_epoch == epoch or made.family.numbered == "run":
            between.append(next_step - step)
        elif made.per_epoch is None:
            between.append(None)
        else:
            whole_epochs = made.per_epoch * (next_epoch - epoch)
            zero = any(step == 0 for _, step in points)
            between.append(max(whole_epochs - step, int(zero)) + next_step)
    return between


def plainly(made: Made) -> Plain | None:
    """The window by the rule's words, a step at a time."""
    by_step: dict[tuple[int, int], list[Row]] = {}
    for line in made.lines:
        if isinstance(line, Row):
            by_step.setdefault((line.epoch, line.step), []).append(line)
    points = sorted(by_step)
    between = steps_between(points, made)
    differences = Counter(b[1] - a[1] for a, b in itertools.pairwise(points) if a[0] == b[0])
    every = min(differences, key=lambda size: (-differences[size], size)) if differences else 1
    reached = [points[0][1]]
    for steps in between:
        reached.append(reached[-1] + (steps or 0))
    if made.protocol.whole:
        first, last = 0, len(points) - 1
    else:
        warmup, total = made.protocol.warmup or 0, made.protocol.total or 0
        span = max(total - warmup, 5 * every) if every > warmup else total - warmup
        first = next((at for at, far in enumerate(reached) if far >= warmup), -1)
        last = next((at for at, far in enumerate(reached) if first >= 0 and far >= reached[first] + span), -1)
        if last < 0:
            numbers = [step for _, step in points]
            zero = 0 in numbers or (every > 1 and all((step + 1) % every == 0 for step in numbers))
            if not zero or not 0 < warmup >= every:
                return None
            first = next((at for at, far in enumerate(reached) if far >= warmup - 1), -1)
            last = next((at for at, far in enumerate(reached) if far >= warmup - 1 + span), -1)
            if last < 0:
                return None
    steps, seconds, rates = 0, 0.0, []
    for at in range(first, last):
        if between[at] is None:
            continue
        if not made.protocol.whole and (points[at] in made.pauses or points[at][0] != points[at + 1][0]):
            continue
        steps += between[at] or 0
        stamp, before = (max(row.time for row in by_step[points[here]]) for here in (at + 1, at))
        seconds += stamp - before
        rates.append(statistics.median(row.rate for row in by_step[points[at + 1]]))
    return Plain(begin=points[first], end=points[last], steps=steps, seconds=seconds, rates=rates, every=every)


def compare(made: Made) -> None:
    expected = plainly(made)
    reading = read(made.lines, made.family, made.protocol, made.cut)
    found = reading.window
    assert not any("back" in remark for remark in reading.remarks)
    if expected is None or not expected.steps:
        assert found is None and reading.reason
        return
    assert found is not None, reading.reason
    assert ((found.begin_epoch, found.begin), (found.end_epoch, found.end)) == (expected.begin, expected.end)
    assert (found.steps, found.printed, found.printed_every) == (expected.steps, len(expected.rates), expected.every)
    assert found.rate == pytest.approx(statistics.fmean(expected.rates))
    if math.isnan(expected.seconds):
        assert found.seconds is None and found.resolution_s is None and not len(found.step_s)
    else:
        assert found.seconds == pytest.approx(expected.seconds, abs=1e-5)
        assert len(found.step_s) == len(expected.rates)


@settings(max_examples=300, deadline=None)
@given(made_logs())
def test_the_window_is_that_of_the_plain_reference(made: Made) -> None:
    compare(made)


@settings(max_examples=150, deadline=None)
@given(made_logs(), st.integers(1, 60))
def test_a_log_read_in_small_blocks_gives_the_same(made: Made, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merger, "BLOCK", block)
        patch.setattr(merger, "HOLD", 40)
        if made.prints_per_epoch >= 3:  # so that the first points show how often it prints
            patch.setattr(window, "HEAD", 8)
        compare(made)


# Ranks


@pytest.mark.parametrize("labelled", [True, False])
def test_lines_of_several_ranks_for_one_step_are_one_step(labelled) -> None:
    lines = [
        Row(step, time=T0 + step + rank / 10, rate=100.0 + rank, rank=rank if labelled else NO_NUMBER)
        for step in range(0, 200)
        for rank in range(8)
    ]
    found = window_of(lines)
    assert (found.begin, found.end, found.steps, found.printed) == (20, 120, 100, 100)
    assert found.seconds == pytest.approx(100) and found.rate == 103.5
    assert found.ranks == (tuple(range(8)) if labelled else ())
    assert found.lines_per_step == 8
    assert found.end_offset == (120 * 8 + 7) * WIDTH  # the last rank's line has the latest stamp


def test_ranks_that_print_behind_the_window_are_none_of_it() -> None:
    lines = [dataclasses.replace(row, rank=rank) for row in steady(range(0, 200)) for rank in range(3)]
    assert window_of([row for row in lines if row.rank < 2 or row.step > 150]).ranks == (0, 1)


def test_a_ranks_late_line_does_not_make_a_log_go_back() -> None:
    lines = steady(range(200))
    late = [line for at in range(0, 200, 2) for line in (lines[at], lines[at + 1], lines[at], lines[at + 1])]
    reading = read(late)
    assert reading.remarks == () and reading.window is not None
    assert (reading.window.steps, reading.window.seconds) == (100, pytest.approx(50))


def blocks(sizes: Sequence[int], ranks: int, upto: int) -> list[Row]:
    """Unlabelled, unstamped lines as ranks leave them whose output is buffered: a block of each in turn."""
    lines: list[Row] = []
    begun = [0] * ranks
    while min(begun) < upto:
        for rank in range(ranks):
            past = min(begun[rank] + sizes[rank % len(sizes)], upto)
            lines += [Row(step, duration=0.25 + rank / 100) for step in range(begun[rank], past)]
            begun[rank] = past
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
@pytest.mark.parametrize(("stopped", "again"), [(60, 0), (300, 0), (300, 251), (60, 20), (60, 57)])
def test_of_two_runs_in_one_file_the_first_counts(stamped, labelled, stopped, again, small, monkeypatch) -> None:
    if small:
        monkeypatch.setattr(merger, "BLOCK", 16)
        monkeypatch.setattr(merger, "HOLD", 8)
        monkeypatch.setattr(window, "HEAD", 8)
    rank = 0 if labelled else NO_NUMBER

    def run(begin: int, end: int, start: float, every_s: float) -> list[Row]:
        return [
            Row(step, time=start + every_s * step if stamped else math.nan, rate=1 / every_s, rank=rank)
            for step in range(begin, end)
        ]

    lines = [*run(0, stopped + 1, T0, 0.5), *run(again, 400, T0 + 1000, 1.0)]
    reading = read(lines, cut=11 if small else 1000)
    assert any(
        f"go back from {stopped} of epoch 0 to {again} of epoch 0" in remark
        and f"byte {(stopped + 1) * WIDTH}" in remark
        for remark in reading.remarks
    )
    assert reading.last == (0, stopped) and reading.step_lines == len(lines)
    if stopped < 120:
        assert reading.window is None and f"last printed step is {stopped}" in reading.reason
    else:
        assert reading.window is not None and reading.window.rate == 2.0
        assert reading.window.seconds == (pytest.approx(50) if stamped else None)


def test_of_two_runs_of_buffered_ranks_the_first_counts() -> None:
    first, second = blocks([60], 4, 300), blocks([50], 4, 300)
    reading = read([*first, *[dataclasses.replace(row, duration=9.0) for row in second]])
    assert any("go back from 299 of epoch 0 to 0 of epoch 0" in remark for remark in reading.remarks)
    assert reading.window is not None and reading.window.duration_s == pytest.approx(0.265)


def test_the_furthest_step_is_named_though_a_slower_rank_printed_last() -> None:
    lines = [*steady(range(0, 200)), *steady([198]), *steady(range(0, 200), every_s=10.0)]
    lines[200] = dataclasses.replace(lines[200], time=lines[199].time)
    lines[201:] = [dataclasses.replace(row, time=row.time + 600) for row in lines[201:]]
    assert any("go back from 199 of" in remark for remark in read(lines).remarks)


def test_buffered_blocks_are_followed_however_much_of_them_is_read_at_once(monkeypatch) -> None:
    monkeypatch.setattr(merger, "BLOCK", 50)
    monkeypatch.setattr(merger, "HOLD", 600)
    reading = read(blocks([60], 8, 300), cut=20)
    assert reading.remarks == () and reading.window is not None and reading.window.steps == 100


def test_ranks_that_took_up_their_lines_long_ago_are_known(monkeypatch) -> None:
    monkeypatch.setattr(merger, "BLOCK", 50)
    monkeypatch.setattr(merger, "HOLD", 250)
    alone = [Row(step, duration=0.5) for step in range(120, 620)]
    reading = read([*blocks([60], 2, 120), *alone, *blocks([60], 2, 700)], cut=20)
    assert any("go back from 619 of epoch 0 to 0 of epoch 0" in remark for remark in reading.remarks)


def test_lines_behind_the_window_are_counted_alone(monkeypatch) -> None:
    calls = []
    monkeypatch.setattr(merger, "BLOCK", 50)
    monkeypatch.setattr(merger, "HOLD", 20)
    monkeypatch.setattr(window, "HEAD", 30)
    monkeypatch.setattr(merger, "merged", lambda lines: calls.append(len(lines)) or merged(lines))
    reading = read(steady(range(0, 3000)), cut=10)
    assert sum(calls) < 300 and reading.step_lines == 3000 and reading.last == (0, 2999)


@pytest.mark.parametrize(
    ("continued", "judged", "found"),
    [
        (False, range(240), (None, True)),
        (False, range(100), (None, False)),  # taken up later, at line 180
        (True, range(240), (60, True)),
        (True, range(61, 240), (None, True)),
        (True, range(60), (None, True)),
    ],
)
def test_ranks_begin_before_any_line_is_taken_up_again(continued, judged, found) -> None:
    lines = merger.Merger()._lines(batch(blocks([60], 2, 120)).steps)
    assert merger.another_run(lines, continued, judged) == found


def test_a_log_is_followed_beyond_its_window_without_points() -> None:
    following = merger.Merger()
    following.closed = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merger, "BLOCK", 16)
        patch.setattr(merger, "HOLD", 8)
        for at in range(0, 200, 10):
            assert not len(following.add(batch(steady(range(at, at + 10)), at).steps, ()))
            assert sum(map(len, following._waiting)) < 40
        assert 180 < following.last < 200 + (1 << 40)
        again = [dataclasses.replace(row, time=row.time + 600) for row in steady(range(0, 50))]
        following.add(batch(again, 200).steps, ())
    assert following.back is not None and following.back.offset == 200 * WIDTH


def test_a_run_that_died_after_two_lines_is_told_by_its_stamps() -> None:
    died = [Row(10, time=T0, rate=1.0), Row(20, time=T0 + 5, rate=1.0)]
    lines = [*died, *steady(range(10, 200, 10), rank=NO_NUMBER)]
    lines[2:] = [dataclasses.replace(row, time=row.time + 600) for row in lines[2:]]
    reading = read(lines)
    assert reading.window is None and any("go back from 20" in remark for remark in reading.remarks)


def test_an_older_run_behind_a_newer_one_is_another_run_too() -> None:
    newer = steady(range(0, 200))
    older = [dataclasses.replace(row, time=row.time - 5000, rate=7.0) for row in newer]
    reading = read([*newer, *older])
    assert reading.window is not None and reading.window.rate == 100.0
    assert any("go back" in remark for remark in reading.remarks)


def test_a_log_that_goes_back_to_an_epoch_before_is_another_run() -> None:
    first = [Row(step, epoch=epoch, time=T0 + 200 * epoch + step) for epoch in range(3) for step in range(150)]
    again = [Row(step, epoch=1, time=T0 + 5000 + step) for step in range(150)]
    reading = read([*first, *again], PER_EPOCH)
    assert any("go back from 149 of epoch 2 to 0 of epoch 1" in remark for remark in reading.remarks)
    assert reading.last == (2, 149)


def test_what_the_second_run_tells_is_not_taken_for_the_first() -> None:
    lines: list[Row | Word] = [
        Word("facts", values=(("batch_size", "64"),)),
        *steady(range(0, 200)),
        Word("facts", values=(("batch_size", "128"), ("seed", "7"))),
        *[dataclasses.replace(row, time=row.time + 900) for row in steady(range(0, 200))],
    ]
    reading = read(lines)
    assert dict(reading.facts) == {"batch_size": "64"} and dict(reading.facts_at) == {"batch_size": 0}
    assert not any("batch_size" in remark for remark in reading.remarks)


def test_repeated_numbers_of_one_rank_do_not_become_steps() -> None:
    """BERT's `Iteration: 30` again and again: the optimizer skipped those steps."""
    lines = [Row(step, time=T0 + step + (3 if step >= 30 else 0), rate=100.0) for step in range(0, 200)]
    lines[31:31] = [Row(30, time=T0 + 33 + 0.0, rate=100.0)] * 3
    lines[30] = dataclasses.replace(lines[30], time=T0 + 30)
    reading = read(lines)
    assert reading.window is not None
    assert (reading.window.begin, reading.window.end, reading.window.steps) == (20, 120, 100)
    assert reading.window.seconds == pytest.approx(103)  # what the skipped steps took counts
    assert any("1 step of the window stand on more than one line" in remark for remark in reading.remarks)
    reading = read([*steady(range(0, 20)), *steady([20]) * 4, *steady(range(21, 200))])
    assert reading.window is not None and reading.window.steps == 100
    assert any("1 step of the window stand on more than one line" in remark for remark in reading.remarks)


def test_a_garbled_number_far_ahead_is_left_out() -> None:
    lines = steady(range(0, 200))
    lines[50] = dataclasses.replace(lines[50], step=5049)
    reading = read(lines)
    assert reading.window is not None and reading.last == (0, 199)
    assert (reading.window.steps, reading.window.seconds) == (100, pytest.approx(50))
    assert any("1 step line with impossible numbers" in remark for remark in reading.remarks)


def test_numbers_beyond_counting_are_left_out() -> None:
    lines = [Row(1 << 50), Row(5, epoch=1 << 40), Row(-7), *steady(range(0, 200))]
    reading = read(lines)
    assert reading.window is not None and reading.window.steps == 100
    assert any("3 step lines with impossible numbers" in remark for remark in reading.remarks)


def test_ranks_whose_lines_lie_too_far_apart_to_wait_for() -> None:
    lines = [dataclasses.replace(row, rank=rank) for rank in (0, 1) for row in steady(range(0, 400))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merger, "BLOCK", 32)
        patch.setattr(merger, "HOLD", 16)
        patch.setattr(merger, "LIMIT", 64)
        reading = read(lines, protocol=WHOLE, cut=10)
    assert reading.window is not None and reading.window.steps == 399
    assert any("came long after" in remark for remark in reading.remarks)
    assert read(lines, protocol=WHOLE).remarks == ()


def test_memory_does_not_grow_with_the_log() -> None:
    taken = merger.Merger()
    for at in range(0, 60):
        part = [row for step in range(at * 1000, at * 1000 + 1000) for row in steady([step]) * 2]
        taken.add(batch(part, at * 2000).steps, ())
        assert sum(map(len, taken._waiting)) < merger.BLOCK + merger.HOLD + 2000


# Pauses and epochs

SAYINGS = [
    (Word("pause", values=(("why", "checkpoint"),)), "checkpoint"),
    (Word("pause"), "pause"),
    (Word("evaluation", values=(("top1", "76.2"),)), "validation"),
    (Word("mllog", values=(("key", "eval_start"),)), "validation"),
    (Word("mllog", values=(("key", "eval_accuracy"), ("value", "0.4"))), "validation"),
    (Word("mllog", values=(("key", "epoch_stop"),)), "end of an epoch"),
    (Word("mllog", values=(("key", "block_stop"),)), "end of an epoch"),
    (Word("mark", values=(("mark", "eval_accuracy"),)), "validation"),
]


@pytest.mark.parametrize(("said", "why"), SAYINGS)
def test_an_interval_with_a_pause_is_kept_out(said, why) -> None:
    lines: list[Row | Word] = [
        dataclasses.replace(row, time=row.time + (40 if row.step > 60 else 0)) for row in steady(range(10, 200, 10))
    ]
    lines[6:6] = [said]
    found = window_of(lines)
    assert (found.begin, found.end, found.steps, found.seconds) == (20, 120, 90, pytest.approx(45))
    assert found.printed == 9 and len(found.step_s) == 9
    (pause,) = found.pauses
    assert (pause.why, pause.from_step, pause.to_step, pause.seconds) == (why, 60, 70, pytest.approx(45))


@pytest.mark.parametrize(
    "said",
    [
        Word("facts", values=(("batch_size", "4"),)),
        Word("summary", values=(("rate", "3"),)),
        Word("mllog", values=(("key", "seed"),)),
        Word("mark", values=(("mark", "avg_ips"),)),
    ],
)
def test_what_is_no_pause_keeps_nothing_out(said) -> None:
    lines: list[Row | Word] = [*steady(range(10, 200, 10))]
    lines[6:6] = [said]
    assert window_of(lines).pauses == ()


@pytest.mark.parametrize("after", range(20, 120))
def test_a_pause_is_found_wherever_blocks_meet(after, monkeypatch) -> None:
    monkeypatch.setattr(merger, "BLOCK", 4)
    monkeypatch.setattr(merger, "HOLD", 2)
    monkeypatch.setattr(window, "HEAD", 8)
    lines: list[Row | Word] = [*steady(range(0, 200))]
    lines[after + 1 : after + 1] = [Word("pause")]
    found = window_of(lines, cut=3)
    assert [(pause.from_step, pause.to_step) for pause in found.pauses] == [(after, after + 1)] and found.steps == 99


def test_several_pauses_in_one_interval_are_one() -> None:
    lines: list[Row | Word] = [*steady(range(10, 200, 10))]
    lines[6:6] = [Word("evaluation"), Word("pause", values=(("why", "checkpoint"),)), Word("evaluation")]
    (pause,) = window_of(lines).pauses
    assert pause.why == "validation, checkpoint"


def test_pauses_outside_the_window_are_not_its_own() -> None:
    lines: list[Row | Word] = [Word("evaluation"), *steady(range(10, 200, 10)), Word("evaluation")]
    lines[2:2] = [Word("evaluation")]  # between 10 and 20
    lines[14:14] = [Word("evaluation")]  # between 120 and 130
    assert isinstance(lines[13], Row) and lines[13].step == 120
    assert window_of(lines).pauses == ()


def test_a_pause_belongs_to_the_rank_that_says_it() -> None:
    """Rank 1 prints step 60 after rank 0 has gone to its validation; and its own validation comes later still."""
    lines: list[Row | Word] = []
    for step in range(10, 200, 10):
        lines += [Row(step, time=T0 + step, rank=0), Row(step, time=T0 + step, rank=1)]
        if step == 60:
            lines[-1:-1] = [Word("evaluation", rank=0)]
            lines += [Word("evaluation", rank=1)]
    found = window_of(lines)
    assert [(pause.from_step, pause.to_step) for pause in found.pauses] == [(60, 70)]


def test_a_pause_of_a_rank_that_prints_no_steps() -> None:
    lines: list[Row | Word] = [dataclasses.replace(row, rank=0) for row in steady(range(10, 200, 10))]
    lines[6:6] = [Word("evaluation", rank=5)]
    assert [(pause.from_step, pause.to_step) for pause in window_of(lines).pauses] == [(60, 70)]


def test_a_window_of_nothing_but_pauses_is_none() -> None:
    lines: list[Row | Word] = []
    for row in steady(range(10, 200, 10)):
        lines += [row, Word("pause")]
    reading = read(lines)
    assert reading.window is None and "free of pauses" in reading.reason and "120" in reading.reason


def test_where_numbers_go_through_the_end_of_an_epoch_is_kept_out() -> None:
    lines = [dataclasses.replace(row, epoch=row.step // 55) for row in steady(range(10, 200, 10))]
    found = window_of(lines, THROUGH)
    assert [(pause.why, pause.from_step, pause.to_step) for pause in found.pauses] == [
        ("epoch 1 begins", 50, 60),
        ("epoch 2 begins", 100, 110),
    ]
    assert (found.begin_epoch, found.end_epoch, found.steps) == (0, 2, 80)
    everything = window_of(lines, THROUGH, WHOLE)
    assert (everything.steps, everything.pauses, everything.seconds) == (180, (), pytest.approx(90))


def short_epochs(told: bool) -> list[Row]:
    """13 steps an epoch from 0, 1 s each, 5 s between epochs."""
    return [
        Row(step, epoch=epoch, time=T0 + 18 * epoch + step, epoch_steps=13 if told else NO_NUMBER)
        for epoch in range(20)
        for step in range(13)
    ]


def test_a_window_goes_on_into_the_next_epochs_where_their_steps_are_known() -> None:
    found = window_of(short_epochs(True), PER_EPOCH)
    assert (found.begin_epoch, found.begin, found.end_epoch, found.end) == (1, 7, 9, 3)  # 20 and 120 from the start
    assert (found.steps, found.seconds, len(found.pauses)) == (92, pytest.approx(92), 8)
    assert read(short_epochs(True), PER_EPOCH).remarks == ()


def test_a_fact_can_tell_the_steps_of_an_epoch() -> None:
    lines = [Word("facts", values=(("steps_per_epoch", "13"),)), *short_epochs(False)]
    found = window_of(lines, PER_EPOCH)
    assert (found.begin_epoch, found.begin, found.end_epoch, found.end) == (1, 7, 9, 3)


@pytest.mark.parametrize("fact", ["", "0", "-3", "many", "9" * 30])
def test_where_nobody_tells_the_steps_of_an_epoch_only_what_lies_within_counts(fact) -> None:
    lines = [Word("facts", values=(("steps_per_epoch", fact),)), *short_epochs(False)]
    reading = read(lines, PER_EPOCH)
    assert reading.window is not None
    assert (reading.window.begin_epoch, reading.window.begin) == (1, 8)  # 12 steps in an epoch's prints
    assert reading.window.steps == 100 and reading.window.seconds == pytest.approx(100)
    assert any("nothing says how many steps an epoch has" in remark for remark in reading.remarks)


def test_whole_counts_over_epochs_where_their_steps_are_known() -> None:
    found = window_of(short_epochs(True), PER_EPOCH, WHOLE)
    assert (found.steps, found.seconds) == (20 * 13 - 1, pytest.approx(19 * 18 + 12))
    reading = read(short_epochs(False), PER_EPOCH, WHOLE)
    assert reading.window is not None and reading.window.steps == 20 * 12
    assert len(reading.window.pauses) == 19 and any("19 ends of epochs" in remark for remark in reading.remarks)


def test_a_number_beyond_the_epochs_steps_does_not_count_backwards() -> None:
    """pytorch/examples of old: `[13/13]` where numbers begin at 0."""
    lines = [
        Row(step, epoch=epoch, time=T0 + 20 * epoch + step, epoch_steps=13) for epoch in range(20) for step in range(14)
    ]
    assert window_of(lines, PER_EPOCH, WHOLE).steps == 20 * 14 - 1


def test_numbers_that_start_anew_in_a_family_where_they_should_not() -> None:
    found = window_of(short_epochs(True), THROUGH)
    assert (found.begin_epoch, found.begin, found.end_epoch, found.end) == (1, 7, 9, 3)


# Printed numbers


def test_a_rate_belongs_to_the_interval_that_it_is_printed_with() -> None:
    lines = [Row(step, first=step - 20, time=T0 + step, rate=float(step)) for step in range(20, 300, 20) if step != 60]
    found = window_of(lines)
    assert (found.begin, found.end, found.printed) == (20, 120, 4)
    assert found.rate == (40 + 80 + 100 + 120) / 4
    lines = [Row(step, first=step - 20, time=T0 + step, rate=float(step)) for step in range(30, 300, 10)]
    found = window_of(lines, protocol=Protocol(warmup=30, total=130))
    assert found.begin == 30 and found.printed == 9 and found.rate == pytest.approx(sum(range(50, 140, 10)) / 9)


def test_durations_are_averaged_and_intervals_by_their_elapsed_time() -> None:
    by_durations = dataclasses.replace(THROUGH, mean="durations")
    lines = [Row(step, duration=0.2 if step <= 70 else 0.4) for step in range(0, 200)]
    found = window_of(lines, by_durations)
    assert found.duration_s == pytest.approx(0.3) and found.printed == 100 and found.seconds is None
    assert found.rate is None and len(found.step_s) == 100 and found.step_s[0] == 0.2
    lines = [Row(step, first=step - 100, elapsed=6.5, rate=495.0) for step in range(100, 900, 100)]
    found = window_of(lines, THROUGH, Protocol(warmup=100, total=600))
    assert (found.duration_s, found.rate, found.printed) == (pytest.approx(0.065), 495.0, 5)


def test_the_mean_of_rates_is_not_that_of_durations() -> None:
    found = window_of([Row(step, duration=0.2 if step % 2 else 0.5) for step in range(0, 200)])
    assert (found.duration_s, found.steps_per_s) == (pytest.approx(0.35), pytest.approx(3.5))
    assert window_of([Row(step, duration=0.5 if step != 50 else 0.0) for step in range(0, 200)]).steps_per_s is None
    assert window_of(steady(range(0, 200))).steps_per_s is None


def test_impossible_printed_numbers_are_no_numbers() -> None:
    lines = [Row(step, time=T0 + step, rate=math.inf if step == 30 else 5.0) for step in range(0, 200)]
    found = window_of(lines)
    assert found.rate == 5.0 and found.printed == 99


# Time stamps


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
    found = window_of(lines)
    assert found.seconds == pytest.approx(100)


def test_whole_dates_are_never_moved() -> None:
    lines = steady(range(0, 200))
    lines = [dataclasses.replace(row, time=row.time - (200_000 if row.step >= 60 else 0)) for row in lines]
    reading = read(lines)
    assert reading.window is not None and reading.window.seconds is None and reading.window.rate == 100.0
    assert any("go back between steps 59 and 60" in remark for remark in reading.remarks)


def test_stamps_that_stand_still_are_no_clock() -> None:
    reading = read([Row(step, time=T0, rate=5.0) for step in range(200)])
    assert reading.window is not None and reading.window.seconds is None and reading.window.rate == 5.0
    assert any("stand still" in remark for remark in reading.remarks)


def test_stamps_that_go_back_where_a_pause_is_do_not_matter() -> None:
    lines: list[Row | Word] = [
        dataclasses.replace(row, time=row.time - (90 if row.step > 60 else 0)) for row in steady(range(10, 200, 10))
    ]
    lines[6:6] = [Word("evaluation")]
    assert window_of(lines).seconds == pytest.approx(45)


def test_lines_without_a_stamp_among_those_with_one_are_left_out() -> None:
    lines = [
        dataclasses.replace(row, time=math.nan if row.step in (20, 50) else row.time) for row in steady(range(200))
    ]
    reading = read(lines)
    assert reading.window is not None and (reading.window.begin, reading.window.end) == (21, 121)
    assert reading.window.seconds == pytest.approx(50)
    assert any("2 printed steps left out that bear no time stamp" in remark for remark in reading.remarks)


def test_a_log_with_hardly_any_stamp_has_no_wall_clock() -> None:
    lines = [
        dataclasses.replace(row, time=row.time if row.step in (20, 120) else math.nan) for row in steady(range(200))
    ]
    found = window_of(lines)
    assert found.seconds is None and found.resolution_s is None and found.steps == 100


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
    assert any("1 s do not resolve" in remark for remark in reading.remarks)
    durations = [dataclasses.replace(row, duration=0.3) for row in lines]
    assert window_of(durations).step_s.tolist() == [0.3] * 100


# What else is said


def test_facts_are_the_first_that_are_told_and_contradictions_are_named() -> None:
    lines: list[Row | Word] = [
        Word("facts", values=(("batch_size", "64"), ("gpu", "0"))),
        Word("facts", values=(("batch_size", "32"), ("gpu", "1"))),
        *steady(range(0, 200)),
    ]
    reading = read(lines)
    assert dict(reading.facts) == {"batch_size": "64", "gpu": "0"}
    (remark,) = reading.remarks
    assert "batch_size is said to be 64 and 32" in remark


def test_what_is_kept_of_what_is_said_is_bounded() -> None:
    lines: list[Row | Word] = [*steady(range(0, 200)), *[Word("mark")] * 30, Word("pause"), Word("facts")]
    assert len(read(lines).said) == 30
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window, "MAX_SAID", 10)
        reading = read(lines)
    assert len(reading.said) == 10 and any("20 evaluations and marks beyond" in remark for remark in reading.remarks)


def test_what_the_reader_remarks_is_passed_on() -> None:
    assert read([*steady(range(200)), Word("remark", values=(("text", "cut off"),))]).remarks == ("cut off",)


def test_a_log_that_begins_far_beyond_the_warm_up_is_remarked() -> None:
    assert any("first printed step is 5000" in remark for remark in read(steady(range(5000, 5300))).remarks)
    assert read(steady(range(100, 900, 100))).remarks == ()


def test_many_pauses_are_counted_beyond_those_listed() -> None:
    lines: list[Row | Word] = []
    for row in steady(range(0, 200)):
        lines += [row, Word("pause")] if row.step % 2 else [row]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "MAX_PAUSES", 3)
        reading = read(lines)
    assert reading.window is not None and len(reading.window.pauses) == 3 and reading.window.steps == 50
    assert any("47 more pauses" in remark for remark in reading.remarks)


@given(st.lists(st.lists(st.integers(0, 100), max_size=30), max_size=20))
def test_a_series_keeps_its_sum_whatever_it_keeps_of_its_numbers(parts: list[list[int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "MAX_TIMES", 8)
        series = Series()
        for part in parts:
            series.add(np.array(part, np.float64))
    numbers = [number for part in parts for number in part]
    assert (series.count, series.sum) == (len(numbers), sum(numbers))
    assert len(series.values) <= 9
    if series.stride == 1:
        assert series.values.tolist() == numbers
    else:
        assert min(numbers) <= series.values.min() and series.values.max() <= max(numbers)


def test_a_long_series_is_means_over_neighbours() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "MAX_TIMES", 4)
        series = Series()
        for number in range(8):
            series.add(np.array([float(number)]))
    assert (series.stride, series.values.tolist()) == (2, [0.5, 2.5, 4.5, 6.5])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "MAX_TIMES", 50)
        reading = read(steady(range(0, 200)))
    assert reading.window is not None and len(reading.window.step_s) == 50
    assert any("means over 2 printed numbers" in remark for remark in reading.remarks)


# Real logs


@REAL
@pytest.mark.parametrize(
    ("name", "whole", "begin", "end", "samples", "wall_clock", "printed"),
    [
        ("ngc-pytorch-resnet50_airank_1n1g_b256_amp_time2train.log", False, 100, 600, 256, 857.62, 858.06),
        ("ngc-pytorch-resnet50_airank_4n8g_b256_amp_time2train.log", False, 20, 120, 32 * 256, 22793.16, 22811.52),
        ("nvidia-mxnet-resnet50_mlperf0.7_dgx1_1n8g_slurm.log", False, 20, 120, 208 * 8, 11341.33, 11342.87),
        ("plsc2-arcface_r50_1n8g_b128_fp16_sr1.0_dynamic.log", False, 100, 600, 1024, 7387.85, 7392.69),
        ("plsc2-arcface_r50_1n8g_b128_fp16_sr1.0_dynamic.log", True, 100, 126_400, 1024, 6186.91, 6870.24),
    ],
)
def test_real_logs_give_the_speed_of_their_time_stamps(name, whole, begin, end, samples, wall_clock, printed) -> None:
    path = LOGS / name
    reading = read_log(path, families.recognise(path), Protocol(whole=whole))
    found = reading.window
    assert found is not None and found.seconds is not None
    assert (found.begin, found.end, found.steps) == (begin, end, end - begin)
    assert found.steps * samples / found.seconds == pytest.approx(wall_clock, abs=0.005)
    assert found.rate == pytest.approx(printed, abs=0.005)
    assert reading.remarks == ()


@REAL
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ngc-pytorch-resnet50_dlperf-readme_excerpt_2n8g.log", "last printed step is 10 of epoch 0"),
        ("pytorch-examples-imagenet_dlperf-readme_excerpt_2n8g_4n8g.log", "last printed step is 15 of epoch 0"),
        ("ngc-tensorflow-bert_airank_1n1g_bs96_fp16.log", "last printed step is 51"),
    ],
)
def test_real_logs_that_are_too_short_say_so(name, reason) -> None:
    path = LOGS / name
    reading = read_log(path, families.recognise(path), Protocol())
    assert reading.window is None and reason in reading.reason and "needs step 120" in reading.reason
