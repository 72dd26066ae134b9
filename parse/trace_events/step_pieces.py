"""The steps of a trace in pieces, on the axis of a file: stamps, bounds, collectives, and who comes last to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hpc.model.groups import MESSAGE, NAME
from hpc.model.timestamps import (
    ABSENT,
    BEGIN,
    END,
    FORWARD_END,
    GRADS_READY,
    MEETING_STAMPS,
    STAMPS,
)
from hpc.model.trace import Bools, Floats, Ints, Trace, TraceError
from parse.graph.step_graph import ARRIVES, ENDS, NONE, UNCLEAR, WAITS, StepCalls, step_calls
from parse.graph.terms import latest_awaited, read_calls
from parse.ledger.breakdown import known_borders
from parse.ledger.meetings import NO_MEETINGS, awaited_calls, lacks_meetings, local_meetings, meeting_kinds
from parse.term_kinds import BORDERS, COMMUNICATION, COMPUTE, TERM_KINDS, WAIT, TermKind, joined
from parse.trace_events.event_file import EventFile, Track, short

# Who comes last to a collective, and who waits for that rank: only what the clocks' bounds prove.


@dataclass(frozen=True, eq=False)
class OrderBounds:
    """What leaves the order of two moments open, ns: nothing between ranks of one of the `domains` [rank] but their
    devices' time stamps, `device_ns` [rank]; else the clocks' bounds of both."""

    domains: npt.NDArray[np.intp]
    device_ns: Floats

    def against(self, last: npt.NDArray[np.intp], bounds_ns: Floats) -> Floats:
        """Of each rank's moment and that of rank `last` [step], [rank, step]; `bounds_ns` [rank, step]."""
        steps = np.arange(len(last))
        same = self.domains[:, None] == self.domains[last]
        return np.where(same, self.device_ns[:, None] + self.device_ns[last], bounds_ns + bounds_ns[last, steps])


@dataclass(frozen=True, eq=False)
class LastRanks:
    """The last rank of each step, [step]: its number, when it arrives, whether it is provably the last of all, by how
    much it comes after the next rank to wait (`gap_ns`).

    `waits` [rank, step]: who provably waits for it; `open_ns` [rank, step]: what the clocks leave open between both.
    """

    rank: npt.NDArray[np.intp]
    moment_ns: Ints
    provable: Bools
    gap_ns: Ints
    waits: Bools
    open_ns: Floats


