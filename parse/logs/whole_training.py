"""The speed of a whole training, of logs without steps: from totals that programs print, or epochs of known size."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpc.system.text import plural
from parse.logs.engine.log_format import LogRecord
from parse.logs.formats.mllog import BY_EPOCHS, Block, blocks, epochs
from parse.logs.sizes import Size, whole_number

if TYPE_CHECKING:
    from parse.logs.window import Reading

WHOLE_TRAINING = "whole training"
"""The window of such a number."""
WITHOUT_INPUT = ("train.compute_ips",)
"""Totals that leave the time of input out: taken only where no other is printed."""


@dataclass(frozen=True, kw_only=True)
class WholeTraining:
    """Speeds of a whole training, None where unknown; `source` is the arithmetic. `samples` is 0 if unknown."""

    wall_clock: float | None
    printed: float | None
    samples: int
    source: str


@dataclass(frozen=True, kw_only=True)
class _Epochs:
    """Lines of whole epochs. `rate` is that of all together, None where they print none or not all."""

    count: int
    seconds: float | None
    rate: float | None


def whole_training(reading: Reading, size: Size) -> WholeTraining | None:
    """The whole training of a log without a window: one without step lines, or with several lines of whole epochs."""
    lines = _epoch_lines(reading.records)
    if reading.window is not None or (reading.step_lines and lines.count < 2):
        return None
    scope = size.devices if reading.log_format.rates == "rank" else 1
    printed, printed_source = _printed(reading.records, lines)
    wall_clock, samples, clock_source = _by_samples(reading, lines)
    known_printed = printed * scope if printed and scope else None
    if known_printed is None and wall_clock is None:
        return None
    sources = [printed_source] if known_printed else []
    sources += [clock_source] if wall_clock else []
    return WholeTraining(wall_clock=wall_clock, printed=known_printed, samples=samples, source=" and ".join(sources))


def what_is_there(reading: Reading) -> str:
    """What a log without steps has of a whole training, and what is missing for a speed."""
    records = reading.records
    known = {
        "lines of whole epochs": _epoch_lines(records).count,
        "epochs or blocks between marks": len(_timed(records)),
        "evaluations": sum(1 for record in records if record.kind == "evaluation"),
        "AI-Rank marks": sum(1 for record in records if record.kind == "mark"),
        ":::MLLOG lines": sum(1 for record in records if record.kind == "mllog"),
    }
    counts = [f"{count} {name}" for name, count in known.items() if count]
    totals = f"there are {', '.join(counts)}" if counts else "there is no epoch and no total either"
    missing = []
    if not _timed(records) and not _epoch_lines(records).count:
        missing.append("the time of epochs")
    if not whole_number(reading.facts.get("samples_per_epoch")):
        missing.append("the samples of an epoch")
    elif _timed(records) and reading.facts.get("model") not in BY_EPOCHS:
        missing.append(f"a benchmark that counts epochs ({reading.facts.get('model') or 'none is named'})")
    lacking = f"; for the speed of the whole training it lacks {' and '.join(missing)}" if missing else ""
    return f"{totals}{lacking}"


def _printed(records: Iterable[LogRecord], lines: _Epochs) -> tuple[float | None, str]:
    """The rate that the program prints of the run, else that of its epochs together, with its source."""
    totals = [
        (rate, record.values.get("what", "its total"))
        for record in records
        if record.kind == "summary" and (rate := _positive(record.values.get("rate")))
    ]
    if totals:
        rate, what = next((total for total in reversed(totals) if total[1] not in WITHOUT_INPUT), totals[-1])
        return rate, f"the {what} that it prints, {rate:g}"
    if lines.rate:
        return lines.rate, f"the rates of {plural(lines.count, 'epoch')} that it prints"
    return None, ""


def _epoch_lines(records: Iterable[LogRecord]) -> _Epochs:
    """The epochs' own lines, one of each number: several ranks or loggers may print the same."""
    distinct = {
        record.values.get("epoch", str(number)): record
        for number, record in enumerate(records)
        if record.kind == "epoch"
    }
    seconds = [_positive(record.values.get("seconds")) for record in distinct.values()]
    rates = [_positive(record.values.get("rate")) for record in distinct.values()]
    known_s = [value for value in seconds if value]
    known_rates = [value for value in rates if value]
    all_timed = len(known_s) == len(distinct) > 0
    rate: float | None = None
    if known_rates and len(known_rates) == len(distinct):
        # Epochs without a time have equally many samples: the mean of their rates is the harmonic one.
        weights = known_s if all_timed else [1 / value for value in known_rates]
        rate = sum(map(operator.mul, known_rates, weights)) / sum(weights)
    return _Epochs(count=len(distinct), seconds=sum(known_s) if all_timed else None, rate=rate)


def _by_samples(reading: Reading, lines: _Epochs) -> tuple[float | None, int, str]:
    """Samples of an epoch × epochs / their time, the number of samples, and the source."""
    each = whole_number(reading.facts.get("samples_per_epoch"))
    if not each:
        return None, 0, ""
    timed = _timed(reading.records) if reading.facts.get("model") in BY_EPOCHS else ()
    count = sum(block.epochs for block in timed) or (lines.count if lines.seconds else 0)
    seconds = sum(block.seconds for block in timed) or lines.seconds or 0.0
    if not count or not seconds > 0:
        return None, 0, ""
    source = f"{plural(count, 'epoch')} of {each} samples in {seconds:.3f} s of training, evaluation left out"
    return each * count / seconds, each * count, source


def _timed(records: Sequence[LogRecord]) -> tuple[Block, ...]:
    return blocks(records) or epochs(records)


def _positive(text: str | None) -> float | None:
    """The number above 0 that a text is; None where it is none."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None
