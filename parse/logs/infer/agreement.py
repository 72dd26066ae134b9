"""The fields of step lines held against one another: which times and speeds agree, and what each would be."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from parse.logs.infer.vocabulary import (
    ALL,
    DEVICE,
    ELAPSED,
    EPOCH,
    MEAN,
    PACE,
    RATE,
    SINGLE,
    STEP,
    TIME,
    TOKENS,
    WORK,
    NumberRole,
)
from parse.logs.infer.words import LineWords, NamedNumber

Floats = npt.NDArray[np.float64]

TOLERANCE = 0.01
"""Two readings agree within this share, beside what their digits leave open."""
COARSE = 0.05
"""A reading whose digits leave more of a time open confirms nothing."""
MIN_STEPS = 4
"""Printed steps that are enough to compare fields."""
MAX_STEP = 1 << 40
NEAR = 3
"""Printed steps by which the lines of ranks that run together may be apart."""
STAMPS, INTERVAL = "time stamps", "interval"
MAX_DEVICES = 1 << 16
MOST = 0.9
"""The compared intervals of a window have so much of their share of its time: none that is left out is far longer."""
VARIES = 4.0
"""A product is constant where its factors vary so many times more."""


@dataclass(frozen=True, kw_only=True)
class FieldColumn:
    """A field of all printed steps: its values in its own unit, NaN where absent, and the worth of its last digits."""

    name: str
    role: NumberRole
    values: Floats
    digits: Floats
    plain: bool
    is_time: bool = False


@dataclass(frozen=True, kw_only=True)
class StepSeries:
    """Printed steps in ascending order; lines of several ranks for one step are one. `stamps` is NaN where absent."""

    steps: Floats
    epochs: Floats
    stamps: Floats
    stamp_digit: float
    columns: tuple[FieldColumn, ...]
    goes_back: bool
    """Steps begin again, as of another run: only those before count."""

    @property
    def gaps(self) -> Floats:
        """The steps from each printed step to the next; NaN over the border of epochs where numbers begin again."""
        steps = np.diff(self.steps)
        return np.where(steps > 0, steps, np.nan)


def step_name(rows: Sequence[LineWords]) -> str | None:
    """The name of the field that counts steps: it grows, and falls least within an epoch; None where none does."""
    best, best_score = None, 0.0
    for name in dict.fromkeys(number.name for words in rows for number in words.numbers if _is(number, STEP)):
        counted = [
            (value, next((number.value for number in words.numbers if _is(number, EPOCH)), -1.0))
            for words in rows
            if (value := _value(words, name, STEP)) is not None and value < MAX_STEP
        ]
        values, epochs = np.array(counted).reshape(-1, 2).T
        changes = np.diff(values)[np.diff(epochs) <= 0]
        ups, downs = int((changes > 0).sum()), int((changes < 0).sum())
        score = ups - 3 * downs + (0.5 if "global" in name else 0.0)
        if ups >= MIN_STEPS - 1 and score > best_score:
            best, best_score = name, score
    return best


def _is(number: NamedNumber, kind: str) -> bool:
    return number.role is not None and number.role.kind == kind


def _value(words: LineWords, name: str, kind: str) -> float | None:
    return next((number.value for number in words.numbers if number.name == name and _is(number, kind)), None)


def series_of(rows: Sequence[LineWords], step: str) -> StepSeries:
    """The printed steps of lines of one form, up to where they go back."""
    order: list[tuple[float, float]] = []
    lines: dict[tuple[float, float], list[LineWords]] = {}
    goes_back = False
    for words in rows:
        value = _value(words, step, STEP)
        if value is None or not value < MAX_STEP:
            continue
        epoch = next((number.value for number in words.numbers if _is(number, EPOCH) and number.value < MAX_STEP), -1.0)
        key = (epoch, value)
        if key in lines:
            if key not in order[-NEAR:]:
                goes_back = True
                break
            lines[key].append(words)
        elif order and key < order[-1]:
            if len(order) > NEAR and key < order[-NEAR]:
                goes_back = True
                break
            lines[key] = [words]
            order.append(key)
            order.sort()
        else:
            lines[key] = [words]
            order.append(key)
    names = dict.fromkeys(
        (number.name, number.role) for each in (rows[:64] if order else ()) for number in each.numbers
        if number.role is not None and number.role.kind in (RATE, PACE, TIME, WORK)
    )  # fmt: skip
    grouped_rows = [lines[key] for key in order]
    stamps = [[words.stamp for words in same if words.stamp] for same in grouped_rows]
    return StepSeries(
        steps=np.array([key[1] for key in order], np.float64),
        epochs=np.array([key[0] for key in order], np.float64),
        stamps=_unwrapped(
            np.array([max((each.seconds for each in same), default=np.nan) for same in stamps], np.float64)
        ),
        stamp_digit=min((each.digit for same in stamps for each in same), default=1.0),
        columns=tuple(_column(grouped_rows, name, role) for name, role in names if role is not None),
        goes_back=goes_back,
    )


def _unwrapped(stamps: Floats) -> Floats:
    """Times of day go on behind midnight."""
    if not len(stamps) or not np.nanmax(stamps, initial=0) < 86_400:
        return stamps
    back = np.diff(stamps, prepend=stamps[:1]) < -43_200
    return np.asarray(stamps + 86_400.0 * np.cumsum(back))


def _column(rows: Sequence[Sequence[LineWords]], name: str, role: NumberRole) -> FieldColumn:
    values, digits, plain = [], [], True
    for same in rows:
        hits = [number for words in same for number in words.numbers if number.name == name and number.role == role]
        values.append(
            hits[0].value if len(hits) == 1 else float(np.median([number.value for number in hits])) if hits else np.nan
        )
        digits.append(max((number.digit for number in hits), default=np.nan))
        plain &= all(number.plain for number in hits)
    is_time = any(
        number.is_time for words in rows[0] for number in words.numbers if number.name == name and number.role == role
    )
    return FieldColumn(
        name=name, role=role, values=np.array(values), digits=np.array(digits), plain=plain, is_time=is_time
    )


@dataclass(frozen=True, kw_only=True)
class FieldTimes:
    """The seconds between printed steps by one field, NaN where unknown, and how far off each may be; `ends`: errors do
    not add up, as those of a clock that is read at both ends. `how` is what the field's number was taken for."""

    field: str
    how: str
    factor: float
    seconds: Floats
    errors: Floats
    ends: bool
    role: NumberRole | None
    plain: bool = True
    is_time: bool = False
    """As of a column: `--pattern` can read it; it is written in parts."""

    def total(self, among: npt.NDArray[np.bool_]) -> tuple[float, float]:
        """Seconds of those intervals, and how far off they may be."""
        errors = self.errors[among]
        return float(self.seconds[among].sum()), float(errors.max() if self.ends else errors.sum())


