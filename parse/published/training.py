"""Reads a log as one whole training: its beginning, its evaluations and its end, all by one clock."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from parse.logs.engine.log_format import NO_NUMBER, LogRecord, Steps
from parse.logs.engine.reader import batches
from parse.logs.formats import format_named, recognise
from parse.logs.mlperf import KEYS, Clock, Evaluation, Moment, finite, in_percent, mllog_clock
from parse.logs.mlperf_training import CLAIMS, TrainedWork, claims, last_evaluation, trained
from parse.logs.path_facts import place_of
from parse.logs.sizes import NOWHERE, size_of, whole_number
from parse.logs.submission_names import with_submission

MAX_RECORDS = 20_000
"""The maximum of marks and evaluations read per log; no training has as many."""
DEVICES = re.compile(
    r"(?:GPU|[AHTV]\d{1,3})x(?P<devices>\d{1,6})|(?P<nodes>\d{1,5})n(?P<gpus>\d{1,4})[gc](?![a-z0-9])", re.IGNORECASE
)
"""Devices in a name: `GPUx8`, `V100x8`, `1n8g`."""
FIRST_STEP = "the first step's time stamp"
RECORD_KINDS = ("mark", "mllog", "evaluation", "summary", "remark")


@dataclass(frozen=True, kw_only=True)
class Training:
    """A whole training; all times are by the clock of one kind of line.

    `counted_from` is the log's number of the first epoch; it is None if the log starts at a later epoch, because it
    then continues an earlier training. `mllog` is the clock of the log's MLPerf lines, `clock` the one that counts.
    `claims` are the rates in tracked_stats. `trained` is what was done between evaluations by MLPerf's lines, or the
    reason why that is not known. `remarks` are printed beside the numbers.
    """

    path: Path
    log_format: str
    devices: int | None
    named_devices: int | None
    facts: Mapping[str, str]
    marks: tuple[LogRecord, ...]
    clock: Clock
    mllog: Clock
    summaries: tuple[tuple[str, float], ...] = ()
    trained: TrainedWork | str = ""
    claims: tuple[float, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The kind of lines that its times are from."""
        return self.clock.source

    @property
    def begin(self) -> Moment | None:
        """The beginning of the training."""
        return self.clock.begin

    @property
    def finish(self) -> Moment | None:
        """The end that the log states."""
        return self.clock.finish

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """All evaluations."""
        return self.clock.evaluations

    @property
    def counted_from(self) -> int | None:
        """The number of the first epoch."""
        return self.clock.counted_from

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
    def last(self) -> Evaluation | None:
        """The last evaluation that is not later than `finish`; of those that all are, the last."""
        return last_evaluation(self.evaluations, self.finish.time_s if self.finish else None)

    @property
    def epochs(self) -> float | None:
        """The epochs trained until the last evaluation."""
        return self.last.epochs if self.last else None

    @property
    def samples(self) -> float | None:
        """The samples trained until the last evaluation, if the log counts them."""
        return self.last.samples if self.last else None

    @property
    def trained_until(self) -> Moment | None:
        """The end of the time that `epochs` and `samples` took: a run that was aborted trained on after them."""
        if self.clock.aborted and self.last is not None:
            return None if self.last.time_s is None else Moment(self.last.time_s, "the last evaluation")
        return self.end


@dataclass
class _Collected:
    """The records, facts and first time stamps of a log, batch by batch."""

    records: list[LogRecord] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    first_time_s: float | None = None
    first_step_s: float | None = None
    first_epoch: int | None = None
    dropped: int = 0
    claims: list[LogRecord] = field(default_factory=list)

    def collect(self, steps: Steps, records: Iterable[LogRecord]) -> None:
        for record in records:
            if record.kind == "facts":
                self.facts = {**record.values, **self.facts}
            elif record.kind == "mllog" and record.values["key"] not in KEYS:
                if record.values["key"] in CLAIMS and len(self.claims) < MAX_RECORDS:
                    self.claims.append(record)
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
    mllog_lines = mllog_clock(mllog)
    clock = _clock(collected, marks, mllog_lines)
    if clock.counted_from == 0:
        evaluations = tuple(_counted_from_1(evaluation) for evaluation in clock.evaluations)
        clock = replace(clock, evaluations=evaluations)
    named = named_devices(path)
    return Training(
        path=path,
        log_format=known.name,
        devices=whole_number(collected.facts.get("world_size")) or named or _devices(path, collected.facts, mllog),
        named_devices=named,
        facts=collected.facts,
        marks=marks,
        clock=clock,
        mllog=mllog_lines,
        summaries=_summaries(collected.records),
        trained=trained(mllog, collected.facts, mllog_lines) if mllog else "",
        claims=claims(collected.claims, mllog_lines),
        remarks=_remarks(collected, clock, mllog_lines),
    )


