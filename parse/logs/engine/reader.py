"""Reads a log into batches of steps and records: streamed, in memory that does not grow with the file."""

from __future__ import annotations

import dataclasses
import gzip
import io
import math
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np

from hpc.system.regular_file import open_regular
from parse.logs.engine.fields import WORD_BYTES, columns, seconds_of
from parse.logs.engine.headings import Headings
from parse.logs.engine.lines import (
    LINE_END,
    MAX_LINE,
    MAX_SHAPED,
    Lines,
    by_length,
    line_starts,
    marker_index,
    without_repeats,
)
from parse.logs.engine.log_format import Batch, Integers, LogError, LogFormat, LogPattern, LogRecord, Steps
from parse.logs.engine.shapes import Shape, StepMatch, equal_lines, find_step, label, uncrowded

CHUNK_BYTES = 1 << 21
SMALL_BYTES = 1 << 16
"""A smaller file has a buffer of this size, too: it may grow."""
SHAPES_PER_LENGTH = 48
SPREAD = (5**0.5 - 1) / 2
"""Multiples of it, less their whole parts, spread evenly: so lines are picked whose shapes are tried."""
MAX_SHAPES = 512
"""The most shapes of a format, for all lengths together; a log that has more begins anew."""
ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b\n]*\x07|[()][A-Za-z0-9])")
ESCAPE, RETURN = b"\x1b", b"\r"
GZIP = b"\x1f\x8b"
BUFFER_BYTES = 1 << 17
"""Read at a time of a packed file, and where lines are read one by one."""
BLOCK_BYTES = 1 << 13
"""Facts that stand on several lines end at the latest so many bytes after they begin."""

_NO_FLOATS, _NO_INTEGERS = np.empty(0), np.empty(0, np.int64)
NO_STEPS = Steps(
    offset=_NO_INTEGERS, time_s=_NO_FLOATS, epoch=_NO_INTEGERS, step=_NO_INTEGERS, first=_NO_INTEGERS,
    rank=_NO_INTEGERS, rate=_NO_FLOATS, duration_s=_NO_FLOATS, elapsed_s=_NO_FLOATS, mean_s=_NO_FLOATS,
    epoch_steps=_NO_INTEGERS, batch=_NO_FLOATS,
)  # fmt: skip

Piece = tuple[bytearray, int, int]
"""A buffer, up to where it holds whole lines, and where in the text it begins."""


class CutOffError(LogError):
    """A file could be read up to a place and no further; what stands before that place has been read."""


def batches(path: Path, log_format: LogFormat, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Batch]:
    """The log, a batch per stretch of the file. Raises LogError where it cannot be read.

    Where it can be read in part, as a .gz that is cut off, the last batch holds a record of kind `remark` instead.
    """
    reader = _Reader(log_format)
    try:
        for buffer, size, offset in pieces(path, chunk_bytes):
            yield reader.batch(buffer, size, offset)
    except CutOffError as error:
        yield Batch(
            steps=NO_STEPS,
            records=(LogRecord(kind="remark", offset=0, time_s=None, rank=None, values={"text": str(error)}),),
        )


def pieces(path: Path, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Piece]:
    """The text in pieces that end where a line ends, but for a last line that is cut off.

    A buffer holds MAX_SHAPED + WORD_BYTES more bytes than are in use; it is used again for the next piece. A file that
    grows is read up to its size when it was opened. Raises LogError, after the pieces that could be read a CutOffError.
    """
    with opened(path) as (file, size_bytes):
        yield from _pieces_of(file, size_bytes, path, chunk_bytes)


def last_pieces(path: Path, tail_bytes: int, after: int) -> Iterator[Piece]:
    """The end of the text, as `pieces`, from the middle of a line: at most `tail_bytes`, and nothing before `after`.

    Yields nothing of a packed file, which can be read from its beginning only. Raises as `pieces`.
    """
    with opened(path) as (file, size_bytes):
        if math.isfinite(size_bytes) and size_bytes > after:
            begin = max(after, int(size_bytes) - tail_bytes)
            file.seek(begin)
            for buffer, size, offset in _pieces_of(file, size_bytes - begin, path, CHUNK_BYTES):
                yield buffer, size, begin + offset


