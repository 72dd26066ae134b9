"""Synthetic traces with known arithmetic."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpc.model.outcome import ExitRecord, Outcome
from hpc.model.run_fields import RunFields
from hpc.model.spec import Plan, RunSpec, Target
from hpc.model.timestamps import ABSENT, STAMPS
from hpc.model.trace import Trace
from hpc.model.trace_file import write_trace
from parse.alarms.table import judge
from parse.runs.attempt import Attempt, RequestedRun, clock_shift_of, describe, measure
from parse.runs.load import Loaded
from parse.runs.result import Result, results

ORIGIN_NS = 5_000_000_000_000
OFFSET_NS = 7_000_000_000
"""Rank r's clock lags the global one by r times this."""


def make_run(**changes: Any) -> RunSpec:
    """A run of 1n1g on a CPU: 5 warm-up and 10 measured steps of 4 samples."""
    values: dict[str, Any] = {
        "nodes": 1, "ranks_per_node": 1, "gpus_per_node": 0, "cpus_per_rank": 1, "backend": "mpi", "workload": "delay",
        "batch_size": 4, "precision": "fp32", "scaling": "weak", "warmup_steps": 5, "measured_steps": 10, "repeat": 1,
        "seed": 0, "site": "here",
    }  # fmt: skip
    return RunSpec(**(values | changes))


def make_ranks(run: RunSpec, **changes: Any) -> list[dict[str, Any]]:
    """Facts of every rank: a machine with 64 cores per node; a GPU per rank where the run has GPUs."""
    facts = []
    for rank in range(run.ranks):
        node, local_rank = divmod(rank, run.ranks_per_node)
        gpu = {"kind": "gpu", "name": "H200", "uuid": f"GPU-{node}-{local_rank}"}
        fact = {
            "hostname": f"n{node}", "node_rank": node, "local_rank": local_rank, "pid": 100 + rank,
            "boot_id": f"boot-{node}", "cpu_model": "Xeon", "cpus": 64, "affinity": list(range(64)),
            "nvidia_driver": "570.1", "device": gpu if run.gpus_per_node else {"kind": "cpu"},
        }  # fmt: skip
        facts.append(fact | changes)
    return facts


def make_trace(
    run: RunSpec | None = None, *, step_s: float | Sequence[float] = 0.1, speed: float | None = None, **changes: Any
) -> Trace:
    """A trace of the run; every step takes `step_s` (one value per step, or one for all), or follows from `speed`."""
    run = run or make_run()
    if speed is not None:
        step_s = run.global_batch_size / speed
    durations_ns = np.rint(np.broadcast_to(np.asarray(step_s) * 1e9, (run.steps,))).astype(np.int64)
    ends_ns = ORIGIN_NS + np.cumsum(durations_ns)
    begins_ns = ends_ns - durations_ns
    offsets_ns = OFFSET_NS * np.arange(run.ranks)
    stamps = begins_ns[:, None] + durations_ns[:, None] * np.arange(len(STAMPS)) // (len(STAMPS) - 1)
    points_ns = np.array([begins_ns[0] - 1000, ends_ns[-1] + 1000])
    content: dict[str, Any] = {
        "run": run,
        "attempt": 1,
        "outcome": Outcome.OK,
        "stamps": stamps[None] - offsets_ns[:, None, None],
        "samples": np.full((run.ranks, run.steps), run.rank_batch_size, np.int32),
        "losses": np.ones((run.ranks, run.steps)),
        "steps_completed": np.full(run.ranks, run.steps),
        "blocks": np.array(run.blocks),
        "clock_local_ns": points_ns[None] - offsets_ns[:, None],
        "clock_offset_ns": np.broadcast_to(offsets_ns[:, None], (run.ranks, 2)).astype(np.float64),
        "clock_bound_ns": np.zeros((run.ranks, 2)),
        "clock_domains": [f"domain-{rank}" for rank in range(run.ranks)],
        "barrier_exits_ns": points_ns[None] - offsets_ns[:, None],
        "ranks": make_ranks(run),
        "environment": {"software": {"numpy": "2.0", "torch": "2.13"}, "backend": {"transport": "nccl"}},
    }
    return Trace(**(content | changes))


