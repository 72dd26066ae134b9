"""Time to train, throughput, accuracy and speedup of a training by AI-Rank's rules; its target."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from parse.logs.formats.mllog import IMAGENET, SAME_DATA
from parse.logs.mlperf import ACCURACY as EVAL_ACCURACY
from parse.logs.mlperf import Evaluation, Moment, QualityTarget
from parse.logs.mlperf_training import doubtful
from parse.logs.mlperf_training import samples_of_epoch as samples_by_mlperf
from parse.logs.sizes import whole_number
from parse.published.training import DEVICES, Training

# The quality that a training must reach, and the samples of its epochs: by request, by its log, by MLPerf's rules.

RESNET50_TARGET = 75.9
"""Top-1 accuracy in percent that AI-Rank's rules require of ResNet50."""
RESNET50 = re.compile(r"(?:resnet|rn)[-_]?50", re.IGNORECASE)
OTHER_DATA = re.compile(r"arcface|insightface|tsm|rcnn|retinanet|ssd", re.IGNORECASE)
"""Models that may have a ResNet50 backbone and train on other data than ImageNet."""
REQUESTED = "as requested"
"""The source of a number from the command line."""


def target_of(training: Training, requested: float | None) -> QualityTarget | str:
    """Returns the target, or the reason why none is known. `requested` is an accuracy up to 1 or in percent, or a loss.

    A log's own target takes precedence over that of its benchmark.
    """
    mllog = training.mllog
    if requested is not None:
        return _of_kind(training, requested, REQUESTED)
    if training.source in ("mllog", "marks") and mllog.own_target is not None:
        return _unless_at_once(training, _of_kind(training, mllog.own_target, "as its log says"))
    if mllog.benchmark:
        begin_s = mllog.begin.time_s if mllog.begin else None
        batch_size = whole_number(training.facts.get("global_batch_size"))
        return mllog.benchmark.target(mllog.benchmark_name, begin_s, batch_size)
    if training.source == "mllog" and not mllog.benchmark_name:
        return "its log names neither a target nor a benchmark (--target)"
    if name := mllog.benchmark_name or _named_otherwise(training):
        return f"no target is known for {name!r} (--target)"
    return QualityTarget(value=RESNET50_TARGET, source="AI-Rank's of ResNet50")


def _of_kind(training: Training, value: float, source: str) -> QualityTarget:
    """Returns the target with that value, as its benchmark or the key of its evaluations reads it."""
    mllog = training.mllog
    if mllog.benchmark and training.source in ("mllog", "marks"):
        fraction = mllog.benchmark.percent and value <= 1
        return mllog.benchmark.with_value(round(value * 100, 10) if fraction else value, source)
    if training.source == "mllog" and mllog.metric != EVAL_ACCURACY:
        return QualityTarget(value=value, metric=mllog.metric, percent=False, lower=True, source=source)
    return QualityTarget(value=round(value * 100, 10) if value <= 1 else value, source=source)


def _unless_at_once(training: Training, target: QualityTarget) -> QualityTarget | str:
    """Returns the reason why the target of an unknown benchmark is no accuracy: MLPerf prints losses as such, too."""
    if training.mllog.benchmark or training.source == "marks" or target.lower or len(training.evaluations) < 2:
        return target
    first = training.evaluations[0]
    if not target.reached(first.accuracy, first.second):
        return target
    return (
        f"the first evaluation is above the log's target {target.value:g} already, and training went on: it may be "
        f"a loss, and the benchmark {training.mllog.benchmark_name!r} is not known"
    )


def _named_otherwise(training: Training) -> str:
    """Returns the model that the log or its path names, if it is not ResNet50."""
    if (model := training.facts.get("model", "")) and not RESNET50.search(model):
        return model
    match = OTHER_DATA.search("/".join(training.path.parts[-4:]))
    return match[0] if match else ""


def samples_of_epoch(training: Training, requested: int | None) -> tuple[int | None, str]:
    """Returns the samples of an epoch and their source; without them, the reason."""
    if requested:
        return requested, REQUESTED
    in_log = whole_number(training.facts.get("samples_per_epoch"), max_digits=15)
    mllog = training.mllog
    known = mllog.benchmark.data_set(mllog.begin.time_s if mllog.begin else None) if mllog.benchmark else None
    if known and in_log and training.source == "marks" and abs(in_log / known - 1) > SAME_DATA:
        return in_log, f"as the log says, but {doubtful(mllog, in_log, known)[0]}"
    if known:
        return samples_by_mlperf(training.facts, mllog, training.epochs)
    if in_log:
        return in_log, "as the log says"
    name = "/".join(training.path.parts[-4:])
    is_resnet50 = RESNET50.search(name) and not OTHER_DATA.search(name)
    if not training.mllog.benchmark_name and (training.facts.get("classes") == "1000" or is_resnet50):
        return IMAGENET, "ImageNet's, which the rules require of ResNet50"
    return None, "the samples of an epoch are not known (--samples-per-epoch)"


TIME_TO_TRAIN, THROUGHPUT, ACCURACY = "time to train", "throughput", "accuracy"
"""Names of numbers; `Numbers.reasons` has them as keys."""
NO_EVALUATION = "no evaluation is printed"


