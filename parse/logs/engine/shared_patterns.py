"""Patterns that several formats share: NVIDIA's dllogger (stamps, a run's parameters), `Namespace(…)`, accuracies."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from parse.logs.engine.log_format import LogPattern, fact

STAMP = rb"DLL (?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+) - "
JSON = rb'DLLL \{.{0,40}?"timestamp": "(?P<time>\d+\.\d+)".{0,200}?'
ABSENT = ("", "None", "null")
"""Values of parameters that are not set."""
END_OF_EPOCH = "the end of an epoch"
NCCL_VERSION = fact(b"NCCL version ", rb"NCCL version (?P<nccl>[\w.+-]+)")

_FLAG = re.compile(r"(?:^|  )(\w+) : ((?:(?!  | $).)*)")
_PAIR = re.compile(r'"(\w+)": (\[[^\]]{0,1000}\]|"[^"]{0,1000}"|[^",{}]+)')
_ARGUMENT = re.compile(r"\b(\w+)=('[^']{0,1000}'|\[[^\]]{0,1000}\]|[^,()]*)")

Facts = Callable[[Mapping[str, str]], Mapping[str, str]]
"""From parameters, by the names of the program's flags, to facts."""


def parameters(facts: Facts) -> tuple[LogPattern, LogPattern]:
    """A run's parameters as text, `name : value  name : value` (two blanks stand in no value), and as JSON."""
    return (
        fact(b" - PARAMETER ", STAMP + rb"PARAMETER (?P<pairs>.*)", lambda match: facts(_pairs(_FLAG, match))),
        fact(
            b'"PARAMETER"',
            rb'DLLL \{.{0,400}?"step": "PARAMETER", "data": (?P<pairs>\{.*)',
            lambda match: facts(_pairs(_PAIR, match)),
        ),
    )


def arguments(marker: bytes, before: bytes, facts: Facts) -> LogPattern:
    """A program's arguments as argparse prints them behind `before`: `Namespace(name='value', …)`."""
    return fact(marker, before + rb"Namespace\((?P<pairs>.*)", lambda match: facts(_pairs(_ARGUMENT, match)))


def _pairs(form: re.Pattern[str], match: re.Match[bytes]) -> dict[str, str]:
    text = match["pairs"].decode(errors="replace")
    return {name: value.strip("'\" ") for name, value in form.findall(text)}


def percent(match: re.Match[bytes]) -> dict[str, str]:
    """The accuracy in percent from its `share`, or from that of errors (a group `error`), with any printed epoch."""
    groups = match.groupdict()
    share = 1 - float(match["share"]) if groups.get("error") else float(match["share"])
    epoch = {"epoch": groups["epoch"].decode()} if groups.get("epoch") else {}
    return {"top1": f"{share * 100:.6g}", **epoch}
