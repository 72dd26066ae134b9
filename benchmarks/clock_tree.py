"""Synchronisations of thousands of hosts in the small: messages by the clock, exchanges one after another, no MPI."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpc.model.clock_model import MAX_DRIFT, ClockModel, SyncPoint, estimate, neighbours, through

PINGS = 20


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """Clocks that gain `drift` [host] on the truth, from `offset_ns` [host] on; messages take at least `path_ns`."""

    offset_ns: NDArray[np.int64]
    drift: NDArray[np.float64]
    path_ns: float
    generator: np.random.Generator

    @classmethod
    def drawn(cls, count: int, path_ns: float, seed: int) -> Hosts:
        """Up to 1000 s apart, drifts of up to ±50 ppm; host 0 shows the truth."""
        generator = np.random.default_rng(seed)
        offset_ns, drift = generator.integers(-(10**12), 10**12, count), generator.uniform(-50e-6, 50e-6, count)
        offset_ns[0], drift[0] = 0, 0.0
        return cls(offset_ns=offset_ns, drift=drift, path_ns=path_ns, generator=generator)

    def read(self, host: int, true_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """What that host's clock shows at these times."""
        shown_ns: NDArray[np.int64] = true_ns + self.offset_ns[host]
        shown_ns += np.rint(true_ns * self.drift[host]).astype(np.int64)
        return shown_ns

    def true_ns(self, host: int, local_ns: int) -> float:
        """When that host's clock shows `local_ns`."""
        return (local_ns - int(self.offset_ns[host])) / (1 + float(self.drift[host]))

    def exchange(self, child: int, parent: int, begin_ns: int) -> tuple[SyncPoint, int]:
        """The child's point against its parent, and when the burst ended."""
        # [ping, way there or stay or way back]; one way may take up to twice as long as the other.
        least = self.path_ns * np.array([1 + self.generator.random(), 0.02, 1 + self.generator.random()])
        legs = np.rint(least + self.generator.exponential(self.path_ns / 10, (PINGS, 3))).astype(np.int64)
        reached = begin_ns + np.cumsum(legs).reshape(PINGS, 3)
        sent = reached[:, 0] - legs[:, 0]
        c1, c2 = self.read(child, sent), self.read(child, reached[:, 2])
        p1, p2 = self.read(parent, reached[:, 0]), self.read(parent, reached[:, 1])
        return estimate(c1, p1, p2, c2, MAX_DRIFT), int(reached[-1, 2])


@dataclass(frozen=True, kw_only=True)
class Synchronisation:
    """What one cost and left: `hops` [host] to host 0, the longest chain of exchanges one after another, errors."""

    hops: NDArray[np.int64]
    rounds: int
    took_ns: int
    error_ns: NDArray[np.float64]
    bound_ns: NDArray[np.float64]


def synchronise(hosts: Hosts, points: list[list[SyncPoint]], begin_ns: int, star: int) -> Synchronisation:
    """Adds a point to each host's, as GlobalClock does among real ranks; host 0's are known beforehand."""
    count = len(points)
    hops, rounds, ready_ns = np.zeros(count, np.int64), np.zeros(count, np.int64), np.full(count, begin_ns)
    error_ns, bound_ns = np.zeros((2, count))
    points[0].append(SyncPoint(begin_ns, 0.0, 0.0))
    order = [0]
    for parent in order:
        model = ClockModel.of(points[parent])
        for child in neighbours(parent, count, star)[1]:
            near, ready_ns[parent] = hosts.exchange(child, parent, int(ready_ns[parent]))
            rounds[parent] += 1
            midpoint = model.place(near.local_ns + round(near.offset_ns))
            point = through(near, midpoint) if parent else near
            points[child].append(point)
            hops[child], rounds[child], ready_ns[child] = hops[parent] + 1, rounds[parent], ready_ns[parent]
            truth_ns = hosts.true_ns(child, point.local_ns) - point.local_ns
            error_ns[child], bound_ns[child] = point.offset_ns - truth_ns, point.bound_ns
            order.append(child)
    took_ns = int(ready_ns.max()) - begin_ns
    return Synchronisation(hops=hops, rounds=int(rounds.max()), took_ns=took_ns, error_ns=error_ns, bound_ns=bound_ns)
