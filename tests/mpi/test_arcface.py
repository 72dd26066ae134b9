"""The head of `arcface`: sharded over real ranks it computes what one process computes on the joined batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpc.backends import missing_modules
from tests.mpi.conftest import Ranks
from tests.mpi.facts import facts

SCRIPT = Path(__file__).parent / "ranks" / "margin_head.py"
TOLERANCE = {"torch.float32": 1e-5, "torch.float64": 1e-10}
SMALL = {"classes": "101", "image_size": "16"}


@pytest.mark.parametrize(
    ("backend", "size"),
    [
        pytest.param(backend, size, marks=() if (backend, size) == ("torch-ddp", 2) else pytest.mark.all)
        for backend in ("torch-ddp", "torch-horovod", "paddle-fleet")
        for size in (1, 2, 4)
    ],
)
def test_the_sharded_head_computes_what_one_process_computes(ranks: Ranks, backend: str, size: int) -> None:
    if missing := missing_modules(backend):
        pytest.skip("; ".join(missing))
    by_rank = json.loads(ranks(size, SCRIPT, backend).stdout.splitlines()[-1])
    assert len(by_rank) == size
    for results in by_rank:
        assert len(results["exact"]) == 30
        for case in results["exact"]:
            assert max(case["loss"], case["features"], case["weight"]) < TOLERANCE[case["dtype"]], case
    assert sum(results["partial"]["here"] for results in by_rank) == 400
    for results in by_rank:
        assert_partial(results["partial"])


def assert_partial(drawn: dict[str, Any]) -> None:
    """Two steps of two heads of one seed: each trains a tenth of the classes here, among them all that occur."""
    first, second, *later = drawn["trained"]
    assert [first, second] == later and first != second
    for trained in (first, second):
        assert {*drawn["occurring"]} <= {*trained} and len(trained) == round(0.1 * drawn["here"])
    assert len(drawn["occurring"]) < round(0.1 * drawn["here"])


TOGETHER: tuple[dict[str, Any], ...] = tuple(
    {"workload": "arcface", "options": {**SMALL, **options}}
    for options in ({"head": "sharded"}, {"head": "replicated"}, {"sample_ratio": "0.5"}, {"margin": "cosface"})
)


@pytest.mark.all
def test_both_frameworks_compute_one_backbone(ranks: Ranks) -> None:
    if missing := missing_modules("paddle-fleet"):
        pytest.skip("; ".join(missing))
    result = json.loads(ranks(1, SCRIPT.with_name("face_backbones.py")).stdout.splitlines()[-1])
    assert max(result["embeddings"], result["gradients"]) < 1e-8
    assert result["parameters"] == 43_584_985 - 512 * 512 * (7**2 - 2**2)  # images of 32 pixels end as 2 × 2


@pytest.mark.all
def test_under_horovod_only_the_backbone_is_averaged(ranks: Ranks) -> None:
    if missing := missing_modules("torch-horovod"):
        pytest.skip("; ".join(missing))
    fields: dict[str, Any] = {"workload": "arcface", "options": {**SMALL, "dropout": "0"}}
    runs = [{"backend": backend, **fields} for backend in ("torch-ddp", "torch-horovod")]
    ddp, horovod = (facts(ranks, together=runs, **run) for run in runs)
    assert horovod["losses"] == pytest.approx(ddp["losses"], rel=1e-4)
    assert horovod["gradient_bytes"] == ddp["gradient_bytes"]


# That a training meets in the head, test_rank.py shows.
@pytest.mark.all
def test_training_says_that_the_ranks_meet_in_the_head(ranks: Ranks) -> None:
    sharded, replicated, partial, cosface = (facts(ranks, **fields, together=TOGETHER) for fields in TOGETHER)
    assert sharded["meets_before_gradients"][-1] == "the sharded head gathers features"
    assert replicated["meets_before_gradients"] == sharded["meets_before_gradients"][:-1]
    head_bytes = 4 * 512 * int(SMALL["classes"])
    assert replicated["gradient_bytes"] - sharded["gradient_bytes"] == head_bytes
    assert all(loss > 0 for each in (sharded, replicated, partial, cosface) for loss in each["losses"])
    assert [each["synchronises_every_step"] for each in (sharded, replicated, partial)] == [False, False, True]
    assert len({tuple(each["losses"]) for each in (sharded, replicated, partial, cosface)}) == 4
