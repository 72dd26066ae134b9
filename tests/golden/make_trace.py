"""Writes the golden trace of the present schema version: `python -m tests.golden.make_trace` from the checkout.

It is written once for each schema: it proves that a trace of this schema stays readable.
"""

from pathlib import Path

import numpy as np

from hpc.model.outcome import Outcome
from hpc.model.spec import RunSpec
from hpc.model.timestamps import ABSENT
from hpc.model.trace import Trace
from hpc.model.trace_file import SCHEMA_VERSION, write_trace

RUN = RunSpec(
    nodes=2,
    ranks_per_node=1,
    gpus_per_node=0,
    cpus_per_rank=1,
    backend="mpi",
    workload="delay",
    batch_size=4,
    precision="fp32",
    scaling="weak",
    warmup_steps=5,
    measured_steps=3,
    repeat=2,
    seed=0,
    site="golden",
    env={"NCCL_ALGO": "Ring"},
)


def golden_trace() -> Trace:
    """Two ranks, steps of 100 ms, the second rank's clock 100 s behind, no forward_end stamp."""
    begins = 1_000_000_000_000 + 100_000_000 * np.arange(8)
    stamps = np.stack([begins[:, None] + 20_000_000 * np.arange(6)] * 2)
    stamps[1] -= 100_000_000_000
    stamps[:, :, 2] = ABSENT
    losses = np.full((2, 8), 7.0)
    losses[1, 7] = np.nan
    injected = np.zeros((2, 8, 1), np.int64)
    injected[1, :, 0] = 1_000_000 * np.arange(8)
    points = np.array([[begins[0] - 1, begins[7] + 200_000_000]] * 2)
    points[1] -= 100_000_000_000
    return Trace(
        run=RUN,
        attempt=1,
        outcome=Outcome.OK,
        evidence="the launcher returned 0",
        script="#!/bin/bash\ntrue\n",
        stamps=stamps,
        samples=np.full((2, 8), 4, np.int32),
        losses=losses,
        steps_completed=np.array([8, 8]),
        blocks=np.array([[5, 8]]),
        clock_local_ns=points,
        clock_offset_ns=np.array([[0.0, 0.0], [1e11, 1e11]]),
        clock_bound_ns=np.array([[0.0, 0.0], [1500.0, 1500.0]]),
        clock_domains=["boot-a", "boot-b"],
        barrier_exits_ns=points + 5,
        injected_ns=injected,
        injected_phases=["data_ms"],
        ranks=[{"hostname": "a", "boot_id": "boot-a"}, {"hostname": "b", "boot_id": "boot-b"}],
        environment={"versions": {"numpy": "2.0"}},
    )


if __name__ == "__main__":
    path = Path(__file__).parent / f"trace_v{SCHEMA_VERSION}.h5"
    path.unlink(missing_ok=True)
    write_trace(path, golden_trace())
    print(path)
