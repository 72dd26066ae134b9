"""The simulated accelerator of the tests is as asynchronous as a real one, and its times are those that follow."""

from __future__ import annotations

from itertools import repeat

import numpy as np
import pytest

from tests.simulated_device import MS, SharedMeetings, SimulatedDevice, VirtualClock

pytestmark = pytest.mark.all


def device_on(clock: VirtualClock, **changes: object) -> SimulatedDevice:
    return SimulatedDevice(clock, latency_ns=repeat(5_000), **changes)  # type: ignore[arg-type]


def test_host_runs_ahead_and_stamps_follow_the_queue() -> None:
    clock = VirtualClock(0)
    device = device_on(clock)
    events = [device.make_event() for _ in range(3)]
    for event in events:
        device.run(10)
        event.record(device.current_stream())
    assert clock.now_ns() == 0
    assert [event.query() for event in events] == [False, False, False]
    clock.advance(10.005)
    assert [event.query() for event in events] == [True, False, False]
    with pytest.raises(RuntimeError, match="completed"):
        events[0].elapsed_time(events[1])
    events[2].synchronize()
    assert clock.now_ns() == events[2].true_ns == 5_000 + 30 * MS
    assert device.synchronizations == 1
    assert [event.true_ns for event in events] == [5_000 + n * 10 * MS for n in (1, 2, 3)]
    clock.advance(7)
    events[0].record(device.current_stream())
    assert events[0].true_ns == clock.now_ns() + 5_000  # the queue is empty: it is done at once


def test_clock_of_the_device_has_its_own_rate_offset_jumps_and_float32() -> None:
    clock = VirtualClock(0)
    device = device_on(clock, rate=50e-6, offset_ns=1e15, jumps=[(20 * 1000 * MS, 3 * MS)])
    stamps = [device.make_event() for _ in range(3)]
    for event in stamps:
        event.record(device.current_stream())
        clock.advance(15_000.1)
    assert stamps[0].elapsed_time(stamps[1]) == pytest.approx(15_000.1 * (1 + 50e-6), abs=1e-3)
    assert stamps[1].elapsed_time(stamps[2]) == pytest.approx(15_000.1 * (1 + 50e-6) + 3, abs=1e-3)
    true_ms = (device.time_ns(stamps[2].true_ns) - device.time_ns(stamps[0].true_ns)) / MS
    assert stamps[0].elapsed_time(stamps[2]) == float(np.float32(true_ms)) != true_ms


def test_collective_begins_with_the_last_rank_and_the_host_goes_on() -> None:
    clock = VirtualClock(0)
    shared = SharedMeetings(2)
    ranks = [device_on(clock) for _ in range(2)]
    ends = []
    for number, device in enumerate(ranks):
        device.run(10 + 20 * number)
        ends.append(device.collective(shared.of_rank(number), 3, device.training_stream()))
        ends[-1].wait()
        update = device.run(1)
        assert (update.true_ns is None) == (number == 0)
        assert not ends[-1].query()
    assert [end.true_ns for end in ends] == [5_000 + 33 * MS] * 2
    last = ranks[0].current_stream().last
    assert last is not None and last.true_ns == 5_000 + 34 * MS
