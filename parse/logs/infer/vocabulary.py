"""What a number of a line is by the words and the unit beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

STEP, EPOCH, RANK, RATE, PACE, TIME, WORK = "step", "epoch", "rank", "rate", "pace", "time", "work"
SINGLE, MEAN, ELAPSED = "single", "mean", "elapsed"
SAMPLES, TOKENS = "samples", "tokens"
DEVICE, ALL = "device", "all"


@dataclass(frozen=True, kw_only=True)
class NumberRole:
    """What a number is. `factors` are those of its possible units, to seconds or to single samples or tokens; `hint`
    is which time it is by its words, of one step, a mean or since the beginning; `scope` is what a rate is of: one
    device, all of them, or unsaid."""

    kind: str
    factors: tuple[float, ...] = (1.0,)
    hint: str = ""
    unit: str = ""
    scope: str = ""


def _any(words: str) -> re.Pattern[str]:
    """One of these words, which are parted by blanks; `_` is a blank."""
    return re.compile(rf"(?<![a-z])(?:{'|'.join(words.split()).replace('_', ' ')})(?![a-z])")


_TOKEN = "tokens?|toks?|words?"
_SAMPLE = (
    "samples?|imgs?|images?|examples?|exs?|seqs?|sequences?|sentences?|sents?|utts?|utterances?|videos?|clips?|pairs?|"
    "instances?|records?|graphs?"
)
_STEPS = "its?|iters?|iterations?|steps?|batch|batches|updates?|ups"
_DEVICE = "gpus?|devices?|chips?|cores?|ranks?|nodes?|workers?|npus?|xpus?|tpus?|gcds?|cards?"
_SECOND = "s|secs?|seconds?"
_MS = "ms|msecs?|milliseconds?"
_PER = " ?(?:/|per|p) ?"
_RATE = re.compile(
    rf"(?<![a-z])(?:(?:(?P<tokens>{_TOKEN})|(?P<samples>{_SAMPLE})|(?P<steps>{_STEPS})){_PER}(?:(?P<first>{_DEVICE}){_PER})?"
    rf"(?:{_SECOND})(?![a-z])(?:{_PER}(?P<second>{_DEVICE})(?![a-z]))?"
    r"|(?P<short>tps|wps|tok ?s|tgs)(?![a-z])(?: ?(?:/|per) ?(?P<third>gpu|device|chip|rank))?)"
)
_OF_DEVICE = re.compile(r"(?<![a-z])(?:per|/) ?(?:gpu|device|chip|core|rank|worker|npu|tpu)|(?:gpu|device|chip|rank)/")
_OF_NODE = re.compile(r"(?<![a-z])(?:per|/) ?nodes?(?![a-z])")
_OF_ALL = _any("total global all overall aggregated? cluster")
_NO_RATE = re.compile(r"flop|byte|eval|valid|(?<![a-z])val(?![a-z])|test|infer|gen")
_PER_SECOND = re.compile(rf"(?:per|/) ?(?:{_SECOND})(?![a-z])")
_PER_STEP = re.compile(rf"(?<![a-z])(?:(?P<ms>{_MS})|(?P<s>{_SECOND})) ?(?:/|per) ?(?:{_STEPS})(?![a-z])")
_NO_NUMBER = re.compile(
    r"flop|mfu|hfu|byte|gib|gb|mb/s|%|"
    + _any(
        "bits? mem memory loss lr learning grad norm acc accuracy eta remaining left etc epochs?_time ppl bpb top psnr "
        "ssim iou map temp temperature power util percent percentage reward return entropy"
    ).pattern
)
_OTHER_TIME = _any(
    "eta remaining left data load loading loader dataloader eval evaluation valid validation val test save saving ckpt "
    "checkpoint compile forward fwd backward bwd comm optim optimizer opt sync wait h2d generation rollout sampling "
    "stamp timestamp timeout init epoch setup fetch inference interval steps logging log to first decode encode nms "
    "warmup preprocess postprocess checkpointer blocking start_time end_time get_old_steps actor critic weights"
)
_TIME_WORDS = f"times? elapsed duration took dt wall walltime wall_?clock run_?time latency {_SECOND} {_MS}"
_TIME = re.compile(_any(_TIME_WORDS).pattern + "|^t$")
_ELAPSED = _any(
    "elapsed wall walltime wall_?clock total since(?!_(?:last|prev)) cumulative so_far run_?time train_time "
    "training_time"
)
_SPAN = f"time|latency|duration|cost|wall|{_SECOND}|{_MS}"
_STEP_TIME = re.compile(
    rf"(?<![a-z])(?:(?:{_STEPS})(?:[ /](?:{_SPAN})|[ /]?(?:time|latency|duration|cost|wall|avg))|"
    rf"(?:{_SPAN})(?:[ /](?:per|/|of|a)? ?|per ?)(?:{_STEPS})|dt)(?![a-z])"
)
_MEAN = _any("avg average mean smooth smoothed ema median")
_UNITS = (
    (_any(_MS), 1e-3), (_any("us µs microseconds?"), 1e-6), (_any(_SECOND), 1.0), (_any("m mins? minutes?"), 60.0),
    (_any("h hrs? hours?"), 3600.0),
)  # fmt: skip
_OF_STEPS = "global optimizer optim completed train training trainer current num n total the"
_STEP = re.compile(
    rf"(?:^|[ /.])(?:(?:{'|'.join(_OF_STEPS.split())}) )*(?:{_STEPS}|ba|itr|up|nupdates?|global steps?/max steps?)"
    r"(?:[ /]?(?:no|num|number|idx|index|id|n|count))?$"
)
_NO_STEP = _any("val valid validation eval evaluation test max warmup per epoch micro log save")
_EPOCH = re.compile(r"(?:^|[ /])(?:epochs?|ep|pass)(?: ?(?:no|num|number|idx|index|id))?$")
_RANK = re.compile(r"(?:^|[ /\[])(?:global |local )?(?:ranks?|gpu|worker|process|proc)$")
_WORK = re.compile(
    r"(?<![a-z])(?:(?P<tokens>tokens?|toks?|ntokens|words|weights)|(?P<samples>samples?|examples?|images?|imgs?|sequences?|"
    r"seqs?|nsamples|batch ?size|bsz|gbs))(?![a-z])"
)
_NO_WORK = re.compile(r"per|/s|acc|loss|max|length|len|vocab|ratio|mean|%|remaining|budget|target|limit|dataset")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z][a-z])")
EDGE = " \t:='\"~@#>*.%-"


def phrase(text: str) -> str:
    """The words of a name: small letters, blanks for `_`, camel case apart."""
    text = _CAMEL.sub("_", text.strip(EDGE))
    return re.sub(r"[_\s-]+", " ", text).lower().strip()


@lru_cache(maxsize=1 << 14)
def role_of(name: str, unit: str, is_whole: bool) -> NumberRole | None:
    """What a number of that name and unit is; None where the words do not say it. Both are phrases."""
    text = f"{name} {unit}".strip()
    if per_step := _PER_STEP.search(unit) or _PER_STEP.search(name):
        hint = MEAN if _MEAN.search(text) else SINGLE
        role = NumberRole(kind=TIME, factors=(1e-3 if per_step["ms"] else 1.0,), hint=hint)
        return None if _OTHER_TIME.search(_PER_STEP.sub("", text)) else role
    rate = _RATE.search(unit) or _RATE.search(name)
    if rate and not _NO_RATE.search(text):
        return _rate(rate, text)
    if is_whole and not unit and (counter := _counter(name)):
        return counter
    if _NO_NUMBER.search(text) or _PER_SECOND.search(text):
        return None
    return _time(name, unit, text) or _work(name, unit, is_whole)


def elapsed_role(name: str) -> NumberRole | None:
    """What a time in parts, `1:02:34`, of that name is."""
    says = not name or _ELAPSED.search(name) or _TIME.search(name)
    return NumberRole(kind=TIME, hint=ELAPSED) if says and not _OTHER_TIME.search(name) else None


def _counter(name: str) -> NumberRole | None:
    if _EPOCH.search(name):
        return NumberRole(kind=EPOCH)
    if _STEP.search(name) and not _NO_STEP.search(re.sub(r"/max steps?$", "", name)):
        return NumberRole(kind=STEP)
    return NumberRole(kind=RANK) if _RANK.search(name) else None


def _rate(rate: re.Match[str], text: str) -> NumberRole | None:
    short = rate["short"]
    device = rate["first"] or rate["second"] or rate["third"]
    if (device and device.startswith("node")) or _OF_NODE.search(text):
        return None
    hint = MEAN if _MEAN.search(text) else ""
    if rate["steps"]:
        return NumberRole(kind=PACE, hint=hint)
    of_device = device or short == "tgs" or _OF_DEVICE.search(text)
    scope = DEVICE if of_device else ALL if _OF_ALL.search(text) else ""
    return NumberRole(kind=RATE, unit=TOKENS if rate["tokens"] or short else SAMPLES, scope=scope, hint=hint)


def _time(name: str, unit: str, text: str) -> NumberRole | None:
    if unit.endswith(" elapsed"):
        name, unit = f"{name} elapsed", unit.removesuffix(" elapsed")
    has_unit = any(form.fullmatch(unit) for form, _ in _UNITS)
    of_group = name.rpartition("/")[2].strip()  # `time/episodes` is no time
    says = _TIME.search(of_group) or _STEP_TIME.search(name) or (has_unit and unit != "m")
    if not says or (unit and not has_unit) or _OTHER_TIME.search(_STEP_TIME.sub("", text)):
        return None
    is_mean, is_step = _MEAN.search(name), _STEP_TIME.search(name)
    hint = MEAN if is_mean else SINGLE if is_step else ELAPSED if _ELAPSED.search(name) else ""
    for form, factor in _UNITS:
        if form.search(unit) or (not unit and factor < 60 and form.search(name)):
            return NumberRole(kind=TIME, factors=(factor,), hint=hint)
    return NumberRole(kind=TIME, factors=(1.0, 1e-3), hint=hint)


def _work(name: str, unit: str, is_whole: bool) -> NumberRole | None:
    text = f"{name} {unit}"
    work = _WORK.search(name) or _WORK.match(unit)
    if not work or _NO_WORK.search(text):
        return None
    factor = 1e9 if "billion" in text or "(b)" in text else 1e6 if "million" in text else 1.0
    if factor == 1.0 and not is_whole and "avg" not in text and "average" not in text:
        return None
    return NumberRole(kind=WORK, factors=(factor,), unit=TOKENS if work["tokens"] else SAMPLES)
