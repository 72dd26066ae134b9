"""Mutated logs, read as if they were real.

`python -m tests.fuzz.fuzz_logs [--count N] [--from SEED]`;
with `--seed N` one of them again.

Looked for are: an exception other than LogError, a warning, a hang, memory that grows, a number from nothing. What
fails is printed with its seed. The input of a seed is the same one every time.
"""

from __future__ import annotations

import math
import random
import re
import sys
import zlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from parse.logs.engine.fields import LARGEST
from parse.logs.engine.log_format import LogError
from parse.logs.formats import format_named, recognise
from parse.logs.path_facts import place_of, whole_number
from parse.logs.window import Protocol, Reading, Window, ends_early, read_log
from parse.runs.attempt import Attempt
from parse.runs.explain import explain
from parse.runs.load import load
from parse.runs.log_attempt import attempt_of
from parse.runs.log_training import WHOLE_TRAINING
from tests.fuzz.mutations import mutated
from tests.fuzz.samples import SAMPLES_OF_ALL, Sample
from tests.fuzz.trials import command, require, try_seeds

COUNT = 100_000
WARM, GROWTH_BYTES = 5_000, 48 << 20
"""After so many inputs all that is kept for good is there; what comes on top of it later is growth. The margin is for
what an allocator cannot give back."""
SPACING = 50
"""Every so many inputs go the whole way of the command line, too."""
ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\n]*\x07|[()][A-Za-z0-9])")
CLOCK = re.compile(r"\d\d:\d\d:\d\d")
STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d{3,6}")
MAX_REASON = 2_000
RANKS = (1, 2, 8, 16, 1 / 2, 1 / 8, 1 / 16)
"""What is printed may turn out to be of one rank or of all; a sample is of 8 devices, as its folder says, or of 16."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """What one seed makes."""

    seed: int
    sample: Sample
    text: bytes
    protocol: Protocol
    forced: bool
    """Read as the sample's family, whatever it looks like."""


def input_of(seed: int) -> Input:
    """The log of that seed."""
    rng = random.Random(seed)
    sample = rng.choice(SAMPLES_OF_ALL)
    long = rng.random() < 0.1
    text = sample.text(rng.randint(125, 140) if long else rng.randint(8, 20))
    if rng.random() < 0.1:
        text += rng.choice(SAMPLES_OF_ALL).text(5)
    return Input(
        seed=seed,
        sample=sample,
        text=mutated(text, rng),
        protocol=Protocol(whole=rng.random() < 0.2) if long else Protocol(warmup=2, total=8, whole=rng.random() < 0.2),
        forced=rng.random() < 0.2,
    )


def check(mutant: Input, path: Path) -> str:
    """Reads it, and says what came of it: `speed`, `no speed`, or `no log`. Raises Defect."""
    path.write_bytes(mutant.text)
    try:
        log_format = format_named(mutant.sample.log_format) if mutant.forced else recognise(path)
        reading = read_log(path, log_format, mutant.protocol)
    except LogError as error:
        _one_line(str(error))
        return "no log"
    attempt = attempt_of(path, reading, place_of(path), mutant.protocol)
    _one_line(attempt.problem)
    if reading.window is None:
        _one_line(reading.reason)
        require(bool(reading.reason), "there is no window, and no reason for that")
    speeds = _speeds(attempt)
    for name, speed in speeds.items():
        require(math.isfinite(speed) and speed > 0, f"{name} is {speed}")
    require(attempt.measured is not None or bool(attempt.problem), "there are no numbers, and no reason for that")
    ends = attempt.log is not None and ends_early(reading, attempt.log.window)
    if window := reading.window or (reading.short_window if ends else None):
        _supported(mutant, reading, window, speeds)
    elif attempt.log is None or attempt.log.window != WHOLE_TRAINING:
        require(not speeds, f"{sorted(speeds)} without a window")
    if mutant.seed % SPACING == 0:
        require(bool(explain(path, reading, attempt)), "nothing is explained")
        loaded = load([path])
        reported = [*loaded.refusals, *loaded.remarks, *loaded.attempts]
        require(bool(reported), "parse.runs.load says nothing about the file")
        for line in (*loaded.refusals, *loaded.remarks):
            _one_line(line)
    return "speed" if speeds else "no speed"


def _one_line(text: str) -> None:
    require(len(text.splitlines()) <= 1, f"a reason of several lines: {text!r}")
    require(len(text) <= MAX_REASON, f"a reason of {len(text)} characters: {text[:200]!r}")


def _speeds(attempt: Attempt) -> dict[str, float]:
    speeds: dict[str, float | None] = {}
    if attempt.log is not None:
        speeds |= {"wall_clock": attempt.log.wall_clock, "printed": attempt.log.printed}
    if attempt.measured is not None:
        speeds |= {"throughput": attempt.measured.throughput, "mean_of_rates": attempt.measured.mean_of_rates}
        step_s = attempt.measured.step_s
        require(bool(np.isfinite(step_s).all() and (step_s >= 0).all()), f"steps take {step_s}")
    return {name: speed for name, speed in speeds.items() if speed is not None}


