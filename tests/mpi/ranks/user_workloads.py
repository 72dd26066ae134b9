"""Workloads of people's own, good and bad, for backend `mpi`: named on the command line as FILE:Class."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np


class Line:
    """A straight line through a few samples: what a numpy workload must have and no more."""

    def __init__(self, run, device, rank):
        self.rank = rank
        self.parameters = [np.zeros(4, np.float32)]
        self.inputs = np.random.default_rng((run.seed, rank)).standard_normal((run.local_batch_size, 4), np.float32)
        self.step = -1

    def batch(self, step):
        self.step = step
        return self.inputs

    def forward(self, batch):
        self.errors = batch @ self.parameters[0] - batch.sum(axis=1)
        return float(np.mean(self.errors**2))

    def backward(self):
        return [2 * self.inputs.T @ self.errors / np.float32(len(self.errors))]

    def receive(self, gradients):
        self.gradients = gradients

    def update(self):
        self.parameters[0] -= np.float32(0.1) * self.gradients[0]

    def samples(self, batch):
        return len(batch)


class KillsItsHelper(Line):
    """Kills the helper beside the ranks of its node in step 3."""

    def batch(self, step):
        if step == 3 and self.rank == 0:
            for stat in Path("/proc").glob("[0-9]*/stat"):
                with suppress(OSError):
                    parent = int(stat.read_text().rpartition(")")[2].split()[1])
                    if parent == os.getpid() and b"hpc.node_agent" in stat.with_name("cmdline").read_bytes():
                        os.kill(int(stat.parent.name), signal.SIGKILL)
        return super().batch(step)


class RaisesInItsFactory(Line):
    def __init__(self, run, device, rank):
        raise RuntimeError("my data is not here")


def when_rank_0_is_there(rank):
    """Rank 1 goes on when rank 0 has come here, too: what it does then finds all steps before completed on both."""
    from mpi4py import MPI

    if rank == 0:
        MPI.COMM_WORLD.send(None, dest=1)
    elif rank == 1:
        MPI.COMM_WORLD.recv(source=0)


class RaisesAtStep7(Line):
    def forward(self, batch):
        if self.step == 7:
            when_rank_0_is_there(self.rank)
        if self.rank == 1 and self.step == 7:
            raise RuntimeError("my loss exploded")
        return super().forward(batch)


class RaisesAtStep0(Line):
    def forward(self, batch):
        raise RuntimeError("nothing works")


class RunsOutOfMemory(Line):
    def forward(self, batch):
        raise MemoryError("no room")


class CallsExit(Line):
    def forward(self, batch):
        if self.rank == 1 and self.step == 7:
            sys.exit(0)
        return super().forward(batch)


class LosesItsLoss(Line):
    def forward(self, batch):
        return float("nan") if self.rank == 1 and self.step >= 7 else super().forward(batch)


class FitsUpToNine(Line):
    """Runs out of memory with more samples a rank than nine."""

    def forward(self, batch):
        if len(batch) > 9:
            raise MemoryError(f"no room for {len(batch)}")
        return super().forward(batch)
