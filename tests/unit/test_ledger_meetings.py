"""Runs whose ranks meet several times a step: terms, verdicts, and what is unknown."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest

from hpc.model.timestamps import ABSENT, BATCH_READY, END, GRADS_READY, REDUCED
from hpc.model.trace import Trace
from parse.ledger.breakdown import StepBreakdown, gradient_bytes, names, step_breakdown, step_terms
from parse.ledger.graph_what_if import ReplayCase
from parse.ledger.meetings import MeetingKinds, awaited_calls
from parse.ledger.types import Change
from parse.ledger.verdict import CANNOT_TELL, NONE, PERSISTENT, TRANSIENT, Because, Merged, Verdict, VerdictKind
from parse.ledger.verdicts import point_verdicts, verdict
from parse.ledger.what_if import replayed_speeds
from parse.say.reasons import because_text, unseen_text
from parse.term_kinds import BORDERS, TERMS
from tests.unit.ledger_traces import stragglers
from tests.unit.simulated import MS, Durations, Simulated, draw_clocks, equal_ranks
from tests.unit.simulated_meetings import Meeting, of_fsdp, simulate_meetings
from tests.unit.traces import make_run

RANKS = 4
RUN = make_run(nodes=2, ranks_per_node=2, warmup_steps=6, measured_steps=80)
BUFFERS = [Meeting("broadcast of buffers", "forward", root=0)]
NORMS = [Meeting("all-gather", "forward")] * 4 + [Meeting("all-reduce", "backward")] * 4
HEAD = [Meeting(name, "forward") for name in ("features", "labels", "maximum", "sums")]
HEAD += [Meeting("gradients", "backward")]
PLANS = {"buffers": BUFFERS, "norms": NORMS, "head": HEAD, "fsdp": of_fsdp(6)}
CAUSE = {"data": "data", "forward": "compute", "backward": "compute", "optimizer": "optimizer"}
TRANSFER_NS = 200_000
MIN_RIGHT = 0.95
MAX_ACCUSED = 0.03


def run_with(
    plan: list[Meeting], *delays: tuple[str, int, float], seed: int = 0, jitter: str = "normal", spread: float = 0.05
) -> Simulated:
    """The run with these delays, each (phase, rank, ms in every step)."""
    random = np.random.default_rng([seed, len(plan)])
    durations = equal_ranks(random, RANKS, RUN.steps, jitter=jitter, spread=spread)
    for phase, rank, ms in delays:
        durations = longer(durations, phase, rank, ms)
    return simulate_meetings(RUN, durations, plan, draw_clocks(random, RUN.nodes), random)


def longer(durations: Durations, phase: str, rank: int, ms: float) -> Durations:
    where = np.repeat(np.arange(RANKS)[:, None] == rank, RUN.steps, axis=1)
    return durations.longer(phase, where, round(ms * MS))


def judged(simulated: Simulated) -> Verdict:
    return verdict(step_breakdown(simulated.trace))


# Terms


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_terms_are_those_of_the_truth_and_add_up_to_the_nanosecond(plan: list[Meeting]) -> None:
    simulated = run_with(plan, ("forward", 2, 5), ("data", 1, 3))
    stamps = simulated.global_ns
    assert simulated.trace.meetings is not None
    met = simulated.trace.globally(simulated.trace.meetings)
    kinds = MeetingKinds(names=tuple(m.name for m in plan), roots=tuple(m.root for m in plan))
    terms = step_terms(stamps, frozenset(BORDERS), awaited_calls(met, kinds, 50_000))
    steps = stamps[:, 1:, END] - stamps[:, :-1, END]
    assert (terms.sum(axis=2) == steps).all()
    for rank, step in product(range(RANKS), range(0, RUN.steps - 1, 9)):
        # Who comes while a broadcast is under way counts as waited for: what belongs to the transfer is not known.
        allowed_ns = TRANSFER_NS if plan is BUFFERS else 0
        assert terms[rank, step] == pytest.approx(by_hand(stamps, met, plan, rank, step + 1), abs=allowed_ns, rel=0)


def by_hand(stamps: Any, meetings: Any, plan: list[Meeting], rank: int, step: int) -> list[int]:
    """The five terms of one rank and step, one meeting after the other."""
    before, now = stamps[rank, step - 1], stamps[rank, step]
    last = int(stamps[:, step, GRADS_READY].max())
    terms = [
        int(now[BATCH_READY] - before[END]), int(now[GRADS_READY] - now[BATCH_READY]), last - int(now[GRADS_READY]),
        int(now[REDUCED]) - last, int(now[END] - now[REDUCED]),
    ]  # fmt: skip
    for at, meeting in enumerate(plan):
        _, begins, ends = (int(moment) for moment in meetings[rank, step, at])
        called = meetings[:, step, at, 0]
        needed = int(called.max() if meeting.root < 0 else called[meeting.root])
        waits = max(0, min(ends, needed) - begins)
        terms[1] -= ends - begins
        terms[2] += waits
        terms[3] += ends - begins - waits
    return terms


def test_the_terms_of_a_run_stand_apart() -> None:
    breakdown = step_breakdown(run_with(HEAD, ("data", 3, 5)).trace)
    assert names(breakdown.borders) == TERMS
    assert not breakdown.problems
    data, compute, wait, communication, _ = (breakdown.rank_ns / MS).T
    assert data[3] == pytest.approx(6, abs=0.2) and data[:3] == pytest.approx(1, abs=0.2)
    assert compute == pytest.approx(9, abs=0.3)
    assert wait[:3].min() > 4.5 and wait[3] < 0.8
    assert communication == pytest.approx(2 + 5 * 0.2, abs=0.2)


# Verdicts


def test_a_late_rank_is_named_with_its_phase_and_where_it_is_late() -> None:
    results: Counter[bool] = Counter()
    wrong = []
    for (name, plan), phase, rank, jitter in product(PLANS.items(), CAUSE, (0, 1, 3), ("normal", "lognormal")):
        its = judged(run_with(plan, (phase, rank, 2), seed=rank, jitter=jitter))
        right = (its.kind, its.ranks) == (PERSISTENT, (rank,)) and max(its.cause, key=its.cause.__getitem__) == CAUSE[
            phase
        ]
        first = next(iter(its.meetings), "")
        if phase in ("data", "optimizer"):  # before the first meeting that waits for this rank
            right &= first == ("reduction of the gradients" if plan is BUFFERS and rank else first_of(plan))
        right &= sum(its.cause.values()) == pytest.approx(its.arrival_skew)
        right &= abs(its.cause.get(CAUSE[phase], 0.0) - 2) < 0.3
        results[right] += 1
        if not right:
            wrong.append((name, phase, rank, jitter, its))
    assert results[True] >= MIN_RIGHT * results.total(), wrong


def test_what_comes_and_goes_at_other_meetings_hides_no_delay() -> None:
    """Work that differs by 60 % from step to step makes now one rank late and now another, at each of the meetings."""
    runs = [
        judged(run_with(PLANS[name], ("data", 1, 2.5), seed=seed, spread=0.6))
        for name, seed in product(("norms", "fsdp", "head"), range(12))
    ]
    named = sum((its.kind, its.ranks) == (PERSISTENT, (1,)) for its in runs)
    assert named >= 0.9 * len(runs)


def first_of(plan: list[Meeting]) -> str:
    """The label of a plan's first meeting."""
    return MeetingKinds(names=tuple(meeting.name for meeting in plan)).labels[0]


