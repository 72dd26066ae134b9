"""What real devices do to time stamps, as the simulated device does it: times are there, and within their bounds."""

from __future__ import annotations

from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from hpc.observe import device_clock
from hpc.observe import events as e
from hpc.observe.device_clock import Accelerator, CudaAccelerator, DeviceClock
from hpc.observe.device_times import DeviceTimes, with_device_times
from hpc.observe.events import Recorder, cell_of, read_events
from tests.simulated_device import SimulatedDevice, SimulatedEvent, SimulatedStream, VirtualClock

READING_NS = 2_000


class Host:
    """The hooks' part of a process that trains on a simulated device."""

    clock: DeviceClock

    def __init__(self, folder: Path, **device: Any) -> None:
        self.now = VirtualClock(costs_ns=repeat(READING_NS))
        self.device = SimulatedDevice(self.now, **{"rate": 3e-5, "offset_ns": 7e12, "resolution_ns": 500, **device})
        self.recorder = Recorder(str(folder))
        self.errors: list[Exception] = []
        self.true: dict[int, SimulatedEvent] = {}
        self.recorder.name("all-gather")

    def begin(self, accelerator: Accelerator | None = None) -> Host:
        """The model is seen."""
        self.clock = DeviceClock(self.recorder, accelerator or self.device, self.errors.append, self.now, self.now)
        return self

    def mark(self, kind: int, stream: SimulatedStream | None = None) -> None:
        """A hook's event, on the stream or the current one."""
        with self.device.stream(stream or self.device.current_stream()):
            place = self.recorder.note(self.now.now_ns(), kind)
            (self.clock.mark_backward if kind == e.BACKWARD_IN else self.clock.mark)(cell_of(place))
        event = SimulatedEvent(self.device)
        event.work = self.device.last_recorded
        self.true[place] = event

    def step(self, ms: float, parts: int = 10, *, waits: bool = False) -> None:
        """Of so many kernels, with an event behind each; at its end the script may wait for them."""
        self.mark(e.BACKWARD_IN)
        for _ in range(parts):
            self.now.advance(0.01)
            self.device.run(ms / parts)
            self.mark(e.FORWARD_IN)
        if waits:
            self.device.synchronize()
        self.clock.step_completed()

    def times(self) -> DeviceTimes:
        """After the end; each event that has a time has it within its bound."""
        self.device.synchronize()
        self.clock.finish()
        assert not self.errors
        facts = {"device_clock": {"name": "simulated:0", **self.clock.facts}}
        times = with_device_times(read_events(self.recorder.path)._replace(facts=facts))
        for place, bound in times.bounds_ns.items():
            assert abs(times.events[place].done_ns - self.true[place].true_ns) <= bound
        return times


def all_timed(host: Host) -> DeviceTimes:
    times = host.times()
    assert set(times.bounds_ns) == set(host.true)
    return times


GROUPS, MICRO_BATCHES = 81, 16
"""Of FSDP2 with a Llama of 70 billion parameters: its 80 blocks and the root."""


def test_a_step_of_81_groups_and_16_micro_batches_keeps_all_its_times(tmp_path: Path) -> None:
    host = Host(tmp_path).begin()
    gathers, scatters = host.device.training_stream(), host.device.training_stream()
    compute = host.device.current_stream()

    def gather() -> None:
        host.mark(e.COLLECTIVE_IN, gathers)
        host.device.run(2, gathers)
        host.mark(e.COLLECTIVE_OUT, gathers)
        host.mark(e.COLLECTIVE_WAIT)
        compute.wait_stream(gathers)
        host.mark(e.COLLECTIVE_OUT)

    def scatter() -> None:
        scatters.wait_stream(compute)
        host.mark(e.COLLECTIVE_IN, scatters)
        host.device.run(2, scatters)
        host.mark(e.COLLECTIVE_OUT, scatters)

    for _ in range(2):
        for _ in range(MICRO_BATCHES):
            for _ in range(GROUPS):
                gather()
                host.device.run(3)
            host.mark(e.BACKWARD_IN)
            for _ in range(GROUPS):
                gather()
                host.device.run(6)
                scatter()
            host.mark(e.BACKWARD_OUT)
        host.clock.step_completed()
    assert len(host.true) == 2 * MICRO_BATCHES * (10 * GROUPS + 2) > 2 * 12_000
    times = all_timed(host)
    assert not times.remarks and max(times.bounds_ns.values()) < 40_000
    assert host.clock._made < 4000  # events that are ever pending at once


