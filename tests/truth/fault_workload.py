"""Steps of real work with real faults on some ranks: `FAULT` is `HOW:PHASE:AMOUNT@RANKS/WHEN`.

Each step sleeps in every phase and computes a little on a core that no other rank computes on meanwhile.
"""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tests.truth.fault_schedule import Fault, faults_of, position_of, window_of

DATA_MS, UPDATE_MS = 3.0, 2.0
COMPUTE_MS, SLOTS, SLOT_MS, BEFORE_MS = 4.0, 3, 8.0, 2.0
"""A rank computes so long, of its processor's time, in one of the slots of its compute phase, and not before all others
on its core have their data: one that computes at once makes them wait for the core when they wake."""

BUSY = "import os\nwhile os.getppid() == {parent}:\n for _ in range(100000): pass"
STOP = """
import os, signal, sys, time
for seconds in sys.stdin:
    os.kill({parent}, signal.SIGSTOP)
    time.sleep(float(seconds))
    os.kill({parent}, signal.SIGCONT)
"""


class FaultyWork:
    """For torch backends, whose ranks wait for one another without a core."""

    def __init__(self, run: Any, device: object, rank: int) -> None:
        self.text, self.rank, self.repeat = run.env["FAULT"], rank, run.repeat
        self.cores = sorted(os.sched_getaffinity(0))
        self.at, self.window = 0, -1
        self.model, self.samples_of_rank = torch.nn.Linear(8, 1), torch.ones(4, 8)
        self.helpers: list[subprocess.Popen[str]] = []
        self.actions: dict[str, Callable[[float], object]] = {
            "sleep": lambda ms: time.sleep(ms / 1e3), "burn": burn, "faults": fault_pages, "collect": collect,
            "save": save, "read": self._read, "busy": lambda nice: None, "stop": self._stop,
        }  # fmt: skip

    def batch(self, step: int) -> torch.Tensor:
        self.at = step
        if window_of(step) != self.window:
            self._enter(window_of(step))
        self._act("data")
        time.sleep(DATA_MS / 1e3)
        return self.samples_of_rank

    def loss(self, model: Any, batch: torch.Tensor) -> Any:
        time.sleep((BEFORE_MS + self.slot * SLOT_MS) / 1e3)
        burn(COMPUTE_MS)
        self._act("compute")
        time.sleep(((SLOTS - self.slot) * SLOT_MS - COMPUTE_MS) / 1e3)
        return model(batch).square().mean()

    def optimizer(self, **how: Any) -> torch.optim.Optimizer:
        workload = self

        class SlowSGD(torch.optim.SGD):
            def step(self, closure: Any = None) -> Any:
                workload._act("update")
                time.sleep(UPDATE_MS / 1e3)
                return super().step(closure)

        return SlowSGD(self.model.parameters(), lr=0.01, **how)

    def samples(self, batch: torch.Tensor) -> int:
        return len(batch)

    def _act(self, phase: str) -> None:
        for fault in self.faults:
            if fault.phase == phase and (weight := fault.weight(self.rank, position_of(self.at), self.repeat)):
                self.actions[fault.how](fault.amount * weight)

    def _enter(self, window: int) -> None:
        """Ends the faults of the window before, and starts the helpers that those of this one need; they end with this
        process, too."""
        for helper in self.helpers:
            helper.kill()
            helper.wait()
        self.helpers, self.window = [], window
        faults = faults_of(self.text, window)
        self.faults = [fault for fault in faults if self.rank in fault.ranks]
        self.slot = _place(self.rank, faults, self.cores)
        for fault in self.faults:
            if fault.how == "busy":
                helper = _python(BUSY)
                niceness = os.getpriority(os.PRIO_PROCESS, 0)
                os.setpriority(os.PRIO_PROCESS, helper.pid, niceness + int(fault.amount))
                self.helpers.append(helper)
            elif fault.how == "stop":
                self.helpers.append(_python(STOP))
            elif fault.how == "read":
                self.file = tempfile.TemporaryFile(dir="/var/tmp")  # noqa: SIM115  # open as long as the run
                self.file.write(os.urandom(int(fault.amount * 2**20)))
                self.file.flush()
                os.fsync(self.file.fileno())

    def _read(self, mib: float) -> None:
        """Reads so much of a file that the page cache does not hold."""
        os.posix_fadvise(self.file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.file.seek(0)
        self.file.read(int(mib * 2**20))

    def _stop(self, ms: float) -> None:
        """Has this process stopped for so long while it sleeps a little."""
        pipe = self.helpers[0].stdin
        assert pipe is not None
        pipe.write(f"{ms / 1e3}\n")
        pipe.flush()
        time.sleep(0.02)


def burn(ms: float) -> None:
    """Computes for so much of the processor's time, whatever the clock on the wall shows."""
    stop_ns = time.thread_time_ns() + int(ms * 1e6)
    while time.thread_time_ns() < stop_ns:
        pass


def fault_pages(pages: float) -> None:
    """Maps so many pages, touches them, and gives them back."""
    size = int(pages) * mmap.PAGESIZE
    with mmap.mmap(-1, size) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE].max()


def collect(objects: float) -> None:
    """Makes so many objects that refer to themselves, and collects them."""
    for _ in range(int(objects)):
        cycle: list[object] = []
        cycle.append(cycle)
    gc.collect()


def save(mib: float) -> None:
    """Writes so much to a file and on to the disk."""
    with tempfile.TemporaryFile(dir="/var/tmp") as file:
        file.write(bytes(int(mib * 2**20)))
        file.flush()
        os.fsync(file.fileno())


def _place(rank: int, faults: Sequence[Fault], cores: Sequence[int]) -> int:
    """Binds the rank to a core and returns its slot there.

    Two ranks share a core; one with a fault comes last there, so that it delays no other. But a rank with a busy loop
    on its core has it alone, and the three others share the first.
    """
    faulty = {other for fault in faults for other in fault.ranks}
    if any(fault.how == "busy" for fault in faults):
        os.sched_setaffinity(0, {cores[-1] if rank in faulty else cores[0]})
        return 0 if rank in faulty else sorted({0, 1, 2, 3} - faulty).index(rank)
    os.sched_setaffinity(0, {cores[rank % 2 * (len(cores) - 1)]})
    return SLOTS - 1 if rank in faulty else rank // 2


def _python(program: str) -> subprocess.Popen[str]:
    """A process of that program, bound as this one; `{parent}` in it is this one's number."""
    argv = [sys.executable, "-S", "-c", program.replace("{parent}", str(os.getpid()))]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, text=True)
