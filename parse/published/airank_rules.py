"""AI-Rank's rules for a log: each rule yields a text per way in which the log breaks it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from parse.logs.engine.log_format import LogRecord
from parse.published.training import Training
from parse.published.training_result import TIME_TO_TRAIN, RuleSettings, TrainingResult, rate

TIME_TOLERANCE_S = 1.0
"""A printed time and its time stamps agree within it."""
RATE_TOLERANCE = 0.005
"""A printed throughput and its time stamps agree within this share; programs round to whole samples."""
CHECKSUM = re.compile(r"[0-9a-fA-F]{8,}")
ORDER = ("load_data", "test_begin", "eval_accuracy", "test_finish", "total_use_time", "avg_ips")
"""The order of the marks; target_quality_time follows the evaluation that reached the target."""
ONCE = ("load_data", "test_begin", "target_quality_time", "test_finish", "total_use_time", "avg_ips")


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A rule, and how a log, a folder or a document breaks it."""

    path: Path
    rule: str
    how: str


def violations(path: Path, rules: Mapping[str, Callable[..., Iterator[str]]], *judged: object) -> list[Violation]:
    """Applies each rule to what is judged."""
    return [Violation(path=path, rule=name, how=how) for name, rule in rules.items() for how in rule(*judged)]


def judge(result: TrainingResult, settings: RuleSettings) -> list[Violation]:
    """Returns the broken rules in the order of RULES; a log without marks is judged by WITHOUT_MARKS only."""
    names = RULES if result.training.marks else WITHOUT_MARKS
    return violations(result.training.path, {name: RULES[name] for name in names}, result, settings)


def _marks(result: TrainingResult, settings: RuleSettings) -> Iterator[str]:
    """Each mark stands in the log once, with the spelling of the rules and a time stamp."""
    training = result.training
    if not training.marks:
        sources = {"mllog": "its :::MLLOG lines", "lines": "its own lines"}
        yield f"there is none; its numbers come from {sources.get(training.source, 'nowhere: nothing is evaluated')}"
        return
    needed = [*ORDER, *(["target_quality_time"] if result.numbers.reached else [])]
    if missing := [name for name in needed if not _named(training, name)]:
        yield f"missing: {', '.join(missing)}"
    if repeated := [f"{name} ({times} times)" for name in ONCE if (times := len(_named(training, name))) > 1]:
        yield f"more than once: {', '.join(repeated)}"
    misspelt = (mark.values for mark in training.marks if "printed" in mark.values)
    if spelt := sorted({f"{values['printed']} for {values['mark']}" for values in misspelt}):
        yield f"spelt otherwise: {', '.join(spelt)}"
    if untimed := sum("untimed" in mark.values for mark in training.marks):
        yield f"{untimed} of {len(training.marks)} have no time stamp"


def _order(result: TrainingResult, settings: RuleSettings) -> Iterator[str]:
    """Marks stand in the order of ORDER."""
    marks = [mark for mark in result.training.marks if mark.values["mark"] in ORDER]
    for earlier, later in pairwise(marks):
        names = earlier.values["mark"], later.values["mark"]
        if ORDER.index(names[1]) < ORDER.index(names[0]):
            yield f"{names[1]} (byte {later.offset}) stands behind {names[0]} (byte {earlier.offset})"
            return


def _stamps(result: TrainingResult, settings: RuleSettings) -> Iterator[str]:
    """Time stamps never decrease from one mark to the next."""
    timed = [(mark, mark.time_s) for mark in result.training.marks if mark.time_s is not None]
    for (earlier, before_s), (later, after_s) in pairwise(timed):
        if after_s < before_s:
            names = later.values["mark"], earlier.values["mark"]
            yield f"{names[0]} is stamped {before_s - after_s:.3f} s before {names[1]}, which stands in front of it"
            return


def _checksum(result: TrainingResult, settings: RuleSettings) -> Iterator[str]:
    """load_data prints the checksum of the data."""
    if not (loaded := _named(result.training, "load_data")):
        return
    checksum = loaded[0].values.get("checksum")
    if checksum is None:
        yield "load_data has none"
    elif not CHECKSUM.fullmatch(checksum):
        yield f"{checksum!r} is no checksum (8 hexadecimal digits at least)"


def _every_epoch(result: TrainingResult, settings: RuleSettings) -> Iterator[str]:
    """The accuracy is evaluated after every epoch."""
    epochs = [evaluation.epochs for evaluation in result.training.evaluations if evaluation.epochs is not None]
    if not result.training.evaluations:
        yield "nothing is evaluated"
        return
    if lacking := len(result.training.evaluations) - len(epochs):
        yield f"{lacking} of {len(result.training.evaluations)} evaluations do not say after how many epochs"
    gaps = [
        (nth, before, after) for nth, (before, after) in enumerate(pairwise([0.0, *epochs]), 1) if after - before != 1
    ]
    if gaps:
        nth, before, after = gaps[0]
        more = f", and so {len(gaps) - 1} times more" if len(gaps) > 1 else ""
        yield f"evaluation {nth} comes after epoch {after:g}, the one before it after {before:g}{more}"


def _count(result: TrainingResult, settings: RuleSettings) -> Iterator[str]:
    """total_epoch_cnt is the number of epochs done."""
    if result.training.source == "marks" and result.training.counted_from == 0:
        yield "total_epoch_cnt is 0 after the first epoch: it counts from 0, one too few"


def _target(result: TrainingResult, settings: RuleSettings) -> Iterator[str]:
    """An evaluation reaches the target."""
    best, evaluations = result.numbers.accuracy, len(result.training.evaluations)
    if result.numbers.reached is None and best is not None:
        yield f"{settings.target:g} % is not reached in {evaluations} evaluations: {best:.3f} % at best"