def times_of(series: StepSeries) -> list[FieldTimes]:
    """All that the fields may say of the time between printed steps."""
    gaps, times = series.gaps, []
    known = np.isfinite(series.stamps)
    if known.sum() > 1:
        seconds = np.diff(series.stamps)
        errors = np.full(len(seconds), series.stamp_digit)
        stamps = FieldTimes(field=STAMPS, how=ELAPSED, factor=1.0, seconds=seconds, errors=errors, ends=True, role=None)
        times.append(stamps)
    for column in series.columns:
        if column.role.kind == TIME:
            for factor in column.role.factors:
                times += _readings(series, column, factor, gaps)
        elif column.role.kind == PACE:
            times += _paces(series, column, gaps)
    return [each for each in times if np.isfinite(each.seconds).any() and np.nansum(each.seconds) > 0]


def _readings(series: StepSeries, column: FieldColumn, factor: float, gaps: Floats) -> Iterator[FieldTimes]:
    """What a field of times may be: the time since the beginning, of a step, of all steps since the line before, or a
    mean of all steps so far."""
    values, digits, hint = column.values * factor, column.digits[1:] * factor, column.role.hint
    single = FieldTimes(
        field=column.name, how=SINGLE, factor=factor, seconds=values[1:] * gaps, errors=digits / 2 * gaps, ends=False,
        role=column.role, plain=column.plain, is_time=column.is_time,
    )  # fmt: skip
    changes = np.where(np.isfinite(gaps), np.diff(values), np.nan)
    known = changes[np.isfinite(changes)]
    if hint in ("", ELAPSED) and (known >= 0).all() and known.any():
        yield dataclasses.replace(single, how=ELAPSED, seconds=changes, errors=digits, ends=True)
    if hint != ELAPSED:
        yield single
        if np.nanmax(gaps, initial=1) > 1 and hint != MEAN:
            yield dataclasses.replace(single, how=INTERVAL, seconds=values[1:], errors=digits / 2)
    if hint in ("", MEAN):
        for first in (0, 1) if series.steps[:1] == 0 else (0,):
            steps = series.steps + first
            total = np.where(np.isfinite(gaps), np.diff(values * steps), np.nan)
            yield dataclasses.replace(single, how=MEAN, seconds=total, errors=digits * steps[1:], ends=True)


