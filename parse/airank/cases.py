"""AI-Rank's numbers by its rules: time to train, throughput, accuracy, speedup."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parse.airank.training import DEVICES, Evaluation, Training
from parse.published.vocabulary import IMAGENET

TARGET = 75.9
"""Top-1 in percent that the rules ask of ResNet50."""
RESNET50 = re.compile(r"(?:resnet|rn)[-_]?50", re.IGNORECASE)
OTHER_DATA = re.compile(r"arcface|insightface|tsm|rcnn|retinanet|ssd", re.IGNORECASE)
"""Whose backbone ResNet50 may be."""
TIME_TO_TRAIN, THROUGHPUT, ACCURACY = "time to train", "throughput", "accuracy"
"""Numbers by the names that reasons for their absence go under."""


@dataclass(frozen=True, kw_only=True)
class RuleSettings:
    """What the rules leave open: the target in percent, how many epochs are warm-up, and what logs do not say."""

    target: float = TARGET
    warmup_epochs: int | None = None
    samples_per_epoch: int | None = None


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Of one training; a number that it does not give is None, and `reasons` says why, by its name.

    `time_to_train_s` runs from the beginning to `reached`, the first evaluation at or above the target; `whole_s` to
    test_finish, or to the last evaluation. Of the throughput `epochs` were timed, `warmup_epochs` left out before.
    """

    time_to_train_s: float | None = None
    reached: Evaluation | None = None
    whole_s: float | None = None
    whole_until: str = ""
    throughput: float | None = None
    epochs: float | None = None
    warmup_epochs: int = 0
    samples_per_epoch: int | None = None
    samples_from: str = ""
    accuracy: float | None = None
    best: Evaluation | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training with its numbers and its speedup over one device; `reason` says why there is none.

    `series` is what its name says beside the devices: only logs of one series are compared.
    """

    training: Training
    numbers: Numbers
    series: tuple[Path, str]
    speedup: float | None = None
    reason: str = ""


def cases(trainings: Sequence[Training], settings: RuleSettings) -> list[Case]:
    """The trainings with their numbers, those of one series together, by devices."""
    alone = [
        Case(training=training, numbers=numbers(training, settings), series=series(training.path))
        for training in trainings
    ]
    with_speedups = [_with_speedup(case, [other for other in alone if other.series == case.series]) for case in alone]
    return sorted(with_speedups, key=lambda case: (case.series, case.training.devices or 0, case.training.path))


def series(path: Path) -> tuple[Path, str]:
    """The folder, and the name but for its devices: `GPUx8_AMP.log` is compared with `GPUx1_AMP.log`."""
    return path.parent, DEVICES.sub("*", path.name)


def numbers(training: Training, settings: RuleSettings) -> Numbers:
    """The numbers of one training."""
    reasons: dict[str, str] = {}
    best = max(training.evaluations, key=lambda evaluation: evaluation.accuracy, default=None)
    reached = next((evaluation for evaluation in training.evaluations if evaluation.accuracy >= settings.target), None)
    samples, samples_from = _samples(training, settings)
    if best is None:
        reasons[ACCURACY] = "no evaluation is printed"
    end, until = _end(training)
    throughput, epochs = _throughput(training, settings, samples, end, reasons)
    return Numbers(
        time_to_train_s=_time_to_train(training, settings, best, reached, reasons),
        reached=reached,
        whole_s=None if end is None or training.begin is None else end - training.begin.time_s,
        whole_until=until,
        throughput=throughput,
        epochs=epochs,
        warmup_epochs=settings.warmup_epochs or 0,
        samples_per_epoch=samples,
        samples_from=samples_from,
        accuracy=None if best is None else best.accuracy,
        best=best,
        reasons=reasons,
    )


def rate(training: Training, samples: int, warmup_epochs: int) -> float | None:
    """(epochs − warm-up epochs) · samples per epoch / time after warm-up; None where the log gives no such time."""
    end, _ = _end(training)
    last = training.evaluations[-1].epochs if training.evaluations else None
    began = _after(training, warmup_epochs)
    if end is None or last is None or began is None or last <= warmup_epochs or end <= began:
        return None
    return (last - warmup_epochs) * samples / (end - began)


def _time_to_train(
    training: Training,
    settings: RuleSettings,
    best: Evaluation | None,
    reached: Evaluation | None,
    reasons: dict[str, str],
) -> float | None:
    name = TIME_TO_TRAIN
    if best is None:
        reasons[name] = "no evaluation is printed"
    elif reached is None:
        reasons[name] = (
            f"the target of {settings.target:g} % is not reached: {best.accuracy:.3f} % at best in "
            f"{len(training.evaluations)} evaluations{_ran(training)}"
        )
    elif training.begin is None:
        reasons[name] = f"nothing says when it began ({_missing_begin(training)})"
    elif training.counted_from is None:
        reasons[name] = "the log goes on with a training that began before it"
    elif reached.time_s is None:
        reasons[name] = "the evaluation that reached the target has no time stamp"
    elif reached.time_s <= training.begin.time_s:
        reasons[name] = f"the target is reached before {training.begin.what}"
    else:
        return reached.time_s - training.begin.time_s
    return None


def _throughput(
    training: Training, settings: RuleSettings, samples: int | None, end: float | None, reasons: dict[str, str]
) -> tuple[float | None, float | None]:
    warmup_epochs = settings.warmup_epochs or 0
    last = training.evaluations[-1].epochs if training.evaluations else None
    reason = ""
    if samples is None:
        reason = "the samples of an epoch are not known (--samples-per-epoch)"
    elif last is None or end is None:
        reason = "no evaluation says how many epochs were trained until when"
    elif training.begin is None:
        reason = f"nothing says when it began ({_missing_begin(training)})"
    elif training.counted_from is None:
        reason = "the log goes on with a training that began before it"
    elif last <= warmup_epochs:
        reason = f"only {last:g} epochs are there, {warmup_epochs} of them warm-up"
    elif (samples_per_s := rate(training, samples, warmup_epochs)) is None:
        reason = f"no evaluation marks the end of warm-up epoch {warmup_epochs}" if warmup_epochs else "no time passes"
    else:
        return samples_per_s, last - warmup_epochs
    reasons[THROUGHPUT] = reason
    return None, None


def _end(training: Training) -> tuple[float | None, str]:
    """When the training ended, and which line says so."""
    if training.finish is not None:
        return training.finish.time_s, training.finish.what
    times = [evaluation.time_s for evaluation in training.evaluations if evaluation.time_s is not None]
    return (times[-1], "the last evaluation") if times else (None, "")


def _after(training: Training, warmup_epochs: int) -> float | None:
    if not warmup_epochs:
        return None if training.begin is None else training.begin.time_s
    return next((evaluation.time_s for evaluation in training.evaluations if evaluation.epochs == warmup_epochs), None)


def _ran(training: Training) -> str:
    end, until = _end(training)
    return (
        f", {end - training.begin.time_s:.2f} s from {training.begin.what} to {until}" if end and training.begin else ""
    )


def _missing_begin(training: Training) -> str:
    return {"marks": "no test_begin", "mllog": "no run_start"}.get(training.source, "no time stamp")


def _samples(training: Training, settings: RuleSettings) -> tuple[int | None, str]:
    if settings.samples_per_epoch:
        return settings.samples_per_epoch, "as asked"
    in_log = training.facts.get("samples_per_epoch", "")
    if in_log.isdecimal() and 0 < len(in_log) < 16 and int(in_log):
        return int(in_log), "as the log says"
    name = "/".join(training.path.parts[-4:])
    if training.facts.get("classes") == "1000" or (RESNET50.search(name) and not OTHER_DATA.search(name)):
        return IMAGENET, "ImageNet's, which the rules ask of ResNet50"
    return None, ""


def _with_speedup(case: Case, others: Sequence[Case]) -> Case:
    """The speedup: the time to train on one device by this one's; never a ratio of throughputs."""

    def without(reason: str) -> Case:
        return dataclasses.replace(case, reason=reason)

    time_s = case.numbers.time_to_train_s
    alone = [other for other in others if other.training.devices == 1]
    if case.training.devices is None:
        return without("neither the log nor its name says how many devices it ran on")
    if time_s is None:
        return without("it has no time to train")
    if not alone:
        return without("there is no log of 1 device beside it")
    if len(alone) > 1:
        return without(f"{len(alone)} logs of 1 device are beside it: which one counts is not known")
    base = alone[0].numbers.time_to_train_s
    if base is None:
        return without(f"{alone[0].training.path.name} has no time to train")
    return dataclasses.replace(case, speedup=base / time_s)
