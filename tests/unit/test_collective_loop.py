"""The step that is one call: when buffers are made, results are checked and stamps are taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpc.backends import InvalidRun
from hpc.backends.collective_loop import CollectiveLoop
from hpc.backends.training import CPU_DEVICE, BackendFacts
from hpc.model.collective_plan import Collective, collectives_run
from hpc.model.spec import RunSpec
from hpc.workloads.collectives import Collectives
from tests.unit.traces import make_run

RUN = collectives_run(
    make_run(), ["all-reduce", "broadcast"], {"min_bytes": "1K", "max_bytes": "1K", "iterations": "2"}
)
STEP = ["batch_ready", "grads_ready", "call", "reduced", "end"]


class OneRank:
    """As much of a communicator as one rank needs."""

    rank = 0

    def allgather(self, mine: Any) -> list[Any]:
        return [mine]


class Recording:
    """A group of one rank, and its timer: both note what happens."""

    in_place = ("all-reduce",)

    def __init__(self, off_by: float = 0.0) -> None:
        self.happened: list[str] = []
        self._off_by = off_by

    def join(self, run: RunSpec, world: Any, comm: Any) -> None:
        self.happened.append("join")

    def make_timer(self, steps: int) -> Any:
        return self

    def prepare(self, collective: Collective, given: Any) -> tuple[Callable[[], None], Callable[[], Any]]:
        self.happened.append(f"prepare {collective.operation}")
        off_by = self._off_by if collective.operation == "broadcast" else 0
        return lambda: self.happened.append("call"), lambda: given + np.float32(off_by)

    def group_facts(self) -> BackendFacts:
        return BackendFacts(versions={}, device=CPU_DEVICE, transport="none", threads=1, options={})

    def leave(self) -> None:
        self.happened.append("leave")

    def __getattr__(self, mark: str) -> Callable[[], None]:
        return lambda: self.happened.append(mark)


def started(group: Recording) -> CollectiveLoop:
    loop = CollectiveLoop(group)
    loop.join(RUN, None, OneRank())  # type: ignore[arg-type]  # nothing of a world is looked at
    loop.build(Collectives)
    group.happened.clear()
    return loop


def wrong(loop: CollectiveLoop) -> list[int | None]:
    return [facts["wrong"] for facts in loop.describe().collectives or ()]


def test_a_step_is_one_call_and_a_block_begins_with_a_checked_call() -> None:
    group = Recording()
    loop = started(group)
    assert RUN.blocks == [[5, 7], [12, 14]]
    before = loop.describe().as_json()["collectives"]
    assert [(facts["operation"], facts["bytes"], facts["in_place"]) for facts in before] == [
        ("all-reduce", 1024, True), ("broadcast", 1024, False),
    ]  # fmt: skip
    assert wrong(loop) == [None, None]
    for step in range(RUN.steps):
        group.happened.clear()
        assert loop.step(step, loop.make_timer(RUN.steps)) == 1
        entering = {0: ["prepare all-reduce", "call"], 7: ["prepare broadcast", "call"]}.get(step, [])
        assert group.happened == [*entering, *STEP]
        assert wrong(loop) == [0, None if step < 7 else 0]
    assert [facts["wrong"] for facts in before] == [0, 0]  # facts described before the first step are updated
    loop.leave()
    assert group.happened[-1] == "leave"


def test_a_wrong_result_ends_the_run_before_timing() -> None:
    group = Recording(off_by=1)
    loop = started(group)
    for step in range(7):
        loop.step(step, loop.make_timer(RUN.steps))
    group.happened.clear()
    with pytest.raises(InvalidRun, match="broadcast of 1024 bytes by mpi gives wrong results: 256 of 256 elements"):
        loop.step(7, loop.make_timer(RUN.steps))
    assert group.happened == ["prepare broadcast", "call"]
    assert wrong(loop) == [0, 256]


def test_nothing_is_trained() -> None:
    loop = started(Recording())
    assert loop.parameters() == []
    assert len(loop.losses()) == RUN.steps
    assert np.isnan(loop.losses()).all()
