"""What a number of a line may be by the words and the unit beside it; a number without known words has no role."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

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
_NO_RATE = re.compile(r"flop|byte|(?<![a-z])(?:nodes?|evals?|evaluation|valid|validation|val|test|infer|gen)(?![a-z])")
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
