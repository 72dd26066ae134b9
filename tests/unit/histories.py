"""Measurements of points on many days, as results and as folders of traces, for parse.history."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpc.model.outcome import Outcome
from hpc.model.spec import RunSpec
from parse.runs.load import Loaded
from parse.runs.result import Result, results
from tests.unit.comparisons import FIVE, ONE, OTHER, folder, times
from tests.unit.traces import attempt, make_run, make_trace, put_exit_record, repeats, requested_run

DAY = 86_400
BEGIN = 1_767_225_600  # 2026-01-01
SHIFTS = (1.0, 1.002, 0.998, 1.001, 0.999)
HOSTILE = '=x"<script>&\x1b[31m\\\n|`' + "é" * 10_000


def at_day(day: float | None, run: RunSpec, speeds: Sequence[float], **changes: Any) -> tuple[Result, ...]:
    """The results of a point that was measured on that day; with speeds that no trace could have."""
    attempts = []
    for repeat, speed in zip(repeats(run, len(speeds)), speeds, strict=True):
        made = attempt(make_trace(repeat, **changes))
        assert made.measured is not None
        attempts.append(
            dataclasses.replace(
                made,
                measured=dataclasses.replace(made.measured, throughput=speed),
                begin_unix_s=None if day is None else BEGIN + int(day * DAY) + repeat.repeat,
            )
        )
    requested = tuple(requested_run(repeat) for repeat in repeats(run, len(speeds)))
    return results(Loaded(attempts=tuple(attempts), requested=requested, reduced=(), refusals=(), remarks=()))


def with_speeds(*speeds: float) -> tuple[Result, ...]:
    """A point with speeds that no trace could have."""
    return at_day(None, make_run(), speeds)


def nights(
    factors: Sequence[float], run: RunSpec = ONE, newer_from: int | None = None, **changes: Any
) -> dict[str, tuple[Result, ...]]:
    """A measurement for every factor, a day apart; from one on with another torch."""
    return {
        f"n{day:02}": at_day(
            day, run, times(factor * SHIFTS[day % len(SHIFTS)]),
            **(changes | ({"environment": OTHER} if newer_from is not None and day >= newer_from else {})),
        )
        for day, factor in enumerate(factors)
    }  # fmt: skip


def put_nights(path: Path, factors: Sequence[float], run: RunSpec = ONE) -> list[Path]:
    """Folders of traces with exit records, a day apart."""
    paths = []
    for day, factor in enumerate(factors):
        made = folder(path / f"n{day:02}", (run, times(factor * SHIFTS[day % len(SHIFTS)], FIVE[:2])))
        for repeat in repeats(run, 2):
            record = put_exit_record(made, repeat, Outcome.OK)
            begin = BEGIN + day * DAY + repeat.repeat
            record.write_text(
                json.dumps(json.loads(record.read_text()) | {"begin_unix_s": begin, "end_unix_s": begin + 9})
            )
        paths.append(made)
    return paths
