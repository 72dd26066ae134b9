"""Precision, torch.compile and the optimizer in both torch backends, on real ranks."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from hpc.backends import missing_modules
from tests.mpi.attempts import Ranks
from tests.mpi.conftest import further
from tests.mpi.facts import facts


@pytest.fixture(params=["torch-ddp", *further("torch-horovod")])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if missing := missing_modules(name):
        pytest.skip("; ".join(missing))
    return name


def together(backend: str, *changes: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs that one start of the ranks makes."""
    return [{"backend": backend, **fields} for fields in changes]


def facts_on_two_ranks(ranks: Ranks, backend: str, **fields: Any) -> dict[str, Any]:
    """The facts of a run on two ranks. One start makes all of a backend."""
    compiled: dict[str, Any] = {"options": {"compile": "on"}}
    runs = together(backend, {}, {"precision": "bf16"}, *([compiled] if shutil.which("g++") else []))
    return facts(ranks, together=runs, backend=backend, **fields)


SGDS = ("foreach", "for-loop")


def test_bf16_trains_on_a_cpu_and_is_not_fp32(ranks: Ranks, backend: str) -> None:
    fp32, bf16 = (facts_on_two_ranks(ranks, backend, **fields) for fields in ({}, {"precision": "bf16"}))
    assert bf16["losses"] == pytest.approx(fp32["losses"], rel=0.05)
    assert bf16["losses"] != fp32["losses"]


@pytest.mark.all
@pytest.mark.parametrize("sgd", SGDS)
def test_the_requested_optimizer_is_used(ranks: Ranks, backend: str, sgd: str) -> None:
    runs = together(backend, *({"options": {"sgd": each}} for each in SGDS))
    assert facts(ranks, size=1, together=runs, backend=backend, options={"sgd": sgd})["options"]["sgd"] == sgd


def test_a_compiled_model_learns_the_same(ranks: Ranks, backend: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler on a CPU: apt-get install g++")
    plain, compiled = facts_on_two_ranks(ranks, backend), facts_on_two_ranks(ranks, backend, options={"compile": "on"})
    assert compiled["losses"] == pytest.approx(plain["losses"], rel=1e-4)
    assert compiled["ordered"]
