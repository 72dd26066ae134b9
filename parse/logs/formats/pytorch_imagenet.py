"""pytorch/examples imagenet and the many programs that took over its meters: apex, TSM, MoCo, …

`Time` is the duration of the last step, data included, with the mean since the epoch began in parentheses; apex divides
by the steps since it printed last. The batch size is printed only by programs that print their arguments. Every process
prints, without its rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from parse.logs.engine.log_format import LogFormat, evaluation, fact, pause, step
from parse.logs.engine.shared_patterns import ABSENT, arguments

_STAMP = rb"(?:(?P<time>\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)[^<\n]{0,80}?)?"
_LEVELS = {"O0": "fp32", "O1": "amp-fp16", "O2": "amp-fp16"}


def _facts(arguments: Mapping[str, str]) -> Mapping[str, str]:
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


def _precision(match: re.Match[bytes]) -> Mapping[str, str]:
    level = match["level"].decode()
    return {"precision": _LEVELS[level]} if level in _LEVELS else {"opt_level": level}


FORMAT = LogFormat(
    name="pytorch-imagenet",
    title="pytorch/examples imagenet",
    steps=(
        step(
            b"Epoch: [",
            _STAMP + rb"Epoch: \[ *(?P<epoch>\d+)\]\s*\[ *(?P<step>\d+)/ *(?P<epoch_steps>\d+)\][^E\n]{0,80}?"
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
        arguments(b"Namespace(", b"", _facts),
        fact(b"=> Dummy data is ", rb"=> Dummy data is us", data="synthetic"),
        fact(b"opt_level ", rb"opt_level +[=:] (?P<level>O\d)", _precision),
        pause(b"Test: [", _STAMP + rb"(?P<reason>Test): \[ *\d+/ *\d+\]"),
        evaluation(b"* Acc@1 ", _STAMP + rb"\* Acc@1 +(?P<top1>\d+\.\d+)[ \t]"),
        evaluation(b"* Prec@1 ", _STAMP + rb"\* Prec@1 +(?P<top1>\d+\.\d+)[ \t]"),
        evaluation(b"Testing Results: ", _STAMP + rb"Testing Results: (?:Prec|Acc)@1 +(?P<top1>\d+\.\d+)[ \t]"),
    ),
    mean="durations",
)
"""One step is timed, by each process for itself; numbers restart in every epoch, at 0, in newer versions at 1."""
