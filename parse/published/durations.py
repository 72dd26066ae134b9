"""Reads times as documents print them: `27:56`, `1:02:03`, `1h 23m`, `85 min`, or a number below a head with a unit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

from parse.runs.result import EPOCHS, STEPS, TRAININGS

_UNITS = {
    "ms": (r"ms|msecs?|millisec(?:ond)?s?|毫秒", "0.001"),
    "s": (r"s|secs?|seconds?|秒", "1"),
    "min": (r"m|mins?|minutes?|分钟?", "60"),
    "h": (r"h|hrs?|hours?|小时", "3600"),
    "d": (r"d|days?|天", "86400"),
}
"""Units of time: the words for each, and how many seconds it has."""
_SECONDS = {unit: Decimal(seconds) for unit, (_, seconds) in _UNITS.items()}
_UNIT = "(?:" + "|".join(words for words, _ in _UNITS.values()) + ")"
_FIGURE = r"(?:\d{1,3}(?:,\d{3})+|\d{1,12})(?:\.\d{1,12})?"
_PARTS = re.compile(rf"(?:{_FIGURE}\s*{_UNIT}(?![a-z])[\s,]*(?:and\s+)?){{1,5}}")
_PART = re.compile(rf"({_FIGURE})\s*({_UNIT})(?![a-z])")
_CLOCK = re.compile(
    r"(?:(?P<days>\d{1,4})(?:-|\s*days?,?\s+))?(?P<first>\d{1,5}):(?P<second>[0-5]\d)(?::(?P<third>[0-5]\d))?"
    r"(?P<fraction>\.\d{1,9})?"
)

_EPOCH = r"epochs?"
_STEP = r"(?:steps?|it(?:er(?:ation)?s?)?|batch(?:es)?)"
_TIME = re.compile(
    r"\btimes?\b|time ?(?:2|to) ?train|\belapsed\b|\bduration\b|wall[ -]?(?:clock|time)|\bruntime\b|耗时|时间|用时"
    rf"|\b{_UNIT} ?(?:/|\bper\b) ?(?:{_EPOCH}|{_STEP})\b"
    rf"|^(?:{_EPOCH}|{_STEP}|t|wall|training|train) ?[(\[]{_UNIT}[)\]]$"
    r"|\bttt\b|^(?:seconds|minutes|hours|days)(?: to train)?$"
)
_NO_TIME = re.compile(
    r"latency|infer|\bload|compil|\bstart|finish|checkpoint|\bdata\b|\bcomm|forward|backward|wait|overhead|estimat"
    r"|expected|limit|stamp|\bdate|decode|prefill|ttft|\bval|\beval|\btest|preprocess|idle|speed ?up|\bratio|\bsav"
    r"|\breduc|\bsync|rollout|kernel|all-?reduce|gather|broadcast|\bcpu\b|comput|\breal\b|\bscal|effic|h2d|d2h"
    r"|tokens?|samples?|images?|build|faster|slower|\bper (?:gpu|device|node|second)"
    r"|(?:gpu|device|node|core|tpu)[- ]?(?:h|hrs?|hours?|days?|time)\b"
)
OF_EPOCH = re.compile(r"(?<=[a-z]) ?(?:/|per) ?epoch$", re.I)
"""What may stand behind the time of a cell (`11 seconds / epoch`)."""
_COUNTED = re.compile(rf"(?<![\d.])(\d{{1,7}}) ?({_EPOCH}|{_STEP})\b")
_BRACKETS = re.compile(r"[(\[]([^()\[\]]*)[)\]]")
_CLOCK_HEADS = {"mm:ss": "min", "m:ss": "min", "m:s": "min", "min:s": "min", "min:sec": "min",
                "hh:mm": "h", "h:mm": "h", "h:m": "h"}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TimeHead:
    """The head of a column of times: its unit (`ms`, `s`, `min`, `h`, `d`; empty if it names none), and what takes so
    long: so many `trainings`, `epochs` or `steps`."""

    unit: str
    per: str
    count: int


@dataclass(frozen=True, kw_only=True)
class Duration:
    """A printed time: `unit_s` are the seconds of its last digit. `assumed`: two parts without a unit, taken as minutes
    and seconds; as hours and minutes every ratio is the same."""

    seconds: Decimal
    unit_s: Decimal
    assumed: bool = False


def time_head(head: str) -> TimeHead | None:
    """Returns what a column of times is about; None for the head of another column."""
    text = re.sub(r"[\s_]+", " ", head.lower()).strip()
    if not _TIME.search(text) or _NO_TIME.search(text):
        return None
    count = _COUNTED.search(text)
    if re.search(rf"(?<![a-z]){_EPOCH}(?![a-z])", text):
        per = EPOCHS
    elif re.search(rf"(?<![a-z]){_STEP}(?![a-z])", text) and "batch size" not in text:
        per = STEPS
    else:
        per = TRAININGS
    return TimeHead(unit=_unit_of_head(text), per=per, count=int(count[1]) if count else 1)


def _unit_of_head(text: str) -> str:
    """Returns the unit that a head names in brackets, before a slash, behind a comma or as a word."""
    for bracket in _BRACKETS.findall(text):
        if unit := _CLOCK_HEADS.get(bracket.strip()) or _unit(bracket.strip()):
            return unit
    for pattern in (
        rf"\b({_UNIT}) ?(?:/|per\b)",
        rf"(?:, ?| in )({_UNIT})$",
        rf"(?:time|elapsed|duration|runtime|{_EPOCH}|{_STEP}) ?/? ?\b({_UNIT})$",
    ):
        if match := re.search(pattern, text):
            return _unit(match[1])
    return next((unit for name in re.findall(r"[a-z]{3,}|秒|分钟|小时|天", text) if (unit := _unit(name))), "")


def _unit(text: str) -> str:
    return next((unit for unit, (words, _) in _UNITS.items() if re.fullmatch(words, text)), "")


def duration(text: str, head_unit: str) -> Duration | None:
    """Returns the time that a cell prints, by its own unit or that of its head; None for a word, a range, an
    approximation, or a number without any unit."""
    plain = OF_EPOCH.sub("", text.strip().lower())
    if match := _CLOCK.fullmatch(re.sub(rf"\s*{_UNIT}$", "", plain)):
        bare = match[0] == plain
        return _clock(match, head_unit if bare else _unit(plain[match.end() :].strip()))
    if _PARTS.fullmatch(plain):
        return _sum([(figure, _unit(unit)) for figure, unit in _PART.findall(plain)])
    if head_unit and re.fullmatch(_FIGURE, plain):
        return _sum([(plain, head_unit)])
    return None


def _clock(match: re.Match[str], unit: str) -> Duration | None:
    """Three parts are hours, minutes and seconds, two are minutes and seconds unless the unit is hours."""
    last = Decimal(10) ** -len((match["fraction"] or ".")[1:])
    fraction = Decimal(match["fraction"] or 0)
    days = int(match["days"] or 0)
    first, second = int(match["first"]), int(match["second"])
    if match["third"] is not None:
        seconds = Decimal(days * 86400 + first * 3600 + second * 60 + int(match["third"])) + fraction
        return _positive(seconds, last)
    if unit in ("h", "d") or days:
        return None if match["fraction"] else _positive(Decimal(days * 86400 + first * 3600 + second * 60), Decimal(60))
    return _positive(Decimal(first * 60 + second) + fraction, last, assumed=not unit) if unit in ("", "min") else None


def _sum(parts: list[tuple[str, str]]) -> Duration | None:
    """The sum of figures with units that get smaller; None where they do not."""
    sizes = [_SECONDS[unit] for _, unit in parts]
    if any(later >= earlier for earlier, later in pairwise(sizes)):
        return None
    figures = [Decimal(figure.replace(",", "")) for figure, _ in parts]
    last = sizes[-1] * Decimal(10) ** int(figures[-1].as_tuple().exponent)
    return _positive(sum((figure * size for figure, size in zip(figures, sizes, strict=True)), Decimal(0)), last)


def _positive(seconds: Decimal, unit_s: Decimal, *, assumed: bool = False) -> Duration | None:
    return Duration(seconds=seconds, unit_s=unit_s, assumed=assumed) if seconds > 0 else None
