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
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hpc.system.regular_file import open_regular
from parse.logs.engine.fields import ALIKE, MAX_WIDTH, Fields, columns, field_of, seconds_of, units_of
from parse.logs.engine.log_format import (
    NO_STEPS,
    Headings,
    Integers,
    LogError,
    LogFormat,
    LogPart,
    LogPattern,
    LogRecord,
    SampleCount,
    StepLine,
    Steps,
)

# Finds the lines of a text: their beginnings and lengths, and those that may hold one of several markers.

MAX_LINE = 1 << 14
"""Only the beginning of longer lines is read: patterns are slow on lines without an end."""
LINE_END = b"\n"
BLOCK = 1 << 15
"""Pairs of characters processed at a time: the results stay in the processor's cache."""
PAIRS = 4
"""A text is recognized by this many pairs of characters in a row."""
BITS, NAMES = 64, 4095


def line_starts(letters: npt.NDArray[np.uint8]) -> tuple[Integers, Integers]:
    """The beginnings and lengths of lines."""
    ends = np.flatnonzero(letters == LINE_END[0])
    if not len(ends) or ends[-1] != len(letters) - 1:
        ends = np.append(ends, len(letters))
    starts = np.concatenate([[0], ends[:-1] + 1])
    return starts, ends - starts


class MarkerIndex:
    """Finds candidates for the places of several texts: all places that have one, and few others.

    The pairs of characters at even places of what is searched are of a text, wherever it begins, one of two rows. A
    pair has a name. Each row of each text has a bit of one word; by a pair's name `_bits[word, i]` are the bits of the
    rows whose i-th it is. The words, one upon another, are looked through first.
    """

    def __init__(self, texts: tuple[bytes, ...]) -> None:
        self._names = np.zeros(1 << 16, np.uint16)
        self._bits = np.zeros((1 + 2 * len(texts) // BITS, PAIRS, NAMES + 1), np.uint64)
        self.tells_nothing = any(len(text) < 2 for text in texts)
        """A text of one character is in about every line."""
        names = 0
        for number, text in enumerate(texts):
            for begin in (0, 1):
                row = _row(text, begin)
                which, shift = divmod(2 * number + begin, BITS)
                bit = np.uint64(1 << shift)
                for place in range(PAIRS):
                    if place < len(row):
                        new = row[place][self._names[row[place]] == 0]
                        self._names[new] = 1 + names % NAMES
                        names += bool(len(new))
                        self._bits[which, place, self._names[row[place]]] |= bit
                    else:
                        self._bits[which, place] |= bit
        self._all_words = np.bitwise_or.reduce(self._bits)
        self._begins = self._all_words[0][self._names] != 0

    def passes(self, letters: npt.NDArray[np.uint8]) -> Integers:
        """Places in a text, of an even length, near which one may be; in order."""
        pairs = letters.view(np.uint16)
        blocks = [
            begin + np.flatnonzero(self._begins.take(pairs[begin : begin + BLOCK]))
            for begin in range(0, len(pairs), BLOCK)
        ]
        places = np.concatenate(blocks)
        row_bits = self._all_words[0][self._names[pairs[places]]]
        for place in range(1, PAIRS):
            row_bits &= self._all_words[place][self._names[pairs[np.minimum(places + place, len(pairs) - 1)]]]
            possible = row_bits != 0
            places, row_bits = places[possible], row_bits[possible]
        follow = self._names[pairs[np.minimum(places + np.arange(PAIRS)[:, None], len(pairs) - 1)]]
        of_a_row = [np.bitwise_and.reduce([*map(np.take, bits, follow)]) != 0 for bits in self._bits]
        return np.asarray(2 * places[np.logical_or.reduce(of_a_row)], np.int64)


@cache
def marker_index(texts: tuple[bytes, ...]) -> MarkerIndex:
    """The index of these texts, made once."""
    return MarkerIndex(texts)


def marked_lines(letters: npt.NDArray[np.uint8], size: int, index: MarkerIndex) -> tuple[Integers, Integers, Integers]:
    """The lines of the first `size` letters, of which there is one more: where they begin and end, at most MAX_LINE
    later, and which of them may hold a text of the index. Where none may, no line is returned."""
    every = bool(size) and index.tells_nothing
    places = index.passes(letters[: size + size % 2]) if size and not every else np.empty(0, np.int64)
    if not len(places) and not every:
        return places, places, places
    starts, lengths = line_starts(letters[:size])
    if every:
        return starts, starts + np.minimum(lengths, MAX_LINE), np.arange(len(starts))
    which = np.searchsorted(starts, places, side="right") - 1
    return starts, starts + np.minimum(lengths, MAX_LINE), which[np.flatnonzero(np.diff(which, prepend=-1))]


def _row(text: bytes, begin: int) -> list[npt.NDArray[np.uint16]]:
    """The pairs of a text at even places, of one that begins at an even place or at an odd one: for each place those
    that may be there. Of a text of two characters at an odd place they are halves of two pairs."""
    if begin == 1 and len(text) == 2:
        any_other = np.arange(1 << 8, dtype=np.uint16)
        return [any_other | np.uint16(text[0] << 8), (any_other << np.uint16(8)) | np.uint16(text[1])]
    pairs = np.frombuffer(text[begin : begin + (len(text) - begin) // 2 * 2], np.uint16)
    return list(_telling(pairs)[:, None])


def _telling(row: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    """PAIRS neighbouring pairs of a text, from the rarest one where enough follow it."""
    if len(row) <= PAIRS:
        return row
    letters = row[: len(row) - PAIRS + 1].tobytes()
    rarity = [0 if letter in b" etaoinsr" else 1 if 97 <= letter <= 122 else 2 for letter in letters]
    best = int(np.argmax(np.reshape(rarity, (-1, 2)).sum(axis=1)))
    return row[best : best + PAIRS]


# Finds the steps of lines: of lines that are equal but for their digits one is matched, and serves them all.

MAX_SHAPES, MAX_KNOWN = 1 << 9, 1 << 10
"""The most shapes of a format that are known from one text to the next; the longest line, in bytes, that is."""
LABELS = (
    re.compile(
        rb"(?P<time>\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4})?\s*\[(?:\d+,)?(?P<rank>\d+)\]\s?<(?:stdout|stderr|stddiag)>:"
    ),
    re.compile(rb"^\s*(?P<rank>\d+): "),
    re.compile(rb"^\s*\[(?P<rank>\d+)\]:? "),
    re.compile(rb"^\s*(?:Node|Worker|worker)[\[ ](?P<rank>\d+)\]?:? "),
    re.compile(rb"^\s*\[?(?:[Ww]orker|[Rr]ank|[Nn]ode|[Hh]ost|default)[_-]?(?P<rank>\d+)(?:\]? ?[:|](?!\d)|\]) ?"),
)
"""Prefixes of a line: mpirun -tag-output (-timestamp-output), horovodrun, srun --label, torchrun, hosts, ranks."""
MAX_LABEL = 1 << 9
"""A launcher's prefix is within as many first characters of its line."""
LONG_LINE, MAX_MARKERS = 1 << 10, 64
"""Of a line above this length only so many places of a marker are searched."""


@dataclass(frozen=True, kw_only=True)
class StepMatch:
    """The places of a step line's fields, and the length of text that decides them."""

    fields: Fields
    end: int
    crowded: bool
    """Whether a line may have a second step."""


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
class LineShape:
    """What lines that differ in digits alone are: steps, a pause, or lines of which each is read."""

    steps: tuple[StepMatch, ...] = ()
    is_pause: bool = False


OTHER = LineShape()
PAUSE = LineShape(is_pause=True)


class Shapes:
    """The shapes of a format's lines so far, by number. A pattern that matches no certain digits finds the same places
    in every line of a shape, so that the first one is matched and all others are looked up."""

    def __init__(self, log_format: LogFormat) -> None:
        self.shapes: list[LineShape] = []
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

    def _shape(self, text: bytes) -> LineShape:
        if steps := tuple(find_steps(text, self._format.steps)):
            return LineShape(steps=steps)
        if any(form.marker in text and form.pattern.search(text) for form in self._format.steps):
            return OTHER  # it has the shape of a step line, but its digits are no numbers
        patterns = [log_pattern for log_pattern in self._format.patterns if log_pattern.marker in text]
        kinds = {log_pattern.kind for log_pattern in patterns if log_pattern.pattern.search(text)}
        return PAUSE if kinds == {"pause"} else OTHER


@lru_cache(maxsize=32)
def shapes_of(log_format: LogFormat) -> Shapes:
    """The shapes of a format, shared by all its logs."""
    return Shapes(log_format)


CHUNK_BYTES = 1 << 21
SMALL_BYTES = 1 << 16
"""A smaller file has a buffer of this size, too: it may grow."""
ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b\n]*\x07|[()][A-Za-z0-9])")
ESCAPE, RETURN = b"\x1b", b"\r"
GZIP = b"\x1f\x8b"
BUFFER_BYTES = 1 << 17
"""Read at a time of a packed file, and where lines are read one by one."""
BLOCK_BYTES = 1 << 13
"""Facts on several lines end at the latest so many bytes after they begin."""

FilePiece = tuple[bytearray, int, int]
"""A buffer, up to where it holds whole lines, and where in the text it begins."""


_OPENED: ContextVar[tuple[Path, io.BufferedReader] | None] = ContextVar("opened", default=None)


class CutOffError(LogError):
    """A file could be read up to a place and no further; what is before that place has been read."""


def batches(path: Path, log_format: LogFormat, chunk_bytes: int = CHUNK_BYTES) -> Iterator[LogPart]:
    """The log, a batch per stretch of the file. Raises LogError where it cannot be read.

    Where it can be read in part, as a .gz that is cut off, the last batch holds a record of kind `remark` instead.
    """
    reader = _Reader(log_format)
    try:
        for buffer, size, offset in pieces(path, chunk_bytes):
            yield reader.batch(buffer, size, offset)
    except CutOffError as error:
        yield LogPart(
            steps=NO_STEPS,
            records=(LogRecord(kind="remark", offset=0, time_s=None, rank=None, values={"text": str(error)}),),
        )


def pieces(path: Path, chunk_bytes: int = CHUNK_BYTES) -> Iterator[FilePiece]:
    """The text in pieces that end where a line ends, but for a last line that is cut off.

    A buffer holds MAX_WIDTH more bytes than are in use; it is used again for the next piece. A file that
    grows is read up to its size when it was opened. Raises LogError, after the pieces that could be read a CutOffError.
    """
    with opened(path) as (file, size_bytes):
        yield from _pieces_of(file, size_bytes, path, chunk_bytes)


def last_pieces(path: Path, tail_bytes: int, after: int) -> Iterator[FilePiece]:
    """The end of the text, as `pieces`, from the middle of a line: at most `tail_bytes`, and nothing before `after`.

    Yields nothing of a packed file, which can be read from its beginning only. Raises as `pieces`.
    """
    with opened(path) as (file, size_bytes):
        if math.isfinite(size_bytes) and size_bytes > after:
            begin = max(after, int(size_bytes) - tail_bytes)
            file.seek(begin)
            for buffer, size, offset in _pieces_of(file, size_bytes - begin, path, CHUNK_BYTES):
                yield buffer, size, begin + offset


def _pieces_of(file: io.BufferedIOBase, size_bytes: float, path: Path, chunk_bytes: int) -> Iterator[FilePiece]:
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
    """Inside, all that reads this log uses one open file, each from its beginning. Raises LogError."""
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
        self.headings, self.samples = Headings(), SampleCount()
        self.units: dict[str, float] = {}

    def batch(self, buffer: bytearray, size: int, offset: int) -> LogPart:
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
            return LogPart(steps=NO_STEPS, records=())
        self.text = bytes(memoryview(buffer)[:size])
        self.starts = starts
        self.records: list[LogRecord] = []
        self.equal: dict[bytes, Sequence[LogRecord]] = {}
        cut_off &= bool(speaking[-1] == len(starts) - 1)
        steps = self._steps(speaking[:-1] if cut_off else speaking, speaking[-1:] if cut_off else np.empty(0, np.int64))
        self.records.sort(key=lambda record: record.offset)
        begins = starts if begins is None else begins
        batch = LogPart(
            steps=dataclasses.replace(steps, offset=begins[np.searchsorted(starts, steps.offset)] + offset),
            records=tuple(
                dataclasses.replace(record, offset=int(begins[np.searchsorted(starts, record.offset)]) + offset)
                for record in self.records
            ),
            units=self.units,
        )
        if self.log_format.counts == "samples":
            return self.samples.applied(batch)
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
        self.units = units_of(fields := [step.fields for step in matches])
        if len(offsets):
            steps = Steps(offset=offsets, **columns(self.letters, offsets, step_kinds, fields))
            first_line = self._line(int(np.searchsorted(self.starts, offsets[0])))
            self.records += self._records(first_line, int(offsets[0]), ("facts", "remark"))
        is_pause = np.array([shape.is_pause for shape in shapes], np.bool_)[kinds]
        self._read_others(which[~is_pause & (counts == 0)].tolist())
        if is_pause.any():  # of the pauses of one shape between two steps the first
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
        values=values,
    )


SAMPLE_HEAD_BYTES, SAMPLE_BYTES, SAMPLES = 1 << 20, 1 << 17, 6
"""A sample of a text is its first SAMPLE_HEAD_BYTES, SAMPLES of SAMPLE_BYTES between, and its end."""


def sample(path: Path) -> Iterator[bytes]:
    """Parts of the text that stand for all of it, each from a line's beginning; of a packed one its head alone."""
    end = 0
    for buffer, size, offset in pieces(path, SAMPLE_HEAD_BYTES):
        yield bytes(memoryview(buffer)[:size])
        end = offset + size
        break
    with opened(path) as (_, size_bytes):
        whole = int(size_bytes) if math.isfinite(size_bytes) else end
    step = (whole - end) // SAMPLES
    if step > SAMPLE_BYTES:
        for place in range(1, SAMPLES):
            with opened(path) as (file, _):
                file.seek(end + place * step)
                yield file.read(SAMPLE_BYTES).replace(b"\r", b"\n").partition(b"\n")[2]
    for buffer, size, _ in last_pieces(path, SAMPLE_BYTES, end):
        yield bytes(memoryview(buffer)[:size]).partition(b"\n")[2]
