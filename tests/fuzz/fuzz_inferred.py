"""Mutated logs of systems that no format is declared for, read by inference.

`python -m tests.fuzz.fuzz_inferred [--count N] [--from SEED]`; with `--seed N` one of them again.

Looked for are: an exception, a warning, a hang, and a number that two fields of its own lines contradict.
"""

from __future__ import annotations

import math
import random
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from parse.logs.engine.fields import LARGEST
from parse.logs.window import Protocol
from parse.runs.load_logs import HowToRead, load_logs
from tests.fuzz.mutations import mutated
from tests.fuzz.trials import Defect, command, try_seeds

COUNT = 100_000
BEGIN = datetime(2025, 3, 23, 10, 16, 49, 131815)
TOKENS, DEVICES, BATCH = 8192, 8, 4
APART = 0.03
"""Two fields that are further apart contradict each other: the reader allows 1 %, and what digits leave open."""
PLAIN = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
"""Other numbers are none that the reader takes."""
PROTOCOL = Protocol(warmup=2, total=22)


def step_s(step: int) -> float:
    """The seconds of a step, the first one longer."""
    return 9.0 if step == 1 else 0.31 + 0.01 * (step * 7 % 5)


ELAPSED_S = [0.0]
for _step in range(1, 400):
    ELAPSED_S.append(ELAPSED_S[-1] + step_s(_step))


def stamp(step: int) -> str:
    return f"{BEGIN + timedelta(seconds=ELAPSED_S[step]):%Y-%m-%d %H:%M:%S.%f}"


def rate(step: int) -> float:
    return TOKENS / step_s(step)


@dataclass(frozen=True, kw_only=True)
class UnknownSample:
    """A log that no format is declared for: a line of a step, and a plain pattern for it.

    Its groups are times: `each_s` and `each_ms` of a step, `since_s` and `since_ms` since the beginning, `stamp`, and
    `per_s` (steps); `rate` is `work` over the time of a step.
    """

    name: str
    line: Callable[[int], str]
    plain: re.Pattern[str]
    work: float = 0.0
    heading: str = ""


SAMPLES = (
    UnknownSample(
        name="rate and seconds",
        line=lambda step: (
            f"completed step: {step}, seconds: {step_s(step):.3f}, Tokens/s/device: {rate(step):.3f}, "
            f"total_weights: {DEVICES * TOKENS}"
        ),
        plain=re.compile(
            r"ted step: (?P<step>\d{1,15}), seconds: (?P<each_s>[\d.]+), Tokens/s/device: (?P<rate>[\d.]+),"
        ),
        work=TOKENS,
    ),
    UnknownSample(
        name="lines below",
        line=lambda step: (
            f"{stamp(step)}\tINFO\t[step={step}/1000]\n    train/loss=5.1\n"
            f"    throughput/device/tokens_per_second={rate(step):,.1f}\n    batches_per_second={1 / step_s(step):.4f}"
        ),
        plain=re.compile(
            r"^(?P<stamp>\S+ \S+)\tINFO\t\[step=(?P<step>\d{1,15})/.*\n.*\n"
            r"    throughput/device/tokens_per_second=(?P<rate>[\d.,]+)\n    batches_per_second=(?P<per_s>[\d.]+)$",
            re.MULTILINE,
        ),
        work=TOKENS,
    ),
    UnknownSample(
        name="mean and elapsed",
        line=lambda step: (
            f"step:{step}/1480 train_time:{1e3 * ELAPSED_S[step]:.0f}ms step_avg:{1e3 * ELAPSED_S[step] / step:.2f}ms"
        ),
        plain=re.compile(r"step:(?P<step>\d{1,15})/1480 train_time:(?P<since_ms>\d+)ms step_avg:"),
    ),
    UnknownSample(
        name="dictionary",
        line=lambda step: (
            f"{stamp(step)} {{'loss': 0.4, 'global_step/max_steps': '{step}/449', 'elapsed': '{ELAPSED_S[step]:.2f}s'}}"
        ),
        plain=re.compile(
            r"^(?P<stamp>\S+ \S+) \{'loss': 0.4, 'global_step/max_steps': '(?P<step>\d{1,15})/449', "
            r"'elapsed': '(?P<since_s>[\d.]+)s'",
            re.MULTILINE,
        ),
    ),
    UnknownSample(
        name="JSON",
        line=lambda step: (
            f'{{"step": {step}, "step_time_ms": {1e3 * step_s(step):.2f}, "elapsed_s": {ELAPSED_S[step]:.3f}}}'
        ),
        plain=re.compile(
            r'"step": (?P<step>\d{1,15}), "step_time_ms": (?P<each_ms>[\d.]+), "elapsed_s": (?P<since_s>[\d.]+)\}'
        ),
    ),
    UnknownSample(
        name="CSV",
        heading="step,loss,val_loss,total_tok_per_sec,step_ms,tokens",
        line=lambda step: f"{step},9.1,{'' if step % 9 else '8.7'},{rate(step):.1f},{1e3 * step_s(step):.2f},{TOKENS}",
        plain=re.compile(
            r"^(?P<step>\d{1,15}),[^,\n]*,[^,\n]*,(?P<rate>[\d.]+),(?P<each_ms>[\d.]+),\d+$", re.MULTILINE
        ),
        work=TOKENS,
    ),
    UnknownSample(
        name="columns",
        heading="  step   loss  time_s  elapsed_s",
        line=lambda step: f"{step:6d}  9.100  {step_s(step):6.3f}  {ELAPSED_S[step]:9.3f}",
        plain=re.compile(r"^ *(?P<step>\d{1,15}) +\S+ +(?P<each_s>[\d.]+) +(?P<since_s>[\d.]+)$", re.MULTILINE),
    ),
)


