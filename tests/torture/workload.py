"""The workload under torture: a few numbers, and an account of every completed step that survives a kill.

It stands in a folder of its own; the account comes into `truth/` beside it.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np

RECORD = struct.Struct("<qd")
"""A step's number and when it was completed, in seconds since 1970."""
STEP_S = 0.004


class Tortured:
    """See docs/workloads.md, backend mpi."""

    def __init__(self, run: Any, device: str, rank: int) -> None:
        self.parameters = [np.zeros(16, np.float32)]
        truth = Path(__file__).parent / "truth"
        truth.mkdir(exist_ok=True)
        life = f"{os.environ['SLURM_JOB_ID']}.{os.environ.get('SLURM_RESTART_COUNT', '0')}.{rank}"
        # Two attempts in one life of a job would be a mistake: this fails then.
        self._file = os.open(truth / f"{life}.steps", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        (truth / f"{life}.pid").write_text(f"{os.getpid()}\n")

    def batch(self, step: int) -> int:
        time.sleep(STEP_S)
        return step

    def forward(self, batch: int) -> float:
        return 0.0

    def backward(self) -> list[Any]:
        return [np.ones(16, np.float32)]

    def receive(self, gradients: list[Any]) -> None:
        pass

    def update(self) -> None:
        pass

    def samples(self, batch: int) -> int:
        """Called when the step is done, just before its end is recorded."""
        os.write(self._file, RECORD.pack(batch, time.time()))
        return 8
