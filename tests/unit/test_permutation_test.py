"""The permutation test for persistent stragglers, and what spares it the permutations."""

from __future__ import annotations

from itertools import permutations, product
from math import exp

import numpy as np
import pytest

from parse.ledger import straggler


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_is_above_the_exact_probability(seed: int) -> None:
    typical = np.random.default_rng(seed).lognormal(size=(4, 3))
    orders = [*permutations(range(4))]
    largest = [
        np.mean([typical[list(order), piece] for piece, order in enumerate(dealt)], axis=0).max()
        for dealt in product(orders[:1], orders, orders)
    ]
    for least in np.quantile(largest, [0.5, 0.9, 0.99, 1.0]):
        chance = float(np.mean(np.array(largest) >= least - 1e-12))
        assert chance <= exp(straggler._log_chance(typical, float(least))) * (1 + 1e-9)


def test_nothing_is_permuted_where_the_bound_says_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    typical = np.random.default_rng(0).normal(0, 100.0, (64, 14))
    typical[7] += 3000
    permuted: list[int] = []
    default_rng = np.random.default_rng

    def counted(seed: int) -> np.random.Generator:
        permuted.append(seed)
        return default_rng(seed)

    monkeypatch.setattr(np.random, "default_rng", counted)
    chance = straggler._chance(typical, 1)
    assert not permuted
    monkeypatch.setattr(straggler, "_log_chance", lambda typical, least: 0.0)
    assert straggler._chance(typical, 1) == chance < straggler.CHANCE
    assert permuted


@pytest.mark.parametrize(("runs", "limit"), [(1, straggler.OF_ONE_RUN), (2, straggler.CHANCE)])
def test_equal_ranks_are_permuted_until_the_chance_is_too_large(runs: int, limit: float) -> None:
    typical = np.random.default_rng(1).normal(0, 100.0, (64, 14))
    chance = straggler._chance(typical, runs)
    assert limit < chance <= limit + 1 / straggler.FEWER_SHUFFLES


def test_several_runs_need_more_than_one_run_can_show() -> None:
    """Two of four ranks that are late in all ten pieces of a run: four of 1024 permutations show as much."""
    typical = np.zeros((4, 10))
    typical[:2] = 10.0
    assert straggler.CHANCE < straggler._chance(typical, 1) < straggler.OF_ONE_RUN
    assert straggler._chance(np.tile(typical, 2), 2) < straggler.CHANCE


@pytest.mark.parametrize("seed", range(5))
def test_of_two_ranks_all_permutations_are_tried(seed: int) -> None:
    typical = np.random.default_rng(seed).lognormal(size=(2, 7))
    typical[0] += 1.0
    largest = [
        np.mean([typical[list(order), piece] for piece, order in enumerate(dealt)], axis=0).max()
        for dealt in product([(0, 1), (1, 0)], repeat=7)
    ]
    chance = float(np.mean(np.array(largest) >= typical.mean(axis=1).max() - 1e-12))
    assert straggler._chance(typical, 1) == chance


def test_one_of_ten_pieces_without_the_delay_leaves_two_ranks_apart() -> None:
    typical = np.array([[0.0, *[10.0] * 9], [0.0] * 10])
    assert straggler._chance(typical, 1) == 4 / 1024 <= straggler.OF_ONE_RUN
