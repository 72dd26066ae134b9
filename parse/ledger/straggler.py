"""Finds the stragglers of a point: verdicts on the arrivals of each run and of all together, against equal ranks.

Null hypothesis: ranks differ by chance alone. Then permuting the ranks' names in each piece of the window changes
nothing, nor does permuting the work of a step's ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, log
from typing import Any

import numpy as np

from parse import stats
from parse.ledger.arrivals import MATERIAL, OFTEN_IN, pooled
from parse.ledger.breakdown import PIECES, StepBreakdown
from parse.ledger.limit import all_exchanges, detection_limit_ns, lowering, seldom_limit_ns
from parse.ledger.meetings import Floats
from parse.ledger.pool import Bools, HowOften, Pool, Suspect, meetings_of, named, pool_of
from parse.ledger.shape import course, rhythm
from parse.ledger.transient import ALONE, COSTLY, FEW, SPIKE, incidents, rotating, shows, single_events, transient
from parse.ledger.types import (
    CANNOT_TELL,
    NONE,
    PERSISTENT,
    TRANSIENT,
    Because,
    Doubt,
    RunLedger,
    Shape,
    ShapeKind,
    Unseen,
    Verdict,
)

UNRESOLVED = 0.05
"""If the clocks' uncertainty exceeds this share of the step, the verdict cannot be `none` either."""
ASLEEP = 0.05
"""From this share of the step on it is no chance that the main thread of a rank sleeps for no known reason."""
CHANCE, OF_ONE_RUN = 0.001, 0.005
"""The maximum false-positive rate of a persistent straggler among equal ranks whose pieces of a window are independent.
Those of real machines are not: load lasts. With 1 % every tenth point of equal ranks on busy cores accused one, with
0.5 % every thirtieth. The pieces of one run can hardly show less: two of four ranks that are late in all of them have
0.4 %."""
SHUFFLES, FEWER_SHUFFLES, SHUFFLED = 9999, 999, 4_000_000
"""Permutations tried, of two ranks all if they are few; fewer where more values (ranks × pieces) would be shuffled."""
TIMES = (4.0, 8.0, 16.0, 32.0)
"""The t of Chernoff's bound that are tried, in inverse distances of the observed mean from that of all ranks."""
SHOWS = 0.5
"""A straggler of all runs together shows in a run where it is typically late there by this part of MATERIAL, and the
latest."""
COSTLY_IN_FEW = 0.1
"""A persistent straggler of half of the runs or fewer is the point's where it costs this share of its step: load that
lasts makes ranks late in single runs."""
NEAR_LIMIT, NEAR_IN_FEW = 0.75, 0.5
"""A rank that costs this part of the limit of every step in some of them takes the assurance away; in FEW steps, of
which another may hide one, this."""
MOST_FOUND = 12
"""So many are looked for, one behind another."""
PROVABLE_IN = 0.3
"""A persistent straggler is provably late, beyond the clocks' bounds, in at least this share of the steps."""
NOT_LATE, NOT_LATE_IN = 0.2, 0.3
"""A delay comes and goes where in this share of the steps it is less than this part of what it is in many."""
TOGETHER = 0.5
"""Ranks that are late by at least this part of the latest rank's delay are late together."""


@dataclass(frozen=True, kw_only=True)
class PointVerdicts:
    """The verdicts on the runs of a point: each run's, that of all together, and those on stragglers behind it."""

    runs: tuple[RunLedger, ...]
    verdict: Verdict
    further: tuple[Verdict, ...] = ()


def point_verdicts(breakdowns: Sequence[StepBreakdown]) -> PointVerdicts:
    """Those by the evidence of all runs; where that names nobody, the one that most of the runs have."""
    by_run = [_verdicts([breakdown]) for breakdown in breakdowns]
    runs = tuple(map(_run_ledger, breakdowns, by_run))
    verdicts = stragglers(breakdowns, by_run)
    if verdicts and (verdicts[0].ranks or len(runs) == 1):
        first, *further = verdicts
    else:
        first, further = _of_most(runs, verdicts[0] if verdicts else None), []
    verdict = _with_lowering(_unless_unseen(first, breakdowns), breakdowns)
    return PointVerdicts(runs=runs, verdict=verdict, further=tuple(further))


