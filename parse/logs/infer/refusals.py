"""What keeps a log from being read beside what its fields say: steps that go back, decimal commas, unknown words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from parse.logs.infer.forms import MANY_LINES, CountingLine
from parse.logs.infer.vocabulary import EPOCH, RANK, STEP

MAX_LINES, MAX_CHARACTERS = 20_000, 400
"""Lines, and characters of each, that are looked at for words that are not known."""
MAX_WORDS = 4
"""Words before a number that name it."""
MOST = 0.8
"""Share of lines that makes something true of a log."""
_DECIMAL_COMMA = re.compile(r"(?<![\d.,:])\d{1,3}(?:\.\d{3})*,(?:\d{1,2}|\d{4,})(?![\d.,])")
_DECIMAL_POINT = re.compile(r"(?<![\d.,:])\d+\.\d+(?![\d.,])")
_BATCH = re.compile(
    rb"(?i)(?<![a-z])(?:[a-z]{1,12}[_ -]){0,3}(?:batch[_ -]?size|bs|bsz)['\"]?(?:\s?[:=]\s?|\s)(\d{1,6})(?![\d.])"
)
_DIGITS = re.compile(r"\d+")
_WHOLE = re.compile(r"(?<![\w.:-])\d{1,12}(?![.:-]?\d)")
_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
_SEPARATORS = " \t,;|"


def falls(lines: Sequence[CountingLine], step: str) -> str:
    """Where the steps go back, as the end of a sentence; empty where they do not, or where ranks print them."""
    places: list[str] = []
    before = None
    for line in lines:
        if any(number.role and number.role.kind == RANK for number in line.words.numbers):
            return ""
        value, epoch = value_of(line, STEP, step), value_of(line, EPOCH)
        if value is None:
            continue
        if before is not None and before[1] == epoch and value < before[0]:
            at = f" at line {line.number}" if line.number else ""
            places.append(f"{before[0]:g} to {value:g}{at}")
        before = value, epoch
    more = f", and {len(places) - 1} times more" if len(places) > 1 else ""
    return f"; its steps go back from {places[0]}{more}" if places else ""


def value_of(line: CountingLine, kind: str, name: str | None = None) -> float | None:
    """The line's first number of that kind, and of that name where one is given."""
    numbers = (number for number in line.words.numbers if number.role and number.role.kind == kind)
    return next((number.value for number in numbers if name in (None, number.name)), None)


def decimal_commas(lines: Sequence[CountingLine]) -> str:
    """The reason where most lines have numbers as 0,25 or 1.234,5, and hardly one as 0.25; empty for others."""
    commas = [match[0] for line in lines if (match := _DECIMAL_COMMA.search(line.text))]
    points = sum(bool(_DECIMAL_POINT.search(line.text)) for line in lines)
    if len(commas) < MOST * len(lines) or points > (1 - MOST) * len(lines):
        return ""
    return (
        f"its numbers have decimal commas, as {max(commas, key=len)!r}: they are read with points alone, "
        "put these in their place"
    )


def printed_batch(texts: Sequence[bytes]) -> str:
    """A batch size as the text prints it, `bs 64`; empty where it prints none, or several."""
    printed: dict[bytes, str] = {}
    for text in texts:
        for match in _BATCH.finditer(text):
            printed.setdefault(match[1], " ".join(match[0].decode("latin-1").split()))
            if len(printed) > 1:
                return ""
    return next(iter(printed.values()), "")


def why_nothing_counts(text: bytes, lines: Sequence[CountingLine]) -> str:
    """What can be said of a text none of whose lines count steps that grow; empty where that is nothing."""
    steps = [line for line in lines if not line.evaluates]
    if len(steps) >= MANY_LINES:
        step = next(number.name for number in steps[0].words.numbers if number.role and number.role.kind == STEP)
        if back := falls(steps, step):
            return f"its lines print {step or 'steps'!r}, which does not grow as steps do{back}"
    return _in_unknown_words(text)


def _in_unknown_words(text: bytes) -> str:
    """The reason where lines of one form have a whole number that grows, in words that are not known."""
    raw_lines = [raw[:MAX_CHARACTERS].decode("latin-1") for raw in text.split(b"\n", MAX_LINES)[:MAX_LINES]]
    shapes = Counter(_DIGITS.sub("0", line) for line in raw_lines if any(map(str.isdigit, line)))
    shape, count = shapes.most_common(1)[0] if shapes else ("", 0)
    if count < MANY_LINES:
        return ""
    alike = [line for line in raw_lines if _DIGITS.sub("0", line) == shape]
    label = next(_growing(alike), None)
    if label is None:
        return ""
    first = raw_lines.index(alike[0])
    head = raw_lines[first - 1].strip() if first else ""
    if not re.search(r"[A-Za-z\x80-\xff]", shape):
        named = f" {_shown(head)!r}" if head and not any(map(str.isdigit, head)) else ""
        example = "--pattern '{step:d},{_},{seconds:f}'"
        return f"it is a table of columns{named}, which inference does not read: say what they are as by {example}"
    if re.search(r"(?i)epoch\W*$", label):
        return "its lines count epochs, and no steps"
    rest = f"{_shown(label)} {{step:d}}".strip()
    pattern = f"{{time}} … {rest}" if _CLOCK.search(alike[0]) else f"{rest} … {{seconds:f}}"
    return (
        f"its lines count something, as in {_shown(alike[0])!r}, in no words that inference knows: say what they are "
        f"as by --pattern '{pattern}'"
    )


def _growing(lines: Sequence[str]) -> Iterator[str]:
    """The text before each whole number of these lines that grows from line to line."""
    spans = [[match.span() for match in _WHOLE.finditer(line)] for line in lines]
    for place, (start, _) in enumerate(spans[0]):
        values = [int(line[slice(*its[place])]) for line, its in zip(lines, spans, strict=True) if place < len(its)]
        ups = sum(after > before for before, after in pairwise(values))
        if ups > MOST * (len(lines) - 1):
            words = re.split(r"\d", lines[0][:start])[-1].lstrip(_SEPARATORS).split(" ")
            yield " ".join(words[-MAX_WORDS:])


def _shown(text: str) -> str:
    return text.encode("latin-1").decode(errors="replace").strip()[:80]
