"""`rankwise forecast PATH… --nodes 8,16`: the speed at sizes that were not measured, with its error."""

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
from parse.command_options import (
    MILLION,
    add_columns,
    add_devices_per_node,
    add_out,
    add_where,
    conditions,
    positive,
    progress_bar,
    put_out,
    sizes,
    take_columns_of_paths,
)
from parse.faults import has_fault, unread

if TYPE_CHECKING:
    from parse.report.summary import Summary
    from parse.runs.result import Result

DESCRIPTION = (
    "Forecasts speed, efficiency and node hours at sizes that were not measured, each with an interval, and says where "
    "that cannot be told. Under every forecast stands how far its rule missed on public series (docs/forecast.md)."
)
EPILOG = """\
examples:
  rankwise forecast traces/ --nodes 8,16,64
  rankwise forecast traces/ --nodes 64 --samples 90e6
  rankwise forecast --columns gpus=GPUs,speed=img/s README.md --devices 256 --devices-per-node 8

Exit status 0: a requested size of a series has figures; 1: none has, and why, or nothing could be read; 2: usage.
"""
KINDS = ("auto", "traces", "logs", "table")
FORMATS = ("text", "markdown", "json")
SAMPLES_HELP = "the work that node hours are for, in the unit of the speed; default: a million"


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns 0 with a figure for a size, 1 without, 2 for wrong usage."""
    parser = make_parser()
    options = parser.parse_args(argv)
    deny_world_writing()
    take_columns_of_paths(options, parser)
    if not options.nodes and not options.devices:
        parser.error("--nodes N,… or --devices N,… is missing: the sizes to forecast")
    where = conditions(options.where, parser)
    from parse.extrapolation.outlook import RequestError
    from parse.report.summary import TableError, WhereError, choose

    summary = _read(options)
    refusals = [unread(refusal) for refusal in summary.refusals]
    for line in refusals:
        print(plain(line), file=sys.stderr)
    if not summary.results:
        print(f"no scaling series in {', '.join(plain(str(path)) for path in options.paths)}", file=sys.stderr)
        return 1
    try:
        has_figures, is_written = _forecast(options, choose(summary.results, where))
    except TableError as error:
        print(plain(str(error)), file=sys.stderr)
        return 2 if isinstance(error, WhereError) else 1
    except RequestError as error:
        parser.error(plain(str(error)))
    failed = not has_figures or not is_written or existing(options.paths)[1] or has_fault(refusals)
    return 1 if failed else 0


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = CommandParser("rankwise forecast", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH",
        help="folders or files as rankwise summarize takes them, and its JSON and CSV",
    )  # fmt: skip
    parser.add_argument("--nodes", type=sizes, default=(), metavar="N,…", help="sizes to forecast, in nodes")
    parser.add_argument("--devices", type=sizes, default=(), metavar="N,…", help="sizes to forecast, in devices")
    parser.add_argument("--samples", type=positive, default=MILLION, metavar="N", help=SAMPLES_HELP)
    add_devices_per_node(parser)
    parser.add_argument("--kind", choices=KINDS, default="auto", help="as of rankwise summarize; default: %(default)s")
    add_columns(parser)
    add_where(parser)
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: %(default)s")
    add_out(parser)
    return with_version(parser)


def _read(options: argparse.Namespace) -> Summary:
    from parse.report.summary import read_documents, read_summary

    tables = options.kind == "auto" and all(path.suffix.lower() == ".csv" for path in options.paths)
    if tables or options.kind == "table":
        return read_documents(options.paths, columns=options.columns)
    return read_summary(options.paths, options.kind, progress=progress_bar())[0]


def _forecast(options: argparse.Namespace, results: Sequence[Result]) -> tuple[bool, bool]:
    """Whether a size has figures, and whether the forecasts were written. Raises RequestError as `outlooks`."""
    from parse.extrapolation.outlook import SizeRequest, outlooks
    from parse.extrapolation.rule import series_of_results
    from parse.extrapolation.text import as_json, as_markdown, as_text

    request = SizeRequest(
        nodes=options.nodes, devices=options.devices, work=options.samples, devices_per_node=options.devices_per_node
    )
    forecasts = outlooks(series_of_results(results), request)
    if options.format == "json":
        written = as_json(forecasts, request)
    elif options.format == "text":
        written = as_text(forecasts, request, text_width(to_file=options.out is not None))
    else:
        written = as_markdown(forecasts, request)
    return any(each.has_figures for each in forecasts), put_out(options.out, written)


if __name__ == "__main__":
    sys.exit(run(main, "parse.forecast"))
