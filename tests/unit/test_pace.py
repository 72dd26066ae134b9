"""Loaders that set the pace: what a change is worth then, against the same training without what is changed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hpc.model.trace import Trace
from hpc.model.trace_file import write_trace
from parse.ledger.graph_what_if import ReplayCase
from parse.ledger.pace import NEVER, may_set_pace, pace_of
from parse.ledger.types import Change
from parse.ledger.what_if import replayed_speeds
from parse.runs.attempt import measure
from parse.summarize import main
from parse.term_kinds import TERMS
from tests.unit.ledger_traces import run_of, trace_of

RUN = run_of(nodes=1, ranks_per_node=3, measured_steps=150)
COMMUNICATION, OPTIMIZER, BESIDE = 2.0, 3.0, (30.0, 0.0)
"""ms; of a loader beside the step: what a batch takes, and what it takes longer on rank 1."""


def trained(more=0.0, every=1, loader=BESIDE, workers=1, itself=0.5, scatter=0.02, noise=0.4, seed=0) -> Trace:
    """Steps of 12 ms of compute, on rank 1 `more` in every so many; batches come from so many workers, which read two
    ahead each, or, of no loader, in the rank's time."""
    random, (ranks, steps) = np.random.default_rng(seed), (RUN.ranks, RUN.steps)
    compute = 12.0 + random.normal(0, noise, (ranks, steps))
    compute[1, every - 1 :: every] += more
    fetching = np.abs(itself + random.normal(0, scatter * itself, (ranks, steps)))
    reads = np.array([[0.0], [loader[1]], [0.0]]) + loader[0] * workers + random.normal(0, noise, (ranks, steps))
    read, ready, end = np.zeros((3, ranks, steps))
    stamps, before = np.zeros((ranks, steps, 6)), np.zeros(ranks)
    for step in range(steps):
        if loader[0]:
            free = read[:, step - workers] if step >= workers else 0.0
            read[:, step] = np.maximum(free, ready[:, step - 2 * workers] if step >= 2 * workers else 0.0)
            read[:, step] += reads[:, step]
        ready[:, step] = np.maximum(before, read[:, step]) + fetching[:, step]
        arrives = ready[:, step] + compute[:, step]
        reduced = np.full(ranks, arrives.max() + COMMUNICATION)
        end[:, step] = reduced + OPTIMIZER
        middle = (ready[:, step] + arrives) / 2
        stamps[:, step] = np.stack([before, ready[:, step], middle, arrives, reduced, end[:, step]], axis=1)
        before = end[:, step]
    trace = trace_of(RUN)
    return dataclasses.replace(trace, stamps=trace.stamps[:, :1, :1] + np.rint(stamps * 1e6).astype(np.int64))


def speed(trace: Trace, change: Change | None, late: tuple[int, ...] | None = None) -> float:
    case = None if change is None else ReplayCase(change=change)
    return replayed_speeds(trace, {*TERMS}, [case], [[((1,), late)]])[0]


def is_paced(trace: Trace) -> list[bool]:
    pace = pace_of(trace)
    return [False] * RUN.ranks if pace is None else (pace.from_ns != NEVER).tolist()


SEEDS = pytest.mark.parametrize("seed", range(3))


@SEEDS
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_where_loaders_set_the_pace_a_rank_with_more_work_costs_nothing(workers, seed):
    late = trained(more=8, workers=workers, seed=seed, itself=0.0)
    usual = measure(trained(workers=workers, seed=seed, itself=0.0)).throughput
    assert any(is_paced(late)) and measure(late).throughput == pytest.approx(usual, rel=0.02)
    for change in (None, Change.STRAGGLER, Change.MEDIAN, Change.COMMUNICATION):
        assert speed(late, change) == pytest.approx(usual, rel=0.02)
    assert speed(late, Change.INPUT) > 1.1 * usual


@SEEDS
@pytest.mark.parametrize("loader", [(0.0, 0.0), (8.0, 0.0)])
@pytest.mark.parametrize(("itself", "noise"), [(0.5, 0.4), (9.0, 0.4), (9.0, 0.02), (9.0, 3.0)])
def test_where_ranks_read_or_compute_at_their_own_pace_it_costs_all_of_it(loader, itself, noise, seed):
    late = trained(more=8, loader=loader, itself=itself, noise=noise, seed=seed)
    usual = measure(trained(loader=loader, itself=itself, noise=noise, seed=seed)).throughput
    assert not any(is_paced(late)) and not may_set_pace(late) and measure(late).throughput < 0.9 * usual
    assert speed(late, Change.STRAGGLER) == pytest.approx(usual, rel=0.03)


@SEEDS
def test_a_delay_during_which_loaders_stand_still_costs_what_it_takes_longer(seed):
    late, usual = trained(more=300, every=30, seed=seed), measure(trained(seed=seed)).throughput
    assert all(is_paced(late)) and measure(late).throughput < 0.8 * usual
    assert usual < speed(late, Change.STRAGGLER, tuple(range(29, RUN.steps, 30))) < 1.1 * usual


@SEEDS
def test_the_rank_whose_loader_is_slower_is_a_straggler(seed):
    late, usual = trained(loader=(30.0, 10.0), seed=seed), measure(trained(seed=seed)).throughput
    assert is_paced(late)[1] and measure(late).throughput < 0.8 * usual
    assert speed(late, Change.STRAGGLER) > 0.9 * usual


def test_a_rank_that_costs_nothing_is_said_to_and_heads_nothing(tmp_path, capsys):
    write_trace(tmp_path / f"{RUN.run_id}.1.h5", trained(more=8, itself=0.0))
    assert main([str(tmp_path), "--ledger", "--what-if"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Rank 1 (n0) computes 8" in text and "The loader sets the pace: little is gained without it." in text
    assert "This costs" not in text and "without the straggler" in text


@pytest.mark.parametrize(("scatter", "is_open"), [(0.7, True), (0.02, False)])
def test_where_a_loader_may_set_the_pace_the_gain_is_the_most_possible(scatter, is_open, tmp_path, capsys):
    late = trained(more=8, loader=(0.0, 0.0), itself=9.0, scatter=scatter)
    assert not any(is_paced(late)) and may_set_pace(late) == is_open
    write_trace(tmp_path / f"{RUN.run_id}.1.h5", late)
    assert main([str(tmp_path), "--ledger", "--what-if", "--verbose"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert ("This costs at most" in text) == ("Without it: at most" in text) == is_open
    assert ("without the straggler: at most" in text) == is_open
    assert ("A loader that reads ahead may set the pace" in text) == is_open
