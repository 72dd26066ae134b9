"""Finds the straggler: a verdict on a run's arrivals, tested against equal ranks.

Null hypothesis: ranks differ by chance alone. Then permuting the ranks' names in each piece of the window changes
nothing, nor does permuting the work of a step's ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import exp, lgamma, log, log1p

import numpy as np
import numpy.typing as npt

from parse.ledger.arrivals import LATE_IN, MATERIAL, Arrivals, Floats, Ints, LastArrivals
from parse.ledger.breakdown import PIECES, StepBreakdown
from parse.ledger.types import CANNOT_TELL, NONE, PERSISTENT, ROTATING, TRANSIENT, Because, Incident, Verdict

UNRESOLVED = 0.05
"""If the clocks' uncertainty exceeds this share of the step, the verdict cannot be `none` either."""
CHANCE = 0.01
"""The maximum false-positive rate of a persistent straggler among equal ranks; the other tests have less."""
SHUFFLES, FEWER_SHUFFLES, MANY = 499, 199, 10_000
"""Permutations tried; fewer where (ranks × pieces) are many."""
TOGETHER = 0.5
"""Ranks that are late by at least this part of the latest rank's delay are late together."""
SIGMAS = 4.0
"""Standard deviations by which ranks that alternate in being late avoid one another."""
MOSTLY = 0.5
"""The ranks that alternate are provably last in more than this share of the steps."""
SPIKE, SEVERE = 5.0, 50.0
"""Multiples of the median arrival skew from which a step stands out, and from which it is reported by itself."""
ONCE = 10.0
"""An arrival that is this many times as late as all others in the window is a single incident, without comparison."""
SELDOM = 0.4
"""Steps that stand out are at most this share of the window."""
SPIKE_CHANCE, SEVERE_CHANCE = 0.005, 0.02
"""The maximum probability that so many of them fall on one rank by chance; the single test of severe ones may have more
than the many tests at all sizes."""
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class _Suspect:
    """Ranks that may be the straggler; `node` where they are all of one node with several."""

    ranks: tuple[int, ...]
    node: int | None = None


def verdict(breakdown: StepBreakdown) -> Verdict:
    """The verdict on this run's straggler."""
    arrivals = breakdown.arrivals
    if len(breakdown.nodes) == 1:
        return Verdict(kind=NONE, because=Because.ONE_RANK)
    if arrivals is None:
        return Verdict(kind=CANNOT_TELL, because=breakdown.merged)
    candidates = [_rotating(breakdown, arrivals)]
    if candidates == [None]:
        candidates = _apart(_persistent(breakdown, arrivals), _transient(breakdown, arrivals))
    if any(candidates):
        return max(filter(None, candidates), key=lambda candidate: candidate.costs)
    bound = _bound_ns(arrivals) / 1e6
    if bound * 1e6 > UNRESOLVED * breakdown.step_ns:
        return Verdict(kind=CANNOT_TELL, because=Because.CLOCK, bound=bound)
    ranks, pieces = arrivals.ranks.typical.shape
    if max(1 / (1 + SHUFFLES), float(ranks) ** (1 - pieces)) > CHANCE:  # what the test can find at best
        return Verdict(kind=CANNOT_TELL, because=Because.FEW_STEPS, bound=bound)
    return Verdict(kind=NONE, bound=bound)


def _apart(persistent: Verdict | None, transient: Verdict | None) -> list[Verdict | None]:
    """Both, or one of them where they are the same rank: the transient one if its other steps cost less. The steps that
    stand out are in the costs of the persistent one, too."""
    if persistent is None or transient is None or not {*transient.ranks} <= {*persistent.ranks}:
        return [persistent, transient]
    return [transient if persistent.costs < 2 * transient.costs else persistent]


def _bound_ns(arrivals: Arrivals) -> float:
    return float(np.median(arrivals.skew_bound))


def _persistent(breakdown: StepBreakdown, arrivals: Arrivals) -> Verdict | None:
    """A rank, several, or a node that are late in nearly all of the window."""
    suspect = _usual_suspect(breakdown, arrivals)
    if suspect is None:
        return None
    ranks = list(suspect.ranks)
    costs_ns = _costs_ns(arrivals, suspect)
    typical_ns = float(arrivals.ranks.typical[ranks].mean())
    if min(typical_ns, costs_ns) < MATERIAL * breakdown.step_ns:  # a few bad steps alone cost much, too
        return None
    chance = _chance(arrivals.ranks.typical)
    if suspect.node is not None:
        chance = min(chance, _chance(arrivals.nodes.typical))
    if chance > CHANCE:
        return None
    bound_ns = _bound_ns(arrivals)
    if typical_ns <= bound_ns:
        return Verdict(
            kind=CANNOT_TELL, because=Because.CLOCK, bound=bound_ns / 1e6, arrival_skew=typical_ns / 1e6, chance=chance
        )
    late_steps, causes = arrivals.late_steps[ranks], arrivals.rank_cause[ranks]
    weights = late_steps / max(1, late_steps.sum())
    return Verdict(
        kind=PERSISTENT, ranks=suspect.ranks, node=_host(breakdown, suspect),
        arrival_skew=float(causes.sum(axis=1) @ weights) / 1e6,
        cause=_named(arrivals, weights @ causes),
        share=float(late_steps.mean()) / len(arrivals.steps), costs=costs_ns / 1e6, bound=bound_ns / 1e6,
        chance=chance,
    )  # fmt: skip


