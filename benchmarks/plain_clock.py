"""The method of hpc.measure.clock with nothing around it, as a comparison: a star of bursts, points, straight lines.

No barriers whose exits are kept, no checks of what clocks cannot do, no domains, no tree, one time at a time.
"""

from __future__ import annotations

import gc
from bisect import bisect
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

MAX_DRIFT, WANDER = 200e-6, 10e-6


class PlainClock:
    """`points` are (local ns, offset to rank 0 ns, bound ns)."""

    def __init__(self, comm: Intracomm, clock: Callable[[], int], pings: int) -> None:
        self._comm, self._clock, self._pings = comm.Dup(), clock, pings
        self.points: list[tuple[int, float, float]] = []

    def synchronise(self) -> None:
        """Adds a point. Collective, but not a barrier."""
        gc.disable()
        if self._comm.rank:
            self.points.append(self._ask())
        else:
            for child in range(1, self._comm.size):
                self._answer(child)
            self.points.append((self._clock(), 0.0, 0.0))
        gc.enable()

    def _answer(self, child: int) -> None:
        from mpi4py import MPI

        ping, pong = np.zeros(1, np.int64), np.zeros(2, np.int64)
        receive, send = (ping, 1, MPI.INT64_T), (pong, 2, MPI.INT64_T)
        for _ in range(1 + self._pings):
            self._comm.Recv(receive, child, 77)
            pong[0] = self._clock()
            pong[1] = self._clock()
            self._comm.Send(send, child, 78)

    def _ask(self) -> tuple[int, float, float]:
        from mpi4py import MPI

        ping, pong = np.zeros(1, np.int64), np.zeros(2, np.int64)
        send, receive = (ping, 1, MPI.INT64_T), (pong, 2, MPI.INT64_T)
        rows = np.zeros((1 + self._pings, 4), np.int64)
        for row in rows:
            sent_ns = self._clock()
            self._comm.Send(send, 0, 77)
            self._comm.Recv(receive, 0, 78)
            row[3] = self._clock()
            row[:3] = sent_ns, pong[0], pong[1]
        c1, p1, p2, c2 = rows[1:].T
        best = int(np.argmin((c2 - c1) - (p2 - p1)))
        at = int(c1[best] + c2[best]) // 2
        lower = float(np.max(p2 - c2 - MAX_DRIFT * np.abs(at - c2)))
        upper = float(np.min(p1 - c1 + MAX_DRIFT * np.abs(at - c1)))
        return at, (lower + upper) / 2, (upper - lower) / 2 + 1

    def to_global(self, local_ns: int) -> tuple[float, float]:
        """Rank 0's time, ns, and its bound."""
        points = self.points
        if len(points) == 1:
            at, offset, bound = points[0]
            return local_ns + offset, bound + MAX_DRIFT * abs(local_ns - at)
        left = min(max(bisect([at for at, _, _ in points], local_ns) - 1, 0), len(points) - 2)
        (at1, offset1, bound1), (at2, offset2, bound2) = points[left : left + 2]
        part = (local_ns - at1) / (at2 - at1)
        if 0 <= part <= 1:
            wander_ns = WANDER * min(local_ns - at1, at2 - local_ns)
            return local_ns + offset1 + part * (offset2 - offset1), bound1 + part * (bound2 - bound1) + wander_ns
        (first, offset1, bound1), (last, offset2, bound2) = points[0], points[-1]
        rate, doubt = (offset2 - offset1) / (last - first), (bound1 + bound2) / (last - first)
        lowest, highest = max(rate - doubt, -MAX_DRIFT), min(rate + doubt, MAX_DRIFT)
        rate = min(max(rate, lowest), highest)
        doubt = max(highest - rate, rate - lowest) + WANDER
        at, offset, bound = points[0] if part < 0 else points[-1]
        return local_ns + offset + rate * (local_ns - at), bound + doubt * abs(local_ns - at)
