"""Makes an attempt with its numbers of a log's reading and its path; the log is believed over names."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hpc.model.outcome import Outcome
from hpc.model.spec import PRECISIONS, SAMPLES
from hpc.system.groups import grouped
from hpc.system.text import plural
from parse.attempt import Attempt, FromLog, Machine, Measured, RequestedRun
from parse.logs.engine.log_format import FACTS, LogFormat
from parse.logs.path_facts import PathFacts, model_name
from parse.logs.remarks import remark_text
from parse.logs.sizes import NOWHERE, Size, size_of
from parse.logs.step_size import taken_in_per_step, with_printed_batch
from parse.logs.whole_training import WHOLE_TRAINING, WholeTraining, what_is_there, whole_training
from parse.run_fields import RunFields

if TYPE_CHECKING:
    from parse.logs.window import Protocol, Reading, Window

SPEEDS = ("wall-clock", "printed")
"""The choice between a log's two speeds; without time stamps there is only the printed one."""
OPTIONS = (
    "is_static", "classes", "sample_ratio", "model_parallel", "partial_fc", "forward_only", "num_layers", "hidden_size",
    "sequence_length", "micro_batch_size", "tensor_parallel", "pipeline_parallel", "context_parallel", "fp8",
)  # fmt: skip
"""Facts that change the work of a step, so that they distinguish points."""
FITS, MISSES = math.log(1.15), math.log(1.6)
"""A printed rate that misses the wall clock by more than the second, but would not by more than the first were it
multiplied or divided by the devices, is of one device where its format prints that of all, or the reverse."""

SAMPLED_APART = 0.01
MAX_TEXT = 100
"""Maximum of characters stored of a header's value."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Both speeds of a log in its format's unit per second; None where it has none."""

    wall_clock: float | None
    printed: float | None

    def result(self, requested: str) -> float | None:
        """The speed that counts: the requested one, but printed if there is no wall clock."""
        return self.printed if requested == "printed" or self.wall_clock is None else self.wall_clock


def attempt_of(
    path: Path,
    reading: Reading,
    place: PathFacts,
    protocol: Protocol,
    *,
    speed: str = SPEEDS[0],
    otherwise: PathFacts = NOWHERE,
) -> Attempt:
    """The log as an attempt of a run; its repeat is 1 if its names have none.

    `otherwise` has the facts that neither log nor names have. Without numbers `problem` is the reason. The attempt
    belongs to no point (`requested` is None) if the number of devices is unknown; then a remark names the remedy.
    """
    remarks = [*place.remarks, *map(remark_text, reading.remarks), *_pauses(reading.window)]
    size = _size(reading, place, otherwise, remarks)
    whole = whole_training(reading, size)
    speeds = _speeds(reading.log_format, reading.window, size, remarks)
    if whole:
        speeds = Speed(wall_clock=whole.wall_clock, printed=whole.printed)
        remarks.append(f"{reading.reason}: this is the speed of the {WHOLE_TRAINING}, from {whole.source}")
    steady = _speeds(reading.log_format, reading.steady_run, size, [])
    result, problem = speeds.result(speed), "" if whole else reading.reason
    if reading.window is not None and result is None:
        problem = _no_speed(reading.window, size, speed, reading.log_format.unit)
    if problem and not reading.step_lines:
        problem = f"{problem}; {what_is_there(reading)}"
    requested = requested_of_log(reading, place, size, size.devices, protocol, remarks) if size.devices else None
    if requested is None:
        remarks.append(_unplaced(result, problem, reading.log_format.unit))
    return Attempt(
        run_id=requested.run_id if requested else path.name,
        number=1,
        requested=requested,
        outcome=None if result is None else Outcome.OK,
        measured=None if result is None else _measured(reading.window, whole, size, speeds, result),
        machine=Machine(ranks=size.devices, facts=_header_facts(reading.facts)) if size.devices else None,
        problem=problem,
        log=FromLog(
            path=path,
            log_format=reading.log_format.name,
            window=window_text(reading.window) if reading.window else WHOLE_TRAINING if whole else "",
            wall_clock=speeds.wall_clock,
            printed=speeds.printed,
            remarks=tuple(dict.fromkeys(remarks)),
            steady_run=steady.wall_clock if result == speeds.wall_clock else steady.printed,
            steady_window=window_text(reading.steady_run) if reading.steady_run else "",
        ),
    )


def numbered_as(attempt: Attempt, *, folder: str, repeat: int, numbered: bool) -> Attempt:
    """The same attempt as that repeat of its point, in that campaign; `numbered` where its names have the number."""
    if attempt.requested is None:
        return attempt
    run = dataclasses.replace(attempt.requested.run, repeat=repeat, is_numbered=numbered)
    extra = {**attempt.requested.extra, "folder": folder} if folder else attempt.requested.extra
    requested = RequestedRun(run=run, run_id=run.partial_id(extra), extra=extra)
    return dataclasses.replace(attempt, requested=requested, run_id=requested.run_id)


