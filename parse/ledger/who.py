"""Who is waited for: how much shorter would the steps be if these cells (step × rank) were like the others?

A cell is how late one rank comes in one step. What is searched is what passes (cells of some steps), what lasts (ranks
that are late for good, or earlier than all others), and what all ranks share; each again on what is left without the
findings before. What chance makes is shown by shuffling: peers exchange their names within pieces of the window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from math import ceil

import numpy as np

from hpc.model.trace import Bools, Floats, Ints
from parse.ledger.cells import CellWindow, like_the_others, median, sample_of, stable_order
from parse.ledger.chance import chance_of, chance_of_change, chance_of_events, recurrence
from parse.rules import EVENTS, FEW, FIFTH, HALF, LASTS, MATERIAL, NOTABLE, OFTEN, SMALL, WORTH_NAMING

MOST_FOUND = 6
"""So many findings of a kind are looked for, one behind another."""
SIGMAS, TURN_SHUFFLES = 4.0, 20
"""Ranks take turns where one alone is far later than all others by so many standard deviations more often than with
their steps shuffled so often."""
MOST_TURNS = 200_000
"""Turns and periods are looked for in so many cells at most."""
LEAST_NS = 1e-3
PASSES_BELOW = 0.4
"""What is late in fewer of the steps passes, and is looked for first; what is late in more may last."""
BEYOND = 2.5
"""Standard deviations of the cells' lower side, which no delay can reach, from which a cell stands out (2.5 of a normal
law: six in 1,000)."""
EVENT_STEPS = 5
"""Steps of a piece by which passing delays are judged."""
BELONGS = 0.45
"""Cells belong to what passes if they are late by this part of those that make half of it: of two lengths, one twice
the other, both do, and tails of the others' scatter do not."""
ONCE, SEVERE_CHANCE = 10.0, 0.02
"""At most FEW events of a rank that are each so many times as late as any other are named without comparison; of more
that they are its own may be chance so often: it is a single test."""


class Kind(StrEnum):
    """What cells have in common."""

    PASSING = "passing"
    LASTING = "lasting"
    FASTER = "faster"


@dataclass(frozen=True, kw_only=True, eq=False)
class Named:
    """Ranks that are late, or earlier than all others (FASTER, by `gap_ns`), in some `steps` [step]. `chance` is the
    probability of as much among equal ranks, None where one event stands out alone; `saves_ns` what a step would be
    shorter by, on average; `period` that which shows them, 0: another sign does."""

    kind: Kind
    ranks: tuple[int, ...]
    steps: Bools
    saves_ns: float
    chance: float | None
    gap_ns: float = 0.0
    period: int = 0


class DelaySearch:
    """The findings so far, and the cells without them: `late` [step, rank], `named` [step, rank]."""

    def __init__(self, window: CellWindow) -> None:
        self.window, self.findings = window, list[Named]()
        self._beyond: Floats | None = None
        self._recorded = self.late = window.late
        self.named = np.zeros_like(window.late, np.bool_)
        self._without: dict[tuple[tuple[int, ...], bytes], Ints] = {}

    def without(self, ranks: Sequence[int], steps: Bools) -> Ints:
        """The cells without these, too."""
        key = (*ranks,), steps.tobytes()
        if key not in self._without:
            named = self._cells(self.named, ranks, steps)
            self._without = {key: like_the_others(self._recorded.T, named.T).T}  # what saves most is added next
        return self._without[key]

    def saves(self, ranks: Sequence[int], steps: Bools) -> float:
        """By how many ns a step is shorter on average if these ranks are like the others in these steps, too."""
        return self.window.length_ns(self.late) - self.window.length_ns(self.without(ranks, steps))

    @property
    def beyond(self) -> Floats:
        """`beyond_usual` of what is left."""
        if self._beyond is None:
            self._beyond = beyond_usual(self.window, self.late)
        return self._beyond

    def add(self, named: Named) -> None:
        """Takes it out."""
        self.findings.append(named)
        if named.kind is Kind.FASTER:
            self._recorded = self._recorded.copy(order="K")
            self._recorded[:, list(named.ranks)] += round(named.gap_ns)
            self.late = like_the_others(self._recorded.T, self.named.T).T
        else:
            self.late = self.without(named.ranks, named.steps)
            self.named = self._cells(self.named, named.ranks, named.steps)
        self._beyond, self._without = None, {}

    @staticmethod
    def _cells(cells: Bools, ranks: Sequence[int], steps: Bools) -> Bools:
        """With these, too."""
        its = cells.copy(order="K")
        its[np.ix_(steps, np.array([*ranks]))] = True
        return its

    def is_material(self, ns: float) -> bool:
        return ns >= MATERIAL * self.window.step_ns

    def by_saving(self) -> list[Named]:
        """The findings, what saves most by itself first: each saves what is saved when those before it are out."""
        if len(self.findings) < 2:
            return self.findings
        late = [each for each in self.findings if each.kind is not Kind.FASTER]
        whole = self.window.length_ns(self._recorded)
        by_itself = {id(each): self._length_ns([each]) for each in late}
        ordered = sorted(late, key=lambda each: by_itself[id(each)])
        lengths = [whole, *(by_itself[id(each)] for each in ordered[:1])]
        lengths += [self._length_ns(ordered[:count]) for count in range(2, len(ordered) + 1)]
        saved = [
            replace(each, saves_ns=before - after)
            for each, (before, after) in zip(ordered, pairwise(lengths), strict=True)
        ]
        return [*saved, *(each for each in self.findings if each.kind is Kind.FASTER)]

    def _length_ns(self, without: Sequence[Named]) -> float:
        """How late the latest rank of a step is on average without these."""
        cells = np.zeros_like(self.named)
        for each in without:
            cells = self._cells(cells, each.ranks, each.steps)
        return self.window.length_ns(like_the_others(self._recorded.T, cells.T, self.named.T).T)


