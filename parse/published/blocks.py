"""Reads outputs of the reference extractors in documents: a line for each log, and the result at the end."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from hpc.system.regular_file import parse_json
from parse.logs.path_facts import PathFacts, place_of
from parse.published.vocabulary import Case, case, integer
from parse.runs.result import Figure

MAX_BLOCK_LINES = 5000
MAX_BLOCK_CHARACTERS = 500_000
MAX_BLOCKS = 200
"""At most this many opening brackets of a document are read as printed results."""
MIN_NUMBER, MAX_NUMBER = 1e-9, 1e15
"""Numbers outside of this range are no speeds."""
FIGURES = {"median_speed": "median", "average_speed": "average", "speedup": "speedup"}

_RUN = re.compile(r"\s*(\S{1,500}\.log)\.?\s+(\{[^{}]{1,20000}\})\s*")
_OPENS = re.compile(r"\s*\{\s*(?:['\"]|$)")


@dataclass(frozen=True, kw_only=True)
class PrintedRun:
    """A log and its speed in samples/s; `number` is the run's, as the extractor prints it."""

    line: int
    path: str
    place: PathFacts
    number: int
    speed: float

    @property
    def name(self) -> str:
        """The name of the log without folders."""
        return Path(self.path).name


@dataclass(frozen=True, kw_only=True)
class PrintedPoint:
    """An entry of a printed result."""

    model: str
    case: Case
    batch_size: int | None
    figures: tuple[Figure, ...]

    @property
    def median(self) -> Figure | None:
        """The printed median."""
        return next((figure for figure in self.figures if figure.what == "median"), None)


@dataclass(frozen=True, kw_only=True)
class ExtractorOutput:
    """One output of an extractor: its lines of runs and the result at the end; either part may be missing."""

    line: int
    runs: tuple[PrintedRun, ...]
    points: tuple[PrintedPoint, ...]


def extractor_outputs(lines: Sequence[str]) -> tuple[tuple[ExtractorOutput, ...], tuple[str, ...]]:
    """Returns the outputs in a document, and a remark for each part that is not readable."""
    outputs: list[ExtractorOutput] = []
    remarks: list[str] = []
    runs = _Runs(remarks=remarks)
    opened = end = 0
    for at, line in enumerate(lines):
        if at < end:
            continue
        if match := _RUN.fullmatch(line):
            runs.add(at + 1, match[1], match[2])
        elif opened < MAX_BLOCKS and _OPENS.match(line):
            opened += 1
            end_of_bracket = _end_of_bracket(lines, at)
            if points := _points(lines, at, end_of_bracket, remarks):
                outputs.append(ExtractorOutput(line=at + 1, runs=tuple(runs.runs), points=points))
                runs, end = _Runs(remarks=remarks), end_of_bracket
    if runs.runs:
        outputs.append(ExtractorOutput(line=runs.runs[0].line, runs=tuple(runs.runs), points=()))
    return tuple(outputs), tuple(remarks)


@dataclass(kw_only=True)
class _Runs:
    """The runs of an output, line by line. A line repeats the speeds of its folder's line above and adds or replaces
    one; `folder` and `speeds` are those of the line above."""

    remarks: list[str]
    runs: list[PrintedRun] = field(default_factory=list)
    folder: str = ""
    speeds: Mapping[int, float] = field(default_factory=dict)

    def add(self, line: int, path: str, printed: str) -> None:
        folder, speeds = str(Path(path).parent), _speeds(printed)
        if speeds is None:
            self.remarks.append(f"line {line}: no run and its speed are to be read in {printed[:60]}; it is left out")
            return
        before = self.speeds if self.folder == folder else {}
        self.folder, self.speeds = folder, speeds
        changed = [number for number, speed in speeds.items() if before.get(number) != speed]
        place = place_of(Path("/") / path)
        named = place.packed[0] if place.packed else place.repeat
        number = named if named in speeds else changed[0] if len(changed) == 1 else None
        if number is None or number < 1:
            names = ", ".join(map(str, speeds))
            self.remarks.append(f"line {line}: of {names} none is the run of {Path(path).name}; left out")
            return
        self.runs.append(PrintedRun(line=line, path=path, place=place, number=number, speed=speeds[number]))


def _speeds(text: str) -> dict[int, float] | None:
    """Returns `{2: 2833.72, 7: 688.8}`; None for any other text or an impossible speed."""
    decoded = _python_literal(text)
    valid = isinstance(decoded, dict) and all(type(run) is int and _positive(decoded[run]) for run in decoded)
    return {run: float(speed) for run, speed in decoded.items()} or None if valid else None


def _end_of_bracket(lines: Sequence[str], at: int) -> int:
    """Returns the line behind the closing bracket, or behind the last line that the limits allow."""
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
            size = integer(_positive(entry.get("batch_size_per_device")))
            figures = tuple(_figures(entry, lines, at, end, str(name)))
            points.append(PrintedPoint(model=str(model), case=printed_case, batch_size=size, figures=figures))
    return tuple(points)


def _literal(text: str) -> Any:
    """Returns the value of the JSON (numbers as printed) or Python literal; None if the text is neither."""
    try:
        return parse_json(text, parse_float=Decimal, parse_int=Decimal)
    except ValueError:
        return _python_literal(text)


def _python_literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _figures(entry: Mapping[Any, Any], lines: Sequence[str], at: int, end: int, case_name: str) -> Iterator[Figure]:
    """Yields the figures of a case, with the lines where they are printed."""
    quoted = re.compile(rf"['\"]{re.escape(case_name)}['\"]\s*:")
    begin = next((row for row in range(at, end) if quoted.search(lines[row])), at)
    for name, what in FIGURES.items():
        if (value := _positive(entry.get(name))) is not None:
            yield figure(what, value, next((row for row in range(begin, end) if name in lines[row]), begin) + 1)


def figure(what: str, value: Decimal, line: int) -> Figure:
    """Returns the figure with the number of digits that the document prints."""
    return Figure(what=what, value=float(value), decimals=max(0, -int(value.as_tuple().exponent)), line=line)


def _positive(value: Any) -> Decimal | None:
    """Returns a number between MIN_NUMBER and MAX_NUMBER; None for anything else."""
    if type(value) not in (int, float, Decimal) or not MIN_NUMBER < value < MAX_NUMBER:
        return None
    return Decimal(str(value))
