"""AI-Rank's rules for a log, each with the words for how a log breaks it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from parse.airank.cases import TIME_TO_TRAIN, Case, RuleSettings, rate
from parse.airank.training import Training
from parse.logs.engine.log_format import LogRecord

TIME_TOLERANCE_S = 1.0
"""Within it a printed time is what its time stamps say."""
RATE_TOLERANCE = 0.005
"""Likewise a printed throughput, as a share; programs round to whole samples."""
CHECKSUM = re.compile(r"[0-9a-fA-F]{8,}")
ORDER = ("load_data", "test_begin", "eval_accuracy", "test_finish", "total_use_time", "avg_ips")
"""The order of the marks; target_quality_time follows the evaluation that reached the target."""
ONCE = ("load_data", "test_begin", "target_quality_time", "test_finish", "total_use_time", "avg_ips")


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A rule, and how a log or a folder breaks it."""

    path: Path
    rule: str
    how: str


def judge(case: Case, settings: RuleSettings) -> list[Violation]:
    """The rules that a log breaks, in the order of RULES; of a log without marks those alone that need none."""
    path = case.training.path
    rules = RULES if case.training.marks else {name: rule for name, rule in RULES.items() if name in WITHOUT_MARKS}
    return [Violation(path=path, rule=name, how=how) for name, rule in rules.items() for how in rule(case, settings)]


def _marks(case: Case, settings: RuleSettings) -> Iterator[str]:
    """All marks are there, once each, spelt as the rules have them and stamped."""
    training = case.training
    if not training.marks:
        yield f"there is none; its numbers come from {_where_from(training)}"
        return
    needed = [*ORDER, *(["target_quality_time"] if case.numbers.reached else [])]
    if missing := [name for name in needed if not _named(training, name)]:
        yield f"missing: {', '.join(missing)}"
    if again := [f"{name} ({times} times)" for name in ONCE if (times := len(_named(training, name))) > 1]:
        yield f"more than once: {', '.join(again)}"
    if spelt := sorted(
        {f"{mark.values['printed']} for {mark.values['mark']}" for mark in training.marks if "printed" in mark.values}
    ):
        yield f"spelt otherwise: {', '.join(spelt)}"
    if untimed := sum("untimed" in mark.values for mark in training.marks):
        yield f"{untimed} of {len(training.marks)} have no time stamp"


def _order(case: Case, settings: RuleSettings) -> Iterator[str]:
    """Marks stand in the order of what they mark."""
    marks = [mark for mark in case.training.marks if mark.values["mark"] in ORDER]
    for earlier, later in pairwise(marks):
        names = earlier.values["mark"], later.values["mark"]
        if ORDER.index(names[1]) < ORDER.index(names[0]):
            yield f"{names[1]} (byte {later.offset}) stands behind {names[0]} (byte {earlier.offset})"
            return


def _stamps(case: Case, settings: RuleSettings) -> Iterator[str]:
    """Time never runs backwards from one mark to the next."""
    timed = [(mark, mark.time_s) for mark in case.training.marks if mark.time_s is not None]
    for (earlier, before_s), (later, after_s) in pairwise(timed):
        if after_s < before_s:
            names = later.values["mark"], earlier.values["mark"]
            yield f"{names[0]} is stamped {before_s - after_s:.3f} s before {names[1]}, which stands in front of it"
            return


def _checksum(case: Case, settings: RuleSettings) -> Iterator[str]:
    """load_data has the checksum of the data."""
    if not (loaded := _named(case.training, "load_data")):
        return
    checksum = loaded[0].values.get("checksum")
    if checksum is None:
        yield "load_data has none"
    elif not CHECKSUM.fullmatch(checksum):
        yield f"{checksum!r} is no checksum (8 hexadecimal digits at least)"


def _every_epoch(case: Case, settings: RuleSettings) -> Iterator[str]:
    """The accuracy is evaluated after every epoch."""
    epochs = [evaluation.epochs for evaluation in case.training.evaluations if evaluation.epochs is not None]
    if not case.training.evaluations:
        yield "nothing is evaluated"
        return
    if lacking := len(case.training.evaluations) - len(epochs):
        yield f"{lacking} of {len(case.training.evaluations)} evaluations do not say after how many epochs"
    gaps = [
        (nth, before, after) for nth, (before, after) in enumerate(pairwise([0.0, *epochs]), 1) if after - before != 1
    ]
    if gaps:
        nth, before, after = gaps[0]
        more = f", and so {len(gaps) - 1} times more" if len(gaps) > 1 else ""
        yield f"evaluation {nth} comes after epoch {after:g}, the one before it after {before:g}{more}"


def _count(case: Case, settings: RuleSettings) -> Iterator[str]:
    """total_epoch_cnt says how many epochs are done."""
    if case.training.source == "marks" and case.training.counted_from == 0:
        yield "total_epoch_cnt is 0 after the first epoch: it counts from 0, one too few"


def _target(case: Case, settings: RuleSettings) -> Iterator[str]:
    """An evaluation reaches the target."""
    best, evaluations = case.numbers.accuracy, len(case.training.evaluations)
    if case.numbers.reached is None and best is not None:
        yield f"{settings.target:g} % is not reached in {evaluations} evaluations: {best:.3f} % at best"


