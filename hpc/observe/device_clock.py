"""Time on an accelerator, from events on its streams: what an accelerator is here, and its anchors on the host's clock.

Used in a script's process, by hooks, and by backends. Standard library alone; only its accelerator imports torch.
Never run on a real GPU by us.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import pairwise
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

from . import events as e

# What is needed of an accelerator.


class DeviceEvent(Protocol):
    """The part of `torch.cuda.Event(enable_timing=True)` that is used; it may be recorded again and again."""

    def record(self, stream: Any) -> None:
        """Asks the device to note the time when the stream gets here; returns at once."""

    def query(self) -> bool:
        """Whether the device has been here; asks without waiting."""

    def synchronize(self) -> None:
        """Waits until the device has been here."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds, a float32, from this event to another of the same device, on whatever stream; negative where
        the other was reached before this one. Both have been reached."""


class Accelerator(Protocol):
    """One device of a process."""

    @property
    def event_type(self) -> type:
        """The class of the events that scripts record, and have streams wait for."""

    def make_event(self) -> DeviceEvent:
        """A new event that times."""

    def current_stream(self) -> Any:
        """The stream of this device on which the calling thread queues its work: one object for each stream."""

    def new_stream(self) -> Any:
        """A stream of its own, which waits for no other."""

    def is_capturing(self) -> bool:
        """Whether what the calling thread queues now is captured into a graph instead of run."""


class CudaAccelerator:
    """A device of `torch.cuda`, which stands for CUDA and ROCm alike."""

    def __init__(self, index: int) -> None:
        import torch  # here, because backends without torch use this file, too

        self._cuda: Any = torch.cuda
        self.event_type: type = torch.cuda.Event
        self._index = index
        self._current_pointer: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
        self._streams: dict[int, Any] = {}
        self.is_capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
        if torch.cuda.current_device() != index:  # a question there might begin to use that device
            self.is_capturing = self._is_capturing_there

    def _is_capturing_there(self) -> bool:
        before = self._cuda._exchange_device(self._index)
        try:
            captures: bool = self._cuda.is_current_stream_capturing()
            return captures
        finally:
            self._cuda._maybe_exchange_device(before)

    def make_event(self) -> DeviceEvent:
        event: DeviceEvent = self._cuda.Event(enable_timing=True)
        return event

    def current_stream(self) -> Any:
        pointer = self._current_pointer(self._index)  # as Inductor's code: torch makes a new object at each question
        stream = self._streams.get(pointer)
        if stream is None:
            stream = self._streams[pointer] = self._cuda.current_stream(self._index)
        return stream

    def new_stream(self) -> Any:
        return self._cuda.Stream(self._index)


ACCELERATORS: dict[str, Callable[[int], Accelerator]] = {"cuda": CudaAccelerator}
"""By the type of a torch device, what makes the accelerator of an index. A test may add one: even `cpu`, whose
parameters then count as those of a device."""


# Anchors: the same moment by both clocks.

TRIES = 5
"""For an anchor, of which the tightest counts."""


class Anchor(NamedTuple):
    """An event that the device reached between two readings of the host's clock, ns."""

    before_ns: int
    after_ns: int
    event: DeviceEvent

    @property
    def width_ns(self) -> int:
        return self.after_ns - self.before_ns

    @property
    def middle_ns(self) -> int:
        return (self.before_ns + self.after_ns) // 2


def take_anchors(
    events: Iterable[DeviceEvent], stream: Any, clock: Callable[[], int] = perf_counter_ns, *, wait_ns: int | None
) -> list[Anchor]:
    """One of each event, in order, on a stream which it waits for; the tightest is the best.

    None of them is begun more than `wait_ns` after the first, nor waited for any longer: none at all on a full device.
    """
    anchors: list[Anchor] = []
    first_ns = clock()
    for event in events:
        before_ns = clock()
        event.record(stream)
        if wait_ns is None:
            event.synchronize()
        while not event.query():
            if wait_ns is not None and clock() - first_ns > wait_ns:
                return anchors
        anchors.append(Anchor(before_ns, clock(), event))
        if wait_ns is not None and anchors[-1].after_ns - first_ns > wait_ns:
            break
    return anchors


def elapsed_ns(events: Iterable[DeviceEvent]) -> list[float]:
    """When the device reached each event, since the first.

    `elapsed_time` is a float32: so only neighbours are subtracted, and the differences are summed as doubles.
    """
    times = [0.0]
    for before, after in pairwise(events):
        times.append(times[-1] + before.elapsed_time(after) * 1e6)
    return times


# The device of a script: events beside those of the hooks, and their times once the device has been there.

