"""`rankwise sweep`: measures a training workload over node counts. launch.sweep.cli is its command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hpc.system.command_line import run
from hpc.system.import_guard import use_own_packages


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line of launch.sweep.cli; its exit status."""
    use_own_packages()
    from launch.sweep import cli

    return cli.main(argv)


if __name__ == "__main__":
    sys.exit(run(main, "hpc.sweep", lost_output=1 if sys.argv[1:2] == ["recover"] else None))
