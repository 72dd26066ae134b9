"""Notes of scripts whose ranks meet in groups, in tests.truth.group_marks: what a sleep costs by replay, who is met."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.truth.group_marks import NotedRun

pytestmark = pytest.mark.all
MS = 1_000_000


def noted(folder: Path, *ranks: list[dict[str, Any]]) -> NotedRun:
    """From steps of each rank with times in ms, behind a step that is only there for its end."""
    for rank, steps in enumerate(ranks):
        in_ns = [
            {
                "slept": [[begin * MS, end * MS] for begin, end in step.get("slept", ())],
                "met": [[name, group, *(at * MS for at in times)] for name, group, *times in step["met"]],
                "end": step["end"] * MS,
            }
            for step in ({"met": [], "end": 0}, *steps)
        ]
        (folder / f"rank{rank}.json").write_text(json.dumps(in_ns))
    return NotedRun.of(folder, len(ranks)).window(1, len(ranks[0]))


def test_a_sleep_costs_what_the_others_wait_for_it(tmp_path: Path) -> None:
    met = "all-reduce", [0, 1]
    run = noted(
        tmp_path, [{"met": [(*met, 10, 10, 31)], "end": 40}],
        [{"slept": [(5, 25)], "met": [(*met, 30, 30, 31)], "end": 40}],
    )  # fmt: skip
    assert run.replays_exactly()
    assert run.costs(1) == pytest.approx(20)  # 10 of own work on both without the sleep
    assert run.costs(0) == 0
    assert run.meets_next(1) == {(0, 1): 1}


def test_a_delay_travels_along_a_chain_of_messages(tmp_path: Path) -> None:
    sent, passed = ("message", [0, 1, 0]), ("message", [1, 2, 0])
    run = noted(
        tmp_path,
        [{"slept": [(0, 8)], "met": [(*sent, 10, 10, 11)], "end": 12}],
        [{"met": [(*sent, 1, 1, 11), (*passed, 14, 14, 15)], "end": 15}],
        [{"met": [(*passed, 0, 0, 15)], "end": 20}],
    )
    assert run.replays_exactly()
    assert run.costs(0) == pytest.approx(8)
    assert run.ranks[2].own_ms() == pytest.approx(5)
