"""Workloads of every framework one rank of which is killed in the middle: FILE:numpy, FILE:torch …"""

import os
import signal
from functools import partial
from importlib import import_module
from pathlib import Path

KILLED_RANK, KILLED_IN_STEP = 1, 7


def _is_killed(framework, run, device, rank):
    class IsKilled(import_module(f"contract_{framework}").Workload):
        def batch(self, step):
            if (rank, step) == (KILLED_RANK, KILLED_IN_STEP):
                os.kill(os.getpid(), signal.SIGKILL)
            return super().batch(step)

    Path(os.environ["PIDS"], str(os.getpid())).touch()
    return IsKilled(run, device, rank)


numpy, torch = partial(_is_killed, "numpy"), partial(_is_killed, "torch")
tensorflow, paddle = partial(_is_killed, "tensorflow"), partial(_is_killed, "paddle")
