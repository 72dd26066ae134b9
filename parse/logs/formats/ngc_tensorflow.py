"""NVIDIA DeepLearningExamples, TensorFlow 1: ResNet-50 (training and benchmark), BERT; dllogger's text and JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping

from parse.logs.engine.dllogger import ABSENT, JSON, STAMP, parameters
from parse.logs.engine.log_format import LogFormat, LogPattern, StepLine

_RATE = rb"(?P<rate>[\d.]{1,24})"
_NAMES = {
    "arch": "model", "batch_size": "batch_size", "display_every": "print_every", "lr_warmup_epochs": "warmup_epochs",
    "seed": "seed", "mode": "mode",
}  # fmt: skip
_SWITCHES = ("dali", "xla")
_PRECISIONS = {"fp16": "amp-fp16", "fp32": "fp32", "tf32": "tf32"}


def _facts(flags: Mapping[str, str]) -> dict[str, str]:
    """What the flags say; those of XLA, DALI and AMP were called `use_…` before 2020's end."""
    facts = {name: flags[flag] for flag, name in _NAMES.items() if flags.get(flag, "") not in ABSENT}
    if flags.get("iter_unit") == "epoch" and flags.get("num_iter", "").isdigit():
        facts["epochs"] = flags["num_iter"]
    for name in _SWITCHES:
        if flags.get(name, flags.get(f"use_{name}", "")).lower() == "true":
            facts[name] = "true"
    amp = flags.get("amp", flags.get("use_tf_amp", "")).lower()
    if amp == "true" or flags.get("precision") == "fp16":
        facts["precision"] = "amp-fp16"
    elif amp == "false":
        facts["precision"] = "fp32"
    if flags.get("data_dir") in ABSENT:
        facts["data"] = "synthetic"
    return facts


def _bert(match: re.Match[bytes]) -> Mapping[str, str]:
    """BERT's scripts name the results' folder for the global batch sizes of both phases, accumulation included."""
    groups = {name: value.decode() for name, value in match.groupdict().items() if value is not None}
    return {
        "model": f"bert-{groups['size']}" if "size" in groups else "bert",
        "precision": _PRECISIONS[groups["precision"]],
        "global_batch_size": groups["one"] if groups["phase"] == "1" else groups["two"],
    }


def _whole(match: re.Match[bytes]) -> Mapping[str, str]:
    """A number that the program prints as a float; no fact where it is not whole."""
    number = float(match["number"])
    if not number.is_integer():
        raise ValueError("not whole")
    return {"steps_per_epoch": str(int(number))}


def _percent(match: re.Match[bytes]) -> Mapping[str, str]:
    return {"top1": f"{float(match['share']) * 100:.6g}"}


