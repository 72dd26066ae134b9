"""Time on an accelerator, from events on its streams: what an accelerator is here, and its anchors on the host's clock.

Used in a script's process, by hooks, and by backends. Standard library alone; only its accelerator imports torch.
Never run on a real GPU by us.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import islice, pairwise
from statistics import median_low
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
        """A stream that waits for no other, before which others wait where the device is full."""

    def is_capturing(self) -> bool:
        """Whether what the calling thread queues now is captured into a graph instead of run."""

    def guard(self) -> AbstractContextManager[object]:
        """Within, events are of the current device: a question to another one would begin to use the current."""


_NO_GUARD = nullcontext()


class CudaAccelerator:
    """A device of `torch.cuda`, which stands for CUDA and ROCm alike."""

    def __init__(self, index: int) -> None:
        import torch  # here, because backends without torch use this file, too

        self._cuda: Any = torch.cuda
        self._get_device: Callable[[], int] = torch._C._cuda_getDevice
        self.event_type: type = torch.cuda.Event
        record = {"record": torch.cuda.Event.record}  # which hooks replace for the script's events
        self._make_event: Callable[..., DeviceEvent] = type("OwnEvent", (torch.cuda.Event,), record)
        self._index = index
        self._current_pointer: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
        self._streams: dict[int, Any] = {}
        self.is_capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
        if self._get_device() != index:
            self.is_capturing = self._is_capturing_there

    def guard(self) -> AbstractContextManager[object]:
        is_current = self._get_device() == self._index
        guard: AbstractContextManager[object] = _NO_GUARD if is_current else self._cuda.device(self._index)
        return guard

    def _is_capturing_there(self) -> bool:
        with self.guard():
            captures: bool = self._cuda.is_current_stream_capturing()
            return captures

    def make_event(self) -> DeviceEvent:
        return self._make_event(enable_timing=True)

    def current_stream(self) -> Any:
        pointer = self._current_pointer(self._index)  # as Inductor's code: torch makes a new object at each question
        stream = self._streams.get(pointer)
        if stream is None:
            stream = self._streams[pointer] = self._cuda.current_stream(self._index)
        return stream

    def new_stream(self) -> Any:
        # torch has 32 streams of each priority and hands them out by turns: the highest has the fewest users.
        return self._cuda.Stream(self._index, priority=self._cuda.Stream.priority_range()[1])


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
"""The device's clock shows this at the first event or anchor that is written: its times are counted from there."""
ANCHOR_NS = 1_000_000_000
"""Between two anchors, at the next backward or end of a step."""
ENOUGH_NS = 1_000_000
"""So long the script's own thread waits for an anchor, no longer."""
LEAD_SHARE, GAP_SHARE = 8, 100
"""Where its stream waits behind the training's work, it waits for an event of that: this part of what the host is ahead
by, in which the device has enough to do, and that part of the time since the last anchor at most."""
LAUNCH_NS = 20_000
"""The launch latency until one was measured."""
FIRST_EVENTS, MAX_EVENTS = 512, 1 << 16
"""Of the pool: at first half of what a stream takes at once, then more by need."""
_END_PATIENCE_S = 1.0
WIDTH_UNIT_NS = 100
"""Of launch latencies, as they are recorded."""
_MAX_WIDTH = (1 << e.WHICH_BITS) - 1


class DeviceError(Exception):
    """The events of a device time nothing any more, for a reason that is no bug."""


class _Batch(NamedTuple):
    """What was marked one after another, until a backward begins or a step ends: event, cell of the host's record,
    whether on another stream than the training's. `last` has the last event of each stream: with these all are done."""

    events: list[tuple[DeviceEvent, int, bool]]
    last: list[DeviceEvent]
    ends_step: bool


def _raw_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


