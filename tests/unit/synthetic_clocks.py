"""Clocks whose truth is known, and the messages between them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

SECOND_NS = 10**9


@dataclass(frozen=True)
class SyntheticClock:
    """A clock that shows a true time T with an offset, a drift, a rate that wanders, and from some times on a step, or
    a rate on top."""

    offset_ns: int = 0
    drift: float = 0.0
    wander: float = 0.0
    period_ns: float = 5e9
    step_at_ns: float = math.inf
    step_ns: int = 0
    slew_at_ns: float = math.inf
    slew: float = 0.0

    def read(self, true_ns: int) -> int:
        turn = 2 * math.pi / self.period_ns
        gained = true_ns * self.drift + self.wander / turn * (1 - math.cos(true_ns * turn))
        gained += self.slew * max(0.0, true_ns - self.slew_at_ns)
        return true_ns + self.offset_ns + round(gained) + (self.step_ns if true_ns >= self.step_at_ns else 0)


@dataclass(frozen=True)
class Path:
    """How long messages take: at least so much each way, and a random delay on top."""

    out_ns: int = 5_000
    back_ns: int = 5_000
    jitter_ns: int = 1_000

    def burst(self, child: SyntheticClock, root: SyntheticClock, start_ns: int, pings: int = 20, seed: int = 0):
        """The four stamps of each ping, and when the burst ended."""
        rng = np.random.default_rng(seed)
        now_ns, rows = start_ns, []
        for _ in range(pings):
            out_ns, hold_ns, back_ns, gap_ns = (int(x) for x in rng.exponential(self.jitter_ns, 4))
            received_ns = now_ns + self.out_ns + out_ns
            answered_ns = received_ns + hold_ns
            returned_ns = answered_ns + self.back_ns + back_ns
            rows.append((child.read(now_ns), root.read(received_ns), root.read(answered_ns), child.read(returned_ns)))
            now_ns = returned_ns + gap_ns
        return np.array(rows, np.int64).T, now_ns
