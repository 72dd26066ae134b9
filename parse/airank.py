"""`rankwise summarize --airank PATH…`: times to train by AI-Rank's rules, and the rules that the logs break."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from hpc.model.findings import CheckFinding, FigureValue
from hpc.model.training import FIELDS, INFORMATION
from hpc.system.command_line import text_width
from hpc.system.command_parser import CommandParser
from hpc.system.regular_file import existing, files_of, parse_json, read_whole
from hpc.system.sanitize import plain
from hpc.system.text import first_of
from hpc.system.version import with_version
from parse.faults import fault, has_fault, unread
from parse.logs.engine.log_format import NO_NUMBER, LogError, LogRecord
from parse.logs.engine.reader import batches
from parse.logs.formats import recognise
from parse.logs.formats.mllog import finite
from parse.logs.nearest import with_nearest
from parse.logs.path_facts import whole_number
from parse.text import GAP, Page, TableData, fields_of, json_value, number, wrapped

MAX_RECORDS = 20_000
"""The maximum of marks and evaluations of a log; no training has as many."""
DEVICES = re.compile(
    r"(?:GPU|[AHTV]\d{1,3})x(?P<devices>\d{1,6})|(?P<nodes>\d{1,5})n(?P<gpus>\d{1,4})[gc](?![a-z0-9])", re.IGNORECASE
)
"""Devices in a name: `GPUx8`, `V100x8`, `1n8g`."""
MARKS, LINES = "marks", "lines"
"""What the times of a training are from: AI-Rank's marks, or the program's own lines."""
TARGET_TIME = "target_quality_time"
BEGINS = {MARKS: "test_begin", LINES: "the earliest time stamp"}


@dataclass(frozen=True, kw_only=True)
class EpochAccuracy:
    """An accuracy in percent after `epochs` epochs; what the log does not print is None."""

    time_s: float | None
    accuracy: float
    epochs: float | None


@dataclass(frozen=True, kw_only=True)
class Training:
    """A whole training. `source` is MARKS or LINES, empty for a log without an evaluation.

    `printed_s` is the time to train that its mark target_quality_time prints. `resumed`: the log continues a training
    that began before it. `remarks` are printed beside the numbers.
    """

    path: Path
    log_format: str
    devices: int | None
    named_devices: int | None
    model: str
    source: str
    begin_s: float | None
    finish_s: float | None
    evaluations: tuple[EpochAccuracy, ...]
    printed_s: float | None
    resumed: bool
    remarks: tuple[str, ...]

    @property
    def whole_s(self) -> float | None:
        """The seconds from the beginning to test_finish, else to the last evaluation that has a time stamp."""
        times = [evaluation.time_s for evaluation in self.evaluations if evaluation.time_s is not None]
        end_s = self.finish_s if self.finish_s is not None else times[-1] if times else None
        return None if self.begin_s is None or end_s is None else end_s - self.begin_s

    @property
    def end(self) -> str:
        """The event that `whole_s` runs to."""
        return "the last evaluation" if self.finish_s is None else "test_finish"


def read_training(path: Path) -> Training:
    """Reads a log of any known format. Raises LogError if its format is unknown, it cannot be read, or it is one of
    MLPerf, whose rules are others."""
    known = recognise(path)
    by_kind: dict[str, list[LogRecord]] = {kind: [] for kind in ("mark", "evaluation", "remark", "facts", "mllog")}
    earliest_s = math.inf
    first: int | None = None
    for batch in batches(path, known):
        for record in batch.records:
            if len(records := by_kind.get(record.kind, [])) < MAX_RECORDS:
                records.append(record)
        times = [record.time_s for record in batch.records if record.time_s is not None]
        earliest_s = float(np.nanmin([earliest_s, *times, *batch.steps.time_s]))
        if first is None and (batch.steps.epoch != NO_NUMBER).any():
            first = int(batch.steps.epoch[batch.steps.epoch != NO_NUMBER][0])
    marks, remarks = by_kind["mark"], [text for record in by_kind["remark"] if (text := record.values.get("text"))]
    if any(len(by_kind[kind]) == MAX_RECORDS for kind in ("mark", "evaluation")):
        remarks.append(f"only the first {MAX_RECORDS:,} marks and evaluations are read")
    facts = {name: value for record in reversed(by_kind["facts"]) for name, value in record.values.items()}
    named = named_devices(path)
    training = Training(
        path=path, log_format=known.name, devices=whole_number(facts.get("world_size")) or named, named_devices=named,
        model=facts.get("model", ""), source="", begin_s=None, finish_s=None, evaluations=(), printed_s=None,
        resumed=False, remarks=tuple(remarks),
    )  # fmt: skip
    if accuracies := [mark for mark in marks if mark.values["mark"] == "eval_accuracy"]:
        printed = [*_evaluations(accuracies, "eval_accuracy", "total_epoch_cnt")]
        factor = 1 if any(each.accuracy > 1 for each in printed) else 100  # the rules require fractions
        printed = [replace(each, accuracy=round(each.accuracy * factor, 10)) for each in printed]
        return replace(
            training, source=MARKS, begin_s=_time(marks, "test_begin"), finish_s=_time(marks, "test_finish"),
            evaluations=_counted_from_1(printed),
            printed_s=next((time_s for mark in marks if (time_s := finite(mark.values.get(TARGET_TIME)))), None),
        )  # fmt: skip
    if by_kind["mllog"]:
        raise LogError(
            f"{path}: a log of MLPerf without AI-Rank's marks: the time to train by MLPerf's rules is what it states, "
            "run_stop - run_start"
        )
    printed = _once([*_evaluations(by_kind["evaluation"], "top1", "epoch")])
    without = ["its marks hold no evaluation, so all times are those of the program's own lines"] if marks else []
    from_0 = first == 0 or any(each.epochs == 0 for each in printed)
    return replace(
        training, source=LINES if printed else "", begin_s=earliest_s if math.isfinite(earliest_s) else None,
        evaluations=_counted_from_1(printed, from_0=from_0),
        # Only steps show where an epoch begins: the first evaluation may come after several epochs.
        resumed=not from_0 and first not in (None, 1), remarks=(*remarks, *without),
    )  # fmt: skip


def named_devices(path: Path) -> int | None:
    """Returns the number of devices in the file's name, else in its folder's name."""
    for name in (path.name, path.parent.name):
        if match := DEVICES.search(name):
            return int(match["devices"] or int(match["nodes"]) * int(match["gpus"]))
    return None


def _evaluations(records: Iterable[LogRecord], accuracy_key: str, epoch_key: str) -> Iterator[EpochAccuracy]:
    """Yields the evaluations that print an accuracy."""
    for record in records:
        if (accuracy := finite(record.values.get(accuracy_key))) is not None:
            epochs = finite(record.values.get(epoch_key))
            yield EpochAccuracy(time_s=record.time_s, accuracy=accuracy, epochs=epochs)


def _once(evaluations: Sequence[EpochAccuracy]) -> list[EpochAccuracy]:
    """The evaluations, those that several ranks print of one epoch once."""
    same = [each.epochs is not None and each.epochs == before.epochs for before, each in pairwise(evaluations)]
    return [each for each, is_again in zip(evaluations, [False, *same], strict=False) if not is_again]


def _counted_from_1(evaluations: Sequence[EpochAccuracy], *, from_0: bool = False) -> tuple[EpochAccuracy, ...]:
    """The evaluations of a log that may count its epochs from 0, of which the first shows it."""
    if not from_0 and all(each.epochs != 0 for each in evaluations):
        return tuple(evaluations)
    return tuple(replace(each, epochs=None if each.epochs is None else each.epochs + 1) for each in evaluations)


def _time(marks: Iterable[LogRecord], what: str) -> float | None:
    return next((mark.time_s for mark in marks if mark.values["mark"] == what and mark.time_s is not None), None)


# The four rules: time to train, accuracy, speedup, files.


RESNET50_TARGET = 75.9
"""Top-1 accuracy in percent that AI-Rank's rules require of ResNet50."""
RESNET50 = re.compile(r"(?:resnet|rn)[-_]?50", re.IGNORECASE)
OTHER_DATA = re.compile(r"arcface|insightface|tsm|rcnn|retinanet|ssd", re.IGNORECASE)
"""Models that may have a ResNet50 backbone and train on other data than ImageNet."""
TIME_TO_TRAIN, ACCURACY, SPEEDUP = "time to train", "accuracy", "speedup"
"""Names of numbers; `TrainingResult.reasons` has them as keys."""
NO_EVALUATION = "no evaluation is printed"


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """A training and its numbers; `reasons`, by name, of those that are None.

    `target` is the accuracy to reach in percent, `requested` if the command line has it. `reached` is the first
    evaluation at the target, `best` that of the highest accuracy. `speedup` is over one device, of logs of one series:
    those with the same folder and name without devices.
    """

    training: Training
    target: float | None
    requested: bool
    time_to_train_s: float | None
    reached: EpochAccuracy | None
    best: EpochAccuracy | None
    speedup: float | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def accuracy(self) -> float | None:
        """The accuracy of the best evaluation, in percent."""
        return self.best.accuracy if self.best else None

    @cached_property
    def series(self) -> tuple[Path, str]:
        """The folder and the name without devices, so that `GPUx8_AMP.log` matches `GPUx1_AMP.log`."""
        return self.training.path.parent, DEVICES.sub("*", self.training.path.name)


