"""Simulated training on nodes with clocks of their own: traces whose truth is known to the nanosecond.

The truth is made first, in whole nanoseconds of the global clock, which is that of node 0. What a rank records of it is
what its node's clock showed then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hpc.model.clock_model import ROUNDING_NS
from hpc.model.outcome import Outcome
from hpc.model.spec import MIN_WARMUP_STEPS, RunSpec
from hpc.model.timestamps import ABSENT, INNER, STAMPS
from hpc.model.trace import Trace

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

ORIGIN_NS = 5_000_000_000_000
MS = 1_000_000
SYNCHRONISATION_NS = 20 * MS
"""How long all ranks stand still while the clocks are compared."""
ENTRY_SKEW_NS = 50_000
"""How far apart the ranks leave the barrier after it."""


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Shows the global time plus `offset_ns`, fast by `drift`, and by up to `wander` faster and slower in turns."""

    offset_ns: int = 0
    drift: float = 0.0
    wander: float = 0.0
    period_ns: float = 3e9
    phase: float = 0.0

    def read(self, global_ns: Int64) -> Int64:
        """What it shows then, in whole nanoseconds."""
        elapsed = (global_ns - ORIGIN_NS).astype(np.float64)
        turn = 2 * np.pi / self.period_ns
        gained = self.drift * elapsed
        if self.wander:
            gained += self.wander / turn * (np.sin(turn * elapsed + self.phase) - np.sin(self.phase))
        shown: Int64 = global_ns + self.offset_ns + np.rint(gained).astype(np.int64)
        return shown


@dataclass(frozen=True, kw_only=True, eq=False)
class Durations:
    """What the steps consist of, int64 ns: [rank, step], but `communication` [step].

    All ranks leave the reduction `communication` after the last has entered it, and each another `leave` later.
    """

    data: Int64
    forward: Int64
    backward: Int64
    leave: Int64
    optimizer: Int64
    communication: Int64

    def longer(self, phase: str, where: npt.NDArray[np.bool_], by_ns: int) -> Durations:
        """The same with that phase longer, `where` [rank, step]; the communication of a step is that of all ranks."""
        added = by_ns * (where.any(axis=0) if phase == "communication" else where).astype(np.int64)
        return replace(self, **{phase: getattr(self, phase) + added})

    def entered(self, steps: slice) -> Int64:
        """When each rank enters the reduction [rank, step], after the last one entered that of the step before; in the
        first of the steps, after it began."""
        entered: Int64 = self.data[:, steps] + self.forward[:, steps] + self.backward[:, steps]
        entered[:, 1:] += (self.leave[:, steps] + self.optimizer[:, steps] + self.communication[steps])[:, :-1]
        return entered


@dataclass(frozen=True, kw_only=True, eq=False)
class Simulated:
    """A trace and the truth of it: `global_ns` [rank, step, 6], when everything really happened; nothing is absent."""

    trace: Trace
    global_ns: Int64


def draw_clocks(
    generator: np.random.Generator, nodes: int, *, drift: float = 50e-6, wander: float = 4e-6
) -> list[Clock]:
    """A clock for each node, hours apart; that of the first is the global one."""
    others = (
        Clock(
            offset_ns=int(generator.integers(-(10**13), 10**13)),
            drift=generator.uniform(-drift, drift),
            wander=generator.uniform(0, wander),
            period_ns=generator.uniform(0.2e9, 20e9),
            phase=generator.uniform(0, 2 * np.pi),
        )
        for _ in range(nodes - 1)
    )
    return [Clock(), *others]


