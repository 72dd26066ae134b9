"""Time on an accelerator, from events on its streams: what an accelerator is here, and its anchors on the host's clock.

Used in a script's process, by hooks, and by backends. Standard library alone; torch is imported where it is asked for.
Never run on a real GPU by us.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

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

    def make_event(self) -> DeviceEvent:
        """A new event that times."""

    def current_stream(self) -> Any:
        """The stream of this device on which the calling thread queues its work."""

    def new_stream(self) -> Any:
        """A stream of its own, which waits for no other."""

    def is_capturing(self) -> bool:
        """Whether what the calling thread queues now is captured into a graph instead of run."""


class CudaAccelerator:
    """A device of `torch.cuda`, which stands for CUDA and ROCm alike."""

    def __init__(self, index: int) -> None:
        import torch  # here, because backends without torch use this file, too

        self._cuda: Any = torch.cuda
        self._index = index
        self.is_capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing

    def make_event(self) -> DeviceEvent:
        event: DeviceEvent = self._cuda.Event(enable_timing=True)
        return event

    def current_stream(self) -> Any:
        return self._cuda.current_stream(self._index)

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

    None of them is begun more than `wait_ns` after the first.
    """
    anchors: list[Anchor] = []
    first_ns = clock()
    for event in events:
        before_ns = clock()
        event.record(stream)
        event.synchronize()
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
