"""Who is waited for: a verdict on a run's arrivals, held against what equal ranks would show.

Ranks are equal where nothing tells them apart but chance; then the names that they have in a piece of the window could
as well be dealt out anew in every piece (a permutation), and so could what makes a step's work long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import exp, lgamma, log, log1p

import numpy as np
import numpy.typing as npt

from parse.ledger.arrivals import LATE_IN, MATERIAL, Arrivals, Floats, Ints
from parse.ledger.breakdown import PIECES, StepBreakdown
from parse.ledger.types import CANNOT_TELL, NONE, PERSISTENT, ROTATING, TRANSIENT, Incident, Verdict

HIDDEN = 0.05
"""Where the clocks leave open more than this share of the step, that nobody is late cannot be told either."""
CHANCE = 0.01
"""How often equal ranks may be taken for a persistent straggler, at most; the other tests have less."""
SHUFFLES, FEWER_SHUFFLES, MANY = 499, 199, 10_000
"""Permutations tried; fewer where (ranks × pieces) are many."""
TOGETHER = 0.5
"""Ranks that are late by at least this part of what the latest is are late together."""
SIGMAS = 4.0
"""By how many standard deviations ranks that take turns in being late avoid one another."""
MOSTLY = 0.5
"""Whoever takes turns is provably last in more than this share of the steps."""
SPIKE, SEVERE = 5.0, 50.0
"""How many times the median lateness a step's is that stands out; and one that is told by itself."""
ONCE = 10.0
"""What is so many times as late as all else in the window happened once: there is nothing to hold it against."""
SELDOM = 0.4
"""Steps that stand out are at most this share of the window."""
SPIKE_CHANCE, SEVERE_CHANCE = 0.005, 0.02
"""How often so many of them would fall on one rank by chance, at most; one look at severe ones may have more than many
looks at all sizes."""


@dataclass(frozen=True, kw_only=True)
class _Suspect:
    """Ranks that may be the straggler; `node` where they are all of one node with several."""

    ranks: tuple[int, ...]
    node: int | None = None


def verdict(breakdown: StepBreakdown) -> Verdict:
    """Who is waited for in this run."""
    arrivals = breakdown.arrivals
    if arrivals is None:
        if len(breakdown.nodes) == 1:
            return Verdict(kind=NONE, because="one rank waits for nobody")
        return Verdict(kind=CANNOT_TELL, because=breakdown.merged)
    bound_ns = float(np.median(arrivals.late_bound))
    run_verdict = _rotating(breakdown, arrivals)
    if run_verdict is None:  # what costs most is the answer
        both = filter(None, (_persistent(breakdown, arrivals), _transient(breakdown, arrivals)))
        run_verdict = max(both, key=lambda candidate: candidate.costs, default=None)
    if run_verdict is not None:
        return run_verdict
    if bound_ns > HIDDEN * breakdown.step_ns:
        return Verdict(kind=CANNOT_TELL, because="clock", bound=bound_ns / 1e6)
    pieces = arrivals.typical.shape[1]
    if _least_chance(len(breakdown.nodes), pieces) > CHANCE:
        return Verdict(kind=CANNOT_TELL, because="steps", bound=bound_ns / 1e6)
    return Verdict(kind=NONE, bound=bound_ns / 1e6)


def _persistent(breakdown: StepBreakdown, arrivals: Arrivals) -> Verdict | None:
    """A rank, several, or a node that come late in nearly all of the window."""
    suspect = _usual_suspect(breakdown, arrivals)
    if suspect is None:
        return None
    ranks = list(suspect.ranks)
    costs_ns = _costs_ns(arrivals, suspect)
    typical_ns = float(arrivals.typical[ranks].mean())
    if min(typical_ns, costs_ns.mean()) < MATERIAL * breakdown.step_ns:  # a few bad steps alone cost much, too
        return None
    late_steps = arrivals.late_steps[ranks]
    bound_ns = float(np.median(arrivals.late_bound))
    chance = _chance(arrivals.typical)
    if suspect.node is not None:
        chance = min(chance, _chance(arrivals.node_typical))
    if chance > CHANCE:
        return None
    if typical_ns <= bound_ns:
        return Verdict(kind=CANNOT_TELL, because="clock", bound=bound_ns / 1e6, late=typical_ns / 1e6, chance=chance)
    weights = late_steps / max(1, late_steps.sum())
    return Verdict(
        kind=PERSISTENT,
        ranks=suspect.ranks,
        node=_host(breakdown, suspect),
        late=float(arrivals.rank_late[ranks] @ weights) / 1e6,
        cause=_named(arrivals, weights @ arrivals.rank_cause[ranks]),
        share=float(late_steps.mean()) / len(arrivals.steps),
        costs=float(costs_ns.mean()) / 1e6,
        bound=bound_ns / 1e6,
        chance=chance,
    )


