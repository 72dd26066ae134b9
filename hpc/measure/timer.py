"""The six time stamps of every step on one rank, from the host's clock or from events of its device."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from math import ceil
from time import perf_counter_ns
from typing import Any

from hpc.measure.meetings import Meetings
from hpc.model.clock_model import WANDER
from hpc.model.timestamps import ABSENT, BATCH_READY, BEGIN, END, FORWARD_END, GRADS_READY, REDUCED, STAMPS
from hpc.observe.device_clock import TRIES, Anchor, DeviceEvent, elapsed_ns, take_anchors

# Time stamps taken by a device: events on its stream, converted to the host's clock.


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
        self._start: Anchor | None = None
        self._rests = False

    def rest(self) -> None:
        """Records nothing any more, and waits for nothing."""
        self._rests, self.stamps = True, _absent(2)

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
        """Ends the segment before this place: turns its events into time stamps. Waits for the device.

        Half way between its anchors the bound has what clocks wander from their mean rate.
        """
        if self._start is None:
            return
        first, last = self._start, self._anchor()
        self._start = None
        taken = [at for at in self._order if self._first <= at < stop]
        device_ns = elapsed_ns([first.event, *(self._events[at] for at in taken), last.event])
        wander_ns = ceil(WANDER * device_ns[-1] / 2)
        self.bound_ns = max(self.bound_ns, wander_ns - (-max(first.width_ns, last.width_ns) // 2))
        drift = (last.middle_ns - first.middle_ns - device_ns[-1]) / max(device_ns[-1], 1.0)
        for at, since_ns in zip(taken, device_ns[1:-1], strict=True):
            self.stamps[at] = first.middle_ns + round(since_ns * (1 + drift))

    def _anchor(self) -> Anchor:
        """The tightest of a few tries. The first waits for pending work of the device; it is one like the others."""
        anchors = take_anchors((self._make_event() for _ in range(1 + TRIES)), self._stream, self._clock, wait_ns=None)
        return min(anchors, key=lambda anchor: anchor.width_ns)


_WIDTH = len(STAMPS)


class HostStamps:
    """Fills `stamps`, flat int64 ns, by the host's clock: one flat store each, and nothing to wait for."""

    __slots__ = ("_clock", "stamps")
    bound_ns = 0

    def __init__(self, stamps: memoryview, clock: Callable[[], int] = perf_counter_ns) -> None:
        self.stamps = stamps
        self._clock = clock

    def rest(self) -> None:
        """Records nothing any more but in rows of its own, which are not read."""
        self.stamps = _absent(2)

    def begin(self, first: int) -> None:
        """Does nothing, and so does `resolve`."""

    def record(self, at: int) -> None:
        self.stamps[at] = self._clock()

    def resolve(self, stop: int) -> None: ...


class StepTimer:
    """Records when things happened, into stamps that `make_stamps` makes of a buffer. Between `begin` and `resolve` a
    timer neither synchronises nor allocates."""

    def __init__(self, steps: int, make_stamps: Callable[[memoryview], HostStamps | DeviceStamps] = HostStamps) -> None:
        self._make_stamps = make_stamps
        self._of_steps = make_stamps(_absent(steps))
        self._of_meetings = make_stamps(_absent(0))
        self._meetings: Meetings | None = None
        self._row = self._first = 0

    @property
    def stamps(self) -> memoryview:
        """Flat int64 [steps × 6], nanoseconds of this rank's `perf_counter_ns`; complete up to the last `resolve`."""
        return self._of_steps.stamps

    @property
    def bound_ns(self) -> int:
        """The error bound of a time stamp against the host's clock, ns."""
        return max(self._of_steps.bound_ns, self._of_meetings.bound_ns)

    def record_into(self, stamps: memoryview) -> None:
        """Records into this buffer of int64 [steps × 6] instead of its own; called before the first step."""
        if stamps.format != "q" or len(stamps) != len(self.stamps):
            raise ValueError(f"stamps need {len(self.stamps)} int64, not {len(stamps)} of format {stamps.format!r}")
        self._of_steps.stamps = stamps

    def record_meetings(self, meetings: Meetings) -> None:
        """Records the collectives inside the steps, too; called before the first step."""

        def make_record(stamps: memoryview) -> Callable[[int], None]:
            self._of_meetings = self._make_stamps(stamps)
            return self._of_meetings.record

        self._meetings = meetings
        meetings.record_by(make_record)

    def begin(self, step: int) -> None:
        """Starts a segment of steps with this step; each later step begins where the step before it ended."""
        self._first = self._row = step * _WIDTH
        if self._meetings is not None:
            self._of_meetings.begin(step * self._meetings.width)
        self._of_steps.begin(self._first)
        self._of_steps.record(self._row + BEGIN)

    def batch_ready(self) -> None:
        """The batch is on the device."""
        self._of_steps.record(self._row + BATCH_READY)

    def forward_end(self) -> None:
        """The loss is computed; a backend may leave this out."""
        self._of_steps.record(self._row + FORWARD_END)

    def grads_ready(self) -> None:
        """This rank's own gradients are complete; of several calls in a step the last one counts."""
        self._of_steps.record(self._row + GRADS_READY)

    def reduced(self) -> None:
        """The reduced gradients are available on this rank."""
        self._of_steps.record(self._row + REDUCED)

    def end(self) -> None:
        """The optimizer step is done."""
        self._of_steps.record(self._row + END)
        self._row = row = self._row + _WIDTH
        stamps = self._of_steps.stamps
        if row < len(stamps):
            stamps[row] = stamps[row - _WIDTH + END]

    def resolve(self) -> None:
        """Ends a segment: turns the events that are still on the device into time stamps. May synchronise."""
        self._of_steps.resolve(self._row)
        for row in range(self._first + _WIDTH, self._row, _WIDTH):
            self.stamps[row] = self.stamps[row - _WIDTH + END]
        if self._meetings is not None:
            self._of_meetings.resolve(self._row // _WIDTH * self._meetings.width)

    def rest(self) -> None:
        """Records nothing of the steps that follow, each of which is to be begun as step 0: training goes on."""
        self._of_steps.rest()
        self._of_meetings.rest()


class OuterTimer(StepTimer):
    """Ignores the stamps inside a step; for runs with nothing between the batch and the end of the step."""

    def record_meetings(self, meetings: Meetings) -> None: ...
    def forward_end(self) -> None: ...
    def grads_ready(self) -> None: ...
    def reduced(self) -> None: ...


def host_timer(timing: str, steps: int, clock: Callable[[], int] = perf_counter_ns) -> StepTimer:
    """The recorder of a run's `timing`, by the host's clock."""
    return _of(timing)(steps, partial(HostStamps, clock=clock))


def device_timer(
    timing: str, steps: int, make_event: Callable[[], DeviceEvent], stream: Any,
    clock: Callable[[], int] = perf_counter_ns,
) -> StepTimer:  # fmt: skip
    """The recorder of a run's `timing`, by events on the compute stream, converted to the host's clock at the end of a
    segment."""
    return _of(timing)(steps, partial(DeviceStamps, make_event=make_event, stream=stream, clock=clock))


def _of(timing: str) -> type[StepTimer]:
    return StepTimer if timing == "phases" else OuterTimer


def _absent(steps: int) -> memoryview:
    return memoryview(array("q", [ABSENT]) * (steps * _WIDTH))
