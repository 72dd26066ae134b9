"""The truth that ledgers are held against: two ways to it agree where nothing but sleeps takes time, and it is seen
where a ledger says something else."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from hpc.model.timestamps import ABSENT
from hpc.model.trace import Trace, TraceError
from hpc.model.trace_file import write_trace
from parse.ledger.point import ledgers
from parse.ledger.types import NONE, PERSISTENT, TRANSIENT, Ledger, Mean
from parse.runs.load import load
from parse.runs.result import results
from tests.truth.cases import NOBODY, RANKS, SWEEPS, UNDELAYED, Expected
from tests.truth.compare import compare, compare_loss
from tests.truth.exact import PHASES, known_of, spent_in_meetings
from tests.truth.verdicts import arrival_skew, held_against, step_without_ms
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


def test_both_truths_are_one_where_nothing_else_takes_time(late: tuple[Trace, Ledger]) -> None:
    known = known_of(late[0], AHEAD_S)
    np.testing.assert_allclose(known.stamped.terms, known.slept.terms, rtol=0, atol=1e-9)
    np.testing.assert_allclose(known.stamped.causes, known.slept.causes, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(known.steps, np.arange(WARMUP, STEPS))
    # An optimizer step is waited for one step later.
    assert known.slept.per_rank[3].round(-1).tolist() == [0, 10, 0, 0, 10]
    assert known.slept.per_rank[0].round(-1).tolist() == [0, 10, 10, 0, 0]


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


def test_a_machine_that_was_slow_is_no_error_of_the_ledger(late: tuple[Trace, Ledger]) -> None:
    """Where a rank needed more than it slept, the ledger is right by the exact stamps."""
    trace, ledger = late
    injected_ns = sleeps()
    injected_ns[1, :, 0] -= 2 * MS  # as if this rank had slept 2 ms less than its data took
    known = known_of(dataclasses.replace(trace, injected_ns=injected_ns), AHEAD_S)
    misses = compare(ledger, [known], LATE, measured=True).misses
    assert [miss.machine for miss in misses] and all(miss.machine for miss in misses)
    assert "rank 1 data" in misses[0].text


def test_what_ranks_spend_in_meetings_by_hand() -> None:
    """Rank 1 is 7 ms late at an all-reduce of 2 ms; nobody waits until it receives rank 0's broadcast."""
    stamps = np.zeros((2, 1, 6), np.int64)
    stamps[:, 0] = np.array([0, 20, 20, 30, 40, 50]) * MS
    meetings = np.zeros((2, 1, 2, 3), np.int64)
    meetings[0, 0] = np.array([(1, 2, 10), (22, 22, 23)]) * MS
    meetings[1, 0] = np.array([(8, 8, 10), (28, 28, 29)]) * MS
    meetings[1, 0, 1, 1] = ABSENT  # it began to wait when it called
    spent = spent_in_meetings(stamps, (0, 0), meetings, (-1, 0)) / MS
    assert spent[:, 0, 0].tolist() == [[6, 2], [0, 2]]
    assert spent[:, 0, 1].tolist() == [[0, 1], [0, 1]]
    assert not spent[:, 0, 2].any()
    ahead = spent_in_meetings(
        stamps + 9 * MS, (9 * MS, 9 * MS), np.where(meetings == ABSENT, ABSENT, meetings + 9 * MS), (-1, 0)
    )
    assert (ahead == spent * MS).all()


def test_a_step_without_the_sleeps_of_the_late_rank(late: tuple[Trace, Ledger]) -> None:
    """Rank 3 sleeps 10 ms longer in its optimizer: without that a step is as long as the random sleeps make it."""
    known = known_of(late[0], AHEAD_S)
    stragglers = np.arange(RANKS)[:, None] == 3
    step_ms = known.stamped.terms.sum(axis=2).mean()
    assert 9 < step_ms - step_without_ms(known, stragglers & np.ones((1, len(known.steps)), bool)) < 11
    assert step_without_ms(known, np.zeros((RANKS, len(known.steps)), bool)) == pytest.approx(step_ms)


