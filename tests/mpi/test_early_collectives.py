"""Early collectives and reduced bytes in the facts of backends; models that have no no-sync run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpc.backends import missing_modules
from tests.mpi.attempts import HERE, Ranks

NORM = ["synchronised batch norm"]
BROADCAST = ["DDP broadcasts buffers before each forward"]


def facts(ranks: Ranks, backend: str, **fields: Any) -> dict[str, Any]:
    if missing := missing_modules(backend):
        pytest.skip("; ".join(missing))
    done = ranks(2, HERE / "early_collectives.py", json.dumps({"backend": backend, **fields}))
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def early_collectives(result: dict[str, Any]) -> list[list[str]]:
    kinds = ("plain", "norm", "synchronised", "no_sync")
    return [result[kind]["meets_before_gradients"] for kind in kinds if kind in result]


def counts_what_is_reduced(result: dict[str, Any], compressed: int = 1) -> bool:
    norm, no_sync = result["norm"], result["no_sync"]
    assert norm["gradient_bytes"] * compressed == norm["parameter_bytes"] > 0
    assert (no_sync["gradient_bytes"], no_sync["parameter_bytes"]) == (0, norm["parameter_bytes"])
    return (norm["reduces"], no_sync["reduces"]) == (True, False)


def has_no_no_sync_run(result: dict[str, Any]) -> bool:
    return str(result["refused"]).endswith("): this workload has no no-sync run")


@pytest.mark.all
@pytest.mark.parametrize(
    ("backend", "options", "compressed"),
    [("torch-horovod", {"compression": "fp16"}, 2), ("paddle-fleet", {}, 1)],
)
def test_synchronised_batch_norm_is_an_early_collective(
    ranks: Ranks, backend: str, options: dict[str, str], compressed: int
) -> None:
    result = facts(ranks, backend, options=options)
    assert early_collectives(result) == [[], [], NORM, []]
    assert has_no_no_sync_run(result)
    assert counts_what_is_reduced(result, compressed)


def test_broadcast_buffers_are_early_collectives_but_not_in_a_no_sync_run(ranks: Ranks) -> None:
    result = facts(ranks, "torch-ddp", options={"broadcast_buffers": "on"})
    assert early_collectives(result) == [[], BROADCAST, []]
    assert has_no_no_sync_run(result)
    assert counts_what_is_reduced(result)


@pytest.mark.all
def test_tensorflow_finds_early_collectives_in_the_traced_graph(ranks: Ranks) -> None:
    result = facts(ranks, "tensorflow-multiworker")
    (reason,) = result["synchronised"]["meets_before_gradients"]
    assert reason.startswith("CollectiveReduceV2 (")
    assert reason.endswith(" in the function of the gradients")
    assert early_collectives(result) == [[], [], [reason], []]
    assert has_no_no_sync_run(result)
    assert counts_what_is_reduced(result)


@pytest.mark.all
def test_compressed_gradients_of_tensorflow_count_compressed(ranks: Ranks) -> None:
    assert counts_what_is_reduced(facts(ranks, "tensorflow-horovod", options={"compression": "fp16"}), compressed=2)