def training_results(trainings: Sequence[Training], target: float | None = None) -> list[TrainingResult]:
    """Returns a result per training, sorted by series and devices. A `target` up to 1 is a fraction, above it percent;
    without one it is AI-Rank's of ResNet50 for logs that name no other model."""
    results = [training_result(training, target) for training in trainings]
    return sorted(
        (_with_speedup(result, results) for result in results),
        key=lambda result: (result.series, result.training.devices or 0, result.training.path),
    )


def training_result(training: Training, requested: float | None) -> TrainingResult:
    """Returns the numbers of one training, still without speedup."""
    other_model = _named_otherwise(training)
    target = RESNET50_TARGET if requested is None else round(requested * 100, 10) if requested <= 1 else requested
    if requested is None and other_model:
        time_s: float | str = f"no target is known for {other_model!r} (--target)"
        target_known = None
    else:
        target_known, time_s = target, _time_to_train(training, target)
    best = max(training.evaluations, key=lambda evaluation: evaluation.accuracy, default=None)
    reasons = {TIME_TO_TRAIN: time_s} if isinstance(time_s, str) else {}
    return TrainingResult(
        training=training,
        target=target_known,
        requested=requested is not None,
        time_to_train_s=None if isinstance(time_s, str) else time_s,
        reached=_reached(training, target_known),
        best=best,
        reasons=reasons if best else {**reasons, ACCURACY: NO_EVALUATION},
    )


