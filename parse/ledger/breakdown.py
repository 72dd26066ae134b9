"""The step breakdown of one run: its trace, reduced piece by piece to the means of its terms, from whole ns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from hpc.model.timestamps import ABSENT, BEGIN, END, GRADS_READY, REDUCED, STAMPS
from hpc.model.trace import Bools, Floats, Ints, Trace, TraceError
from parse.graph.reading import GraphReader
from parse.graph.roots import Roots, compared, roots
from parse.graph.step_graph import ARRIVES, ENDS, NO_ROOT, UNCLEAR
from parse.graph.terms import graph_terms
from parse.ledger.arrivals import ArrivalCollector, Arrivals, StepSkews, at_the_begin
from parse.ledger.loaders import later_fetches_ns, move_to_data, with_later_data
from parse.ledger.meetings import (
    MEETINGS,
    NO_MEETINGS,
    MeetingKinds,
    StepPiece,
    asleep_ms,
    awaited_calls,
    complete_parts,
    lacking_steps,
    lacks_meetings,
    lacks_the_step_before,
    local_meetings,
    meeting_kinds,
    phases,
    read_pieces,
    unmatched_collectives,
    unseen_ways,
    waited_and_exposed,
)
from parse.ledger.pauses import RunPauses, run_pauses
from parse.ledger.types import StampErrors
from parse.ledger.verdict import Merged, UnsplitSteps
from parse.rules import HALF, PIECES, READ_AT_ONCE, WORTH_NAMING
from parse.runs.processes import keep_freed_memory
from parse.term_kinds import (
    BORDERS,
    CAUSES,
    COMMUNICATION,
    COMPUTE,
    DATA,
    GRADIENTS_OF_ALL,
    TERM_KINDS,
    TERMS,
    WAIT,
    WORK,
    joined,
)

GRAPH_CALLS = 6
"""So many calls of a rank count as a time stamp in a piece: what is read off a graph has costs of each piece."""
_OWN = [TERM_KINDS.index(kind) for kind in WORK]
_WAIT, _COMMUNICATION = TERM_KINDS.index(WAIT), TERM_KINDS.index(COMMUNICATION)
Missing = Mapping[str, tuple[int, int]]
"""By border: how many of its time stamps are absent, and of how many (ranks × steps)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DimensionTimes:
    """What of the terms wait and communication is in the groups of one dimension, in this order: means over steps,
    `rank_ns` [rank, 2], and over ranks and the steps of each piece, `piece_ns` [piece, 2]."""

    rank_ns: Floats
    piece_ns: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class StepBreakdown:
    """One run. `borders` are those of BORDERS that are known and meaningful, `merged` the reasons for the others.

    `rank_ns` [rank, 5] and `piece_ns` [piece, 5] are mean terms, over steps and over ranks and steps; where a border is
    not known, the time up to the next one that is counts in the later term and 0 in the one before it. `step_ns` is the
    mean step of the ledger, `median_step_ns` the median step from latest end to latest end, `skew_ns` what the
    throughput's mean step has more than `step_ns`. `pauses_ns` are those between blocks, `paused` who makes them, where
    they are a script's own. `arrivals` is None where ranks' t3 cannot be compared. `unmatched`
    are collectives whose effect on each rank is not known, each with its steps; `unseen_ways` are what ranks also
    meet in, unseen, `asleep_ms` how long each sleeps in a step for no known reason. `by_dimension` has the parts of
    wait and communication where ranks meet in groups; they add up to these terms. `at_begin`: `arrivals` are
    those at the begin of a step's computation, inside of which ranks meet unseen.
    """

    run_id: str
    borders: frozenset[str]
    merged: Merged | None
    rank_ns: Floats
    piece_ns: Floats
    step_ns: float
    median_step_ns: float
    skew_ns: float
    pauses_ns: tuple[int, ...]
    paused: RunPauses | None
    hosts: tuple[str, ...]
    nodes: tuple[int, ...]
    gradient_bytes: int | None
    arrivals: Arrivals | None
    problems: StampErrors
    unmatched: tuple[str, ...] = ()
    unseen_ways: tuple[str, ...] = ()
    asleep_ms: tuple[float, ...] = ()
    by_dimension: Mapping[str, DimensionTimes] = field(default_factory=dict)
    at_begin: bool = False

    @property
    def mean_ns(self) -> Floats:
        mean: Floats = self.rank_ns.mean(axis=0)
        return mean


