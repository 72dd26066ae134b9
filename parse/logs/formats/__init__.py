"""The table of log formats, and the recognition of a log's format."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from hpc.system.text import grouped
from parse.logs.engine.fields import ALIKE
from parse.logs.engine.log_format import (
    LogError,
    LogFormat,
    LogPattern,
    StepLine,
    UnknownFormatError,
    UnrecognisedError,
)
from parse.logs.engine.reader import (
    ANSI,
    ESCAPE,
    MAX_KNOWN,
    find_step,
    last_pieces,
    marked_lines,
    marker_index,
    pieces,
    uncrowded,
)
from parse.logs.formats.ai_rank import AI_RANK
from parse.logs.formats.declared import shipped
from parse.logs.formats.mllog import MLLOG

FORMATS: Mapping[str, LogFormat] = {each.name: each for each in (*shipped(), MLLOG, AI_RANK)}
"""The known formats by name; those of progress bars come after the others with steps, those without steps last."""

MANY = 1000
"""Step lines that are enough to choose between formats."""
FIRST_CHARACTERS = 1 << 13
"""Characters within which most logs show their format."""
HEAD_BYTES, TAIL_BYTES = 64 << 20, 2 << 20
"""A text without a step line or a mark in its first HEAD_BYTES, nor in its last TAIL_BYTES, is no log."""
MAX_TRIED = 20_000
"""Lines with a marker that are tried in HEAD_BYTES: some texts have one on every line."""
TRIED_CHARACTERS = 1 << 8
"""A line counts once more among those tried for each so many of its characters."""
SNIFFED_BYTES = 1 << 16
BINARY = "not a log (it is binary)"
UTF_16 = "not read (it is UTF-16 text, as PowerShell writes it): iconv -f UTF-16 -t UTF-8 makes it readable"
ZEROS = b"\0" * 8
CONTROLS = bytes({*range(32), 127} - {*b"\b\t\n\v\f\r\x1b"})
MAX_CONTROLS = 0.05
"""Share of control characters above which a file is binary; compressed data have a tenth."""

TOTALS = ("summary", "epoch")
"""Kinds of lines with figures of a whole run or of whole epochs."""
MARKS = ("mllog", "ai-rank")
"""Marks of these may occur in a log of any format."""
MAX_SHAPES = 1 << 12
"""The most shapes of lines whose forms are known from one text to the next."""


Formats = tuple[LogFormat, ...]
"""Formats that a person brings besides the known ones, and before them."""


@cache
def format_named(name: str, brought: Formats = ()) -> LogFormat:
    """The log format of that name, with the marks that any log may hold. Raises LogError for an unknown name."""
    known = _known(brought)
    if name not in known:
        raise LogError(f"no log format is called {name!r}; there are {', '.join(known)}")
    return with_marks(known[name])


def _known(brought: Formats) -> Mapping[str, LogFormat]:
    return {**{each.name: each for each in brought}, **FORMATS}


def with_marks(declared: LogFormat) -> LogFormat:
    """The format with the marks that a log of any format may hold."""
    marks = [FORMATS[other].patterns for other in MARKS]
    return dataclasses.replace(
        declared,
        patterns=tuple(dict.fromkeys((*declared.patterns, *(mark for patterns in marks for mark in patterns)))),
    )


def recognise(path: Path, brought: Formats = ()) -> LogFormat:
    """The format whose steps the log prints, those `brought` by a person first and those that may occur `anywhere`
    last, else whose totals or marks.

    Looks at the first HEAD_BYTES and the last TAIL_BYTES of the text; at all of it where the first show a log, as steps
    may come late in it. Raises UnrecognisedError where no known format has its lines, another LogError where it is no
    text or cannot be read.
    """
    search = _Search(brought)
    read_bytes = 0
    is_whole = True
    for buffer, size, offset in pieces(path):
        if _is_binary(buffer, size, is_first=not offset):
            raise UnknownFormatError(f"{path}: {UTF_16 if _is_utf_16(buffer) else BINARY}")
        if printing := search.printing_steps(buffer, size):
            return printing
        read_bytes = offset + size
        if offset // HEAD_BYTES < read_bytes // HEAD_BYTES:
            if search.otherwise() is None:
                is_whole = False
                break
            search.tried = [0] * len(search.tried)
    if other := search.otherwise():
        return other
    if is_whole and max(search.tried) < MAX_TRIED:
        raise UnrecognisedError(f"{path}: no step line of a known system is in it")
    searched = f"its first {HEAD_BYTES >> 20} MiB"
    search.tried = [0] * len(search.tried)
    for buffer, size, _ in last_pieces(path, TAIL_BYTES, 0 if is_whole else read_bytes):
        if printing := search.printing_steps(buffer, size) or search.otherwise():
            return printing
        searched = f"its first {HEAD_BYTES >> 20} and its last {TAIL_BYTES >> 20} MiB"
    raise UnrecognisedError(
        f"{path}: no step line of a known system is in {searched}, where at most {MAX_TRIED} lines that look like one "
        f"are tried"
    )


def readers_of(text: bytes, brought: Formats = ()) -> Iterator[str]:
    """The names of the formats of whose step lines this is one."""
    for name, each in _known(brought).items():
        if any(find_step(uncrowded(text, form.marker), (form,)) for form in each.steps):
            yield name


def require_text(path: Path) -> None:
    """Raises UnknownFormatError where the file begins as no text does, another LogError where it cannot be read."""
    for buffer, size, _ in pieces(path, SNIFFED_BYTES):
        if _is_binary(buffer, size, is_first=True):
            raise UnknownFormatError(f"{path}: {UTF_16 if _is_utf_16(buffer) else BINARY}")
        return


@dataclass(frozen=True, kw_only=True)
class _Form:
    """A form of line that shows a format: a step line, or a line of totals or marks."""

    log_format: LogFormat
    line: StepLine | LogPattern

    @property
    def is_step(self) -> bool:
        return isinstance(self.line, StepLine)

    @property
    def of_any_digits(self) -> bool:
        """Whether it is that of all lines which differ in digits alone from one of it."""
        return isinstance(self.line, StepLine) and not self.line.certain_digits

    def may_match(self, text: bytes) -> bool:
        """Whether lines that differ from the text in digits alone, and have the marker, may be of this form."""
        return not self.of_any_digits or bool(self.line.pattern.search(uncrowded(text, self.line.marker)))

    def matches(self, text: bytes) -> bool:
        searched = uncrowded(text, self.line.marker)
        return bool(
            find_step(searched, (self.line,)) if isinstance(self.line, StepLine) else self.line.pattern.search(searched)
        )


@cache
def _forms(brought: Formats) -> tuple[tuple[_Form, ...], ...]:
    """The forms that show formats, in groups that are looked for together; the last are those of `anywhere`.

    A format whose lines go on over line ends is a group by itself.
    """
    formats = [format_named(name, brought) for name in _known(brought)]
    steps = {known.name: [_Form(log_format=known, line=form) for form in known.steps] for known in formats}
    others = [_Form(log_format=each, line=form) for each in formats for form in _other_lines(each, brought)]
    groups: dict[str, list[_Form]] = {"": others}
    for known in formats:
        group = known.name if known.continued else "anywhere" if known.anywhere else ""
        groups.setdefault(group, []).extend(steps[known.name])
    common = groups.pop("anywhere")
    return (*map(tuple, groups.values()), tuple(common))


def _other_lines(known: LogFormat, brought: Formats) -> Iterator[LogPattern]:
    """The lines besides its steps that show a format: totals, or marks; all patterns of such a line without steps."""
    if known.steps:
        yield from (form for form in known.patterns if form.kind in TOTALS)
        return
    patterns = _known(brought)[known.name].patterns
    markers = {form.marker for form in patterns if form.kind in TOTALS or known.name in MARKS}
    yield from (form for form in patterns if form.marker in markers)


def _anywhere(brought: Formats) -> Formats:
    return tuple(each for each in _known(brought).values() if each.anywhere)


class _Search:
    """Looks for the lines of all formats in one text after the other.

    Besides the steps: `totals` are the formats with steps whose totals were seen, `marks` those without steps whose
    marks were, `drawn` counts steps that may occur anywhere, `signed` are the formats of these whose signs were seen;
    `tried` counts lines, by group of forms.
    """

    def __init__(self, brought: Formats = ()) -> None:
        self.brought = brought
        self.totals: set[str] = set()
        self.marks: set[str] = set()
        self.drawn: Counter[str] = Counter()
        self.signed = {known.name for known in _anywhere(brought) if not known.signs}
        self.tried = [0] * len(_forms(brought))

    def otherwise(self) -> LogFormat | None:
        """The format of a log that shows no steps but those that may occur anywhere."""
        first = [name for name in _known(self.brought) if name in self.totals]
        last = [name for name in _known(self.brought) if name in self.marks]
        signed = Counter({name: self.drawn[name] for name in self.signed if self.drawn[name]})
        drawn = [self._most_frequent(signed).name] if signed else []
        return next((format_named(name, self.brought) for name in (*first, *drawn, *last)), None)

    def printing_steps(self, buffer: bytearray, size: int) -> LogFormat | None:
        """The format with the most step lines in the text, of `anywhere` apart; None without any."""
        if buffer.find(ESCAPE, 0, size) >= 0:
            buffer = bytearray(ANSI.sub(b"", memoryview(buffer)[:size]))
            size = len(buffer)
            buffer += b"\0"
        if not size:
            return None
        common = len(_forms(self.brought)) - 1
        counts = sum((self._counted(group, buffer, size) for group in range(common)), Counter[str]())
        if counts:
            return self._most_frequent(counts)
        for known in _anywhere(self.brought):
            if known.name not in self.signed and any(buffer.find(sign, 0, size) >= 0 for sign in known.signs):
                self.signed.add(known.name)
        if not self.drawn:
            self.drawn = self._counted(common, buffer, size)
        return None

    def _counted(self, group: int, buffer: bytearray, size: int) -> Counter[str]:
        """The step lines in the text, by format, as many as choose between them, none after MAX_TRIED lines."""
        if self.tried[group] >= MAX_TRIED:
            return Counter()
        by_marker = _by_marker(group, self.brought)
        known = _forms(self.brought)[group][-1].log_format
        if known.continued:
            if all(buffer.find(marker, 0, size) < 0 for marker in by_marker):
                return Counter()
            buffer = bytearray(known.joined(bytes(memoryview(buffer)[:size])) + b"\0")
        counts: Counter[str] = Counter()
        for text in self._lines(group, buffer, size, counts):
            self.tried[group] += 1 + len(text) // TRIED_CHARACTERS
            if self.tried[group] > MAX_TRIED:
                break
            possible = _possible(group, self.brought, text)
            names = possible.formats(text)
            for name in names:
                counts[name] += 1
            if any(counts[name] >= MANY for name in names):
                break
            shown = [form.log_format for form in possible.others if not counts and form.matches(text)]
            self.totals |= {known.name for known in shown if known.steps}
            self.marks |= {known.name for known in shown if not known.steps}
        return counts

    def _lines(self, group: int, buffer: bytearray, size: int, counts: Counter[str]) -> Iterator[bytes]:
        """The lines that may hold a marker; those of the first characters alone where the steps that are counted of
        them are all of one format."""
        index = marker_index(tuple(_by_marker(group, self.brought)))
        first = buffer.rfind(b"\n", 0, min(FIRST_CHARACTERS, size)) + 1
        for begin, end in ((0, first), (first, size)):
            if begin and len(counts) == 1:
                return
            starts, ends, which = marked_lines(np.frombuffer(buffer, np.uint8)[begin:], end - begin, index)
            for place in which[:MAX_TRIED].tolist():
                yield bytes(buffer[begin + starts[place] : begin + ends[place]])

    def _most_frequent(self, counts: Counter[str]) -> LogFormat:
        """The format that is counted most, of several the first; one that a person brought before all others."""
        brought = [each.name for each in self.brought if each.name in counts]
        names = brought or [name for name in FORMATS if name in counts]
        return format_named(max(names, key=counts.__getitem__), self.brought)


@cache
def _by_marker(group: int, brought: Formats) -> Mapping[bytes, Sequence[_Form]]:
    """A group of forms by their markers."""
    return grouped((form.line.marker, form) for form in _forms(brought)[group])


@dataclass(frozen=True, kw_only=True)
class _Possible:
    """Of the lines of one shape: the formats of whose steps they are; the forms of steps, and of totals and marks, of
    which some of them may be."""

    certain: frozenset[str]
    steps: tuple[_Form, ...]
    others: tuple[_Form, ...]

    def formats(self, text: bytes) -> frozenset[str]:
        """The formats of whose steps a line of this shape is one."""
        return self.certain.union(form.log_format.name for form in self.steps if form.matches(text))


@cache
def _known_shapes(group: int, brought: Formats) -> dict[bytes, _Possible]:
    """By the shape of a line: its text with all digits alike."""
    return {}


def _possible(group: int, brought: Formats, text: bytes) -> _Possible:
    """Those of the group for the shape of the line. Of step lines of a shape one is matched, and serves them all."""
    known, shape = _known_shapes(group, brought), text.translate(ALIKE)
    if (possible := known.get(shape)) is None:
        marked = [form for form in _forms(brought)[group] if form.line.marker.translate(ALIKE) in shape]
        may_be = [form for form in marked if form.may_match(text)]
        certain = [form for form in may_be if form.of_any_digits and form.matches(text)]
        possible = _Possible(
            certain=frozenset(form.log_format.name for form in certain),
            steps=tuple(form for form in may_be if form.is_step and form not in certain),
            others=tuple(form for form in may_be if not form.is_step),
        )
        if len(known) >= MAX_SHAPES:
            known.clear()
        if len(shape) <= MAX_KNOWN:
            known[shape] = possible
    return possible


def lines_of_steps(text: bytes) -> Iterator[tuple[bytes, frozenset[str]]]:
    """Lines that are steps, each with the names of their formats: one of those that differ in digits alone, and none of
    progress bars or of steps that go on over line ends."""
    letters = np.frombuffer(text + b"\0", np.uint8)
    starts, ends, which = marked_lines(letters, len(text), marker_index(tuple(_by_marker(0, ()))))
    stops = np.minimum(ends, starts + MAX_KNOWN)
    lines = [text[begin:stop] for begin, stop in zip(starts[which].tolist(), stops[which].tolist(), strict=True)]
    shapes = [line.translate(ALIKE) for line in lines]
    for shape, line in dict(zip(shapes, lines, strict=True)).items():
        possible = _possible(0, (), line)
        alike = [each for its, each in zip(shapes, lines, strict=True) if its == shape] if possible.steps else [line]
        for each in alike:
            if names := possible.formats(each):
                yield each, names


def _is_utf_16(buffer: bytearray) -> bool:
    """Whether a text begins as UTF-16 does: by its mark, or every other byte is 0."""
    begin = bytes(buffer[:64])
    return begin[:2] in (b"\xff\xfe", b"\xfe\xff") or any(
        not any(begin[at::2]) and all(begin[1 - at :: 2]) for at in (0, 1) if begin
    )


def _is_binary(buffer: bytearray, size: int, *, is_first: bool) -> bool:
    """Whether the text has bytes that no log has; of a file's first text also by its share of control characters."""
    if is_first:
        begin = bytes(buffer[: min(size, SNIFFED_BYTES)])
        if len(begin) - len(begin.translate(None, CONTROLS)) > MAX_CONTROLS * len(begin):
            return True
    return buffer.find(0, 0, size) >= 0 and buffer.find(ZEROS, 0, size) >= 0
