"""Notes of scripts whose ranks meet in groups, in tests.truth.group_marks: what a sleep costs by replay, who is met."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.truth.group_cases import TRAININGS
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


def test_a_sleep_that_others_outlast_costs_what_it_is_more(tmp_path: Path) -> None:
    met = "all-reduce", [0, 1]
    run = noted(
        tmp_path, [{"met": [(*met, 28, 28, 31)], "end": 40}],
        [{"slept": [(5, 25)], "met": [(*met, 30, 30, 31)], "end": 40}],
    )  # fmt: skip
    assert run.costs(1) == pytest.approx(2)


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


def test_a_sender_does_not_wait_for_a_receiver_that_comes_after_its_send_has_ended(tmp_path: Path) -> None:
    sent = "message", [0, 1, 0]
    run = noted(
        tmp_path, [{"met": [(*sent, 1, 1, 2)], "end": 3}], [{"slept": [(0, 9)], "met": [(*sent, 9, 9, 10)], "end": 10}]
    )
    assert run.costs(1) == pytest.approx(7)  # then the message, which took one from its call, is waited for


def test_uneven_stages_cost_what_their_longest_has_beyond_the_mean(tmp_path: Path) -> None:
    met = "all-reduce", [0, 1]
    begins = 0, 40, 80  # the first step is the window's begin
    run = noted(
        tmp_path, [{"met": [(*met, at + 10, at + 10, at + 31)], "end": at + 31} for at in begins],
        [{"met": [(*met, at + 30, at + 30, at + 31)], "end": at + 31} for at in begins],
    )  # fmt: skip
    assert run.costs_of_imbalance() == pytest.approx(10)


def test_uneven_experts_cost_what_the_longest_work_between_exchanges_has_beyond_the_mean(tmp_path: Path) -> None:
    met = "all-to-all", [0, 1]

    def steps(gate: int, expert: int) -> list[dict[str, Any]]:
        begins = 0, 62, 124  # the first step is the window's begin
        calls = [[(gate, 21), (21 + expert, 62)] for _ in begins]
        return [
            {"met": [(*met, at + called, at + called, at + done) for called, done in its], "end": at + 62}
            for at, its in zip(begins, calls, strict=True)
        ]

    run = noted(tmp_path, steps(gate=10, expert=40), steps(gate=20, expert=10))
    assert run.replays_exactly()
    assert run.costs_of_experts() == pytest.approx(15)  # and rank 1 is as late as before at the first


@pytest.mark.parametrize(
    ("name", "ranks", "dimension"),
    [
        ("tp × DDP", (0, 1), "tp"), ("tp × DDP", (1, 3), "dp"), ("pairs and DDP", (0, 1, 2, 3), "dp"),
        ("ring", (3, 0, 0), "cp"), ("pp 2 × dp 2 × tp 2", (1, 5, 0), "pp"), ("pp 2 × dp 2 × tp 2", (5, 7), "dp"),
    ],
)  # fmt: skip
def test_the_dimension_of_a_group_is_where_its_ranks_differ(name: str, ranks: tuple[int, ...], dimension: str) -> None:
    (training,) = (each for each in TRAININGS if each.name == name)
    assert training.dimension_of(ranks) == dimension


def test_peers_are_ranks_of_the_same_stage() -> None:
    (training,) = (each for each in TRAININGS if each.name == "pp 2 × dp 2 × tp 2")
    assert training.peers_of(5) == [4, 5, 6, 7]
