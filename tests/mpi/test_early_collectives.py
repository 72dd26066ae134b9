"""Early collectives and reduced bytes in the facts of backends; models that have no no-sync run."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from hpc.backends import missing_modules
from tests.mpi.attempts import HERE, Ranks

NORM = ["synchronised batch norm"]
TRACED = ["CollectiveReduceV2 (…) in the function of the gradients"]
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


@pytest.mark.parametrize(
    ("backend", "options", "compressed", "expected"),
    [
        # Not in a no-sync run.
        ("torch-ddp", {"broadcast_buffers": "on"}, 1, [[], BROADCAST, []]),
        pytest.param("torch-horovod", {"compression": "fp16"}, 2, [[], [], NORM, []], marks=pytest.mark.all),
        pytest.param("paddle-fleet", {}, 1, [[], [], NORM, []], marks=pytest.mark.all),
        pytest.param("tensorflow-multiworker", {}, 1, [[], [], TRACED, []], marks=pytest.mark.all),
        pytest.param("tensorflow-horovod", {"compression": "fp16"}, 2, None, marks=pytest.mark.all),
    ],
)
def test_early_collectives_and_what_is_reduced(
    ranks: Ranks, backend: str, options: dict[str, str], compressed: int, expected: list[list[str]] | None
) -> None:
    result = facts(ranks, backend, options=options)
    if expected is not None:
        assert [[re.sub(r"\(.*\)", "(…)", text) for text in texts] for texts in early_collectives(result)] == expected
        assert str(result["refused"]).endswith("): this workload has no no-sync run")
    norm, no_sync = result["norm"], result["no_sync"]
    assert norm["gradient_bytes"] * compressed == norm["parameter_bytes"] > 0
    assert (no_sync["gradient_bytes"], no_sync["parameter_bytes"]) == (0, norm["parameter_bytes"])
    assert (norm["reduces"], no_sync["reduces"]) == (True, False)
