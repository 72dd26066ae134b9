"""The fields of many step lines at once: numbers and time stamps from their digits."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parse.logs.engine.log_format import FIELDS, NO_NUMBER, Floats, Integers

Letters = npt.NDArray[np.uint8]
"""Characters; the last four bits of a digit are its value."""

_CLOCK = rb"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
_FORMS = tuple(
    re.compile(form)
    for form in (
        rb"(?P<year>\d{4})[-/](?P<month>\d\d?)[-/](?P<day>\d\d?)[ T]" + _CLOCK,
        rb"(?:\w{3} )?(?P<name>[A-Z][a-z]{2}) +(?P<day>\d\d?) " + _CLOCK + rb"(?: (?P<year>\d{4}))?",
        rb"(?P<day>\d\d?) (?P<name>[A-Z][a-z]{2}) (?P<year>\d{4}) " + _CLOCK,
        rb"(?P<year>\d{4})(?P<month>\d\d)(?P<day>\d\d) " + _CLOCK,
        rb"(?P<month>\d\d)/?(?P<day>\d\d) " + _CLOCK,
        _CLOCK,
        rb"(?P<unix>\d{9,10})(?:\.(?P<fraction>\d{1,9})\d*)?",
        rb"(?P<unix_ms>\d{12,13})",
    )
)
TIME_STAMP = b"|".join(re.sub(rb"\?P<\w+>", b"?:", form.pattern) for form in _FORMS)
"""Pattern of a time stamp in any of the forms that `form_of` knows, without groups of a name."""
_RUNTIME = re.compile(rb"(?:(?P<hour>\d{1,4}):)?(?P<minute>\d\d):(?P<second>\d\d)")
RUNTIME_ORIGIN_S = 10 * 86_400.0
"""Times since a beginning count from here, so that none is taken for a time of day."""
_MONTHS = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")
_YEARLESS = 1904
"""Taken where a log prints no year: a leap year, far from any real one."""
_DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Form:
    """The form of a time stamp: the places of the digits of its parts; `month` if letters name it; `runtime`: it is the
    time since a beginning."""

    spans: Mapping[str, tuple[int, int]]
    month: int | None = None
    runtime: bool = False

    def seconds(self, texts: Letters) -> Floats:
        """Seconds since 1970 of texts of this form, [row]; NaN where the digits are no time."""
        if "unix" in self.spans or "unix_ms" in self.spans:
            return self._sum(texts, {"unix": 1.0, "unix_ms": 1e-3})
        total = self._sum(texts, {"hour": 3600.0, "minute": 60.0, "second": 1.0})
        minute, second = self._part(texts, "minute"), self._part(texts, "second")
        total[(minute > 59) | (second > 60)] = np.nan
        if self.runtime:
            return total + RUNTIME_ORIGIN_S
        total[self._part(texts, "hour") > 23] = np.nan
        return total + self._days(texts) * _DAY_S if "day" in self.spans else total

    def seconds_of_one(self, text: bytes) -> float | None:
        """As `seconds`, of one text and without arrays; None where its digits are no time."""
        parts = {name: text[first:stop] for name, (first, stop) in self.spans.items()}
        fraction = parts.pop("fraction", b"0")
        number = {name: int(digits) for name, digits in parts.items()}
        total: float = number.get("unix", 0) + number.get("unix_ms", 0) / 1e3 + float(b"0." + fraction)
        if "minute" not in number:
            return total
        hour, month = number.get("hour", 0), number.get("month", self.month or 0)
        is_clock = number["minute"] <= 59 and number["second"] <= 60 and (hour <= 23 or self.runtime)
        is_date = "day" not in number or (1 <= month <= 12 and 1 <= number["day"] <= 31)
        if not (is_clock and is_date):
            return None
        total += 3600 * hour + 60 * number["minute"] + number["second"]
        if "day" in number:
            total += _day_of(number.get("year", _YEARLESS), month, number["day"]) * _DAY_S
        return total + RUNTIME_ORIGIN_S if self.runtime else total

    def _sum(self, texts: Letters, units: Mapping[str, float]) -> Floats:
        """The parts, each in its unit in s, and the fraction of a second, added up."""
        parts = {name: self.spans[name] for name in (*units, "fraction") if name in self.spans}
        begin, end = min(first for first, _ in parts.values()), max(stop for _, stop in parts.values())
        weights = np.zeros(end - begin)
        for name, (first, stop) in parts.items():
            powers = np.arange(stop - first - 1, -1, -1, dtype=np.float64)
            if name == "fraction":
                powers -= stop - first
            weights[first - begin : stop - begin] = units.get(name, 1.0) * 10.0**powers
        return np.asarray((texts[:, begin:end] & 15).astype(np.float64) @ weights)

    def _part(self, texts: Letters, name: str) -> Letters:
        """The value of a part of two digits."""
        first, _ = self.spans[name]
        return (texts[:, first] & 15) * np.uint8(10) + (texts[:, first + 1] & 15)

    def _days(self, texts: Letters) -> Floats:
        """Days since 1970, of one date or of one each."""
        dates = [self.spans[name] for name in ("year", "month", "day") if name in self.spans]
        if all((texts[:, first:stop] == texts[0, first:stop]).all() for first, stop in dates):
            texts = texts[:1]
        year, month, day = (self._number(texts, name) for name in ("year", "month", "day"))
        return _days_of(year, month, day)

    def _number(self, texts: Letters, name: str) -> Floats:
        if name not in self.spans:
            return np.full(len(texts), float(_YEARLESS if name == "year" else self.month or 0))
        first, stop = self.spans[name]
        return np.asarray((texts[:, first:stop] & 15) @ 10.0 ** np.arange(stop - first - 1, -1, -1))


def form_of(text: bytes) -> Form | None:
    """The form that the text is written in; None where it is none that is known."""
    for form in _FORMS:
        if match := form.fullmatch(text):
            spans = {name: match.span(name) for name in form.groupindex if match[name] is not None and name != "name"}
            named = match.groupdict().get("name")
            if named is not None and named not in _MONTHS:
                continue
            return Form(
                spans=spans,
                month=_MONTHS.index(named) + 1 if named is not None else None,
            )
    return None


def runtime_form_of(text: bytes) -> Form | None:
    """The form of a time since a beginning; None where the text is none."""
    match = _RUNTIME.fullmatch(text)
    spans = {name: match.span(name) for name in match.groupdict() if match[name] is not None} if match else None
    return Form(spans=spans, runtime=True) if spans else None


def seconds_of(text: bytes) -> float | None:
    """Seconds since 1970 of one time stamp; None where it is none."""
    form = form_of(text)
    return None if form is None else form.seconds_of_one(text)


def _days_of(year: Floats, month: Floats, day: Floats) -> Floats:
    """Days since 1970; NaN where there is no such month or day."""
    return np.where((month >= 1) & (month <= 12) & (day >= 1) & (day <= 31), _day_of(year, month, day), np.nan)


def _day_of(year: Any, month: Any, day: Any) -> Any:
    """Days since 1970 (Hinnant, days_from_civil), of numbers or of arrays."""
    march_year = year - (month <= 2)
    era = march_year // 400
    of_era = march_year - era * 400
    of_year = (153 * (month + 9 - 12 * (month > 2)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


INTEGERS = ("epoch", "step", "first", "rank", "epoch_steps")
MAX_DIGITS = 15
"""More digits than a float64 holds exactly are no number of a step, epoch or rank."""
LARGEST = 1e18
"""Larger numbers are no rate and no time, and their sums overflow."""
WORD_BYTES = 8
_MASKS = np.array([(1 << 64) - (1 << 8 * (WORD_BYTES - width)) for width in range(WORD_BYTES + 1)], np.uint64)
"""Masks by number of digits: the bytes of a word that belong to a number which ends at the end of the word."""
_POWERS = 10.0 ** np.arange(2 * WORD_BYTES + 1)
_ADDED = ((0x0F0F0F0F0F0F0F0F, 2561, 8), (0x00FF00FF00FF00FF, 6553601, 16), (0x0000FFFF0000FFFF, 42949672960001, 32))
"""Makes a number of eight digits: neighbours are added to pairs, these to fours, these to eight."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """The place and form of a field in a line, the same in all lines of a shape.

    The field spans [`first`, `stop`). `point` is the place of its decimal point, `stop` if it has none; `plain`: it
    consists of digits and at most one point. `form` and `written` are of a time stamp.
    """

    first: int
    stop: int
    point: int
    plain: bool
    form: Form | None = None
    written: bytes = b""


Fields = Mapping[str, Field]


def field_of(name: str, text: bytes, first: int, stop: int) -> Field | None:
    """The field at this place; None if its text does not fit its name."""
    text_of_field = text[first:stop]
    if name in ("time", "runtime"):
        form = form_of(text_of_field) if name == "time" else runtime_form_of(text_of_field)
        written = text_of_field.translate(_ALIKE)
        return Field(first=first, stop=stop, point=stop, plain=False, form=form, written=written) if form else None
    if name in INTEGERS:
        fits = text_of_field.isdigit() and len(text_of_field) <= MAX_DIGITS
        return Field(first=first, stop=stop, point=stop, plain=True) if fits else None
    if _number(text_of_field) is None:
        return None
    whole, _, part = text_of_field.partition(b".")
    plain = (whole + part).isdigit() and max(len(whole), len(part)) <= 2 * WORD_BYTES
    return Field(first=first, stop=stop, point=first + len(whole), plain=plain)


def _number(text: bytes) -> float | None:
    """The number, which may have commas between thousands; None where the text is none."""
    try:
        return float(text.replace(b",", b"") if _THOUSANDS.fullmatch(text) else text)
    except ValueError:
        return None


_THOUSANDS = re.compile(rb"\d{1,3}(?:,\d{3}){1,5}(?:\.\d{1,15})?")
_ALIKE = bytes.maketrans(b"123456789", b"000000000")


def columns(letters: Letters, starts: Sequence[Integers], fields: Sequence[Fields]) -> dict[str, Any]:
    """The columns of Steps but for `offset`, one part below the other.

    Part i are lines that begin at starts[i] and have fields[i]; fields that they lack are absent. Fields IN_OTHER_UNITS
    take the place of those that they stand for.
    """
    counts = [len(part) for part in starts]
    where = np.concatenate(starts)
    columns_by_name: dict[str, Any] = {}
    for name in FIELDS:
        field_per_part = [part.get(name) for part in fields]
        if name == "time":
            field_per_part = [part.get("time") or part.get("runtime") for part in fields]
            columns_by_name["time_s"] = _times(letters, where, counts, field_per_part)
        else:
            if name == "batch":
                field_per_part = [part.get("batch") or part.get("consumed") for part in fields]
            columns_by_name[name] = _numbers(
                letters, where, counts, field_per_part, NO_NUMBER if name in INTEGERS else np.nan
            )
    for name in ("duration_ms", "steps_per_s"):
        field_per_part = [part.get(name) for part in fields]
        if any(field_per_part):
            printed = _numbers(letters, where, counts, field_per_part, np.nan)
            with np.errstate(divide="ignore", over="ignore"):
                seconds = printed / 1e3 if name == "duration_ms" else 1 / printed
            known = columns_by_name["duration_s"]
            columns_by_name["duration_s"] = np.where(np.isfinite(seconds), seconds, known)
    return columns_by_name


def _numbers(
    letters: Letters, where: Integers, counts: list[int], field_per_part: list[Field | None], absent: float
) -> Floats | Integers:
    """One column, from a field or None per part; integers where the `absent` value is an integer."""
    if not any(field_per_part):
        return np.asarray(np.full(len(where), absent))
    first, point, stop = (
        np.repeat([getattr(field, name) if field and field.plain else 0 for field in field_per_part], counts)
        for name in ("first", "point", "stop")
    )
    if isinstance(absent, int):
        return np.where(stop > 0, _digits(letters, where + point, point - first).astype(np.int64), absent)
    floats = _decimals(letters, where, first, point, stop)
    floats[stop == 0] = absent
    for field, end, count in zip(field_per_part, np.cumsum(counts).tolist(), counts, strict=True):
        if field and not field.plain:
            lines = where[end - count : end].tolist()
            texts = [letters[at + field.first : at + field.stop].tobytes() for at in lines]
            floats[end - count : end] = [math.nan if (value := _number(text)) is None else value for text in texts]
    floats[~(np.abs(floats) <= LARGEST)] = absent
    return np.asarray(floats, np.float64)


def _decimals(letters: Letters, where: Integers, first: Integers, point: Integers, stop: Integers) -> Floats:
    """Numbers with a decimal point, or none; those of up to eight characters in one piece."""
    decimals = np.maximum(stop - point - 1, 0)
    power = _POWERS[decimals]
    if ((stop - first) > WORD_BYTES).any():
        whole = _digits(letters, where + point, point - first)
        return np.asarray((whole * power + _digits(letters, where + stop, decimals)) / power)
    words = _words(letters, where + stop)
    # The digits before the point move over it; where there is none they stay.
    moved = words << (8 * (stop > point)).astype(np.uint64)
    moved ^= (moved ^ words) & _MASKS[decimals]
    return np.asarray(_value(moved, point - first + decimals) / power)


def _digits(letters: Letters, stop: Integers, width: Integers) -> Floats:
    """Numbers of this many digits, up to sixteen, that end there."""
    low = _eight(letters, stop, np.minimum(width, WORD_BYTES))
    if not (width > WORD_BYTES).any():
        return low
    return low + 1e8 * _eight(letters, stop - WORD_BYTES, np.maximum(width - WORD_BYTES, 0))


def _eight(letters: Letters, stop: Integers, width: Integers) -> Floats:
    return _value(_words(letters, stop), width)


def _words(letters: Letters, stop: Integers) -> npt.NDArray[np.uint64]:
    """The eight characters that end there, each row as one word, its last character the highest byte."""
    rows = np.ndarray((len(letters) - WORD_BYTES + 1, WORD_BYTES), np.uint8, letters, strides=(1, 1))
    # Before the first letters of all stands nothing; their line is read from where it is, and moved.
    begin = stop - WORD_BYTES
    words = rows[np.maximum(begin, 0)].view(np.uint64)[:, 0]
    early = begin < 0
    if early.any():
        words[early] <<= (8 * -begin[early]).astype(np.uint64)
    return np.asarray(words, np.uint64)


def _value(words: npt.NDArray[np.uint64], width: Integers) -> Floats:
    """The numbers of the last `width` digits of the words, which are overwritten."""
    words &= _MASKS[width]
    for mask, factor, shift in _ADDED:
        words &= np.uint64(mask)
        words *= np.uint64(factor)
        words >>= np.uint64(shift)
    return words.astype(np.float64)


def _times(letters: Letters, where: Integers, counts: list[int], field_per_part: list[Field | None]) -> Floats:
    seconds = np.full(len(where), np.nan)
    number = {
        written: at for at, written in enumerate(dict.fromkeys(field.written for field in field_per_part if field))
    }
    kinds = np.repeat([number[field.written] if field else -1 for field in field_per_part], counts)
    first = np.repeat([field.first if field else 0 for field in field_per_part], counts)
    for kind, field in {number[field.written]: field for field in field_per_part if field}.items():
        if field.form:
            which = kinds == kind
            width = field.stop - field.first
            rows = np.ndarray((len(letters) - width + 1, width), np.uint8, letters, strides=(1, 1))
            seconds[which] = field.form.seconds(rows[(where + first)[which]])
    return seconds
