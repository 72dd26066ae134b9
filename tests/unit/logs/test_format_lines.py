"""Lines of every format, mostly of public logs, and what is read from them: tests/golden/logs/FORMAT.txt.

In a file `#` begins a heading or a source. The lines below it are a log; those that begin with `>` are what is read of
it, and the next line after them begins another log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from parse.logs.engine.log_format import NO_NUMBER, LogError, LogRecord, Steps
from parse.logs.formats import FORMATS, recognise
from tests.unit.logs.text_logs import read

FOLDER = Path(__file__).parents[2] / "golden/logs"
NAMES = sorted(path.stem for path in FOLDER.iterdir())
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|(.))")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A log with the comments above it, and what is read of it."""

    comments: list[str]
    lines: list[str]
    expected: list[str]


def cases_of(name: str) -> Iterator[Case]:
    """The cases of a format."""
    case = Case(comments=[], lines=[], expected=[])
    for line in (FOLDER / f"{name}.txt").read_text().splitlines():
        if case.expected and not line.startswith(">"):
            yield case
            case = Case(comments=[], lines=[], expected=[])
        if line.startswith(">"):
            case.expected.append(line)
        elif line.startswith("#"):
            case.comments.append(line)
        elif line or case.lines:
            case.lines.append(_ESCAPED.sub(lambda at: chr(int(at[1], 16)) if at[1] else at[2].replace("t", "\t"), line))
    yield case


def escaped(line: str) -> str:
    """A line without control characters, blanks at its end, and what means something in these files."""
    text = "".join(
        "\\t" if sign == "\t" else f"\\x{ord(sign):02x}" if sign < " " or "\x7f" <= sign < "\xa0" else sign
        for sign in line.replace("\\", "\\\\")
    )
    text = re.sub(r" $", r"\\x20", text)
    return f"\\{text}" if text.startswith(("#", ">")) else text


def of_steps(steps: Steps) -> Iterator[str]:
    """A step's columns, less its offset."""
    for at in range(len(steps.step)):
        values = {name: column[at] for name, column in vars(steps).items() if name != "offset"}
        printed = {
            name: round(float(value), 6) if value.dtype.kind == "f" else int(value)
            for name, value in values.items() if value != NO_NUMBER and not np.isnan(value)
        }  # fmt: skip
        yield f"> step {json.dumps(printed)}"


def of_records(records: tuple[LogRecord, ...]) -> Iterator[str]:
    """Records, those of facts that follow each other as one."""
    merged: list[tuple[str, dict[str, str]]] = []
    for record in records:
        place = "" if record.rank is None else f" of rank {record.rank}"
        kind = f"{record.kind}{place}" + ("" if record.time_s is None else f" at {round(record.time_s, 6)}")
        if record.kind == "facts" and merged and merged[-1][0] == kind and not {*merged[-1][1]} & {*record.values}:
            merged[-1][1].update(record.values)
        else:
            merged.append((kind, dict(record.values)))
    yield from (f"> {kind} {json.dumps(values, ensure_ascii=False)}" for kind, values in merged)


def recognised(path: Path) -> str:
    try:
        return recognise(path).name
    except LogError:
        return "no log"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_read(name: str, tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    text: list[str] = []
    for case in cases_of(name):
        steps, records = read(name, tmp_path, *case.lines)
        shown = [*of_steps(steps), *of_records(records)]
        if len(steps.step) and (other := recognised(tmp_path / "x.log")) != name:
            shown.append(f"> recognised as {other}")
        text += [*([""] if case.comments and text else []), *case.comments, *map(escaped, case.lines)]
        text += shown or ["> nothing"]
    golden(f"logs/{name}.txt", "\n".join(text) + "\n")


def test_every_format_has_lines() -> None:
    assert {*NAMES} == {*FORMATS}