def _named_otherwise(training: Training) -> str:
    """Returns the model that the log or its path names, if it is not ResNet50."""
    if training.model and not RESNET50.search(training.model):
        return training.model
    match = OTHER_DATA.search("/".join(training.path.parts[-4:]))
    return match[0] if match else ""


def _reached(training: Training, target: float | None) -> EpochAccuracy | None:
    at_target = (each for each in training.evaluations if target is not None and each.accuracy >= target)
    return next(at_target, None)


def _time_to_train(training: Training, target: float) -> float | str:
    """Returns the seconds from the beginning to the first evaluation at the target, or why there are none."""
    begin_s, reached = training.begin_s, _reached(training, target)
    if reached is None and not training.evaluations:
        return NO_EVALUATION
    if reached is None:
        best = max(evaluation.accuracy for evaluation in training.evaluations)
        whole_s = training.whole_s
        until = "" if whole_s is None else f", {whole_s:.2f} s from {BEGINS[training.source]} to {training.end}"
        evaluations = f"{len(training.evaluations)} evaluations"
        return f"the target of {target:g} % is not reached: {best:.3f} % at best in {evaluations}{until}"
    if begin_s is None or training.resumed:
        missing = "test_begin" if training.source == MARKS else "time stamp"
        resumed = "the log goes on with a training that began before it"
        return resumed if begin_s is not None else f"nothing says when it began (no {missing})"
    if reached.time_s is None:
        return "the evaluation that reached the target has no time stamp"
    if reached.time_s <= begin_s:
        return f"the target is reached before {BEGINS[training.source]}"
    return reached.time_s - begin_s


