"""OneFlow-Benchmark: ResNet-50 and other CNNs (with and without time stamps), BERT, and InsightFace."""

from __future__ import annotations

import re

from parse.logs.engine.log_format import LogFormat, LogPattern, evaluation, fact, pause, step
from parse.logs.engine.shared_patterns import percent

_TIME = rb"(?: (?P<time>\d{9,10}\.\d+))?(?:\s|$)"
_HEADERS = {
    "model": ("model", rb"\S+(?: \S+){0,3}"),
    "batch_size_per_device": ("batch_size", rb"\d+"),
    "gpu_num_per_node": ("gpus_per_node", rb"\d+"),
    "num_nodes": ("nodes", rb"\d+"),
    "num_epochs": ("epochs", rb"\d+"),
    "num_examples": ("samples_per_epoch", rb"\d+"),
    "num_classes": ("classes", rb"\d+"),
    "warmup_epochs": ("warmup_epochs", rb"\d+"),
    "loss_print_every_n_iter": ("print_every", rb"\d+"),
}
"""Arguments as the program prints them first: what each is called here, and what its value looks like."""


def _header(argument: str, name: str, value: bytes) -> LogPattern:
    marker = argument.encode() + b" = "
    return fact(marker, rb"(?:^|[\s:])" + re.escape(marker) + rb"(?P<" + name.encode() + rb">" + value + rb")\s*$")


ONEFLOW = LogFormat(
    name="oneflow",
    title="OneFlow-Benchmark",
    # One process prints for all; CNNs count steps from 1 in every epoch, BERT and InsightFace through the run.
    steps=(
        step(
            b"samples/s: ",
            rb"\bepoch (?P<epoch>\d+), iter (?P<step>\d+), loss: \S+, (?:\w+: \S+, ){0,4}"
            rb"samples/s: (?P<rate>[\d.]{1,24})" + _TIME,
        ),
        step(b"train: iter ", rb"train: iter (?P<step>\d+), loss:? [^,]+, throughput: (?P<rate>[\d.]{1,24})" + _TIME),
        step(b"mlm_loss: ", rb"\bstep: (?P<step>\d+), (?:\w+: \S+, ){1,8}throughput: (?P<rate>[\d.]{1,24})" + _TIME),
    ),
    patterns=(
        *(_header(argument, name, value) for argument, (name, value) in _HEADERS.items()),
        fact(
            b"use_fp16 = ",
            rb"\buse_fp16 = (?P<fp16>True|False|None)\s*$",
            lambda match: {"precision": "amp-fp16" if match["fp16"] == b"True" else "fp32"},
        ),
        fact(b"num_accumulation_steps = ", rb"\bnum_accumulation_steps = (?P<micro_batches>\d+)\s*$"),
        fact(
            b"num_gpu_per_node = ",
            rb"\bRunning (?P<model>[^:\n]{1,60}): num_gpu_per_node = (?P<gpus_per_node>\d+), "
            rb"num_nodes = (?P<nodes>\d+)\.",
        ),
        fact(b" iter per epoch...", rb"(?:^|\s)(?P<steps_per_epoch>\d+) iter per epoch\.\.\."),
        fact(b"oading synthetic data", rb"Loading synthetic data\.", data="synthetic"),
        pause(b"validation: ", rb"(?P<reason>validation): (?:epoch (?P<epoch>\d+), iter \d+, |time: )"),
        pause(b"Validation on [", rb"(?P<reason>Validation) on \[\w+\]"),
        pause(b"Saving model to ", rb"(?P<reason>Saving model) to "),
        evaluation(
            b"validation: epoch ", rb"validation: epoch (?P<epoch>\d+), iter \d+, top_1: (?P<share>[\d.]+), ", percent
        ),
    ),
)