def test_equal_ranks_are_not_accused() -> None:
    kinds: Counter[str] = Counter()
    for plan, seed, jitter in product(PLANS.values(), range(9), ("normal", "exponential", "lognormal")):
        kinds[judged(run_with(plan, seed=seed, jitter=jitter)).kind] += 1
    assert kinds[NONE] >= (1 - MAX_ACCUSED) * kinds.total(), kinds


def test_two_stragglers_at_different_meetings_are_both_named() -> None:
    trace = run_with(HEAD, ("data", 1, 5), ("backward", 3, 4)).trace
    first, second = stragglers([step_breakdown(trace)])
    assert (first.ranks, max(first.cause, key=first.cause.__getitem__)) == ((1,), "data")
    assert (second.ranks, max(second.cause, key=second.cause.__getitem__)) == ((3,), "compute")
    cases = [None, *(ReplayCase(change=Change.STRAGGLER, count=count) for count in (1, 2))]
    speeds = replayed_speeds(trace, {*TERMS}, cases, [each.cells_of_run(0) for each in (first, second)])
    step_ms = [trace.run.global_batch_size / speed * 1e3 for speed in speeds]
    assert (step_ms[0] - step_ms[1], step_ms[1] - step_ms[2]) == pytest.approx((5, 4), abs=0.5)


