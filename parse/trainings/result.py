"""Time to train, accuracy and speedup of a training by AI-Rank's rules."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from parse.trainings.training import BEGINS, DEVICES, MARKS, EpochAccuracy, Training

RESNET50_TARGET = 75.9
"""Top-1 accuracy in percent that AI-Rank's rules require of ResNet50."""
RESNET50 = re.compile(r"(?:resnet|rn)[-_]?50", re.IGNORECASE)
OTHER_DATA = re.compile(r"arcface|insightface|tsm|rcnn|retinanet|ssd", re.IGNORECASE)
"""Models that may have a ResNet50 backbone and train on other data than ImageNet."""
TIME_TO_TRAIN, ACCURACY, SPEEDUP = "time to train", "accuracy", "speedup"
"""Names of numbers; `TrainingResult.reasons` has them as keys."""
NO_EVALUATION = "no evaluation is printed"


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """A training and its numbers; `reasons`, by name, of those that are None.

    `target` is the accuracy to reach in percent, `requested` if the command line has it. `reached` is the first
    evaluation at the target, `best` that of the highest accuracy. `speedup` is over one device, of logs of one series:
    those with the same folder and name without devices.
    """

    training: Training
    target: float | None
    requested: bool
    time_to_train_s: float | None
    reached: EpochAccuracy | None
    best: EpochAccuracy | None
    speedup: float | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def accuracy(self) -> float | None:
        """The accuracy of the best evaluation, in percent."""
        return self.best.accuracy if self.best else None

    @cached_property
    def series(self) -> tuple[Path, str]:
        """The folder and the name without devices, so that `GPUx8_AMP.log` matches `GPUx1_AMP.log`."""
        return self.training.path.parent, DEVICES.sub("*", self.training.path.name)


def training_results(trainings: Sequence[Training], target: float | None = None) -> list[TrainingResult]:
    """Returns a result per training, sorted by series and devices. A `target` up to 1 is a fraction, above it percent;
    without one it is AI-Rank's of ResNet50 for logs that name no other model."""
    results = [training_result(training, target) for training in trainings]
    return sorted(
        (_with_speedup(result, results) for result in results),
        key=lambda result: (result.series, result.training.devices or 0, result.training.path),
    )


def training_result(training: Training, requested: float | None) -> TrainingResult:
    """Returns the numbers of one training, still without speedup."""
    other_model = _named_otherwise(training)
    target = RESNET50_TARGET if requested is None else round(requested * 100, 10) if requested <= 1 else requested
    if requested is None and other_model:
        time_s: float | str = f"no target is known for {other_model!r} (--target)"
        target_known = None
    else:
        target_known, time_s = target, _time_to_train(training, target)
    best = max(training.evaluations, key=lambda evaluation: evaluation.accuracy, default=None)
    reasons = {TIME_TO_TRAIN: time_s} if isinstance(time_s, str) else {}
    return TrainingResult(
        training=training,
        target=target_known,
        requested=requested is not None,
        time_to_train_s=None if isinstance(time_s, str) else time_s,
        reached=_reached(training, target_known),
        best=best,
        reasons=reasons if best else {**reasons, ACCURACY: NO_EVALUATION},
    )


def _named_otherwise(training: Training) -> str:
    """Returns the model that the log or its path names, if it is not ResNet50."""
    if training.model and not RESNET50.search(training.model):
        return training.model
    match = OTHER_DATA.search("/".join(training.path.parts[-4:]))
    return match[0] if match else ""


def _reached(training: Training, target: float | None) -> EpochAccuracy | None:
    at_target = (each for each in training.evaluations if target is not None and each.accuracy >= target)
    return next(at_target, None)


def _time_to_train(training: Training, target: float) -> float | str:
    """Returns the seconds from the beginning to the first evaluation at the target, or why there are none."""
    begin_s, reached = training.begin_s, _reached(training, target)
    if reached is None and not training.evaluations:
        return NO_EVALUATION
    if reached is None:
        best = max(evaluation.accuracy for evaluation in training.evaluations)
        whole_s = training.whole_s
        until = "" if whole_s is None else f", {whole_s:.2f} s from {BEGINS[training.source]} to {training.end}"
        evaluations = f"{len(training.evaluations)} evaluations"
        return f"the target of {target:g} % is not reached: {best:.3f} % at best in {evaluations}{until}"
    if begin_s is None or training.resumed:
        missing = "test_begin" if training.source == MARKS else "time stamp"
        resumed = "the log goes on with a training that began before it"
        return resumed if begin_s is not None else f"nothing says when it began (no {missing})"
    if reached.time_s is None:
        return "the evaluation that reached the target has no time stamp"
    if reached.time_s <= begin_s:
        return f"the target is reached before {BEGINS[training.source]}"
    return reached.time_s - begin_s


def _with_speedup(result: TrainingResult, results: Sequence[TrainingResult]) -> TrainingResult:
    """Adds the time to train on one device divided by this one's; it is never a ratio of throughputs."""
    time_s = result.time_to_train_s
    single = [other for other in results if other.series == result.series and other.training.devices == 1]
    base = single[0].time_to_train_s if single else None
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
        return replace(result, speedup=base / time_s)
    return replace(result, reasons={**result.reasons, SPEEDUP: reason})
