"""`rankwise sweep accept`: doctor, a fixed sweep, and a verdict on the machine, in a dated folder."""

from __future__ import annotations

import dataclasses
import json
import socket
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from hpc.backends import BACKENDS
from hpc.model.findings import CheckFinding
from hpc.model.options import OptionError
from hpc.model.reference import Reference, ReferenceFileError, ReferencePoint, read_reference
from hpc.model.spec import SpecError
from hpc.system.atomic import write_output
from hpc.system.command_line import text_width
from hpc.system.regular_file import read_text
from hpc.system.text import first_of, plural
from launch.doctor.command import FAILURES as DOCTOR_FAILURES
from launch.doctor.command import DoctorError, Examination, examine
from launch.follow import print_whole, say
from launch.jobs.options import LaunchOptions, whole
from launch.scheduler.lock import user_name
from launch.scheduler.protocol import Node
from launch.sweep.prepare import Prepared, Say, with_jobs
from launch.sweep.request import AcceptOptions, Request
from launch.sweep.run_status import describe_states, pending_runs, run_statuses
from launch.sweep.spec import AXES, SHARED, SweepSpec, read_case
from launch.sweep.submit import FAILURES, Batches, sweep
from parse.comparison.machine import (
    Acceptance,
    acceptance_text,
    check_findings,
    collective_lines,
    environment_of,
    first_reference,
    next_reference,
    node_findings,
    reference_text,
    verdict_line,
)
from parse.comparison.pairs import Measurement, compare_with_reference, read_measurement
from parse.comparison.text import as_json, as_junit
from parse.comparison.types import Comparison, ComparisonError

# The sweep of an acceptance test: the points of a reference, and the runs of one node on every node in turn.

RUNS_PER_NODE = 3
"""Runs of one node on each node: two show the scatter, three separate nodes where there are only two of them."""
_LIMITS = {"eval_every": whole(1, 1_000_000), "block_steps": whole(0, 10_000_000)}
"""Settings that no option has by itself."""
_OF_CASE = ("nodes", "ranks_per_node")
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
        values: dict[str, Any] = {"repeats": repeats, "no_baseline": True}
        values |= {name: settings.pop(name) for name in SHARED if name in settings}
        axes = [name for name in AXES if name in settings and name not in _OF_CASE]
        values |= {name: [settings.pop(name)] for name in axes}  # a comma in it separates nothing
        for kind in ("option", "env"):
            names = [name for name in settings if name.startswith(f"{kind}.")]
            if names:
                values[kind] = {name.partition(".")[2]: [settings.pop(name)] for name in names}
        values |= _case(settings) | _steps(settings)
        limits = {name: read(name, settings.pop(name)) for name, read in _LIMITS.items() if name in settings}
        if settings.pop("on", "GPU") == "CPU":
            values["gpus_per_node"] = 0
        if rest := [name for name in settings if name not in _OF_MACHINE and not name.startswith("job.")]:
            raise SpecError(f"no sweep can request {', '.join(rest)}")
        sweep = SweepSpec.from_mapping(values)
    except SpecError as error:
        raise SpecError(f"reference, point {at} ({point.name}): {error}") from None
    ((nodes, ranks),) = sweep.cases
    entry = BACKENDS.get(sweep.backend[0])
    sweep = dataclasses.replace(sweep, **limits)
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


def on_every_node(prepared: Prepared, nodes: Sequence[Node]) -> Prepared:
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
    jobs = [*with_jobs(prepared, others).jobs] if others else []
    for name, runs in pinned.items():
        on_node = dataclasses.replace(prepared, site=prepared.site.with_values({"nodelist": name}))
        for job in with_jobs(on_node, runs).jobs:
            request = {**job.request, "job_name": f"rankwise-{job.name}-{name}"}
            jobs.append(dataclasses.replace(job, name=f"{job.name}-{name}", request=request))
    plan = dataclasses.replace(prepared.plan, runs=(*others, *(run for runs in pinned.values() for run in runs)))
    return dataclasses.replace(prepared, plan=plan, jobs=tuple(jobs))


