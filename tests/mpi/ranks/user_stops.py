"""Workloads for backend `mpi` that come to a stop by themselves, and say where: what was really done is known."""

import os
import sys
import time
from pathlib import Path

from user_workloads import Line

from hpc.recovery.journal import read_progress

DONE = 7
"""So many steps every rank completes before it stops."""
TRACES = Path(sys.argv[sys.argv.index("--traces") + 1])


class Stops(Line):
    """Stops in a step: leaves `stopped.<rank>` beside the traces, with its process, and sleeps."""

    def forward(self, batch):
        if self.step == DONE:
            beside = TRACES.parent / f"pid.{self.rank}"
            beside.write_text(str(os.getpid()))
            beside.rename(TRACES.parent / f"stopped.{self.rank}")
            time.sleep(600)
        return super().forward(batch)


class GoesOnWhenCopied(Line):
    """Waits for a copy of all its steps to lie with the traces, then goes on to the end."""

    def forward(self, batch):
        if self.step == DONE:
            while not any(self.is_copied(partial) for partial in TRACES.glob("*.partial")):
                time.sleep(0.01)
        return super().forward(batch)

    def is_copied(self, partial):
        copies = read_progress(partial)
        return self.rank in copies and copies[self.rank].completed >= DONE


class LosesItsFolder(Line):
    """In its last steps somebody puts a file where the folder of the traces was."""

    def forward(self, batch):
        if self.rank == 0 and self.step == DONE:
            TRACES.rename(TRACES.with_name("moved"))
            TRACES.write_text("")
        return super().forward(batch)


class FindsAnotherFolder(Line):
    """In its last steps the folder of the traces is moved, and another one stands in its place."""

    def forward(self, batch):
        if self.rank == 0 and self.step == DONE:
            TRACES.rename(TRACES.with_name("moved"))
            TRACES.mkdir()
        return super().forward(batch)
