"""The quality that a training must reach, and the samples of its epochs: by request, by its log, by MLPerf's rules."""

from __future__ import annotations

import re

from parse.logs.sizes import whole_number
from parse.published.mllog_clock import ACCURACY
from parse.published.mlperf import Target
from parse.published.training import Training
from parse.published.vocabulary import IMAGENET

RESNET50_TARGET = 75.9
"""Top-1 accuracy in percent that AI-Rank's rules require of ResNet50."""
RESNET50 = re.compile(r"(?:resnet|rn)[-_]?50", re.IGNORECASE)
OTHER_DATA = re.compile(r"arcface|insightface|tsm|rcnn|retinanet|ssd", re.IGNORECASE)
"""Models that may have a ResNet50 backbone and train on other data than ImageNet."""
SAME_DATA = 0.02
"""A data set's samples are those of the rules within this share: images without annotations may be left out."""
WHOLE = 0.01
"""A number of ranks is whole within this share: the last batch of an epoch may be filled or left out."""
REQUESTED = "as requested"
"""The source of a number from the command line."""


def target_of(training: Training, requested: float | None) -> Target | str:
    """Returns the target, or the reason why none is known. `requested` is an accuracy up to 1 or in percent, or a loss.

    A log's own target stands before that of its benchmark.
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
    return Target(value=RESNET50_TARGET, source="AI-Rank's of ResNet50")


def _of_kind(training: Training, value: float, source: str) -> Target:
    """Returns the target with that value, as its benchmark or the key of its evaluations reads it."""
    mllog = training.mllog
    if mllog.benchmark and training.source in ("mllog", "marks"):
        fraction = mllog.benchmark.percent and value <= 1
        return mllog.benchmark.with_value(round(value * 100, 10) if fraction else value, source)
    if training.source == "mllog" and mllog.metric != ACCURACY:
        return Target(value=value, metric=mllog.metric, percent=False, lower=True, source=source)
    return Target(value=round(value * 100, 10) if value <= 1 else value, source=source)


def _unless_at_once(training: Training, target: Target) -> Target | str:
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
    if training.mllog.benchmark and (known := _data_set(training)):
        return _of_benchmark(training, in_log, known)
    if in_log:
        return in_log, "as the log says"
    name = "/".join(training.path.parts[-4:])
    is_resnet50 = RESNET50.search(name) and not OTHER_DATA.search(name)
    if not training.mllog.benchmark_name and (training.facts.get("classes") == "1000" or is_resnet50):
        return IMAGENET, "ImageNet's, which the rules ask of ResNet50"
    return None, "the samples of an epoch are not known (--samples-per-epoch)"


def _data_set(training: Training) -> int | None:
    mllog = training.mllog
    if mllog.benchmark is None:
        return None
    return mllog.benchmark.data_set(mllog.begin.time_s if mllog.begin else None)


def _of_benchmark(training: Training, in_log: int | None, known: int) -> tuple[int | None, str]:
    """Compares train_samples with the data set that the benchmark's rules fix: programs print one rank's, or steps."""
    name = training.mllog.benchmark_name
    if in_log is None:
        return known, f"MLPerf's data set of {name}"
    if abs(in_log / known - 1) <= SAME_DATA:
        return in_log, "as the log says"
    ranks = known / in_log
    is_share = ranks > 1.5 and abs(ranks / round(ranks) - 1) <= WHOLE
    doubt = f"fit 1/{round(ranks)} of" if is_share else "are not"
    doubt = f"train_samples {in_log:,} {doubt} the {known:,} samples of MLPerf's data set of {name}"
    if training.source != "marks":
        if training.mllog.benchmark and training.mllog.benchmark.max_epochs <= 1:
            return _of_part(training, in_log, known, doubt)
        if training.facts.get("division") == "closed":
            return known, f"MLPerf's data set of {name}: {doubt}"
        if is_share:
            return None, f"{doubt}: one rank's share? (--samples-per-epoch)"
    return in_log, f"as the log says, but {doubt}"


def _of_part(training: Training, in_log: int, known: int, doubt: str) -> tuple[int | None, str]:
    """Compares train_samples with the part of an epoch that is trained: programs print those of the whole run."""
    trained = (training.epochs or 0) * known
    if abs(trained / in_log - 1) <= SAME_DATA:
        return known, f"MLPerf's data set, of which train_samples {in_log:,} are those trained"
    return (
        None,
        f"{doubt}, nor the {trained:,.0f} that {training.epochs or 0:g} epochs of it have (--samples-per-epoch)",
    )
