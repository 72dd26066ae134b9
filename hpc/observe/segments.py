"""Where steps are cut: a step ends with the last update after which the script trains on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpc.observe import events as e
from hpc.observe.events import Event


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The events after one step's last update, up to and with the next one's: places in the list of events."""

    first: int
    stop: int
    end_ns: int
    updated_in_backward: bool = False
    """The optimizer works inside the backward, whose return is the update's."""


def segments_of(events: Sequence[Event]) -> list[Segment]:
    """One for each step. Where the script calls `step()` that alone ends steps."""
    marks = [at for at, event in enumerate(events) if event.kind == e.STEP_END]
    if marks:
        firsts = [0, *(at + 1 for at in marks[:-1])]
        return [Segment(first=a, stop=b + 1, end_ns=events[b].ns) for a, b in zip(firsts, marks, strict=True)]
    return _by_updates(events)


def _by_updates(events: Sequence[Event]) -> list[Segment]:
    segments: list[Segment] = []
    first, updated = 0, -1  # where this step begins; its last update so far
    trains = in_backward = pending = in_this_backward = scaled = False
    for at, event in enumerate(events):
        kind = event.kind
        if kind in (e.FORWARD_IN, e.BACKWARD_IN):
            if updated >= 0:
                segments.append(_segment(events, first, updated, in_this_backward))
                first, updated, in_this_backward = updated + 1, -1, False
            trains = True
        if kind == e.BACKWARD_IN:
            in_backward, pending = True, False
        elif kind == e.BACKWARD_OUT:
            if pending:
                updated, in_this_backward = at, True
            in_backward = pending = False
        elif kind == e.SCALER_IN:
            scaled = False
        elif trains and (kind == e.UPDATE_OUT or (kind == e.SCALER_OUT and event.which and not scaled)):
            scaled = True  # and where there was no update inside the scaler's call, the scaler has skipped it
            if in_backward:
                pending = True
            else:
                updated, in_this_backward = at, False
    if updated >= 0:
        segments.append(_segment(events, first, updated, in_this_backward))
    return segments


def _segment(events: Sequence[Event], first: int, updated: int, in_backward: bool) -> Segment:
    return Segment(first=first, stop=updated + 1, end_ns=events[updated].ns, updated_in_backward=in_backward)
