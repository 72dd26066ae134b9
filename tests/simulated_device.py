"""A simulated accelerator, asynchronous like the real ones: the host queues work on streams, and runs on.

When a piece of work is done follows from when it was queued, what it waits for and how long it takes: `true_ns`, on the
host's clock, exact under any load. No thread executes it; it counts as done once the host's clock is there. That clock
is real (RealClock) or advanced by a test (VirtualClock), where nothing depends on timing. Events read a clock of the
device, of another rate and offset, which may jump. `SimulatedDevice` has what hooks need of an accelerator.
"""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import repeat
from typing import Any, Protocol

import numpy as np

MS = 1_000_000
"""Nanoseconds."""
LATENCY_NS, JUMP_NS = 5_000, 10_000
"""From a call to the earliest begin of its work on an idle stream; what some calls take beside it."""
LIMIT_S = 120.0
"""For what another rank must do first."""


class HostClock(Protocol):
    def now_ns(self) -> int: ...
    def wait_until(self, ns: int) -> None: ...


class RealClock:
    """CLOCK_MONOTONIC."""

    now_ns = staticmethod(time.perf_counter_ns)

    @staticmethod
    def wait_until(ns: int) -> None:
        while (remaining := ns - time.perf_counter_ns()) > 0:
            time.sleep(remaining / 1e9)


class VirtualClock:
    """A test advances it. Each reading takes the next of `costs_ns`: 0 at least, as a busy host would take it."""

    def __init__(self, start_ns: int = 1_000_000_000, costs_ns: Iterator[int] | None = None) -> None:
        self._ns = start_ns
        self._costs = repeat(0) if costs_ns is None else costs_ns

    def now_ns(self) -> int:
        self._ns += next(self._costs)
        return self._ns

    __call__ = now_ns

    def advance(self, ms: float) -> None:
        self._ns += round(ms * MS)

    def wait_until(self, ns: int) -> None:
        self._ns = max(self._ns, ns)


def latencies(seed: int) -> Iterator[int]:
    """Launch latencies: 4 to 6 µs, and 10 µs more in one call of 20."""
    chance = random.Random(seed)
    while True:
        yield chance.randint(LATENCY_NS - 1000, LATENCY_NS + 1000) + (JUMP_NS if chance.random() < 0.05 else 0)


class Work:
    """A piece of work on a stream. `true_ns` is when it is done; None while that depends on another rank."""

    __slots__ = ("_duration_ns", "_floor_ns", "_followers", "_missing", "true_ns")

    def __init__(self, floor_ns: int, duration_ns: int, missing: int) -> None:
        self.true_ns: int | None = None
        self._floor_ns, self._duration_ns, self._missing = floor_ns, duration_ns, missing
        self._followers: list[Work | Callable[[int], None]] = []

    def follow(self, after: Sequence[Work]) -> None:
        """Begins when all of these are done. Called once, with what no other thread completes meanwhile."""
        for each in after:
            if each.true_ns is None:
                self._missing += 1
                each._followers.append(self)
            else:
                self._floor_ns = max(self._floor_ns, each.true_ns)
        if not self._missing:
            self._complete()

    def then(self, call: Callable[[int], None]) -> None:
        if self.true_ns is None:
            self._followers.append(call)
        else:
            call(self.true_ns)

    def arrive(self, ns: int) -> None:
        """One of the things that it waits for was done at this time."""
        self._floor_ns = max(self._floor_ns, ns)
        self._missing -= 1
        if not self._missing:
            self._complete()

    def _complete(self) -> None:
        done: list[Work] = [self]
        while done:
            work = done.pop()
            work.true_ns = work._floor_ns + work._duration_ns
            followers, work._followers = work._followers, []
            for follower in followers:
                if not isinstance(follower, Work):
                    follower(work.true_ns)
                    continue
                follower._floor_ns = max(follower._floor_ns, work.true_ns)
                follower._missing -= 1
                if not follower._missing:
                    done.append(follower)


class SimulatedStream:
    """Work in the order in which it is queued."""

    def __init__(self, device: SimulatedDevice, of_training: bool) -> None:
        self.device, self.of_training, self.destroyed = device, of_training, False
        self.last: Work | None = None
        self.queued = 0
        self.pending: deque[Work] = deque()

    def wait_event(self, event: SimulatedEvent) -> None:
        event.wait(self)

    def wait_stream(self, stream: SimulatedStream) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: SimulatedEvent | None = None) -> SimulatedEvent:
        event = event or SimulatedEvent(self.device)
        event.record(self)
        return event

    def query(self) -> bool:
        return self.last is None or self.device.is_done(self.last)

    def synchronize(self) -> None:
        if self.last is not None:
            self.device.wait(self.last)

    def destroy(self) -> None:
        """Nothing can be queued on it any more."""
        self.destroyed = True


