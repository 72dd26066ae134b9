"""Facts computed from several arguments of a program, or groups of a line. Each function raises ValueError for none."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

Texts = Mapping[str, str]
UNSET = ("", "None", "null")
"""Values that are none."""
_AMP_LEVELS = {"O0": "fp32", "O1": "amp-fp16", "O2": "amp-fp16", "O3": "fp16"}
SAME_RATE = 0.02
"""Printed rates that are closer are one."""
_WRAPPERS = {"AmpOptimWrapper": "amp-fp16", "OptimWrapper": "fp32"}
_SETTING = re.compile(r"(?:\n    |\(|, )(type|dtype)='(\w{1,40})'")


def _pytorch_imagenet(arguments: Texts) -> Texts:
    """The batch size is that of a node, or of a process where each is started by hand."""
    if "arch" not in arguments:
        raise ValueError("these are not its arguments")
    facts = {"data": "synthetic"} if arguments.get("dummy") == "True" else {}
    if arguments.get("opt_level") in _AMP_LEVELS:
        facts["precision"] = _AMP_LEVELS[arguments["opt_level"]]
    world, spawned = arguments.get("world_size", ""), arguments.get("multiprocessing_distributed") == "True"
    single_process = world == "-1" and not spawned and arguments.get("dist_url") != "env://"
    if arguments.get("batch_size", "").isdigit() and (single_process or world.isdigit()):
        counted = 1 if single_process else max(int(world), 1)
        facts["global_batch_size"] = str(int(arguments["batch_size"]) * counted)
        if spawned:
            facts["nodes"] = str(counted)
        elif not single_process:
            facts["world_size"] = str(counted)
    return facts


def _torchvision(arguments: Texts) -> Texts:
    if arguments.get("amp") in ("True", "False"):
        return {"precision": "amp-fp16" if arguments["amp"] == "True" else "fp32"}
    half = arguments.get("apex") == "True" and arguments.get("apex_opt_level") in ("O1", "O2")
    return {"precision": "amp-fp16"} if half else {}


def _mmengine_precision(groups: Texts) -> Texts:
    """The precision of an optimizer's wrapper, where it is mmengine's own."""
    settings = dict(_SETTING.findall(groups["settings"]))
    if settings.get("type") not in _WRAPPERS:
        raise ValueError("another wrapper")
    half = settings["type"] == "AmpOptimWrapper" and settings.get("dtype") == "bfloat16"
    return {"precision": "bf16" if half else _WRAPPERS[settings["type"]]}


def _nemo_batch(groups: Texts) -> Texts:
    """The samples of a step."""
    steps, consumed = int(groups["step"]) + 1, int(groups["consumed"])
    if consumed % steps or not consumed:
        raise ValueError("the batch is not the same in all steps")
    return {"global_batch_size": str(consumed // steps)}


def _nemo_lines(groups: Texts) -> Texts:
    """The lines of a step: by the rate of a device where a line is taken for a step, and by what it is."""
    times = float(groups["line"]) / float(groups["refined"])
    if round(times) < 2 or abs(times / round(times) - 1) > SAME_RATE:
        raise ValueError("a line is a step")
    return {"lines_of_step": str(round(times))}


def _verl(groups: Texts) -> Texts:
    """The devices of a step's tokens and seconds, and of the rate of one device."""
    devices = float(groups["tokens"]) / float(groups["seconds"]) / (float(groups["rate"]) or math.nan)
    if not abs(devices - round(devices)) < SAME_RATE:
        raise ValueError("its figures are not of one step")
    return {"world_size": str(round(devices))}


def _litgpt(groups: Texts) -> Texts:
    """The passes of a step, of a line with the optimizer."""
    passes, rest = divmod(int(groups["passes"]), int(groups["steps"]))
    if rest or not passes:
        raise ValueError("it is not numbered from the first pass")
    return {"accumulation": str(passes)}


