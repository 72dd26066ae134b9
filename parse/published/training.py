"""Reads a log as one whole training: its beginning, its evaluations and its end, all by one clock."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from parse.logs.engine.log_format import NO_NUMBER, LogRecord, Steps
from parse.logs.engine.reader import batches
from parse.logs.formats import format_named, recognise
from parse.logs.formats.mllog import Block, blocks
from parse.published.vocabulary import whole_number

MAX_RECORDS = 20_000
"""The maximum of marks and evaluations read per log; no training has as many."""
DEVICES = re.compile(
    r"(?:GPU|[AHTV]\d{1,3})x(?P<devices>\d{1,6})|(?P<nodes>\d{1,5})n(?P<gpus>\d{1,4})[gc](?![a-z0-9])", re.IGNORECASE
)
"""Devices in a name: `GPUx8`, `V100x8`, `1n8g`."""
FIRST_STEP = "the first step's time stamp"
RECORD_KINDS = ("mark", "mllog", "evaluation", "summary", "remark")


@dataclass(frozen=True)
class Moment:
    """A time in the log, and the line that it is taken from."""

    time_s: float
    what: str


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """An accuracy in percent after `epochs` epochs; `time_s` and `epochs` are None if the log does not print them."""

    time_s: float | None
    accuracy: float
    epochs: float | None


@dataclass(frozen=True, kw_only=True)
class Training:
    """A whole training; all times are by the clock of one kind of line.

    `source` is that kind: `marks` (AI-Rank's), `mllog`, `lines` (the log format's own evaluations), or empty if the log
    has no evaluation. `counted_from` is the log's number of the first epoch; it is None if the log starts at a later
    epoch, because it then continues an earlier training. `remarks` are printed beside the numbers.
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

    @property
    def end(self) -> Moment | None:
        """`finish`, else the last evaluation that has a time stamp."""
        if self.finish is not None:
            return self.finish
        times = [evaluation.time_s for evaluation in self.evaluations if evaluation.time_s is not None]
        return Moment(times[-1], "the last evaluation") if times else None

    @property
    def whole_s(self) -> float | None:
        """The seconds from `begin` to `end`."""
        return None if self.begin is None or self.end is None else self.end.time_s - self.begin.time_s

    @property
    def epochs(self) -> float | None:
        """The epochs trained until the last evaluation."""
        return self.evaluations[-1].epochs if self.evaluations else None


@dataclass(frozen=True)
class _Clock:
    """The moments and evaluations by the clock of one kind of line; `first_epoch` is the epoch of the first step."""

    source: str
    begin: Moment | None
    finish: Moment | None
    evaluations: list[Evaluation]
    first_epoch: int | None = None


@dataclass
class _Collected:
    """The records, facts and first time stamps of a log, batch by batch."""

    records: list[LogRecord] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    first_time_s: float | None = None
    first_step_s: float | None = None
    first_epoch: int | None = None
    dropped: int = 0

    def collect(self, steps: Steps, records: Iterable[LogRecord]) -> None:
        for record in records:
            if record.kind == "facts":
                self.facts = {**record.values, **self.facts}
            elif record.kind in RECORD_KINDS and len(self.records) < MAX_RECORDS:
                self.records.append(record)
            else:
                self.dropped += record.kind in RECORD_KINDS
        if self.first_time_s is None:
            self.first_time_s = _earliest(steps, records)
        if self.first_step_s is None:
            self.first_step_s = _earliest(steps, ())
        if self.first_epoch is None and (steps.epoch != NO_NUMBER).any():
            self.first_epoch = int(steps.epoch[steps.epoch != NO_NUMBER][0])

    def begin(self) -> Moment | None:
        """Returns the first time stamp, or the first step's if the launcher's clock is ahead."""
        moments = [(self.first_time_s, "the first time stamp"), (self.first_step_s, FIRST_STEP)]
        return min((Moment(time_s, what) for time_s, what in moments if time_s is not None),
                   key=lambda moment: moment.time_s, default=None)  # fmt: skip


def read_training(path: Path, log_format: str | None = None) -> Training:
    """Reads a log of any known format. Raises LogError if its format is unknown or it cannot be read."""
    known = format_named(log_format) if log_format else recognise(path)
    collected = _Collected()
    for batch in batches(path, known):
        collected.collect(batch.steps, batch.records)
    marks, mllog = (tuple(record for record in collected.records if record.kind == kind) for kind in ("mark", "mllog"))
    clock = _clock(collected, marks, mllog)
    counted_from, named = _counted_from(clock), named_devices(path)
    if counted_from == 0:
        clock = replace(clock, evaluations=[_counted_from_1(evaluation) for evaluation in clock.evaluations])
    return Training(
        path=path,
        log_format=known.name,
        devices=whole_number(collected.facts.get("world_size")) or named,
        named_devices=named,
        facts=collected.facts,
        marks=marks,
        source=clock.source,
        begin=clock.begin,
        finish=clock.finish,
        evaluations=tuple(clock.evaluations),
        counted_from=counted_from,
        summaries=_summaries(collected.records),
        blocks=blocks(mllog),
        remarks=_remarks(collected, clock),
    )


