"""The evidence of a point's runs together: who arrives last in each step, and what is left without a straggler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from parse.ledger.arrivals import MATERIAL, Arrivals, LastArrivals, pooled
from parse.ledger.breakdown import StepBreakdown
from parse.ledger.meetings import Floats, Ints
from parse.ledger.shape import course, rhythm
from parse.ledger.types import CANNOT_TELL, NONE, TRANSIENT, Because, Shape, ShapeKind, Verdict

Bools = npt.NDArray[np.bool_]
FEW_UNTOUCHED = 0.1
"""Below this share of all steps, some are no measure of what is usual."""
MEETINGS_NAMED = 5
"""As many of a step's meetings are named, at which a straggler is late the most."""
REPEATS = 0.5
"""Ranks are late in the same steps in all runs where the correlation between runs is this at least; of runs that have
nothing in common it is 0.1 at most in windows of 100 steps."""
COMPARED = 32
"""So many ranks, spread over all, are compared between runs."""
FEW_RANKS = 3
"""Of so many ranks the median of the others is moved by any of them; of more, one alone hardly moves it."""
SUSTAINED, BEYOND = 0.8, 2.0
"""A typical delay beyond this multiple of what is not exceeded in this share of the pieces counts as that multiple: a
single long stall decides nothing about all other pieces."""


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """Ranks that may be the straggler; `node` where they are all of one node with several."""

    ranks: tuple[int, ...]
    node: int | None = None


