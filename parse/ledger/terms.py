"""The terms of a point's runs as means with intervals, and against those of its base: what a step loses, and where."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpc.model.trace import Floats
from hpc.system.text import grouped
from parse import stats
from parse.ledger.breakdown import StepBreakdown, merge, names
from parse.ledger.finding import ComputeSplit, FixedCompute
from parse.ledger.meetings import MEETINGS
from parse.ledger.types import DimensionPart, DimensionTerms, Place, Repeats, Term
from parse.ledger.verdict import Merged, Straggler, UnsplitSteps
from parse.rules import NOTABLE
from parse.stats import Mean
from parse.term_kinds import BORDERS, COMMUNICATION, COMPUTE, WAIT, joined


@dataclass(frozen=True, kw_only=True, eq=False)
class PointTerms:
    """The terms of a point between the `borders` that its runs and its base's have in common, and their losses.

    `samples` and `base_samples` are mean terms in ms of every run, [run, term]; where there is one run, of every piece
    of its window. Those of the base are multiplied by `scale`; there are none without a base, and no losses.
    """

    borders: frozenset[str]
    scale: float
    samples: Floats
    base_samples: Floats
    terms: tuple[Term, ...]
    step: Mean
    loss: Mean | None
    repeats: Repeats | None
    merged: tuple[Merged, ...]
    ranks: tuple[Place, ...]
    nodes: tuple[Place, ...]
    roles: tuple[Place, ...]
    dimensions: tuple[DimensionTerms, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Those of the terms."""
        return names(self.borders)

    @property
    def exposed(self) -> float | None:
        """Exposed communication in ms; None where it is no term of its own."""
        return next((term.mean.value for term in self.terms if term.name == COMMUNICATION.name), None)

    def ranks_of(self, breakdowns: Sequence[StepBreakdown]) -> tuple[Place, ...]:
        """The ranks of other runs, by the same terms."""
        return _ranks(breakdowns, self.borders)


def point_terms(breakdowns: Sequence[StepBreakdown], base: Sequence[StepBreakdown], scale: float) -> PointTerms:
    """The terms of a point's runs against its base's, whose times are multiplied by `scale`."""
    borders = _common_borders((*breakdowns, *base))
    ours, theirs = _samples(breakdowns, borders), scale * _samples(base, borders)
    loss = _difference(ours.sum(axis=1), theirs.sum(axis=1)) if base else None
    merged = dict.fromkeys(
        replace(breakdown.merged, unsplit=None) for breakdown in (*breakdowns, *base) if breakdown.merged
    )
    if (unsplit := _unsplit(breakdowns)) is not None:
        merged = {Merged(unsplit=unsplit): None, **merged}
    has_both = {WAIT.name, COMMUNICATION.name} <= {*names(borders)}
    return PointTerms(
        borders=borders, scale=scale, samples=ours, base_samples=theirs,
        terms=_terms(names(borders), ours, theirs, loss),
        step=_mean(ours.sum(axis=1)), loss=loss, repeats=_repeats(len(breakdowns), len(base), ours, theirs, loss),
        merged=tuple(reason for reason in merged if reason != Merged()),
        ranks=_ranks(breakdowns, borders), nodes=_nodes(breakdowns, borders),
        roles=_roles(breakdowns, borders), dimensions=tuple(_dimensions(breakdowns)) if has_both else (),
    )  # fmt: skip


def compute_split(
    terms: PointTerms, no_sync: Sequence[StepBreakdown], base_no_sync: Sequence[StepBreakdown], base_ranks: int | None
) -> ComputeSplit | None:
    """The loss in compute by runs with reduction switched off, of the point and of its base; None where compute is no
    term of its own."""
    if COMPUTE.name not in terms.names:
        return None
    at = terms.names.index(COMPUTE.name)
    ours, theirs = terms.samples[:, at], terms.base_samples[:, at]
    unreduced = _compute(no_sync)
    # One rank reduces nothing; of several, reduction lengthens the compute of the base, too.
    of_base = theirs if base_ranks == 1 else terms.scale * _compute(base_no_sync)
    if not (len(unreduced) and len(of_base)):
        return ComputeSplit(contention=None, interference=None, unexplained=float(ours.mean() - theirs.mean()))
    interference = _difference(ours, unreduced)
    if base_ranks != 1:
        interference = _less(interference, _difference(theirs, of_base))
    return ComputeSplit(contention=_difference(unreduced, of_base), interference=interference, unexplained=0.0)


