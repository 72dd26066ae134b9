"""Makes an attempt with its numbers of a log's reading and its path; the log is believed over names."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hpc.model.outcome import Outcome
from hpc.model.run_fields import RunFields
from hpc.model.spec import PRECISIONS, SAMPLES
from hpc.system.text import grouped, plural
from parse.logs.engine.log_format import FACTS, SCOPES, LogFormat
from parse.logs.formats.mllog import run_s, stated_rate
from parse.logs.path_facts import NOWHERE, SUFFIX, PathFacts, Size, model_name, size_of, whole_number
from parse.logs.window import Window, window_text
from parse.runs.attempt import Attempt, FromLog, Machine, Measured, RequestedRun
from parse.runs.log_training import WHOLE_TRAINING, Speed, what_is_there, whole_training

if TYPE_CHECKING:
    from parse.logs.window import Protocol, Reading


# What a step takes in, in the unit of the log's format: samples or tokens.

TOKEN_DIGITS = 11
WHOLE = 1e-9
"""A number of samples that is no further from a whole one is that."""


def with_printed_batch(facts: Mapping[str, str], log_format: LogFormat, window: Window | None) -> Mapping[str, str]:
    """The facts with the samples of a step, where no header has them but step lines or its tokens do."""
    tokens, length = (
        whole_number(facts.get("tokens_per_step"), TOKEN_DIGITS),
        whole_number(facts.get("sequence_length"), TOKEN_DIGITS),
    )
    if facts.get("global_batch_size"):
        return facts
    if tokens and length and tokens % length == 0:
        return {**facts, "global_batch_size": str(tokens // length)}
    if window is None or not window.taken_in or log_format.unit != "samples":
        return facts
    each = window.taken_in / window.steps
    return {**facts, "global_batch_size": str(round(each))} if abs(each - round(each)) < WHOLE * each else facts


def taken_in_per_step(
    log_format: LogFormat, facts: Mapping[str, str], samples: int | None, window: Window | None, remarks: list[str]
) -> float | None:
    """What all devices take in per step in the format's unit, a mean over the window; None if unknown.

    `samples` are those of a step by the header. What step lines print is believed over it.
    """
    by_header = samples if log_format.unit == "samples" else _tokens(facts, samples)
    if window is None or not window.taken_in:
        return by_header
    each = window.taken_in / window.steps
    if by_header and abs(each / by_header - 1) > WHOLE and log_format.unit == "samples":
        remarks.append(
            f"it says {by_header} samples a step, and its steps took in {each:.6g} on average: the latter is taken"
        )
    return each


def _tokens(facts: Mapping[str, str], samples: int | None) -> int | None:
    """The tokens of a step, as printed, else of its samples."""
    printed = whole_number(facts.get("tokens_per_step"), TOKEN_DIGITS)
    length = whole_number(facts.get("sequence_length"), TOKEN_DIGITS)
    return printed or (samples * length if samples and length else None)


NOT_THE_PROTOCOLS = "not the protocol's"
"""The end of the window's name where a log ends before the window does."""
UNSAID = "neither the log nor its names say"
SPEEDS = ("wall-clock", "printed", "protocol")
"""The choice between a log's speeds; without time stamps there is no wall clock. `protocol` is what the reference
protocol of its format publishes: the arithmetic mean of what it prints, or as `wall-clock`."""
OPTIONS = (
    "is_static", "classes", "sample_ratio", "model_parallel", "partial_fc", "forward_only", "num_layers", "hidden_size",
    "sequence_length", "micro_batch_size", "tensor_parallel", "pipeline_parallel", "context_parallel", "fp8",
)  # fmt: skip
"""Facts that change the work of a step, so that they distinguish points."""
PURE_HALF = "fp16"
"""The precision of logs whose weights, too, are in half precision: it is none of this project's."""
FITS, MISSES = math.log(1.15), math.log(1.6)
"""A printed rate that misses the wall clock by more than the second, but would not by more than the first were it
multiplied or divided by the devices, is of one device where its format prints that of all, or the reverse."""

