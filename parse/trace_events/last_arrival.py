"""Who comes last to a collective, and who waits for that rank: only what the clocks' bounds prove."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpc.model.timestamps import ABSENT

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class OrderBounds:
    """What leaves the order of two moments open, ns: nothing between ranks of one of the `domains` [rank] but their
    devices' time stamps, `device_ns` [rank]; else the clocks' bounds of both."""

    domains: npt.NDArray[np.intp]
    device_ns: Floats

    def against(self, last: npt.NDArray[np.intp], bounds_ns: Floats) -> Floats:
        """Of each rank's moment and that of rank `last` [step], [rank, step]; `bounds_ns` [rank, step]."""
        steps = np.arange(len(last))
        same = self.domains[:, None] == self.domains[last]
        return np.where(same, self.device_ns[:, None] + self.device_ns[last], bounds_ns + bounds_ns[last, steps])


@dataclass(frozen=True, eq=False)
class LastArrivals:
    """The last rank of each step, [step]: its number, when it arrives, whether it is provably the last of all, by how
    much it comes after the next rank to wait (`gap_ns`).

    `waits` [rank, step]: who provably waits for it; `open_ns` [rank, step]: what the clocks leave open between both.
    """

    rank: npt.NDArray[np.intp]
    moment_ns: Ints
    provable: Bools
    gap_ns: Ints
    waits: Bools
    open_ns: Floats


def last_arrivals(arrives_ns: Ints, waits_ns: Ints, bounds_ns: Floats, order: OrderBounds) -> LastArrivals:
    """From when each rank arrives, and begins to wait, [rank, step] on the global clock; ABSENT: nobody waits for it.

    A rank is provably before another where the time between both exceeds the sum of their bounds.
    """
    steps = np.arange(arrives_ns.shape[1])
    last = arrives_ns.argmax(axis=0)
    moment_ns = arrives_ns[last, steps]
    is_last = np.arange(len(arrives_ns))[:, None] == last
    open_ns = order.against(last, bounds_ns)
    counts = arrives_ns != ABSENT
    earlier = ~counts | (moment_ns - np.where(counts, arrives_ns, moment_ns) > open_ns)
    waits: Bools = (moment_ns - waits_ns > open_ns) & ~is_last
    next_ns = np.where(is_last, np.iinfo(np.int64).min, waits_ns).max(axis=0)
    gap_ns = np.maximum(0, moment_ns - np.maximum(next_ns, moment_ns - np.iinfo(np.int64).max // 2))
    return LastArrivals(
        rank=last, moment_ns=moment_ns, provable=(earlier | is_last).all(axis=0) & waits.any(axis=0), gap_ns=gap_ns,
        waits=waits, open_ns=open_ns,
    )  # fmt: skip
