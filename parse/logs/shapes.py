"""Many lines at once: lines that are equal but for their digits are parsed alike, so one match serves them all.

The shape of a line is the line with every digit made equal. Where a pattern asks for digits only as such, what it finds
in one line it finds in every line of that shape, at the same places; so a line is matched once, and the rows of
characters of all others are compared with it and their digits added up in bulk.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from parse.logs.family import FIELDS, NO_NUMBER, Floats, Integers, StepLine
from parse.logs.times import Digits, Form, form_of, seconds_of

WORD = 8
Words = npt.NDArray[np.uint64]
"""Lines as rows of eight characters each, [line, word]; behind a line's end stands anything."""

INTEGERS = ("epoch", "step", "first", "rank", "epoch_steps")
MAX_DIGITS = 15
"""More digits than a float64 holds exactly are no number of a step, epoch or rank."""

BLOCK = 1 << 15
"""So many pairs of characters at a time keep what is made of them in the processor's cache."""
LABELS = (
    re.compile(
        rb"(?P<time>\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4})?\s*\[\d+,(?P<rank>\d+)\]\s?<(?:stdout|stderr|stddiag)>:"
    ),
    re.compile(rb"^\s*(?P<rank>\d+): "),
    re.compile(rb"^\s*\[(?P<rank>\d+)\]:? "),
)
"""What launchers put in front of a line: mpirun -tag-output (-timestamp-output), srun --label, and workers' own."""

Spans = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Found:
    """Where a step line has its fields, and how far its text decides that."""

    spans: Spans
    end: int
    marker: bytes
    crowded: bool
    """Whether a second step may stand on the same line."""


def find_step(text: bytes, forms: tuple[StepLine, ...], start: int = 0) -> Found | None:
    """The first step in the text from `start`; None where there is none, or where a field is not a number."""
    for form in forms:
        if form.marker in text and (match := form.pattern.search(text, start)):
            spans = {name: match.span(name) for name in match.groupdict() if match[name] is not None}
            for name, span in label(text[: match.start()]).items():
                spans.setdefault(name, span)
            if all(_readable(name, text[first:past]) for name, (first, past) in spans.items()):
                crowded = form.marker in text[match.end() :]
                return Found(spans=spans, end=match.end(), marker=form.marker, crowded=crowded)
    return None


def label(before: bytes) -> dict[str, tuple[int, int]]:
    """Where rank and time stamp stand in what a launcher put in front of a line."""
    for form in LABELS:
        if found := form.search(before):
            return {name: found.span(name) for name in found.groupdict() if found[name] is not None}
    return {}


def _readable(name: str, text: bytes) -> bool:
    if name == "time":
        return seconds_of(text) is not None
    if name in INTEGERS:
        return text.isdigit() and len(text) <= MAX_DIGITS
    return _number(text) is not None


