"""What a training by MLPerf's lines has done in which time, as far as its lines state it.

Its samples are those that an evaluation counts (`samples_count`), or epochs × `train_samples`; its time is that from
the first block's begin to the last one's end, evaluations in it. Nothing is reconstructed beside that.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from parse.logs.engine.log_format import LogRecord
from parse.logs.formats.mllog import DATA_SETS, EVALUATIONS, RATES, SAME_DATA
from parse.logs.sizes import whole_number

BLOCKS = (("block_start", "block_stop"), ("epoch_start", "epoch_stop"))
"""Keys of lines that bracket training: the first that a log has count."""
CLAIMS = ("tracked_stats", *RATES)
"""Keys of lines that state a rate; the first that a log has counts."""
TOKENS_PER_SAMPLE = {"gpt3": 2048}
"""Benchmarks whose stated rates are tokens/s."""
SUCCESS = ("success", "true")
MAX_SAMPLES = 1e18


@dataclass(frozen=True, kw_only=True)
class TrainedWork:
    """So many samples in the seconds from the first block's begin to the last one's end; `work` are the samples in
    words, with their source."""

    samples: float
    seconds: float
    work: str

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds


def finite(text: str | None) -> float | None:
    """The number that a text holds; None for another text, an infinity or NaN."""
    try:
        value = float(text) if text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def trained(records: Iterable[LogRecord], facts: Mapping[str, str]) -> TrainedWork | str:
    """What the training has done, or the reason why its lines do not say it."""
    lines = [record for record in records if record.kind == "mllog" and record.time_s is not None]
    for begin, end in BLOCKS:
        begins, ends = _of(lines, begin), _of(lines, end)
        if begins and ends:
            begin_s, end_s = min(map(_time_s, begins)), max(map(_time_s, ends))
            work = _work(begins, ends, [line for line in lines if begin_s < _time_s(line)], facts)
            if isinstance(work, str):
                return work
            samples, text = work
            if not end_s > begin_s or not 0 < samples < MAX_SAMPLES:
                return f"{text} between {begin} and {end} are no training"
            return TrainedWork(samples=samples, seconds=end_s - begin_s, work=text)
    return "it has no block_start with a block_stop, nor an epoch_start with an epoch_stop"


def _of(lines: Sequence[LogRecord], key: str) -> list[LogRecord]:
    return [line for line in lines if line.values["key"] == key]


def _time_s(line: LogRecord) -> float:
    return line.time_s or 0.0


def _work(
    begins: Sequence[LogRecord], ends: Sequence[LogRecord], lines: Sequence[LogRecord], facts: Mapping[str, str]
) -> tuple[float, str] | str:
    """The samples of the blocks, and these in words; or the reason why they are not stated."""
    evaluations = [line.values for line in lines if line.values["key"] in EVALUATIONS]
    before = finite(begins[0].values.get("samples_count")) or 0.0
    counts = [count for values in evaluations if (count := finite(values.get("samples_count")))]
    if counts:
        counted_s = max(_time_s(line) for line in lines if line.values["key"] in EVALUATIONS)
        if any(_time_s(begin) >= counted_s for begin in begins):
            return "a block begins after the last evaluation that counts samples"
        return max(counts) - before, f"{max(counts) - before:,.0f} samples, as its evaluations count them"
    each = whole_number(facts.get("samples_per_epoch"), max_digits=15)
    ended = {_number(end) for end in ends} - {None}
    blocks = {
        number: line for line in reversed(begins) if (number := _number(line)) in ended or _has_end(line, ended, ends)
    }
    if not blocks or None in blocks or not each:
        return "no evaluation counts samples, and it has no train_samples with numbered epochs"
    epochs = sum(map(_epochs, blocks.values()))
    numbers = [number for values in evaluations if (number := finite(values.get("epoch_num"))) is not None]
    if numbers:
        first_s = min(_time_s(line) for line in lines if line.values["key"] in ("eval_start", *EVALUATIONS))
        begun = sum(_epochs(line) for line in blocks.values() if _time_s(line) < first_s)
        if (evaluated := numbers[-1] - numbers[0] + begun) != epochs:
            return f"its blocks have {epochs:g} epochs, and its evaluations are of {evaluated:g}"
    known = DATA_SETS.get(facts.get("model", ""), ())
    if known and all(abs(each / samples - 1) > SAME_DATA for samples in known):
        return f"its train_samples {each:,} are not the {known[0]:,} samples of MLPerf's data set"
    return epochs * each, f"{epochs:g} epoch{'' if epochs == 1 else 's'} of {each} samples"


def _number(line: LogRecord) -> float | None:
    return finite(line.values.get("first_epoch_num", line.values.get("epoch_num")))


def _has_end(begin: LogRecord, ended: Collection[float | None], ends: Sequence[LogRecord]) -> bool:
    """Whether a block has one of the ends, where none of these is numbered."""
    return not ended and _time_s(begin) < max(map(_time_s, ends), default=0.0)


def _epochs(begin: LogRecord) -> float:
    count = finite(begin.values.get("epoch_count"))
    return 1.0 if count is None else count


def run_s(records: Iterable[LogRecord]) -> float | None:
    """run_stop - run_start of a run that succeeded, MLPerf's time to train; None of another, or without both."""
    lines = [record for record in records if record.kind == "mllog" and record.time_s is not None]
    begins, ends = _of(lines, "run_start"), _of(lines, "run_stop")
    if not begins or not ends or ends[-1].values.get("status", ends[-1].values.get("success")) not in SUCCESS:
        return None
    seconds = _time_s(ends[-1]) - _time_s(begins[0])
    return seconds if seconds > 0 else None


def stated_rate(records: Iterable[LogRecord], facts: Mapping[str, str]) -> float | None:
    """The median of the rates that the log states in its tracked_stats, else in lines of their own, in samples/s."""
    rates: dict[str, list[float]] = {key: [] for key in CLAIMS}
    for record in records:
        stated = rates.get(record.values["key"]) if record.kind == "mllog" else None
        if stated is not None and (rate := finite(record.values.get("rate"))) and rate > 0:
            stated.append(rate / TOKENS_PER_SAMPLE.get(facts.get("model", ""), 1))
    claims = next(filter(None, rates.values()), ())
    return statistics.median(claims) if claims else None
