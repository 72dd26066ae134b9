"""Finds the steps of lines: of lines that are equal but for their digits one is matched, and serves them all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from parse.logs.engine.fields import ALIKE, Fields, field_of
from parse.logs.engine.log_format import Integers, LogFormat, StepLine

MAX_SHAPES, MAX_KNOWN = 1 << 12, 1 << 10
"""The most shapes of a format that are known from one text to the next; the longest line, in bytes, that is."""
LABELS = (
    re.compile(
        rb"(?P<time>\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4})?\s*\[(?:\d+,)?(?P<rank>\d+)\]\s?<(?:stdout|stderr|stddiag)>:"
    ),
    re.compile(rb"^\s*(?P<rank>\d+): "),
    re.compile(rb"^\s*\[(?P<rank>\d+)\]:? "),
)
"""Launchers' prefixes of a line: mpirun -tag-output (-timestamp-output), horovodrun, srun --label, workers."""


MAX_LABEL = 1 << 9
"""A launcher's prefix stands within as many characters of its line."""
LONG_LINE, MAX_MARKERS = 1 << 10, 64
"""Of a line above this length only so many places of a marker are searched."""


@dataclass(frozen=True, kw_only=True)
class StepMatch:
    """The places of a step line's fields, and the length of text that decides them."""

    fields: Fields
    end: int
    crowded: bool
    """Whether a second step may stand on the same line."""


def find_step(text: bytes, forms: tuple[StepLine, ...], start: int = 0) -> StepMatch | None:
    """The first step in the text from `start`; None where there is none, or where a field is not a number."""
    for form in forms:
        if form.marker in text and (match := form.pattern.search(text, start)):
            spans = {name: match.span(name) for name in match.groupdict() if match[name] is not None}
            for name, span in label(text[: match.start()]).items():
                spans.setdefault(name, span)
            fields = {name: field_of(name, text, *span) for name, span in spans.items()}
            parsed = {name: field for name, field in fields.items() if field}
            if len(parsed) == len(fields):
                crowded = form.marker in text[match.end() :]
                return StepMatch(fields=parsed, end=match.end(), crowded=crowded)
    return None


def find_steps(text: bytes, forms: tuple[StepLine, ...]) -> Iterator[StepMatch]:
    """All steps in the text, in order."""
    step = find_step(text, forms)
    while step:
        yield step
        step = find_step(text, forms, step.end) if step.crowded else None


def label(before: bytes) -> dict[str, tuple[int, int]]:
    """The places of rank and time stamp in a launcher's prefix of a line."""
    begin = before[:MAX_LABEL]
    for form in LABELS:
        if match := form.search(begin):
            return {name: match.span(name) for name in match.groupdict() if match[name] is not None}
    return {}


def uncrowded(text: bytes, marker: bytes) -> bytes:
    """A text that holds the marker, of a long line with very many of them only up to the last that is looked at.

    A search that begins at each marker and goes on to the end of the line takes time by the square of its length.
    """
    if len(text) <= LONG_LINE:
        return text
    place = -1
    for _ in range(MAX_MARKERS):
        place = text.find(marker, place + 1)
        if place < 0:
            return text
    return text[:place]


@dataclass(frozen=True)
class Shape:
    """What lines that differ in digits alone are: steps, a pause, or lines of which each is read."""

    steps: tuple[StepMatch, ...] = ()
    is_pause: bool = False


OTHER = Shape()
PAUSE = Shape(is_pause=True)


class Shapes:
    """The shapes of a format's lines so far, by number. A pattern that matches no certain digits finds the same places
    in every line of a shape, so that the first one is matched and all others are looked up."""

    def __init__(self, log_format: LogFormat) -> None:
        self.shapes: list[Shape] = []
        self._format = log_format
        self._known: dict[bytes, int] = {}
        self._alike = bytes(range(256)) if any(form.certain_digits for form in log_format.steps) else ALIKE

    def numbers(self, text: bytes, begins: Sequence[int], ends: Sequence[int]) -> Integers:
        """The numbers of the shapes of these lines of the text; those of earlier texts may be others now."""
        if len(self.shapes) > MAX_SHAPES:
            self.shapes, self._known = [], {}
        lines = list(map(text.translate(self._alike).__getitem__, map(slice, begins, ends)))
        numbers = list(map(self._known.get, lines))
        if None in numbers:
            for at, number in enumerate(numbers):
                if number is None:
                    numbers[at] = self._number(lines[at], text[begins[at] : ends[at]])
        return np.array(numbers, np.int64)

    def _number(self, line: bytes, text: bytes) -> int:
        number = self._known.get(line)
        if number is None:
            number = len(self.shapes)
            self.shapes.append(self._shape(text))
            if len(line) <= MAX_KNOWN:
                self._known[line] = number
        return number

    def _shape(self, text: bytes) -> Shape:
        if steps := tuple(find_steps(text, self._format.steps)):
            return Shape(steps=steps)
        if any(form.marker in text and form.pattern.search(text) for form in self._format.steps):
            return OTHER  # it has the shape of a step line, but its digits are no numbers
        patterns = [log_pattern for log_pattern in self._format.patterns if log_pattern.marker in text]
        kinds = {log_pattern.kind for log_pattern in patterns if log_pattern.pattern.search(text)}
        return PAUSE if kinds == {"pause"} else OTHER


@lru_cache(maxsize=32)
def shapes_of(log_format: LogFormat) -> Shapes:
    """The shapes of a format, shared by all its logs."""
    return Shapes(log_format)
