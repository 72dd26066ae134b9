"""Moments and evaluations of a training, by the clock of one kind of line."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from parse.published.mlperf import Benchmark


@dataclass(frozen=True)
class Moment:
    """A time in the log, and the line that it is taken from."""

    time_s: float
    what: str


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A quality after `epochs` epochs or `samples` samples; what the log does not print is None.

    `accuracy` is in percent, or as printed if the quality is none (a loss). `second` is the second metric of an
    evaluation that has two, in the same unit.
    """

    time_s: float | None
    accuracy: float
    epochs: float | None
    samples: float | None = None
    second: float | None = None


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The moments and evaluations of one kind of line.

    `source` is that kind: `marks` (AI-Rank's), `mllog`, `lines` (the log format's own evaluations), or empty without
    any evaluation. `counted_from` is the number of the first epoch, None if the log starts at a later one. `benchmark`
    and `own_target` are MLPerf's entry and the target as printed; `metric` is the key of the evaluations.
    `no_epochs` is the reason why the numbers of the evaluations are no epochs.
    """

    source: str
    begin: Moment | None = None
    finish: Moment | None = None
    evaluations: tuple[Evaluation, ...] = ()
    counted_from: int | None = 1
    benchmark_name: str = ""
    benchmark: Benchmark | None = None
    own_target: float | None = None
    metric: str = ""
    no_epochs: str = ""
    status: str = ""

    @property
    def aborted(self) -> bool:
        """Whether run_stop says that the run did not succeed."""
        return self.status not in ("", "success", "true")


def finite(text: str | None) -> float | None:
    """Returns the number that a text holds; None for another text, an infinity or NaN."""
    try:
        value = float(text) if text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def in_percent(evaluations: Iterable[Evaluation]) -> list[Evaluation]:
    """The rules of marks and MLPerf require fractions; any number above 1 shows that the log prints percent."""
    printed = list(evaluations)
    if any(max(evaluation.accuracy, evaluation.second or 0) > 1 for evaluation in printed):
        return printed
    return times_100(printed)


def times_100(evaluations: Iterable[Evaluation]) -> list[Evaluation]:
    """Returns fractions as percent."""
    return [
        replace(
            evaluation,
            accuracy=round(evaluation.accuracy * 100, 10),
            second=None if evaluation.second is None else round(evaluation.second * 100, 10),
        )
        for evaluation in evaluations
    ]
