"""What the exact stamps bear out of a verdict, in tests.truth.fault_run: equal ranks are late by chance, too."""

from __future__ import annotations

import numpy as np
import pytest

from parse.ledger.verdict import PERSISTENT, ROTATING, TRANSIENT, Nobody, Straggler, Verdict
from tests.truth.exact import CAUSES, TERMS, Truth
from tests.truth.fault_exact import Exact, bears_out, somebody_late
from tests.truth.fault_schedule import WARMUP, WINDOW
from tests.truth.verdicts import beside_others

pytestmark = pytest.mark.all

RANKS, STEP_MS = 4, 35.0
EVERY_TENTH = tuple(range(WARMUP, WARMUP + WINDOW, 10))


def runs_of(late_ms: float = 0.0, *, every: int = 1, rank: int = 2, seed: int = 0, scatter: float = 0.5) -> list[Exact]:
    """Two windows of ranks whose compute scatters by so many ms, one of which takes longer in every so many steps."""
    random = np.random.default_rng(seed)
    runs = []
    for _ in range(2):
        causes = np.zeros((RANKS, WINDOW, len(CAUSES)))
        causes[..., CAUSES.index("compute")] = 20 + random.exponential(scatter, (RANKS, WINDOW))
        causes[rank, ::every, CAUSES.index("compute")] += late_ms
        terms = np.full((RANKS, WINDOW, len(TERMS)), STEP_MS / len(TERMS))
        runs.append(Exact(truth=Truth(terms=terms, causes=causes), steps=np.arange(WARMUP, WARMUP + WINDOW)))
    return runs


def persistent(ms: float, rank: int = 2, phase: str = "compute", in_runs: int = 2) -> Verdict:
    return Straggler(
        kind=PERSISTENT, ranks=(rank,), arrival_skew=ms, cause={"data": 0.0} | {phase: ms}, in_runs=in_runs, of_runs=2
    )


def transient(ms: float, *run_steps: tuple[int, ...]) -> Verdict:
    return Straggler(kind=TRANSIENT, ranks=(2,), arrival_skew=ms, cause={"compute": ms}, run_steps=run_steps)


def test_who_was_late_in_both_runs_is_borne_out() -> None:
    late = runs_of(3.0)
    assert bears_out(persistent(3.0), late) and somebody_late(late)
    assert bears_out(persistent(3.0), late, faulty=[1])


@pytest.mark.parametrize(
    "wrong",
    [
        persistent(3.0, rank=1), persistent(5.0), persistent(3.0, phase="optimizer"), Nobody(),
        Straggler(kind=ROTATING, ranks=(2,), arrival_skew=3.0, cause={"compute": 3.0}), transient(3.0, EVERY_TENTH, ()),
    ],
    ids=["another rank", "another size", "another phase", "nobody", "by turns", "in a tenth of its steps"],
)  # fmt: skip
def test_another_rank_size_phase_or_kind_is_not_borne_out(wrong: Verdict) -> None:
    assert not bears_out(wrong, runs_of(3.0))


def test_equal_ranks_are_late_by_chance_and_that_bears_out_nobody() -> None:
    """Each rank is late in half of the steps, and some rank the latest in most of them; its figures are right."""
    for seed in range(20):
        equal = runs_of(seed=seed, scatter=5.0)
        latest = int(np.mean([run.later.mean(axis=1) for run in equal], axis=0).argmax())
        late_ms = np.mean([beside_others(run.truth.entries, run.truth.entries)[latest].mean() for run in equal])
        assert not bears_out(persistent(float(late_ms), rank=latest), equal)
        assert not somebody_late(equal)