class DeviceClock:
    """Has the device note when it reaches events of hooks, and writes these times to their file.

    Nothing waits for the training's streams: where a backward begins and a step ends, events are queried, and now and
    then an anchor is taken. The device's clock is that of `elapsed_time`, from the last event of the training's stream
    to each. Where all events of the pool are pending, the oldest go without times. `failed` is called once with what
    has gone wrong; then nothing is recorded.
    """

    def __init__(
        self,
        recorder: e.Recorder,
        accelerator: Accelerator,
        failed: Callable[[Exception], None],
        clock: Callable[[], int] = perf_counter_ns,
        raw_clock: Callable[[], int] = _raw_ns,
        *,
        steps: int = 0,
    ) -> None:
        self._recorder, self._accelerator, self._failed = recorder, accelerator, failed
        self._clock, self._raw_clock = clock, raw_clock
        self._is_capturing, self.current_stream = accelerator.is_capturing, accelerator.current_stream
        self.event_type = accelerator.event_type
        self._own_stream, self.training_stream = accelerator.new_stream(), accelerator.current_stream()
        self._anchor_events, self._free = (
            [accelerator.make_event() for _ in range(count)] for count in (TRIES, FIRST_EVENTS)
        )
        for event in (*self._anchor_events, *self._free):
            event.record(self._own_stream)  # CUDA makes an event when it is first recorded
        self._made = FIRST_EVENTS
        self._events: list[tuple[DeviceEvent, int, bool]] = []
        self._aside_ends: dict[int, DeviceEvent] = {}  # the last event of each stream beside the training's
        self._batches: deque[_Batch] = deque()
        self._last: DeviceEvent | None = None
        self._device_ns = float(ORIGIN_NS)
        self._steps = self._done_steps = steps
        self._anchored_ns = self._tried_ns = clock()
        self._out = self._off = False
        self._left_out = self._captured = 0
        self._asking, self._captures = threading.Lock(), 0
        self.launch_ns = LAUNCH_NS
        """What the device took, when last seen, to reach an event on an empty stream, and the host to see it."""
        self._process = os.getpid()
        self._ask(anchor=True)

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
                return
            event = self._free.pop() if self._free else self._another()
            stream = self.current_stream()
            event.record(stream)
            aside = stream is not self.training_stream
            self._events.append((event, cell, aside))
            if aside:
                self._aside_ends[id(stream)] = event
        except Exception as error:  # noqa: BLE001 - the script must not end for a hook
            self.fail(error)

    def mark_backward(self, cell: int) -> None:
        """As `mark`, where a backward begins: on the stream of the training, whichever that is now."""
        if self._off:
            return
        if (stream := self.current_stream()) is not self.training_stream:
            self._end_batch()
            self.training_stream = stream
        self.mark(cell)
        try:
            if self._batches and not self._batches[-1].ends_step:  # not the first of the step
                self._ask(anchor=self._is_due())
            self._end_batch()
        except Exception as error:  # noqa: BLE001 - the script must not end for a hook
            self.fail(error)

    def step_completed(self) -> int:
        """Writes the times of events that are done; how many steps are complete on the device.

        Called by the thread that trains, once the host has made a step.
        """
        self._steps += 1
        if self._off:
            return self._steps
        try:
            self._end_batch(ends_step=True)
            self._out = False
            self._ask(anchor=self._is_due())
        except Exception as error:  # noqa: BLE001 - the script must not end for a hook
            self.fail(error)
        return self._steps if self._off else self._done_steps

    def capture(self, by: int) -> None:
        """A thread begins to capture a graph, 1, or has ended to, -1: meanwhile no event is queried.

        A question by any thread may end the capture with an error.
        """
        with self._asking:
            self._captures = max(self._captures + by, 0)

    def finish(self) -> int:
        """Waits a moment for the last events of the script, and takes the last anchor; returns as step_completed."""
        if self._off or os.getpid() != self._process:
            return self._done_steps
        try:
            self._end_batch()
            limit_s = time.monotonic() + _END_PATIENCE_S
            while self._batches and time.monotonic() < limit_s:
                self._ask()
                time.sleep(0.001 if self._batches else 0)
            self._ask(anchor=True)
        except Exception as error:  # noqa: BLE001 - the script must not end for a hook
            self.fail(error)
        return self._done_steps

    def leave(self, error: DeviceError) -> None:
        """The model has left the device since the last step was completed: what was marked since is no time of it.

        The steps before that are waited for a moment, since nothing asks for their times later.
        """
        self._events = []
        while self._batches and not self._batches[-1].ends_step:
            self._batches.pop()
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

    def _another(self) -> DeviceEvent:
        """A further event for the pool; once that is full, one of the oldest batch, whose times are lost."""
        if self._made < MAX_EVENTS:
            self._made += 1
            return self._accelerator.make_event()
        while not self._free:
            if not self._batches:
                self._end_batch()
            batch = self._batches.popleft()
            self._left_out += 1
            self._done_steps += batch.ends_step
            self._free += (event for event, *_ in batch.events)
        return self._free.pop()

    def _is_due(self) -> bool:
        """Whether it is time for an anchor: after each try in vain after twice as long."""
        return self._clock() - self._tried_ns >= max(ANCHOR_NS, self._tried_ns - self._anchored_ns)

    def _end_batch(self, *, ends_step: bool = False) -> None:
        if self._events or ends_step:
            ends = [*self._aside_ends.values()]
            ends += islice((event for event, _, aside in reversed(self._events) if not aside), 1)
            self._batches.append(_Batch(self._events, ends, ends_step))
            self._events, self._aside_ends = [], {}

    def _ask(self, *, anchor: bool = False) -> None:
        """Writes the times of events that are done, and an anchor. Nothing while a graph is captured."""
        if self._is_capturing():
            return
        with self._asking, self._accelerator.guard():
            if self._captures:
                return
            self._resolve()
            if anchor:
                self._anchor()

    def _resolve(self) -> None:
        batches, free, cells, place = self._batches, self._free, self._recorder.cells, self._recorder.place
        last, device_ns, kind, first = self._last, self._device_ns, e.DEVICE_TIME, e.FIRST_CELL
        resolved = 0
        while batches and all(event.query() for event in batches[0].last):
            batch = batches.popleft()
            for event, cell, aside in batch.events:
                event_ns = device_ns if last is None else device_ns + last.elapsed_time(event) * 1e6
                at = place()  # stored as hooks of every step do: a call costs more
                cells[at + 1] = kind | aside << 8 | (cell - first) << 23  # a record has two cells
                cells[at] = round(event_ns)
                if last is not None:
                    free.append(event if aside else last)
                if not aside or last is None:
                    last, device_ns = event, event_ns
            self._last, self._device_ns = last, device_ns
            self._done_steps += batch.ends_step
            resolved += len(batch.events)
        if resolved:
            self._recorder.note(self._clock(), e.DEVICE_SEEN)

    def _anchor(self) -> None:
        """Writes the tightest of a few on a stream of its own, or where the device does not get there, an event of the
        training. They are not in the chain of events, some of which are still to come, but are counted from the last
        one that is done."""
        anchors = take_anchors(self._anchor_events, self._own_stream, self._clock, wait_ns=ENOUGH_NS)
        self._tried_ns = self._clock()
        if anchors:
            best, width_ns = min(anchors, key=lambda its: its.width_ns), median_low(its.width_ns for its in anchors)
            self.launch_ns = width_ns
            if self._last is None:
                self._last = best.event
                self._anchor_events = [self._accelerator.make_event() for _ in range(TRIES)]
        elif self._last is not None and (seen := self._reached()) is not None:
            best, width_ns = seen, 0
        else:
            return
        device_ns = self._device_ns + self._last.elapsed_time(best.event) * 1e6
        self._recorder.note(best.before_ns, e.DEVICE_ANCHOR, min(width_ns // WIDTH_UNIT_NS, _MAX_WIDTH), best.width_ns)
        self._recorder.note(best.before_ns + self._raw_ahead_ns(), e.DEVICE_RAW)
        self._recorder.note(round(device_ns), e.DEVICE_AT)
        self._anchored_ns = self._tried_ns

    def _reached(self) -> Anchor | None:
        """An event of the training that the device gets to while the host looks; None where it gets to none.

        Assumed is that a host that looks sees it at most a launch latency later.
        """
        events = self._batches[0].events if self._batches else self._events
        at = bisect_left(events, True, key=lambda its: not its[0].query())
        if at == len(events):
            return None
        event, cell, _ = events[at]
        before_ns = begin_ns = self._clock()
        wait_ns = min(
            (begin_ns - self._recorder.cells[cell]) // LEAD_SHARE, (begin_ns - self._anchored_ns) // GAP_SHARE
        )
        look_ns = 0
        while not event.query():
            look_ns, before_ns = before_ns, self._clock()
            if before_ns - begin_ns > max(wait_ns, ENOUGH_NS):
                return None
        return Anchor(look_ns - self.launch_ns, self._clock(), event) if look_ns else None

    def _raw_ahead_ns(self) -> int:
        """By how much CLOCK_MONOTONIC_RAW, whose rate no time service changes, is ahead of the host's clock."""
        readings = [(self._clock(), self._raw_clock(), self._clock()) for _ in range(3)]
        before_ns, raw_ns, after_ns = min(readings, key=lambda its: its[2] - its[0])
        return raw_ns - (before_ns + after_ns) // 2


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