def _usual_suspect(breakdown: StepBreakdown, arrivals: Arrivals) -> _Suspect | None:
    """Those whose usual lateness is the largest, or near it; a node where they are all of its ranks."""
    usual = arrivals.typical.mean(axis=1)
    if usual.max() <= 0:
        return None
    ranks = np.flatnonzero(usual >= TOGETHER * usual.max())
    nodes = np.array(breakdown.nodes)
    suspect_nodes = {int(node) for node in nodes[ranks]}
    if len(suspect_nodes) == 1 and len(ranks) > 1 and len(set(breakdown.nodes)) > 1:
        node = suspect_nodes.pop()
        if len(ranks) == int((nodes == node).sum()):
            return _Suspect(ranks=tuple(ranks.tolist()), node=node)
    if len(ranks) > len(nodes) // 2:
        return None  # where most are late the few others are early
    return _Suspect(ranks=tuple(ranks.tolist()))


def _costs_ns(arrivals: Arrivals, suspect: _Suspect) -> Floats:
    """What every step lasts longer for the suspect: up to the next rank, or node; of several ranks, to the median."""
    if suspect.node is not None:
        return np.where(arrivals.node_last == suspect.node, arrivals.node_gap, 0).astype(np.float64)
    lost = arrivals.gap if len(suspect.ranks) == 1 else arrivals.late
    return np.where(np.isin(arrivals.last, suspect.ranks), lost, 0).astype(np.float64)


def _chance(typical: Floats) -> float:
    """How often the largest mean over the pieces [rank, piece] is as large where names are dealt out in every piece."""
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


def _least_chance(ranks: int, pieces: int) -> float:
    """What the test of so many ranks and pieces can find at best."""
    return max(1 / (1 + SHUFFLES), float(ranks) ** (1 - pieces))


def _transient(breakdown: StepBreakdown, arrivals: Arrivals) -> Verdict | None:
    """Steps that stand out, and the rank or node on which more of them fall than by chance; or what happened once."""
    usual_ns = float(np.median(arrivals.late))
    verdicts: list[Verdict] = []
    sizes = 0
    least_ns = np.maximum(SPIKE * usual_ns, arrivals.late_bound)
    while (out := arrivals.late > least_ns).any():
        if out.mean() <= SELDOM:
            verdicts += _standing_out(breakdown, arrivals, out, SPIKE_CHANCE)
            sizes += 1
        least_ns = np.maximum(1.0, 2 * least_ns)  # small incidents of others hide no large ones
    if verdicts:
        best = min(verdicts, key=lambda candidate: candidate.chance or 0.0)
        return replace(best, chance=min(1.0, sizes * (best.chance or 0.0)))
    if (severe := _severe(arrivals)).any() and severe.mean() <= SELDOM:
        for candidate in _standing_out(breakdown, arrivals, severe, SEVERE_CHANCE):
            return candidate
    worst = int(arrivals.late.argmax())
    its = severe & (arrivals.last == arrivals.last[worst])
    once = its & (np.abs(np.arange(len(its)) - worst) < max(1, its.sum()))  # with the steps beside it that it lasted
    if not once[worst] or arrivals.late[worst] <= ONCE * arrivals.late[~once].max(initial=0):
        return None
    suspect = _Suspect(ranks=(int(arrivals.last[worst]),))
    return (
        _in_steps(breakdown, arrivals, suspect, once, arrivals.gap, None)
        if _costs(once, arrivals.gap, breakdown)
        else None
    )


def incidents(breakdown: StepBreakdown) -> tuple[Incident, ...]:
    """Steps in which a rank is late beyond all that is usual, the worst first, where together they cost something.

    Whoever they happened to: equal ranks have them too, so they are told and nobody is accused of them.
    """
    arrivals = breakdown.arrivals
    if arrivals is None or not _costs(severe := _severe(arrivals), arrivals.gap, breakdown) or severe.mean() > SELDOM:
        return ()
    worst_first = np.flatnonzero(severe)[np.argsort(-arrivals.late[severe], kind="stable")]
    return tuple(
        Incident(step=int(arrivals.steps[at]), rank=int(arrivals.last[at]), late=float(arrivals.late[at]) / 1e6)
        for at in worst_first
    )


def _severe(arrivals: Arrivals) -> npt.NDArray[np.bool_]:
    return (arrivals.late > SEVERE * float(np.median(arrivals.late))) & (arrivals.late > arrivals.late_bound)


