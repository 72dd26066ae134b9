"""What backends say of where their ranks meet before t3 and of what they reduce; which models have no twin."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpc.backends import missing_modules
from tests.mpi.attempts import HERE, Ranks

NORM = ["synchronised batch norm"]
BROADCAST = ["DDP broadcasts buffers before each forward"]


def facts(ranks: Ranks, backend: str, size: int = 2, **asked: Any) -> dict[str, Any]:
    if missing := missing_modules(backend):
        pytest.skip("; ".join(missing))
    done = ranks(size, HERE / "meetings.py", json.dumps({"backend": backend, **asked}))
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def met(found: dict[str, Any]) -> list[list[str]]:
    kinds = ("plain", "norm", "synchronised", "twin")
    return [found[kind]["meets_before_gradients"] for kind in kinds if kind in found]


def counts_what_is_reduced(found: dict[str, Any], compressed: int = 1) -> bool:
    norm, twin = found["norm"], found["twin"]
    assert norm["gradient_bytes"] * compressed == norm["parameter_bytes"] > 0
    assert (twin["gradient_bytes"], twin["parameter_bytes"]) == (0, norm["parameter_bytes"])
    return (norm["reduces"], twin["reduces"]) == (True, False)


def has_no_twin(found: dict[str, Any]) -> bool:
    return str(found["refused"]).endswith("): this workload has no no-sync run")


@pytest.mark.parametrize(
    ("backend", "options", "compressed"),
    [("torch-horovod", {"compression": "fp16"}, 2), ("paddle-fleet", {}, 1)],
)
def test_ranks_meet_in_synchronised_batch_norm(
    ranks: Ranks, backend: str, options: dict[str, str], compressed: int
) -> None:
    found = facts(ranks, backend, options=options)
    assert met(found) == [[], [], NORM, []]
    assert has_no_twin(found)
    assert counts_what_is_reduced(found, compressed)


def test_ranks_meet_where_buffers_are_broadcast_and_not_in_a_twin(ranks: Ranks) -> None:
    found = facts(ranks, "torch-ddp", options={"broadcast_buffers": "on"})
    assert met(found) == [[], BROADCAST, []]
    assert has_no_twin(found)
    assert counts_what_is_reduced(found)


def test_one_rank_meets_nobody(ranks: Ranks) -> None:
    found = facts(ranks, "torch-horovod", size=1)
    assert met(found) == [[], [], [], []]
    assert not found["refused"]


def test_tensorflow_finds_meetings_in_what_it_traced(ranks: Ranks) -> None:
    found = facts(ranks, "tensorflow-multiworker")
    (said,) = found["synchronised"]["meets_before_gradients"]
    assert said.startswith("CollectiveReduceV2 (")
    assert said.endswith(" in the function of the gradients")
    assert met(found) == [[], [], [said], []]
    assert has_no_twin(found)
    assert counts_what_is_reduced(found)


def test_tensorflows_compressed_gradients_are_counted_as_they_are_reduced(ranks: Ranks) -> None:
    assert counts_what_is_reduced(facts(ranks, "tensorflow-horovod", options={"compression": "fp16"}), compressed=2)