def full_trace() -> Trace:
    """A trace that has everything but telemetry and a whole training; its numbers are no times of a run."""
    run = make_run(nodes=2, ranks_per_node=2, options={"data_ms": "3@rank=1"}, env={"NCCL_ALGO": "Ring"})
    injected = np.arange(4 * run.steps * 2, dtype=np.int64).reshape(4, run.steps, 2)
    meetings = np.arange(4 * run.steps * 9, dtype=np.int64).reshape(4, run.steps, 3, 3)
    return make_trace(
        run, attempt=3, evidence="srun returned 0", script="#!/bin/bash\necho 'ä'\n", recovered=True,
        injected_ns=injected, injected_phases=["data_ms", "compute_ms"], environment={"job_id": "17", "n": [1, None]},
        meetings=meetings, meeting_names=["features", "maximum", "größe"], meeting_roots=[-1, 0, -2],
        input=meetings[:, :, :2, 0].copy(), input_names=["requested", "received"],
        host_bound_ns=injected + 7, host_bound_phases=["compute", "optimizer"],
        unix_offset_ns=np.arange(8).reshape(4, 2) + 10**18, unix_bound_ns=np.arange(8).reshape(4, 2),
    )  # fmt: skip


def cut_short(trace: Trace, steps: int, outcome: Outcome) -> Trace:
    """The trace of an attempt that ended after `steps` steps: the rest absent, no block."""
    stamps, losses, samples = trace.stamps.copy(), trace.losses.copy(), trace.samples.copy()
    stamps[:, steps:], losses[:, steps:], samples[:, steps:] = ABSENT, np.nan, 0
    return dataclasses.replace(
        trace, stamps=stamps, losses=losses, samples=samples, outcome=outcome,
        steps_completed=np.full(len(stamps), steps), blocks=np.empty((0, 2), np.int64),
    )  # fmt: skip


def put(folder: Path, trace: Trace) -> Path:
    """Writes the trace under its name in `traces/`."""
    path = folder / f"{trace.run_id}.{trace.attempt}.h5"
    write_trace(path, trace)
    return path


def put_exit_record(folder: Path, run: RunSpec, outcome: Outcome, attempt: int = 1) -> Path:
    """Writes the exit record of an attempt."""
    record = ExitRecord(
        run_id=run.run_id, attempt=attempt, outcome=outcome, exit_status=137 if outcome is Outcome.OOM else 0,
        job_id="17", restart_count=0, nodelist="n[0-3]", begin_unix_s=1_700_000_000, end_unix_s=1_700_000_100,
        duration_ms=100_000,
    )  # fmt: skip
    path = folder / f"{run.run_id}.{attempt}.exit.json"
    path.write_text(json.dumps(dataclasses.asdict(record)))
    return path


def put_plan(folder: Path, runs: Sequence[RunSpec], **target: Any) -> Path:
    """Writes the plan of those runs."""
    known: dict[str, Any] = {"site": "here", "gpus_per_node": 0} | target
    plan = Plan(target=Target(**known), runs=tuple(runs))
    path = folder / f"plan.{plan.sweep_id}.json"
    path.write_text(json.dumps(plan.to_json()))
    return path


def repeats(run: RunSpec, count: int) -> list[RunSpec]:
    """The run's point, repeated."""
    return [dataclasses.replace(run, repeat=repeat) for repeat in range(1, count + 1)]


def point(run: RunSpec, speeds: Sequence[float], **changes: Any) -> list[Trace]:
    """Traces of the run's repeats with those speeds."""
    pairs = zip(repeats(run, len(speeds)), speeds, strict=True)
    return [make_trace(repeat, speed=speed, **changes) for repeat, speed in pairs]


def requested_run(run: RunSpec) -> RequestedRun:
    """The run as described by a plan of this version."""
    return RequestedRun(run=RunFields.of(run), run_id=run.run_id)


def attempt(trace: Trace) -> Attempt:
    """The attempt as loaded from this trace, without a file."""
    return Attempt(
        run_id=trace.run_id, number=trace.attempt, requested=requested_run(trace.run), outcome=trace.outcome,
        evidence=trace.evidence, measured=measure(trace), machine=describe(trace),
        history=trace.history, clock_shift_s=clock_shift_of(trace),
    )  # fmt: skip


def ended(run: RunSpec, outcome: Outcome, evidence: str = "") -> Attempt:
    """An attempt with this outcome and no trace."""
    return Attempt(run_id=run.run_id, number=1, requested=requested_run(run), outcome=outcome, evidence=evidence)


def judged(
    traces: Sequence[Trace], plan: Sequence[RunSpec] = (), without_trace: Sequence[Attempt] = ()
) -> tuple[Result, ...]:
    """The judged results of these traces and attempts, without files."""
    loaded = Loaded(
        attempts=(*(attempt(trace) for trace in traces), *without_trace),
        requested=tuple(requested_run(run) for run in plan), reduced=(), refusals=(), remarks=(),
    )  # fmt: skip
    return judge(results(loaded))
