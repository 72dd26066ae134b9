"""Public logs beside an independent recomputation: 204 training logs of 24 repositories, read by `parse.summarize` and
by a script of plain Python that knows nothing of this project. The logs are not part of it; their figures are."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from parse.logs.formats import format_named

with (Path(__file__).parent / "public_logs.csv").open() as file:
    ROWS = list(csv.DictReader(file))
SEVERAL_RUNS = "Seqaeon/nanochat/mst_sweep.log"
"""Several runs one into the other, whose beginning the two sides see at different places."""


def test_there_are_logs_of_many_formats_and_repositories() -> None:
    assert len({row["log"] for row in ROWS}) == len(ROWS) == 204
    assert len({row["format"] for row in ROWS}) == 18
    assert len({"/".join(row["log"].split("/")[:2]) for row in ROWS}) == 24


@pytest.mark.parametrize("row", [row for row in ROWS if row["log"] != SEVERAL_RUNS], ids=lambda row: row["log"][-60:])
def test_both_agree_and_the_unit_is_that_of_the_format(row: dict[str, str]) -> None:
    assert float(row["read"]) == pytest.approx(float(row["recomputed"]), rel=1e-3)
    assert row["what"] in ("s per step", "steps/s") or row["what"].startswith(f"{format_named(row['format']).unit}/s")