def _clock(collected: _Collected, marks: tuple[LogRecord, ...], mllog: tuple[LogRecord, ...]) -> _Clock:
    """Returns AI-Rank's marks if they hold an accuracy, else MLPerf's lines if they do, else the format's own lines."""
    if accuracies := [record for record in marks if record.values["mark"] == "eval_accuracy"]:
        begin, finish = _moment(marks, "mark", "test_begin"), _moment(marks, "mark", "test_finish")
        evaluations = _in_percent(_evaluations(accuracies, "eval_accuracy", "total_epoch_cnt"))
        return _Clock("marks", begin, finish, evaluations)
    if accuracies := [record for record in mllog if record.values["key"] == "eval_accuracy"]:
        begin, finish = _moment(mllog, "key", "run_start"), _moment(mllog, "key", "run_stop", last=True)
        # Every rank may print an evaluation.
        distinct: dict[tuple[float, float | None], Evaluation] = {}
        for evaluation in _evaluations(accuracies, "value", "epoch_num", "epoch"):
            distinct.setdefault((evaluation.accuracy, evaluation.epochs), evaluation)
        return _Clock("mllog", begin, finish, _in_percent(distinct.values()))
    lines = _evaluations((record for record in collected.records if record.kind == "evaluation"), "top1", "epoch")
    evaluations = [
        evaluation
        for before, evaluation in pairwise([None, *lines])
        if evaluation and not (before and evaluation.epochs is not None and before.epochs == evaluation.epochs)
    ]
    return _Clock("lines" if evaluations else "", collected.begin(), None, evaluations, collected.first_epoch)


def named_devices(path: Path) -> int | None:
    """Returns the number of devices in the file's name, else in its folder's name."""
    for name in (path.name, path.parent.name):
        if match := DEVICES.search(name):
            return int(match["devices"] or int(match["nodes"]) * int(match["gpus"]))
    return None


def _evaluations(records: Iterable[LogRecord], accuracy_key: str, *epoch_keys: str) -> Iterator[Evaluation]:
    """Yields the evaluations that print an accuracy; the first of `epoch_keys` that a record has is its epoch."""
    for record in records:
        if (accuracy := _number(record.values.get(accuracy_key))) is not None:
            epochs = next((record.values[key] for key in epoch_keys if key in record.values), None)
            yield Evaluation(time_s=record.time_s, accuracy=accuracy, epochs=_number(epochs))


def _in_percent(evaluations: Iterable[Evaluation]) -> list[Evaluation]:
    """The rules of marks and MLPerf require fractions; any number above 1 shows that the log prints percent."""
    printed = list(evaluations)
    if any(evaluation.accuracy > 1 for evaluation in printed):
        return printed
    return [replace(evaluation, accuracy=round(evaluation.accuracy * 100, 10)) for evaluation in printed]


def _moment(records: Iterable[LogRecord], name: str, what: str, *, last: bool = False) -> Moment | None:
    times = [record.time_s for record in records if record.values[name] == what and record.time_s is not None]
    return Moment(times[-1 if last else 0], what) if times else None


def _counted_from(clock: _Clock) -> int | None:
    """Returns the number of the first epoch, or None if the log starts at a later one."""
    first = clock.first_epoch
    numbers = [first, *(evaluation.epochs for evaluation in clock.evaluations)]
    if 0 in numbers:
        return 0
    # Only steps show where an epoch begins: the first evaluation may come after several epochs.
    return 1 if first is None or first == 1 else None


def _counted_from_1(evaluation: Evaluation) -> Evaluation:
    return evaluation if evaluation.epochs is None else replace(evaluation, epochs=evaluation.epochs + 1)


def _earliest(steps: Steps, records: Iterable[LogRecord]) -> float | None:
    """Returns the time stamp nearest to the start of the file."""
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


def _remarks(collected: _Collected, clock: _Clock) -> tuple[str, ...]:
    remarks = [record.values.get("text", "") for record in collected.records if record.kind == "remark"]
    if collected.dropped:
        remarks.append(f"only the first {MAX_RECORDS:,} marks and evaluations are read, {collected.dropped:,} are not")
    if clock.source == "lines" and clock.begin is not None and clock.begin.what == FIRST_STEP:
        remarks.append("the launcher's clock is ahead of the program's, so time is counted from the first step")
    mllog = (record.values for record in collected.records if record.kind == "mllog")
    stopped = [values for values in mllog if values["key"] == "run_stop"]
    if stopped and (status := stopped[-1].get("status", stopped[-1].get("success", ""))) not in ("", "success", "true"):
        remarks.append(f"run_stop says {status!r}")
    if clock.source == "lines" and any(record.kind == "mark" for record in collected.records):
        remarks.append("its marks hold no evaluation, so all times are those of the program's own lines")
    return tuple(remark for remark in remarks if remark)


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None
