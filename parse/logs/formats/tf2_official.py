"""TensorFlow's official models, TensorFlow 2: TimeHistory, and BenchmarkMetric before it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, evaluation, fact, pause, step, summary
from parse.logs.engine.shared_patterns import END_OF_EPOCH, NCCL_VERSION, percent

# absl: I0407 21:17:05.025709 139725706671936 keras_utils.py:145]
_STAMP = (
    rb"(?:[IWE]?(?P<time>\d{4} \d\d:\d\d:\d\d\.\d+|\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)"
    rb"[^\n{}]{0,120}?[ :\]-])?"
)
_PRECISIONS = {b"float16": "amp-fp16", b"bfloat16": "bf16"}


def _mirrored(match: re.Match[bytes]) -> Mapping[str, str]:
    devices = match["devices"].count(b"device:GPU:")
    if not devices:
        raise ValueError("no GPU")
    return {"gpus_per_node": str(devices)}


def _model(match: re.Match[bytes]) -> Mapping[str, str]:
    """`resnet` is ResNet-50 and nothing else there."""
    model = match["model"].decode()
    return {"model": "resnet50" if model == "resnet" else model}


FORMAT = LogFormat(
    name="tf2-official",
    title="TensorFlow 2 official models",
    # Every worker prints the rate of all. The time between two intervals (the end of an epoch) is in neither.
    steps=(
        step(
            b"TimeHistory: ",
            _STAMP + rb"TimeHistory: (?P<elapsed_s>[\d.]{1,24}) seconds, (?P<rate>[\d.]{1,24}) examples/second "
            rb"between steps (?P<first>\d+) and (?P<step>\d+)(?:\s|$)",
        ),
        step(
            b"BenchmarkMetric: {",
            _STAMP + rb"BenchmarkMetric: \{[^'{}]{0,80}'(?:num_batches|global step)': ?(?P<step>\d+), "
            rb"'time_taken': ?(?P<elapsed_s>[\d.]{1,24})"
            rb"(?:, ?'(?:images|examples)_per_second': ?(?P<rate>[\d.]{1,24}))?[,}]",
        ),
    ),
    patterns=(
        fact(b"Detected ", rb"\bDetected (?P<world_size>\d+) devices\."),
        fact(b"Global batch size: ", rb"\bGlobal batch size: (?P<global_batch_size>\d+)\s*$"),
        fact(b"num_gpus", rb"Overriding params: [^\n]{0,4000}\bruntime\.num_gpus=(?P<gpus_per_node>[1-9]\d*)"),
        fact(b"num_workers = ", rb"cluster_spec = [^\n]{0,8000}\bnum_workers = (?P<nodes>\d+)"),
        fact(
            b"MirroredStrategy with devices (",
            rb"Using MirroredStrategy with devices \((?P<devices>[^)]*)\)",
            _mirrored,
        ),
        fact(
            b"(mixed_",
            rb"compatibility check \(mixed_(?P<type>b?float16)\)",
            lambda match: {"precision": _PRECISIONS[match["type"]]},
        ),
        fact(
            b"'model': {'name': ", rb"Overriding params: \{[^\n]{0,4000}'model': \{'name': '(?P<model>\w+)'\}", _model
        ),
        fact(b"Train for ", rb"\bTrain for (?P<steps_per_epoch>\d+) steps\b"),
        fact(b"Epoch 1/", rb"\bEpoch 1/(?P<epochs>\d+)\s*$"),
        NCCL_VERSION,
        pause(
            b"s - loss: ",
            rb"(?:^|\s)(?P<steps_per_epoch>\d+)/(?P=steps_per_epoch) - \d+s - loss: ",
            reason=END_OF_EPOCH,
        ),
        pause(
            b"BenchmarkMetric: {'epoch':",
            _STAMP + rb"BenchmarkMetric: \{'epoch': ?(?P<epoch>\d+), 'time_taken': ",
            reason=END_OF_EPOCH,
        ),
        pause(b"valuation at step: ", _STAMP + rb"(?P<reason>Start(?:ing)? evaluation) at step: (?P<step>\d+)"),
        pause(b": saving model to ", rb"Epoch \d+: (?P<reason>saving model) to "),
        pause(b"aved checkpoint", _STAMP + rb"(?P<reason>[Ss]aved checkpoint)"),
        evaluation(
            b"val_",
            rb"- val_(?:accuracy|acc|categorical_accuracy|sparse_categorical_accuracy): (?P<share>[\d.]+)",
            percent,
        ),
        evaluation(
            b"evaluation metric: ",
            _STAMP + rb"step: \d+ +evaluation metric: \{[^\n]{0,2000}'(?:test_)?accuracy': (?P<share>[\d.]+)",
            percent,
        ),
        evaluation(b"'accuracy_top_1': ", rb"[{ ]'accuracy_top_1': (?P<share>[\d.]+)", percent),
        summary(b"'avg_exp_per_second': ", rb"'(?P<what>avg_exp_per_second)': (?P<rate>[\d.]{1,24})[,}]"),
    ),
    numbered="run",
    warmup=100,
    total=600,
)