SAMPLED_APART, NO_SAMPLE = 0.01, 0.1
"""Single steps that differ by more from all are remarked on; by more than the second, they do not stand for them."""
MAX_TEXT = 100
"""Maximum of characters stored of a header's value."""


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

    `otherwise` has the facts that neither log nor names have. Without numbers `problem` is the reason. Where nobody
    states the devices, its file's name distinguishes its point.
    """
    remarks = [*place.remarks, *(each.text for each in reading.remarks)]
    whole = whole_training(reading, _size(reading, place, otherwise, []))
    reason = reading.reason
    if not whole and (short_window := reading.short_window):
        short = dataclasses.replace(reading, window=short_window, reason="")
        if _speeds(reading, short_window, _size(short, place, otherwise, []), []).result(speed):
            remarks.append(f"its speed is that of {window_text(short_window)}, not of the protocol's window; {reason}")
            reading = short
    remarks += _pauses(reading.window)
    size = _size(reading, place, otherwise, remarks)
    speeds = whole or _speeds(reading, reading.window, size, remarks)
    if whole:
        remarks.append(f"{reason}: this is the speed of the {WHOLE_TRAINING}, from {whole.source}")
    steady = _speeds(reading, reading.steady_run, size, [])
    which, result = speeds.which(speed), speeds.result(speed)
    problem = "" if whole else reading.reason
    if which == "protocol":
        remarks.append(_as_published(speeds, reading.log_format.unit))
    if reading.window is not None and result is None:
        problem = _no_speed(reading, reading.window, size, speed)
    if problem and not reading.step_lines:
        problem = f"{problem}; {what_is_there(reading)}"
    stated = stated_rate(reading.records, reading.facts)
    requested = requested_of_log(path, reading, place, size, protocol, remarks)
    return Attempt(
        run_id=requested.run_id,
        number=1,
        requested=requested,
        outcome=None if result is None else Outcome.OK,
        measured=None if result is None else _measured(reading.facts, reading.window, size, speeds, result),
        machine=Machine(ranks=size.devices or 0, facts=_header_facts(reading.facts)),
        problem=problem,
        log=FromLog(
            path=path,
            log_format=reading.log_format.name,
            window=window_text(reading.window) if reading.window else WHOLE_TRAINING if whole else "",
            wall_clock=speeds.wall_clock,
            printed=speeds.printed,
            remarks=tuple(dict.fromkeys(remarks)),
            steady_run=getattr(steady, which),
            steady_window=window_text(reading.steady_run) if reading.steady_run else "",
            mlperf_s=run_s(reading.records),
            stated=stated,
        ),
    )


def named_apart(attempt: Attempt, **extra: str) -> Attempt:
    """The same attempt as one of a point that differs by these names."""
    if attempt.requested is None:
        return attempt
    run, extra = attempt.requested.run, {**attempt.requested.extra, **extra}
    requested = RequestedRun(run=run, run_id=run.partial_id(extra), extra=extra)
    return dataclasses.replace(attempt, requested=requested, run_id=requested.run_id)


def numbered_as(attempt: Attempt, *, folder: str, repeat: int, numbered: bool) -> Attempt:
    """The same attempt as that repeat of its point, in that campaign; `numbered` where its names have the number."""
    if attempt.requested is None:
        return attempt
    run = dataclasses.replace(attempt.requested.run, repeat=repeat, is_numbered=numbered)
    requested = dataclasses.replace(attempt.requested, run=run)
    return named_apart(dataclasses.replace(attempt, requested=requested), **({"folder": folder} if folder else {}))


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


def _begin_to_end(window: Window) -> str:
    """The window in short: `20 → 99`, over several epochs `0:20 → 2:99`."""
    if window.begin_epoch == window.end_epoch:
        return f"{window.begin} → {window.end}"
    return f"{window.begin_epoch}:{window.begin} → {window.end_epoch}:{window.end}"


def _size(reading: Reading, place: PathFacts, otherwise: PathFacts, remarks: list[str]) -> Size:
    """Sizes by header, names and command line, and what a step takes in by these or by the step lines."""
    facts = with_printed_batch(reading.facts, reading.log_format, reading.window)
    if reading.window and (writers := _writers(reading, reading.window) or 1) > 1:
        facts = {"nodes": str(writers), **facts}
    size = size_of(facts, place, otherwise, remarks)
    per_step = taken_in_per_step(
        reading.log_format, facts, None if size.per_step is None else int(size.per_step), reading.window, remarks
    )
    return dataclasses.replace(size, per_step=per_step)


def _speeds(reading: Reading, window: Window | None, size: Size, remarks: list[str]) -> Speed:
    if window is None:
        return Speed(wall_clock=None, printed=None)
    log_format, each, writers = reading.log_format, size.per_step, _writers(reading, window)
    wall_clock = each * window.steps / window.seconds if each and window.seconds else None
    if _whose(reading, window) and not wall_clock:
        writers = None
    by_person = log_format.name == "pattern" and log_format.rates == "all" and window.rate and not wall_clock
    if by_person and (lines_of_step := max(window.lines_per_step, len(window.ranks))) > 1:
        remarks.append(
            f"each step is printed {lines_of_step} times: the pattern takes each rate for that of all; if it is its "
            f"writer's, name {{{log_format.unit}_per_s_per_device}}"
        )
    is_mean, lines = _stands_for_all(log_format, window, remarks), _lines_of_step(reading, window, remarks)
    duration_s = window.mean_duration_s if is_mean else window.duration_s
    by_durations = each / duration_s / lines if each and duration_s and lines else None
    rate = window.rate * writers if window.rate and writers else None
    printed = _printed(log_format, rate, by_durations, size)
    by_rates = _of_all(log_format, rate, size)
    if by_rates and by_durations and abs(math.log(by_rates) - math.log(by_durations)) > MISSES:
        remarks.append(
            f"its printed rates make {by_rates:.2f} {log_format.unit}/s, and its printed times {by_durations:.2f}: "
            "batch size, devices, or what a line speaks of are not as assumed"
        )
    by_durations = each * window.mean_steps_per_s / lines if each and window.mean_steps_per_s and lines else None
    mean_of_rates = window.mean_of_rates * writers if window.mean_of_rates and writers else None
    mean_of_rates = None if is_mean else _printed(log_format, mean_of_rates, by_durations, size)
    if window.mean_of_rates and not window.rate:
        remarks.append("it prints a rate of 0 in the window: its printed rates make no speed")
    if printed and wall_clock and log_format.printed == "rates" and size.devices and size.devices > 1:
        times = _as_it_fits(log_format, printed, wall_clock, size.devices, remarks)
        printed, mean_of_rates = printed * times, mean_of_rates * times if mean_of_rates else None
    mean_of_rates = _real(mean_of_rates)
    return Speed(
        wall_clock=_real(wall_clock),
        printed=_real(printed),
        mean_of_rates=mean_of_rates,
        protocol=mean_of_rates if log_format.publishes_mean else None,
    )


def _writers(reading: Reading, window: Window) -> int | None:
    """How many writers' rates add up to that of all: 1 where each prints that of all; None where some are missing, or
    nothing says which line is whose."""
    store = reading.facts.get("kv_store", "")
    if store == "horovod" or (reading.facts.get("printed_by") != "node" and not store.startswith("dist")):
        return 1
    writers = len(window.ranks)
    return writers if writers > store.startswith("dist") and window.ranks == tuple(range(writers)) else None


def _whose(reading: Reading, window: Window) -> bool:
    """Whether several writers print rates of a step, and nothing but time stamps says if these are their own."""
    several = window.lines_per_step > 1 or len(window.ranks) > 1
    return several and reading.facts.get("printed_by") == "writer" and "kv_store" not in reading.facts


def _of_all(log_format: LogFormat, rate: float | None, size: Size) -> float | None:
    """The printed rate of all devices; None where one device's is printed, and their number is unknown."""
    if rate and log_format.rates == "rank":
        return rate * size.devices if size.devices else None
    return rate


