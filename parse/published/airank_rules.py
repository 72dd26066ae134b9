"""AI-Rank's rules for logs and for the folders of a submission: each rule yields the ways in which it is broken."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from hpc.model.findings import FigureValue, FigureValues, Finding
from hpc.system.regular_file import parse_json, read_whole
from hpc.system.text import first_of, inflect
from parse.logs.engine.log_format import LogRecord
from parse.logs.sizes import whole_number
from parse.published.training import Training
from parse.published.training_result import TIME_TO_TRAIN, TrainingResult, rate

TIME_TOLERANCE_S = 1.0
"""A printed time and its time stamps agree within it."""
RATE_TOLERANCE = 0.005
"""A printed throughput and its time stamps agree within this share; programs round to whole samples."""
CHECKSUM = re.compile(r"[0-9a-fA-F]{8,}")
ORDER = ("load_data", "test_begin", "eval_accuracy", "test_finish", "total_use_time", "avg_ips")
"""The order of the marks; target_quality_time follows the evaluation that reached the target."""
ONCE = ("load_data", "test_begin", "target_quality_time", "test_finish", "total_use_time", "avg_ips")
CASES = (1, 8, 32)
LOG_NAME = re.compile(r"GPUx(?:1|8|32)\.log(?:\.gz)?")
INFORMATION = "system_information.json"
FIELDS = (
    "accelerator_memory_capacity", "accelerator_name", "accelerators_per_node", "host_memory_capacity",
    "host_processor_core_count", "host_processor_name", "host_processors_per_node", "host_storage_capacity",
    "host_storage_type", "number_of_nodes", "operating_system", "software_stack", "submitter", "hardware_name",
    "hardware_type",
)  # fmt: skip
LEVELS = 3
"""`<system>/system_information.json`, `<system>/<model>/log/GPUx1.log`: from a log's folder up to the system's."""

Breach = tuple[str, FigureValues]


@dataclass(frozen=True, kw_only=True)
class Violation(Finding):
    """A rule that the log, folder or document at `path` breaks."""

    path: Path


def breach(form: str, **figures: FigureValue) -> Breach:
    """Returns the text of a breach, with lists of names joined, and its figures."""
    texts = {name: ", ".join(map(str, value)) if isinstance(value, list) else value for name, value in figures.items()}
    return form.format(**texts), figures


def violations(path: Path, rules: Mapping[str, Callable[..., Iterator[Breach]]], *judged: object) -> list[Violation]:
    """Applies each rule to the judged training."""
    return [
        Violation(path=path, name=name, text=text, figures=figures)
        for name, rule in rules.items()
        for text, figures in rule(*judged)
    ]


def judge(result: TrainingResult) -> list[Violation]:
    """Returns the broken rules in the order of RULES; a log without marks is judged by WITHOUT_MARKS only."""
    names = RULES if result.training.marks else WITHOUT_MARKS
    return violations(result.training.path, {name: RULES[name] for name in names}, result)


def judge_folder(results: Sequence[TrainingResult]) -> list[Violation]:
    """Returns the rules that the logs of one folder break together."""
    return violations(results[0].training.path.parent, FOLDER_RULES, results)


def _marks(result: TrainingResult) -> Iterator[Breach]:
    """Each mark is in the log once, with the spelling of the rules and a time stamp."""
    training = result.training
    if not training.marks:
        sources = {"mllog": "its :::MLLOG lines", "lines": "its own lines"}
        source = sources.get(training.source, "nowhere: nothing is evaluated")
        yield breach("there is none; its numbers come from {source}", source=source)
        return
    needed = [*ORDER, *(["target_quality_time"] if result.numbers.reached else [])]
    if missing := [name for name in needed if not _named(training, name)]:
        yield breach("missing: {names}", names=missing)
    if repeated := [f"{name} ({times} times)" for name in ONCE if (times := len(_named(training, name))) > 1]:
        yield breach("more than once: {names}", names=repeated)
    misspelt = (mark.values for mark in training.marks if "printed" in mark.values)
    if spelt := sorted({f"{values['printed']} for {values['mark']}" for values in misspelt}):
        yield breach("spelt otherwise: {names}", names=spelt)
    if untimed := sum("untimed" in mark.values for mark in training.marks):
        yield breach("{untimed} of {marks} have no time stamp", untimed=untimed, marks=len(training.marks))


def _order(result: TrainingResult) -> Iterator[Breach]:
    """Marks are in the order of ORDER."""
    marks = [(mark.values["mark"], mark.offset) for mark in result.training.marks if mark.values["mark"] in ORDER]
    for (earlier, earlier_byte), (later, byte) in pairwise(marks):
        if ORDER.index(later) < ORDER.index(earlier):
            form = "{mark} (byte {byte}) comes after {before} (byte {before_byte})"
            yield breach(form, mark=later, byte=byte, before=earlier, before_byte=earlier_byte)
            return


def _time_stamps(result: TrainingResult) -> Iterator[Breach]:
    """Time stamps never decrease from one mark to the next."""
    timed = [(mark.values["mark"], mark.time_s) for mark in result.training.marks if mark.time_s is not None]
    for (earlier, before_s), (later, after_s) in pairwise(timed):
        if after_s < before_s:
            form = "{mark} is stamped {early_s:.3f} s before {before}, which precedes it"
            yield breach(form, mark=later, before=earlier, early_s=before_s - after_s)
            return


def _checksum(result: TrainingResult) -> Iterator[Breach]:
    """load_data prints the checksum of the data."""
    if not (loaded := _named(result.training, "load_data")):
        return
    checksum = loaded[0].values.get("checksum")
    if checksum is None:
        yield breach("load_data has none")
    elif not CHECKSUM.fullmatch(checksum):
        yield breach("{checksum!r} is no checksum (8 hexadecimal digits at least)", checksum=checksum)


def _every_epoch(result: TrainingResult) -> Iterator[Breach]:
    """The accuracy is evaluated after every epoch."""
    evaluations = result.training.evaluations
    epochs = [evaluation.epochs for evaluation in evaluations if evaluation.epochs is not None]
    if not evaluations:
        yield breach("nothing is evaluated")
        return
    if lacking := len(evaluations) - len(epochs):
        form = "{lacking} of {evaluations} evaluations do not say after how many epochs"
        yield breach(form, lacking=lacking, evaluations=len(evaluations))
    steps = enumerate(pairwise([0.0, *epochs]), 1)
    gaps = [(nth, before, after) for nth, (before, after) in steps if after - before != 1 and (nth, after) != (1, 0)]
    if gaps:
        (nth, before, after), *others = gaps
        form = "evaluation {nth} comes after epoch {epoch:g}, the one before it after {before:g}"
        form += ", and so {others} times more" if others else ""
        yield breach(form, nth=nth, epoch=after, before=before, others=len(others))


def _epoch_count(result: TrainingResult) -> Iterator[Breach]:
    """total_epoch_cnt is the number of epochs done."""
    if result.training.source == "marks" and result.training.counted_from == 0:
        yield breach("total_epoch_cnt is 0 after the first epoch: it counts from 0, one too few")


def _target(result: TrainingResult) -> Iterator[Breach]:
    """An evaluation reaches the target."""
    target, best = result.numbers.target, result.numbers.best
    if target is None or best is None or result.numbers.reached is not None:
        return
    form = "{needed} is not reached in {evaluations} evaluations: {at_best} at best"
    needed, at_best = target.text(), target.text(best.accuracy, best.second, ".3f")
    text, figures = breach(form, needed=needed, evaluations=len(result.training.evaluations), at_best=at_best)
    yield text, {"target": target.value, "evaluations": figures["evaluations"], "best": best.accuracy}


def _target_quality_time(result: TrainingResult) -> Iterator[Breach]:
    """target_quality_time is the time from test_begin to the first evaluation at or above the target."""
    printed, time_s = _value(result.training, "target_quality_time"), result.numbers.time_to_train_s
    if printed is None:
        return
    if time_s is None:
        form = "{printed_s:.2f} s is printed, but there is no such time: {reason}"
        yield breach(form, printed_s=printed, reason=result.numbers.reasons[TIME_TO_TRAIN])
    elif abs(printed - time_s) > TIME_TOLERANCE_S and not _runs_on(result, printed):
        begin = result.training.begin.what if result.training.begin else "the beginning"
        form = "{printed_s:.2f} s is printed, {time_s:.2f} s pass from {begin} to {reached}"
        yield breach(form, printed_s=printed, time_s=time_s, begin=begin, reached=_reached(result))


def _last_epoch(result: TrainingResult) -> Iterator[Breach]:
    """The time to train ends when the target is reached, not with the last epoch."""
    time_s, whole = result.numbers.time_to_train_s, result.numbers.whole_s
    name = "target_quality_time" if _named(result.training, "target_quality_time") else "total_use_time"
    printed = _value(result.training, name)
    if time_s is None or whole is None or printed is None or not _runs_on(result, printed):
        return
    lacking = "" if name == "target_quality_time" else " and there is no target_quality_time"
    form = f"{{mark}} {{printed_s:.2f}} s runs to {{until}}{lacking}: {{time_s:.2f}} s pass to {{reached}}"
    until, reached = result.numbers.whole_until, _reached(result)
    yield breach(form, mark=name, printed_s=printed, until=until, time_s=time_s, reached=reached)


def _total_use_time(result: TrainingResult) -> Iterator[Breach]:
    """total_use_time is the time from test_begin to test_finish."""
    printed, training = _value(result.training, "total_use_time"), result.training
    if printed is None or training.begin is None or training.finish is None or training.source != "marks":
        return
    time_s = training.finish.time_s - training.begin.time_s
    if abs(printed - time_s) > TIME_TOLERANCE_S:
        form = "{printed_s:.2f} s is printed, {time_s:.2f} s pass from test_begin to test_finish"
        yield breach(form, printed_s=printed, time_s=time_s)


def _avg_ips(result: TrainingResult) -> Iterator[Breach]:
    """avg_ips is (epochs − warm-up epochs) · samples per epoch / time after warm-up."""
    printed, samples = _value(result.training, "avg_ips"), result.numbers.samples_per_epoch
    if printed is None or samples is None or not result.training.evaluations:
        return
    last, requested = int(result.training.epochs or 0), result.settings.warmup_epochs
    tried = range(min(last, 100)) if requested is None else (requested,)
    rates = [(warmup, expected) for warmup in tried if (expected := rate(result.training, samples, warmup)) is not None]
    if not rates or any(abs(printed - expected) <= max(RATE_TOLERANCE * expected, 1) for _, expected in rates):
        return
    warmup, nearest = min(rates, key=lambda pair: abs(pair[1] - printed))
    yield breach(
        "{printed:.2f} samples/s is printed, {epochs} epochs of {samples:,} samples make {computed:.2f} "
        "({difference:+.1%}; {warmup_epochs} warm-up epochs, "
        + ("the nearest)" if requested is None else "as requested)"),
        printed=printed,
        epochs=last - warmup,
        samples=samples,
        computed=nearest,
        difference=printed / nearest - 1,
        warmup_epochs=warmup,
    )


def _seed(result: TrainingResult) -> Iterator[Breach]:
    """The log prints a fixed seed."""
    seed = result.training.facts.get("seed")
    if seed is None:
        yield breach("no seed is printed")
    elif not re.fullmatch(r"[+-]?\d+", seed):
        yield breach("the seed is {seed}, which fixes nothing", seed=seed)


def _devices(result: TrainingResult) -> Iterator[Breach]:
    """The devices in the log and in its name are the same."""
    in_log, named = result.training.devices, result.training.named_devices
    if in_log is not None and named is not None and in_log != named:
        yield breach("its name says {named}, the log says {in_log}", named=named, in_log=in_log)


RULES: Mapping[str, Callable[[TrainingResult], Iterator[Breach]]] = {
    "marks": _marks,
    "order": _order,
    "time stamps": _time_stamps,
    "checksum": _checksum,
    "evaluation every epoch": _every_epoch,
    "total_epoch_cnt": _epoch_count,
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


def _reached(result: TrainingResult) -> str:
    reached, target = result.numbers.reached, result.numbers.target
    if reached is None or target is None:
        return ""
    epoch = "" if reached.epochs is None else f", epoch {reached.epochs:g}"
    quality = target.text(reached.accuracy, reached.second, ".3f")
    return f"the first evaluation at or {'below' if target.lower else 'above'} {target.text()} ({quality}{epoch})"


def _log_names(results: Sequence[TrainingResult]) -> Iterator[Breach]:
    """Logs are named GPUx1.log, GPUx8.log and GPUx32.log."""
    names = {result.training.path.name for result in results}
    if others := sorted(name for name in names if not LOG_NAME.fullmatch(name)):
        yield breach("not GPUx1.log, GPUx8.log or GPUx32.log: {names}", names=first_of(others, 3))


def _cases(results: Sequence[TrainingResult]) -> Iterator[Breach]:
    """The folder has a log of 1, of 8 and of 32 devices."""
    counts = {result.training.devices for result in results}
    if missing := [devices for devices in CASES if devices not in counts]:
        *others, last = missing
        listed = f"{', '.join(map(str, others))} or {last}" if others else str(last)
        logs = [str(devices) for devices in sorted(filter(None, counts))] or ["none that says so"]
        noun = inflect(missing[0] if len(missing) == 1 else 2, "device")
        form = f"no log of {listed} {noun} (there are logs of {{logs}})"
        yield breach(form, missing=missing, logs=logs)


def _information(results: Sequence[TrainingResult]) -> Iterator[Breach]:
    """system_information.json describes the machine with all fields."""
    folder = results[0].training.path.parent
    places = (folder.absolute(), *folder.absolute().parents)[: LEVELS + 1]
    path = next((place / INFORMATION for place in places if (place / INFORMATION).is_file()), None)
    if path is None:
        yield breach("not in {folder} nor in the {levels} folders above it", folder=str(folder), levels=LEVELS)
        return
    try:
        information: Any = parse_json(read_whole(path))
    except (OSError, ValueError) as error:
        yield breach("{path} cannot be read ({error})", path=str(path), error=str(error))
        return
    if not isinstance(information, Mapping):
        yield breach("{path} holds no object", path=str(path))
        return
    if missing := [name for name in FIELDS if name not in information]:
        yield breach("lacks {fields}", fields=missing)
    if empty := [name for name in FIELDS if name in information and information[name] in (None, "", [], {})]:
        yield breach("says nothing in {fields}", fields=empty)
    nodes, each = (whole_number(information.get(name)) for name in ("number_of_nodes", "accelerators_per_node"))
    largest = max((result.training.devices or 0 for result in results), default=0)
    if nodes and each and nodes * each < largest:
        form = "has {nodes} nodes of {accelerators} accelerators = {devices}, but a log is of {in_log}"
        yield breach(form, nodes=nodes, accelerators=each, devices=nodes * each, in_log=largest)


FOLDER_RULES: Mapping[str, Callable[[Sequence[TrainingResult]], Iterator[Breach]]] = {
    "log names": _log_names,
    "cases": _cases,
    INFORMATION: _information,
}
