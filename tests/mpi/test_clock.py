"""The global clock on real ranks with synthetic clocks whose true offset is known to the nanosecond."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parent / "ranks" / "clock_ranks.py"
SYNCHRONISATIONS, READINGS_WITHOUT_EXCHANGE = 3, 3


IMPOSSIBLE = ("step", "suspend", "fast", "slewed", "slept", "impostor")
SCENES = {2: ("own",), 3: (*IMPOSSIBLE, "just not too fast"), 4: ("own", "pairs", "real"), 6: ("parent",), 8: ("tree",)}
"""By the number of ranks. One start makes all."""
_scenes = {}


@pytest.fixture
def scene(ranks):
    def played(size, name):
        if (size, name) not in _scenes:
            lines = ranks(size, SCRIPT, *SCENES[size]).stdout.splitlines()
            _scenes.update({(size, each): json.loads(line) for each, line in zip(SCENES[size], lines, strict=True)})
        return _scenes[size, name]

    return played


@pytest.mark.parametrize("size", [2, 4])
def test_clock_error_of_every_rank_is_within_its_bound(scene, size):
    for rank, report in enumerate(scene(size, "own")):
        error_ns, bound_ns = np.abs(report["error_ns"]), np.array(report["bound_ns"])
        assert (error_ns <= bound_ns).all()
        assert (bound_ns > 0).all() == (rank > 0)
        assert len(report["points"]) == SYNCHRONISATIONS
        local_ns = [point[0] for point in report["points"]]
        exits_ns = np.reshape(report["barrier_exits_ns"], (SYNCHRONISATIONS, 2))
        assert (exits_ns[:, 0] <= local_ns).all()
        assert (local_ns <= exits_ns[:, 1]).all()


def test_clock_error_in_a_tree_is_within_the_sum_of_hop_bounds(scene):
    served = [3, 0, 1, 0, 2, 0, 1, 0]  # in stars of two
    for rank, report in enumerate(scene(8, "tree")):
        assert (np.abs(report["error_ns"]) <= report["bound_ns"]).all()
        assert len(report["points"]) == SYNCHRONISATIONS
        exchanges = served[rank] + (rank > 0)
        assert report["readings"] == SYNCHRONISATIONS * (exchanges * 2 * 51 + READINGS_WITHOUT_EXCHANGE + (rank == 0))


def test_ranks_that_share_a_clock_share_points_without_exchange(scene):
    rank0, rank1, rank2, rank3 = scene(4, "pairs")
    assert rank1["points"] == rank0["points"]
    assert rank3["points"] == rank2["points"]
    assert {(offset, bound) for _, offset, bound in rank1["points"]} == {(0.0, 0.0)}
    assert all(bound > 0 for _, _, bound in rank3["points"])
    for member in (rank1, rank3):
        assert (np.abs(member["error_ns"]) <= member["bound_ns"]).all()
        assert member["readings"] == SYNCHRONISATIONS * READINGS_WITHOUT_EXCHANGE
    assert rank2["readings"] > SYNCHRONISATIONS * 50 * 2


def test_ranks_on_the_same_machine_need_no_exchange(scene):
    reports = scene(4, "real")
    assert len({report["domain"] for report in reports}) == 1
    if Path("/proc/self/ns/time").is_symlink():
        assert str(Path("/proc/self/ns/time").readlink()) in reports[0]["domain"]
    for rank, report in enumerate(reports):
        assert [(offset, bound) for _, offset, bound in report["points"]] == [(0.0, 0.0)] * 2
        assert report["readings"] == 2 * (READINGS_WITHOUT_EXCHANGE + (rank == 0))


@pytest.mark.parametrize(
    ("name", "points_before", "parts"),
    [
        ("step", 0, ["the clock of rank 2 on ", "against that of rank 0 on ", "contradict", "suspended"]),
        (
            "suspend",
            1,
            [
                "the clock of rank 2 on ",
                "against that of rank 0 on ",
                r": stepped or suspended: it fell back by (35999|36000)\d\d\.",  # the error of a measurement is of ms
            ],
        ),
        (
            "fast",
            1,
            [
                "the clock of rank 2 on ",
                "against that of rank 0 on ",
                r": stepped or suspended, or slewed for a part of that time: it went ahead by (29|30)\d\d\.",
                "200 ppm",
            ],
        ),
        (
            "slewed",
            1,
            ["the clock of rank 2 on ", "against that of rank 0 on ", r": slewed: it gains (49|50)\d ppm, ", "200 ppm"],
        ),
        ("slept", 1, ["the system of rank 2 on ", "was suspended for 90.000 s", "since the synchronisation before"]),
        ("impostor", 0, ["rank 2 on ", "and rank ", "one for all", "reboot"]),
    ],
)
def test_an_impossible_clock_is_named_on_every_rank(scene, name, points_before, parts):
    reports = scene(3, name)
    errors = {report["error"] for report in reports}
    assert len(errors) == 1
    for part in parts:
        assert re.search(part, errors.copy().pop())
    for report in reports:
        assert len(report["points"]) == report["points_before"] == points_before
        assert len(report["barrier_exits_ns"]) == 2 * points_before
        assert report["collects"]


def test_a_clock_at_the_drift_limit_is_accepted(scene):
    for report in scene(3, "just not too fast"):
        assert report["error"] == ""
        assert len(report["points"]) == 2


def test_an_impossible_parent_clock_is_named_instead_of_its_children(scene):
    reports = scene(6, "parent")
    errors = {report["error"] for report in reports}
    assert len(errors) == 1
    error = errors.pop()
    assert error.startswith("the clock of rank 4 on ")
    assert "against that of rank 0 on " in error
    assert "rank 5" not in error
    assert [len(report["points"]) for report in reports] == [1] * 6
