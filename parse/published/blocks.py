"""What the reference extractors print, and documents show: a line for each log, and the result at the end."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from parse.logs.path_facts import Place, place_of
from parse.published.vocabulary import Case, case

MAX_BLOCK_LINES = 5000
MAX_BLOCK_CHARACTERS = 500_000
MAX_BLOCKS = 200
"""Brackets that open in a document and could be a printed result; more are no report."""
LEAST, MOST = 1e-9, 1e15
"""Numbers beyond are no speeds."""
FIGURES = {"median_speed": "median", "average_speed": "average", "speedup": "speedup"}

_RUN = re.compile(r"\s*(\S{1,500}\.log)\.?\s+(\{[^{}]{1,20000}\})\s*")
_OPENS = re.compile(r"\s*\{\s*(?:['\"]|$)")


@dataclass(frozen=True, kw_only=True)
class PrintedRun:
    """A log and its speed in samples/s, as the extractor prints it: `number` is what it takes the run's to be."""

    line: int
    path: str
    place: Place
    number: int
    speed: float

    @property
    def name(self) -> str:
        """The log's, without its folders."""
        return Path(self.path).name


@dataclass(frozen=True, kw_only=True)
class PrintedPoint:
    """An entry of a printed result: figures by `median`, `average`, `speedup`, each with its line."""

    model: str
    case: Case
    batch_size: int | None
    figures: Mapping[str, tuple[Decimal, int]]


@dataclass(frozen=True, kw_only=True)
class Block:
    """One output of an extractor: the runs that it found and the result at its end, either of which may be missing."""

    line: int
    runs: tuple[PrintedRun, ...]
    points: tuple[PrintedPoint, ...]


def blocks(lines: Sequence[str]) -> tuple[tuple[Block, ...], tuple[str, ...]]:
    """The outputs that a document shows, and what of them could not be read, a line each."""
    blocks_read: list[Block] = []
    remarks: list[str] = []
    runs: list[PrintedRun] = []
    before: tuple[str, Mapping[int, float]] = "", {}
    at, opened = 0, 0
    while at < len(lines):
        if match := _RUN.fullmatch(lines[at]):
            folder = str(Path(match[1]).parent)
            speeds = _speeds(match[2])
            if speeds is None:
                remarks.append(f"line {at + 1}: no run and its speed are to be read in {match[2][:60]}; it is left out")
            else:
                known = before[1] if before[0] == folder else {}
                runs += _run(at + 1, match[1], speeds, known, remarks)
                before = folder, speeds
        elif opened < MAX_BLOCKS and _OPENS.match(lines[at]):
            opened += 1
            end = _closes(lines, at)
            points = _points(lines, at, end, remarks)
            if points:
                blocks_read.append(Block(line=at + 1, runs=tuple(runs), points=points))
                runs, before = [], ("", {})
                at = end
                continue
        at += 1
    if runs:
        blocks_read.append(Block(line=runs[0].line, runs=tuple(runs), points=()))
    return tuple(blocks_read), tuple(remarks)


def _speeds(text: str) -> dict[int, float] | None:
    """`{2: 2833.72, 7: 688.8}`; None for anything else, and where a speed is none."""
    try:
        decoded = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(decoded, dict) or not decoded:
        return None
    if not all(type(number) is int and _is_speed(speed) for number, speed in decoded.items()):
        return None
    return {number: float(speed) for number, speed in decoded.items()}


def _is_speed(value: Any) -> bool:
    return type(value) in (int, float) and LEAST < value < MOST


def _run(
    line: int, path: str, speeds: Mapping[int, float], before: Mapping[int, float], remarks: list[str]
) -> Iterator[PrintedRun]:
    """The one entry that this line adds, or writes over: what the log's name made the extractor call it."""
    changed = [number for number, speed in speeds.items() if before.get(number) != speed]
    place = place_of(Path("/") / path)
    named = place.packed[0] if place.packed else place.repeat
    number = named if named in speeds else changed[0] if len(changed) == 1 else None
    if number is None or number < 1:
        remarks.append(f"line {line}: of {', '.join(map(str, speeds))} none is the run of {Path(path).name}; left out")
        return
    yield PrintedRun(line=line, path=path, place=place, number=number, speed=speeds[number])


def _closes(lines: Sequence[str], at: int) -> int:
    """The line behind the one where the bracket that opens here is closed, or where it would be too much."""
    depth, characters = 0, 0
    for end in range(at, min(len(lines), at + MAX_BLOCK_LINES)):
        characters += len(lines[end])
        if characters > MAX_BLOCK_CHARACTERS:
            break
        depth += lines[end].count("{") - lines[end].count("}")
        if depth <= 0:
            return end + 1
    return end


def _points(lines: Sequence[str], at: int, end: int, remarks: list[str]) -> tuple[PrintedPoint, ...]:
    text = "\n".join(lines[at:end]).strip()
    if not any(name in text for name in FIGURES):
        return ()
    decoded = _literal(text)
    if not isinstance(decoded, dict):
        remarks.append(f"line {at + 1}: a printed result that cannot be read; it is left out")
        return ()
    points = []
    for model, cases in decoded.items():
        for name, entry in cases.items() if isinstance(cases, dict) else ():
            printed_case = case(str(name))
            if not isinstance(entry, dict) or not {*FIGURES} & {*entry}:
                continue
            if printed_case is None or printed_case.nodes is None:
                remarks.append(f"line {at + 1}: {name!r} is no case like 1n8g; what is printed for it is left out")
                continue
            points.append(_point(str(model), printed_case, entry, _Lines(lines, at, end, str(name))))
    return tuple(points)


def _literal(text: str) -> Any:
    """What Python or JSON would read there, numbers with the digits that are printed; None where neither can."""
    try:
        return json.loads(text, parse_float=Decimal, parse_int=Decimal)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


@dataclass(frozen=True)
class _Lines:
    """The lines of a block, to say where a figure of a case stands."""

    lines: Sequence[str]
    at: int
    end: int
    case: str

    def of(self, name: str) -> int:
        quoted = re.compile(rf"['\"]{re.escape(self.case)}['\"]\s*:")
        begin = next((row for row in range(self.at, self.end) if quoted.search(self.lines[row])), self.at)
        return next((row for row in range(begin, self.end) if name in self.lines[row]), begin) + 1


def _point(model: str, printed_case: Case, entry: Mapping[Any, Any], where: _Lines) -> PrintedPoint:
    values = {what: (_positive(entry.get(name)), where.of(name)) for name, what in FIGURES.items()}
    size = _positive(entry.get("batch_size_per_device"))
    return PrintedPoint(
        model=model,
        case=printed_case,
        batch_size=int(size) if size and size == int(size) else None,
        figures={what: (value, line) for what, (value, line) in values.items() if value is not None},
    )


def _positive(value: Any) -> Decimal | None:
    """The number, where it is one of ordinary size above nothing."""
    if type(value) not in (int, float, Decimal) or not LEAST < value < MOST:
        return None
    return Decimal(str(value))
