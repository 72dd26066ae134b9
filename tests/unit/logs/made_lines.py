"""Step lines made for tests of the window, in stretches as the engine gives them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parse.logs.engine.log_format import NO_NUMBER, LogFormat, LogPart, LogRecord, Steps
from parse.logs.window import Protocol, Reading, Window, read_batches

PER_EPOCH = LogFormat(name="by-epoch", title="numbers start anew", steps=(), numbered="epoch")
THROUGH = LogFormat(name="through", title="numbers go on", steps=(), numbered="run")
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
    mean: float = math.nan
    mean_rate: float = math.nan
    epoch_steps: int = NO_NUMBER
    batch: float = math.nan


@dataclass(frozen=True)
class OtherLine:
    """Any other line of a made log."""

    kind: str
    rank: int | None = None
    values: tuple[tuple[str, str], ...] = ()


WIDTH = 100
"""Bytes of a line of a made log."""


def batch(lines: Sequence[Row | OtherLine], before: int = 0) -> LogPart:
    rows = [(number * WIDTH, line) for number, line in enumerate(lines, before) if isinstance(line, Row)]
    others = [(number * WIDTH, line) for number, line in enumerate(lines, before) if isinstance(line, OtherLine)]

    def whole(name: str) -> np.ndarray:
        return np.array([getattr(row, name) for _, row in rows], np.int64)

    def real(name: str) -> np.ndarray:
        return np.array([getattr(row, name) for _, row in rows], np.float64)

    return LogPart(
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
            mean_s=real("mean"),
            mean_rate=real("mean_rate"),
            epoch_steps=whole("epoch_steps"),
            batch=real("batch"),
        ),
        records=tuple(
            LogRecord(kind=other.kind, offset=offset, time_s=None, rank=other.rank, values=dict(other.values))
            for offset, other in others
        ),
    )


def read(
    lines: Sequence[Row | OtherLine],
    log_format: LogFormat = THROUGH,
    protocol: Protocol | None = None,
    cut: int = 10**9,
) -> Reading:
    stretches = [batch(lines[at : at + cut], at) for at in range(0, len(lines), cut)]
    return read_batches(stretches, log_format, protocol or Protocol())


def window_of(
    lines: Sequence[Row | OtherLine],
    log_format: LogFormat = THROUGH,
    protocol: Protocol | None = None,
    cut: int = 10**9,
) -> Window:
    reading = read(lines, log_format, protocol, cut)
    assert reading.window is not None, reading.reason
    return reading.window


def steady(steps: Sequence[int], every_s: float = 0.5, **more: float) -> list[Row]:
    """Lines of steps of half a second each, at 100 samples/s."""
    return [Row(step, time=T0 + every_s * step, rate=100.0, **more) for step in steps]  # type: ignore[arg-type]


WHOLE = Protocol(whole=True)
