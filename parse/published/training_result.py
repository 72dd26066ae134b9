"""Time to train, throughput, accuracy and speedup of a training by AI-Rank's rules."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from parse.published.training import DEVICES, Evaluation, Training
from parse.published.vocabulary import IMAGENET, whole_number

TARGET = 75.9
"""Top-1 accuracy in percent that the rules require of ResNet50."""
RESNET50 = re.compile(r"(?:resnet|rn)[-_]?50", re.IGNORECASE)
OTHER_DATA = re.compile(r"arcface|insightface|tsm|rcnn|retinanet|ssd", re.IGNORECASE)
"""Models that may have a ResNet50 backbone and train on other data than ImageNet."""
TIME_TO_TRAIN, THROUGHPUT, ACCURACY = "time to train", "throughput", "accuracy"
"""Names of numbers; `Numbers.reasons` has them as keys."""
NO_EVALUATION = "no evaluation is printed"


@dataclass(frozen=True, kw_only=True)
class RuleSettings:
    """Settings that the rules do not fix: target in percent, warm-up epochs, samples that logs do not print."""

    target: float = TARGET
    warmup_epochs: int | None = None
    samples_per_epoch: int | None = None


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The numbers of a training; `reasons`, by name, of those that are None.

    `time_to_train_s` runs from the beginning to `reached`, the first evaluation at or above the target; `whole_s` runs
    to test_finish, or to the last evaluation. `epochs` is the number of epochs that the throughput covers.
    """

    time_to_train_s: float | None = None
    reached: Evaluation | None = None
    whole_s: float | None = None
    whole_until: str = ""
    throughput: float | None = None
    epochs: float | None = None
    samples_per_epoch: int | None = None
    samples_from: str = ""
    best: Evaluation | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def accuracy(self) -> float | None:
        """The accuracy of the best evaluation, in percent."""
        return None if self.best is None else self.best.accuracy


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """A training, its numbers under `settings`, its speedup over one device, or the `reason` why there is none.

    Speedups compare logs of one series only: those with the same folder and name without devices.
    """

    training: Training
    numbers: Numbers
    settings: RuleSettings
    speedup: float | None = None
    reason: str = ""

    @cached_property
    def series(self) -> tuple[Path, str]:
        """The folder and the name without devices, so that `GPUx8_AMP.log` matches `GPUx1_AMP.log`."""
        return self.training.path.parent, DEVICES.sub("*", self.training.path.name)


def training_results(trainings: Sequence[Training], settings: RuleSettings) -> list[TrainingResult]:
    """Returns a result per training, sorted by series and devices."""
    results = [
        TrainingResult(training=training, numbers=numbers(training, settings), settings=settings)
        for training in trainings
    ]
    return sorted(
        (_with_speedup(result, results) for result in results),
        key=lambda result: (result.series, result.training.devices or 0, result.training.path),
    )


def numbers(training: Training, settings: RuleSettings) -> Numbers:
    """Returns the numbers of one training."""
    evaluations = training.evaluations
    best = max(evaluations, key=lambda evaluation: evaluation.accuracy, default=None)
    reached = next((evaluation for evaluation in evaluations if evaluation.accuracy >= settings.target), None)
    samples, samples_from = _samples(training, settings)
    time_to_train_s = _time_to_train(training, settings, best, reached)
    throughput = _throughput(training, settings, samples)
    values = {ACCURACY: best or NO_EVALUATION, THROUGHPUT: throughput, TIME_TO_TRAIN: time_to_train_s}
    return Numbers(
        time_to_train_s=None if isinstance(time_to_train_s, str) else time_to_train_s,
        reached=reached,
        whole_s=training.whole_s,
        whole_until=training.end.what if training.end else "",
        throughput=None if isinstance(throughput, str) else throughput,
        epochs=None if isinstance(throughput, str) else (training.epochs or 0) - (settings.warmup_epochs or 0),
        samples_per_epoch=samples,
        samples_from=samples_from,
        best=best,
        reasons={name: value for name, value in values.items() if isinstance(value, str)},
    )


