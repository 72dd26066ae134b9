"""The forms of lines that a log prints again and again with a step that grows: its step lines, and what they say."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parse.logs.engine.reader import ANSI, last_pieces, opened, pieces
from parse.logs.infer.agreement import (
    INTERVAL,
    MIN_STEPS,
    FieldAgreement,
    StepSeries,
    agreement_of,
    series_of,
    step_name,
)
from parse.logs.infer.columns import heading_of
from parse.logs.infer.vocabulary import ELAPSED, STEP, NumberRole
from parse.logs.infer.words import LineWords, NamedNumber, WordReader, renamed
from parse.logs.line_pattern import CONTINUED

HEAD_BYTES, PART_BYTES, PARTS = 1 << 20, 1 << 17, 6
"""Of a text the first HEAD_BYTES are looked at, PARTS of PART_BYTES between, and its end."""
MAX_LINES, MAX_LINES_LATER = 1500, 300
"""Lines with a step that are looked at, of the head and of each later part."""
MAX_LINE = 4096
"""Characters of a line that are looked at."""
JOINT = b"\v"
"""Stands for a line end behind which a line goes on."""
MAX_USELESS = 3
"""Lines that are equal but for their numbers, and count no steps, after which others like them are passed over."""
MAX_LINES_OF_STEP = 80
"""Steps have no more lines."""
MANY_LINES = 16
"""Lines with nothing beside their steps that are worth a word."""
_STEP_WORD = re.compile(rb"(?i)step|iter|\bit\b|batch|\bup|epoch|\bba\b|\d\s*/\s*\d")
_DIGITS = re.compile(rb"\d+")
_EVALUATES = re.compile(
    r"(?<![a-z])(?:val|valid|validation|eval|evaluation|evaluating|evaluate|test|testing|inference|infer|predict|"
    r"(?<!_)benchmark|generating|generate)(?![a-z])"
)
_NO_COUNT = re.compile(r"step|iter|epoch|warm|batch|acc|correct|precision|recall|hits?$")
_STEP_NAME = re.compile(r"step|iter|update|batch|(?<![a-z])(?:it|up|ba)(?![a-z])")
_PREPARES = re.compile(
    r"(?<![a-z])(?:add|build|cach|captur|collect|compil|concatenat|convert|copy|creat|download|encod|extract|fetch|"
    r"filter|flatten|group|index|load|map|pack|pars|prepar|preprocess|process|read|render|request|resolv|sav|send|"
    r"shard|tokeniz|upload|writ)(?:|e|ed|s|es|ing|ping|ation)(?![a-z])"
)
_BAR = re.compile(r"\d{1,3}%\|[^|]*\| *$")
_ANY_BAR = re.compile(r"\d{1,3}%\|[^|]*\| *\d+/\d")
_OF_TRAINING = re.compile(r"train|epoch|loss|(?<![a-z])(?:step|iter)")
BEFORE_STEP = 60
"""Characters before the name of a step, or before a progress bar, that may say that it is none of the training."""


@dataclass(frozen=True, kw_only=True)
class CountingLine:
    """A line that counts steps, the `number`-th of the text, 0 where that is not known. `evaluates`: its words say that
    these are none of the training."""

    text: str
    words: LineWords
    evaluates: bool
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class StepForm:
    """Lines with the same fields, in the order of the file, and which field of them is the step. `first` and `last` are
    the places of such lines among all that were looked at."""

    lines: tuple[CountingLine, ...]
    first: int
    last: int
    step: str
    series: StepSeries
    agreement: FieldAgreement

    @property
    def is_of_program(self) -> bool:
        """Whether it is of a training, and no mere counter, as of files that are read: it says steps, or has times."""
        return bool(self.agreement.readings or _STEP_NAME.search(self.step))

    @property
    def may_count_samples(self) -> bool:
        """Whether `640/60000` may be samples as well as steps: no word says it, and no time of a single one does."""
        times = self.agreement.times
        is_unsaid = not _STEP_NAME.search(self.step) and bool(np.nanmin(self.series.gaps, initial=np.inf) > 1)
        return is_unsaid and self.agreement.speed is None and all(each.how in (ELAPSED, INTERVAL) for each in times)

    @property
    def is_bare_bar(self) -> bool:
        """Whether it is a progress bar without a word of what it counts, as of a test."""
        text = self.lines[len(self.lines) // 2].text.lower()
        return bool(_ANY_BAR.search(text)) and not _OF_TRAINING.search(text)


def sample(path: Path) -> Iterator[bytes]:
    """Parts of the text, each from a line's beginning; of a packed one its head alone."""
    end = 0
    for buffer, size, offset in pieces(path, HEAD_BYTES):
        yield bytes(memoryview(buffer)[:size])
        end = offset + size
        break
    with opened(path) as (_, size_bytes):
        whole = int(size_bytes) if np.isfinite(size_bytes) else end
    step = (whole - end) // PARTS
    if step > PART_BYTES:
        for place in range(1, PARTS):
            with opened(path) as (file, _):
                file.seek(end + place * step)
                yield file.read(PART_BYTES).replace(b"\r", b"\n").partition(b"\n")[2]
    for buffer, size, _ in last_pieces(path, PART_BYTES, end):
        yield bytes(memoryview(buffer)[:size]).partition(b"\n")[2]