def _pieces_of(file: io.BufferedIOBase, size_bytes: float, path: Path, chunk_bytes: int) -> Iterator[Piece]:
    carried = offset = 0
    trouble: Exception | None = None
    chunk_bytes = int(min(chunk_bytes, max(size_bytes + 1, SMALL_BYTES)))
    buffer = bytearray(chunk_bytes + MAX_SHAPED + WORD_BYTES)
    view = memoryview(buffer)
    while True:
        try:
            got = file.readinto(view[carried : int(min(chunk_bytes, size_bytes - offset))])
        except (OSError, EOFError, zlib.error) as error:
            trouble = error
            break
        if not got:
            break
        end = carried + got
        if buffer.find(RETURN, carried, end) >= 0:
            buffer[carried:end] = buffer[carried:end].replace(RETURN, LINE_END)
        size = buffer.rfind(LINE_END, carried, end) + 1
        if not size and end == chunk_bytes:
            size = end  # a line longer than the buffer comes in pieces
        if size:
            yield buffer, size, offset
            buffer[: end - size] = buffer[size:end]
        carried, offset = end - size, offset + size
    if carried:
        yield buffer, carried, offset
    if trouble:
        if not offset + carried:
            raise LogError(f"{path}: cannot be read ({trouble})")
        raise CutOffError(f"cannot be read beyond byte {offset + carried} of its text ({trouble})")


@contextmanager
def opened(path: Path) -> Iterator[tuple[io.BufferedIOBase, float]]:
    """The file, unpacked if it is packed, and the maximum size of its text in bytes. Raises LogError."""
    try:
        raw = open_regular(path, BUFFER_BYTES)
    except OSError as error:
        raise LogError(f"{path}: cannot be read ({error.strerror or error})") from None
    with raw:
        try:
            is_packed = raw.peek(len(GZIP)).startswith(GZIP)
        except OSError as error:
            raise LogError(f"{path}: cannot be read ({error.strerror or error})") from None
        if not is_packed:
            yield raw, os.fstat(raw.fileno()).st_size
            return
        with gzip.GzipFile(fileobj=raw) as file:
            yield file, math.inf


class _Shapes:
    """The shapes of a format's lines so far, by length, the most frequent first."""

    def __init__(self) -> None:
        self.known: dict[int, list[Shape]] = {}
        self.number = 0

    def remember(self, length: int, shape: Shape) -> None:
        """Adds one; where there are too many the one that comes least often goes."""
        if self.number >= MAX_SHAPES:
            self.known, self.number = {}, 0
        known = self.known.setdefault(length, [])
        if len(known) >= SHAPES_PER_LENGTH:
            known.pop()
            self.number -= 1
        known.append(shape)
        self.number += 1


@lru_cache(maxsize=32)
def _shapes(log_format: LogFormat) -> _Shapes:
    """The shapes of a format, shared by all its logs."""
    return _Shapes()


