"""Printed speeds of every declared format make work over time: equal work at 100 and 300 samples/s is 150 in all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import cycle
from pathlib import Path

import pytest

from parse.logs.engine.fields import Field
from parse.logs.engine.log_format import LogFormat
from parse.logs.engine.reader import ANSI, find_step
from parse.logs.formats import FORMATS, format_named
from parse.logs.path_facts import PathFacts
from parse.logs.window import Protocol, Window, read_log
from parse.runs.attempt import FromLog
from parse.runs.log_attempt import attempt_of
from tests.fuzz.samples import SAMPLES_OF_ALL, Sample

RATES, DURATIONS = ("rate", "mean_rate"), ("duration_s", "duration_ms", "elapsed_s")
WITHOUT_SPEEDS = {
    "tf-cnn-benchmarks", "horovod-synthetic", "mllog", "ai-rank", "gnmt", "huggingface", "lightning", "axolotl",
    "levanter",
}  # fmt: skip
"""Their steps are without printed speeds, or they print none."""
LINES = 41


def steps_of(log_format: LogFormat, text: bytes) -> Iterator[tuple[bytes, Mapping[str, Field]]]:
    """The lines, with the fields of those that are of a step."""
    for line in text.split(b"\n"):
        match = find_step(line, log_format.steps)
        yield line, match.fields if match else {}


def alternated(log_format: LogFormat, text: bytes, names: tuple[str, ...], values: tuple[float, float]) -> bytes:
    """The log with these numbers in turn in its step lines, with as many decimals as before; in neighbouring lines of
    one step the same. `mean_rate` is the work of all so far over its time."""
    turns, value = cycle(values), 0.0
    before: tuple[bytes, ...] = ()
    lines: list[bytes] = []
    last, work, seconds = -1, 0, 0.0
    for original, fields in steps_of(log_format, text):
        line = original
        if fields:
            step = tuple(line[fields[name].first : fields[name].stop] for name in ("epoch", "step") if name in fields)
            value = value if step == before else next(turns)
        before = step if fields else ()
        if "mean_rate" in fields:
            number, left_out = int(step[-1]), -1 if log_format.mean_from is None else log_format.mean_from
            seconds += max(number - max(last, left_out), 0) / value
            work, last = max(number - left_out, 0), number
        for name, field in sorted(fields.items(), key=lambda item: -item[1].first):
            if name == "mean_rate" and name in names:
                line = line[: field.first] + f"{work / seconds if seconds else value:.9f}".encode() + line[field.stop :]
            elif name in names:
                decimals = len(line[field.first : field.stop].partition(b".")[2])
                printed = f"{1e3 * value if name == 'duration_ms' else value:.{decimals}f}"
                line = line[: field.first] + printed.encode() + line[field.stop :]
        lines.append(line)
    return b"\n".join(lines)


def plain(sample: Sample, log_format: LogFormat) -> bytes:
    return log_format.joined(ANSI.sub(b"", sample.text(LINES)).replace(b"\r", b"\n"))


def attempt(path: Path, log_format: LogFormat) -> tuple[Window, FromLog]:
    reading = read_log(path, log_format, Protocol(whole=True))
    place = PathFacts(devices=8, batch_size=128)
    log = attempt_of(path, reading, place, Protocol(whole=True), speed="printed").log
    assert reading.window and log
    return reading.window, log


def test_every_format_is_here():
    assert {sample.log_format for sample in SAMPLES_OF_ALL} == {*FORMATS}


@pytest.mark.parametrize(
    "sample", [pytest.param(each, id=each.name) for each in SAMPLES_OF_ALL if each.log_format not in WITHOUT_SPEEDS]
)
def test_printed_speeds_are_work_over_time(tmp_path, sample):
    log_format = format_named(sample.log_format)
    text = plain(sample, log_format)
    names = {name for _, fields in steps_of(log_format, text) for name in fields}
    path = tmp_path / "x.log"
    if names & {*RATES}:
        path.write_bytes(alternated(log_format, text, RATES, (100, 300)))
        window, log = attempt(path, log_format)
        assert [window.rate, window.mean_of_rates] == pytest.approx([150, 200])
        scope = 8 if log_format.rates == "rank" else 1
        assert window.rate
        assert log.printed in (window.rate * scope, window.rate / 8) or log_format.printed == "durations"
    elif not names & {*DURATIONS}:
        assert sample.name in ("nemo bar", "megatron progress"), "it prints speeds that this test does not know"
    if timed := names & {*DURATIONS}:
        path.write_bytes(alternated(log_format, text, DURATIONS, (3, 1)))
        window, _ = attempt(path, log_format)
        lines = (LINES - 1) / window.steps if "elapsed_s" in timed else 1
        assert window.duration_s == pytest.approx(2 * lines)
