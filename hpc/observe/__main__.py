"""`rankwise observe -- train.py ARGUMENTS` measures a training script; hpc.script is its command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hpc.system.command_line import run


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see hpc.script."""
    from hpc.script import main as observe

    return observe(argv)


if __name__ == "__main__":
    sys.exit(run(main, "hpc.observe"))
