"""`python -m parse.airank FOLDER`: time to train by AI-Rank's rules, and which of them the logs break."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from hpc.system.command_line import importing, run
from hpc.system.command_parser import CommandParser

if TYPE_CHECKING:
    from parse.airank.cases import Terms
    from parse.airank.table import Report

DESCRIPTION = (
    "Time to train, throughput, accuracy and speedup of trainings by AI-Rank's rules, and each rule their logs break."
)
EPILOG = """\
time to train  from test_begin to the first evaluation at or above the target. The clock never pauses. Where a log has
               no AI-Rank marks, MLPerf's run_start counts, else its first time stamp, and the table says so.
throughput     (epochs - warm-up epochs) * samples of an epoch / the time after warm-up, evaluations included.
accuracy       of the best evaluation.
speedup        time to train on 1 device / time to train on n devices, of logs whose names differ in the devices only
               (GPUx1.log, GPUx8.log); never a ratio of throughputs, and none without a log of 1 device.

A number that a log does not give is not printed; the reason is. Rules are those of a submission: marks, their order
and time stamps, the checksum, an evaluation every epoch, a fixed seed, printed times and rates that are what the time
stamps say, the names of the logs, the cases 1, 8 and 32, system_information.json.

example: python -m parse.airank resnet50/log --published resnet50/code/README.md

Exit status 0: something was read, whatever rules it breaks; 1: nothing could be; 2: usage.
"""
# What parse.airank.table offers; importing it here would make --help slow.
FORMATS = ("text", "json")
ENDINGS = (".log", ".txt", ".log.gz", ".txt.gz")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns 0 when something was read, 1 when nothing could be, 2 for wrong usage."""
    parser = _parser()
    asked = parser.parse_args(argv)
    if not asked.paths and not asked.published:
        parser.error("nothing to read: name logs, folders, or a document with --published")
    with importing():
        from parse.airank.cases import TARGET, Terms

    terms = Terms(
        target=TARGET if asked.target is None else asked.target,
        warmup_epochs=asked.warmup_epochs,
        samples_per_epoch=asked.samples_per_epoch,
    )
    return _report(asked.paths, asked.published, terms, asked.format)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="python -m parse.airank",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="PATH", help="logs, or folders of them (*.log, *.txt, .gz)"
    )
    parser.add_argument(
        "--target", type=_percent, metavar="PERCENT", help="accuracy to reach (default: 75.9, ResNet50's top-1)"
    )
    parser.add_argument(
        "--published",
        action="append",
        default=[],
        type=Path,
        metavar="DOC.md",
        help="a document whose table of times to train is put beside the recomputed one; may be repeated",
    )
    parser.add_argument(
        "--warmup-epochs",
        type=_count,
        metavar="N",
        help="epochs left out of the throughput (default: 0; a printed avg_ips is then held against every N)",
    )
    parser.add_argument(
        "--samples-per-epoch",
        type=_positive,
        metavar="N",
        help="where logs do not say (default for ResNet50: ImageNet's 1,281,167)",
    )
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: %(default)s")
    return parser


def _percent(word: str) -> float:
    value = float(word)
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"{word} is no percentage above 0 and up to 100")
    return value


def _count(word: str) -> int:
    if (value := int(word)) < 0:
        raise argparse.ArgumentTypeError(f"{word} is below 0")
    return value


def _positive(word: str) -> int:
    if (value := int(word)) < 1:
        raise argparse.ArgumentTypeError(f"{word} is below 1")
    return value


def _report(paths: Sequence[Path], documents: Sequence[Path], terms: Terms, form: str) -> int:
    from parse.airank.table import as_json, text

    report = read(paths, documents, terms)
    if not report.cases and not report.documents:
        for refusal in report.refusals:
            print(refusal, file=sys.stderr)
        print(f"nothing to judge in {', '.join(map(str, [*paths, *documents]))}", file=sys.stderr)
        return 1
    sys.stdout.write({"text": text, "json": as_json}[form](report))
    sys.stdout.flush()
    return 0


def read(paths: Sequence[Path], documents: Sequence[Path], terms: Terms) -> Report:
    """The report on these logs and documents; what cannot be read is in its refusals."""
    with importing():
        from parse.airank.cases import cases
        from parse.airank.claims import check, compare, read_document
        from parse.airank.folder import judge_folder
        from parse.airank.rules import judge
        from parse.airank.table import Report
        from parse.airank.training import read_training
        from parse.logs.engine.log_format import LogError

    trainings, read_documents, refusals = [], [], []
    for path in _logs(paths):
        try:
            trainings.append(read_training(path))
        except LogError as error:
            refusals.append(str(error))
    for path in documents:
        try:
            read_documents.append(read_document(path))
        except LogError as error:
            refusals.append(str(error))
    found = cases(trainings, terms)
    broken = [one for case in found for one in judge(case, terms)]
    for _, here in groupby(found, key=lambda case: case.training.path.parent):
        broken += judge_folder(list(here))
    broken += [one for document in read_documents for one in check(document, terms)]
    compared = [one for document in read_documents for one in compare(document, found)]
    known = tuple(document.path for document in read_documents)
    return Report(terms=terms, cases=found, broken=broken, compared=compared, documents=known, refusals=refusals)


def _logs(paths: Sequence[Path]) -> Iterator[Path]:
    """The files asked for, and of folders those that are named like logs; each once."""
    seen: set[Path] = set()
    for path in paths:
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in inside:
            named = file == path or (file.name.lower().endswith(ENDINGS) and file.is_file())
            if named and (real := file.resolve()) not in seen:
                seen.add(real)
                yield file


if __name__ == "__main__":
    sys.exit(run(main, "parse.airank"))