LEAST_MARGIN = 1e-6
"""The least margin of a mean that others are fitted with, as a share of it."""


def mean_compute(breakdowns: Sequence[StepBreakdown]) -> Mean | None:
    """Of runs that have compute as a term; None where none has."""
    values = _compute(breakdowns)
    return _mean(values) if len(values) else None


def fixed_compute(by_devices: Sequence[tuple[int, Mean]], scale: float) -> FixedCompute | None:
    """What of a point's compute does not shrink with the devices, by mean compute at several numbers of these; `scale`
    is its base's share of the devices.

    The line through the means over 1 / devices by least squares with their margins, level where it would rise with the
    devices. None with fewer than three numbers of devices, where a mean is farther from the line than its margin, and
    where 0 is in the interval of what remains.
    """
    known = [(number, mean.value, mean.high - mean.value, mean.coverage) for number, mean in by_devices if mean.high]
    if len({number for number, *_ in known}) < 3:
        return None
    numbers, values, margins = (np.array(column, float) for column in [*zip(*known, strict=True)][:3])
    margins = np.maximum(margins, LEAST_MARGIN * values)
    solution = np.linalg.pinv(np.stack([1 / margins, 1 / (numbers * margins)], axis=1))
    fixed, shared = (solution @ (values / margins)).tolist()
    if shared < 0:
        solution, shared = np.linalg.pinv(1 / margins[:, None]), 0.0
        fixed = float((solution @ (values / margins)).item())
    margin = float(np.linalg.norm(solution[0]))
    if fixed <= margin or (abs(values - fixed - shared / numbers) > margins).any():
        return None
    return FixedCompute(
        fixed=_with_margin(fixed, margin, min(coverage or 0.0 for *_, coverage in known)), shared=shared,
        devices=tuple(sorted({number for number, *_ in known})), of_loss=fixed * (1 - scale),
    )  # fmt: skip


def _compute(no_sync: Sequence[StepBreakdown]) -> Floats:
    """Mean compute in ms of every run that has it as a term; of one run, of every piece of its window."""
    runs = [breakdown for breakdown in no_sync if COMPUTE.name in names(breakdown.borders)]
    borders = _common_borders(runs) if runs else frozenset()
    return _samples(runs, borders)[:, names(borders).index(COMPUTE.name)] if runs else np.empty(0)


def together_with_wait(terms: PointTerms, straggler: Straggler) -> Term | None:
    """`wait` and the terms in which the straggler is late as one; None where one of them is no term."""
    notable = NOTABLE * straggler.arrival_skew
    late = [term for term in terms.names if straggler.cause.get(term, 0.0) > notable]
    if not late or WAIT.name not in terms.names:
        return None
    at = [terms.names.index(term) for term in (*late, WAIT.name)]
    ours, theirs = (each[:, at].sum(axis=1, keepdims=True) for each in (terms.samples, terms.base_samples))
    return _terms([joined((*late, WAIT.name))], ours, theirs, terms.loss)[0]


def _common_borders(breakdowns: Sequence[StepBreakdown]) -> frozenset[str]:
    return frozenset.intersection(*(breakdown.borders for breakdown in breakdowns))


def _unsplit(breakdowns: Sequence[StepBreakdown]) -> UnsplitSteps | None:
    """The steps of all runs that are in no term; None where all are."""
    known = [each.merged.unsplit for each in breakdowns if each.merged and each.merged.unsplit]
    if not known:
        return None
    steps, of_steps = sum(each.steps for each in known), sum(each.of_steps for each in known)
    return UnsplitSteps(
        borders=tuple(border for border in (*BORDERS, MEETINGS) if any(border in each.borders for each in known)),
        steps=steps, of_steps=of_steps, mean=sum(each.mean * each.steps for each in known) / steps,
        others=sum(each.others * (each.of_steps - each.steps) for each in known) / (of_steps - steps),
    )  # fmt: skip


