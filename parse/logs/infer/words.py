"""The numbers of a line of a log, each with the name and the unit beside it, or with the name of its column, and what
it may be by these; a number without known words has no role."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from parse.logs.engine.fields import TIME_STAMP, seconds_of

STEP, EPOCH, STAMP, RATE, PACE, TIME, WORK = "step", "epoch", "stamp", "rate", "pace", "time", "work"
SINGLE, INTERVAL, MEAN, ELAPSED = "single", "interval", "mean", "elapsed"
SAMPLES, TOKENS = "samples", "tokens"
DEVICE, ALL = "device", "all"
SECOND, MILLISECOND = 1.0, 1e-3


@dataclass(frozen=True, kw_only=True)
class NumberRole:
    """What a number is. `factors` are those of its possible units, to seconds; `hint` is which time it is by its words,
    of one step, a mean or since the beginning; `scope` is what a rate is of: one device, all of them, or unsaid."""

    kind: str
    factors: tuple[float, ...] = (SECOND,)
    hint: str = ""
    unit: str = ""
    scope: str = ""


NO_ROLE, BATCH_SIZE = NumberRole(kind=""), NumberRole(kind=WORK, unit=SAMPLES)


def _any(words: str) -> re.Pattern[str]:
    """One of these words, which are parted by blanks; `_` is a blank."""
    return re.compile(rf"(?<![a-z])(?:{'|'.join(words.split()).replace('_', ' ')})(?![a-z])")


_S, _MS = "s|secs?|seconds?", "ms|msecs?|milliseconds?"
_STEPS = "its?|iters?|iterations?|steps?|batch|batches|updates?"
_TOKENS = "tokens?|toks?|words?"
_SAMPLES = "samples?|imgs?|images?|examples?|seqs?|sequences?|sentences?"
_PER = " ?(?:/|per|p) ?"
_RATE = re.compile(
    rf"(?<![a-z])(?:(?:(?P<tokens>{_TOKENS})|(?P<samples>{_SAMPLES})|(?P<steps>{_STEPS})){_PER}(?:[a-z]+{_PER})?"
    rf"(?:{_S})|(?P<short>tps|tok ?s))(?![a-z])"
)
_OF_DEVICE = re.compile(
    r"(?:(?<![a-z])per|/) ?(?:gpu|device|chip|core|rank|worker|npu|tpu)|(?:gpu|device|chip|rank) ?(?:/|per )"
)
_OF_ALL = _any("total global all overall aggregated? cluster")
_NO_RATE = re.compile(
    r"flop|byte|(?<![a-z])(?:best|peak|max|maximum|nodes?|evals?|evaluation|valid|validation|val|test|infer|gen)(?![a-z])"
)
_PER_STEP = re.compile(rf"(?<![a-z])(?:(?P<ms>{_MS})|(?:{_S})) ?(?:/|per) ?(?:{_STEPS})(?![a-z])")
_TIME = _any(
    f"times? elapsed duration took dt wall walltime wall_?clock run_?time latency {_S} {_MS}".replace("|", " ")
)
_SINGLE = re.compile(
    rf"(?<![a-z])(?:(?:{_STEPS})[ /]?(?:time|latency|duration|took|{_S}|{_MS})|time per (?:{_STEPS})|dt)(?![a-z])"
)
_MEAN = _any("avg average mean smoothed ema")
_ELAPSED = _any("elapsed wall walltime wall_?clock total cumulative so_far passed run_?time train_time training_time")
_OTHER_TIME = _any(
    "eta remaining left data load loading loader dataloader eval evaluation valid validation val test save saving ckpt "
    "checkpoint compile forward fwd backward bwd comm optim optimizer opt sync wait generation rollout sampling stamp "
    "timestamp timeout init epoch setup fetch inference logging first decode warmup preprocess start_time end_time "
    "actor critic start end"
)
_PER_SECOND = re.compile(rf"(?:/|(?<![a-z])per) ?(?:{_S})(?![a-z])")
_UNITS = ((re.compile(_MS), MILLISECOND), (re.compile(_S), SECOND))
_STEP = re.compile(
    r"(?:^|[ /.])(?:(?:global|optimizer|train|training|completed|current|total) )*"
    r"(?:its?|iters?|iterations?|steps?|batch|updates?|ba)(?:[ /]?(?:no|num|number|idx|index|id|max steps))?$"
)
_NO_STEP = _any("val valid validation eval evaluation test max warmup per epoch micro log save")
_EPOCH = re.compile(r"(?:^|[ /])(?:epochs?|ep)(?: ?(?:no|num|number))?$")
_WORK = re.compile(rf"(?<![a-z])(?:(?P<tokens>{_TOKENS}|weights)|{_SAMPLES}|(?:global )?batch ?size|bsz?|gbs)(?![a-z])")
_NO_WORK = re.compile(r"per|/s|acc|loss|max|len|vocab|ratio|%|remaining|limit|dataset")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z][a-z])")
EDGE = " \t:='\"~@#>*.%-_"


def as_utf_8(text: str) -> str:
    """The text of a part of a line, a character a byte, as the log has it; without a sign that is cut off."""
    return text.encode("latin-1").decode(errors="ignore")


def phrase(text: str) -> str:
    """The words of a name in a line: small letters, blanks for `_`, camel case apart."""
    return re.sub(r"[_\s()\[\]-]+", " ", _CAMEL.sub("_", as_utf_8(text).strip(EDGE))).lower().strip()


@lru_cache(maxsize=1 << 12)
def role_of(name: str, unit: str, is_whole: bool) -> NumberRole:
    """What a number of that name and unit, both phrases, is."""
    text = f"{name} {unit}".strip()
    if per_step := _PER_STEP.search(text):
        factor = MILLISECOND if per_step["ms"] else SECOND
        hint = MEAN if _MEAN.search(text) else SINGLE
        return NO_ROLE if _OTHER_TIME.search(text) else NumberRole(kind=TIME, factors=(factor,), hint=hint)
    if rate := _RATE.search(unit) or _RATE.search(name):
        scope = DEVICE if _OF_DEVICE.search(text) else ALL if _OF_ALL.search(text) else ""
        unit_of = "" if rate["steps"] else SAMPLES if rate["samples"] else TOKENS
        hint = MEAN if _MEAN.search(text) else ""
        role = NumberRole(kind=RATE if unit_of else PACE, unit=unit_of, scope=scope, hint=hint)
        return NO_ROLE if _NO_RATE.search(text) else role
    if is_whole and not unit and _EPOCH.search(name):
        return NumberRole(kind=EPOCH)
    if is_whole and not unit and _STEP.search(name) and not _NO_STEP.search(name.replace("/max steps", "")):
        return NumberRole(kind=STEP)
    time = _time(name, unit)
    return time if time.kind else _work(name, unit)


def _time(name: str, unit: str) -> NumberRole:
    of_unit = [factor for form, factor in _UNITS if form.fullmatch(unit)]
    last = name.rpartition("/")[2].strip()  # `time/episodes` is no time
    if (unit and not of_unit) or not (of_unit or _TIME.search(last) or _SINGLE.search(name)):
        return NO_ROLE
    if _PER_SECOND.search(name) or _OTHER_TIME.search(name):
        return NO_ROLE
    hint = MEAN if _MEAN.search(name) else SINGLE if _SINGLE.search(name) else ELAPSED if _ELAPSED.search(name) else ""
    by_name = [factor for form, factor in _UNITS if re.search(rf"(?<![a-z])(?:{form.pattern})$", name)]
    return NumberRole(kind=TIME, factors=tuple((of_unit or by_name)[:1]) or (SECOND, MILLISECOND), hint=hint)


def _work(name: str, unit: str) -> NumberRole:
    work = _WORK.search(name) or _WORK.fullmatch(unit)
    if not work or _NO_WORK.search(f"{name} {unit}"):
        return NO_ROLE
    return NumberRole(kind=WORK, unit=TOKENS if work["tokens"] else SAMPLES)


# The numbers of a line.

MAX_NUMBERS, MAX_NAME = 200, 48
MIN_COLUMNS = 3
CLOCK = "clock"
EARLIEST_S = 1e9
"""Smaller numbers are no times since 1970."""


@dataclass(frozen=True, kw_only=True)
class NamedNumber:
    """A number of a line, or a time stamp, from `start` to `stop`. The name before it begins at `name_from`, the unit
    behind it ends at `unit_until`. A time in parts, as `1:02:34`, has no role."""

    start: int
    stop: int
    name: str
    name_from: int
    unit_until: int
    role: NumberRole


_STAMP = re.compile(rf"(?<![\d.:/-])(?:{TIME_STAMP.decode()})(?=(?:Z|[+-]\d\d:?\d\d)?(?![\d:]))")
_CLOCK = re.compile(r"(?<![\w.:/-])(?:(?:\d{1,4}:)?\d\d:\d\d(?![\d:.])|\d+[dhm](?: ?\d+(?:\.\d+)?[hms])+\b)")
_NUMBER = re.compile(
    r"(?<![\w.-])(?<!\d[:,])[-+]?(?:[1-9]\d{0,2}(?:,\d{3})+(?![\d,])|\d+(?!,\d))(?:\.\d+(?!,\d))?(?:[eE][-+]?\d{1,3})?"
    r"(?![\d.:]*\d|\w*\d|[kKMB]\b)"
)
_UNIT = re.compile(r"(?P<blank> ?)(?P<unit>[A-Za-z]+(?:(?:/| per )[A-Za-z]+){0,2})(?![\w/])")
_OWN_UNIT = re.compile(_UNIT.pattern + r"(?! *[:=\d])")
_SPEED = _any("speed throughput rate ips qps tps fps performance")
_SEPARATOR = re.compile(r"[=:,|;()\[\]{}<>\t\v]|  +| - ")
_ELAPSED_NAME = re.compile(r"(?<![a-z])(?:elapsed|eta|remaining|left|took|time|total)$")
_STAMP_NAME = re.compile(r"(?<![a-z])(?:time ?stamps?|time|ts|unix time)$")


def numbers_of(line: str) -> list[NamedNumber]:
    """The numbers of a line in their order, the first time stamp among them."""
    spans = list(_spans(line))[:MAX_NUMBERS]
    numbers: list[NamedNumber] = []
    before = 0
    for place, (start, stop, kind) in enumerate(spans):
        until = spans[place + 1][0] if place + 1 < len(spans) else len(line)
        if kind == STAMP:
            numbers.append(_stamp(start, stop))
            before = stop
            continue
        name, name_from = _name(line, before, start)
        if "|" in line[name_from + 1 : start] and role_of("", name, False).kind:
            name = ""  # the unit of the cell before, or the name of this one
        is_whole = line[start:stop].isdigit()
        role, unit_until = role_of(name, "", is_whole), stop
        unit, end = _unit(line, stop, until, spans[place + 1][1] if until < len(line) else until, name)
        if unit and (by_unit := role_of(name, phrase(unit), is_whole)).kind:
            role, unit_until = by_unit, end
        numbers.append(
            NamedNumber(
                start=start, stop=stop, name=name or phrase(unit), name_from=name_from, unit_until=unit_until,
                role=NO_ROLE if kind == CLOCK else role,
            )
        )  # fmt: skip
        before = end if not unit or _kind_of_unit(unit) else unit_until
    return numbers


def _stamp(start: int, stop: int) -> NamedNumber:
    return NamedNumber(
        start=start, stop=stop, name="time stamps", name_from=start, unit_until=stop, role=NumberRole(kind=STAMP)
    )


def _spans(line: str) -> Iterator[tuple[int, int, str]]:
    """The places of the numbers, of times in parts, and of the first time stamp, with their kinds."""
    stamp = next((match for match in _STAMP.finditer(line) if _is_stamp(match[0], line[: match.start()])), None)
    at = 0
    while number := _NUMBER.search(line, at):
        clock = _CLOCK.search(line, at, number.end() + MAX_NAME)
        match, kind = (clock, CLOCK) if clock and clock.start() <= number.start() else (number, "")
        if stamp and match.end() > stamp.start() and at < stamp.end():
            match, kind = stamp, STAMP
        yield match.start(), match.end(), kind
        at = match.end()


def _is_stamp(text: str, before: str) -> bool:
    """Whether a text in the form of a time stamp is one: without a date its name must not say something else."""
    seconds = seconds_of(text.encode())
    name = phrase(before[-MAX_NAME:])
    if seconds is None:
        return False
    if ":" not in text:
        return bool(_STAMP_NAME.search(name)) and seconds >= EARLIEST_S
    return text[2:3] != ":" or not _ELAPSED_NAME.search(name)


def _name(line: str, before: int, start: int) -> tuple[str, int]:
    """The phrase before a number, and where its text begins: the last words behind a separator."""
    begin = max(before, start - MAX_NAME)
    inner = _SEPARATOR.split(line[begin:start].rstrip(EDGE + "[](){}|,"))[-1]
    words = re.search(r"(?<!\S)(?:[^\s\d]+ ){0,3}[^\s\d]+$", inner.strip(EDGE))
    return (phrase(words[0]), line.rindex(words[0], begin, start)) if words else ("", start)


def _unit(line: str, stop: int, until: int, behind: int, name: str) -> tuple[str, int]:
    """The unit of a number of that name, and where it ends; the next number is from `until` to `behind`. A word before
    `:` or `=` names the next one. So does all that is between the two, but a unit that the first one's name asks for,
    or that stands before a number with a unit of its own. A rate that both may be of is of neither."""
    match = _UNIT.match(line, stop, until)
    if match is None:
        return "", stop
    unit, rest = match["unit"], line[match.end() : until]
    names_next = bool(re.match(r"['\" ]*[:=]", rest))
    if name and until < len(line) and not rest.strip(" "):
        kind, next_unit = _kind_of_unit(unit), _OWN_UNIT.match(line, behind)
        if kind == RATE and _SPEED.search(name) and not next_unit:
            return "", match.end()
        is_of_name = kind == TIME == role_of(name, "", False).kind or (kind == RATE and _SPEED.search(name))
        names_next = names_next or not (is_of_name or (kind and next_unit and _kind_of_unit(next_unit["unit"])))
    return ("", stop) if match["blank"] and names_next else (unit, match.end())


def _kind_of_unit(unit: str) -> str:
    """TIME or RATE of a unit of these; empty for other words."""
    kind = role_of("", phrase(unit), False).kind
    return RATE if kind == PACE else kind if kind in (TIME, RATE) else ""


# Rows of tables, whose names are in a line above them.


@dataclass(frozen=True)
class HeadedColumns:
    """The names above a table's columns, and what is between its cells: `,`, a tab, `|`, or blanks where empty."""

    names: tuple[str, ...]
    separator: str

    def numbers_of(self, line: str) -> list[NamedNumber]:
        """The numbers of a row, each with the name of its column; a cell without a known name has no role."""
        numbers = []
        for head, (start, stop) in zip(self.names, cells(line, self.separator), strict=True):
            name, text = phrase(head), line[start:stop]
            if (stamp := _STAMP.match(text)) and stamp.end() == len(text) and _is_stamp(text, head):
                numbers.append(_stamp(start, stop))
            elif value := re.match(r"[-+]?\d[\d.eE+-]*", text):
                unit, is_whole, end = phrase(text[value.end() :]), value[0].isdigit(), start + value.end()
                role = next(
                    (each for each in (role_of(name, unit, is_whole), role_of(name, "", is_whole)) if each.kind),
                    NO_ROLE,
                )
                numbers.append(
                    NamedNumber(start=start, stop=end, name=name, name_from=start, unit_until=stop, role=role)
                )
        return numbers


