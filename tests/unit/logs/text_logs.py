"""Logs of a few lines, read by one format."""

from __future__ import annotations

from pathlib import Path

from parse.logs.engine.log_format import LogFormat, LogRecord, Steps
from parse.logs.engine.reader import batches
from parse.logs.formats import format_named

LOGS = Path(__file__).parents[4] / "shared" / "logs"
"""Real logs, where they are at hand."""


def read(log_format: LogFormat | str, tmp_path: Path, *lines: str) -> tuple[Steps, tuple[LogRecord, ...]]:
    """Steps and other records of a log of these lines."""
    path = tmp_path / "x.log"
    path.write_bytes(("\n".join(lines) + "\n").encode())
    declared = format_named(log_format) if isinstance(log_format, str) else log_format
    (batch,) = batches(path, declared)
    return batch.steps, batch.records


def facts(records):
    """All facts, by name."""
    return {name: value for record in records if record.kind == "facts" for name, value in record.values.items()}
