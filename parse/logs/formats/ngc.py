"""NVIDIA's examples in PyTorch and TensorFlow, and its SSD and RNN-T of MLPerf."""

from __future__ import annotations

import re
from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, epoch_line, evaluation, fact, pause, step, summary
from parse.logs.engine.shared_patterns import ABSENT, JSON, LAUNCHED, NCCL_VERSION, SRUN, STAMP, parameters, percent

# NVIDIA DeepLearningExamples, PyTorch image classification: dllogger's text and JSON, raport.json.

_NGC_PYTORCH_NAMES = {
    "arch": "model", "batch_size": "batch_size", "world_size": "world_size", "epochs": "epochs",
    "print_freq": "print_every", "data_backend": "data", "seed": "seed", "num_classes": "classes",
}  # fmt: skip


def _ngc_pytorch_facts(flags: Mapping[str, str]) -> dict[str, str]:
    facts = {name: flags[flag] for flag, name in _NGC_PYTORCH_NAMES.items() if flags.get(flag, "") not in ABSENT}
    if amp := flags.get("amp", flags.get("fp16")):
        facts["precision"] = "amp-fp16" if "true" in (amp.lower(), flags.get("fp16", "").lower()) else "fp32"
    whole, local, world = (flags.get(name, "") for name in ("optimizer_batch_size", "batch_size", "world_size"))
    if whole.isdigit() and local.isdigit() and world.isdigit() and int(local) * int(world):
        facts["accumulation"] = str(int(whole) // (int(local) * int(world)))
    return facts


NGC_PYTORCH = LogFormat(
    name="ngc-pytorch",
    title="NVIDIA DeepLearningExamples PyTorch image classification",
    steps=(
        step(
            b"train.total_ips : ",
            STAMP + rb"Epoch: (?P<epoch>\d+) Iteration: (?P<step>\d+) +(?:train\.loss : \S+ +(?:None +)?)?"
            rb"(?:train\.compute_ips : \S+ \S+ +)?train\.total_ips : (?P<rate>[\d.]+) ",
        ),
        step(
            b'"train.total_ips": ',
            JSON + rb'"step": \[(?P<epoch>\d+), (?P<step>\d+)\].{0,300}?"train\.total_ips": (?P<rate>[\d.]+)[,}]',
        ),
    ),
    patterns=(
        *parameters(_ngc_pytorch_facts),
        pause(
            b" Validation Iteration: ",
            STAMP + rb"Epoch: (?P<epoch>\d+) Iteration: \d+ (?P<reason>Validation) Iteration: ",
        ),
        fact(
            b" Validation Iteration: ",
            STAMP + rb"Epoch: \d+ Iteration: (?P<steps_per_epoch>\d+) Validation Iteration: ",
        ),
        evaluation(
            b"val.top1 : ",
            STAMP + rb"Epoch: (?P<epoch>\d+) +(?:train\.loss : [^%\n]{0,300}?)?val\.top1 : (?P<top1>[\d.]+) %",
        ),
        evaluation(b'"val.top1": ', JSON + rb'"step": \[(?P<epoch>\d+)\].{0,300}?"val\.top1": (?P<top1>[\d.]+)'),
        pause(b'"val.', JSON + rb'"step": \[(?P<epoch>\d+), \d+, \d+\].{0,300}?"(?P<reason>val)\.'),
        fact(b'"val.', JSON + rb'"step": \[\d+, (?P<steps_per_epoch>\d+), \d+\].{0,300}?"val\.'),
        summary(b"Summary: ", STAMP + rb"Summary: .*?(?P<what>train\.total_ips) : (?P<rate>[\d.]+)"),
        summary(
            b"Summary: ",
            STAMP + rb"Summary: (?!.*train\.total_ips).*?(?P<what>train\.compute_ips) : (?P<rate>[\d.]+)",
        ),
        pause(b"SAVING ", rb"(?P<reason>SAVING) "),
        fact(b"--nnodes ", rb"--nnodes (?P<nodes>\d+) "),
    ),
)


# NVIDIA DeepLearningExamples, TensorFlow 1: ResNet-50 (training and benchmark), BERT; dllogger's text and JSON.

_RATE = rb"(?P<rate>[\d.]{1,24})"
_NGC_TENSORFLOW_NAMES = {
    "arch": "model", "batch_size": "batch_size", "display_every": "print_every", "lr_warmup_epochs": "warmup_epochs",
    "seed": "seed", "mode": "mode",
}  # fmt: skip
_SWITCHES = ("dali", "xla")
_PRECISIONS = {"fp16": "amp-fp16", "fp32": "fp32", "tf32": "tf32"}


def _ngc_tensorflow_facts(flags: Mapping[str, str]) -> dict[str, str]:
    """The facts from the flags; those of XLA, DALI and AMP were called `use_…` before the end of 2020."""
    facts = {name: flags[flag] for flag, name in _NGC_TENSORFLOW_NAMES.items() if flags.get(flag, "") not in ABSENT}
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


NGC_TENSORFLOW = LogFormat(
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
        *parameters(_ngc_tensorflow_facts),
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
    publishes_mean=True,
    numbered="run",
    from_zero=True,
)


# NVIDIA's single-stage detector for MLPerf: PyTorch (0.6, 0.7) and MXNet (0.7 to 1.1).
#
# PyTorch prints the rate of all processes since the line before, MXNet that since the line before or the begin of the
# epoch. Source of the strings: mlcommons/training_results_v0.7, NVIDIA/benchmarks/ssd/implementations/pytorch/train.py,
# and mlcommons/training_results_v1.0, NVIDIA/benchmarks/ssd/implementations/DGXA100_1x8x114/mxnet/model.py.

NGC_SSD = LogFormat(
    name="ngc-ssd",
    title="NVIDIA SSD (MLPerf, PyTorch and MXNet)",
    steps=(
        step(
            b", avg. samples / sec: ",
            rb"Iteration: +(?P<step>\d+), Loss function: [^,\n]{1,24}, Average Loss: [^,\n]{1,24}, "
            rb"avg\. samples / sec: (?P<rate>\d+\.\d\d)",
        ),
        step(
            b"[Training][Iteration ",
            rb"\[Training\]\[Iteration (?P<step>\d+)\]\[Epoch \d+, Batch \d+/(?P<epoch_steps>\d+)\] [^\n]{0,120}?"
            rb"speed: (?P<rate>\d+\.\d+) \[imgs/sec\]",
        ),
    ),
    patterns=(
        epoch_line(
            b"[Training][Epoch ",
            rb"\[Training\]\[Epoch (?P<epoch>\d+)\] training time: (?P<seconds>\d+\.\d+) \[sec\],"
            rb"avg speed: (?P<rate>\d+\.\d+) \[imgs/sec\]",
        ),
        summary(b"\tAverage images/sec: ", rb"(?P<what>Average images/sec): (?P<rate>\d+\.\d+)"),
        fact(b"--use-fp16", rb"\btrain\.py [^\n]{0,2000}?--use-fp16", precision="amp-fp16"),
        fact(b" --batch-size", rb"\btrain\.py [^\n]{0,2000}? --batch-size[= ](?P<batch_size>[1-9]\d{0,8})\b"),
        *LAUNCHED,
        SRUN,
        NCCL_VERSION,
    ),
    numbered="run",
    model="ssd",
)
"""MXNet's lines restart at every epoch, whose end MLPerf's marks show: an interval over it is a pause."""


# NVIDIA's RNN-T for MLPerf (1.0 to 2.1), PyTorch, dllogger's text: utterances are its samples.
#
# `took` is the time since the line before. `utts/s` of a step line divides the utterances of one step by that time,
# however many steps it spans, and is not read; that of an epoch's line is right. Source of the strings:
# mlcommons/training_results_v1.0, NVIDIA/benchmarks/rnnt/implementations/pytorch/train.py.

NGC_RNNT = LogFormat(
    name="ngc-rnnt",
    title="NVIDIA RNN-T (MLPerf, PyTorch)",
    steps=(
        step(
            b" | iter ",
            STAMP + rb"epoch +(?P<epoch>\d+) \| iter +(?P<step>\d+)/(?P<epoch_steps>\d+) \| loss +[^|\n]{1,24} \|"
            rb"[^\n]{0,80}? utts/s +\d+ (?:samples/s )?\| took +(?P<elapsed_s>\d+\.\d+) s",
        ),
    ),
    patterns=(
        epoch_line(
            b" | avg train utts/s ",
            STAMP + rb"epoch +(?P<epoch>\d+) \| avg train utts/s +(?P<rate>\d+) (?:samples/s )?\| "
            rb"took +(?P<seconds>\d+\.\d+) s",
        ),
        fact(b"PARAMETER | amp_level : ", rb"PARAMETER \| amp_level : +[12]\s*$", precision="amp-fp16"),
        fact(b"PARAMETER | batch_size : ", rb"PARAMETER \| batch_size : +(?P<batch_size>[1-9]\d{0,8})\s*$"),
        pause(b"dev ", rb"epoch +\d+ \| +(?P<reason>dev (?:ema )?wer) "),
        *LAUNCHED,
        SRUN,
        NCCL_VERSION,
    ),
    printed="durations",
    model="rnnt",
)
