"""What a log tells of a whole training: when it began, its evaluations, when it ended, by one clock."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from parse.logs.engine.log_format import NO_NUMBER, LogError, LogRecord, Steps
from parse.logs.engine.reader import batches
from parse.logs.formats import format_named, recognise
from parse.logs.formats.mllog import Block, blocks

MAX_RECORDS = 20_000
"""Marks and evaluations that are kept of one log; no training has as many."""
DEVICES = re.compile(
    r"(?:GPU|[AHTV]\d{1,3})x(?P<devices>\d{1,6})|(?P<nodes>\d{1,5})n(?P<gpus>\d{1,4})[gc](?![a-z0-9])", re.IGNORECASE
)
RECORD_KINDS = ("mark", "mllog", "evaluation", "summary", "remark")


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A time of the log, and which line it is taken from."""

    time_s: float
    what: str


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """An accuracy in percent; `epochs` trained until then, as counted from 1; None where the log does not say."""

    time_s: float | None
    accuracy: float
    epochs: float | None


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training as its log tells it, all times by the clock of one kind of line.

    `source` is that kind: `marks` (AI-Rank's), `mllog`, `lines` (the family's own evaluations), or empty where nothing
    is evaluated. `counted_from` is the number that the log gives the first epoch; None where it begins later: then it
    goes on with a training begun before. `remarks` are what must be known beside the numbers.
    """

    path: Path
    log_format: str
    devices: int | None
    named_devices: int | None
    facts: Mapping[str, str]
    marks: tuple[LogRecord, ...]
    source: str
    begin: Moment | None
    finish: Moment | None
    evaluations: tuple[Evaluation, ...]
    counted_from: int | None
    summaries: tuple[tuple[str, float], ...] = ()
    blocks: tuple[Block, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass
class _Collected:
    """What is kept of a log while it is read."""

    records: list[LogRecord] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    first_time_s: float | None = None
    first_step_s: float | None = None
    first_epoch: int | None = None
    dropped: int = 0

    def collect(self, steps: Steps, records: Iterable[LogRecord]) -> None:
        for record in records:
            if record.kind == "facts":
                for name, value in record.values.items():
                    self.facts.setdefault(name, value)
            if record.kind in RECORD_KINDS:
                if len(self.records) < MAX_RECORDS:
                    self.records.append(record)
                else:
                    self.dropped += 1
        if self.first_time_s is None:
            self.first_time_s = _earliest(steps, records)
        if self.first_step_s is None:
            self.first_step_s = _earliest(steps, ())
        if self.first_epoch is None and (steps.epoch != NO_NUMBER).any():
            self.first_epoch = int(steps.epoch[steps.epoch != NO_NUMBER][0])

    def begin(self) -> Moment | None:
        """The first time stamp; the first step's where that is earlier, as a launcher's clock may be ahead."""
        if self.first_time_s is None:
            return None
        if self.first_step_s is not None and self.first_step_s < self.first_time_s:
            return Moment(time_s=self.first_step_s, what="the first step's time stamp")
        return Moment(time_s=self.first_time_s, what="the first time stamp")


def read_training(path: Path, log_format: str | None = None) -> Training:
    """Reads a log of any family. Raises LogError where it is none, or cannot be read."""
    known = format_named(log_format) if log_format else recognise(path)
    collected = _Collected()
    for batch in batches(path, known):
        collected.collect(batch.steps, batch.records)
    return training(path, known.name, collected)


def training(path: Path, name: str, collected: _Collected) -> Training:
    """The training that these lines tell of, by the best of its clocks."""
    marks = tuple(record for record in collected.records if record.kind == "mark")
    mllog = tuple(record for record in collected.records if record.kind == "mllog")
    lines = tuple(record for record in collected.records if record.kind == "evaluation")
    begin: Moment | None
    finish: Moment | None
    if any(record.values["mark"] == "eval_accuracy" for record in marks):
        source, accuracies, first = "marks", _of_marks(marks), None
        begin, finish = _moment(marks, "mark", "test_begin"), _moment(marks, "mark", "test_finish")
    elif any(record.values["key"] == "eval_accuracy" for record in mllog):
        source, accuracies, first = "mllog", _of_mllog(mllog), None
        begin, finish = _moment(mllog, "key", "run_start"), _moment(mllog, "key", "run_stop", last=True)
    else:
        accuracies, first = _of_lines(lines), collected.first_epoch
        source = "lines" if accuracies else ""
        begin, finish = collected.begin(), None
    counted_from = _counted_from(accuracies, first)
    shift = 1 if counted_from == 0 else 0
    named = named_devices(path)
    return Training(
        path=path,
        log_format=name,
        devices=_whole(collected.facts.get("world_size")) or named,
        named_devices=named,
        facts=collected.facts,
        marks=marks,
        source=source,
        begin=begin,
        finish=finish,
        evaluations=tuple(
            Evaluation(time_s=time_s, accuracy=accuracy, epochs=None if epoch is None else epoch + shift)
            for time_s, accuracy, epoch in accuracies
        ),
        counted_from=counted_from,
        summaries=_summaries(collected.records),
        blocks=blocks(mllog),
        remarks=_remarks(collected, source, marks),
    )


def named_devices(path: Path) -> int | None:
    """How many devices the file's name says, or the folder's that it lies in."""
    for name in (path.name, path.parent.name):
        if match := DEVICES.search(name):
            return int(match["devices"] or int(match["nodes"]) * int(match["gpus"]))
    return None


PrintedAccuracy = tuple[float | None, float, float | None]
"""An evaluation as printed: time, accuracy in percent, epoch."""


def _of_marks(marks: Iterable[LogRecord]) -> list[PrintedAccuracy]:
    accuracies = [
        (record.time_s, accuracy, _number(record.values.get("total_epoch_cnt")))
        for record in marks
        if record.values["mark"] == "eval_accuracy"
        and (accuracy := _number(record.values.get("eval_accuracy"))) is not None
    ]
    return _in_percent(accuracies)


def _of_mllog(mllog: Iterable[LogRecord]) -> list[PrintedAccuracy]:
    accuracies: dict[tuple[float, float | None], PrintedAccuracy] = {}
    for record in mllog:
        accuracy = _number(record.values.get("value"))
        if record.values["key"] == "eval_accuracy" and accuracy is not None:
            epoch = _number(record.values.get("epoch_num", record.values.get("epoch")))
            accuracies.setdefault((accuracy, epoch), (record.time_s, accuracy, epoch))  # every rank may print it
    return _in_percent(list(accuracies.values()))


def _of_lines(lines: Iterable[LogRecord]) -> list[PrintedAccuracy]:
    accuracies: list[PrintedAccuracy] = []
    for record in lines:
        accuracy, epoch = _number(record.values.get("top1")), _number(record.values.get("epoch"))
        if accuracy is not None and not (accuracies and epoch is not None and accuracies[-1][2] == epoch):
            accuracies.append((record.time_s, accuracy, epoch))  # every rank may print it; the first is taken
    return accuracies


def _in_percent(accuracies: list[PrintedAccuracy]) -> list[PrintedAccuracy]:
    """Marks and MLPerf print fractions by their rules; where a number above 1 stands, percent were printed."""
    if any(accuracy > 1 for _, accuracy, _ in accuracies):
        return accuracies
    return [(time_s, round(accuracy * 100, 10), epoch) for time_s, accuracy, epoch in accuracies]


def _moment(records: Iterable[LogRecord], name: str, what: str, *, last: bool = False) -> Moment | None:
    times = [record.time_s for record in records if record.values[name] == what and record.time_s is not None]
    return Moment(time_s=times[-1 if last else 0], what=what) if times else None


def _counted_from(accuracies: list[PrintedAccuracy], first: int | None) -> int | None:
    """The number of the first epoch; None where the log begins with a later one."""
    printed = [epoch for _, _, epoch in accuracies if epoch is not None]
    numbers = [*printed, *(() if first is None else (float(first),))]
    if not numbers or 0 in numbers:
        return 0 if numbers else 1
    # Only steps tell where an epoch begins; the first evaluation may come after several epochs.
    return 1 if first is None or first == 1 else None


def _earliest(steps: Steps, records: Iterable[LogRecord]) -> float | None:
    """The time stamp that stands first in these lines."""
    times = [(record.offset, record.time_s) for record in records if record.time_s is not None]
    timed = np.flatnonzero(~np.isnan(steps.time_s))
    if len(timed):
        times.append((int(steps.offset[timed[0]]), float(steps.time_s[timed[0]])))
    return min(times)[1] if times else None


def _summaries(records: Iterable[LogRecord]) -> tuple[tuple[str, float], ...]:
    return tuple(
        (record.values.get("what", "rate"), rate)
        for record in records
        if record.kind == "summary" and (rate := _number(record.values.get("rate"))) is not None
    )


def _remarks(collected: _Collected, source: str, marks: tuple[LogRecord, ...]) -> tuple[str, ...]:
    remarks = [record.values.get("text", "") for record in collected.records if record.kind == "remark"]
    if collected.dropped:
        remarks.append(f"only the first {MAX_RECORDS:,} marks and evaluations are read, {collected.dropped:,} are not")
    if (
        source == "lines"
        and collected.first_time_s
        and collected.first_step_s
        and collected.first_step_s < collected.first_time_s
    ):
        remarks.append("the launcher's clock is ahead of the program's, so time is counted from the first step")
    stopped = [
        record.values for record in collected.records if record.kind == "mllog" and record.values["key"] == "run_stop"
    ]
    if stopped and (status := stopped[-1].get("status", stopped[-1].get("success", ""))) not in ("", "success", "true"):
        remarks.append(f"run_stop says {status!r}")
    if source == "lines" and marks:
        remarks.append("its marks hold no evaluation, so all times are those of the program's own lines")
    return tuple(remark for remark in remarks if remark)


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text) else None


__all__ = ["Evaluation", "LogError", "Moment", "Training", "named_devices", "read_training"]