def _pauses(window: Window | None) -> Iterator[str]:
    """Remarks on the intervals excluded from the window, with their lengths; ends of epochs share one."""
    kinds = grouped(
        (re.sub(r"\bepoch \d+ begins", "an epoch begins", pause.reason), pause)
        for pause in (window.pauses if window else ())
    )
    for reason, pauses in kinds.items():
        stamped = [pause.seconds for pause in pauses if pause.seconds is not None]
        length = f" of {sum(stamped):.1f} s in all" if stamped else ""
        yield f"{plural(len(pauses), 'interval')}{length} kept out of the window: {reason}"


def window_text(window: Window) -> str:
    """The window in words: `steps 20 to 120 of epoch 0`."""
    if window.begin_epoch < 0 and window.end_epoch < 0:
        return f"steps {window.begin} to {window.end}"
    if window.begin_epoch == window.end_epoch:
        return f"steps {window.begin} to {window.end} of epoch {window.begin_epoch}"
    return f"step {window.begin} of epoch {window.begin_epoch} to step {window.end} of epoch {window.end_epoch}"


def _size(reading: Reading, place: PathFacts, otherwise: PathFacts, remarks: list[str]) -> Size:
    """Sizes by header, names and command line, and what a step takes in by these or by the step lines."""
    facts = with_printed_batch(reading.facts, reading.log_format, reading.window)
    size = size_of(facts, place, otherwise, remarks)
    per_step = taken_in_per_step(
        reading.log_format, facts, None if size.per_step is None else int(size.per_step), reading.window, remarks
    )
    return dataclasses.replace(size, per_step=per_step)


def _speeds(log_format: LogFormat, window: Window | None, size: Size, remarks: list[str]) -> Speed:
    if window is None:
        return Speed(wall_clock=None, printed=None)
    wall_clock = size.per_step * window.steps / window.seconds if size.per_step and window.seconds else None
    printed = _printed(log_format, window, size)
    _remark_sampled(log_format, window, remarks)
    if printed and wall_clock and log_format.mean == "rates" and size.devices and size.devices > 1:
        printed = _as_it_fits(log_format, printed, wall_clock, size.devices, remarks)
    return Speed(wall_clock=_real(wall_clock), printed=_real(printed))


def _printed(log_format: LogFormat, window: Window, size: Size) -> float | None:
    """The printed speed of all devices by the format's rule, else from what the log has."""
    by_rates = window.rate
    if by_rates and log_format.rates == "rank":
        by_rates = by_rates * size.devices if size.devices else None
    each = size.per_step
    speeds = {
        "rates": by_rates,
        "durations": each / window.duration_s if each and window.duration_s else None,
        "paces": each * window.steps_per_s if each and window.steps_per_s else None,
    }
    return speeds[log_format.mean] or speeds["durations"] or speeds["rates"]


def _remark_sampled(log_format: LogFormat, window: Window, remarks: list[str]) -> None:
    """Remarks where the durations of single steps, one of many, are not those of all by the lines' running means."""
    single, mean = window.duration_s, window.mean_duration_s
    if log_format.mean == "rates" or window.printed_every == 1 or not single or not mean:
        return
    if abs(single / mean - 1) > SAMPLED_APART:
        remarks.append(
            f"it prints the time of one step in {window.printed_every}, {single:.6g} s on average; by its running "
            f"means all steps of the window take {mean:.6g} s ({single / mean - 1:+.1%})"
        )


def _as_it_fits(log_format: LogFormat, printed: float, wall_clock: float, devices: int, remarks: list[str]) -> float:
    """The printed speed, multiplied or divided by the devices if only then it agrees with the time stamps."""
    if abs(math.log(printed / wall_clock)) < MISSES:
        return printed
    unit = f"{log_format.unit}/s"
    for other, devices_named in ((printed * devices, "one device"), (printed / devices, "all devices")):
        if abs(math.log(other / wall_clock)) < FITS:
            usual = "one device's" if log_format.rates == "rank" else "all devices'"
            remarks.append(
                f"{log_format.name} prints {usual} rate, but by its time stamps ({wall_clock:.2f} {unit}) this "
                f"log prints that of {devices_named}: {printed:.2f} is read as {other:.2f}"
            )
            return other
    remarks.append(
        f"what it prints ({printed:.2f} {unit}) is {printed / wall_clock:.3g} times what its time stamps say "
        f"({wall_clock:.2f}); {devices} devices do not explain it: batch size, devices or the unit are not as assumed"
    )
    return printed