def _srun(groups: Texts) -> Texts:
    ranks, per_node = int(groups["ranks"]), int(groups["per_node"])
    if not per_node or ranks % per_node:
        raise ValueError("nodes of unequal size")
    return {"world_size": str(ranks), "gpus_per_node": str(per_node), "nodes": str(ranks // per_node)}


def _ngc_pytorch(flags: Texts) -> Texts:
    facts = {}
    amp, half = (flags.get(name, "").lower() for name in ("amp", "fp16"))
    if amp or half:
        pure = half == "true" and amp == "false"  # of programs that have no `amp` it is that of master weights
        facts["precision"] = "fp16" if pure else "amp-fp16" if "true" in (amp, half) else "fp32"
    whole, local, world = (flags.get(name, "") for name in ("optimizer_batch_size", "batch_size", "world_size"))
    if whole.isdigit() and local.isdigit() and world.isdigit() and int(local) * int(world):
        facts["accumulation"] = str(int(whole) // (int(local) * int(world)))
    return facts


def _ngc_tensorflow(flags: Texts) -> Texts:
    """Those of XLA, DALI and AMP were called `use_…` before the end of 2020."""
    facts = {}
    if flags.get("iter_unit") == "epoch" and flags.get("num_iter", "").isdigit():
        facts["epochs"] = flags["num_iter"]
    for name in ("dali", "xla"):
        if flags.get(name, flags.get(f"use_{name}", "")).lower() == "true":
            facts[name] = "true"
    amp = flags.get("amp", flags.get("use_tf_amp", "")).lower()
    if amp == "true" or flags.get("precision") == "fp16":
        facts["precision"] = "amp-fp16"
    elif amp == "false":
        facts["precision"] = "fp32"
    if flags.get("data_dir") in UNSET:
        facts["data"] = "synthetic"
    return facts


def _paddle_precision(arguments: Texts) -> Texts:
    switches = {arguments[name] for name in ("use_amp", "use_pure_fp16") if name in arguments}
    if switches & {"True", "1"}:
        return {"precision": "amp-fp16"}
    return {"precision": "fp32"} if switches and switches <= {"False", "0"} else {}


def _mxnet_process(arguments: Texts) -> Texts:
    """MLPerf and MXNet's image-classification: the batch of one process, which under Horovod has one device."""
    facts, devices = _mxnet(arguments), _device_count(arguments.get("gpus", ""))
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


def _mxnet_all(arguments: Texts) -> Texts:
    """NVIDIA's ResNet-50 in Gluon: the batch of all processes, and the devices of one node."""
    facts, devices = _mxnet(arguments), _device_count(arguments.get("gpus", ""))
    if arguments.get("batch_size", "").isdigit():
        facts["global_batch_size"] = arguments["batch_size"]
    if devices:
        facts["gpus_per_node"] = str(devices)
        if arguments.get("kv_store") == "device":
            facts |= {"world_size": str(devices), "nodes": "1"}
    return facts


def _mxnet_device(arguments: Texts) -> Texts:
    """GluonCV's and Horovod's scripts: the batch of one device, and the devices if one process has them all.

    GluonCV's detectors list their devices (`gpus='0,1'`) and print the batch of all devices.
    """
    facts, devices = _mxnet(arguments), _device_count(arguments.get("gpus", ""))
    if devices and facts.get("kv_store", "").startswith("dist"):
        return {**facts, "gpus_per_node": str(devices)}
    if devices and arguments.get("horovod") != "True":
        return {**facts, "global_batch_size": arguments.get("batch_size", ""), "world_size": str(devices), "nodes": "1"}
    if arguments.get("batch_size", "").isdigit():
        facts["batch_size"] = arguments["batch_size"]
    if arguments.get("num_gpus", "").isdigit() and int(arguments["num_gpus"]):
        facts |= {"world_size": arguments["num_gpus"], "nodes": "1"}
    return facts


def _mxnet_insightface(arguments: Texts) -> Texts:
    facts = {**_mxnet(arguments), "task": arguments.get("loss", "")}
    for name, argument in (("batch_size", "per_batch_size"), ("world_size", "ctx_num")):
        if arguments.get(argument, "").isdigit() and int(arguments[argument]):
            facts[name] = arguments[argument]
    return {name: value for name, value in facts.items() if value}


def _mxnet(arguments: Texts) -> dict[str, str]:
    """ResNets by their depth, whatever their variant; `network` keeps the name that the program has for it."""
    facts: dict[str, str] = {}
    networks = (arguments[name] for name in ("network", "arch", "model") if arguments.get(name, "") not in UNSET)
    if network := next(networks, ""):
        layers = arguments.get("num_layers", "")
        depth = re.match(r"resnet(\d{2,3})(?!\d)", network)
        by_layers = f"resnet{layers}" if network.startswith("resnet") and layers.isdigit() else network
        facts |= {"network": network, "model": f"resnet{depth[1]}" if depth else by_layers}
    if arguments.get("kv_store", "") not in UNSET:
        facts["kv_store"] = arguments["kv_store"]
    if arguments.get("dtype") in ("float16", "float32"):
        half = arguments["dtype"] == "float16" or arguments.get("amp") in ("True", "true")
        facts["precision"] = "amp-fp16" if half else "fp32"
    return facts


def _device_count(gpus: str) -> int:
    """The number of devices in a list like `0,1,2` or `[0, 1, 2]`."""
    return len(re.findall(r"\d+", gpus))


COMPUTED: Mapping[str, Callable[[Texts], Texts]] = {
    "pytorch_imagenet": _pytorch_imagenet,
    "torchvision": _torchvision,
    "mmengine_precision": _mmengine_precision,
    "nemo_batch": _nemo_batch,
    "nemo_lines": _nemo_lines,
    "verl": _verl,
    "litgpt": _litgpt,
    "srun": _srun,
    "ngc_pytorch": _ngc_pytorch,
    "ngc_tensorflow": _ngc_tensorflow,
    "paddle_precision": _paddle_precision,
    "mxnet_process": _mxnet_process,
    "mxnet_all": _mxnet_all,
    "mxnet_device": _mxnet_device,
    "mxnet_insightface": _mxnet_insightface,
}
"""By the names that formats have for them."""