def search(window: CellWindow) -> list[Named]:
    """All findings, what saves most first."""
    if len(window.compared) < 2:
        return []
    state = DelaySearch(window)
    for each in single_events(state):
        state.add(each)
    for each in turns(state):
        state.add(each)
    _repeat(state, lambda: passing(state, PASSES_BELOW))
    _repeat(state, lambda: recurring(state))
    _repeat(state, lambda: next(lasting_in_some_runs(state), None) or lasting(state))
    _repeat(state, lambda: passing(state))
    return state.by_saving()


def _repeat(state: DelaySearch, ask: Callable[[], Named | None]) -> None:
    """Adds what a search names, again on what is left."""
    for _ in range(MOST_FOUND):
        named = ask()
        if named is None:
            return
        state.add(named)


# What lasts


def lasting(state: DelaySearch, runs: Sequence[int] = ()) -> Named | None:
    """The ranks that the widest gap between typical delays splits from the others, where chance does not make it, or in
    one run not that it begins or ends there; by these runs alone, or by all. The smaller side is named."""
    window = state.window
    typical = typical_ns(window, state.late, runs)
    if len(typical) < 2:  # of a single piece nothing is known of its scatter
        return None
    gap_ns, place, order = widest_gap(typical)
    allowed = window.max_chance / (window.runs if runs else 1)
    chance = chance_of(window, typical, gap_score, allowed)
    if chance is None and 1 in (window.runs, len(runs)):
        gaps = typical[:, order[place + 1 :]].min(axis=1) - typical[:, order[: place + 1]].max(axis=1)
        chance = chance_of_change(window, gaps, ceil(PASSES_BELOW * len(gaps)))
    if chance is None or chance > allowed:
        return None
    steps = np.isin(window.run, runs) if runs else np.ones(len(window.run), np.bool_)
    early, tardy = (tuple(sorted(window.compared[its].tolist())) for its in (order[: place + 1], order[place + 1 :]))
    if len(early) >= len(tardy) > 1:
        tardy = _latest_of(state, tardy, steps, dict(zip(window.compared.tolist(), typical.mean(axis=0), strict=True)))
    steps &= ~state.named[:, tardy].all(axis=1)
    if len(tardy) > len(early):
        material = state.is_material(gap_ns)
        named = Named(kind=Kind.FASTER, ranks=early, steps=steps, saves_ns=0.0, chance=chance, gap_ns=gap_ns)
    else:
        saves_ns = state.saves(tardy, steps)
        material = state.is_material(saves_ns)
        named = Named(kind=Kind.LASTING, ranks=tardy, steps=steps, saves_ns=saves_ns, chance=chance, gap_ns=gap_ns)
    return named if material else None


