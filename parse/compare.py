"""`rankwise compare BASE NEW`: what has become faster or slower, and whether the runs suffice to decide."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpc.system.command_line import run, text_width
from hpc.system.command_parser import CommandParser
from hpc.system.sanitize import deny_world_writing, plain
from hpc.system.version import with_version
from parse.command_options import (
    DEFAULT_THRESHOLD,
    add_columns,
    add_out,
    add_where,
    conditions,
    put_out,
    take_columns_of_paths,
    threshold_of,
)

if TYPE_CHECKING:
    from parse.comparison.types import Comparison
    from parse.runs.result import Result

DESCRIPTION = (
    "Compares two measurements point by point, or one with a reference of expected speeds. First what differs between "
    "the environments, then for each point the ratio of the median speeds with its 95 % interval and a verdict: "
    "faster, slower, same, or cannot tell and how many runs it would take (docs/compare.md)."
)
EPILOG = """\
examples:
  rankwise compare last-month/traces traces
  rankwise compare before after --threshold 1% --ignore container
  rankwise compare traces --reference machine.toml --format junit --out accepted.xml

Exit status 0: every point is the same or faster; 1: a point is slower; 2: usage, or it could not be compared:
no point in common, or a point without a verdict.
"""
FORMATS = ("text", "markdown", "json", "junit")
KINDS = ("auto", "traces", "logs", "table")
REFERENCE_HELP = (
    "in place of BASE: a TOML file of expected speeds, or the name of one that comes with the project: a recipe "
    "(rankwise list), llm-foundry, nvidia-dgxc, torchtitan"
)
THRESHOLD_HELP = (
    "differences below it do not matter, as 3%% or 0.03; default: %(default)s. Of a reference, the tolerance of the "
    "points that state none"
)
IGNORE_HELP = (
    "a setting in which points may differ and still be compared, e.g. container or env.NCCL_ALGO; may be repeated"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns 0 without a regression, 1 with one, 2 where that is open, or for wrong usage."""
    parser = make_parser()
    options = parser.parse_args(argv)
    deny_world_writing()
    sides = 2 if options.reference is None else 1
    if len(options.paths) != sides:
        wanted = "BASE and NEW" if options.reference is None else "one measurement beside --reference"
        parser.error(f"{len(options.paths)} paths: {wanted} are needed")
    take_columns_of_paths(options, parser)
    options.threshold = threshold_of(options, parser)
    from parse.comparison.types import ComparisonError
    from parse.report.summary import TableError

    if options.reference is not None and options.ignore:
        parser.error("--ignore is for two measurements: a reference names the settings that count")
    try:
        comparison = _comparison(options, conditions(options.where, parser))
        written = _written(options, comparison)
    except (ComparisonError, TableError) as error:
        print(plain(str(error)), file=sys.stderr)
        return 2
    return comparison.status if put_out(options.out, written) else 2


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = CommandParser("rankwise compare", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH",
        help="BASE and NEW: folders or files as rankwise summarize takes; with --reference NEW alone",
    )  # fmt: skip
    parser.add_argument("--threshold", default=DEFAULT_THRESHOLD, metavar="SHARE", help=THRESHOLD_HELP)
    parser.add_argument("--reference", metavar="FILE", help=REFERENCE_HELP)
    parser.add_argument("--ignore", action="append", default=[], metavar="NAME", help=IGNORE_HELP)
    add_where(parser)
    parser.add_argument("--kind", choices=KINDS, default="auto", help="as of rankwise summarize; default: %(default)s")
    add_columns(parser)
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: %(default)s")
    add_out(parser)
    return with_version(parser)


def _comparison(options: argparse.Namespace, where: dict[str, list[str]]) -> Comparison:
    """The comparison that the options request. Raises ComparisonError, and TableError for --where."""
    import dataclasses

    from parse.comparison.pairs import Measurement, compare_measurements, compare_with_reference, read_measurement

    read: list[Measurement] = [read_measurement(path, options.kind, where, options.columns) for path in options.paths]
    results: list[Sequence[Result]] = [measurement.results for measurement in read]
    if options.reference is not None:
        comparison = compare_with_reference(options.reference, results[0], read[0].name, options.threshold)
    else:
        names = (read[0].name, read[1].name)
        comparison = compare_measurements(results[0], results[1], names, options.threshold, options.ignore)
    return dataclasses.replace(
        comparison,
        remarks=tuple(line for measurement in read for line in measurement.remarks),
        refusals=tuple(line for measurement in read for line in measurement.refusals),
    )


def _written(options: argparse.Namespace, comparison: Comparison) -> str:
    from datetime import UTC, datetime

    from parse.comparison.text import as_json, as_junit, as_markdown, as_text

    if options.format == "text":
        return as_text(comparison, text_width(to_file=options.out is not None))
    if options.format == "junit":
        return as_junit(comparison, datetime.now(UTC))
    return {"markdown": as_markdown, "json": as_json}[options.format](comparison)


if __name__ == "__main__":
    sys.exit(run(main, "parse.compare"))
