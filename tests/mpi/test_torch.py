"""Precision, torch.compile and the optimizer in both torch backends, on real ranks."""

from __future__ import annotations

import shutil

import pytest

from hpc.backends import missing_modules
from tests.mpi.attempts import Ranks
from tests.mpi.facts import facts


@pytest.fixture(params=["torch-ddp", "torch-horovod"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if missing := missing_modules(name):
        pytest.skip("; ".join(missing))
    return name


# One start of the ranks for both: torch-ddp makes several groups in the life of a process.
TOGETHER = ({"backend": "torch-ddp"}, {"backend": "torch-ddp", "precision": "bf16"})


def test_bf16_trains_on_a_cpu_and_is_not_fp32(ranks: Ranks, backend: str) -> None:
    fp32 = facts(ranks, backend=backend, together=TOGETHER)
    bf16 = facts(ranks, backend=backend, precision="bf16", together=TOGETHER)
    assert bf16["losses"] == pytest.approx(fp32["losses"], rel=0.05)
    assert bf16["losses"] != fp32["losses"]


@pytest.mark.parametrize("sgd", ["foreach", "for-loop"])
def test_the_requested_optimizer_is_used(ranks: Ranks, backend: str, sgd: str) -> None:
    assert facts(ranks, size=1, backend=backend, options={"sgd": sgd})["options"]["sgd"] == sgd


def test_a_compiled_model_learns_the_same(ranks: Ranks, backend: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler on a CPU: apt-get install g++")
    plain, compiled = facts(ranks, backend=backend), facts(ranks, backend=backend, options={"compile": "on"})
    assert compiled["losses"] == pytest.approx(plain["losses"], rel=1e-4)
    assert compiled["ordered"]