def _latest_of(
    state: DelaySearch, ranks: tuple[int, ...], steps: Bools, typical: Mapping[int, float]
) -> tuple[int, ...]:
    """Those of these late ranks who are later than the others of them, where taking off these alone pays; else all."""
    ordered = sorted(ranks, key=lambda rank: typical[rank])
    widest = max(range(1, len(ordered)), key=lambda at: typical[ordered[at]] - typical[ordered[at - 1]])
    latest = tuple(sorted(ordered[widest:]))
    pays = state.saves(latest, steps) >= FIFTH * state.saves(ranks, steps)
    return _latest_of(state, latest, steps, typical) if pays and len(latest) > 1 else latest if pays else ranks


def lasting_in_some_runs(state: DelaySearch) -> Iterator[Named]:
    """Ranks that are late for good in some of the runs alone, each by the runs that show it: those in which it is as
    late."""
    window, by_side = state.window, dict[tuple[int, ...], list[int]]()
    for run in range(window.runs) if window.runs > 1 else ():
        named = lasting(state, (run,))
        if named is not None and named.kind is Kind.LASTING:
            by_side.setdefault(named.ranks, []).append(run)
    for ranks, runs in by_side.items():
        others = [rank for rank in window.compared.tolist() if rank not in ranks]
        beyond_ns = []
        for run in range(window.runs):
            of_run = typical_ns(window, state.late, (run,)).mean(axis=0)
            of_ranks = dict(zip(window.compared.tolist(), of_run.tolist(), strict=True))
            beyond_ns.append(min(of_ranks[rank] for rank in ranks) - max(of_ranks[rank] for rank in others))
        least_ns = HALF * min(beyond_ns[run] for run in runs)
        shown = [run for run in range(window.runs) if beyond_ns[run] >= least_ns]
        if len(shown) < window.runs:
            steps = np.isin(window.run, shown)
            saves_ns = state.saves(ranks, steps)
            if state.is_material(saves_ns):
                yield Named(
                    kind=Kind.LASTING, ranks=ranks, steps=steps, saves_ns=saves_ns, chance=window.max_chance,
                    gap_ns=float(np.mean([beyond_ns[run] for run in shown])),
                )  # fmt: skip


def typical_ns(window: CellWindow, late: Ints, runs: Sequence[int] = ()) -> Floats:
    """Of each piece the mean delay of the compared ranks beyond the median, without the longest and the shortest
    tenth [piece, rank]."""
    compared = window.of_compared(late)
    beyond = compared - median(compared[:, sample_of(compared.shape[1])], axis=1)[:, None]
    return np.stack([_trimmed_mean(beyond[piece]) for piece in window.pieces(runs=runs)])


def _trimmed_mean(values: Floats) -> Floats:
    """Over the first axis."""
    cut = round(NOTABLE * len(values))
    ordered = np.sort(values, axis=0)
    mean: Floats = ordered[cut : len(values) - cut].mean(axis=0)
    return mean


def widest_gap(typical: Floats) -> tuple[float, int, Ints]:
    """The widest gap between neighbours in the order of their means over pieces [piece, rank]: in ns, the number of
    ranks before it less 1, and the order [rank]."""
    means = typical.mean(axis=0)
    order = np.argsort(means, kind="stable")
    gaps = np.diff(means[order])
    return float(gaps.max()), int(gaps.argmax()), order


def gap_score(typical: Floats) -> Floats:
    """That gap and how far the latest is from the median of the means [..., piece, rank], together in standard
    errors."""
    means = np.sort(typical.mean(axis=-2), axis=-1)
    errors = np.sqrt(typical.var(axis=-2, ddof=1).mean(axis=-1) / typical.shape[-2])
    latest = means[..., -1] - median(means, axis=-1)
    score: Floats = (np.diff(means, axis=-1).max(axis=-1) + latest) / np.maximum(errors, LEAST_NS)
    return score


# What passes