def _clock(collected: _Collected, marks: tuple[LogRecord, ...], mllog: Clock) -> Clock:
    """Returns AI-Rank's marks if they hold an accuracy, else MLPerf's lines if they do, else the format's own lines."""
    if accuracies := [record for record in marks if record.values["mark"] == "eval_accuracy"]:
        begin, finish = _moment(marks, "test_begin"), _moment(marks, "test_finish")
        printed = tuple(in_percent(_evaluations(accuracies, "eval_accuracy", "total_epoch_cnt")))
        return Clock(
            source="marks", begin=begin, finish=finish, evaluations=printed, counted_from=_counted_from(None, printed)
        )
    if mllog.source:
        return mllog
    lines = _evaluations((record for record in collected.records if record.kind == "evaluation"), "top1", "epoch")
    evaluations = tuple(
        evaluation
        for before, evaluation in pairwise([None, *lines])
        if evaluation and not (before and evaluation.epochs is not None and before.epochs == evaluation.epochs)
    )
    return Clock(
        source="lines" if evaluations else "",
        begin=collected.begin(),
        evaluations=evaluations,
        counted_from=_counted_from(collected.first_epoch, evaluations),
    )


def named_devices(path: Path) -> int | None:
    """Returns the number of devices in the file's name, else in its folder's name."""
    for name in (path.name, path.parent.name):
        if match := DEVICES.search(name):
            return int(match["devices"] or int(match["nodes"]) * int(match["gpus"]))
    return None


def _devices(path: Path, facts: Mapping[str, str], mllog: tuple[LogRecord, ...]) -> int | None:
    """Returns the devices of a log of MLPerf, as a summary of logs has them."""
    if not mllog:
        return None
    return size_of(facts, with_submission(place_of(path), path, facts), NOWHERE, []).devices


def _evaluations(records: Iterable[LogRecord], accuracy_key: str, epoch_key: str) -> Iterator[Evaluation]:
    """Yields the evaluations that print an accuracy."""
    for record in records:
        if (accuracy := finite(record.values.get(accuracy_key))) is not None:
            epochs = finite(record.values.get(epoch_key))
            yield Evaluation(time_s=record.time_s, accuracy=accuracy, epochs=epochs)


def _moment(marks: Iterable[LogRecord], what: str) -> Moment | None:
    times = (mark.time_s for mark in marks if mark.values["mark"] == what and mark.time_s is not None)
    return next((Moment(time_s, what) for time_s in times), None)


def _counted_from(first: int | None, evaluations: Iterable[Evaluation]) -> int | None:
    """Returns the number of the first epoch, or None if the log starts at a later one; `first`: of the first step."""
    if 0 in (first, *(evaluation.epochs for evaluation in evaluations)):
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
        if record.kind == "summary" and (rate := finite(record.values.get("rate"))) is not None
    )


def _remarks(collected: _Collected, clock: Clock, mllog: Clock) -> tuple[str, ...]:
    remarks = [record.values.get("text", "") for record in collected.records if record.kind == "remark"]
    if collected.dropped:
        remarks.append(f"only the first {MAX_RECORDS:,} marks and evaluations are read, {collected.dropped:,} are not")
    if clock.source == "lines" and clock.begin is not None and clock.begin.what == FIRST_STEP:
        remarks.append("the launcher's clock is ahead of the program's, so time is counted from the first step")
    if mllog.aborted:
        remarks.append(f"run_stop says {mllog.status!r}")
    if clock.source == "lines" and any(record.kind == "mark" for record in collected.records):
        remarks.append("its marks hold no evaluation, so all times are those of the program's own lines")
    return tuple(remark for remark in remarks if remark)