@dataclass(frozen=True, kw_only=True)
class RuleSettings:
    """Settings that the rules do not fix: warm-up epochs, samples that logs do not print, another target.

    `target` up to 1 is a fraction, above it percent; of a benchmark with a loss it is that loss.
    """

    target: float | None = None
    warmup_epochs: int | None = None
    samples_per_epoch: int | None = None


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The numbers of a training; `reasons`, by name, of those that are None.

    `time_to_train_s` runs from the beginning to `reached`, the first evaluation at the `target`; `whole_s` runs to
    test_finish, or to the last evaluation. `epochs` is the number of epochs that the throughput covers, `samples` that
    of the samples if the log counts these. `until_finish` is true if an evaluation after the end reached the target.
    """

    target: QualityTarget | None = None
    time_to_train_s: float | None = None
    reached: Evaluation | None = None
    whole_s: float | None = None
    whole_until: str = ""
    throughput: float | None = None
    epochs: float | None = None
    samples: float | None = None
    samples_per_epoch: int | None = None
    samples_from: str = ""
    until_finish: bool = False
    best: Evaluation | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def accuracy(self) -> float | None:
        """The accuracy of the best evaluation, in percent; None if the quality is another."""
        if self.best is None or (self.target is not None and not self.target.is_accuracy):
            return None
        return self.best.accuracy


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
    target = target_of(training, settings.target)
    known = None if isinstance(target, str) else target
    best = _best(training, known)
    reached = next((item for item in training.evaluations if known and known.reached(item.accuracy, item.second)), None)
    samples, samples_from = samples_of_epoch(training, settings.samples_per_epoch)
    time_to_train_s = _time_to_train(training, target, best, reached)
    throughput = _throughput(training, settings, samples, samples_from)
    accuracy = NO_EVALUATION if not training.evaluations else target if best is None else best
    if known and best and not known.is_accuracy:
        accuracy = f"its quality is {known.text(best.accuracy, best.second, '.4g')} at best"
    values = {ACCURACY: accuracy, THROUGHPUT: throughput, TIME_TO_TRAIN: time_to_train_s}
    has_rate = not isinstance(throughput, str)
    return Numbers(
        target=known,
        time_to_train_s=None if isinstance(time_to_train_s, str) else time_to_train_s,
        reached=reached,
        whole_s=training.whole_s,
        whole_until=training.end.what if training.end else "",
        throughput=throughput if not isinstance(throughput, str) else None,
        epochs=training.epochs - (settings.warmup_epochs or 0) if has_rate and training.epochs else None,
        samples=training.samples if has_rate else None,
        samples_per_epoch=samples,
        samples_from=samples_from,
        until_finish=not isinstance(time_to_train_s, str) and _is_late(training, reached),
        best=best,
        reasons={name: value for name, value in values.items() if isinstance(value, str)},
    )


def rate(training: Training, samples: int, warmup_epochs: int) -> float | None:
    """Returns (epochs − warm-up epochs) · samples per epoch / time after warm-up; None if the log lacks a time."""
    end, last, began_s = training.trained_until, training.epochs, _after(training, warmup_epochs)
    if end is None or last is None or began_s is None or last <= warmup_epochs or end.time_s <= began_s:
        return None
    return (last - warmup_epochs) * samples / (end.time_s - began_s)


def _best(training: Training, target: QualityTarget | None) -> Evaluation | None:
    """Returns the best evaluation; without a target, that of marks and programs' own lines, which print accuracies."""
    if target is None and training.source == "mllog":
        return None
    lower = target is not None and target.lower
    return max(training.evaluations, key=lambda item: -item.accuracy if lower else item.accuracy, default=None)


def _time_to_train(
    training: Training, target: QualityTarget | str, best: Evaluation | None, reached: Evaluation | None
) -> float | str:
    """Returns the seconds, or the reason why there are none."""
    if not training.evaluations:
        return NO_EVALUATION
    if isinstance(target, str):
        return target
    if reached is None:
        at_best = target.text(best.accuracy, best.second, ".3f") if best else ""
        return (
            f"the target of {target.text()} is not reached: {at_best} at best in "
            f"{len(training.evaluations)} evaluations{_duration(training)}"
        )
    if training.begin is None or training.counted_from is None:
        return _no_begin(training)
    return _until(training, reached, training.begin)


def _until(training: Training, reached: Evaluation, begin: Moment) -> float | str:
    """Returns the seconds from the beginning until the target was reached, or the reason why there are none."""
    if reached.time_s is None:
        return "the evaluation that reached the target has no time stamp"
    if reached.time_s <= begin.time_s:
        return f"the target is reached before {begin.what}"
    if training.finish is not None and _is_late(training, reached):
        late_s = reached.time_s - training.finish.time_s
        if training.clock.aborted:
            return f"the evaluation that reached the target is stamped {late_s:.2f} s after run_stop"
        return training.finish.time_s - begin.time_s
    return reached.time_s - begin.time_s


def _is_late(training: Training, reached: Evaluation | None) -> bool:
    """Whether MLPerf's run_stop comes before the evaluation: it is the time of the model that was evaluated later."""
    if reached is None or reached.time_s is None or training.finish is None or training.source != "mllog":
        return False
    return reached.time_s > training.finish.time_s


def _throughput(training: Training, settings: RuleSettings, samples: int | None, why_none: str) -> float | str:
    """Returns samples/s, or the reason why there are none."""
    end = training.trained_until
    if training.samples is None and (samples is None or training.clock.no_epochs):
        return training.clock.no_epochs if samples else why_none
    if end is None or (training.epochs is None and training.samples is None):
        return "no evaluation says how many epochs were trained until when"
    if training.begin is None or training.counted_from is None:
        return _no_begin(training)
    if training.samples is None:
        return _of_epochs(training, samples or 0, settings.warmup_epochs or 0)
    if settings.warmup_epochs:
        return f"{training.clock.no_epochs}: no warm-up epochs can be left out"
    seconds = end.time_s - training.begin.time_s
    return training.samples / seconds if seconds > 0 else "no time passes"


def _of_epochs(training: Training, samples: int, warmup_epochs: int) -> float | str:
    last = training.epochs or 0
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
