"""Stragglers in some of the steps: those that stand out, those that recur, and single events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from math import exp, lgamma, log, log1p

import numpy as np
import numpy.typing as npt

from parse.ledger.arrivals import LATE_IN, MATERIAL, Arrivals, Floats, LastArrivals, pooled
from parse.ledger.breakdown import StepBreakdown
from parse.ledger.meetings import Ints
from parse.ledger.types import CANNOT_TELL, NONE, ROTATING, TRANSIENT, Because, Incident, Shape, ShapeKind, Verdict

# How a straggler's delay runs over the steps: constant, growing or falling, from a step on, or every so many steps.

PIECES = 10
"""The window is judged in so many pieces: steps follow one another and are no independent evidence."""
BETTER = 25.0
"""A slope or a jump is real where it explains so many times the variance that it leaves, each by its degrees of
freedom (F): among ten pieces that differ by chance a slope does in one of a thousand cases."""
CHANGE = 0.5
"""The delay changes over the window by this part of its mean at least."""
KEEPS_TO_PERIOD = 0.8
"""This part of the steps keep to the period, and of the steps that the period gives are late."""
MIN_EVENTS = 4
SHORTEST_PERIOD = 2


def course(delays: Sequence[Floats], first_step: int) -> Shape:
    """The shape of a delay in ms [step] of each run, of windows that begin at `first_step`; in means over runs."""
    steps = min(map(len, delays))
    constant = Shape(kind=ShapeKind.CONSTANT)
    if steps < 2 * PIECES:
        return constant
    means = np.mean([delay[:steps] for delay in delays], axis=0)
    pieces = _pieces(means)
    at = np.arange(PIECES) - (PIECES - 1) / 2
    slope = float(at @ pieces / (at @ at))
    cut = _jump(means)
    before, after = float(means[:cut].mean()), float(means[cut:].mean())
    whole, by_slope, by_jump = (
        float(((values - values.mean()) ** 2).sum())
        for values in (pieces, pieces - slope * at, _pieces(means - np.where(np.arange(steps) < cut, before, after)))
    )
    grows = by_slope <= by_jump
    residual, parameters = (by_slope, 2) if grows else (by_jump, 3)  # a jump has a place, too
    change = slope * PIECES if grows else after - before
    explained = (whole - residual) / (parameters - 1)
    if explained <= BETTER * residual / (PIECES - parameters) or abs(change) < CHANGE * abs(pieces.mean()):
        return constant
    if grows:
        kind = ShapeKind.GROWING if slope > 0 else ShapeKind.FALLING
        return Shape(kind=kind, per_100_steps=slope * PIECES / steps * 100)
    return Shape(kind=ShapeKind.BEGINS if after > before else ShapeKind.ENDS, step=first_step + cut)


def _pieces(values: Floats) -> Floats:
    return np.array([part.mean() for part in np.array_split(values, PIECES)])


def _jump(values: Floats) -> int:
    """The place before and from which the means differ so that they leave the least squares."""
    before = np.arange(1, len(values))
    after = len(values) - before
    sums = np.cumsum(values)[:-1]
    return 1 + int((before * after * (sums / before - (values.sum() - sums) / after) ** 2).argmax())


def rhythm(run_steps: Sequence[Sequence[int]]) -> Shape | None:
    """The period of the steps in which a straggler is late, run by run; None where they have none."""
    gaps = Counter(after - before for steps in run_steps for before, after in pairwise(steps))
    if sum(map(len, run_steps)) < MIN_EVENTS or not gaps:
        return None
    period, _ = gaps.most_common(1)[0]
    if period < SHORTEST_PERIOD:
        return None
    regular = expected = 0
    for steps in filter(None, run_steps):
        phase, in_phase = Counter(step % period for step in steps).most_common(1)[0]
        regular += in_phase
        expected += len(range(min(step for step in steps if step % period == phase), max(steps) + 1, period))
    if regular < KEEPS_TO_PERIOD * len([*chain.from_iterable(run_steps)]) or regular < KEEPS_TO_PERIOD * expected:
        return None
    return Shape(kind=ShapeKind.PERIODIC, period=period)


# The evidence of a point's runs together, and the verdict on those who are late in some of its steps.

Bools = npt.NDArray[np.bool_]
MEETINGS_NAMED = 5
"""As many of a step's meetings are named, at which a straggler is late the most."""
SUSTAINED, BEYOND = 0.8, 2.0
"""A typical delay beyond this multiple of what is not exceeded in this share of the pieces counts as that multiple: a
single long stall decides nothing about all other pieces."""


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """Ranks that may be the straggler; `node` where they are all of one node with several."""

    ranks: tuple[int, ...]
    node: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """The evidence of all runs together; `step_ns` is their mean step, `nodes` and `hosts` are those of the ranks."""

    arrivals: Arrivals
    step_ns: float
    nodes: tuple[int, ...]
    hosts: tuple[str, ...]
    runs: int

    @property
    def bound_ns(self) -> float:
        """What the clocks usually leave open about the skew of the last rank."""
        return float(np.median(self.arrivals.skew_bound))

    def node(self, number: int) -> Suspect:
        """The ranks of a node."""
        ranks = tuple(rank for rank, on in enumerate(self.nodes) if on == number)
        return Suspect(ranks=ranks, node=number if len(ranks) > 1 else None)

    def host(self, suspect: Suspect) -> str:
        """The host name of a node that is late as a whole."""
        return "" if suspect.node is None else self.hosts[suspect.ranks[0]] or f"node {suspect.node}"

    def groups(self) -> tuple[LastArrivals, ...]:
        """The arrivals of ranks and, where there are several, of nodes."""
        return (self.arrivals.ranks, self.arrivals.nodes)[: 1 + (len({*self.nodes}) > 1)]

    def suspect(self, group: LastArrivals, number: int) -> Suspect:
        """The rank or node of that number in the group."""
        return Suspect(ranks=(number,)) if group is self.arrivals.ranks else self.node(number)

    def names(self, group: LastArrivals) -> int:
        """The number of ranks or nodes in the group."""
        return len(self.nodes) if group is self.arrivals.ranks else len({*self.nodes})

    def is_material(self, its: Bools, group: LastArrivals) -> bool:
        """Whether these steps [step] of one of the group cost MATERIAL of a step, as a mean over all steps."""
        return bool(its.any() and group.gap[its].sum() >= MATERIAL * self.step_ns * len(its))

    def without(self, its: Bools) -> Pool:
        """The same without these steps [step], what their last ranks were late in them included."""
        arrivals = self.arrivals
        counts = arrivals.late_steps.copy()
        sums = arrivals.rank_cause * counts[:, None]
        for step in np.flatnonzero(its & arrivals.ranks.provable):
            rank = arrivals.ranks.last[step]
            counts[rank] -= 1
            sums[rank] -= arrivals.cause[step]

        def rest(group: LastArrivals) -> LastArrivals:
            return replace(group, last=group.last[~its], gap=group.gap[~its], gap_bound=group.gap_bound[~its])

        arrays = {
            name: getattr(arrivals, name)[~its] for name in ("run", "steps", "skew", "skew_bound", "cause", "margin")
        }
        remaining = replace(
            arrivals, **arrays, ranks=rest(arrivals.ranks), nodes=rest(arrivals.nodes), late_steps=counts,
            rank_cause=sums / np.maximum(1, counts)[:, None],
        )  # fmt: skip
        return replace(self, arrivals=remaining)

    def course(self, late: Bools) -> Shape:
        """The shape of a delay: in these steps [step] it is the skew, in the others 0."""
        late_ms = np.where(late, self.arrivals.skew, 0) / 1e6
        return course([late_ms[self.arrivals.run == run] for run in range(self.runs)], int(self.arrivals.steps[0]))

    def in_steps(
        self, suspect: Suspect, its: Bools, group: LastArrivals, chance: float | None = None, period: int | None = None
    ) -> Verdict:
        """The verdict on those who are late in these steps [step], every `period` steps where that is known."""
        arrivals = self.arrivals
        run_steps = tuple(tuple(arrivals.steps[its & (arrivals.run == run)].tolist()) for run in range(self.runs))
        return Verdict(
            kind=TRANSIENT, ranks=suspect.ranks, node=self.host(suspect),
            steps=run_steps[0] if len({*run_steps}) == 1 else (), run_steps=run_steps,
            in_runs=sum(map(bool, run_steps)), of_runs=self.runs,
            shape=Shape(kind=ShapeKind.PERIODIC, period=period) if period else self._shape(its, run_steps),
            arrival_skew=float(arrivals.skew[its].mean()) / 1e6,
            cause=named(arrivals, arrivals.cause[its].mean(axis=0)), meetings=meetings_of(arrivals, suspect.ranks),
            share=float(its.mean()), costs=float(group.gap[its].sum()) / len(its) / 1e6,
            bound=self.bound_ns / 1e6, chance=chance,
        )  # fmt: skip

    def _shape(self, its: Bools, run_steps: Sequence[Sequence[int]]) -> Shape | None:
        """Periodic, or from a step on or until it; None for what has no such shape."""
        periodic = rhythm(run_steps)
        if periodic is not None:
            return periodic
        shape = self.course(its)
        return shape if shape.kind in (ShapeKind.BEGINS, ShapeKind.ENDS) else None


