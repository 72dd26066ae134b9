"""The known formats that come nearest to a log of none of them, with the reason, and those beside a log's own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from hpc.system.text import plural
from parse.logs.engine.log_format import LogError, LogFormat, UnrecognisedError
from parse.logs.engine.reader import ANSI, MAX_KNOWN, batches, find_step, pieces, sample
from parse.logs.formats import FORMATS, format_named, lines_of_steps

MAX_LINES = 2000
"""Lines from the beginning that are compared."""
NEAREST, MIN_WORDS = 3, 3
"""Formats that are named; and the words, half of its own at least, that a line shares with one that is near, where it
lacks its marker."""
TABLE = re.compile(
    rb"^[ \t]*(?P<head>\|[^\n]{3,500}\|)[ \t\r]*\n[ \t]*[|+][ :|+-]{3,500}[|+][ \t\r]*\n"
    rb"[ \t]*(?P<row>\|[^\n]{3,500}\|)",
    re.MULTILINE,
)
"""A table of Markdown, or with `+` in the rule below its heads."""
TRACEBACK = b"Traceback (most recent call last)"
ERROR = re.compile(
    rb"(?:^|[ :\]])(?P<error>[A-Za-z][\w.]{0,80}(?:Error|Exception|Interrupt)\b[^\n]{0,200})", re.MULTILINE
)
"""The line below a traceback that names its error."""
MAX_WORDS = 4
"""Words of a line that are named."""
MARKER = 2.0
"""The weight of a whole marker; that of a word is one over the number of formats whose step lines have it."""
NO_WORDS = re.compile(rb"\(\?P<\w+>|\\[a-zA-Z]|\[(?:\\.|[^\]\\])*\]|\(\?[a-zA-Z:=!<>+]+")
"""What of an expression is no text of the lines that it matches."""
WORD = re.compile(rb"[A-Za-z]{3,}")
COMMON = frozenset((b"and", b"for", b"the"))
"""Words of any text."""
SEARCHED_BYTES = 1 << 15
"""So much of the beginning and of the end of each part of a log is searched for a second system's steps."""
FEW = 3
"""Fewer step lines are a quotation."""
PATTERN_HELP = "say what a step line is by --pattern, as --pattern 'step {step} {samples_per_s} samples/s'"


def with_nearest(path: Path, error: LogError) -> str:
    """The text of an error; where it is that of a text of no known format, with the nearest ones and what to do."""
    if not isinstance(error, UnrecognisedError):
        return str(error)
    lines, parts = first_lines(path), [*sample(path)]
    if (heads := _heads(path, lines)) and not any(TRACEBACK in part for part in parts):
        return (
            f"{error}, but a table with the columns {heads}: name them, --columns 'gpus=COLUMN,speed=COLUMN' (--help)"
        )
    near = nearest(lines)
    besides = "".join(f"; {each}" for each in (*tables(parts), *crashes(parts)))
    if not near:
        return f"{error}, nor one that is near to theirs{besides}: {PATTERN_HELP}"
    listed = "; ".join(f"{name} ({reason})" for name, reason in near)
    return f"{error}; the nearest of {len(FORMATS)}: {listed}{besides}. If it is another: {PATTERN_HELP}"


def _heads(path: Path, lines: Sequence[bytes]) -> str:
    """The heads of a document's table: CSV, or Markdown of whose lines at least half are a table's; empty of others."""
    written = [line.decode(errors="replace").strip() for line in lines if line.strip()]
    rows = [line for line in written if line.startswith("|")]
    cells = rows[0].strip("|").split("|") if len(rows) > 2 and 2 * len(rows) >= len(written) else []
    if path.suffix.lower() == ".csv" and written:
        cells = re.split("[,;\t]", written[0])
    return " | ".join(" ".join(re.sub("<[^>]*>", " ", cell).split()) for cell in cells)


def tables(parts: Iterable[bytes]) -> Iterator[str]:
    """A sentence on the first table that the program printed, with its first row: a second reading of the log."""
    for part in parts:
        if b"|" in part and any(sign in part for sign in (b"|-", b"|:", b"+-", b"| -")):
            for match in TABLE.finditer(part):
                columns, cells = (
                    [cell.strip(" *") for cell in match[name].decode(errors="replace").strip("|").split("|")]
                    for name in ("head", "row")
                )
                if re.search(r"(?i)(?:/|per ?|_)s(?:ec)?|throughput|speed", " ".join(columns)):
                    row = ", ".join(f"{column} {cell}" for column, cell in zip(columns, cells, strict=False))
                    yield f"it has a table of its own, {row}: --kind table with --columns reads it"
                    return


