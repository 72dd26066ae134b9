"""The ledger against simulated traces: terms to the nanosecond, values within the clocks' bounds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.model.spec import RunSpec
from hpc.model.timestamps import ABSENT, BATCH_READY, BEGIN, END, FORWARD_END, GRADS_READY, REDUCED, STAMPS
from parse import stats
from parse.ledger import breakdown as terms
from parse.ledger.breakdown import step_breakdown, step_terms
from parse.runs.attempt import measure
from parse.term_kinds import BORDERS, TERMS
from tests.unit.simulated import JITTERS, MS, Durations, Simulated, draw_clocks, equal_ranks, simulate
from tests.unit.traces import make_run

EVERY_BORDER = frozenset(BORDERS)
DATA, COMPUTE, WAIT, COMMUNICATION, OPTIMIZER = range(len(TERMS))
FLOAT_NS = 1e-3
"""What means of whole nanoseconds lose as floats."""
many = settings(max_examples=60)


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawn:
    """A simulated run with what its steps consist of."""

    run: RunSpec
    durations: Durations
    simulated: Simulated


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a run is drawn from: few words, so that hypothesis can shrink and print them.

    `delays` are phases that take longer, in which share of (ranks × steps), by how many ns; `absent` is the share of
    stamps inside a step that are missing.
    """

    seed: int
    nodes: int
    ranks_per_node: int
    warmup_steps: int
    measured_steps: int
    block_steps: int
    timing: str
    jitter: str
    spread: float
    memory: float
    delays: list[tuple[str, float, int]]
    bound_ns: int
    absent: float

    def drawn(self) -> Drawn:
        """The run."""
        generator = np.random.default_rng(self.seed)
        names = ("nodes", "ranks_per_node", "warmup_steps", "measured_steps", "block_steps", "timing")
        run = make_run(**{name: getattr(self, name) for name in names})
        shape = (run.ranks, run.steps)
        durations = equal_ranks(generator, *shape, jitter=self.jitter, spread=self.spread, memory=self.memory)
        for phase, share, by_ns in self.delays:
            durations = durations.longer(phase, generator.random(shape) < share, by_ns)
        absent = generator.random((*shape, len(STAMPS))) < self.absent
        absent[:, :, [BEGIN, END]] = False
        clocks = draw_clocks(generator, self.nodes)
        simulated = simulate(run, durations, clocks, generator, bound_ns=self.bound_ns, absent=absent)
        return Drawn(run=run, durations=durations, simulated=simulated)


PHASES = ("data", "forward", "backward", "leave", "optimizer", "communication")


def drawn_runs(*, timing: str = "phases", absent: tuple[float, ...] = (0.0,)) -> st.SearchStrategy[Recipe]:
    """Runs of 1 to 16 ranks on 1 to 4 nodes, in one block or several, with delays anywhere."""
    return st.builds(
        Recipe,
        seed=st.integers(0, 2**32 - 1),
        nodes=st.integers(1, 4),
        ranks_per_node=st.integers(1, 4),
        warmup_steps=st.integers(5, 12),
        measured_steps=st.integers(1, 60),
        block_steps=st.sampled_from((0, 7, 25)),
        timing=st.just(timing),
        jitter=st.sampled_from(JITTERS),
        spread=st.sampled_from((0.001, 0.03, 0.3)),
        memory=st.sampled_from((0.0, 0.3)),
        delays=st.lists(
            st.tuples(st.sampled_from(PHASES), st.sampled_from((0.02, 0.5, 1.0)), st.integers(0, 50 * MS)), max_size=3
        ),
        bound_ns=st.sampled_from((50, 10_000, 10**6)),
        absent=st.sampled_from(absent),
    )


def true_terms(drawn: Drawn) -> np.ndarray:
    """The five terms of each step [rank, step, 5], from what the steps consist of and nothing else."""
    d, grads_ns = drawn.durations, drawn.simulated.global_ns[:, :, GRADS_READY]
    waits = grads_ns.max(axis=0) - grads_ns
    return np.stack([d.data, d.forward + d.backward, waits, d.communication + d.leave, d.optimizer], axis=2)


def window(run: RunSpec) -> np.ndarray:
    """Which steps are measured."""
    return np.concatenate([np.arange(first, stop) for first, stop in run.blocks])


def bounds_ns(drawn: Drawn, stamp: int) -> np.ndarray:
    """How far each moment may be off, [rank, step]."""
    return drawn.simulated.trace.bounds_ns(stamp, np.arange(drawn.run.steps))


@many
@given(drawn_runs())
def test_the_simulated_clocks_are_as_good_as_they_claim(recipe):
    drawn = recipe.drawn()
    trace, truth_ns = drawn.simulated.trace, drawn.simulated.global_ns
    measured_ns = trace.global_stamps(0, drawn.run.steps)
    for stamp in range(len(STAMPS)):
        assert (np.abs(measured_ns - truth_ns)[:, :, stamp] <= bounds_ns(drawn, stamp)).all()
    assert (np.diff(truth_ns, axis=2) >= 0).all()
    assert (np.diff(trace.stamps, axis=2) >= 0).all()


