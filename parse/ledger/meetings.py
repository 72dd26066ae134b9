"""The steps of a trace, piece by piece, and the collectives inside them on the global clock: who holds whom in each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Any

import numpy as np

from hpc.model.timestamps import ABSENT, STAMPS
from hpc.model.trace import Bools, Ints, Trace
from parse.graph.step_graph import ARRIVES, ENDS, NO_ROOT, WAITS
from parse.rules import READ_AT_ONCE
from parse.term_kinds import BORDERS, COMMUNICATION, TERM_KINDS

READ_STEPS = 24
"""So many steps are read at once at least: each read of a rank's steps has its costs."""
_STAMPS = [kind.stamp for kind in TERM_KINDS if kind.ends_at in STAMPS]
OF_TERMS = tuple(
    range(_STAMPS[at], _STAMPS[stop - 1] + 1)
    for at, stop in pairwise([0, *(n + 1 for n, (a, b) in enumerate(pairwise(_STAMPS)) if b > a + 1), len(_STAMPS)])
)
"""The time stamps of the terms' borders, those with adjacent numbers together."""
MEETINGS = "meetings"
"""What steps may lack, beside stamps."""


@dataclass(frozen=True)
class MeetingKinds:
    """The collectives of a step that ranks wait for, in the order of their calls: `roots` are the ranks that send to
    the others, or NO_ROOT, `columns` are their places among those of the trace. Where they are `by_step`, a step has
    some of them: one that is absent on all ranks is none of that step's."""

    names: tuple[str, ...] = ()
    roots: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    by_step: bool = False

    def __len__(self) -> int:
        return len(self.names)

    @property
    def labels(self) -> tuple[str, ...]:
        """Their names; of several by one name with the number, `all-gather 3 of 12`."""
        total, seen = Counter(self.names), Counter[str]()
        labels = []
        for name in self.names:
            seen[name] += 1
            labels.append(name if total[name] == 1 else f"{name} {seen[name]} of {total[name]}")
        return tuple(labels)


NO_MEETINGS = MeetingKinds()


def meeting_kinds(trace: Trace) -> MeetingKinds:
    """Those of a trace; none where it has none. Left out are those for whose result no rank waits."""
    if trace.meetings is None or trace.calls is not None or not len(trace.blocks):
        return NO_MEETINGS
    first = int(trace.blocks[0, 0])
    of_first: Ints = np.asarray(trace.meetings[:, first : first + 1])
    awaited: Bools = np.array((of_first[..., ENDS] != ABSENT).any(axis=(0, 1)), np.bool_)
    by_step = all(report.backend_fact("meetings_by_step") is True for report in trace.reports)
    if by_step and not awaited.all():
        for begin, stop in trace.blocks.tolist():
            its: Ints = np.asarray(trace.meetings[:, begin - 1 : stop])
            awaited = np.logical_or(awaited, (its[..., ENDS] != ABSENT).any(axis=(0, 1)))
    columns = np.flatnonzero(awaited | ~awaited.any()).tolist()
    names, roots = trace.meeting_names, trace.meeting_roots
    return MeetingKinds(
        names=tuple(names[column] for column in columns), roots=tuple(roots[column] for column in columns),
        columns=tuple(columns), by_step=by_step,
    )  # fmt: skip


def lacks_meetings(meetings: Ints, kinds: MeetingKinds) -> Bools:
    """Of meetings [rank, step, meeting, 3]: which ranks lack one that the step has [rank, step]."""
    absent = (meetings == ABSENT).any(axis=3)
    has = (meetings != ABSENT).any(axis=(0, 3)) if kinds.by_step else True
    lacking: Bools = np.logical_and(absent, has).any(axis=2)
    return lacking