def _with_speedup(result: TrainingResult, results: Sequence[TrainingResult]) -> TrainingResult:
    """Adds the time to train on one device divided by this one's; it is never a ratio of throughputs."""
    time_s = result.time_to_train_s
    single = [other for other in results if other.series == result.series and other.training.devices == 1]
    base = single[0].time_to_train_s if single else None
    if result.training.devices is None:
        reason = "neither the log nor its name says how many devices it ran on"
    elif time_s is None:
        reason = "it has no time to train"
    elif not single:
        reason = "there is no log of 1 device beside it"
    elif len(single) > 1:
        reason = f"{len(single)} logs of 1 device are beside it: which one counts is not known"
    elif base is None:
        reason = f"{single[0].training.path.name} has no time to train"
    else:
        return replace(result, speedup=base / time_s)
    return replace(result, reasons={**result.reasons, SPEEDUP: reason})


# How they are broken.

FILES = "files"
TIME_TOLERANCE_S = 1.0
"""A printed time and its time stamps agree within it."""
CASES = (1, 8, 32)
LOG_NAME = re.compile(r"GPUx(?:1|8|32)\.log(?:\.gz)?")
LEVELS = 3
"""`<system>/system_information.json`, `<system>/<model>/log/GPUx1.log`: from a log's folder up to the system's."""


@dataclass(frozen=True, kw_only=True)
class Violation(CheckFinding):
    """A rule that the log or folder at `path` breaks."""

    path: Path


def judge(result: TrainingResult) -> Iterator[Violation]:
    """Yields the rules that a log breaks by itself."""
    training, target, best = result.training, result.target, result.best

    def broken(rule: str, text: str, **figures: FigureValue) -> Violation:
        return Violation(path=training.path, name=rule, text=text, figures=figures)

    time_s, printed = result.time_to_train_s, training.printed_s
    if printed is not None and time_s is None:
        text = f"{printed:.2f} s is printed, but there is no such time: {result.reasons[TIME_TO_TRAIN]}"
        yield broken(TIME_TO_TRAIN, text, printed_s=printed)
    elif printed is not None and time_s is not None and abs(printed - time_s) > TIME_TOLERANCE_S:
        pass_s = f"{printed:.2f} s is printed, {time_s:.2f} s pass until the first evaluation at {target:g} %"
        whole = training.whole_s
        is_whole = whole is not None and abs(printed - whole) <= max(TIME_TOLERANCE_S, 1e-3 * whole)
        end = f": it runs to {training.end}" if is_whole else ""
        yield broken(TIME_TO_TRAIN, f"{pass_s}{end}", printed_s=printed, time_s=time_s)
    elif printed is None and time_s is not None and training.source == MARKS:
        yield broken(
            TIME_TO_TRAIN, f"no {TARGET_TIME} is printed, {time_s:.2f} s pass by its time stamps", time_s=time_s
        )
    if best is None:
        yield broken(ACCURACY, "nothing is evaluated")
    elif target is not None and result.reached is None:
        text = f"{target:g} % is not reached in {len(training.evaluations)} evaluations: {best.accuracy:.3f} % at best"
        yield broken(ACCURACY, text, target=target, evaluations=len(training.evaluations), best=best.accuracy)
    if time_s is not None and result.speedup is None:
        yield broken(SPEEDUP, result.reasons[SPEEDUP])
    if None not in (training.devices, training.named_devices) and training.devices != training.named_devices:
        named, in_log = training.named_devices, training.devices
        assert named is not None and in_log is not None
        yield broken(FILES, f"its name says {named} devices, the log says {in_log}", named=named, in_log=in_log)


