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

MAX_SAID = 20_000
"""Marks and evaluations that are kept of one log; no training has as many."""
DEVICES = re.compile(
    r"(?:GPU|[AHTV]\d{1,3})x(?P<devices>\d{1,6})|(?P<nodes>\d{1,5})n(?P<gpus>\d{1,4})[gc](?![a-z0-9])", re.IGNORECASE
)
KEPT = ("mark", "mllog", "evaluation", "summary", "remark")


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
class _Heard:
    """What is kept of a log while it is read."""

    said: list[LogRecord] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    first_time_s: float | None = None
    first_step_s: float | None = None
    first_epoch: int | None = None
    dropped: int = 0

    def listen(self, steps: Steps, said: Iterable[LogRecord]) -> None:
        for one in said:
            if one.kind == "facts":
                for name, value in one.values.items():
                    self.facts.setdefault(name, value)
            if one.kind in KEPT:
                if len(self.said) < MAX_SAID:
                    self.said.append(one)
                else:
                    self.dropped += 1
        if self.first_time_s is None:
            self.first_time_s = _earliest(steps, said)
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
    heard = _Heard()
    for batch in batches(path, known):
        heard.listen(batch.steps, batch.records)
    return training(path, known.name, heard)


def training(path: Path, name: str, heard: _Heard) -> Training:
    """The training that these lines tell of, by the best of its clocks."""
    marks = tuple(one for one in heard.said if one.kind == "mark")
    mllog = tuple(one for one in heard.said if one.kind == "mllog")
    lines = tuple(one for one in heard.said if one.kind == "evaluation")
    begin: Moment | None
    finish: Moment | None
    if any(one.values["mark"] == "eval_accuracy" for one in marks):
        source, found, first = "marks", _of_marks(marks), None
        begin, finish = _moment(marks, "mark", "test_begin"), _moment(marks, "mark", "test_finish")
    elif any(one.values["key"] == "eval_accuracy" for one in mllog):
        source, found, first = "mllog", _of_mllog(mllog), None
        begin, finish = _moment(mllog, "key", "run_start"), _moment(mllog, "key", "run_stop", last=True)
    else:
        found, first = _of_lines(lines), heard.first_epoch
        source = "lines" if found else ""
        begin, finish = heard.begin(), None
    counted_from = _counted_from(found, first)
    shift = 1 if counted_from == 0 else 0
    named = named_devices(path)
    return Training(
        path=path,
        log_format=name,
        devices=_whole(heard.facts.get("world_size")) or named,
        named_devices=named,
        facts=heard.facts,
        marks=marks,
        source=source,
        begin=begin,
        finish=finish,
        evaluations=tuple(
            Evaluation(time_s=time_s, accuracy=accuracy, epochs=None if epoch is None else epoch + shift)
            for time_s, accuracy, epoch in found
        ),
        counted_from=counted_from,
        summaries=_summaries(heard.said),
        blocks=blocks(mllog),
        remarks=_remarks(heard, source, marks),
    )


def named_devices(path: Path) -> int | None:
    """How many devices the file's name says, or the folder's that it lies in."""
    for name in (path.name, path.parent.name):
        if found := DEVICES.search(name):
            return int(found["devices"] or int(found["nodes"]) * int(found["gpus"]))
    return None


Found = tuple[float | None, float, float | None]
"""An evaluation as printed: time, accuracy in percent, epoch."""


def _of_marks(marks: Iterable[LogRecord]) -> list[Found]:
    found = [
        (one.time_s, accuracy, _number(one.values.get("total_epoch_cnt")))
        for one in marks
        if one.values["mark"] == "eval_accuracy" and (accuracy := _number(one.values.get("eval_accuracy"))) is not None
    ]
    return _in_percent(found)


def _of_mllog(mllog: Iterable[LogRecord]) -> list[Found]:
    found: dict[tuple[float, float | None], Found] = {}
    for one in mllog:
        accuracy = _number(one.values.get("value"))
        if one.values["key"] == "eval_accuracy" and accuracy is not None:
            epoch = _number(one.values.get("epoch_num", one.values.get("epoch")))
            found.setdefault((accuracy, epoch), (one.time_s, accuracy, epoch))  # every rank may print it
    return _in_percent(list(found.values()))


def _of_lines(lines: Iterable[LogRecord]) -> list[Found]:
    found: list[Found] = []
    for one in lines:
        accuracy, epoch = _number(one.values.get("top1")), _number(one.values.get("epoch"))
        if accuracy is not None and not (found and epoch is not None and found[-1][2] == epoch):
            found.append((one.time_s, accuracy, epoch))  # every rank may print it; the first is taken
    return found


def _in_percent(found: list[Found]) -> list[Found]:
    """Marks and MLPerf print fractions by their rules; where a number above 1 stands, percent were printed."""
    if any(accuracy > 1 for _, accuracy, _ in found):
        return found
    return [(time_s, round(accuracy * 100, 10), epoch) for time_s, accuracy, epoch in found]


def _moment(said: Iterable[LogRecord], name: str, what: str, *, last: bool = False) -> Moment | None:
    times = [one.time_s for one in said if one.values[name] == what and one.time_s is not None]
    return Moment(time_s=times[-1 if last else 0], what=what) if times else None


def _counted_from(found: list[Found], first: int | None) -> int | None:
    """The number of the first epoch; None where the log begins with a later one."""
    printed = [epoch for _, _, epoch in found if epoch is not None]
    numbers = [*printed, *(() if first is None else (float(first),))]
    if not numbers or 0 in numbers:
        return 0 if numbers else 1
    # Only steps tell where an epoch begins; the first evaluation may come after several epochs.
    return 1 if first is None or first == 1 else None


def _earliest(steps: Steps, said: Iterable[LogRecord]) -> float | None:
    """The time stamp that stands first in these lines."""
    times = [(one.offset, one.time_s) for one in said if one.time_s is not None]
    timed = np.flatnonzero(~np.isnan(steps.time_s))
    if len(timed):
        times.append((int(steps.offset[timed[0]]), float(steps.time_s[timed[0]])))
    return min(times)[1] if times else None


def _summaries(said: Iterable[LogRecord]) -> tuple[tuple[str, float], ...]:
    return tuple(
        (one.values.get("what", "rate"), rate)
        for one in said
        if one.kind == "summary" and (rate := _number(one.values.get("rate"))) is not None
    )


def _remarks(heard: _Heard, source: str, marks: tuple[LogRecord, ...]) -> tuple[str, ...]:
    remarks = [one.values.get("text", "") for one in heard.said if one.kind == "remark"]
    if heard.dropped:
        remarks.append(f"only the first {MAX_SAID:,} marks and evaluations are read, {heard.dropped:,} are not")
    if source == "lines" and heard.first_time_s and heard.first_step_s and heard.first_step_s < heard.first_time_s:
        remarks.append("the launcher's clock is ahead of the program's, so time is counted from the first step")
    stopped = [one.values for one in heard.said if one.kind == "mllog" and one.values["key"] == "run_stop"]
    if stopped and (status := stopped[-1].get("status", stopped[-1].get("success", ""))) not in ("", "success", "true"):
        remarks.append(f"run_stop says {status!r}")
    if source == "lines" and marks:
        remarks.append("its marks hold no evaluation, so all times are those of the program's own lines")
    return tuple(remark for remark in remarks if remark)


def _number(text: str | None) -> float | None:
    try:
        found = float(text) if text else math.nan
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text) else None


__all__ = ["Evaluation", "LogError", "Moment", "Training", "named_devices", "read_training"]
