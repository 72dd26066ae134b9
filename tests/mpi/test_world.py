"""Who is who among real ranks, on one machine and on simulated nodes."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "ranks" / "world_ranks.py"


@pytest.mark.parametrize(
    ("size", "group", "places"),
    [  # places: (node_rank, local_rank, local_size) of each rank
        (4, 2, [(0, 0, 2), (0, 1, 2), (1, 0, 2), (1, 1, 2)]),
        (3, 2, [(0, 0, 2), (0, 1, 2), (1, 0, 1)]),
    ],
)
def test_nodes_are_groups_of_ranks_where_that_is_requested(ranks, size, group, places):
    worlds = json.loads(ranks(size, SCRIPT, str(group)).stdout)
    assert [(w["node_rank"], w["local_rank"], w["local_size"]) for w in worlds] == places
    assert [w["rank"] for w in worlds] == list(range(size))
    assert {w["size"] for w in worlds} == {size}
    assert {w["nodes"] for w in worlds} == {places[-1][0] + 1}
    assert {w["nodes_simulated"] for w in worlds} == {True}


def test_ranks_that_share_memory_are_one_node(ranks):
    worlds = json.loads(ranks(3, SCRIPT).stdout)
    assert [(w["node_rank"], w["local_rank"], w["local_size"]) for w in worlds] == [(0, 0, 3), (0, 1, 3), (0, 2, 3)]
    assert {(w["nodes"], w["hostname"], w["nodes_simulated"]) for w in worlds} == {(1, socket.gethostname(), False)}
