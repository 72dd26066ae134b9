"""Synchronisations of ranks whose clocks' truth is known, ours and the plain ones by turns; rank 0 prints JSON.

`python -m benchmarks.clock_ranks REPEATS`, one rank per clock. A repeat is three synchronisations of each, ten seconds
apart: nobody waits for those, all clocks are put forward.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from benchmarks.plain_clock import PlainClock
from hpc.measure.clock import GlobalClock
from hpc.model.clock_model import ClockModel

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

SECOND_NS = 10**9
PINGS, SYNCHRONISATIONS, APART_S = 50, 3, 10
METHODS = ("ours", "plain")


class _Clock:
    """Rank 0's shows the truth; others are up to 1000 s off, drift by up to 50 ppm and wander by 5 ppm around that.

    The truth is the machine's CLOCK_MONOTONIC, which in a time namespace is not what a process reads.
    """

    def __init__(self, rank: int) -> None:
        generator = np.random.default_rng(rank)
        self.skipped_ns = 0
        self._ahead_ns = ahead_ns()
        self._offset_ns = int(generator.integers(-(10**12), 10**12)) if rank else 0
        self._drift = float(generator.uniform(-50e-6, 50e-6)) if rank else 0.0
        self._wander = 5e-6 if rank else 0.0

    def true_ns(self) -> int:
        return time.perf_counter_ns() - self._ahead_ns + self.skipped_ns

    def show(self, true_ns: int) -> int:
        turn = 2 * math.pi / (5 * SECOND_NS)
        gained = true_ns * self._drift + self._wander / turn * (1 - math.cos(true_ns % (5 * SECOND_NS) * turn))
        return true_ns + self._offset_ns + round(gained)

    def __call__(self) -> int:
        return self.show(self.true_ns())


class _Method(Protocol):
    def synchronise(self) -> object: ...

    def place(self, local_ns: int) -> tuple[float, float]: ...


class _Ours:
    def __init__(self, comm: Intracomm, clock: Callable[[], int]) -> None:
        self._clock = GlobalClock(comm, clock=clock, domain=f"clock {comm.rank}", pings=PINGS)
        self.synchronise = self._clock.synchronise

    def place(self, local_ns: int) -> tuple[float, float]:
        place = ClockModel.of(self._clock.points).place(local_ns)
        return local_ns + place.offset_ns, place.bound_ns


class _Plain:
    def __init__(self, comm: Intracomm, clock: Callable[[], int]) -> None:
        self._clock = PlainClock(comm, clock, PINGS)
        self._comm, self.place = comm, self._clock.to_global

    def synchronise(self) -> None:
        self._clock.synchronise()
        self._comm.Barrier()  # until all are there, as ours


def ahead_ns() -> int:
    """By how much this time namespace's CLOCK_MONOTONIC is ahead of the machine's (time_namespaces(7))."""
    offsets = Path("/proc/self/timens_offsets")
    for line in offsets.read_text().splitlines() if offsets.exists() else ():
        name, seconds, ns = line.split()
        if name == "monotonic":
            return int(seconds) * SECOND_NS + int(ns)
    return 0


def repeat(comm: Intracomm, clock: _Clock, method: _Method) -> dict[str, Any]:
    """Three synchronisations: how long each took, s; error and bound, ns, right after each and between two."""
    took_s, borders_ns, after, between = [], [], [], []

    def error_and_bound(true_ns: int) -> tuple[float, float]:
        global_ns, bound_ns = method.place(clock.show(true_ns))
        return global_ns - true_ns, bound_ns

    for _ in range(SYNCHRONISATIONS):
        comm.Barrier()
        begin_s = time.perf_counter()
        method.synchronise()
        took_s.append(time.perf_counter() - begin_s)
        borders_ns.append(clock.true_ns())
        after.append(error_and_bound(borders_ns[-1]))
        clock.skipped_ns += APART_S * SECOND_NS
    for part in np.linspace(0.05, 1.95, 20):
        true_ns = borders_ns[0] + int(part * (borders_ns[-1] - borders_ns[0]) / 2)
        between.append(error_and_bound(true_ns))
    return {"took_s": took_s, "after": after, "between": between}


def main() -> None:
    """Prints {method: [repeat][rank]}."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    clock = _Clock(comm.rank)
    kinds: dict[str, Callable[[Intracomm, Callable[[], int]], _Method]] = {"ours": _Ours, "plain": _Plain}
    results: dict[str, list[Any]] = {name: [] for name in METHODS}
    for number in range(int(sys.argv[1]) + 1):
        for name in METHODS if number % 2 else reversed(METHODS):
            everybody = comm.gather(repeat(comm, clock, kinds[name](comm, clock)))
            if number:  # the first makes the connections
                results[name].append(everybody)
    if comm.rank == 0:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