def _number(text: bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


class Sieve:
    """Finds where one of several texts may stand: wherever one does, and at few other places.

    The pairs of characters at even places of what is searched are of a text, wherever it begins, one of two rows; two
    neighbours of each row tell it.
    """

    def __init__(self, texts: tuple[bytes, ...]) -> None:
        first, second = np.zeros(1 << 16, np.uint64), np.zeros(1 << 16, np.uint64)
        for number, part in enumerate(texts):
            for begin in (0, 1):
                bit = np.uint64(1 << (2 * number + begin) % 64)
                pairs = np.frombuffer(part[begin : begin + (len(part) - begin) // 2 * 2], np.uint16)
                best = max(range(max(len(pairs) - 1, 1)), key=lambda place: _rarity(part[begin + 2 * place :][:4]))
                for table, place in ((first, best), (second, best + 1)):
                    table[pairs[place] if place < len(pairs) else slice(None)] |= bit
        self._first, self._second, self._any = first, second, first != 0

    def passes(self, letters: Digits) -> Integers:
        """Places in a text, of an even length, near which one may stand; in order."""
        pairs = letters.view(np.uint16)
        blocks = [
            begin + np.flatnonzero(self._any.take(pairs[begin : begin + BLOCK], mode="clip"))
            for begin in range(0, len(pairs), BLOCK)
        ]
        places = np.concatenate(blocks)
        following = pairs[np.minimum(places + 1, len(pairs) - 1)]
        told = self._first[pairs[places]] & self._second[following]
        return np.asarray(2 * places[told != 0], np.int64)


@cache
def sieve(texts: tuple[bytes, ...]) -> Sieve:
    """The sieve of these texts, made once."""
    return Sieve(texts)


def _rarity(text: bytes) -> int:
    """How seldom its characters are in logs, roughly."""
    return sum(0 if letter in b" etaoinsr" else 1 if 97 <= letter <= 122 else 2 for letter in text[:2]) * 2 + sum(
        letter not in b" etaoinsr" for letter in text[2:]
    )


class Shape:
    """A line that stands for all lines of its shape; with `spans`, a step line and where its fields are.

    Of a step line only as much counts as was looked at, and that nothing behind it can be a second one.
    """

    def __init__(self, text: bytes, found: Found | None, pause: bool = False) -> None:
        self.text = text
        self.spans = found.spans if found else None
        self.pause = pause
        size = min(found.end + 1, len(text)) if found else len(text)
        self._tail, self._second = size, None
        if found and len(text) - size >= len(found.marker):
            telling = set(found.marker) - set(text[size:]) - set(b"0123456789")
            self._second = min(telling, default=None)
            size = size if telling else len(text)
        self.words = -(-size // WORD)
        letters = np.frombuffer(text[:size].ljust(self.words * WORD, b"\0"), np.uint8)
        digit = (letters >= ord("0")) & (letters <= ord("9"))
        inside = np.arange(len(letters)) < size
        self._wanted = _words(np.where(digit, ord("0"), letters))
        self._carry = _words(np.where(digit, 0x80 - 10, 0)) if digit.any() else None
        self._wrong = _words(np.where(inside, np.where(digit, 0x80, 0xFF), 0))
        self._form = self._time_form()

    def matches(self, lines: Words) -> npt.NDArray[np.bool_]:
        """Which lines have this shape, [line]; all are as long as the text."""
        differs = lines[:, : self.words] ^ self._wanted
        if self._carry is not None:
            # Of a digit 0 to 9 is left, to which 118 is added: what is more than 9 then has, or had, its highest bit.
            carried = differs + self._carry
            differs |= carried
        differs &= self._wrong
        alike = _without(differs)
        if self._second is not None:
            alike &= _without(lines.view(np.uint8)[:, self._tail : len(self.text)] == self._second)
        return alike

    def columns(self, lines: Words) -> dict[str, Floats | Integers]:
        """The fields of lines of this shape by their names, [line]; those that they lack stand as absent."""
        letters, spans = lines.view(np.uint8), self.spans or {}
        columns: dict[str, Floats | Integers] = {}
        for name in FIELDS:
            out = "time_s" if name == "time" else name
            if name not in spans:
                columns[out] = (
                    np.full(len(lines), NO_NUMBER, np.int64) if name in INTEGERS else np.full(len(lines), np.nan)
                )
            elif name == "time" and self._form:
                first, past = spans["time"]
                columns[out] = self._form.seconds(letters[:, first:past])
            else:
                found = self._numbers(letters, *spans[name])
                columns[out] = found.astype(np.int64) if name in INTEGERS else found
        return columns

    def _numbers(self, letters: npt.NDArray[np.uint8], first: int, past: int) -> Floats:
        text = self.text[first:past]
        whole, dot, part = text.partition(b".")
        if not (whole + part).isdigit():
            values = np.array([float(row.tobytes()) for row in letters[:, first:past]])
            return np.where(np.isfinite(values), values, np.nan)
        powers = 10.0 ** np.arange(len(whole + part) - 1, -1, -1)
        weights = np.insert(powers, len(whole), 0.0) if dot else powers
        return np.asarray((letters[:, first:past] & 15).astype(np.float64) @ weights / 10.0 ** len(part))

    def _time_form(self) -> Form | None:
        if self.spans is None or "time" not in self.spans:
            return None
        first, past = self.spans["time"]
        return form_of(self.text[first:past])


def _without(rows: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    """Which rows are all zero; that every one is takes least to find."""
    return np.asarray(~rows.any(axis=1)) if rows.any() else np.ones(len(rows), np.bool_)


def _words(letters: npt.NDArray[np.integer]) -> Words:
    return np.ascontiguousarray(letters, np.uint8).view(np.uint64)
