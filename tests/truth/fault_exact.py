"""Whether those whom a ledger names were late by the exact stamps of the same windows.

Somebody is late there if two things hold that equal ranks show by chance in one of a thousand cases only: it comes
last, by the medians of blocks of steps, in more blocks than it would if names were drawn by lot in each; and it
typically comes later than the median rank by a part of the step in each run that shows it. Where a delay comes now and
then, events are counted instead of blocks. No figure here comes from hpc.measure.clock or parse.ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
import numpy.typing as npt

from hpc.model.trace import Trace
from parse.ledger.verdict import PERSISTENT, TRANSIENT, Straggler
from tests.truth.exact import CAUSES, Ms, Truth, measured, stamped_of
from tests.truth.script_marks import MATERIAL, is_off
from tests.truth.verdicts import after_median, arrival_skew, beside_others, steps_of

BLOCK = 10
"""Steps that follow one another are no independent evidence: so many are one piece of it."""
CHANCE = 0.001
"""A test at this level may be wrong of one window in so many, were each tested once."""
LAST_IN = 0.9
"""Who is late in some steps comes last in this part of them."""
OUT = 0.5
"""As an event counts what is at least this part of what is named."""
ALONE = 5.0
"""An event that is so many times as late as any other needs no others like it."""

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Exact:
    """A window by exact stamps, and the numbers of its steps [step]."""

    truth: Truth
    steps: npt.NDArray[np.int64]

    @classmethod
    def of(cls, trace: Trace, distance_s: int) -> Exact:
        """Of a run on the development cluster, whose node k reads a clock k times that many seconds ahead."""
        return cls(truth=stamped_of(trace, distance_s), steps=measured(trace.blocks))

    @property
    def later(self) -> Ms:
        """How much later than the median rank each comes, [rank, step]."""
        return after_median(self.truth.entries)

    @property
    def least_ms(self) -> float:
        """The part of the mean step from which a delay is material."""
        return MATERIAL * float(self.truth.terms.sum(axis=2).mean())

    def typical(self) -> Ms:
        """The median of each block of steps, [rank, block], of `later`."""
        later = self.later
        blocks = later.shape[1] // BLOCK
        return np.median(later[:, : blocks * BLOCK].reshape(len(later), blocks, BLOCK), axis=2)

    def shuffled(self, random: np.random.Generator) -> Exact:
        """The same with the names of the ranks permuted in each block of steps."""
        terms, causes = self.truth.terms.copy(), self.truth.causes.copy()
        for at in range(0, len(self.steps), BLOCK):
            order = random.permutation(len(terms))
            its = slice(at, at + BLOCK)
            terms[:, its], causes[:, its] = terms[order, its], causes[order, its]
        return Exact(truth=Truth(terms=terms, causes=causes), steps=self.steps)


def bears_out(verdict: Straggler, runs: Sequence[Exact], faulty: Sequence[int] = ()) -> bool:
    """Whether those named were late in these runs, by their phase and by as much as the verdict has it.

    `faulty` ranks are late because of a fault: the others are compared with one another.
    """
    ranks = len(runs[0].truth.causes)
    compared = [rank for rank in range(ranks) if rank not in faulty]
    if not verdict.ranks or {*verdict.ranks} - {*compared} or len(verdict.ranks) >= len(compared):
        return False
    if verdict.kind == PERSISTENT:
        chosen = [*combinations(runs, verdict.in_runs)]  # of whose runs the verdict is; all may show that they are late
        in_all = _is_late(runs, verdict.ranks, compared)
        return any(
            (in_all or _is_late(its, verdict.ranks, compared, ways=len(chosen)))
            and _is_as_late(verdict, [_usual_delay(verdict, run) for run in its])
            for its in chosen
        )
    if verdict.kind == TRANSIENT:
        named = [np.isin(run.steps, steps) for run, steps in zip(runs, verdict.run_steps, strict=True)]
        last = [_last(run, compared) for run in runs]
        late = [
            (np.arange(ranks)[:, None] == of_run) & np.isin(of_run, verdict.ranks) & its
            for of_run, its in zip(last, named, strict=True)
        ]
        delays = [_delay_in(run, of_run) for run, of_run in zip(runs, late, strict=True) if of_run.any()]
        return _has_events(runs, named, last, verdict.ranks, compared) and _is_as_late(verdict, delays)
    return False


def somebody_late(runs: Sequence[Exact]) -> bool:
    """Whether any rank, or any few, are late in all of these runs, whatever a ledger says."""
    ranks = range(len(runs[0].truth.causes))
    sets = (who for count in range(1, len(ranks) // 2 + 1) for who in combinations(ranks, count))
    return any(_is_late(runs, who, ranks) for who in sets)


def _is_late(runs: Sequence[Exact], who: Sequence[int], compared: Sequence[int], ways: int = 1) -> bool:
    """Whether these come after all others compared in more blocks than by chance, and typically late in each run.

    By lot any of C(compared, who) sets comes last in a block; each of these sets, and each of so many `ways` to choose
    runs, is a chance to find one.
    """
    others = [rank for rank in compared if rank not in who]
    sets = comb(len(compared), len(who))
    hits = blocks = 0
    for run in runs:
        typical = run.typical()
        if typical[[*who]].mean() < run.least_ms:
            return False
        hits += int((typical[[*who]].min(axis=0) > typical[others].max(axis=0)).sum())
        blocks += typical.shape[1]
    return ways * sets * _tail(blocks, hits, 1 / sets) <= CHANCE


def _has_events(
    runs: Sequence[Exact], named: Sequence[Bools], last: Sequence[npt.NDArray[np.int64]], who: Sequence[int],
    compared: Sequence[int],
) -> bool:  # fmt: skip
    """Whether these come last in the steps `named` [step], and more events as large fall on them than by chance, or
    none of the others' is nearly as large. Steps in a row in which the same comes last are one event."""
    skew = [run.later[compared].max(axis=0) for run in runs]
    its = [np.isin(of_run, who) for of_run in last]
    in_named = np.concatenate([of_run[at] for of_run, at in zip(its, named, strict=True)])
    sizes = np.concatenate([of_run[at] for of_run, at in zip(skew, named, strict=True)])
    if not len(sizes) or in_named.mean() < LAST_IN:
        return False
    others = max(float(of_run[~at].max(initial=0.0)) for of_run, at in zip(skew, named, strict=True))
    if float(sizes.max()) > ALONE * others:
        return True
    events = hits = 0
    for of_run, is_its, late in zip(last, its, skew, strict=True):
        at = np.flatnonzero(late >= OUT * float(np.median(sizes)))
        first = at[(np.diff(at, prepend=-2) > 1) | (np.diff(of_run[at], prepend=-1) != 0)]
        events += len(first)
        hits += int(is_its[first].sum())
    share = len(who) / len(compared)
    return comb(len(compared), len(who)) * _tail(events, hits, share) <= CHANCE