def test_a_late_sender_holds_the_others_and_a_late_receiver_nobody() -> None:
    sender, receiver = (step_breakdown(run_with(BUFFERS, ("data", rank, 5)).trace) for rank in (0, 1))
    wait = TERMS.index("wait")
    assert (sender.rank_ns[1:, wait] / MS).min() > 4.5
    assert verdict(sender).meetings["broadcast of buffers"] == pytest.approx(5, abs=0.2)
    assert "broadcast of buffers" not in verdict(receiver).meetings
    assert verdict(receiver).cause["data"] == pytest.approx(5, abs=0.2)


def test_whether_a_sender_waits_for_a_late_receiver_is_read_from_the_time_stamps() -> None:
    """As gloo does: a broadcast that ends when all have called."""
    trace = run_with([Meeting("broadcast of buffers", "forward")], ("data", 1, 5)).trace
    breakdown = step_breakdown(dataclasses.replace(trace, meeting_roots=[0]))
    its = verdict(breakdown)
    assert its.ranks == (1,)
    assert its.meetings["broadcast of buffers"] == pytest.approx(5, abs=0.2)
    assert its.cause["data"] == pytest.approx(5, abs=0.2)
    assert breakdown.rank_ns[0, TERMS.index("wait")] / MS > 4.5
    assert breakdown.rank_ns[0, TERMS.index("communication")] / MS == pytest.approx(2.2, abs=0.2)


def test_a_meeting_inside_the_reduction_is_a_part_of_it() -> None:
    """As FSDP2's last reduce-scatter, whose call is when gradients are ready."""
    trace = run_with(HEAD, ("backward", 2, 5)).trace
    assert trace.meetings is not None
    inside = np.repeat(trace.stamps[:, :, [GRADS_READY]], 3, axis=2)
    inside[..., 2] = trace.stamps[:, :, REDUCED] - 1000
    meetings = np.concatenate([trace.meetings, inside[:, :, None]], axis=2)
    names_of = [*trace.meeting_names, "reduce-scatter"]
    longer_trace = dataclasses.replace(trace, meetings=meetings, meeting_names=names_of, meeting_roots=[-1] * 6)
    usual, its = step_breakdown(trace), step_breakdown(longer_trace)
    np.testing.assert_array_equal(its.rank_ns, usual.rank_ns)
    assert its.arrivals is not None and usual.arrivals is not None
    assert its.arrivals.meetings[-2:] == ("reduce-scatter", "reduction of the gradients")
    np.testing.assert_array_equal(np.delete(its.arrivals.rank_meetings, 5, axis=1), usual.arrivals.rank_meetings)
    assert verdict(its).cause == verdict(usual).cause


def test_a_meeting_behind_the_reduction_belongs_to_the_step_that_follows() -> None:
    """As the norm of all gradients, in the middle of the optimizer step."""
    norm = [Meeting("all-reduce", "optimizer")]
    breakdown = step_breakdown(run_with(norm, ("optimizer", 2, 6)).trace)
    its = verdict(breakdown)
    assert its.ranks == (2,)
    assert its.cause["optimizer"] == pytest.approx(6, abs=0.3)
    assert its.meetings["all-reduce"] == pytest.approx(3, abs=0.3)
    assert its.meetings["reduction of the gradients"] == pytest.approx(3, abs=0.3)
    optimizer, wait = (breakdown.rank_ns[:, TERMS.index(name)] / MS for name in ("optimizer", "wait"))
    assert optimizer == pytest.approx([1, 1, 7, 1], abs=0.2)
    assert wait[[0, 1, 3]].min() > 5


def test_a_call_ahead_of_time_delays_nobody() -> None:
    """Late by less than it is called ahead: what counts is when others begin to wait."""
    plan = [Meeting("all-gather", "forward"), Meeting("all-gather", "forward", ahead=True)]
    its = judged(run_with(plan, ("data", 2, 3)))
    assert its.ranks == (2,)
    assert its.meetings["all-gather 1 of 2"] == pytest.approx(3, abs=0.2)
    assert its.meetings.get("all-gather 2 of 2", 0.0) < 0.2


# What is unknown


