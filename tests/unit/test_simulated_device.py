"""The simulated accelerator of the tests is as asynchronous as a real one, and its times are those that follow."""

from __future__ import annotations

import os
import threading
from itertools import repeat

import numpy as np
import pytest

from tests.simulated_device import MS, RealClock, SharedMeetings, SimulatedDevice, VirtualClock, latencies

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


def test_streams_wait_for_events_and_threads_have_their_own() -> None:
    clock = VirtualClock(0)
    device = device_on(clock)
    copies = device.training_stream()
    done = device.make_event()
    with device.stream(copies):
        device.run(4)
        done.record()
        seen: list[object] = []
        thread = threading.Thread(target=lambda: seen.append(device.current_stream()))
        thread.start()
        thread.join()
        assert device.current_stream() is copies
    assert seen == [device.default_stream]
    device.run(1)
    device.current_stream().wait_event(done)
    kernel = device.run(2)
    assert kernel.true_ns == 5_000 + 6 * MS
    assert clock.now_ns() == 0


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


def test_waiting_for_ranks_that_never_come_is_an_error() -> None:
    device = device_on(VirtualClock(0))
    device.collective(SharedMeetings(2).of_rank(0), 1, device.training_stream()).wait()
    with pytest.raises(RuntimeError, match="other ranks"):
        device.synchronize()


def test_full_queue_makes_the_host_wait() -> None:
    clock = VirtualClock(0)
    device = device_on(clock, queue_depth=3)
    for _ in range(4):
        device.run(10)
    assert clock.now_ns() == 5_000 + 10 * MS
    assert device.synchronizations == 0


def test_full_device_holds_other_streams_back() -> None:
    clock = VirtualClock(0)
    device = device_on(clock, held=[(MS, 100 * MS)])
    anchor = device.make_event()
    anchor.record(device.new_stream())
    assert anchor.true_ns == 5_000
    clock.advance(2)
    anchor.record(device.new_stream())
    assert anchor.true_ns == 100 * MS
    anchor.record(device.current_stream())
    assert anchor.true_ns == clock.now_ns() + 5_000


def test_what_cuda_refuses_is_refused() -> None:
    device = device_on(VirtualClock(0))
    stream = device.training_stream()
    stream.destroy()
    with pytest.raises(RuntimeError, match="destroyed"):
        device.make_event().record(stream)
    with pytest.raises(RuntimeError, match="different devices"):
        device.make_event().elapsed_time(device_on(VirtualClock(0)).make_event())
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            device.run(1)
        except RuntimeError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert "forked" in os.read(read, 1000).decode()
    os.close(read)


def test_real_clock_waits_for_the_end_of_the_queue() -> None:
    device = SimulatedDevice(RealClock())
    event = device.make_event()
    device.run(20)
    event.record(device.current_stream())
    event.synchronize()
    assert event.query()
    assert device.clock.now_ns() >= event.true_ns


def test_launch_latencies_jump_now_and_then() -> None:
    source = latencies(7)
    drawn = [next(source) for _ in range(1000)]
    assert min(drawn) >= 4_000
    assert 20 <= sum(ns > 10_000 for ns in drawn) <= 80
    assert drawn == [ns for ns, _ in zip(latencies(7), range(1000), strict=False)]