def _usual_delay(verdict: Straggler, run: Exact) -> tuple[Ms, int]:
    """How much later than the median of the others those named come on average of the steps of a persistent verdict, by
    CAUSES, ms; and how many steps that are."""
    its = steps_of(verdict, run.steps)
    parts = [beside_others(run.truth.causes[..., at], run.truth.entries) for at in range(len(CAUSES))]
    return np.array([part[[*verdict.ranks]][:, its].mean() for part in parts]), int(its.sum())


def _delay_in(run: Exact, late: Bools) -> tuple[Ms, int]:
    """The same of a transient one, after the median rank, in these steps [rank, step]."""
    return arrival_skew(run.truth, late).cause, int(late.sum())


def _is_as_late(verdict: Straggler, delays: Sequence[tuple[Ms, int]]) -> bool:
    """Whether the mean of the runs' delays, weighted by their steps, and its main phase, are those of the verdict."""
    if not verdict.cause or not delays:
        return False
    phase = max(verdict.cause, key=verdict.cause.__getitem__)
    cause = np.average([its for its, _ in delays], axis=0, weights=[steps for _, steps in delays])
    by_phase = {name: sum(cause[CAUSES.index(part)] for part in name.split("+")) for name in verdict.cause}
    return (
        max(by_phase, key=by_phase.__getitem__) == phase
        and not is_off(verdict.arrival_skew - cause.sum(), cause.sum())
        and not is_off(verdict.cause[phase] - by_phase[phase], by_phase[phase])
    )


def _last(run: Exact, compared: Sequence[int]) -> npt.NDArray[np.int64]:
    """Who of those compared comes last, [step]."""
    last: npt.NDArray[np.int64] = np.array(compared)[run.truth.entries[[*compared]].argmax(axis=0)]
    return last


def _tail(trials: int, hits: int, chance: float) -> float:
    """The probability of so many hits or more (binomial distribution)."""
    return sum(comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(hits, trials + 1))
