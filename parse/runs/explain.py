"""Explains how each number of one log came about, for a person who checks it by hand."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpc.model.spec import SAMPLES
from hpc.system.sanitize import plain
from hpc.system.text import plural
from parse.logs.engine.intervals import numbered
from parse.logs.engine.log_format import LogError
from parse.logs.engine.reader import ANSI, MAX_LINE, find_step, opened
from parse.logs.formats import Formats, readers_of
from parse.logs.line_pattern import as_pattern
from parse.logs.window import Reading, Window, ends_early
from parse.runs.attempt import Attempt

MAX_LINE_BYTES = 1 << 26
"""Longer lines are read in parts, so that memory is bounded."""
MAX_TEXT = 240
"""Characters of a line that are shown."""
MAX_LISTED = 20
SAME = 1e-9
"""Two ways to one number differ by no more."""


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """A line of a file: its number from 1, as editors count, and how it begins."""

    number: int
    text: str
    raw: bytes


def explain(path: Path, reading: Reading, attempt: Attempt, brought: Formats = ()) -> str:
    """The log at `path` as it was read, and the way of its numbers into `attempt`; `brought` are a person's formats.

    Raises LogError where it is gone.
    """
    if attempt.log and ends_early(reading, attempt.log.window):
        reading = dataclasses.replace(reading, window=reading.short_window)
    window = reading.window
    wanted = list(reading.facts_at.values())
    lines = lines_at(path, wanted + ([window.begin_offset, window.end_offset] if window else []))
    format_name = f"{reading.log_format.name} ({reading.log_format.title})"
    remarks = attempt.log.remarks if attempt.log else tuple(each.text for each in reading.remarks)
    parts = [
        [
            plain(str(path)),
            f"recognised as {format_name}, {_printed_lines(reading)}",
            *_recognition(reading, window, lines, brought),
        ],
        _facts(reading, lines),
        _window(window, lines) if window else [f"no window: {attempt.problem or reading.reason}"],
        _numbers(reading, window, attempt, lines) if window else _whole_training(reading, attempt),
        _listed("remarks", [f"  {plain(remark)}" for remark in remarks]),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def lines_at(path: Path, offsets: Iterable[int]) -> dict[int, LogLine]:
    """The lines that begin at those bytes of the text, by these. Raises LogError."""
    remaining = sorted(set(offsets), reverse=True)
    line_at: dict[int, LogLine] = {}
    number, begin = 1, 0
    try:
        with opened(path) as (file, _):
            while remaining and (line := file.readline(MAX_LINE_BYTES)):
                while remaining and remaining[-1] < begin + len(line):
                    offset = remaining.pop()
                    text = line[offset - begin : offset - begin + 4 * MAX_TEXT].replace(b"\r", b"\n").split(b"\n", 1)[0]
                    raw = ANSI.sub(b"", line[offset - begin : offset - begin + MAX_LINE]).replace(b"\r", b"\n")
                    line_at[offset] = LogLine(
                        number=number, text=_shown(text.decode(errors="replace"), MAX_TEXT), raw=raw.split(b"\n", 1)[0]
                    )
                number += line.endswith(b"\n")
                begin += len(line)
    except (OSError, EOFError, zlib.error) as error:
        raise LogError(f"{path}: cannot be read ({error})") from None
    if remaining:
        raise LogError(f"{path}: ends before byte {remaining[-1]}, which was read before: it is another file now")
    return line_at


def _recognition(reading: Reading, window: Window | None, lines: dict[int, LogLine], brought: Formats) -> Iterator[str]:
    """The form of its steps that a line of the log has, in the words of --pattern, and the other formats that read it.
    Nothing where a step is of several lines."""
    line = lines[window.begin_offset] if window else None
    for form in reading.log_format.steps:
        if line and (step := find_step(line.raw, (form,))):
            words = form.written or as_pattern(line.raw, step.fields, reading.log_format)
            yield f"  line {line.number} is of its form: {_shown(plain(words), MAX_TEXT)}"
            others = [name for name in readers_of(line.raw, brought) if name != reading.log_format.name]
            yield f"  it has the form of {', '.join(others)}, too" if others else "  no other format has such a line"
            return


def _printed_lines(reading: Reading) -> str:
    if not reading.step_lines:
        return "without a step line"
    epoch, step = reading.last or (-1, 0)
    counted = f"{plural(reading.step_lines, 'step line')} up to step {numbered(epoch, step)}"
    window = reading.window
    if window is None:
        return counted
    ranks = f", by {plural(len(window.ranks), 'rank')}" if window.ranks else ""
    same = f", {window.lines_per_step} lines for each" if window.lines_per_step > 1 else ""
    return f"{counted}, printed every {plural(window.printed_every, 'step')}{ranks}{same}"


def _facts(reading: Reading, lines: dict[int, LogLine]) -> list[str]:
    names = sorted(reading.facts, key=lambda name: reading.facts_at[name])
    wide = max(map(len, names), default=0)
    return _listed(
        "what its other lines say",
        [
            f"  {name:{wide}}  {_shown(reading.facts[name], 80)}  (line {lines[reading.facts_at[name]].number})"
            for name in names
        ],
    ) or ["no line says batch size, devices or anything else"]


def _window(window: Window, lines: dict[int, LogLine]) -> list[str]:
    begin, end = lines[window.begin_offset], lines[window.end_offset]
    return [
        f"window: from step {numbered(window.begin_epoch, window.begin)} to "
        f"step {numbered(window.end_epoch, window.end)}, "
        f"{plural(window.steps, 'step')} counted",
        *(["  numbers count from 0 and end one short: step n is n + 1 steps done"] if window.in_steps_done else []),
        f"  first line used: {begin.number}: {begin.text}",
        f"  last line used:  {end.number}: {end.text}",
        *_listed(
            f"  kept out: {plural(len(window.pauses), 'interval')}",
            [
                f"    steps {pause.from_step} to {pause.to_step}: {pause.reason}"
                + (f", {pause.seconds:.6f} s" if pause.seconds is not None else "")
                for pause in window.pauses
            ],
        ),
    ]


def _numbers(reading: Reading, window: Window, attempt: Attempt, lines: dict[int, LogLine]) -> list[str]:
    wall_clock = attempt.log.wall_clock if attempt.log else None
    printed = attempt.log.printed if attempt.log else None
    lines_of_text = [*_samples(reading, attempt, window), *_wall_clock(reading, window, wall_clock, attempt, lines)]
    lines_of_text += _printed(reading, window, printed, attempt)
    unit = _unit(reading)
    if wall_clock and printed:
        lines_of_text.append(
            f"gap: printed / wall_clock - 1 = {printed:.2f} / {wall_clock:.2f} - 1 = {printed / wall_clock - 1:+.2%}"
        )
    if attempt.measured:
        lines_of_text.append(f"result: {attempt.measured.throughput:.2f} {unit}")
        lines_of_text += _steady_run(reading, attempt, attempt.measured.throughput)
    else:
        lines_of_text.append(f"result: none ({attempt.problem or 'it has no speed'})")
    return lines_of_text


def _unit(reading: Reading) -> str:
    return f"{reading.log_format.unit}/s"


def _steady_run(reading: Reading, attempt: Attempt, result: float) -> list[str]:
    """The speed of the whole run from the window's begin on, beside that of the window."""
    run, log = reading.steady_run, attempt.log
    if run is None or log is None or not log.steady_run:
        return []
    seconds = f" in {run.seconds:.6f} s" if run.seconds and log.wall_clock == result else ""
    return [
        f"whole steady run: {log.steady_window}, {plural(run.steps, 'step')}{seconds}, pauses left out: "
        f"{log.steady_run:.2f} {_unit(reading)}; window / whole steady run - 1 = {result / log.steady_run - 1:+.2%}"
    ]


