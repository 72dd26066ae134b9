"""Reads a trace-event file (JSON) piece by piece: profilers write gigabytes."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TextIO

from hpc.system.regular_file import open_regular

CHUNK = 1 << 20
MAX_VALUE = 1 << 26
"""Characters of one event, or of another value of the file."""
EVENTS = "traceEvents"
_SPACE = re.compile(r"[ \t\r\n]*")


class EventsError(ValueError):
    """A file holds no trace events."""


def values_of(path: Path) -> Iterator[tuple[str, Any]]:
    """The members of the file's object in order; of `traceEvents` each event by itself. A file that is only a list of
    events has nothing else.

    Raises EventsError where it is no such file, or damaged; OSError where it cannot be read.
    """
    try:
        with open_regular(path) as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with gzip.GzipFile(fileobj=raw) if packed else nullcontext(raw) as stream:
                yield from _members(_Text(io.TextIOWrapper(stream, "utf-8", errors="replace")))
    except EventsError:
        raise
    except (ValueError, gzip.BadGzipFile, EOFError, zlib.error, RecursionError) as error:
        raise EventsError(f"damaged, or no JSON ({type(error).__name__}: {error})") from None


def _members(text: _Text) -> Iterator[tuple[str, Any]]:
    begin = text.next_character()
    if begin == "[":
        for event in _elements(text):
            yield EVENTS, event
        return
    if begin != "{":
        raise EventsError("not the JSON of a trace: it begins with neither { nor [")
    while text.next_character(peek=True) != "}":
        name = text.value()
        if not isinstance(name, str) or text.next_character() != ":":
            raise EventsError("damaged: no name of a member where one is due")
        if name == EVENTS and text.next_character(peek=True) == "[":
            text.next_character()
            for event in _elements(text):
                yield EVENTS, event
        else:
            yield name, text.value()
        if text.next_character(peek=True) == ",":
            text.next_character()
        elif text.next_character(peek=True) != "}":
            raise EventsError("damaged: neither a comma nor the end behind a member")


def _elements(text: _Text) -> Iterator[Any]:
    while text.next_character(peek=True) != "]":
        yield text.value()
        if text.next_character(peek=True) == ",":
            text.next_character()
        elif text.next_character(peek=True) != "]":
            raise EventsError("damaged: neither a comma nor the end behind an event")
    text.next_character()


class _Text:
    """A text of which values are taken one after another."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._text, self._at, self._ended = stream, "", 0, False
        self._decoder = json.JSONDecoder()

    def _more(self) -> None:
        """Reads as much again as is waiting to be decoded, so that a long value is not tried too often."""
        chunk = self._stream.read(max(CHUNK, len(self._text) - self._at))
        self._ended = not chunk
        self._text, self._at = self._text[self._at :] + chunk, 0

    def next_character(self, *, peek: bool = False) -> str:
        """The next character that is no space, which stays there with `peek`."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]  # of any length, also none
            if self._at < len(self._text):
                break
            if self._ended:
                raise EventsError("cut off: it ends in the middle")
            self._more()
        character = self._text[self._at]
        self._at += not peek
        return character

    def value(self) -> Any:
        """The next value, decoded."""
        self.next_character(peek=True)
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
                if end < len(self._text) or self._ended:  # else a number may go on
                    self._at = end
                    return value
            except json.JSONDecodeError:
                if self._ended:
                    raise
            if len(self._text) - self._at > MAX_VALUE:
                raise EventsError(f"a value has more than {MAX_VALUE} characters, or is damaged")
            self._more()
