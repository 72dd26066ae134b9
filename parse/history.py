"""`rankwise history FOLDER…`: the speeds of points over many measurements, and where they change."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpc.system.command_line import run, text_width
from hpc.system.command_parser import CommandParser
from hpc.system.regular_file import existing
from hpc.system.sanitize import deny_world_writing, plain
from hpc.system.version import with_version
from parse.command_options import DEFAULT_THRESHOLD, add_out, add_where, conditions, put_out, threshold_of

if TYPE_CHECKING:
    from parse.trend.series import History

DESCRIPTION = (
    "Puts many measurements in order of time and says for each point where its speed changed: date, size, p-value, and "
    "what differs between the environments before and after. The method is that of Apache Otava (docs/compare.md)."
)
EPILOG = """\
examples:
  rankwise history nightly/*/traces
  rankwise history nightly/*/traces --threshold 2% --ignore container --format markdown
  rankwise history nightly/*/traces --format html --out history.html
  rankwise history nightly/*.json --format junit --out history.xml

A point needs 10 measurements with a speed and a date for a verdict.

Exit status 0: the latest change of no point is a slowdown; 1: that of a point is; 2: usage, or nothing to compare: no
folder with a point, no point with enough measurements, or a FOLDER that is not there.
"""
FORMATS = ("table", "json", "markdown", "junit", "html")
FORMAT_HELP = "default: %(default)s; html: a page with charts, in one file, as rankwise report makes it"
IGNORE_HELP = (
    "a setting that may change in the course of a point, e.g. container or env.NCCL_ALGO; may be repeated. Where it "
    "does so at a change of speed, this is named"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns 0 without a slowdown at the latest changes, 1 with one, 2 for nothing to compare or wrong
    usage."""
    parser = make_parser()
    options = parser.parse_args(argv)
    deny_world_writing()
    from parse.comparison.types import ComparisonError
    from parse.trend.series import read_history

    threshold, where = threshold_of(options, parser), conditions(options.where, parser)
    try:
        history = read_history(options.folders, threshold, where=where, ignored=options.ignore)
    except ComparisonError as error:
        print("\n".join(map(plain, str(error).splitlines())), file=sys.stderr)
        return 2
    status = history.status or (2 if existing(options.folders)[1] else 0)
    return status if put_out(options.out, _written(options, history)) else 2


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = CommandParser("rankwise history", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER",
        help="each a measurement, as summarize takes it, or the JSON that it writes, in any order: the dates of their "
        "runs decide",
    )  # fmt: skip
    parser.add_argument(
        "--threshold", default=DEFAULT_THRESHOLD, metavar="SHARE",
        help="smaller changes do not matter, as 3%% or 0.03; default: %(default)s",
    )  # fmt: skip
    parser.add_argument("--ignore", action="append", default=[], metavar="NAME", help=IGNORE_HELP)
    add_where(parser)
    parser.add_argument("--format", choices=FORMATS, default="table", help=FORMAT_HELP)
    add_out(parser)
    return with_version(parser)


def _written(options: argparse.Namespace, history: History) -> str:
    from datetime import UTC, datetime

    from parse.trend.text import as_json, as_junit, as_markdown, as_text

    if options.format == "html":
        from parse.page.history import history_page
        from parse.page.html import render

        return render(history_page(history))
    if options.format == "junit":
        return as_junit(history, datetime.now(UTC))
    if options.format == "table":
        return as_text(history, text_width(to_file=options.out is not None))
    return {"markdown": as_markdown, "json": as_json}[options.format](history)


if __name__ == "__main__":
    sys.exit(run(main, "parse.history"))
