"""The truth that ledgers are held against: two ways to it agree where nothing but sleeps takes time, and it is seen
where a ledger says something else."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from hpc.model.trace import Trace, TraceError
from hpc.model.trace_file import write_trace
from parse.ledger.point import ledgers
from parse.ledger.types import Ledger
from parse.ledger.verdict import NONE, PERSISTENT
from parse.runs.load import load
from parse.runs.result import results
from parse.stats import Mean
from tests.truth.cases import NOBODY, RANKS, Expected
from tests.truth.compare import compare
from tests.truth.exact import PHASES, known_of
from tests.unit.traces import make_ranks, make_run, make_trace

pytestmark = pytest.mark.all

MS = 1_000_000
STEPS, WARMUP = 46, 5
"""40 and one measured steps: no number of equal pieces."""
AHEAD_S = 1000
LATE = Expected(kinds=(PERSISTENT,), ranks=(3,), cause="optimizer")


def trace_of(injected_ns: npt.NDArray[np.int64], **changes: object) -> Trace:
    """A run [rank, step, phase] of 2 nodes × 2 ranks in which nothing but these sleeps takes time."""
    run = make_run(nodes=2, ranks_per_node=2, warmup_steps=WARMUP, measured_steps=STEPS - WARMUP, **changes)
    stamps = np.zeros((RANKS, STEPS, 6), np.int64)
    end = np.zeros(RANKS, np.int64)
    for step in range(STEPS):
        data, compute, communication, optimizer = injected_ns[:, step].T
        ready = end + data
        grads = ready + compute
        reduced = grads.max() + communication
        stamps[:, step] = np.stack([end, ready, grads, grads, reduced, reduced + optimizer], axis=1)
        end = stamps[:, step, 5]
    nodes = np.arange(RANKS) // 2 + 1
    ahead_ns = (nodes * AHEAD_S * 10**9)[:, None, None]
    points = np.array([[-MS, stamps.max() + MS]]) + ahead_ns[:, :, 0]
    offsets_ns = np.repeat((ahead_ns[0, :, 0] - ahead_ns[:, :, 0]).astype(np.float64), 2, axis=1)
    ranks = [facts | {"hostname": f"node{node}"} for facts, node in zip(make_ranks(run), nodes, strict=True)]
    return make_trace(
        run, stamps=stamps + ahead_ns, ranks=ranks, injected_ns=injected_ns, injected_phases=PHASES,
        clock_local_ns=points, clock_offset_ns=offsets_ns,
        clock_bound_ns=np.repeat([[0.0, 0.0], [4000.0, 4000.0]], 2, axis=0),
        clock_domains=[f"node{node}" for node in nodes], barrier_exits_ns=points,
    )  # fmt: skip


def sleeps() -> npt.NDArray[np.int64]:
    """Random ones, not equal in any step; those of rank 3 in its optimizer step are 10 ms longer."""
    random = np.random.default_rng(5)
    means_ms = np.array([2.0, 10.0, 3.0, 1.0])
    injected_ns = (random.uniform(0.9, 1.1, (RANKS, STEPS, len(PHASES))) * means_ms * MS).astype(np.int64)
    injected_ns[3, :, 3] += 10 * MS
    return injected_ns


def ledger_of(folder: Path, trace: Trace) -> Ledger:
    write_trace(folder / f"{trace.run_id}.1.h5", trace)
    (ledger,) = ledgers(results(load([folder])))
    return ledger


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Ledger]:
    trace = trace_of(sleeps())
    return trace, ledger_of(tmp_path_factory.mktemp("late"), trace)


def test_a_ledger_that_is_right_has_no_miss(late: tuple[Trace, Ledger]) -> None:
    trace, ledger = late
    known = known_of(trace, AHEAD_S)
    compared = compare(ledger, [known], LATE, measured=True)
    assert compared.misses == ()
    assert compared.from_stamped_ms < 1e-4
    assert compared.from_slept_ms < 0.2


def test_what_a_ledger_says_otherwise_is_missed(late: tuple[Trace, Ledger]) -> None:
    trace, ledger = late
    known = known_of(trace, AHEAD_S)
    more = dataclasses.replace(ledger.terms[0], mean=Mean(value=ledger.terms[0].mean.value + 0.1))
    for wrong, words in (
        (dataclasses.replace(ledger, step=Mean(value=ledger.step.value + 0.1)), "mean step"),
        (dataclasses.replace(ledger, terms=(*ledger.terms[:4], ledger.terms[3])), "should not be merged"),
        (dataclasses.replace(ledger, terms=(more, *ledger.terms[1:])), "mean data"),
        (dataclasses.replace(ledger, ranks=(*ledger.ranks[:3], ledger.ranks[0])), "rank 3 wait"),
        (dataclasses.replace(ledger, verdict=dataclasses.replace(ledger.verdict, kind=NONE)), "true is persistent"),
        (dataclasses.replace(ledger, verdict=dataclasses.replace(ledger.verdict, ranks=(2,))), "true is rank 3"),
        (dataclasses.replace(ledger, verdict=dataclasses.replace(ledger.verdict, arrival_skew=12.0)), "arrival skew"),
        (dataclasses.replace(ledger, verdict=dataclasses.replace(ledger.verdict, cause={"data": 10.0})), "not data"),
        (dataclasses.replace(ledger, verdict=dataclasses.replace(ledger.verdict, share=0.5)), "true is in all"),
    ):
        misses = compare(wrong, [known], LATE, measured=True).misses
        assert any(words in miss.text and not miss.machine for miss in misses), words


def test_a_sleep_under_another_name_is_missed(late: tuple[Trace, Ledger]) -> None:
    """What all ranks take is background, but not where a sleep is that should show up elsewhere."""
    trace, ledger = late
    injected_ns = sleeps()
    injected_ns[:, :, PHASES.index("compute")] += injected_ns[:, :, PHASES.index("transfer")]
    injected_ns[:, :, PHASES.index("transfer")] = 0
    known = known_of(dataclasses.replace(trace, injected_ns=injected_ns), AHEAD_S)
    assert any("mean compute" in miss.text for miss in compare(ledger, [known], LATE, measured=True).misses)


def test_nobody_is_late_where_nobody_was(tmp_path: Path) -> None:
    injected_ns = sleeps()
    injected_ns[3, :, 3] -= 10 * MS
    trace = trace_of(injected_ns)
    ledger = ledger_of(tmp_path, trace)
    assert compare(ledger, [known_of(trace, AHEAD_S)], NOBODY, measured=True).misses == ()


def test_a_trace_without_sleeps_is_refused() -> None:
    trace = dataclasses.replace(trace_of(sleeps()), injected_ns=None, injected_phases=())
    with pytest.raises(TraceError, match="no sleeps are recorded"):
        known_of(trace, AHEAD_S)
