"""Finds a run that makes no step, has its ranks write where they stand, and ends it: `python -m hpc.watchdog`.

The job script starts one beside each launcher, with the limits that stand at its top. docs/watchdog.md says when a run
hangs, and what happens then.

Exit status 0: the launcher has ended, by itself or by this; 2: usage.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hpc.outside import deny_world_writing
from hpc.watchdog.hang import Limits
from hpc.watchdog.watch import Launcher, Watchdog


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of `python -m hpc.watchdog`; 0 once the launcher has ended."""
    parser = argparse.ArgumentParser(
        prog="python -m hpc.watchdog", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, required=True, metavar="DIR", help="folder of the traces and records")
    parser.add_argument("--stem", required=True, help="<run id>.<attempt>")
    parser.add_argument("--launcher", type=int, required=True, metavar="PID", help="the process that started the ranks")
    usual = Limits()
    for name, value, text in (
        ("--start-limit-s", usual.start_s, "seconds from start to first step, and from last step to end"),
        ("--hang-steps", usual.steps, "median steps that a step may take,"),
        ("--hang-extra-s", usual.extra_s, "and so many seconds beside"),
        ("--copy-s", usual.copy_s, "seconds between copies of the journals to the traces, 0: never"),
    ):
        parser.add_argument(name, type=float, default=value, metavar="N", help=f"{text} (%(default)g)")
    asked = parser.parse_args(argv)
    limits = Limits(
        start_s=asked.start_limit_s, steps=asked.hang_steps, extra_s=asked.hang_extra_s, copy_s=asked.copy_s
    )
    deny_world_writing()
    os.nice(19)
    Watchdog(asked.traces, asked.stem, Launcher(asked.launcher), limits).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