def passing(state: DelaySearch, below: float = 1.0) -> Named | None:
    """The rank, or ranks, that come late in a share `below` that of the steps, more often than chance makes one of
    its peers.

    A cell is held against its own rank's usual time in the run and against the least late rank of its step: one
    healthy rank in a step suffices.
    """
    window = state.window
    beyond = state.beyond
    limit_ns = limit_ns_of(beyond, window)
    pieces = event_pieces(beyond, window, limit_ns)
    column = int(pieces.sum(axis=0).argmax())
    over = beyond[:, column] > limit_ns
    if np.count_nonzero(over) < FEW:
        return None
    chance: float | None = chance_of_events(pieces, column)
    if chance is not None and chance > window.max_chance:
        chance = chance_of(window, pieces, total_beyond_least, window.max_chance)
    if chance is None:
        return None
    largest_first = np.sort(beyond[over, column])[::-1]
    totals = largest_first.cumsum()
    half_ns = float(largest_first[np.searchsorted(totals, totals[-1] / 2)])  # cells as late make half of it
    its_ns = max(BELONGS * half_ns, limit_ns)
    as_late = beyond > its_ns
    steps: Bools = as_late[:, column]
    if steps.mean() >= below:
        return None
    ranks = (int(window.compared[column]),)
    saves_ns = state.saves(ranks, steps)
    together = (as_late & steps[:, None]).sum(axis=0) >= LASTS * np.maximum(as_late.sum(axis=0), steps.sum())
    if 1 < together.sum() <= len(together) // 2:
        group = tuple(window.compared[together].tolist())
        of_group = state.saves(group, steps)
        if saves_ns < HALF * of_group:  # taking off one alone pays little
            ranks, saves_ns = group, of_group
    if not state.is_material(saves_ns):
        return None
    return Named(kind=Kind.PASSING, ranks=ranks, steps=steps, saves_ns=saves_ns, chance=chance)


def event_pieces(beyond: Floats, window: CellWindow, limit_ns: float) -> Floats:
    """By how much these [step, rank] exceed the limit, in sum over the pieces by which passing delays are judged
    [piece, rank]."""
    starts = np.concatenate([edges[:-1] for edges in window.edges(EVENT_STEPS)])
    sums: Floats = np.add.reduceat(np.maximum(beyond - limit_ns, 0), starts, axis=0)
    return sums


def single_events(state: DelaySearch) -> list[Named]:
    """Cells of one rank that are all ONCE as late as any other: up to FEW events, steps in a row, each by itself
    and without comparison, more together. As equal ranks have single events, too, these save much: in a point of which
    half of the runs or fewer have one SMALL of the step."""
    window = state.window
    beyond = state.beyond
    worst, last = beyond.max(axis=1), beyond.argmax(axis=1)
    order = stable_order(-worst)
    same = int((last[order] != last[order[0]]).argmax()) or len(order)
    largest = worst[order[: same + 1]]
    apart = np.flatnonzero(largest[:-1] > ONCE * np.maximum(largest[1:], LEAST_NS))
    if not len(apart) or apart[0] + 1 > PASSES_BELOW * len(order):
        return []
    its = np.sort(order[: apart[0] + 1])
    events = np.split(its, np.flatnonzero(np.diff(its) > 1) + 1)
    ranks = (int(window.compared[last[order[0]]]),)
    if len(events) > FEW:
        chance = float(beyond.shape[1]) ** (1 - len(events))
        named = _in_steps(state, ranks, its, chance)
        return [named] if chance <= SEVERE_CHANCE and state.is_material(named.saves_ns) else []
    in_few = 2 * len(np.unique(window.run[its])) <= window.runs
    least_ns = (SMALL if in_few else WORTH_NAMING) * window.step_ns
    return [each for event in events if (each := _in_steps(state, ranks, event, None)).saves_ns >= least_ns]


def _in_steps(state: DelaySearch, ranks: tuple[int, ...], its: Ints, chance: float | None, period: int = 0) -> Named:
    steps = np.zeros(len(state.late), np.bool_)
    steps[its] = True
    return Named(
        kind=Kind.PASSING, ranks=ranks, steps=steps, saves_ns=state.saves(ranks, steps), chance=chance, period=period
    )


def recurring(state: DelaySearch) -> Named | None:
    """The rank that comes last every so many steps, more often than chance puts its worst steps into one phase, and in
    all others by less than HALF as much: one that is as late in each step lasts."""
    window = state.window
    if state.late.size > MOST_TURNS:
        return None
    late = window.of_compared(state.late)
    ordered, last = np.sort(late, axis=1), late.argmax(axis=1)
    gap = ordered[:, -1] - ordered[:, -2]
    costs = np.bincount(last, weights=gap, minlength=late.shape[1]) / len(late)
    step = np.arange(len(late)) - np.searchsorted(window.run, window.run)  # from 0 in each run
    best: Named | None = None
    for column in np.flatnonzero(costs >= MATERIAL * window.step_ns).tolist():
        its_gap = np.where(last == column, gap, 0)
        its = recurrence(its_gap, step)
        if its is None or its.chance * late.shape[1] > window.max_chance:
            continue
        beyond, in_phase = state.beyond[:, column], step % its.period == its.phase
        if np.median(its_gap[~in_phase]) >= HALF * np.median(its_gap[its.its]):
            continue
        as_late = in_phase & (beyond > HALF * float(np.median(beyond[its.its])))  # also where another is later
        named = _in_steps(state, (int(window.compared[column]),), np.flatnonzero(as_late), its.chance, its.period)
        if state.is_material(named.saves_ns) and (best is None or named.saves_ns > best.saves_ns):
            best = named
    return best


