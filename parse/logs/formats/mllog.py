"""MLPerf's own lines, `:::MLLOG {json}`; they occur in logs of any format, or alone.

They have the begin and end of the run, its blocks, epochs and evaluations, but no steps: a log with nothing else has
no window of steps. What it has instead is what the training has done in which time, as far as its lines state it: its
samples are those that an evaluation counts (`samples_count`), or epochs × `train_samples`; its time is that from the
first block's begin to the last one's end, without the evaluations beside which nothing trains: where another block runs
meanwhile, they are on other ranks. Nothing is reconstructed beside that.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpc.system.text import grouped
from parse.logs.engine.log_format import OF_RUN, LogFormat, LogPattern, LogRecord, fact
from parse.logs.path_facts import whole_number

MAX_TEXT = 200
"""Maximum of characters stored of a value; no number is longer."""
METADATA = (
    "epoch_num", "first_epoch_num", "epoch_count", "samples_count", "status", "success", "epoch", "instance",
)  # fmt: skip
RATES = ("throughput", "imgs_sec", "samples_per_sec", "samples_per_second")
"""Rates that a program states, in the object of tracked_stats or as keys of their own."""
FACTS_BY_KEY = {
    "global_batch_size": "global_batch_size",
    "train_samples": "samples_per_epoch",
    "seed": "seed",
    "gradient_accumulation_steps": "accumulation",
    "opt_gradient_accumulation_steps": "accumulation",
    "submission_benchmark": "model",
    "submission_platform": "platform",
    "number_of_ranks": "world_size",
    "number_of_nodes": "nodes",
    "accelerators_per_node": "gpus_per_node",
    "submission_org": "submitter",
    "submission_division": "division",
    "eval_samples": "eval_samples",
}
MODELS = {"resnet": "resnet50"}
"""Model names for MLPerf benchmarks whose rules are more specific than their names."""


def _values(match: re.Match[bytes]) -> dict[str, str]:
    """The key, value and rate of a line, and what its metadata say; what is behind its object does not matter."""
    try:
        decoded, _ = json.JSONDecoder().raw_decode(match["json"].decode(errors="replace"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(decoded, dict):
        raise ValueError("no object")
    key, value, metadata = (decoded.get(name) for name in ("key", "value", "metadata"))
    if not isinstance(key, str) or not key:
        raise ValueError("no key")
    values = {"key": key[:MAX_TEXT]}
    if value is not None:
        values["value"] = _text(value)
    stated = value if isinstance(value, Mapping) else {key: value}
    if rate := next((stated[name] for name in RATES if stated.get(name)), None):
        values["rate"] = _text(rate)
    if isinstance(metadata, Mapping):
        values |= {name: _text(metadata[name]) for name in METADATA if metadata.get(name) is not None}
    return values


def _text(value: object) -> str:
    return (value if isinstance(value, str) else json.dumps(value))[:MAX_TEXT]


def _facts(match: re.Match[bytes]) -> dict[str, str]:
    """The fact of a line."""
    values = _values(match)
    name, value = FACTS_BY_KEY.get(values["key"]), values.get("value")
    if name is None or value is None:
        raise ValueError("no fact")
    of_run = {OF_RUN: values["instance"]} if "instance" in values else {}
    return {name: MODELS.get(value, value) if name == "model" else value, **of_run}


_KEYS = "|".join(FACTS_BY_KEY).encode()
# The time is before the object or inside it, in any order with the rest.
_MLLOG = rb':::MLLOG ++(?:(?=[^\n]*?"time_ms": ?(?P<time_ms>\d{1,15}\b)))?(?P<json>\{[^\n]*"key": ?"%s"[^\n]*\})'


PATTERNS = (
    LogPattern("mllog", b":::MLLOG ", _MLLOG % rb"[\w.]+", _values),
    fact(b":::MLLOG ", _MLLOG % (b"(?:%s)" % _KEYS), _facts),
)

MLLOG = LogFormat(name="mllog", title="MLPerf's :::MLLOG lines alone", steps=(), patterns=PATTERNS)


IMAGENET = 1_281_167
"""Images of its training set; an epoch is one pass over them."""
DATA_SETS = {"resnet50": (IMAGENET,), "ssd": (117_266, 1_170_301), "retinanet": (1_170_301,), "unet3d": (168,)}
"""Samples of the training sets of benchmarks whose epochs are passes over them: programs print one rank's, or steps."""
SAME_DATA = 0.02
"""Programs leave out images that they cannot read, or samples without a whole batch, by at most this share."""
EVALUATIONS = (
    "eval_accuracy", "eval_error", "eval_loss", "validation_loss", "averaged_validation_loss", "eval_perplexity",
    "eval_wer",
)  # fmt: skip
"""Keys of lines with the result of an evaluation."""