@pytest.mark.parametrize("one_queue", [False, True])
def test_with_one_hardware_queue_anchors_are_events_of_the_training(tmp_path: Path, one_queue: bool) -> None:
    """The host is ahead by a step of a second and never waits: a stream of its own is reached once that is done."""
    host = Host(tmp_path, one_queue=one_queue, queue_depth=22).begin()
    for _ in range(200):
        host.step(1000)
    times = all_timed(host)
    assert max(times.bounds_ns.values()) < (100_000 if one_queue else 30_000)


def test_an_anchor_is_taken_where_the_script_waits_anyway(tmp_path: Path) -> None:
    host = Host(tmp_path, one_queue=True).begin()
    for _ in range(50):
        host.step(1000, waits=True)
    assert max(all_timed(host).bounds_ns.values()) < 30_000


def test_a_stream_that_others_use_too_holds_the_host_no_longer_than_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 32 that torch hands out by turns: ten seconds of work are queued on it."""
    host = Host(tmp_path)
    busy = host.device.new_stream()
    host.device.run(10_000, busy)
    monkeypatch.setattr(host.device, "new_stream", lambda: busy)
    before_ns = host.now.now_ns()
    host.begin()
    assert host.now.now_ns() - before_ns < 5 * device_clock.ENOUGH_NS
    for _ in range(100):
        host.step(100)
    assert max(all_timed(host).bounds_ns.values()) < 60_000


def test_a_question_is_put_to_the_device_of_its_events_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script has not made it the current one: asked there, CUDA would take 534 MB of the first device."""
    torch = pytest.importorskip("torch")
    host = Host(tmp_path)
    current, questions = [0], []

    class Event(SimulatedEvent):
        def __init__(self, **_: Any) -> None:
            super().__init__(host.device)

        def query(self) -> bool:
            questions.append(current[0])
            return super().query()

        def elapsed_time(self, end_event: Any) -> float:
            questions.append(current[0])
            return super().elapsed_time(end_event)

    class Stream:
        priority_range = staticmethod(lambda: (0, -5))

        def __new__(cls, _: int, priority: int) -> Any:
            assert priority == -5
            return host.device.new_stream()

    def exchange(index: int) -> int:
        before, current[0] = current[0], index
        return before

    cuda = {
        "Event": Event, "Stream": Stream, "_exchange_device": exchange,
        "_maybe_exchange_device": exchange, "current_stream": lambda _: host.device.current_stream(),
        "is_current_stream_capturing": lambda: bool(questions.append(current[0])),
    }  # fmt: skip
    for name, value in cuda.items():
        monkeypatch.setattr(torch.cuda, name, value)
    for name, call in {"_cuda_getCurrentRawStream": lambda _: 0, "_cuda_getDevice": lambda: current[0]}.items():
        monkeypatch.setattr(torch._C, name, call, raising=False)
    host.begin(CudaAccelerator(3))
    for _ in range(20):
        host.step(10)
    all_timed(host)
    assert set(questions) == {3} and current == [0]


def test_while_another_thread_captures_a_graph_nothing_is_asked(tmp_path: Path) -> None:
    host = Host(tmp_path).begin()
    for step in range(40):
        if step == 10:
            host.clock.capture(1)
            host.device.captured_by = 1  # no thread of this process
        if step == 30:
            host.device.captured_by = None
            host.clock.capture(-1)
        host.step(10)
    all_timed(host)
    assert host.device.lost_captures == 0


def test_events_are_asked_in_batches(tmp_path: Path) -> None:
    """`elapsed_time` asks each of its two events again, by itself."""
    host = Host(tmp_path).begin()
    for _ in range(50):
        host.step(1, parts=100)
    host.device.synchronize()
    host.clock.finish()
    device, events = host.device, len(host.true)
    assert events <= device.elapsed_times <= 1.05 * events
    assert device.queries - 2 * device.elapsed_times < 0.2 * events
