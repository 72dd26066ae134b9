"""The global clock among real ranks, whose synthetic clocks' truth is known to the nanosecond."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parent / "ranks" / "clock_ranks.py"
SYNCHRONISATIONS, READINGS_WITHOUT_EXCHANGE = 3, 3


@pytest.fixture
def scene(ranks):
    return lambda size, name: json.loads(ranks(size, SCRIPT, name).stdout)


@pytest.mark.parametrize("size", [2, 4])
def test_every_rank_is_inside_its_bound(scene, size):
    for rank, found in enumerate(scene(size, "own")):
        error_ns, bound_ns = np.abs(found["error_ns"]), np.array(found["bound_ns"])
        assert (error_ns <= bound_ns).all()
        assert (bound_ns > 0).all() == (rank > 0)
        assert len(found["points"]) == SYNCHRONISATIONS
        local_ns = [point[0] for point in found["points"]]
        exits_ns = np.reshape(found["barrier_exits_ns"], (SYNCHRONISATIONS, 2))
        assert (exits_ns[:, 0] <= local_ns).all()
        assert (local_ns <= exits_ns[:, 1]).all()


def test_in_a_tree_every_rank_is_inside_the_bounds_of_its_hops(scene):
    served = [3, 0, 1, 0, 2, 0, 1, 0]  # in stars of two
    for rank, found in enumerate(scene(8, "tree")):
        assert (np.abs(found["error_ns"]) <= found["bound_ns"]).all()
        assert len(found["points"]) == SYNCHRONISATIONS
        exchanges = served[rank] + (rank > 0)
        assert found["readings"] == SYNCHRONISATIONS * (exchanges * 2 * 51 + READINGS_WITHOUT_EXCHANGE + (rank == 0))


def test_ranks_of_one_clock_share_its_points_and_exchange_nothing(scene):
    zero, one, two, three = scene(4, "pairs")
    assert one["points"] == zero["points"]
    assert three["points"] == two["points"]
    assert {(offset, bound) for _, offset, bound in one["points"]} == {(0.0, 0.0)}
    assert all(bound > 0 for _, _, bound in three["points"])
    for member in (one, three):
        assert (np.abs(member["error_ns"]) <= member["bound_ns"]).all()
        assert member["readings"] == SYNCHRONISATIONS * READINGS_WITHOUT_EXCHANGE
    assert two["readings"] > SYNCHRONISATIONS * 50 * 2


def test_ranks_of_one_machine_need_no_exchange(scene):
    everybody = scene(4, "real")
    assert len({found["domain"] for found in everybody}) == 1
    if Path("/proc/self/ns/time").is_symlink():
        assert str(Path("/proc/self/ns/time").readlink()) in everybody[0]["domain"]
    for rank, found in enumerate(everybody):
        assert [(offset, bound) for _, offset, bound in found["points"]] == [(0.0, 0.0)] * 2
        assert found["readings"] == 2 * (READINGS_WITHOUT_EXCHANGE + (rank == 0))


@pytest.mark.parametrize(
    ("name", "points_before", "words"),
    [
        ("step", 0, ["the clock of rank 2 on ", "against that of rank 0 on ", "contradict", "suspended"]),
        ("suspend", 1, ["the clock of rank 2 on ", "against that of rank 0 on ", "jumped by 3599", "suspended"]),
        ("fast", 1, ["the clock of rank 2 on ", "against that of rank 0 on ", "jumped by 9", " ms more", "200 ppm"]),
        ("slept", 1, ["the system of rank 2 on ", "was suspended for 90.000 s", "since the synchronisation before"]),
        ("impostor", 0, ["rank 2 on ", "and rank ", "one for all", "reboot"]),
    ],
)
def test_a_clock_that_cannot_be_is_named_on_every_rank(scene, name, points_before, words):
    everybody = scene(3, name)
    errors = {found["error"] for found in everybody}
    assert len(errors) == 1
    for word in words:
        assert word in errors.copy().pop()
    for found in everybody:
        assert len(found["points"]) == found["points_before"] == points_before
        assert len(found["barrier_exits_ns"]) == 2 * points_before
        assert found["collects"]


def test_a_clock_that_drifts_by_all_that_is_allowed_is_taken(scene):
    for found in scene(3, "just not too fast"):
        assert found["error"] == ""
        assert len(found["points"]) == 2


def test_a_parent_whose_clock_cannot_be_is_named_and_not_the_ranks_that_it_serves(scene):
    everybody = scene(6, "parent")
    errors = {found["error"] for found in everybody}
    assert len(errors) == 1
    error = errors.pop()
    assert error.startswith("the clock of rank 4 on ")
    assert "against that of rank 0 on " in error
    assert "rank 5" not in error
    assert [len(found["points"]) for found in everybody] == [1] * 6