# What a training by MLPerf's lines has done in which time, as far as its lines state it.


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
    """So many samples in the seconds from the first block's begin to the last one's end, without the `evaluated_s` of
    evaluations; `work` are the samples in words, with their source."""

    samples: float
    seconds: float
    evaluated_s: float
    work: str

    @property
    def source(self) -> str:
        """The arithmetic in words."""
        without = f", {self.evaluated_s:.3f} s of evaluations left out" if self.evaluated_s else ""
        return f"{self.work} in {self.seconds:.3f} s from its first block's begin to its last one's end{without}"

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds


BESIDE = 0.1
"""The share of an evaluation's time in which the next block may be open: its begin may be noted early."""


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
            begin_s, end_s = min(map(_time_s, begins)), _end_s(begins, ends)
            evaluated_s = _evaluated_s(_spans(begins, ends), lines, end_s)
            work = _work(begins, ends, [line for line in lines if begin_s < _time_s(line)], facts)
            if isinstance(work, str):
                return work
            samples, text = work
            if not end_s > begin_s + evaluated_s or not 0 < samples < MAX_SAMPLES:
                return f"{text} between {begin} and {end} are no training"
            seconds = end_s - begin_s - evaluated_s
            return TrainedWork(samples=samples, seconds=seconds, evaluated_s=evaluated_s, work=text)
    return "it has no block_start with a block_stop, nor an epoch_start with an epoch_stop"


def _of(lines: Sequence[LogRecord], key: str) -> list[LogRecord]:
    return [line for line in lines if line.values["key"] == key]


def _time_s(line: LogRecord) -> float:
    return line.time_s or 0.0


@dataclass(frozen=True, kw_only=True)
class _Span:
    """A block or an evaluation, by its lines: its number if it has one."""

    number: float | None
    begin_s: float
    end_s: float


def _spans(begins: Sequence[LogRecord], ends: Sequence[LogRecord]) -> list[_Span]:
    """From each begin to the first end behind it of its number, or of none, inf without one; of equal lines of several
    ranks the first."""
    ends_s = {number: sorted(times) for number, times in grouped((_number(end), _time_s(end)) for end in ends).items()}
    spans: dict[tuple[float | None, float], _Span] = {}
    for begin in begins:
        number, begin_s = _number(begin), _time_s(begin)
        of_number = (ends_s.get(each, []) for each in {number, None})
        behind = [its[at] for its in of_number if (at := bisect_left(its, begin_s)) < len(its)]
        end_s = min(behind, default=math.inf)
        spans.setdefault((number, end_s), _Span(number=number, begin_s=begin_s, end_s=end_s))
    return sorted(spans.values(), key=lambda span: span.begin_s)


def _end_s(begins: Sequence[LogRecord], ends: Sequence[LogRecord]) -> float:
    """The end of the training: that of the last block, or the begin of one that does not end, where it is before."""
    end_s, last = max((_time_s(end), _number(end) or 0.0) for end in ends)
    later = [_time_s(begin) for begin in begins if (_number(begin) or 0.0) > last]
    return min([end_s, *later])


def _evaluated_s(blocks: Sequence[_Span], lines: Sequence[LogRecord], until_s: float) -> float:
    """The seconds of evaluations up to then; none where one of them has another block beside it, as those on other
    ranks have."""
    ends = [line for line in lines if line.values["key"] in ("eval_stop", *EVALUATIONS)]
    evaluations = _spans(_of(lines, "eval_start"), [*_of(lines, "eval_stop")] or ends)
    begins_s, ends_s = (np.array([getattr(block, name) for block in blocks]) for name in ("begin_s", "end_s"))
    numbers = np.array([math.nan if block.number is None else block.number for block in blocks])
    isnan = np.isnan(numbers)
    shift: float | None = None  # where blocks count from 1 and evaluations from 0
    seconds, done_s = 0.0, 0.0
    for each in (each for each in evaluations if each.end_s < math.inf):
        if shift is None and each.number is not None:
            over = [block.number or 0.0 for block in blocks if block.end_s <= each.begin_s]
            begun = [block.number or 0.0 for block in blocks if block.begin_s <= each.begin_s]
            shift = each.number - (over[-1:] or begun[:1] or [each.number])[0]
        its = None if each.number is None else each.number - (shift or 0.0)
        beside = begins_s >= each.begin_s if its is None else np.where(isnan, begins_s >= each.begin_s, numbers > its)
        overlaps = np.minimum(ends_s, each.end_s) - np.maximum(begins_s, each.begin_s)
        if overlaps.max(initial=0.0, where=beside) > BESIDE * (each.end_s - each.begin_s):
            return 0.0
        seconds += max(min(each.end_s, until_s) - max(each.begin_s, done_s), 0.0)
        done_s = max(done_s, each.end_s)
    return seconds


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
        begun = [_epochs(line) for line in blocks.values() if _time_s(line) < first_s]
        evaluated = numbers[-1] - numbers[0] + sum(begun)
        if epochs not in (evaluated, evaluated - begun[-1] if len(begun) > 1 else evaluated):  # the next one trains
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
