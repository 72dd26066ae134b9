"""NVIDIA DeepLearningExamples, TensorFlow 1: ResNet-50 (training and benchmark), BERT; dllogger's text and JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, evaluation, fact, pause, step, summary
from parse.logs.engine.shared_patterns import ABSENT, JSON, NCCL_VERSION, STAMP, parameters, percent

_RATE = rb"(?P<rate>[\d.]{1,24})"
_NAMES = {
    "arch": "model", "batch_size": "batch_size", "display_every": "print_every", "lr_warmup_epochs": "warmup_epochs",
    "seed": "seed", "mode": "mode",
}  # fmt: skip
_SWITCHES = ("dali", "xla")
_PRECISIONS = {"fp16": "amp-fp16", "fp32": "fp32", "tf32": "tf32"}


def _facts(flags: Mapping[str, str]) -> dict[str, str]:
    """The facts from the flags; those of XLA, DALI and AMP were called `use_…` before the end of 2020."""
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


FORMAT = LogFormat(
    name="ngc-tensorflow",
    title="NVIDIA DeepLearningExamples TensorFlow 1 (ResNet-50, BERT)",
    # ResNet-50 prints the rate of one step of all ranks, and nothing before its 20 warm-up steps are over.
    steps=(
        step(b"imgs_per_sec : ", STAMP + rb"\((?P<epoch>\d+), (?P<step>\d+)\) +imgs_per_sec : " + _RATE + rb"(?:\s|$)"),
        step(b"total_ips : ", STAMP + rb"\((?P<epoch>\d+), (?P<step>\d+)\) +total_ips : " + _RATE + rb"(?:\s|$)"),
        step(
            b"throughput_train : ",
            STAMP + rb"Iteration: (?P<step>\d+) +(?:Rank : (?P<rank>\d+) +)?throughput_train : " + _RATE + rb"(?:\s|$)",
        ),
        step(
            b'"imgs_per_sec": ',
            JSON + rb'"step": \[(?P<epoch>\d+), (?P<step>\d+)\], "data": \{"imgs_per_sec": ' + _RATE + rb"[,}]",
        ),
        step(
            b'"total_ips": ',
            JSON + rb'"step": \[(?P<epoch>\d+), (?P<step>\d+)\], "data": \{"total_ips": ' + _RATE + rb"[,}]",
        ),
        step(
            b'"throughput_train": ',
            JSON + rb'"step": (?P<step>\d+), "data": \{(?:"Rank": (?P<rank>\d+), )?'
            rb'"throughput_train": ' + _RATE + rb"[,}]",
        ),
    ),
    patterns=(
        *parameters(_facts),
        fact(b"Num GPUs ", rb"\bNum GPUs (?P<world_size>\d+)\s*$"),
        fact(b"Per-GPU Batch Size ", rb"Per-GPU Batch Size (?P<batch_size>\d+)\s*$"),
        fact(b"Steps per Epoch ", rb"Steps per Epoch (?P<number>\d+(?:\.\d+)?)\s*$", _whole),
        fact(
            b"_gbs1",
            rb"bert_pretraining_(?:(?:lamb|adam)_)?(?:(?P<size>base|large)_)?(?P<precision>fp16|fp32|tf32)"
            rb"_gbs1(?P<one>\d+)_gbs2(?P<two>\d+)_\d+/phase_(?P<phase>[12])\b",
            _bert,
        ),
        fact(b"XLA activated", rb"XLA activated", xla="true"),
        fact(b"StreamExecutor device (", rb"StreamExecutor device \(\d+\): (?P<device>[^,]+), Compute Capability"),
        NCCL_VERSION,
        pause(b"Saving checkpoints for ", rb"(?P<reason>Saving checkpoints) for (?P<step>\d+) into "),
        pause(b"Starting Model Evaluation", rb"(?P<reason>Starting Model Evaluation)"),
        pause(b"Running evaluation", rb"(?P<reason>Running evaluation)"),
        evaluation(b"top1_accuracy : ", STAMP + rb" *top1_accuracy : (?P<share>\d*\.?\d+)(?:\s|$)", percent),
        evaluation(
            b'"top1_accuracy": ', JSON + rb'"step": \[\], "data": \{"top1_accuracy": (?P<share>\d*\.?\d+)[,}]', percent
        ),
        summary(b"throughput", STAMP + rb" *(?P<what>train_throughput|throughput_train) : " + _RATE + rb"(?:\s|$)"),
        summary(
            b'"step": [], ',
            JSON + rb'"step": \[\], "data": \{"(?P<what>train_throughput|throughput_train)": ' + _RATE + rb"[,}]",
        ),
    ),
    numbered="run",
    from_zero=True,
)
