"""TensorFlow's official models and benchmarks, and Horovod's synthetic benchmark."""

from __future__ import annotations

import re
from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, evaluation, fact, pause, step, summary
from parse.logs.engine.shared_patterns import END_OF_EPOCH, NCCL_VERSION, percent

# TensorFlow's official models, TensorFlow 2: TimeHistory, and BenchmarkMetric before it.

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


TF2_OFFICIAL = LogFormat(
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
    publishes_mean=True,
    numbered="run",
    warmup=100,
    total=600,
)


# tf_cnn_benchmarks (tensorflow/benchmarks).
#
# `total images/sec` is the rate of all workers over all steps after the program's own warm-up (100 steps after 10,
# unless it is given other numbers). The `images/sec` of its step lines is the mean since the first of these steps, of
# one worker where there are several, and is not read: the total is the only speed, and it is of the whole run.


def _devices(match: re.Match[bytes]) -> Mapping[str, str]:
    """The devices of all ranks under Horovod, else those of one worker, which is the only one without a job's name."""
    count = str(match["devices"].count(b"'") // 2)
    if b"horovod/" in match["devices"]:
        return {"world_size": count}
    return {"gpus_per_node": count} | ({} if b"/job:" in match["devices"] else {"world_size": count, "nodes": "1"})


TF_CNN_BENCHMARKS = LogFormat(
    name="tf-cnn-benchmarks",
    title="tf_cnn_benchmarks",
    steps=(),
    patterns=(
        summary(b"images/sec: ", rb"(?P<what>total images/sec): (?P<rate>\d+\.\d+)"),
        fact(b"Model: ", rb"\bModel: +(?P<model>\S{1,60})"),
        fact(b"Dataset: ", rb"\bDataset: +\S{1,60} \(synthetic\)", data="synthetic"),
        fact(b"Mode: ", rb"\bMode: +(?:forward only|evaluation)", forward_only="true"),
        fact(b"Batch size: ", rb"\bBatch size: +(?P<global_batch_size>\d+)(?:\.0)? global\b"),
        fact(b" per device", rb"(?:^|\s)(?P<batch_size>\d+)(?:\.0)? per device\b"),
        fact(b"Devices: ", rb"\bDevices: +\[(?P<devices>[^][\n]{1,8000})\]", _devices),
        fact(b"TensorFlow: ", rb"\bTensorFlow: +(?P<tensorflow>[\w.]{1,24})"),
    ),
)


# Horovod's synthetic benchmarks (PyTorch, TensorFlow 1 and 2), and those that BytePS and Bagua made of them.
#
# `Total img/sec` is the mean of the rates of one rank's iterations (ten of ten steps each, after a warm-up; the Keras
# one leaves out the first) times the ranks. Iterations are no steps, and the number of steps in them is not printed.

HOROVOD_SYNTHETIC = LogFormat(
    name="horovod-synthetic",
    title="Horovod's synthetic benchmarks",
    steps=(),
    patterns=(
        summary(b"Total img/sec on ", rb"(?P<what>Total img/sec) on \d+ [GCT]PU\(s\): (?P<rate>\d+\.\d+) \+-"),
        fact(b"Total img/sec on ", rb"Total img/sec on (?P<world_size>\d+) [GCT]PU\(s\): "),
        fact(b"Model: ", rb"(?:^|[>: ])Model: (?P<model>\w{1,60})\s*$"),
        fact(b"Batch size: ", rb"(?:^|[>: ])Batch size: (?P<batch_size>\d+)\s*$"),
    ),
)