def pool_of(runs: Sequence[StepBreakdown]) -> Pool | Verdict:
    """The evidence of these runs, which are alike; the verdict where ranks cannot be compared."""
    if len(runs[0].nodes) == 1:
        return Verdict(kind=NONE, because=Because.ONE_RANK)
    arrivals = [run.arrivals for run in runs if run.arrivals is not None]
    if not arrivals:
        return Verdict(kind=CANNOT_TELL, because=runs[0].merged)
    hosts = zip(*(run.hosts for run in runs), strict=True)
    return Pool(
        arrivals=_without_stalls(pooled(arrivals)), step_ns=float(np.mean([run.step_ns for run in runs])),
        nodes=runs[0].nodes,
        hosts=tuple(names[0] if len({*names}) == 1 else "" for names in hosts), runs=len(runs),
    )  # fmt: skip


def _without_stalls(arrivals: Arrivals) -> Arrivals:
    """The same with typical delays, early ones too, up to BEYOND times what is SUSTAINED: those of ranks by the latest
    rank of each piece, those of nodes by the latest node, whichever it is."""

    def bounded(values: Floats, of_piece: Floats) -> Floats:
        limit = BEYOND * _quantile(of_piece, SUSTAINED)
        return np.clip(values, -limit, limit)

    ranks, nodes = arrivals.ranks.typical, arrivals.nodes.typical
    of_ranks = np.abs(ranks).max(axis=0)
    return replace(
        arrivals, usual=bounded(arrivals.usual, of_ranks),
        ranks=replace(arrivals.ranks, typical=bounded(ranks, of_ranks)),
        nodes=replace(arrivals.nodes, typical=bounded(nodes, np.abs(nodes).max(axis=0))),
    )  # fmt: skip


