"""MLPerf's own lines, `:::MLLOG {json}` and the forms before it; they occur in logs of any format, or alone.

They have the begin and end of the run, its blocks, epochs and evaluations, but no steps: a log with nothing else has
no window of steps. `blocks` has the facts that it has instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpc.system.regular_file import parse_json
from parse.logs.engine.log_format import LogFormat, LogPattern, LogRecord, fact, line

MAX_TEXT = 200
"""Maximum of characters stored of a value; no number is longer."""
METADATA = (
    "epoch_num", "first_epoch_num", "epoch_count", "samples_count", "step_num", "status", "success", "epoch", "metric",
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
    "d_batch_size": "batch_size",
    "submission_org": "submitter",
    "submission_division": "division",
    "eval_samples": "eval_samples",
    # Before 0.7:
    "input_batch_size": "global_batch_size",
    "preproc_num_train_examples": "samples_per_epoch",
    "run_set_random_seed": "seed",
}
MODELS = {"resnet": "resnet50"}
"""Model names for MLPerf benchmarks whose rules are more specific than their names."""


def _json(match: re.Match[bytes]) -> Mapping[str, Any]:
    """The object that begins at the end of the match; the rest of the line does not matter."""
    try:
        decoded, _ = json.JSONDecoder().raw_decode(match["json"].decode(errors="replace"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(decoded, dict):
        raise ValueError("no object")
    return decoded


def _values(key: object, value: object, metadata: object) -> dict[str, str]:
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


def _mllog(match: re.Match[bytes]) -> dict[str, str]:
    line = _json(match)
    return _values(line.get("key"), line.get("value"), line.get("metadata"))


def _mll(match: re.Match[bytes]) -> dict[str, str]:
    line = _json(match)
    return _values(match["key"].decode(errors="replace"), line.get("value"), line.get("metadata"))


def _mlp(match: re.Match[bytes]) -> dict[str, str]:
    """0.5: the value is JSON where it is anything at all, and may be an object with the value and the epoch."""
    text = (match["text"] or b"").decode(errors="replace").strip()
    try:
        decoded = parse_json(text) if text else None
    except ValueError:
        decoded = text
    key = match["key"].decode(errors="replace")
    return _values(key, decoded.get("value"), decoded) if isinstance(decoded, Mapping) else _values(key, decoded, None)


def _facts(values: Mapping[str, str]) -> dict[str, str]:
    """The fact of a line; the platform `4xNVIDIA DGX-2H` has the number of nodes, `1 x NVIDIA A100 GPU` has not, and
    whether `2xA5000` are nodes or devices cannot be known."""
    name, value = FACTS_BY_KEY.get(values["key"]), values.get("value")
    if name is None or value is None:
        raise ValueError("no fact")
    if name == "platform" and (nodes := re.match(rf"(1|[1-9]\d{{0,5}}(?!x{_DEVICE}))x\w", value)):
        return {name: value, "nodes": nodes[1]}
    return {name: MODELS.get(value, value) if name == "model" else value}


_DEVICE = r"(?:(?:GB|[HABLVT])\d{2,4}|MI\d{3}|RTX)"
_KEYS = "|".join(FACTS_BY_KEY).encode()
# The time is before the object or inside it, in any order with the rest.
_MLLOG = rb':::MLLOG ++(?:(?=[^\n]*?"time_ms": ?(?P<time_ms>\d{1,15}\b)))?(?P<json>\{[^\n]*"key": ?"%s"[^\n]*\})'
_MLL = rb":::MLL ++(?P<time>[\d.]+) +(?P<key>%s) ?: +(?P<json>\{[^\n]*\})"
_MLP = rb":::MLPv[\d.]+ +\w+ +(?P<time>[\d.]+) +\([^)\n]*\) +(?P<key>%s)\b(?:: +(?P<text>[^\r\n]*))?"


def _patterns(
    marker: bytes, pattern: bytes, values: Callable[[re.Match[bytes]], dict[str, str]]
) -> Iterator[LogPattern]:
    yield line("mllog", marker, pattern % rb"[\w.]+", values)
    yield fact(marker, pattern % (b"(?:%s)" % _KEYS), lambda match: _facts(values(match)))


PATTERNS = (
    *_patterns(b":::MLLOG ", _MLLOG, _mllog),
    *_patterns(b":::MLL ", _MLL, _mll),
    *_patterns(b":::MLPv", _MLP, _mlp),
    fact(b"average_packing_rate=", rb"\baverage_packing_rate=(?P<packing>\d{1,3}(?:\.\d{1,9})?)(?![\d.])"),  # BERT's
)

MLLOG = LogFormat(name="mllog", title="MLPerf's :::MLLOG lines alone", steps=(), patterns=PATTERNS)


BY_EPOCHS = ("resnet50", "ssd", "retinanet", "rnnt")
"""Benchmarks whose epochs are passes through `train_samples`. Others count steps, games or samples in their place, or
print a part of the data set (Mask R-CNN) or sentences where their batches are tokens (Transformer)."""
IMAGENET, COCO, OPEN_IMAGES = 1_281_167, 117_266, 1_170_301
"""Images of their training sets; an epoch is one pass over them."""
SAME_DATA = 0.02
"""Programs leave out images that they cannot read, or samples without a whole batch, by at most this share."""


@dataclass(frozen=True, kw_only=True)
class EpochBlock:
    """A stretch of training without evaluation: whole epochs, of which only beginning and end are known."""

    first_epoch: int
    epochs: int
    begin_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """Its duration in seconds."""
        return self.end_s - self.begin_s


def blocks(records: Iterable[LogRecord]) -> tuple[EpochBlock, ...]:
    """The blocks of training that are bracketed, with block_start's epochs and the time until evaluation or block_stop.

    Empty where the log does not mean epochs by its epoch numbers: where an evaluation's number is not that of its
    block's last epoch (BERT counts steps in `epoch_count`), no number of samples follows from them.
    """
    lines = [record for record in records if record.kind == "mllog" and record.time_s is not None]
    complete = tuple(_blocks(lines, epochs_of_blocks(lines)))
    return () if any(block is None for block in complete) else tuple(block for block in complete if block)


def epochs(records: Iterable[LogRecord]) -> tuple[EpochBlock, ...]:
    """The epochs that end, each from epoch_start to the epoch_stop of the same number."""
    begun: dict[int, float] = {}
    complete: dict[int, EpochBlock] = {}
    for record in records:
        number = _whole(record, "epoch_num") if record.kind == "mllog" else None
        if record.time_s is None or number is None:
            continue
        if record.values["key"] == "epoch_start":
            begun.setdefault(number, record.time_s)
        elif record.values["key"] == "epoch_stop" and record.time_s > begun.get(number, record.time_s):
            block = EpochBlock(first_epoch=number, epochs=1, begin_s=begun[number], end_s=record.time_s)
            complete.setdefault(number, block)
    return tuple(complete.values())


def epochs_of_blocks(records: Iterable[LogRecord]) -> dict[int, int | None]:
    """The epochs of each block, by the number of its first; None where that is not known.

    A block_start that is printed again and again is one of every rank, or of every epoch of the block: how many epochs
    there are shows the number of the next block, or that of the evaluation behind the last.
    """
    counts: dict[int, int] = {}
    lines: dict[int, int] = {}
    evaluated: int | None = None
    for record in records:
        key = record.values.get("key") if record.kind == "mllog" else None
        if key == "block_start":
            first, count = _whole(record, "first_epoch_num"), _whole(record, "epoch_count")
            if first is not None and count:
                counts.setdefault(first, count)
                lines[first] = lines.get(first, 0) + 1
        elif key == "eval_accuracy":
            evaluated = _whole(record, "epoch_num")
    ends = [*counts][1:] + ([] if evaluated is None else [evaluated + 1])
    resolved: dict[int, int | None] = {}
    for at, (first, count) in enumerate(counts.items()):
        if lines[first] == 1 or at >= len(ends):
            resolved[first] = count
            continue
        until = ends[at] - first
        resolved[first] = until if until > 0 and until % count == 0 and lines[first] * count % until == 0 else None
    return resolved


@dataclass
class _Open:
    """A block that has begun: by the numbers of its block_start lines their epochs, None if one has none."""

    of_blocks: Mapping[int, int | None]
    begin_s: float | None
    counts: dict[int, int] | None = field(default_factory=dict)
    ended_s: float | None = None
    epochs: int = 0

    def add(self, record: LogRecord) -> None:
        """Counts a block_start; ranks may print the same one."""
        first, epochs = _whole(record, "first_epoch_num"), _whole(record, "epoch_count")
        if first is None or not epochs or (its := self.of_blocks.get(first, epochs)) is None:
            self.counts = None
        elif self.counts is not None and first not in self.counts:
            self.counts[first] = its
            self.epochs += its

    @property
    def first(self) -> int | None:
        """The number of its first epoch."""
        return next(iter(self.counts), None) if self.counts else None

    def block(self, ended_s: float) -> EpochBlock | None:
        """Returns the block; None if its epochs or times are none."""
        if self.first is None or self.begin_s is None or ended_s <= self.begin_s:
            return None
        return EpochBlock(first_epoch=self.first, epochs=self.epochs, begin_s=self.begin_s, end_s=ended_s)


def _blocks(lines: Iterable[LogRecord], of_blocks: Mapping[int, int | None]) -> Iterator[EpochBlock | None]:
    """Blocks as they end; None for one whose evaluation contradicts it.

    A block_start without a stop before it adds its epochs to the block, unless an evaluation has ended that.
    """
    begun: _Open | None = None
    for record in lines:
        key = record.values["key"]
        if key == "block_start":
            if begun is not None and begun.ended_s is not None and (block := begun.block(begun.ended_s)):
                yield block
            if begun is None or begun.ended_s is not None:
                begun = _Open(of_blocks, record.time_s)
            begun.add(record)
        elif begun is None or record.time_s is None:
            continue
        elif key == "eval_start":
            begun.ended_s = record.time_s if begun.ended_s is None else begun.ended_s
        elif key == "eval_accuracy" and not _ends_with(begun, record):
            yield None
        elif key in ("block_stop", "run_stop"):
            ended_s = record.time_s if begun.ended_s is None else begun.ended_s
            if key == "block_stop" and (block := begun.block(ended_s)):
                yield block
            begun = None


def _ends_with(begun: _Open, evaluated: LogRecord) -> bool:
    first, epoch = begun.first, _whole(evaluated, "epoch_num")
    if first is None or epoch is None:
        return True
    return epoch in (first + begun.epochs - 1, first + begun.epochs)


def _whole(record: LogRecord, name: str) -> int | None:
    text = record.values.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 16 else None
