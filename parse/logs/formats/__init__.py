"""The table of log formats, and the recognition of a log's format."""

from __future__ import annotations

import dataclasses
from functools import cache
from importlib import import_module
from itertools import islice
from pathlib import Path

from parse.logs.engine.log_format import LogError, LogFormat
from parse.logs.engine.reader import ANSI, pieces
from parse.logs.engine.shapes import find_step

FORMATS = {
    "ngc-pytorch": "parse.logs.formats.ngc_pytorch",
    "pytorch-imagenet": "parse.logs.formats.pytorch_imagenet",
    "paddle-resnet50": "parse.logs.formats.paddle_resnet50",
    "plsc": "parse.logs.formats.plsc",
    "ngc-tensorflow": "parse.logs.formats.ngc_tensorflow",
    "tf2-official": "parse.logs.formats.tf2_official",
    "ngc-mxnet": "parse.logs.formats.mxnet",
    "oneflow": "parse.logs.formats.oneflow",
    "mllog": "parse.logs.formats.mllog",
    "ai-rank": "parse.logs.formats.ai_rank",
}
"""Modules of the formats by name; those without steps come last."""

FEW, MANY = 3, 1000
"""Step lines needed to recognise one format, and to choose between two."""
HEAD = 1 << 13
"""Characters within which most logs show their format."""
TRIED = 10
"""As many lines that look like steps are tried for each that is wanted."""

MARKS = ("mllog", "ai-rank")
"""Marks of these may stand in a log of any format."""


@cache
def format_named(name: str) -> LogFormat:
    """The log format of that name, with the marks that any log may hold. Raises LogError for an unknown name."""
    if name not in FORMATS:
        raise LogError(f"no log format is called {name!r}; there are {', '.join(FORMATS)}")
    declared: LogFormat = import_module(FORMATS[name]).FORMAT
    marks = [import_module(FORMATS[other]).PATTERNS for other in MARKS]
    return dataclasses.replace(
        declared,
        patterns=tuple(dict.fromkeys((*declared.patterns, *(mark for patterns in marks for mark in patterns)))),
    )


def recognise(path: Path) -> LogFormat:
    """The format whose steps the log prints, else whose marks. Raises LogError where there are neither."""
    known = [format_named(name) for name in FORMATS]
    marked: list[LogFormat] = []
    for buffer, size, _ in pieces(path):
        text = bytes(memoryview(buffer)[:size])
        if b"\0" * 8 in text:
            raise LogError(f"{path}: not a log (it is binary)")
        if printing := _printing_steps(ANSI.sub(b"", text) if b"\x1b" in text else text, known):
            return printing
        marked += [
            log_format
            for log_format in known
            if not log_format.steps and log_format not in marked and _has_marks(log_format, text)
        ]
    if marked:
        return marked[0]
    raise LogError(f"{path}: no step line of a known system is in it ({', '.join(FORMATS)})")


def _printing_steps(text: bytes, known: list[LogFormat]) -> LogFormat | None:
    """The format with the most step lines in the text; None without any."""
    for part, enough in ((text[:HEAD], FEW), (text, FEW), (text, MANY)):
        counts = {log_format.name: _step_lines_in(part, log_format, enough) for log_format in known}
        names = [name for name, count in counts.items() if count]
        if len(names) == 1:
            break
    return format_named(max(names, key=lambda name: counts[name])) if names else None


def _step_lines_in(text: bytes, log_format: LogFormat, enough: int) -> int:
    """Counts the step lines in the text, up to `enough`; tries TRIED times as many lines at most."""
    markers = [form.marker for form in log_format.steps if form.marker in text]
    if not markers:
        return 0
    lines = (line for line in text.split(b"\n") if any(marker in line for marker in markers))
    looked_at = islice(lines, TRIED * enough)
    return sum(1 for _ in islice((line for line in looked_at if find_step(line, log_format.steps)), enough))


def _has_marks(log_format: LogFormat, text: bytes) -> bool:
    declared = import_module(FORMATS[log_format.name]).PATTERNS
    return any(mark.marker in text and mark.pattern.search(text) for mark in declared)
