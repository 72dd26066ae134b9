"""`python -m parse.pipeline_trace TRACE.parquet`: what stragglers cost a pipeline-parallel training, and which ones."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hpc.system.command_line import importing, run, text_width
from hpc.system.command_parser import CommandParser
from hpc.system.import_guard import install_command
from hpc.system.sanitize import plain
from hpc.system.version import with_version

DESCRIPTION = (
    "Replays the steps in a trace of the single operations of pipeline-parallel training: as recorded, with every "
    "operation at the usual time of its kind, and with those of one worker, stage, data-parallel rank or kind at it."
)
EPILOG = f"""\
The trace is Parquet as ByteDance publishes it with StragglerAnalysis: a row per operation (docs/pipeline_traces.md). It
takes pyarrow: {install_command("parquet")}.

Exit status 0: the trace was replayed; 1: it could not be read or replayed; 2: usage.
"""
FORMATS = ("text", "json")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command. Returns 0 if the trace was replayed, else 1; exits with 2 on wrong usage."""
    options = make_parser().parse_args(argv)
    with importing():  # slow, so after --help
        from parse.pipeline.read import PipelineTraceError, read_pipeline_trace
        from parse.pipeline.result import as_json, pipeline_result, text

    try:
        result = pipeline_result(read_pipeline_trace(options.trace))
    except (PipelineTraceError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        print(plain(f"{options.trace}: {reason}"), file=sys.stderr)
        return 1
    sys.stdout.write(as_json(result) if options.format == "json" else text(result, text_width()))
    sys.stdout.flush()
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = CommandParser("python -m parse.pipeline_trace", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("trace", type=Path, metavar="TRACE.parquet", help="the trace")
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: %(default)s")
    return with_version(parser)


if __name__ == "__main__":
    sys.exit(run(main, "parse.pipeline_trace"))