def gradient_bytes(runs: Sequence[StepBreakdown]) -> int:
    """The bytes that a step reduces; 0 where they are not known, where runs differ, or where ranks communicate for more
    than that."""
    if any(run.by_dimension or (run.arrivals is not None and run.arrivals.meetings) for run in runs):
        return 0
    volumes = {run.gradient_bytes for run in runs}
    return (volumes.pop() or 0) if len(volumes) == 1 else 0


def names(borders: frozenset[str]) -> tuple[str, ...]:
    """The terms between these borders: `data`, `compute`, …; several in one are joined by `+`."""
    return tuple(joined(TERMS[term] for term in group) for group in _groups(borders))


def merge(ns: Floats, borders: frozenset[str]) -> Floats:
    """The five terms [..., 5] added up between these borders, [..., term] as `names` has them."""
    return np.stack([ns[..., group].sum(axis=-1) for group in _groups(borders)], axis=-1)


def _groups(borders: frozenset[str]) -> list[list[int]]:
    groups = [[0]]
    for term, border in enumerate(BORDERS, 1):
        if border in borders:
            groups.append([])
        groups[-1].append(term)
    return groups


def step_terms(stamps_ns: Ints, borders: frozenset[str], meetings_ns: Ints | None = None) -> Ints:
    """The five terms of each step, int64 [rank, step, 5] ns, from stamps [rank, 1 + step, 6] on the global clock and,
    where all borders are known, meetings [rank, 1 + step, meeting, 3] on it, of `awaited_calls`.

    The first of the steps is only there for its end, where the second begins. Between them the five add up to the
    step, to the nanosecond: t1 − t0, t3 − t1, M − t3, t4 − M, t5 − t4 with M the latest t3 of all ranks. At a border
    that is not among `borders` the term before it is 0. What ranks wait and communicate in meetings moves to these
    terms, from those in which they are: the terms still add up to the step.
    """
    edges = [stamps_ns[:, :-1, END]]
    for border in BORDERS:
        if border not in borders:
            edges.append(edges[-1])
        elif border == GRADIENTS_OF_ALL:
            edges.append(stamps_ns[:, 1:, GRADS_READY].max(axis=0, keepdims=True))
        else:
            edges.append(stamps_ns[:, 1:, STAMPS.index(border)])
    edges.append(stamps_ns[:, 1:, END])
    by_term = np.empty((len(TERMS), *edges[0].T.shape), np.int64)
    for ns, (begin, end) in zip(by_term, pairwise(edges), strict=True):
        np.subtract(end.T, begin.T, out=ns)
    terms_ns = by_term.T
    if meetings_ns is not None:
        its_ns = meetings_ns[:, 1:]
        waited, exposed = waited_and_exposed(its_ns)
        for term, inside in phases(stamps_ns[:, 1:], its_ns):
            its_waited, its_exposed = ((part * inside).sum(axis=2) for part in (waited, exposed))
            terms_ns[..., term] -= its_waited + its_exposed
            terms_ns[..., _WAIT] += its_waited
            terms_ns[..., _COMMUNICATION] += its_exposed
    return terms_ns


def step_breakdown(trace: Trace) -> StepBreakdown:
    """The run's step breakdown. Raises TraceError where its window is not whole or its clocks cannot be compared.

    Reads the stamps in pieces of steps: with `hpc.model.trace_file.open_trace` memory is bounded whatever their number.
    """
    keep_freed_memory()
    try:
        return _reduce(trace, {})
    except _ManyUnsplit:  # rare, so that most traces are read once
        return _reduce(trace, _missing(trace))


class _ManyUnsplit(Exception):
    """More than HALF of the steps lack stamps."""


