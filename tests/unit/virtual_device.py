"""A device in virtual time: nothing waits, every moment is known, and work takes what a test says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import repeat

import numpy as np


class Stream:
    """Work is done in order; `free_ns` is when all of it is."""

    def __init__(self) -> None:
        self.free_ns = 0


class VirtualDevice:
    """An accelerator of hpc.observe.device_clock, and the host beside it, whose clock is `now_ns`."""

    def __init__(self, *, ppm: float = 50.0, launch_ns: int = 6_000, ahead_ms: float = 200) -> None:
        self.now_ns = 10**12
        self.ppm = ppm
        self.launches_ns: Iterator[int] = repeat(launch_ns)
        self.jumped_ns = 0
        self.ahead_ns = round(ahead_ms * 1e6)
        self.stream = Stream()
        self.made = 0
        self.captures = False
        self.event_type: type = VirtualEvent
        self.waited: list[Stream] = []

    def clock(self) -> int:
        """A read of the host's clock takes 50 ns."""
        self.now_ns += 50
        return self.now_ns

    def host(self, ms: float) -> None:
        """The host is busy."""
        self.now_ns += round(ms * 1e6)

    def work(self, ms: float) -> None:
        """Queues kernels on the training's stream; the host waits where that is full."""
        self.now_ns = max(self.now_ns, self.stream.free_ns - self.ahead_ns)
        self.stream.free_ns = max(self.stream.free_ns, self.now_ns + next(self.launches_ns)) + round(ms * 1e6)

    def wait(self) -> None:
        """The host waits for the training's stream, as `.item()` does."""
        self.now_ns = max(self.now_ns, self.stream.free_ns) + 4_000

    def make_event(self) -> VirtualEvent:
        self.made += 1
        return VirtualEvent(self)

    def current_stream(self) -> Stream:
        return self.stream

    def new_stream(self) -> Stream:
        return Stream()

    def is_capturing(self) -> bool:
        return self.captures

    guard = nullcontext


class VirtualEvent:
    """Notes the device's clock, in steps of half a microsecond."""

    def __init__(self, device: VirtualDevice) -> None:
        self._device = device
        self.done_ns: int | None = None
        self._shown_ns = 0

    def record(self, stream: Stream) -> None:
        device = self._device
        device.now_ns += 2_000
        self.stream = stream
        self.done_ns = max(device.now_ns + next(device.launches_ns), stream.free_ns)
        stream.free_ns = self.done_ns
        self._shown_ns = round((self.done_ns * (1 + device.ppm * 1e-6) + device.jumped_ns) / 500) * 500

    def query(self) -> bool:
        self._device.now_ns += 500
        assert self.done_ns is not None
        return self._device.now_ns >= self.done_ns

    def synchronize(self) -> None:
        assert self.done_ns is not None
        self._device.waited.append(self.stream)
        self._device.now_ns = max(self._device.now_ns, self.done_ns) + 3_000

    def elapsed_time(self, end_event: VirtualEvent) -> float:
        assert self.done_ns is not None and end_event.done_ns is not None
        assert max(self.done_ns, end_event.done_ns) <= self._device.now_ns, "not done"
        return float(np.float32((end_event._shown_ns - self._shown_ns) / 1e6))