def turns(state: DelaySearch) -> list[Named]:
    """Ranks, or nodes, of which in most steps exactly one is far later than all others, more often than if each was so
    at times of its own: with the steps of each shuffled."""
    window = state.window
    if state.late.size > MOST_TURNS:
        return []
    beyond = beyond_usual(window, state.late, OFTEN)
    nodes, limit_ns = window.nodes[window.compared], limit_ns_of(beyond, window, OFTEN)
    random = np.random.default_rng(beyond.size)
    of_ranks = [np.array([at]) for at in range(len(nodes))]
    for members in (of_ranks, [np.flatnonzero(nodes == node) for node in np.unique(nodes)]):
        least, latest = (
            np.stack([reduce(beyond[:, member], axis=1) for member in members], axis=1) for reduce in (np.min, np.max)
        )
        last = _far_later(least, latest, limit_ns)
        single = last >= 0
        if single.mean() <= HALF or np.count_nonzero(np.diff(last[single])) < EVENTS:
            continue
        shuffled = []
        for _ in range(TURN_SHUFFLES):
            order = random.permuted(np.tile(np.arange(len(least))[:, None], len(members)), axis=0)
            others, last_of = (np.take_along_axis(each, order, axis=0) for each in (least, latest))
            shuffled.append(float((_far_later(others, last_of, limit_ns) >= 0).mean()))
        error = max(float(np.std(shuffled)), (0.25 / len(least)) ** 0.5)
        if len(members) < 2 or single.mean() <= max(HALF, float(np.mean(shuffled)) + SIGMAS * error):
            continue
        sizes = np.bincount(last[single], weights=least.max(axis=1)[single], minlength=len(members))
        named = [
            _in_steps(state, tuple(window.compared[members[at]].tolist()), np.flatnonzero(last == at), 0.0)
            for at in np.flatnonzero(sizes >= HALF * sizes.max()).tolist()
        ]
        if len(named) > 1 and state.is_material(sum(each.saves_ns for each in named)):
            return named
    return []


def _far_later(least: Floats, latest: Floats, limit_ns: float) -> Ints:
    """Of each step who alone is late by more than the limit and twice as much as all others [step]; −1: nobody. By the
    `least` late rank of who is late, and the `latest` one of the others [step, member]."""
    if least.shape[1] < 2:
        return np.full(len(least), -1)
    last = least.argmax(axis=1)
    row = np.arange(len(least))
    late, others = least[row, last], latest.copy()
    others[row, last] = -np.inf
    is_far = (late > limit_ns) & (others.max(axis=1) < HALF * late)
    return np.where(is_far, last, -1)


def beyond_usual(window: CellWindow, late: Ints, quantile: float = 0.5) -> Floats:
    """How late compared ranks are [step, rank], ns, beyond their own usual delay in the run, a quantile of it, and
    beyond the rank that is least so in the step; of two ranks beyond the other."""
    beyond = window.of_compared(late).astype(np.float64)
    for piece in window.of_runs:
        its = beyond[piece]
        beyond[piece] -= median(its) if quantile == 0.5 else np.quantile(its, quantile, axis=0)
    reference = beyond[:, ::-1] if beyond.shape[1] == 2 else beyond.min(axis=1, keepdims=True)
    return beyond - reference


def limit_ns_of(beyond: Floats, window: CellWindow, quantile: float = 0.5) -> float:
    """From which on a cell stands out: by the scatter below a quantile, and by what is material in a step."""
    shown = beyond[:, sample_of(beyond.shape[1])].ravel(order="K")
    middle = float(median(shown) if quantile == 0.5 else np.quantile(shown, quantile))
    low = shown[shown < middle]
    scatter = float(median(middle - low)) / 0.6745 if low.size else 0.0  # of a normal law, by its quartile
    return middle + max(BEYOND * scatter, MATERIAL * window.step_ns)


def total_beyond_least(pieces: Floats) -> Floats:
    """By how much the largest total over pieces [..., piece, rank] exceeds the least of the others."""
    totals = pieces.sum(axis=-2)
    excess: Floats = totals.max(axis=-1) - totals.min(axis=-1)
    return excess
