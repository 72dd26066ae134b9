"""How long the slowest of n ranks takes: the expected maximum over more ranks than were measured, with its interval.

A rank's work in a step is taken as

    a mean + what all ranks share in a step + an effect of its node + an effect of itself + noise.

The two effects stay; of these there are only as many samples as nodes and ranks, so they are normal with a deviation
that is itself uncertain, of two levels where the measured ones are clearly of two. Noise has a sample in every step of
every rank: it is as measured, its upper tail a generalised Pareto distribution (Pickands 1975; fitted as by Hosking and
Wallis 1987), since more ranks see rarer values than were seen. The interval is a hierarchical bootstrap: runs, blocks
of steps, and the effects of nodes and of ranks are drawn anew, and so are the nodes of the larger size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from math import log, sqrt

import numpy as np
import numpy.typing as npt

from hpc.system.text import grouped

Floats = npt.NDArray[np.float64]

DRAWS = 200
MIDDLE = 0.95
"""The share of the draws that the interval holds; of means of the maximum at 4 to 64 times the ranks it held 90 % in
simulations (docs/results.md), as a fitted tail has an error that drawing steps anew does not show."""
BLOCKS = 20
"""Pieces of a run that are drawn anew as a whole: neighbouring steps are alike."""
MIN_STEPS = 40
"""Fewer steps of a run have no tail to speak of."""
TAIL, MIN_TAIL = 0.05, 60
"""The share of the noise that the tail is fitted to, and the least number of values."""
MAX_APART = 1.5
"""A tail is no such distribution where its steps are farther from it, in units of 1/√number (Kolmogorov's distance)."""
SHAPES = (-0.5, 0.4)
"""Of the tail: from one that ends to one whose variance is hardly finite."""
BINS, LEVELS, POINTS = 2000, 40, 120
"""Of the noise, of the effects, and of the maximum."""
MIN_PLACES = 4
"""Two levels among fewer nodes, or ranks, are chance."""
NORMAL_BINS: Floats = np.arange(-6.95, 7, 0.1)
NORMAL_SHARES: Floats = np.exp(-np.square(NORMAL_BINS) / 2) / np.exp(-np.square(NORMAL_BINS) / 2).sum()
"""Of a normal number, by bins of a tenth of its deviation."""
CLEAR, CLEAR_FEW = 2.5, 300.0
"""Two levels are apart by so many deviations within them, by the second / (count − 1)^2.3 more of few: of normal
effects one set in a hundred has such a gap (simulated, 4 to 128 of them)."""


RankPlace = tuple[str, ...]
"""A node, or a rank by its node and its number there."""


class SlowKind(Enum):
    """What is slow by itself."""

    NODE = "node"
    RANK = "rank"


@dataclass(frozen=True, kw_only=True, eq=False)
class RunWork:
    """What each rank of a run does by itself in each step, ms [rank, step], and the node of each rank."""

    work: Floats
    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TwoLevels:
    """Nodes, or ranks, of two levels: `slow` of `count` are by `apart` ms slower than the others."""

    level: SlowKind
    slow: tuple[RankPlace, ...]
    count: int
    apart: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Slowest:
    """The work of the slowest of so many ranks, ms: mean over steps, with the ends of its interval, and all `draws`;
    `mean` [draw] is that of all ranks."""

    nodes: int
    ranks: int
    value: float
    low: float
    high: float
    draws: Floats
    mean: Floats


class WorkError(ValueError):
    """The measured work does not say how ranks scatter; the text says what is missing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Population:
    """What the runs show of how ranks scatter, ms: `means` [run], variances of effects, and noise.

    `mean_error` is the variance of a run's mean by the scatter of its own steps, `node_square` that of the means of
    nodes, `rank_square` that of ranks on a node, `error` what noise adds to the latter; slow nodes and ranks of `two`
    levels count in all three as if they were not slow. `level` is the mean effect of those that are not. `noise`
    [run, block, bin] counts the values between the `edges`; `correction` is by how much the measured maximum exceeds
    that of the model for the very ranks that were measured.
    """

    nodes: int
    ranks_per_node: int
    means: Floats
    mean_error: float
    node_square: float
    rank_square: float
    error: float
    level: float
    edges: Floats
    noise: Floats
    two: TwoLevels | None
    correction: float = 0.0


def population(runs: Sequence[RunWork]) -> Population:
    """The population that these runs of one setting are samples of. Raises WorkError where they do not show one."""
    if not runs:
        raise WorkError("no run has the work of each rank")
    per_node = {len(run.nodes) / max(1, len({*run.nodes})) for run in runs}
    if len(per_node) != 1 or not float(min(per_node)).is_integer():
        raise WorkError("runs differ in their ranks per node")
    if (short := min(run.work.shape[1] for run in runs)) < MIN_STEPS:
        raise WorkError(f"a run has {short} steps; the scatter of ranks needs {MIN_STEPS}")
    if any(len({*run.nodes}) < 2 for run in runs):
        raise WorkError("runs on one node do not show how nodes differ")
    places = [_places(run.nodes) for run in runs]
    noise = [_noise(run.work) for run in runs]
    error = float(np.mean([*map(block_error, noise)]))
    effects = [run.work.mean(axis=1) - run.work.mean() for run in runs]
    of_places = grouped(
        (place, effect)
        for its, values in zip(places, effects, strict=True)
        for place, effect in zip(its, values.tolist(), strict=True)
    )
    two = _two_levels({place: float(np.mean(each)) for place, each in of_places.items()}, error)
    is_slow = [
        np.array([two is not None and {place, place[:1]} & {*two.slow} != set() for place in its]) for its in places
    ]
    even = [values - (two.apart if two else 0.0) * slow for values, slow in zip(effects, is_slow, strict=True)]
    squares = [_squares(values, run.nodes, error) for values, run in zip(even, runs, strict=True)]
    low, high = min(float(each.min()) for each in noise), max(float(each.max()) for each in noise)
    edges = np.linspace(low, high + max(1e-9, 1e-6 * (high - low)), BINS + 1)
    counts = [[np.histogram(each[:, first:stop], edges)[0] for first, stop in pairwise(_cuts(each))] for each in noise]
    shown = Population(
        nodes=len({node for run in runs for node in run.nodes}), ranks_per_node=int(min(per_node)),
        means=np.array([float(run.work.mean()) for run in runs]),
        mean_error=float(np.mean([block_error(run.work.mean(axis=0, keepdims=True)) for run in runs])),
        node_square=float(np.mean([node for node, _ in squares])),
        rank_square=float(np.mean([rank for _, rank in squares])), error=error,
        level=float(np.mean([each.mean() for each in even])), edges=edges, noise=np.array(counts, dtype=float), two=two,
    )  # fmt: skip
    given = [
        run.work.mean() + _mean_of_max(values, np.ones(len(values)), _tailed(shown.edges, shown.noise[at].sum(axis=0)))
        for at, (run, values) in enumerate(zip(runs, effects, strict=True))
    ]
    measured = [run.work.max(axis=0).mean() for run in runs]
    return replace(shown, correction=float(np.mean(measured) - np.mean(given)))


def _cuts(values: Floats) -> list[int]:
    """The borders of the blocks of these steps [rank, step]."""
    cuts: list[int] = np.linspace(0, values.shape[1], BLOCKS + 1).round().astype(int).tolist()
    return cuts


def block_error(values: Floats) -> float:
    """The variance of a rank's mean over its steps [rank, step], by its blocks."""
    means = np.array([values[:, first:stop].mean(axis=1) for first, stop in pairwise(_cuts(values))])
    return float(means.var(axis=0, ddof=1).mean()) / BLOCKS


def _places(nodes: Sequence[str]) -> list[RankPlace]:
    """Of each rank."""
    before: dict[str, int] = {}
    places: list[RankPlace] = []
    for node in nodes:
        places.append((node, str(before.get(node, 0))))
        before[node] = before.get(node, 0) + 1
    return places


def _squares(effects: Floats, nodes: Sequence[str], error: float) -> tuple[float, float]:
    """The variance of the means of nodes, and that of ranks on a node; with one rank on each that of noise alone."""
    by_node = [*grouped(zip(nodes, effects.tolist(), strict=True)).values()]
    within = [float(np.var(each, ddof=1)) for each in by_node if len(each) > 1]
    return float(np.var([np.mean(each) for each in by_node], ddof=1)), float(np.mean(within)) if within else error


def _noise(work: Floats) -> Floats:
    """The work less the means of its ranks and what they share in a step [rank, step].

    Of what ranks share as much is taken out as their mean shows of it beyond their noise, and the rest has the
    deviation of the noise: the mean of few ranks has a part of the noise of each.
    """
    ranks = len(work)
    residual = work - work.mean(axis=1, keepdims=True)
    together = residual.mean(axis=0)
    square = float(np.square(residual - together).mean()) * ranks / (ranks - 1)
    of_mean = float(np.square(together).mean())
    share = max(0.0, 1 - square / ranks / of_mean) if of_mean > 0 else 0.0
    noise: Floats = residual - share * together
    scatter = float(np.square(noise).mean())
    return noise * sqrt(square / scatter) if scatter > 0 else noise


def _two_levels(effects: Mapping[RankPlace, float], error: float) -> TwoLevels | None:
    """The two levels of these ranks, or of their nodes, where the gap between is clearly more than equal ones have by
    chance; `error` is what noise adds to the variance of a rank's effect."""
    of_nodes = grouped((place[:1], effect) for place, effect in effects.items())
    count = len(effects) / len(of_nodes)
    ranks = _split(effects, error) if count > 1 else ()
    chosen = {*ranks}
    whole = [node for node, its in grouped((place[:1], place) for place in effects).items() if chosen.issuperset(its)]
    if len(whole) * count == len(ranks):  # slow ranks are all of their nodes, or there are none
        means = {node: float(np.mean(each)) for node, each in of_nodes.items()}
        nodes = _split(means, error / count)
        return _levels(SlowKind.NODE, means, nodes) if nodes else None
    return _levels(SlowKind.RANK, effects, ranks)


def _levels(level: SlowKind, effects: Mapping[RankPlace, float], slow: Sequence[RankPlace]) -> TwoLevels:
    among = {*slow}
    others = [effect for place, effect in effects.items() if place not in among]
    apart = float(np.mean([effects[place] for place in slow]) - np.mean(others))
    return TwoLevels(level=level, slow=tuple(slow), count=len(effects), apart=apart)


def _split(effects: Mapping[RankPlace, float], error: float) -> tuple[RankPlace, ...]:
    """The upper of two levels; nothing where there is one."""
    places = sorted(effects, key=lambda place: effects[place])
    values, count = np.array([effects[place] for place in places]), len(effects)
    if count < MIN_PLACES:
        return ()
    best, at = 0.0, 0
    for cut in range(1, count):
        square = float(values[:cut].var() * cut + values[cut:].var() * (count - cut)) / (count - 2)
        best, at = max((best, at), (float(values[cut] - values[cut - 1]) / sqrt(max(square, error, 1e-18)), cut))
    return tuple(places[at:]) if best >= CLEAR + CLEAR_FEW / (count - 1) ** 2.3 else ()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Tailed:
    """A distribution: counts between edges, and above `start` a generalised Pareto distribution of `share` of it."""

    edges: Floats
    above: Floats
    start: float
    share: float
    scale: float
    shape: float

    def survival(self, values: Floats) -> Floats:
        """The share above these values."""
        body = np.interp(values, self.edges, self.above)
        beyond = np.maximum(values - self.start, 0.0)
        if abs(self.shape) < 1e-6:
            tail = np.exp(-beyond / self.scale)
        else:
            tail = np.maximum(1 + self.shape * beyond / self.scale, 0.0) ** (-1 / self.shape)
        shares: Floats = np.where(values > self.start, self.share * tail, body)
        return shares

    def at(self, shares: Floats) -> Floats:
        """The values that these shares are above."""
        body = np.interp(-shares, -self.above, self.edges)
        rarer = np.minimum(shares / self.share, 1.0)
        if abs(self.shape) < 1e-6:
            tail = -np.log(rarer) * self.scale
        else:
            tail = (rarer**-self.shape - 1) * self.scale / self.shape
        values: Floats = np.where(shares < self.share, self.start + tail, body)
        return values


def _tailed(edges: Floats, counts: Floats) -> _Tailed:
    """The distribution of these counts between the edges; its tail is the largest part that is a generalised Pareto
    distribution: where rare steps are a kind of their own, the tail is theirs."""
    wanted, least = TAIL, MIN_TAIL / float(counts.sum())
    while True:
        fitted = _with_tail(edges, counts, min(0.5, max(wanted, least)))
        number = float(counts[edges[:-1] >= fitted.start].sum())
        apart = np.abs(fitted.survival(edges) - fitted.above)[edges >= fitted.start].max()
        if wanted <= least or apart / fitted.share * sqrt(number) <= MAX_APART:
            return fitted
        wanted /= 2


def _with_tail(edges: Floats, counts: Floats, wanted: float) -> _Tailed:
    """The same with a tail of that share, by probability-weighted moments."""
    total = float(counts.sum())
    above = 1 - np.concatenate([[0.0], np.cumsum(counts)]) / total
    at = max(0, int(np.searchsorted(-above, -wanted, side="right")) - 1)
    start, share = float(edges[at]), float(above[at])
    number, beyond = counts[at:], (edges[at:-1] + edges[at + 1 :]) / 2 - start
    rank = (np.cumsum(number) - number / 2) / number.sum()
    first, second = (
        float((number * beyond).sum() / number.sum()),
        float((number * beyond * (1 - rank)).sum() / number.sum()),
    )
    shape = 2 - first / max(1e-12, first - 2 * second)
    shape = min(max(shape, SHAPES[0]), SHAPES[1])
    return _Tailed(edges=edges, above=above, start=start, share=share, scale=first * (1 - shape), shape=shape)


def _mean_of_max(effects: Floats, counts: Floats, noise: _Tailed) -> float:
    """The mean of the largest of effect + noise, with so many ranks of each effect."""
    total, largest = float(counts.sum()), float(effects.max())
    odds = np.linspace(-9, log(1000 * total), POINTS)
    points = largest + noise.at(1 / (1 + np.exp(odds)))
    points = np.maximum.accumulate(points)
    above = noise.survival(points[:, None] - effects)
    with np.errstate(divide="ignore"):
        below = np.exp(np.log1p(-np.minimum(above, 1.0)) @ counts)
    return float(points[0] + ((1 - (below[1:] + below[:-1]) / 2) * np.diff(points)).sum())


def slowest(shown: Population, nodes: int, seed: int = 0) -> Slowest:
    """The slowest of all ranks of so many nodes."""
    generator = np.random.default_rng((seed, nodes))
    draws = np.array([_draw(shown, nodes, generator, at) for at in range(DRAWS)])
    low, value, high = np.quantile(draws[:, 0], [(1 - MIDDLE) / 2, 0.5, (1 + MIDDLE) / 2]).tolist()
    return Slowest(
        nodes=nodes, ranks=nodes * shown.ranks_per_node, value=value, low=low, high=high, draws=draws[:, 0],
        mean=draws[:, 1],
    )  # fmt: skip


def _draw(shown: Population, nodes: int, generator: np.random.Generator, number: int) -> tuple[float, float]:
    """The mean of the maximum, and the mean of all ranks, in one draw of runs, steps, effects and nodes."""
    runs, blocks, _ = shown.noise.shape
    chosen = generator.integers(0, runs, (runs, 1))
    steps = generator.integers(0, blocks, (runs, blocks))
    counts: Floats = shown.noise[chosen, steps].sum(axis=(0, 1))
    of_run = _drawn(float(shown.means.var(ddof=1)), runs - 1, generator) if runs > 1 else 0.0
    mean = float(shown.means.mean())
    mean += sqrt(max(of_run, shown.mean_error) * (1 + 1 / runs)) * generator.standard_normal()
    count, two = shown.ranks_per_node, shown.two
    measured = shown.nodes
    of_rank = _drawn(
        shown.rank_square, measured * (count - 1) - (two is not None and two.level is SlowKind.RANK), generator
    )
    of_node = _drawn(shown.node_square, measured - 1 - (two is not None and two.level is SlowKind.NODE), generator)
    node_scatter, rank_scatter = sqrt(max(0.0, of_node - of_rank / count)), sqrt(max(0.0, of_rank - shown.error))
    if two is None:
        level, apart = sqrt(of_node / measured) * generator.standard_normal(), 0.0
    else:
        of_place = of_node if two.level is SlowKind.NODE else node_scatter**2 + of_rank
        level = sqrt(of_place / (two.count - len(two.slow))) * generator.standard_normal()
        apart = two.apart + sqrt(of_place / len(two.slow)) * generator.standard_normal() - level
    effects, number_of = _effects(nodes, count, (node_scatter, rank_scatter), two, apart, generator, number)
    level += mean + shown.level
    top = _mean_of_max(effects, number_of, _tailed(shown.edges, counts))
    return level + top + shown.correction, level + float((effects * number_of).sum() / number_of.sum())


def _drawn(square: float, freedom: int, generator: np.random.Generator) -> float:
    """A variance that this one, of so many degrees of freedom, may have been measured of."""
    return square * freedom / float(generator.chisquare(freedom)) if freedom > 0 else square


def _effects(
    nodes: int, count: int, scatters: tuple[float, float], two: TwoLevels | None, apart: float,
    generator: np.random.Generator, number: int,
) -> tuple[Floats, Floats]:  # fmt: skip
    """The effects of so many drawn nodes of `count` ranks, by the `scatters` of nodes and ranks, and how many ranks
    have each; slow ones are `apart` from the others.

    Slow ones are as frequent as measured, one at least; what was slow once may be the only one of its kind: so it is in
    half of the draws.
    """
    if two is None:
        return _merged(*_nested(nodes, count, *scatters, generator))
    places = nodes * (count if two.level is SlowKind.RANK else 1)
    share = generator.beta(len(two.slow) + 0.5, two.count - len(two.slow) + 0.5)
    is_single = len(two.slow) == 1 and number % 2
    slow = 1 if is_single else max(1, int(generator.binomial(places, share)))
    if two.level is SlowKind.NODE:
        others, others_count = _nested(nodes - slow, count, *scatters, generator)
        of_slow, slow_count = _nested(slow, count, *scatters, generator)
    else:
        others, others_count = _nested(nodes, count, *scatters, generator)
        others_count = others_count * (1 - slow / places)
        of_slow, slow_count = _nested(slow, 1, sqrt(scatters[0] ** 2 + scatters[1] ** 2), 0.0, generator)
    return _merged(np.concatenate([others, of_slow + apart]), np.concatenate([others_count, slow_count]))


def _nested(
    nodes: int, count: int, of_nodes: float, of_ranks: float, generator: np.random.Generator
) -> tuple[Floats, Floats]:
    """Normal effects of so many nodes and their ranks, and how many ranks have each."""
    of_node, number = _normal(nodes, of_nodes, generator)
    drawn = [_normal(each * count, of_ranks, generator) for each in number.tolist()]
    if not drawn:
        return np.zeros(0), np.zeros(0)
    return (
        np.concatenate([effect + its for effect, (its, _) in zip(of_node.tolist(), drawn, strict=True)]),
        np.concatenate([each for _, each in drawn]).astype(float),
    )


def _normal(number: int, deviation: float, generator: np.random.Generator) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Normal numbers, and how often each is there: of many all that are in one of fine bins as one."""
    if not number or not deviation:
        return np.zeros(min(1, number)), np.full(min(1, number), number)
    if number <= LEVELS:
        return deviation * generator.standard_normal(number), np.ones(number, np.int64)
    counts = generator.multinomial(number, NORMAL_SHARES)
    return deviation * NORMAL_BINS[counts > 0], counts[counts > 0]


def _merged(effects: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """The same in at most LEVELS values."""
    effects, counts = effects[counts > 0], counts[counts > 0]
    if len(effects) <= LEVELS:
        return effects, counts
    number, edges = np.histogram(effects, LEVELS, weights=counts)
    total, _ = np.histogram(effects, edges, weights=counts * effects)
    return total[number > 0] / number[number > 0], number[number > 0]