def table_of(above: Sequence[str], row: str) -> HeadedColumns | None:
    """The table that a row is of: by the nearest line above it that is names alone, one of steps; None without one."""
    for heading, separator in product(reversed(above), ("|", ",", "\t", "")):
        names = [heading[start:stop] for start, stop in cells(heading, separator)]
        values = [row[start:stop] for start, stop in cells(row, separator)]
        is_heading = all(re.match(r"[^\W\d]|_", name) for name in names) and len(values) == len(names) >= MIN_COLUMNS
        has_step = any(role_of(phrase(name), "", True).kind == STEP for name in names)
        if is_heading and has_step and sum(value[:1].isdigit() for value in values) > 1:
            return HeadedColumns(tuple(names), separator)
    return None


def cells(line: str, separator: str) -> list[tuple[int, int]]:
    """The places of a line's cells, without the blanks and quotation marks around them."""
    if not separator:
        wide = list(re.finditer(r"\S+(?: \S+)*(?=  |\s*$)", line))
        return [match.span() for match in (wide if len(wide) >= MIN_COLUMNS else re.finditer(r"\S+", line))]
    spans, begin = [], 0
    for cell in line.strip().strip("|").split(separator) if separator == "|" else line.rstrip("\r\n").split(separator):
        begin = line.index(cell, begin) if cell else begin
        skipped, size = len(cell) - len(cell.lstrip(" \t\"'")), len(cell.rstrip(" \t\"'"))
        spans.append((begin + min(skipped, size), begin + size))
        begin += len(cell) + 1
    return spans