ORIGIN_NS = 1_000_000_000
"""The device's clock shows this at the first anchor: its times are counted from there, and none is 0."""
ANCHOR_NS, FIRST_ANCHOR_NS, FIRST_ANCHORS = 1_000_000_000, 200_000_000, 5
"""Between two anchors, at the end of the next step; the first follow one another faster."""
ENOUGH_NS = 1_000_000
"""So long the script's own thread waits for an anchor, no longer."""
WARMUP_STEPS = 5
"""In the first steps the pool of events grows to those of `AHEAD_STEPS`, which no host is ahead of its device: a stream
takes about a thousand kernels. Later the pool grows in pauses only."""
AHEAD_STEPS, FIRST_EVENTS, MOST_EVENTS = 64, 256, 8192
_END_PATIENCE_S = 1.0


class DeviceError(Exception):
    """The events of a device time nothing any more, for a reason that is no bug."""


class DeviceClock:
    """Has the device note when it reaches events of hooks, and writes these times to their file.

    Nothing waits for the training's streams: at the end of a step events are queried. The device's clock is that of
    `elapsed_time`, from one event to the next one. A step for which the pool has no event left has none from there on,
    and no time stamps. `failed` is called once with what has gone wrong; then nothing is recorded.
    """

    def __init__(
        self,
        recorder: e.Recorder,
        accelerator: Accelerator,
        failed: Callable[[Exception], None],
        clock: Callable[[], int] = perf_counter_ns,
        *,
        steps: int = 0,
    ) -> None:
        self._recorder, self._accelerator, self._failed, self._clock = recorder, accelerator, failed, clock
        self._is_capturing, self.current_stream = accelerator.is_capturing, accelerator.current_stream
        self.event_type = accelerator.event_type
        self._own_stream, self.training_stream = accelerator.new_stream(), accelerator.current_stream()
        self._free: list[DeviceEvent] = []
        self._pending: deque[tuple[DeviceEvent, int, bool]] = deque()  # with the cell of the host's record
        self._anchor_events = [accelerator.make_event() for _ in range(TRIES)]
        self._last, self._device_ns = accelerator.make_event(), float(ORIGIN_NS)
        self._grow(FIRST_EVENTS)
        take_anchors((self._last, *self._anchor_events), self._own_stream, clock, wait_ns=None)  # they are made now
        self._resolved = self._marked_before = self._max_marks = 0
        self._ends: deque[int] = deque()
        self._steps = self._done_steps = steps
        self._anchors = 0
        self._out = self._off = False
        self._left_out = self._captured = self._grown_for = 0
        self._anchored_ns = 0
        widths = self._anchor(wait_ns=None)
        self.launch_ns = round(statistics.median(widths))
        """What the device takes at most to reach an event on an empty stream, and the host to see it."""
        self._process = os.getpid()

    def mark(self, cell: int) -> None:
        """Has the device note when the calling thread's stream gets here: the event of the record in this cell.

        The record has the host's time already, so that this is not before.
        """
        if self._out:
            return
        try:
            if self._is_capturing():  # such an event would be the graph's
                self._captured += 1
                self._out = True
            elif self._free:
                event = self._free.pop()
                stream = self.current_stream()
                event.record(stream)
                self._pending.append((event, cell, stream is not self.training_stream))
            else:
                self._left_out += 1
                self._out = True
        except Exception as error:  # noqa: BLE001 - the script must not end for a hook
            self.fail(error)

    def mark_backward(self, cell: int) -> None:
        """As `mark`, where a backward begins: on the stream of the training, whichever that is now."""
        if not self._off:
            self.training_stream = self.current_stream()
            self.mark(cell)

    def step_completed(self) -> int:
        """Writes the times of events that are done, about two steps of them; how many steps are complete on the device.

        Now and then it takes an anchor. Called by the thread that trains, once the host has made a step.
        """
        self._steps += 1
        if self._off:
            return self._steps
        try:
            marked = self._resolved + len(self._pending)
            self._max_marks = max(self._max_marks, marked - self._marked_before)
            self._marked_before = marked
            self._ends.append(marked)
            self._out = False
            if self._is_capturing():  # whatever asks for an event then ends the capture with an error
                return self._done_steps
            self._resolve(max(2 * self._max_marks, 16))
            if self._steps <= WARMUP_STEPS:
                self._grow(min(AHEAD_STEPS * self._max_marks, MOST_EVENTS))
            interval_ns = FIRST_ANCHOR_NS if self._anchors < FIRST_ANCHORS else ANCHOR_NS
            if self._clock() - self._anchored_ns >= interval_ns:
                self._anchor()
        except Exception as error:  # noqa: BLE001 - the script must not end for a hook
            self.fail(error)
        return self._steps if self._off else self._done_steps

    def pause(self) -> None:
        """The script does something else than training: there is time for more events, where they ran out."""
        if self._off:
            return
        try:
            if self._is_capturing():
                return
            if self._left_out > self._grown_for:
                self._grown_for = self._left_out
                self._grow(min(2 * (len(self._free) + len(self._pending)), MOST_EVENTS))
            self._resolve(max(2 * self._max_marks, 16))
        except Exception as error:  # noqa: BLE001 - the script must not end for a hook
            self.fail(error)

    def finish(self) -> int:
        """Waits a moment for the last events of the script, and takes the last anchor; returns as step_completed."""
        if self._off or os.getpid() != self._process:
            return self._done_steps
        try:
            limit_s = time.monotonic() + _END_PATIENCE_S
            while self._pending and time.monotonic() < limit_s:
                self._resolve(len(self._pending))
                time.sleep(0.001 if self._pending else 0)
            self._anchor()
        except Exception as error:  # noqa: BLE001 - the script must not end for a hook
            self.fail(error)
        return self._done_steps

    def leave(self, error: DeviceError) -> None:
        """The model has left the device since the last step was completed: what was marked since is no time of it.

        The steps before that are waited for a moment, since nothing asks for their times later.
        """
        for _ in range(min(self._resolved + len(self._pending) - self._marked_before, len(self._pending))):
            self._pending.pop()
        self.finish()
        self.fail(error)

    @property
    def facts(self) -> dict[str, int]:
        """What the steps of this process need to know of it."""
        return {"launch_ns": self.launch_ns, "left_out": self._left_out, "captured": self._captured}

    def fail(self, error: Exception) -> None:
        """Records nothing any more; steps count as soon as the host has made them."""
        if not self._off:
            self._out = self._off = True
            self._failed(error)

    def _resolve(self, limit: int) -> None:
        pending, free, cells, place = self._pending, self._free, self._recorder.cells, self._recorder.place
        last, device_ns, kind, first = self._last, self._device_ns, e.DEVICE_TIME, e.FIRST_CELL
        resolved = 0
        while pending and resolved < limit:
            event, cell, aside = pending[0]
            if not event.query():
                break
            device_ns += last.elapsed_time(event) * 1e6
            at = place()  # stored as hooks of every step do: a call costs more
            cells[at + 1] = kind | aside << 8 | (cell - first) << 23  # a record has two cells
            cells[at] = round(device_ns)
            free.append(last)
            last = event
            pending.popleft()
            resolved += 1
        if resolved:
            self._last, self._device_ns = last, device_ns
            self._resolved += resolved
            self._recorder.note(self._clock(), e.DEVICE_SEEN)
        while self._ends and self._ends[0] <= self._resolved:
            self._ends.popleft()
            self._done_steps += 1

    def _anchor(self, wait_ns: int | None = ENOUGH_NS) -> list[int]:
        """Writes the tightest of a few, if the device is not full; what they took, ns. They are not in the chain of
        events, some of which are still to come, but are counted from the last one that is done."""
        anchors = take_anchors(self._anchor_events, self._own_stream, self._clock, wait_ns=wait_ns)
        self._anchored_ns = self._clock()
        if not anchors:
            return []
        best = min(anchors, key=lambda anchor: anchor.width_ns)
        device_ns = self._device_ns + self._last.elapsed_time(best.event) * 1e6
        self._recorder.note(best.before_ns, e.DEVICE_ANCHOR, 0, best.width_ns)
        self._recorder.note(round(device_ns), e.DEVICE_AT)
        self._anchors += 1
        return [anchor.width_ns for anchor in anchors]

    def _grow(self, size: int) -> None:
        """The pool has at least so many events. CUDA makes one when it is first recorded: now, not inside a step."""
        for _ in range(size - len(self._free) - len(self._pending)):
            event = self._accelerator.make_event()
            event.record(self._own_stream)
            self._free.append(event)


# Which device a script trains on, and whether its events can be had.


def device_of(devices: Iterable[tuple[str, int]]) -> tuple[tuple[str, int] | None, str]:
    """The one whose events are recorded, of the types and indices of all that its parameters lie on; or why none is.

    Neither where all of them lie on the host.
    """
    relevant = sorted({device for device in devices if device[0] in ACCELERATORS or device[0] not in ("cpu", "meta")})
    names = ", ".join(f"{kind}:{index}" for kind, index in relevant)
    if not relevant:
        return None, ""
    if unknown := sorted({kind for kind, _ in relevant} - ACCELERATORS.keys()):
        return None, f"no events of {', '.join(unknown)} are known (of CUDA and ROCm they are)"
    if len(relevant) > 1:
        return None, f"one process trains on several devices ({names}), and events time one"
    return relevant[0], ""
