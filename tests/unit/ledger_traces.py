"""Runs of a few ranks whose ledger is known: durations in ms per rank, the same in every step unless changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpc.model.spec import RunSpec
from hpc.model.timestamps import BEGIN, END
from hpc.model.trace import Telemetry, Trace
from parse.ledger.breakdown import StepBreakdown
from parse.ledger.verdicts import judged
from tests.unit.simulated import MS, Durations, draw_clocks, simulate
from tests.unit.traces import make_run

PHASES = {"data": 1.0, "forward": 3.0, "backward": 6.0, "leave": 0.0, "optimizer": 1.0}
Change = Callable[[int, int], float]
"""(rank, step) → ms more than usual."""


def stragglers(runs: Sequence[StepBreakdown]) -> list[Any]:
    """All verdicts on these runs together: who is late, what costs most first, or nobody; then what stands beside."""
    its = judged(runs)
    return [its.verdict, *its.further, *its.beside]


def run_of(**changes: Any) -> RunSpec:
    """Two nodes of two ranks, 40 measured steps."""
    return make_run(**({"nodes": 2, "ranks_per_node": 2, "warmup_steps": 6, "measured_steps": 40} | changes))


def trace_of(
    run: RunSpec, *, communication: float = 2.0, noise: float = 0.0, seed: int = 1, bound_ns: float = 10_000,
    backend: dict[str, Any] | None = None, **longer: Change,
) -> Trace:  # fmt: skip
    """A trace of the run; `longer`: by phase what some ranks take more in some steps, `noise` the scatter in ms."""
    random = np.random.default_rng(seed)
    shape = (run.ranks, run.steps)

    def phase(name: str) -> Any:
        extra = longer.get(name, lambda rank, step: 0.0)
        ms = np.array([[PHASES[name] + extra(rank, step) for step in range(run.steps)] for rank in range(run.ranks)])
        return np.rint((ms + noise * random.standard_normal(shape)) * MS).astype(np.int64).clip(0)

    durations = Durations(
        **{name: phase(name) for name in PHASES}, communication=np.full(run.steps, round(communication * MS), np.int64)
    )
    trace = simulate(run, durations, draw_clocks(random, run.nodes), random, bound_ns=bound_ns).trace
    environment = {**trace.environment, "backend": {**trace.environment["backend"], **(backend or {})}}
    return dataclasses.replace(trace, environment=environment)


def on(*ranks: int, ms: float, every: int = 1) -> Change:
    """So much more on these ranks, every so many steps."""
    return lambda rank, step: ms if rank in ranks and step % every == 0 else 0.0


def with_telemetry(trace: Trace, series: dict[str, Callable[[int, float], float]], every_s: float = 0.05) -> Trace:
    """The trace with telemetry of each of its two nodes; `series` gives the values by (node, seconds of the run)."""
    leaders = np.array([0, trace.run.ranks_per_node])
    begin, end = trace.stamps[leaders, 0, BEGIN], trace.stamps[leaders, -1, END]
    at_s = np.arange(0, float((end - begin).max()) / 1e9, every_s)
    local_ns = (begin[:, None] + at_s * 1e9).astype(np.int64)
    values = np.array([[[of(node, s) for of in series.values()] for s in at_s] for node in (0, 1)], np.float64)
    return dataclasses.replace(
        trace, telemetry=Telemetry(ranks=leaders, local_ns=local_ns, values=values, series=tuple(series))
    )


def per_rank(name: str, by_rank: dict[int, float], usual: float) -> dict[str, Callable[[int, float], float]]:
    """A counter of each of the two ranks of a node that grows by so much in a second."""

    def counter(place: int) -> Callable[[int, float], float]:
        return lambda node, s: s * by_rank.get(2 * node + place, usual)

    return {f"local_rank{place}.{name}": counter(place) for place in (0, 1)}
