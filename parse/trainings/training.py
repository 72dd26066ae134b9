"""Reads a log as one whole training: its beginning, its evaluations and its end, all by one clock."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from hpc.system.text import grouped
from parse.logs.engine.log_format import NO_NUMBER, LogError, LogRecord, Steps
from parse.logs.engine.reader import batches
from parse.logs.formats import recognise
from parse.logs.mlperf import finite
from parse.logs.sizes import whole_number

MAX_RECORDS = 20_000
"""The maximum of marks and evaluations read per log; no training has as many."""
DEVICES = re.compile(
    r"(?:GPU|[AHTV]\d{1,3})x(?P<devices>\d{1,6})|(?P<nodes>\d{1,5})n(?P<gpus>\d{1,4})[gc](?![a-z0-9])", re.IGNORECASE
)
"""Devices in a name: `GPUx8`, `V100x8`, `1n8g`."""
TARGET_TIME = "target_quality_time"
FIRST_STEP = "the first step's time stamp"
RECORD_KINDS = ("mark", "evaluation", "remark")
MARKS, LINES = "marks", "lines"
"""What the times of a training are from: AI-Rank's marks, or the program's own lines."""


@dataclass(frozen=True)
class Instant:
    """A time in seconds and the event that it is of."""

    time_s: float
    what: str


@dataclass(frozen=True, kw_only=True)
class EpochAccuracy:
    """An accuracy in percent after `epochs` epochs; what the log does not print is None."""

    time_s: float | None
    accuracy: float
    epochs: float | None


@dataclass(frozen=True, kw_only=True)
class Training:
    """A whole training. `source` is MARKS or LINES, empty for a log without an evaluation.

    `printed_s` is the time to train that its mark `target_quality_time` prints. `resumed`: the log continues a training
    that began before it. `remarks` are printed beside the numbers.
    """

    path: Path
    log_format: str
    devices: int | None
    named_devices: int | None
    model: str
    source: str
    begin: Instant | None
    finish: Instant | None
    evaluations: tuple[EpochAccuracy, ...]
    printed_s: float | None = None
    resumed: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def end(self) -> Instant | None:
        """`finish`, else the last evaluation that has a time stamp."""
        if self.finish is not None:
            return self.finish
        times = [evaluation.time_s for evaluation in self.evaluations if evaluation.time_s is not None]
        return Instant(times[-1], "the last evaluation") if times else None

    @property
    def whole_s(self) -> float | None:
        """The seconds from `begin` to `end`."""
        return None if self.begin is None or self.end is None else self.end.time_s - self.begin.time_s


@dataclass
class _Collected:
    """The marks, evaluations, facts and first time stamps of a log, batch by batch."""

    records: list[LogRecord] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    first_time_s: float | None = None
    first_step_s: float | None = None
    first_epoch: int | None = None
    dropped: int = 0
    of_mlperf: bool = False

    def collect(self, steps: Steps, records: Iterable[LogRecord]) -> None:
        for record in records:
            if record.kind == "facts":
                self.facts = {**record.values, **self.facts}
            elif record.kind == "mllog":
                self.of_mlperf |= record.values["key"] == "run_start"
            elif record.kind in RECORD_KINDS:
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

    def begin(self) -> Instant | None:
        """Returns the first time stamp, or the first step's if the launcher's clock is ahead."""
        moments = [(self.first_time_s, "the first time stamp"), (self.first_step_s, FIRST_STEP)]
        return min((Instant(time_s, what) for time_s, what in moments if time_s is not None),
                   key=lambda moment: moment.time_s, default=None)  # fmt: skip


def read_training(path: Path) -> Training:
    """Reads a log of any known format. Raises LogError if its format is unknown, it cannot be read, or it is one of
    MLPerf, whose rules are others."""
    known = recognise(path)
    collected = _Collected()
    for batch in batches(path, known):
        collected.collect(batch.steps, batch.records)
    by_kind = grouped((record.kind, record) for record in collected.records)
    marks = by_kind.get("mark", [])
    accuracies = [mark for mark in marks if mark.values["mark"] == "eval_accuracy"]
    if collected.of_mlperf and not accuracies:
        raise LogError(
            f"{path}: a log of MLPerf without AI-Rank's marks: the time to train by MLPerf's rules is what it states, "
            "run_stop - run_start"
        )
    lines = _once(_evaluations(by_kind.get("evaluation", []), "top1", "epoch"))
    printed = _in_percent([*_evaluations(accuracies, "eval_accuracy", "total_epoch_cnt")]) if accuracies else lines
    source = MARKS if accuracies else LINES if lines else ""
    begin = _moment(marks, "test_begin") if accuracies else collected.begin()
    first = None if accuracies else collected.first_epoch
    from_0 = 0 in (first, *(evaluation.epochs for evaluation in printed))
    named = named_devices(path)
    return Training(
        path=path,
        log_format=known.name,
        devices=whole_number(collected.facts.get("world_size")) or named,
        named_devices=named,
        model=collected.facts.get("model", ""),
        source=source,
        begin=begin,
        finish=_moment(marks, "test_finish") if accuracies else None,
        evaluations=tuple(_counted_from_1(evaluation) for evaluation in printed) if from_0 else tuple(printed),
        printed_s=next((time_s for mark in marks if (time_s := finite(mark.values.get(TARGET_TIME)))), None),
        # Only steps show where an epoch begins: the first evaluation may come after several epochs.
        resumed=not from_0 and first not in (None, 1),
        remarks=tuple(_remarks(collected, source, begin, has_marks=bool(marks))),
    )


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


def _once(evaluations: Iterable[EpochAccuracy]) -> list[EpochAccuracy]:
    """The evaluations, those that several ranks print of one epoch once."""
    return [
        evaluation
        for before, evaluation in pairwise([None, *evaluations])
        if evaluation and not (before and evaluation.epochs is not None and before.epochs == evaluation.epochs)
    ]


def _in_percent(evaluations: Sequence[EpochAccuracy]) -> list[EpochAccuracy]:
    """The rules of marks require fractions; any number above 1 shows that the log prints percent."""
    factor = 1 if any(evaluation.accuracy > 1 for evaluation in evaluations) else 100
    return [replace(evaluation, accuracy=round(evaluation.accuracy * factor, 10)) for evaluation in evaluations]


def _counted_from_1(evaluation: EpochAccuracy) -> EpochAccuracy:
    return evaluation if evaluation.epochs is None else replace(evaluation, epochs=evaluation.epochs + 1)


def _moment(marks: Iterable[LogRecord], what: str) -> Instant | None:
    times = (mark.time_s for mark in marks if mark.values["mark"] == what and mark.time_s is not None)
    return next((Instant(time_s, what) for time_s in times), None)


def _earliest(steps: Steps, records: Iterable[LogRecord]) -> float | None:
    """Returns the time stamp nearest to the start of the file."""
    times = [(record.offset, record.time_s) for record in records if record.time_s is not None]
    timed = np.flatnonzero(~np.isnan(steps.time_s))
    if len(timed):
        times.append((int(steps.offset[timed[0]]), float(steps.time_s[timed[0]])))
    return min(times)[1] if times else None


def _remarks(collected: _Collected, source: str, begin: Instant | None, *, has_marks: bool) -> Iterator[str]:
    yield from (text for record in collected.records if record.kind == "remark" and (text := record.values.get("text")))
    if collected.dropped:
        yield f"only the first {MAX_RECORDS:,} marks and evaluations are read, {collected.dropped:,} are not"
    if source == LINES and begin is not None and begin.what == FIRST_STEP:
        yield "the launcher's clock is ahead of the program's, so time is counted from the first step"
    if source == LINES and has_marks:
        yield "its marks hold no evaluation, so all times are those of the program's own lines"