def _paces(series: StepSeries, column: FieldColumn, gaps: Floats) -> Iterator[FieldTimes]:
    """What a field of steps per second may be: of a step, or a mean of all steps so far."""
    each = 1 / column.values
    open_share = column.digits / 2 / column.values
    elapsed = series.steps * each
    single = FieldTimes(
        field=column.name, how=SINGLE, factor=1.0, seconds=each[1:] * gaps, errors=(each * open_share)[1:] * gaps,
        ends=False, role=column.role, plain=column.plain, is_time=column.is_time,
    )  # fmt: skip
    yield single
    total = np.where(np.isfinite(gaps), np.diff(elapsed), np.nan)
    yield dataclasses.replace(single, how=MEAN, seconds=total, errors=(2 * elapsed * open_share)[1:], ends=True)


def differ_by(first: FieldTimes, other: FieldTimes, *, trimmed: bool) -> float | None:
    """How far two readings are apart beyond what their digits leave open, as a share: 0 where they agree exactly. None
    where they cannot be compared. `trimmed`: single intervals that are apart, as pauses are, do not count."""
    among = np.isfinite(first.seconds) & np.isfinite(other.seconds)
    if among.sum() < (MIN_STEPS - 1 if trimmed else 1):
        return None
    if not trimmed and any(np.nanmean(each.seconds) * MOST > each.seconds[among].mean() for each in (first, other)):
        return None
    if trimmed:
        ratio = first.seconds / other.seconds
        open_share = (first.errors + other.errors) / np.maximum(first.seconds, other.seconds)
        apart = ~(np.abs(np.log(ratio, where=ratio > 0, out=np.full(len(ratio), np.inf))) < 0.2 + open_share)
        if (apart & among).sum() <= among.sum() / 5:
            among &= ~apart
    (seconds, error), (other_s, other_error) = first.total(among), other.total(among)
    largest = max(seconds, other_s)
    if not largest > 0 or error + other_error > COARSE * largest:
        return None
    return max(abs(seconds - other_s) - error - other_error, 0.0) / largest


def shown(field: str) -> str:
    """The name of a field in a sentence."""
    return field or "a number without a name"


@dataclass(frozen=True, kw_only=True)
class ConfirmedRate:
    """A rate that a time confirms: `how` in words. `per_step` is what a step takes in by it; `devices` how many times
    that is in the printed work of a step, None where no work is printed."""

    column: FieldColumn
    by: FieldTimes
    per_step: float
    devices: int | None
    how: str