@dataclass(frozen=True, kw_only=True)
class UnknownInput:
    """What one seed makes."""

    sample: UnknownSample
    text: bytes


def input_of(seed: int) -> UnknownInput:
    """The log of that seed: a sample with lines taken out, doubled, in another order, or printed by several ranks; then
    mutated as the logs of declared formats are."""
    rng = random.Random(seed)
    sample = rng.choice(SAMPLES)
    lines = [sample.line(step) for step in range(1, rng.randint(30, 60))]
    change = rng.randrange(6)
    if change == 1:
        lines = [line for line in lines if rng.random() > 0.1]
    elif change == 2:
        lines = [line for line in lines for _ in range(1 + (rng.random() < 0.1))]
    elif change == 3:
        lines = [f"[rank{rank}]: {line}" for line in lines for rank in range(rng.randint(2, 4))]
    elif change == 4:
        place = rng.randrange(len(lines))
        lines = lines[:place] + [sample.line(step) for step in range(1, 30)]
    elif change == 5:
        other = rng.choice(SAMPLES)
        lines += [other.heading] * bool(other.heading) + [other.line(step) for step in range(1, 30)]
    if sample.heading:
        lines.insert(0, sample.heading)
    text = ("\n".join(lines) + "\n").encode()
    return UnknownInput(sample=sample, text=mutated(text, rng) if rng.random() < 0.8 else text)


def check(mutant: UnknownInput, path: Path) -> str:
    """Reads it, and says what came of it: `speed`, or `no speed`. Raises Defect."""
    path.write_bytes(mutant.text)
    how = HowToRead(protocol=PROTOCOL)
    loaded = load_logs([path], how, lambda items: items, frozenset())
    for line in (*loaded.refusals, *loaded.remarks):
        if len(line.splitlines()) > 1:
            raise Defect(f"a reason of several lines: {line!r}")
    for attempt in loaded.attempts:
        log = attempt.log
        if log is None or log.log_format != "inferred":
            continue
        window = re.match(r"steps (\d+) to (\d+)$", log.window)
        speeds = [speed for speed in (log.wall_clock, log.printed) if speed is not None]
        if any(not math.isfinite(speed) or speed <= 0 for speed in speeds):
            raise Defect(f"speeds {speeds}")
        if window:
            _agree(mutant, int(window[1]), int(window[2]))
        return "speed"
    return "no speed"


def _agree(mutant: UnknownInput, begin: int, end: int) -> None:
    """The fields of the window's lines say one time, where each of its steps has one line."""
    text = mutant.text.decode("latin-1").replace("\r", "\n")
    rows = [match for match in mutant.sample.plain.finditer(text) if begin <= int(match["step"]) <= end]
    steps = [int(match["step"]) for match in rows]
    if len(rows) < 2 or end + 1 - begin != len(rows) or steps != list(range(begin, end + 1)):
        return
    seconds = _seconds(mutant.sample, rows)
    if seconds and max(seconds.values()) > (1 + APART) * min(seconds.values()):
        raise Defect(f"steps {begin} to {end} have a number, and their fields say {seconds}")


def _seconds(sample: UnknownSample, rows: Sequence[re.Match[str]]) -> dict[str, float]:
    """The seconds from the first row to the last, by each field."""
    seconds: dict[str, float] = {}
    for name in rows[0].groupdict():
        texts = [match[name] for match in rows]
        try:
            if name == "stamp":
                stamps = [datetime.fromisoformat(text) for text in texts]
                if stamps == sorted(stamps):  # else they are no clock, and the reader leaves them out
                    seconds[name] = (stamps[-1] - stamps[0]).total_seconds()
                continue
            values = [float(text.replace(",", "")) for text in texts]
        except (ValueError, TypeError):  # no time, or one of several has a zone
            continue
        if any(value > LARGEST for value in values) or not all(map(PLAIN.fullmatch, texts)):
            continue
        if name.startswith("since"):
            seconds[name] = (values[-1] - values[0]) * (1e-3 if name.endswith("ms") else 1.0)
        elif name.startswith("each") and all(value > 0 for value in values):  # else damaged
            seconds[name] = sum(values[1:]) * (1e-3 if name.endswith("ms") else 1.0)
        elif name in ("rate", "per_s") and all(value > 0 for value in values):
            seconds[name] = sum((sample.work if name == "rate" else 1.0) / value for value in values[1:])
    return {name: value for name, value in seconds.items() if value > 0}


def run(first: int, count: int, folder: Path) -> int:
    """Tries so many seeds; prints what fails. Returns how many did."""
    path = folder / "run_1n8g_b4.log"
    return try_seeds(first, count, lambda seed: check(input_of(seed), path), lambda seed: input_of(seed).sample.name)


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
