"""MLPerf's own lines, `:::MLLOG {json}` and the forms before it; they occur in logs of any format, or alone.

They have the begin and end of the run, its blocks, epochs and evaluations, but no steps: a log with nothing else has
no window of steps (`parse.logs.mlperf` has what it has instead).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hpc.system.regular_file import parse_json
from parse.logs.engine.log_format import LogFormat, LogPattern, fact, line

MAX_TEXT = 200
"""Maximum of characters stored of a value; no number is longer."""
METADATA = (
    "epoch_num", "first_epoch_num", "epoch_count", "samples_count", "status", "success", "epoch",
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
    "number_of_ranks": "world_size",
    "number_of_nodes": "nodes",
    "accelerators_per_node": "gpus_per_node",
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
    """The fact of a line."""
    name, value = FACTS_BY_KEY.get(values["key"]), values.get("value")
    if name is None or value is None:
        raise ValueError("no fact")
    return {name: MODELS.get(value, value) if name == "model" else value}


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
