"""The global clock of a rank that is alone, and whose clock a process reads; real ranks are in tests/mpi."""

from __future__ import annotations

import gc

import pytest

from hpc.measure.clock import GlobalClock, slept_ns, unix_offset_ns
from hpc.model.clock_model import ClockError
from hpc.model.outcome import Outcome
from hpc.run.rank_state import outcome_of


class Alone:
    """A communicator of one rank."""

    rank, size = 0, 1

    def Dup(self):
        return self

    def gather(self, value):
        return [value]

    def bcast(self, value):
        return value

    def Gather(self, sent, received):
        received[:] = sent

    def allgather(self, value):
        return [value]

    def Barrier(self):
        pass


@pytest.mark.parametrize("collecting", [True, False])
def test_garbage_is_not_collected_meanwhile_and_as_before_afterwards(collecting):
    seen = []
    ticks = iter(range(100))

    def clock() -> int:
        seen.append(gc.isenabled())
        return next(ticks)

    was = gc.isenabled()
    try:
        (gc.enable if collecting else gc.disable)()
        GlobalClock(Alone(), clock=clock).synchronise()
        assert gc.isenabled() is collecting
    finally:
        (gc.enable if was else gc.disable)()
    assert set(seen) == {False}


def test_a_rank_alone_is_the_global_clock():
    ticks = iter(range(100))
    clock = GlobalClock(Alone(), clock=lambda: next(ticks))
    first, second = clock.synchronise(), clock.synchronise()
    assert clock.points == [first, second]
    assert [(p.offset_ns, p.bound_ns) for p in clock.points] == [(0.0, 0.0)] * 2
    # Read four times each: on entering and leaving the first barrier, at the point, on leaving the second.
    assert clock.barrier_exits_ns == [1, 3, 5, 7]
    assert [p.local_ns for p in clock.points] == [2, 6]


def test_unix_time_is_read_at_each_synchronisation():
    readings = iter([(10, 1), (20, 2)])
    clock = GlobalClock(Alone(), unix=lambda: next(readings))
    clock.synchronise()
    clock.synchronise()
    assert clock.unix_offsets_ns == [(10, 1), (20, 2)]


def test_the_narrowest_reading_of_unix_time_counts(monkeypatch):
    """Readings take 40, 11, 30, 30 and 30 ns; the second one's middle is 5 ns after it began."""
    readings = iter([0, 40, 100, 111, 200, 230, 300, 330, 400, 430])
    unix = iter([1_000_020, 1_000_107, 1_000_215, 1_000_315, 1_000_415])
    monkeypatch.setattr("hpc.measure.clock.time.perf_counter_ns", lambda: next(readings))
    monkeypatch.setattr("hpc.measure.clock.time.time_ns", lambda: next(unix))
    assert unix_offset_ns() == (1_000_002, 7)


# Suspended systems


def single(slept) -> GlobalClock:
    reported = iter(slept)
    return GlobalClock(Alone(), slept=lambda: next(reported))


@pytest.mark.parametrize(
    "slept",
    [
        [(5, 10), (5, 10), (6, 12)],
        [(0, 1_000_000), (999_999, 1_000_500), (1_000_400, 1_000_800)],  # what is left open may touch
        [(5, 10), (13, 20)],  # readings are whole nanoseconds
        [None, None],
        [None, (5, 10)],
        [(5, 10), None],
    ],
)
def test_a_system_that_may_never_have_been_suspended_is_accepted(slept):
    clock = single(slept)
    for _ in slept:
        clock.synchronise()
    assert len(clock.points) == len(slept)


@pytest.mark.parametrize(("third", "words"), [((14, 20), "0.000 s"), ((3_000_000_010, 3_000_000_050), "3.000 s")])
def test_a_suspended_system_is_named_with_the_duration(third, words):
    clock = single([(0, 7), (5, 10), third])
    clock.synchronise()
    clock.synchronise()
    with pytest.raises(ClockError, match=f"the system of rank 0 on .* was suspended for {words} since"):
        clock.synchronise()
    assert len(clock.points) == 2


def test_the_suspended_time_of_this_system_is_read():
    first, second = slept_ns(), slept_ns()
    if first is None:
        pytest.skip("this system has no CLOCK_BOOTTIME")
    assert first[0] <= first[1]
    assert max(first[0], second[0]) <= min(first[1], second[1])


@pytest.mark.parametrize("training", [False, True])
def test_an_impossible_clock_makes_a_run_invalid(training):
    assert outcome_of(ClockError("stepped"), training) is Outcome.INVALID
