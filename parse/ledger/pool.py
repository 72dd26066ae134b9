"""The evidence of a point's runs together, and the verdict on those who are late in some of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from parse.ledger.arrivals import MATERIAL, Arrivals, Floats, LastArrivals, pooled
from parse.ledger.breakdown import StepBreakdown
from parse.ledger.shape import course, rhythm
from parse.ledger.types import CANNOT_TELL, NONE, TRANSIENT, Because, Shape, ShapeKind, Verdict

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
