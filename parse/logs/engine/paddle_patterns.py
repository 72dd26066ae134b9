"""Patterns that Paddle 2's suites share: time stamps, what a step took, a run's facts, pauses."""

from __future__ import annotations

import re
from collections.abc import Mapping

from parse.logs.engine.log_format import LogPattern, fact, pause
from parse.logs.engine.shared_patterns import ABSENT, END_OF_EPOCH, arguments

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
