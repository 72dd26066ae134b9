"""TensorFlow's official models, TensorFlow 2: TimeHistory, and BenchmarkMetric before it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, LogPattern, StepLine

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


def _percent(match: re.Match[bytes]) -> Mapping[str, str]:
    return {"top1": f"{float(match['share']) * 100:.6g}"}


FORMAT = LogFormat(
    name="tf2-official",
    title="TensorFlow 2 official models",
    # Every worker prints the rate of all. What passes between two intervals (the end of an epoch) is in neither.
    steps=(
        StepLine(
            marker=b"TimeHistory: ",
            pattern=re.compile(
                _STAMP + rb"TimeHistory: (?P<elapsed_s>[\d.]{1,24}) seconds, (?P<rate>[\d.]{1,24}) examples/second "
                rb"between steps (?P<first>\d+) and (?P<step>\d+)(?:\s|$)"
            ),
        ),
        StepLine(
            marker=b"BenchmarkMetric: {",
            pattern=re.compile(
                _STAMP + rb"BenchmarkMetric: \{[^'{}]{0,80}'(?:num_batches|global step)': ?(?P<step>\d+), "
                rb"'time_taken': ?(?P<elapsed_s>[\d.]{1,24})"
                rb"(?:, ?'(?:images|examples)_per_second': ?(?P<rate>[\d.]{1,24}))?[,}]"
            ),
        ),
    ),
    patterns=(
        LogPattern(kind="facts", marker=b"Detected ", pattern=re.compile(rb"\bDetected (?P<world_size>\d+) devices\.")),
        LogPattern(
            kind="facts",
            marker=b"Global batch size: ",
            pattern=re.compile(rb"\bGlobal batch size: (?P<global_batch_size>\d+)\s*$"),
        ),
        LogPattern(
            kind="facts",
            marker=b"num_gpus",
            pattern=re.compile(rb"Overriding params: [^\n]{0,4000}\bruntime\.num_gpus=(?P<gpus_per_node>[1-9]\d*)"),
        ),
        LogPattern(
            kind="facts",
            marker=b"num_workers = ",
            pattern=re.compile(rb"cluster_spec = [^\n]{0,8000}\bnum_workers = (?P<nodes>\d+)"),
        ),
        LogPattern(
            kind="facts",
            marker=b"MirroredStrategy with devices (",
            pattern=re.compile(rb"Using MirroredStrategy with devices \((?P<devices>[^)]*)\)"),
            values=_mirrored,
        ),
        LogPattern(
            kind="facts",
            marker=b"(mixed_",
            pattern=re.compile(rb"compatibility check \(mixed_(?P<type>b?float16)\)"),
            values=lambda match: {"precision": _PRECISIONS[match["type"]]},
        ),
        LogPattern(
            kind="facts",
            marker=b"'model': {'name': ",
            pattern=re.compile(rb"Overriding params: \{[^\n]{0,4000}'model': \{'name': '(?P<model>\w+)'\}"),
            values=_model,
        ),
        LogPattern(
            kind="facts",
            marker=b"Train for ",
            pattern=re.compile(rb"\bTrain for (?P<steps_per_epoch>\d+) steps\b"),
        ),
        LogPattern(kind="facts", marker=b"Epoch 1/", pattern=re.compile(rb"\bEpoch 1/(?P<epochs>\d+)\s*$")),
        LogPattern(kind="facts", marker=b"NCCL version ", pattern=re.compile(rb"NCCL version (?P<nccl>[\w.+-]+)")),
        LogPattern(
            kind="pause",
            marker=b"s - loss: ",
            pattern=re.compile(rb"(?:^|\s)(?P<steps_per_epoch>\d+)/(?P=steps_per_epoch) - \d+s - loss: "),
            values=lambda match: {"why": "the end of an epoch", "steps_per_epoch": match["steps_per_epoch"].decode()},
        ),
        LogPattern(
            kind="pause",
            marker=b"BenchmarkMetric: {'epoch':",
            pattern=re.compile(_STAMP + rb"BenchmarkMetric: \{'epoch': ?(?P<epoch>\d+), 'time_taken': "),
            values=lambda match: {"why": "the end of an epoch", "epoch": match["epoch"].decode()},
        ),
        LogPattern(
            kind="pause",
            marker=b"valuation at step: ",
            pattern=re.compile(_STAMP + rb"(?P<why>Start(?:ing)? evaluation) at step: (?P<step>\d+)"),
        ),
        LogPattern(
            kind="pause", marker=b": saving model to ", pattern=re.compile(rb"Epoch \d+: (?P<why>saving model) to ")
        ),
        LogPattern(
            kind="pause",
            marker=b"aved checkpoint",
            pattern=re.compile(_STAMP + rb"(?P<why>[Ss]aved checkpoint)"),
        ),
        LogPattern(
            kind="evaluation",
            marker=b"val_",
            pattern=re.compile(
                rb"- val_(?:accuracy|acc|categorical_accuracy|sparse_categorical_accuracy): (?P<share>[\d.]+)"
            ),
            values=_percent,
        ),
        LogPattern(
            kind="evaluation",
            marker=b"evaluation metric: ",
            pattern=re.compile(
                _STAMP + rb"step: \d+ +evaluation metric: \{[^\n]{0,2000}'(?:test_)?accuracy': (?P<share>[\d.]+)"
            ),
            values=_percent,
        ),
        LogPattern(
            kind="evaluation",
            marker=b"'accuracy_top_1': ",
            pattern=re.compile(rb"[{ ]'accuracy_top_1': (?P<share>[\d.]+)"),
            values=_percent,
        ),
        LogPattern(
            kind="summary",
            marker=b"'avg_exp_per_second': ",
            pattern=re.compile(rb"'(?P<what>avg_exp_per_second)': (?P<rate>[\d.]{1,24})[,}]"),
        ),
    ),
    numbered="run",
    warmup=100,
    total=600,
)