def crashes(parts: Iterable[bytes]) -> Iterator[str]:
    """A sentence on the last error with a traceback in the log."""
    behind = [part.rpartition(TRACEBACK)[2] for part in parts if TRACEBACK in part]
    if behind and (match := ERROR.search(behind[-1])):
        yield f"it has a traceback, that of {match['error'].decode(errors='replace').strip()}"


def first_lines(path: Path) -> list[bytes]:
    """The first MAX_LINES lines of a log, as far as they are read at once. Raises LogError."""
    text = next((bytes(memoryview(buffer)[:size]) for buffer, size, _ in pieces(path)), b"")
    return [line[:MAX_KNOWN] for line in ANSI.sub(b"", text).split(b"\n", MAX_LINES)[:MAX_LINES]]


def nearest(lines: Sequence[bytes]) -> list[tuple[str, str]]:
    """The NEAREST formats of which a line has a word, the most alike first, each with the line and what it has; fewer
    where fewer have one."""
    distinct: dict[frozenset[bytes], int] = {}
    for number, line in enumerate(lines, start=1):
        if words := _words(line):
            distinct.setdefault(words, number)
    known, rarity = _step_lines()
    best: dict[str, tuple[float, str]] = {}
    for words, number in distinct.items():
        for name, marker, theirs in known:
            has_marker, common = marker in lines[number - 1], theirs & words
            weight = sum(rarity[term] for term in common) + MARKER * has_marker
            near = has_marker or len(common) >= max(MIN_WORDS, len(theirs) / 2)
            if near and weight > best.get(name, (0.0, ""))[0]:
                rarest = sorted(common, key=lambda term: (-rarity[term], term))[:MAX_WORDS]
                text, listed = marker.decode(errors="replace"), ", ".join(term.decode() for term in rarest)
                has = (
                    f"{text!r}, but not in the form of its step lines" if has_marker else f"{listed}, but not {text!r}"
                )
                best[name] = weight, f"its line {number} has {has}"
    ordered = sorted(best.items(), key=lambda item: -item[1][0])
    return [(name, reason) for name, (_, reason) in ordered[:NEAREST]]


@cache
def _step_lines() -> tuple[list[tuple[str, bytes, frozenset[bytes]]], Mapping[bytes, float]]:
    """The formats' step lines: name, marker, words; and the worth of each word, one over the number of its formats."""
    lines = [
        (name, form.marker, _words(form.marker) | _words(NO_WORDS.sub(b" ", form.source)))
        for name in FORMATS
        for form in format_named(name).steps
    ]
    of_formats = {(name, term) for name, _, words in lines for term in words}
    counts = Counter(term for _, term in of_formats)
    return lines, {term: 1 / count for term, count in counts.items()}


def _words(text: bytes) -> frozenset[bytes]:
    return frozenset(term.lower() for term in WORD.findall(text)) - COMMON


def second_systems(path: Path, parts: Iterable[bytes], read_as: LogFormat) -> Iterator[str]:
    """A sentence for each other system whose steps are in the log, too, but for those that any program prints."""
    others: set[str] = set()
    for part in parts:
        ends = part if len(part) <= 2 * SEARCHED_BYTES else part[:SEARCHED_BYTES] + b"\n" + part[-SEARCHED_BYTES:]
        for line, names in lines_of_steps(ANSI.sub(b"", ends)):
            if not names <= {read_as.name, *others} and not find_step(line, read_as.steps):
                others |= names
    for name, known in FORMATS.items():
        if name in others:
            offsets = [offset for part in batches(path, known) for offset in part.steps.offset.tolist()]
            if len(offsets) >= FEW:
                yield (
                    f"{plural(len(offsets), 'line')}, from line {_line_at(path, offsets[0])} on, are steps of another "
                    f"system, {name}: they are not counted"
                )


def _line_at(path: Path, offset: int) -> int:
    """The number, from 1, of the line at that byte of the text."""
    return 1 + sum(buffer.count(b"\n", 0, min(max(offset - at, 0), size)) for buffer, size, at in pieces(path))
