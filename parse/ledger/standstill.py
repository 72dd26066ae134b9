"""Whether a rank did nothing at all in a long step: it neither ran nor waited for a core."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpc.model.timestamps import ABSENT, GRADS_READY
from hpc.model.trace import Trace

STANDSTILL = "a rank does not run"
COUNTERS = ("cpu_s", "main_thread_voluntary_switches", "main_thread_involuntary_switches", "main_thread_queued_s")
STILL = (0.015, 1.0, 1.0, 0.001)
"""As much may each of these grow between two samples of a rank that does nothing: a tick of the clock, a switch."""


def standstill_s(trace: Trace, place: tuple[int, int], rank: int, steps: Sequence[int]) -> float | None:
    """The seconds in which the rank did not run, in its own work of these steps: from its last step's gradients to
    those of this one, as whole intervals between two samples show them. `place` is the row of its node in the
    telemetry and its number there.

    None without these counters, or where the samples were taken by another clock than the rank's.
    """
    row, number = place
    telemetry = trace.telemetry
    if telemetry is None or trace.clock_domains[telemetry.ranks[row]] != trace.clock_domains[rank]:
        return None
    names = [f"local_rank{number}.{counter}" for counter in COUNTERS]
    if not {*names} <= {*telemetry.series}:
        return None
    values = telemetry.values[row][:, [list(telemetry.series).index(name) for name in names]]
    at = telemetry.local_ns[row]
    still = (np.diff(values, axis=0) <= STILL).all(axis=1) & (at[1:] != ABSENT)
    total_ns = 0
    for step in steps:
        begin, end = trace.stamps[:, step - 1 : step + 1][rank, :, GRADS_READY]
        total_ns += int(np.diff(at)[still & (at[:-1] >= begin) & (at[1:] <= end)].sum())
    return total_ns / 1e9
