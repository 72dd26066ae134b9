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
from parse.attempt import measure
from parse.ledger import breakdown as terms
from parse.ledger.breakdown import BORDERS, step_breakdown, step_terms
from parse.ledger.types import TERMS
from tests.unit.simulated import JITTERS, MS, Durations, Simulated, draw_clocks, equal_ranks, simulate
from tests.unit.traces import make_run

EVERY_BORDER = frozenset(BORDERS)
DATA, COMPUTE, WAIT, TRANSFER, UPDATE = range(len(TERMS))
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


PHASES = ("data", "forward", "backward", "leave", "update", "transfer")


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
    return np.stack([d.data, d.forward + d.backward, waits, d.transfer + d.leave, d.update], axis=2)


def window(run: RunSpec) -> np.ndarray:
    """Which steps are measured."""
    return np.concatenate([np.arange(first, past) for first, past in run.blocks])


def bounds_ns(drawn: Drawn, stamp: int) -> np.ndarray:
    """How far each moment may be off, [rank, step]."""
    return drawn.simulated.trace.bounds_ns(stamp, np.arange(drawn.run.steps))


# The simulation itself


@many
@given(drawn_runs())
def test_the_simulated_clocks_are_as_good_as_they_say(recipe):
    drawn = recipe.drawn()
    trace, truth_ns = drawn.simulated.trace, drawn.simulated.global_ns
    found_ns = trace.global_stamps(0, drawn.run.steps)
    for stamp in range(len(STAMPS)):
        assert (np.abs(found_ns - truth_ns)[:, :, stamp] <= bounds_ns(drawn, stamp)).all()
    assert (np.diff(truth_ns, axis=2) >= 0).all()
    assert (np.diff(trace.stamps, axis=2) >= 0).all()


# Terms


@many
@given(drawn_runs())
def test_terms_of_the_true_times_are_what_the_steps_consist_of(recipe):
    drawn = recipe.drawn()
    wanted = true_terms(drawn)
    for first, past in drawn.run.blocks:
        found = step_terms(drawn.simulated.global_ns[:, first - 1 : past], EVERY_BORDER)
        np.testing.assert_array_equal(found, wanted[:, first:past])


@many
@given(drawn_runs(), st.sets(st.sampled_from(BORDERS)))
def test_terms_add_up_to_the_step_to_the_nanosecond(recipe, borders):
    drawn = recipe.drawn()
    for first, past in drawn.run.blocks:
        stamps_ns = drawn.simulated.trace.global_stamps(first - 1, past)
        found = step_terms(stamps_ns, frozenset(borders))
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found.sum(axis=2), np.diff(stamps_ns[:, :, END], axis=1))


@many
@given(drawn_runs())
def test_terms_are_no_further_from_the_truth_than_the_clocks_allow(recipe):
    drawn = recipe.drawn()
    wanted = true_terms(drawn)
    begin, ready, grads, reduced, end = (
        bounds_ns(drawn, stamp) for stamp in (BEGIN, BATCH_READY, GRADS_READY, REDUCED, END)
    )
    last = grads.max(axis=0)
    allowed = np.stack([begin + ready, ready + grads, grads + last, reduced + last, reduced + end], axis=2)
    for first, past in drawn.run.blocks:
        found = step_terms(drawn.simulated.trace.global_stamps(first - 1, past), EVERY_BORDER)
        assert (np.abs(found - wanted[:, first:past]) <= allowed[:, first:past]).all()


# Means over the window


@many
@given(drawn_runs())
def test_means_add_up_and_are_those_of_the_steps(recipe):
    drawn = recipe.drawn()
    found = step_breakdown(drawn.simulated.trace)
    exact = np.concatenate(
        [
            step_terms(drawn.simulated.trace.global_stamps(first - 1, past), EVERY_BORDER)
            for first, past in drawn.run.blocks
        ],
        axis=1,
    )
    np.testing.assert_allclose(found.rank_ns, exact.mean(axis=1), rtol=1e-12, atol=FLOAT_NS)
    assert found.mean_ns.sum() == pytest.approx(found.step_ns, rel=1e-12)
    assert found.step_ns == pytest.approx(exact.sum(axis=2).mean(), rel=1e-12)
    assert found.borders == EVERY_BORDER
    assert found.merged == ""
    assert found.problems == ()


@many
@given(drawn_runs())
def test_means_are_no_further_from_the_truth_than_the_clocks_allow(recipe):
    drawn = recipe.drawn()
    found, steps = step_breakdown(drawn.simulated.trace), window(drawn.run)
    wanted = true_terms(drawn)[:, steps].mean(axis=1)
    widest = max(bounds_ns(drawn, stamp)[:, steps].max() for stamp in (BEGIN, END))
    assert np.abs(found.rank_ns - wanted).max() <= 2 * widest + FLOAT_NS


@many
@given(drawn_runs())
def test_the_throughput_has_more_than_the_mean_step_what_the_ranks_ends_drift_apart(recipe):
    drawn = recipe.drawn()
    trace, found = drawn.simulated.trace, step_breakdown(drawn.simulated.trace)
    ends_ns = trace.to_global(END)
    steps = len(window(drawn.run))
    block_ns = sum(stats.block_durations_ns(ends_ns.max(axis=0), trace.blocks))
    skews = ends_ns.max(axis=0) - ends_ns.mean(axis=0)
    apart = sum(skews[past - 1] - skews[first - 1] for first, past in trace.blocks) / steps
    assert found.skew_ns == pytest.approx(apart, abs=1e-2)
    assert found.skew_ns == pytest.approx(block_ns / steps - found.step_ns, abs=1e-2)
    assert measure(trace).throughput == pytest.approx(
        drawn.run.global_batch_size / (found.step_ns + found.skew_ns) * 1e9, rel=1e-9
    )


