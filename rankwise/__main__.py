"""The command `rankwise`, also as `python -m rankwise`: hpc.command is what it does."""

import sys

from rankwise import SOURCE


def main() -> int:
    """Runs the command that the command line names; the exit status."""
    sys.path.insert(0, str(SOURCE))
    from hpc.command import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