def _whole_training(reading: Reading, attempt: Attempt) -> list[str]:
    """The number of a log without a window; its arithmetic is among the remarks."""
    log, measured = attempt.log, attempt.measured
    if log is None or measured is None:
        return []
    speeds = {"wall_clock": log.wall_clock, "printed": log.printed}
    figures = [f"{name}: {speed:.2f} {_unit(reading)}" for name, speed in speeds.items() if speed]
    return [*figures, f"result: {measured.throughput:.2f} {_unit(reading)} ({log.window})"]


def _samples(reading: Reading, attempt: Attempt, window: Window) -> list[str]:
    each, what = _per_step(attempt, window), reading.log_format.unit
    if not each:
        return [f"{what} of a step: not known"]
    if window.taken_in:
        return [f"{what} of {plural(window.steps, 'step')}, as their lines print: {window.taken_in:.10g}"]
    run = attempt.requested.run if attempt.requested else None
    if run and run.batch_size and run.devices and what == SAMPLES and run.batch_size * run.devices == each:
        return [f"samples of a step: {run.batch_size} × {plural(run.devices, 'device')} = {each:.10g}"]
    samples, length = (reading.facts.get(name, "") for name in ("global_batch_size", "sequence_length"))
    if what != SAMPLES and samples.isdecimal() and length.isdecimal() and int(samples) * int(length) == each:
        return [f"{what} of a step: {samples} samples × {length} = {each:.10g}"]
    return [f"{what} of a step: {each:.10g}"]


