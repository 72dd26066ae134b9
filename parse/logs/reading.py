"""A log from its file to batches of steps and sayings: streamed, whatever its size, in memory that does not grow."""

from __future__ import annotations

import dataclasses
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from parse.logs.family import Batch, Family, Integers, LogError, Said, Saying, Steps
from parse.logs.shapes import WORD, Shape, Words, find_step, label
from parse.logs.times import seconds_of

CHUNK_BYTES = 1 << 21
MAX_LINE = 1 << 16
"""Longer lines are no step lines of anybody; of what they say the beginning is read."""
MAX_SHAPED = 1 << 10
"""Lines up to here are taken in bulk."""
SHAPES_PER_LENGTH = 48
ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[()][A-Za-z0-9])")
LINE_END, ESCAPE, RETURN = b"\n", b"\x1b", b"\r"
COLUMNS = tuple(name for name in Steps.__dataclass_fields__ if name != "offset")

_NO_FLOATS, _NO_INTEGERS = np.empty(0), np.empty(0, np.int64)
NO_STEPS = Steps(
    offset=_NO_INTEGERS, time_s=_NO_FLOATS, epoch=_NO_INTEGERS, step=_NO_INTEGERS, first=_NO_INTEGERS,
    rank=_NO_INTEGERS, rate=_NO_FLOATS, duration_s=_NO_FLOATS, elapsed_s=_NO_FLOATS, epoch_steps=_NO_INTEGERS,
)  # fmt: skip

Piece = tuple[bytearray, int, int]
"""A buffer, up to where it holds whole lines, and where in the text it begins."""


class CutOffError(LogError):
    """A file could be read up to a place and no further; what stands before that place has been read."""


def batches(path: Path, family: Family, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Batch]:
    """The log, a batch per stretch of the file. Raises LogError where it cannot be read.

    Where it can be read in part, as a .gz that is cut off, the last batch holds a saying of kind `remark` instead.
    """
    reader = _Reader(family)
    try:
        for buffer, size, offset in pieces(path, chunk_bytes):
            yield reader.batch(buffer, size, offset)
    except CutOffError as error:
        yield Batch(
            steps=NO_STEPS, said=(Said(kind="remark", offset=0, time_s=None, rank=None, values={"text": str(error)}),)
        )


def pieces(path: Path, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Piece]:
    """The text in pieces that end where a line ends; the last line is given an end where it is cut off.

    A buffer holds MAX_SHAPED + WORD more bytes than are in use; it is used again for the next piece. Raises LogError,
    after the pieces that could be read a CutOffError.
    """
    buffer = bytearray(chunk_bytes + MAX_SHAPED + WORD)
    view = memoryview(buffer)
    kept = offset = 0
    trouble: Exception | None = None
    try:
        file = _open(path)
    except OSError as error:
        raise LogError(f"{path}: cannot be read ({error.strerror or error})") from None
    with file:
        while True:
            try:
                got = file.readinto(view[kept:chunk_bytes])
            except (OSError, EOFError, zlib.error) as error:
                trouble = error
                break
            if not got:
                break
            end = kept + got
            if buffer.find(RETURN, kept, end) >= 0:
                buffer[kept:end] = buffer[kept:end].replace(RETURN, LINE_END)
            size = buffer.rfind(LINE_END, kept, end) + 1
            if not size and end == chunk_bytes:
                size = end  # a line longer than the buffer comes in pieces
            if size:
                yield buffer, size, offset
                buffer[: end - size] = buffer[size:end]
            kept, offset = end - size, offset + size
    if kept:
        buffer[kept : kept + 1] = LINE_END
        yield buffer, kept + 1, offset
    if trouble:
        if not offset + kept:
            raise LogError(f"{path}: cannot be read ({trouble})")
        raise CutOffError(f"cannot be read beyond byte {offset + kept} of its text ({trouble})")


def _open(path: Path) -> io.RawIOBase | io.BufferedIOBase:
    file = path.open("rb", buffering=0)
    if file.read(2) != b"\x1f\x8b":
        file.seek(0)
        return file
    file.close()
    return gzip.open(path, "rb")


