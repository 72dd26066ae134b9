"""A training of several ranks on simulated accelerators, all in virtual time: it depends on no machine and no load.

The ranks' records are those that hooks write, by the product's recorder and device clock; what each device did is known
exactly. DDP-shaped: its gradients are reduced on a stream of their own, for which the compute stream waits. The host
queues its kernels and runs `ahead` steps ahead; then it waits before its next forward, or, where the queue is `full`,
for each kernel that it queues.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpc.model.timestamps import ABSENT
from hpc.observe import events as e
from hpc.observe.device_clock import DeviceClock
from hpc.observe.events import ProcessEvents, Recorder, cell_of, read_events
from tests.simulated_device import SharedMeetings, SimulatedDevice, VirtualClock, Work, latencies

LAYERS, SAMPLES, START_NS = 4, 4, 5_000_000_000_000
FORWARD_MS, BACKWARD_MS, UPDATE_MS, REDUCTION_MS = 1.0, 2.0, 1.0, 1.0
"""On the device: of a layer, and of the step."""
KERNELS = 2 * LAYERS + 1
FETCH_MS, CALL_MS = 0.4, 0.2
"""On the host: a batch; each layer there and back, and each other call."""
HOST_PLACES, DEVICE_PLACES = ("dataset", "python", "item", "collective"), ("forward", "backward", "update")
MARKS = ("called", "backward", "grads", "reduced", "end")
Delays = Callable[[str, int, int], float]
"""(place, rank, step) → ms more than usual; of `item` more than 0 also has the host wait for the device."""


def no_delay(place: str, rank: int, step: int) -> float:
    return 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class VirtualRun:
    """What a rank recorded, what the hooks noted as having gone wrong, and the truth: `marks_ns` int64 [step, 5], as
    MARKS, on the host's clock; `idle_ns` [step] what the device had nothing to do; `true_ns` of each record of the
    device by its place."""

    recorded: ProcessEvents
    errors: Sequence[Exception]
    marks_ns: np.ndarray[Any, np.dtype[np.int64]]
    true_ns: dict[int, int]
    device: SimulatedDevice


def _costs(seed: int) -> Iterator[int]:
    """What a reading of the host's clock takes: 50 to 150 ns, and once in 200 times up to 60 µs."""
    chance = random.Random(seed)
    while True:
        yield chance.randint(50, 150) + (chance.randint(5_000, 60_000) if chance.random() < 0.005 else 0)


