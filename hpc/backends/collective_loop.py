"""A backend's collectives by themselves: every step is one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING, Any, Protocol

from hpc.backends import InvalidRun
from hpc.backends.training import BackendFacts
from hpc.measure.timer import StepTimer
from hpc.model.collective_plan import DTYPE, Collective, bus_factor
from hpc.model.spec import MIN_WARMUP_STEPS

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.world import World
    from hpc.model.spec import RunSpec


class JoinedRanks(Protocol):
    """The ranks of a backend, connected as for a training, with its collectives."""

    in_place: tuple[str, ...]
    """The operations whose result replaces their input."""

    def join(self, run: RunSpec, world: World, comm: Intracomm) -> None: ...

    def make_timer(self, steps: int) -> StepTimer: ...

    def prepare(self, collective: Collective, given: Any) -> tuple[Callable[[], None], Callable[[], Any]]:
        """Makes buffers on the device with float32 [given]; returns a call, and its result as numpy's float32 [got].

        On a GPU the call returns when the compute stream waits for its result, on a CPU when its result is complete.
        """

    def group_facts(self) -> BackendFacts:
        """Versions, device, transport, options."""

    def leave(self) -> None: ...


class CollectiveLoop:
    """A Backend whose blocks are one collective each.

    Buffers are made, and the result of a first call is checked, in the first of the unmeasured steps through which a
    block is entered.
    """

    def __init__(self, group: JoinedRanks) -> None:
        self._group = group

    def join(self, run: RunSpec, world: World, comm: Intracomm) -> None:
        self._run, self._comm = run, comm
        self._group.join(run, world, comm)

    def build(self, factory: Any) -> None:
        """The workload of `factory` defines the inputs and the expected results."""
        self._workload = factory(self._run, None, self._comm.rank)
        self._enters = {first - MIN_WARMUP_STEPS: block for block, (first, _) in enumerate(self._run.blocks)}
        # Updated in place during the run: earlier callers of `describe` see which results have been checked.
        self._described = [self._describe_collective(collective) for collective in self._workload.plan]
        self._call: Callable[[], None] | None = None

    def _describe_collective(self, collective: Collective) -> dict[str, Any]:
        return {
            "operation": collective.operation,
            "bytes": collective.bytes,
            "count": collective.count,
            "dtype": DTYPE,
            "factor": bus_factor(collective.operation, self._run.ranks),
            "in_place": collective.operation in self._group.in_place,
            "wrong": None,
            **({} if collective.turn is None else {"turn": collective.turn}),
        }

    def meetings(self) -> None:
        """There are none: a step is one collective."""

    def make_timer(self, steps: int) -> StepTimer:
        return self._group.make_timer(steps)

    def release(self) -> None:
        """Does nothing: no resource is for the first steps only."""

    def step(self, index: int, timer: StepTimer) -> int:
        """One call: t3 when it begins, t4 when its result is there."""
        if index in self._enters:
            self._enter(self._enters[index])
        assert self._call is not None
        timer.batch_ready()
        timer.grads_ready()
        self._call()
        timer.reduced()
        timer.end()
        return self._run.rank_batch_size

    def _enter(self, block: int) -> None:
        """Makes the buffers of a block and checks what one call gives. Raises InvalidRun on every rank alike."""
        collective = self._workload.plan[block]
        self._call = None  # the buffers of the block before go first
        self._call, result = self._group.prepare(collective, self._workload.given(collective))
        self._call()
        wrong = self._comm.allgather(self._workload.wrong(collective, result()))
        self._described[block]["wrong"] = sum(wrong)
        if any(wrong):
            ranks = [rank for rank, count in enumerate(wrong) if count]
            raise InvalidRun(
                f"{collective.operation} of {collective.bytes} bytes by {self._run.backend} gives wrong results: "
                f"{sum(wrong)} of {collective.got * len(wrong)} elements, on {len(ranks)} of {len(wrong)} ranks, first "
                f"on rank {ranks[0]}: its speed would be meaningless"
            )

    def losses(self) -> list[float]:
        return [nan] * self._run.steps

    def describe(self) -> BackendFacts:
        return replace(
            self._group.group_facts(), collectives=self._described, absent_stamps=["forward_end"], fused=True
        )

    def parameters(self) -> list[Any]:
        return []

    def leave(self) -> None:
        self._call = None
        self._group.leave()
