"""Checks of a rank's device that are the same in every framework."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import pytest

from hpc.backends import InvalidRun
from hpc.backends import device as checks
from hpc.measure.world import World
from tests.unit.traces import make_run

RUN = make_run(backend="torch-ddp", workload="resnet50", ranks_per_node=2, gpus_per_node=2)
SECOND = World(
    rank=5, size=8, node_rank=1, nodes=2, local_rank=1, local_size=4, hostname="node2", nodes_simulated=False
)
SIMULATED = replace(SECOND, nodes_simulated=True)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (
            partial(checks.check_sees_gpus, 0, RUN, SECOND, "torch 2.9", "CUDA", "a CUDA build"),
            r"2 GPUs per node were requested; torch 2.9 finds none on node2 \(this torch was built without CUDA\)",
        ),
        (
            partial(checks.check_sees_gpus, 0, RUN, SECOND, "torch 2.9", "", "a CUDA build"),
            r"\(no driver or no visible GPU\). Install a CUDA build, or state gpus_per_node = 0 in the site",
        ),
        (partial(checks.index_of_rank, replace(SECOND, local_rank=2), 2), "4 ranks of node2 need a GPU each; rank 5"),
        (partial(checks.index_of_rank, SIMULATED, 4), "8 ranks of node2 need a GPU each; rank 5 sees 4"),
        (
            partial(checks.check_not_shared, SECOND, Mock(allgather=lambda mine: [("node1", "a"), mine, mine]), "a"),
            "ranks 1, 2 share one GPU of node2: bind one to each",
        ),
        (partial(checks.check_gpu_precision, "bf16", "Tesla V100", (7, 0)), "bf16 was requested; Tesla V100 is before"),
        (partial(checks.check_gpu_precision, "tf32", "Tesla V100", (7, 0)), "tf32 was requested; Tesla V100 is before"),
    ],
)
def test_what_a_device_cannot_do_is_refused_with_the_reason(check: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidRun, match=message):
        check()


def test_what_a_device_can_do_is_not_refused() -> None:
    checks.check_sees_gpus(1, RUN, SECOND, "torch 2.9", "", "a CUDA build")
    checks.check_not_shared(SECOND, Mock(allgather=lambda mine: [("node2", "b"), mine]), "a")
    for precision, capability in (("tf32", (8, 0)), ("bf16", (9, 0)), ("amp-fp16", (7, 0)), ("fp32", (6, 0))):
        checks.check_gpu_precision(precision, "GPU", capability)
    # One visible GPU is the one that the launcher has bound to the rank.
    assert [checks.index_of_rank(each, visible) for each, visible in ((SECOND, 4), (SECOND, 1), (SIMULATED, 8))] == [
        1, 0, 5,
    ]  # fmt: skip