def _target_quality_time(result: TrainingResult, settings: RuleSettings) -> Iterator[str]:
    """target_quality_time is the time from test_begin to the first evaluation at or above the target."""
    printed, time_s = _value(result.training, "target_quality_time"), result.numbers.time_to_train_s
    if printed is None:
        return
    if time_s is None:
        yield f"{printed:.2f} s is printed, but there is no such time: {result.numbers.reasons[TIME_TO_TRAIN]}"
    elif abs(printed - time_s) > TIME_TOLERANCE_S and not _runs_on(result, printed):
        begin = result.training.begin.what if result.training.begin else "the beginning"
        yield f"{printed:.2f} s is printed, {time_s:.2f} s pass from {begin} to {_reached(result, settings)}"


def _last_epoch(result: TrainingResult, settings: RuleSettings) -> Iterator[str]:
    """The time to train ends when the target is reached, not with the last epoch."""
    time_s, whole = result.numbers.time_to_train_s, result.numbers.whole_s
    name = "target_quality_time" if _named(result.training, "target_quality_time") else "total_use_time"
    printed = _value(result.training, name)
    if time_s is None or whole is None or printed is None or not _runs_on(result, printed):
        return
    lacking = "" if name == "target_quality_time" else " and there is no target_quality_time"
    until = result.numbers.whole_until
    yield f"{name} {printed:.2f} s runs to {until}{lacking}: {time_s:.2f} s pass to {_reached(result, settings)}"


def _total_use_time(result: TrainingResult, settings: RuleSettings) -> Iterator[str]:
    """total_use_time is the time from test_begin to test_finish."""
    printed, training = _value(result.training, "total_use_time"), result.training
    if printed is None or training.begin is None or training.finish is None or training.source != "marks":
        return
    time_s = training.finish.time_s - training.begin.time_s
    if abs(printed - time_s) > TIME_TOLERANCE_S:
        yield f"{printed:.2f} s is printed, {time_s:.2f} s pass from test_begin to test_finish"


def _avg_ips(result: TrainingResult, settings: RuleSettings) -> Iterator[str]:
    """avg_ips is (epochs − warm-up epochs) · samples per epoch / time after warm-up."""
    printed, samples = _value(result.training, "avg_ips"), result.numbers.samples_per_epoch
    if printed is None or samples is None or not result.training.evaluations:
        return
    last = int(result.training.epochs or 0)
    tried = range(min(last, 100)) if settings.warmup_epochs is None else (settings.warmup_epochs,)
    rates = [(warmup, expected) for warmup in tried if (expected := rate(result.training, samples, warmup)) is not None]
    if not rates or any(abs(printed - expected) <= max(RATE_TOLERANCE * expected, 1) for _, expected in rates):
        return
    warmup, nearest = min(rates, key=lambda pair: abs(pair[1] - printed))
    chosen = f"{warmup} warm-up epochs, {'the nearest' if settings.warmup_epochs is None else 'as asked'}"
    yield (
        f"{printed:.2f} samples/s is printed, {last - warmup} epochs of {samples:,} samples make {nearest:.2f} "
        f"({printed / nearest - 1:+.1%}; {chosen})"
    )


def _seed(result: TrainingResult, settings: RuleSettings) -> Iterator[str]:
    """The log prints a fixed seed."""
    seed = result.training.facts.get("seed")
    if seed is None:
        yield "no seed is printed"
    elif not re.fullmatch(r"[+-]?\d+", seed):
        yield f"the seed is {seed}, which fixes nothing"


def _devices(result: TrainingResult, settings: RuleSettings) -> Iterator[str]:
    """The devices in the log and in its name are the same."""
    in_log, named = result.training.devices, result.training.named_devices
    if in_log is not None and named is not None and in_log != named:
        yield f"its name says {named}, the log says {in_log}"


Rule = Callable[[TrainingResult, RuleSettings], Iterator[str]]
RULES: Mapping[str, Rule] = {
    "marks": _marks,
    "order": _order,
    "time stamps": _stamps,
    "checksum": _checksum,
    "evaluation every epoch": _every_epoch,
    "total_epoch_cnt": _count,
    "target": _target,
    "target_quality_time": _target_quality_time,
    "time to train": _last_epoch,
    "total_use_time": _total_use_time,
    "avg_ips": _avg_ips,
    "seed": _seed,
    "devices": _devices,
}
WITHOUT_MARKS = ("marks", "evaluation every epoch", "target", "seed", "devices")


def _named(training: Training, name: str) -> list[LogRecord]:
    return [mark for mark in training.marks if mark.values["mark"] == name]


def _value(training: Training, name: str) -> float | None:
    """Returns the number that the first such mark prints."""
    for mark in _named(training, name):
        if name in mark.values and abs(value := float(mark.values[name])) < 1e15:
            return value
    return None


def _runs_on(result: TrainingResult, printed: float) -> bool:
    """Whether that time is the whole training's although the target was reached before its end."""
    time_s, whole = result.numbers.time_to_train_s, result.numbers.whole_s
    if time_s is None or whole is None:
        return False
    return abs(printed - time_s) > TIME_TOLERANCE_S and abs(printed - whole) <= max(TIME_TOLERANCE_S, 1e-3 * whole)


def _reached(result: TrainingResult, settings: RuleSettings) -> str:
    if (reached := result.numbers.reached) is None:
        return ""
    epoch = "" if reached.epochs is None else f", epoch {reached.epochs:g}"
    return f"the first evaluation at or above {settings.target:g} % ({reached.accuracy:.3f} %{epoch})"
