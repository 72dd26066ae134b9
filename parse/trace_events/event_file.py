"""Writes the trace-event format (JSON) piece by piece, so that memory does not grow with the number of events.

The format: "Trace Event Format", Duffy, Chromium project. Times in it are microseconds; here all are whole nanoseconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

MAX_NAME = 120
"""Characters of a name in the file; host names, and what else comes from outside, are cut there."""
NAMELESS = "(no name)"
"""In place of an empty name, which Perfetto refuses."""
_BUFFERED_BYTES = 1 << 20


@dataclass(frozen=True)
class Track:
    """Where slices are shown: a thread of a process."""

    process: int
    thread: int


def short(text: str) -> str:
    """A name from outside in at most MAX_NAME characters, those that cannot be shown replaced."""
    visible = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[: MAX_NAME + 1])
    return (visible if len(visible) <= MAX_NAME else f"{visible[: MAX_NAME - 1]}…") or NAMELESS


def json_text(value: Any) -> str:
    """The value as JSON that every reader takes: numbers that are none are null, halves of surrogate pairs replaced."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode().decode()
    except (ValueError, UnicodeEncodeError):
        return json.dumps(_storable(value), separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def _storable(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case str():
            return value.encode("utf-8", "replace").decode()
        case Mapping():
            return {_storable(str(name)): _storable(its) for name, its in value.items()}
        case list() | tuple():
            return [_storable(each) for each in value]
    return value


def _us(ns: int) -> str:
    """Microseconds with all nanoseconds, as a number of JSON."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"


class EventFile:
    """The events of one file. A slice is written before those inside it, which are within its time."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._last_id, self._flows = file, 0, 0
        self._buffer = bytearray(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        self._separator = ""
        self.events = 0

    def new_id(self) -> int:
        """A number that no process or thread of the file has yet."""
        self._last_id += 1
        return self._last_id

    def process(self, name: str) -> int:
        """A new process, shown below those before it."""
        process = self.new_id()
        self._name(process, 0, "process", name)
        return process

    def track(self, process: int, name: str) -> Track:
        """A new track of a process, shown below those before it."""
        track = Track(process, self.new_id())
        self._name(process, track.thread, "thread", name)
        return track

    def _name(self, process: int, thread: int, kind: str, name: str) -> None:
        where = f'"pid":{process},"tid":{thread},"ts":0'
        self._add(f'{{"ph":"M","name":"{kind}_name",{where},"args":{{"name":{json_text(name)}}}}}')
        order = thread or process
        self._add(f'{{"ph":"M","name":"{kind}_sort_index",{where},"args":{{"sort_index":{order}}}}}')

    def slice(self, track: Track, name: str, begin_ns: int, end_ns: int, args: Mapping[str, Any] | None = None) -> None:
        """A slice with its arguments."""
        duration = f'"ts":{_us(begin_ns)},"dur":{_us(end_ns - begin_ns)}'
        self._add(f'{{"ph":"X","name":{json_text(name)},{self._at(track)},{duration}{_arguments(args)}}}')

    def mark(self, track: Track, name: str, at_ns: int, args: Mapping[str, Any] | None = None) -> None:
        """A moment on a track."""
        self._add(
            f'{{"ph":"i","s":"t","name":{json_text(name)},{self._at(track)},"ts":{_us(at_ns)}{_arguments(args)}}}'
        )

    def counter(self, process: int, name: str, unit: str, at_ns: int, value: float) -> None:
        """The value of a process's counter from that moment on; one that is no number is left out."""
        if not math.isfinite(value):
            return
        self._add(
            f'{{"ph":"C","name":{json_text(name)},"pid":{process},"ts":{_us(at_ns)},'
            f'"args":{{{json_text(unit)}:{value:.3f}}}}}'
        )

    def arrows(self, name: str, source: Track, targets: Iterable[Track], at_ns: int) -> None:
        """Arrows from the innermost slice that ends at that moment on the source's track to those that begin at it on
        the targets' tracks.

        They leave 1 ns before and arrive 1 ns after, inside these slices. Perfetto turns an arrow round whose source
        begins after its target does: so the target is what follows a wait, not the wait.
        """
        self._flows += 1
        common = f'"cat":{json_text(name)},"name":{json_text(name)},"id":{self._flows}'
        self._add(f'{{"ph":"s",{common},"ts":{_us(at_ns - 1)},{self._at(source)}}}')
        for target in targets:
            self._add(f'{{"ph":"f","bp":"e",{common},"ts":{_us(at_ns + 1)},{self._at(target)}}}')

    def arrow(self, name: str, source: Track, leaves_ns: int, target: Track, arrives_ns: int) -> None:
        """An arrow from the innermost slice at a moment of one track to that at another moment of another track, which
        must begin later."""
        self._flows += 1
        common = f'"cat":{json_text(name)},"name":{json_text(name)},"id":{self._flows}'
        self._add(f'{{"ph":"s",{common},"ts":{_us(leaves_ns)},{self._at(source)}}}')
        self._add(f'{{"ph":"f","bp":"e",{common},"ts":{_us(arrives_ns)},{self._at(target)}}}')

    def copied_event(self, event: Mapping[str, Any], at_ns: int | None, duration_ns: int | None) -> None:
        """An event of another writer, its time replaced."""
        rest = {name: value for name, value in event.items() if name not in ("ts", "dur")}
        time = "" if at_ns is None else f',"ts":{_us(at_ns)}'
        if duration_ns is not None:
            time += f',"dur":{_us(duration_ns)}'
        self._add(f"{json_text(rest)[:-1]}{time}}}")

    @staticmethod
    def _at(track: Track) -> str:
        return f'"pid":{track.process},"tid":{track.thread}'

    def _add(self, event: str) -> None:
        self._buffer += f"{self._separator}{event}".encode()
        self._separator = ",\n"
        self.events += 1
        if len(self._buffer) > _BUFFERED_BYTES:
            self._file.write(self._buffer)
            self._buffer.clear()

    def end(self) -> None:
        """Writes what remains; the file is whole then."""
        self._file.write(self._buffer + b"\n]}\n")
        self._buffer.clear()


def _arguments(args: Mapping[str, Any] | None) -> str:
    return f',"args":{json_text(args)}' if args else ""