def test_arrival_skew_by_hand() -> None:
    """Ranks 0, 1, 2 come after 1, 2 and 9 ms: without rank 2 a step is 7 ms shorter."""
    trace = trace_of(np.zeros((RANKS, STEPS, len(PHASES)), np.int64))
    known = known_of(trace, AHEAD_S)
    causes = np.zeros((3, 2, 4))
    causes[:, :, 2] = [[1, 1], [2, 2], [9, 9]]
    skew = arrival_skew(
        dataclasses.replace(known.slept, causes=causes), np.array([[False], [False], [True]]) & np.ones(2, bool)
    )
    assert (skew.skew, skew.costs, skew.cause.tolist()) == (7.0, 7.0, [0.0, 0.0, 7.0, 0.0])


def test_losses_are_held_against_the_stamps(late: tuple[Trace, Ledger]) -> None:
    trace, ledger = late
    known = known_of(trace, AHEAD_S)
    assert ["none is given" in miss.text for miss in compare_loss(ledger, [known], [known])] == [True] * 5


def test_a_trace_without_sleeps_is_refused() -> None:
    trace = dataclasses.replace(trace_of(sleeps()), injected_ns=None, injected_phases=())
    with pytest.raises(TraceError, match="no sleeps are recorded"):
        known_of(trace, AHEAD_S)


def test_fifty_delays_have_runs_without_them_and_each_run_is_of_one_sweep() -> None:
    assert all(len(sweep.undelayed) in (len(UNDELAYED), len(sweep.cases)) for sweep in SWEEPS)
    assert sum(bool(expected.ranks) for sweep in SWEEPS for expected in sweep.cases.values()) >= 50
    for sweep in SWEEPS:
        for value in sweep.cases:
            varied = {sweep.varied: value}
            options, env = (sweep.options | varied, {}) if sweep.is_option else (sweep.options, varied)
            run = make_run(
                nodes=2, ranks_per_node=2, backend=sweep.backend, workload=sweep.workload, options=options, env=env
            )
            assert [other.value_of(run) for other in SWEEPS if other.value_of(run)] == [value]


def test_a_verdict_on_equal_ranks_that_the_stamps_bear_out_is_the_machines(late: tuple[Trace, Ledger]) -> None:
    trace, ledger = late
    known = known_of(trace, AHEAD_S)
    misses = list(held_against(ledger.verdict, [known], NOBODY, measured=True))
    assert [miss.machine for miss in misses] == [True]
    other = dataclasses.replace(ledger.verdict, ranks=(2,))
    assert [miss.machine for miss in held_against(other, [known], NOBODY, measured=True)] == [False]


def test_a_delay_in_noise_of_its_size_may_be_overlooked(late: tuple[Trace, Ledger]) -> None:
    trace, ledger = late
    none = dataclasses.replace(ledger.verdict, kind=NONE, ranks=())
    noisy = trace.stamps.copy()
    noisy[0, ::2, 3] += 2 * MS
    noisy[1, 1::2, 3] += 2 * MS
    for stamps, machine in ((trace.stamps, False), (noisy, True)):
        known = known_of(dataclasses.replace(trace, stamps=stamps), AHEAD_S)
        assert [miss.machine for miss in held_against(none, [known], LATE, measured=True)] == [machine]


@pytest.mark.parametrize("incident_ms", [0, 75])
def test_an_incident_of_another_rank_hides_no_step_of_its_size(tmp_path: Path, incident_ms: int) -> None:
    """Rank 3 sleeps 140 ms in every fifth step; in one the machine holds the others up, so that it is 78 ms late."""
    requested = sleeps()
    requested[3, :, 3] -= 10 * MS
    requested[3, ::5, 1] += 140 * MS
    happened = requested.copy()
    happened[:3, 15, 1] += 62 * MS
    happened[0, 17, 1] += incident_ms * MS
    trace = dataclasses.replace(trace_of(happened), injected_ns=requested)
    (run,) = ledger_of(tmp_path, trace).runs
    assert run.verdict.steps == (5, 10, 15, 20, 25, 30, 35, 40, 45)
    expected = Expected(kinds=(TRANSIENT,), ranks=(3,), cause="compute", every=5)
    against = held_against(run.verdict, [known_of(trace, AHEAD_S)], expected, measured=False)
    assert not [miss for miss in against if not miss.machine]