def _supported(mutant: Input, reading: Reading, window: Window, speeds: dict[str, float]) -> None:
    """A plain search finds both steps in the text, where it says, and a printed speed among what is printed."""
    text = reading.log_format.joined(_plain(mutant.text).encode("latin-1")).decode("latin-1")
    lines = []
    require(window.begin < window.end or window.begin_epoch < window.end_epoch, f"a window that ends first: {window}")
    require(window.steps > 0, f"a window of {window.steps} steps")
    for name, step, offset in (
        ("begin", window.begin, window.begin_offset),
        ("end", window.end, window.end_offset),
    ):
        line = ANSI.sub("", re.split(r"[\r\n]", text[offset:], maxsplit=1)[0])
        counted = re.search(rf"(?<!\d)0*{step}(?!\d)", line) is not None
        if reading.log_format.counts == "samples":
            counted = any(int(number) % max(step, 1) == 0 for number in re.findall(r"\[ *(\d+)/", line))
        require(counted, f"{name} {step} is not in its line {line[:300]!r}")
        lines.append(line)
    if all("DLLL" not in line and len(CLOCK.findall(line)) == 1 for line in lines):  # JSON's time is another field
        _timed(window, [stamp for line in lines for stamp in STAMP.findall(line)])
    if reading.log_format.name != mutant.sample.log_format or reading.log_format.printed != "rates":
        return
    if any("mean_rate" in form.pattern.groupindex for form in reading.log_format.steps):  # differences may be any
        return
    steps = [
        match
        for sample in SAMPLES_OF_ALL
        if sample.log_format == reading.log_format.name
        for match in sample.plain.finditer(_forgiving(text))
    ]
    rates = [rate for match in steps if (rate := _rate(match)) is not None]
    if "printed" in speeds and len(rates) == len(steps) and all(rate > 0 for rate in rates):
        low, high = min(rates) * (1 - 1e-9), max(rates) * (1 + 1e-9)
        of_header = whole_number(reading.facts.get("world_size")) or 1
        parts = [speeds["printed"] * ranks for ranks in (*RANKS, 1 / of_header)]
        require(any(low <= part <= high for part in parts), f"printed {parts[0]} is not among {low} … {high}")


def _timed(window: Window, stamps: list[str]) -> None:
    """The time of a window without pauses is that between its lines' own time stamps, where each has one."""
    whole = window.steps == window.end - window.begin and window.begin_epoch == window.end_epoch
    if window.seconds is None or not whole or len(stamps) != 2:
        return
    try:
        begin, end = (datetime.fromisoformat(stamp.replace(",", ".")) for stamp in stamps)
    except ValueError:
        return
    passed_s = (end - begin).total_seconds()
    require(
        abs(passed_s - window.seconds) < 1e-3, f"{window.seconds} s in a window that {passed_s} s pass in: {stamps}"
    )


def _plain(text: bytes) -> str:
    if text[:2] == b"\x1f\x8b":
        text = _unpacked(text)
    return text.decode("latin-1")


def _forgiving(text: str) -> str:
    return ANSI.sub("", text).replace("\r", "\n")


def _unpacked(packed: bytes) -> bytes:
    """What a packed text holds up to where it is damaged."""
    text = bytearray()
    while packed[:2] == b"\x1f\x8b":
        member = zlib.decompressobj(31)
        try:
            for at in range(0, len(packed), 16):
                text += member.decompress(packed[at : at + 16])
        except zlib.error:
            break
        packed = member.unused_data
    return bytes(text)


def _rate(match: re.Match[str]) -> float | None:
    try:
        rate = float(match["rate"].replace(",", ""))
    except (ValueError, IndexError):
        return None
    return rate if abs(rate) <= LARGEST else None


def resident_bytes() -> int:
    """The memory that this process has now (proc(5))."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def run(first: int, count: int, folder: Path) -> int:
    """Tries so many seeds; prints what fails. Returns how many did."""
    path = folder / "pytorch" / "1n8g" / "r50_b128_fp32_1.log"
    path.parent.mkdir(parents=True)
    warm_bytes = 0

    def attempt(seed: int) -> str:
        nonlocal warm_bytes
        try:
            return check(input_of(seed), path)
        finally:
            if seed - first == min(WARM, count // 2):
                warm_bytes = resident_bytes()

    failed = try_seeds(first, count, attempt, lambda seed: input_of(seed).sample.name)
    growth = resident_bytes() - warm_bytes
    print(f"memory grew by {growth >> 20} MiB after the first {WARM} logs; {GROWTH_BYTES >> 20} MiB are allowed")
    return failed + (growth > GROWTH_BYTES)


def main() -> int:
    """Command line: 0 where nothing failed."""
    return command(
        __doc__,
        COUNT,
        lambda options, first, count, folder: run(first, count, folder),
        text_of=lambda seed: input_of(seed).text,
    )


if __name__ == "__main__":
    sys.exit(main())
