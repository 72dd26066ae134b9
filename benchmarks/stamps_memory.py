"""Trains so many steps and prints the bytes held: `python -m benchmarks.stamps_memory BACKEND STEPS`.

The difference between many steps and few is what a rank keeps of each: journal, timer, losses.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from hpc.backends import load_backend
from hpc.model.spec import RunSpec
from hpc.recovery.journal import Journal
from hpc.run.train import train
from hpc.workloads import load_factory


class TinyWorkload:
    """A workload in numpy that computes next to nothing, and keeps nothing of a step."""

    def __init__(self, run: RunSpec, device: str, rank: int) -> None:
        self.parameters = [np.zeros(4, np.float32)]
        self._loss = 0.0

    def batch(self, index: int) -> int:
        """The number of the step."""
        return index

    def forward(self, batch: int) -> float:
        """A loss of its own for every step."""
        return batch + 0.5

    def backward(self) -> list[Any]:
        """One gradient."""
        return [np.ones(4, np.float32)]

    def receive(self, gradients: list[Any]) -> None:
        """Nothing."""

    def update(self) -> None:
        """Nothing."""

    def samples(self, batch: int) -> int:
        """One a step."""
        return 1


def held_bytes() -> int:
    """The memory that this process holds now, that in /dev/shm which it maps included (proc(5), VmRSS).

    What was freed is given back first: glibc keeps some of it for later.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))


def main() -> None:
    """Trains as the arguments say."""
    from mpi4py import MPI

    from hpc.measure.world import world_of

    name, steps = sys.argv[1], int(sys.argv[2])
    run = RunSpec(
        nodes=1, ranks_per_node=1, gpus_per_node=0, cpus_per_rank=1, backend=name, workload="mlp", batch_size=1,
        precision="fp32", scaling="weak", warmup_steps=10, measured_steps=steps - 10, block_steps=500, repeat=1,
        seed=0, site="here",
        options={} if name == "mpi" else {"width": "8", "depth": "1"},
    )  # fmt: skip
    backend = load_backend(name)
    backend.join(run, world_of(MPI.COMM_WORLD), MPI.COMM_WORLD)
    backend.build(TinyWorkload if name == "mpi" else load_factory(run.workload, name.partition("-")[0]))
    with tempfile.TemporaryDirectory() as traces:
        journal = Journal(Path(traces), "memory", 0, run.steps)
        try:
            timer = backend.make_timer(run.steps)
            timer.record_into(journal.stamps)
            train(backend, run, timer, journal.samples, lambda: None)
            print(held_bytes())
        finally:
            journal.remove()
    backend.leave()


if __name__ == "__main__":
    main()
