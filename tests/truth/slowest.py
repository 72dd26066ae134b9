"""Forecasts of the slowest of more ranks than were measured, against drawn ranks: `python -m tests.truth.slowest`.

A machine of eight nodes of four ranks is measured for 300 steps, and another of 4, 16 and 64 times the nodes is drawn
of the same law: effects of nodes and of ranks, what all share in a step, and noise. Counted is how often the mean over
its steps of the slowest rank is inside the interval of the forecast, and how often two levels of nodes, or a slow rank,
are named.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parse.extrapolation.slowest import RunWork, SlowKind, population, slowest

Floats = npt.NDArray[np.float64]
NODES, RANKS_PER_NODE, STEPS = 8, 4, 300
TIMES = (4, 16, 64)
MEAN_MS, SHARED_MS, EFFECT_MS, SLOW_MS = 100.0, 0.5, 0.3, 10.0
KINDS = ("normal", "lognormal", "exponential", "bimodal nodes", "a single straggler", "equal ranks")
NAMED = {"bimodal nodes": SlowKind.NODE, "a single straggler": SlowKind.RANK}


def effects(kind: str, nodes: int, generator: np.random.Generator) -> Floats:
    """What each rank of a machine takes longer in every step, ms."""
    if kind == "equal ranks":
        return np.zeros(nodes * RANKS_PER_NODE)
    of_nodes = EFFECT_MS * generator.standard_normal(nodes)
    if kind == "bimodal nodes":
        of_nodes += SLOW_MS * (generator.random(nodes) < 0.4)
    of_ranks = (of_nodes[:, None] + EFFECT_MS * generator.standard_normal((nodes, RANKS_PER_NODE))).ravel()
    if kind == "a single straggler":
        of_ranks[generator.integers(len(of_ranks))] += SLOW_MS
    return of_ranks


def noise(kind: str, ranks: int, generator: np.random.Generator) -> Floats:
    """That of a step, ms [rank]."""
    if kind == "lognormal":
        return np.exp(0.5 * generator.standard_normal(ranks))
    return generator.exponential(size=ranks) if kind == "exponential" else generator.standard_normal(ranks)


def work(kind: str, nodes: int, generator: np.random.Generator) -> Floats:
    """The work of a drawn machine's ranks, ms [rank, step]."""
    of_ranks = effects(kind, nodes, generator)
    steps = [SHARED_MS * generator.standard_normal() + noise(kind, len(of_ranks), generator) for _ in range(STEPS)]
    return MEAN_MS + of_ranks[:, None] + np.stack(steps, axis=1)


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Whether the slowest rank was inside the interval, how far off the forecast was, ms, and what was named slow."""

    inside: bool
    error: float
    width: float
    level: SlowKind | None


def draw(kind: str, times: int, seed: int) -> Draw:
    """One machine forecast from another."""
    generator = np.random.default_rng((seed, times, KINDS.index(kind)))
    names = tuple(f"node{rank // RANKS_PER_NODE}" for rank in range(NODES * RANKS_PER_NODE))
    shown = population([RunWork(work=work(kind, NODES, generator), nodes=names)])
    forecast = slowest(shown, NODES * times)
    truth = float(work(kind, NODES * times, generator).max(axis=0).mean())
    return Draw(
        inside=forecast.low <= truth <= forecast.high, error=forecast.value - truth, width=forecast.high - forecast.low,
        level=shown.two.level if shown.two else None,
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line for each law and size; 1 where fewer than 85 % are inside, or a kind is not named."""
    parser = argparse.ArgumentParser(prog="python -m tests.truth.slowest")
    parser.add_argument("--draws", type=int, default=100)
    count, failed = parser.parse_args(argv).draws, False
    for kind in KINDS:
        for times in TIMES:
            draws = [draw(kind, times, seed) for seed in range(count)]
            inside, named = sum(each.inside for each in draws), sum(each.level is NAMED.get(kind) for each in draws)
            failed |= inside < 0.85 * count or named < 0.9 * count
            print(
                f"{kind}, {times} times the ranks: {inside} of {count} inside, named rightly {named}; error "
                f"{np.mean([each.error for each in draws]):+.2f} ms, {np.std([each.error for each in draws]):.2f}; "
                f"width {np.median([each.width for each in draws]):.2f} ms",
                flush=True,
            )
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
