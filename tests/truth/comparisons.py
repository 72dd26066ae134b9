"""Comparisons held against simulations whose truth is known: `python -m tests.truth.comparisons`.

A run is its steps times the run's own factor. Steps are normal, lognormal, autocorrelated or of two modes; in one more
distribution the runs themselves have two modes. Truth is the factor between the two sides.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parse.comparison.types import ComparisonVerdict, of_pair, ratio_interval, runs_to_tell

Floats = npt.NDArray[np.float64]
THRESHOLD = 0.03
STEPS = 100
SCATTER = 0.01
"""Relative standard deviation of the factor of a run."""
CORRELATION = 0.5
"""Of neighbouring steps, where they are correlated."""
PILOT_RUNS = 5


def normal(generator: np.random.Generator, *shape: int) -> Floats:
    """Step times [..., step] with a scatter of 5 %."""
    return 1 + 0.05 * generator.standard_normal(shape)


def lognormal(generator: np.random.Generator, *shape: int) -> Floats:
    """Skewed step times [..., step], those of a scatter of 10 %."""
    return np.exp(0.1 * generator.standard_normal(shape))


def autocorrelated(generator: np.random.Generator, *shape: int) -> Floats:
    """Step times [..., step] of an AR(1) process with a scatter of 5 %."""
    times = generator.standard_normal(shape)
    for at in range(1, shape[-1]):
        times[..., at] = CORRELATION * times[..., at - 1] + np.sqrt(1 - CORRELATION**2) * times[..., at]
    return 1 + 0.05 * times


def two_modes(generator: np.random.Generator, *shape: int) -> Floats:
    """Step times [..., step], one in five of them 30 % longer."""
    modes = np.where(generator.random(shape) < 0.2, 1.3, 1.0)
    return modes + 0.02 * generator.standard_normal(shape)


DISTRIBUTIONS: dict[str, Callable[..., Floats]] = {
    "normal": normal,
    "lognormal": lognormal,
    "autocorrelated": autocorrelated,
    "two-mode": two_modes,
}
RUNS_OF_TWO_MODES = "two-mode runs"
"""Three runs in ten are 5 % slower; their steps are normal."""
KINDS = (*DISTRIBUTIONS, RUNS_OF_TWO_MODES)


def speeds(kind: str, generator: np.random.Generator, points: int, runs: int) -> Floats:
    """Speeds of runs [point, run]: the number of steps over the sum of their times, as a trace has it."""
    factors = 1 + SCATTER * generator.standard_normal((points, runs))
    if kind == RUNS_OF_TWO_MODES:
        factors = np.where(generator.random((points, runs)) < 0.3, 0.95, 1.0) * factors
    steps = DISTRIBUTIONS.get(kind, normal)(generator, points, runs, STEPS)
    result: Floats = factors / steps.mean(axis=-1)
    return result


def scattered(values: Floats, times: float) -> Floats:
    """The speeds, their deviations from the median of all of them `times` as large."""
    middle = np.median(values)
    result: Floats = middle * (values / middle) ** times
    return result


def coverage(kind: str, points: int, runs: int, ratio: float, seed: int = 1, scatter: float = 1.0) -> float:
    """The share of points whose interval contains the true ratio; the new side scatters `scatter` times as much."""
    generator = np.random.default_rng(seed)
    base, new = speeds(kind, generator, points, runs), speeds(kind, generator, points, runs)
    new = ratio * scattered(new, scatter)
    intervals = [ratio_interval(pair[0].tolist(), pair[1].tolist()) for pair in zip(base, new, strict=True)]
    return float(np.mean([interval is not None and interval.low <= ratio <= interval.high for interval in intervals]))


def false_calls(kind: str, points: int, runs: int, seed: int = 2) -> float:
    """The share of comparisons of equal sides that are called faster or slower."""
    generator = np.random.default_rng(seed)
    base, new = speeds(kind, generator, points, runs), speeds(kind, generator, points, runs)
    return _called(
        [_verdict(*pair) for pair in zip(base, new, strict=True)], ComparisonVerdict.FASTER, ComparisonVerdict.SLOWER
    )


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What became of comparisons without a verdict that then are measured with the number of runs that was named.

    `advised` had a number, `none` none; of the advised `called` were called as the truth is, with `runs` in the median.
    """

    advised: int
    none: int
    called: float
    runs: float


