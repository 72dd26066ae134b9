"""MXNet: NVIDIA's ResNet-50 through the years, MLPerf's, Gluon, Horovod's example, InsightFace and its partial FC."""

from __future__ import annotations

import re
from collections.abc import Mapping

from parse.logs.engine.dllogger import ABSENT, JSON, STAMP, parameters
from parse.logs.engine.log_format import LogFormat, LogPattern, StepLine

_DAY = rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[,.]\d+)?"
# `… Node[0] `, `…:INFO: `, `[…] Rank[0] `, `INFO:root:`, or nothing.
_HEAD = rb"(?:\[?(?P<time>" + _DAY + rb")\]?[ :](?:\w+: ?)*)?(?:(?:Node|Rank)\[(?P<rank>\d+)\] )?"
_NAMES = {
    "num_epochs": "epochs", "num_examples": "samples_per_epoch", "num_classes": "classes",
    "warmup_epochs": "warmup_epochs", "disp_batches": "print_every", "log_interval": "print_every",
    "frequent": "print_every", "data_backend": "data",
}  # fmt: skip
_ARGUMENT = re.compile(r"\b(\w+)=('[^']{0,1000}'|\[[^\]]{0,1000}\]|[^,()]*)")
_ARGUMENTS = rb"Namespace\((?P<arguments>.*)"


def _arguments(match: re.Match[bytes]) -> dict[str, str]:
    text = match["arguments"].decode(errors="replace")
    return {name: value.strip("'\" ") for name, value in _ARGUMENT.findall(text)}