def _samples(breakdowns: Sequence[StepBreakdown], borders: frozenset[str]) -> Floats:
    """Mean terms in ms of every run, [run, term]; where there is one run, of every piece of its window."""
    if len(breakdowns) == 1:
        # Pieces differ in length by a step: their plain mean is not the run's.
        single = breakdowns[0]
        return merge(single.piece_ns + (single.mean_ns - single.piece_ns.mean(axis=0)), borders) / 1e6
    if not breakdowns:
        return np.empty((0, len(names(borders))))
    return merge(np.stack([breakdown.mean_ns for breakdown in breakdowns]), borders) / 1e6


def _dimensions(breakdowns: Sequence[StepBreakdown]) -> Iterator[DimensionTerms]:
    """The parts of wait and communication by dimension, in the order of their first run; a run without it has 0."""
    ranks = len(breakdowns[0].nodes)
    for dimension in dict.fromkeys(name for breakdown in breakdowns for name in breakdown.by_dimension):
        times = [breakdown.by_dimension.get(dimension) for breakdown in breakdowns]
        by_rank = np.mean([each.rank_ns if each else np.zeros((ranks, 2)) for each in times], axis=0) / 1e6
        if len(times) == 1 and times[0] is not None:  # as in _samples
            pieces_ns = times[0].piece_ns
            samples = (pieces_ns + (times[0].rank_ns.mean(axis=0) - pieces_ns.mean(axis=0))) / 1e6
        else:
            samples = np.stack([each.rank_ns.mean(axis=0) if each else np.zeros(2) for each in times]) / 1e6
        yield DimensionTerms(
            dimension=dimension, wait=_mean(samples[:, 0]), communication=_mean(samples[:, 1]),
            ranks=tuple(DimensionPart(wait=wait, communication=other) for wait, other in by_rank.tolist()),
        )  # fmt: skip


def _terms(of: Sequence[str], ours: Floats, theirs: Floats, loss: Mean | None) -> tuple[Term, ...]:
    """The terms of these names with their losses; `loss` is that of the step, None without a base."""
    if loss is None:
        return tuple(Term(name=name, mean=_mean(values)) for name, values in zip(of, ours.T, strict=True))
    terms = []
    for name, values, others in zip(of, ours.T, theirs.T, strict=True):
        lost = _difference(values, others)
        share = lost.value / loss.value if loss.resolved else None
        terms.append(Term(name=name, mean=_mean(values), baseline=float(others.mean()), loss=lost, share=share))
    return tuple(terms)


def _mean(values: Floats) -> Mean:
    mean = _with_margin(float(values.mean()), stats.mean_margin(values.tolist()), stats.t_coverage(len(values)))
    is_few = 1 < len(values) < stats.FEW_RUNS
    return replace(mean, runs=_ends(values)) if is_few else mean


def _difference(values: Floats, others: Floats) -> Mean:
    margin = stats.difference_margin(values.tolist(), others.tolist())
    mean = _with_margin(float(values.mean() - others.mean()), margin, stats.t_coverage(len(values), len(others)))
    if min(len(values), len(others)) >= stats.FEW_RUNS or mean.low is None:
        return mean
    ours, their = _ends(values), _ends(others)
    return replace(mean, runs=(ours[0] - their[1], ours[1] - their[0]))


def _ends(values: Floats) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def _less(mean: Mean, other: Mean) -> Mean:
    """The difference of two means that are independent of one another."""
    margins = [each.high - each.value for each in (mean, other) if each.high is not None]
    coverages = [each.coverage for each in (mean, other) if each.coverage is not None]
    margin = math.hypot(*margins) if len(margins) == 2 else None
    less = _with_margin(mean.value - other.value, margin, min(coverages, default=0.0))
    if margin is None or (mean.runs is None and other.runs is None) or not (mean.shown and other.shown):
        return less
    return replace(less, runs=(mean.shown[0] - other.shown[1], mean.shown[1] - other.shown[0]))


