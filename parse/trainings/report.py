"""Judges logs by AI-Rank's rules: the report as text and JSON. The door of this folder is `read`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from hpc.system.regular_file import existing, files_of
from hpc.system.sanitize import plain
from parse.faults import fault, unread
from parse.logs.engine.log_format import LogError
from parse.logs.nearest import with_nearest
from parse.text import GAP, Page, TableData, fields_of, json_value, number, wrapped
from parse.trainings.rules import SPEEDUP, TrainingResult, Violation, judge, judge_folder, training_results
from parse.trainings.training import BEGINS, LINES, read_training

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
