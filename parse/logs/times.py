"""Time stamps as logs print them, to seconds: the form of one reads any number of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from parse.logs.family import Floats

Digits = npt.NDArray[np.uint8]
"""Texts of equal length as rows of characters, of which the last four bits are used: of a digit, its value."""

_CLOCK = rb"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
_FORMS = tuple(
    re.compile(form)
    for form in (
        rb"(?P<year>\d{4})[-/](?P<month>\d\d?)[-/](?P<day>\d\d?)[ T]" + _CLOCK,
        rb"(?:\w{3} )?(?P<name>[A-Z][a-z]{2}) +(?P<day>\d\d?) " + _CLOCK + rb"(?: (?P<year>\d{4}))?",
        rb"(?P<month>\d\d)(?P<day>\d\d) " + _CLOCK,
        _CLOCK,
        rb"(?P<unix>\d{9,10})(?:\.(?P<fraction>\d{1,9})\d*)?",
        rb"(?P<unix_ms>\d{12,13})",
    )
)
_MONTHS = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")
_YEARLESS = 1904
"""Taken where a log prints no year: a leap year, far from any real one."""
_DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a time stamp is written: where the digits of its parts stand; `month` where letters name it."""

    spans: Mapping[str, tuple[int, int]]
    month: int | None = None
    weights: Mapping[str, Floats] = field(default_factory=dict)

    def seconds(self, texts: Digits) -> Floats:
        """Seconds since 1970 of texts of this form, [row]; NaN where the digits are no time."""
        parts = {name: (texts[:, first:past] & 15) @ self.weights[name] for name, (first, past) in self.spans.items()}
        fraction = parts.get("fraction", 0.0)
        if "unix" in parts:
            return np.asarray(parts["unix"] + fraction)
        if "unix_ms" in parts:
            return np.asarray(parts["unix_ms"] / 1e3)
        hour, minute, second = parts["hour"], parts["minute"], parts["second"]
        found = hour * 3600 + minute * 60 + second + fraction
        found[(hour > 23) | (minute > 59) | (second > 60)] = np.nan
        if "day" in parts:
            month = np.full(len(texts), float(self.month)) if self.month else parts["month"]
            year = parts.get("year", np.full(len(texts), float(_YEARLESS)))
            found += _days(year, month, parts["day"]) * _DAY_S
        return np.asarray(found)


def form_of(text: bytes) -> Form | None:
    """The form that the text is written in; None where it is none that is known."""
    for form in _FORMS:
        if found := form.fullmatch(text):
            spans = {name: found.span(name) for name in form.groupindex if found[name] is not None and name != "name"}
            named = found.groupdict().get("name")
            if named is not None and named not in _MONTHS:
                continue
            return Form(
                spans=spans,
                month=_MONTHS.index(named) + 1 if named is not None else None,
                weights={name: _weights(name, past - first) for name, (first, past) in spans.items()},
            )
    return None


def seconds_of(text: bytes) -> float | None:
    """Seconds since 1970 of one time stamp; None where it is none."""
    form = form_of(text)
    if form is None:
        return None
    found = float(form.seconds(np.frombuffer(text, np.uint8)[None])[0])
    return None if np.isnan(found) else found


def _weights(name: str, digits: int) -> Floats:
    powers = np.arange(digits - 1, -1, -1, dtype=np.float64)
    return np.asarray(10.0 ** (powers - digits)) if name == "fraction" else np.asarray(10.0**powers)


def _days(year: Floats, month: Floats, day: Floats) -> Floats:
    """Days since 1970 (Hinnant, days_from_civil); NaN where there is no such month or day."""
    if len(year) > 1 and all((column == column[0]).all() for column in (year, month, day)):
        return np.broadcast_to(_days(year[:1], month[:1], day[:1]), year.shape)
    late = year - (month <= 2)
    era = np.floor(late / 400)
    of_era = late - era * 400
    of_year = np.floor((153 * (month + np.where(month > 2, -3, 9)) + 2) / 5) + day - 1
    days = era * 146_097 + of_era * 365 + np.floor(of_era / 4) - np.floor(of_era / 100) + of_year - 719_468
    return np.where((month >= 1) & (month <= 12) & (day >= 1) & (day <= 31), days, np.nan)