class _Reader:
    def __init__(self, log_format: LogFormat) -> None:
        self.log_format = log_format
        self.shapes = _shapes(log_format)
        markers = [form.marker for form in log_format.steps] + [form.marker for form in log_format.patterns]
        self.shortest = min(map(len, markers), default=1)
        self.one_by_one = any(form.certain_digits for form in log_format.steps)
        self.marker_index = marker_index(tuple(dict.fromkeys(markers)))
        self.headings = Headings()

    def batch(self, buffer: bytearray, size: int, offset: int) -> Batch:
        begins = None
        cut_off = buffer[size - 1 : size] != LINE_END
        if self.log_format.continued:
            buffer[:size] = self.log_format.joined(bytes(memoryview(buffer)[:size]))
        if buffer.find(ESCAPE, 0, size) >= 0:
            begins, _ = line_starts(np.frombuffer(buffer, np.uint8)[:size])
            plain = ANSI.sub(b"", memoryview(buffer)[:size])
            buffer, size = bytearray(plain.ljust(len(plain) + MAX_SHAPED + WORD_BYTES, b"\0")), len(plain)
        letters = np.frombuffer(buffer, np.uint8)
        places = self.marker_index.passes(letters[: size + size % 2]) if size else _NO_INTEGERS
        if not len(places):
            return Batch(steps=NO_STEPS, records=())
        self.size = size
        starts, lengths = line_starts(letters[:size])
        self.lines = Lines(buffer, letters, starts, np.minimum(lengths, MAX_LINE))
        self.parts: list[tuple[StepMatch, Integers]] = []
        self.pauses: list[tuple[Shape, Integers]] = []
        self.records: list[LogRecord] = []
        speaking = without_repeats(np.searchsorted(starts, places, side="right") - 1)
        if cut_off and len(speaking) and speaking[-1] == len(starts) - 1:
            self._cut_off(speaking[-1:])
            speaking = speaking[:-1]
        for length, which in by_length(lengths, speaking):
            if self.shortest <= length <= MAX_SHAPED:
                self._in_bulk(length, which)
            elif length > MAX_SHAPED:
                self._read_singly(which)
        return self._joined(offset, starts if begins is None else begins)

    def _in_bulk(self, length: int, which: Integers) -> None:
        """Reads lines of one length: by known shapes, then by those of some of the remaining lines, the rest singly."""
        known = self.shapes.known.get(length, [])
        rows = self.lines.rows(which, length)
        for place, shape in enumerate(known):
            hit = shape.matches(rows)
            if hit.all():
                self._keep(shape, which)
                return
            if hit.any():
                self._keep(shape, which[hit])
                if place:
                    known[place - 1], known[place] = shape, known[place - 1]
                rows, which = rows.compress(~hit, axis=1), which[~hit]
        for attempt in range(SHAPES_PER_LENGTH):
            if not len(which):
                return
            place = int(attempt * SPREAD % 1 * len(which))
            if new := self._shape(rows[:, place].tobytes()[:length]):
                self.shapes.remember(length, new)
                hit = new.matches(rows)
                self._keep(new, which[hit])
            else:
                hit = equal_lines(rows, place, length)
                self._read_equal(which[hit])
            rows, which = rows.compress(~hit, axis=1), which[~hit]
        self._read_singly(which)

    def _read_equal(self, which: Integers) -> None:
        """Reads one of several equal lines, which stands for all of them where no block of lines begins with it."""
        steps, records = len(self.parts), len(self.records)
        self._read_singly(which[:1])
        _, text = next(self.lines.texts(which[:1]))
        if any(log_pattern.block and log_pattern.marker in text for log_pattern in self.log_format.patterns):
            self._read_singly(which[1:])
            return
        starts = self.lines.starts[which]
        self.parts[steps:] = [(step, starts) for step, _ in self.parts[steps:]]
        others = starts[1:].tolist() if len(self.records) > records else []
        self.records += [
            dataclasses.replace(record, offset=start) for start in others for record in self.records[records:]
        ]

    def _shape(self, text: bytes) -> Shape | None:
        """The shape of a line, where all that have it are alike: a step line or a pause."""
        if self.one_by_one:
            return None
        if step := find_step(text, self.log_format.steps):
            return None if step.crowded else Shape(text, step)
        if any(form.marker in text and form.pattern.search(text) for form in self.log_format.steps):
            return None  # it has the shape of a step line, but its digits are no numbers
        patterns = [log_pattern for log_pattern in self.log_format.patterns if log_pattern.marker in text]
        kinds = {log_pattern.kind for log_pattern in patterns if log_pattern.pattern.search(text)}
        if kinds == {"pause"}:
            return Shape(text, None)
        return None

    def _keep(self, shape: Shape, which: Integers) -> None:
        if shape.step:
            self.parts.append((shape.step, self.lines.starts[which]))
        else:
            self.pauses.append((shape, which))

    def _read_singly(self, which: Integers) -> None:
        for start, text in self.lines.texts(which):
            step = find_step(text, self.log_format.steps)
            if step is None:
                self._read_other_lines(text, start)
            while step:
                self.parts.append((step, np.array([start])))
                step = find_step(text, self.log_format.steps, step.end) if step.crowded else None

    def _cut_off(self, which: Integers) -> None:
        """A line without an end: a number at its end may lack digits, so that what stands last counts for nothing.

        But for a step that is printed with the one that it counts from: cut short it would be less than that.
        """
        for start, text in self.lines.texts(which):
            if step_match := find_step(text, self.log_format.steps):
                whole = {name: field for name, field in step_match.fields.items() if field.stop < len(text)}
                step, first = step_match.fields.get("step"), whole.get("first")
                if step and first and int(text[step.first : step.stop]) > int(text[first.first : first.stop]):
                    whole["step"] = step
                if "step" in whole:
                    self.parts.append((dataclasses.replace(step_match, fields=whole), np.array([start])))

    def _read_other_lines(self, text: bytes, start: int, kinds: tuple[str, ...] = ()) -> None:
        for log_pattern in self.log_format.patterns:
            if (kinds and log_pattern.kind not in kinds) or log_pattern.marker not in text:
                continue
            searched = uncrowded(text, log_pattern.marker)
            if log_pattern.block:
                searched = bytes(self.lines.buffer[start : min(start + BLOCK_BYTES, self.size)])
            if match := log_pattern.pattern.search(searched):
                record = _record(log_pattern, match, text, start)
                if record is not None:
                    self.records.append(record)

    def _joined(self, offset: int, begins: Integers) -> Batch:
        """The batch in the order of the file; `begins` is where lines begin in the text as it was read."""
        steps = NO_STEPS
        if self.parts:
            parts = [start for _, start in self.parts]
            step_columns = columns(self.lines.letters, parts, [step.fields for step, _ in self.parts])
            step_columns["offset"] = np.concatenate(parts)
            order = np.argsort(step_columns["offset"], kind="stable")
            steps = Steps(**{name: column[order] for name, column in step_columns.items()})
            for start, text in self.lines.texts(np.searchsorted(self.lines.starts, steps.offset[:1])):
                self._read_other_lines(text, start, ("facts", "remark"))
        for which in _firsts(self.pauses, self.lines.starts, steps.offset):
            self._read_singly(which)
        self.records.sort(key=lambda record: record.offset)
        starts = self.lines.starts
        at = {
            start: begins[np.searchsorted(starts, start)] + offset for start in {step.offset for step in self.records}
        }
        batch = Batch(
            steps=dataclasses.replace(steps, offset=begins[np.searchsorted(starts, steps.offset)] + offset),
            records=tuple(dataclasses.replace(step, offset=int(at[step.offset])) for step in self.records),
        )
        return self.headings.applied(batch) if self.log_format.headed else batch