def last_arrivals(arrives_ns: Ints, waits_ns: Ints, bounds_ns: Floats, order: OrderBounds) -> LastRanks:
    """From when each rank arrives, and begins to wait, [rank, step] on the global clock; ABSENT: no rank waits for it.

    A rank is provably before another where the time between both exceeds the sum of their bounds.
    """
    steps = np.arange(arrives_ns.shape[1])
    last = arrives_ns.argmax(axis=0)
    moment_ns = arrives_ns[last, steps]
    is_last = np.arange(len(arrives_ns))[:, None] == last
    open_ns = order.against(last, bounds_ns)
    counts = arrives_ns != ABSENT
    earlier = ~counts | (moment_ns - np.where(counts, arrives_ns, moment_ns) > open_ns)
    waits: Bools = (moment_ns - waits_ns > open_ns) & ~is_last
    next_ns = np.where(is_last, np.iinfo(np.int64).min, waits_ns).max(axis=0)
    gap_ns = np.maximum(0, moment_ns - np.maximum(next_ns, moment_ns - np.iinfo(np.int64).max // 2))
    return LastRanks(
        rank=last, moment_ns=moment_ns, provable=(earlier | is_last).all(axis=0) & waits.any(axis=0), gap_ns=gap_ns,
        waits=waits, open_ns=open_ns,
    )  # fmt: skip


PIECE_STAMPS = 1_000_000
"""Time stamps that are read at a time: what bounds the memory."""


def window_of(trace: Trace, requested: tuple[int, int] | None) -> range:
    """The steps to draw, of those that any rank completed; `requested` are the first and the last one.

    Raises TraceError where there are none.
    """
    completed = int(trace.steps_completed.max(initial=0))
    if completed == 0:
        reason = " ".join(trace.evidence.split())
        raise TraceError(f"no rank completed a step (outcome {trace.outcome}{f': {reason:.200}' if reason else ''})")
    completed = min(completed, trace.stamps.shape[1])
    first, last = requested or (0, completed - 1)
    if first >= completed:
        raise TraceError(f"steps {first} to {last} were requested; it has steps 0 to {completed - 1}")
    return range(first, min(last + 1, completed))


@dataclass(frozen=True, eq=False)
class PieceCalls:
    """The calls of ranks in groups, on the file's axis: `calls_ns` [step, rank, call, 3] as MEETING_STAMPS, and
    `latest_ns` [step, rank, call], when the last comes for whom the rank waits; ABSENT: for nobody."""

    calls_ns: Ints
    latest_ns: Ints


@dataclass(frozen=True, eq=False)
class Piece:
    """Steps from `first` on: stamps [rank, step, 6] on the file's axis with their bounds, meetings [rank, step,
    meeting, 3]. `met` [step]: whether no rank lacks a meeting of the step. `arrivals`: by the number of a meeting, the
    last to come to it; the reduction's number is after all. `calls` are those of ranks in groups, which have no
    meetings and arrivals of all ranks."""

    first: int
    stamps: Ints
    bounds: Floats
    meetings: Ints
    met: Bools
    arrivals: Mapping[int, LastRanks]
    calls: PieceCalls | None = None


class StepReader:
    """The steps of a window of a trace, piece by piece. Their axis begins at `origin_ns` of the global clock: at the
    first of them; at the first comparison of the clocks, or `earliest_ns`, where they are `whole`, all steps there are.

    `kinds` are the collectives inside steps, `borders` those between phases that mean something, `merged` why others do
    not; `calls` are those of ranks in groups, None without groups. Raises TraceError where the clocks cannot be
    compared.
    """

    def __init__(self, trace: Trace, window: range, earliest_ns: int | None) -> None:
        self.trace, self.window = trace, window
        self.kinds = meeting_kinds(trace) if len(trace.stamps) > 1 else NO_MEETINGS
        self.borders, self.merged = known_borders(trace, {})
        self.calls = step_calls(trace) if trace.calls is not None and len(trace.stamps) > 1 else None
        if self.calls is not None:  # its ranks do not wait for the gradients of all
            self.borders, self.merged = frozenset(BORDERS) - {WAIT.ends_at}, None
        self.whole = window == window_of(trace, None)
        self.origin_ns = self._first_begin_ns()
        if self.whole:
            exits = trace.globally(np.ascontiguousarray(trace.barrier_exits_ns))
            begins = [self.origin_ns, *exits[exits != ABSENT].tolist()]
            self.origin_ns = min([*begins, *(() if earliest_ns is None else (earliest_ns,))])

    def pieces(self) -> Iterator[Piece]:
        """The pieces in order, of so few steps that memory is bounded."""
        for first, stop in self._spans():
            yield self._read(first, stop)

    def _spans(self) -> Iterator[tuple[int, int]]:
        calls = len(self.kinds) if self.calls is None else 2 * self.calls.meeting.shape[1]
        per_step = len(self.trace.stamps) * (len(STAMPS) + len(MEETING_STAMPS) * calls)
        length = max(1, PIECE_STAMPS // max(1, per_step))
        for first in range(self.window.start, self.window.stop, length):
            yield first, min(first + length, self.window.stop)

    def _first_begin_ns(self) -> int:
        for first, stop in self._spans():
            begins = self.trace.globally(np.ascontiguousarray(self.trace.stamps[:, first:stop]))[..., BEGIN]
            if (recorded := begins[begins != ABSENT]).size:
                return int(recorded.min())
        raise TraceError(f"none of the steps {self.window.start} to {self.window.stop - 1} has a beginning")

    def on_axis(self, local_ns: Ints) -> Ints:
        """Moments of the ranks' own clocks on the file's axis, ns; absent stays so."""
        global_ns = self.trace.globally(local_ns)
        return np.where(global_ns == ABSENT, ABSENT, global_ns - self.origin_ns)

    @cached_property
    def _order(self) -> OrderBounds:
        device_ns = np.array([report.stamp_bound_ns or 0.0 for report in self.trace.reports])
        return OrderBounds(np.unique(self.trace.clock_domains, return_inverse=True)[1], device_ns)

    def _read(self, first: int, stop: int) -> Piece:
        local_ns = np.ascontiguousarray(self.trace.stamps[:, first:stop])
        stamps, bounds = self.on_axis(local_ns), self._bounds_of(local_ns)
        if not len(self.kinds):
            arrivals = self._arrivals_at_reduction(stamps, bounds)
            meetings = np.empty((*stamps.shape[:2], 0, 3), np.int64)
            calls = None if self.calls is None else self._calls_of(self.calls, first, stop)
            return Piece(first, stamps, bounds, meetings, np.ones(stamps.shape[1], np.bool_), arrivals, calls)
        local_ns = local_meetings(self.trace, self.kinds, first, stop)
        meetings, meeting_bounds = self.on_axis(local_ns), self._bounds_of(local_ns)
        awaited = awaited_calls(meetings, self.kinds, 2 * float(np.nanmax(bounds, initial=0.0)))
        arrivals = {
            at: last_arrivals(
                awaited[:, :, at, ARRIVES], meetings[:, :, at, WAITS], meeting_bounds[:, :, at, ARRIVES], self._order
            )
            for at, root in enumerate(self.kinds.roots)
            if root != UNCLEAR
        }
        met: Bools = np.logical_not(lacks_meetings(local_ns, self.kinds).any(axis=0))
        return Piece(first, stamps, bounds, meetings, met, arrivals | self._arrivals_at_reduction(stamps, bounds))

    def _calls_of(self, calls: StepCalls, first: int, stop: int) -> PieceCalls:
        """The calls of these steps; nobody waits for anybody in a step of which a rank has no begin or end."""
        stamps_ns = self.trace.globally(np.ascontiguousarray(self.trace.stamps[:, first:stop]))
        calls_ns = read_calls(self.trace, calls, stamps_ns, first, stop)
        latest_ns = np.full(calls_ns.shape[:3], ABSENT)
        present = calls_ns[..., ARRIVES] != ABSENT
        whole = (stamps_ns[:, :, [BEGIN, END]] != ABSENT).all(axis=(0, 2))
        patterns, pattern_of = np.unique(present.reshape(len(present), -1), axis=0, return_inverse=True)
        for number, pattern in enumerate(patterns):
            its = np.flatnonzero(whole & (pattern_of.ravel() == number))
            complete = calls.complete(pattern.reshape(present.shape[1:]))
            latest_ns[its] = latest_awaited(calls, complete, calls_ns[its], self._open_ns)
        on_axis = (np.where(each == ABSENT, ABSENT, each - self.origin_ns) for each in (calls_ns, latest_ns))
        return PieceCalls(*on_axis)

    def open_between(self, piece: Piece, step: int, rank: int, other: int) -> float:
        """What the clocks leave open between moments of two ranks in a step, ns."""
        if self._order.domains[rank] == self._order.domains[other]:
            return float(self._order.device_ns[rank] + self._order.device_ns[other])
        return float(np.nanmax(piece.bounds[rank, step]) + np.nanmax(piece.bounds[other, step]))

    @cached_property
    def _open_ns(self) -> float:
        """What the clocks leave open between two ranks at most, ns."""
        bounds = self.trace.clock_bound_ns
        return 2 * float(np.max(bounds, where=np.isfinite(bounds), initial=0.0))

    def _bounds_of(self, local_ns: Ints) -> Floats:
        return self.trace.bounds_of(local_ns.reshape(len(local_ns), -1)).reshape(local_ns.shape)

    def _arrivals_at_reduction(self, stamps: Ints, bounds: Floats) -> dict[int, LastRanks]:
        if len(stamps) == 1 or WAIT.ends_at not in self.borders:
            return {}
        grads = stamps[..., GRADS_READY]
        return {len(self.kinds): last_arrivals(grads, grads, bounds[..., GRADS_READY], self._order)}


# The phases of a rank's step as slices: those that its time stamps separate, by the names of the ledger.


@dataclass(frozen=True, slots=True)
class StepSlice:
    """A slice of a step, ns on the axis of the stamps, with the slices inside it."""

    name: str
    begin_ns: int
    end_ns: int
    inside: tuple[StepSlice, ...] = ()


def phases_of_step(stamps_ns: Sequence[int], borders: frozenset[str], last_ns: int | None) -> list[StepSlice] | None:
    """The phases between a step's six stamps; None where a stamp is before an earlier one.

    A border that is not among `borders`, or whose stamp is absent, separates nothing: its terms are one, joined by `+`.
    `last_ns` is when the last rank arrives, None where this rank's wait for it is not proven. Empty phases are left
    out. Measured to be reduced before that moment, which only clocks' bounds explain, `wait` ends with the reduction.
    """
    edges: dict[TermKind, int | None] = {
        kind: stamps_ns[kind.stamp] if kind.ends_at in borders and stamps_ns[kind.stamp] != ABSENT else None
        for kind in TERM_KINDS
        if kind.ends_at in STAMPS
    }
    edges[TERM_KINDS[-1]] = stamps_ns[END]
    if edges[COMPUTE] is None or last_ns is None:
        edges[WAIT] = None
    else:
        edges[WAIT] = last_ns if (reduced := edges[COMMUNICATION]) is None else min(last_ns, reduced)
    phases: list[StepSlice] = []
    begin, names = stamps_ns[BEGIN], []
    for kind in TERM_KINDS:
        names.append(kind.name)
        edge = edges[kind]
        if edge is None:
            continue
        if edge < begin:
            return None
        if edge > begin:
            name = joined(names)
            inside = _forward_and_backward(begin, stamps_ns[FORWARD_END], edge) if name == COMPUTE.name else ()
            phases.append(StepSlice(name, begin, edge, inside))
        begin, names = edge, []
    return phases


def _forward_and_backward(begin: int, forward_end: int, end: int) -> tuple[StepSlice, ...]:
    if not begin < forward_end < end:  # absent, too
        return ()
    return StepSlice("forward", begin, forward_end), StepSlice("backward", forward_end, end)


# Ranks in groups: a track for each rank and dimension, messages as arrows.


MESSAGES = "message"


@dataclass(frozen=True, slots=True)
class GroupWait:
    """A rank's wait in a meeting, on the axis: from `begins` to `ends`. `last` is the rank that comes last to it, at
    `latest`, and `is_proven` whether it provably waits for that one; NONE: it is not known for whom it waits."""

    rank: int
    call: int
    begins: int
    ends: int
    last: int
    latest: int
    is_proven: bool

    @property
    def waited_until(self) -> int:
        return min(self.latest, self.ends) if self.is_proven else self.begins


class GroupTracks:
    """The tracks of a run whose ranks call in groups. `left_out` are waits within another one of their track."""

    def __init__(self, file: EventFile, steps: StepReader, rank_tracks: Sequence[Track]) -> None:
        assert steps.calls is not None
        self.file, self.steps, self.calls = file, steps, steps.calls
        self.rank_tracks = rank_tracks
        self.tracks: dict[tuple[int, int], Track] = {}  # by rank and dimension
        self.labels: dict[int, str] = {}
        self.drawn_until: dict[tuple[int, int], int] = {}
        self.left_out = 0

    def add_tracks(self, process: int, rank: int) -> None:
        """A track for each dimension in which the rank calls."""
        its = self.calls.call_dimension[rank]
        for number in np.unique(its[its != NONE]).tolist():
            name = f"rank {rank}: {short(self.calls.dimensions[number])}"
            self.tracks[rank, number] = self.file.track(process, name)

    def write_step(self, piece: Piece, step: int) -> bool:
        """Writes the meetings of a step of all ranks and its arrows; whether it is proven of any rank that it waits for
        another."""
        assert piece.calls is not None
        waits = {
            (rank, wait.call): wait
            for rank in range(len(self.rank_tracks))
            for wait in self._waits_of(piece, piece.calls, rank, step)
        }
        drawn = {place: wait for place, wait in waits.items() if self._write(piece, step, wait)}
        self._write_messages(piece.calls, step, drawn)
        return any(wait.is_proven for wait in waits.values())

    def _waits_of(self, piece: Piece, calls: PieceCalls, rank: int, step: int) -> list[GroupWait]:
        """What a rank waits for in a step, in the order of their begins."""
        begins, ends = calls.calls_ns[step, rank, :, WAITS].tolist(), calls.calls_ns[step, rank, :, ENDS].tolist()
        latest = calls.latest_ns[step, rank].tolist()
        waits = []
        for call in np.flatnonzero(self.calls.meeting[rank] != NONE).tolist():
            if ABSENT in (begins[call], ends[call]) or ends[call] < begins[call]:
                continue
            last = NONE if latest[call] == ABSENT else self._last(calls, step, rank, call)
            waiting_ns = latest[call] - begins[call]
            is_proven = last not in (NONE, rank) and waiting_ns > self.steps.open_between(piece, step, rank, last)
            waits.append(GroupWait(rank, call, begins[call], ends[call], last, latest[call], is_proven))
        return sorted(waits, key=lambda wait: (wait.begins, wait.ends))

    def _last(self, calls: PieceCalls, step: int, rank: int, call: int) -> int:
        """The rank that comes when `latest` says; of several the rank itself, if it is one."""
        ranks, places = self._members(rank, call)
        arrives = calls.calls_ns[step, ranks, places, ARRIVES]
        at_last = ranks[arrives == calls.latest_ns[step, rank, call]].tolist()
        return rank if rank in at_last or not at_last else at_last[0]

    def _members(self, rank: int, call: int) -> tuple[Ints, Ints]:
        """The ranks of the meeting of a call, and the numbers of their calls."""
        meeting = self.calls.meeting[rank, call]
        start = self.calls.starts[meeting]
        members = self.calls.members[start : start + self.calls.sizes[meeting]]
        width = self.calls.meeting.shape[1]
        return members // width, members % width

    def _write(self, piece: Piece, step: int, wait: GroupWait) -> bool:
        """Writes a wait unless it is within another one of its track; with its parts, where they are proven."""
        where = wait.rank, int(self.calls.call_dimension[wait.rank, wait.call])
        if wait.ends == wait.begins:
            return False
        if wait.begins < self.drawn_until.get(where, wait.begins):
            self.left_out += 1
            return False
        self.drawn_until[where] = wait.ends
        track, until = self.tracks[where], wait.waited_until
        args = {"step": piece.first + step, "waits_us": (until - wait.begins) / 1000}
        if wait.last != NONE:
            args |= {"last_rank": wait.last}
        self.file.slice(track, self._label(wait), wait.begins, wait.ends, args)
        if until > wait.begins:
            self.file.slice(track, WAIT.name, wait.begins, until)
        if wait.ends > until and (wait.is_proven or wait.last == wait.rank):
            self.file.slice(track, COMMUNICATION.name, until, wait.ends)
        return True

    def _label(self, wait: GroupWait) -> str:
        meeting = int(self.calls.meeting[wait.rank, wait.call])
        if meeting not in self.labels:
            self.labels[meeting] = short(self.calls.label(meeting))
        return self.labels[meeting]

    def _write_messages(self, calls: PieceCalls, step: int, drawn: Mapping[tuple[int, int], GroupWait]) -> None:
        """An arrow for each message, from where it was sent to where it was received.

        It leaves the sender's wait for it, or where that begins later, or is none, what its rank does as it sends. One
        that is received before it was sent, which only clocks' bounds explain, has none.
        """
        for (rank, call), wait in drawn.items():
            meeting = int(self.calls.meeting[rank, call])
            sender = int(self.calls.root[meeting])
            if self.calls.names[self.calls.calls[rank, call, NAME]] != MESSAGE or sender == rank:
                continue
            ranks, places = self._members(rank, call)
            if sender not in ranks:
                continue
            its_call = int(places[ranks == sender][0])
            sent = int(calls.calls_ns[step, sender, its_call, ARRIVES])
            if sent == ABSENT or sent >= wait.ends - 1:
                continue
            source, its = self.rank_tracks[sender], drawn.get((sender, its_call))
            target_begins = wait.waited_until if wait.ends > wait.waited_until else wait.begins
            if its is not None and its.begins == sent and its.begins < target_begins:
                source = self.tracks[sender, int(self.calls.call_dimension[sender, its_call])]
            target = self.tracks[rank, int(self.calls.call_dimension[rank, call])]
            self.file.arrow(MESSAGES, source, sent, target, wait.ends - 1)
