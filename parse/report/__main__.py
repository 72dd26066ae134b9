"""`rankwise report PATH… --out report.html`: what was measured as one page that judges itself."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpc.model.output_option import OutputFile, refuse_outputs
from hpc.system.atomic import write_output
from hpc.system.command_line import run
from hpc.system.command_parser import CommandParser
from hpc.system.import_guard import install_command
from hpc.system.leaves import DOORS, door
from hpc.system.regular_file import existing
from hpc.system.sanitize import deny_world_writing, plain
from hpc.system.version import with_version
from parse.command_options import (
    PATHS_HELP,
    add_base,
    add_columns,
    add_formats,
    add_where,
    conditions,
    formats_brought,
    paths_or_traces,
    positive,
    progress_bar,
    recipe_named,
    take_columns,
)
from parse.faults import has_fault, unread

if TYPE_CHECKING:
    from hpc.model.reference import Reference
    from parse.report.summary import Summary


FORECASTS, SECTION = "forecasts of a report", "section of a paper"
DESCRIPTION = (
    "Writes one HTML page about traces and other systems' logs: first how it scales, what holds it back most, and "
    "whether the numbers can be trusted, then charts and tables of all that. The page is one file, loads nothing from "
    "the network and opens from a mail attachment (docs/page.md). With --format latex or markdown-report it writes the "
    "scaling section of a paper or a proposal instead: table, figure, method."
)
EPILOG = """\
examples:
  rankwise report traces/                                              report.html of a sweep
  rankwise report traces/ logs/ --out /tmp/page.html                   with other systems' logs
  rankwise report traces/ --against ngc-pytorch-resnet50               with the published figures of a recipe
  rankwise report traces/ --published table.csv --columns gpus=GPUs,speed=img/s
                                                                      with a table of a document
  rankwise report traces/ --forecast 16,64                             with what larger sizes will give
  rankwise report traces/ --format latex --out paper                   paper/scaling.tex and paper/scaling.pdf
  rankwise report traces/ --format latex --samples 9e9         with the node hours that a proposal asks for

A page is written also where nothing can be read: it says what there is.

Exit status 0: it is written; 1: it cannot be, nothing could be read, or a PATH or DOCUMENT is not there; 2: usage.
"""
KINDS = ("auto", "traces", "logs")
FORMATS = ("html", "latex", "markdown-report")
FORMAT_HELP = (
    "default: %(default)s, the page. latex, markdown-report: a section, ready to paste; its figure, scaling.pdf or "
    f"scaling.svg, is written beside it and needs matplotlib ({install_command('report')})"
)
OUT_HELP = "default: report.html, scaling.tex or scaling.md; for the last two also a folder"
AGAINST_HELP = "the published figures of a recipe (rankwise list) beside the points of the same case"
PUBLISHED_HELP = (
    "a document with a table (CSV or Markdown; --columns), or a folder of such, set beside the points; may be repeated"
)

REQUEST_HELP = (
    "the work to be done, in the unit of the speeds: the section also has what proposals for compute time ask: speedup "
    "by nodes, the recommended size, and its node hours. Of latex and markdown-report"
)
EFFICIENCY_HELP = "the recommended size is the largest measured one that holds so much of ideal scaling; default: 70"


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns 0 when the page is written, 1 when it cannot be or lacks what was named, 2 for wrong
    usage."""
    parser = make_parser()
    options = parser.parse_args(argv)
    deny_world_writing()
    where = conditions(options.where, parser)
    if not options.published:
        options.paths = paths_or_traces(options.paths)
    if not options.paths and not options.published:
        parser.error(
            "PATH is missing, and no folder traces is here: folders or files with traces or logs, or --published "
            "DOCUMENT"
        )
    if options.columns and not options.published:
        parser.error("--columns: of the tables of --published, and no document is named")
    take_columns(options, parser)
    if options.formats and (options.kind == "traces" or not options.paths):
        parser.error("--formats: for logs among the PATHs, and none are read")
    if not options.paths and options.kind != "auto":
        parser.error(f"--kind {options.kind}: of what PATHs hold, and no PATH is named")
    _check(options, parser)
    recipe = None if options.against is None else recipe_named(options.against, parser)
    from hpc.model.trace import TraceError
    from parse.report.summary import TableError, WhereError
    from parse.runs.result import BaseError

    options.formats = formats_brought(options.formats or [], parser)
    refuse_outputs(_outputs(options), options, parser)
    try:
        summary, lines = _write(options, where, recipe, parser)
    except BaseError as error:
        parser.error(f"--base: {error}")
    except OSError as error:
        print(plain(f"{error.filename or options.out}: cannot be written ({error.strerror})"), file=sys.stderr)
        return 1
    except (TableError, TraceError) as error:
        print(plain(str(error)), file=sys.stderr)
        return 2 if isinstance(error, WhereError) else 1
    print("\n".join(map(plain, lines)))
    if options.open and not webbrowser.open(_outputs(options)[0].absolute().as_uri()):
        print("--open: no browser is here", file=sys.stderr)
    for refusal in summary.refusals:
        print(plain(unread(refusal)), file=sys.stderr)
    named = [*options.paths, *options.published]
    if summary.empty:
        print(f"nothing to report in {', '.join(plain(str(path)) for path in named)}", file=sys.stderr)
    return 1 if summary.empty or existing(named)[1] or has_fault(summary.refusals) else 0