def _with_margin(value: float, margin: float | None, coverage: float) -> Mean:
    if margin is None:
        return Mean(value=value)
    return Mean(value=value, low=value - margin, high=value + margin, coverage=coverage)


def _repeats(runs: int, base_runs: int, ours: Floats, theirs: Floats, loss: Mean | None) -> Repeats | None:
    """The runs behind the loss; None without one."""
    if loss is None:
        return None
    for_half = None
    if min(runs, base_runs) > 1 and loss.high is not None:  # the pieces of single runs do not repeat them
        margin = (loss.high - loss.value) / 2
        for_half = stats.repeats_within(ours.sum(axis=1).tolist(), theirs.sum(axis=1).tolist(), margin)
    return Repeats(point=runs, baseline=base_runs, for_half=for_half)


def _ranks(breakdowns: Sequence[StepBreakdown], borders: frozenset[str]) -> tuple[Place, ...]:
    groups = {}
    for rank in range(len(breakdowns[0].nodes)):
        host = _host(breakdowns, rank)
        groups[rank] = (f"rank {rank} ({host})" if host else f"rank {rank}", (rank,))
    return _places(breakdowns, borders, groups, [each.arrivals.last if each.arrivals else None for each in breakdowns])


def _nodes(breakdowns: Sequence[StepBreakdown], borders: frozenset[str]) -> tuple[Place, ...]:
    """The nodes, where the runs agree on which rank is on which."""
    nodes = breakdowns[0].nodes
    if any(breakdown.nodes != nodes for breakdown in breakdowns):
        return ()
    groups = {
        node: (_host(breakdowns, ranks[0]) or f"node {node}", tuple(ranks))
        for node, ranks in sorted(grouped((node, rank) for rank, node in enumerate(nodes)).items())
    }
    return _places(
        breakdowns, borders, groups, [each.arrivals.last_node if each.arrivals else None for each in breakdowns]
    )


def _roles(breakdowns: Sequence[StepBreakdown], borders: frozenset[str]) -> tuple[Place, ...]:
    """The roles, where the runs agree on them, and there are several, one with several ranks."""
    first, *others = {each.arrivals.roles if each.arrivals else () for each in breakdowns}
    of_role = grouped((role, rank) for rank, role in enumerate(first))
    if others or not 1 < len(of_role) < len(first):
        return ()
    by_rank = sorted(of_role.items(), key=lambda role: role[1][0])
    groups = {number: (f"role {number}", tuple(ranks)) for number, (_, ranks) in enumerate(by_rank, 1)}
    last = [
        {number: sum(each.arrivals.last.get(rank, 0.0) for rank in ranks) for number, (_, ranks) in groups.items()}
        for each in breakdowns if each.arrivals
    ]  # fmt: skip
    return _places(breakdowns, borders, groups, last)


def _host(breakdowns: Sequence[StepBreakdown], rank: int) -> str:
    """The host name of a rank; empty where the runs differ."""
    first, *others = {breakdown.hosts[rank] for breakdown in breakdowns}
    return "" if others else first


def _places(
    breakdowns: Sequence[StepBreakdown], borders: frozenset[str], groups: Mapping[int, tuple[str, tuple[int, ...]]],
    last: Sequence[Mapping[int, float] | None],
) -> tuple[Place, ...]:  # fmt: skip
    """A place for each group of ranks; `last` is of each run by number the share of the steps in which it is last."""
    ms = np.mean([merge(breakdown.rank_ns, borders) for breakdown in breakdowns], axis=0) / 1e6
    places = []
    for number, (name, ranks) in groups.items():
        shares = [of_run.get(number, 0.0) for of_run in last if of_run is not None]
        share = stats.mean(shares) if len(shares) == len(breakdowns) else None
        terms = ms[ranks[0]] if len(ranks) == 1 else ms[list(ranks)].mean(axis=0)
        places.append(Place(name=name, ranks=ranks, terms=tuple(terms.tolist()), last=share))
    return tuple(places)