HISTORY = "acceptance"
"""The folder of all tests, under --out."""
REFERENCE, RESULT, TEXT = "reference.toml", "accept.json", "accept.txt"
"""Files of a test: what it is held against, what came out; the second is there once it has ended."""
NAME = "%Y-%m-%dT%H-%M-%SZ"
"""How the folder of a test is named: names sort by time."""
MAX_AGE = timedelta(days=1)
"""An interrupted test goes on within this time of its begin: later the machine may be another one."""
NOT_MEASURED = 2
MAX_JOBS = 8
"""At most so many jobs are named."""


def accept(options: AcceptOptions, request: Request) -> int:
    """Makes an acceptance test; the exit status: 0 passed, 1 slower than the tolerance, 2 not measured.

    With --make-reference it writes a reference instead: 0 written, 2 not.
    """
    assert options.reference is not None
    now = datetime.now(UTC)
    try:
        if options.make_reference is not None:
            return _make_reference(options.make_reference, options.reference, options.threshold, now, say)
        reference = read_reference(options.reference, options.threshold)
        if not reference.points:
            raise ComparisonError(f"{options.reference}: it has no [[point]]")
        folder = _folder(request.launch.out.absolute() / HISTORY, read_text(options.reference), now, say)
        launch = dataclasses.replace(request.launch, out=folder)
        sweeps = tuple(sweeps_of(reference.points, options.repeats))
        test = partial(_test, options, reference)
        return sweep(dataclasses.replace(request, sweeps=sweeps, launch=launch), test)
    except (SpecError, OptionError, ComparisonError, ReferenceFileError, DoctorError, *FAILURES) as error:
        say(f"{'could not be measured' if options.make_reference is None else 'no reference'}: {error}")
        if options.junit is not None:
            empty = Comparison(base=str(options.reference), new="", is_reference=True, points=())
            write_output(options.junit, as_junit(empty, now, problem=str(error)))
        return NOT_MEASURED


def _make_reference(traces: Path, path: Path, tolerance: float, now: datetime, say: Say) -> int:
    """Writes the first reference from the traces of a sweep.

    Raises ComparisonError where the file is there already or a point has no speed, SpecError where `accept` cannot
    measure a point.
    """
    if path.exists():
        raise ComparisonError(f"{path} is there already: remove it, or name another --reference FILE")
    measured = read_measurement(traces, "traces", {})
    reference, remarks = first_reference(measured.results, tolerance, now)
    sweeps_of(reference.points, repeats=1)
    write_output(path, reference_text(reference, environment_of(measured.results, _who(), now), remarks))
    say(f"{path}: {plural(len(reference.points), 'point')} of {measured.name}, tolerance {100 * tolerance:g} %")
    for point, remark in zip(reference.points, remarks, strict=True):
        if remark:
            say(f"{point.settings['case']}: {remark}")
    return 0


def _folder(history: Path, reference: str, now: datetime, say: Say) -> Path:
    """The folder of a new test, or of one that was interrupted in the last MAX_AGE and is held against the same
    reference."""
    youngest = f"{now - MAX_AGE:{NAME}}"
    for path in sorted(history.glob("*Z"), reverse=True):
        its = path / REFERENCE
        same = path.name > youngest and its.is_file() and read_text(its) == reference
        if same and not (path / RESULT).exists():
            say(f"{path}: goes on, because it has no result yet")
            return path
    folder = history / f"{now:{NAME}}"
    folder.mkdir(parents=True)
    write_output(folder / REFERENCE, reference)
    return folder


