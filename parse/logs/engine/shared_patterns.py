"""Patterns that several formats share: NVIDIA's dllogger (stamps, a run's parameters), `Namespace(…)`, accuracies."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

from parse.logs.engine.log_format import LogPattern, fact, pause

DLL_STAMP = rb"DLL (?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+) - "
JSON = rb'DLLL \{.{0,40}?"timestamp": "(?P<time>\d+\.\d+)".{0,200}?'
DATED = rb"(?P<time>\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"
"""A time stamp with its date."""
BAR = rb"\d{1,3}%\|[^|\n]{0,2000}\| *"
RUNTIME = rb" \[(?P<runtime>[\d:]{4,10})<"
"""The text before and behind `10/100` in a progress bar of tqdm (`tqdm.format_meter`); the time is that since the
bar began."""
ABSENT = ("", "None", "null")
"""Values of parameters that are not set."""
END_OF_EPOCH = "the end of an epoch"
LIGHTNING_WORLD = (
    fact(b"All distributed processes registered", rb"Starting with (?P<world_size>\d{1,7}) processes"),
    fact(b"Initializing distributed: ", rb"GLOBAL_RANK: \d{1,7}, MEMBER: \d{1,7}/(?P<world_size>\d{1,7})"),
)
"""PyTorch Lightning's lines of a process group (lightning/fabric/utilities/distributed.py)."""
NCCL_VERSION = fact(b"CCL version ", rb"[NR]CCL version (?:: )?(?P<nccl>[\w.+-]+)")