def _check(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Ends the command where options act on nothing."""
    if FORECASTS in DOORS:
        door(FORECASTS).check(options, parser)
    if options.open and options.format != "html":
        parser.error(f"--open --format {options.format}: a browser shows the page")
    if options.samples is None:
        if options.efficiency is not None:
            parser.error("--efficiency: of a proposal, and none is requested: --samples N does")
    elif options.format == "html":
        parser.error("--samples: with --format latex or markdown-report, which write the section of a proposal")


def _percent(text: str) -> float:
    value = positive(text.removesuffix("%"))
    if value > 100:
        raise argparse.ArgumentTypeError(f"{text}: an efficiency is at most 100 %")
    return value / 100


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = CommandParser("rankwise report", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help=PATHS_HELP)
    parser.add_argument("--out", action=OutputFile, type=Path, metavar="FILE", help=OUT_HELP)
    parser.add_argument("--format", choices=FORMATS, default="html", help=FORMAT_HELP)
    parser.add_argument("--open", action="store_true", help="shows the page in the browser of this machine")
    parser.add_argument("--kind", choices=KINDS, default="auto", help="what the PATHs hold; default: %(default)s, both")
    add_where(parser)
    add_base(parser)
    add_formats(parser)
    parser.add_argument("--against", metavar="NAME", help=AGAINST_HELP)
    parser.add_argument("--published", action="append", default=[], type=Path, metavar="DOCUMENT", help=PUBLISHED_HELP)
    add_columns(parser)
    proposals = parser.add_argument_group("the section of a proposal")
    proposals.add_argument("--samples", type=positive, metavar="N", help=REQUEST_HELP)
    proposals.add_argument("--efficiency", type=_percent, metavar="PERCENT", help=EFFICIENCY_HELP)
    if FORECASTS in DOORS:
        door(FORECASTS).add_options(parser)
    return with_version(parser)


def _outputs(options: argparse.Namespace) -> tuple[Path, ...]:
    """The files that are written."""
    if options.format == "html":
        return (options.out or Path("report.html"),)
    section: tuple[Path, Path] = door(SECTION).outputs(options.out or Path(), options.format)
    return section


def _write(
    options: argparse.Namespace, where: dict[str, list[str]], recipe: Reference | None, parser: argparse.ArgumentParser
) -> tuple[Summary, list[str]]:
    """Writes what --format requests, and returns the summary of all PATHs, and lines that say what was written.

    Raises WhereError where --where leaves no point or names an unknown setting, BaseError where no point has the case
    of --base, TraceError where a trace changes while it is read, and OSError where a file cannot be written.
    """
    from parse.page.build import build_page
    from parse.page.html import render
    from parse.page.scaling import verdict_point
    from parse.report.summary import add_what_ifs, read_ledgers

    out, *_ = _outputs(options)
    whole, summary = _summaries(options, where, recipe)
    forecasts = door(FORECASTS).requested(summary, options, parser) if FORECASTS in DOORS else None
    if options.format != "html":
        return whole, door(SECTION).requested(summary, options, parser, forecasts)
    read = read_ledgers(whole, summary.results, progress=progress_bar())
    read = add_what_ifs(read, [point for point in [verdict_point(read)] if point])
    summary, whole = (dataclasses.replace(each, refusals=read.refusals) for each in (summary, whole))
    summary = dataclasses.replace(summary, ledgers=read.ledgers, times=read.times)
    source = ", ".join(path.resolve().name for path in (*options.paths, *options.published))
    page = render(build_page(summary, source, progress_bar(), forecasts))
    write_output(out, page)
    size = len(page.encode())
    return whole, [f"{out}: {f'{size / 1e6:.1f} MB' if size >= 1e6 else f'{size / 1e3:.0f} kB'}"]


def _summaries(
    options: argparse.Namespace, where: dict[str, list[str]], recipe: Reference | None
) -> tuple[Summary, Summary]:
    """The summary of all PATHs, and that of what --where chooses with the published figures of the recipe."""
    from parse.report.against import against
    from parse.report.summary import WhereError, choose, read_summary
    from parse.runs.load_logs import HowToRead

    how = HowToRead(formats=options.formats)
    summary, _ = read_summary(
        options.paths,
        options.kind,
        how,
        base=options.base or "",
        documents=options.published,
        columns=options.columns,
        progress=progress_bar(),
    )
    chosen = choose(summary.results, where) if where else summary.results
    if where and not chosen:
        raise WhereError("no point has all settings of --where")
    beside = None if recipe is None else against(recipe, chosen)
    return summary, dataclasses.replace(summary, results=chosen, against=beside)


if __name__ == "__main__":
    sys.exit(run(main, "parse.report"))
