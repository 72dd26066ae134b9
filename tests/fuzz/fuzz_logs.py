"""Mutated logs, read as if they were real.

`python -m tests.fuzz.fuzz_logs [--count N] [--from SEED]`;
with `--seed N` one of them again.

Looked for are: an exception other than LogError, a warning, a hang, memory that grows, a number from nothing. What
fails is printed with its seed. The input of a seed is the same one every time.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import signal
import sys
import tempfile
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import perf_counter
from types import FrameType

import numpy as np

from parse.logs.engine.fields import LARGEST
from parse.logs.engine.log_format import LogError
from parse.logs.formats import format_named, recognise
from parse.logs.path_facts import place_of
from parse.logs.window import Protocol, Reading, Window, ends_early, read_log
from parse.runs.attempt import Attempt
from parse.runs.explain import explain
from parse.runs.load import load
from parse.runs.log_attempt import WHOLE_TRAINING, attempt_of
from tests.fuzz.mutations import mutated
from tests.fuzz.samples import SAMPLES_OF_ALL, Sample

COUNT = 100_000
HANG_S = 30
"""No input of a megabyte takes a hundredth of it."""
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


class Defect(AssertionError):
    """A log that was read and should not have been, or not so."""


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
        _true(bool(reading.reason), "there is no window, and no reason for that")
    speeds = _speeds(attempt)
    for name, speed in speeds.items():
        _true(math.isfinite(speed) and speed > 0, f"{name} is {speed}")
    _true(attempt.measured is not None or bool(attempt.problem), "there are no numbers, and no reason for that")
    ends = attempt.log is not None and ends_early(reading, attempt.log.window)
    if window := reading.window or (reading.short_window if ends else None):
        _supported(mutant, reading, window, speeds)
    elif attempt.log is None or attempt.log.window != WHOLE_TRAINING:
        _true(not speeds, f"{sorted(speeds)} without a window")
    if mutant.seed % SPACING == 0:
        _true(bool(explain(path, reading, attempt)), "nothing is explained")
        loaded = load([path])
        reported = [*loaded.refusals, *loaded.remarks, *loaded.attempts]
        _true(bool(reported), "parse.runs.load says nothing about the file")
        for line in (*loaded.refusals, *loaded.remarks):
            _one_line(line)
    return "speed" if speeds else "no speed"


def _true(so: bool, otherwise: str) -> None:
    if not so:
        raise Defect(otherwise)


def _one_line(text: str) -> None:
    _true(len(text.splitlines()) <= 1, f"a reason of several lines: {text!r}")
    _true(len(text) <= MAX_REASON, f"a reason of {len(text)} characters: {text[:200]!r}")


def _speeds(attempt: Attempt) -> dict[str, float]:
    speeds: dict[str, float | None] = {}
    if attempt.log is not None:
        speeds |= {"wall_clock": attempt.log.wall_clock, "printed": attempt.log.printed}
    if attempt.measured is not None:
        speeds |= {"throughput": attempt.measured.throughput, "mean_of_rates": attempt.measured.mean_of_rates}
        step_s = attempt.measured.step_s
        _true(bool(np.isfinite(step_s).all() and (step_s >= 0).all()), f"steps take {step_s}")
    return {name: speed for name, speed in speeds.items() if speed is not None}


def _supported(mutant: Input, reading: Reading, window: Window, speeds: dict[str, float]) -> None:
    """A plain search finds both steps in the text, where it says, and a printed speed among what is printed."""
    text = reading.log_format.joined(_plain(mutant.text).encode("latin-1")).decode("latin-1")
    lines = []
    _true(window.begin < window.end or window.begin_epoch < window.end_epoch, f"a window that ends first: {window}")
    _true(window.steps > 0, f"a window of {window.steps} steps")
    for name, step, offset in (
        ("begin", window.begin, window.begin_offset),
        ("end", window.end, window.end_offset),
    ):
        line = ANSI.sub("", re.split(r"[\r\n]", text[offset:], maxsplit=1)[0])
        _true(
            re.search(rf"(?<!\d)0*{step}(?!\d)", line) is not None, f"{name} {step} is not in its line {line[:300]!r}"
        )
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
        parts = [speeds["printed"] * ranks for ranks in RANKS]
        _true(any(low <= part <= high for part in parts), f"printed {parts[0]} is not among {low} … {high}")


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
    _true(abs(passed_s - window.seconds) < 1e-3, f"{window.seconds} s in a window that {passed_s} s pass in: {stamps}")


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


@contextmanager
def watched(seed: int) -> Iterator[None]:
    """Raises Defect where what is within takes HANG_S of processor time: other work makes nothing hang."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise Defect(f"it takes more than {HANG_S} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, HANG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def resident_bytes() -> int:
    """The memory that this process has now (proc(5))."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def run(first: int, count: int, folder: Path, failures: int = 10) -> int:
    """Tries so many seeds; prints what fails. Returns how many did."""
    path = folder / "pytorch" / "1n8g" / "r50_b128_fp32_1.log"
    path.parent.mkdir(parents=True)
    came: Counter[str] = Counter()
    failed, begin, warm_bytes = 0, perf_counter(), 0
    for number, seed in enumerate(range(first, first + count)):
        try:
            with watched(seed), warnings.catch_warnings(action="error"):
                came[check(input_of(seed), path)] += 1
        except Exception:  # noqa: BLE001  # what is looked for
            failed += 1
            print(f"seed {seed} ({input_of(seed).sample.name}):\n{traceback.format_exc()}", flush=True)
            if failed >= failures:
                break
        if number == min(WARM, count // 2):
            warm_bytes = resident_bytes()
        if number % 10_000 == 9_999:
            print(
                f"{number + 1} logs in {perf_counter() - begin:.0f} s: {dict(came)}, {resident_bytes() >> 20} MiB",
                flush=True,
            )
    growth = resident_bytes() - warm_bytes
    if growth > GROWTH_BYTES:
        failed += 1
        print(f"memory grew by {growth >> 20} MiB after the first {WARM} logs; {GROWTH_BYTES >> 20} MiB are allowed")
    print(
        f"{sum(came.values())} logs in {perf_counter() - begin:.0f} s, {failed} failed; {dict(came)}; "
        f"memory grew by {growth / 2**20:.1f} MiB"
    )
    return failed


def command(about: str, usual: int, text_of: Callable[[int], bytes], run: Callable[[int, int, Path], int]) -> int:
    """The command line of a fuzz of logs: 0 where nothing failed."""
    parser = argparse.ArgumentParser(description=about.split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=usual)
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="SEED")
    parser.add_argument("--seed", type=int, help="this one alone; its input is left in ./fuzz-SEED.log")
    options = parser.parse_args()
    if options.seed is not None:
        Path(f"fuzz-{options.seed}.log").write_bytes(text_of(options.seed))
    first, count = (options.first, options.count) if options.seed is None else (options.seed, 1)
    with tempfile.TemporaryDirectory() as folder:
        return 1 if run(first, count, Path(folder)) else 0


def main() -> int:
    """Command line: 0 where nothing failed."""
    return command(__doc__ or "", COUNT, lambda seed: input_of(seed).text, run)


if __name__ == "__main__":
    sys.exit(main())
