"""Ranks of one machine, with clocks of our own making or the real one; rank 0 prints the results of all, a line of JSON
for each scene: `clock_ranks.py SCENE …`."""

from __future__ import annotations

import gc
import json
import math
import sys
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from hpc.measure.clock import STAR, GlobalClock
from hpc.model.clock_model import ClockError, ClockModel

SECOND_NS = 10**9
HOUR_NS = 3600 * SECOND_NS


class TrueTime:
    """The machine's own clock, from 0; `skip` lets time pass on every rank without waiting for it."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.origin_ns = comm.bcast(time.perf_counter_ns())
        self.skipped_ns = 0

    def now_ns(self) -> int:
        return time.perf_counter_ns() - self.origin_ns + self.skipped_ns

    def skip(self, seconds: int) -> None:
        self.skipped_ns += seconds * SECOND_NS


class Clock:
    """Shows the true time with an offset, a drift and a wandering rate of its seed; seed 0 shows the truth."""

    def __init__(self, true_time: TrueTime, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.true_time = true_time
        self.offset_ns = int(rng.integers(-(10**12), 10**12)) if seed else 0
        self.drift = float(rng.uniform(-50e-6, 50e-6)) if seed else 0.0
        self.wander = 4e-6 if seed else 0.0
        self.slept_ns = 0
        self.readings = 0
        self.jump_after_readings = -1
        self.jump_ns = 0

    def show(self, true_ns: int) -> int:
        turn = 2 * math.pi / (7 * SECOND_NS)
        gained = true_ns * self.drift + self.wander / turn * (1 - math.cos(true_ns * turn))
        return true_ns + self.offset_ns + round(gained)

    def slept(self) -> tuple[int, int]:
        return self.slept_ns, self.slept_ns + 500

    def __call__(self) -> int:
        self.readings += 1
        jumped = 0 <= self.jump_after_readings < self.readings
        return self.show(self.true_time.now_ns()) + (self.jump_ns if jumped else 0)


def result(global_clock: GlobalClock) -> dict:
    return {
        "points": [(p.local_ns, p.offset_ns, p.bound_ns) for p in global_clock.points],
        "barrier_exits_ns": global_clock.barrier_exits_ns,
        "domain": global_clock.domain,
    }


def synthetic(comm: MPI.Intracomm, ranks_per_clock: int, star: int = STAR) -> dict:
    """Three synchronisations ten seconds apart; errors at times before, between and after them."""
    seed = comm.rank // ranks_per_clock
    true_time = TrueTime(comm)
    clock = Clock(true_time, seed)
    true_time.skip(5)
    global_clock = GlobalClock(comm, clock=clock, domain=f"clock {seed}", star=star)
    first_ns = true_time.now_ns()
    for _ in range(3):
        global_clock.synchronise()
        true_time.skip(10)
    begin_ns = np.linspace(first_ns - 5 * SECOND_NS, true_time.now_ns(), 100).astype(np.int64)
    model = ClockModel.of(global_clock.points)
    local_ns = np.array([[clock.show(int(t)) for t in begin_ns]])
    global_ns, bound_ns = model.to_global(local_ns)[0], model.bounds_ns(local_ns)[0]
    return {
        **result(global_clock),
        "readings": clock.readings,
        "error_ns": (global_ns - begin_ns).tolist(),
        "bound_ns": bound_ns.tolist(),
    }


def real(comm: MPI.Intracomm) -> dict:
    """The machine's own clock, with the domain that the system names."""
    readings = 0

    def clock() -> int:
        nonlocal readings
        readings += 1
        return time.perf_counter_ns()

    global_clock = GlobalClock(comm, clock=clock)
    global_clock.synchronise()
    global_clock.synchronise()
    return {**result(global_clock), "readings": readings}


def refused(comm: MPI.Intracomm, break_it: Callable[[GlobalClock, Clock], None], domain: str, star: int = STAR) -> dict:
    """What every rank hears when one rank's clock is broken, and whether the next synchronisation works."""
    clock = Clock(TrueTime(comm), 0)
    global_clock = GlobalClock(comm, clock=clock, slept=clock.slept, domain=domain, star=star)
    break_it(global_clock, clock)
    before = len(global_clock.points)
    try:
        global_clock.synchronise()
        error = ""
    except ClockError as caught:
        error = str(caught)
    return {**result(global_clock), "error": error, "points_before": before, "collects": gc.isenabled()}


