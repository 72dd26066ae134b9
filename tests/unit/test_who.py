"""parse.ledger.who: one question for all shapes of delay."""

from __future__ import annotations

import numpy as np
import pytest

from parse.ledger.cells import CellWindow, like_the_others
from parse.ledger.limit import detection_limits
from parse.ledger.who import Kind, search
from tests.truth.who_trial import KINDS, drawn, trial

MS = 1_000_000


def window(late_ms: np.ndarray, *, runs: int = 1, roles: list[int] | None = None) -> CellWindow:
    steps, ranks = late_ms.shape
    return CellWindow(
        late=np.rint(late_ms * MS).astype(np.int64), run=np.repeat(np.arange(runs), steps // runs),
        roles=np.array(roles or [0] * ranks), nodes=np.arange(ranks) // 2, step_ns=20.0 * MS,
    )  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_delay_of_every_step_lasts_though_its_nanoseconds_come_round(ranks: int) -> None:
    """As a device's clock against its host's makes them."""
    late = np.zeros((40, ranks))
    late[:, 1] = 10 + 1e-6 * (np.arange(40) % 5)
    (named,) = search(window(late))
    assert (named.kind, named.ranks, named.steps.all()) == (Kind.LASTING, (1,), True)
    late[np.arange(40) % 5 > 0, 1] = 0
    (named,) = search(window(late))
    assert (named.kind, named.ranks, named.steps.sum()) == (Kind.PASSING, (1,), 8)


@pytest.mark.parametrize("steps", [slice(17, None), slice(23)])
def test_a_delay_of_half_of_one_run_is_named_and_not_what_comes_and_goes(steps: slice) -> None:
    usual = np.random.default_rng(1).normal(0, 10, (40, 2))
    late, by_turns = usual.copy(), usual.copy()
    late[steps, 0] += 60
    (named,) = search(window(late))
    assert (named.kind, named.ranks) == (Kind.LASTING, (0,)) and named.chance is not None and named.chance < 0.005
    by_turns[np.arange(40) // 4 % 5 > 1, 0] += 60  # in as many pieces, but two others lie between
    assert search(window(by_turns)) == []


@pytest.mark.slow
def test_known_delays_are_named_and_cost_what_the_steps_are_longer_by(capsys):
    count = trial(4, [1])
    assert count.holds, capsys.readouterr().out
    assert count.expected > 80 and len(count.costs) > 60


@pytest.mark.all
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [16, 64])
def test_of_many_ranks_too(ranks, capsys):
    assert trial(ranks, [1]).holds, capsys.readouterr().out


def test_the_trial_can_fail():
    """Delays that nobody is told of are not named."""
    findings, late_ranks, longer = drawn("one rank", "normal", 4, 1)
    assert late_ranks == {2} and longer > 2 and {rank for each in findings for rank in each.ranks} == {2}
    assert len(KINDS) == 21


def test_what_ranks_are_like_without_a_delay_is_like_the_others_in_mean_and_maximum():
    generator = np.random.default_rng(1)
    usual = generator.normal(0, 0.3, (4, 4000)) + generator.normal(0, 1.0, 4000)
    late = usual.copy()
    late[[1, 2]] += 0.5
    cells = np.zeros(late.shape, bool)
    cells[[1, 2]] = True
    without = like_the_others(np.rint(late * MS).astype(np.int64), cells) / MS
    assert without.max(axis=0).mean() == pytest.approx(usual.max(axis=0).mean(), abs=0.02)
    assert without[1].mean() == pytest.approx(usual[1].mean(), abs=0.02)
    assert (without[[0, 3]] == np.rint(late[[0, 3]] * MS) / MS).all()


def test_cells_of_other_findings_are_no_example():
    late = np.zeros((4, 100), np.int64)
    late[1], late[2] = 4 * MS, 2 * MS
    cells, named = np.zeros((2, *late.shape), bool)
    cells[1], named[2] = True, True
    assert (like_the_others(late, cells, named)[1] == 0).all()


def test_ranks_without_a_peer_are_not_judged():
    late = np.random.default_rng(0).normal(0, 0.1, (100, 4))
    late[:, 3] += 5
    assert search(window(late, roles=[0, 0, 0, 1])) == []
    assert [each.ranks for each in search(window(late))] == [(3,)]


def test_one_that_is_faster_than_all_others_is_said_and_costs_nothing():
    late = np.random.default_rng(0).normal(0, 0.1, (100, 4))
    late[:, 1:] += 3
    (named,) = search(window(late))
    assert (named.kind, named.ranks, named.saves_ns) == (Kind.FASTER, (0,), 0.0)
    assert named.gap_ns / MS == pytest.approx(3, abs=0.1)


def test_a_limit_is_named_and_a_third_of_it_is_not():
    generator = np.random.default_rng(0)
    late = generator.normal(0, 0.3, (200, 4))
    always_ms, seldom_ms = detection_limits(window(late, runs=2), bound_ns=100.0)
    assert always_ms is not None and seldom_ms is not None and always_ms < seldom_ms
    for part, is_named in ((1.2, True), (0.3, False)):
        measured = generator.normal(0, 0.3, (200, 4))
        measured[:, 2] += part * always_ms
        assert ({rank for each in search(window(measured, runs=2)) for rank in each.ranks} == {2}) is is_named