class HowOften(Enum):
    """In how many steps of a piece of the window a rank is late: LATE_IN of them, or OFTEN_IN."""

    MOST = 1
    MANY = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """The evidence of all runs together; `step_ns` is their mean step, `nodes` and `hosts` are those of the ranks.
    `untouched` [step] are the steps from whose last rank nothing has been taken."""

    arrivals: Arrivals
    step_ns: float
    nodes: tuple[int, ...]
    hosts: tuple[str, ...]
    runs: int
    untouched: Bools

    @property
    def bound_ns(self) -> float:
        """What the clocks usually leave open about the skew of the last rank."""
        return float(np.median(self.arrivals.skew_bound))

    @property
    def usual_skew_ns(self) -> float:
        """What the last rank is usually late by: in untouched steps, or in the others where it is less. A rank whose
        delay is taken out comes with the median rank: steps in which nobody is later than that show no scatter."""
        skew = self.arrivals.skew
        groups = (skew[self.untouched], skew[~self.untouched & (skew > 0)])
        return min((float(np.median(its)) for its in groups if len(its) >= FEW_UNTOUCHED * len(skew)), default=0.0)

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

    @property
    def most_peers(self) -> int:
        """How many ranks at most do the same."""
        return max(Counter(self.arrivals.roles).values(), default=len(self.nodes))

    def peers(self, group: LastArrivals, number: int) -> Ints:
        """Those of the group who can be compared with one of them, itself among them."""
        if group is not self.arrivals.ranks:
            return np.unique(self.nodes)
        roles = np.array(self.arrivals.roles or (0,) * len(self.nodes))
        its: Ints = np.flatnonzero(roles == roles[number])
        return its

    def is_material(self, its: Bools, group: LastArrivals) -> bool:
        """Whether these steps [step] of one of the group cost MATERIAL of a step, as a mean over all steps."""
        return bool(its.any() and group.gap[its].sum() >= MATERIAL * self.step_ns * len(its))

    def without(self, ranks: Sequence[int], delay_ns: Floats) -> Pool:
        """The same if these ranks arrived earlier by `delay_ns` [step], or with the median rank where that is more: the
        next latest of each step is waited for instead."""
        arrivals = self.arrivals
        its = np.isin(arrivals.latest, ranks) & (arrivals.late > 0)
        less = np.where(its, np.minimum(arrivals.late, delay_ns[:, None]), 0).astype(np.int64)
        rest = arrivals.late - less
        removed = arrivals.parts * (less / np.maximum(1, arrivals.late))[..., None]
        counts, causes = arrivals.late_steps.copy(), arrivals.rank_cause.copy()
        for rank in ranks:
            of_rank = its & (arrivals.latest == rank)
            counts[rank] -= int((of_rank & (less > 0) & (rest <= arrivals.late_bound)).sum())
            mean = removed[of_rank].sum(axis=0) / len(rest)
            causes[rank] -= mean
            if len(causes) <= FEW_RANKS:  # the others were compared with its delay, too
                causes[np.arange(len(causes)) != rank] += mean / (len(causes) - 1)
        fewer = replace(
            arrivals, parts=arrivals.parts - removed.astype(np.int64), late_steps=np.maximum(0, counts),
            rank_cause=causes,
        )  # fmt: skip
        untouched = self.untouched & (less[:, 0] == 0)
        return replace(self, arrivals=fewer, untouched=untouched)._in_order(rest)

    def with_delay(self, rank: int, delay_ns: Floats) -> Pool:
        """The same if this rank arrived later by `delay_ns` [step]; one that is not among the latest does so after the
        median rank."""
        arrivals = self.arrivals
        latest, late = arrivals.latest.copy(), arrivals.late.copy()
        absent = (delay_ns > 0) & (latest != rank).all(axis=1)
        latest[absent, -1], late[absent, -1] = rank, 0
        late += np.where(latest == rank, delay_ns[:, None], 0).astype(np.int64)
        return replace(self, arrivals=replace(arrivals, latest=latest))._in_order(late)

    def _in_order(self, late: Ints) -> Pool:
        """The same with other delays [step, LATEST] of the latest ranks, put into the order of these."""
        arrivals = self.arrivals
        changed = np.flatnonzero((late != arrivals.late).any(axis=1))
        order = np.argsort(-late[changed], axis=1, kind="stable")

        def ordered(column: Any) -> Any:
            of_changed, row = column[changed], np.arange(len(changed))[:, None]
            column = column.copy()
            column[changed] = of_changed[row, order]
            return column

        sorted_arrivals = replace(
            arrivals, latest=ordered(arrivals.latest), late=ordered(late), late_bound=ordered(arrivals.late_bound),
            parts=ordered(arrivals.parts),
        )  # fmt: skip
        ranks = _last_of(sorted_arrivals, arrivals.ranks, np.arange(len(self.nodes)), changed)
        nodes = _last_of(sorted_arrivals, arrivals.nodes, np.array(self.nodes), changed)
        return replace(self, arrivals=replace(sorted_arrivals, ranks=ranks, nodes=nodes))

    def steps_of(self, verdict: Verdict) -> Bools:
        """The steps [step] that a verdict on some of them names."""
        arrivals = self.arrivals
        by_run = [arrivals.run == run for run in range(self.runs)]
        its = np.zeros(len(arrivals.steps), np.bool_)
        for in_run, steps in zip(by_run, verdict.run_steps, strict=True):
            its[in_run] = np.isin(arrivals.steps[in_run], steps)
        return its

    def delay(self, ranks: Sequence[int]) -> Floats:
        """How late the latest of these ranks is [step], in ns; 0 where none is among the latest."""
        arrivals = self.arrivals
        latest: Floats = np.where(np.isin(arrivals.latest, ranks), arrivals.late, 0).max(axis=1).astype(np.float64)
        return latest

    def repeats(self, without: Sequence[int]) -> float | None:
        """The correlation between runs of how late others than these ranks are in each step, each after its own mean;
        the least of any run with the first. None for a single run, and below REPEATS."""
        if self.runs < 2:
            return None
        others = np.setdiff1d(np.arange(len(self.nodes)), without)
        steps, first = self._late_in(0, others)
        least = 1.0
        for run in range(1, self.runs):
            its_steps, its = self._late_in(run, others)
            _, at, its_at = np.intersect1d(steps, its_steps, assume_unique=True, return_indices=True)
            if len(at) < 2:
                return None
            ours, theirs = (each - each.mean(axis=0) for each in (first[at], its[its_at]))
            scale = float((ours**2).sum() * (theirs**2).sum()) ** 0.5
            least = min(least, float((ours * theirs).sum()) / scale if scale > 0 else 0.0)
        return least if least >= REPEATS else None

    def _late_in(self, run: int, ranks: Ints) -> tuple[Ints, Floats]:
        """The steps of a run, and how late COMPARED of these ranks are in them [step, rank], ns; 0 where one is not
        among the latest, or no later than the median rank."""
        arrivals, its = self.arrivals, self.arrivals.run == run
        chosen = ranks[np.linspace(0, len(ranks) - 1, min(COMPARED, len(ranks))).round().astype(int)]
        late = np.zeros((int(its.sum()), len(chosen)))
        latest, late_ns = arrivals.latest[its], np.maximum(0, arrivals.late[its])
        for column, rank in enumerate(chosen.tolist()):
            late[:, column] = np.where(latest == rank, late_ns, 0).sum(axis=1)
        return arrivals.steps[its], late

    def mean_of_runs(self, pieces: Floats) -> Floats:
        """The mean over the runs of what is given for all of their pieces [rank or node, piece], place by place."""
        of_runs = [pieces[:, self.arrivals.piece_run == run] for run in range(self.runs)]
        shortest = min(each.shape[1] for each in of_runs)
        mean: Floats = np.mean([each[:, :shortest] for each in of_runs], axis=0)
        return mean

    def parts(self, ranks: Sequence[int], its: Bools) -> Floats:
        """The mean parts of their delay in these steps [step]; 0 where they are not among the latest."""
        arrivals = self.arrivals
        of_ranks = np.isin(arrivals.latest, ranks) & its[:, None]
        mean: Floats = arrivals.parts[of_ranks].sum(axis=0) / (len(ranks) * its.sum())
        return mean

    def typical(self, level: HowOften) -> tuple[Floats, Floats]:
        """How late ranks and nodes are in most, or in many, of the steps of a piece [rank or node, piece]."""
        groups = self.arrivals.ranks, self.arrivals.nodes
        ranks, nodes = (group.typical if level is HowOften.MOST else group.often for group in groups)
        return ranks, nodes

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
        skew_ms = float(arrivals.skew[its].mean()) / 1e6
        return Verdict(
            kind=TRANSIENT, ranks=suspect.ranks, node=self.host(suspect),
            steps=run_steps[0] if len({*run_steps}) == 1 else (), run_steps=run_steps,
            in_runs=sum(map(bool, run_steps)), of_runs=self.runs,
            shape=Shape(kind=ShapeKind.PERIODIC, period=period) if period else self._shape(its, run_steps),
            arrival_skew=skew_ms, cause=named(arrivals, arrivals.cause[its].mean(axis=0)),
            meetings=meetings_of(arrivals, suspect.ranks, skew_ms),
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


def _last_of(arrivals: Arrivals, group: LastArrivals, names: Ints, changed: npt.NDArray[np.intp]) -> LastArrivals:
    """The last of the group, whose `names` [rank] are given, in the `changed` steps, by the latest ranks."""
    latest, late, bounds = (column[changed] for column in (arrivals.latest, arrivals.late, arrivals.late_bound))
    of = names[latest]
    others = of != of[:, :1]
    next_at = np.where(others.any(axis=1), others.argmax(axis=1), late.shape[1] - 1)
    row = np.arange(len(changed))
    last, gap, gap_bound = group.last.copy(), group.gap.copy(), group.gap_bound.copy()
    last[changed], gap[changed] = of[:, 0], late[:, 0] - late[row, next_at]
    gap_bound[changed] = np.maximum(bounds[:, 0], bounds[row, next_at])
    return replace(group, last=last, gap=gap, gap_bound=gap_bound)


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
        untouched=np.ones(sum(len(each.steps) for each in arrivals), np.bool_),
    )  # fmt: skip


