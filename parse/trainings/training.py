"""Reads a log as one whole training: its beginning, its evaluations and its end, all by one clock."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from parse.logs.engine.log_format import NO_NUMBER, LogError, LogRecord
from parse.logs.engine.reader import batches
from parse.logs.formats import recognise
from parse.logs.mlperf import finite
from parse.logs.sizes import whole_number

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
