"""`python -m parse.report PATH… --out report.html`: what was measured as one page that judges itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hpc.system.command_line import run


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see parse.page.command."""
    from parse.page.command import main as make

    return make(argv)


if __name__ == "__main__":
    sys.exit(run(main, "parse.report"))