def _test(options: AcceptOptions, reference: Reference, prepared: Prepared, say: Say) -> Batches:
    """One batch of jobs, and the verdict on what they measured."""
    launch, planned = prepared.request.launch, with_jobs(prepared)
    up = planned.nodes.up() if planned.nodes is not None and not planned.nodes.unreachable else ()
    prepared = on_every_node(planned, up)
    doctor = _doctor(launch, max(run.nodes for run in prepared.plan.runs), say)
    yield prepared
    traces = prepared.folders.traces
    if pending := pending_runs([run.run_id for run in prepared.plan.runs], traces):
        states = describe_states(run_statuses(pending, traces))
        jobs = [job.name for job in prepared.jobs if not {run.run_id for run in job.runs}.isdisjoint(pending)]
        where = first_of(jobs, MAX_JOBS)  # a job of one node has the node in its name
        raise ComparisonError(
            f"{plural(len(pending), 'run')} of {where} still to be done ({states}): the same command goes on"
        )
    measured = read_measurement(traces, "traces", {})
    acceptance = _judge(options, reference, measured, doctor, [node.name for node in up])
    _conclude(options, acceptance, launch.out)
    if options.update_reference is not None:
        _update(options.update_reference, reference, acceptance.comparison, measured, say)
    return acceptance.status


def _doctor(launch: LaunchOptions, nodes: int, say: Say) -> tuple[CheckFinding, ...]:
    """What the doctor finds on as many nodes. Raises DoctorError, also for its other errors."""
    say(f"the doctor looks at {plural(nodes, 'node')}")
    try:
        return tuple(examine(Examination(launch=launch, nodes=str(nodes))))
    except DOCTOR_FAILURES as error:
        raise DoctorError(f"the doctor cannot look: {error}") from None


def _judge(
    options: AcceptOptions,
    reference: Reference,
    measured: Measurement,
    doctor: Sequence[CheckFinding],
    up: Sequence[str],
) -> Acceptance:
    comparison = compare_with_reference(str(options.reference), measured.results, measured.name, options.threshold)
    nodes = node_findings(measured.results, up, options.threshold, f"{datetime.now(UTC):%Y-%m-%d}")
    return Acceptance(
        comparison=dataclasses.replace(comparison, remarks=measured.remarks, refusals=measured.refusals),
        doctor=tuple(doctor), checks=check_findings(measured.results), nodes=tuple(nodes),
        collectives=collective_lines(measured.diagnostics),
    )  # fmt: skip


def _conclude(options: AcceptOptions, acceptance: Acceptance, folder: Path) -> None:
    """Shows the result, and writes it: as text, as JUnit XML if requested, and as JSON, which ends the test."""
    now = datetime.now(UTC)
    text = acceptance_text(acceptance, text_width())
    for line in ("", *text.splitlines()):
        print_whole(line)
    write_output(folder / TEXT, text)
    if options.junit is not None:
        write_output(options.junit, as_junit(acceptance.comparison, now, acceptance.findings))
    content = {
        "schema": "rankwise-acceptance", "version": 1, "status": acceptance.status, "verdict": verdict_line(acceptance),
        "date": f"{now:%Y-%m-%dT%H:%M:%SZ}", "by": _who(), "comparison": json.loads(as_json(acceptance.comparison)),
        "findings": [finding.to_json() for finding in (*acceptance.nodes, *acceptance.checks, *acceptance.doctor)],
        "collectives": list(acceptance.collectives),
    }  # fmt: skip
    write_output(folder / RESULT, json.dumps(content, indent=1) + "\n")
    print_whole("")
    say(f"{folder}; all tests: rankwise history {folder.parent}/*/traces")


def _update(path: Path, reference: Reference, comparison: Comparison, measured: Measurement, say: Say) -> None:
    """Writes the next reference, where every point has an interval."""
    if unknown := [point.name for point in comparison.points if point.interval is None]:
        say(f"{path}: not written: {', '.join(unknown)} without an interval of its speed")
        return
    write_output(path, next_reference(reference, comparison, measured.results, _who(), datetime.now(UTC)))
    say(f"{path}: the next reference, with the speeds of this test")


def _who() -> str:
    return f"{user_name()} on {socket.gethostname()}"
