"""Runs benches and writes what they print into docs/results.md, where each has the lines of its last run and no others.

`python -m benchmarks [NAME…]`: `logs` is benchmarks.bench_logs; without names all of them. The lines of a bench that is
no longer there are dropped.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

FOLDER = Path(__file__).parent
RESULTS = FOLDER.parent / "docs" / "results.md"
BEGIN, END = "<!-- written by python -m benchmarks -->\n", "<!-- end -->\n"
_PART = re.compile(r"^\* `bench_(?P<name>\w+)`.*\n(?:  .*\n)*", re.MULTILINE)


def benches() -> list[str]:
    """The names of all benches, in order."""
    return sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py"))


def main() -> int:
    """Command line. The exit status of the first bench that fails, else 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(benches()))
    names = parser.parse_args().names or benches()
    if unknown := {*names} - {*benches()}:
        parser.error(f"no bench is called {', '.join(sorted(unknown))}; there are {', '.join(benches())}")
    for name in names:
        lines = []
        with subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.bench_{name}"], stdout=subprocess.PIPE, text=True
        ) as run:
            assert run.stdout is not None
            for line in run.stdout:
                print(line, end="", flush=True)
                lines.append(line.rstrip())
        if run.returncode:
            return run.returncode
        when = f"{datetime.now(UTC):%Y-%m-%d}, load {os.getloadavg()[2]:.0f}"
        RESULTS.write_text(written(RESULTS.read_text(), name, lines, when))
    return 0


def written(text: str, name: str, lines: list[str], when: str) -> str:
    """The text of docs/results.md with these lines as those of the bench."""
    before, _, rest = text.partition(BEGIN)
    if not rest:
        raise ValueError(f"{RESULTS} has no line {BEGIN.strip()!r}")
    inside, _, after = rest.partition(END)
    parts = {match["name"]: match[0] for match in _PART.finditer(inside) if match["name"] in benches()}
    parts[name] = f"* `bench_{name}` ({when}):\n" + "".join(f"  - {line}\n" for line in lines if line)
    return before + BEGIN + "".join(parts[each] for each in sorted(parts)) + END + after


if __name__ == "__main__":
    sys.exit(main())