FORMAT = LogFormat(
    name="ngc-tensorflow",
    title="NVIDIA DeepLearningExamples TensorFlow 1 (ResNet-50, BERT)",
    # ResNet-50 prints the rate of one step of all ranks, and nothing before its 20 warm-up steps are over.
    steps=(
        StepLine(
            marker=b"imgs_per_sec : ",
            pattern=re.compile(STAMP + rb"\((?P<epoch>\d+), (?P<step>\d+)\) +imgs_per_sec : " + _RATE + rb"(?:\s|$)"),
        ),
        StepLine(
            marker=b"total_ips : ",
            pattern=re.compile(STAMP + rb"\((?P<epoch>\d+), (?P<step>\d+)\) +total_ips : " + _RATE + rb"(?:\s|$)"),
        ),
        StepLine(
            marker=b"throughput_train : ",
            pattern=re.compile(
                STAMP
                + rb"Iteration: (?P<step>\d+) +(?:Rank : (?P<rank>\d+) +)?throughput_train : "
                + _RATE
                + rb"(?:\s|$)"
            ),
        ),
        StepLine(
            marker=b'"imgs_per_sec": ',
            pattern=re.compile(
                JSON + rb'"step": \[(?P<epoch>\d+), (?P<step>\d+)\], "data": \{"imgs_per_sec": ' + _RATE + rb"[,}]"
            ),
        ),
        StepLine(
            marker=b'"total_ips": ',
            pattern=re.compile(
                JSON + rb'"step": \[(?P<epoch>\d+), (?P<step>\d+)\], "data": \{"total_ips": ' + _RATE + rb"[,}]"
            ),
        ),
        StepLine(
            marker=b'"throughput_train": ',
            pattern=re.compile(
                JSON + rb'"step": (?P<step>\d+), "data": \{(?:"Rank": (?P<rank>\d+), )?'
                rb'"throughput_train": ' + _RATE + rb"[,}]"
            ),
        ),
    ),
    patterns=(
        *parameters(_facts),
        LogPattern(kind="facts", marker=b"Num GPUs ", pattern=re.compile(rb"\bNum GPUs (?P<world_size>\d+)\s*$")),
        LogPattern(
            kind="facts",
            marker=b"Per-GPU Batch Size ",
            pattern=re.compile(rb"Per-GPU Batch Size (?P<batch_size>\d+)\s*$"),
        ),
        LogPattern(
            kind="facts",
            marker=b"Steps per Epoch ",
            pattern=re.compile(rb"Steps per Epoch (?P<number>\d+(?:\.\d+)?)\s*$"),
            values=_whole,
        ),
        LogPattern(
            kind="facts",
            marker=b"_gbs1",
            pattern=re.compile(
                rb"bert_pretraining_(?:(?:lamb|adam)_)?(?:(?P<size>base|large)_)?(?P<precision>fp16|fp32|tf32)"
                rb"_gbs1(?P<one>\d+)_gbs2(?P<two>\d+)_\d+/phase_(?P<phase>[12])\b"
            ),
            values=_bert,
        ),
        LogPattern(
            kind="facts",
            marker=b"XLA activated",
            pattern=re.compile(rb"XLA activated"),
            values=lambda _: {"xla": "true"},
        ),
        LogPattern(
            kind="facts",
            marker=b"StreamExecutor device (",
            pattern=re.compile(rb"StreamExecutor device \(\d+\): (?P<device>[^,]+), Compute Capability"),
        ),
        LogPattern(kind="facts", marker=b"NCCL version ", pattern=re.compile(rb"NCCL version (?P<nccl>[\w.+-]+)")),
        LogPattern(
            kind="pause",
            marker=b"Saving checkpoints for ",
            pattern=re.compile(rb"(?P<why>Saving checkpoints) for (?P<step>\d+) into "),
        ),
        LogPattern(
            kind="pause",
            marker=b"Starting Model Evaluation",
            pattern=re.compile(rb"(?P<why>Starting Model Evaluation)"),
        ),
        LogPattern(kind="pause", marker=b"Running evaluation", pattern=re.compile(rb"(?P<why>Running evaluation)")),
        LogPattern(
            kind="evaluation",
            marker=b"top1_accuracy : ",
            pattern=re.compile(STAMP + rb" *top1_accuracy : (?P<share>\d*\.?\d+)(?:\s|$)"),
            values=_percent,
        ),
        LogPattern(
            kind="evaluation",
            marker=b'"top1_accuracy": ',
            pattern=re.compile(JSON + rb'"step": \[\], "data": \{"top1_accuracy": (?P<share>\d*\.?\d+)[,}]'),
            values=_percent,
        ),
        LogPattern(
            kind="summary",
            marker=b"throughput",
            pattern=re.compile(STAMP + rb" *(?P<what>train_throughput|throughput_train) : " + _RATE + rb"(?:\s|$)"),
        ),
        LogPattern(
            kind="summary",
            marker=b'"step": [], ',
            pattern=re.compile(
                JSON + rb'"step": \[\], "data": \{"(?P<what>train_throughput|throughput_train)": ' + _RATE + rb"[,}]"
            ),
        ),
    ),
    numbered="run",
    from_zero=True,
)