class _Reader:
    def __init__(self, family: Family) -> None:
        self.family = family
        self.shapes: dict[int, list[Shape]] = {}
        markers = [form.marker for form in family.steps] + [saying.marker for saying in family.sayings]
        self.shortest = min(map(len, markers), default=1)

    def batch(self, buffer: bytearray, size: int, offset: int) -> Batch:
        letters = np.frombuffer(buffer, np.uint8)
        ends = np.flatnonzero(letters[:size] == LINE_END[0])
        if not len(ends) or ends[-1] != size - 1:
            ends = np.append(ends, size)
        starts = np.concatenate([[0], ends[:-1] + 1])
        lengths = np.minimum(ends - starts, MAX_LINE)
        lines = _Lines(buffer, letters, starts, lengths)
        coloured = _holding(letters[:size], ESCAPE[0], starts)
        self.parts: list[dict[str, npt.NDArray[np.generic]]] = []
        self.said: list[Said] = []
        for length, which in _by_length(lengths, coloured):
            if length < self.shortest:
                continue
            if length <= MAX_SHAPED:
                self._in_bulk(lines, length, which)
            else:
                self._one_by_one(lines, which)
        self._one_by_one(lines, np.flatnonzero(coloured))
        return self._joined(offset)

    def _in_bulk(self, lines: _Lines, length: int, which: Integers) -> None:
        """Lines of one length: by shapes that are known, then by new ones made from the first line left."""
        known = self.shapes.setdefault(length, [])
        rows = lines.rows(which, length)
        tried = 0
        while len(which):
            if tried == len(known):
                if len(known) >= SHAPES_PER_LENGTH:
                    self._one_by_one(lines, which)
                    return
                text = rows[0].tobytes()[:length]
                found = find_step(text, self.family.steps)
                if (found and found.crowded) or (not found and self._may_say(text)):
                    self._one_by_one(lines, which[:1])
                    rows, which = rows[1:], which[1:]
                    continue
                known.append(Shape(text, found))
            shape = known[tried]
            hit = shape.matches(rows)
            if hit.any():
                if shape.spans is not None:
                    self._keep(shape, rows[hit], lines.starts[which[hit]])
                if tried:
                    known[tried - 1], known[tried] = known[tried], known[tried - 1]
                rows, which = rows[~hit], which[~hit]
            tried += 1

    def _keep(self, shape: Shape, rows: Words, starts: Integers) -> None:
        self.parts.append({"offset": starts, **shape.columns(rows)})

    def _may_say(self, text: bytes) -> bool:
        return any(saying.marker in text for saying in self.family.sayings)

    def _one_by_one(self, lines: _Lines, which: Integers) -> None:
        for start, text in lines.texts(which):
            plain = ANSI.sub(b"", text) if ESCAPE in text else text
            found = find_step(plain, self.family.steps)
            if found is None:
                self._listen(plain, start)
            while found:
                rows = _as_rows(plain)
                self._keep(Shape(plain, found), rows, np.array([start]))
                found = find_step(plain, self.family.steps, found.end) if found.crowded else None

    def _listen(self, text: bytes, start: int) -> None:
        for saying in self.family.sayings:
            if saying.marker in text and (match := saying.pattern.search(text)):
                said = _said(saying, match, text, start)
                if said is not None:
                    self.said.append(said)

    def _joined(self, offset: int) -> Batch:
        self.said.sort(key=lambda said: said.offset)
        said = tuple(dataclasses.replace(one, offset=one.offset + offset) for one in self.said)
        if not self.parts:
            return Batch(steps=NO_STEPS, said=said)
        joined = {name: np.concatenate([part[name] for part in self.parts]) for name in ("offset", *COLUMNS)}
        order = np.argsort(joined["offset"], kind="stable")
        columns = {name: column[order] for name, column in joined.items()}
        columns["offset"] = columns["offset"] + offset
        return Batch(steps=Steps(**columns), said=said)


class _Lines:
    """Where the lines of a buffer are."""

    def __init__(self, buffer: bytearray, letters: npt.NDArray[np.uint8], starts: Integers, lengths: Integers) -> None:
        self.buffer, self.letters, self.starts, self.lengths = buffer, letters, starts, lengths

    def rows(self, which: Integers, length: int) -> Words:
        """Lines of that length as rows of words."""
        wide = -(-length // WORD) * WORD
        return sliding_window_view(self.letters, wide)[self.starts[which]].view(np.uint64)

    def texts(self, which: Integers) -> Iterator[tuple[int, bytes]]:
        """Lines as texts, each with where it begins."""
        for start, length in zip(self.starts[which].tolist(), self.lengths[which].tolist(), strict=True):
            yield start, bytes(self.buffer[start : start + length])


def _holding(letters: npt.NDArray[np.uint8], letter: int, starts: Integers) -> npt.NDArray[np.bool_]:
    """Which lines hold the letter."""
    holding = np.zeros(len(starts), np.bool_)
    holding[np.searchsorted(starts, np.flatnonzero(letters == letter), side="right") - 1] = True
    return holding


def _by_length(lengths: Integers, but: npt.NDArray[np.bool_]) -> Iterator[tuple[int, Integers]]:
    """Lengths, each with the lines that have it, in the order of the file."""
    small = np.minimum(lengths, MAX_SHAPED + 1).astype(np.uint16)
    order = np.argsort(small, kind="stable")
    order = order[~but[order]]
    ordered = small[order]
    borders = np.flatnonzero(np.diff(ordered)) + 1
    for group in np.split(order, borders):
        if len(group):
            yield int(small[group[0]]), group


def _as_rows(text: bytes) -> Words:
    return np.frombuffer(text.ljust(-(-len(text) // WORD) * WORD, b"\0"), np.uint64)[None]


def _said(saying: Saying, match: re.Match[bytes], text: bytes, start: int) -> Said | None:
    spans = label(text[: match.start()])
    groups = match.groupdict()
    time, rank = groups.pop("time", None), groups.pop("rank", None)
    time = time or (text[slice(*spans["time"])] if "time" in spans else None)
    rank = rank or (text[slice(*spans["rank"])] if "rank" in spans else None)
    try:
        values = (
            saying.values(match)
            if saying.values
            else {name: value.decode(errors="replace") for name, value in groups.items() if value is not None}
        )
    except ValueError:
        return None
    return Said(
        kind=saying.kind,
        offset=start,
        time_s=seconds_of(time) if time else None,
        rank=int(rank) if rank and len(rank) < 10 else None,
        values=values,
    )