def _wall_clock(
    reading: Reading, window: Window, wall_clock: float | None, attempt: Attempt, lines: dict[int, LogLine]
) -> list[str]:
    if window.seconds is None:
        return ["wall_clock: none, without usable time stamps"]
    out = sum(pause.seconds for pause in window.pauses if pause.seconds is not None)
    begin, end = lines[window.begin_offset].number, lines[window.end_offset].number
    less = f" = {window.seconds + out:.6f} s, less {out:.6f} s kept out" if out else ""
    time_line = [f"time: stamp of line {end} - stamp of line {begin}{less} = {window.seconds:.6f} s"]
    each = _per_step(attempt, window)
    if wall_clock is None or not each:
        return [
            *time_line,
            f"wall_clock: {window.steps} / {window.seconds:.6f} s = {window.steps / window.seconds:.6f} steps/s",
        ]
    speed = f"{wall_clock:.2f} {_unit(reading)}"
    return [*time_line, f"wall_clock: {window.steps} × {each:.10g} / {window.seconds:.6f} s = {speed}"]


def _printed(reading: Reading, window: Window, printed: float | None, attempt: Attempt) -> list[str]:
    """The calculation from the printed numbers: the one of the possible calculations that gives the speed."""
    if not window.printed:
        return ["printed: nothing, the lines have neither rates nor step times"]
    median = ", each the median over its lines," if window.lines_per_step > 1 or len(window.ranks) > 1 else ""
    devices = (attempt.requested and attempt.requested.run.devices) or 1
    each, what, unit = _per_step(attempt, window), reading.log_format.unit, _unit(reading)
    shown = f"{each:.10g}" if each else f"{what} of a step"
    ways: list[tuple[str, float]] = []
    if window.duration_s:
        mean = f"mean of {plural(window.printed, 'printed step time')}{median} = {window.duration_s:.6f} s"
        ways.append((f"{mean}; {shown} / {window.duration_s:.6f} s", each / window.duration_s))
    if window.rate:
        numbers = f"work / time by {plural(window.printed, 'printed rate')}{median}"
        ways += _scaled(f"{numbers} = {window.rate:.2f} {unit}", window.rate, devices, reading)
    if printed is None:
        return [f"printed: {ways[0][0]}; no speed without the {what} of a step"] if ways else ["printed: none"]
    return [_way("printed", ways, printed, unit), *_protocol(window, attempt, reading, each, shown, median)]


def _protocol(
    window: Window, attempt: Attempt, reading: Reading, each: float, shown: str, median: str
) -> Iterator[str]:
    """The arithmetic mean of rates, where the protocol of the log's format publishes it."""
    mean_of_rates = attempt.measured and attempt.measured.mean_of_rates
    if not reading.log_format.publishes_mean or not mean_of_rates:
        return
    ways: list[tuple[str, float]] = []
    unit, devices = _unit(reading), (attempt.requested and attempt.requested.run.devices) or 1
    if window.mean_steps_per_s:
        rates = f"mean of {window.printed} rates of {shown} / a printed step time{median}"
        ways.append((rates, each * window.mean_steps_per_s))
    if window.mean_of_rates:
        mean = f"mean of {plural(window.printed, 'printed rate')}{median} = {window.mean_of_rates:.2f} {unit}"
        ways += _scaled(mean, window.mean_of_rates, devices, reading)
    yield _way("its protocol's, no work over time", ways, mean_of_rates, unit)


def _scaled(text: str, rate: float, devices: int, reading: Reading) -> list[tuple[str, float]]:
    """The ways from a printed rate to that of all devices."""
    rank = "of one device each" if reading.log_format.rates == "rank" else "of one device, as its time stamps say"
    return [
        (text, rate),
        (f"{text}, {rank}; × {devices} devices", rate * devices),
        (f"{text}; / {devices} devices, as its time stamps say", rate / devices),
    ]


def _way(name: str, ways: list[tuple[str, float]], speed: float, unit: str) -> str:
    """The way that gives the speed."""
    how = next((way for way, value in ways if abs(value - speed) <= SAME * speed), "")
    shown = f"{speed:.2f} {unit}"
    return f"{name}: {how}" if how.endswith(f" = {shown}") else f"{name}: {how}{' = ' if how else ''}{shown}"


def _per_step(attempt: Attempt, window: Window) -> float:
    """What a step takes in, a mean over the window; 0 if unknown."""
    return attempt.measured.samples / window.steps if attempt.measured else 0


def _listed(head: str, rows: list[str]) -> list[str]:
    if not rows:
        return []
    more = [f"    … and {len(rows) - MAX_LISTED} more"] if len(rows) > MAX_LISTED else []
    return [f"{head}:", *rows[:MAX_LISTED], *more]


def _shown(text: str, max_length: int) -> str:
    text = "".join(letter if letter.isprintable() or letter == "\t" else "?" for letter in text)
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"
