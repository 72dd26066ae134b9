"""`python -m hpc.sweep`: measures a training workload over node counts. launch.sweep.cli is its command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hpc.system.command_line import importing, not_done, run
from hpc.system.import_guard import ForeignPackageError, refuse_foreign_packages


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line of launch.sweep.cli, where `launch` and `parse` are this project's; its exit status."""
    try:
        refuse_foreign_packages()
    except ForeignPackageError as error:
        print(f"hpc.sweep: {error}", file=sys.stderr)
        return not_done("hpc.sweep")
    with importing():
        from launch.sweep import cli  # after the check

    return cli.main(argv)


if __name__ == "__main__":
    sys.exit(run(main, "hpc.sweep"))
