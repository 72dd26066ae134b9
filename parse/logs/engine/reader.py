"""Reads a log into batches of steps and records: streamed, in memory that does not grow with the file."""

from __future__ import annotations

import dataclasses
import gzip
import io
import math
import os
import re
import zlib
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path

import numpy as np

from hpc.system.regular_file import open_regular
from parse.logs.engine.fields import MAX_WIDTH, columns, seconds_of
from parse.logs.engine.headings import Headings
from parse.logs.engine.lines import LINE_END, line_starts, marked_lines, marker_index
from parse.logs.engine.log_format import Batch, Integers, LogError, LogFormat, LogPattern, LogRecord, Steps
from parse.logs.engine.shapes import StepMatch, find_step, label, shapes_of, uncrowded

CHUNK_BYTES = 1 << 21
SMALL_BYTES = 1 << 16
"""A smaller file has a buffer of this size, too: it may grow."""
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


_OPENED: ContextVar[tuple[Path, io.BufferedReader] | None] = ContextVar("opened", default=None)


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

    A buffer holds MAX_WIDTH more bytes than are in use; it is used again for the next piece. A file that
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
    buffer = bytearray(chunk_bytes + MAX_WIDTH)
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
def opened_once(path: Path) -> Iterator[None]:
    """Inside, all that reads this log begins anew in one open file. Raises LogError."""
    with _open(path) as raw:
        token = _OPENED.set((path, raw))
        try:
            yield
        finally:
            _OPENED.reset(token)


@contextmanager
def opened(path: Path) -> Iterator[tuple[io.BufferedIOBase, float]]:
    """The file, unpacked if it is packed, and the maximum size of its text in bytes. Raises LogError."""
    of, already = _OPENED.get() or (None, None)
    with nullcontext(already) if already and of == path else _open(path) as raw:
        try:
            raw.seek(0)
            is_packed = raw.peek(len(GZIP)).startswith(GZIP)
        except OSError as error:
            raise LogError(f"{path}: cannot be read ({error.strerror or error})") from None
        if not is_packed:
            yield raw, os.fstat(raw.fileno()).st_size
            return
        with gzip.GzipFile(fileobj=raw) as file:
            yield file, math.inf


def _open(path: Path) -> io.BufferedReader:
    try:
        return open_regular(path, BUFFER_BYTES)
    except OSError as error:
        raise LogError(f"{path}: cannot be read ({error.strerror or error})") from None


class _Reader:
    def __init__(self, log_format: LogFormat) -> None:
        self.log_format = log_format
        self.shapes = shapes_of(log_format)
        markers = [form.marker for form in log_format.steps] + [form.marker for form in log_format.patterns]
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
            buffer, size = bytearray(plain.ljust(len(plain) + MAX_WIDTH, b"\0")), len(plain)
        self.letters = np.frombuffer(buffer, np.uint8)
        starts, self.ends, speaking = marked_lines(self.letters, size, self.marker_index)
        if not len(speaking):
            return Batch(steps=NO_STEPS, records=())
        self.text = bytes(memoryview(buffer)[:size])
        self.starts = starts
        self.records: list[LogRecord] = []
        self.equal: dict[bytes, Sequence[LogRecord]] = {}
        cut_off &= bool(speaking[-1] == len(starts) - 1)
        steps = self._steps(speaking[:-1] if cut_off else speaking, speaking[-1:] if cut_off else _NO_INTEGERS)
        self.records.sort(key=lambda record: record.offset)
        begins = starts if begins is None else begins
        batch = Batch(
            steps=dataclasses.replace(steps, offset=begins[np.searchsorted(starts, steps.offset)] + offset),
            records=tuple(
                dataclasses.replace(record, offset=int(begins[np.searchsorted(starts, record.offset)]) + offset)
                for record in self.records
            ),
        )
        return self.headings.applied(batch) if self.log_format.headed else batch

    def _steps(self, which: Integers, cut_off: Integers) -> Steps:
        """The steps of these lines and of one that is cut off; the records of those that are no steps are added."""
        numbers = self.shapes.numbers(self.text, self.starts[which].tolist(), self.ends[which].tolist())
        is_here = np.bincount(numbers, minlength=1) > 0
        kinds = (is_here.cumsum() - 1)[numbers]
        shapes = [self.shapes.shapes[number] for number in np.flatnonzero(is_here).tolist()]
        matches = [step for shape in shapes for step in shape.steps]
        per_shape = np.array([len(shape.steps) for shape in shapes], np.int64)
        counts = per_shape[kinds]
        # The steps of a line are those of its shape: from the shape's first one on.
        first_step = (per_shape.cumsum() - per_shape)[kinds] - (counts.cumsum() - counts)
        step_kinds = np.arange(counts.sum()) + np.repeat(first_step, counts)
        offsets = self.starts[np.repeat(which, counts)]
        for place in cut_off.tolist():
            if step := self._cut_off(self._line(place)):
                step_kinds, offsets = np.append(step_kinds, len(matches)), np.append(offsets, self.starts[place])
                matches.append(step)
        steps = NO_STEPS
        if len(offsets):
            steps = Steps(
                offset=offsets, **columns(self.letters, offsets, step_kinds, [step.fields for step in matches])
            )
            first_line = self._line(int(np.searchsorted(self.starts, offsets[0])))
            self.records += self._records(first_line, int(offsets[0]), ("facts", "remark"))
        is_pause = np.array([shape.is_pause for shape in shapes], np.bool_)[kinds]
        self._read_others(which[~is_pause & (counts == 0)].tolist())
        # Of the pauses of one shape between two steps the first.
        after = np.searchsorted(offsets, self.starts[which[is_pause]])
        _, first = np.unique(np.stack([kinds[is_pause], after]), axis=1, return_index=True)
        self._read_others(which[is_pause][first].tolist())
        return steps

    def _cut_off(self, text: bytes) -> StepMatch | None:
        """The step of a line without an end: a number at its end may lack digits, so that what is last counts for
        nothing.

        But for a step that is printed with the one that it counts from: cut short it would be less than that.
        """
        step_match = find_step(text, self.log_format.steps)
        if step_match is None:
            return None
        whole = {name: field for name, field in step_match.fields.items() if field.stop < len(text)}
        step, first = step_match.fields.get("step"), whole.get("first")
        if step and first and int(text[step.first : step.stop]) > int(text[first.first : first.stop]):
            whole["step"] = step
        return dataclasses.replace(step_match, fields=whole) if "step" in whole else None

    def _line(self, place: int) -> bytes:
        return self.text[self.starts[place] : self.ends[place]]

    def _read_others(self, places: Sequence[int]) -> None:
        """Adds the records of these lines; of equal lines one is matched, where no block of lines begins with it."""
        for place in places:
            start, text = int(self.starts[place]), self._line(place)
            records = self.equal.get(text)
            if records is None:
                records = self._records(text, start)
                if not any(each.block and each.marker in text for each in self.log_format.patterns):
                    self.equal[text] = records
                self.records += records
            else:
                self.records += [dataclasses.replace(record, offset=start) for record in records]

    def _records(self, text: bytes, start: int, kinds: Container[str] | None = None) -> list[LogRecord]:
        records = []
        for log_pattern in self.log_format.patterns:
            if (kinds is not None and log_pattern.kind not in kinds) or log_pattern.marker not in text:
                continue
            searched = uncrowded(text, log_pattern.marker)
            if log_pattern.block:
                searched = self.text[start : start + BLOCK_BYTES]
            if (match := log_pattern.pattern.search(searched)) and (record := _record(log_pattern, match, text, start)):
                records.append(record)
        return records


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