def _standing_out(
    breakdown: StepBreakdown, arrivals: Arrivals, out: npt.NDArray[np.bool_], limit: float
) -> Iterator[Verdict]:
    """The rank and the node on which most of these steps fall, where chance gives so many no oftener than `limit`."""
    for who, gap_ns, names in (
        (arrivals.last, arrivals.gap, len(breakdown.nodes)),
        (arrivals.node_last, arrivals.node_gap, len(set(breakdown.nodes))),
    ):
        if names == 1:
            continue
        events = who[_events(out, who)]
        number = int(np.bincount(events).argmax())
        its = out & (who == number)
        chance = names * _tail(len(events), int((events == number).sum()), 1 / names)
        if chance <= limit and _costs(its, gap_ns, breakdown):
            suspect = _Suspect(ranks=(number,)) if who is arrivals.last else _all_of(breakdown, number)
            yield _in_steps(breakdown, arrivals, suspect, its, gap_ns, chance)


def _costs(its: npt.NDArray[np.bool_], gap_ns: Ints, breakdown: StepBreakdown) -> bool:
    """Whether what is lost in these steps is worth a word."""
    return bool(gap_ns[its].sum() >= MATERIAL * breakdown.step_ns * len(its) and its.any())


def _events(steps: npt.NDArray[np.bool_], who: Ints) -> npt.NDArray[np.intp]:
    """Where these steps are; of those in a row by the same one, where the first is."""
    at = np.flatnonzero(steps)
    return at[np.diff(at, prepend=-2) + np.abs(np.diff(who[at], prepend=-1)) > 1]


def _tail(events: int, its: int, chance: float) -> float:
    """The probability of so many or more of the events, where each falls on it with that chance."""
    all_ways = lgamma(events + 1)
    return sum(
        exp(all_ways - lgamma(k + 1) - lgamma(events - k + 1) + k * log(chance) + (events - k) * log1p(-chance))
        for k in range(its, events + 1)
    )


def _rotating(breakdown: StepBreakdown, arrivals: Arrivals) -> Verdict | None:
    """Ranks, or nodes, that take turns: nearly always one is late, hardly ever two, and none in most of the steps."""
    for exclusive, who, gap_ns, bound_ns, of in (
        (arrivals.exclusive, arrivals.last, arrivals.gap, arrivals.gap_bound, breakdown.nodes),
        (arrivals.node_exclusive, arrivals.node_last, arrivals.node_gap, arrivals.node_gap_bound, ()),
    ):
        provable = gap_ns > np.maximum(bound_ns, MATERIAL * breakdown.step_ns)
        if exclusive < SIGMAS or provable.mean() <= MOSTLY:
            continue
        counts = np.bincount(who[provable])
        if counts.max() > LATE_IN * provable.sum():
            continue
        often = np.flatnonzero(counts >= counts.max() / 2).tolist()
        ranks = often if of else [rank for rank, node in enumerate(breakdown.nodes) if node in often]
        hosts = "" if of else ", ".join(_host(breakdown, _all_of(breakdown, node)) for node in often)
        in_steps = _in_steps(breakdown, arrivals, _Suspect(ranks=tuple(ranks)), provable, gap_ns, None)
        return replace(in_steps, kind=ROTATING, steps=(), node=hosts)
    return None


def _in_steps(
    breakdown: StepBreakdown,
    arrivals: Arrivals,
    suspect: _Suspect,
    its: npt.NDArray[np.bool_],
    gap_ns: Ints,
    chance: float | None,
) -> Verdict:
    """The verdict on those who are late in these steps [step]."""
    return Verdict(
        kind=TRANSIENT,
        ranks=suspect.ranks,
        node=_host(breakdown, suspect),
        steps=tuple(arrivals.steps[its].tolist()),
        late=float(arrivals.late[its].mean()) / 1e6,
        cause=_named(arrivals, arrivals.cause[its].mean(axis=0)),
        share=float(its.mean()),
        costs=float(gap_ns[its].sum()) / len(its) / 1e6,
        bound=float(np.median(arrivals.late_bound)) / 1e6,
        chance=chance,
    )


def _all_of(breakdown: StepBreakdown, node: int) -> _Suspect:
    ranks = tuple(rank for rank, on in enumerate(breakdown.nodes) if on == node)
    return _Suspect(ranks=ranks, node=node if len(ranks) > 1 else None)


def _host(breakdown: StepBreakdown, suspect: _Suspect) -> str:
    """The host name of a node that is late as a whole."""
    return "" if suspect.node is None else breakdown.hosts[suspect.ranks[0]] or f"node {suspect.node}"


def _named(arrivals: Arrivals, cause_ns: Floats) -> dict[str, float]:
    """By name, ms; what no stamp parts from the next is in that."""
    return {name: float(ns) / 1e6 for name, ns in zip(arrivals.causes, cause_ns, strict=True) if name}
