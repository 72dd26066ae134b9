"""What points cost: node hours and energy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpc.model.outcome import ExitRecord, Outcome
from hpc.model.spec import SAMPLES, TOKENS
from parse import stats
from parse.runs.result import Result

MILLION = 1e6
J_PER_KWH = 3.6e6
LOCAL = "local"
"""The site of runs on this machine, whose nodes are simulated."""
JobKey = tuple[str, str, str]
"""A job by its measurement's folder, its site and its id."""


def node_hours_of_work(nodes: float, speed: float, work: float = MILLION) -> float:
    """The node hours that so many samples take at a speed of all nodes, in samples/s."""
    return nodes * work / speed / 3600


@dataclass(frozen=True, kw_only=True)
class EnergyCost:
    """What a sample (token) of a point takes in J, medians over its `runs` with a reading; None where it is not
    metered. `bound_j` is the largest of theirs, `sensor` what is stated of the GPUs' sensor, as a
    share.
    """

    joules: float
    gpus_j: float | None
    cpus_j: float | None
    bound_j: float
    sensor: float | None
    runs: int
    kwh_per_million: float
    unmetered: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What attempts have taken, each from its begin to its end on all nodes of its job: what a job does before, between
    and after them is not in it. `failed` are attempts that did not end ok, `unrecorded` those without a record of their
    end, or with an end before the begin, which are in no sum. Of `by_wall_clock` the duration is by a node's wall clock
    alone, which nobody could have seen being set. `kwh` were counted in so many `metered`
    attempts, from telemetry's first reading to its last, failed ones with a whole trace among them.
    """

    node_hours: float = 0.0
    attempts: int = 0
    failed_node_hours: float = 0.0
    failed: int = 0
    unrecorded: int = 0
    by_wall_clock: int = 0
    kwh: float = 0.0
    metered: int = 0


def node_hours_per_million(result: Result) -> float | None:
    """Those of a million samples or tokens at the median speed; None where the nodes or the speed are not known."""
    nodes = machines(result)
    if not nodes or not result.median_speed or result.run.unit not in (SAMPLES, TOKENS):
        return None
    return node_hours_of_work(nodes, result.median_speed)


def energy_cost(result: Result) -> EnergyCost | None:
    """The energy of a point's samples; None where no run of it has a reading (`no_energy` says why)."""
    measured = [run.measured for run in result.ok if run.measured and run.measured.energy.joules is not None]
    if not measured:
        return None

    def each(name: str) -> float | None:
        values = [(getattr(numbers.energy, name), numbers.samples) for numbers in measured]
        known = [value / samples for value, samples in values if value is not None]
        return stats.median(known) if len(known) == len(values) else None

    joules = each("joules")
    assert joules is not None
    its = [numbers.energy for numbers in measured]
    return EnergyCost(
        joules=joules, gpus_j=each("gpus_j"), cpus_j=each("cpus_j"),
        bound_j=max(numbers.energy.bound_j / numbers.samples for numbers in measured), sensor=its[0].sensor,
        runs=len(its), kwh_per_million=joules * MILLION / J_PER_KWH,
        unmetered=tuple(dict.fromkeys(name for energy in its for name in energy.unmetered)),
    )  # fmt: skip


def no_energy(result: Result) -> str:
    """Why a point has no energy; empty where it has, and where nothing could have been read: of logs and documents."""
    if energy_cost(result) is not None:
        return ""
    return next((run.measured.energy.reason for run in result.ok if run.measured and run.measured.energy.reason), "")


def machines(result: Result) -> int | None:
    """Its nodes, of simulated ones the one machine; None where they are not known."""
    simulated = result.nodes_simulated or (result.run.site == LOCAL and not result.machines)
    return 1 if simulated else result.run.nodes


def nodes_held(results: Iterable[Result]) -> Mapping[JobKey, int]:
    """By job the nodes of its largest point: smaller nested points leave some idle."""
    held: dict[JobKey, int] = {}
    for result in results:
        for record in _records(result):
            job = _job(result, record)
            held[job] = max(held.get(job, 0), machines(result) or 0)
    return held


def spent(results: Sequence[Result], held: Mapping[JobKey, int] | None = None) -> Spent:
    """What all attempts of these points have taken, in jobs that `held` so many nodes: by default those of the points
    themselves."""
    held = nodes_held(results) if held is None else held
    total, failed, failures, attempts, by_wall_clock = 0.0, 0.0, 0, 0, 0
    for result in results:
        for record in _records(result):
            hours = held[_job(result, record)] * (record.elapsed_s or 0.0) / 3600
            total, attempts, by_wall_clock = total + hours, attempts + 1, by_wall_clock + (record.duration_ms < 0)
            if record.outcome is not Outcome.OK:
                failed, failures = failed + hours, failures + 1
    metered = [
        measured.energy.whole_j / J_PER_KWH
        for result in results
        for run in result.runs
        if run.attempt and (measured := run.attempt.measured) and measured.energy.joules is not None
    ]
    return Spent(
        kwh=sum(metered), metered=len(metered),
        node_hours=total, attempts=attempts, failed_node_hours=failed, failed=failures, unrecorded=_unrecorded(results),
        by_wall_clock=by_wall_clock,
    )  # fmt: skip


def _records(result: Result) -> Iterable[ExitRecord]:
    """Those that tell a duration; without a monotonic one, where the node's clock was set back, none does."""
    timed = (record for run in result.runs for record in run.records if record.elapsed_s is not None)
    return timed if machines(result) else ()


def _job(result: Result, record: ExitRecord) -> JobKey:
    measurement = result.requested.measurement
    return (measurement.folder if measurement else "", result.run.site or "", record.job_id or record.stem)


def _unrecorded(results: Iterable[Result]) -> int:
    """Attempts of traces without a duration in an exit record; logs and documents have none of either."""
    of_traces = (each for each in results if each.published is None and not any(run.log for run in each.runs))
    runs = [run for result in of_traces for run in result.runs]
    return sum(run.attempts - sum(record.elapsed_s is not None for record in run.records) for run in runs)
