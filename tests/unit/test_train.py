"""The measured loop, with a backend that only writes down what it is asked."""

from __future__ import annotations

import gc
from array import array
from typing import Any, cast

import pytest

from hpc.backends import Backend
from hpc.spec import RunSpec
from hpc.stamps import ABSENT
from hpc.timer import HostMarks
from hpc.train import train


class Witness:
    """A backend that keeps the order of all calls, and whether the collector was on."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.calls: list[Any] = []
        self.collecting: dict[int, bool] = {}
        self.fails_at = fails_at

    def step(self, index: int, marks: HostMarks) -> int:
        if index == self.fails_at:
            raise RuntimeError("the step failed")
        self.calls.append(index)
        self.collecting[index] = gc.isenabled()
        marks.end()
        return 10 + index

    def settle(self) -> None:
        self.calls.append("settle")

    def synchronise(self) -> None:
        self.calls.append("synchronise")


def run(warmup_steps: int) -> RunSpec:
    return RunSpec(
        nodes=1, ranks_per_node=1, gpus_per_node=0, cpus_per_rank=1, backend="mpi", workload="delay", batch_size=1,
        precision="fp32", scaling="weak", warmup_steps=warmup_steps, measured_steps=3, repeat=1, seed=0, site="here",
    )  # fmt: skip


def trained(witness: Witness, warmup_steps: int) -> tuple[list[list[int]], list[int]]:
    asked = run(warmup_steps)
    samples = memoryview(array("q", [ABSENT]) * asked.steps)
    backend = cast(Backend, witness)
    blocks = train(backend, asked, HostMarks(asked.steps), samples, witness.synchronise)
    return blocks, samples.tolist()


@pytest.fixture(autouse=True)
def collector() -> Any:
    yield
    gc.unfreeze()
    gc.enable()


def test_from_five_steps_before_the_window_on_nothing_but_steps_happens() -> None:
    witness = Witness()
    blocks, samples = trained(witness, warmup_steps=7)
    assert witness.calls == ["synchronise", 0, 1, "settle", "synchronise", *range(2, 10), "synchronise"]
    assert witness.collecting == {step: step < 2 for step in range(10)}
    assert blocks == [[7, 10]]
    assert samples == list(range(10, 20))


def test_the_shortest_warm_up_is_all_quiet() -> None:
    witness = Witness()
    trained(witness, warmup_steps=5)
    assert witness.calls == ["synchronise", "settle", "synchronise", *range(8), "synchronise"]


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("fails_at", [None, 8])
def test_the_collector_is_afterwards_as_it_was(enabled: bool, fails_at: int | None) -> None:
    (gc.enable if enabled else gc.disable)()
    frozen = gc.get_freeze_count()
    witness = Witness(fails_at)
    if fails_at is None:
        trained(witness, warmup_steps=7)
    else:
        with pytest.raises(RuntimeError, match="the step failed"):
            trained(witness, warmup_steps=7)
    assert gc.isenabled() == enabled
    assert gc.get_freeze_count() == frozen == 0
    assert witness.collecting[7] is False
