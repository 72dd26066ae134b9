"""Lines of every format, mostly of public logs, and what is read from them: cases of tests/golden/logs/FORMAT.txt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from parse.logs.engine.log_format import NO_NUMBER, LogError, LogRecord, Steps
from parse.logs.formats import FORMATS, recognise
from tests.cases import GOLDEN, Outcomes
from tests.unit.logs.text_logs import read

NAMES = sorted(path.stem for path in (GOLDEN / "logs").iterdir())


def of_steps(steps: Steps) -> Iterator[str]:
    """A step's columns, less its offset."""
    for at in range(len(steps.step)):
        values = {name: column[at] for name, column in vars(steps).items() if name != "offset"}
        printed = {
            name: round(float(value), 6) if value.dtype.kind == "f" else int(value)
            for name, value in values.items() if value != NO_NUMBER and not np.isnan(value)
        }  # fmt: skip
        yield f"step {json.dumps(printed)}"


def of_records(records: tuple[LogRecord, ...]) -> Iterator[str]:
    """Records, those of facts that follow each other as one."""
    merged: list[tuple[str, dict[str, str]]] = []
    for record in records:
        place = "" if record.rank is None else f" of rank {record.rank}"
        kind = f"{record.kind}{place}" + ("" if record.time_s is None else f" at {round(record.time_s, 6)}")
        if record.kind == "facts" and merged and merged[-1][0] == kind and not {*merged[-1][1]} & {*record.values}:
            merged[-1][1].update(record.values)
        else:
            merged.append((kind, dict(record.values)))
    yield from (f"{kind} {json.dumps(values, ensure_ascii=False)}" for kind, values in merged)


def recognised(path: Path) -> str:
    try:
        return recognise(path).name
    except LogError:
        return "no log"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_read(name: str, tmp_path: Path, cases: Callable[[str, Outcomes], None]) -> None:
    def outcomes(lines: list[str]) -> Iterator[str]:
        steps, records = read(name, tmp_path, *lines)
        yield from (*of_steps(steps), *of_records(records))
        if len(steps.step) and (other := recognised(tmp_path / "x.log")) != name:
            yield f"recognised as {other}"

    cases(f"logs/{name}.txt", outcomes)


def test_every_format_has_lines() -> None:
    assert {*NAMES} == {*FORMATS}
