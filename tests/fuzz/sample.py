"""A sample of a log's format, and the clock of all samples."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

BEGIN = datetime(2021, 3, 23, 10, 16, 49, 131815)
STEP_S, BATCH = 0.31, 1024
RATE = BATCH / STEP_S


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A log of so many steps, and a plain pattern for its step lines whose groups are `step`, and `epoch`, `rate`."""

    name: str
    log_format: str
    lines: Callable[[int], Iterator[str]]
    plain: re.Pattern[str]

    def text(self, steps: int) -> bytes:
        """The log."""
        return ("\n".join(self.lines(steps)) + "\n").encode()


def clock(step: int) -> datetime:
    return BEGIN + timedelta(seconds=step * STEP_S)


def unix(step: int) -> float:
    return (clock(step) - datetime(1970, 1, 1)).total_seconds()


def comma(step: int) -> str:
    return f"{clock(step):%Y-%m-%d %H:%M:%S,%f}"[:-3]


def sample(name: str, log_format: str, lines: Callable[[int], Iterator[str]], plain: str) -> Sample:
    return Sample(name=name, log_format=log_format, lines=lines, plain=re.compile(plain))


NUMBER = r"(?P<rate>[-+\w.]+)"