def _printed(log_format: LogFormat, by_rates: float | None, by_durations: float | None, size: Size) -> float | None:
    """The printed speed of all devices by those numbers that count in the format, else by those that the log has."""
    by_rates = _of_all(log_format, by_rates, size)
    return by_durations or by_rates if log_format.printed == "durations" else by_rates or by_durations


def _as_published(speeds: Speed, unit: str) -> str:
    """Says what the protocol's mean is, beside what the same numbers are as work over time."""
    others = {"the printed numbers": speeds.printed, "its time stamps": speeds.wall_clock}
    by = [f"{speed:.2f} {unit}/s by {source}" for source, speed in others.items() if speed]
    mean = f"{speeds.protocol:.2f} {unit}/s is its protocol's arithmetic mean of rates"
    return f"{mean}; work over time is {' and '.join(by)}"


def _stands_for_all(log_format: LogFormat, window: Window, remarks: list[str]) -> bool:
    """Whether running means stand for the window: single steps, one of many, took far from as long. A remark where they
    differ."""
    single, mean = window.duration_s, window.mean_duration_s
    if log_format.printed == "rates" or window.printed_every == 1 or not single or not mean:
        return False
    apart = abs(single / mean - 1)
    if apart > SAMPLED_APART:
        counts = ", which count" if apart > NO_SAMPLE else ""
        remarks.append(
            f"it prints the time of one step in {window.printed_every}, {single:.6g} s on average; by its running "
            f"means{counts} all steps of the window take {mean:.6g} s ({single / mean - 1:+.1%})"
        )
    return apart > NO_SAMPLE


