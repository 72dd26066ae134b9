"""The sweep of an acceptance test: the points of a reference, and the runs of one node on every node in turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from hpc.backends import BACKENDS
from hpc.model.spec import RunSpec, SpecError
from launch.cluster.partitions import Node
from launch.jobs.options import LaunchOptions
from launch.jobs.plan import JobPlan, plan_jobs
from launch.sweep.prepare import Prepared, with_runs
from launch.sweep.readers import read_case
from launch.sweep.spec import SweepSpec
from parse.comparison.reference import ReferencePoint

RUNS_PER_NODE = 3
"""Runs of one node on each node: two show the scatter, three tell nodes apart where there are only two of them."""
_LISTS = ("backend", "workload", "batch_size", "precision", "scaling", "cpus_per_rank", "data", "data_cache", "timing",
          "telemetry")  # fmt: skip
_SINGLE = ("placement", "block_steps", "epochs", "target_accuracy", "eval_every", "seed")
"""Settings of a point that options of a sweep have the same names for, with a list of values and with a single one."""
_OF_MACHINE = ("unit", "devices", "site", "container", "code_digest")
"""Settings that follow from the machine: they are compared, not requested."""


def sweeps_of(points: Sequence[ReferencePoint], repeats: int) -> list[SweepSpec]:
    """A sweep for each point, with its collectives where it has any. Raises SpecError, which names the point."""
    places = {point.settings.get("on", "") for point in points}
    if "CPU" in places and len(places) > 1:
        raise SpecError(
            "reference: some points say on = CPU and others do not; a sweep is on one of both: make two files"
        )
    return [_sweep_of(point, at, repeats) for at, point in enumerate(points, 1)]


def _sweep_of(point: ReferencePoint, at: int, repeats: int) -> SweepSpec:
    settings = dict(point.settings)
    try:
        values: dict[str, Any] = {"repeats": repeats, "baseline": False}
        values |= {name: settings.pop(name) for name in _SINGLE if name in settings}
        values |= {name: [settings.pop(name)] for name in _LISTS if name in settings}  # a comma in it separates nothing
        for kind in ("option", "env"):
            names = [name for name in settings if name.startswith(f"{kind}.")]
            if names:
                table = {name.partition(".")[2]: [settings.pop(name)] for name in names}
                values["options" if kind == "option" else kind] = table
        values |= _case(settings) | _steps(settings)
        if settings.pop("on", "GPU") == "CPU":
            values["gpus_per_node"] = 0
        if rest := [name for name in settings if name not in _OF_MACHINE]:
            raise SpecError(f"no sweep can ask for {', '.join(rest)}")
        sweep = SweepSpec.from_mapping(values)
    except SpecError as error:
        raise SpecError(f"reference, point {at} ({point.name}): {error}") from None
    ((nodes, ranks),) = sweep.cases
    entry = BACKENDS.get(sweep.backend[0])
    return dataclasses.replace(sweep, collectives=nodes * ranks > 1 and entry is not None and bool(entry.collectives))


def _case(settings: dict[str, str]) -> dict[str, Any]:
    """The case; the settings that say it are taken out."""
    nodes, ranks, case = (settings.pop(name, None) for name in ("nodes", "ranks_per_node", "case"))
    if case is None and nodes and ranks:
        case = f"{nodes}n{ranks}g"
    if case is None:
        raise SpecError("it says neither case (2n8g) nor nodes and ranks_per_node: which size is it of?")
    read_case("case", case)
    return {"cases": [case]}


def _steps(settings: dict[str, str]) -> dict[str, Any]:
    warmup, measured = (settings.pop(name, None) for name in ("warmup_steps", "measured_steps"))
    values: dict[str, Any] = {} if warmup is None else {"warmup": warmup}
    if measured is None:
        return values
    if warmup is None or not (warmup.isdecimal() and measured.isdecimal()):
        raise SpecError(f"measured_steps {measured} needs warmup_steps beside it, both whole numbers")
    return {**values, "steps": int(warmup) + int(measured)}


def on_every_node(prepared: Prepared, nodes: Sequence[Node], launch: LaunchOptions) -> Prepared:
    """The same sweep, where the largest point of one node runs RUNS_PER_NODE times or more on each of the nodes, in a
    job of its own for each. Without such a point, or with a single node, the sweep itself."""
    single = [run for run in prepared.plan.runs if run.nodes == 1 and not run.diagnostic]
    if not single or len(nodes) < 2 or prepared.site is None:
        return prepared
    point = max(single, key=lambda run: run.devices)
    repeats = sum(run.point_id == point.point_id for run in single)
    share = max(RUNS_PER_NODE, -(-repeats // len(nodes)))
    others = [run for run in prepared.plan.runs if run.point_id != point.point_id]
    pinned = {
        node.name: [point.repeated(share * at + each) for each in range(1, share + 1)] for at, node in enumerate(nodes)
    }
    jobs = [*with_runs(prepared, others, launch).jobs] if others else []
    jobs += [job for name, runs in pinned.items() for job in _jobs_on(name, runs, prepared, launch)]
    plan = dataclasses.replace(prepared.plan, runs=(*others, *(run for runs in pinned.values() for run in runs)))
    return dataclasses.replace(prepared, plan=plan, jobs=tuple(jobs))


def _jobs_on(node: str, runs: Sequence[RunSpec], prepared: Prepared, launch: LaunchOptions) -> list[JobPlan]:
    assert prepared.site is not None
    site = dataclasses.replace(prepared.site, nodelist=node)
    jobs = plan_jobs(runs, site, launch.minutes_per_run, launch.time)
    return [_named(job, f"{job.name}-{node}") for job in jobs]


def _named(job: JobPlan, name: str) -> JobPlan:
    request: Mapping[str, Any] = {**job.request, "job_name": f"rankwise-{name}"}
    return dataclasses.replace(job, name=name, request=request)
