"""Who is late in the first steps behind a script's pauses, by the search for who is waited for, and what all take
longer there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from hpc.model.trace import Bools, Floats
from parse import stats
from parse.ledger.breakdown import StepBreakdown
from parse.ledger.cells import CellWindow, chosen
from parse.ledger.finding import FirstSteps, LeftOut
from parse.ledger.pauses import RunFirstSteps, middle_of
from parse.ledger.who import Kind, Named, search
from parse.rules import HALF, MATERIAL, OF_ONE_RUN, SMALL
from parse.term_kinds import CAUSES


def left_out_of_point(runs: Sequence[StepBreakdown]) -> LeftOut | None:
    """Means over the runs; None where no step is left out."""
    its = [run.paused.left_out for run in runs if run.paused]
    if not any(each.steps for each in its):
        return None
    return LeftOut(
        **{name: sum(getattr(each, name) for each in its) / len(its) for name in ("steps", "of_steps", "pauses")}
    )


def first_steps_of_point(runs: Sequence[StepBreakdown]) -> tuple[FirstSteps, ...]:
    """What ranks are late by in the first steps behind the pauses of all runs, and what all take longer there, what
    costs most first."""
    known = [(run, run.paused.first_steps) for run in runs if run.paused and run.paused.first_steps]
    if not known or len({run.nodes for run, _ in known}) > 1:
        return ()
    behind = _Behind(
        [its for _, its in known], len(runs), sum(run.paused.left_out.of_steps for run in runs if run.paused)
    )
    step_ns = stats.mean([run.step_ns for run, _ in known])
    late = behind.late(known[0][0], step_ns)
    shared = (each for each in behind.shared() if each.costs >= MATERIAL * step_ns / 1e6)
    return tuple(sorted((*late, *shared), key=lambda each: -each.costs))


class _Behind:
    """The steps behind the pauses of so many runs, whose windows have so many `steps`, one after another."""

    def __init__(self, known: Sequence[RunFirstSteps], runs: int, steps: float) -> None:
        self.runs, self.steps = runs, steps
        self.run = np.repeat(np.arange(len(known)), [len(each.place) for each in known])
        self.place, self.pause, self.late_ns, self.longer = (
            np.concatenate([getattr(each, name) for each in known]) for name in ("place", "pause", "late", "longer")
        )
        self.usually = np.array([each.usually for each in known])[self.run]

    def late(self, run: StepBreakdown, step_ns: float) -> Iterator[FirstSteps]:
        """Ranks that are late there, with nodes and roles as in this run, by the search; steps of blocks have so many
        ns."""
        rows, ranks = self.late_ns.shape
        roles = run.arrivals.roles if run.arrivals else ()
        window, numbers = chosen(
            CellWindow(
                late=self.late_ns, run=self.run, roles=np.array(roles or (0,) * ranks), nodes=np.array(run.nodes),
                step_ns=step_ns * self.steps / rows,
            )
        )  # fmt: skip
        by_ranks: dict[tuple[int, ...], list[Named]] = defaultdict(list)
        for each in search(window):
            if each.kind is not Kind.FASTER:
                by_ranks[each.ranks].append(each)
        for columns, its in by_ranks.items():
            cells = np.logical_or.reduce([each.steps for each in its])
            chances = [each.chance for each in its if each.chance is not None]
            named = numbers[list(columns)]
            others = np.setdiff1d(np.arange(ranks), named)
            beyond = self.longer[:, named].mean(axis=1) - np.median(self.longer[:, others], axis=1)
            yield self._finding(
                tuple(named.tolist()), cells, beyond, sum(each.saves_ns for each in its) * rows / 1e6,
                min(chances, default=None),
            )  # fmt: skip

    def shared(self) -> Iterator[FirstSteps]:
        """What all ranks take longer in the first steps, as far as steps of the blocks seldom do."""
        longer = middle_of(self.longer.sum(axis=2))
        above, cells = longer > self.usually, np.zeros(len(longer), np.bool_)
        for place in range(int(self.place.max()) + 1):
            its = self.place == place
            if stats.binomial_tail(int(its.sum()), int(above[its].sum()), SMALL) > OF_ONE_RUN:
                break
            cells |= its
        total = float(longer[cells].sum())
        if total > 0:
            yield self._finding((), cells, np.median(self.longer, axis=1), total, None)

    def _finding(
        self, ranks: tuple[int, ...], cells: Bools, longer: Floats, total_ms: float, chance: float | None
    ) -> FirstSteps:
        """`cells` [step] are those in which these ranks take `longer` [step, part] ms, which costs so much in all."""
        pauses = len({*zip(self.run[cells].tolist(), self.pause[cells].tolist(), strict=True)})
        at_place = np.bincount(self.place[cells])
        parts = longer[cells].sum(axis=0) / pauses
        return FirstSteps(
            ranks=ranks, steps=int(np.flatnonzero(at_place >= HALF * pauses).max(initial=0)) + 1,
            times=pauses / self.runs, length=float(parts.sum()), costs=total_ms / self.steps, chance=chance,
            cause=dict(zip(CAUSES[1:], parts.tolist(), strict=True)),
        )  # fmt: skip