def backend(simulated: Simulated, **facts: Any) -> Any:
    trace = simulated.trace
    changed = {**trace.environment["backend"], **facts}
    return dataclasses.replace(trace, environment={**trace.environment, "backend": changed})


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"unrecorded_collectives": ["batch norm"]}, ("it does",)),
        ({"unrecorded_collectives": None}, ("it does",)),
    ],
)
def test_collectives_without_time_stamps_leave_one_term(facts: dict[str, Any], reason: tuple[str, ...]) -> None:
    breakdown = step_breakdown(backend(run_with(HEAD), **facts))
    assert breakdown.merged == Merged(early_collectives=reason)
    assert names(breakdown.borders) == ("data", "compute+wait+communication", "optimizer")
    assert breakdown.at_begin


def test_one_rank_waits_for_nobody_whatever_it_calls() -> None:
    trace = backend(run_with(HEAD), unrecorded_collectives=["batch norm"])
    first = {name: getattr(trace, name)[:1] for name in ("stamps", "samples", "losses", "steps_completed", "ranks")}
    clocks = {name: getattr(trace, name)[:1] for name in vars(trace) if name.startswith(("clock_", "barrier_"))}
    run = dataclasses.replace(trace.run, nodes=1, ranks_per_node=1)
    without_meetings = dataclasses.replace(trace, run=run, run_id="", point_id="", meetings=None, meeting_names=(),
                                meeting_roots=(), **first, **clocks)  # fmt: skip
    assert names(step_breakdown(without_meetings).borders) == TERMS


def test_a_collective_of_some_ranks_leaves_one_term() -> None:
    trace = run_with(HEAD).trace
    partly = dataclasses.replace(trace, meeting_roots=[-1, -1, -2, -1, -1])
    assert step_breakdown(partly).merged == Merged(early_collectives=("maximum",))


def test_steps_with_other_collectives_are_in_no_term_and_are_counted() -> None:
    trace = run_with(HEAD).trace
    assert trace.meetings is not None
    meetings = trace.meetings.copy()
    meetings[2, 30:33] = ABSENT  # in the middle of a piece
    breakdown = step_breakdown(dataclasses.replace(trace, meetings=meetings))
    assert breakdown.merged is not None and breakdown.merged.unsplit is not None
    assert (breakdown.merged.unsplit.borders, breakdown.merged.unsplit.steps) == (("meetings",), 3)
    assert names(breakdown.borders) == TERMS
    meetings[2] = ABSENT
    breakdown = step_breakdown(dataclasses.replace(trace, meetings=meetings))
    assert breakdown.merged is not None
    assert breakdown.merged.missing == (("meetings", 80, RANKS * 80),)


def test_collectives_that_nobody_waits_for_are_left_out() -> None:
    trace = run_with(HEAD, ("data", 3, 5)).trace
    assert trace.meetings is not None
    meetings = trace.meetings.copy()
    meetings[:, :, 2, 1:] = ABSENT
    its = step_breakdown(dataclasses.replace(trace, meetings=meetings))
    assert its.arrivals is not None
    assert "maximum" not in its.arrivals.meetings
    assert verdict(its).ranks == (3,)


def test_a_result_before_the_last_call_is_an_error_of_the_measurement() -> None:
    trace = run_with(HEAD).trace
    assert trace.meetings is not None
    meetings = trace.meetings.copy()
    meetings[1, :, 0, 0] += 50 * MS
    meetings[1, :, 0, 1:] += 50 * MS
    problems = step_breakdown(dataclasses.replace(trace, meetings=meetings)).problems
    assert problems.early >= 3 * 80
    assert problems.early_ms > 40


@pytest.mark.parametrize("later_ms", [0.1, 2, 50, 10**6])
def test_calls_that_are_stamped_after_their_waits_are_read(later_ms: float) -> None:
    """No rank calls after it waits; a trace that says so, or whose call lies in the reduction, ends nothing."""
    trace = run_with(HEAD, ("data", 3, 5)).trace
    assert trace.meetings is not None
    meetings = trace.meetings.copy()
    meetings[:, :, 1:3, 0] = meetings[:, :, 1:3, 1] + round(later_ms * MS)
    disordered = dataclasses.replace(trace, meetings=meetings)
    assert names(step_breakdown(disordered).borders)
    assert len(replayed_speeds(disordered, {*TERMS}, [None])) == 1


