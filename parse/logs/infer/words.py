"""The numbers of a line, with the names and units beside them."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from parse.logs.engine.fields import LARGEST, TIME_STAMP, seconds_of
from parse.logs.infer.columns import Heading
from parse.logs.infer.vocabulary import EDGE, MEAN, SINGLE, TIME, WORK, NumberRole, elapsed_role, phrase, role_of

MAX_TEXT = 4096
"""Only the beginning of longer lines is looked at."""
MAX_NUMBERS = 120
MAX_NAME = 48
MAX_SHAPES = 4096
MAX_POWER = 18


@dataclass(frozen=True, kw_only=True)
class NamedNumber:
    """A number of a line, or a time in parts as `25m 15s`: its place, its value, the worth of its last digit.

    `name` is the phrase that names it, else its unit, and begins at `named_from`; the unit behind it ends at
    `unit_until`. `of` is the place of the total of `5/4491`. `plain`: `--pattern` can read it. `scale`: 1000 of `12k`.
    """

    start: int
    stop: int
    value: float
    digit: float
    name: str
    named_from: int
    unit: str
    unit_until: int
    role: NumberRole | None
    is_whole: bool
    plain: bool
    is_time: bool
    scale: float = 1.0
    of: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class LineStamp:
    """A time stamp of a line, and its finest unit in seconds."""

    start: int
    stop: int
    seconds: float
    digit: float


@dataclass(frozen=True, kw_only=True)
class LineWords:
    """A line: its first time stamp and its numbers; of a row of a table the `heading` that names them."""

    stamp: LineStamp | None
    numbers: tuple[NamedNumber, ...]
    heading: Heading | None = None


@dataclass(frozen=True, kw_only=True)
class _NumberSpan:
    """The place of a number, or of a time in parts."""

    start: int
    stop: int
    value: float
    digit: float
    is_whole: bool = False
    is_time: bool = False


_STAMP = re.compile(rf"(?<![\d.:/-])(?:{TIME_STAMP.decode()})(?:Z|[+-]\d\d:?\d\d)?(?![\d:])")
_HAS_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
_ZONE = re.compile(r"(?:Z|[+-]\d\d:?\d\d)$")
_NAMED_STAMP = re.compile(r"(?<![a-z])(?:time ?stamps?|time|ts|unix|unix time)$")
_NAMED_ELAPSED = re.compile(r"(?<![a-z])(?:elapsed|eta|remaining|left|time|took|train|total|in)[^,|;]{0,3}$")
_CLOCK = re.compile(
    r"(?<![\d.:/-])(?:(?P<days>\d+) days?, ?)?(?:(?P<h>\d{1,4}):)?(?P<m>\d\d?):(?P<s>\d\d(?:\.\d+)?)(?![\d:])"
)
_PARTS = re.compile(
    r"(?<![\w.])(?:(?P<days>\d+) ?d(?:ays?)?,? ?)?(?:(?P<h>\d+) ?h(?:ours?|rs?)?,? ?)?"
    r"(?:(?P<m>\d+) ?m(?:in(?:utes?)?)?,? ?)?(?P<s>\d+(?:\.\d+)?) ?s(?:ec(?:onds?)?)?(?![\w/])"
)
_SECONDS = {"days": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_READ_AS_ELAPSED = re.compile(r"(?:\d{1,4}:)?\d\d:\d\d")
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:[1-9]\d{0,2}(?:,\d{3})+(?![\d,])|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3})?(?![\d.]*\d|\w*\d)"
)
_TOTAL = re.compile(r" ?(?:/|of) ?(\d{1,12})(?![\d.,]*\d)")
_MULTIPLE = re.compile(r" ?([kKMB])(?![A-Za-z])|([kKMB])(?=[ \-]?(?:tok|it|sample|img|ex|seq|w))")
_MULTIPLES = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9}
_SEPARATORS = re.compile(r"[,|;()\[\]{}<>\t\v\x80-\xff]|  +| - ")
_UNIT = re.compile(
    r" ?(?P<unit>[A-Za-zµ]+(?:(?:/| per )[A-Za-z]+){0,3}(?: elapsed)?)(?![\w/])|"
    r" ?(?:[|,\t]|  ) *(?P<column>[A-Za-z]+(?:/[A-Za-z]+){1,2}|m?s|m?secs?|seconds)\s*(?:[|,\t]|  |$)"
)
_BRACKET = re.compile(r" ?\( *")
_ALIKE = str.maketrans("123456789", "000000000")


class WordReader:
    """Reads the numbers of lines. Lines that are equal but for their digits have the same places and names: the first
    one is looked at, and the others are looked up. Rows of a table have the names of the `heading` above them."""

    def __init__(self, heading: Heading | None = None) -> None:
        self.heading = heading
        self._known: dict[str, LineWords] = {}

    def words_of(self, line: str) -> LineWords:
        """The numbers of a line, with what they are by the words beside them."""
        line = line[:MAX_TEXT]
        if self.heading and (cells := self.heading.cells(line)):
            return _row(line, self.heading, cells)
        shape = line.translate(_ALIKE)
        if known := self._known.get(shape):
            numbers = tuple(_of_other_line(number, line) for number in known.numbers)
            return LineWords(stamp=_stamp(line) if known.stamp else None, numbers=numbers)
        words = words_of(line)
        is_no_time = words.stamp is None and _STAMP.search(line)  # as 99:99:99, whose shape is that of a time stamp
        if len(self._known) < MAX_SHAPES and not is_no_time:
            self._known[shape] = words
        return words


def _of_other_line(number: NamedNumber, line: str) -> NamedNumber:
    """The number at the same place of another line of the shape."""
    text = line[number.start : number.stop]
    value = _seconds(text) if number.is_time else _finite(float(text.replace(",", "")))
    copy = object.__new__(NamedNumber)
    copy.__dict__.update(number.__dict__, value=value * number.scale)  # a tenth of the time of dataclasses.replace
    return copy


def words_of(line: str) -> LineWords:
    """The numbers of a line, with what they are by the words beside them."""
    stamp = _stamp(line)
    spans = list(_spans(line, stamp))[:MAX_NUMBERS]
    numbers: list[NamedNumber] = []
    before, is_named = 0, True
    for place, span in enumerate(spans):
        more = place + 1 < len(spans)
        until = spans[place + 1].start if more else len(line)
        if stamp and before < stamp.stop <= span.start:
            before = stamp.stop
        name, named_from = _name(line, before, span.start) if is_named else ("", span.start)
        behind_next = line[spans[place + 1].stop :] if more else ""
        number, is_named = _number(line, span, name, named_from, until, behind_next)
        numbers.append(_mean_of(numbers[-1], number, line) if numbers and number.role is None else number)
        before = number.unit_until
    return LineWords(stamp=stamp, numbers=tuple(numbers))


def _mean_of(before: NamedNumber, number: NamedNumber, line: str) -> NamedNumber:
    """The number; in brackets behind a time, `1.5431 (1.5567)`, as the mean that it may be."""
    role = before.role
    if role is None or role.kind != TIME or role.hint not in ("", SINGLE) or number.name or number.unit:
        return number
    is_in_brackets = _BRACKET.fullmatch(line, before.stop, number.start) and line[number.stop :][:1] == ")"
    mean = dataclasses.replace(number, name=f"{before.name} in brackets")
    return renamed(mean, dataclasses.replace(role, hint=MEAN)) if is_in_brackets else number


def _row(line: str, heading: Heading, cells: tuple[tuple[int, int], ...]) -> LineWords:
    """The numbers of a table's row, each with the name of its column."""
    stamp = None
    numbers: list[NamedNumber] = []
    for name, (start, stop) in zip(map(phrase, heading.names), cells, strict=True):
        cell = line[start:stop]
        stamped = _STAMP.match(cell)
        if stamped and stamped.end() == len(cell) and (timed := _stamp_of(cell, stamped, name, start)):
            stamp = stamp or timed
            continue
        spans = list(_spans(cell, None))
        if len(spans) != 1 or spans[0].start or cell[spans[0].stop :].strip(" ").isdigit():
            continue
        span, unit = spans[0], phrase(cell[spans[0].stop :])
        role = elapsed_role(name) if span.is_time else role_of(name, unit, span.is_whole)
        number = NamedNumber(
            start=start, stop=start + span.stop, value=span.value, digit=span.digit, name=name, named_from=start,
            unit=unit, unit_until=stop, role=role, is_whole=span.is_whole, is_time=span.is_time,
            plain=not span.is_time or bool(_READ_AS_ELAPSED.fullmatch(cell)),
        )  # fmt: skip
        numbers.append(number)
    return LineWords(stamp=stamp, numbers=tuple(numbers), heading=heading)