def _measured(window: Window | None, whole: WholeTraining | None, size: Size, speeds: Speed, result: float) -> Measured:
    if window is None:
        return Measured(
            throughput=result,
            mean_of_rates=speeds.printed,
            step_s=np.empty(0),
            samples=whole.samples if whole else 0,
            clock_share=0.0,
        )
    by_stamps = result == speeds.wall_clock
    return Measured(
        throughput=result,
        mean_of_rates=speeds.printed,
        step_s=np.asarray(window.step_s, np.float64),
        samples=round((size.per_step or 0) * window.steps),
        clock_share=(window.resolution_s or 0.0) / window.seconds if by_stamps and window.seconds else 0.0,
        printed_every=window.printed_every,
    )


def _no_speed(window: Window, size: Size, speed: str, unit: str) -> str:
    if speed == "printed" and window.seconds and size.per_step:
        return "it prints no rates; its time stamps give a speed: --speed wall-clock"
    if window.seconds or window.duration_s:
        missing = [name for name, known in (("batch size", size.batch_size), ("devices", size.devices)) if not known]
        if unit != SAMPLES:
            return f"it says steps and times, but neither it nor its names say the {unit} of a step"
        options = {"batch size": "--batch-size 128", "devices": "--case 2n8g"}
        return (
            f"it says steps and times, but neither it nor its names say the {' and the '.join(missing)}: give "
            f"{' and '.join(options[name] for name in missing)} or the like"
        )
    return "its lines have neither time stamps nor rates"


def _unplaced(result: float | None, problem: str, unit: str) -> str:
    result_text = f"{result:.2f} {unit}/s" if result else problem or "no speed"
    return (
        f"{result_text}; neither the log nor its names say on how many devices: it is in no point below; put it into a "
        "folder named like 2n8g, or say --case 2n8g"
    )


def requested_of_log(
    reading: Reading, place: PathFacts, size: Size, devices: int, protocol: Protocol, remarks: list[str]
) -> RequestedRun:
    """The run that the log is of, with the fields that the log or its names state."""
    log_format, facts = reading.log_format, reading.facts
    warmup = log_format.warmup if protocol.warmup is None else protocol.warmup
    total = log_format.total if protocol.total is None else protocol.total
    extra = {
        "name": place.name,
        "window": "all" if protocol.whole else WHOLE_TRAINING if whole_training(reading, size) else "",
    }
    extra = {name: value for name, value in extra.items() if value}
    run = RunFields(
        backend=log_format.name,
        unit=log_format.unit,
        devices=devices,
        nodes=size.nodes,
        gpus_per_node=devices // size.nodes if size.nodes else None,
        workload=_workload(log_format, facts, place, remarks) or None,
        precision=_precision(facts, place, remarks) or None,
        batch_size=size.batch_size,
        data=facts.get("data", "")[:MAX_TEXT] or None,
        warmup_steps=warmup,
        measured_steps=max(total - warmup, 1),
        repeat=place.repeat or 1,
        options={**place.options, **_options(facts, log_format, place, remarks)},
    )
    return RequestedRun(run=run, run_id=run.partial_id(extra), extra=extra)


def _workload(log_format: LogFormat, facts: Mapping[str, str], place: PathFacts, remarks: list[str]) -> str:
    model_in_log = model_name(facts.get("model", "")[:MAX_TEXT])
    if model_in_log and place.model and model_in_log != place.model:
        remarks.append(f"it trains {model_in_log}, its name says {place.model}: the log is believed")
    model = model_in_log or place.model or log_format.model
    return f"{log_format.task}_{model}" if model and log_format.task else model


def _precision(facts: Mapping[str, str], place: PathFacts, remarks: list[str]) -> str:
    precision_in_log = facts.get("precision", "")[:MAX_TEXT]
    if precision_in_log and precision_in_log not in PRECISIONS:
        remarks.append(f"its precision {precision_in_log} is none of {', '.join(PRECISIONS)}")
        return ""
    if precision_in_log and place.precision and precision_in_log != place.precision:
        remarks.append(f"it ran in {precision_in_log}, its name says {place.precision}: the log is believed")
    return precision_in_log or place.precision


def _options(facts: Mapping[str, str], log_format: LogFormat, place: PathFacts, remarks: list[str]) -> dict[str, str]:
    """The header's options; the number of classes distinguishes points only if it is part of the task."""
    switch: Callable[[str], str] = lambda text: {"true": "1", "false": "0"}.get(text.lower(), text)  # noqa: E731
    options = {
        name: switch(facts[name][:MAX_TEXT])
        for name in OPTIONS
        if name in facts and (name != "classes" or log_format.task)
    }
    for name, value in options.items():
        if place.options.get(name, value) != value:
            remarks.append(f"it ran with {name} {value}, its name says {place.options[name]}: the log is believed")
    return options


def _header_facts(facts: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Versions and devices in the header."""
    return {
        name: (value[:MAX_TEXT],) for name, value in sorted(facts.items()) if name not in FACTS and name not in OPTIONS
    }


def _real(speed: float | None) -> float | None:
    return speed if speed is not None and math.isfinite(speed) and speed > 0 else None