def _reduce(trace: Trace, missing: Missing) -> StepBreakdown:
    ranks, steps = len(trace.stamps), int(np.diff(trace.blocks).sum())
    if not steps:
        raise TraceError("it has no measured block")
    borders, merged = known_borders(trace, missing)
    parts = _PartReader(trace, borders, merged, steps)
    rank_ns, skew_ns = np.zeros((ranks, len(TERMS))), 0.0
    piece_ns: list[Floats] = []
    lengths_ns: list[Ints] = []
    edges_ns: list[tuple[int, int]] = []
    for pieces in _pieces(trace.blocks, ranks * parts.calls):
        sums_ns, of_pieces_ns, ends_ns = zip(*map(parts.read, read_pieces(trace, parts.kinds, pieces)), strict=True)
        rank_ns += np.sum(sums_ns, axis=0)
        piece_ns += [
            its.sum(axis=0) / (ranks * len(lengths))
            for its, lengths in zip(sums_ns, of_pieces_ns, strict=True)
            if len(lengths)
        ]
        lengths_ns += of_pieces_ns
        edges_ns.append((int(ends_ns[0][0].max()), int(ends_ns[-1][1].max())))
        skew_ns += _skew(ends_ns[-1][1]) - _skew(ends_ns[0][0])
    rank_ns /= steps - parts.unsplit.steps
    step_ns = float(rank_ns.sum(axis=1).mean())
    if parts.unsplit.steps:
        merged = replace(merged or Merged(), unsplit=parts.unsplit.result(ranks, steps, step_ns))
        skew_ns += parts.unsplit.whole_ns / ranks - steps * step_ns
    arrivals, merged = parts.arrivals(merged)
    return StepBreakdown(
        run_id=trace.run_id, borders=borders, merged=merged, rank_ns=rank_ns, piece_ns=np.array(piece_ns),
        step_ns=step_ns, median_step_ns=float(np.median(np.concatenate(lengths_ns))), skew_ns=skew_ns / steps,
        pauses_ns=tuple(after[0] - before[1] for before, after in pairwise(edges_ns)),
        hosts=tuple(report.hostname or "" for report in trace.reports),
        nodes=parts.nodes, gradient_bytes=_gradient_bytes(trace), arrivals=arrivals,
        paused=run_pauses(trace, edges_ns, arrivals.bound if arrivals else 0.0) if trace.run.is_script else None,
        problems=parts.checks.errors(ranks * steps),
        unmatched=(*unmatched_collectives(trace), *(parts.graph.reader.unmatched() if parts.graph else ())),
        unseen_ways=unseen_ways(trace), asleep_ms=asleep_ms(trace),
        by_dimension=parts.graph.by_dimension(steps - parts.unsplit.steps) if parts.graph else {},
        at_begin=parts.begins.compares and arrivals is not None,
    )  # fmt: skip


