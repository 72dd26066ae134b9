"""`rankwise devcluster`: a real Slurm of several nodes on this machine, for people and tests."""

from __future__ import annotations

import sys

from hpc.system.command_line import run
from tools.devcluster.__main__ import main

if __name__ == "__main__":
    sys.exit(run(main, "launch.devcluster"))