@dataclass(frozen=True, kw_only=True)
class FieldAgreement:
    """What the fields of a series come to.

    `times` agree with one another; `speed` is a rate that they confirm, `counter` a work of all steps so far that
    grows with them. `against` are sentences on readings that contradict; `readings` all that were compared, as text.
    `is_unit_open`: times agree, in s as well as in ms; these are not believed.
    """

    times: tuple[FieldTimes, ...]
    speed: ConfirmedRate | None
    counter: FieldColumn | None
    against: tuple[str, ...]
    readings: tuple[str, ...]
    step_s: float | None
    is_unit_open: bool = False

    @property
    def is_confirmed(self) -> bool:
        """Whether two fields say the same and none something else."""
        return bool(self.times or self.speed) and not self.against


@np.errstate(all="ignore")
def agreement_of(series: StepSeries, *, trimmed: bool, per_step: float | None = None) -> FieldAgreement:
    """Holds all fields against one another. `per_step` is what a step takes in where that is known from other lines."""
    times = times_of(series)
    pairs = [
        (first, other)
        for first, other in combinations(times, 2)
        if first.field != other.field
        and (apart := differ_by(first, other, trimmed=trimmed)) is not None
        and apart <= TOLERANCE
    ]
    cluster = _cluster(times, pairs)
    speeds = _speeds(series, cluster or [each for each in times if each.how != MEAN], per_step)
    speed = max(
        speeds,
        key=lambda each: (each.column.role.unit == TOKENS, each.column.role.scope != "", each.devices is not None),
        default=None,
    )
    by_rate = [each for each in times if speed is not None and each.field == speed.by.field]
    if speed is not None and not cluster and _is_certain(series, speed):
        cluster = [speed.by]
    is_unit_open = bool(cluster) and _has_open_unit(cluster) and (speed is None or speed.devices is None)
    cluster = [] if is_unit_open else cluster
    return FieldAgreement(
        times=tuple(cluster),
        speed=speed,
        counter=_counter(series),
        against=tuple(_against(series, times, cluster[:1] or by_rate, trimmed=trimmed)),
        readings=tuple(_as_text(series, times)),
        step_s=_step_s(series, cluster[0]) if cluster else None,
        is_unit_open=is_unit_open,
    )


def _has_open_unit(times: Sequence[FieldTimes]) -> bool:
    """Whether all of them agree in another unit, too."""
    return all(each.role is not None and len(each.role.factors) > 1 for each in times)


def _is_certain(series: StepSeries, speed: ConfirmedRate) -> bool:
    """Whether the time that confirms a rate is certain itself: its unit, and whether it is of one step."""
    role = speed.by.role
    if role is None or role.kind == PACE or speed.devices == 1:
        return True
    of_one_step = speed.by.how == ELAPSED or role.hint == SINGLE or bool((np.nanmax(series.gaps) == 1).all())
    return of_one_step and len(role.factors) == 1


def _cluster(times: Sequence[FieldTimes], pairs: Sequence[tuple[FieldTimes, FieldTimes]]) -> list[FieldTimes]:
    """The readings that agree with the one that most fields agree with, one of each field, finest first."""
    if not pairs:
        return []
    identities = {id(each): each for each in times}
    agrees: dict[int, set[int]] = {key: set() for key in identities}
    for first, other in pairs:
        agrees[id(first)].add(id(other))
        agrees[id(other)].add(id(first))
    center = max(
        identities,
        key=lambda key: (
            len({identities[other].field for other in agrees[key]}),
            identities[key].how != MEAN,
            -_openness(identities[key]),
        ),
    )
    members = [identities[center], *(identities[key] for key in agrees[center])]
    members.sort(key=_openness_of_kind)
    return list({each.field: each for each in reversed(members)}.values())[::-1]


def _openness_of_kind(times: FieldTimes) -> tuple[bool, float]:
    return times.how == MEAN, _openness(times)