def judge_folder(results: Sequence[TrainingResult]) -> Iterator[Violation]:
    """Yields how the logs of one folder together break the rule of files: their names, the cases 1, 8 and 32, and what
    system_information.json says."""
    folder = results[0].training.path.parent

    def broken(text: str, **figures: FigureValue) -> Violation:
        return Violation(path=folder, name=FILES, text=text, figures=figures)

    if others := sorted({name for each in results if not LOG_NAME.fullmatch(name := each.training.path.name)}):
        yield broken(f"not GPUx1.log, GPUx8.log or GPUx32.log: {first_of(others, 3)}", names=others)
    counts = {result.training.devices for result in results}
    if missing := [devices for devices in CASES if devices not in counts]:
        known = ", ".join(map(str, sorted(filter(None, counts)))) or "none that says so"
        text = f"no log of {' nor of '.join(map(str, missing))} devices (there are logs of {known})"
        yield broken(text, missing=missing)
    places = (folder.absolute(), *folder.absolute().parents)[: LEVELS + 1]
    path = next((place / INFORMATION for place in places if (place / INFORMATION).is_file()), None)
    if path is None:
        yield broken(f"no {INFORMATION} in {folder} nor in the {LEVELS} folders above it")
        return
    yield from (
        broken(f"{INFORMATION} {text}") for text in _wrong_information(path, max(filter(None, counts), default=0))
    )


def _wrong_information(path: Path, largest: int) -> Iterator[str]:
    """What is wrong with the description of the machine that logs of up to `largest` devices are of."""
    try:
        information: Any = parse_json(read_whole(path))
    except (OSError, ValueError) as error:
        yield f"cannot be read ({error})"
        return
    if not isinstance(information, Mapping):
        yield "holds no object"
        return
    if missing := [name for name in FIELDS if name not in information]:
        yield f"lacks {', '.join(missing)}"
    if empty := [name for name in FIELDS if name in information and information[name] in (None, "", [], {})]:
        yield f"says nothing in {', '.join(empty)}"
    nodes, each = (whole_number(information.get(name)) for name in ("number_of_nodes", "accelerators_per_node"))
    if nodes and each and nodes * each < largest:
        yield f"has {nodes} nodes of {each} accelerators = {nodes * each}, but a log is of {largest}"


# The report as text and JSON.


ENDINGS = (".log", ".txt", ".log.gz", ".txt.gz")
MIN_NAME = 20
"""Names of logs are not cut to fewer characters, however narrow the page."""
HEADS = (
    ("log", ""), ("devices", ""), ("time to train", "(s)"), ("epochs", ""), ("accuracy", "(%)"), ("speedup", ""),
    ("efficiency", ""),
)  # fmt: skip
INDENT = 2
TARGET_OF = "AI-Rank's of ResNet50"


@dataclass(frozen=True, kw_only=True)
class AirankReport:
    """The trainings with the rules that their logs break; `refusals` are the unread files with reasons."""

    target: float | None
    results: Sequence[TrainingResult]
    violations: Sequence[Violation]
    refusals: Sequence[str]


def read(paths: Sequence[Path], target: float | None = None) -> AirankReport:
    """Reads and judges logs and folders of logs; `target` is that of `training_results`."""
    paths, refusals = existing(paths)
    trainings = []
    for path in files_of(paths, lambda file: file.name.lower().endswith(ENDINGS)):
        try:
            trainings.append(read_training(path))
        except LogError as error:
            refusals.append(with_nearest(path, error))
        except Exception as error:  # noqa: BLE001 - the line says which
            refusals.append(fault(error, path))
    results = training_results(trainings, target)
    violations = [violation for result in results for violation in judge(result)]
    for _, in_folder in groupby(results, key=_folder):
        violations += judge_folder(list(in_folder))
    return AirankReport(target=target, results=results, violations=violations, refusals=refusals)


