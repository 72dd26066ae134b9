"""What a script's process records of its device, against one in virtual time."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from hpc.observe import device_clock
from hpc.observe import events as e
from hpc.observe.device_clock import FIRST_EVENTS, DeviceClock, device_of
from hpc.observe.device_times import DeviceTimes, with_device_times
from hpc.observe.events import ProcessEvents, Recorder, read_events
from tests.unit.virtual_device import VirtualDevice, VirtualEvent

KINDS = (e.FETCH_IN, e.FORWARD_IN, e.BACKWARD_IN, e.GRADIENT, e.BACKWARD_OUT, e.UPDATE_OUT)


class Process:
    """A process that trains on a virtual device, and when the device really was at each of its events."""

    def __init__(self, folder: Path, device: VirtualDevice) -> None:
        self.device, self.recorder = device, Recorder(str(folder))
        self.errors: list[Exception] = []
        self.clock = DeviceClock(self.recorder, device, self.errors.append, device.clock, device.clock)
        self.true_ns: dict[int, int] = {}
        self.done = 0

    def event(self, kind: int) -> None:
        place = self.recorder.note(self.device.clock(), kind)
        pending = len(self.clock._events)
        self.clock.mark(e.cell_of(place))
        if len(self.clock._events) > pending:
            event = self.clock._events[-1][0]
            assert isinstance(event, VirtualEvent) and event.done_ns is not None
            self.true_ns[place] = event.done_ns

    def step(self, host_ms: float = 1.0, device_ms: float = 10.0) -> None:
        for kind in KINDS:
            self.device.host(host_ms / len(KINDS))
            self.event(kind)
            self.device.work(device_ms / len(KINDS))
        self.done = self.clock.step_completed()

    def pending(self) -> int:
        return sum(len(batch.events) for batch in self.clock._batches)

    def end(self) -> int:
        """The script waits for its device, and ends."""
        self.device.wait()
        return self.clock.finish()

    def recorded(self) -> ProcessEvents:
        return read_events(self.recorder.path)._replace(
            facts={"device_clock": {"name": "virtual:0", **self.clock.facts}}
        )

    def times(self) -> DeviceTimes:
        return with_device_times(self.recorded())


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process(tmp_path, VirtualDevice())


def check(process: Process, times: DeviceTimes) -> None:
    """Every event that has a time has it within its bound."""
    for place, bound in times.bounds_ns.items():
        at = times.events[place].device_ns
        assert at is not None and abs(at - process.true_ns[place]) <= bound


@pytest.mark.parametrize("host_ms", [1.0, 9.0, 30.0])
def test_events_get_the_time_at_which_the_device_was_there(process: Process, host_ms: float) -> None:
    for _ in range(300):
        process.step(host_ms)
    process.end()
    times = process.times()
    assert set(times.bounds_ns) == set(process.true_ns) and len(times.bounds_ns) == 300 * len(KINDS)
    check(process, times)
    assert max(times.bounds_ns.values()) < 20_000
    assert not times.reasons and not times.remarks and not process.errors


def test_nothing_waits_and_no_event_is_made_once_the_host_is_as_far_ahead_as_it_gets(process: Process) -> None:
    made = 0
    for number in range(200):
        process.step()
        made = process.device.made if number == 60 else made
    process.end()
    assert not process.device.waited
    assert process.device.made == made


def test_a_step_counts_once_the_device_has_made_it(process: Process) -> None:
    for number in range(1, 11):
        process.step()
        assert process.done < number  # the host is ahead
    assert process.done < 3
    assert process.end() == 10


def test_a_full_device_holds_no_host_back_and_times_stay_right(process: Process) -> None:
    """For three seconds no anchor is had: the host waits a millisecond for each that it tries, and goes on."""
    for number in range(600):
        if number == 200:
            process.clock._own_stream.free_ns = process.device.now_ns + 3_000_000_000
        before_ns = process.device.now_ns
        process.step(host_ms=12)
        assert process.device.now_ns - before_ns < 15_000_000
    process.end()
    times = process.times()
    check(process, times)
    assert len(times.bounds_ns) == 600 * len(KINDS) and not times.remarks


def test_where_the_pool_runs_out_the_oldest_steps_have_no_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_clock, "MAX_EVENTS", FIRST_EVENTS)
    process = Process(tmp_path, VirtualDevice(ahead_ms=1e6))
    steps = FIRST_EVENTS // len(KINDS) + 20
    for _ in range(steps):
        process.step(device_ms=1000)
    process.device.wait()
    for _ in range(60):
        process.step(host_ms=20)
    assert process.end() == steps + 60
    times = process.times()
    check(process, times)
    assert process.clock.facts["left_out"] > 0
    assert any("pool of device events was used up" in remark for remark in times.remarks)
    assert all("pool of device events was used up" in reason for reason in times.reasons.values())
    # The latest of those that were pending have theirs.
    assert max(times.reasons) < min(at for at in times.bounds_ns if at >= (steps - 20) * len(KINDS))
    assert len(times.reasons) == pytest.approx(21 * len(KINDS), abs=len(KINDS))


def test_what_is_captured_into_a_graph_is_not_asked_for(process: Process) -> None:
    process.step()
    process.device.captures = True
    looked = process.device.now_ns
    process.step(host_ms=0)
    assert process.device.now_ns - looked < 2_000  # no event was recorded or asked
    process.device.captures = False
    for _ in range(3):
        process.step()
    process.end()
    assert set(process.times().reasons.values()) == {"it was captured into a CUDA graph"}
    check(process, process.times())


def test_a_device_that_fails_ends_its_events_and_nothing_else(process: Process) -> None:
    for _ in range(5):
        process.step()

    def broken() -> VirtualEvent:
        raise RuntimeError("CUDA error: out of memory")

    process.clock.current_stream = broken  # type: ignore[assignment]  # as torch would raise
    for _ in range(5):
        process.step()
    assert [str(error) for error in process.errors] == ["CUDA error: out of memory"]
    assert process.done == 10  # as the host made them


def test_a_clock_that_jumps_is_told(process: Process) -> None:
    for number in range(400):
        if number == 200:
            process.device.jumped_ns = 5_000_000
        process.step(host_ms=12)
    process.end()
    times = process.times()
    check(process, times)
    assert any("contradict each other" in remark and "jumped 1 times" in remark for remark in times.remarks)
    assert times.reasons and all("contradict each other" in reason for reason in times.reasons.values())


def test_times_that_were_written_before_a_death_are_whole(process: Process) -> None:
    for _ in range(50):
        process.step(host_ms=12)
    times = process.times()
    check(process, times)
    assert len(times.bounds_ns) > 45 * len(KINDS)
    assert set(times.reasons.values()) == {"the device was not seen to get there"}


@pytest.mark.parametrize(
    ("devices", "device", "refused"),
    [
        ([("cpu", 0)], None, ""),
        ([("cuda", 1), ("cpu", 0)], ("cuda", 1), ""),
        ([("cuda", 0), ("cuda", 1)], None, "several devices (cuda:0, cuda:1)"),
        ([("mps", 0)], None, "no events of mps are known"),
        ([("xpu", 0), ("cuda", 0)], None, "no events of xpu are known"),
        ([], None, ""),
    ],
)
def test_the_device_of_a_script_or_why_there_is_none(
    devices: list[tuple[str, int]], device: tuple[str, int] | None, refused: str
) -> None:
    its, reason = device_of(devices)
    assert its == device
    assert refused in reason and bool(refused) == bool(reason)


def test_a_test_may_add_a_device_even_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device_clock.ACCELERATORS, "cpu", lambda index: VirtualDevice())
    assert device_of([("cpu", 0)]) == (("cpu", 0), "")


def test_of_several_tries_for_an_anchor_none_follows_a_long_one() -> None:
    device = VirtualDevice(launch_ns=0)
    stream, ticks = device.new_stream(), count(0, 700_000)
    anchors = device_clock.take_anchors(
        [device.make_event() for _ in range(5)], stream, ticks.__next__, wait_ns=device_clock.ENOUGH_NS
    )
    assert len(anchors) == 1


def test_a_stream_of_torch_cuda_is_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch makes a new object at each question, which takes longer than all else of an event."""
    torch = pytest.importorskip("torch")
    pointer, calls = 0, []

    def current_stream(index: int) -> object:
        calls.append(index)
        return object()

    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: pointer, raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 3, raising=False)
    accelerator = device_clock.CudaAccelerator(3)
    first = accelerator.current_stream()
    pointer = 94_000
    second = accelerator.current_stream()
    assert second is not first and accelerator.current_stream() is second
    pointer = 0
    assert accelerator.current_stream() is first and calls == [3, 3]


