"""AI-Rank's four rules: the time to train, accuracy and speedup that they define, and the ways in which a log or the
folder of a submission breaks them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hpc.model.findings import CheckFinding, FigureValue
from hpc.model.training import FIELDS, INFORMATION
from hpc.system.regular_file import parse_json, read_whole
from hpc.system.text import first_of
from parse.logs.sizes import whole_number
from parse.trainings.training import BEGINS, DEVICES, MARKS, TARGET_TIME, EpochAccuracy, Training

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


# How they are broken.

FILES = "files"
TIME_TOLERANCE_S = 1.0
"""A printed time and its time stamps agree within it."""
CASES = (1, 8, 32)
LOG_NAME = re.compile(r"GPUx(?:1|8|32)\.log(?:\.gz)?")
LEVELS = 3
"""`<system>/system_information.json`, `<system>/<model>/log/GPUx1.log`: from a log's folder up to the system's."""


@dataclass(frozen=True, kw_only=True)
class Violation(CheckFinding):
    """A rule that the log or folder at `path` breaks."""

    path: Path


def judge(result: TrainingResult) -> Iterator[Violation]:
    """Yields the rules that a log breaks by itself."""
    training, target, best = result.training, result.target, result.best

    def broken(rule: str, text: str, **figures: FigureValue) -> Violation:
        return Violation(path=training.path, name=rule, text=text, figures=figures)

    time_s, printed = result.time_to_train_s, training.printed_s
    if printed is not None and time_s is None:
        text = f"{printed:.2f} s is printed, but there is no such time: {result.reasons[TIME_TO_TRAIN]}"
        yield broken(TIME_TO_TRAIN, text, printed_s=printed)
    elif printed is not None and time_s is not None and abs(printed - time_s) > TIME_TOLERANCE_S:
        pass_s = f"{printed:.2f} s is printed, {time_s:.2f} s pass until the first evaluation at {target:g} %"
        whole = training.whole_s
        is_whole = whole is not None and abs(printed - whole) <= max(TIME_TOLERANCE_S, 1e-3 * whole)
        end = f": it runs to {training.end}" if is_whole else ""
        yield broken(TIME_TO_TRAIN, f"{pass_s}{end}", printed_s=printed, time_s=time_s)
    elif printed is None and time_s is not None and training.source == MARKS:
        yield broken(
            TIME_TO_TRAIN, f"no {TARGET_TIME} is printed, {time_s:.2f} s pass by its time stamps", time_s=time_s
        )
    if best is None:
        yield broken(ACCURACY, "nothing is evaluated")
    elif target is not None and result.reached is None:
        text = f"{target:g} % is not reached in {len(training.evaluations)} evaluations: {best.accuracy:.3f} % at best"
        yield broken(ACCURACY, text, target=target, evaluations=len(training.evaluations), best=best.accuracy)
    if time_s is not None and result.speedup is None:
        yield broken(SPEEDUP, result.reasons[SPEEDUP])
    if None not in (training.devices, training.named_devices) and training.devices != training.named_devices:
        named, in_log = training.named_devices, training.devices
        assert named is not None and in_log is not None
        yield broken(FILES, f"its name says {named} devices, the log says {in_log}", named=named, in_log=in_log)


def judge_folder(results: Sequence[TrainingResult]) -> Iterator[Violation]:
    """Yields how the logs of one folder together break the rule of files: their names, the cases 1, 8 and 32, and what
    system_information.json says."""
    folder = results[0].training.path.parent

    def broken(text: str, **figures: FigureValue) -> Violation:
        return Violation(path=folder, name=FILES, text=text, figures=figures)

    if others := sorted({name for each in results if not LOG_NAME.fullmatch(name := each.training.path.name)}):
        yield broken(f"not GPUx1.log, GPUx8.log or GPUx32.log: {first_of(others, 3)}", names=others)
    counts = {result.training.devices for result in results}
    if missing := [devices for devices in CASES if devices not in counts]:
        known = ", ".join(map(str, sorted(filter(None, counts)))) or "none that says so"
        text = f"no log of {' nor of '.join(map(str, missing))} devices (there are logs of {known})"
        yield broken(text, missing=missing)
    places = (folder.absolute(), *folder.absolute().parents)[: LEVELS + 1]
    path = next((place / INFORMATION for place in places if (place / INFORMATION).is_file()), None)
    if path is None:
        yield broken(f"no {INFORMATION} in {folder} nor in the {LEVELS} folders above it")
        return
    yield from (
        broken(f"{INFORMATION} {text}") for text in _wrong_information(path, max(filter(None, counts), default=0))
    )


def _wrong_information(path: Path, largest: int) -> Iterator[str]:
    """What is wrong with the description of the machine that logs of up to `largest` devices are of."""
    try:
        information: Any = parse_json(read_whole(path))
    except (OSError, ValueError) as error:
        yield f"cannot be read ({error})"
        return
    if not isinstance(information, Mapping):
        yield "holds no object"
        return
    if missing := [name for name in FIELDS if name not in information]:
        yield f"lacks {', '.join(missing)}"
    if empty := [name for name in FIELDS if name in information and information[name] in (None, "", [], {})]:
        yield f"says nothing in {', '.join(empty)}"
    nodes, each = (whole_number(information.get(name)) for name in ("number_of_nodes", "accelerators_per_node"))
    if nodes and each and nodes * each < largest:
        yield f"has {nodes} nodes of {each} accelerators = {nodes * each}, but a log is of {largest}"