def _stamp(line: str) -> LineStamp | None:
    stamps = (_stamp_of(line, match) for match in _STAMP.finditer(line))
    return next((stamp for stamp in stamps if stamp), None)


def _stamp_of(line: str, match: re.Match[str], name: str = "", begin: int = 0) -> LineStamp | None:
    """The time stamp that a match is, in a cell of that name and place, or in a line; None where it is none."""
    text = match[0]
    seconds = seconds_of(_ZONE.sub("", text).encode())
    if seconds is None or not _is_stamp(line, match, seconds, name):
        return None
    fraction = re.search(r"[.,](\d{1,9})(?:Z|[+-]\d\d:?\d\d)?$", text)
    digit = 10.0 ** -len(fraction[1]) if fraction else 1e-3 if len(text) >= 12 and text.isdigit() else 1.0
    return LineStamp(start=begin + match.start(), stop=begin + match.end(), seconds=seconds, digit=digit)


def _is_stamp(line: str, match: re.Match[str], seconds: float, name: str) -> bool:
    """Whether a text of the form of a time stamp is one: a number needs a name that says so, `12:34:56` none that says
    something else."""
    name = name or phrase(line[max(match.start() - MAX_NAME, 0) : match.start()])
    if not _HAS_CLOCK.search(match[0]):
        return bool(_NAMED_STAMP.search(name)) and 1e9 <= seconds < 4e9
    has_date = not _HAS_CLOCK.match(match[0])
    return has_date or not (_NAMED_ELAPSED.search(name) or line[match.end() : match.end() + 1] == "<")


