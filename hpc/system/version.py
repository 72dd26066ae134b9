"""The version of Rankwise, with the commit of a checkout."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpc.system.tool import run_tool

__version__ = "0.2.0"
"""setup.py reads this line."""

_ROOT = Path(__file__).resolve().parents[2]
_GIT_TIMEOUT_S = 10.0


def version_line(root: Path = _ROOT) -> str:
    """`Rankwise 0.2.0`; in a git checkout with the commit, and whether files were changed since."""
    git = ("git", "-C", str(root))
    top = run_tool([*git, "rev-parse", "--show-toplevel"], timeout_s=_GIT_TIMEOUT_S)
    if not top.ok or Path(top.stdout.strip()).resolve() != root:
        return f"Rankwise {__version__}"
    commit = run_tool([*git, "rev-parse", "--short=10", "HEAD"], timeout_s=_GIT_TIMEOUT_S)
    changed = run_tool([*git, "status", "--porcelain", "--untracked-files=no"], timeout_s=_GIT_TIMEOUT_S)
    if not (commit.ok and changed.ok):
        return f"Rankwise {__version__} (commit unknown: {(commit if changed.ok else changed).describe()})"
    return (
        f"Rankwise {__version__} (commit {commit.stdout.strip()}{', with changes' if changed.stdout.strip() else ''})"
    )


class ShowVersion(argparse.Action):
    """The option that prints the version and ends; git is called only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(version_line(), flush=True)
        parser.exit(0)


def with_version(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The same parser, with --version."""
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show the version and the commit, and exit")
    return parser