def _srun(match: re.Match[bytes]) -> Mapping[str, str]:
    ranks, per_node = int(match["ranks"]), int(match["per_node"])
    if not per_node or ranks % per_node:
        raise ValueError("nodes of unequal size")
    return {"world_size": str(ranks), "gpus_per_node": str(per_node), "nodes": str(ranks // per_node)}


SRUN = fact(
    b"--ntasks-per-node=",
    rb"--ntasks=(?P<ranks>\d{1,9}) --ntasks-per-node=(?P<per_node>\d{1,9}) .{0,4000}run_and_time",
    _srun,
)
"""The line that starts NVIDIA's MLPerf programs, as the shell shows it (`set -x`): one task for each GPU."""

LAUNCHED = (
    fact(b"--nproc_per_node", rb"\s--nproc_per_node[= ](?P<gpus_per_node>[1-9]\d{0,3})\b"),
    fact(b"--nnodes", rb"\s--nnodes[= ](?P<nodes>[1-9]\d{0,5})\b"),
)
"""The options of torch.distributed's launcher and NVIDIA's bind_launch, as the shell shows them."""

_FLAG = re.compile(r"(?:^|  )(\w+) : ((?:(?!  | $).)*)")
_PAIR = re.compile(r'"(\w+)": (\[[^\]]{0,1000}\]|"[^"]{0,1000}"|[^",{}]+)')
_ARGUMENT = re.compile(r"\b(\w+)=('[^']{0,1000}'|\[[^\]]{0,1000}\]|[^,()]*)")

Facts = Callable[[Mapping[str, str]], Mapping[str, str]]
"""From parameters, by the names of the program's flags, to facts."""


def parameters(facts: Facts) -> tuple[LogPattern, LogPattern]:
    """A run's parameters as text, `name : value  name : value` (no value has two blanks), and as JSON."""
    return (
        fact(b" - PARAMETER ", DLL_STAMP + rb"PARAMETER (?P<pairs>.*)", lambda match: facts(_pairs(_FLAG, match))),
        fact(
            b'"PARAMETER"',
            rb'DLLL \{.{0,400}?"step": "PARAMETER", "data": (?P<pairs>\{.*)',
            lambda match: facts(_pairs(_PAIR, match)),
        ),
    )


def arguments(marker: bytes, before: bytes, facts: Facts) -> LogPattern:
    """A program's arguments as argparse prints them behind `before`: `Namespace(name='value', …)`."""
    return fact(marker, before + rb"Namespace\((?P<pairs>.*)", lambda match: facts(_pairs(_ARGUMENT, match)))


def table(names: Mapping[str, str], facts: Facts) -> tuple[LogPattern, ...]:
    """Lines of a table of settings, `  seq_length ........ 2048` or `  seq_length: 2048`: a pattern for each of the
    `names`, from settings to facts; `facts` makes facts of one of these."""
    return tuple(
        fact(
            setting.encode(),
            rb"(?:^|\s|:)%b(?: ?\.{2,80}+ ?| {2}|: )(?P<value>[^\s.]\S{0,79}+)\s{0,40}$" % setting.encode(),
            partial(_setting, name, facts),
        )
        for setting, name in names.items()
    )


_ORIGIN = re.compile(r"\.{3,60}\w{1,10}$")
"""GPT-NeoX prints behind a value where it is from: `1...........default`."""


def _setting(name: str, facts: Facts, match: re.Match[bytes]) -> Mapping[str, str]:
    """Raises ValueError where the setting is not set."""
    value = _ORIGIN.sub("", match["value"].decode(errors="replace"))
    if value in (*ABSENT, "False", "auto"):
        raise ValueError(f"{name} is not set")
    return facts({name: value})


def digits(match: re.Match[bytes]) -> dict[str, str]:
    """The groups that matched, without the commas between thousands."""
    return {name: value.decode(errors="replace").replace(",", "") for name, value in match.groupdict().items() if value}


TRAINER_BATCHES = (
    fact(
        b"& accumulation) = ", rb"Total train batch size \([^)\n]{1,80}\) = (?P<global_batch_size>[\d,]{1,12})", digits
    ),
    fact(b"Gradient Accumulation steps = ", rb"Gradient Accumulation steps = (?P<micro_batches>[\d,]{1,12})", digits),
)
"""Lines of Hugging Face's Trainer (transformers/trainer.py), which PaddleNLP's prints, too."""


def _pairs(form: re.Pattern[str], match: re.Match[bytes]) -> dict[str, str]:
    text = match["pairs"].decode(errors="replace")
    return {name: value.strip("'\" ") for name, value in form.findall(text)}


def percent(match: re.Match[bytes]) -> dict[str, str]:
    """The accuracy in percent from its `share`, or from that of errors (a group `error`), with any printed epoch."""
    groups = match.groupdict()
    share = 1 - float(match["share"]) if groups.get("error") else float(match["share"])
    epoch = {"epoch": groups["epoch"].decode()} if groups.get("epoch") else {}
    return {"top1": f"{share * 100:.6g}", **epoch}


# Patterns that Paddle 2's suites share: time stamps, what a step took, a run's facts, pauses.

STAMP = (
    rb"(?:\[?(?P<time>\d{4}[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?|\d\d/\d\d \d\d:\d\d:\d\d)\]?"
    rb"[ \t:-][^<\n]{0,80}?)?"
)
COST = rb"(?P<duration_s>\d+\.\d+)"


def _facts(arguments: Mapping[str, str]) -> Mapping[str, str]:
    """The facts of a program's arguments; its batch is that of a device."""
    names = {"batch_size": "batch_size", "model_name_or_path": "model", "logging_steps": "print_every", "seed": "seed"}
    values = {
        name: arguments[argument] for argument, name in names.items() if arguments.get(argument, "") not in ABSENT
    }
    switches = {arguments[name] for name in ("use_amp", "use_pure_fp16") if name in arguments}
    if switches & {"True", "1"}:
        values["precision"] = "amp-fp16"
    elif switches and switches <= {"False", "0"}:
        values["precision"] = "fp32"
    return values


def _devices(match: re.Match[bytes]) -> Mapping[str, str]:
    return {"gpus_per_node": str(match["devices"].count(b",") + 1)}


PATTERNS: tuple[LogPattern, ...] = (
    arguments(b"Namespace(", b"", _facts),
    fact(b"batch_size: ", rb"^batch_size: (?P<batch_size>\d+)\s*$"),
    fact(b"nranks: ", rb"init nccl context nranks: (?P<world_size>\d+) .{0,60}ring id: 0\b"),
    fact(b" devices: ", rb"^LAUNCH INFO .{1,40} devices: (?P<devices>\d+(?:,\d+){0,63})\s*$", _devices),
    fact(b" nnodes: ", rb"^LAUNCH INFO .{1,40} nnodes: (?P<nodes>\d+)\s*$"),
    fact(b"use AMP to train", rb"use AMP to train", precision="amp-fp16"),
    pause(b"[EVAL]", STAMP + rb"\[(?P<reason>EVAL)\]"),
    pause(b"Start evaluating", STAMP + rb"(?P<reason>Start evaluating)"),
    pause(b"Eval iter: ", STAMP + rb"(?P<reason>Eval) iter: "),
    pause(b"cur metric, ", STAMP + rb"cur metric, ", reason="evaluation"),
    pause(b"ave model", STAMP + rb"(?P<reason>[Ss]ave models?) (?:to|in) "),
    pause(b"ave checkpoint", STAMP + rb"(?P<reason>[Ss]ave checkpoint): "),
    pause(b" done, ", STAMP + rb"epoch: ?\d+ done, ", reason=END_OF_EPOCH),
    pause(b" using time ", STAMP + rb"Epoch: ?\d+, using time ", reason=END_OF_EPOCH),
)