def _quantile(values: Floats, share: float) -> float:
    """As numpy.quantile, which imports numpy.ma: a fifth of the time of a ledger of 1024 ranks."""
    ordered = np.sort(values)
    return float(np.interp(share * (len(ordered) - 1), np.arange(len(ordered)), ordered))


def named(arrivals: Arrivals, cause_ns: Floats) -> Mapping[str, float]:
    """By name, ms; what no stamp separates from the next is in that."""
    return {name: float(ns) / 1e6 for name, ns in zip(arrivals.causes, cause_ns, strict=True) if name}


def meetings_of(arrivals: Arrivals, ranks: Sequence[int]) -> Mapping[str, float]:
    """By meeting, ms: how late these ranks are at it in the steps in which they are late."""
    its_steps = arrivals.late_steps[list(ranks)]
    if not arrivals.meetings or not its_steps.any():
        return {}
    ms = its_steps / its_steps.sum() @ arrivals.rank_meetings[list(ranks)] / 1e6
    largest = np.argsort(-ms, kind="stable")[:MEETINGS_NAMED].tolist()
    return {arrivals.meetings[at]: float(ms[at]) for at in largest if ms[at] > 0}


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
    probability of so many of the worst steps in any one phase, over all periods tried, if steps had no order."""

    period: int
    phase: int
    its: npt.NDArray[np.bool_]
    chance: float


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
    return Recurrence(period=its_period, phase=phase, its=its, chance=min(1.0, exp(log_chance) * tests))


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


def transients(pool: Pool) -> tuple[Verdict, ...]:
    """Who is late in some of the steps: the rank or node whose delays recur, or on whom those fall that stand out."""
    recurring, standing_out = _recurring(pool), _standing_out(pool)
    if recurring and standing_out and recurring.costs < ALONE * standing_out.costs:
        recurring = None  # what stands out has no period, or another
    candidate = recurring or standing_out
    return (candidate,) if candidate and shows(pool, candidate) else ()


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
            if its.mean() <= SELDOM and pool.is_material(its, of):
                verdicts.append(pool.in_steps(suspect, its, of, recurring.chance * len(pool.nodes), recurring.period))
    return min(verdicts, key=lambda each: each.chance or 0.0, default=None)


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
        if recurring and recurring.chance * len(pool.nodes) <= SPIKE_CHANCE:
            yield int(number), recurring


def _standing_out(pool: Pool) -> Verdict | None:
    """Steps that stand out, and the rank or node on which more of them fall than by chance."""
    arrivals = pool.arrivals
    skew = arrivals.skew
    verdicts: list[Verdict] = []
    sizes = 0
    least_ns = smallest_ns = np.maximum(SPIKE * float(np.median(skew)), arrivals.skew_bound)
    while (out := skew > least_ns).any():
        if out.mean() <= SELDOM:
            verdicts += _most_of(pool, out, SPIKE_CHANCE, smallest_ns)
            sizes += 1
        least_ns = np.maximum(1.0, 2 * least_ns)  # small incidents of others hide no large ones
    if verdicts:
        best = min(verdicts, key=lambda candidate: candidate.chance or 0.0)
        return replace(best, chance=min(1.0, sizes * (best.chance or 0.0)))
    if (severe := _severe(arrivals)).any() and severe.mean() <= SELDOM:
        return next(_most_of(pool, severe, SEVERE_CHANCE), None)
    return None


def single_events(pool: Pool) -> Iterator[tuple[Verdict, Bools]]:
    """Events of one rank that are ONCE as late as all other steps, and their steps [step]: those for one cause
    together, the others apart."""
    arrivals = pool.arrivals
    events = sorted(_events(_severe(arrivals), arrivals), key=lambda its: -int(arrivals.skew[its].max()))
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
    severe = _severe(arrivals)
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


def _severe(arrivals: Arrivals) -> Bools:
    return (arrivals.skew > SEVERE * float(np.median(arrivals.skew))) & (arrivals.skew > arrivals.skew_bound)


def _most_of(pool: Pool, out: Bools, limit: float, smallest_ns: Floats | None = None) -> Iterator[Verdict]:
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
        names = pool.names(group)
        chance = names * tail(len(events), int((events == number).sum()), 1 / names)
        if chance <= limit and pool.is_material(its, group):
            yield pool.in_steps(pool.suspect(group, number), its, group, chance)


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
                counts = np.bincount(group.last[provable])
                return _in_turn(pool, group, np.flatnonzero(counts >= counts.max() / 2).tolist(), provable)
        by_period = _strict_turns(pool, group)
        if by_period:
            return _in_turn(pool, group, by_period, provable & np.isin(group.last, by_period))
    return None


def _strict_turns(pool: Pool, group: LastArrivals) -> list[int]:
    """Those of the group whose delays recur with one period, each in a phase of its own, and who are together last in
    most of the steps; empty where there are none."""
    for _, recurring in _recurrences(pool, group, regular=IN_TURN):
        phases = {number: member.phase for number, member in _recurrences(pool, group, recurring.period, IN_TURN)}
        if 1 < len(phases) == len({*phases.values()}) and len(phases) > MOSTLY * recurring.period:
            return sorted(phases)
    return []


def _in_turn(pool: Pool, group: LastArrivals, often: list[int], its: Bools) -> Verdict:
    """The verdict on those of the group who are late by turns, in these steps [step]."""
    ranks, hosts = often, ""
    if group is pool.arrivals.nodes:
        ranks = [rank for rank, node in enumerate(pool.nodes) if node in often]
        hosts = ", ".join(pool.host(pool.node(node)) for node in often)
    in_steps = pool.in_steps(Suspect(ranks=tuple(ranks)), its, group)
    return replace(in_steps, kind=ROTATING, steps=(), run_steps=(), shape=None, node=hosts)


def _takes_turns(last: Ints) -> bool:
    """Whether none of those who come last does so in most of the steps."""
    return len(last) > 0 and bool(np.bincount(last).max() <= LATE_IN * len(last))