def _usual_suspect(breakdown: StepBreakdown, arrivals: Arrivals) -> _Suspect | None:
    """The ranks whose typical arrival skew is the largest, or near it; a node where they are all of its ranks."""
    usual = arrivals.ranks.typical.mean(axis=1)
    if usual.max() <= 0:
        return None
    ranks = tuple(np.flatnonzero(usual >= TOGETHER * usual.max()).tolist())
    nodes = {breakdown.nodes[rank] for rank in ranks}
    if len(nodes) == 1 and len({*breakdown.nodes}) > 1 and (whole := _node(breakdown, nodes.pop())).ranks == ranks:
        return whole
    if len(ranks) > len(breakdown.nodes) // 2:
        return None  # where most are late the few others are early
    return _Suspect(ranks=ranks)


def _costs_ns(arrivals: Arrivals, suspect: _Suspect) -> float:
    """The mean time that the suspect adds to a step: up to the next rank, or node; for several ranks, to the median."""
    if suspect.node is not None:
        lost = np.where(arrivals.nodes.last == suspect.node, arrivals.nodes.gap, 0)
    else:
        later = arrivals.ranks.gap if len(suspect.ranks) == 1 else arrivals.skew
        lost = np.where(np.isin(arrivals.ranks.last, suspect.ranks), later, 0)
    return float(lost.astype(np.float64).mean())


def _chance(typical: Floats) -> float:
    """The probability of so large a mean over the pieces [rank, piece] if names are permuted in every piece."""
    if typical.shape[1] >= 2 * PIECES:
        typical = np.stack([part.mean(axis=1) for part in np.array_split(typical, PIECES, axis=1)], axis=1)
    ranks, pieces = typical.shape
    observed = typical.mean(axis=1).max()
    random = np.random.default_rng(ranks * 1_000_003 + pieces)
    shuffles = SHUFFLES if typical.size <= MANY else FEWER_SHUFFLES
    as_large = sum(
        bool(random.permuted(typical, axis=0).mean(axis=1).max() >= observed * (1 - 1e-12)) for _ in range(shuffles)
    )
    return (1 + as_large) / (1 + shuffles)


def _transient(breakdown: StepBreakdown, arrivals: Arrivals) -> Verdict | None:
    """Steps that stand out, and the rank or node on which more of them fall than by chance; or a single incident."""
    skew, last = arrivals.skew, arrivals.ranks.last
    verdicts: list[Verdict] = []
    sizes = 0
    least_ns = smallest_ns = np.maximum(SPIKE * float(np.median(skew)), arrivals.skew_bound)
    while (out := skew > least_ns).any():
        if out.mean() <= SELDOM:
            verdicts += _standing_out(breakdown, arrivals, out, SPIKE_CHANCE, smallest_ns)
            sizes += 1
        least_ns = np.maximum(1.0, 2 * least_ns)  # small incidents of others hide no large ones
    if verdicts:
        best = min(verdicts, key=lambda candidate: candidate.chance or 0.0)
        return replace(best, chance=min(1.0, sizes * (best.chance or 0.0)))
    if (severe := _severe(arrivals)).any() and severe.mean() <= SELDOM:
        for candidate in _standing_out(breakdown, arrivals, severe, SEVERE_CHANCE):
            return candidate
    worst = int(skew.argmax())
    its = severe & (last == last[worst])
    once = its & (np.abs(np.arange(len(its)) - worst) < max(1, its.sum()))  # with the steps beside it that it lasted
    if not once[worst] or skew[worst] <= ONCE * skew[~once].max(initial=0):
        return None
    if not _is_material(once, arrivals.ranks, breakdown):
        return None
    return _in_steps(breakdown, arrivals, _Suspect(ranks=(int(last[worst]),)), once, arrivals.ranks)


def incidents(breakdown: StepBreakdown) -> tuple[Incident, ...]:
    """Steps in which a rank is late beyond all that is usual, the worst first, where together they cost something.

    Equal ranks have them too, so they make no straggler.
    """
    arrivals = breakdown.arrivals
    if arrivals is None:
        return ()
    severe = _severe(arrivals)
    if not _is_material(severe, arrivals.ranks, breakdown) or severe.mean() > SELDOM:
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