def _unless_unseen(verdict: Verdict, runs: Sequence[StepBreakdown]) -> Verdict:
    """The verdict; that nobody is late is not known where somebody may be at collectives that were not matched, inside
    of steps of which the begin alone is known, or where ranks meet and no hook sees it."""
    because = (
        Because.UNMATCHED if any(run.unmatched for run in runs) else
        Because.INSIDE if any(run.at_begin for run in runs) else None
    )  # fmt: skip
    reason = because if verdict.kind == NONE and because else _unseen(verdict, runs)
    if reason is None or verdict.because not in (None, Because.SOME_STEPS):
        return verdict
    if verdict.ranks:
        return replace(verdict, because=reason)
    return Verdict(kind=CANNOT_TELL, because=reason, bound=verdict.bound, of_runs=verdict.of_runs)


def _unseen(verdict: Verdict, runs: Sequence[StepBreakdown]) -> Unseen | None:
    """Where ranks also meet, or may, and no hook sees it; None where nothing says so.

    A rank that is named may sleep as long as it is late.
    """
    ways = tuple(dict.fromkeys(way for run in runs for way in run.unseen_ways))
    late = dict.fromkeys(verdict.ranks, verdict.arrival_skew)
    asleep = [ms - late.get(rank, 0.0) for run in runs for rank, ms in enumerate(run.asleep_ms)]
    longest, step_ms = max(asleep, default=0.0), min(run.step_ns for run in runs) / 1e6
    sleeps = longest >= max(ASLEEP * step_ms, verdict.limit or verdict.costs)
    return Unseen(ways=ways, asleep=longest if sleeps else 0.0) if ways or sleeps else None


def _run_ledger(breakdown: StepBreakdown, verdicts: Sequence[Verdict]) -> RunLedger:
    return RunLedger(
        run_id=breakdown.run_id, step=breakdown.step_ns / 1e6,
        verdict=_unless_unseen(verdicts[0], [breakdown]),
        pauses=tuple(pause / 1e6 for pause in breakdown.pauses_ns),
        rank_pauses=breakdown.paused.by_ranks if breakdown.paused else (),
        bound=None if breakdown.arrivals is None else breakdown.arrivals.bound / 1e6,
        incidents=incidents(breakdown), problems=breakdown.problems,
    )  # fmt: skip


def _with_lowering(verdict: Verdict, breakdowns: Sequence[StepBreakdown]) -> Verdict:
    """The verdict, where it has a detection limit with what would lower it."""
    arrivals = [breakdown.arrivals for breakdown in breakdowns if breakdown.arrivals is not None]
    if verdict.limit is None or not arrivals:
        return verdict
    least_ns = MATERIAL * stats.mean([breakdown.step_ns for breakdown in breakdowns])
    lower = lowering(pooled(arrivals), limit_ns=verdict.limit * 1e6, least_ns=least_ns, bound_ns=verdict.bound * 1e6)
    return replace(verdict, lowering=lower)


def _of_most(runs: Sequence[RunLedger], together: Verdict | None) -> Verdict:
    """The verdict that most of the runs have: of the same kind on the same ranks, else on the same node.

    Where it names nobody, that of all runs `together` stands for it; also where half of the runs at most name somebody,
    who costs less in a mean step of all of them than the limit that it states.
    """
    verdicts = [run.verdict for run in runs]
    by_rank = [(each.kind, each.because, each.ranks) for each in verdicts]
    by_node = [(each.kind, each.because, each.node or each.ranks) for each in verdicts]
    keys: Sequence[tuple[object, ...]]
    for keys in (by_rank, by_node):
        commonest, count = Counter(keys).most_common(1)[0]
        if 2 * count > len(runs):
            same = [each if key == commonest else None for each, key in zip(verdicts, keys, strict=True)]
            averaged = _averaged(same)
            return together if together and not averaged.ranks else averaged
    naming = [each for each in verdicts if each.ranks]
    costs = sum(each.costs for each in naming) / len(runs)
    if together and together.limit is not None and 2 * len(naming) <= len(runs) and costs < together.limit:
        return together
    return Verdict(kind=CANNOT_TELL, because=Because.RUNS_DISAGREE, bound=max(run.bound or 0.0 for run in runs))


