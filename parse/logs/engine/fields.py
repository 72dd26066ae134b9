"""The fields of many step lines at once: numbers and time stamps from their digits."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
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
        rb"(?P<year>\d{4})[-/](?P<month>\d\d?)[-/](?P<day>\d\d?)[ T,]" + _CLOCK,
        rb"(?:\w{3} )?(?P<name>[A-Z][a-z]{2}) +(?P<day>\d\d?) " + _CLOCK + rb"(?: (?P<year>\d{4}))?",
        rb"(?P<day>\d\d?) (?P<name>[A-Z][a-z]{2}) (?P<year>\d{4}) " + _CLOCK,
        rb"(?P<year>\d{4})(?P<month>\d\d)(?P<day>\d\d) " + _CLOCK,
        rb"(?P<month>\d\d)/?(?P<day>\d\d) " + _CLOCK,
        _CLOCK,
        rb"(?P<unix>\d{9,10})(?:\.(?P<fraction>\d{1,9})\d*)?",
        rb"(?P<unix_ms>\d{12,13})",
        rb"(?P<unix_us>\d{16})",
    )
)
TIME_STAMP = b"|".join(re.sub(rb"\?P<\w+>", b"?:", form.pattern) for form in _FORMS)
"""Pattern of a time stamp in any of the forms that `form_of` knows, without groups of a name."""
DATED_STAMP = b"|".join(re.sub(rb"\?P<\w+>", b"?:", form.pattern) for form in _FORMS if b"<day>" in form.pattern)
"""The same of those with a date."""
_RUNTIME = re.compile(rb"(?:(?P<hour>\d{1,4}):)?(?P<minute>\d\d):(?P<second>\d\d)")
RUNTIME_ORIGIN_S = 10 * 86_400.0
"""Times since a beginning count from here, so that none is taken for a time of day."""
_MONTHS = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")
_YEARLESS = 1904
"""Taken where a log prints no year: a leap year, far from any real one."""
_DAY_S = 86_400.0
_EPOCH = date(1970, 1, 1)
_DATE = ("year", "month", "day")


@dataclass(frozen=True, kw_only=True)
class Form:
    """The form of a time stamp: the places of the digits of its parts; `month` if letters name it; `runtime`: it is the
    time since a beginning."""

    spans: Mapping[str, tuple[int, int]]
    month: int | None = None
    runtime: bool = False

    def seconds(self, texts: Letters) -> Floats:
        """Seconds since 1970 of texts of this form, [row]; NaN where the digits are no time."""
        part = {name: _value(texts[:, first:stop]) for name, (first, stop) in self.spans.items() if name not in _DATE}
        seconds = part.get("unix", 0) + part.get("unix_ms", 0) / 1e3 + part.get("unix_us", 0) / 1e6
        if "minute" in part:
            hour, minute, second = part.get("hour", np.zeros(len(texts))), part["minute"], part["second"]
            seconds = 3600 * hour + 60 * minute + second
            seconds[(minute > 59) | (second > 60) | ((hour > 23) & (not self.runtime))] = np.nan
        if "fraction" in part:
            first, stop = self.spans["fraction"]
            seconds = seconds + part["fraction"] / 10.0 ** (stop - first)
        if "day" in self.spans:
            seconds = seconds + self._days(texts) * _DAY_S
        return np.asarray(seconds + RUNTIME_ORIGIN_S if self.runtime else seconds)

    def _days(self, texts: Letters) -> Floats:
        """Days since 1970 of the dates, [row], or of the one that all have."""
        spans = [self.spans[name] for name in _DATE if name in self.spans]
        places = [place for span in spans for place in range(*span)]
        distinct, which = texts[:1], np.zeros(len(texts), np.int64)
        if not (texts[:, places] == texts[0, places]).all():
            _, first, which = np.unique(texts[:, places], axis=0, return_index=True, return_inverse=True)
            distinct, which = texts[first], which.reshape(-1)
        return np.array([self._day_of(row.tobytes()) for row in distinct])[which]

    def _day_of(self, text: bytes) -> float:
        """The day since 1970 of one date; NaN where there is none."""
        year, month, day = (
            int(text[slice(*self.spans[name])]) if name in self.spans else default
            for name, default in zip(_DATE, (_YEARLESS, self.month or 0, 0), strict=True)
        )
        try:
            return (date(year, month, day) - _EPOCH).days
        except ValueError:
            return math.nan


def form_of(text: bytes, *, runtime: bool = False) -> Form | None:
    """The form that a time stamp, or a time since a beginning, is written in; None where it is none that is known."""
    for form in (_RUNTIME,) if runtime else _FORMS:
        if match := form.fullmatch(text):
            spans = {name: match.span(name) for name in form.groupindex if match[name] is not None and name != "name"}
            named = match.groupdict().get("name")
            if named is None or named in _MONTHS:
                return Form(spans=spans, month=_MONTHS.index(named) + 1 if named else None, runtime=runtime)
    return None


def seconds_of(text: bytes) -> float | None:
    """Seconds since 1970 of one time stamp; None where it is none."""
    form = form_of(text)
    seconds = math.nan if form is None else float(form.seconds(np.frombuffer(text, np.uint8)[None])[0])
    return None if math.isnan(seconds) else seconds


INTEGERS = ("epoch", "step", "first", "rank", "epoch_steps")
MAX_DIGITS = 15
"""More digits than a float64 holds exactly are no number of a step, epoch or rank."""
LARGEST = 1e18
"""Larger numbers are no rate and no time, and their sums overflow."""
MAX_WIDTH = MAX_DIGITS + 1
"""Characters of a plain number, which has a decimal point; a text holds so many more behind its last line."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """The place and form of a field in a line, the same in all lines of a shape.

    The field spans [`first`, `stop`). `point` is the place of its decimal point, `stop` if it has none; `plain`: it
    consists of MAX_DIGITS digits at most and perhaps a point. `form` and `written` are of a time stamp.
    """

    first: int
    stop: int
    point: int
    plain: bool
    form: Form | None = None
    written: bytes = b""


Fields = Mapping[str, Field]
SINGLE = frozenset(("duration_s", "duration_ms", "steps_per_s"))
"""Fields that are of one step."""


def field_of(name: str, text: bytes, first: int, stop: int) -> Field | None:
    """The field at this place; None if its text does not fit its name."""
    text_of_field = text[first:stop]
    if name in ("time", "runtime"):
        form = form_of(text_of_field, runtime=name == "runtime")
        written = text_of_field.translate(ALIKE)
        return Field(first=first, stop=stop, point=stop, plain=False, form=form, written=written) if form else None
    if name in INTEGERS:
        fits = text_of_field.isdigit() and len(text_of_field) <= MAX_DIGITS
        return Field(first=first, stop=stop, point=stop, plain=True) if fits else None
    if _number(text_of_field) is None:
        return None
    whole, _, part = text_of_field.partition(b".")
    plain = (whole + part).isdigit() and len(whole + part) <= MAX_DIGITS
    return Field(first=first, stop=stop, point=first + len(whole), plain=plain)


def units_of(fields: Sequence[Fields]) -> dict[str, float]:
    """The worth of the last digit that lines print of the time of a step, by the names of these fields."""
    units: dict[str, float] = {}
    for of_kind in fields:
        for name in SINGLE & of_kind.keys():
            unit = 10.0 ** -max(of_kind[name].stop - of_kind[name].point - 1, 0)
            units[name] = min(unit, units.get(name, unit))
    return units


def _number(text: bytes) -> float | None:
    """The number, which may have commas between thousands; None where the text is none."""
    try:
        return float(text.replace(b",", b"") if _THOUSANDS.fullmatch(text) else text)
    except ValueError:
        return None


_THOUSANDS = re.compile(rb"\d{1,3}(?:,\d{3}){1,5}(?:\.\d{1,15})?")
ALIKE = bytes.maketrans(b"123456789", b"000000000")
"""Makes texts equal that differ in digits alone."""


def columns(letters: Letters, starts: Integers, kinds: Integers, fields: Sequence[Fields]) -> dict[str, Any]:
    """The columns of Steps but for `offset`.

    Step i is of the line that begins at starts[i] and has fields[kinds[i]]; fields that it lacks are absent. Fields
    IN_OTHER_UNITS take the place of those that they express. Behind the lines `letters` has MAX_WIDTH more.
    """
    printed = {name for of_kind in fields for name in of_kind}
    columns_by_name: dict[str, Any] = {}
    for name in FIELDS:
        stand_in = {"time": "runtime", "batch": "consumed"}.get(name, "")
        column, absent = "time_s" if name == "time" else name, NO_NUMBER if name in INTEGERS else np.nan
        if name in printed or stand_in in printed:
            by_kind = [of_kind.get(name) or of_kind.get(stand_in) for of_kind in fields]
            columns_by_name[column] = (_times if name == "time" else _numbers)(letters, starts, kinds, by_kind, absent)
        else:
            columns_by_name[column] = np.full(len(starts), absent)
    for name, instead, as_printed in _AS_NUMBERS:
        if name in printed:
            by_kind = [of_kind.get(name) for of_kind in fields]
            with np.errstate(divide="ignore", over="ignore"):
                numbers = as_printed(np.asarray(_numbers(letters, starts, kinds, by_kind, np.nan), np.float64))
            columns_by_name[instead] = np.where(np.isfinite(numbers), numbers, columns_by_name[instead])
    return columns_by_name


_AS_NUMBERS: Sequence[tuple[str, str, Callable[[Floats], Floats]]] = (
    ("duration_ms", "duration_s", lambda ms: ms / 1e3),
    ("steps_per_s", "duration_s", lambda rates: 1 / rates),
    ("since_s", "time_s", lambda seconds: seconds + RUNTIME_ORIGIN_S),
    ("since_ms", "time_s", lambda ms: ms * 1e-3 + RUNTIME_ORIGIN_S),
    ("mean_ms", "mean_s", lambda ms: ms * 1e-3),
    ("consumed_billions", "batch", lambda billions: billions * 1e9),
)
"""Groups that are plain numbers: the column that they stand for, and its number."""


def _numbers(
    letters: Letters, starts: Integers, kinds: Integers, fields: Sequence[Field | None], absent: float
) -> Floats | Integers:
    """One column, from a field or None per kind; integers where the `absent` value is an integer."""
    plain = [(kind, field) for kind, field in enumerate(fields) if field and field.plain]
    width = max((field.stop - field.first for _, field in plain), default=1)
    first, weights, divisors = np.zeros(len(fields), np.int64), np.zeros((len(fields), width)), np.ones(len(fields))
    for kind, field in plain:
        decimals = max(field.stop - field.point - 1, 0)
        first[kind], divisors[kind] = field.first, 10.0**decimals
        weights[kind, : field.stop - field.first] = _weights(field.point - field.first, field.stop - field.first)
    # Digits and sums of MAX_DIGITS are exact, so that the quotient is the number that float reads.
    digits = _texts(letters, width)[starts + first[kinds]] & 15
    values = np.einsum("ij,ij->i", digits.astype(np.float64), weights[kinds]) / divisors[kinds]
    values[np.array([field is None for field in fields])[kinds]] = absent
    if isinstance(absent, int):
        return np.asarray(values, np.int64)
    for kind, other in enumerate(fields):
        if other and not other.plain:
            which = np.flatnonzero(kinds == kind)
            texts = [letters[start + other.first : start + other.stop].tobytes() for start in starts[which].tolist()]
            values[which] = [math.nan if (value := _number(text)) is None else value for text in texts]
    values[~(np.abs(values) <= LARGEST)] = absent
    return np.asarray(values)


@lru_cache(maxsize=1 << 10)
def _weights(whole: int, width: int) -> Floats:
    """The worth of each character of a number, in its last digit; its point, if any, is behind `whole` digits."""
    powers = 10.0 ** np.arange(width - 1 - (whole < width), -1, -1)
    return np.asarray(np.insert(powers, whole, 0.0) if whole < width else powers, np.float64)


def _value(digits: Letters) -> Floats:
    """The whole numbers that rows of digits are, [row]."""
    return np.asarray((digits & 15) @ 10.0 ** np.arange(digits.shape[1] - 1, -1, -1))


def _texts(letters: Letters, width: int) -> Letters:
    """The texts of so many characters, [where it begins, character]; a view."""
    return np.ndarray((len(letters) - width + 1, width), np.uint8, letters, strides=(1, 1))


def _times(
    letters: Letters, starts: Integers, kinds: Integers, fields: Sequence[Field | None], absent: float
) -> Floats:
    seconds = np.full(len(starts), absent)
    first = np.array([field.first if field else 0 for field in fields], np.int64)
    for written, field in {field.written: field for field in fields if field}.items():
        which = np.flatnonzero(np.array([bool(each and each.written == written) for each in fields])[kinds])
        if field.form and len(which):
            rows = _texts(letters, field.stop - field.first)[(starts + first[kinds])[which]]
            seconds[which] = field.form.seconds(rows)
    return seconds