def unmatched_collectives(trace: Trace) -> tuple[str, ...]:
    """Those of a script that could not be matched between ranks or steps, each with in how many of the steps."""
    steps, reasons = int(np.diff(trace.blocks).sum()), dict[str, int]()
    for report in trace.reports:
        counts = report.script.get("unmatched_collectives")
        for reason, count in counts.items() if isinstance(counts, Mapping) else ():
            reasons[str(reason)] = max(reasons.get(str(reason), 0), count if isinstance(count, int) else steps)
        if trace.meetings is None and trace.run.is_script and (report.problems or {}).get("meetings"):
            reasons["collectives that differ between ranks, or are too many"] = steps
    return tuple(f"{reason} in {count} of {steps}" for reason, count in reasons.items())


def unseen_ways(trace: Trace) -> tuple[str, ...]:
    """By what a script's ranks also meet where no hook sees it."""
    ways = [way for report in trace.reports if isinstance(its := report.script.get("unseen_ways"), list) for way in its]
    return tuple(dict.fromkeys(map(str, ways)))


def asleep_ms(trace: Trace) -> tuple[float, ...]:
    """How long the main thread of each rank of a script sleeps in a step for no reason that hooks see; 0: not known."""
    known = [report.script.get("asleep_ms") for report in trace.reports]
    return tuple(float(ms) if isinstance(ms, (int, float)) and isfinite(ms) else 0.0 for ms in known)


def local_meetings(trace: Trace, kinds: MeetingKinds, first: int, stop: int) -> Ints:
    """The meetings of steps `first` to `stop` − 1, int64 [rank, step, meeting, 3] as MEETING_STAMPS, of the ranks' own
    clocks; a rank that begins to wait at no moment of its own does so when it calls."""
    assert trace.meetings is not None
    stamps: Ints = np.asarray(trace.meetings[:, first:stop], np.int64)[:, :, list(kinds.columns)]
    waits = stamps[..., WAITS]
    waits[...] = np.where(waits == ABSENT, stamps[..., ARRIVES], waits)
    return stamps


@dataclass(frozen=True, kw_only=True, eq=False)
class StepPiece:
    """Steps `first` to `stop` − 1 and the one before them: stamps [rank, 1 + step, 6] as recorded, and OF_TERMS only on
    the global clock, with meetings [rank, 1 + step, meeting, 3] on that, None where there are none."""

    first: int
    stop: int
    local_ns: Ints
    stamps_ns: Ints
    meetings_ns: Ints | None


