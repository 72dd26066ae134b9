"""Ranks in groups: a track for each rank and dimension, messages as arrows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpc.model.groups import MESSAGE, NAME
from hpc.model.timestamps import ABSENT
from parse.graph.step_graph import ARRIVES, ENDS, NONE, WAITS, Ints
from parse.term_kinds import COMMUNICATION, WAIT
from parse.trace_events.event_file import EventFile, Track, short
from parse.trace_events.step_pieces import Piece, PieceCalls, StepReader

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