def _openness(times: FieldTimes) -> float:
    """The share of the whole time that its digits leave open."""
    seconds, error = times.total(np.isfinite(times.seconds))
    return error / seconds if seconds > 0 else np.inf


def _step_s(series: StepSeries, times: FieldTimes) -> float:
    among = np.isfinite(times.seconds) & np.isfinite(series.gaps)
    return float(times.seconds[among].sum() / series.gaps[among].sum())


def _speeds(series: StepSeries, times: Sequence[FieldTimes], per_step: float | None) -> Iterator[ConfirmedRate]:
    for column in series.columns:
        if column.role.kind == RATE:
            yield from [speed for each in times if (speed := _speed(series, column, each, per_step))][:1]


def _speed(series: StepSeries, column: FieldColumn, times: FieldTimes, per_step: float | None) -> ConfirmedRate | None:
    """The rate as far as this time confirms it: their product is what a step takes in."""
    rates, gaps = column.values[1:], series.gaps
    among = np.isfinite(rates) & np.isfinite(times.seconds) & np.isfinite(gaps)
    if not among.any() or not (rates[among] > 0).all():
        return None
    seconds, error = times.total(among)
    open_share = float(np.divide(error, seconds) + np.nanmean(column.digits[1:][among] / 2 / rates[among]))
    if not (seconds > 0 and open_share <= COARSE):
        return None
    product = float((rates * times.seconds)[among].sum() / gaps[among].sum())
    name = f"{shown(column.name)} × {shown(times.field)}"
    for work in series.columns:
        if work.role.kind == WORK and work.role.unit == column.role.unit:
            printed, work_error = _work(work, series, among)
            share = open_share + work_error / printed if printed else 0.0
            if printed and (devices := _multiple(printed / product, share, column.role.scope)):
                how = f"{name} is {work.name}{f' / {devices}' if devices > 1 else ''} ({printed:.6g} a step)"
                return ConfirmedRate(column=column, by=times, per_step=product, devices=devices, how=how)
    same = f"{name} is the same in every step ({product:.6g})"
    if per_step is not None and abs(product / per_step - 1) <= TOLERANCE / 2 + open_share:
        return ConfirmedRate(column=column, by=times, per_step=product, devices=None, how=same)
    if among.sum() >= MIN_STEPS - 1 and times.how != MEAN and (times.seconds[among] > 0).all():
        pace = np.log(times.seconds[among] / gaps[among])
        spread, varies = float(np.std(np.log(rates[among]) + pace)), float(np.std(pace))
        digits = float(np.mean(times.errors[among] / times.seconds[among])) + open_share
        if spread <= min(max(TOLERANCE / 2, digits), 2 * TOLERANCE) and varies > VARIES * max(spread, digits / 4):
            how = f"{same} while both vary"
            return ConfirmedRate(column=column, by=times, per_step=product, devices=None, how=how)
    return None


def _work(work: FieldColumn, series: StepSeries, among: npt.NDArray[np.bool_]) -> tuple[float | None, float]:
    """What a step takes in by a field of work, and how far off that may be; None where it does not say."""
    factor, steps = work.role.factors[0], series.gaps
    if _grows(work.values):
        changes = np.diff(work.values)
        known = among & np.isfinite(changes)
        if not known.any() or not (changes[known] > 0).all():
            return None, 0.0
        total = steps[known].sum()
        return float(changes[known].sum() / total * factor), float(np.nanmax(work.digits) * factor / total)
    values = work.values[1:]
    known = among & np.isfinite(values) & (values > 0)
    if not known.any():
        return None, 0.0
    each = float((values * steps)[known].sum() / steps[known].sum() * factor)
    return each, float(np.nanmax(work.digits) * factor / 2)


def _grows(values: Floats) -> bool:
    changes = np.diff(values[np.isfinite(values)])
    return bool(len(changes) and (changes > 0).all())