def _without_stalls(arrivals: Arrivals) -> Arrivals:
    """The same with typical and frequent delays, early ones too, up to BEYOND times what is SUSTAINED: those of ranks
    by the latest rank of each piece, those of nodes by the latest node, whichever it is."""

    def bounded(values: Floats, by: Floats) -> Floats:
        limit = BEYOND * _quantile(np.abs(by).max(axis=0), SUSTAINED)
        return np.clip(values, -limit, limit)

    def of(group: LastArrivals) -> LastArrivals:
        return replace(
            group, typical=bounded(group.typical, group.typical), often=bounded(group.often, group.often)
        )  # fmt: skip

    return replace(
        arrivals, usual=bounded(arrivals.usual, arrivals.ranks.typical), ranks=of(arrivals.ranks),
        nodes=of(arrivals.nodes),
    )  # fmt: skip


def _quantile(values: Floats, share: float) -> float:
    """As numpy.quantile, which imports numpy.ma: a fifth of the time of a ledger of 1024 ranks."""
    ordered = np.sort(values)
    return float(np.interp(share * (len(ordered) - 1), np.arange(len(ordered)), ordered))


def named(arrivals: Arrivals, cause_ns: Floats) -> Mapping[str, float]:
    """By name, ms; what no stamp separates from the next is in that."""
    return {name: float(ns) / 1e6 for name, ns in zip(arrivals.causes, cause_ns, strict=True) if name}


def meetings_of(arrivals: Arrivals, ranks: Sequence[int], skew_ms: float) -> Mapping[str, float]:
    """By meeting, ms: which parts of their skew arise there, by the steps in which these ranks are late."""
    its_steps = arrivals.late_steps[list(ranks)]
    if not arrivals.meetings or not its_steps.any():
        return {}
    of_late = its_steps @ arrivals.rank_meetings[list(ranks)]
    ms = of_late * (skew_ms / of_late.sum()) if of_late.sum() > 0 else of_late
    largest = np.argsort(-ms, kind="stable")[:MEETINGS_NAMED].tolist()
    return {arrivals.meetings[at]: float(ms[at]) for at in largest if ms[at] > 0}
