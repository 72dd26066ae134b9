"""The measured loop, with a backend that only writes down its calls."""

from __future__ import annotations

import gc
from array import array
from typing import Any, cast

import pytest

from hpc.backends import Backend
from hpc.measure.timer import StepTimer
from hpc.model.spec import RunSpec
from hpc.model.timestamps import ABSENT, BEGIN, END
from hpc.run.train import train


class Cycle:
    """What only the collector frees."""

    def __init__(self) -> None:
        self.itself = self


class Witnessed(StepTimer):
    """The host's stamps, whose stretches the witness sees too."""

    def __init__(self, steps: int, calls: list[Any]) -> None:
        super().__init__(steps)
        self.calls = calls

    def begin(self, step: int) -> None:
        self.calls.append(f"begin {step}")
        super().begin(step)

    def resolve(self) -> None:
        self.calls.append("resolve")


class Witness:
    """A backend that keeps the order of all calls, and whether the collector was on. Its steps leave a cycle each."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.calls: list[Any] = []
        self.collecting: dict[int, bool] = {}
        self.garbage: list[int] = []
        self.fails_at = fails_at

    def step(self, index: int, timer: StepTimer) -> int:
        if index == self.fails_at:
            raise RuntimeError("the step failed")
        self.calls.append(index)
        self.collecting[index] = gc.isenabled()
        self.garbage.append(sum(isinstance(item, Cycle) for item in gc.get_objects()))
        Cycle()
        timer.end()
        return 10 + index

    def release(self) -> None:
        self.calls.append("settle")

    def synchronise(self) -> None:
        self.calls.append("synchronise")


def run(warmup_steps: int, measured_steps: int = 3, block_steps: int = 0) -> RunSpec:
    return RunSpec(
        nodes=1, ranks_per_node=1, gpus_per_node=0, cpus_per_rank=1, backend="mpi", workload="delay", batch_size=1,
        precision="fp32", scaling="weak", warmup_steps=warmup_steps, measured_steps=measured_steps, repeat=1, seed=0,
        site="here", block_steps=block_steps,
    )  # fmt: skip


def trained(witness: Witness, spec: RunSpec) -> tuple[list[list[int]], list[int], list[int]]:
    """Blocks, samples, and the stamps one after the other."""
    samples = memoryview(array("q", [ABSENT]) * spec.steps)
    timer = Witnessed(spec.steps, witness.calls)
    blocks = train(cast(Backend, witness), spec, timer, samples, witness.synchronise)
    return blocks, samples.tolist(), timer.stamps.tolist()


@pytest.fixture(autouse=True)
def collector() -> Any:
    yield
    gc.unfreeze()
    gc.enable()


def test_only_steps_run_from_five_steps_before_the_window() -> None:
    witness = Witness()
    blocks, samples, _ = trained(witness, run(warmup_steps=7))
    assert witness.calls == [
        "synchronise", "begin 0", 0, 1, "resolve", "settle",
        "synchronise", "begin 2", *range(2, 10), "resolve", "synchronise",
    ]  # fmt: skip
    assert witness.collecting == {step: step < 2 for step in range(10)}
    assert blocks == [[7, 10]]
    assert samples == list(range(10, 20))


def test_the_shortest_warm_up_is_all_quiet() -> None:
    witness = Witness()
    trained(witness, run(warmup_steps=5))
    assert witness.calls == [
        "synchronise", "begin 0", "resolve", "settle",
        "synchronise", "begin 0", *range(8), "resolve", "synchronise",
    ]  # fmt: skip


def test_each_block_is_entered_through_unmeasured_steps_after_the_clocks() -> None:
    witness = Witness()
    spec = run(warmup_steps=6, measured_steps=8, block_steps=3)
    blocks, samples, stamps = trained(witness, spec)
    assert blocks == spec.blocks == [[6, 9], [14, 17], [22, 24]]
    assert witness.calls == [
        "synchronise", "begin 0", 0, "resolve", "settle",
        "synchronise", "begin 1", *range(1, 9), "resolve", "settle",
        "synchronise", "begin 9", *range(9, 17), "resolve", "settle",
        "synchronise", "begin 17", *range(17, 24), "resolve", "synchronise",
    ]  # fmt: skip
    assert witness.collecting == {step: step < 1 for step in range(24)}
    assert samples == list(range(10, 34))
    begins, ends = stamps[BEGIN::6], stamps[END::6]
    tiled = [step for step in range(1, 24) if begins[step] == ends[step - 1]]
    assert tiled == [step for step in range(1, 24) if step not in (1, 9, 17)]


def test_garbage_is_collected_between_blocks() -> None:
    witness = Witness()
    trained(witness, run(warmup_steps=5, measured_steps=6, block_steps=3))
    assert witness.garbage == [*range(8), *range(8)]


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("fails_at", [pytest.param(None, marks=pytest.mark.all), 8])
def test_the_collector_is_restored_afterwards(enabled: bool, fails_at: int | None) -> None:
    (gc.enable if enabled else gc.disable)()
    frozen = gc.get_freeze_count()
    witness = Witness(fails_at)
    if fails_at is None:
        trained(witness, run(warmup_steps=7))
    else:
        with pytest.raises(RuntimeError, match="the step failed"):
            trained(witness, run(warmup_steps=7))
    assert gc.isenabled() == enabled
    assert gc.get_freeze_count() == frozen == 0
    assert witness.collecting[7] is False
