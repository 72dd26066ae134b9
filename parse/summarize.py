"""`python -m parse.summarize traces/`: the scaling table, and under it what is wrong with it."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parse.summary import Summary

DESCRIPTION = "Prints the scaling table of a folder of traces, and under it what is wrong with it."
FORMAT_HELP = (
    "default: %(default)s. dlperf is the reference suite's result JSON: points without a speed are left out, "
    "speedup is null where there is no 1n1g baseline"
)
# What parse.table offers; importing it here would make --help slow.
FORMATS = ("table", "markdown", "csv", "json", "dlperf")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns 0 when something was summarised, 1 when nothing could be, 2 for wrong usage."""
    parser = _parser()
    asked = parser.parse_args(argv)
    where: dict[str, list[str]] = {}
    for word in asked.where:
        name, sign, value = word.partition("=")
        if not sign:
            parser.error(f"--where {word}: not of the form NAME=VALUE")
        where.setdefault(name, []).append(value)
    try:
        return _summarize(asked.paths, asked.format, asked.out, where)
    except BrokenPipeError:
        # The reader (head, less) has gone; Python would complain again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m parse.summarize", description=DESCRIPTION)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="folders of traces, or single traces")
    parser.add_argument("--format", choices=FORMATS, default="table", help=FORMAT_HELP)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write there, not to standard output")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="only points that ask for this, e.g. backend=torch-ddp, case=2n8g, env.NCCL_ALGO=Ring; may be repeated",
    )
    return parser


def _summarize(paths: Sequence[Path], form: str, out: Path | None, where: dict[str, list[str]]) -> int:
    from parse.summary import TableError, choose, plain
    from parse.table import FORMATS as WRITERS
    from parse.table import warnings

    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a test may have replaced it
    summary = _summary(paths)
    if not summary.results:
        for line in warnings(summary):
            print(line, file=sys.stderr)
        print(f"nothing to summarise in {', '.join(plain(str(path)) for path in paths)}", file=sys.stderr)
        return 1
    try:
        chosen = choose(summary.results, where)
        if not chosen:
            raise TableError("no point has all that --where asks for")
        summary = dataclasses.replace(summary, results=chosen)
        written = WRITERS[form](summary)
        if out is not None:
            out.write_text(written, encoding="utf-8", errors="backslashreplace")
    except (TableError, OSError) as error:
        print(plain(str(error)), file=sys.stderr)
        return 1
    if out is None:
        sys.stdout.write(written)
        sys.stdout.flush()
    if form in ("csv", "dlperf"):
        for line in warnings(summary):
            print(line, file=sys.stderr)
    return 0


def _summary(paths: Sequence[Path]) -> Summary:
    from parse.alarms import judge
    from parse.load import load
    from parse.result import results
    from parse.summary import Summary

    loaded = load(paths, _with_progress if sys.stderr.isatty() else None)
    return Summary(
        results=judge(results(loaded)), reduced=loaded.reduced, remarks=loaded.remarks, refusals=loaded.refusals
    )


def _with_progress(files: Sequence[Path]) -> Iterable[Path]:
    from rich.console import Console
    from rich.progress import track

    return track(files, "reading traces", console=Console(stderr=True), transient=True)


if __name__ == "__main__":
    sys.exit(main())