def _folder(result: TrainingResult) -> Path:
    return result.training.path.parent


def text(report: AirankReport, width: int) -> str:
    """Returns a table per folder and a line per broken rule, in `width` columns."""
    lines: list[str] = []
    for folder, results_of_folder in groupby(report.results, key=_folder):
        results = list(results_of_folder)
        lines += ["", plain(f"{folder}:"), *_table(results, width)]
        remarks = [f"{result.training.path.name}: {remark}" for result in results for remark in _remarks(result)]
        lines += wrapped(remarks, width, "  ")
    lines += ["", *_broken_rules(report.violations, width)]
    lines += wrapped(map(unread, report.refusals), width)
    return "\n".join(map(str.rstrip, lines)).strip("\n") + "\n"


def as_json(report: AirankReport) -> str:
    """Returns the report as JSON; a missing number is null, with its reason in `reasons`."""
    return json.dumps(json_value(report, _members), indent=2) + "\n"


def _members(record: Any) -> dict[str, Any]:
    """The fields of a dataclass with paths as text; of a result its accuracy, of a violation its rule, text and
    figures."""
    if isinstance(record, Violation):
        return {"path": str(record.path), "rule": record.name, "how": record.text, "figures": record.figures}
    fields = {name: str(value) if isinstance(value, Path) else value for name, value in fields_of(record).items()}
    return fields | {"accuracy": record.accuracy} if isinstance(record, TrainingResult) else fields


def _table(results: Sequence[TrainingResult], width: int) -> list[str]:
    """Returns the table of a folder; long names of logs are cut in the middle."""
    table = TableData(heads=HEADS, rows=[*map(_cells, results)], keys=1)
    room = width - INDENT - len(GAP) - table.width(range(1, len(HEADS)))
    return table.shortened(0, max(MIN_NAME, room)).lines(Page(width=width), INDENT)


def _cells(result: TrainingResult) -> tuple[str, ...]:
    devices = result.training.devices
    reached = result.reached.epochs if result.reached and result.time_to_train_s is not None else None
    return (
        result.training.path.name,
        "-" if devices is None else str(devices),
        number(result.time_to_train_s),
        "-" if reached is None else f"{reached:g}",
        number(result.accuracy),
        number(result.speedup),
        "-" if result.speedup is None or not devices else f"{result.speedup / devices:.1%}",
    )


def _remarks(result: TrainingResult) -> Iterator[str]:
    """Yields the start of the clock, the target, and the reasons of missing numbers."""
    training = result.training
    if training.whole_s is not None and training.source == LINES:
        yield f"time is counted from {BEGINS[LINES]}: there is no test_begin"
    if result.target is not None:
        named = "" if training.model or result.requested else ": the log names no model"
        yield f"the target is {result.target:g} %, {'as requested' if result.requested else TARGET_OF}{named}"
    for reason in dict.fromkeys(result.reasons.values()):
        names = [name for name, absence in result.reasons.items() if absence == reason and name != SPEEDUP]
        yield from [f"no {', no '.join(names)}: {reason}"] if names else []
    yield from training.remarks


def _broken_rules(violations: Sequence[Violation], width: int) -> list[str]:
    if not violations:
        return ["no rule is broken"]
    root = os.path.commonpath([violation.path.absolute().parent for violation in violations])
    texts = (f"{item.path.absolute().relative_to(root)}: {item.name}: {item.text}" for item in violations)
    return ["broken rules:", *wrapped(texts, width, "  ")]


# The command.


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

example: rankwise summarize --airank resnet50/log

Exit status 0: something was read, whatever rules it breaks; 1: nothing could be, or a PATH is not there; 2: usage.
"""
FORMATS = ("text", "json")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line behind `--airank`. Returns 0 if any file was read, 1 if none was or a path is not there; exits with
    2 on wrong usage."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
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
    parser = CommandParser("rankwise summarize --airank", description=DESCRIPTION, epilog=EPILOG)
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