def _standing_out(
    breakdown: StepBreakdown, arrivals: Arrivals, out: Bools, limit: float, smallest_ns: Floats | None = None
) -> Iterator[Verdict]:
    """The rank and the node with most of these steps, if so many by chance are no likelier than `limit`.

    An incident of another rank may leave only larger steps to it. With `smallest_ns`, the skew [step] from which one
    stands out, its steps are also those in which it is last by TOGETHER of what it mostly is.
    """
    for group, names in ((arrivals.ranks, len(breakdown.nodes)), (arrivals.nodes, len({*breakdown.nodes}))):
        if names == 1:
            continue
        events = group.last[_events(out, group.last)]
        number = int(np.bincount(events).argmax())
        its = out & (group.last == number)
        if smallest_ns is not None and its.any():
            usual = TOGETHER * float(np.median(arrivals.skew[its]))
            its |= (group.last == number) & (arrivals.skew > np.maximum(smallest_ns, usual))
        chance = names * _tail(len(events), int((events == number).sum()), 1 / names)
        if chance <= limit and _is_material(its, group, breakdown):
            suspect = _Suspect(ranks=(number,)) if group is arrivals.ranks else _node(breakdown, number)
            yield _in_steps(breakdown, arrivals, suspect, its, group, chance)


def _is_material(its: Bools, group: LastArrivals, breakdown: StepBreakdown) -> bool:
    return bool(group.gap[its].sum() >= MATERIAL * breakdown.step_ns * len(its) and its.any())


def _events(steps: Bools, who: Ints) -> npt.NDArray[np.intp]:
    """Indices of these steps; of those in a row by the same one, that of the first."""
    at = np.flatnonzero(steps)
    return at[np.diff(at, prepend=-2) + np.abs(np.diff(who[at], prepend=-1)) > 1]


def _tail(events: int, its: int, chance: float) -> float:
    """The probability of so many or more of the events, where each falls on it with that chance (binomial)."""
    all_ways = lgamma(events + 1)
    return sum(
        exp(all_ways - lgamma(k + 1) - lgamma(events - k + 1) + k * log(chance) + (events - k) * log1p(-chance))
        for k in range(its, events + 1)
    )


def _rotating(breakdown: StepBreakdown, arrivals: Arrivals) -> Verdict | None:
    """Ranks, or nodes, that alternate: nearly always one is late, hardly ever two, and none in most of the steps."""
    for group in (arrivals.ranks, arrivals.nodes):
        provable = group.gap > np.maximum(group.gap_bound, MATERIAL * breakdown.step_ns)
        if group.exclusive < SIGMAS or provable.mean() <= MOSTLY:
            continue
        counts = np.bincount(group.last[provable])
        if counts.max() > LATE_IN * provable.sum():
            continue
        often = np.flatnonzero(counts >= counts.max() / 2).tolist()
        ranks, hosts = often, ""
        if group is arrivals.nodes:
            ranks = [rank for rank, node in enumerate(breakdown.nodes) if node in often]
            hosts = ", ".join(_host(breakdown, _node(breakdown, node)) for node in often)
        in_steps = _in_steps(breakdown, arrivals, _Suspect(ranks=tuple(ranks)), provable, group)
        return replace(in_steps, kind=ROTATING, steps=(), node=hosts)
    return None


def _in_steps(
    breakdown: StepBreakdown, arrivals: Arrivals, suspect: _Suspect, its: Bools, group: LastArrivals,
    chance: float | None = None,
) -> Verdict:  # fmt: skip
    """The verdict on those who are late in these steps [step]."""
    return Verdict(
        kind=TRANSIENT, ranks=suspect.ranks, node=_host(breakdown, suspect),
        steps=tuple(arrivals.steps[its].tolist()),
        arrival_skew=float(arrivals.skew[its].mean()) / 1e6,
        cause=_named(arrivals, arrivals.cause[its].mean(axis=0)),
        share=float(its.mean()), costs=float(group.gap[its].sum()) / len(its) / 1e6,
        bound=_bound_ns(arrivals) / 1e6, chance=chance,
    )  # fmt: skip


def _node(breakdown: StepBreakdown, node: int) -> _Suspect:
    ranks = tuple(rank for rank, on in enumerate(breakdown.nodes) if on == node)
    return _Suspect(ranks=ranks, node=node if len(ranks) > 1 else None)


def _host(breakdown: StepBreakdown, suspect: _Suspect) -> str:
    """The host name of a node that is late as a whole."""
    return "" if suspect.node is None else breakdown.hosts[suspect.ranks[0]] or f"node {suspect.node}"


def _named(arrivals: Arrivals, cause_ns: Floats) -> dict[str, float]:
    """By name, ms; what no stamp separates from the next is in that."""
    return {name: float(ns) / 1e6 for name, ns in zip(arrivals.causes, cause_ns, strict=True) if name}
