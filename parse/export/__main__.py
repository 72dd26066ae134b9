"""`rankwise export PATH… --to TARGET`: points, findings and the page put where people keep their numbers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from hpc.model.output_option import OutputFolder
from hpc.system.command_line import run
from hpc.system.command_parser import CommandParser
from hpc.system.import_guard import install_command
from hpc.system.sanitize import deny_world_writing, plain
from hpc.system.version import with_version
from parse.command_options import (
    PATHS_HELP,
    add_base,
    add_where,
    conditions,
    paths_or_traces,
    progress_bar,
)
from parse.export.content import TARGETS

if TYPE_CHECKING:
    from parse.export.content import ExportContent

DESCRIPTION = (
    "Puts points, findings and the page where people keep their numbers, with the figures of rankwise summarize. "
    "Nothing that is there is written over. Nothing is sent over a network, but to an MLflow server that --out or "
    "MLFLOW_TRACKING_URI names."
)
EPILOG = """\
examples:
  rankwise export traces/ --to csv --out tables/
  rankwise export traces/ --to mlflow --out http://mlflow.example:5000
  rankwise export traces/ --to tensorboard --where backend=torch-ddp

Exit status 0: exported; 1: nothing could be read, or it could not be put there; 2: usage.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns 0 when all is exported, 1 when it cannot be, 2 for wrong usage."""
    parser = make_parser()
    options = parser.parse_args(argv)
    deny_world_writing()
    where = conditions(options.where, parser)
    options.paths = paths_or_traces(options.paths)
    if not options.paths:
        parser.error("PATH is missing, and no folder traces is here: folders or files to export")
    from hpc.model.trace import TraceError
    from parse.export.content import ExportError
    from parse.report.summary import WhereError
    from parse.runs.result import BaseError

    target = TARGETS[options.to]
    try:
        content = _content(options, where)
        lines = import_module(f"parse.export.{target.module}").write(content, options.out or target.out)
    except (WhereError, BaseError) as error:
        parser.error(str(error))
    except ModuleNotFoundError as error:
        if not target.extra or (error.name or "").partition(".")[0] in ("hpc", "parse"):
            raise
        print(f"--to {options.to}: {error.name} is not installed: {install_command(target.extra)}", file=sys.stderr)
        return 1
    except (ExportError, TraceError, OSError) as error:
        reason = str(error)
        if isinstance(error, OSError):
            reason = f"{error.filename2 or error.filename or options.out or target.out}: {error.strerror or error}"
        print(plain(reason), file=sys.stderr)
        return 1
    print("\n".join(map(plain, lines)))
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = CommandParser("rankwise export", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help=PATHS_HELP)
    to_help = "; ".join(f"{name}: {target.meaning}, in {target.out}" for name, target in TARGETS.items())
    parser.add_argument("--to", required=True, choices=[*TARGETS], help=to_help)
    parser.add_argument(
        "--out", action=OutputFolder, metavar="PLACE",
        help="another folder to write into, for openmetrics a file, for mlflow also the URI of a server",
    )  # fmt: skip
    parser.add_argument(
        "--name", default="rankwise", help="the experiment of mlflow, the project of wandb; default: %(default)s"
    )
    add_where(parser)
    add_base(parser)
    return with_version(parser)


def _content(options: argparse.Namespace, where: dict[str, list[str]]) -> ExportContent:
    """What is exported. Raises ExportError where nothing was read, WhereError, BaseError and TraceError."""
    from parse.export.content import ExportContent, ExportError, PointContent
    from parse.faults import unread
    from parse.page.build import build_page, title
    from parse.page.html import render
    from parse.page.scaling import WIDTH
    from parse.report.export import content_of
    from parse.report.notices import scaling_lines, setting_names
    from parse.report.summary import WhereError, choose, labels, read_ledgers, read_summary

    summary, _ = read_summary(options.paths, base=options.base or "", progress=progress_bar())
    for refusal in summary.refusals:
        print(plain(unread(refusal)), file=sys.stderr)
    chosen = choose(summary.results, where) if where else summary.results
    if where and not chosen:
        raise WhereError("no point has all settings of --where")
    if not chosen:
        raise ExportError(f"no point to export in {', '.join(map(str, options.paths))}")
    summary = read_ledgers(summary, chosen, progress=progress_bar())
    page = content_of(summary)
    ledgers = {(each["point_id"], each["folder"]): each for each in page["ledgers"]}
    points = [
        PointContent(
            name=name, setting=setting, result=result, ledger=ledgers.get((result["point_id"], result["folder"]))
        )
        for name, setting, result in zip(labels(chosen), setting_names(chosen), page["results"], strict=True)
    ]
    source = ", ".join(map(str, options.paths))
    return ExportContent(
        title=title(summary), name=options.name, conclusion=[*scaling_lines(chosen, WIDTH)], points=points,
        summary=page, html=lambda: render(build_page(summary, source)),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(run(main, "parse.export"))