def _lines_of_step(reading: Reading, window: Window, remarks: list[str]) -> int | None:
    """How many lines make a step, each with the time of its part; None where one rank prints a step several times, and
    nothing says why."""
    if lines := whole_number(reading.facts.get("lines_of_step")):
        remarks.append(f"two rates of a line say that it is one of {lines} of a step")
        return lines
    return None if _why_not_of_a_step(reading, window) else 1


def _why_not_of_a_step(reading: Reading, window: Window) -> str:
    """Why printed times are not those of steps, nor of a fair sample of their passes; empty where they may be."""
    is_one_writer = len(window.ranks) == 1 or (reading.log_format.bars and not window.ranks)
    if window.lines_per_step > 1 and is_one_writer:
        return f"one rank prints each step {window.lines_per_step} times: of what part their times are is not known"
    passes = whole_number(reading.facts.get("accumulation")) or 1
    if math.gcd(passes, window.printed_every) > 1:
        return (
            f"it prints the time of one pass in {window.printed_every}, of {passes} of a step: always of the same, "
            "and the others may be shorter"
        )
    return ""


def _as_it_fits(log_format: LogFormat, printed: float, wall_clock: float, devices: int, remarks: list[str]) -> float:
    """What the printed speed is to be multiplied by: the devices, or a share of one, if only then it agrees with the
    time stamps; else 1."""
    if abs(math.log(printed / wall_clock)) < MISSES:
        return 1
    unit = f"{log_format.unit}/s"
    for other, devices_named in ((printed * devices, "one device"), (printed / devices, "all devices")):
        if abs(math.log(other / wall_clock)) < FITS:
            usual = "one device's" if log_format.rates == "rank" else "all devices'"
            remarks.append(
                f"{log_format.name} prints {usual} rate, but by its time stamps ({wall_clock:.2f} {unit}) this "
                f"log prints that of {devices_named}: {printed:.2f} is read as {other:.2f}"
            )
            return other / printed
    remarks.append(
        f"what it prints ({printed:.2f} {unit}) is {printed / wall_clock:.3g} times what its time stamps say "
        f"({wall_clock:.2f}); {devices} devices do not explain it: batch size, devices or the unit are not as assumed"
    )
    return 1


def _measured(facts: Mapping[str, str], window: Window | None, size: Size, speeds: Speed, result: float) -> Measured:
    if window is None:
        return Measured(
            throughput=result, mean_of_rates=None, step_s=np.empty(0), samples=speeds.samples, clock_share=0.0
        )
    by_stamps = result == speeds.wall_clock
    lines = 1 if by_stamps else whole_number(facts.get("lines_of_step")) or 1
    return Measured(
        throughput=result,
        mean_of_rates=speeds.mean_of_rates,
        step_s=np.asarray(window.step_s, np.float64) * lines,
        step_unit_s=window.step_unit_s,
        samples=round((size.per_step or 0) * window.steps),
        clock_share=(window.resolution_s or 0.0) / window.seconds if by_stamps and window.seconds else window.rounding,
        printed_every=window.printed_every,
    )


