"""The durations of so many ranks' steps, drawn from what was measured or from a stated distribution."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tools.simulation.cluster import MS, Durations, Float64, Int64
from tools.simulation.measured import PHASES, StepParts

LEAST_NS = 1000.0
"""A stated phase that varies takes at least so long."""


@dataclass(frozen=True, kw_only=True)
class ClusterSize:
    """So many nodes of so many ranks that make so many steps."""

    nodes: int
    ranks_per_node: int
    steps: int

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def node_of(self) -> Int64:
        """The node of each rank."""
        return np.arange(self.ranks) // self.ranks_per_node


@dataclass(frozen=True, kw_only=True)
class StatedSteps:
    """A stated distribution, ms: normal, `scatter` from step to step on each rank, `node_scatter` between nodes."""

    compute: float
    collectives: float
    scatter: float = 0.0
    node_scatter: float = 0.0
    data: float = 0.0
    optimizer: float = 0.0


@dataclass(frozen=True, kw_only=True)
class InjectedDelays:
    """What is put in: ranks that compute so many ms longer in every step, nodes that compute so many times as long."""

    ranks: Mapping[int, float] = field(default_factory=dict)
    nodes: Mapping[int, float] = field(default_factory=dict)

    def each_left_out(self) -> Iterator[tuple[str, InjectedDelays]]:
        """Each of them by its name, with all the others."""
        for rank, ms in self.ranks.items():
            rest = {other: its for other, its in self.ranks.items() if other != rank}
            yield f"rank {rank}, {ms:g} ms longer in every step,", replace(self, ranks=rest)
        for node, factor in self.nodes.items():
            rest = {other: its for other, its in self.nodes.items() if other != node}
            yield f"node {node}, {factor:g} times as long,", replace(self, nodes=rest)


def stated(distribution: StatedSteps, size: ClusterSize, generator: np.random.Generator) -> Durations:
    """Steps by a stated distribution."""
    of_nodes = distribution.compute + np.repeat(
        distribution.node_scatter * generator.standard_normal(size.nodes), size.ranks_per_node
    )
    compute = of_nodes[:, None] + distribution.scatter * generator.standard_normal((size.ranks, size.steps))

    def always(ms: float) -> Float64:
        return np.full((size.ranks, size.steps), ms * MS)

    phases = {
        "data": always(distribution.data), "compute": np.maximum(compute * MS, LEAST_NS),
        "optimizer": always(distribution.optimizer), "leave": always(0),
    }  # fmt: skip
    return _durations(phases.__getitem__, np.full(size.steps, distribution.collectives * MS))


def drawn(runs: Sequence[StepParts], size: ClusterSize, generator: np.random.Generator) -> Durations:
    """Steps drawn from measured runs.

    Each node is a measured node, each of its ranks one of that node's ranks, each segment of steps a measured segment:
    of what a step does to all ranks one for all, of what it does to a node one for each node, else one for each rank.
    """
    segment_steps = min(run.segment_steps for run in runs)
    run_of = generator.integers(0, len(runs), size.nodes)
    node_of = [int(generator.integers(0, len(runs[run].nodes))) for run in run_of]  # among those of its run
    first_node = np.cumsum([0, *(len(run.nodes) for run in runs)])
    first_rank = np.cumsum([0, *(len(run.ranks) for run in runs)])
    nodes = np.asarray(first_node[run_of] + node_of, np.int64)
    drawn_ranks = [
        first_rank[run] + generator.choice(np.flatnonzero(runs[run].node_of == node), size.ranks_per_node)
        for run, node in zip(run_of, node_of, strict=True)
    ]
    ranks = np.concatenate(drawn_ranks).astype(np.int64)
    common = _VaryingSteps([run.common[None] for run in runs], segment_steps)
    of_runs = generator.integers(0, len(runs), -(-size.steps // segment_steps))
    of_common = common.places(of_runs, segment_steps, generator).reshape(-1)[: size.steps]
    of_nodes = _VaryingSteps([run.node_steps for run in runs], segment_steps)
    node_places = of_nodes.places(nodes, size.steps, generator)
    of_ranks = _VaryingSteps([run.rank_steps for run in runs], segment_steps)
    rank_places = of_ranks.places(ranks, size.steps, generator)
    mean = np.mean([run.mean for run in runs], axis=0)
    least = np.min([run.least for run in runs], axis=0)
    by_node = np.concatenate([run.nodes for run in runs])[nodes]
    by_rank = np.concatenate([run.ranks for run in runs])[ranks]

    def phase(name: str) -> Float64:
        at = PHASES.index(name)
        of_node = by_node[:, at, None] + of_nodes.values(at)[node_places] + common.values(at)[of_common]
        ns = np.repeat(mean[at] + of_node, size.ranks_per_node, axis=0)
        ns += by_rank[:, at, None]
        ns += of_ranks.values(at)[rank_places]
        return np.asarray(np.maximum(ns, least[at], out=ns), np.float64)

    return _durations(phase, np.concatenate([run.collectives for run in runs])[of_common])


class _VaryingSteps:
    """What varies from step to step, [place, step, phase] of each run, its steps one after another in one row."""

    def __init__(self, varies: Sequence[Float64], segment_steps: int) -> None:
        self._varies, self._segment_steps = varies, segment_steps
        self._steps = np.concatenate([np.full(len(each), each.shape[1]) for each in varies])
        self._begins = np.cumsum([0, *self._steps])[:-1]

    def places(self, of: Int64, steps: int, generator: np.random.Generator) -> Int64:
        """Where in the row the so many steps of each of these places are, [place, step]."""
        count = -(-steps // self._segment_steps)
        begins = generator.random((len(of), count)) * (self._steps[of] - self._segment_steps + 1)[:, None]
        begins = begins.astype(np.int64) + self._begins[of][:, None]
        return np.asarray(
            (begins[:, :, None] + np.arange(self._segment_steps)).reshape(len(of), -1)[:, :steps], np.int64
        )

    def values(self, phase: int) -> Float64:
        """The row of one phase."""
        return np.concatenate([each[:, :, phase].ravel() for each in self._varies])


def _durations(phase: Callable[[str], Float64], collectives: Float64) -> Durations:
    """From the times of each phase, ns [rank, step]. Where compute is parted into forward and backward is not drawn."""
    compute, data, optimizer, leave = (
        np.rint(phase(name)).astype(np.int64) for name in ("compute", "data", "optimizer", "leave")
    )
    return Durations(
        data=data, forward=np.zeros_like(compute), backward=compute, optimizer=optimizer, leave=leave,
        communication=np.rint(collectives).astype(np.int64),
    )  # fmt: skip


def with_delays(durations: Durations, delays: InjectedDelays, size: ClusterSize) -> Durations:
    """The durations with what is put in."""
    if not delays.ranks and not delays.nodes:
        return durations
    compute = durations.backward.copy()
    for node, factor in delays.nodes.items():
        on_node = size.node_of == node
        compute[on_node] = np.rint(compute[on_node] * factor).astype(np.int64)
    for rank, ms in delays.ranks.items():
        compute[rank] += round(ms * MS)
    return replace(durations, backward=compute)


def mean_step_ms(durations: Durations, blocks: Sequence[Sequence[int]]) -> float:
    """The mean time between the last ranks' entries into the reductions of the steps in these blocks."""
    between = durations.entered(slice(None)).max(axis=0)
    return float(np.concatenate([between[first:stop] for first, stop in blocks]).mean() / MS)
