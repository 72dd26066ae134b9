"""Change points of histories held against simulations whose truth is known: `python -m tests.truth.histories`.

A history is a series of medians that scatter by SCATTER around a level. Truth is that the level never changes, or
where and by how much it does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from parse.comparison.types import ratio_interval
from parse.trend.series import changes

Floats = npt.NDArray[np.float64]
SCATTER = 0.01
STEP = 0.05
THRESHOLD = 0.03
CORRELATION = 0.3
"""Of neighbouring measurements, where they are correlated."""
OUTLIERS, OUTLYING = 0.05, 5
"""The share of the measurements that are slower by so many times the scatter."""


def normal(generator: np.random.Generator, count: int) -> Floats:
    """Deviations [measurement] in units of the scatter."""
    return generator.standard_normal(count)


def lognormal(generator: np.random.Generator, count: int) -> Floats:
    """Skewed ones: most measurements near the best, few far below."""
    deviations = -np.exp(0.7 * generator.standard_normal(count))
    return np.asarray((deviations + np.exp(0.245)) / np.sqrt((np.exp(0.49) - 1) * np.exp(0.49)), np.float64)


def outliers(generator: np.random.Generator, count: int) -> Floats:
    """Normal ones, some of them far below."""
    return generator.standard_normal(count) - OUTLYING * (generator.random(count) < OUTLIERS)


def correlated(generator: np.random.Generator, count: int) -> Floats:
    """An AR(1) process: a machine that drifts."""
    deviations = generator.standard_normal(count)
    for at in range(1, count):
        deviations[at] = CORRELATION * deviations[at - 1] + np.sqrt(1 - CORRELATION**2) * deviations[at]
    return deviations


KINDS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "normal": normal, "lognormal": lognormal, "outliers": outliers, "correlated": correlated,
}  # fmt: skip


def false_alarms(kind: str, series: int, count: int, threshold: float = 0.0, scatter: float = SCATTER) -> float:
    """The share of series of `count` equal measurements in which a change is detected."""
    generator = np.random.default_rng(1)
    medians = (100 * (1 + scatter * KINDS[kind](generator, count)) for _ in range(series))
    return float(np.mean([bool(changes(each.tolist(), threshold)) for each in medians]))


def located(kind: str, series: int, count: int, slower: int, step: float = STEP) -> float:
    """The share of series of `count` measurements, the last `slower` of which are slower by `step`, in which one
    change is detected, a fall, within 2 measurements of the truth."""
    generator = np.random.default_rng(2)
    level = np.where(np.arange(count) < count - slower, 100, 100 * (1 - step))
    right = 0
    for _ in range(series):
        medians = level * (1 + SCATTER * KINDS[kind](generator, count))
        levels = changes(medians.tolist(), THRESHOLD)
        right += len(levels) == 1 and levels[0].size < 0 and abs(levels[0].at - (count - slower)) <= 2
    return right / series


def covered(kind: str, series: int, count: int, slower: int, step: float = STEP) -> float:
    """Of the series in which one change is detected, the share whose interval of its size has the true one."""
    generator = np.random.default_rng(6)
    level = np.where(np.arange(count) < count - slower, 100, 100 * (1 - step))
    hits = []
    for _ in range(series):
        medians = (level * (1 + SCATTER * KINDS[kind](generator, count))).tolist()
        levels = changes(medians, THRESHOLD)
        if len(levels) == 1:
            interval = ratio_interval(medians[: levels[0].at], medians[levels[0].at :])
            hits.append(interval is not None and interval.low <= 1 - step <= interval.high)
    return float(np.mean(hits))


def made_good(kind: str, series: int, before: int, lasting: int, after: int) -> float:
    """The share of series in which both ends of a temporary loss of STEP are located within 2 measurements."""
    generator = np.random.default_rng(3)
    truth = (before, before + lasting)
    level = np.repeat([100, 100 * (1 - STEP), 100], [before, lasting, after])
    right = 0
    for _ in range(series):
        levels = changes((level * (1 + SCATTER * KINDS[kind](generator, len(level)))).tolist(), THRESHOLD)
        right += len(levels) == 2 and all(abs(each.at - at) <= 2 for each, at in zip(levels, truth, strict=True))
    return right / series


def main(argv: Sequence[str] | None = None) -> int:
    """Prints every share. Returns 1 where one of normal measurements is not as required, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.truth.histories")
    parser.add_argument("--series", type=int, default=2000)
    series = parser.parse_args(argv).series
    failed = 0

    def line(text: str, value: float, low: float = 0.0, high: float = 1.0) -> None:
        nonlocal failed
        failed += not low <= value <= high
        print(f"{text:80} {value:7.4f}  {'' if low <= value <= high else f'NOT in [{low}, {high}]'}", flush=True)

    for kind in KINDS:
        limit = 0.05 if kind == "normal" else 1.0
        for count in (10, 20, 50):
            line(
                f"{kind}, {count} measurements: false alarms, no threshold", false_alarms(kind, series, count), 0, limit
            )
            text = f"{kind}, {count} measurements: false alarms, 3 %, scatter 5 %"
            line(text, false_alarms(kind, series, count, THRESHOLD, 0.05), 0, limit)
    for count, slower in ((8, 4), (10, 5), (10, 2), (20, 10), (20, 2), (20, 1), (50, 25), (50, 2), (50, 1)):
        needed = 0.95 if (count >= 20 and slower > 1) or slower == 5 else 0.0
        for kind in KINDS:
            text = f"{kind}, {count} measurements: 5 % step before the last {slower} located"
            line(text, located(kind, series, count, slower), needed if kind == "normal" else 0.0)
    for count, slower in ((10, 5), (20, 10), (20, 2), (50, 25)):
        for kind in KINDS:
            text = f"{kind}, {count} measurements: size of the step before the last {slower} in its interval"
            line(text, covered(kind, series, count, slower), 0.93 if kind == "normal" and slower > 2 else 0.0)
    for spans in ((6, 6, 6), (10, 10, 10), (20, 5, 10), (20, 3, 20)):
        for kind in KINDS:
            text = f"{kind}: loss of 5 % for {spans[1]} of {sum(spans)} measurements, both ends located"
            line(text, made_good(kind, series, *spans), 0.95 if kind == "normal" and sum(spans) > 18 else 0.0)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
