"""`parse.summarize --airank PATH…`: times to train by AI-Rank's rules, and the rules that the logs break."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hpc.system.command_line import text_width
from hpc.system.command_parser import CommandParser
from hpc.system.regular_file import existing
from hpc.system.sanitize import plain
from hpc.system.version import with_version
from parse.faults import has_fault

DESCRIPTION = (
    "Time to train, accuracy and speedup of trainings by AI-Rank's rules, and each rule their logs and files break."
)
EPILOG = """\
time to train  from test_begin to the first evaluation at the target. The clock never pauses. A log without AI-Rank's
               marks is timed by its own lines, from its first time stamp, and the report says so.
target         --target, else AI-Rank's 75.9 % of ResNet50, for logs that name no other model. Without a target a log
               has no time to train.
accuracy       of the best evaluation.
speedup        time to train on 1 device / time to train on n devices, of logs whose names differ in the devices only
               (GPUx1.log, GPUx8.log); never a ratio of throughputs, and none without a log of 1 device.
files          logs are named GPUx1.log, GPUx8.log and GPUx32.log; system_information.json has all of its fields.

A number that a log does not give is not printed; the reason is. A rule is broken where a printed target_quality_time is
not what the time stamps say, the target is not reached, a speedup cannot be had, or a file is missing or incomplete.

example: python -m parse.summarize --airank resnet50/log

Exit status 0: something was read, whatever rules it breaks; 1: nothing could be, or a PATH is not there; 2: usage.
"""
FORMATS = ("text", "json")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line behind `--airank`. Returns 0 if any file was read, 1 if none was or a path is not there; exits with
    2 on wrong usage."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    from parse.trainings.report import as_json, read, text  # slow, so after --help

    report = read(arguments.paths, arguments.target)
    if not report.results:
        names = plain(", ".join(map(str, arguments.paths)))
        print(*map(plain, report.refusals), f"nothing to judge in {names}", sep="\n", file=sys.stderr)
        return 1
    sys.stdout.write(as_json(report) if arguments.format == "json" else text(report, text_width()))
    sys.stdout.flush()
    return 1 if existing(arguments.paths)[1] or has_fault(report.refusals) else 0


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = CommandParser("python -m parse.summarize --airank", description=DESCRIPTION, epilog=EPILOG)
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="logs, or folders of them (*.log, *.txt, .gz)")
    add(
        "--target", type=_target, metavar="ACCURACY",
        help="accuracy to reach in all logs, in percent (75.9) or as a fraction (0.759); default: see below",
    )  # fmt: skip
    add("--format", choices=FORMATS, default="text", help="default: %(default)s")
    return with_version(parser)


def _target(text: str) -> float:
    value = float(text)
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text} is no percentage above 0 and up to 100, nor a fraction")
    return value
