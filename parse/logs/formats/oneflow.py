"""OneFlow-Benchmark: ResNet-50 and other CNNs (with and without time stamps), BERT, and InsightFace."""

from __future__ import annotations

import re
from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, LogPattern, StepLine

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
    return LogPattern(
        kind="facts",
        marker=marker,
        pattern=re.compile(rb"(?:^|[\s:])" + re.escape(marker) + rb"(?P<" + name.encode() + rb">" + value + rb")\s*$"),
    )


def _percent(match: re.Match[bytes]) -> Mapping[str, str]:
    return {"top1": f"{float(match['share']) * 100:.6g}", "epoch": match["epoch"].decode()}


FORMAT = LogFormat(
    name="oneflow",
    title="OneFlow-Benchmark",
    # One process prints for all; CNNs count steps from 1 in every epoch, BERT and InsightFace through the run.
    steps=(
        StepLine(
            marker=b"samples/s: ",
            pattern=re.compile(
                rb"\bepoch (?P<epoch>\d+), iter (?P<step>\d+), loss: \S+, (?:\w+: \S+, ){0,4}"
                rb"samples/s: (?P<rate>[\d.]{1,24})" + _TIME
            ),
        ),
        StepLine(
            marker=b"train: iter ",
            pattern=re.compile(
                rb"train: iter (?P<step>\d+), loss:? [^,]+, throughput: (?P<rate>[\d.]{1,24})" + _TIME,
            ),
        ),
        StepLine(
            marker=b"mlm_loss: ",
            pattern=re.compile(
                rb"\bstep: (?P<step>\d+), (?:\w+: \S+, ){1,8}throughput: (?P<rate>[\d.]{1,24})" + _TIME,
            ),
        ),
    ),
    patterns=(
        *(_header(argument, name, value) for argument, (name, value) in _HEADERS.items()),
        LogPattern(
            kind="facts",
            marker=b"use_fp16 = ",
            pattern=re.compile(rb"\buse_fp16 = (?P<fp16>True|False|None)\s*$"),
            values=lambda match: {"precision": "amp-fp16" if match["fp16"] == b"True" else "fp32"},
        ),
        LogPattern(
            kind="facts",
            marker=b"num_accumulation_steps = ",
            pattern=re.compile(rb"\bnum_accumulation_steps = (?P<micro_batches>\d+)\s*$"),
        ),
        LogPattern(
            kind="facts",
            marker=b"num_gpu_per_node = ",
            pattern=re.compile(
                rb"\bRunning (?P<model>[^:\n]{1,60}): num_gpu_per_node = (?P<gpus_per_node>\d+), "
                rb"num_nodes = (?P<nodes>\d+)\."
            ),
        ),
        LogPattern(
            kind="facts",
            marker=b" iter per epoch...",
            pattern=re.compile(rb"(?:^|\s)(?P<steps_per_epoch>\d+) iter per epoch\.\.\."),
        ),
        LogPattern(
            kind="facts",
            marker=b"oading synthetic data",
            pattern=re.compile(rb"Loading synthetic data\."),
            values=lambda _: {"data": "synthetic"},
        ),
        LogPattern(
            kind="pause",
            marker=b"validation: ",
            pattern=re.compile(rb"(?P<why>validation): (?:epoch (?P<epoch>\d+), iter \d+, |time: )"),
        ),
        LogPattern(kind="pause", marker=b"Validation on [", pattern=re.compile(rb"(?P<why>Validation) on \[\w+\]")),
        LogPattern(kind="pause", marker=b"Saving model to ", pattern=re.compile(rb"(?P<why>Saving model) to ")),
        LogPattern(
            kind="evaluation",
            marker=b"validation: epoch ",
            pattern=re.compile(rb"validation: epoch (?P<epoch>\d+), iter \d+, top_1: (?P<share>[\d.]+), "),
            values=_percent,
        ),
    ),
)