class SimulatedEvent:
    """As `torch.cuda.Event(enable_timing=True)`."""

    def __init__(self, device: SimulatedDevice) -> None:
        self.device = device
        self.work: Work | None = None

    @property
    def true_ns(self) -> int:
        """When it was done, on the host's clock; a test knows it, the hooks must not."""
        assert self.work is not None
        assert self.work.true_ns is not None
        return self.work.true_ns

    def record(self, stream: SimulatedStream | None = None) -> None:
        stream = stream or self.device.current_stream()
        self.work = self.device.queue(stream, 0)
        if stream.of_training:
            self.device.last_recorded = self.work

    def query(self) -> bool:
        self.device.check_capture()
        self.device.queries += 1
        return self.work is None or self.device.is_done(self.work)

    def wait(self, stream: SimulatedStream | None = None) -> None:
        """What is queued from now on begins after the event; the host does not wait."""
        if self.work is not None:
            self.device.queue(stream or self.device.current_stream(), 0, [self.work])

    def synchronize(self) -> None:
        if self.work is not None:
            self.device.wait(self.work)

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds, a float32. Raises RuntimeError where one of the two is not done, or is of another device."""
        if end_event.device is not self.device:
            raise RuntimeError("events are of different devices")
        if self.work is None or end_event.work is None:
            raise RuntimeError("both events must be recorded before calculating elapsed time")
        if not (self.query() and end_event.query()):  # as torch does
            raise RuntimeError("both events must be completed before calculating elapsed time")
        self.device.elapsed_times += 1
        begin, end = (self.device.time_ns(event.true_ns) for event in (self, end_event))
        return float(np.float32((end - begin) / MS))


class SimulatedDevice:
    """Streams, events and a clock.

    `rate` is how much faster its clock runs than the host's (5e-5: 50 ppm), `offset_ns` what it shows beside it;
    `jumps` are (time, ns): from that time of the host on, its clock shows so much more. `held` are (begin, end) between
    which the device is full: a stream that is not of the training has its work done at the end of them only.
    `queue_depth` is how many pieces of work a stream holds before the host waits for the oldest. `one_queue`: as with
    CUDA_DEVICE_MAX_CONNECTIONS=1 no work begins before what was queued earlier on any stream has begun.
    """

    def __init__(
        self,
        clock: HostClock | None = None,
        *,
        rate: float = 0.0,
        offset_ns: float = 0.0,
        jumps: Sequence[tuple[int, int]] = (),
        held: Sequence[tuple[int, int]] = (),
        latency_ns: Iterator[int] | None = None,
        resolution_ns: int = 1,
        queue_depth: int = 1024,
        one_queue: bool = False,
    ) -> None:
        self.clock: HostClock = clock or RealClock()
        self.rate, self.offset_ns, self.jumps, self.held = rate, offset_ns, jumps, held
        self.queue_depth, self.resolution_ns = queue_depth, resolution_ns
        self.one_queue, self._begun = one_queue, Work(0, 0, 0)
        self._begun.follow(())
        self.queries = self.elapsed_times = 0
        self.captured_by: int | None = None
        """The thread that captures a graph, as CUDA does by default: a question by another one ends that."""
        self.lost_captures = 0
        self.synchronizations = 0
        """How often the host waited for work of the training's streams."""
        self.fails = ""
        """Where not empty, nothing can be queued any more: the text of the error."""
        self.out_of_memory = False
        self.last_recorded: Work | None = None
        self._latency = latencies(0) if latency_ns is None else latency_ns
        self._start_ns = self.clock.now_ns()
        self._process = os.getpid()
        self._changed = threading.Condition(threading.RLock())
        self._of_thread = threading.local()
        self.streams: list[SimulatedStream] = []
        self.default_stream = self.training_stream()

    def time_ns(self, true_ns: int) -> float:
        """What its clock shows at this time of the host's."""
        jumped = sum(by for at, by in self.jumps if true_ns >= at)
        ns = self.offset_ns + (true_ns - self._start_ns) * (1 + self.rate) + jumped
        return ns // self.resolution_ns * self.resolution_ns

    # What hooks need of an accelerator.

    event_type = SimulatedEvent

    def make_event(self) -> SimulatedEvent:
        """Raises RuntimeError where a test sets `out_of_memory`."""
        if self.out_of_memory:
            raise RuntimeError("out of memory")
        return SimulatedEvent(self)

    def new_stream(self) -> SimulatedStream:
        """A stream on which none of the training's work runs."""
        return self._new_stream(of_training=False)

    def current_stream(self) -> SimulatedStream:
        """That of the thread."""
        return getattr(self._of_thread, "stream", self.default_stream)

    def is_capturing(self) -> bool:
        """Whether the thread captures a graph."""
        return self.captured_by == threading.get_ident()

    def check_capture(self) -> None:
        """Raises RuntimeError where a thread captures a graph, which that ends."""
        if self.captured_by is not None:
            self.lost_captures += 1
            raise RuntimeError("operation not permitted when stream is capturing")

    guard = nullcontext

    # What a training does.

    def training_stream(self) -> SimulatedStream:
        return self._new_stream(of_training=True)

    @contextmanager
    def stream(self, stream: SimulatedStream) -> Iterator[SimulatedStream]:
        """Within, the stream is the thread's current one."""
        before = self.current_stream()
        self._of_thread.stream = stream
        try:
            yield stream
        finally:
            self._of_thread.stream = before

    def run(self, ms: float, stream: SimulatedStream | None = None) -> Work:
        """Queues a kernel that takes so long; returns at once."""
        return self.queue(stream or self.current_stream(), round(ms * MS))

    def collective(self, meetings: Meetings, ms: float, stream: SimulatedStream) -> SimulatedEvent:
        """Queues on the stream what begins when the current streams of all ranks came to this call, and takes so long.

        The event is its end, for the stream that needs the result. The host does not wait.
        """
        with self._changed:
            stream.wait_stream(self.current_stream())
            arrival = self.queue(stream, 0)
            end = self.queue(stream, round(ms * MS), missing=1)
            event = SimulatedEvent(self)
            event.work = end

            def met(latest_ns: int) -> None:
                with self._changed:
                    end.arrive(latest_ns)
                    self._changed.notify_all()

            arrival.then(lambda ns: meetings.join(ns, met))
        return event

    def synchronize(self) -> None:
        for stream in list(self.streams):
            stream.synchronize()

    def queue(self, stream: SimulatedStream, duration_ns: int, after: Sequence[Work] = (), missing: int = 0) -> Work:
        """Work that begins after what the stream has, and these. The host waits where the queue is full.

        Raises RuntimeError, as CUDA does, on a stream that was destroyed, and in a forked process.
        """
        if self.fails:
            raise RuntimeError(self.fails)
        if os.getpid() != self._process:
            raise RuntimeError("cannot use the simulated device in a forked process")
        if stream.destroyed:
            raise RuntimeError("invalid resource handle: the stream was destroyed")
        self._wait_for_room(stream)
        with self._changed:
            floor_ns = self.clock.now_ns() + next(self._latency)
            if not stream.of_training:
                floor_ns = max([floor_ns, *(end for begin, end in self.held if begin <= floor_ns < end)])
            after = [*after, *([] if stream.last is None else [stream.last])]
            if self.one_queue:
                begun, self._begun = self._begun, Work(floor_ns, 0, 0)
                self._begun.follow([*after, begun])
                after = [self._begun]
            work = Work(floor_ns, duration_ns, missing)
            work.follow(after)
            stream.last = work
            stream.pending.append(work)
            stream.queued += 1
            return work

    def is_done(self, work: Work) -> bool:
        return work.true_ns is not None and self.clock.now_ns() >= work.true_ns

    def wait(self, work: Work) -> None:
        """Makes the host wait. Raises RuntimeError where other ranks never come."""
        with self._changed:
            self.synchronizations += 1
            known = work.true_ns is not None
            if not known and not isinstance(self.clock, VirtualClock):
                known = self._changed.wait_for(lambda: work.true_ns is not None, LIMIT_S)
            if not known:
                raise RuntimeError("waits for a collective that other ranks have not called")
        assert work.true_ns is not None
        self.clock.wait_until(work.true_ns)

    def _wait_for_room(self, stream: SimulatedStream) -> None:
        pending, now_ns = stream.pending, self.clock.now_ns()
        while pending and pending[0].true_ns is not None and pending[0].true_ns <= now_ns:
            pending.popleft()
        while len(pending) >= self.queue_depth:
            self.wait(pending.popleft())
            self.synchronizations -= 1

    def _new_stream(self, of_training: bool) -> SimulatedStream:
        if self.fails or self.out_of_memory:
            raise RuntimeError(self.fails or "out of memory")
        stream = SimulatedStream(self, of_training)
        self.streams.append(stream)
        return stream


