"""Ranks on nodes with real clocks of their own, whose truth the kernel tells; rank 0 prints each error, as JSON."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

from hpc.measure.clock import GlobalClock
from hpc.model.clock_model import ClockModel


def monotonic_ahead_ns() -> int:
    """By how much this time namespace's CLOCK_MONOTONIC is ahead of the machine's own (time_namespaces(7))."""
    for line in Path("/proc/self/timens_offsets").read_text().splitlines():
        name, seconds, ns = line.split()
        if name == "monotonic":
            return int(seconds) * 10**9 + int(ns)
    raise LookupError("the kernel tells no offset of CLOCK_MONOTONIC")


comm = MPI.COMM_WORLD
global_clock = GlobalClock(comm)
readings_ns = [time.perf_counter_ns()]
for _ in range(2):
    global_clock.synchronise()
    readings_ns.append(time.perf_counter_ns())
model = ClockModel.of(global_clock.points)
local_ns = np.array([readings_ns])
global_ns, bound_ns = model.to_global(local_ns)[0], model.bounds_ns(local_ns)[0]
ahead_ns = monotonic_ahead_ns()
truth_ns = local_ns[0] - ahead_ns + comm.bcast(ahead_ns)
everybody = comm.gather(
    {
        "host": socket.gethostname(),
        "domain": global_clock.domain,
        "ahead_s": ahead_ns / 1e9,
        "points": [(p.local_ns, p.offset_ns, p.bound_ns) for p in global_clock.points],
        "error_ns": (global_ns - truth_ns).tolist(),
        "bound_ns": bound_ns.tolist(),
    }
)
if everybody is not None:
    print(json.dumps(everybody))