def test_pieces_are_shorter_where_steps_have_many_meetings() -> None:
    many = [Meeting("all-gather", "forward")] * 40
    its = step_breakdown(run_with(many, ("forward", 1, 4)).trace)
    assert verdict(its).ranks == (1,)
    assert verdict(its).cause["compute"] == pytest.approx(4, abs=0.5)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_runs_are_put_together(plan: list[Meeting]) -> None:
    runs = [step_breakdown(run_with(plan, ("backward", 1, 3), seed=seed).trace) for seed in range(3)]
    first, *_ = stragglers(runs)
    assert (first.ranks, first.in_runs, first.of_runs) == ((1,), 3, 3)
    assert first.cause["compute"] == pytest.approx(3, abs=0.3)
    assert sum(first.meetings.values()) <= first.arrival_skew * 1.1


def test_runs_with_other_meetings_are_not_put_together() -> None:
    runs = [step_breakdown(run_with(plan, ("backward", 1, 3)).trace) for plan in (HEAD, BUFFERS)]
    assert [each.because for each in stragglers(runs)] == [Because.RUNS_DISAGREE]


def test_communication_of_several_collectives_is_not_compared_with_an_all_reduce_of_the_gradients() -> None:
    trace = backend(run_with(HEAD), gradient_bytes=1000)
    several, merged = step_breakdown(trace), step_breakdown(dataclasses.replace(trace, meetings=None, meeting_names=(),
                                                                              meeting_roots=()))  # fmt: skip
    assert (gradient_bytes([several]), gradient_bytes([merged])) == (0, 1000)


# Collectives that are not in every step.

METRIC = [Meeting("metric", "optimizer")]
EVERY = 5


def now_and_then(late_ms: float, seed: int = 0, gathers: int = 0) -> Trace:
    """A metric is reduced in every fifth step, in which rank 3 is late by so much; all-gathers are in every step."""
    random = np.random.default_rng([seed, 5])
    durations = equal_ranks(random, RANKS, RUN.steps, spread=0.0, common=0.0)
    has = np.arange(RUN.steps) % EVERY == EVERY - 1
    where = np.zeros((RANKS, RUN.steps), bool)
    where[3, has] = True
    plan = [*[Meeting("all-gather", "forward")] * gathers, *METRIC]
    durations = durations.longer("optimizer", where, round(2 * late_ms * MS))  # half of it before the meeting
    trace = simulate_meetings(RUN, durations, plan, draw_clocks(random, RUN.nodes), random).trace
    assert trace.meetings is not None
    meetings = np.array(trace.meetings)
    meetings[:, ~has, gathers] = ABSENT
    return by_step(dataclasses.replace(trace, meetings=meetings))


def by_step(trace: Trace) -> Trace:
    backend = {**trace.environment["backend"], "meetings_by_step": True, "meets_before_gradients": []}
    return dataclasses.replace(trace, environment={**trace.environment, "backend": backend})


@pytest.mark.parametrize("gathers", [0, 3])
def test_who_is_late_at_a_collective_now_and_then_is_named(gathers: int) -> None:
    trace = now_and_then(20, gathers=gathers)
    breakdown = step_breakdown(trace)
    assert names(breakdown.borders) == TERMS
    named = verdict(breakdown)
    assert (named.kind, named.ranks) == (TRANSIENT, (3,))
    assert {(step - 5) % EVERY for step in named.steps} == {0}  # the step that follows
    assert named.cause["optimizer"] == max(named.cause.values())
    mean = dict(zip(TERMS, breakdown.mean_ns / MS, strict=True))
    assert mean["wait"] == pytest.approx(3 / 4 * 2 * 20 / EVERY, rel=0.1)  # there, and for the rest in the reduction


def test_its_what_ifs_replay_the_steps_that_have_the_collective() -> None:
    trace = now_and_then(20, gathers=2)
    samples, ends = trace.samples[:, 6:].sum(), trace.to_global(END).max(axis=0)
    recorded = samples / (ends[-1] - ends[5]) * 1e9
    late = [step for step in range(RUN.steps) if step % EVERY == 0]
    same, without = replayed_speeds(
        trace, {*TERMS}, [None, ReplayCase(change=Change.STRAGGLER)], [[((3,), tuple(late))]]
    )
    assert same == pytest.approx(recorded, rel=1e-9)
    step_ms = (ends[-1] - ends[5]) / MS / (RUN.steps - 6)
    assert without / same == pytest.approx(step_ms / (step_ms - 2 * 20 / EVERY), rel=0.05)


