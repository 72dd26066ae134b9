"""`rankwise summarize PATH…`: the scaling table of traces and logs, and under it what is wrong with it."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpc.model.output_option import refuse_outputs
from hpc.system.command_line import run, text_width
from hpc.system.command_parser import CommandParser
from hpc.system.leaves import door
from hpc.system.regular_file import existing
from hpc.system.sanitize import deny_world_writing, plain
from hpc.system.version import with_version
from parse.command_options import (
    PATHS_HELP,
    add_base,
    add_columns,
    add_log_options,
    add_out,
    add_where,
    conditions,
    how_to_read,
    log_options,
    only_for_logs,
    paths_or_traces,
    progress_bar,
    put_out,
    recipe_named,
    take_columns_of_paths,
)
from parse.faults import has_fault, unread

if TYPE_CHECKING:
    from hpc.model.reference import Reference
    from parse.report.summary import Summary
    from parse.runs.load_logs import HowToRead
    from parse.runs.result import Result
    from parse.text import Page

DESCRIPTION = (
    "Prints one scaling table of traces and of other systems' logs, and under it what is wrong with it. Whatever a log "
    "says of itself is believed; else what its folders' and its own name say (4n8g, bz128, r50_b128_fp32_1.log)."
)
EPILOG = """\
examples:
  rankwise summarize traces/                                          the table of a sweep
  rankwise summarize traces/ --ledger                                 and why it is not faster (docs/ledger.md)
  rankwise summarize traces/ logs/ --format json --out all.json
  rankwise summarize --explain logs/1n8g/r50_b128_fp32_1.log          a log's way into its number (docs/logs.md)

Exit status 0: something was summarised, whatever is wrong with it; 1: nothing could be, or a PATH is not there; 2:
usage.
"""
KINDS = ("auto", "traces", "logs", "table")
KIND_HELP = (
    "what the PATHs hold; auto: traces and logs. logs also tries files of any name that are named; table: documents "
    "with tables whose columns --columns names, or that summarize has written (CSV, Markdown), judged like others"
)
FORMAT_HELP = (
    "default: %(default)s. dlperf is the reference suite's result JSON: points without a speed are left out, "
    "speedup is null where it is not against one device. ai-rank writes the logs of whole trainings, GPUxN.log, and "
    "system_information.json into the folder --out"
)
# What parse.report.table offers; importing it here would make --help slow.
FORMATS = ("table", "markdown", "csv", "json", "dlperf", "ai-rank")
LEDGER_HELP = (
    "below the table, where each step's time goes and why it takes longer than on one device: data, compute, wait, "
    "communication, optimizer; who is waited for, and what makes it late. Of traces, in table, markdown and json"
)
WHAT_IF_HELP = (
    "--ledger, and the speed that there would be without the straggler, with every rank at the median, with "
    "communication for free or with input always ready: the recorded steps replayed, what pays most first"
)
WIDE_HELP = (
    "tables with all columns, however wide (for less -S). Otherwise the format table fits the terminal or COLUMNS, "
    "100 columns in a pipe or a file, 60 at least, and names the columns that it leaves out"
)
AGAINST_HELP = (
    "the published figures of a recipe (rankwise list) beside the points of the same case and workload, "
    "with the ratio, the devices of both, and what differs. In every format but dlperf"
)
AIRANK_HELP = (
    "in place of the table, times to train by AI-Rank's rules, and the rules that the logs break; has options of its "
    "own: --airank --help"
)
VERBOSE_HELP = (
    "all that is known: every setting, column and warning in full, notes, of the ledger intervals, ranks, evidence and "
    "where the time of a run goes, and each file of folders that is no log with the reason"
)
WRITTEN = ("table", "markdown", "json")
"""Formats that have a place for ledgers."""
OF_SUMMARIES = ("what_if", "ledger", "wide", "verbose", "out", "where", "base", "against")
"""Options that --explain has no use for."""


class _OptionUnused(ValueError):
    """An option that acts on nothing that was read."""


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns 0 when something was summarised, 1 when nothing could be or a path is not there, 2 for
    wrong usage."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if "--airank" in arguments:
        return int(door("airank").main([argument for argument in arguments if argument != "--airank"]))
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.airank:
        parser.error("--airank has options of its own: write it out")
    deny_world_writing()
    where = conditions(options.where, parser)
    options.ledger = options.ledger or options.what_if
    if options.explain is None:
        options.paths = paths_or_traces(options.paths)
    take_columns_of_paths(options, parser)
    _check(options, parser)
    if options.format == "ai-rank":
        refuse_outputs([*options.out.glob("GPUx*.log"), options.out / "system_information.json"], options, parser)
    recipe = None if options.against is None else recipe_named(options.against, parser)
    how = None if options.kind in ("traces", "table") else how_to_read(options, parser)
    if options.explain is not None:
        return _explain(options.explain, how)
    try:
        return _summarize(options, how, where, recipe)
    except _OptionUnused as error:
        parser.error(str(error))


def _check(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Ends the command where options contradict one another."""
    if not options.paths and options.explain is None:
        parser.error("PATH is missing, and no folder traces is here: folders or files to summarise")
    if options.ledger and options.format not in WRITTEN:
        parser.error(f"--ledger --format {options.format}: a ledger has the formats {', '.join(WRITTEN)}")
    if options.wide and options.format != "table":
        parser.error(f"--wide --format {options.format}: only the format table leaves columns out")
    if options.ledger and options.kind in ("logs", "table"):
        parser.error(f"--ledger --kind {options.kind}: only traces have the stamps that a ledger is made of")
    if options.against is not None and options.kind == "table":
        parser.error("--against --kind table: published figures are set beside traces and logs")
    if options.against is not None and options.format == "dlperf":
        parser.error("--against --format dlperf: that format has no place for published figures")
    if options.format == "ai-rank" and (options.out is None or options.against is not None):
        parser.error("--format ai-rank takes a folder to write to, --out DIR, and no --against")
    of_logs = log_options(options)
    if options.kind in ("traces", "table") and of_logs:
        parser.error(only_for_logs(of_logs[0]))
    if options.explain is None:
        return
    others = [f"--{name.replace('_', '-')}" for name in OF_SUMMARIES if getattr(options, name)]
    others += ["--format"] * (options.format != "table") + ["PATH"] * bool(options.paths)
    if others:
        parser.error(f"--explain prints the numbers of one log and no summary: not with {others[0]}")


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = CommandParser("rankwise summarize", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help=PATHS_HELP)
    parser.add_argument("--kind", choices=KINDS, default="auto", help=f"default: %(default)s. {KIND_HELP}")
    parser.add_argument("--format", choices=FORMATS, default="table", help=FORMAT_HELP)
    parser.add_argument("--ledger", action="store_true", help=LEDGER_HELP)
    parser.add_argument("--what-if", action="store_true", help=WHAT_IF_HELP)
    parser.add_argument("--wide", action="store_true", help=WIDE_HELP)
    parser.add_argument("--verbose", action="store_true", help=VERBOSE_HELP)
    add_out(parser, "; a folder for ai-rank")
    add_where(parser)
    add_base(parser)
    add_columns(parser)
    parser.add_argument("--against", metavar="NAME", help=AGAINST_HELP)
    parser.add_argument("--airank", action="store_true", help=AIRANK_HELP)
    add_log_options(parser.add_argument_group("logs"))
    return with_version(parser)


