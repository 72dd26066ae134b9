"""Cells, how late one rank comes in one step, and what some of them would be if they were like the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise

import numpy as np

from hpc.model.trace import Bools, Floats, Ints
from parse.rules import CHANCE, FIFTH, NOTABLE, OF_ONE_RUN

PIECE_STEPS, LEAST_PIECES, MOST_PIECES = 4, 6, 20
"""Pieces of a run by which a lasting delay is judged: neighbours in time are no independent evidence."""
SAMPLED = 128
"""Of more ranks so many, spread over all, show how the others are."""


def median(values: Floats | Ints, axis: int = 0) -> Floats:
    """As `np.median`, of numbers without NaN: parted at one place, which is several times as fast as at two."""
    rows = np.ascontiguousarray(np.moveaxis(values, axis, -1))
    low, high = (rows.shape[-1] - 1) // 2, rows.shape[-1] // 2
    its = np.partition(rows, low, axis=-1)
    upper = its[..., low] if low == high else its[..., high:].min(axis=-1)
    middle: Floats = np.divide(its[..., low] + upper, 2)
    return middle


@dataclass(frozen=True, kw_only=True, eq=False)
class CellWindow:
    """The cells of a point: `late` [step, rank] in ns, less a number that all ranks of the step have in common. It is
    fastest where a rank's steps are adjacent in memory.

    `run` [step] numbers the runs, `nodes` [rank] the nodes. Ranks of one of `roles` [rank] are peers; one without a
    peer is not `compared`. Where these are some of `of_ranks`, `rest` [step] is how late the latest of the others is.
    `allowed` takes the place of CHANCE and OF_ONE_RUN.
    """

    late: Ints
    run: Ints
    roles: Ints
    nodes: Ints
    step_ns: float
    rest: Ints | None = None
    of_ranks: int = 0
    allowed: float | None = None

    @cached_property
    def compared(self) -> Ints:
        """The ranks that have a peer."""
        return np.flatnonzero(np.bincount(self.roles)[self.roles] > 1)

    def of_compared(self, late: Ints) -> Ints:
        """These cells [step, rank] of the compared ranks."""
        return late if len(self.compared) == late.shape[1] else np.asfortranarray(late[:, self.compared])

    @cached_property
    def runs(self) -> int:
        return int(self.run[-1]) + 1

    @cached_property
    def of_runs(self) -> list[slice]:
        """The steps of each run."""
        return [slice(*np.searchsorted(self.run, (run, run + 1)).tolist()) for run in range(self.runs)]

    @property
    def max_chance(self) -> float:
        """How often equal ranks may show as much, of those that were chosen among many."""
        chance = self.allowed or (CHANCE if self.runs > 1 else OF_ONE_RUN)
        return float(chance * self.late.shape[1] / max(self.of_ranks, self.late.shape[1]))

    def length_ns(self, late: Ints) -> float:
        """How late the latest rank of a step is on average, with these cells."""
        latest = late.max(axis=1)
        return float((latest if self.rest is None else np.maximum(latest, self.rest)).mean())

    def edges(self, steps_each: int | None = None, runs: Sequence[int] = ()) -> list[Ints]:
        """Where pieces begin and end, run by run: of so many steps, or as a lasting delay is judged; of these runs."""
        result = []
        for run in runs or range(self.runs):
            begin, end = self.of_runs[run].start, self.of_runs[run].stop
            steps = end - begin
            fewest = max(LEAST_PIECES, min(MOST_PIECES, steps // PIECE_STEPS))
            pieces = max(1, steps // steps_each) if steps_each else fewest
            result.append(np.linspace(begin, end, min(pieces, steps) + 1).round().astype(int))
        return result

    def pieces(self, runs: Sequence[int] = ()) -> list[slice]:
        """The window in pieces, none of two runs, as a lasting delay is judged; of these runs."""
        return [slice(*edge) for edges in self.edges(runs=runs) for edge in pairwise(edges.tolist())]


def can_show(window: CellWindow) -> bool:
    """Whether a rank that is the latest in every piece could be told from chance."""
    peers = int(np.bincount(window.roles).max())
    return bool(float(peers) ** (1 - len(window.pieces())) <= window.max_chance)


@cache
def sample_of(ranks: int) -> Ints:
    """So many ranks, or SAMPLED of them, spread over all."""
    its: Ints = np.linspace(0, ranks - 1, min(SAMPLED, ranks)).round().astype(int)
    return its


def chosen(window: CellWindow) -> tuple[CellWindow, Ints]:
    """Of many ranks those who may be named, and their numbers: the latest and the earliest on average, those who are
    late in some steps, and SAMPLED others, spread over all; of fewer, or of several roles, all."""
    ranks = window.late.shape[1]
    if ranks <= 4 * SAMPLED or len(np.unique(window.roles)) > 1:
        return replace(window, late=np.asfortranarray(window.late)), np.arange(ranks)
    mean = window.late.mean(axis=0)
    usual = np.partition(window.late[:, sample_of(ranks)], round(0.95 * SAMPLED), axis=1)[:, round(0.95 * SAMPLED)]
    excess = window.late - usual[:, None]
    excess = np.maximum(excess, 0, out=excess).mean(axis=0)
    latest, often = (np.argpartition(values, -SAMPLED)[-SAMPLED:] for values in (mean, excess))
    earliest = np.argpartition(mean, SAMPLED // 8)[: SAMPLED // 8]
    its = np.unique(np.concatenate([sample_of(ranks), latest, often, earliest]))
    others = np.ones(ranks, np.bool_)
    others[its] = False
    smaller = replace(
        window, late=np.asfortranarray(window.late[:, its]), roles=window.roles[its], nodes=window.nodes[its],
        of_ranks=ranks,
        rest=np.where(others, window.late, np.iinfo(np.int64).min).max(axis=1),
    )  # fmt: skip
    return smaller, its


def like_the_others(part: Ints, cells: Bools, named: Bools | None = None) -> Ints:
    """The times [rank, step] with these cells like the others: those that are not `named` [rank, step], which are these
    cells and those of other findings.

    A cell comes as long after the mean of its step's others as one of these may, the longest of a rank as the longest
    of theirs, and so on down (quantile by quantile). Of n others the mean of a step is itself uncertain by the scatter
    of one over √n, which all cells of the step share, and one of them differs from it by √(1 − 1/n) of that scatter:
    so the largest of a step is what it is among equal ranks. Where one other is left, or none, the rank's own other
    steps show how it scatters.
    """
    changed = part.copy(order="K")
    of_many: Bools = np.any(cells, axis=1)
    of_many[sample_of(len(part))] = True
    named, shown = cells if named is None else named | cells, np.arange(len(part))
    if of_many.sum() < len(part) // 2:
        shown = np.flatnonzero(of_many)
        part, cells, named = part[shown], cells[shown], named[shown]
    part, named = np.ascontiguousarray(part), np.ascontiguousarray(named)
    rows = np.flatnonzero(named.any(axis=1))
    count = len(part) - named[rows].sum(axis=0)
    mean = (part.sum(axis=0) - np.where(named[rows], part[rows], 0).sum(axis=0)) / np.maximum(count, 1)
    if not count.all():
        mean = np.where(count > 0, mean, part.min(axis=0))
    scatter = part - mean
    scatter *= np.sqrt(count / np.maximum(count - 1, 1))
    known = ~named & (count > 1)
    all_known = scatter[known]
    usual = float(all_known.std()) if len(all_known) else 0.0
    random = np.random.default_rng([part.size, abs(int(part.sum()))])  # of each phase others: their sum scatters less
    shared = random.standard_normal(len(mean)) * usual / np.sqrt(np.maximum(count, 1))
    centre = mean + np.where(count > 1, shared, 0)
    for ranks in _of_same_steps(cells):
        is_late = cells[ranks[0]]
        of_others = np.sort(all_known if is_late.all() else scatter[known & is_late])
        steps = slice(None) if is_late.all() else is_late
        for rank in ranks:
            after = (part[rank] - mean)[steps]
            as_usual = (
                _quantiles(of_others, len(after))
                if len(of_others)
                else _own_scatter(part[rank] - mean, ~named[rank], after)
            )
            usually = np.empty(len(after))
            usually[stable_order(after)] = as_usual
            changed[shown[rank], steps] = np.rint(centre[steps] + usually).astype(np.int64)
    return changed


def stable_order(values: Floats) -> Ints:
    """Their stable order, by the faster sort: which of equal values comes first is put right."""
    order: Ints = np.argsort(values)
    ordered = values[order]
    equal = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(equal) > NOTABLE * len(order):  # more to put right than to sort once more
        return np.argsort(values, kind="stable")
    tied = np.union1d(equal, equal + 1)
    order[tied] = order[tied][np.lexsort((order[tied], ordered[tied]))]
    return order


def _of_same_steps(cells: Bools) -> list[list[int]]:
    """The ranks that have cells [rank, step], those with the same steps together."""
    by_steps: dict[bytes, list[int]] = {}
    for rank in np.flatnonzero(cells.any(axis=1)).tolist():
        by_steps.setdefault(np.packbits(cells[rank]).tobytes(), []).append(rank)
    return [*by_steps.values()]


def _own_scatter(beyond: Floats, free: Bools, after: Floats) -> Floats:
    """How a rank scatters about the only other [step]: as in its free steps, or without what is usual in these."""
    if free.sum() >= FIFTH * len(free):
        return _quantiles(np.sort(beyond[free]), len(after))
    return np.sort(after - np.median(after))


def _quantiles(ordered: Floats, count: int) -> Floats:
    """So many, evenly spread over these."""
    its: Floats = ordered[((np.arange(count) + 0.5) / count * len(ordered)).astype(int)]
    return its
