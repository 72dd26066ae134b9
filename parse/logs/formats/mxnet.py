"""MXNet: NVIDIA's ResNet-50 through the years, MLPerf's, Gluon, Horovod's example, InsightFace and its partial FC."""

from __future__ import annotations

import re
from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, epoch_line, evaluation, pause, step, summary
from parse.logs.engine.shared_patterns import (
    ABSENT,
    END_OF_EPOCH,
    JSON,
    NCCL_VERSION,
    SRUN,
    STAMP,
    arguments,
    parameters,
    percent,
)

_DAY = rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[,.]\d+)?"
# `… Node[0] `, `…:INFO: `, `[…] Rank[0] `, `INFO:root:`, or nothing.
_HEAD = rb"(?:\[?(?P<time>" + _DAY + rb")\]?[ :](?:\w+: ?)*)?(?:(?:Node|Rank)\[(?P<rank>\d+)\] )?"
_NAMES = {
    "num_epochs": "epochs", "num_examples": "samples_per_epoch", "num_classes": "classes",
    "warmup_epochs": "warmup_epochs", "disp_batches": "print_every", "log_interval": "print_every",
    "frequent": "print_every", "data_backend": "data",
}  # fmt: skip


def _of_process(arguments: Mapping[str, str]) -> Mapping[str, str]:
    """MLPerf and MXNet's image-classification: the batch of one process, which under Horovod has one device."""
    facts, devices = _facts(arguments), _device_count(arguments.get("gpus", ""))
    batch, store = arguments.get("batch_size", ""), arguments.get("kv_store", "")
    if not batch.isdigit():
        return facts
    if store == "horovod":
        return {**facts, "batch_size": batch, "gpus_per_process": "1"}
    if devices and int(batch) % devices == 0:
        facts |= {"batch_size": str(int(batch) // devices), "gpus_per_node": str(devices)}
        if store.startswith("dist"):
            facts["gpus_per_process"] = str(devices)
        else:
            facts |= {"world_size": str(devices), "nodes": "1"}
    return facts


def _of_all(arguments: Mapping[str, str]) -> Mapping[str, str]:
    """NVIDIA's ResNet-50 in Gluon: the batch of all processes, and the devices of one node."""
    facts, devices = _facts(arguments), _device_count(arguments.get("gpus", ""))
    if arguments.get("batch_size", "").isdigit():
        facts["global_batch_size"] = arguments["batch_size"]
    if devices:
        facts["gpus_per_node"] = str(devices)
        if arguments.get("kv_store") == "device":
            facts |= {"world_size": str(devices), "nodes": "1"}
    return facts


def _of_device(arguments: Mapping[str, str]) -> Mapping[str, str]:
    """GluonCV's and Horovod's scripts: the batch of one device, and the devices if one process has them all.

    GluonCV's detectors list their devices (`gpus='0,1'`) and print the batch of all devices.
    """
    facts = _facts(arguments)
    if (devices := _device_count(arguments.get("gpus", ""))) and arguments.get("horovod") != "True":
        return {**facts, "global_batch_size": arguments.get("batch_size", ""), "world_size": str(devices), "nodes": "1"}
    if arguments.get("batch_size", "").isdigit():
        facts["batch_size"] = arguments["batch_size"]
    if arguments.get("num_gpus", "").isdigit() and int(arguments["num_gpus"]):
        facts |= {"world_size": arguments["num_gpus"], "nodes": "1"}
    return facts


def _of_insightface(arguments: Mapping[str, str]) -> Mapping[str, str]:
    facts = {**_facts(arguments), "task": arguments.get("loss", "")}
    named = {"batch_size": "per_batch_size", "world_size": "ctx_num"}
    facts |= {
        name: arguments[argument]
        for name, argument in named.items()
        if arguments.get(argument, "").isdigit() and int(arguments[argument])
    }
    return {name: value for name, value in facts.items() if value}


def _facts(arguments: Mapping[str, str]) -> dict[str, str]:
    facts = {
        name: arguments[argument] for argument, name in _NAMES.items() if arguments.get(argument, "") not in ABSENT
    }
    network = next(
        (arguments[name] for name in ("network", "arch", "model") if arguments.get(name, "") not in ABSENT), ""
    )
    if network:
        facts |= {"network": network, "model": _model(network, arguments.get("num_layers", ""))}
    if arguments.get("dtype") in ("float16", "float32"):
        half = arguments["dtype"] == "float16" or arguments.get("amp") in ("True", "true")
        facts["precision"] = "amp-fp16" if half else "fp32"
    return facts


def _model(network: str, layers: str) -> str:
    """ResNets by their depth, whatever their variant; `network` keeps the name that the program has for it."""
    if match := re.match(r"resnet(\d{2,3})(?!\d)", network):
        return f"resnet{match[1]}"
    return f"resnet{layers}" if network.startswith("resnet") and layers.isdigit() else network


def _device_count(gpus: str) -> int:
    """The number of devices in a list like `0,1,2` or `[0, 1, 2]`."""
    return len(re.findall(r"\d+", gpus))


NGC_MXNET = LogFormat(
    name="ngc-mxnet",
    title="MXNet (NVIDIA, MLPerf, Gluon, InsightFace)",
    # Every rate is that of all ranks, even if each rank prints it. `Batch [a-b]` counts both ends, or one, or from 0
    # always, so that only b is usable. Partial FC's label is it/sec, but it prints samples/s (the product has its
    # batch).
    steps=(
        step(
            b"Speed: ",
            _HEAD + rb"(?:Epoch|Iter)\[(?P<epoch>\d+)\] Batch ?\[(?:\d+-)?(?P<step>\d+)\]\s+"
            rb"Speed: (?P<rate>\d{1,15}\.?\d{0,20}(?:e\+?\d{1,3})?) samples/sec",
        ),
        step(
            b"][Batch ",
            rb"\[Epoch (?P<epoch>\d+)\]\[Batch (?P<step>\d+)\], (?:LR: \S{1,24}, )?"
            rb"Speed: (?P<rate>[\d.]{1,24}) samples/sec",
        ),
        step(
            b" it/sec Total:",
            rb"(?:rank-id:(?P<rank>\d+):(?P<time>" + _DAY + rb")-)?"
            rb"Iter:(?P<step>\d+) Rank:[\d.]+ it/sec Total:(?P<rate>[\d.]{1,24}) it/sec",
        ),
        step(
            b"train.ips : ",
            STAMP + rb"Epoch: (?P<epoch>\d+) Iteration: (?P<step>\d+) +(?:train\.loss : \S+ +)?"
            rb"train\.ips : (?P<rate>[\d.]{1,24}) ",
        ),
        step(
            b'"train.ips": ',
            JSON + rb'"step": \[(?P<epoch>\d+), (?P<step>\d+)\].{0,300}?"train\.ips": (?P<rate>[\d.]{1,24})[,}]',
        ),
    ),
    patterns=(
        arguments(b" start with arguments ", rb"Node\[(?P<rank>\d+)\] start with arguments ", _of_process),
        arguments(b"Start with arguments ", rb"Start with arguments ", _of_all),
        *parameters(_of_all),
        arguments(b"Namespace(", rb"(?:^|>:|INFO:root:)", _of_device),
        arguments(b"Called with argument: ", rb"Called with argument: ", _of_insightface),
        SRUN,
        NCCL_VERSION,
        pause(
            b"Time cost=",
            _HEAD + rb"Epoch\[(?P<epoch>\d+)\](?: Rank\[\d+\] Batch\[\d+\])?\s+Time cost=",
            reason=END_OF_EPOCH,
        ),
        pause(
            b"time cost: ",
            rb"\[Epoch (?P<epoch>\d+)\] (?:speed: \d+ samples/sec\s+)?time cost: ",
            reason=END_OF_EPOCH,
        ),
        epoch_line(
            b"Time cost=",
            _HEAD + rb"Epoch\[(?P<epoch>\d+)\](?: Rank\[\d+\] Batch\[\d+\])?\s+Time cost=(?P<seconds>[\d.]{1,24})",
        ),
        epoch_line(
            b"time cost: ",
            rb"\[Epoch (?P<epoch>\d+)\] (?:speed: (?P<rate>\d+) samples/sec\s+)?time cost: (?P<seconds>[\d.]{1,24})",
        ),
        epoch_line(b"Speed: ", _HEAD + rb"Epoch\[(?P<epoch>\d+)\]\s+Speed: (?P<rate>[\d.]{1,24}) samples/sec"),
        pause(b"Speed: ", _HEAD + rb"Epoch\[(?P<epoch>\d+)\]\s+Speed: ", reason=END_OF_EPOCH),
        pause(b"Starting epoch ", _HEAD + rb"(?P<reason>Starting epoch) \d+"),
        pause(b"Validating epoch ", _HEAD + rb"(?P<reason>Validating epoch) \d+"),
        pause(b"Validation", _HEAD + rb"Epoch\[(?P<epoch>\d+)\](?: Rank\[\d+\])?\s+(?P<reason>Validation)[ -]"),
        pause(b"] validation: ", rb"\[Epoch (?P<epoch>\d+)\] (?P<reason>validation): "),
        pause(b"val.accuracy : ", STAMP + rb"Epoch: (?P<epoch>\d+) .*?val\.accuracy : ", reason="Validation"),
        pause(
            b"]XNorm: ",
            rb"\[(?P<set>\w+)\]\[\d+\]XNorm: ",
            lambda match: {"reason": f"validation on {match['set'].decode()}"},
        ),
        pause(b" checkpoint to ", rb"(?P<reason>Sav(?:ed|ing) checkpoint) to "),
        evaluation(
            b"Validation",
            _HEAD + rb"Epoch\[(?P<epoch>\d+)\](?: Rank\[\d+\])?\s+Validation[ -]accuracy *[=:] ?(?P<share>[\d.]+)",
            percent,
        ),
        evaluation(
            b"] validation: ", rb"\[Epoch (?P<epoch>\d+)\] validation: (?P<error>err-)top1=(?P<share>[\d.]+)", percent
        ),
        evaluation(b"val.accuracy : ", STAMP + rb"Epoch: (?P<epoch>\d+) .*?val\.accuracy : (?P<share>[\d.]+)", percent),
        evaluation(
            b'"val.accuracy": ',
            JSON + rb'"step": \[(?P<epoch>\d+)\].{0,300}?"val\.accuracy": (?P<share>[\d.]+)',
            percent,
        ),
        summary(b"Summary: ", STAMP + rb"Summary: .*?(?P<what>train\.ips) : (?P<rate>[\d.]{1,24})"),
    ),
    publishes_mean=True,
)
