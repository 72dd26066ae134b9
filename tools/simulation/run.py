"""A simulated run from the request to its trace, and the truth of it in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np

from hpc.model.spec import SIMULATED, UNKNOWN, RunSpec
from hpc.model.timestamps import FORWARD_END, STAMPS
from hpc.model.trace import Trace
from hpc.model.trace_file import open_trace, write_trace
from hpc.system.text import plural
from parse.runs.attempt import RunFields
from parse.runs.no_scaling import SIMULATED_LABEL
from tools.simulation.cluster import draw_clocks, simulate
from tools.simulation.draws import (
    ClusterSize,
    InjectedDelays,
    StatedSteps,
    drawn,
    mean_step_ms,
    stated,
    with_delays,
)
from tools.simulation.measured import StepParts

WARMUP_STEPS = 20
STATED_BOUND_NS = 10_000.0
"""The clocks' bound of a stated distribution."""
STATED_RANKS_PER_NODE = 8


class SimulationError(ValueError):
    """What is requested contradicts itself."""


@dataclass(frozen=True, kw_only=True)
class SimulationRequest:
    """What to draw: from the `parts` of measured runs that are `like` this one, named in `source`, or as `stated`."""

    ranks: int
    ranks_per_node: int | None
    steps: int
    repeats: int
    seed: int
    delays: InjectedDelays
    stated: StatedSteps | None
    parts: Sequence[StepParts]
    like: RunFields | None
    source: str

    def size(self) -> ClusterSize:
        """Its nodes and ranks. Raises SimulationError where the ranks do not fill the nodes, or a delay is on none."""
        usual = STATED_RANKS_PER_NODE if self.like is None else self.like.ranks_per_node or 1
        per_node = min(self.ranks, self.ranks_per_node or usual)
        if self.ranks % per_node:
            raise SimulationError(
                f"--ranks {self.ranks}: no multiple of {per_node} ranks per node; --ranks-per-node N says otherwise"
            )
        nodes = self.ranks // per_node
        for option, given, count, of in (
            ("--straggler", self.delays.ranks, self.ranks, "ranks"), ("--slow-node", self.delays.nodes, nodes, "nodes")
        ):  # fmt: skip
            if beyond := [at for at in given if at >= count]:
                raise SimulationError(f"{option} {beyond[0]}: the {count} {of} are counted from 0")
        return ClusterSize(nodes=nodes, ranks_per_node=per_node, steps=WARMUP_STEPS + self.steps)


def write_runs(request: SimulationRequest, folder: Path) -> list[str]:
    """Writes the traces, and returns what was drawn, a line each. Raises SimulationError, TraceError, OSError."""
    size = request.size()
    _check_folder(folder, request)
    folder.mkdir(parents=True, exist_ok=True)
    shape = f"{plural(size.nodes, 'node')} of {plural(size.ranks_per_node, 'rank')}, {plural(request.steps, 'step')}"
    lines = [f"{SIMULATED_LABEL}: {shape}, drawn from {request.source}", *_unknown(request)]
    for repeat in range(1, request.repeats + 1):
        trace = simulated_trace(request, size, repeat)
        path = folder / f"{trace.run_id}.{trace.attempt}.h5"
        write_trace(path, trace)
        truth: Truth = trace.environment[SIMULATED]
        lines.append(f"{path}: {truth['step_ms']:.2f} ms a step")
        lines += [f"  {name} costs {cost:.2f} ms of it" for name, cost in truth["costs_ms"].items()]
    return lines


def _check_folder(folder: Path, request: SimulationRequest) -> None:
    """Raises SimulationError where traces are there that would pass for other sizes of this setting."""
    for path in sorted(folder.glob("*.h5")):
        with open_trace(path) as trace:
            truth = trace.environment.get(SIMULATED)
        if not isinstance(truth, dict) or truth.get("source") != request.source:
            raise SimulationError(f"--out {folder}: {path.name} is of another source; choose a folder of its own")


def _unknown(request: SimulationRequest) -> list[str]:
    """What the runs do not show, a line where there is any."""
    if not request.parts or any(len(part.nodes) > 1 for part in request.parts):
        return []
    return ["  by how much nodes differ was not measured: simulated ones do not differ by more than their ranks"]


class Truth(TypedDict):
    """What a simulated trace states of itself: the source, the mean step, and what each delay put in costs of it."""

    source: str
    seed: int
    step_ms: float
    costs_ms: dict[str, float]


def simulated_trace(request: SimulationRequest, size: ClusterSize, repeat: int) -> Trace:
    """One run; its environment has the Truth of it."""
    generator = np.random.default_rng([request.seed, repeat])
    run = _run(request, size, repeat)
    if request.stated is not None:
        equal = stated(request.stated, size, generator)
    else:
        equal = drawn(request.parts, size, generator)

    def step_ms(delays: InjectedDelays) -> float:
        return mean_step_ms(with_delays(equal, delays, size), run.blocks)

    all_ms = step_ms(request.delays)
    truth = Truth(
        source=request.source, seed=request.seed, step_ms=all_ms,
        costs_ms={name: all_ms - step_ms(others) for name, others in request.delays.each_left_out()},
    )  # fmt: skip
    absent = np.zeros((size.ranks, size.steps, len(STAMPS)), np.bool_)
    absent[:, :, FORWARD_END] = True
    bound_ns = float(np.median([part.bound_ns for part in request.parts])) if request.parts else STATED_BOUND_NS
    trace = simulate(
        run, with_delays(equal, request.delays, size), draw_clocks(generator, size.nodes), generator,
        bound_ns=bound_ns, absent=absent,
    ).trace  # fmt: skip
    return dataclasses.replace(
        trace, environment={"backend": {"absent_stamps": ["forward_end"]}, SIMULATED: truth},
        samples=np.full(trace.samples.shape, _samples(request), np.int32), losses=np.full(trace.losses.shape, np.nan),
        evidence=f"{SIMULATED_LABEL}: drawn from {truth['source']}",
    )  # fmt: skip


def _samples(request: SimulationRequest) -> int:
    """Those of a rank's step; of a stated distribution 1."""
    return round(float(np.median([part.samples for part in request.parts]))) if request.parts else 1


def _run(request: SimulationRequest, size: ClusterSize, repeat: int) -> RunSpec:
    """The run in the words of a request; weak scaling, whatever was measured."""
    like = request.like
    return RunSpec(
        nodes=size.nodes, ranks_per_node=size.ranks_per_node, backend=SIMULATED, site=SIMULATED, scaling="weak",
        gpus_per_node=size.ranks_per_node if like and like.gpus_per_node else 0,
        cpus_per_rank=(like and like.cpus_per_rank) or 1, workload=(like and like.workload_name) or "stated",
        batch_size=(like and like.local_batch_size) or max(1, _samples(request)),
        precision=(like and like.precision) or UNKNOWN, tokens_per_sample=(like and like.tokens_per_sample) or 0,
        warmup_steps=WARMUP_STEPS, measured_steps=request.steps, repeat=repeat, seed=request.seed,
    )  # fmt: skip