class _PartReader:
    """Splits parts of a run, of so many `steps` in all, into terms, and collects who arrives late in them."""

    def __init__(self, trace: Trace, borders: frozenset[str], merged: Merged | None, steps: int) -> None:
        self.trace, self.borders, self.steps = trace, borders, steps
        self.nodes = tuple(report.node_rank or 0 for report in trace.reports)
        device_ns = [report.stamp_bound_ns or 0.0 for report in trace.reports]
        # Of ranks that meet in groups, or differ in whom they meet, where it is known when gradients are reduced.
        in_groups = trace.calls is not None and {COMPUTE.ends_at, WAIT.ends_at, COMMUNICATION.ends_at} <= borders
        self.graph = graph = _Groups(trace, borders) if in_groups else None
        comparable = {COMPUTE.ends_at, WAIT.ends_at} <= borders and len(trace.stamps) > 1
        meets = comparable and {*BORDERS} <= borders and graph is None
        self.kinds = meeting_kinds(trace) if meets else NO_MEETINGS
        self.collector = ArrivalCollector(
            self.nodes, trace.clock_domains, device_ns, borders, self.kinds, steps,
            graph.reader.calls.roles.tolist() if graph else (),
        ) if comparable else None  # fmt: skip
        self.begins = _Begins(
            trace, self.nodes, device_ns, borders - {COMMUNICATION.ends_at}, steps,
            compares=not comparable and _meets_in_steps(trace, merged),
        )  # fmt: skip
        self.checks = _StampChecks(borders)
        self.unsplit = _Unsplit(borders, self.kinds, int(HALF * steps))

    @property
    def calls(self) -> int:
        """How many stamps a step of a rank counts as."""
        return 1 + (self.graph.calls // GRAPH_CALLS if self.graph else len(self.kinds))

    def read(self, piece: StepPiece) -> tuple[Ints, Ints, Ints]:
        """Of the steps of a piece that can be split: the sums of the five terms [rank, 5], and the length of each by
        its latest end [step]. Of all of them: the ends of the ranks before the first and in the last [2, rank]."""
        self.checks.check(piece)
        sums_ns = np.zeros((len(piece.stamps_ns), len(TERMS)), np.int64)
        lengths_ns = [np.empty(0, np.int64)]
        for part in self.unsplit.parts_of(piece):
            sums_ns += self._terms(part).sum(axis=1)
            lengths_ns.append(np.diff(part.stamps_ns[..., END].max(axis=0)))
        ends_ns = piece.stamps_ns[..., END]
        return sums_ns, np.concatenate(lengths_ns), np.array([ends_ns[:, 0], ends_ns[:, -1]])

    def _terms(self, part: StepPiece) -> Ints:
        """The five terms of each step, int64 [rank, step, 5] ns."""
        later_ns, awaited_ns, first = later_fetches_ns(self.trace, part.first, part.stop), None, 0
        self.begins.read(part)
        if self.collector:
            bounds_ns = self.trace.bounds_of(np.ascontiguousarray(part.local_ns[:, 1:, GRADS_READY].T).T)
        if self.graph:
            terms_ns, skews = self.graph.read(part, self.checks)
        else:
            if self.collector:
                self.checks.count_early(part, self.kinds.roots, bounds_ns)
                if part.meetings_ns is not None:
                    awaited_ns = awaited_calls(part.meetings_ns, self.kinds, 2 * float(bounds_ns.max()))
                # What a rank does to be ready begins where it left the reduction of the step before.
                first = int(lacks_the_step_before(part, self.borders, self.kinds))
                if first < part.stop - part.first:
                    its_ns = None if awaited_ns is None else awaited_ns[:, first:]
                    skews, bounds_ns = self.collector.skews(part.stamps_ns[:, first:], bounds_ns[:, first:], its_ns)
            terms_ns = step_terms(part.stamps_ns, self.borders, awaited_ns)
        if self.collector and first < terms_ns.shape[1]:
            own_ns = terms_ns[:, first:][..., _OWN].sum(axis=2)
            length = float(terms_ns.sum(axis=2).mean())
            self.collector.add(
                part.first + first, bounds_ns, with_later_data(skews, later_ns[:, first:]), own_ns, length
            )
        move_to_data(terms_ns, later_ns, self.borders)
        return terms_ns

    def arrivals(self, merged: Merged | None) -> tuple[Arrivals | None, Merged | None]:
        """Those by which ranks are compared, None where they are not; and why terms are one, or ranks not compared."""
        return self.begins.arrivals(self.steps, merged, self.collector)


class _Unsplit:
    """The steps that are in no term, since they lack stamps of these borders; at most so many."""

    def __init__(self, borders: frozenset[str], kinds: MeetingKinds, max_steps: int) -> None:
        self._borders, self._kinds, self._max_steps, self._lacks = borders, kinds, max_steps, set[str]()
        self.steps = self.whole_ns = 0
        """How many they are; what all steps take, all ranks together."""

    def parts_of(self, piece: StepPiece) -> Iterator[StepPiece]:
        """What of a piece can be split into terms. Raises _ManyUnsplit."""
        lacking = lacking_steps(piece, self._borders, self._kinds)
        self._lacks |= lacking.keys()
        self.steps += int(np.logical_or.reduce([*lacking.values()]).sum()) if lacking else 0
        if self.steps > self._max_steps:
            raise _ManyUnsplit
        self.whole_ns += int((piece.stamps_ns[:, -1, END] - piece.stamps_ns[:, 0, END]).sum())
        return complete_parts(piece, lacking)

    def result(self, ranks: int, steps: int, step_ns: float) -> UnsplitSteps:
        """They are some of so many steps, of which the others take `step_ns`."""
        mean_ns = (self.whole_ns / ranks - step_ns * (steps - self.steps)) / self.steps
        names = tuple(name for name in (*BORDERS, MEETINGS) if name in self._lacks)
        return UnsplitSteps(
            borders=names, steps=self.steps, of_steps=steps, mean=mean_ns / 1e6, others=step_ns / 1e6
        )  # fmt: skip


def _meets_in_steps(trace: Trace, merged: Merged | None) -> bool:
    """Whether all ranks meet in each step, of which `merged` says why they cannot be compared where they reduce: then
    they are where a step begins. Of a script its ranks state it, some steps of some rank show where it reduces, or
    collectives are seen that are not clear."""
    if len(trace.stamps) == 1 or trace.calls is not None or merged is None or merged.not_reduced:
        return False
    missing = {border: count < total for border, count, total in merged.missing}
    unclear = merged.early_collectives or MEETINGS in missing or missing.get(COMPUTE.ends_at)
    stated = all(report.backend_fact("compared_at_begin") is True for report in trace.reports)
    return bool(unclear) or stated or not trace.run.is_script


class _Begins:
    """When ranks begin the computation of their steps, where they are compared by that: they meet unseen inside."""

    def __init__(
        self, trace: Trace, nodes: Sequence[int], device_ns: Sequence[float], borders: frozenset[str], steps: int, *,
        compares: bool,
    ) -> None:  # fmt: skip
        self._trace, self._borders, self._ends_early, self.compares = trace, borders, 0, compares
        self._collector = ArrivalCollector(nodes, trace.clock_domains, device_ns, borders, NO_MEETINGS, steps)

    def read(self, piece: StepPiece) -> None:
        if not self.compares:
            return
        local_ns, knows_batch = piece.local_ns, DATA.ends_at in self._borders
        begins_ns = local_ns[:, 1:, DATA.stamp] if knows_batch else local_ns[:, :-1, END]
        bounds_ns = self._trace.bounds_of(np.ascontiguousarray(begins_ns.T).T)
        skews = at_the_begin(piece.stamps_ns, self._borders)
        ends_ns = piece.stamps_ns[:, 1:, END].min(axis=0) + 2 * bounds_ns.max(axis=0)
        self._ends_early += int((skews.late.max(axis=0) > ends_ns).sum())
        own_ns = skews.late - piece.stamps_ns[:, :-1, END]
        length = float((piece.stamps_ns[:, -1, END] - piece.stamps_ns[:, 0, END]).mean()) / own_ns.shape[1]
        self._collector.add(piece.first, bounds_ns, skews, own_ns, length)

    def arrivals(
        self, steps: int, merged: Merged | None, collector: ArrivalCollector | None
    ) -> tuple[Arrivals | None, Merged | None]:
        """Those by which ranks are compared: of the collector where these are not; None where ranks do not meet in each
        of so many steps, and why."""
        if not self.compares:
            return collector.arrivals() if collector else None, merged
        if self._ends_early > WORTH_NAMING * steps:
            return None, replace(merged or Merged(), ends_early=self._ends_early)
        return self._collector.arrivals(), merged


def _skew(ends_ns: Ints) -> float:
    """The mean time by which ranks end before the last rank."""
    return float((ends_ns.max() - ends_ns).mean())


class _Groups:
    """The terms of a run whose ranks meet in groups, as its graph has them; adds up those of each dimension."""

    def __init__(self, trace: Trace, borders: frozenset[str]) -> None:
        self.reader, self._unknown = GraphReader(trace), [kind for kind in WORK[:-2] if kind.ends_at not in borders]
        self.calls = self.reader.calls.calls.shape[1]
        self._rank_ns = np.zeros((len(trace.stamps), len(self.reader.calls.dimensions), 2))
        self._piece_ns: list[Floats] = []

    def read(self, piece: StepPiece, checks: _StampChecks) -> tuple[Ints, StepSkews]:
        """The five terms of each step, int64 [rank, step, 5] ns, and how late ranks are by their own work."""
        stamps_ns = piece.stamps_ns
        for kind in self._unknown:  # no data, as a term: the step begins with compute
            before = TERM_KINDS[: TERM_KINDS.index(kind)]
            stamps_ns[:, 1:, kind.stamp] = stamps_ns[:, 1:, before[-1].stamp] if before else stamps_ns[:, :-1, END]
        terms_ns = np.empty((len(stamps_ns), stamps_ns.shape[1] - 1, len(TERMS)), np.int64)
        sums_ns = np.zeros_like(self._rank_ns)
        of_graphs = [*self.reader.read(piece.first, stamps_ns)]
        for steps in of_graphs:
            its = graph_terms(steps)
            at = slice(steps.first - piece.first, steps.first - piece.first + its.work.shape[1])
            terms_ns[:, at, _OWN] = its.work
            terms_ns[:, at, _WAIT] = its.wait.sum(axis=2)
            terms_ns[:, at, _COMMUNICATION] = its.communication.sum(axis=2)
            sums_ns += np.stack([its.wait.sum(axis=1), its.communication.sum(axis=1)], axis=2)
            checks.add_early(steps.early_ns)
        self._rank_ns += sums_ns
        self._piece_ns.append(sums_ns.mean(axis=0) / terms_ns.shape[1])
        return terms_ns, self._own_work([roots(compared(self.reader.peers(steps), steps)) for steps in of_graphs])

    @staticmethod
    def _own_work(of_graphs: Sequence[Roots]) -> StepSkews:
        """Delays by own work beyond that of peers: nobody is late by leaving a meeting later. A rank's optimizer step
        counts in the step that it ends."""
        late = np.concatenate([its.late for its in of_graphs], axis=-1)
        by_phase = dict(
            zip((kind.cause for kind in WORK), np.concatenate([its.parts for its in of_graphs], axis=-1), strict=True)
        )

        def parts(of: Ints | slice, at: Ints | slice) -> Sequence[Ints]:
            return [by_phase.get(cause, np.zeros_like(late))[of, at] for cause in CAUSES]

        return StepSkews(late=late, parts=parts, several=True)

    def by_dimension(self, steps: int) -> dict[str, DimensionTimes]:
        """The means over so many steps."""
        piece_ns = np.stack(self._piece_ns)
        return {
            name: DimensionTimes(rank_ns=self._rank_ns[:, at] / steps, piece_ns=piece_ns[:, at])
            for at, name in enumerate(self.reader.calls.dimensions)
        }


class _StampChecks:
    """Counts time stamps that cannot be right."""

    def __init__(self, borders: frozenset[str]) -> None:
        self.borders = borders
        self.disordered = self.gaps = self.early = 0
        self.worst_ns = 0.0

    def errors(self, total: int) -> StampErrors:
        return StampErrors(
            total=total, disordered=self.disordered, gaps=self.gaps, early=self.early, early_ms=self.worst_ns / 1e6
        )

    def check(self, piece: StepPiece) -> None:
        """Counts stamps of a rank before an earlier one, and steps that do not begin at an end.

        Raises TraceError where a step has no end.
        """
        local_ns = piece.local_ns
        begin = local_ns[:, 1:, BEGIN]
        gaps = begin != local_ns[:, :-1, END]
        in_order = local_ns.reshape(len(local_ns), -1)
        if (in_order[:, 0] != ABSENT).all() and (in_order[:, 1:] >= in_order[:, :-1]).all():  # so none is absent
            self.gaps += int(np.count_nonzero(gaps))
            return
        if (local_ns[:, :, END] == ABSENT).any():
            raise TraceError(f"ranks lack the end of a step among {piece.first - 1} to {piece.stop - 1}")
        self.gaps += int(np.count_nonzero(gaps & (begin != ABSENT)))
        latest = begin
        for stamp in range(BEGIN + 1, len(STAMPS)):
            here = local_ns[:, 1:, stamp]
            self.disordered += int(((here < latest) & (here != ABSENT)).sum())
            latest = np.maximum(latest, here)

    def count_early(self, piece: StepPiece, roots: Sequence[int], bounds_ns: Floats) -> None:
        """Counts where a rank has the reduced gradients, or a meeting's result, before the last one has called, beyond
        the clocks' bounds [rank, step]."""
        grads_ns, reduced_ns = (piece.stamps_ns[:, 1:, stamp] for stamp in (GRADS_READY, REDUCED))
        if COMMUNICATION.ends_at in self.borders and (reduced_ns - grads_ns.max(axis=0)).min() < 0:
            last = grads_ns.argmax(axis=0)
            self.add_early(grads_ns.max(axis=0) - reduced_ns - bounds_ns - bounds_ns[last, np.arange(len(last))])
        if (meetings_ns := piece.meetings_ns) is None:
            return
        for at, root in enumerate(roots):
            arrives, ends = meetings_ns[:, 1:, at, ARRIVES], meetings_ns[:, 1:, at, ENDS]
            needed = arrives.max(axis=0) if root == NO_ROOT else arrives[root]
            self.add_early(needed - ends - (bounds_ns + bounds_ns.max(axis=0)))

    def add_early(self, beyond_ns: Floats | Ints) -> None:
        """Adds by how much ranks have a result before the last one has called, beyond the clocks' bounds; not where
        that is negative."""
        self.early += int((beyond_ns > 0).sum())
        self.worst_ns = max(self.worst_ns, float(beyond_ns.max(initial=0)))


def _pieces(blocks: Ints, ranks: int) -> Iterator[list[tuple[int, int]]]:
    """The pieces of each block, (first step, stop): at least PIECES in all where there are the steps."""
    steps = int((blocks[:, 1] - blocks[:, 0]).sum())
    length = max(1, min(steps // PIECES, READ_AT_ONCE // ranks))
    for first, stop in blocks.tolist():
        count = -(-(stop - first) // length)
        cuts = np.linspace(first, stop, count + 1).round().astype(int).tolist()
        yield list(pairwise(cuts))


def known_borders(trace: Trace, missing: Missing) -> tuple[frozenset[str], Merged | None]:
    """The borders that are recorded in all steps and mean something, and the reasons for those that are not."""
    unknown = {*missing} | ({GRADIENTS_OF_ALL} if COMPUTE.ends_at in missing else set())
    not_reduced = trace.run.reduction == "off" and trace.calls is None
    early = () if not_reduced or len(trace.stamps) == 1 else _unrecorded(trace)
    unclear = early or MEETINGS in missing
    unknown |= {GRADIENTS_OF_ALL} if not_reduced else {COMPUTE.ends_at, GRADIENTS_OF_ALL} if unclear else set()
    merged = Merged(
        missing=tuple((border, *counts) for border, counts in missing.items()),
        not_reduced=not_reduced,
        early_collectives=early,
    )
    return frozenset(BORDERS) - unknown, merged if merged != Merged() else None


def _unrecorded(trace: Trace) -> tuple[str, ...]:
    """The collectives before gradients are complete whose effect on each rank is not known."""
    unclear = [name for name, root in zip(trace.meeting_names, trace.meeting_roots, strict=True) if root == UNCLEAR]
    complete = trace.meetings is not None and all(
        report.backend_fact("unrecorded_collectives") == [] for report in trace.reports
    )
    return tuple(dict.fromkeys(unclear)) if complete else _backend_words(trace, "meets_before_gradients")


def _missing(trace: Trace) -> Missing:
    """The borders, and MEETINGS, that are lost in all steps, since too many lack them, the most lacking first: so many
    that no more than HALF of the steps lack any other."""
    kinds, total, counts, lacking = meeting_kinds(trace), 0, dict[str, int](), list[dict[str, Bools]]()
    for pieces in _pieces(trace.blocks, len(trace.stamps)):
        for first, stop in pieces:
            local_ns = trace.stamps[:, first:stop]
            absent = {each: local_ns[:, :, STAMPS.index(each)] == ABSENT for each in BORDERS if each in STAMPS}
            if len(kinds):
                absent[MEETINGS] = lacks_meetings(local_meetings(trace, kinds, first, stop), kinds)
            total += local_ns.shape[0] * (stop - first)
            counts = {name: counts.get(name, 0) + int(its.sum()) for name, its in absent.items()}
            lacking.append({name: its.any(axis=0) for name, its in absent.items()})
    steps = {name: np.concatenate([of_piece[name] for of_piece in lacking]) for name, count in counts.items() if count}
    missing: dict[str, tuple[int, int]] = {}
    while steps and np.logical_or.reduce([*steps.values()]).mean() > HALF:
        border = max(steps, key=lambda name: int(steps[name].sum()))
        missing[border] = counts[border], total
        del steps[border]
    return {name: missing[name] for name in counts if name in missing}


def _backend_words(trace: Trace, name: str) -> tuple[str, ...]:
    """The different values that the backend gives by that name, on all ranks together."""
    values: dict[str, None] = {}
    for report in trace.reports:
        value = report.backend_fact(name) or ()
        listed = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
        values |= dict.fromkeys(map(str, listed))
    return tuple(values)


def _gradient_bytes(trace: Trace) -> int | None:
    """Bytes reduced per step; None where ranks differ."""
    volumes = _backend_words(trace, "gradient_bytes")
    return int(volumes[0]) if len(volumes) == 1 and volumes[0].isdigit() else None