def _explain(path: Path, how: HowToRead | None) -> int:
    assert how is not None
    from parse.logs.engine.log_format import LogError
    from parse.runs.load_logs import explained

    try:
        text = explained(path, how)
    except LogError as error:
        print(plain(str(error)), file=sys.stderr)
        return 1
    put_out(None, text)
    return 0


def _summarize(
    options: argparse.Namespace, how: HowToRead | None, where: dict[str, list[str]], recipe: Reference | None
) -> int:
    from hpc.model.trace import TraceError
    from parse.report.notices import warnings
    from parse.report.summary import TableError, WhereError, choose, read_ledgers
    from parse.report.table import FORMATS as WRITERS
    from parse.report.table import text
    from parse.runs.result import BaseError

    try:
        summary, logs = _summary(options, how)
    except BaseError as error:
        raise _OptionUnused(f"--base: {error}") from error
    except TraceError as error:  # a process that read them was killed
        print(plain(str(error)), file=sys.stderr)
        return 1
    if summary.empty:
        for line in warnings(summary):
            print(line, file=sys.stderr)
        print(f"nothing to summarise in {', '.join(plain(str(path)) for path in options.paths)}", file=sys.stderr)
        return 1
    if unused := _unused(options, summary, logs):
        for refusal in summary.refusals:
            print(plain(unread(refusal)), file=sys.stderr)
        raise _OptionUnused(unused)
    try:
        chosen = choose(summary.results, where)
        if where and not chosen:
            raise WhereError("no point has all settings of --where")
        if options.ledger:
            summary = read_ledgers(summary, chosen, what_if=options.what_if, progress=progress_bar())
        if options.format == "ai-rank":
            return _write_airank(options.out, chosen)
        beside = None
        if recipe is not None:
            from parse.report.against import against

            beside = against(recipe, chosen)
        summary = dataclasses.replace(summary, results=chosen, against=beside)
        written = text(summary, _page(options)) if options.format == "table" else WRITERS[options.format](summary)
    except (TableError, TraceError, OSError) as error:
        print(plain(str(error)), file=sys.stderr)
        return 2 if isinstance(error, WhereError) else 1
    if not put_out(options.out, written):
        return 1
    if options.format in ("csv", "dlperf"):
        from parse.report.export import without_speedup

        for line in (*warnings(summary), *(without_speedup(summary) if options.format == "dlperf" else ())):
            print(line, file=sys.stderr)
    is_bare = not summary.everything and bool(summary.benchmarks and not summary.benchmarks.has_rows)
    return 1 if existing(options.paths)[1] or has_fault(summary.refusals) or is_bare else 0


def _unused(options: argparse.Namespace, summary: Summary, logs: int) -> str:
    """Why an option acts on nothing that was read; empty where each one does. `logs` is the number of logs read."""
    if not logs and not summary.benchmarks and (given := log_options(options)):
        return only_for_logs(given[0])
    if options.ledger and all(run.log for result in summary.everything for run in result.runs):
        option = "--what-if" if options.what_if else "--ledger"
        return f"{option}: only traces have the stamps that a ledger is made of, and only logs were read"
    return ""


def _write_airank(folder: Path, results: Sequence[Result]) -> int:
    """Writes AI-Rank's files; raises as `write_airank`."""
    from parse.report.trainings import write_airank

    for line in write_airank(folder, results):
        print(plain(line))
    return 0


def _page(options: argparse.Namespace) -> Page:
    from parse.text import Page

    return Page(width=text_width(to_file=options.out is not None), wide=options.wide, verbose=options.verbose)


def _summary(options: argparse.Namespace, how: HowToRead | None) -> tuple[Summary, int]:
    """What the files hold, and the number of logs among them."""
    from parse.report.summary import read_documents, read_summary

    if options.kind == "table":
        return read_documents(options.paths, options.base or "", options.columns), 0
    return read_summary(
        options.paths, options.kind, how, base=options.base or "", verbose=options.verbose, progress=progress_bar()
    )


if __name__ == "__main__":
    sys.exit(run(main, "parse.summarize"))
