"""Judges logs by AI-Rank's rules: the report as text and JSON. The door of this folder is `read`."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from hpc.system.regular_file import existing
from hpc.system.sanitize import plain
from parse.faults import fault, unread
from parse.logs.engine.log_format import LogError
from parse.logs.nearest import with_nearest
from parse.text import GAP, Page, TableData, number, wrapped
from parse.trainings.result import SPEEDUP, TrainingResult, training_results
from parse.trainings.rules import Violation, judge, judge_folder
from parse.trainings.training import MARKS, read_training

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
    for path in _files(paths):
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


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """Yields the named files and the logs in named folders, each file once; these may be pipes or devices."""
    seen: set[Path] = set()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            is_log = file == path or (file.name.lower().endswith(ENDINGS) and not file.is_dir())
            if is_log and (real := file.resolve()) not in seen:
                seen.add(real)
                yield file


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
    written: dict[str, Any] = {
        "target": report.target,
        "logs": [_training(result) for result in report.results],
        "broken_rules": [
            {"path": str(item.path), "rule": item.name, "how": item.text, "figures": item.figures}
            for item in report.violations
        ],
        "not_read": list(report.refusals),
    }
    return json.dumps(written, indent=2) + "\n"


def _training(result: TrainingResult) -> dict[str, Any]:
    training = result.training
    return {
        "log": str(training.path),
        "family": training.log_format,
        "devices": training.devices,
        "clock": training.source,
        "begins_at": None if training.begin is None else training.begin.what,
        "target": result.target,
        "time_to_train_s": result.time_to_train_s,
        "reached": None if result.reached is None else dataclasses.asdict(result.reached),
        "whole_s": training.whole_s,
        "whole_until": "" if training.end is None else training.end.what,
        "accuracy": result.accuracy,
        "best": None if result.best is None else dataclasses.asdict(result.best),
        "speedup": result.speedup,
        "evaluations": len(training.evaluations),
        "reasons": result.reasons,
        "remarks": list(training.remarks),
    }


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
    if training.whole_s is not None and training.begin is not None and training.source != MARKS:
        yield f"time is counted from {training.begin.what}: there is no test_begin"
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
