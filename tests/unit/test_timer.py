"""StepTimer: the host's against a fake clock, the device's against a mock of CUDA events (there is no GPU here)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.measure.meetings import Meetings
from hpc.measure.timer import StepTimer, device_timer, host_timer
from hpc.model.timestamps import ABSENT


def one_step(timer: StepTimer) -> None:
    timer.batch_ready()
    timer.forward_end()
    timer.grads_ready()
    timer.reduced()
    timer.end()


def test_steps_begin_where_the_one_before_ended() -> None:
    timer = host_timer("phases", 3, clock=count(100).__next__)
    timer.begin(0)
    for _ in range(2):
        one_step(timer)
    timer.begin(2)
    one_step(timer)
    assert np.reshape(timer.stamps, (3, 6)).tolist() == [
        [100, 101, 102, 103, 104, 105],
        [105, 106, 107, 108, 109, 110],
        [111, 112, 113, 114, 115, 116],
    ]


def test_the_last_of_several_gradients_counts_and_unmarked_stamps_are_absent() -> None:
    timer = host_timer("phases", 2, clock=count(0).__next__)
    timer.begin(0)
    timer.batch_ready()
    timer.grads_ready()
    timer.grads_ready()
    timer.reduced()
    timer.end()
    assert list(timer.stamps) == [0, 1, ABSENT, 3, 4, 5, 5, *[ABSENT] * 5]


@pytest.mark.parametrize("kind", ["host", "device"])
def test_a_timer_records_only_into_a_buffer_that_fits(kind: str) -> None:
    device = FakeDevice()
    timer: StepTimer = StepTimer(2) if kind == "host" else device_timer("phases", 2, device.event, device)
    buffer = memoryview(array("q", [ABSENT] * 12))
    timer.record_into(buffer)
    timer.begin(0)
    one_step(timer)
    timer.resolve()
    assert ABSENT not in buffer[:6]
    for wrong in (memoryview(array("q", [0] * 11)), memoryview(array("i", [0] * 12))):
        with pytest.raises(ValueError, match="12 int64"):
            timer.record_into(wrong)


class FakeDevice:
    """A mock of a GPU with its own clock: `now_ns` is the host's time, the device's drifts against it."""

    def __init__(self, drift: float = 0.0, host_steps_ns: Iterator[int] | None = None) -> None:
        self.now_ns = 10**15
        self.drift = drift
        self.ahead_ns = self.synchronised = 0
        self._host_steps_ns = host_steps_ns

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def host_clock(self) -> int:
        self.now_ns += next(self._host_steps_ns) if self._host_steps_ns else 0
        return self.now_ns


class FakeEvent:
    """A mock of torch.cuda.Event: its differences are float32 of milliseconds, as CUDA's are."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self._at_ns: float | None = None

    def record(self, stream: object) -> None:
        assert stream is self._device
        self._at_ns = self._device.now_ns * (1 + self._device.drift) + self._device.ahead_ns

    def query(self) -> bool:
        return self._at_ns is not None

    def synchronize(self) -> None:
        self._device.synchronised += 1

    def elapsed_time(self, end_event: FakeEvent) -> float:
        assert self._at_ns is not None
        assert end_event._at_ns is not None
        return float(np.float32((end_event._at_ns - self._at_ns) / 1e6))


@pytest.mark.parametrize("drift", [0.0, 50e-6, -50e-6])
def test_device_events_become_times_of_the_host(drift: float) -> None:
    steps, second = 200, 10**9
    device = FakeDevice(drift)
    timer = device_timer("phases", steps, device.event, device, clock=device.host_clock)
    true_ns = []
    timer.begin(0)
    for _ in range(steps):
        row = [device.now_ns]
        for mark in (timer.batch_ready, timer.forward_end, timer.grads_ready, timer.reduced, timer.end):
            device.now_ns += second // 5
            mark()
            row.append(device.now_ns)
        true_ns.append(row)
    timer.resolve()
    # 200 s: one float32 of milliseconds for all of them would be off by 16 µs.
    assert np.abs(np.reshape(timer.stamps, (steps, 6)) - np.array(true_ns)).max() < 1000


