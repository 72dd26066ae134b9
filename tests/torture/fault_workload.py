"""The workload under injected faults: a few steps, and an account of every completed step that no fault reaches.

$TORTURE_TRUTH names the folder of the accounts. With $TORTURE_HOLD, a file, all ranks wait in step HOLD_STEP while it
is there. $TORTURE_HANG says how the last rank hangs once its steps are made: `thread`, `atexit` or `finalize`.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

HOLD_STEP = 7
HANG_S = 600
STEP_S = 0.03


class Faulted:
    """See docs/workloads.md, backend mpi."""

    def __init__(self, run: Any, device: str, rank: int) -> None:
        self.parameters = [np.zeros(16, np.float32)]
        self._truth = Path(os.environ["TORTURE_TRUTH"])
        self._hold = Path(os.environ.get("TORTURE_HOLD", "/nonexistent/hold"))
        attempt = sys.argv[sys.argv.index("--attempt") + 1]
        self._file = os.open(
            self._truth / f"{attempt}.{os.getpid()}.{rank}.steps",
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND,
            0o600,
        )
        if rank == run.ranks - 1:
            self._hang(os.environ.get("TORTURE_HANG", ""))

    def _hang(self, how: str) -> None:
        if how == "thread":
            threading.Thread(target=self._sleep_after_the_steps, daemon=False).start()
        elif how == "atexit":
            atexit.register(time.sleep, HANG_S)
        elif how == "finalize":  # the others wait for this rank in MPI_Finalize
            atexit.register(os.kill, os.getpid(), signal.SIGSTOP)
        elif how:
            raise ValueError(f"TORTURE_HANG={how}: thread, atexit or finalize")

    @staticmethod
    def _sleep_after_the_steps() -> None:
        threading.main_thread().join()
        time.sleep(HANG_S)

    def batch(self, step: int) -> int:
        time.sleep(STEP_S)
        if step == HOLD_STEP and self._hold.exists():
            (self._truth / f"holding.{os.getpid()}").touch()
            while self._hold.exists():
                time.sleep(0.01)
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
        os.write(self._file, b".")
        return 8