def _spans(line: str, stamp: LineStamp | None) -> Iterator[_NumberSpan]:
    """The places of numbers and of times in parts, in order, none in the time stamp."""
    at = 0
    while number := _NUMBER.search(line, at):
        if stamp and number.start() < stamp.stop and number.end() > stamp.start:
            at = stamp.stop
            continue
        timed = _CLOCK.match(line, number.start()) or _PARTS.match(line, number.start())
        if timed and (timed.re is _CLOCK or sum(part is not None for part in timed.groups()) > 1):
            at = timed.end()
            seconds = _seconds_of(timed)
            yield _NumberSpan(start=timed.start(), stop=at, value=seconds, digit=_digit(timed["s"]), is_time=True)
            continue
        text, at = number[0].replace(",", ""), number.end()
        value, digit = _finite(float(text)), _digit(text)
        yield _NumberSpan(start=number.start(), stop=at, value=value, digit=digit, is_whole=text.isdigit())


def _finite(value: float) -> float:
    """The number; NaN for one that is larger than any of a log."""
    return value if abs(value) <= LARGEST else math.nan


def _seconds(text: str) -> float:
    timed = _CLOCK.match(text) or _PARTS.match(text)
    return _seconds_of(timed) if timed else 0.0


def _seconds_of(timed: re.Match[str]) -> float:
    return _finite(sum(float(text) * _SECONDS[name] for name, text in timed.groupdict().items() if text))


def _digit(text: str) -> float:
    """The worth of the last digit."""
    mantissa, _, exponent = text.lower().partition("e")
    power = (int(exponent) if exponent else 0) - len(mantissa.partition(".")[2])
    return 10.0 ** min(max(power, -MAX_POWER), MAX_POWER)


