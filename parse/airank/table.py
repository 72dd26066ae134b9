"""AI-Rank's numbers for people and for programs: returns strings, prints nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import Any

from hpc.system.sanitize import plain
from parse.airank.cases import Case, RuleSettings
from parse.airank.claims import Comparison
from parse.airank.rules import Violation
from parse.airank.training import Evaluation

WIDTH = 140
HEAD = (
    ("log", "devices", "time to train", "epochs", "throughput", "accuracy", "speedup", "efficiency"),
    ("", "", "(s)", "", "(samples/s)", "(%)", "", ""),
)


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that there is to print; `documents` were read, of `refusals` each is a file that was not, with the reason."""

    settings: RuleSettings
    cases: Sequence[Case]
    violations: Sequence[Violation]
    compared: Sequence[Comparison]
    documents: Sequence[Path]
    refusals: Sequence[str]


def text(report: Report) -> str:
    """A table per folder, the published figures beside it, then the broken rules, a line each."""
    warmup = report.settings.warmup_epochs or 0
    lines = []
    if report.cases:
        lines.append(
            f"time to train until {report.settings.target:g} % are reached; throughput over all epochs but "
            f"{warmup or 'no'} warm-up {'epoch' if warmup == 1 else 'epochs'}, pauses included"
        )
    for folder, cases in groupby(report.cases, key=lambda case: case.training.path.parent):
        here = list(cases)
        lines += ["", f"{folder}:", *_aligned([*HEAD, *(_row(case) for case in here)])]
        lines += [f"  {case.training.path.name}: {remark}" for case in here for remark in _beside(case)]
    if report.compared:
        rows: list[tuple[str, ...]] = [("line", "devices", "", "published", "recomputed", "difference", "")]
        rows += [_compared(comparison) for comparison in report.compared]
        lines += ["", "published beside recomputed:", *_aligned(rows)]
    lines += ["", *(_rules(report))]
    lines += [f"not read: {refusal}" for refusal in report.refusals]
    return "\n".join(plain(line).rstrip() for long in lines for line in _wrapped(long)).strip("\n") + "\n"


def as_json(report: Report) -> str:
    """The same for programs; a number that there is not is null, with the reason beside it."""
    written: dict[str, Any] = {
        "target": report.settings.target,
        "warmup_epochs": report.settings.warmup_epochs or 0,
        "logs": [_case(case) for case in report.cases],
        "published": [
            {
                "document": str(comparison.document),
                "line": comparison.claim.line,
                "devices": comparison.claim.devices,
                "what": comparison.what,
                "published": comparison.published,
                "recomputed": comparison.recomputed,
                "difference": comparison.difference,
                "note": comparison.note,
            }
            for comparison in report.compared
        ],
        "broken_rules": [
            {"path": str(comparison.path), "rule": comparison.rule, "how": comparison.how}
            for comparison in report.violations
        ],
        "not_read": list(report.refusals),
    }
    return json.dumps(written, indent=2) + "\n"


def _case(case: Case) -> dict[str, Any]:
    training, numbers = case.training, case.numbers
    return {
        "log": str(training.path),
        "family": training.log_format,
        "devices": training.devices,
        "clock": training.source,
        "begins_at": None if training.begin is None else training.begin.what,
        "time_to_train_s": numbers.time_to_train_s,
        "reached": _evaluation(numbers.reached),
        "whole_s": numbers.whole_s,
        "whole_until": numbers.whole_until,
        "throughput": numbers.throughput,
        "epochs": numbers.epochs,
        "samples_per_epoch": numbers.samples_per_epoch,
        "samples_per_epoch_from": numbers.samples_from,
        "accuracy": numbers.accuracy,
        "best": _evaluation(numbers.best),
        "speedup": case.speedup,
        "evaluations": len(training.evaluations),
        "reasons": {**numbers.reasons, **({"speedup": case.reason} if case.speedup is None else {})},
        "remarks": list(training.remarks),
    }


def _evaluation(evaluation: Evaluation | None) -> dict[str, float | None] | None:
    return {"accuracy": evaluation.accuracy, "epochs": evaluation.epochs} if evaluation else None


def _row(case: Case) -> tuple[str, ...]:
    numbers, devices = case.numbers, case.training.devices
    reached = numbers.reached.epochs if numbers.reached and numbers.time_to_train_s is not None else None
    return (
        case.training.path.name,
        "-" if devices is None else str(devices),
        _figure(numbers.time_to_train_s),
        "-" if reached is None else f"{reached:g}",
        _figure(numbers.throughput),
        _figure(numbers.accuracy),
        _figure(case.speedup),
        "-" if case.speedup is None or not devices else f"{case.speedup / devices:.1%}",
    )


def _beside(case: Case) -> Iterator[str]:
    """What must be known beside a log's row: where its clock begins, why a number is missing, what it sums up with."""
    training, numbers = case.training, case.numbers
    if numbers.whole_s is not None and training.begin is not None and training.begin.what != "test_begin":
        yield f"time is counted from {training.begin.what}: there is no test_begin"
    for reason in dict.fromkeys(numbers.reasons.values()):
        yield f"no {', no '.join(name for name, absence in numbers.reasons.items() if absence == reason)}: {reason}"
    if case.reason and numbers.time_to_train_s is not None:
        yield f"no speedup: {case.reason}"
    if numbers.throughput is not None:
        yield f"an epoch has {numbers.samples_per_epoch:,} samples, {numbers.samples_from}"
        if training.blocks and numbers.samples_per_epoch:
            epochs = sum(block.epochs for block in training.blocks)
            rate = epochs * numbers.samples_per_epoch / sum(block.seconds for block in training.blocks)
            yield f"without evaluations {rate:.2f} samples/s in {len(training.blocks)} blocks of {epochs} epochs"
    for name, rate in training.summaries:
        apart = f" ({rate / numbers.throughput - 1:+.1%})" if numbers.throughput else ""
        yield f"it sums up with {name} {rate:.2f}{apart}"
    yield from training.remarks


def _compared(comparison: Comparison) -> tuple[str, ...]:
    apart = "" if comparison.difference is None else f"{round(comparison.difference, 4) + 0.0:+.2%}"
    claim = comparison.claim
    return (
        str(claim.line),
        str(claim.devices),
        comparison.what,
        f"{comparison.published:.2f}",
        _figure(comparison.recomputed),
        apart,
        comparison.note,
    )


def _rules(report: Report) -> Iterator[str]:
    if not report.violations:
        yield "no rule is broken"
        return
    yield "broken rules:"
    root = Path(os.path.commonpath([violation.path.absolute().parent for violation in report.violations]))
    for violation in report.violations:
        yield f"  {violation.path.absolute().relative_to(root)}: {violation.rule}: {violation.how}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of words to the left, of figures to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    text_columns = [any(cell[:1].isalpha() for cell in column[2:]) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if is_text else cell.rjust(width)
            for cell, width, is_text in zip(row, widths, text_columns, strict=True)
        )
        for row in rows
    ]


def _wrapped(line: str) -> list[str]:
    if len(line) <= WIDTH:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return wrap(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [line]