def _firsts(pauses: list[tuple[Shape, Integers]], starts: Integers, steps: Integers) -> Iterator[Integers]:
    """The first of the lines of one shape between two steps; `starts` is where lines begin, `steps` where steps do."""
    for shape in dict.fromkeys(shape for shape, _ in pauses):
        which = np.sort(np.concatenate([lines for line_shape, lines in pauses if line_shape is shape]))
        _, first = np.unique(np.searchsorted(steps, starts[which]), return_index=True)
        yield which[first]


def _record(log_pattern: LogPattern, match: re.Match[bytes], text: bytes, start: int) -> LogRecord | None:
    spans = label(text[: match.start()])
    groups = match.groupdict()
    time, rank, time_ms = (groups.pop(name, None) for name in ("time", "rank", "time_ms"))
    time = time or (text[slice(*spans["time"])] if "time" in spans else None)
    rank = rank or (text[slice(*spans["rank"])] if "rank" in spans else None)
    try:
        values = (
            log_pattern.values(match)
            if log_pattern.values
            else {name: value.decode(errors="replace") for name, value in groups.items() if value is not None}
        )
    except ValueError:
        return None
    return LogRecord(
        kind=log_pattern.kind,
        offset=start,
        time_s=int(time_ms) / 1000 or None if time_ms else seconds_of(time) if time else None,
        rank=int(rank) if rank and len(rank) < 10 else None,
        values={**values, **dict(log_pattern.constants)} if log_pattern.constants else values,
    )
