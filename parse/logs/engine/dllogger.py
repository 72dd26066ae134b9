"""NVIDIA's dllogger, through which several families print: its stamps, as text and as JSON, and a run's parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from parse.logs.engine.log_format import LogPattern

STAMP = rb"DLL (?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+) - "
JSON = rb'DLLL \{.{0,40}?"timestamp": "(?P<time>\d+\.\d+)".{0,200}?'
ABSENT = ("", "None", "null")
"""Parameters that nobody set."""

_FLAG = re.compile(r"(?:^|  )(\w+) : ((?:(?!  | $).)*)")
_PAIR = re.compile(r'"(\w+)": (\[[^\]]{0,1000}\]|"[^"]{0,1000}"|[^",{}]+)')

Facts = Callable[[Mapping[str, str]], Mapping[str, str]]
"""From parameters, by the names of the program's flags, to what they tell."""


def parameters(facts: Facts) -> tuple[LogPattern, LogPattern]:
    """A run's parameters as text, `name : value  name : value` (two blanks stand in no value), and as JSON."""
    return (
        LogPattern(
            kind="facts",
            marker=b" - PARAMETER ",
            pattern=re.compile(STAMP + rb"PARAMETER (?P<parameters>.*)"),
            values=lambda match: facts(_parameters_in(_FLAG, match)),
        ),
        LogPattern(
            kind="facts",
            marker=b'"PARAMETER"',
            pattern=re.compile(rb'DLLL \{.{0,400}?"step": "PARAMETER", "data": (?P<parameters>\{.*)'),
            values=lambda match: facts(_parameters_in(_PAIR, match)),
        ),
    )


def _parameters_in(form: re.Pattern[str], match: re.Match[bytes]) -> dict[str, str]:
    text = match["parameters"].decode(errors="replace")
    return {name: value.strip("'\" ") for name, value in form.findall(text)}