def test_a_script_on_cuda_1_alone_is_asked_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it does not make that the current device, a question to the current one might begin to use that."""
    torch = pytest.importorskip("torch")
    current, questions = [0], []

    def exchange(index: int) -> int:
        before, current[0] = current[0], index
        return before

    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[0], raising=False)
    monkeypatch.setattr(torch.cuda, "_exchange_device", exchange)
    monkeypatch.setattr(torch.cuda, "_maybe_exchange_device", exchange)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: bool(questions.append(current[0])))
    assert device_of([("cuda", 1)]) == (("cuda", 1), "")
    assert not device_clock.ACCELERATORS["cuda"](1).is_capturing()
    assert questions == [1] and current == [0]


def test_of_a_model_that_leaves_the_steps_before_that_have_their_times(process: Process) -> None:
    for _ in range(10):
        process.step()
    assert process.pending()
    for kind in KINDS:  # a step elsewhere
        process.event(kind)
    process.device.wait()  # as whoever copies parameters does
    process.clock.leave(device_clock.DeviceError("the model went from cuda:0 to cuda:1"))
    times = process.times()
    check(process, times)
    assert sorted(times.bounds_ns) == sorted(process.true_ns)[: 10 * len(KINDS)]
    assert [str(error) for error in process.errors] == ["the model went from cuda:0 to cuda:1"]