@many
@given(drawn_runs())
def test_pauses_are_what_lies_between_the_blocks(recipe):
    drawn = recipe.drawn()
    found = step_breakdown(drawn.simulated.trace)
    latest = drawn.simulated.trace.to_global(END).max(axis=0)
    blocks = drawn.run.blocks
    wanted = [latest[after[0] - 1] - latest[before[1] - 1] for before, after in pairwise(blocks)]
    assert list(found.pauses_ns) == wanted


@many
@given(drawn_runs(), st.integers(1, 300))
def test_the_size_of_the_pieces_changes_nothing(recipe, at_once):
    drawn = recipe.drawn()
    whole = step_breakdown(drawn.simulated.trace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(terms, "PIECE_STAMPS", at_once)
        pieces = step_breakdown(drawn.simulated.trace)
    np.testing.assert_allclose(pieces.rank_ns, whole.rank_ns, rtol=1e-12, atol=FLOAT_NS)
    assert pieces.skew_ns == pytest.approx(whole.skew_ns, abs=1e-2)
    assert pieces.median_step_ns == whole.median_step_ns
    assert pieces.problems == whole.problems


# Missing stamps


@many
@given(drawn_runs(timing="step"))
def test_timing_of_steps_leaves_data_and_one_term_of_the_rest(recipe):
    drawn = recipe.drawn()
    found, steps = step_breakdown(drawn.simulated.trace), window(drawn.run)
    assert found.borders == {"batch_ready"}
    assert terms.names(found.borders) == ("data", "compute+communication+update")
    assert "grads_ready" in found.merged
    wanted = true_terms(drawn)[:, steps].mean(axis=1)
    merged = terms.merge(found.rank_ns, found.borders)
    slack = 2 * max(bounds_ns(drawn, stamp)[:, steps].max() for stamp in (BEGIN, BATCH_READY, END))
    assert np.abs(merged - np.stack([wanted[:, 0], wanted[:, 1:].sum(axis=1)], axis=1)).max() <= slack + FLOAT_NS
    assert found.arrivals is None


@many
@given(drawn_runs(absent=(0.0005, 0.01, 0.5)))
def test_a_border_that_is_missing_anywhere_is_no_border(recipe):
    drawn = recipe.drawn()
    trace, steps = drawn.simulated.trace, window(drawn.run)
    found = step_breakdown(trace)
    # What makes a rank late is counted from where it left the reduction before: in the step before a block, too.
    looked_at = {"batch_ready": steps, "grads_ready": steps, "reduced": np.union1d(steps, steps - 1)}
    known = {
        border for border, its in looked_at.items() if (trace.stamps[:, its, STAMPS.index(border)] != ABSENT).all()
    }
    known |= {"last_grads_ready"} & {border.replace("grads", "last_grads") for border in known}
    before = [first - 1 for first, _ in drawn.run.blocks]  # what makes a rank late begins where it was let go
    if (trace.stamps[:, before, STAMPS.index("reduced")] == ABSENT).any():
        known -= {"reduced"}
    assert found.borders == known
    assert bool(found.merged) == (found.borders != EVERY_BORDER)
    wanted = terms.merge(true_terms(drawn)[:, steps].mean(axis=1), found.borders)
    merged = terms.merge(found.rank_ns, found.borders)
    assert merged.shape == (drawn.run.ranks, len(terms.names(found.borders)))
    widest = np.nanmax([bounds_ns(drawn, stamp)[:, steps] for stamp in (BEGIN, END)])
    assert np.abs(merged - wanted).max() <= 2 * widest + FLOAT_NS
    assert found.mean_ns.sum() == pytest.approx(found.step_ns, rel=1e-12)


@pytest.mark.parametrize(
    ("step", "stamp", "lost"),
    [
        (12, BATCH_READY, {"batch_ready"}),
        (12, FORWARD_END, set()),
        (12, GRADS_READY, {"grads_ready", "last_grads_ready"}),
        (12, REDUCED, {"reduced"}),
        (29, BATCH_READY, set()),  # the step before the second block
        (29, GRADS_READY, set()),
        (29, REDUCED, {"reduced"}),
        (26, REDUCED, set()),  # the steps through which it is entered
    ],
)
def test_one_stamp_that_is_missing_takes_its_border_and_no_other(step, stamp, lost):
    generator = np.random.default_rng(0)
    run = make_run(nodes=2, ranks_per_node=2, measured_steps=40, block_steps=20)
    assert run.blocks == [[5, 25], [30, 50]]
    absent = np.zeros((run.ranks, run.steps, len(STAMPS)), bool)
    absent[1, step, stamp] = True
    durations = equal_ranks(generator, run.ranks, run.steps)
    found = step_breakdown(simulate(run, durations, draw_clocks(generator, 2), generator, absent=absent).trace)
    assert found.borders == EVERY_BORDER - lost
    assert (found.arrivals is None) == ("grads_ready" in lost)