def _no_speed(reading: Reading, window: Window, size: Size, speed: str) -> str:
    log_format, unit = reading.log_format, reading.log_format.unit
    if window.rate and log_format.rates == "rank" and not size.devices:
        return (
            f"it prints {window.rate:.2f} {unit}/s of one device, but neither it nor its names say on how many: give "
            "--case 2n8g or the like"
        )
    if speed == "printed" and window.seconds and size.per_step and not window.mean_of_rates:
        return "it prints no rates; its time stamps give a speed: --speed wall-clock"
    stands = window.mean_duration_s if _stands_for_all(log_format, window, []) else window.duration_s
    each_s = window.seconds / window.steps if window.seconds and window.steps else stands
    if each_s:
        if size.per_step and (reason := _why_not_of_a_step(reading, window)):
            return reason
        missing = [name for name, known in (("batch size", size.batch_size), ("devices", size.devices)) if not known]
        options = {"batch size": "--batch-size 128", "devices": "--case 2n8g"}
        wanted = f"the {' and the '.join(missing)}: give {' and '.join(options[name] for name in missing)} or the like"
        return (
            f"a step takes {each_s:.4g} s, but " + f"{UNSAID} {wanted if unit == SAMPLES else f'the {unit} of a step'}"
        )
    if log_format.mean_from is not None and window.end - window.printed_every <= log_format.mean_from:
        return (
            f"its running means count from step {log_format.mean_from} on (mean_from), and the window, up to step "
            f"{window.end}, has no two of them"
        )
    nodes = ", ".join(map(str, window.ranks))
    printed = f"nodes {nodes} print each its own rate" if nodes else "each worker prints its own rate, without a name"
    printed = f"{printed}: others are missing"
    if _whose(reading, window):
        printed = (
            f"each step is printed {window.lines_per_step} times, and neither time stamps nor settings say whether a "
            "rate is that of its writer or of all"
        )
    return printed if window.rate else "its lines have neither time stamps nor rates"


def requested_of_log(
    path: Path, reading: Reading, place: PathFacts, size: Size, protocol: Protocol, remarks: list[str]
) -> RequestedRun:
    """The run that the log is of, with the fields that the log or its names state."""
    log_format, facts = reading.log_format, reading.facts
    warmup = log_format.warmup if protocol.warmup is None else protocol.warmup
    total = log_format.total if protocol.total is None else protocol.total
    is_short = reading.window is not None and reading.short_window is not None
    name = place.name or ("" if size.devices or place.repeat else SUFFIX.sub("", path.name))
    extra = {"name": name, "window": _window_name(reading, size, protocol)}
    extra = {name: value for name, value in extra.items() if value}
    run = RunFields(
        backend=log_format.name,
        unit=log_format.unit,
        devices=size.devices,
        nodes=size.nodes,
        gpus_per_node=size.devices // size.nodes if size.devices and size.nodes else None,
        workload=_workload(log_format, facts, place, remarks) or None,
        precision=_precision(facts, place, remarks) or None,
        batch_size=size.batch_size,
        data=facts.get("data", "")[:MAX_TEXT] or None,
        warmup_steps=warmup,
        measured_steps=None if is_short else max(total - warmup, 1),
        repeat=place.repeat or 1,
        options={**place.options, **_options(facts, log_format, place, remarks)},
    )
    return RequestedRun(run=run, run_id=run.partial_id(extra), extra=extra)


def _window_name(reading: Reading, size: Size, protocol: Protocol) -> str:
    """What distinguishes its window from the protocol's; empty for that."""
    if protocol.whole:
        return "all"
    if reading.window and reading.short_window:
        return f"{_begin_to_end(reading.window)}, {NOT_THE_PROTOCOLS}"
    return WHOLE_TRAINING if whole_training(reading, size) else ""


def _workload(log_format: LogFormat, facts: Mapping[str, str], place: PathFacts, remarks: list[str]) -> str:
    model_in_log = model_name(facts.get("model", "")[:MAX_TEXT])
    if model_in_log and place.model and model_in_log != place.model:
        remarks.append(f"it trains {model_in_log}, its name says {place.model}: the log is believed")
    model = model_in_log or place.model or log_format.model
    return f"{log_format.task}_{model}" if model and log_format.task else model


def _precision(facts: Mapping[str, str], place: PathFacts, remarks: list[str]) -> str:
    precision_in_log = facts.get("precision", "")[:MAX_TEXT]
    if precision_in_log and precision_in_log not in (*PRECISIONS, PURE_HALF):
        remarks.append(f"its precision {precision_in_log} is none of {', '.join(PRECISIONS)}")
        return ""
    if precision_in_log == PURE_HALF and PURE_HALF in place.half:
        return PURE_HALF
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
        name: (value[:MAX_TEXT],) for name, value in sorted(facts.items()) if name not in (*FACTS, *SCOPES, *OPTIONS)
    }


def _real(speed: float | None) -> float | None:
    return speed if speed is not None and math.isfinite(speed) and speed > 0 else None
