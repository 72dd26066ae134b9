"""The window of random logs against a plain reference, a step at a time."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parse.logs import window as window_module
from parse.logs.engine import step_merge
from parse.logs.engine.log_format import NO_NUMBER, LogFormat
from parse.logs.window import Protocol
from tests.unit.logs.made_lines import PER_EPOCH, T0, THROUGH, WHOLE, OtherLine, Row, read


@dataclass(frozen=True)
class Made:
    """A made log: lines in file order, the same by rank, and after which steps (epoch, step) it pauses."""

    lines: list[Row | OtherLine]
    pauses: set[tuple[int, int]]
    per_epoch: int | None
    log_format: LogFormat
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
    is_printed = draw(st.booleans())
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
    lines: list[tuple[float, Row | OtherLine]] = []
    for epoch, step, when in printed:
        rate = draw(st.integers(1, 1000)) / 4
        for rank in range(ranks):
            stamp = when + skew[rank]
            row = Row(
                step,
                epoch=epoch,
                time=T0 + stamp if stamped else math.nan,
                rate=rate * draw(st.sampled_from((1.0, 1.125, 1.25))),
                rank=rank if labelled else NO_NUMBER,
                epoch_steps=per_epoch if is_printed else NO_NUMBER,
            )
            lines.append((stamp, row))
            if rank == 0 and (epoch, step) in pauses:
                lines.append((stamp, OtherLine("pause", rank=0 if labelled and draw(st.booleans()) else None)))
    lines.sort(key=lambda line: line[0])
    return Made(
        lines=[line for _, line in lines],
        pauses=pauses,
        per_epoch=per_epoch if is_printed else None,
        log_format=PER_EPOCH if numbered == "epoch" else THROUGH,
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
    took: float
    rates: list[float]
    every: int


def steps_between(points: list[tuple[int, int]], made: Made) -> list[int | None]:
    between: list[int | None] = []
    for (epoch, step), (next_epoch, next_step) in itertools.pairwise(points):
        if next_epoch == epoch or made.log_format.numbered == "run":
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
        span = max(total - warmup, 5 * every) if every > max(warmup, 1) else total - warmup
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
    steps, seconds, took, rates = 0, 0.0, 0.0, []
    for at in range(first, last):
        if between[at] is None:
            continue
        if not made.protocol.whole and (points[at] in made.pauses or points[at][0] != points[at + 1][0]):
            continue
        steps += between[at] or 0
        stamp, before = (max(row.time for row in by_step[points[here]]) for here in (at + 1, at))
        seconds += stamp - before
        rates.append(statistics.median(row.rate for row in by_step[points[at + 1]]))
        took += (between[at] or 0) / rates[-1]
    begin, end = points[first], points[last]
    return Plain(begin=begin, end=end, steps=steps, seconds=seconds, took=took, rates=rates, every=every)


def compare(made: Made) -> None:
    expected = plainly(made)
    reading = read(made.lines, made.log_format, made.protocol, made.cut)
    window = reading.window
    assert not {"another_run", "stamps_go_back"} & {remark.name for remark in reading.remarks}
    if expected is None or not expected.steps:
        assert window is None and reading.reason
        return
    assert window is not None, reading.reason
    assert ((window.begin_epoch, window.begin), (window.end_epoch, window.end)) == (expected.begin, expected.end)
    assert (window.steps, window.printed, window.printed_every) == (expected.steps, len(expected.rates), expected.every)
    assert window.rate == pytest.approx(expected.steps / expected.took)
    assert window.mean_of_rates == pytest.approx(statistics.fmean(expected.rates))
    if math.isnan(expected.seconds):
        assert window.seconds is None and window.resolution_s is None and not len(window.step_s)
    else:
        assert window.seconds == pytest.approx(expected.seconds, abs=1e-5)
        assert len(window.step_s) == len(expected.rates)


@settings(max_examples=300, deadline=None)
@given(made_logs())
def test_the_window_is_that_of_the_plain_reference(made: Made) -> None:
    compare(made)


@settings(max_examples=150, deadline=None)
@given(made_logs(), st.integers(1, 60))
def test_a_log_read_in_small_blocks_gives_the_same(made: Made, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_merge, "BLOCK", block)
        patch.setattr(step_merge, "HOLD", 40)
        if made.prints_per_epoch >= 3:  # so that the first points show how often it prints
            patch.setattr(window_module, "HEAD", 8)
        compare(made)