def test_nothing_waits_for_the_device_inside_a_segment() -> None:
    device = FakeDevice()
    timer = device_timer("phases", 3, device.event, device, clock=device.host_clock)
    timer.begin(0)
    before = device.synchronised
    for _ in range(3):
        one_step(timer)
    assert device.synchronised == before
    assert set(timer.stamps) == {ABSENT}
    timer.resolve()
    assert device.synchronised > before
    assert ABSENT not in timer.stamps


def test_an_empty_segment_resolves_to_nothing() -> None:
    device = FakeDevice()
    timer = device_timer("phases", 2, device.event, device, clock=device.host_clock)
    timer.resolve()
    timer.begin(0)
    timer.resolve()
    timer.resolve()
    assert set(timer.stamps[1:]) == {ABSENT}


def test_an_omitted_stamp_is_absent_on_a_device_too() -> None:
    device = FakeDevice()
    timer = device_timer("phases", 1, device.event, device, clock=device.host_clock)
    timer.begin(0)
    timer.batch_ready()
    timer.grads_ready()
    timer.reduced()
    timer.end()
    timer.resolve()
    assert [stamp == ABSENT for stamp in timer.stamps] == [False, False, True, False, False, False]


def test_each_segment_has_anchors_of_its_own() -> None:
    device = FakeDevice()
    timer = device_timer("phases", 2, device.event, device, clock=device.host_clock)
    for step in range(2):
        timer.begin(step)
        begin_ns = device.now_ns
        device.now_ns += 1000
        one_step(timer)
        timer.resolve()
        assert timer.stamps[6 * step] == begin_ns
        assert timer.stamps[6 * step + 5] == begin_ns + 1000
        device.now_ns += 10**12


@given(st.lists(st.integers(1, 10**6), min_size=40, max_size=40))
def test_the_bound_covers_the_time_of_reading_the_host_clock(steps_ns: list[int]) -> None:
    device = FakeDevice(host_steps_ns=iter(steps_ns))
    timer = device_timer("phases", 1, device.event, device, clock=device.host_clock)
    timer.begin(0)
    begin_ns = device.now_ns
    device.now_ns += 10**6
    one_step(timer)
    end_ns = device.now_ns
    timer.resolve()
    assert abs(timer.stamps[0] - begin_ns) <= timer.bound_ns + 1
    assert abs(timer.stamps[5] - end_ns) <= timer.bound_ns + 1


def test_the_bound_covers_what_a_clock_wanders_between_its_anchors() -> None:
    """By 8 ppm, for half a minute each to one side of its mean rate and to the other."""
    device = FakeDevice()
    timer = device_timer("phases", 60, device.event, device, clock=device.host_clock)
    true_ns = []
    timer.begin(0)
    for second in range(60):
        device.now_ns += 10**9
        device.ahead_ns += 8_000 if second < 30 else -8_000
        true_ns.append(device.now_ns)
        timer.end()
    timer.resolve()
    errors = np.abs(np.reshape(timer.stamps, (60, 6))[:, 5] - np.array(true_ns))
    assert 200_000 < errors.max() <= timer.bound_ns < 400_000


NAMES = ("gather", "sum")


def steps_with_meetings(timer: StepTimer, meetings: Meetings, wait: Callable[[], None], steps: int = 2) -> None:
    """Steps of two meetings each, in segments of their own; the second is called before the first is waited for."""
    timer.record_meetings(meetings)
    for step in range(steps):
        timer.begin(step)
        meetings.begin(step)
        timer.batch_ready()
        numbers = []
        for name in NAMES:
            wait()
            numbers.append(meetings.arrived(name))
        for number in numbers:
            wait()
            meetings.waits(number)
            wait()
            meetings.ended(number)
        timer.forward_end()
        timer.grads_ready()
        timer.reduced()
        meetings.finish()
        timer.end()
        timer.resolve()


def test_meetings_are_recorded_by_the_clock_of_the_steps() -> None:
    meetings = Meetings(2, 1, NAMES)
    timer = host_timer("phases", 2, clock=count(0).__next__)
    steps_with_meetings(timer, meetings, lambda: None)
    assert list(timer.stamps) == [0, 1, 8, 9, 10, 11, 12, 13, 20, 21, 22, 23]
    assert list(meetings.stamps) == [2, 4, 5, 3, 6, 7, 14, 16, 17, 15, 18, 19]