def joined(part: bytes) -> bytes:
    """The text with JOINT for each line end behind which a line goes on; empty where hardly a line begins."""
    text = CONTINUED.sub(JOINT, part)
    return text if text.count(b"\n") * MAX_LINES_OF_STEP >= part.count(b"\n") else b""


def lines_of(parts: Sequence[bytes]) -> list[list[CountingLine]]:
    """The lines of each part that count steps; those of the first, which begins the text, with their numbers."""
    reader = WordReader()
    return [
        list(_lines_of(part, reader, MAX_LINES_LATER if number else MAX_LINES, is_first=not number))
        for number, part in enumerate(parts)
    ]


def _lines_of(part: bytes, reader: WordReader, limit: int, *, is_first: bool) -> Iterator[CountingLine]:
    if b"\0\0\0\0" in part:
        return
    count, number = 0, 1
    useless: Counter[bytes] = Counter()
    for raw in ANSI.sub(b"", part).split(b"\n"):
        begin, place = raw[:MAX_LINE], number
        number += 1 + raw.count(JOINT)
        shape = _DIGITS.sub(b"0", begin)
        if useless[shape] >= MAX_USELESS:
            continue
        text = begin.decode("latin-1")
        is_row = reader.heading is not None and bool(reader.heading.cells(text))
        is_worded = bool(_STEP_WORD.search(begin))
        line = line_of(text, reader) if is_row or (is_worded and shape.count(b"0") > 1) else None
        if line is None and is_worded and (heading := heading_of(text)):
            reader.heading = heading
        elif line is None:
            useless[shape] += 1
        if line is None:
            continue
        yield dataclasses.replace(line, number=place) if is_first else line
        count += 1
        if count >= limit:
            return


def line_of(text: str, reader: WordReader) -> CountingLine | None:
    """A line that counts steps; None for others."""
    words = reader.words_of(text)
    kinds = [number.role.kind for number in words.numbers if number.role]
    if STEP not in kinds:
        place = next((at for at, number in enumerate(words.numbers) if _counts(number)), None)
        if place is None:
            return None
        step = renamed(words.numbers[place], NumberRole(kind=STEP))
        words = dataclasses.replace(words, numbers=(*words.numbers[:place], step, *words.numbers[place + 1 :]))
    first = next(number for number in words.numbers if number.role and number.role.kind == STEP)
    bar = _BAR.search(text, 0, first.start)
    begin = max((bar.start() if bar else first.named_from) - BEFORE_STEP, 0)
    if words.stamp and words.stamp.stop < first.start:
        begin = max(begin, words.stamp.stop)
    label = text[begin : bar.start() if bar else first.start].lower()
    evaluates = bool(_EVALUATES.search(label) or (bar and _PREPARES.search(label)))
    return CountingLine(text=text, words=words, evaluates=evaluates)


def _counts(number: NamedNumber) -> bool:
    """Whether a number without a word of steps is one of so many, `[ 50/1251]`."""
    named = bool(re.fullmatch(r"[a-z ]{0,20}", number.name)) and not _NO_COUNT.search(number.name)
    return named and number.of is not None and number.is_whole and number.role is None


def forms_of(parts: Sequence[Sequence[CountingLine]]) -> Iterator[StepForm]:
    """The forms of lines of which one part has enough, each by the part that has most."""
    best: dict[FormKey, list[CountingLine]] = {}
    ranges: dict[FormKey, tuple[int, int]] = {}
    place = 0
    for part in parts:
        by_key: dict[FormKey, list[CountingLine]] = defaultdict(list)
        for line in part:
            place += 1
            if not line.evaluates:
                key = _key(line.words)
                by_key[key].append(line)
                ranges[key] = ranges.get(key, (place, 0))[0], place
        for key, lines in by_key.items():
            if len(lines) > len(best.get(key, ())):
                best[key] = lines
    for key, lines in best.items():
        rows = [line.words for line in lines]
        step = step_name(rows)
        if step is None:
            continue
        series = series_of(rows, step)
        if len(series.steps) > MIN_STEPS:
            agreement = agreement_of(series, trimmed=True)
            if agreement.readings or len(lines) >= MANY_LINES:
                first, last = ranges[key]
                yield StepForm(
                    lines=tuple(lines), first=first, last=last, step=step, series=series, agreement=agreement
                )


FormKey = tuple[tuple[str, str], ...]
"""The kinds and names of a line's numbers."""


def _key(words: LineWords) -> FormKey:
    stamp = (("stamp", ""),) if words.stamp else ()
    return stamp + tuple((number.role.kind, number.name) for number in words.numbers if number.role)
