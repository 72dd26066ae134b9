"""The version of Rankwise, with the commit of a checkout."""

from __future__ import annotations

import argparse
import re
from functools import cache
from pathlib import Path

__version__ = "0.4.0"
"""pyproject.toml reads this line."""

WRITTEN_BY = re.compile(rb"^# A Rankwise (\S+) job: ", re.MULTILINE)
"""The line of a job script that has the `code_version` that wrote it."""
_ROOT = Path(__file__).resolve().parents[2]


@cache
def code_version(package: Path = _ROOT / "hpc") -> str:
    """`0.4.0+3f2a1b4c5d6e`: the version, and a digest of the modules of `package`, hpc, which runs on the nodes.

    Runs of one point with other values were measured by other code. Raises OSError where a file cannot be read.
    """
    import hashlib  # OpenSSL with it, and most commands need none

    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(package).as_posix()}\0{content}\n".encode())
    return f"{__version__}+{digest.hexdigest()[:12]}"


def version_line(root: Path = _ROOT) -> str:
    """`Rankwise 0.4.0`; in a git checkout with the commit, and whether files were changed since."""
    from hpc.system.environment import describe_project  # imported here: commands that say no version need not

    project = describe_project(root)
    if not project:
        return f"Rankwise {__version__}"
    if "problem" in project:
        return f"Rankwise {__version__} (commit unknown: {project['problem']})"
    changes = ", with changes" if project["dirty"] else ""
    return f"Rankwise {__version__} (commit {project['commit'][:10]}{changes})"


class ShowVersion(argparse.Action):
    """The option that prints the version and ends; git is called only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(version_line(), flush=True)
        parser.exit(0)


def with_version(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The same parser, with --version."""
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show the version and the commit, and exit")
    return parser