def rate(training: Training, samples: int, warmup_epochs: int) -> float | None:
    """Returns (epochs − warm-up epochs) · samples per epoch / time after warm-up; None if the log lacks a time."""
    end, last, began_s = training.end, training.epochs, _after(training, warmup_epochs)
    if end is None or last is None or began_s is None or last <= warmup_epochs or end.time_s <= began_s:
        return None
    return (last - warmup_epochs) * samples / (end.time_s - began_s)


def _time_to_train(
    training: Training, settings: RuleSettings, best: Evaluation | None, reached: Evaluation | None
) -> float | str:
    """Returns the seconds, or the reason why there are none."""
    if best is None:
        return NO_EVALUATION
    if reached is None:
        return (
            f"the target of {settings.target:g} % is not reached: {best.accuracy:.3f} % at best in "
            f"{len(training.evaluations)} evaluations{_duration(training)}"
        )
    if training.begin is None or training.counted_from is None:
        return _no_begin(training)
    if reached.time_s is None:
        return "the evaluation that reached the target has no time stamp"
    if reached.time_s <= training.begin.time_s:
        return f"the target is reached before {training.begin.what}"
    return reached.time_s - training.begin.time_s


def _throughput(training: Training, settings: RuleSettings, samples: int | None) -> float | str:
    """Returns samples/s, or the reason why there are none."""
    warmup_epochs, last = settings.warmup_epochs or 0, training.epochs
    if samples is None:
        return "the samples of an epoch are not known (--samples-per-epoch)"
    if last is None or training.end is None:
        return "no evaluation says how many epochs were trained until when"
    if training.begin is None or training.counted_from is None:
        return _no_begin(training)
    if last <= warmup_epochs:
        return f"only {last:g} epochs are there, {warmup_epochs} of them warm-up"
    if (samples_per_s := rate(training, samples, warmup_epochs)) is None:
        return f"no evaluation marks the end of warm-up epoch {warmup_epochs}" if warmup_epochs else "no time passes"
    return samples_per_s


def _no_begin(training: Training) -> str:
    if training.begin is None:
        missing = {"marks": "no test_begin", "mllog": "no run_start"}.get(training.source, "no time stamp")
        return f"nothing says when it began ({missing})"
    return "the log goes on with a training that began before it"


def _after(training: Training, warmup_epochs: int) -> float | None:
    """Returns the time at which warm-up ended."""
    if not warmup_epochs:
        return None if training.begin is None else training.begin.time_s
    return next((evaluation.time_s for evaluation in training.evaluations if evaluation.epochs == warmup_epochs), None)


def _duration(training: Training) -> str:
    if training.whole_s is None or training.begin is None or training.end is None:
        return ""
    return f", {training.whole_s:.2f} s from {training.begin.what} to {training.end.what}"


def _samples(training: Training, settings: RuleSettings) -> tuple[int | None, str]:
    """Returns the samples per epoch and their source."""
    if settings.samples_per_epoch:
        return settings.samples_per_epoch, "as asked"
    if in_log := whole_number(training.facts.get("samples_per_epoch"), max_digits=15):
        return in_log, "as the log says"
    name = "/".join(training.path.parts[-4:])
    if training.facts.get("classes") == "1000" or (RESNET50.search(name) and not OTHER_DATA.search(name)):
        return IMAGENET, "ImageNet's, which the rules ask of ResNet50"
    return None, ""


def _with_speedup(result: TrainingResult, results: Sequence[TrainingResult]) -> TrainingResult:
    """Adds the time to train on one device divided by this one's; it is never a ratio of throughputs."""
    time_s = result.numbers.time_to_train_s
    single = [other for other in results if other.series == result.series and other.training.devices == 1]
    base = single[0].numbers.time_to_train_s if single else None
    if result.training.devices is None:
        reason = "neither the log nor its name says how many devices it ran on"
    elif time_s is None:
        reason = "it has no time to train"
    elif not single:
        reason = "there is no log of 1 device beside it"
    elif len(single) > 1:
        reason = f"{len(single)} logs of 1 device are beside it: which one counts is not known"
    elif base is None:
        reason = f"{single[0].training.path.name} has no time to train"
    else:
        return dataclasses.replace(result, speedup=base / time_s)
    return dataclasses.replace(result, reason=reason)