def _target_quality_time(case: Case, settings: RuleSettings) -> Iterator[str]:
    """target_quality_time is the time from test_begin to the first evaluation at or above the target."""
    printed, time_s = _value(case.training, "target_quality_time"), case.numbers.time_to_train_s
    if printed is None:
        return
    if time_s is None:
        yield f"{printed:.2f} s is printed, but there is no such time: {case.numbers.reasons[TIME_TO_TRAIN]}"
    elif abs(printed - time_s) > TIME_TOLERANCE_S and not _runs_on(case, printed):
        yield f"{printed:.2f} s is printed, {time_s:.2f} s pass from {_begin(case)} to {_reached(case, settings)}"


def _last_epoch(case: Case, settings: RuleSettings) -> Iterator[str]:
    """The time to train ends where the target is reached, not with the last epoch."""
    time_s, whole = case.numbers.time_to_train_s, case.numbers.whole_s
    name = "target_quality_time" if _named(case.training, "target_quality_time") else "total_use_time"
    printed = _value(case.training, name)
    if time_s is None or whole is None or printed is None or not _runs_on(case, printed):
        return
    lacking = "" if name == "target_quality_time" else " and there is no target_quality_time"
    until = case.numbers.whole_until
    yield f"{name} {printed:.2f} s runs to {until}{lacking}: {time_s:.2f} s pass to {_reached(case, settings)}"


def _total_use_time(case: Case, settings: RuleSettings) -> Iterator[str]:
    """total_use_time is the time from test_begin to test_finish."""
    printed, training = _value(case.training, "total_use_time"), case.training
    if printed is None or training.begin is None or training.finish is None or training.source != "marks":
        return
    time_s = training.finish.time_s - training.begin.time_s
    if abs(printed - time_s) > TIME_TOLERANCE_S:
        yield f"{printed:.2f} s is printed, {time_s:.2f} s pass from test_begin to test_finish"


def _avg_ips(case: Case, settings: RuleSettings) -> Iterator[str]:
    """avg_ips is (epochs − warm-up epochs) · samples per epoch / time after warm-up."""
    printed, samples = _value(case.training, "avg_ips"), case.numbers.samples_per_epoch
    if printed is None or samples is None or not case.training.evaluations:
        return
    last = int(case.training.evaluations[-1].epochs or 0)
    tried = range(min(last, 100)) if settings.warmup_epochs is None else (settings.warmup_epochs,)
    rates = [(warmup, expected) for warmup in tried if (expected := rate(case.training, samples, warmup)) is not None]
    if not rates or any(abs(printed - expected) <= max(RATE_TOLERANCE * expected, 1) for _, expected in rates):
        return
    warmup, nearest = min(rates, key=lambda pair: abs(pair[1] - printed))
    chosen = f"{warmup} warm-up epochs, {'the nearest' if settings.warmup_epochs is None else 'as asked'}"
    yield (
        f"{printed:.2f} samples/s is printed, {last - warmup} epochs of {samples:,} samples make {nearest:.2f} "
        f"({printed / nearest - 1:+.1%}; {chosen})"
    )


def _seed(case: Case, settings: RuleSettings) -> Iterator[str]:
    """Everything random comes from a fixed seed, which is printed."""
    seed = case.training.facts.get("seed")
    if seed is None:
        yield "no seed is printed"
    elif not re.fullmatch(r"[+-]?\d+", seed):
        yield f"the seed is {seed}, which fixes nothing"


def _devices(case: Case, settings: RuleSettings) -> Iterator[str]:
    """A log's name says on how many devices it ran."""
    in_log, named = case.training.devices, case.training.named_devices
    if in_log is not None and named is not None and in_log != named:
        yield f"its name says {named}, the log says {in_log}"


Rule = Callable[[Case, RuleSettings], Iterator[str]]
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
    """The number that a mark of that name prints; of several the first."""
    for mark in _named(training, name):
        if name in mark.values and abs(value := float(mark.values[name])) < 1e15:
            return value
    return None


def _runs_on(case: Case, printed: float) -> bool:
    """Whether that time is the whole training's, while the target was reached before its end."""
    time_s, whole = case.numbers.time_to_train_s, case.numbers.whole_s
    if time_s is None or whole is None:
        return False
    return abs(printed - time_s) > TIME_TOLERANCE_S and abs(printed - whole) <= max(TIME_TOLERANCE_S, 1e-3 * whole)


def _begin(case: Case) -> str:
    return case.training.begin.what if case.training.begin else "the beginning"


def _reached(case: Case, settings: RuleSettings) -> str:
    reached = case.numbers.reached
    if reached is None:
        return ""
    epoch = "" if reached.epochs is None else f", epoch {reached.epochs:g}"
    return f"the first evaluation at or above {settings.target:g} % ({reached.accuracy:.3f} %{epoch})"


def _where_from(training: Training) -> str:
    return {"mllog": "its :::MLLOG lines", "lines": "its own lines"}.get(
        training.source, "nowhere: nothing is evaluated"
    )
