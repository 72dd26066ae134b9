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
    "Time to train, throughput, accuracy and speedup of trainings by AI-Rank's rules, and each rule their logs break."
)
EPILOG = """\
time to train  from test_begin to the first evaluation at the target. The clock never pauses. Where a log has no
               AI-Rank marks, MLPerf's run_start counts, else its first time stamp, and the table says so.
target         --target, else the log's own (quality_target, eval_target, target_accuracy), else MLPerf's of the log's
               submission_benchmark: an accuracy, or a loss or error rate, which has to fall. AI-Rank's 75.9 % of
               ResNet50 is for marks and programs' own lines that name no other model. Without a target a log has no
               time to train.
throughput     (epochs - warm-up epochs) * samples of an epoch / the time after warm-up, evaluations included. Epochs
               are counted from the log's first_epoch_num; of a run that was aborted up to its last evaluation. Where
               evaluations count samples (samples_count), these / the time. Rates that the log states in tracked_stats
               are printed beside it, with a warning where they differ.
accuracy       of the best evaluation.
speedup        time to train on 1 device / time to train on n devices, of logs whose names differ in the devices only
               (GPUx1.log, GPUx8.log); never a ratio of throughputs, and none without a log of 1 device.

A number that a log does not give is not printed; the reason is. Rules are those of a submission: marks, their order
and time stamps, the checksum, an evaluation every epoch, a fixed seed, printed times and rates that are what the time
stamps say, the names of the logs, the cases 1, 8 and 32, system_information.json.

example: python -m parse.summarize --airank resnet50/log --published resnet50/code/README.md

Exit status 0: something was read, whatever rules it breaks; 1: nothing could be, or a PATH is not there; 2: usage.
"""
FORMATS = ("text", "json")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line behind `--airank`. Returns 0 if any file was read, 1 if none was or a path is not there; exits with
    2 on wrong usage."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    if not arguments.paths and not arguments.published:
        parser.error("nothing to read: name logs, folders, or a document with --published")
    of_logs = {
        "--target": arguments.target, "--warmup-epochs": arguments.warmup_epochs,
        "--samples-per-epoch": arguments.samples_per_epoch,
    }  # fmt: skip
    if not arguments.paths and (given := [flag for flag, value in of_logs.items() if value is not None]):
        parser.error(f"{', '.join(given)}: of logs, and no PATH is named")
    from parse.published.airank_report import as_json, read, text  # slow, so after --help
    from parse.published.training_result import RuleSettings

    settings = RuleSettings(
        target=arguments.target,
        warmup_epochs=arguments.warmup_epochs,
        samples_per_epoch=arguments.samples_per_epoch,
    )
    report = read(arguments.paths, arguments.published, settings)
    if not report.results and not report.documents:
        names = plain(", ".join(map(str, [*arguments.paths, *arguments.published])))
        print(*map(plain, report.refusals), f"nothing to judge in {names}", sep="\n", file=sys.stderr)
        return 1
    sys.stdout.write(as_json(report) if arguments.format == "json" else text(report, text_width()))
    sys.stdout.flush()
    return 1 if existing([*arguments.paths, *arguments.published])[1] or has_fault(report.refusals) else 0


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = CommandParser("python -m parse.summarize --airank", description=DESCRIPTION, epilog=EPILOG)
    add = parser.add_argument
    add("paths", nargs="*", type=Path, metavar="PATH", help="logs, or folders of them (*.log, *.txt, .gz)")
    add("--target", type=_target, metavar="QUALITY",
        help="quality to reach in all logs: an accuracy in percent (75.9) or as a fraction (0.759); for a benchmark "
        "with a loss, that loss (default: by log, see below)")  # fmt: skip
    add("--published", action="append", default=[], type=Path, metavar="DOCUMENT",
        help="a document whose table of times to train is put beside the recomputed one; may be repeated")  # fmt: skip
    add("--warmup-epochs", type=_whole_number, metavar="N",
        help="epochs left out of the throughput (default: 0; a printed avg_ips is then compared with all)")  # fmt: skip
    add("--samples-per-epoch", type=_positive, metavar="N",
        help="in place of what logs say (default for ResNet50: ImageNet's 1,281,167)")  # fmt: skip
    add("--format", choices=FORMATS, default="text", help="default: %(default)s")
    return with_version(parser)


def _target(text: str) -> float:
    value = float(text)
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text} is no percentage above 0 and up to 100, nor a fraction")
    return value


def _whole_number(text: str, least: int = 0) -> int:
    if (value := int(text)) < least:
        raise argparse.ArgumentTypeError(f"{text} is below {least}")
    return value


def _positive(text: str) -> int:
    return _whole_number(text, 1)
