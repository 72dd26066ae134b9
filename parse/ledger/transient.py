"""Stragglers in some of the steps: those that stand out, those that recur, and single events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, lgamma, log, log1p

import numpy as np
import numpy.typing as npt

from parse.ledger.arrivals import LATE_IN, MATERIAL, Arrivals, LastArrivals
from parse.ledger.breakdown import StepBreakdown
from parse.ledger.meetings import Floats, Ints
from parse.ledger.pool import Bools, Pool, Suspect
from parse.ledger.shape import MIN_EVENTS
from parse.ledger.types import ROTATING, Incident, Shape, ShapeKind, Verdict

# Delays that recur: the period under which the worst steps of a rank fall into one phase, if not by chance.

MIN_PERIOD, MAX_PERIOD = 2, 200
OFTEN = 3
"""A period comes round so often in a run at least."""
TIMES = (1, 2)
"""As many of the worst steps are looked at as a phase has steps, and twice as many: some are of other origin."""
REGULAR = 0.5
"""A rank is late in more than this share of the steps of its phase."""
AS_LATE = 0.5
"""In these it is late by this part of what it mostly is in the worst of them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Recurrence:
    """One in `period` steps, where step mod period is `phase`: in `its` [step] it comes last. `chance` is the
    probability of so many of the worst steps in any one phase, over all `tests`, if steps had no order."""

    period: int
    phase: int
    its: npt.NDArray[np.bool_]
    chance: float
    tests: int


