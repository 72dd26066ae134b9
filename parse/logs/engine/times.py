"""Time stamps as logs print them, to seconds: the form of one reads any number of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parse.logs.engine.log_format import Floats

Digits = npt.NDArray[np.uint8]
"""Texts of equal length as rows of characters, of which the last four bits are used: of a digit, its value."""

_CLOCK = rb"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
_FORMS = tuple(
    re.compile(form)
    for form in (
        rb"(?P<year>\d{4})[-/](?P<month>\d\d?)[-/](?P<day>\d\d?)[ T]" + _CLOCK,
        rb"(?:\w{3} )?(?P<name>[A-Z][a-z]{2}) +(?P<day>\d\d?) " + _CLOCK + rb"(?: (?P<year>\d{4}))?",
        rb"(?P<day>\d\d?) (?P<name>[A-Z][a-z]{2}) (?P<year>\d{4}) " + _CLOCK,
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

    def seconds(self, texts: Digits) -> Floats:
        """Seconds since 1970 of texts of this form, [row]; NaN where the digits are no time."""
        if "unix" in self.spans or "unix_ms" in self.spans:
            return self._sum(texts, {"unix": 1.0, "unix_ms": 1e-3})
        total = self._sum(texts, {"hour": 3600.0, "minute": 60.0, "second": 1.0})
        hour, minute, second = (self._part(texts, name) for name in ("hour", "minute", "second"))
        total[(hour > 23) | (minute > 59) | (second > 60)] = np.nan
        return total + self._days(texts) * _DAY_S if "day" in self.spans else total

    def _sum(self, texts: Digits, units: Mapping[str, float]) -> Floats:
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

    def _part(self, texts: Digits, name: str) -> Digits:
        """The value of a part of two digits."""
        first, _ = self.spans[name]
        return (texts[:, first] & 15) * np.uint8(10) + (texts[:, first + 1] & 15)

    def _days(self, texts: Digits) -> Floats:
        """Days since 1970, of one date or of one each."""
        dates = [self.spans[name] for name in ("year", "month", "day") if name in self.spans]
        if all((texts[:, first:stop] == texts[0, first:stop]).all() for first, stop in dates):
            texts = texts[:1]
        year, month, day = (self._number(texts, name) for name in ("year", "month", "day"))
        return _days_of(year, month, day)

    def _number(self, texts: Digits, name: str) -> Floats:
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


def seconds_of(text: bytes) -> float | None:
    """Seconds since 1970 of one time stamp; None where it is none."""
    form = form_of(text)
    if form is None:
        return None
    seconds = float(form.seconds(np.frombuffer(text, np.uint8)[None])[0])
    return None if np.isnan(seconds) else seconds


def _days_of(year: Floats, month: Floats, day: Floats) -> Floats:
    """Days since 1970 (Hinnant, days_from_civil); NaN where there is no such month or day."""
    march_year = year - (month <= 2)
    era = np.floor(march_year / 400)
    of_era = march_year - era * 400
    of_year = np.floor((153 * (month + np.where(month > 2, -3, 9)) + 2) / 5) + day - 1
    days = era * 146_097 + of_era * 365 + np.floor(of_era / 4) - np.floor(of_era / 100) + of_year - 719_468
    return np.where((month >= 1) & (month <= 12) & (day >= 1) & (day <= 31), days, np.nan)
