"""`rankwise doctor`: launch.doctor.command is its command line."""

from __future__ import annotations

import sys

from hpc.system.command_line import run
from launch.doctor.command import main

if __name__ == "__main__":
    sys.exit(run(main, "launch.doctor"))
