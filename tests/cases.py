"""Cases as text, tests/golden/NAME: lines that go in, and below them, behind `>`, what comes of them.

`#` begins a comment; the next line behind what came out begins another case. `make golden` writes what comes out anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|(.))")
Outcomes = Callable[[list[str]], Iterable[str]]
"""From the lines of a case to the lines that come of it."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Lines that go in with the comments above them, and what came out."""

    comments: list[str]
    lines: list[str]
    expected: list[str]


def cases_of(name: str) -> Iterator[Case]:
    """The cases of a file."""
    case = Case(comments=[], lines=[], expected=[])
    for line in (GOLDEN / name).read_text().splitlines():
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


def text_of(name: str, outcomes: Outcomes) -> str:
    """The file as it should be: its cases, with what comes of them now."""
    text: list[str] = []
    for case in cases_of(name):
        shown = [re.sub(r" $", r"\\x20", f"> {line}") for line in outcomes(case.lines)] or ["> nothing"]
        text += [*([""] if case.comments and text else []), *case.comments, *map(escaped, case.lines), *shown]
    return "\n".join(text) + "\n"