def _of_process(match: re.Match[bytes]) -> Mapping[str, str]:
    """MLPerf and MXNet's image-classification: the batch of one process, which under Horovod has one device."""
    arguments = _arguments(match)
    facts, devices = _facts(arguments), _device_count(arguments.get("gpus", ""))
    batch, store = arguments.get("batch_size", ""), arguments.get("kv_store", "")
    if not batch.isdigit():
        return facts
    if store == "horovod":
        return {**facts, "batch_size": batch}
    if devices and int(batch) % devices == 0:
        facts |= {"batch_size": str(int(batch) // devices), "gpus_per_node": str(devices)}
        if not store.startswith("dist"):
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


def _of_device(match: re.Match[bytes]) -> Mapping[str, str]:
    """GluonCV's and Horovod's scripts: the batch of one device; devices are told where one process has them all.

    GluonCV's detectors list their devices (`gpus='0,1'`) and mean the batch of them all.
    """
    arguments = _arguments(match)
    facts = _facts(arguments)
    if (devices := _device_count(arguments.get("gpus", ""))) and arguments.get("horovod") != "True":
        return {**facts, "global_batch_size": arguments.get("batch_size", ""), "world_size": str(devices), "nodes": "1"}
    if arguments.get("batch_size", "").isdigit():
        facts["batch_size"] = arguments["batch_size"]
    if arguments.get("num_gpus", "").isdigit() and int(arguments["num_gpus"]):
        facts |= {"world_size": arguments["num_gpus"], "nodes": "1"}
    return facts


def _of_insightface(match: re.Match[bytes]) -> Mapping[str, str]:
    arguments = _arguments(match)
    facts = {
        **_facts(arguments),
        "task": "arcface" if arguments.get("loss") == "arcface" else arguments.get("loss", ""),
    }
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
    """How many devices a list like `0,1,2` or `[0, 1, 2]` names."""
    return len(re.findall(r"\d+", gpus))


def _srun(match: re.Match[bytes]) -> Mapping[str, str]:
    ranks, per_node = int(match["ranks"]), int(match["per_node"])
    if not per_node or ranks % per_node:
        raise ValueError("nodes of unequal size")
    return {"world_size": str(ranks), "gpus_per_node": str(per_node), "nodes": str(ranks // per_node)}


def _percent(match: re.Match[bytes]) -> Mapping[str, str]:
    share = float(match["share"])
    if match.groupdict().get("error"):
        share = 1 - share
    return {"top1": f"{share * 100:.6g}", "epoch": match["epoch"].decode()}


FORMAT = LogFormat(
    name="ngc-mxnet",
    title="MXNet (NVIDIA, MLPerf, Gluon, InsightFace)",
    # Every rate is that of all ranks, whoever prints it. `Batch [a-b]` counts both ends, or one, or from 0 always, so
    # that only b means anything. Partial FC says it/sec and prints samples/s (its batch is in the product).
    steps=(
        StepLine(
            marker=b"Speed: ",
            pattern=re.compile(
                _HEAD + rb"(?:Epoch|Iter)\[(?P<epoch>\d+)\] Batch ?\[(?:\d+-)?(?P<step>\d+)\]\s+"
                rb"Speed: (?P<rate>\d{1,15}\.?\d{0,20}(?:e\+?\d{1,3})?) samples/sec"
            ),
        ),
        StepLine(
            marker=b"][Batch ",
            pattern=re.compile(
                rb"\[Epoch (?P<epoch>\d+)\]\[Batch (?P<step>\d+)\], (?:LR: \S{1,24}, )?"
                rb"Speed: (?P<rate>[\d.]{1,24}) samples/sec"
            ),
        ),
        StepLine(
            marker=b" it/sec Total:",
            pattern=re.compile(
                rb"(?:rank-id:(?P<rank>\d+):(?P<time>" + _DAY + rb")-)?"
                rb"Iter:(?P<step>\d+) Rank:[\d.]+ it/sec Total:(?P<rate>[\d.]{1,24}) it/sec"
            ),
        ),
        StepLine(
            marker=b"train.ips : ",
            pattern=re.compile(
                STAMP + rb"Epoch: (?P<epoch>\d+) Iteration: (?P<step>\d+) +(?:train\.loss : \S+ +)?"
                rb"train\.ips : (?P<rate>[\d.]{1,24}) "
            ),
        ),
        StepLine(
            marker=b'"train.ips": ',
            pattern=re.compile(
                JSON + rb'"step": \[(?P<epoch>\d+), (?P<step>\d+)\].{0,300}?"train\.ips": (?P<rate>[\d.]{1,24})[,}]'
            ),
        ),
    ),
    patterns=(
        LogPattern(
            kind="facts",
            marker=b" start with arguments ",
            pattern=re.compile(rb"Node\[(?P<rank>\d+)\] start with arguments " + _ARGUMENTS),
            values=_of_process,
        ),
        LogPattern(
            kind="facts",
            marker=b"Start with arguments ",
            pattern=re.compile(rb"Start with arguments " + _ARGUMENTS),
            values=lambda match: _of_all(_arguments(match)),
        ),
        *parameters(_of_all),
        LogPattern(
            kind="facts",
            marker=b"Namespace(",
            pattern=re.compile(rb"(?:^|>:|INFO:root:)" + _ARGUMENTS),
            values=_of_device,
        ),
        LogPattern(
            kind="facts",
            marker=b"Called with argument: ",
            pattern=re.compile(rb"Called with argument: Namespace\((?P<arguments>[^)]*)\)"),
            values=_of_insightface,
        ),
        LogPattern(
            kind="facts",
            marker=b"--ntasks-per-node=",
            pattern=re.compile(rb"--ntasks=(?P<ranks>\d+) --ntasks-per-node=(?P<per_node>\d+) .{0,4000}run_and_time"),
            values=_srun,
        ),
        LogPattern(kind="facts", marker=b"NCCL version ", pattern=re.compile(rb"NCCL version (?P<nccl>[\w.+-]+)")),
        LogPattern(
            kind="pause",
            marker=b"Time cost=",
            pattern=re.compile(_HEAD + rb"Epoch\[(?P<epoch>\d+)\](?: Rank\[\d+\] Batch\[\d+\])?\s+Time cost="),
            values=lambda match: {"why": "the end of an epoch", "epoch": match["epoch"].decode()},
        ),
        LogPattern(
            kind="pause",
            marker=b"time cost: ",
            pattern=re.compile(rb"\[Epoch (?P<epoch>\d+)\] (?:speed: \d+ samples/sec\s+)?time cost: "),
            values=lambda match: {"why": "the end of an epoch", "epoch": match["epoch"].decode()},
        ),
        LogPattern(
            kind="pause",
            marker=b"Speed: ",
            pattern=re.compile(_HEAD + rb"Epoch\[(?P<epoch>\d+)\]\s+Speed: "),
            values=lambda match: {"why": "the end of an epoch", "epoch": match["epoch"].decode()},
        ),
        LogPattern(
            kind="pause", marker=b"Starting epoch ", pattern=re.compile(_HEAD + rb"(?P<why>Starting epoch) \d+")
        ),
        LogPattern(
            kind="pause", marker=b"Validating epoch ", pattern=re.compile(_HEAD + rb"(?P<why>Validating epoch) \d+")
        ),
        LogPattern(
            kind="pause",
            marker=b"Validation",
            pattern=re.compile(_HEAD + rb"Epoch\[(?P<epoch>\d+)\](?: Rank\[\d+\])?\s+(?P<why>Validation)[ -]"),
        ),
        LogPattern(
            kind="pause",
            marker=b"] validation: ",
            pattern=re.compile(rb"\[Epoch (?P<epoch>\d+)\] (?P<why>validation): "),
        ),
        LogPattern(
            kind="pause",
            marker=b"val.accuracy : ",
            pattern=re.compile(STAMP + rb"Epoch: (?P<epoch>\d+) .*?val\.accuracy : "),
            values=lambda match: {"why": "Validation", "epoch": match["epoch"].decode()},
        ),
        LogPattern(
            kind="pause",
            marker=b"]XNorm: ",
            pattern=re.compile(rb"\[(?P<set>\w+)\]\[\d+\]XNorm: "),
            values=lambda match: {"why": f"validation on {match['set'].decode()}"},
        ),
        LogPattern(
            kind="pause", marker=b" checkpoint to ", pattern=re.compile(rb"(?P<why>Sav(?:ed|ing) checkpoint) to ")
        ),
        LogPattern(
            kind="evaluation",
            marker=b"Validation",
            pattern=re.compile(
                _HEAD + rb"Epoch\[(?P<epoch>\d+)\](?: Rank\[\d+\])?\s+Validation[ -]accuracy *[=:] ?(?P<share>[\d.]+)"
            ),
            values=_percent,
        ),
        LogPattern(
            kind="evaluation",
            marker=b"] validation: ",
            pattern=re.compile(rb"\[Epoch (?P<epoch>\d+)\] validation: (?P<error>err-)top1=(?P<share>[\d.]+)"),
            values=_percent,
        ),
        LogPattern(
            kind="evaluation",
            marker=b"val.accuracy : ",
            pattern=re.compile(STAMP + rb"Epoch: (?P<epoch>\d+) .*?val\.accuracy : (?P<share>[\d.]+)"),
            values=_percent,
        ),
        LogPattern(
            kind="evaluation",
            marker=b'"val.accuracy": ',
            pattern=re.compile(JSON + rb'"step": \[(?P<epoch>\d+)\].{0,300}?"val\.accuracy": (?P<share>[\d.]+)'),
            values=_percent,
        ),
        LogPattern(
            kind="summary",
            marker=b"Summary: ",
            pattern=re.compile(STAMP + rb"Summary: .*?(?P<what>train\.ips) : (?P<rate>[\d.]{1,24})"),
        ),
    ),
)