def _name(line: str, before: int, start: int) -> tuple[str, int]:
    """The phrase before a number, and where its text begins: the last words behind a separator. A unit in brackets is
    part of it: `train_speed(iter/s)': `."""
    begin = max(before, start - MAX_NAME)
    inner = line[begin:start].rstrip(EDGE + "[(|,")
    last = 0
    for match in _SEPARATORS.finditer(inner):
        opens = match[0] in ("(", "[") and inner.find(")" if match[0] == "(" else "]", match.end()) >= 0
        closes = match[0] in (")", "]") and match.end() == len(inner)
        last = last if opens or closes else match.end()
    raw = inner[last:]
    name = raw.strip(EDGE)
    place = begin + last + len(raw) - len(raw.lstrip(EDGE))
    if words := re.search(r"(?:\S+ ){0,3}\S+$", name):
        place, name = place + words.start(), words[0]
    cut = max(name.rfind("="), name.rfind(":")) + 1
    return phrase(name[cut:].lstrip("])}")), place + cut


def _number(
    line: str, span: _NumberSpan, name: str, named_from: int, until: int, behind_next: str
) -> tuple[NamedNumber, bool]:
    """The number, and whether the text behind its unit may name the next one."""
    behind = line[span.stop : min(until, span.stop + MAX_NAME)]
    total = _TOTAL.match(line, span.stop) if span.is_whole else None
    begin, scale = span.stop, 1.0
    if total:
        behind = ""
    elif not span.is_time and (multiple := _MULTIPLE.match(behind)):
        scale = _MULTIPLES[multiple[1] or multiple[2]]
        begin, behind = begin + multiple.end(), behind[multiple.end() :]
    unit, unit_until, is_all = _unit(behind, begin, until < len(line), bool(name) and not _has_unit(behind_next))
    is_whole = span.is_whole and scale == 1.0
    if span.is_time:
        role = None if line[span.start - 1 : span.start] == "<" else elapsed_role(name)
        plain = bool(_READ_AS_ELAPSED.fullmatch(line[span.start : span.stop]))
    else:
        role, plain = role_of(name, phrase(unit), is_whole), scale == 1.0
        if role is None and unit:
            by_name = role_of(name, "", is_whole)
            role, unit_until = by_name if by_name and by_name.kind not in (TIME, WORK) else None, span.stop
    number = NamedNumber(
        start=span.start, stop=span.stop, value=span.value * scale, digit=span.digit * scale,
        name=name or phrase(unit) or ("elapsed" if span.is_time else ""),
        named_from=named_from, unit=phrase(unit), unit_until=max(unit_until, total.end(1) if total else 0), role=role,
        is_whole=span.is_whole, plain=plain, is_time=span.is_time, scale=scale, of=total.span(1) if total else None,
    )  # fmt: skip
    return number, not (is_all and role is not None and unit)


def _has_unit(behind: str) -> bool:
    """Whether a number has a unit of its own behind it, so that the word before it is that of the number before."""
    match = _UNIT.match(behind[:MAX_NAME])
    return bool(match and match["unit"] and role_of("", phrase(match["unit"]), False))


def _unit(behind: str, begin: int, more: bool, names_next: bool) -> tuple[str, int, bool]:
    """The unit behind a number, where it ends, and whether it is all that is before the next number, which it may name
    instead."""
    match = _UNIT.match(behind)
    if match is None:
        return "", begin, False
    group = "unit" if match["unit"] else "column"
    if group == "column" and more and match.end() == len(behind):
        return "", begin, False
    unit, end = match[group], match.end(group)
    if more and unit.endswith(" elapsed") and not behind[end:].strip(" :=|"):  # it names the next number
        unit, end = unit.removesuffix(" elapsed"), end - len(" elapsed")
    rest = behind[end:]
    # A word before `:` or `=`, or all that is between two numbers of a line of names, names the next number.
    is_all = more and not rest.strip(" ")
    if behind[:1] == " " and group == "unit" and (re.match(r"['\" ]*[:=]", rest) or (names_next and is_all)):
        return "", begin, False
    return unit, begin + end, is_all


def renamed(number: NamedNumber, role: NumberRole | None) -> NamedNumber:
    """The number with another role."""
    return dataclasses.replace(number, role=role)