def simulate(
    run: RunSpec,
    durations: Durations,
    clocks: Sequence[Clock],
    generator: np.random.Generator,
    *,
    bound_ns: float = 10_000,
    absent: npt.NDArray[np.bool_] | None = None,
) -> Simulated:
    """The run with those durations, on nodes with those clocks, compared as hpc.run.train does: before, as many steps
    before the window as warm-up must have, between blocks, after.

    `bound_ns` is about what each comparison leaves open, and proves: what it finds is drawn from inside. `absent`
    [rank, step, 6] says which stamps were not taken; under coarse stamps the inner ones are not.
    """
    segments = _segments(run)
    global_ns, compared_ns = _happened(durations, segments, generator)
    return Simulated(
        trace=_recorded(run, global_ns, compared_ns, clocks, generator, bound_ns, absent), global_ns=global_ns
    )


def _segments(run: RunSpec) -> list[tuple[int, int]]:
    """Steps between two comparisons of the clocks."""
    borders = [0, run.warmup_steps - MIN_WARMUP_STEPS, *(stop for _, stop in run.blocks)]
    return list(pairwise(borders))


def _happened(
    durations: Durations, segments: Sequence[tuple[int, int]], generator: np.random.Generator
) -> tuple[Int64, list[int]]:
    """When everything happened, [rank, step, 6], and when the clocks were compared."""
    ranks, steps = durations.data.shape
    global_ns = np.empty((ranks, steps, len(STAMPS)), np.int64)
    now_ns = ORIGIN_NS
    compared_ns = []
    for first, stop in segments:
        compared_ns.append(now_ns)
        now_ns += SYNCHRONISATION_NS
        if first < stop:
            _segment(durations, slice(first, stop), now_ns, generator, out=global_ns[:, first:stop])
            now_ns = int(global_ns[:, stop - 1, -1].max()) + ENTRY_SKEW_NS
    return global_ns, [*compared_ns, now_ns]


def _segment(durations: Durations, steps: slice, begin_ns: int, generator: np.random.Generator, out: Int64) -> None:
    data, forward, backward, leave, optimizer = (
        getattr(durations, name)[:, steps] for name in ("data", "forward", "backward", "leave", "optimizer")
    )
    communication = durations.communication[steps]
    entered = durations.entered(steps)
    entered[:, 0] += generator.integers(0, ENTRY_SKEW_NS, len(data))
    last_ns = begin_ns + np.cumsum(entered.max(axis=0))
    before_ns = np.concatenate([[begin_ns], last_ns[:-1]])
    out[:, :, 3] = before_ns + entered
    out[:, :, 2] = out[:, :, 3] - backward
    out[:, :, 1] = out[:, :, 2] - forward
    out[:, :, 0] = out[:, :, 1] - data
    out[:, :, 4] = last_ns + communication + leave
    out[:, :, 5] = out[:, :, 4] + optimizer


def _recorded(
    run: RunSpec,
    global_ns: Int64,
    compared_ns: Sequence[int],
    clocks: Sequence[Clock],
    generator: np.random.Generator,
    bound_ns: float,
    absent: npt.NDArray[np.bool_] | None,
) -> Trace:
    node_of = np.arange(run.ranks) // run.ranks_per_node
    stamps = np.empty_like(global_ns)
    for node, clock in enumerate(clocks):
        ours = slice(node * run.ranks_per_node, (node + 1) * run.ranks_per_node)
        stamps[ours] = global_ns[ours] if node == 0 else clock.read(global_ns[ours])
    if absent is not None:
        stamps[absent] = ABSENT
    if run.timing == "step":
        stamps[:, :, [STAMPS.index(name) for name in INNER]] = ABSENT
    points = [_points(clock, node, compared_ns, generator, bound_ns) for node, clock in enumerate(clocks)]
    local_ns = np.stack([points[node][0] for node in node_of])
    ranks, steps, _ = global_ns.shape
    return Trace(
        run=run, attempt=1, outcome=Outcome.OK, stamps=stamps,
        samples=np.full((ranks, steps), run.rank_batch_size, np.int32), losses=np.ones((ranks, steps)),
        steps_completed=np.full(ranks, steps), blocks=np.array(run.blocks), clock_local_ns=local_ns,
        clock_offset_ns=np.stack([points[node][1] for node in node_of]),
        clock_bound_ns=np.stack([points[node][2] for node in node_of]),
        clock_domains=[f"node-{node}" for node in node_of], barrier_exits_ns=local_ns,
        ranks=[_facts(run, rank) for rank in range(ranks)],
        environment={"backend": {"absent_stamps": list(INNER) if run.timing == "step" else []}},
    )  # fmt: skip


