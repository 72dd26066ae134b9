"""The steps of a trace in pieces, on the axis of a file: stamps, bounds, collectives, and who comes last to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpc.model.timestamps import ABSENT, BEGIN, GRADS_READY, MEETING_STAMPS, STAMPS
from hpc.model.trace import Trace, TraceError
from parse.ledger.breakdown import known_borders
from parse.ledger.meetings import (
    ARRIVES,
    NO_MEETINGS,
    UNCLEAR,
    WAITS,
    clear_unawaited_calls,
    local_meetings,
    meeting_kinds,
)
from parse.trace_events.last_arrival import Bools, Floats, Ints, LastArrivals, OrderBounds, last_arrivals

PIECE_STAMPS = 1_000_000
"""Time stamps that are read at a time: what bounds the memory."""


@dataclass(frozen=True)
class StepWindow:
    """Steps `first` to `stop` − 1."""

    first: int
    stop: int


def window_of(trace: Trace, requested: tuple[int, int] | None) -> StepWindow:
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
    return StepWindow(first, min(last + 1, completed))


@dataclass(frozen=True, eq=False)
class Piece:
    """Steps from `first` on: stamps [rank, step, 6] on the file's axis with their bounds, meetings [rank, step,
    meeting, 3]. `arrivals`: by the number of a meeting, the last to come to it; the reduction's number is after all."""

    first: int
    stamps: Ints
    bounds: Floats
    meetings: Ints
    arrivals: Mapping[int, LastArrivals]

    @cached_property
    def met(self) -> Bools:
        """In which steps [step] all ranks have all meetings; in all where there are none."""
        complete: Bools = (self.meetings != ABSENT).all(axis=(0, 2, 3))
        return complete


class StepReader:
    """The steps of a window of a trace, piece by piece. Their axis begins at `origin_ns` of the global clock: at the
    first of them; at the first comparison of the clocks, or `earliest_ns`, where they are `whole`, all steps there are.

    `kinds` are the collectives inside steps, `borders` those between phases that mean something, `merged` why others do
    not. Raises TraceError where the clocks cannot be compared.
    """

    def __init__(self, trace: Trace, window: StepWindow, earliest_ns: int | None) -> None:
        self.trace, self.window = trace, window
        self.kinds = meeting_kinds(trace) if len(trace.stamps) > 1 else NO_MEETINGS
        self.borders, self.merged = known_borders(trace, {})
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
        per_step = len(self.trace.stamps) * (len(STAMPS) + len(MEETING_STAMPS) * len(self.kinds))
        length = max(1, PIECE_STAMPS // max(1, per_step))
        for first in range(self.window.first, self.window.stop, length):
            yield first, min(first + length, self.window.stop)

    def _first_begin_ns(self) -> int:
        for first, stop in self._spans():
            begins = self.trace.globally(np.ascontiguousarray(self.trace.stamps[:, first:stop]))[..., BEGIN]
            if (recorded := begins[begins != ABSENT]).size:
                return int(recorded.min())
        raise TraceError(f"none of the steps {self.window.first} to {self.window.stop - 1} has a beginning")

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
            return Piece(first, stamps, bounds, np.empty((*stamps.shape[:2], 0, 3), np.int64), arrivals)
        local_ns = local_meetings(self.trace, self.kinds, first, stop)
        meetings, meeting_bounds = self.on_axis(local_ns), self._bounds_of(local_ns)
        uncleared = meetings.copy()
        clear_unawaited_calls(uncleared, self.kinds, 2 * float(np.nanmax(bounds, initial=0.0)))
        arrivals = {
            at: last_arrivals(
                uncleared[:, :, at, ARRIVES], meetings[:, :, at, WAITS], meeting_bounds[:, :, at, ARRIVES], self._order
            )
            for at, root in enumerate(self.kinds.roots)
            if root != UNCLEAR
        }
        return Piece(first, stamps, bounds, meetings, arrivals | self._arrivals_at_reduction(stamps, bounds))

    def _bounds_of(self, local_ns: Ints) -> Floats:
        return self.trace.bounds_of(local_ns.reshape(len(local_ns), -1)).reshape(local_ns.shape)

    def _arrivals_at_reduction(self, stamps: Ints, bounds: Floats) -> dict[int, LastArrivals]:
        if len(stamps) == 1 or "last_grads_ready" not in self.borders:
            return {}
        grads = stamps[..., GRADS_READY]
        return {len(self.kinds): last_arrivals(grads, grads, bounds[..., GRADS_READY], self._order)}
