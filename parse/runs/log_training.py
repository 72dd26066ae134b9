"""The speeds of a log; those of a whole training, of logs without steps, by totals that programs print or by epochs of
known size."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpc.system.text import grouped, plural
from parse.logs.engine.fields import LARGEST
from parse.logs.engine.intervals import SEVERAL_RUNS
from parse.logs.engine.log_format import LogRecord
from parse.logs.formats.mllog import TrainedWork, stated_rate, trained
from parse.logs.path_facts import Size, whole_number

if TYPE_CHECKING:
    from parse.logs.window import Reading


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The speeds of a log in its format's unit per second; None where it has none.

    `wall_clock` and `printed` are work over time. `mean_of_rates` is the arithmetic mean of the printed rates,
    `protocol` the same where the format's reference protocol publishes it. Of a whole training `samples` are all that
    it took in, 0 if unknown, and `source` is the arithmetic.
    """

    wall_clock: float | None
    printed: float | None
    mean_of_rates: float | None = None
    protocol: float | None = None
    samples: int = 0
    source: str = ""

    def which(self, requested: str) -> str:
        """The name of the speed that counts: the requested one, but printed if there is no wall clock."""
        if requested == "protocol" and self.protocol is not None:
            return "protocol"
        return "printed" if requested == "printed" or self.wall_clock is None else "wall_clock"

    def result(self, requested: str) -> float | None:
        """The speed that counts."""
        speeds = {"wall_clock": self.wall_clock, "printed": self.printed, "protocol": self.protocol}
        return speeds[self.which(requested)]


WHOLE_TRAINING = "whole training"
"""The window of such a number."""
WITHOUT_INPUT = ("train.compute_ips",)
"""Totals that leave the time of input out: taken only where no other is printed."""


@dataclass(frozen=True, kw_only=True)
class _Epochs:
    """Lines of whole epochs. `rate` is that of all together, None where they print none or not all."""

    count: int
    seconds: float | None
    rate: float | None


def whole_training(reading: Reading, size: Size) -> Speed | None:
    """The whole training of a log without a window: one without step lines, or with several lines of whole epochs."""
    lines = _epoch_lines(reading.records)
    if reading.window is not None or (reading.step_lines and lines.count < 2):
        return None
    scope = size.devices if reading.log_format.rates == "rank" else 1
    printed, printed_source = _printed_speed(reading, lines)
    wall_clock, samples, clock_source = _by_samples(reading, lines)
    known_printed = printed * scope if printed and scope else None
    sources = [source for speed, source in ((known_printed, printed_source), (wall_clock, clock_source)) if speed]
    if not sources:
        return None
    return Speed(wall_clock=wall_clock, printed=known_printed, samples=samples, source=" and ".join(sources))


def what_is_there(reading: Reading) -> str:
    """What a log without steps has of a whole training, and what is missing for a speed."""
    records = reading.records
    for what, rates in _totals(reading).items():
        if max(rates) > SEVERAL_RUNS * min(rates):
            return f"the {what} that it prints is {min(rates):g} and {max(rates):g}: of several runs"
    known = {
        "lines of whole epochs": _epoch_lines(records).count,
        "evaluations": sum(1 for record in records if record.kind == "evaluation"),
        "AI-Rank marks": sum(1 for record in records if record.kind == "mark"),
        ":::MLLOG lines": sum(1 for record in records if record.kind == "mllog"),
    }
    counts = [f"{count} {name}" for name, count in known.items() if count]
    totals = f"there are {', '.join(counts)}" if counts else "there is no epoch and no total either"
    if known[":::MLLOG lines"]:
        done = _trained(reading)
        return f"{totals}; no speed of the whole training: {done}" if isinstance(done, str) else totals
    missing = [] if known["lines of whole epochs"] else ["the time of epochs"]
    missing += [] if whole_number(reading.facts.get("samples_per_epoch")) else ["the samples of an epoch"]
    lacking = f"; for the speed of the whole training it lacks {' and '.join(missing)}" if missing else ""
    return f"{totals}{lacking}"


def _trained(reading: Reading) -> TrainedWork | str:
    """What MLPerf's lines say was trained, or the reason why they do not."""
    is_mlperf = any(record.kind == "mllog" for record in reading.records)
    return trained(reading.records, reading.facts) if is_mlperf else "it has no :::MLLOG lines"


def _printed_speed(reading: Reading, lines: _Epochs) -> tuple[float | None, str]:
    """The rate that the program prints of the run, else that of its epochs together, else the one that MLPerf's lines
    state, with its source."""
    if totals := _totals(reading):
        what = next((name for name in reversed(totals) if name not in WITHOUT_INPUT), "") or next(reversed(totals))
        rates = totals[what]
        if max(rates) > SEVERAL_RUNS * min(rates):
            return None, ""
        return rates[-1], f"the {what} that it prints, {rates[-1]:g}"
    if lines.rate:
        return lines.rate, f"the rates of {plural(lines.count, 'epoch')} that it prints"
    stated = stated_rate(reading.records, reading.facts)
    return stated, f"the rates that it states in tracked_stats, {stated:g} (median)" if stated else ""


def _totals(reading: Reading) -> dict[str, list[float]]:
    """The rates of the run that the program prints, by what it calls them."""
    return grouped(
        (record.values.get("what", "its total"), rate)
        for record in reading.records
        if record.kind == "summary" and (rate := _positive(record.values.get("rate")))
    )


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
    """Samples / their time, the number of samples, and the source: by MLPerf's lines, else by those of whole epochs."""
    done = _trained(reading)
    if isinstance(done, TrainedWork):
        return done.rate, round(done.samples), done.source
    each = whole_number(reading.facts.get("samples_per_epoch"))
    if not each or not lines.seconds or any(record.kind == "mllog" for record in reading.records):
        return None, 0, ""
    work = f"{plural(lines.count, 'epoch')} of {each} samples"
    source = f"{work} in {lines.seconds:.3f} s of training, evaluation left out"
    return each * lines.count / lines.seconds, each * lines.count, source


def _positive(text: str | None) -> float | None:
    """The number above 0 that a text is; None where it is none, or larger than any of a log."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value <= LARGEST else None