def read_pieces(trace: Trace, kinds: MeetingKinds, pieces: Sequence[tuple[int, int]]) -> Iterator[StepPiece]:
    """Each piece (first step, stop); a few are read at once. Raises TraceError where clocks cannot be compared."""
    length = max(stop - first for first, stop in pieces)
    at_once = max(READ_AT_ONCE // (len(trace.stamps) * length), -(-READ_STEPS // length))
    for group in (pieces[at : at + at_once] for at in range(0, len(pieces), at_once)):
        begin = group[0][0] - 1
        local_ns = trace.stamps[:, begin : group[-1][1]]
        global_ns = trace.stamps_globally(local_ns, OF_TERMS)
        for first, stop in group:
            steps = slice(first - 1 - begin, stop - begin)
            meetings_ns = trace.globally(local_meetings(trace, kinds, first - 1, stop)) if len(kinds) else None
            yield StepPiece(
                first=first, stop=stop, local_ns=local_ns[:, steps], stamps_ns=global_ns[:, steps],
                meetings_ns=meetings_ns,
            )  # fmt: skip
        del local_ns, global_ns, meetings_ns  # before the next are read


def lacking_steps(piece: StepPiece, borders: Collection[str], kinds: MeetingKinds) -> dict[str, Bools]:
    """By border, or MEETINGS, which of the steps lack its stamp, or one of their meetings, on some rank [step]; only
    those that some step lacks."""
    lacking = dict[str, Any]()
    for border in BORDERS:
        if border in borders and border in STAMPS:
            its_ns = piece.stamps_ns[:, 1:, STAMPS.index(border)]
            if its_ns.min() == ABSENT:
                lacking[border] = (its_ns == ABSENT).any(axis=0)
    if piece.meetings_ns is not None and piece.meetings_ns.min() == ABSENT:
        lacking[MEETINGS] = lacks_meetings(piece.meetings_ns[:, 1:], kinds).any(axis=0)
    return {name: steps for name, steps in lacking.items() if steps.any()}


def lacks_the_step_before(part: StepPiece, borders: Collection[str], kinds: MeetingKinds) -> bool:
    """Whether it is not known when some rank left the reduction, or the meetings, of the step before these."""
    if COMMUNICATION.ends_at in borders and (part.local_ns[:, 0, COMMUNICATION.stamp] == ABSENT).any():
        return True
    return part.meetings_ns is not None and bool(lacks_meetings(part.meetings_ns[:, :1], kinds).any())


def complete_parts(piece: StepPiece, lacking: Mapping[str, Bools]) -> Iterator[StepPiece]:
    """The piece in parts, without the steps that lack something."""
    if not lacking:
        yield piece
        return
    complete = np.concatenate([[False], ~np.logical_or.reduce([*lacking.values()]), [False]])
    for first, stop in np.flatnonzero(complete[1:] != complete[:-1]).reshape(-1, 2).tolist():
        steps = slice(first, stop + 1)
        yield StepPiece(
            first=piece.first + first, stop=piece.first + stop, local_ns=piece.local_ns[:, steps],
            stamps_ns=piece.stamps_ns[:, steps],
            meetings_ns=None if piece.meetings_ns is None else piece.meetings_ns[:, steps],
        )  # fmt: skip


def awaited_calls(meetings: Ints, kinds: MeetingKinds, open_ns: float) -> Ints:
    """The meetings, on the global clock [rank, step, meeting, 3], without the calls that no rank waits for: absent.

    Whether the sender of a broadcast, and those who receive, wait for one who comes late depends on the library and the
    size. A late rank holds another that began to wait before it called, and has the result since; the clocks leave
    `open_ns` of that open. What remains ends when the last one has called.
    """
    awaited = meetings.copy()
    for at, root in enumerate(kinds.roots):
        if root == NO_ROOT:
            continue
        calls, waits, ends = (meetings[:, :, at, stamp].T for stamp in (ARRIVES, WAITS, ENDS))  # [step, rank]
        waiting = [
            np.searchsorted(np.sort(begin), its) - np.searchsorted(np.sort(end + open_ns), its)
            for its, begin, end in zip(calls, waits, ends, strict=True)
        ]
        first = calls == calls.min(axis=1, keepdims=True)
        awaited[:, :, at, ARRIVES] = np.where((np.array(waiting) > 0) | first, calls, ABSENT).T
    return awaited


def waited_and_exposed(meetings: Ints) -> tuple[Ints, Ints]:
    """Of each rank and meeting [rank, step, meeting] ns: how long it waits for those who come later, and the rest of
    the time between beginning to wait and having the result. After `awaited_calls`."""
    begin, end = meetings[..., WAITS], meetings[..., ENDS]
    waited: Ints = np.maximum(0, np.minimum(end, meetings[..., ARRIVES].max(axis=0)) - begin)
    return waited, end - begin - waited


def phases(stamps: Ints, meetings: Ints) -> Iterator[tuple[int, Bools]]:
    """By phase of own work, as the number of its term: in which of them each rank begins to wait in each meeting,
    [rank, step, meeting]. Those within the reduction of the gradients are a part of it."""
    begin = meetings[..., WAITS]
    for at, kind in enumerate(TERM_KINDS):
        if kind.is_work:
            inside = np.ones(begin.shape, np.bool_)
            if at:
                inside &= begin >= stamps[:, :, TERM_KINDS[at - 1].stamp, None]
            if kind is not TERM_KINDS[-1]:
                inside &= begin < stamps[:, :, kind.stamp, None]
            yield at, inside
