"""Short logs of every family, as samples.toml has them, of any number of steps."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

BEGIN = datetime(2021, 3, 23, 10, 16, 49, 131815)
STEP_S, BATCH, DEVICES = 0.31, 1024, 8
RATE = BATCH / STEP_S
BLOCK_MS = 100_000
"""From the begin of a block of MLPerf to its end."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A log's templates, by steps that begin with `first`, and a plain pattern for its step lines."""

    name: str
    log_format: str
    plain: re.Pattern[str]
    step: str
    head: str = ""
    middle: str = ""
    tail: str = ""
    first: int = 1
    every: int = 1
    times: int = 1

    def text(self, steps: int) -> bytes:
        """The log of so many steps."""
        values = [_values(self.first + self.every * number, number, self.every, steps) for number in range(steps)]
        lines = [self.step.format_map(of_step) for of_step in values for _ in range(self.times)]
        lines.insert(len(lines) // 2, self.middle.format_map(values[-1]))
        lines = [self.head.format_map(_values(0, 0, self.every, steps)), *lines, self.tail.format_map(values[-1])]
        return ("\n".join(filter(None, lines)) + "\n").encode()


def _values(step: int, number: int, every: int, steps: int) -> Mapping[str, Any]:
    """What the templates name, of a step that is the `number`-th printed, counted from 0."""
    clock, seconds = BEGIN + timedelta(seconds=step * STEP_S), int(step * STEP_S)
    unix_s = (clock - datetime(1970, 1, 1)).total_seconds()
    return {
        "step": step, "before": max(step - every, 0), "step_before": step - 1, "number": number + 1, "steps": steps,
        "clock": clock, "comma": f"{clock:%Y-%m-%d %H:%M:%S,%f}"[:-3], "unix": unix_s, "unix_ms": int(1000 * unix_s),
        "later_ms": int(1000 * unix_s) + BLOCK_MS, "runtime": f"{seconds // 60:02d}:{seconds % 60:02d}",
        "rate": RATE, "rate_of_one": RATE / DEVICES, "seconds": STEP_S, "ms": 1e3 * STEP_S,
        "samples": BATCH * (number + 1), "samples_before": BATCH * number,
        "tokens": 2048 * BATCH * (number + 1), "billions": 0.002 * BATCH * (number + 1),
    }  # fmt: skip


def _samples() -> Sequence[Sample]:
    tables = tomllib.loads(Path(__file__).with_name("samples.toml").read_text())
    return [
        Sample(name=name, **({"log_format": its.pop("format", name)} | its | {"plain": re.compile(its["plain"])}))
        for name, its in tables.items()
    ]


SAMPLES_OF_ALL = _samples()