def _multiple(ratio: float, open_share: float, scope: str) -> int | None:
    """The whole number that a ratio is: 1, or where the rate is of one device by its words, of the devices."""
    tolerance = TOLERANCE / 2 + open_share
    whole = round(ratio)
    if whole == 1 and abs(ratio - 1) <= tolerance:
        return 1
    if scope != DEVICE or not 1 < whole <= MAX_DEVICES or whole * tolerance > 0.1:
        return None
    return whole if abs(ratio / whole - 1) <= tolerance else None


def _counter(series: StepSeries) -> FieldColumn | None:
    """The field of work that grows in proportion to the steps."""
    for column in series.columns:
        if column.role.kind == WORK and _grows(column.values) and column.role.factors == (1.0,):
            changes, gaps = np.diff(column.values), series.gaps
            among = np.isfinite(changes) & np.isfinite(gaps)
            each = changes[among] / gaps[among]
            if among.sum() >= MIN_STEPS - 1 and np.std(each) <= TOLERANCE * np.mean(each):
                return column
    return None


def _against(
    series: StepSeries, times: Sequence[FieldTimes], reference: Sequence[FieldTimes], *, trimmed: bool
) -> Iterator[str]:
    """The fields that say by their words what they are, and contradict each reading of the `reference`."""
    agreed = {each.field for each in reference}
    for field in dict.fromkeys(each.field for each in times if reference and each.field not in agreed):
        readings = [each for each in times if each.field == field]
        role = readings[0].role
        apart = [
            (by, place, against)
            for place, each in enumerate(readings)
            for against, other in enumerate(reference)
            if (by := differ_by(each, other, trimmed=trimmed)) is not None
        ]
        is_explicit = role is None or role.hint in (SINGLE, ELAPSED) or role.kind == PACE
        if is_explicit and apart and min(apart)[0] > TOLERANCE:
            _, place, against = min(apart)
            yield (
                f"{shown(field)} makes {_step_s(series, readings[place]):.4g} s a step, and "
                f"{shown(reference[against].field)} {_step_s(series, reference[against]):.4g} s"
            )


def _distance(series: StepSeries, times: FieldTimes, other: FieldTimes | None) -> float:
    """How many times longer one reading's steps are than the other's, as a logarithm."""
    return float(abs(np.log(_step_s(series, times) / _step_s(series, other)))) if other else 0.0


def _likeliness(times: FieldTimes) -> tuple[bool, bool, bool, bool, float]:
    """Least for the reading of a field that its values and its first unit make likeliest."""
    is_first_unit = times.role is None or times.factor == times.role.factors[0]
    return times.how == MEAN, times.how != ELAPSED, not is_first_unit, times.how != SINGLE, _openness(times)


def _as_text(series: StepSeries, times: Sequence[FieldTimes]) -> Iterator[str]:
    """What each field alone would make: a reading for each, of several that which is nearest to the first field's."""
    first = min((each for each in times if each.field == times[0].field), key=_likeliness, default=None)
    for field in dict.fromkeys(each.field for each in times if first):
        readings = [each for each in times if each.field == field and _step_s(series, each) > 0]
        best = min(readings, key=lambda each: _distance(series, each, first), default=None)
        if best is not None:
            mean = " (as a running mean)" if best.how == MEAN else ""
            interval = next((each for each in readings if each.how == INTERVAL), None)
            is_unsaid = best.how == SINGLE and best.role is not None and not best.role.hint
            is_open = interval is not None and is_unsaid and all(each.field == field for each in times)
            either = f"{_step_s(series, interval):.4g} or " if interval is not None and is_open else ""
            yield f"{either}{_step_s(series, best):.4g} s a step by {shown(field)}{mean}"
    for column in series.columns:
        if column.role.kind == RATE and np.isfinite(column.values).any():
            scope = {DEVICE: " a device", ALL: ""}.get(column.role.scope, ", of all devices or of one")
            yield f"{float(np.nanmedian(column.values)):.6g} {column.role.unit}/s by {shown(column.name)}{scope}"
