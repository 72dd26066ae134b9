"""Step times of replayed operations: each starts as soon as what it waits for is over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parse.pipeline.schedule import Meeting
from parse.pipeline.types import Flags, Floats, Kind, PipelineTrace

MEAN_OF = frozenset({Kind.FORWARD, Kind.BACKWARD, Kind.GC, Kind.OPTIMIZER})
"""Kinds whose usual time is the mean: all their work is done, but evenly shared out. That of the others, communication,
is the median, which a few slow transfers do not change."""
CHUNK_VALUES = 1 << 15
"""As many cases are replayed at once as have this many ends of an operation, or one."""


def own_times_s(trace: PipelineTrace, meetings: Sequence[Meeting]) -> Floats:
    """What each operation takes without waiting for other workers, in s [operation, step, data-parallel rank].

    Of a computation its duration; of communication from when the last worker has started, and 0 where the clocks leave
    less than nothing.
    """
    own_s = trace.duration_s.copy()
    for meeting in meetings:
        if meeting.is_communication:
            places = list(meeting.operations)
            entered = trace.start_s[places].max(axis=0)
            if meeting.across_dp_ranks:
                entered = entered.max(axis=-1, keepdims=True)
            own_s[places] = np.maximum(trace.start_s[places] + trace.duration_s[places] - entered, 0)
    return own_s


def usual_times_s(trace: PipelineTrace, own_s: Floats) -> Floats:
    """The mean or median of each operation's kind over all workers and steps, in s [operation, 1, 1]."""
    kinds = np.array([operation.kind for operation in trace.operations])
    usual_s = np.empty((len(kinds), 1, 1))
    for kind in np.unique(kinds).tolist():
        of = kinds == kind
        usual_s[of] = np.mean(own_s[of]) if kind in MEAN_OF else np.median(own_s[of])
    return usual_s


def replayed_s(
    meetings: Sequence[Meeting], own_s: Floats, changed_s: Floats, operations: Flags, dp_ranks: Flags
) -> Floats:
    """Step times in s [case, step], replayed with `own_s` but `changed_s` for what a case selects.

    A case changes `operations` [case, operation] of `dp_ranks` [case, data-parallel rank]. Both times broadcast to
    [operation, step, data-parallel rank].
    """
    shape = np.broadcast_shapes(own_s.shape, changed_s.shape)
    own_s, changed_s = np.broadcast_to(own_s, shape), np.broadcast_to(changed_s, shape)
    length = max(1, CHUNK_VALUES // (shape[1] * shape[2]))
    chunks = [
        _replayed_chunk(meetings, own_s, changed_s, operations[at : at + length], dp_ranks[at : at + length])
        for at in range(0, len(operations), length)
    ]
    return np.concatenate(chunks)


def _replayed_chunk(
    meetings: Sequence[Meeting], own_s: Floats, changed_s: Floats, operations: Flags, dp_ranks: Flags
) -> Floats:
    begin = np.zeros((len(operations), *own_s.shape[1:]))
    last: Floats = begin.max(axis=-1)
    ends: dict[int, Floats] = {}
    for meeting, released in zip(meetings, _released(meetings), strict=True):
        entered = begin
        for place in meeting.after:
            entered = np.maximum(entered, ends[place])
        if meeting.across_dp_ranks:
            entered = entered.max(axis=-1, keepdims=True)
        for place in meeting.operations:
            changed = (operations[:, place, None] & dp_ranks)[:, None, :]
            ends[place] = entered + np.where(changed, changed_s[place], own_s[place])
            last = np.maximum(last, ends[place].max(axis=-1))
        for place in released:
            del ends[place]
    return last


def _released(meetings: Sequence[Meeting]) -> list[list[int]]:
    """For each meeting the operations whose ends nobody needs after it."""
    last_use: dict[int, int] = {}
    for at, meeting in enumerate(meetings):
        last_use |= dict.fromkeys((*meeting.after, *meeting.operations), at)
    released: list[list[int]] = [[] for _ in meetings]
    for place, at in last_use.items():
        released[at].append(place)
    return released
