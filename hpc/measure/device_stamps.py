"""Time stamps taken by a device: events on its stream, converted to the host's clock."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from time import perf_counter_ns
from typing import Any, Protocol

_ANCHORS = 5


class DeviceEvent(Protocol):
    """The part of `torch.cuda.Event(enable_timing=True)` that is used."""

    def record(self, stream: Any) -> None:
        """Asks the device to note the time when the stream gets here."""

    def synchronize(self) -> None:
        """Waits until the device has been here."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds, a float32, from this event to a later one."""


class DeviceStamps:
    """Fills `stamps`, flat int64 ns of the host's clock, from recorded events.

    `elapsed_time` is a float32 of milliseconds, so only neighbouring events are subtracted and the differences summed
    as doubles. Each segment is anchored to the host's clock at both ends, with the drift between them spread evenly.
    """

    def __init__(
        self,
        stamps: memoryview,
        make_event: Callable[[], DeviceEvent],
        stream: Any,
        clock: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self.stamps = stamps
        self.bound_ns = 0
        self._make_event = make_event
        self._stream = stream
        self._clock = clock
        self._events = [make_event() for _ in range(len(stamps))]
        for event in self._events:
            event.record(stream)  # CUDA makes an event when it is first recorded: now, not inside a step
        self._order: dict[int, None] = {}  # places, in the order in which their events were last recorded
        self._first = 0
        self._start: tuple[DeviceEvent, int] | None = None
        self._rests = False

    def rest(self) -> None:
        """Records nothing any more, and waits for nothing."""
        self._rests = True

    def begin(self, first: int) -> None:
        """Starts a segment at this place. Waits for the device."""
        if self._rests:
            return
        self._first = first
        self._order.clear()
        self._start = self._anchor()

    def record(self, at: int) -> None:
        if self._rests:
            return
        self._events[at].record(self._stream)
        self._order.pop(at, None)
        self._order[at] = None

    def resolve(self, stop: int) -> None:
        """Ends the segment before this place: turns its events into time stamps. Waits for the device."""
        if self._start is None:
            return
        (first, first_host_ns), (last, last_host_ns) = self._start, self._anchor()
        self._start = None
        taken = [at for at in self._order if self._first <= at < stop]
        events = [first, *(self._events[at] for at in taken), last]
        device_ns = [0.0]
        for before, after in pairwise(events):
            device_ns.append(device_ns[-1] + before.elapsed_time(after) * 1e6)
        drift = (last_host_ns - first_host_ns - device_ns[-1]) / max(device_ns[-1], 1.0)
        for at, elapsed_ns in zip(taken, device_ns[1:-1], strict=True):
            self.stamps[at] = first_host_ns + round(elapsed_ns * (1 + drift))

    def _anchor(self) -> tuple[DeviceEvent, int]:
        """An event and its time on the host's clock: the tightest of a few tries on an idle device."""
        best: tuple[int, DeviceEvent, int] | None = None
        for _ in range(1 + _ANCHORS):
            event = self._make_event()
            before_ns = self._clock()
            event.record(self._stream)
            event.synchronize()
            after_ns = self._clock()
            # The first try waits for pending work of the device; it is a candidate like the others.
            if best is None or after_ns - before_ns < best[0]:
                best = (after_ns - before_ns, event, (before_ns + after_ns) // 2)
        assert best is not None
        width_ns, event, host_ns = best
        self.bound_ns = max(self.bound_ns, -(-width_ns // 2))
        return event, host_ns
