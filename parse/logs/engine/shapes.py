"""Parses many lines at once: lines that are equal but for their digits are parsed alike, so one match serves them all.

The shape of a line is the line with every digit made equal. A pattern that matches no certain digits finds the same
places in every line of that shape; so one line is matched, and the rows of characters of all others are compared with
it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parse.logs.engine.fields import WORD_BYTES, Fields, field_of
from parse.logs.engine.log_format import StepLine

WordColumns = npt.NDArray[np.uint64]
"""Lines as columns of words of eight characters, [word, line]; behind a line's end stands anything."""

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
    marker: bytes
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
                return StepMatch(fields=parsed, end=match.end(), marker=form.marker, crowded=crowded)
    return None


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


class Shape:
    """A line that stands for all lines of its shape; with `step`, a step line, else a pause.

    A step line is compared only up to the end of its match, and must have no room for a second step behind it.
    """

    def __init__(self, text: bytes, step: StepMatch | None) -> None:
        self.text = text
        self.step = step
        size = min(step.end + 1, len(text)) if step else len(text)
        self._tail, self._second = size, None
        if step and len(text) - size >= len(step.marker):
            telling = set(step.marker) - set(text[size:]) - set(b"0123456789")
            self._second = min(telling, default=None)
            size = size if telling else len(text)
        padded = text.ljust(-(-len(text) // WORD_BYTES) * WORD_BYTES, b"\0")
        letters = np.frombuffer(padded, np.uint8)[: -(-size // WORD_BYTES) * WORD_BYTES]
        digit = (letters >= ord("0")) & (letters <= ord("9"))
        inside = np.arange(len(letters)) < size
        self._wanted = _word_columns(np.where(digit, ord("0"), letters))
        self._carry = _word_columns(np.where(digit, 0x80 - 10, 0)) if digit.any() else None
        self._wrong = _word_columns(np.where(inside, np.where(digit, 0x80, 0xFF), 0))

    def matches(self, lines: WordColumns) -> npt.NDArray[np.bool_]:
        """Mask of the lines that have this shape, [line]; all are as long as the text."""
        differs = lines[: len(self._wanted)] ^ self._wanted
        if self._carry is not None:
            # Of a digit 0 to 9 is left, to which 118 is added: what is more than 9 then has, or had, its highest bit.
            carried = differs + self._carry
            differs |= carried
        differs &= self._wrong
        alike = np.bitwise_or.reduce(differs, axis=0) == 0
        if self._second is not None:
            alike &= ~self._holds_behind(lines, self._second)
        return np.asarray(alike)

    def _holds_behind(self, lines: WordColumns, letter: int) -> npt.NDArray[np.bool_]:
        """Mask of the lines that hold the letter behind the compared part, [line] (Warren, Hacker's Delight, 6-1)."""
        first, stop = self._tail // WORD_BYTES, -(-len(self.text) // WORD_BYTES)
        within = lines[first + 1 : stop - 1]
        # Usually no line holds it: one comparison shows that, and only the first and the last word remain.
        words = (
            np.arange(first, stop)
            if (np.ascontiguousarray(within).view(np.uint8) == letter).any()
            else np.unique([first, stop - 1])
        )
        places = (words[:, None] * WORD_BYTES + np.arange(WORD_BYTES)).ravel()
        outside = _word_columns(np.where((places >= self._tail) & (places < len(self.text)), 0, 0xFF))
        zeros = lines[words] ^ np.uint64(letter * _ONES) | outside
        return np.asarray(
            np.bitwise_or.reduce((zeros - np.uint64(_ONES)) & ~zeros & np.uint64(0x80 * _ONES), axis=0) != 0
        )


def equal_lines(lines: WordColumns, place: int, length: int) -> npt.NDArray[np.bool_]:
    """Mask of the lines that are equal to the one at that place, [line]; all are of that length."""
    inside = _word_columns(np.where(np.arange(len(lines) * WORD_BYTES) < length, 0xFF, 0))
    return np.asarray(np.bitwise_or.reduce((lines ^ lines[:, place : place + 1]) & inside, axis=0) == 0)


_ONES = 0x0101010101010101


def _word_columns(letters: npt.NDArray[np.integer]) -> WordColumns:
    return np.ascontiguousarray(letters, np.uint8).view(np.uint64)[:, None]