def test_meetings_on_a_device_become_times_of_the_host() -> None:
    device, meetings, true_ns = FakeDevice(50e-6), Meetings(2, 1, NAMES), []

    def wait() -> None:
        device.now_ns += 10**7
        true_ns.append(device.now_ns)

    timer = device_timer("phases", 2, device.event, device, clock=device.host_clock)
    steps_with_meetings(timer, meetings, wait)
    in_order = np.sort(np.array(meetings.stamps).reshape(2, 6), axis=1).ravel()
    assert np.abs(in_order - true_ns).max() < 1000
    assert list(np.argsort(np.array(meetings.stamps)[:6])) == [0, 3, 1, 2, 4, 5]
    assert ABSENT not in timer.stamps


def test_where_whole_steps_are_stamped_meetings_are_absent() -> None:
    meetings = Meetings(2, 1, NAMES)
    steps_with_meetings(host_timer("step", 2), meetings, lambda: None)
    assert set(meetings.stamps) == {ABSENT}


@pytest.mark.parametrize("on_device", [False, True])
def test_the_meetings_of_a_step_are_learned_while_warming_up(on_device: bool) -> None:
    meetings, device = Meetings(3, 2), FakeDevice(50e-6)
    host, clock = StepTimer(3), device.host_clock
    timer: StepTimer = device_timer("phases", 3, device.event, device, clock=clock) if on_device else host
    steps_with_meetings(timer, meetings, lambda: None, steps=3)
    assert (meetings.names, meetings.roots, meetings.irregular_steps) == (NAMES, (-1, -1), 0)
    stamps = np.array(meetings.stamps).reshape(3, 6)
    assert (stamps[0] == ABSENT).all()
    assert (stamps[1:] != ABSENT).all()


def called(meetings: Meetings, step: int, *names: str) -> None:
    meetings.begin(step)
    for name in names:
        meetings.ended(meetings.arrived(name))
    meetings.finish()


def test_a_measured_step_with_other_meetings_is_absent_and_counted() -> None:
    meetings, timer = Meetings(5, 2), StepTimer(5)
    timer.record_meetings(meetings)
    sequences = [("first",), NAMES, NAMES, ("gather",), (*NAMES, "sum")]
    for step, names in enumerate(sequences):
        called(meetings, step, *names)
    stamps = np.array(meetings.stamps).reshape(5, 2, 3)
    assert meetings.names == NAMES
    assert [bool((each[:, [0, 2]] != ABSENT).all()) for each in stamps] == [False, False, True, False, False]
    assert (stamps[3:] == ABSENT).all()
    assert meetings.irregular_steps == 2


def test_steps_behind_the_measured_ones_leave_the_stamps_alone() -> None:
    meetings, timer = Meetings(2, 1, ("sum",)), StepTimer(2)
    timer.record_meetings(meetings)
    for step in range(4):
        called(meetings, step, "sum")
    before = list(meetings.stamps)
    called(meetings, 7, "sum", "sum")
    assert list(meetings.stamps) == before and ABSENT not in before[::3]
    assert meetings.irregular_steps == 0


def test_collectives_that_a_meeting_calls_in_turn_are_a_part_of_it() -> None:
    meetings, timer = Meetings(2, 1, ("sum",)), host_timer("phases", 2, clock=count(0).__next__)
    timer.record_meetings(meetings)
    meetings.begin(0)
    assert meetings.meet("sum", lambda value: meetings.meet("inner", lambda: value), 5) == 5
    with pytest.raises(ZeroDivisionError):
        meetings.meet("sum", lambda: 1 / 0)
    assert meetings.arrived("another") == 2  # not taken for a part of the one that failed
    meetings.finish()
    assert meetings.names == ("sum", "sum", "another")


@pytest.mark.parametrize("on_device", [False, True])
def test_a_timer_at_rest_leaves_the_stamps_alone(on_device: bool) -> None:
    device = FakeDevice()
    timer = device_timer("phases", 3, device.event, device, clock=device.host_clock) if on_device else StepTimer(3)
    buffer = memoryview(array("q", [ABSENT] * 18))
    timer.record_into(buffer)
    for step in range(3):
        device.now_ns += 1000
        timer.begin(step)
        one_step(timer)
        timer.resolve()
    before, waits = buffer.tolist(), device.synchronised
    timer.rest()
    for _ in range(2):
        timer.begin(0)
        one_step(timer)
    timer.resolve()
    assert (buffer.tolist(), device.synchronised) == (before, waits) and ABSENT not in before
