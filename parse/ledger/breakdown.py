"""One run's account: its trace reduced, piece by piece, to the means of its terms. In whole nanoseconds until then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hpc.model.timestamps import ABSENT, BEGIN, END, GRADS_READY, STAMPS
from hpc.model.trace import Trace, TraceError
from parse.ledger.arrivals import Arrivals, Floats, Gathering, Ints
from parse.ledger.types import TERMS

BORDERS = ("batch_ready", "grads_ready", "last_grads_ready", "reduced")
"""What lies between two terms: t1, t3, M (the last rank's t3), t4."""
PIECES = 10
"""A window is looked at in at least as many pieces: steps of a run are correlated, so what is tested and averaged are
the pieces."""
PIECE_STAMPS = 250_000
"""Ranks × steps of a piece, at most: what bounds the memory."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StepBreakdown:
    """One run. `borders` are those of BORDERS that are known and mean something, `merged` says what of the others.

    `rank_ns` [rank, 5] and `piece_ns` [piece, 5] are mean terms, over steps and over ranks and steps; where a border is
    not known, the time up to the next one that is stands in the later term and 0 in the one before it. `step_ns` is the
    mean step of the ledger, `median_step_ns` the median step from latest end to latest end, `skew_ns` what the
    throughput's mean step has more than `step_ns`. `arrivals` is None where ranks' t3 cannot be compared.
    """

    run_id: str
    borders: frozenset[str]
    merged: str
    rank_ns: Floats
    piece_ns: Floats
    step_ns: float
    median_step_ns: float
    skew_ns: float
    pauses_ns: tuple[int, ...]
    hosts: tuple[str, ...]
    nodes: tuple[int, ...]
    gradient_bytes: int | None
    arrivals: Arrivals | None
    problems: tuple[str, ...]

    @property
    def mean_ns(self) -> Floats:
        """The five terms over all ranks and steps."""
        mean: Floats = self.rank_ns.mean(axis=0)
        return mean


def names(borders: frozenset[str]) -> tuple[str, ...]:
    """The terms between these borders: `data`, `compute`, …; several in one are joined, wait and transfer as one."""
    return tuple(_joined([TERMS[term] for term in group]) for group in _groups(borders))


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


def _joined(terms: list[str]) -> str:
    both = "wait" in terms and "transfer" in terms
    return "+".join(
        "communication" if both and name == "wait" else name for name in terms if not both or name != "transfer"
    )


def step_terms(stamps_ns: Ints, borders: frozenset[str]) -> Ints:
    """The five terms of each step, int64 [rank, step, 5] ns, from stamps on the global clock [rank, 1 + step, 6].

    The first of the steps is only there for its end, where the second begins. Between them the five add up to the
    step, to the nanosecond: t1 − t0, t3 − t1, M − t3, t4 − M, t5 − t4 with M the latest t3 of all ranks. At a border
    that is not among `borders` the term before it is 0.
    """
    edges = np.empty((*stamps_ns[:, 1:, 0].shape, len(TERMS) + 1), np.int64)
    edges[..., 0], edges[..., -1] = stamps_ns[:, :-1, END], stamps_ns[:, 1:, END]
    for at, border in enumerate(BORDERS, 1):
        if border not in borders:
            edges[..., at] = edges[..., at - 1]
        elif border == "last_grads_ready":
            edges[..., at] = stamps_ns[:, 1:, GRADS_READY].max(axis=0)
        else:
            edges[..., at] = stamps_ns[:, 1:, STAMPS.index(border)]
    return np.diff(edges, axis=-1)


def step_breakdown(trace: Trace) -> StepBreakdown:
    """The run's account. Raises TraceError where its window is not whole or its clocks cannot be compared.

    Reads the stamps in pieces of steps: with `hpc.model.trace_file.open_trace` memory is bounded whatever their number.
    """
    try:
        return _Reduction(trace, {}).step_breakdown()
    except _Absent:  # hardly ever: a trace is read once where it is whole
        return _Reduction(trace, _missing(trace)).step_breakdown()


class _Absent(Exception):
    """A stamp between two terms is missing that was thought to be there."""


class _Reduction:
    def __init__(self, trace: Trace, missing: Mapping[str, str]) -> None:
        self.trace = trace
        self.ranks = len(trace.stamps)
        self.steps = sum(int(stop - first) for first, stop in trace.blocks)
        if not self.steps:
            raise TraceError("it has no measured block")
        self.hosts = tuple(report.hostname or "" for report in trace.reports)
        self.nodes = tuple(report.node_rank or 0 for report in trace.reports)
        self.borders, self.merged = _borders(trace, missing)
        self.problems: list[str] = []
        self.backwards = self.early = self.gaps = 0
        self.worst_ns = 0.0

    def step_breakdown(self) -> StepBreakdown:
        """See the function of that name."""
        rank_ns = np.zeros((self.ranks, len(TERMS)))
        piece_ns: list[Floats] = []
        latest: list[Ints] = []
        edges_ns: list[tuple[int, int]] = []
        skew_ns = 0.0
        compares = {"grads_ready", "last_grads_ready"} <= self.borders and self.ranks > 1
        device_ns = [report.stamp_bound_ns or 0.0 for report in self.trace.reports]
        gathering = Gathering(self.nodes, self.trace.clock_domains, device_ns, self.borders) if compares else None
        for pieces in _pieces(self.trace.blocks, self.ranks):
            block: list[Ints] = []
            for first, stop in pieces:
                local_ns = np.ascontiguousarray(self.trace.stamps[:, first - 1 : stop])
                self._check_presence(local_ns, (first, stop))
                stamps_ns = self.trace.globally(local_ns)
                terms_ns = step_terms(stamps_ns, self.borders)
                rank_ns += terms_ns.sum(axis=1)
                piece_ns.append(terms_ns.mean(axis=(0, 1)))
                self._check_order(local_ns)
                block.append(stamps_ns[:, 1:, END].max(axis=0))
                if first == pieces[0][0]:
                    begin_ns = stamps_ns[:, 0, END]
                if gathering:
                    bounds_ns = self.trace.bounds_of(local_ns[:, 1:, GRADS_READY])
                    gathering.add(first, stamps_ns, bounds_ns)
                    self._check_transfer(terms_ns, stamps_ns, bounds_ns)
            end_ns = stamps_ns[:, -1, END]
            latest.append(np.diff(np.concatenate([[begin_ns.max()], *block])))
            edges_ns.append((int(begin_ns.max()), int(end_ns.max())))
            skew_ns += _skew(end_ns) - _skew(begin_ns)
        rank_ns /= self.steps
        if self.trace.run.reduction == "on" and self.ranks > 1 and not gathering:
            self.merged = self.merged or "the ranks' stamps cannot be compared"
        return StepBreakdown(
            run_id=self.trace.run_id,
            borders=self.borders,
            merged=self.merged,
            rank_ns=rank_ns,
            piece_ns=np.array(piece_ns),
            step_ns=float(rank_ns.sum(axis=1).mean()),
            median_step_ns=float(np.median(np.concatenate(latest))),
            skew_ns=skew_ns / self.steps,
            pauses_ns=tuple(after[0] - before[1] for before, after in pairwise(edges_ns)),
            hosts=self.hosts,
            nodes=self.nodes,
            gradient_bytes=_gradient_bytes(self.trace),
            arrivals=gathering.arrivals() if gathering else None,
            problems=self._problems(),
        )

    def _check_presence(self, local_ns: Ints, steps: tuple[int, int]) -> None:
        """Raises TraceError where a step has no end, _Absent where a border is missing that is counted on."""
        if local_ns.min() != ABSENT:
            return
        if (local_ns[:, :, END] == ABSENT).any():
            raise TraceError(f"ranks lack the end of a step among {steps[0] - 1} to {steps[1] - 1}")
        for border in self.borders - {"last_grads_ready"}:
            # What a rank does to be ready begins where it left the reduction of the step before.
            if (local_ns[:, border != "reduced" :, STAMPS.index(border)] == ABSENT).any():
                raise _Absent

    def _check_order(self, local_ns: Ints) -> None:
        """Counts stamps of a rank that lie before one that comes before them, and steps that do not begin at an end."""
        steps_ns = local_ns[:, 1:]
        if steps_ns.min() != ABSENT and (np.diff(steps_ns, axis=2) >= 0).all():
            self.gaps += int((steps_ns[:, :, BEGIN] != local_ns[:, :-1, END]).sum())
            return
        latest = local_ns[:, 1:, BEGIN]
        self.gaps += int(((latest != local_ns[:, :-1, END]) & (latest != ABSENT)).sum())
        for stamp in range(BEGIN + 1, len(STAMPS)):
            here = local_ns[:, 1:, stamp]
            self.backwards += int(((here < latest) & (here != ABSENT)).sum())
            latest = np.maximum(latest, here)

    def _check_transfer(self, terms_ns: Ints, stamps_ns: Ints, bounds_ns: Floats) -> None:
        """Counts where reduced gradients are there before the last rank had its own, beyond the clocks' bounds."""
        if "reduced" not in self.borders:
            return
        transfer_ns = terms_ns[:, :, TERMS.index("transfer")]
        if transfer_ns.min() >= 0:
            return
        last = stamps_ns[:, 1:, GRADS_READY].argmax(axis=0)
        beyond_ns = -transfer_ns - bounds_ns - bounds_ns[last, np.arange(len(last))]
        self.early += int((beyond_ns > 0).sum())
        self.worst_ns = max(self.worst_ns, float(beyond_ns.max()))

    def _problems(self) -> tuple[str, ...]:
        of = f"of {self.ranks * self.steps} (ranks × steps)"
        problems = []
        if self.backwards:
            problems.append(f"{self.backwards} stamps {of} lie before one that must come before them")
        if self.gaps:
            problems.append(f"{self.gaps} steps {of} do not begin where the one before them ended")
        if self.early:
            problems.append(
                f"in {self.early} {of} the reduced gradients are there before the last rank has its own, by up to "
                f"{self.worst_ns / 1e6:.3f} ms more than the clocks' bounds: the stamps or the clocks are wrong"
            )
        return tuple(problems)


def _pieces(blocks: Ints, ranks: int) -> Iterator[list[tuple[int, int]]]:
    """Of each block its pieces, (first step, one past the last): at least PIECES in all where there are the steps."""
    steps = int((blocks[:, 1] - blocks[:, 0]).sum())
    length = max(1, min(steps // PIECES, PIECE_STAMPS // ranks))
    for first, stop in blocks.tolist():
        count = -(-(stop - first) // length)
        cuts = np.linspace(first, stop, count + 1).round().astype(int).tolist()
        yield list(pairwise(cuts))


def _borders(trace: Trace, missing: Mapping[str, str]) -> tuple[frozenset[str], str]:
    """The borders that are there in all steps and mean something, and what is wrong with the others."""
    known = set(BORDERS)
    notes = []
    for border, where in missing.items():
        known -= {border, "last_grads_ready"} if border == "grads_ready" else {border}
        notes.append(f"{border} was not recorded in {where}")
    if trace.run.reduction == "off":
        known -= {"last_grads_ready"}
        notes.append("gradients are not reduced")
    elif reasons := _facts(trace, "meets_before_gradients"):
        known -= {"grads_ready", "last_grads_ready"}
        notes.append(f"ranks meet before their gradients are complete: {', '.join(reasons)}")
    return frozenset(known), "; ".join(notes)


def _missing(trace: Trace) -> dict[str, str]:
    """The stamps between two terms that are absent somewhere in the window, and where."""
    missing = dict.fromkeys(("batch_ready", "grads_ready", "reduced"), 0)
    places = 0
    for pieces in _pieces(trace.blocks, len(trace.stamps)):
        for first, stop in pieces:
            absent = trace.stamps[:, first - 1 : stop] == ABSENT
            places += absent.shape[0] * (stop - first)
            for border in missing:
                before = border == "reduced" and first == pieces[0][0]
                of = absent[:, not before :, STAMPS.index(border)]
                missing[border] += int(of.sum())
    return {
        border: "any step" if count >= places else f"{count} of {places} (ranks × steps)"
        for border, count in missing.items()
        if count
    }


def _facts(trace: Trace, name: str) -> tuple[str, ...]:
    """What the backend says by that name on any rank, a list of words."""
    values: dict[str, None] = {}
    for report in trace.reports:
        value = report.backend_fact(name) or ()
        values |= dict.fromkeys(
            map(str, value if isinstance(value, Sequence) and not isinstance(value, str) else (value,))
        )
    return tuple(values)


def _gradient_bytes(trace: Trace) -> int | None:
    """How much is reduced in a step, where all ranks say the same."""
    volumes = _facts(trace, "gradient_bytes")
    return int(volumes[0]) if len(volumes) == 1 and volumes[0].isdigit() else None


def _skew(ends_ns: Ints) -> float:
    """How long before the last one the ranks end, on average."""
    return float((ends_ns.max() - ends_ns).mean())