def _averaged(by_run: Sequence[Verdict | None]) -> Verdict:
    """The first of the runs' verdicts that count, with their means; the steps of a transient one run by run."""
    verdicts = [each for each in by_run if each is not None]
    first = verdicts[0]
    averaged = ("arrival_skew", "share", "costs", "bound")
    means: dict[str, Any] = {name: stats.mean([getattr(each, name) for each in verdicts]) for name in averaged}
    chances = [each.chance for each in verdicts if each.chance is not None]
    return replace(
        first,
        steps=first.steps if all(each.steps == first.steps for each in verdicts) else (),
        run_steps=tuple(each.steps if each else () for each in by_run) if first.steps else (),
        in_runs=len(verdicts),
        of_runs=len(by_run),
        shape=rhythm([each.steps for each in verdicts]) if first.steps else first.shape,
        cause={
            name: stats.mean([each.cause[name] for each in verdicts])
            for name in first.cause
            if all(name in each.cause for each in verdicts)
        },
        chance=max(chances) if len(chances) == len(verdicts) else None,
        **means,
    )


def verdict(run: StepBreakdown) -> Verdict:
    """The verdict on the straggler of one run."""
    return _verdicts([run])[0]


def stragglers(runs: Sequence[StepBreakdown], by_run: Sequence[Sequence[Verdict]] | None = None) -> tuple[Verdict, ...]:
    """The verdict on the runs of a point, by the evidence of all of them together; `by_run` are those on each alone.

    Behind that on the straggler that costs most stand those on others. One that names nobody has detection limits, and
    is no assurance where a rank costs as much as would have been detected.
    Empty where runs cannot be put together: they differ in the time stamps or meetings that they have, or in which
    ranks share a node.
    """
    if len({(run.arrivals and run.arrivals.layout, run.nodes) for run in runs}) > 1:
        return ()
    pool = pool_of(runs)
    if isinstance(pool, Verdict):
        return (pool,)
    first, *further = _judged(pool)
    known = {rank for each in (first, *further) for rank in each.ranks}
    if by_run is None:
        by_run = [_verdicts([run]) for run in runs]
    in_some_runs = sorted(_in_some_runs(runs, by_run, pool.step_ns, known), key=lambda each: -each.costs)
    if first.ranks or len(in_some_runs) == 1:  # else each run has another
        return (*([first] if first.ranks else []), *further, *in_some_runs)
    if first.kind is not NONE:
        return (first,)
    limit_ns = detection_limit_ns(
        pool.arrivals, least_ns=MATERIAL * pool.step_ns, bound_ns=pool.bound_ns, chance=_max_chance(pool.runs),
        shuffles=SHUFFLES,
    )  # fmt: skip
    doubt = _doubt(pool)
    if doubt and limit_ns is not None:
        near = NEAR_LIMIT if doubt.steps > FEW else NEAR_IN_FEW
        doubt = doubt if doubt.costs * 1e6 >= near * limit_ns else None
    if doubt and (doubt.steps > FEW or limit_ns is None):
        return (Verdict(kind=CANNOT_TELL, because=Because.SOME_STEPS, bound=first.bound, doubt=doubt),)
    seldom_ns = None if limit_ns is None else seldom_limit_ns(pool)
    return (
        replace(
            first,
            limit=_ms(limit_ns),
            seldom_limit=_ms(seldom_ns),
            doubt=doubt,
            scatter=_ms(pool.arrivals.scatter),
            repeats=pool.repeats(()),
        ),
    )


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def _doubt(pool: Pool) -> Doubt | None:
    """The rank that costs the most in the steps in which it comes last, beyond what the median rank does in its own;
    None where that is less than MATERIAL."""
    group, steps = pool.arrivals.ranks, len(pool.arrivals.steps)
    late = group.provable
    costs_ns = np.bincount(group.last[late], weights=group.gap[late], minlength=len(pool.nodes)) / steps
    rank = int(costs_ns.argmax())
    more_ns = float(costs_ns[rank] - np.sort(costs_ns)[(len(costs_ns) - 1) // 2])
    if more_ns < MATERIAL * pool.step_ns:
        return None
    largest_first = np.sort(group.gap[late & (group.last == rank)])[::-1].cumsum()
    half = int(np.searchsorted(largest_first, TOGETHER * largest_first[-1])) + 1
    return Doubt(rank=rank, costs=more_ns / 1e6, steps=half, of_steps=steps)


def _in_some_runs(
    runs: Sequence[StepBreakdown], by_run: Sequence[Sequence[Verdict]], step_ns: float, known: set[int]
) -> Iterator[Verdict]:
    """Persistent stragglers of half of the runs or fewer that cost COSTLY_IN_FEW of the point's step, each by the
    evidence of the runs that show it; without `known` ranks."""
    shown: dict[tuple[int, ...], list[StepBreakdown]] = {}
    for run, verdicts in zip(runs, by_run, strict=True) if len(runs) > 1 else ():
        for each in verdicts:
            if each.kind == PERSISTENT:
                shown.setdefault(each.ranks, []).append(run)
    for ranks, its_runs in shown.items():
        for each in _verdicts(its_runs) if not {*ranks} & known else ():
            costs = each.costs * len(its_runs) / len(runs)
            if (each.kind, each.ranks) == (PERSISTENT, ranks) and costs * 1e6 >= COSTLY_IN_FEW * step_ns:
                yield replace(each, in_runs=len(its_runs), of_runs=len(runs), costs=costs)


def _verdicts(runs: Sequence[StepBreakdown]) -> tuple[Verdict, ...]:
    """Those on runs that are alike, all of them together."""
    pool = pool_of(runs)
    return (pool,) if isinstance(pool, Verdict) else _judged(pool)


def _judged(pool: Pool) -> tuple[Verdict, ...]:
    """The verdicts, what costs most first: each costs what is lost to it when those before it are taken out."""
    turns = rotating(pool)
    events = [*single_events(pool)]
    known: list[Verdict] = []
    if turns:
        known, pool = [turns], pool.without(turns.ranks, np.full(len(pool.arrivals.steps), np.inf))
    for event, its in events:
        pool = pool.without(event.ranks, _beyond_usual(pool, event.ranks, its))
    clock = None
    for _ in range(MOST_FOUND):
        candidates = _candidates(pool, known)
        clock = clock or next((each for each in candidates if each.kind is CANNOT_TELL), None)
        best = max((each for each in candidates if each.ranks), key=lambda each: each.costs, default=None)
        if best is None:
            break
        delay_ns = _delay_ns(pool, best)
        if not _is_rest_of_one(best, known, pool.step_ns):
            known.append(best)
        pool = pool.without(best.ranks, delay_ns)
    first = [*sorted([*(event for event, _ in events), *known[:1]], key=lambda each: -each.costs)]
    repeats = pool.repeats([rank for each in (*first, *known) for rank in each.ranks])
    if first:
        return (replace(first[0], repeats=repeats), *first[1:], *known[1:])
    if clock:
        return (clock,)
    bound = pool.bound_ns / 1e6
    if bound * 1e6 > UNRESOLVED * pool.step_ns:
        return (Verdict(kind=CANNOT_TELL, because=Because.CLOCK, bound=bound),)
    ranks, pieces = pool.most_peers, pool.arrivals.ranks.typical.shape[1]
    if ranks == 1:
        return (Verdict(kind=CANNOT_TELL, because=Because.NO_PEERS, bound=bound),)
    if max(1 / (1 + SHUFFLES), float(ranks) ** (1 - pieces)) > _max_chance(pool.runs):  # what the test can find at best
        return (Verdict(kind=CANNOT_TELL, because=Because.FEW_STEPS, bound=bound),)
    return (Verdict(kind=NONE, bound=bound, repeats=repeats),)


def _candidates(pool: Pool, stragglers: Sequence[Verdict]) -> list[Verdict]:
    """Who may be the next straggler, behind those that are known: late in most steps, in many, in few."""
    usual = sorted({rank for each in stragglers if each.share >= OFTEN_IN for rank in each.ranks})
    of_any = sorted({rank for each in stragglers for rank in each.ranks})
    persistent = _usual(pool, HowOften.MOST, usual)
    frequent = _usual(pool, HowOften.MANY, of_any)
    seldom = transient(pool)
    if persistent and frequent and (not persistent.ranks or {*frequent.ranks} & {*persistent.ranks}):
        frequent = None
    if persistent and seldom and {*seldom.ranks} <= {*persistent.ranks} and persistent.costs < 2 * seldom.costs:
        persistent = None  # its other steps cost less
    if frequent and seldom and {*frequent.ranks} & {*seldom.ranks}:
        frequent, seldom = (None, seldom) if seldom.costs >= ALONE * frequent.costs else (frequent, None)
    return [each for each in (persistent, frequent, seldom) if each is not None]


def _is_rest_of_one(verdict: Verdict, known: Sequence[Verdict], step_ns: float) -> bool:
    """Whether it is what is left of a straggler that is known."""
    same = [each for each in known if {*verdict.ranks} <= {*each.ranks}]
    return any(each.share >= OFTEN_IN for each in same) or (bool(same) and verdict.costs * 1e6 < COSTLY * step_ns)


def _delay_ns(pool: Pool, verdict: Verdict) -> Floats:
    """What to take from a straggler's arrival [step], so that it is like the others."""
    if verdict.kind is TRANSIENT and verdict.share < OFTEN_IN:
        as_late = pool.delay(verdict.ranks) >= TOGETHER * verdict.arrival_skew * 1e6
        return _beyond_usual(pool, verdict.ranks, pool.steps_of(verdict) | as_late)
    return np.full(len(pool.arrivals.steps), verdict.arrival_skew * 1e6 if verdict.kind is PERSISTENT else np.inf)


def _beyond_usual(pool: Pool, ranks: Sequence[int], its: Bools) -> Floats:
    """How late they are in these steps [step] beyond what they are in most."""
    usual_ns = max(0.0, float(pool.typical(HowOften.MOST)[0][list(ranks)].mean()))
    return np.where(its, np.maximum(0, pool.delay(ranks) - usual_ns), 0)


def _all_but(ranks: Sequence[int], count: int) -> list[int]:
    """The ranks from 0 to `count` − 1 without these."""
    return sorted({*range(count)}.difference(ranks))


def _usual(pool: Pool, level: HowOften, known: Sequence[int] = ()) -> Verdict | None:
    """A rank, several, or a node that are late in most of the steps, or in many, in more than half of the runs.

    `known` are ranks that are stragglers already: the others are compared with one another.
    """
    compared = _all_but(known, len(pool.nodes))
    suspect = _usual_suspect(pool, compared, level) if not known or len(known) < len(pool.nodes) // 2 else None
    if suspect is None:
        return None
    ranks = list(suspect.ranks)
    typical, of_nodes = pool.typical(level)
    typical_ns, costs_ns = float(typical[ranks].mean()), _costs_ns(pool, suspect)
    shown = [run for run in range(pool.runs) if _shows(pool, run, ranks, compared, level)]
    # A few bad steps alone cost much, too.
    if min(typical_ns, costs_ns) < MATERIAL * pool.step_ns or 2 * len(shown) <= pool.runs:
        return None
    roles = [pool.arrivals.roles[rank] for rank in compared] if pool.arrivals.roles else []
    tested = [(typical[compared], roles)]
    if suspect.node is not None and not known and len({*roles}) <= 1:
        tested.append((of_nodes, []))
    chance = min(_chance(each, pool.runs, its) for each, its in tested)
    repeats = pool.repeats(ranks) if chance <= _max_chance(pool.runs) else None
    if repeats is not None:  # runs that repeat one another are evidence of one
        chance = min(_chance(pool.mean_of_runs(each), 1, its) for each, its in tested)
    if chance > _max_chance(pool.runs if repeats is None else 1):
        return None
    often_ns = float(pool.typical(HowOften.MANY)[0][ranks].mean())
    if level is HowOften.MANY or _comes_and_goes(pool, suspect, shown, often_ns):
        return _often(pool, suspect, often_ns, chance)
    return _persistent(pool, suspect, typical_ns, costs_ns, chance, len(shown))


def _persistent(
    pool: Pool, suspect: Suspect, typical_ns: float, costs_ns: float, chance: float, in_runs: int
) -> Verdict:
    """The verdict on one that is late in most steps; that the clocks do not show it, where they do not."""
    arrivals, ranks, bound_ns = pool.arrivals, list(suspect.ranks), pool.bound_ns
    late_steps = arrivals.late_steps[ranks]
    if typical_ns <= bound_ns or late_steps.mean() < PROVABLE_IN * len(arrivals.steps):
        return Verdict(
            kind=CANNOT_TELL, because=Because.CLOCK, bound=bound_ns / 1e6, arrival_skew=typical_ns / 1e6, chance=chance
        )
    shape, steps = _course(pool, suspect), arrivals.steps
    if shape.kind in (ShapeKind.BEGINS, ShapeKind.ENDS) and shape.step is not None:
        causes = pool.parts(ranks, (steps >= shape.step) == (shape.kind is ShapeKind.BEGINS))
    else:
        causes = arrivals.rank_cause[ranks].mean(axis=0)
    skew_ms = float(causes.sum()) / 1e6
    return Verdict(
        kind=PERSISTENT, ranks=suspect.ranks, node=pool.host(suspect), in_runs=in_runs, of_runs=pool.runs,
        shape=shape, arrival_skew=skew_ms,
        cause=named(arrivals, causes), meetings=meetings_of(arrivals, ranks, skew_ms),
        share=float(late_steps.mean()) / len(arrivals.steps), costs=costs_ns / 1e6, bound=bound_ns / 1e6,
        chance=chance,
    )  # fmt: skip


def _comes_and_goes(pool: Pool, suspect: Suspect, shown: Sequence[int], often_ns: float) -> bool:
    """Whether one that is late by `often_ns` in many steps is not late at all in NOT_LATE_IN of them, all over the
    windows of the runs that show it. What comes and goes at other meetings, or scatter that is as large, hides that.
    """
    others_ns = pool.delay(_all_but(suspect.ranks, len(pool.nodes)))
    scatter_ns = float(np.median(others_ns[others_ns > 0])) if others_ns.any() else 0.0
    if pool.arrivals.meetings or often_ns < SPIKE * scatter_ns:
        return False
    delay_ns = pool.delay(suspect.ranks)[np.isin(pool.arrivals.run, shown)]
    not_late = float((delay_ns < NOT_LATE * often_ns).mean())
    return not_late >= NOT_LATE_IN and _course(pool, suspect).kind is ShapeKind.CONSTANT


def _often(pool: Pool, suspect: Suspect, typical_ns: float, chance: float) -> Verdict | None:
    """The verdict on one that is late in many steps: those in which it is last by TOGETHER of what it is in them."""
    arrivals = pool.arrivals
    group, who = (arrivals.ranks, suspect.ranks) if suspect.node is None else (arrivals.nodes, (suspect.node,))
    its = np.isin(group.last, who) & group.provable & (arrivals.skew >= TOGETHER * typical_ns)
    if not pool.is_material(its, group):
        return None
    verdict = pool.in_steps(suspect, its, group, chance)
    if len(suspect.ranks) > 1 and suspect.node is None:
        verdict = replace(verdict, costs=verdict.share * verdict.arrival_skew)  # up to the median rank
    return verdict if shows(pool, verdict) else None


def _shows(pool: Pool, run: int, ranks: Sequence[int], compared: Sequence[int], level: HowOften) -> bool:
    """Whether a run shows that these ranks are late: typically by SHOWS of MATERIAL there, and no less than the others
    compared. What differs between runs may make other ranks late in each."""
    usual = pool.typical(level)[0][:, pool.arrivals.piece_run == run].mean(axis=1)
    others = usual[[*{*compared}.difference(ranks)]].tolist()
    late_ns = float(usual[list(ranks)].mean())
    return bool(late_ns >= max(SHOWS * MATERIAL * pool.step_ns, *others))


def _course(pool: Pool, suspect: Suspect) -> Shape:
    """The shape of the delay by what it typically is in the pieces of the windows; the step in which one begins or ends
    by all steps in which the suspect comes last, if they show it."""
    arrivals = pool.arrivals
    typical_ms = arrivals.ranks.typical[list(suspect.ranks)].mean(axis=0) / 1e6
    length = len(arrivals.steps) // len(typical_ms)
    shape = course(
        [np.repeat(typical_ms[arrivals.piece_run == run], length) for run in range(pool.runs)], int(arrivals.steps[0])
    )
    if shape.kind not in (ShapeKind.BEGINS, ShapeKind.ENDS):
        return shape
    by_steps = pool.course(np.isin(arrivals.ranks.last, suspect.ranks))
    return by_steps if by_steps.kind is shape.kind else shape


def _usual_suspect(pool: Pool, compared: Sequence[int], level: HowOften) -> Suspect | None:
    """The rank of those compared whose typical arrival skew is the largest, with those near it whose skew has the same
    main cause; a node where they are all of its ranks."""
    usual = pool.typical(level)[0].mean(axis=1)
    latest = max(compared, key=lambda rank: usual[rank])
    if usual[latest] <= 0:
        return None
    main_cause = pool.arrivals.rank_cause.argmax(axis=1)
    near = [rank for rank in compared if usual[rank] >= TOGETHER * usual[latest]]
    if len(near) > len(pool.nodes) // 2:
        return None  # where most are late the few others are early
    ranks = tuple(rank for rank in near if main_cause[rank] == main_cause[latest])
    nodes = {pool.nodes[rank] for rank in ranks}
    if len(nodes) == 1 and len({*pool.nodes}) > 1 and (whole := pool.node(nodes.pop())).ranks == ranks:
        return whole
    return Suspect(ranks=ranks)


def _costs_ns(pool: Pool, suspect: Suspect) -> float:
    """The mean time that the suspect adds to a step, up to the next rank, or node, beyond what one of the others does
    in the median: among equal ones each is last at times. For several ranks, up to the median rank."""
    arrivals = pool.arrivals
    if len(suspect.ranks) > 1 and suspect.node is None:
        return float(np.where(np.isin(arrivals.ranks.last, suspect.ranks), arrivals.skew, 0).astype(np.float64).mean())
    group, name = (arrivals.ranks, suspect.ranks[0]) if suspect.node is None else (arrivals.nodes, suspect.node)
    costs = np.bincount(group.last, weights=group.gap, minlength=pool.names(group)) / len(group.last)
    return float(costs[name] - np.median(np.delete(costs, name)))


def _max_chance(runs: int) -> float:
    return CHANCE if runs > 1 else OF_ONE_RUN


def _chance(typical: Floats, runs: int, roles: Sequence[int] = ()) -> float:
    """The probability of so large a mean over the pieces [rank, piece] if names are permuted in every piece, those of
    one role among themselves; where it is above what so many runs may have, a lower limit of it that is above that,
    too."""
    if typical.shape[1] >= 2 * PIECES * runs:
        typical = np.stack([part.mean(axis=1) for part in np.array_split(typical, PIECES * runs, axis=1)], axis=1)
    ranks, pieces = typical.shape
    if (exchanges := all_exchanges(ranks, pieces)) is not None:
        apart = exchanges @ (typical[0] - typical[1])
        return float((np.abs(apart) >= abs(apart[0]) * (1 - 1e-12)).mean())
    least = typical.mean(axis=1).max() * (1 - 1e-12)
    shuffles = max(FEWER_SHUFFLES, min(SHUFFLES, SHUFFLED // typical.size))
    of_roles = [np.flatnonzero(np.array(roles) == role) for role in dict.fromkeys(roles)] or [np.arange(ranks)]
    log_chances = [_log_chance(typical[its], least) for its in of_roles]
    if np.logaddexp.reduce(log_chances) < -log(1 + shuffles):  # less than they can show
        return 1 / (1 + shuffles)
    random = np.random.default_rng(ranks * 1_000_003 + pieces)
    by_piece = np.ascontiguousarray(typical.T)
    shuffled = np.empty_like(by_piece)
    as_large = 0
    by_role = {len(its): [each for each in of_roles if len(each) == len(its)] for its in of_roles}
    together = [(np.concatenate(its), (pieces, len(its), size)) for size, its in by_role.items()]
    for _ in range(shuffles):
        if len(of_roles) == 1:
            random.permuted(by_piece, axis=1, out=shuffled)
        for its, shape in together if len(of_roles) > 1 else ():
            shuffled[:, its] = random.permuted(by_piece[:, its].reshape(shape), axis=2).reshape(pieces, -1)
        as_large += bool(shuffled.mean(axis=0).max() >= least)
        if (1 + as_large) / (1 + shuffles) > _max_chance(runs):
            break
    return (1 + as_large) / (1 + shuffles)


def _log_chance(typical: Floats, least: float) -> float:
    """An upper limit of the logarithm of the probability that one permutation of the names in every piece [rank, piece]
    gives some rank a mean of `least`.

    By Chernoff's bound, P(Σ x ≥ 0) ≤ Π E exp(t · x) for every t > 0, with x the values of the pieces less `least`.
    """
    reach = least - float(typical.mean())
    if reach <= 0:
        return 0.0
    if len(typical) == 1 or not np.ptp(typical, axis=0).any():  # permuted it is what it is
        return -inf
    largest = typical.max(axis=0)
    limits = [
        float((t * (largest - least) + np.log(np.exp(t * (typical - largest)).mean(axis=0))).sum())
        for t in (times / reach for times in TIMES)
    ]
    return log(len(typical)) + min(limits)