class _Rank:
    def __init__(
        self, folder: Path, rank: int, ranks: int, meetings: Sequence[SharedMeetings], ahead: float, full: bool,
        delays: Delays, **device: Any,
    ) -> None:  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        self.rank, self.delays = rank, delays
        self.ahead, self.depth = (0, round(ahead * KERNELS)) if full else (int(ahead), 0)
        self.kernels: list[Work] = []
        self.clock = VirtualClock(START_NS, _costs(rank))
        self.device = SimulatedDevice(self.clock, latency_ns=latencies(rank), **device)
        self.streams = [self.device.training_stream() for _ in meetings]
        self.meetings = [shared.of_rank(rank) for shared in meetings]
        self.recorder = Recorder(str(folder))
        self.recorder.state(
            ddp=True, size=ranks, joined=True, rank=rank, world_size=ranks, devices=["cpu"], roots=["Model"],
            gradient_bytes=1000,
        )  # fmt: skip
        self.errors: list[Exception] = []
        self.device_clock = DeviceClock(self.recorder, self.device, self.errors.append, self.clock)
        self.loss = self.recorder.name("all-reduce")
        self.marks: dict[str, list[Work]] = {name: [] for name in MARKS}
        self.true: dict[int, Work] = {}

    def record(self, kind: int, which: int = 0, number: int = 0, mark: str = "") -> int:
        place = self.recorder.note(self.clock(), kind, which, number)
        if kind in e.MARKED:
            before = self.device.last_recorded
            self.device_clock.mark(cell_of(place))
            event = self.device.last_recorded
            if event is not None and event is not before:
                self.true[place] = event
        if mark:
            self.marks[mark].append(self.device.queue(self.device.current_stream(), 0))
        return place

    def train(self, steps: int) -> Iterator[None]:
        """Yields where it must wait for another rank."""
        for step in range(steps):
            yield from self.step(step, lambda place, step=step: self.delays(place, self.rank, step))  # type: ignore[misc]
        self.record(e.FETCH_IN, 1)
        while any(stream.last is not None and stream.last.true_ns is None for stream in self.device.streams):
            yield
        self.device.synchronize()
        self.device_clock.finish()
        self.recorder.state(device_clock={"name": "cpu:0", **self.device_clock.facts})

    def step(self, step: int, ms: Callable[[str], float]) -> Iterator[None]:
        clock, device, record = self.clock, self.device, self.record
        if step:
            self.device_clock.step_completed()
        record(e.FETCH_IN, 1)
        clock.advance(FETCH_MS + ms("dataset"))
        record(e.FETCH_OUT, 1, SAMPLES)
        if 0 < self.ahead <= step:
            yield from self.wait(self.marks["end"][step - self.ahead])
        clock.advance(CALL_MS)
        record(e.FORWARD_IN, mark="called")
        for layer in range(LAYERS):
            clock.advance(CALL_MS + (ms("python") if layer == 1 else 0))
            yield from self.run(FORWARD_MS + (ms("forward") if layer == 1 else 0))
        record(e.ARMED)
        record(e.BACKWARD_IN, mark="backward")
        for layer in range(LAYERS):
            clock.advance(CALL_MS)
            yield from self.run(BACKWARD_MS + (ms("backward") if layer == 1 else 0))
        record(e.GRADIENT, mark="grads")
        device.collective(self.meetings[0], REDUCTION_MS, self.streams[0]).wait()
        record(e.BACKWARD_OUT, mark="reduced")
        if ms("item"):
            last = device.current_stream().last
            assert last is not None
            record(e.SYNC_IN)
            yield from self.wait(last)
            clock.advance(ms("item"))
        record(e.UPDATE_IN, 1)
        clock.advance(CALL_MS)
        yield from self.run(UPDATE_MS + ms("update"))
        record(e.UPDATE_OUT, 1, mark="end")

    def run(self, ms: float) -> Iterator[None]:
        """Queues a kernel, once there is room for it."""
        if 0 < self.depth <= len(self.kernels):
            yield from self.wait(self.kernels[-self.depth])
        self.kernels.append(self.device.run(ms))

    def wait(self, work: Work) -> Iterator[None]:
        while work.true_ns is None:
            yield
        self.device.wait(work)


def train(
    folder: Path, *, ranks: int = 2, steps: int = 60, ahead: float = 3, full: bool = False,
    delays: Delays = no_delay, rate: float = 25e-6, **device: Any,
) -> list[VirtualRun]:  # fmt: skip
    """Each rank's run; the clocks of even ranks' devices are slow by `rate`, of odd ones fast."""
    meetings = [SharedMeetings(ranks) for _ in range(2)]
    its = [
        _Rank(
            folder / f"rank{rank}", rank, ranks, meetings, ahead, full, delays,
            rate=rate if rank % 2 else -rate, offset_ns=1e12 * rank, **device,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    going = [rank.train(steps) for rank in its]
    while going:
        going = [each for each in going if next(each, StopIteration) is not StopIteration]
    return [_run_of(rank) for rank in its]


def _run_of(rank: _Rank) -> VirtualRun:
    marks = np.array([[work.true_ns or ABSENT for work in rank.marks[name]] for name in MARKS], np.int64).T
    true_ns = {place: work.true_ns for place, work in rank.true.items() if work.true_ns is not None}
    return VirtualRun(
        recorded=read_events(rank.recorder.path), errors=rank.errors, marks_ns=marks, true_ns=true_ns,
        device=rank.device,
    )  # fmt: skip
