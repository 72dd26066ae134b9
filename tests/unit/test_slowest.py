"""The slowest of more ranks than were measured, against ranks drawn of the same law."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from parse.extrapolation.slowest import RunWork, SlowKind, WorkError, population, slowest
from parse.extrapolation.step_terms import run_terms
from tests.truth.slowest import KINDS, NAMED, RANKS_PER_NODE, SLOW_MS, draw, work
from tests.unit.traces import make_run, make_trace


def run_work(kind: str = "normal", nodes: int = 8, seed: int = 0, steps: int | None = None) -> RunWork:
    ms = work(kind, nodes, np.random.default_rng(seed))[:, :steps]
    return RunWork(work=ms, nodes=tuple(f"node{rank // RANKS_PER_NODE}" for rank in range(len(ms))))


@pytest.mark.parametrize("kind", KINDS)
def test_the_slowest_of_16_times_the_ranks_is_as_forecast(kind: str) -> None:
    draws = [draw(kind, 16, seed) for seed in range(2)]
    for each in draws:  # twice as far as an end of its interval, at most: the tool counts how many are inside
        assert abs(each.error) <= each.width
    assert [each.level for each in draws] == [NAMED.get(kind)] * 2
    assert np.median([each.width for each in draws]) < {"normal": 2, "equal ranks": 1}.get(kind, 6)


def test_of_known_noise_the_mean_of_the_maximum_is_that_of_the_textbook() -> None:
    forecast = slowest(population([run_work("equal ranks", seed=seed) for seed in range(4)]), 512)
    assert forecast.ranks == 2048
    assert forecast.value - np.median(forecast.mean) == pytest.approx(3.43, abs=0.2)  # of 2,048 normal numbers


def test_rare_steps_of_one_length_are_not_taken_for_a_heavy_tail() -> None:
    def drawn(nodes: int, generator: np.random.Generator) -> RunWork:
        shape = (4 * nodes, 300)
        ms = 100 + 0.5 * generator.standard_normal(shape) + 8 * (generator.random(shape) < 0.02)
        return RunWork(work=ms, nodes=tuple(f"node{rank // 4}" for rank in range(len(ms))))

    generator = np.random.default_rng(0)
    forecast = slowest(population([drawn(8, generator)]), 512)
    assert forecast.value == pytest.approx(drawn(512, generator).work.max(axis=0).mean(), abs=1)


def test_a_slow_rank_is_named_and_a_slow_node_as_a_whole() -> None:
    run = run_work()
    late = run.work.copy()
    late[5] += SLOW_MS
    shown = population([dataclasses.replace(run, work=late)]).two
    assert shown is not None and (shown.level, shown.slow, shown.count) == (SlowKind.RANK, (("node1", "1"),), 32)
    late = run.work.copy()
    late[4:8] += SLOW_MS
    shown = population([dataclasses.replace(run, work=late)]).two
    assert shown is not None and (shown.level, shown.slow, shown.count) == (SlowKind.NODE, (("node1",),), 8)
    assert shown.apart == pytest.approx(SLOW_MS, abs=1)


def test_two_nodes_say_less_than_eight_and_any_number_of_nodes_is_answered() -> None:
    few, many = (slowest(population([run_work(nodes=nodes)]), 10**6) for nodes in (2, 8))
    assert few.high - few.low > many.high - many.low > 0
    assert np.isfinite([few.low, few.high]).all()


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        ([run_work(nodes=1)], "on one node"),
        ([run_work(steps=39)], "39 steps"),
        ([run_work(), dataclasses.replace(run_work(nodes=4), nodes=tuple(f"n{at}" for at in range(16)))], "per node"),
        ([], "no run"),
    ],
)
def test_what_does_not_show_how_ranks_scatter_is_refused(runs: list[RunWork], reason: str) -> None:
    with pytest.raises(WorkError, match=reason):
        population(runs)


def test_few_steps_have_no_terms() -> None:
    with pytest.raises(WorkError, match="a run has 15 steps"):
        run_terms(make_trace(make_run(nodes=2, measured_steps=15)), 1.0)
