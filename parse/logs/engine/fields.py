"""The fields of many step lines at once, wherever they stand in a text: numbers and time stamps from their digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parse.logs.engine.log_format import FIELDS, NO_NUMBER, Floats, Integers
from parse.logs.engine.times import Form, form_of

INTEGERS = ("epoch", "step", "first", "rank", "epoch_steps")
MAX_DIGITS = 15
"""More digits than a float64 holds exactly are no number of a step, epoch or rank."""
LARGEST = 1e18
"""Larger numbers are no rate and no time, and their sums overflow."""
WORD = 8
_MASKS = np.array([(1 << 64) - (1 << 8 * (WORD - width)) for width in range(WORD + 1)], np.uint64)
"""Of a word that ends where a number does, what belongs to a number of so many digits."""
_POWERS = 10.0 ** np.arange(2 * WORD + 1)
_ADDED = ((0x0F0F0F0F0F0F0F0F, 2561, 8), (0x00FF00FF00FF00FF, 6553601, 16), (0x0000FFFF0000FFFF, 42949672960001, 32))
"""Makes a number of eight digits: neighbours are added to pairs, these to fours, these to eight."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """Where in a line a field stands, and how it is written, which is the same in all lines of a shape.

    The field spans [`first`, `stop`). `point` is the place of its decimal point, `stop` where it has none; `plain`: it
    consists of digits and at most one point.
    `form` and `written` are of a time stamp.
    """

    first: int
    stop: int
    point: int
    plain: bool
    form: Form | None = None
    written: bytes = b""


Fields = Mapping[str, Field]
Letters = npt.NDArray[np.uint8]


def field_of(name: str, text: bytes, first: int, stop: int) -> Field | None:
    """The field that stands there; None where it cannot be what its name says."""
    text_of_field = text[first:stop]
    if name == "time":
        form = form_of(text_of_field)
        written = text_of_field.translate(_ALIKE)
        return Field(first=first, stop=stop, point=stop, plain=False, form=form, written=written) if form else None
    if name in INTEGERS:
        fits = text_of_field.isdigit() and len(text_of_field) <= MAX_DIGITS
        return Field(first=first, stop=stop, point=stop, plain=True) if fits else None
    try:
        float(text_of_field)
    except ValueError:
        return None
    whole, _, part = text_of_field.partition(b".")
    plain = (whole + part).isdigit() and max(len(whole), len(part)) <= 2 * WORD
    return Field(first=first, stop=stop, point=first + len(whole), plain=plain)


_ALIKE = bytes.maketrans(b"123456789", b"000000000")


def columns(letters: Letters, starts: Sequence[Integers], fields: Sequence[Fields]) -> dict[str, Any]:
    """The columns of Steps but for `offset`, one part below the other.

    Part i are lines that begin at starts[i] and have fields[i]; what they lack stands as absent.
    """
    counts = [len(part) for part in starts]
    where = np.concatenate(starts)
    columns_by_name: dict[str, Any] = {}
    for name in FIELDS:
        field_per_part = [part.get(name) for part in fields]
        if name == "time":
            columns_by_name["time_s"] = _times(letters, where, counts, field_per_part)
        else:
            columns_by_name[name] = _numbers(
                letters, where, counts, field_per_part, NO_NUMBER if name in INTEGERS else np.nan
            )
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
    values = _digits(letters, where + point, point - first)
    if isinstance(absent, int):
        return np.where(stop > 0, values.astype(np.int64), absent)
    decimals = np.maximum(stop - point - 1, 0)
    power = _POWERS[decimals]
    floats = (values * power + _digits(letters, where + stop, decimals)) / power
    floats[stop == 0] = absent
    for field, end, count in zip(field_per_part, np.cumsum(counts).tolist(), counts, strict=True):
        if field and not field.plain:
            lines = where[end - count : end].tolist()
            floats[end - count : end] = [float(letters[at + field.first : at + field.stop].tobytes()) for at in lines]
    floats[~(np.abs(floats) <= LARGEST)] = absent
    return np.asarray(floats, np.float64)


def _digits(letters: Letters, stop: Integers, width: Integers) -> Floats:
    """Numbers of so many digits, up to sixteen, that end there."""
    low = _eight(letters, stop, np.minimum(width, WORD))
    if not (width > WORD).any():
        return low
    return low + 1e8 * _eight(letters, stop - WORD, np.maximum(width - WORD, 0))


def _eight(letters: Letters, stop: Integers, width: Integers) -> Floats:
    rows = np.ndarray((len(letters) - WORD + 1, WORD), np.uint8, letters, strides=(1, 1))
    # Before the first letters of all stands nothing; their line is read from where it is, and moved.
    begin = stop - WORD
    words = rows[np.maximum(begin, 0)].view(np.uint64)[:, 0]
    early = begin < 0
    if early.any():
        words[early] <<= (8 * -begin[early]).astype(np.uint64)
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