@many
@given(drawn_runs(), st.sets(st.sampled_from(BORDERS)))
def test_terms_add_up_to_the_nanosecond_and_are_true_within_the_clocks_bounds(recipe, borders):
    drawn = recipe.drawn()
    expected = true_terms(drawn)
    begin, ready, grads, reduced, end = (
        bounds_ns(drawn, stamp) for stamp in (BEGIN, BATCH_READY, GRADS_READY, REDUCED, END)
    )
    last = grads.max(axis=0)
    allowed = np.stack([begin + ready, ready + grads, grads + last, reduced + last, reduced + end], axis=2)
    for first, stop in drawn.run.blocks:
        true_ns = step_terms(drawn.simulated.global_ns[:, first - 1 : stop], EVERY_BORDER)
        np.testing.assert_array_equal(true_ns, expected[:, first:stop])
        stamps_ns = drawn.simulated.trace.global_stamps(first - 1, stop)
        terms_ns = step_terms(stamps_ns, EVERY_BORDER)
        assert (np.abs(terms_ns - expected[:, first:stop]) <= allowed[:, first:stop]).all()
        some_ns = step_terms(stamps_ns, frozenset(borders))
        assert some_ns.dtype == np.int64
        np.testing.assert_array_equal(some_ns.sum(axis=2), np.diff(stamps_ns[:, :, END], axis=1))


# Means over the window


@many
@given(drawn_runs())
def test_means_are_those_of_the_steps_and_true_within_the_clocks_bounds(recipe):
    drawn = recipe.drawn()
    breakdown, steps = step_breakdown(drawn.simulated.trace), window(drawn.run)
    stamps = [drawn.simulated.trace.global_stamps(first - 1, stop) for first, stop in drawn.run.blocks]
    exact = np.concatenate([step_terms(stamps_ns, EVERY_BORDER) for stamps_ns in stamps], axis=1)
    np.testing.assert_allclose(breakdown.rank_ns, exact.mean(axis=1), rtol=1e-12, atol=FLOAT_NS)
    assert breakdown.mean_ns.sum() == pytest.approx(breakdown.step_ns, rel=1e-12)
    assert breakdown.step_ns == pytest.approx(exact.sum(axis=2).mean(), rel=1e-12)
    assert (breakdown.borders, breakdown.merged, bool(breakdown.problems)) == (EVERY_BORDER, None, False)
    expected = true_terms(drawn)[:, steps].mean(axis=1)
    widest = max(bounds_ns(drawn, stamp)[:, steps].max() for stamp in (BEGIN, END))
    assert np.abs(breakdown.rank_ns - expected).max() <= 2 * widest + FLOAT_NS


@many
@given(drawn_runs())
def test_the_throughput_s_step_has_the_skew_more_and_pauses_lie_between_the_blocks(recipe):
    drawn = recipe.drawn()
    trace, breakdown = drawn.simulated.trace, step_breakdown(drawn.simulated.trace)
    ends_ns = trace.to_global(END)
    latest, steps = ends_ns.max(axis=0), len(window(drawn.run))
    block_ns = sum(stats.block_durations_ns(latest, trace.blocks))
    skews = latest - ends_ns.mean(axis=0)
    apart = sum(skews[stop - 1] - skews[first - 1] for first, stop in trace.blocks) / steps
    assert breakdown.skew_ns == pytest.approx(apart, abs=1e-2)
    assert breakdown.skew_ns == pytest.approx(block_ns / steps - breakdown.step_ns, abs=1e-2)
    speed = drawn.run.global_batch_size / (breakdown.step_ns + breakdown.skew_ns) * 1e9
    assert measure(trace).throughput == pytest.approx(speed, rel=1e-9)
    pauses = [latest[after[0] - 1] - latest[before[1] - 1] for before, after in pairwise(drawn.run.blocks)]
    assert list(breakdown.pauses_ns) == pauses