def advice(kind: str, points: int, ratio: float, pilot: int = PILOT_RUNS, seed: int = 3) -> Advice:
    """New sides that differ from base by `ratio`: first `pilot` runs each, then as many as named, where it is open.

    With a ratio of 1, `called` is the share called different, in the first or the second look.
    """
    generator = np.random.default_rng(seed)
    wanted = (
        (ComparisonVerdict.FASTER, ComparisonVerdict.SLOWER)
        if ratio == 1
        else (ComparisonVerdict.SLOWER if ratio < 1 else ComparisonVerdict.FASTER,)
    )
    verdicts: list[ComparisonVerdict] = []
    named, none = [], 0
    for _ in range(points):
        base, new = speeds(kind, generator, 1, pilot)[0], ratio * speeds(kind, generator, 1, pilot)[0]
        verdict = _verdict(base, new)
        if verdict is not ComparisonVerdict.CANNOT_TELL:
            verdicts += [verdict] if ratio == 1 else []
            continue
        runs = runs_to_tell((base.tolist(), new.tolist()), THRESHOLD)
        if runs is None:
            none += 1
            continue
        more = max(runs, pilot + 1) - pilot
        named.append(pilot + more)
        base = np.concatenate([base, speeds(kind, generator, 1, more)[0]])
        new = np.concatenate([new, ratio * speeds(kind, generator, 1, more)[0]])
        verdicts.append(_verdict(base, new))
    runs_named = float(np.median(named)) if named else 0.0
    return Advice(advised=len(named), none=none, called=_called(verdicts, *wanted), runs=runs_named)


def _verdict(base: Floats, new: Floats) -> ComparisonVerdict:
    return of_pair(ratio_interval(base.tolist(), new.tolist()), THRESHOLD)


def _called(verdicts: Sequence[ComparisonVerdict], *wanted: ComparisonVerdict) -> float:
    counts = Counter(verdicts)
    return sum(counts[verdict] for verdict in wanted) / max(1, len(verdicts))


def main(argv: Sequence[str] | None = None) -> int:
    """Prints every share. Returns 1 where one is not as required, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.truth.comparisons")
    parser.add_argument("--points", type=int, default=2000)
    points = parser.parse_args(argv).points
    failed = 0

    def line(text: str, value: float, low: float, high: float) -> None:
        nonlocal failed
        failed += not low <= value <= high
        print(f"{text:75} {value:7.3f}  {'' if low <= value <= high else f'NOT in [{low}, {high}]'}", flush=True)

    for kind in KINDS:
        for runs in (5, 8, 12):
            line(f"{kind}, {runs} runs: coverage", coverage(kind, points, runs, 0.97), 0.93, 0.975)
            for scatter in (3, 5):
                text = f"{kind}, {runs} runs: coverage, one side scatters {scatter} times as much"
                line(text, coverage(kind, points, runs, 0.97, scatter=scatter), 0.91, 0.975)
            line(f"{kind}, {runs} runs: equal sides called different", false_calls(kind, points, runs), 0, 0.06)
    for kind in KINDS:
        figures = advice(kind, points // 4, 0.97)
        text = f"{kind}: 3 % called ({figures.runs:.0f} runs; {figures.advised} advised, {figures.none} none)"
        line(text, figures.called, 0.9, 1)
        line(f"{kind}: equal sides called, both looks", advice(kind, points // 4, 1).called, 0, 0.08)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
