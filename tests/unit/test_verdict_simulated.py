"""The verdict on simulated runs: delays are named, equal ranks are let be, nobody is named in error."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.model.spec import RunSpec
from hpc.model.timestamps import GRADS_READY
from parse.ledger.breakdown import step_breakdown
from parse.ledger.verdict import CANNOT_TELL, NONE, PERSISTENT, ROTATING, TRANSIENT, Because, Straggler
from parse.ledger.verdicts import verdict
from parse.term_kinds import CAUSES
from tests.unit.simulated import JITTERS, MS, Simulated, draw_clocks, equal_ranks, simulate
from tests.unit.test_ledger_simulated import drawn_runs, window
from tests.unit.traces import make_run

pytestmark = pytest.mark.slow

DRAWS, MAX_ACCUSED = 2000, 0.05
SIMULATED, MAX_MISSED = 100, 1
ACCUSED = (PERSISTENT, ROTATING, TRANSIENT)


def draw_run(generator: np.random.Generator, *, ranks: int = 2, nodes: int = 1, steps: int = 50) -> RunSpec:
    """A run of at least so many ranks, nodes and measured steps; of two on each node where nodes matter."""
    on_nodes = int(generator.integers(nodes, 5))
    least = max(nodes, -(-ranks // on_nodes))
    return make_run(
        nodes=on_nodes, ranks_per_node=int(generator.integers(least, 5)),
        warmup_steps=int(generator.integers(5, 12)), measured_steps=int(generator.integers(steps, steps + 100)),
        block_steps=int(generator.choice([0, 25])),
    )  # fmt: skip


# Equal ranks


@pytest.mark.parametrize(
    ("jitter", "memory"),
    [
        pytest.param(jitter, memory, marks=() if (jitter, memory) == ("normal", 0.3) else pytest.mark.all)
        for jitter in JITTERS
        for memory in (0.0, 0.3)
    ],
)
def test_equal_ranks_are_accused_in_fewer_than_one_draw_of_twenty(jitter, memory):
    kinds: Counter[str] = Counter()
    for draw in range(-(-DRAWS // 6)):
        generator = np.random.default_rng([draw, JITTERS.index(jitter), int(10 * memory)])
        run = draw_run(generator, steps=20)
        durations = equal_ranks(
            generator, run.ranks, run.steps, jitter=jitter, memory=memory,
            spread=generator.choice([0.01, 0.05, 0.1, 0.3]), common=generator.choice([0.0, 0.05, 0.3]),
        )  # fmt: skip
        bound_ns = generator.choice([1e3, 1e4, 1e5])
        simulated = simulate(run, durations, draw_clocks(generator, run.nodes), generator, bound_ns=bound_ns)
        kinds[verdict(step_breakdown(simulated.trace)).kind] += 1
    accused = sum(kinds[kind] for kind in ACCUSED)
    print(f"{jitter}, memory {memory}: {dict(kinds)}")
    assert accused < MAX_ACCUSED * kinds.total(), kinds
    assert kinds[NONE] > kinds.total() / 2, kinds


# Delays well above the noise

DELAYS = {
    "one rank's compute": ("backward", PERSISTENT, "compute"),
    "one rank's data": ("data", PERSISTENT, "data"),
    "one rank's optimizer": ("optimizer", PERSISTENT, "optimizer"),
    "one rank's way out of the reduction": ("leave", PERSISTENT, "release"),
    "one node's compute": ("forward", PERSISTENT, "compute"),
    "one rank after another": ("backward", ROTATING, "compute"),
    "all of a node, node after node": ("backward", ROTATING, "compute"),
    "one rank in every tenth step": ("backward", TRANSIENT, "compute"),
    "one rank in one step": ("data", TRANSIENT, "data"),
    "one node in every tenth step": ("backward", TRANSIENT, "compute"),
    "the compute of two ranks, not of one node": ("backward", PERSISTENT, "compute"),
    "everybody's communication": ("communication", NONE, ""),
    "everybody's data": ("data", NONE, ""),
    "the compute of everybody but one": ("backward", NONE, ""),
}


USUAL = (
    "one rank's compute",
    "one rank's data",
    "one rank after another",
    "one node in every tenth step",
    "everybody's data",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in USUAL else pytest.mark.all) for name in DELAYS]
)
def test_delays_well_above_the_noise_are_named(name):
    missed = [wrong for draw in range(SIMULATED) if (wrong := wrong_verdict(name, draw))]
    assert len(missed) <= MAX_MISSED, "\n".join([f"{len(missed)} missed", *missed[:5]])


def wrong_verdict(name: str, draw: int) -> str:
    """What is wrong with the verdict on the delay in one draw; empty where it is right."""
    phase, kind, cause = DELAYS[name]
    generator = np.random.default_rng([draw, list(DELAYS).index(name)])
    run = draw_run(generator, ranks=3, nodes=2 if "node" in name else 1, steps=100)
    where, ranks, steps = delayed(name, kind, run, generator)
    by_ns = int(generator.integers(10, 40)) * MS * (5 if name == "one rank in one step" else 1)
    durations = equal_ranks(
        generator, run.ranks, run.steps, jitter=generator.choice(JITTERS), memory=generator.choice([0.0, 0.3]),
        spread=generator.choice([0.01, 0.03, 0.05]),
    ).longer(phase, where, by_ns)  # fmt: skip
    result = verdict(step_breakdown(simulate(run, durations, draw_clocks(generator, run.nodes), generator).trace))
    nodes = sorted({rank // run.ranks_per_node for rank in ranks}) if "node" in name and "two" not in name else ()
    expected = (kind, ranks if cause else (), ", ".join(f"n{node}" for node in nodes), cause)
    its = result if isinstance(result, Straggler) else Straggler(kind=result.kind, ranks=())
    actual = (its.kind, its.ranks, its.node, max(its.cause, key=its.cause.__getitem__, default=""))
    # Long tails make a rank late once in a while that is not delayed: such steps may be named beside the others.
    as_steps = set(steps) <= set(its.steps) and len(its.steps) <= 1.5 * len(steps)
    as_much = not cause or abs(its.cause.get(cause, 0.0) * 1e6 - by_ns) < 0.33 * by_ns
    if actual == expected and as_steps and as_much:
        return ""
    return f"draw {draw}, {run.case}, blocks {run.blocks}, +{by_ns / 1e6} ms: {result} instead of {expected}, {steps}"


def delayed(
    name: str, kind: str, run: RunSpec, generator: np.random.Generator
) -> tuple[np.ndarray, tuple[int, ...], tuple[int, ...]]:
    """Where the delay is [rank, step], whose it is, and the measured steps of a transient one."""
    where = np.zeros((run.ranks, run.steps), bool)
    rank, steps = int(generator.integers(run.ranks)), window(run)
    ranks: tuple[int, ...] = (rank,)
    if "one node" in name:
        first = rank // run.ranks_per_node * run.ranks_per_node
        ranks = tuple(range(first, first + run.ranks_per_node))
    if "two" in name:
        ranks = tuple(sorted((rank, (rank + run.ranks_per_node) % run.ranks)))
    if "everybody" in name:
        ranks = tuple(other for other in range(run.ranks) if "but" not in name or other != rank)
    its = steps
    if "one step" in name or "tenth" in name:
        its = steps[::10] if "tenth" in name else generator.choice(steps, 1)
        where[np.ix_(ranks, its)] = True
        return where, ranks, tuple(its.tolist())
    if kind == ROTATING:
        at_once = run.ranks_per_node if "node" in name else 1
        turn = np.arange(run.steps) % (run.ranks // at_once)
        where[:] = np.arange(run.ranks)[:, np.newaxis] // at_once == turn
        return where, tuple(range(run.ranks)), ()
    where[list(ranks)] = True
    return where, ranks, ()


def test_a_rank_that_is_a_little_late_always_is_not_persistent_for_what_it_loses_now_and_then():
    generator = np.random.default_rng(0)
    run = make_run(nodes=2, ranks_per_node=3, warmup_steps=10, measured_steps=100)
    always, seldom = np.zeros((2, run.ranks, run.steps), bool)
    always[1], seldom[1, 10::10] = True, True
    durations = equal_ranks(generator, run.ranks, run.steps, spread=0.001)
    durations = durations.longer("backward", always, MS // 20).longer("backward", seldom, 18 * MS)
    result = verdict(step_breakdown(simulate(run, durations, draw_clocks(generator, 2), generator).trace))
    assert (result.kind, result.ranks, result.steps) == (TRANSIENT, (1,), tuple(range(10, 110, 10)))


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
def test_what_the_clocks_cannot_resolve_is_not_claimed(seed, late_ms):
    generator = np.random.default_rng(seed)
    run = make_run(nodes=4, ranks_per_node=1, warmup_steps=10, measured_steps=60)
    late = np.zeros((run.ranks, run.steps), bool)
    late[2] = True
    durations = equal_ranks(generator, run.ranks, run.steps).longer("backward", late, late_ms * MS)
    simulated = simulate(run, durations, draw_clocks(generator, 4), generator, bound_ns=20 * MS)
    result = verdict(step_breakdown(simulated.trace))
    # Where the clocks err as far as they may, they can show it all the same.
    assert (result.kind, getattr(result, "because", None), result.ranks) in (
        (CANNOT_TELL, Because.CLOCK, ()),
        (PERSISTENT, None, (2,)),
    )
    assert result.bound >= 10


# Whatever is result is so


@pytest.mark.all
@settings(max_examples=300)
@given(drawn_runs())
def test_no_verdict_contradicts_the_truth_by_more_than_its_bound(recipe):
    drawn = recipe.drawn()
    result = verdict(step_breakdown(drawn.simulated.trace))
    if result.kind not in ACCUSED:
        assert result.ranks == ()
        return
    assert sum(result.cause.values()) == pytest.approx(result.arrival_skew, abs=1e-6)
    assert set(result.cause) == set(CAUSES)
    {PERSISTENT: assert_persistent, TRANSIENT: assert_transient, ROTATING: assert_rotating}[result.kind](
        result, drawn.run, drawn.simulated
    )


def true_arrival_skew_ms(run: RunSpec, simulated: Simulated) -> np.ndarray:
    """How much later than the median rank, the lower of two, each rank's gradients were there, [rank, step]."""
    grads_ns = simulated.global_ns[:, window(run), GRADS_READY]
    return (grads_ns - np.sort(grads_ns, axis=0)[(run.ranks - 1) // 2]) / 1e6


def doubt_ms(run: RunSpec, simulated: Simulated) -> float:
    """How far a difference of two ranks' times may be off, at most."""
    return 2 * simulated.trace.bounds_ns(GRADS_READY, window(run)).max() / 1e6 + 1e-6


def assert_mean_of(value: float, count: int, among: np.ndarray, doubt: float) -> None:
    """That it is the mean of some `count` of these numbers, give or take the doubt."""
    ordered = np.sort(among, axis=None)
    assert ordered[:count].mean() - doubt <= value <= ordered[-count:].mean() + doubt


def after_others_ms(result: Straggler, skews: np.ndarray) -> np.ndarray:
    """How much later than the median of the others, the lower of two, those named are [rank, step]."""
    others = np.sort(np.delete(skews, result.ranks, axis=0), axis=0)
    after: np.ndarray = skews[list(result.ranks)] - others[(len(others) - 1) // 2]
    return after


def assert_persistent(result: Straggler, run: RunSpec, simulated: Simulated) -> None:
    skews, doubt = true_arrival_skew_ms(run, simulated), doubt_ms(run, simulated)
    its = skews[list(result.ranks)]
    assert 0 < round(result.share * its.size) <= its.size
    if result.shape is None or result.shape.step is None:
        assert result.arrival_skew == pytest.approx(after_others_ms(result, skews).mean(), abs=doubt)
    others = np.delete(skews, result.ranks, axis=0)
    assert its.mean() > np.median(others) - doubt
    saved = np.maximum(0, its.max(axis=0) - others.max(axis=0)).mean()
    if len(others) > 1:  # like the others they may be last themselves
        assert saved - (others.max(axis=0) - others.min(axis=0)).mean() - doubt <= result.costs <= saved + doubt
    if result.node:
        assert {run.ranks_per_node * int(result.node[1:]) + local for local in range(run.ranks_per_node)} == set(
            result.ranks
        )


def assert_transient(result: Straggler, run: RunSpec, simulated: Simulated) -> None:
    doubt = doubt_ms(run, simulated)
    at = np.searchsorted(window(run), result.steps)
    assert window(run)[at].tolist() == list(result.steps)
    after = after_others_ms(result, true_arrival_skew_ms(run, simulated)[:, at])
    assert (after > -doubt).all()
    assert result.arrival_skew == pytest.approx(after.mean(), abs=doubt)
    assert result.share == pytest.approx(len(at) / len(window(run)))


def assert_rotating(result: Straggler, run: RunSpec, simulated: Simulated) -> None:
    doubt = doubt_ms(run, simulated)
    last = true_arrival_skew_ms(run, simulated).max(axis=0)
    assert_mean_of(result.arrival_skew, round(result.share * len(last)), last, doubt)
    assert len(result.ranks) > 1
