"""The table of formats in docs/logs.md: what each program prints of one and the same training, and the speed read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from parse.logs.engine.reader import ANSI, find_step
from parse.logs.formats import FORMATS, format_named
from parse.logs.path_facts import place_of
from parse.logs.window import Protocol, read_log
from parse.runs.log_attempt import attempt_of
from tests.cases import GOLDEN
from tests.fuzz.samples import SAMPLES_OF_ALL, Sample

DOCUMENT = GOLDEN.parents[1] / "docs" / "logs.md"
ROW = re.compile(r"^(\| (`[a-z0-9-]+`(?:, `[a-z0-9-]+`)*) \|.*\|) ([^|]*) \|$", re.MULTILINE)
SPEEDS = ("rate", "mean_rate"), ("duration_s", "duration_ms", "elapsed_s", "mean_s", "mean_ms")
TIMES = ("runtime", "since_s", "consumed_billions", "time")
STEPS = 141


def printed(sample: Sample) -> str:
    """The number of its last step that a speed is made of, as it is written; of a log without steps that of its end."""
    log_format = format_named(sample.log_format)
    text = ANSI.sub(b"", log_format.joined(sample.text(STEPS))).replace(b"\r", b"\n")
    names = *SPEEDS[log_format.printed == "durations"], *TIMES
    for line in reversed(text.split(b"\n")):
        if step := find_step(line, log_format.steps):
            field = next(step.fields[name] for name in names if name in step.fields)
            return line[field.first : field.stop].decode()
    rates = (form.pattern.search(text) for form in log_format.patterns if form.kind == "summary")
    return next((match["rate"].decode() for match in rates if match), "")


def example(name: str, path: Path) -> str:
    """What the first sample of the format prints, and the speed that is read."""
    sample = next(sample for sample in SAMPLES_OF_ALL if sample.log_format == name)
    path.write_bytes(sample.text(STEPS))
    readings = (
        (read_log(path, format_named(name), protocol), protocol) for protocol in (Protocol(), Protocol(whole=True))
    )
    attempts = (attempt_of(path, reading, place_of(path), protocol) for reading, protocol in readings)
    measured = next((attempt.measured for attempt in attempts if attempt.measured), None)
    return f"{printed(sample) or 'marks'}→{measured.throughput:.2f}" if measured else "none"


def rows() -> Iterator[tuple[tuple[str, ...], str]]:
    """The names of each row and its last cell."""
    for _, names, cell in ROW.findall(DOCUMENT.read_text()):
        if (of_row := tuple(re.findall(r"[a-z0-9-]+", names)))[0] in FORMATS:
            yield of_row, cell


def test_every_format_has_a_row_in_the_document():
    assert sorted(name for names, _ in rows() for name in names) == sorted(FORMATS)


def test_the_document_shows_what_is_read_of_each_program(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = tmp_path / "1n8g" / "r50_b128_fp32_1.log"
    path.parent.mkdir()
    cells = {names: ", ".join(example(name, path) for name in names) for names, _ in rows()}
    if request.config.getoption("--rewrite-golden"):
        of_row = {", ".join(f"`{name}`" for name in names): cell for names, cell in cells.items()}
        text = DOCUMENT.read_text()
        DOCUMENT.write_text(ROW.sub(lambda row: f"{row[1]} {of_row.get(row[2], row[3])} |", text))
    assert dict(rows()) == cells, f"{DOCUMENT} differs; if that is right: make golden, and review the diff"
