"""Programs that train on images in PyTorch: PyTorch's example, timm, torchvision's references, MMEngine, Detectron2."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from parse.logs.engine.log_format import LogFormat, block, evaluation, fact, pause, step
from parse.logs.engine.shared_patterns import ABSENT, END_OF_EPOCH, arguments

# pytorch/examples imagenet and the many programs that took over its meters: apex, TSM, MoCo, …
#
# `Time` is the duration of the last step, data included, with the mean since the epoch began in parentheses; apex
# divides by the steps since it printed last. The batch size is printed only by programs that print their arguments.
# Every process prints, without its rank.

_PYTORCH_IMAGENET_STAMP = rb"(?:(?P<time>\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)[^<\n]{0,80}?)?"
_LEVELS = {"O0": "fp32", "O1": "amp-fp16", "O2": "amp-fp16"}


def _pytorch_imagenet_facts(arguments: Mapping[str, str]) -> Mapping[str, str]:
    """The facts of its arguments; its batch size is that of a node, or of a process where each is started by hand.

    Raises ValueError where it is that of another program.
    """
    if "arch" not in arguments:
        raise ValueError("these are not its arguments")
    names = {"arch": "model", "epochs": "epochs", "print_freq": "print_every", "seed": "seed"}
    facts = {name: arguments[argument] for argument, name in names.items() if arguments.get(argument, "") not in ABSENT}
    if arguments.get("dummy") == "True":
        facts["data"] = "synthetic"
    if arguments.get("opt_level") in _LEVELS:
        facts["precision"] = _LEVELS[arguments["opt_level"]]
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


def _pytorch_imagenet_precision(match: re.Match[bytes]) -> Mapping[str, str]:
    level = match["level"].decode()
    return {"precision": _LEVELS[level]} if level in _LEVELS else {"opt_level": level}


PYTORCH_IMAGENET = LogFormat(
    name="pytorch-imagenet",
    title="pytorch/examples imagenet",
    steps=(
        step(
            b"Epoch: [",
            _PYTORCH_IMAGENET_STAMP
            + rb"Epoch: \[ *(?P<epoch>\d+)\]\s*\[ *(?P<step>\d+)/ *(?P<epoch_steps>\d+)\][^E\n]{0,80}?"
            rb"\bTime:?[ \t]+(?P<duration_s>\d+\.\d+)s?[ \t]+(?:\( *(?P<mean_s>\d+\.\d+)s?\))?",
        ),
    ),
    patterns=(
        fact(b"=> creating model '", rb"=> creating model '(?P<model>[^'\n]+)'"),
        fact(b"=> using pre-trained model '", rb"=> using pre-trained model '(?P<model>[^'\n]+)'"),
        fact(
            b"storing name: TS",
            rb"storing name: (?P<name>TS[MN])_(?P<data>\w+?)_(?:RGB|Flow|RGBDiff)_(?P<base>[A-Za-z]+\d*)",
            lambda match: {
                "model": f"{match['name'].decode()}-{match['base'].decode()}",
                "data": match["data"].decode(),
            },
        ),
        arguments(b"Namespace(", b"", _pytorch_imagenet_facts),
        fact(b"=> Dummy data is ", rb"=> Dummy data is us", data="synthetic"),
        fact(b"opt_level ", rb"opt_level +[=:] (?P<level>O\d)", _pytorch_imagenet_precision),
        pause(b"Test: [", _PYTORCH_IMAGENET_STAMP + rb"(?P<reason>Test): \[ *\d+/ *\d+\]"),
        evaluation(b"* Acc@1 ", _PYTORCH_IMAGENET_STAMP + rb"\* Acc@1 +(?P<top1>\d+\.\d+)[ \t]"),
        evaluation(b"* Prec@1 ", _PYTORCH_IMAGENET_STAMP + rb"\* Prec@1 +(?P<top1>\d+\.\d+)[ \t]"),
        evaluation(
            b"Testing Results: ", _PYTORCH_IMAGENET_STAMP + rb"Testing Results: (?:Prec|Acc)@1 +(?P<top1>\d+\.\d+)[ \t]"
        ),
    ),
    printed="durations",
)
"""One step is timed, by each process for itself; numbers restart in every epoch, at 0, in newer versions at 1."""


# timm's train.py (huggingface/pytorch-image-models), and the programs that took it over.
#
# `Time: 0.345s, 742.03/s` are of the last update alone (of its last batch, where gradients were not yet accumulated);
# in brackets are the means since the epoch began, whose differences count. The rate is that of all ranks; one rank
# prints.

_TIMM_STAMP = rb"(?:(?P<time>\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)[^<\n]{0,80}?)?"

TIMM = LogFormat(
    name="timm",
    title="timm train.py",
    steps=(
        step(
            b"/s  (",
            _TIMM_STAMP + rb"Train: (?P<epoch>\d+) \[ *(?P<step>\d+)/(?P<epoch_steps>\d+) \( *\d+%\)\] +"
            rb"Loss: +\S{1,24} +\(\S{1,24}\) +Time: (?P<duration_s>\d+\.\d+)s, +(?P<rate>\d+\.\d+)/s  "
            rb"\([\d.]+s, +(?P<mean_rate>\d+\.\d+)/s\)",
        ),
    ),
    patterns=(
        fact(b"Training in distributed mode", rb"Process (?P<rank>\d+), total (?P<world_size>\d+)\b"),
        fact(b"Training with a single process", rb"single process on (?P<world_size>\d+) (?:GPUs|device)\b"),
        fact(b" created, param count:", rb"Model (?P<model>[\w.:/-]{1,80}) created, param count:"),
        fact(b"effective global batch size (", rb"effective global batch size \((?P<global_batch_size>\d+)\)"),
        fact(b"global batch size (", rb"and global batch size \((?P<global_batch_size>\d+)\)"),
        fact(b"AMP not enabled. ", rb"AMP not enabled\. Training in (?:torch\.)?float32\b", precision="fp32"),
        fact(b"Scheduled epochs: ", rb"Scheduled epochs: (?P<epochs>\d+)\b"),
        pause(b"Test", _TIMM_STAMP + rb"(?P<reason>Test)[^:\[\n]{0,40}: \[ *\d+/\d+\]"),
        pause(b"Current checkpoints:", rb"(?P<reason>Current checkpoints):"),
    ),
)
"""Updates are numbered from 0 in every epoch. Which half precision AMP uses is not printed. An update takes in the
effective global batch, with the gradients that are accumulated in it."""


# torchvision's references (classification, detection, segmentation, …), and the many programs that took over their
# MetricLogger: DETR, DeiT, DINO, MAE, BEiT, ConvNeXt, …
#
# `time` is the mean of the last 20 steps (`SmoothedValue(fmt="{avg:.4f}")`), with the wait for input; where fewer are
# between two lines, neighbouring numbers share steps. `img/s` is one rank's, of the last step alone and without the
# wait for input (`batch_size / (time.time() - start_time)`), and is not read. One rank prints.

_TORCHVISION_STAMP = (
    rb"(?:(?P<time>\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?|\d\d:\d\d:\d\d(?:\.\d+)?(?=\]))"
    rb"[^<\n\[]{0,80}?)?"
)
_TORCHVISION_TIME = (
    rb" +\[ *(?P<step>\d+)/(?P<epoch_steps>\d+)\] +eta: [^\[\n]{1,8000}? time: (?P<duration_s>\d+\.\d+) +data: "
)
_NAMES = {
    "batch_size": "batch_size", "batch_size_per_gpu": "batch_size", "world_size": "world_size", "model": "model",
    "arch": "model", "epochs": "epochs", "print_freq": "print_every", "seed": "seed", "accum_iter": "accumulation",
    "update_freq": "accumulation",
}  # fmt: skip
"""Arguments and facts; the batch is that of a process, each of which drives one device."""
_LINES = ("batch_size", "batch_size_per_gpu", "world_size", "model", "arch", "accum_iter", "epochs")
"""Arguments that some programs print on a line each."""


def _torchvision_references_facts(arguments: Mapping[str, str]) -> Mapping[str, str]:
    facts = {
        name: arguments[argument] for argument, name in _NAMES.items() if arguments.get(argument, "") not in ABSENT
    }
    if arguments.get("amp") in ("True", "False"):
        facts["precision"] = "amp-fp16" if arguments["amp"] == "True" else "fp32"
    elif arguments.get("apex") == "True" and arguments.get("apex_opt_level") in ("O1", "O2"):
        facts["precision"] = "amp-fp16"
    return facts


def _line(match: re.Match[bytes]) -> Mapping[str, str]:
    return _torchvision_references_facts({match["name"].decode(): match["value"].decode()})


TORCHVISION = LogFormat(
    name="torchvision",
    title="torchvision references (MetricLogger: DETR, DeiT, DINO, MAE, …)",
    steps=(
        step(b" eta: ", _TORCHVISION_STAMP + rb"poch: ?\[ *(?P<epoch>\d+)(?:/\d+)?\]" + _TORCHVISION_TIME),
        step(b" eta: ", rb"(?:[IWE](?P<time>\d{8} \d\d:\d\d:\d\d) [^\[\n]{0,80})?\bTraining" + _TORCHVISION_TIME),
    ),
    patterns=(
        arguments(b"Namespace(", b"", _torchvision_references_facts),
        *(
            fact(
                name.encode(),
                rb"^(?:Namespace\()?(?P<name>" + name.encode() + rb")(?:: |=)'?(?P<value>[\w.-]{1,80})'?[,)]?\s*$",
                _line,
            )
            for name in _LINES
        ),
        pause(b"Test:", _TORCHVISION_STAMP + rb"(?P<reason>Test): +\[ *\d+/\d+\]"),
        pause(b" Total time: ", _TORCHVISION_STAMP + rb"poch: ?\[ *\d+(?:/\d+)?\] Total time: ", reason=END_OF_EPOCH),
        evaluation(b"Acc@1 ", _TORCHVISION_STAMP + rb"(?:\*|Test: +) ?Acc@1 (?P<top1>\d+\.\d+) Acc@5 "),
    ),
    printed="durations",
)
"""Steps are numbered from 0 in every epoch, and count the passes that gradients are accumulated over one by one."""


# OpenMMLab's trainers: mmengine's Runner (`Epoch(train) [1][ 50/1000]`) and mmcv's before it (`Epoch [1][50/1000]`).
#
# `time` is the seconds of a step, with the wait for input: mmengine prints the mean of the last steps (LogProcessor's
# `window_size`, 10 where a configuration does not say 50), mmcv the mean since the line before (`log_buffer.average`).
# One rank prints. There is no rate; the batch is in the configuration that is printed first.

_MMENGINE_STAMP = (
    rb"(?:(?P<time>(?:\d{4}/)?\d\d/\d\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:,\d+)?)"
    rb"(?: - [\w.]{1,40})? - INFO - )?"
)
_MMENGINE_TIME = rb"(?:[^\n\[]{1,400}?[ ,]time: (?P<duration_s>\d+\.\d+))?"
_EPOCH = rb" *\[ *(?P<epoch>\d+)\]\[ *(?P<step>\d+)/(?P<epoch_steps>\d+)\]"
_ITER = rb" *\[ *(?P<step>\d+)/\d+\]"
_MMENGINE_PRECISIONS = {"AmpOptimWrapper": "amp-fp16", "OptimWrapper": "fp32"}


def _mmengine_precision(match: re.Match[bytes]) -> Mapping[str, str]:
    """The precision of an optimizer's wrapper. Raises ValueError for one that is not mmengine's own."""
    settings = dict(
        re.findall(r"(?:\n    |\(|, )(type|dtype)='(\w{1,40})'", match["settings"].decode(errors="replace"))
    )
    if settings.get("type") not in _MMENGINE_PRECISIONS:
        raise ValueError("another wrapper")
    half = settings["type"] == "AmpOptimWrapper" and settings.get("dtype") == "bfloat16"
    return {"precision": "bf16" if half else _MMENGINE_PRECISIONS[settings["type"]]}


MMENGINE = LogFormat(
    name="mmengine",
    title="OpenMMLab (mmengine, mmcv)",
    steps=(
        step(b"Epoch(train)", _MMENGINE_STAMP + rb"Epoch\(train\)" + _EPOCH + _MMENGINE_TIME),
        step(b"Iter(train)", _MMENGINE_STAMP + rb"Iter\(train\)" + _ITER + _MMENGINE_TIME),
        step(b" - Epoch [", _MMENGINE_STAMP + rb"Epoch" + _EPOCH + rb"\s+lr: " + _MMENGINE_TIME),
        step(b" - Iter [", _MMENGINE_STAMP + rb"Iter" + _ITER + rb"\s+lr: " + _MMENGINE_TIME),
    ),
    patterns=(
        fact(b"GPU number: ", rb"^\s*GPU number: (?P<world_size>\d+)\s*$"),
        fact(b"the current batch size is ", rb"and the current batch size is (?P<global_batch_size>\d+)\."),
        fact(b"samples_per_gpu=", rb"^(?:data = dict\()?\s*samples_per_gpu=(?P<batch_size>\d+),"),
        block(
            b"train_dataloader = dict(",
            rb"^train_dataloader = dict\(\s{1,8}(?:batch_size=|(?:    [^\n]{0,200}\n){1,60}?    batch_size=)"
            rb"(?P<batch_size>\d+),",
        ),
        block(
            b"optim_wrapper = dict(",
            rb"^optim_wrapper = dict(?P<settings>\([^\n]{0,400}(?:\n    [^\n]{0,200}){0,40})",
            _mmengine_precision,
        ),
        fact(b"fp16 = dict(", rb"^fp16 = dict\(", precision="amp-fp16"),
        fact(b"Exp name: ", rb"Exp name: (?P<model>[\w.-]{1,120}?)(?:_\d{8}_\d{6}|\.py)?\s*$"),
        pause(b"(val) ", _MMENGINE_STAMP + rb"(?:Epoch|Iter)\((?P<reason>val)\) *\["),
        pause(b"Saving checkpoint at ", _MMENGINE_STAMP + rb"(?P<reason>Saving checkpoint) at "),
        evaluation(
            b"accuracy/top1: ",
            _MMENGINE_STAMP
            + rb"(?:Epoch|Iter)\(val\) *\[(?:(?P<epoch>\d+)\]\[)?[^\n\[]{1,400}?accuracy/top1: (?P<top1>\d+\.\d+)",
        ),
        evaluation(
            b"accuracy_top-1: ",
            _MMENGINE_STAMP + rb"Epoch\(val\) *\[(?P<epoch>\d+)\]\[[^\n\[]{1,400}?accuracy_top-1: (?P<top1>\d+\.\d+)",
        ),
    ),
    printed="durations",
)
"""Steps are numbered from 1, in every epoch or, where a trainer counts iterations, through the run."""


# detectron2 (CommonMetricPrinter).
#
# `last_time`, which newer versions print, is the seconds of the last step. `time` is the mean of all steps since the
# third one, without what hooks take (`storage.history("time").global_avg()`), and is not read: of older versions' lines
# only the time stamp counts, to the second. One rank prints.

_DETECTRON2_TIME = rb"\[(?P<time>\d\d/\d\d \d\d:\d\d:\d\d)\]? "
_DETECTRON2_PRECISIONS = {b"true": "amp-fp16", b"false": "fp32"}


def _detectron2_facts(arguments: Mapping[str, str]) -> Mapping[str, str]:
    names = {"num_gpus": "gpus_per_node", "num_machines": "nodes"}
    facts = {name: arguments[argument] for argument, name in names.items() if arguments.get(argument, "") not in ABSENT}
    if config := arguments.get("config_file"):
        facts["model"] = PurePosixPath(config).stem
    return facts


def _detectron2_precision(match: re.Match[bytes]) -> Mapping[str, str]:
    return {"precision": _DETECTRON2_PRECISIONS[match["amp"].lower()]}


DETECTRON2 = LogFormat(
    name="detectron2",
    title="detectron2",
    steps=(
        step(
            b"d2.utils.events",
            _DETECTRON2_TIME
            + rb"d2\.utils\.events(?:\]| INFO): +(?:AI-Rank-log )?(?:eta: [^:\n]{1,40}(?::\d\d){1,2} +|eta: N/A +)?"
            rb"iter: (?P<step>\d+) (?:[^]\n]{1,8000}? last_time: (?P<duration_s>\d+\.\d+) )?",
        ),
    ),
    patterns=(
        fact(b"World size: ", rb"Rank of current process: (?P<rank>\d+)\. World size: (?P<world_size>\d+)"),
        arguments(b"Command line arguments: ", rb"Command line arguments: ", _detectron2_facts),
        # The whole configuration has its names in their order; the file that it came from may be overridden.
        block(b"  IMS_PER_BATCH: ", rb"^  IMS_PER_BATCH: (?P<global_batch_size>\d+)\n  LR_SCHEDULER_NAME: "),
        block(
            b"SOLVER:", rb"^SOLVER:\n  AMP:\n    ENABLED: (?P<amp>[Tt]rue|[Ff]alse)\n  BASE_LR: ", _detectron2_precision
        ),
        fact(b"total_batch_size: ", rb"\btotal_batch_size: (?P<global_batch_size>\d+)\b"),
        pause(b"Start inference on ", rb"(?P<reason>Start inference) on "),
        pause(b"Saving checkpoint to ", rb"(?P<reason>Saving checkpoint) to "),
    ),
    printed="durations",
    numbered="run",
)
"""Steps are numbered from 0 through the run."""
