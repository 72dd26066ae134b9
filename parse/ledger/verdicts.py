"""Verdicts on the stragglers of a point: what the search names in its runs, as who, when, why and how sure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpc.model.trace import Bools, Floats, Ints
from parse.ledger.arrivals import Arrivals
from parse.ledger.breakdown import StepBreakdown
from parse.ledger.cells import CellWindow, can_show, chosen, median, sample_of
from parse.ledger.limit import detection_limits
from parse.ledger.shape import course, rhythm
from parse.ledger.types import Incident, RunLedger
from parse.ledger.verdict import (
    PERSISTENT,
    ROTATING,
    TRANSIENT,
    Because,
    CannotTell,
    Doubt,
    FasterRanks,
    LateCells,
    Merged,
    Nobody,
    Shape,
    ShapeKind,
    SharedDelay,
    Straggler,
    Unseen,
    Verdict,
)
from parse.ledger.who import PASSES_BELOW, Kind, Named, search
from parse.rules import ENOUGH, EVENTS, FEW, FIFTH, HALF, MATERIAL, MOSTLY, OFTEN, SMALL, WORTH_NAMING
from parse.term_kinds import CAUSES

SPIKE = 5.0
"""Such a delay is so many times the scatter of ranks."""
SEVERE = 50.0
"""An incident is so many times as late as usual."""
NEAR = 0.4
"""A rank that costs this part of the limit in some steps, if only by chance, is named beside it."""


@dataclass(frozen=True, kw_only=True)
class PointVerdicts:
    """The verdicts on the runs of a point: each run's, that of all together, and stragglers behind that one; `beside`
    them ranks that are faster, and what all share. `repeats` is the correlation between runs of how late ranks other
    than the stragglers are, step by step, where the same are late in the same steps of all runs; else None."""

    runs: tuple[RunLedger, ...] = ()
    verdict: Verdict
    further: tuple[Straggler, ...] = ()
    beside: tuple[FasterRanks | SharedDelay, ...] = ()
    repeats: float | None = None


def point_verdicts(
    breakdowns: Sequence[StepBreakdown], *, with_limits: bool = True, allowed: float | None = None
) -> PointVerdicts:
    """Those by the evidence of all runs; `with_limits` and `allowed` as of `judged`."""
    its = judged(breakdowns, with_limits=with_limits, allowed=allowed)
    by_run = [its.verdict] if len(breakdowns) == 1 else [verdict(breakdown) for breakdown in breakdowns]
    runs = tuple(_run_ledger(*pair) for pair in zip(breakdowns, by_run, strict=True))
    return replace(its, runs=runs, verdict=_unless_unseen(its.verdict, breakdowns))


def verdict(run: StepBreakdown) -> Verdict:
    """The verdict on one run, without limits."""
    return judged([run], with_limits=False).verdict


def judged(runs: Sequence[StepBreakdown], *, with_limits: bool = True, allowed: float | None = None) -> PointVerdicts:
    """The verdicts on the runs of a point together, what costs most first. Where nobody is late the first says so, with
    what would have been detected, or that it is not known. `allowed` is how often equal ranks may show as much, if that
    is not what the ledger of a point allows."""
    if len(runs[0].nodes) == 1:
        return PointVerdicts(verdict=Nobody())
    arrivals = [run.arrivals for run in runs if run.arrivals is not None]
    if not arrivals:
        return PointVerdicts(verdict=CannotTell(because=runs[0].merged or Merged()))
    if len({(run.arrivals and run.arrivals.layout, run.nodes) for run in runs}) > 1:
        return PointVerdicts(verdict=CannotTell(because=Because.RUNS_DISAGREE))
    return _Point(runs, arrivals, allowed).verdicts(with_limits=with_limits)


class _Point:
    """The runs of a point that are alike, and what is found in them."""

    def __init__(self, runs: Sequence[StepBreakdown], arrivals: Sequence[Arrivals], allowed: float | None) -> None:
        self.arrivals, self.nodes, self.of_runs = arrivals, np.array(runs[0].nodes), len(runs)
        self.allowed = allowed
        hosts = zip(*(run.hosts for run in runs), strict=True)
        self.hosts = [names[0] if len({*names}) == 1 else "" for names in hosts]
        self.steps = np.concatenate([each.steps for each in arrivals])
        self.late = arrivals[0].late if len(arrivals) == 1 else np.concatenate([each.late for each in arrivals])
        self.run = np.repeat(np.arange(len(arrivals)), [len(each.steps) for each in arrivals])
        self.roles = np.array(arrivals[0].roles or (0,) * len(self.nodes))
        self.step_ns = float(np.mean([run.step_ns for run in runs]))
        self.named = np.zeros(self.late.shape, np.bool_)

    def verdicts(self, *, with_limits: bool) -> PointVerdicts:
        window, ranks = chosen(
            CellWindow(
                late=self.late,
                run=self.run,
                roles=self.roles,
                nodes=self.nodes,
                step_ns=self.step_ns,
                allowed=self.allowed,
            )
        )
        named = [self._of_all(each, ranks) for each in search(window)]
        repeats = self._repeats([rank for each in named for rank in each.ranks])
        if repeats is not None:  # runs that repeat one another are evidence of one
            window, ranks = chosen(self._mean_of_runs())
            named = [self._in_all_runs(self._of_all(each, ranks)) for each in search(window)]
            repeats = self._repeats([rank for each in named for rank in each.ranks])
        late = [each for each in named if each.kind is not Kind.FASTER]
        for each in late:
            self.named[np.ix_(each.steps, np.array(each.ranks))] = True
        judged = [self._judged(each) for each in self._joined([part for each in late for part in self._by_cause(each)])]
        shown = self._in_turns([each for each in judged if each.arrival_skew > each.bound])
        return PointVerdicts(
            verdict=shown[0] if shown else self._nobody(window, judged, with_limits=with_limits),
            further=tuple(shown[1:]), repeats=repeats,
            beside=(*self._faster([each for each in named if each.kind is Kind.FASTER], shown), *self._shared()),
        )  # fmt: skip

    def _nobody(self, window: CellWindow, unproven: Sequence[Straggler], *, with_limits: bool) -> Nobody | CannotTell:
        """That nobody is late, with what would have been detected, or why it is not known; `unproven` are delays
        within the clocks' bounds."""
        bound = self._bound_ms(range(len(self.nodes)))
        if unproven:
            largest = max(unproven, key=lambda each: each.arrival_skew)
            return CannotTell(because=Because.CLOCK, bound=largest.bound)
        if bound * 1e6 > SMALL * self.step_ns:
            return CannotTell(because=Because.CLOCK, bound=bound)
        if len(window.compared) < 2:
            return CannotTell(because=Because.NO_PEERS, bound=bound)
        if not can_show(window):
            return CannotTell(because=Because.FEW_STEPS, bound=bound)
        limit, seldom_limit = detection_limits(window, bound * 1e6) if with_limits else (None, None)
        doubt = self._doubt()
        if doubt is not None and limit is not None and doubt.costs >= limit:
            return CannotTell(because=Because.SOME_STEPS, bound=bound, doubt=doubt)
        if doubt is not None and (limit is None or doubt.costs < NEAR * limit):
            doubt = None
        scatter = float(self.late.std(axis=1).mean()) / 1e6
        return Nobody(bound=bound, scatter=scatter, doubt=doubt, limit=limit, seldom_limit=seldom_limit)

    def _doubt(self) -> Doubt | None:
        """The rank that costs the most by the steps in which it comes last, beyond what the median rank does in its
        own; None where that is less than MATERIAL."""
        late = np.partition(self.late, -2, axis=1)
        gap, last = late[:, -1] - late[:, -2], self.late.argmax(axis=1)
        costs_ns = np.bincount(last, weights=gap, minlength=len(self.nodes)) / len(gap)
        rank = int(costs_ns.argmax())
        more_ns = float(costs_ns[rank] - np.sort(costs_ns)[(len(costs_ns) - 1) // 2])
        if more_ns < MATERIAL * self.step_ns:
            return None
        largest_first = np.sort(gap[last == rank])[::-1].cumsum()
        half = int(np.searchsorted(largest_first, largest_first[-1] / 2)) + 1
        return Doubt(rank=rank, costs=more_ns / 1e6, steps=half, of_steps=len(gap))

    # From what is named to a verdict.

    def _judged(self, named: Named) -> Straggler:
        """The verdict on ranks that are late in some steps, or in all of some runs."""
        ranks, its = [*named.ranks], np.flatnonzero(named.steps)
        has_others = self._others(np.array(ranks), its, np.arange(len(self.nodes))).any(axis=1)
        its = its[has_others] if has_others.any() else its
        skew_ns, cause_ns, open_ns = self._beyond_others(ranks, its)
        shape = None
        if named.kind is Kind.LASTING:
            shape = self._shape(its, skew_ns.mean(axis=1))
            late = self._late_at_times(its, skew_ns.mean(axis=1), shape)
            if late is not None:
                named = replace(named, steps=np.isin(np.arange(len(self.steps)), late), kind=Kind.PASSING)
            elif shape.kind in (ShapeKind.BEGINS, ShapeKind.ENDS) and shape.step is not None:
                its = its[(self.steps[its] >= shape.step) == (shape.kind is ShapeKind.BEGINS)]
            if late is not None or len(its) < len(skew_ns):
                its = its if late is None else late
                skew_ns, cause_ns, open_ns = self._beyond_others(ranks, its)
        open_ms = open_ns / 1e6
        skew_ms = float(skew_ns.mean()) / 1e6
        in_runs = np.unique(self.run[its])
        in_steps = np.flatnonzero(named.steps)
        run_steps = tuple(
            tuple(self.steps[in_steps[self.run[in_steps] == run]].tolist()) for run in range(self.of_runs)
        )
        passes = named.kind is Kind.PASSING
        least_ns = max(open_ms * 1e6, HALF * skew_ms * 1e6)
        window = len(ranks) * int(np.isin(self.run, in_runs).sum())
        return Straggler(
            kind=TRANSIENT if passes else PERSISTENT, ranks=named.ranks, node=self._node(ranks),
            steps=run_steps[0] if passes and len({*run_steps}) == 1 else (), run_steps=run_steps if passes else (),
            in_runs=len(in_runs), of_runs=self.of_runs, arrival_skew=skew_ms, cause=self._named_causes(cause_ns),
            meetings=self._meetings(ranks, skew_ms),
            share=float(named.steps.mean()) if passes else float((skew_ns > least_ns).sum()) / window,
            costs=named.saves_ns / 1e6, bound=open_ms, chance=named.chance,
            shape=self._shape_of_steps(named.steps, run_steps) if passes else shape,
            peers=int(np.bincount(self.roles)[self.roles[[*named.ranks]]].min()) - 1,
            cells=(LateCells(ranks=named.ranks, steps=run_steps if passes else tuple(
                None if run in in_runs else () for run in range(self.of_runs)
            ), are_all=not passes or all(len(each.steps) == each.of_steps for each in self.arrivals)),),
        )  # fmt: skip

    def _late_at_times(self, its: Ints, delay_ns: Floats, shape: Shape) -> Ints | None:
        """The places, of these, where ranks are late that come and go: not at all late in OFTEN of the steps, and
        by far more than others scatter in as many. None where they do not, or where steps are late in a row."""
        often_ns = float(np.quantile(delay_ns, 1 - OFTEN))
        late = self.late[np.ix_(its, sample_of(len(self.nodes)))]
        scatter_ns = float(np.median(np.abs(late - median(late, axis=1)[:, None])))
        if shape.kind is not ShapeKind.CONSTANT or often_ns < SPIKE * scatter_ns:
            return None
        if (delay_ns < FIFTH * often_ns).mean() < OFTEN:
            return None
        late_at: Ints = its[delay_ns >= HALF * often_ns]
        return late_at

    def _beyond_others(self, ranks: Sequence[int], its: Ints) -> tuple[Ints, Floats, float]:
        """How much later than the median of the others these ranks are in these steps [n, rank], the mean parts of that
        [4], and what the clocks leave open of it, ns. Others are those of whom no finding has the step; where all are,
        all but these."""
        its_ranks, skews, causes, open_ns = np.array([*ranks]), [], np.zeros(len(CAUSES)), 0.0
        for run, arrivals in enumerate(self.arrivals):
            of_run = its[self.run[its] == run]
            if not len(of_run):
                continue
            everybody = np.arange(len(self.nodes))
            for shown in (sample_of(len(everybody)), everybody):
                others = self._others(its_ranks, of_run, shown)
                if others.any(axis=1).all():
                    break
            others[~others.any(axis=1)] = ~np.isin(shown, its_ranks)
            at, row = of_run - int(np.searchsorted(self.run, run)), np.arange(len(of_run))
            late = np.where(others, arrivals.late[np.ix_(at, shown)], np.iinfo(np.int64).max)
            order = np.argsort(late, axis=1, kind="stable")
            middle = shown[order[row, (others.sum(axis=1) - 1) // 2]]
            skews.append(arrivals.late[np.ix_(at, its_ranks)] - arrivals.late[at, middle][:, None])
            parts = arrivals.parts[at[:, None], its_ranks] - arrivals.parts[at, middle][:, None]
            causes += parts.astype(np.float64).sum(axis=(0, 1))
            open_ns += float(arrivals.open_ns(its_ranks[None], middle[:, None]).mean(axis=1).sum()) / len(its)
        skew_ns = np.concatenate(skews)
        causes_ns = causes / skew_ns.size
        causes_ns[int(np.abs(causes_ns).argmax())] += float(skew_ns.mean()) - float(causes_ns.sum())  # of 32 bits
        return skew_ns, causes_ns, open_ns

    def _others(self, ranks: Ints, its: Ints, shown: Ints) -> Bools:
        """Who of those `shown` is none of these ranks, and is in no finding in these steps [n, shown]."""
        others: Bools = ~self.named[np.ix_(its, shown)] & ~np.isin(shown, ranks)
        return others

    def _bound_ms(self, ranks: Sequence[int]) -> float:
        """What the clocks usually leave open between one of these ranks and another."""
        everybody = np.arange(len(self.nodes))
        its = np.array([*ranks])[sample_of(len(ranks))]
        return max(float(np.median(each.open_ns(its[:, None], everybody[None]))) for each in self.arrivals) / 1e6

    def _node(self, ranks: Sequence[int]) -> str:
        """The host name where these are all ranks of one of several nodes; empty where they are not."""
        numbers = {*self.nodes[[*ranks]].tolist()}
        if len(numbers) > 1 or len({*self.nodes.tolist()}) == 1 or len(ranks) < 2:
            return ""
        (number,) = numbers
        return (self.hosts[ranks[0]] or f"node {number}") if (self.nodes == number).sum() == len(ranks) else ""

    def _named_causes(self, cause_ns: Floats) -> dict[str, float]:
        """By name, ms; what no stamp separates from the next is in that."""
        named = zip(self.arrivals[0].causes, cause_ns.tolist(), strict=True)
        return {name: ns / 1e6 for name, ns in named if name}

    def _meetings(self, ranks: Sequence[int], skew_ms: float) -> dict[str, float]:
        """By meeting, ms: which parts of their skew arise there, by the steps in which these ranks are late."""
        names = self.arrivals[0].meetings
        if not names:
            return {}
        its = [*ranks]
        ns: Floats = np.sum([each.late_steps[its] @ each.rank_meetings[its] for each in self.arrivals], axis=0)
        ms = ns * (skew_ms / ns.sum()) if ns.sum() > 0 else ns
        largest = np.argsort(-ms, kind="stable")[:FEW].tolist()
        return {names[at]: float(ms[at]) for at in largest if ms[at] > 0}

    def _shape(self, its: Ints, delay_ns: Floats) -> Shape:
        by_run = [delay_ns[self.run[its] == run] / 1e6 for run in np.unique(self.run[its]).tolist()]
        return course(by_run, int(self.steps[its[0]]))

    def _shape_of_steps(self, steps: Bools, run_steps: Sequence[Sequence[int]]) -> Shape | None:
        """Periodic, or from a step on or until it; None for what has no such shape."""
        periodic = rhythm(run_steps)
        if periodic is not None:
            return periodic
        runs = [steps[self.run == run].astype(np.float64) for run in range(self.of_runs)]
        shape = course(runs, int(self.steps[0]))
        return shape if shape.kind in (ShapeKind.BEGINS, ShapeKind.ENDS) else None

    # Findings that are one.

    def _by_cause(self, named: Named) -> list[Named]:
        """Ranks that are late together, but for a node, by what makes each late: of another phase they are others."""
        if len(named.ranks) < 2 or self._node(named.ranks):
            return [named]
        its = np.flatnonzero(named.steps)
        of_cause: dict[int, list[int]] = {}
        for rank in named.ranks:
            of_cause.setdefault(int(self._beyond_others([rank], its)[1].argmax()), []).append(rank)
        return [
            replace(named, ranks=tuple(ranks), saves_ns=named.saves_ns * len(ranks) / len(named.ranks))
            for ranks in of_cause.values()
        ]

    def _joined(self, named: Sequence[Named]) -> list[Named]:
        """Those of the same ranks by the same phase as one; single events, seldom delays of ranks that are always late
        by less, delays FIFTH as long as another, and those that have a period stay apart."""
        result: list[Named] = []
        by_cause: dict[tuple[tuple[int, ...], int, bool], tuple[int, float]] = {}
        times_named = Counter(each.ranks for each in named)
        for each in named:
            if times_named[each.ranks] == 1:
                result.append(each)
                continue
            skew_ns, cause_ns, _ = self._beyond_others([*each.ranks], np.flatnonzero(each.steps))
            key, longer_ns = (each.ranks, int(cause_ns.argmax()), each.chance is None), float(skew_ns.mean())
            at, of_first_ns = by_cause.get(key, (len(result), longer_ns))
            if at == len(result) or _are_apart(result[at], each, longer_ns / of_first_ns):
                by_cause.setdefault(key, (len(result), longer_ns))
                result.append(each)
                continue
            other = result[at]
            result[at] = replace(
                other, steps=each.steps | other.steps, saves_ns=each.saves_ns + other.saves_ns,
                chance=None if each.chance is None or other.chance is None else min(each.chance, other.chance),
            )  # fmt: skip
        return result

    def _in_turns(self, judged: Sequence[Straggler]) -> list[Straggler]:
        """Ranks, or nodes, that are late by turns as one; the others as they are."""
        result = []
        for each in judged:
            its_ranks = [*each.ranks]
            if each.kind is PERSISTENT and len(its_ranks) > 1 and each.in_runs == self.of_runs:
                whole_ns = len(its_ranks) * each.arrival_skew * 1e6  # of the one whose turn it is
                late = self.late[:, its_ranks]
                beyond, by_others = late > HALF * whole_ns, np.sort(late, axis=1)[:, :-1].max(axis=1)
                some = beyond.any(axis=1)
                single = (beyond.sum(axis=1) == 1) & (by_others < FIFTH * whole_ns)
                if some.mean() > HALF and single[some].mean() >= MOSTLY:
                    result.append(self._turns([each], beyond.argmax(axis=1)[some]))
                    continue
            result.append(each)
        passing = [each for each in result if each.kind is TRANSIENT and each.share > 1 / (2 * len(self.nodes))]
        if len(passing) < 2 or min(each.costs for each in passing) < HALF * max(each.costs for each in passing):
            return result
        late = np.stack([self._steps_of(each) for each in passing], axis=1)
        some = late.any(axis=1)
        if some.mean() > HALF and (late.sum(axis=1)[some] == 1).mean() >= MOSTLY:
            turns = self._turns(passing, late.argmax(axis=1)[some])
            return [turns, *(each for each in result if all(each is not member for member in passing))]
        return result

    def _steps_of(self, verdict: Straggler) -> Bools:
        """The steps [step] that a verdict on some of them names."""
        its = np.zeros(len(self.steps), np.bool_)
        for run, steps in enumerate(verdict.run_steps):
            of_run = self.run == run
            its[of_run] = np.isin(self.steps[of_run], steps)
        return its

    def _turns(self, members: Sequence[Straggler], last: Ints) -> Straggler:
        """The verdict on those who take turns; `last` [n] is who is late, step by step."""
        first = max(members, key=lambda each: each.costs)
        scale = len({*last.tolist()}) if len(members) == 1 else 1  # the mean of a group is over those in time, too
        weights = np.array([each.share for each in members]) / sum(each.share for each in members)
        causes = {
            name: scale * float(sum(each.cause[name] * weight for each, weight in zip(members, weights, strict=True)))
            for name in first.cause
        }
        return replace(
            first, kind=ROTATING, ranks=tuple(sorted(rank for each in members for rank in each.ranks)),
            node=", ".join(sorted(each.node for each in members)) if all(each.node for each in members) else "",
            steps=(), run_steps=(), cause=causes, arrival_skew=sum(causes.values()),
            share=len(last) / len(self.steps), costs=sum(each.costs for each in members), shape=_blocks(last),
            cells=tuple(cells for each in members for cells in each.cells),
        )  # fmt: skip

    # What others do.

    def _faster(self, named: Sequence[Named], stragglers: Sequence[Straggler]) -> Iterator[FasterRanks]:
        """Ranks that are earlier than all others by SMALL of a step, and are not late at times."""
        late = {rank for each in stragglers for rank in each.ranks}
        for each in named:
            bound = self._bound_ms(each.ranks)
            if each.gap_ns >= max(SMALL * self.step_ns, 1e6 * bound) and late.isdisjoint(each.ranks):
                yield FasterRanks(ranks=each.ranks, node=self._node(each.ranks), by=each.gap_ns / 1e6)

    def _shared(self) -> Iterator[SharedDelay]:
        """What makes the own work of all ranks longer in some of the steps, or from a step on."""
        level = np.concatenate([each.level for each in self.arrivals]) / 1e6
        by_run = [level[self.run == run] for run in range(self.of_runs)]
        steps_ms = self.step_ns / 1e6
        whole = course(by_run, int(self.steps[0]))
        middle = float(np.median(level))
        if whole.kind in (ShapeKind.BEGINS, ShapeKind.ENDS) and whole.step is not None:
            its = (self.steps >= whole.step) == (whole.kind is ShapeKind.BEGINS)
            middle, shape = float(np.median(level[~its])), whole
        else:
            low = np.sort(middle - level[level < middle])
            if len(low) < ENOUGH:
                return
            apart = max(5 * float(np.median(low)) / 0.6745, 2 * float(low[int(0.99 * (len(low) - 1))]), 0.02 * middle)
            its = level > middle + apart
            run_steps = [self.steps[its & (self.run == run)].tolist() for run in range(self.of_runs)]
            shape = rhythm(run_steps) or Shape(kind=ShapeKind.CONSTANT)
        longer = float((level[its] - middle).mean()) if its.any() else 0.0
        costs = longer * float(its.mean())
        if its.sum() >= FEW and costs >= WORTH_NAMING * steps_ms:
            yield SharedDelay(longer=longer, share=float(its.mean()), costs=costs, shape=shape)

    # Runs that repeat one another.

    def _repeats(self, without: Sequence[int]) -> float | None:
        """The correlation between runs of how late others than these ranks are in each step, each after its own mean;
        the least of any run with the first. None for a single run, and below HALF."""
        others = np.setdiff1d(np.arange(len(self.nodes)), without)
        if self.of_runs < 2 or len(others) < 2:
            return None
        chosen = others[sample_of(len(others))]
        first, *rest = self.arrivals
        least = 1.0
        for each in rest:
            _, at, its_at = np.intersect1d(first.steps, each.steps, assume_unique=True, return_indices=True)
            if len(at) < 2:
                return None
            ours, theirs = (
                values - values.mean(axis=0)
                for values in (first.late[np.ix_(at, chosen)], each.late[np.ix_(its_at, chosen)])
            )
            scale = float((ours**2).sum() * (theirs**2).sum()) ** 0.5
            least = min(least, float((ours * theirs).sum()) / scale if scale > 0 else 0.0)
        return least if least >= HALF else None

    def _mean_of_runs(self) -> CellWindow:
        common = self._common_steps()
        late = np.mean([each.late[np.isin(each.steps, common)] for each in self.arrivals], axis=0)
        return CellWindow(
            late=np.rint(late).astype(np.int64), run=np.zeros(len(late), np.int64), roles=self.roles,
            nodes=self.nodes, step_ns=self.step_ns,
        )  # fmt: skip

    def _common_steps(self) -> Ints:
        common = self.arrivals[0].steps
        for each in self.arrivals[1:]:
            common = np.intersect1d(common, each.steps, assume_unique=True)
        return common

    def _of_all(self, named: Named, ranks: Ints) -> Named:
        """What is named among some of the `ranks`, by their numbers; with all who are as late for good."""
        its = ranks[list(named.ranks)]
        if named.kind is Kind.LASTING and len(ranks) < len(self.nodes):
            mean = self.late[named.steps if len(named.steps) == len(self.late) else slice(None)].mean(axis=0)
            its = np.union1d(its, np.flatnonzero(mean >= mean[its].min()))
        return replace(named, ranks=tuple(its.tolist()))

    def _in_all_runs(self, named: Named) -> Named:
        """What is named in the mean of the runs, in each of them."""
        if named.kind is not Kind.PASSING:
            return replace(named, steps=np.ones(len(self.steps), np.bool_))
        return replace(named, steps=np.isin(self.steps, self._common_steps()[named.steps]))


def _are_apart(first: Named, second: Named, ratio: float) -> bool:
    """Whether delays of the same ranks by the same phase, of which the first saves more and the second is `ratio` times
    as long, are two findings."""
    if first.kind is Kind.PASSING and second.kind is Kind.LASTING:
        return bool(first.steps.mean() < OFTEN)
    both_pass = first.kind is second.kind is Kind.PASSING
    return both_pass and (bool(first.period or second.period) or ratio < FIFTH)


def _blocks(last: Ints) -> Shape | None:
    """How many steps one is late before another; None where turns are shorter than EVENTS."""
    lengths = np.diff(np.flatnonzero(np.diff(last, prepend=-1, append=-1)))
    of_step = np.repeat(lengths, lengths)  # the length of the turn in which a step lies
    usual = int(np.median(of_step)) if len(of_step) else 0
    return Shape(kind=ShapeKind.BLOCKS, period=usual) if usual >= EVENTS else None


def _unless_unseen(verdict: Verdict, runs: Sequence[StepBreakdown]) -> Verdict:
    """The verdict; that nobody is late is not known where somebody may be at collectives that were not matched, inside
    of steps of which the begin alone is known, or where ranks meet and no hook sees it."""
    because = (
        Because.UNMATCHED if any(run.unmatched for run in runs) else
        Because.INSIDE if any(run.at_begin for run in runs) else None
    )  # fmt: skip
    reason = because if isinstance(verdict, Nobody) and because else _unseen(verdict, runs)
    if reason is None or (isinstance(verdict, CannotTell) and verdict.because is not Because.SOME_STEPS):
        return verdict
    if isinstance(verdict, Straggler):
        return replace(verdict, unseen=reason) if isinstance(reason, Unseen) else verdict
    return CannotTell(because=reason, bound=verdict.bound)


def _unseen(verdict: Verdict, runs: Sequence[StepBreakdown]) -> Unseen | None:
    """Where ranks also meet, or may, and no hook sees it; None where nothing says so.

    A rank that is named may sleep as long as it is late.
    """
    ways = tuple(dict.fromkeys(way for run in runs for way in run.unseen_ways))
    skew = verdict.arrival_skew if isinstance(verdict, Straggler) else 0.0
    asleep = [ms - (skew if rank in verdict.ranks else 0.0) for run in runs for rank, ms in enumerate(run.asleep_ms)]
    longest, step_ms = max(asleep, default=0.0), min(run.step_ns for run in runs) / 1e6
    shown = verdict.costs if isinstance(verdict, Straggler) else verdict.limit if isinstance(verdict, Nobody) else None
    sleeps = longest >= max(SMALL * step_ms, shown or 0.0)
    return Unseen(ways=ways, asleep=longest if sleeps else 0.0) if ways or sleeps else None


def _run_ledger(breakdown: StepBreakdown, verdict: Verdict) -> RunLedger:
    return RunLedger(
        run_id=breakdown.run_id, step=breakdown.step_ns / 1e6,
        verdict=_unless_unseen(verdict, [breakdown]),
        pauses=tuple(pause / 1e6 for pause in breakdown.pauses_ns),
        rank_pauses=breakdown.paused.by_ranks if breakdown.paused else (),
        bound=None if breakdown.arrivals is None else breakdown.arrivals.bound / 1e6,
        incidents=incidents(breakdown), problems=breakdown.problems,
    )  # fmt: skip


def incidents(breakdown: StepBreakdown) -> tuple[Incident, ...]:
    """Steps in which a rank is late beyond all that is usual, the worst first, where together they cost something.

    Equal ranks have them too, so they make no straggler.
    """
    arrivals = breakdown.arrivals
    if arrivals is None:
        return ()
    skew, last = arrivals.late.max(axis=1), arrivals.late.argmax(axis=1)
    severe = np.flatnonzero(skew > max(SEVERE * float(np.median(skew)), arrivals.bound))
    if (
        not len(severe)
        or len(severe) > PASSES_BELOW * len(skew)
        or skew[severe].sum() < WORTH_NAMING * breakdown.step_ns * len(skew)
    ):
        return ()
    worst_first = severe[np.argsort(-skew[severe], kind="stable")].tolist()
    return tuple(
        Incident(step=int(arrivals.steps[at]), rank=int(last[at]), arrival_skew=float(skew[at]) / 1e6)
        for at in worst_first
    )