def step(comm: MPI.Intracomm) -> dict:
    def break_it(global_clock: GlobalClock, clock: Clock) -> None:
        if comm.rank == comm.size - 1:
            clock.jump_after_readings, clock.jump_ns = 50, HOUR_NS

    return refused(comm, break_it, domain=f"clock {comm.rank}")


def suspend(comm: MPI.Intracomm) -> dict:
    def break_it(global_clock: GlobalClock, clock: Clock) -> None:
        global_clock.synchronise()
        if comm.rank == comm.size - 1:
            clock.jump_after_readings, clock.jump_ns = 0, -HOUR_NS
            clock.true_time.skip(2 * 3600)  # so that its own time goes on, and only the comparison can tell
        else:
            clock.true_time.skip(2 * 3600)

    return refused(comm, break_it, domain=f"clock {comm.rank}")


def fast(comm: MPI.Intracomm) -> dict:
    """A clock that gains 300 ppm from one synchronisation to the next; not while messages are exchanged, which takes so
    long on a busy machine that these contradict one another. It keeps time again before it is compared once more."""

    def break_it(global_clock: GlobalClock, clock: Clock) -> None:
        global_clock.synchronise()
        time.sleep = lambda seconds: clock.true_time.skip(10_000)
        clock.true_time.skip(10_000)
        if comm.rank == comm.size - 1:
            clock.offset_ns += 3 * SECOND_NS

    return refused(comm, break_it, domain=f"clock {comm.rank}")


def slewed(comm: MPI.Intracomm) -> dict:
    """As `fast`, and the clock goes on so while the ranks wait to compare it once more."""

    def break_it(global_clock: GlobalClock, clock: Clock) -> None:
        def pass_time(seconds: float = 0) -> None:
            clock.true_time.skip(10_000)
            if comm.rank == comm.size - 1:
                clock.offset_ns += 5 * SECOND_NS

        global_clock.synchronise()
        pass_time()
        time.sleep = pass_time

    return refused(comm, break_it, domain=f"clock {comm.rank}")


def just_not_too_fast(comm: MPI.Intracomm) -> dict:
    def break_it(global_clock: GlobalClock, clock: Clock) -> None:
        if comm.rank == comm.size - 1:
            clock.drift = 199e-6
        global_clock.synchronise()
        clock.true_time.skip(10_000)

    return refused(comm, break_it, domain=f"clock {comm.rank}")


def slept(comm: MPI.Intracomm) -> dict:
    def break_it(global_clock: GlobalClock, clock: Clock) -> None:
        global_clock.synchronise()
        # Less than what two readings leave open on one rank, 90 s on the next.
        clock.slept_ns = {comm.size - 2: 400, comm.size - 1: 90 * SECOND_NS}.get(comm.rank, 0)

    return refused(comm, break_it, domain=f"clock {comm.rank}")


def parent(comm: MPI.Intracomm) -> dict:
    """In a tree of six with stars of two, rank 4 serves rank 5."""

    def break_it(global_clock: GlobalClock, clock: Clock) -> None:
        clock.offset_ns = comm.rank * HOUR_NS
        global_clock.synchronise()
        if comm.rank == 4:
            clock.jump_after_readings, clock.jump_ns = clock.readings + 50, HOUR_NS

    return refused(comm, break_it, domain=f"clock {comm.rank}", star=2)


def impostor(comm: MPI.Intracomm) -> dict:
    def break_it(global_clock: GlobalClock, clock: Clock) -> None:
        if comm.rank == comm.size - 1:
            clock.jump_after_readings, clock.jump_ns = 0, HOUR_NS

    return refused(comm, break_it, domain="one for all")


SCENES: dict[str, Callable[[MPI.Intracomm], dict]] = {
    "own": lambda comm: synthetic(comm, ranks_per_clock=1),
    "tree": lambda comm: synthetic(comm, ranks_per_clock=1, star=2),
    "pairs": lambda comm: synthetic(comm, ranks_per_clock=2),
    "real": real,
    "step": step,
    "suspend": suspend,
    "slewed": slewed,
    "fast": fast,
    "just not too fast": just_not_too_fast,
    "slept": slept,
    "parent": parent,
    "impostor": impostor,
}

if __name__ == "__main__":
    sleep = time.sleep
    for name in sys.argv[1:]:
        everybody = MPI.COMM_WORLD.gather(SCENES[name](MPI.COMM_WORLD))
        time.sleep = sleep  # which some scenes replace
        if everybody is not None:
            print(json.dumps(everybody))