# Where ranks meet: the k-th call of each rank with the k-th of the others.


class Meetings(Protocol):
    def join(self, arrived_ns: int, met: Callable[[int], None]) -> None:
        """Of one rank; `met` gets the latest arrival of all ranks, perhaps in another thread."""


class StoreMeetings:
    """Of ranks that are processes of one machine, which exchange when they came by a torch.distributed.Store.

    A thread waits there for the others; the host's threads and the streams do not.
    """

    def __init__(self, store: Any, name: str, rank: int, ranks: int) -> None:
        self._store, self._name, self._rank, self._ranks = store, name, rank, ranks
        self._joined: queue.SimpleQueue[tuple[int, Callable[[int], None]]] = queue.SimpleQueue()
        self.arrivals_ns: list[tuple[int, int]] = []
        """Of each meeting: when this rank came, and when the last did."""
        threading.Thread(target=self._meet, name=f"simulated {name}", daemon=True).start()

    def join(self, arrived_ns: int, met: Callable[[int], None]) -> None:
        self._joined.put((arrived_ns, met))

    def _meet(self) -> None:
        number = 0
        while True:
            arrived_ns, met = self._joined.get()
            self._store.set(f"{self._name}/{number}/{self._rank}", str(arrived_ns))
            keys = [f"{self._name}/{number}/{rank}" for rank in range(self._ranks)]
            latest_ns = max(int(value) for value in self._store.multi_get(keys))
            self.arrivals_ns.append((arrived_ns, latest_ns))
            met(latest_ns)
            number += 1