@many
@given(drawn_runs(), st.integers(1, 300))
def test_the_size_of_the_pieces_changes_nothing(recipe, at_once):
    drawn = recipe.drawn()
    whole = step_breakdown(drawn.simulated.trace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(terms, "READ_AT_ONCE", at_once)
        pieces = step_breakdown(drawn.simulated.trace)
    np.testing.assert_allclose(pieces.rank_ns, whole.rank_ns, rtol=1e-12, atol=FLOAT_NS)
    assert pieces.skew_ns == pytest.approx(whole.skew_ns, abs=1e-2)
    assert (pieces.median_step_ns, pieces.problems) == (whole.median_step_ns, whole.problems)


# Missing stamps


@many
@given(drawn_runs(timing="step"))
def test_timing_of_steps_leaves_data_and_one_term_of_the_rest(recipe):
    drawn = recipe.drawn()
    breakdown, steps = step_breakdown(drawn.simulated.trace), window(drawn.run)
    assert breakdown.borders == {"batch_ready"}
    assert terms.names(breakdown.borders) == ("data", "compute+wait+communication+optimizer")
    assert [border for border, *_ in breakdown.merged.missing] == ["grads_ready", "reduced"]
    expected = true_terms(drawn)[:, steps].mean(axis=1)
    merged = terms.merge(breakdown.rank_ns, breakdown.borders)
    slack = 2 * max(bounds_ns(drawn, stamp)[:, steps].max() for stamp in (BEGIN, BATCH_READY, END))
    assert np.abs(merged - np.stack([expected[:, 0], expected[:, 1:].sum(axis=1)], axis=1)).max() <= slack + FLOAT_NS
    assert breakdown.at_begin == (breakdown.arrivals is not None)


@many
@given(drawn_runs(absent=(0.0005, 0.01, 0.5)))
def test_steps_that_lack_a_stamp_are_in_no_term_or_lose_its_border_where_they_are_most(recipe):
    drawn = recipe.drawn()
    trace, steps = drawn.simulated.trace, window(drawn.run)
    breakdown = step_breakdown(trace)
    lacking = {
        border: (trace.stamps[:, steps, STAMPS.index(border)] == ABSENT).any(axis=0)
        for border in ("batch_ready", "grads_ready", "reduced")
    }
    lost, few = set(), {border: its for border, its in lacking.items() if its.any()}
    while few and np.any([*few.values()], axis=0).mean() > 0.5:
        lost.add(max(few, key=lambda border: few[border].sum()))
        few = {border: its for border, its in few.items() if border not in lost}
    omitted = np.any([*few.values(), np.zeros(len(steps), bool)], axis=0)
    assert breakdown.borders == EVERY_BORDER - lost - ({"last_grads_ready"} if "grads_ready" in lost else set())
    assert (
        [border for border, *_ in breakdown.merged.missing if breakdown.merged]
        == ([border for border in lacking if border in lost])
        if lost
        else not breakdown.merged or not breakdown.merged.missing
    )
    unsplit = breakdown.merged and breakdown.merged.unsplit
    assert (unsplit.steps if unsplit else 0) == omitted.sum()
    counted = steps[~omitted]
    expected = terms.merge(true_terms(drawn)[:, counted].mean(axis=1), breakdown.borders)
    merged = terms.merge(breakdown.rank_ns, breakdown.borders)
    if unsplit:
        whole_ns = true_terms(drawn)[:, steps].sum(axis=2).mean()
        mean_ns = (unsplit.mean * unsplit.steps + unsplit.others * (len(steps) - unsplit.steps)) * 1e6 / len(steps)
        assert mean_ns == pytest.approx(whole_ns, abs=2 * np.nanmax(bounds_ns(drawn, END)[:, steps]) + 1)
    assert merged.shape == (drawn.run.ranks, len(terms.names(breakdown.borders)))
    widest = np.nanmax([bounds_ns(drawn, stamp)[:, steps] for stamp in (BEGIN, END)])
    assert np.abs(merged - expected).max() <= 2 * widest + FLOAT_NS
    assert breakdown.mean_ns.sum() == pytest.approx(breakdown.step_ns, rel=1e-12)


@pytest.mark.parametrize(
    ("step", "stamp", "unsplit", "uncompared"),
    [
        (12, BATCH_READY, ("batch_ready",), {12}),
        (12, FORWARD_END, (), set()),
        (12, GRADS_READY, ("grads_ready",), {12}),
        (12, REDUCED, ("reduced",), {12, 13}),  # what a rank does to be ready begins where it was let go
        (29, BATCH_READY, (), set()),  # the step before the second block
        (29, GRADS_READY, (), set()),
        (29, REDUCED, (), {30}),
        (26, REDUCED, (), set()),  # the steps through which it is entered
    ],
)
def test_a_step_that_lacks_one_stamp_of_one_rank_is_in_no_term(step, stamp, unsplit, uncompared):
    generator = np.random.default_rng(0)
    run = make_run(nodes=2, ranks_per_node=2, measured_steps=40, block_steps=20)
    assert run.blocks == [[5, 25], [30, 50]]
    absent = np.zeros((run.ranks, run.steps, len(STAMPS)), bool)
    absent[1, step, stamp] = True
    durations = equal_ranks(generator, run.ranks, run.steps)
    breakdown = step_breakdown(simulate(run, durations, draw_clocks(generator, 2), generator, absent=absent).trace)
    assert breakdown.borders == EVERY_BORDER and not breakdown.at_begin
    omitted = breakdown.merged.unsplit if breakdown.merged else None
    assert (omitted.borders, omitted.steps, omitted.of_steps) == (unsplit, 1, 40) if unsplit else omitted is None
    assert {*range(5, 25), *range(30, 50)} - {*breakdown.arrivals.steps.tolist()} == uncompared