def recurrence(
    late_ns: Ints | Floats, steps: Ints, period: int | None = None, regular: float = REGULAR
) -> Recurrence | None:
    """The likeliest period of a delay; `late_ns` [step] is 0 where it is none, `steps` are the numbers of the steps,
    from 0 in each run. With `period` that one alone is tried. None where it is late in `regular` of a phase or less.

    The worst steps are m of all N; in a phase of n steps h or more of them lie with the probability of the
    hypergeometric distribution.
    """
    worst = np.argsort(-late_ns, kind="stable")[: int(np.count_nonzero(late_ns > 0))]
    span = int(steps.max() - steps.min()) + 1
    periods = range(MIN_PERIOD, min(MAX_PERIOD, span // OFTEN) + 1) if period is None else (period,)
    tests = sum(periods) * len(TIMES)
    best = min(_phases(worst, steps, periods), default=None)
    if best is None:
        return None
    log_chance, its_period, phase, hits = best
    in_phase = steps % its_period == phase
    usual_ns = float(np.median(np.sort(late_ns[in_phase])[-hits:]))
    its = in_phase & (late_ns > AS_LATE * usual_ns)
    if its.sum() <= regular * in_phase.sum():
        return None
    return Recurrence(period=its_period, phase=phase, its=its, chance=min(1.0, exp(log_chance) * tests), tests=tests)


def _phases(worst: Ints, steps: Ints, periods: range | tuple[int]) -> Iterator[tuple[float, int, int, int]]:
    """For each period the logarithm of the probability, the period, the phase with most of the worst steps, the number
    of these."""
    for period in periods:
        lengths = np.bincount(steps % period, minlength=period)
        for times in TIMES:
            tried = worst[: times * int(lengths.max())]
            hits = np.bincount(steps[tried] % period, minlength=period)
            phase = int(hits.argmax())
            if hits[phase] >= MIN_EVENTS:
                yield (
                    _log_tail(len(steps), len(tried), int(lengths[phase]), int(hits[phase])),
                    period,
                    phase,
                    int(hits[phase]),
                )


def _log_tail(total: int, marked: int, drawn: int, hits: int) -> float:
    """The logarithm of the probability that of so many drawn out of a total `hits` or more are marked."""

    def log_ways(n: int, k: int) -> float:
        return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)

    logs = [
        log_ways(marked, k) + log_ways(total - marked, drawn - k) - log_ways(total, drawn)
        for k in range(hits, min(marked, drawn) + 1)
        if drawn - k <= total - marked
    ]
    largest = max(logs, default=0.0)
    return min(0.0, largest + float(np.log(sum(exp(each - largest) for each in logs)))) if logs else 0.0


SIGMAS = 4.0
"""Standard deviations by which ranks that alternate in being late avoid one another."""
IN_TURN = 0.3
"""Of those whose delays recur by turns each is late in this share of its steps: beside many others seldom last."""
MOSTLY = 0.5
"""The ranks that alternate are provably last in more than this share of the steps."""
ALONE = 0.8
"""A rank is meant, and not its node, where it is the latest in this part of the steps in which its node is; delays that
recur, where they are this part of those that stand out."""
TOGETHER = 0.5
"""With the steps that stand out go those in which a rank is last by this part of what it mostly is in them."""
SPIKE, SEVERE = 5.0, 50.0
"""Multiples of the median arrival skew from which a step stands out, and from which it is reported by itself."""
ONCE = 10.0
"""An event that is this many times as late as all other steps of the window is one by itself, without comparison."""
FEW = 3
"""There are at most so many such events."""
COSTLY = 0.05
"""Delays in some steps that half of the runs or fewer show are the point's where they cost this share of its step."""
SELDOM = 0.4
"""Steps that stand out are at most this share of the window."""
SPIKE_CHANCE, SEVERE_CHANCE = 0.005, 0.02
"""The maximum probability that so many of them fall on one rank by chance; the single test of severe ones may have more
than the many tests at all sizes."""


def transient(pool: Pool) -> Verdict | None:
    """Who is late in some of the steps: the rank or node whose delays recur, or on whom those fall that stand out."""
    recurring, standing_out = _recurring(pool), _standing_out(pool)
    if recurring and standing_out and recurring.costs < ALONE * standing_out.costs:
        recurring = None  # what stands out has no period, or another
    candidate = recurring or standing_out
    return candidate if candidate and shows(pool, candidate) else None


def _of_one_run(chance: float, tests: int, pool: Pool, ranks: Sequence[int]) -> float:
    """The probability over so many tests; where others than these ranks are late in the same steps of all runs, that of
    one run: what one has with a probability, all have, repeated, with that to the power of their number."""
    if chance > SPIKE_CHANCE or pool.repeats(ranks) is None:
        return chance
    return min(1.0, float((chance / tests) ** (1 / pool.runs)) * tests)


def shows(pool: Pool, verdict: Verdict) -> bool:
    """Whether more than half of the runs show it, or it is COSTLY: in single runs equal ranks have incidents, too."""
    return 2 * verdict.in_runs > verdict.of_runs or verdict.costs * 1e6 >= COSTLY * pool.step_ns


def _recurring(pool: Pool) -> Verdict | None:
    """A rank whose delays recur every so many steps; a node where none of its ranks is the latest in most of them."""
    verdicts: list[Verdict] = []
    for group in pool.groups():
        for number, recurring in _recurrences(pool, group):
            of, suspect, its = group, pool.suspect(group, number), recurring.its
            latest = np.bincount(pool.arrivals.ranks.last[its])
            if latest.max() >= ALONE * its.sum():
                of, suspect = pool.arrivals.ranks, Suspect(ranks=(int(latest.argmax()),))
                its = its & (of.last == latest.argmax())
            its = its | _behind_it_another(pool, recurring, its, of)
            if its.mean() <= SELDOM and pool.is_material(its, of):
                verdicts.append(pool.in_steps(suspect, its, of, recurring.chance * len(pool.nodes), recurring.period))
    return min(verdicts, key=lambda each: each.chance or 0.0, default=None)


def _behind_it_another(pool: Pool, recurring: Recurrence, its: Bools, group: LastArrivals) -> Bools:
    """The steps of the phase in which the same one is as late, but another nearly so."""
    if not its.any():
        return its
    arrivals, number = pool.arrivals, group.last[its][0]
    as_late = arrivals.skew >= TOGETHER * float(np.median(arrivals.skew[its]))
    in_phase = arrivals.steps % recurring.period == recurring.phase
    steps: Bools = in_phase & as_late & group.provable & (group.last == number)
    return steps


def _recurrences(
    pool: Pool, group: LastArrivals, period: int | None = None, regular: float = REGULAR
) -> Iterator[tuple[int, Recurrence]]:
    """The recurrences of those whose delays are material and not in most of the steps, where they are not by chance; of
    this period alone."""
    late = group.provable
    steps, costs_ns = np.bincount(group.last[late]), np.bincount(group.last[late], weights=group.gap[late])
    for number in np.flatnonzero((costs_ns >= MATERIAL * pool.step_ns * len(late)) & (steps <= LATE_IN * len(late))):
        its_ns = np.where(late & (group.last == number), group.gap, 0)
        recurring = recurrence(its_ns, pool.arrivals.steps, period, regular)
        if recurring and _of_one_run(
            recurring.chance, recurring.tests, pool, pool.suspect(group, int(number)).ranks
        ) <= SPIKE_CHANCE / len(pool.nodes):
            yield int(number), recurring


@dataclass(frozen=True, kw_only=True, eq=False)
class Outstanding:
    """The steps `its` [step] that stand out in which one of the `group` is last; `chance` is the probability of so many
    or more on anybody."""

    suspect: Suspect
    its: Bools
    group: LastArrivals
    chance: float


def _standing_out(pool: Pool) -> Verdict | None:
    candidates = standing_out(pool)
    return (
        None
        if candidates is None
        else pool.in_steps(candidates.suspect, candidates.its, candidates.group, candidates.chance)
    )


def standing_out(pool: Pool) -> Outstanding | None:
    """Steps that stand out, and the rank or node on which more of them fall than by chance."""
    arrivals = pool.arrivals
    skew = arrivals.skew
    candidates: list[Outstanding] = []
    sizes = 0
    least_ns = smallest_ns = np.maximum(SPIKE * pool.usual_skew_ns, arrivals.skew_bound)
    while (out := skew > least_ns).any():
        if out.mean() <= SELDOM:
            candidates += _most_of(pool, out, SPIKE_CHANCE, smallest_ns)
            sizes += 1
        least_ns = np.maximum(1.0, 2 * least_ns)  # small incidents of others hide no large ones
    if candidates:
        best = min(candidates, key=lambda candidate: candidate.chance)
        return replace(best, chance=min(1.0, sizes * best.chance))
    if (severe := _severe(arrivals, pool.usual_skew_ns)).any() and severe.mean() <= SELDOM:
        return next(_most_of(pool, severe, SEVERE_CHANCE), None)
    return None


def single_events(pool: Pool) -> Iterator[tuple[Verdict, Bools]]:
    """Events of one rank that are ONCE as late as all other steps, and their steps [step]: those for one cause
    together, the others apart."""
    arrivals = pool.arrivals
    events = sorted(
        _events(_severe(arrivals, pool.usual_skew_ns), arrivals), key=lambda its: -int(arrivals.skew[its].max())
    )
    for count in range(min(FEW, len(events)), 0, -1):
        rest = np.ones(len(arrivals.skew), np.bool_)
        for its in events[:count]:
            rest[its] = False
        stands_out = arrivals.skew[events[count - 1]].max() > ONCE * arrivals.skew[rest].max(initial=0)
        if stands_out and len({*arrivals.ranks.last[~rest].tolist()}) == 1:
            break
    else:
        return
    together: dict[int, Bools] = {}
    for its in events[:count]:
        worst = its[int(arrivals.skew[its].argmax())]
        together.setdefault(int(arrivals.cause[worst].argmax()), np.zeros(len(rest), np.bool_))[its] = True
    for steps in together.values():
        verdict = pool.in_steps(Suspect(ranks=(int(arrivals.ranks.last[worst]),)), steps, arrivals.ranks)
        if pool.is_material(steps, arrivals.ranks) and shows(pool, verdict):
            yield verdict, steps


def _events(steps: Bools, arrivals: Arrivals) -> list[npt.NDArray[np.intp]]:
    """The indices of these steps, those in a row by the same last rank together."""
    at = np.flatnonzero(steps)
    starts = np.isin(at, first_of_events(steps, arrivals.ranks.last))
    return np.split(at, np.flatnonzero(starts)[1:]) if len(at) else []


def incidents(breakdown: StepBreakdown) -> tuple[Incident, ...]:
    """Steps in which a rank is late beyond all that is usual, the worst first, where together they cost something.

    Equal ranks have them too, so they make no straggler.
    """
    arrivals = breakdown.arrivals
    if arrivals is None:
        return ()
    severe = _severe(arrivals, float(np.median(arrivals.skew)))
    lost_ns = arrivals.ranks.gap[severe].sum()
    if not severe.any() or lost_ns < MATERIAL * breakdown.step_ns * len(severe) or severe.mean() > SELDOM:
        return ()
    worst_first = np.flatnonzero(severe)[np.argsort(-arrivals.skew[severe], kind="stable")]
    return tuple(
        Incident(step=int(step), rank=int(rank), arrival_skew=float(skew) / 1e6)
        for step, rank, skew in zip(
            *(column[worst_first] for column in (arrivals.steps, arrivals.ranks.last, arrivals.skew)), strict=True
        )
    )


def _severe(arrivals: Arrivals, usual_ns: float) -> Bools:
    return (arrivals.skew > SEVERE * usual_ns) & (arrivals.skew > arrivals.skew_bound)


def _most_of(pool: Pool, out: Bools, limit: float, smallest_ns: Floats | None = None) -> Iterator[Outstanding]:
    """The rank and the node with most of these steps, if so many by chance are no likelier than `limit`.

    An incident of another rank may leave only larger steps to it. With `smallest_ns`, the skew [step] from which one
    stands out, its steps are also those in which it is last by TOGETHER of what it mostly is.
    """
    arrivals = pool.arrivals
    for group in pool.groups():
        events = group.last[first_of_events(out, group.last)]
        number = int(np.bincount(events).argmax())
        its = out & (group.last == number)
        if smallest_ns is not None and its.any():
            usual = TOGETHER * float(np.median(arrivals.skew[its]))
            its |= (group.last == number) & (arrivals.skew > np.maximum(smallest_ns, usual))
        names, peers = pool.names(group), pool.peers(group, number)
        of_peers = events[np.isin(events, peers)]
        chance = names * tail(len(of_peers), int((events == number).sum()), 1 / len(peers))
        suspect = pool.suspect(group, number)
        if (
            chance <= limit
            and pool.is_material(its, group)
            and _of_one_run(chance, names, pool, suspect.ranks) <= limit
        ):
            yield Outstanding(suspect=suspect, its=its, group=group, chance=chance)


def first_of_events(steps: Bools, who: Ints) -> npt.NDArray[np.intp]:
    """Indices of these steps; of those in a row by the same one, that of the first."""
    at = np.flatnonzero(steps)
    return at[np.diff(at, prepend=-2) + np.abs(np.diff(who[at], prepend=-1)) > 1]


def tail(events: int, its: int, chance: float) -> float:
    """The probability of so many or more of the events, where each falls on it with that chance (binomial)."""
    all_ways = lgamma(events + 1)
    return sum(
        exp(all_ways - lgamma(k + 1) - lgamma(events - k + 1) + k * log(chance) + (events - k) * log1p(-chance))
        for k in range(its, events + 1)
    )


def rotating(pool: Pool) -> Verdict | None:
    """Ranks, or nodes, that alternate: nearly always one is late, hardly ever two, and none in most of the steps."""
    arrivals = pool.arrivals
    for group in pool.groups():
        provable = group.gap > np.maximum(group.gap_bound, MATERIAL * pool.step_ns)
        if group.exclusive >= SIGMAS and provable.mean() > MOSTLY:
            in_turn = [_takes_turns(group.last[provable & (arrivals.run == run)]) for run in range(pool.runs)]
            if 2 * sum(in_turn) > pool.runs:
                counts, costs = (
                    np.bincount(group.last[provable], weights=weights) for weights in (None, group.gap[provable])
                )
                by_turns = np.flatnonzero((counts >= counts.max() / 2) & (costs >= costs.max() / 2)).tolist()
                if len(by_turns) > 1:
                    return _in_turn(pool, group, by_turns, provable)
        by_period = _strict_turns(pool, group)
        if by_period:
            return _in_turn(pool, group, by_period, provable & np.isin(group.last, by_period))
    return None


def _strict_turns(pool: Pool, group: LastArrivals) -> list[int]:
    """Those of the group whose delays recur with one period, each in a phase of its own, and who are together last in
    most of the steps; empty where there are none."""
    for _, recurring in _recurrences(pool, group, regular=IN_TURN):
        members = dict(_recurrences(pool, group, recurring.period, IN_TURN))
        phases = {number: member.phase for number, member in members.items()}
        costs = [float(group.gap[member.its].sum()) for member in members.values()]
        in_turn = 1 < len(phases) == len({*phases.values()}) and len(phases) > MOSTLY * recurring.period
        if in_turn and min(costs) >= max(costs) / 2:
            return sorted(phases)
    return []


def _in_turn(pool: Pool, group: LastArrivals, often: list[int], its: Bools) -> Verdict:
    """The verdict on those of the group who are late by turns, in these steps [step]."""
    ranks, hosts = often, ""
    if group is pool.arrivals.nodes:
        ranks = [rank for rank, node in enumerate(pool.nodes) if node in often]
        hosts = ", ".join(pool.host(pool.node(node)) for node in often)
    in_steps = pool.in_steps(Suspect(ranks=tuple(ranks)), its, group)
    return replace(in_steps, kind=ROTATING, steps=(), run_steps=(), shape=_blocks(group.last[its]), node=hosts)


BLOCK = 4
"""Where one and the same is late for so many steps before another is, they take turns by blocks."""


def _blocks(last: Ints) -> Shape | None:
    """How many steps one is late before another; None where turns are shorter than BLOCK."""
    lengths = np.diff(np.flatnonzero(np.diff(last, prepend=-1, append=-1)))
    of_step = np.repeat(lengths, lengths)  # the length of the turn in which a step lies
    usual = int(np.median(of_step)) if len(of_step) else 0
    return Shape(kind=ShapeKind.BLOCKS, period=usual) if usual >= BLOCK else None


def _takes_turns(last: Ints) -> bool:
    """Whether none of those who come last does so in most of the steps."""
    return len(last) > 0 and bool(np.bincount(last).max() <= LATE_IN * len(last))