def _points(
    clock: Clock, node: int, compared_ns: Sequence[int], generator: np.random.Generator, bound_ns: float
) -> tuple[Int64, Float64, Float64]:
    """Local times, offsets and bounds of a node's comparisons with node 0, one after another."""
    at_ns = np.array(compared_ns, np.int64) + 1000 * node
    local_ns = clock.read(at_ns)
    bounds_ns = ROUNDING_NS + bound_ns * generator.uniform(0.5, 1.5, len(at_ns)) if node else np.zeros(len(at_ns))
    errors_ns = np.maximum(bounds_ns - ROUNDING_NS, 0) * generator.uniform(-1, 1, len(at_ns))
    return local_ns, (at_ns - local_ns) + errors_ns, bounds_ns


def _facts(run: RunSpec, rank: int) -> dict[str, object]:
    node, local_rank = divmod(rank, run.ranks_per_node)
    return {
        "hostname": f"n{node}", "node_rank": node, "local_rank": local_rank, "boot_id": f"boot-{node}",
        "device": {"kind": "cpu"},
    }  # fmt: skip


# Ranks of which none is slower than another: the durations of their steps.

JITTERS = ("normal", "exponential", "lognormal")


def equal_ranks(
    generator: np.random.Generator,
    ranks: int,
    steps: int,
    *,
    jitter: str = "normal",
    spread: float = 0.03,
    common: float = 0.05,
    memory: float = 0.0,
) -> Durations:
    """Ranks of which none is slower than another: each draws its durations from the same law.

    `spread` is the standard deviation of a phase as a share of it; `common` that of a factor that all ranks share in a
    step; `memory` the correlation of a rank's deviation with its last one.
    """
    together = np.exp(generator.normal(0, common, steps))

    def phase(typical_ns: int) -> Int64:
        deviation = spread * _deviations(generator, (ranks, steps), jitter, memory)
        return np.maximum(np.rint(typical_ns * together * (1 + deviation)), 1000).astype(np.int64)

    return Durations(
        data=phase(1 * MS), forward=phase(3 * MS), backward=phase(6 * MS), optimizer=phase(1 * MS),
        leave=generator.integers(0, 5_000, (ranks, steps)),
        communication=np.rint(2 * MS * together).astype(np.int64),
    )  # fmt: skip


def _deviations(
    generator: np.random.Generator, shape: tuple[int, int], jitter: str, memory: float
) -> npt.NDArray[np.float64]:
    """Of mean 0 and standard deviation 1, correlated along the steps."""
    if jitter == "normal":
        return _normal(generator, shape, memory)
    if jitter == "lognormal":
        values = np.exp(_normal(generator, shape, memory))
        values -= np.exp(0.5)
        values /= np.sqrt((np.e - 1) * np.e)
        return values
    if jitter == "exponential":  # half the sum of two squares of normal numbers is one
        first, second = _normal(generator, shape, memory), _normal(generator, shape, memory)
        return (first**2 + second**2) / 2 - 1
    raise ValueError(f"jitter {jitter!r} is not one of {', '.join(JITTERS)}")


def _normal(generator: np.random.Generator, shape: tuple[int, int], memory: float) -> Float64:
    values = generator.standard_normal(shape)
    if memory:
        fresh = np.sqrt(1 - memory**2)
        for before, after in pairwise(range(shape[1])):
            values[:, after] = memory * values[:, before] + fresh * values[:, after]
    return values