def test_a_step_in_which_one_rank_lacks_a_collective_is_in_no_term() -> None:
    trace = now_and_then(20)
    assert trace.meetings is not None
    trace.meetings[2, 29] = ABSENT
    breakdown = step_breakdown(trace)
    assert breakdown.merged is not None and breakdown.merged.unsplit is not None
    assert (breakdown.merged.unsplit.borders, breakdown.merged.unsplit.steps) == (("meetings",), 1)


def test_a_step_without_the_collectives_of_others_is_unknown_where_steps_were_not_matched() -> None:
    """As traces have them whose collectives are those of most steps, or none."""
    trace = now_and_then(0)
    backend = {**trace.environment["backend"], "meetings_by_step": False}
    breakdown = step_breakdown(dataclasses.replace(trace, environment={**trace.environment, "backend": backend}))
    assert breakdown.merged is not None


def test_collectives_that_cannot_be_matched_withdraw_the_assurance() -> None:
    trace = now_and_then(0)
    ranks = [{**facts, "script": {"unmatched_collectives": {"gather": 3}}} for facts in trace.ranks]
    breakdown = step_breakdown(dataclasses.replace(trace, ranks=ranks))
    assert breakdown.unmatched == ("gather in 3 of 80",)
    judged_point = point_verdicts([breakdown])
    assert (judged_point.verdict.kind, judged_point.verdict.because) == (CANNOT_TELL, Because.UNMATCHED)
    assert judged_point.runs[0].verdict.kind == CANNOT_TELL
    assert point_verdicts([step_breakdown(trace)]).verdict.kind == NONE


def unseen(trace: Trace, **of_rank_0: Any) -> StepBreakdown:
    ranks = [{**facts, "script": {} if at else of_rank_0} for at, facts in enumerate(trace.ranks)]
    return step_breakdown(dataclasses.replace(trace, ranks=ranks))


def test_meetings_that_no_hook_sees_withdraw_the_assurance() -> None:
    trace = now_and_then(0)
    judged = point_verdicts([unseen(trace, unseen_ways=["mpi4py"]), unseen(trace, unseen_ways=["DeepEP"])])
    assert judged.verdict.kind == CANNOT_TELL
    assert because_text(judged.verdict) == "ranks also meet in mpi4py, DeepEP, which no hook sees"
    assert judged.runs[0].verdict.kind == CANNOT_TELL


@pytest.mark.parametrize(("of_step", "kind"), [(0.04, NONE), (0.5, CANNOT_TELL)])
def test_sleep_that_no_hook_explains_does_where_it_is_worth_it(of_step: float, kind: VerdictKind) -> None:
    trace = now_and_then(0)
    step_ms = step_breakdown(trace).step_ns / 1e6
    assert point_verdicts([unseen(trace, asleep_ms=of_step * step_ms)]).verdict.kind == kind
    assert point_verdicts([unseen(trace, asleep_ms="nan", unseen_ways=7)]).verdict.kind == NONE


def test_a_straggler_stays_one_and_it_is_said_where_ranks_also_meet() -> None:
    trace = now_and_then(20)
    late = point_verdicts([step_breakdown(trace)]).verdict
    judged = point_verdicts([unseen(trace, unseen_ways=["mpi4py"])]).verdict
    assert late.ranks and dataclasses.replace(judged, unseen=None) == late
    assert unseen_text(judged.unseen).startswith("ranks also meet in mpi4py")


@pytest.mark.parametrize(("longer_ms", "is_said"), [(0, False), (200, True)])
def test_a_straggler_sleeps_as_long_as_it_is_late_and_longer_it_may_wait(longer_ms: float, is_said: bool) -> None:
    trace = now_and_then(20)
    late = point_verdicts([step_breakdown(trace)]).verdict
    (rank,) = late.ranks
    asleep = {"asleep_ms": late.arrival_skew + longer_ms}
    ranks = [{**facts, "script": asleep if at == rank else {}} for at, facts in enumerate(trace.ranks)]
    judged = point_verdicts([step_breakdown(dataclasses.replace(trace, ranks=ranks))]).verdict
    assert judged.ranks == late.ranks
    assert bool(judged.unseen) == is_said


def test_a_collective_of_the_first_step_that_a_later_one_lacks_is_matched_too() -> None:
    trace = by_step(now_and_then(0))
    assert trace.meetings is not None
    first = next(step for step in range(6, RUN.steps) if trace.meetings[0, step, 0, 0] != ABSENT)
    breakdown = step_breakdown(dataclasses.replace(trace, blocks=np.array([[first, RUN.steps]])))
    assert names(breakdown.borders) == TERMS
