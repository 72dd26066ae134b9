"""`python -m parse.forecast PATH… --nodes 8,16`: the speed at sizes that were not measured, with its error."""

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
from parse.command_options import add_out, add_where, conditions, progress_bar, put_out
from parse.extrapolation.options import CONDITIONS, add_conditions, add_work, size_request, sizes
from parse.faults import has_fault, unread
from parse.tables.options import add_columns, take_columns_of_paths
from parse.text import labelled_json

if TYPE_CHECKING:
    from parse.extrapolation.score import Scores
    from parse.extrapolation.series import ScalingSeries

DESCRIPTION = (
    "Forecasts speed, efficiency and node hours at sizes that were not measured, each with an interval, and says where "
    "that cannot be told. Under every forecast stands how far its rule missed on public series (docs/forecast.md)."
)
EPILOG = """\
examples:
  python -m parse.forecast traces/ --nodes 8,16,64
  python -m parse.forecast traces/ --nodes 64 --samples 90e6
  python -m parse.forecast --columns gpus=GPUs,speed=img/s README.md --devices 256 --devices-per-node 8
  python -m parse.forecast --score
  python -m parse.forecast --score traces/

Exit status 0: a requested size of a series has figures, or something was scored; 1: none has, and why, or nothing could
be read; 2: usage.
"""
KINDS = ("auto", "traces", "logs", "table")
FORMATS = ("text", "markdown", "json")
SHIPPED_NAME = "public series of the project"
SCORE_HELP = (
    "in place of a forecast: upper sizes forecast from lower ones, and the errors of all rules by distance; of the "
    "PATHs, without a PATH of the public series that the intervals are made from"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns 0 with a figure for a size or a score, 1 without, 2 for wrong usage."""
    parser = make_parser()
    options = parser.parse_args(argv)
    deny_world_writing()
    take_columns_of_paths(options, parser)
    _check(options, parser)
    where = conditions(options.where, parser)
    from parse.extrapolation.outlook import RequestError
    from parse.extrapolation.series import shipped_series
    from parse.report.summary import TableError, WhereError

    try:
        if options.score and not options.paths:
            series, unread_lines, label = [*shipped_series()], list[str](), ""
        else:
            series, unread_lines, label = _read(options, where)
    except TableError as error:
        print(plain(str(error)), file=sys.stderr)
        return 2 if isinstance(error, WhereError) else 1
    for line in unread_lines:
        print(plain(line), file=sys.stderr)
    if not series:
        print(f"no scaling series in {', '.join(plain(str(path)) for path in options.paths)}", file=sys.stderr)
        return 1
    try:
        status, written = _scored(options, series) if options.score else _forecast(options, series)
    except RequestError as error:
        parser.error(plain(str(error)))
    written = labelled_json(written, label) if options.format == "json" else f"{label}\n\n" * bool(label) + written
    is_written = put_out(options.out, written)
    return max(status, 1 if not is_written or existing(options.paths)[1] or has_fault(unread_lines) else 0)


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = CommandParser("python -m parse.forecast", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="PATH",
        help="folders or files as parse.summarize takes them, its JSON and CSV, and CSV files with a row per size "
        "(docs/forecast.md)",
    )  # fmt: skip
    parser.add_argument("--nodes", type=sizes, default=(), metavar="N,…", help="sizes to forecast, in nodes")
    parser.add_argument("--devices", type=sizes, default=(), metavar="N,…", help="sizes to forecast, in devices")
    add_work(parser)
    add_conditions(parser)
    parser.add_argument("--score", action="store_true", help=SCORE_HELP)
    parser.add_argument("--kind", choices=KINDS, default="auto", help="as of parse.summarize; default: %(default)s")
    add_columns(parser)
    add_where(parser)
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: %(default)s")
    add_out(parser)
    return with_version(parser)


def _check(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Ends the command where options contradict one another, act on nothing, or what is needed is missing."""
    without_results = options.columns is None and options.paths and all(map(_is_csv, options.paths))
    if without_results and (options.where or options.kind != "auto"):
        parser.error("--where and --kind: not for CSV files, of which all series are read")
    if options.score and not options.paths and (options.where or options.kind != "auto"):
        parser.error("--where and --kind: of PATHs, and none is named")
    if options.score:
        names = ("nodes", "devices", *CONDITIONS, "samples")
        given = [name for name in names if getattr(options, name)]
        if given:
            parser.error(f"--score forecasts the sizes that were measured: not with --{given[0].replace('_', '-')}")
        return
    if not options.paths:
        parser.error("PATH is missing: measurements to forecast from")
    if not options.nodes and not options.devices:
        parser.error("--nodes N,… or --devices N,… is missing: the sizes to forecast")


def _is_csv(path: Path) -> bool:
    return path.suffix.lower() == ".csv"


def _read(options: argparse.Namespace, where: dict[str, list[str]]) -> tuple[list[ScalingSeries], list[str], str]:
    """The series of all paths, a line for each file that is not read, and the label of simulated points, empty without.

    Raises TableError for --where.
    """
    from parse.extrapolation.series import SeriesError, read_series, series_of_results
    from parse.report.reading import read_documents, read_summary
    from parse.report.summary import choose
    from parse.runs.result import simulated_label

    series: list[ScalingSeries] = []
    tables = [path for path in options.paths if _is_csv(path) and options.columns is None]
    others = [path for path in options.paths if path not in tables]
    lines: list[str] = []
    label = ""
    for path in tables:
        try:
            series += read_series(path)
        except SeriesError as error:
            lines.append(f"not read: {error}")
        except OSError as error:
            lines.append(f"not read: {path}: {error.strerror or error}")
    if others:
        if options.kind == "table":
            summary = read_documents(others, columns=options.columns)
        else:
            summary, _ = read_summary(others, options.kind, progress=progress_bar())
        lines += map(unread, summary.refusals)
        chosen = choose(summary.results, where) if summary.results else ()
        series, label = series + series_of_results(chosen), simulated_label(chosen)
    return series, lines, label


def _forecast(options: argparse.Namespace, series: Sequence[ScalingSeries]) -> tuple[int, str]:
    """The exit status and the text of the forecasts. Raises RequestError as `outlooks`."""
    from parse.extrapolation.outlook import outlooks
    from parse.extrapolation.text import as_json, as_markdown, as_text

    request = size_request(options, options.nodes, options.devices, options.samples)
    forecasts = outlooks(series, request)
    status = 0 if any(each.has_figures for each in forecasts) else 1
    if options.format == "json":
        return status, as_json(forecasts, request)
    if options.format == "markdown":
        return status, as_markdown(forecasts, request)
    return status, as_text(forecasts, request, text_width(to_file=options.out is not None))


def _scored(options: argparse.Namespace, series: Sequence[ScalingSeries]) -> tuple[int, str]:
    """The exit status and the text of the scores."""
    from parse.extrapolation.score import score
    from parse.extrapolation.text import scores_as_json, scores_as_markdown, scores_as_text

    scores: Scores = score(series)
    name = ", ".join(str(path) for path in options.paths) or SHIPPED_NAME
    status = 0 if scores.distances else 1
    if options.format == "json":
        return status, scores_as_json(scores, name)
    if options.format == "markdown":
        return status, scores_as_markdown(scores, name)
    return status, scores_as_text(scores, name, text_width(to_file=options.out is not None))


if __name__ == "__main__":
    sys.exit(run(main, "parse.forecast"))
