"""pytorch/examples imagenet and the many programs that took over its meters: apex, TSM, MoCo, …

`Time` is how long the last step took, data included; apex divides by the steps since it printed last. Which batch size
a step had is not said, but by programs that print their arguments. Every process prints, and none says which it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, LogPattern, StepLine

_STAMP = rb"(?:(?P<time>\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)[^<\n]{0,80}?)?"
_ARGUMENT = re.compile(r"\b(\w+)=('[^']*'|[^,()]+)")
_LEVELS = {"O0": "fp32", "O1": "amp-fp16", "O2": "amp-fp16"}


def _arguments(match: re.Match[bytes]) -> Mapping[str, str]:
    """What `Namespace(…)` says; its batch size is that of a node, or of a process where each is started by hand.

    Raises ValueError where it is that of another program.
    """
    text = match["arguments"].decode(errors="replace")
    arguments = {name: value.strip("'") for name, value in _ARGUMENT.findall(text)}
    if "arch" not in arguments:
        raise ValueError("these are not its arguments")
    names = {"arch": "model", "epochs": "epochs", "print_freq": "print_every", "seed": "seed"}
    facts = {name: arguments[argument] for argument, name in names.items() if arguments.get(argument, "None") != "None"}
    if arguments.get("dummy") == "True":
        facts["data"] = "synthetic"
    if arguments.get("opt_level") in _LEVELS:
        facts["precision"] = _LEVELS[arguments["opt_level"]]
    world, spawned = arguments.get("world_size", ""), arguments.get("multiprocessing_distributed") == "True"
    alone = world == "-1" and not spawned and arguments.get("dist_url") != "env://"
    if arguments.get("batch_size", "").isdigit() and (alone or world.isdigit()):
        counted = 1 if alone else max(int(world), 1)
        facts["global_batch_size"] = str(int(arguments["batch_size"]) * counted)
        if spawned:
            facts["nodes"] = str(counted)
        elif not alone:
            facts["world_size"] = str(counted)
    return facts


def _precision(match: re.Match[bytes]) -> Mapping[str, str]:
    level = match["level"].decode()
    return {"precision": _LEVELS[level]} if level in _LEVELS else {"opt_level": level}


def _nothing(_: re.Match[bytes]) -> Mapping[str, str]:
    return {}


def _synthetic(_: re.Match[bytes]) -> Mapping[str, str]:
    return {"data": "synthetic"}


FORMAT = LogFormat(
    name="pytorch-imagenet",
    title="pytorch/examples imagenet",
    steps=(
        StepLine(
            marker=b"Epoch: [",
            pattern=re.compile(
                _STAMP + rb"Epoch: \[ *(?P<epoch>\d+)\]\s*\[ *(?P<step>\d+)/ *(?P<epoch_steps>\d+)\][^E\n]{0,80}?"
                rb"\bTime:?[ \t]+(?P<duration_s>\d+\.\d+)s?[ \t]"
            ),
        ),
    ),
    patterns=(
        LogPattern(
            kind="facts",
            marker=b"=> creating model '",
            pattern=re.compile(rb"=> creating model '(?P<model>[^'\n]+)'"),
        ),
        LogPattern(
            kind="facts",
            marker=b"=> using pre-trained model '",
            pattern=re.compile(rb"=> using pre-trained model '(?P<model>[^'\n]+)'"),
        ),
        LogPattern(
            kind="facts",
            marker=b"storing name: TS",
            pattern=re.compile(
                rb"storing name: (?P<name>TS[MN])_(?P<data>\w+?)_(?:RGB|Flow|RGBDiff)_(?P<base>[A-Za-z]+\d*)"
            ),
            values=lambda match: {
                "model": f"{match['name'].decode()}-{match['base'].decode()}",
                "data": match["data"].decode(),
            },
        ),
        LogPattern(
            kind="facts",
            marker=b"Namespace(",
            pattern=re.compile(rb"Namespace\((?P<arguments>[^\n]{0,4000})\)"),
            values=_arguments,
        ),
        LogPattern(
            kind="facts", marker=b"=> Dummy data is ", pattern=re.compile(rb"=> Dummy data is us"), values=_synthetic
        ),
        LogPattern(
            kind="facts",
            marker=b"opt_level ",
            pattern=re.compile(rb"opt_level +[=:] (?P<level>O\d)"),
            values=_precision,
        ),
        LogPattern(
            kind="facts",
            marker=b"Use GPU: ",
            pattern=re.compile(rb"Use GPU: (?P<rank>\d+) for training"),
            values=_nothing,
        ),
        LogPattern(
            kind="facts",
            marker=b"====rank=",
            pattern=re.compile(rb"====rank=(?P<rank>\d+) "),
            values=_nothing,
        ),
        LogPattern(
            kind="pause",
            marker=b"Test: [",
            pattern=re.compile(_STAMP + rb"(?P<why>Test): \[ *\d+/ *\d+\]"),
        ),
        LogPattern(
            kind="evaluation",
            marker=b"* Acc@1 ",
            pattern=re.compile(_STAMP + rb"\* Acc@1 +(?P<top1>\d+\.\d+)[ \t]"),
        ),
        LogPattern(
            kind="evaluation",
            marker=b"* Prec@1 ",
            pattern=re.compile(_STAMP + rb"\* Prec@1 +(?P<top1>\d+\.\d+)[ \t]"),
        ),
        LogPattern(
            kind="evaluation",
            marker=b"Testing Results: ",
            pattern=re.compile(_STAMP + rb"Testing Results: (?:Prec|Acc)@1 +(?P<top1>\d+\.\d+)[ \t]"),
        ),
    ),
    mean="durations",
)
"""One step is timed, by each process for itself; numbers start anew in every epoch, at 0, in newer versions at 1."""
