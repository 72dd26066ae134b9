"""From attempts to the result of each point: measurement.md's arithmetic over the runs that ended ok."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from hpc.model.findings import CheckFinding
from hpc.model.outcome import FINAL_OUTCOMES, ExitRecord
from hpc.model.run_fields import RunFields
from hpc.system.text import grouped
from parse import stats
from parse.runs.attempt import Attempt, FromLog, Machine, Measured, RequestedRun, deciding_attempt, facts_of
from parse.runs.load import Loaded

MISSING = "missing"
UNENDED = "no record of its end"
UNMEASURED = "ok without numbers"
UNREACHED = "no number"
PERCENTILES = (5, 50, 95, 99)

MAX_APART = 1.25
"""Rows of a document with a larger ratio of their speeds are no repeats."""


class NoSpeedup(Enum):
    """Why a point has no speedup."""

    NO_TRAINING = 1
    NOT_OK = 2
    NO_BASE = 3
    """It is the only case of its setting."""
    BASE_NOT_OK = 4
    PLACEHOLDER = 5
    """Its document prints a word in the place of the speed."""
    BASE_PLACEHOLDER = 6
    UNKNOWN_DEVICES = 7
    """Neither its log nor names say how many devices it ran on."""
    NO_SPEED = 8
    """Runs ended ok, and none has a speed."""
    BASE_NO_SPEED = 9


class BaseError(ValueError):
    """No point has the case that was chosen as base; the text names the cases that there are."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One repeat of a point, with `every` attempt in order. `attempt` is the one its outcome is taken from; None where
    the run never came. `placeholder` is the word that a document prints in the place of a number (`OOM`, `TODO`).
    """

    requested: RequestedRun
    attempt: Attempt | None
    every: tuple[Attempt, ...] = ()
    placeholder: str = ""

    @property
    def attempts(self) -> int:
        return len(self.every)

    @property
    def ok_attempts(self) -> tuple[int, ...]:
        """The numbers of all that ended ok: of several the latest counts."""
        return tuple(attempt.number for attempt in self.every if attempt.outcome == "ok")

    @property
    def records(self) -> tuple[ExitRecord, ...]:
        """The exit records of all attempts that have one."""
        return tuple(attempt.record for attempt in self.every if attempt.record)

    @property
    def outcome_text(self) -> str:
        """The outcome, or the word shown where there is none."""
        if self.attempt is None:
            return self.placeholder or MISSING
        if self.attempt.outcome is None:
            return UNREACHED if self.attempt.log else UNENDED
        return UNMEASURED if self.attempt.outcome == "ok" and not self.attempt.measured else str(self.attempt.outcome)

    @property
    def run_id(self) -> str:
        """That of the attempt, whose trace has it; a plan of another version may name the same run otherwise."""
        return self.attempt.run_id if self.attempt else self.requested.run_id

    @property
    def measured(self) -> Measured | None:
        """Its numbers, where it ended ok."""
        return self.attempt.measured if self.attempt and self.attempt.counts else None

    @property
    def machine(self) -> Machine | None:
        return self.attempt.machine if self.attempt else None

    @property
    def record(self) -> ExitRecord | None:
        return self.attempt.record if self.attempt else None

    @property
    def log(self) -> FromLog | None:
        """The source of its numbers, if that is a log."""
        return self.attempt.log if self.attempt else None

    @property
    def trace(self) -> Path | None:
        return self.attempt.trace if self.attempt else None

    @property
    def is_pending(self) -> bool:
        """Whether it may still get a number: one of a log or a document may not, others until they are final."""
        if self.attempt is None:
            return not self.placeholder
        return not self.log and self.attempt.outcome not in FINAL_OUTCOMES


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number that a document prints: `what` is `median`, `average` or `speedup`, `decimals` the digits behind the
    point, `line` its line, counted from 1."""

    what: str
    value: float
    decimals: int
    line: int

    @property
    def text(self) -> str:
        return f"{self.value:.{self.decimals}f}"


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """The figures that a document prints of a point; a figure may occur in it more than once.

    `packed` are the logs that hold several jobs on the same devices, by name, with the speed printed for each; they are
    not runs. `wall_clock` is the speed in samples/s from the document's time to train, `wall_clock_from` its source.
    """

    document: Path
    figures: tuple[Figure, ...] = ()
    packed: tuple[tuple[str, float], ...] = ()
    wall_clock: float | None = None
    wall_clock_from: str = ""

    def all(self, what: str) -> tuple[Figure, ...]:
        """Every place where it prints this figure."""
        return tuple(figure for figure in self.figures if figure.what == what)

    @property
    def median(self) -> float | None:
        """The median speed as printed, in samples/s; where it prints one speed only, that."""
        return self._first("median")

    @property
    def average(self) -> float | None:
        return self._first("average")

    @property
    def speedup(self) -> float | None:
        return self._first("speedup")

    def _first(self, what: str) -> float | None:
        return next((figure.value for figure in self.all(what)), None)


@dataclass(frozen=True, kw_only=True)
class Base:
    """The point of a setting that its speedups are measured against: its key, its case and its devices.

    `chosen`: by its case (`--base`), not as the smallest. `smaller` are the smaller points that have no speed and will
    get none, each as (case, outcome).
    """

    point: str
    case: str
    devices: int
    chosen: bool = False
    smaller: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Result:
    """A point. Speeds are in its `unit`, over its ok runs; None where there is no such run, or too few for the number.

    `planned_runs` is None if no plan has their number. `speedup` is against `base`, None where the setting has none;
    `no_speedup` is the reason if there is no speedup, and `placeholders` are the words that the document prints in the
    place of its speed, or of its base's.
    `step_time_ms` is of single steps: a log that prints every tenth has none. `meetings_ms` are those of `Measured`, a
    mean over the runs. `mfu` is the median MFU over the ok runs, a share; `no_mfu` why there is none where the FLOPs of
    a token are recorded; both are empty where they are not. `published` is set if it was read from a document: without
    runs in it, the median is the one speed that it prints.
    """

    requested: RequestedRun
    runs: tuple[Run, ...]
    planned_runs: int | None
    median_speed: float | None = None
    average_speed: float | None = None
    cv: float | None = None
    interval: stats.Interval | None = None
    base: Base | None = None
    speedup: float | None = None
    no_speedup: NoSpeedup | None = None
    placeholders: tuple[str, ...] = ()
    step_time_ms: Mapping[int, float] = field(default_factory=dict)
    meetings_ms: Mapping[str, float] = field(default_factory=dict)
    mfu: float | None = None
    no_mfu: str = ""
    alarms: tuple[CheckFinding, ...] = ()
    published: Claimed | None = None

    @property
    def step_decimals(self) -> int:
        """The decimals of `step_time_ms` that its times have, two at most."""
        unit_ms = max((1e3 * run.measured.step_unit_s for run in self.ok if run.measured), default=0.0)
        return min(2, max(0, -math.floor(math.log10(unit_ms)))) if unit_ms else 2

    @property
    def run(self) -> RunFields:
        """The fields of its runs that are known."""
        return self.requested.run

    @property
    def devices(self) -> int:
        """Its devices; 0 where nobody states them: then it has no base."""
        return self.run.devices or 0

    @property
    def unit(self) -> str:
        """The unit of its speeds: `samples/s` or `tokens/s`."""
        return f"{self.run.unit}/s"

    @property
    def speed_text(self) -> str:
        """`200.25 samples/s`. Of a result with a speed."""
        return f"{self.median_speed:.2f} {self.unit}"

    @property
    def ok(self) -> tuple[Run, ...]:
        """The runs that the numbers come from."""
        return tuple(run for run in self.runs if run.measured)

    @property
    def contradiction(self) -> tuple[float, float] | None:
        """The least and the largest speed of rows that a document has for one size, where these are too far apart for
        repeats."""
        if self.published is None or any(run.log for run in self.ok):
            return None
        speeds = [run.measured.throughput for run in self.ok if run.measured]
        least, largest = min(speeds, default=0.0), max(speeds, default=0.0)
        return (least, largest) if largest > least * MAX_APART else None

    @property
    def for_ledger(self) -> tuple[Run, ...]:
        """The runs that say where time goes: those with numbers; without any, those that lack nothing but samples."""
        ended_ok = ((run, run.attempt) for run in self.runs if run.attempt and run.attempt.outcome == "ok")
        return self.ok or tuple(run for run, attempt in ended_ok if attempt.lacks_samples)

    @property
    def without_speed(self) -> tuple[str, ...]:
        """Why its runs that ended ok have no speed, where none has one; each reason once."""
        ended_ok = (run.attempt for run in self.runs if run.attempt and run.attempt.outcome == "ok")
        return () if self.ok else tuple(dict.fromkeys(attempt.problem for attempt in ended_ok if attempt.problem))

    @property
    def base_case(self) -> str:
        """The case that it is measured against; empty where there is none."""
        return self.base.case if self.base else ""

    @property
    def ideal(self) -> float | None:
        """The speedup of ideal scaling: its devices over those of its base."""
        return None if self.base is None else self.devices / self.base.devices

    @property
    def scaling_efficiency(self) -> float | None:
        return None if self.speedup is None or self.ideal is None else self.speedup / self.ideal

    @property
    def oversubscribed(self) -> str:
        """Why this is no scaling result; empty where every rank has its cores and device."""
        return self._first_reason("oversubscribed")

    @property
    def nodes_simulated(self) -> str:
        """The nodes that are only groups of ranks; empty if they are machines."""
        return self._first_reason("nodes_simulated")

    @property
    def apart(self) -> str:
        """Ranks that train each by itself, so that their speeds add up to nothing; empty where they meet."""
        return self._first_reason("apart")

    @property
    def no_scaling(self) -> str:
        """Why its speed is none of a real machine's ranks together; empty where it is."""
        return self.apart or self.oversubscribed or self.nodes_simulated

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The machines of its ok runs."""
        return tuple(run.machine for run in self.ok if run.machine)

    @property
    def facts(self) -> dict[str, set[str]]:
        """All facts of its ok runs, by name."""
        return facts_of(self.machines)

    def _first_reason(self, name: str) -> str:
        return next((reason for machine in self.machines if (reason := getattr(machine, name))), "")


def results(loaded: Loaded) -> tuple[Result, ...]:
    """The result of every point that is planned or was run, smaller cases before larger ones."""
    points = grouped((run.requested.point, run) for run in _runs(loaded))
    planned = {requested.key for requested in loaded.requested}
    return with_speedups([of_runs(runs, planned) for runs in points.values()])


def with_speedups(results_of_points: Iterable[Result]) -> tuple[Result, ...]:
    """The results of different points, each with its speedup or the reason why it has none, in the order of a table."""
    return tuple(sorted(against_base(results_of_points), key=_order))


def against_base(results_of_points: Iterable[Result], case: str = "") -> tuple[Result, ...]:
    """The results with their speedups against the point of that case in each setting that has it, else against the
    smallest. Raises BaseError where no setting has the case."""
    unscaled = list(results_of_points)
    settings = by_setting(result for result in unscaled if not result.run.diagnostic)
    cases = {result.requested.case: size(result) for points in settings.values() for result in points}
    if case and cases and case not in cases:
        raise BaseError(
            f"no point is of the case {case}; known here are {', '.join(sorted(cases, key=cases.__getitem__))}"
        )
    bases = {name: _base(points, case) for name, points in settings.items()}
    return tuple(_with_speedup(result, bases) for result in unscaled)


def by_setting(results_of_points: Iterable[Result]) -> dict[str, list[Result]]:
    """The results by their settings: those of one differ in size only."""
    return grouped((result.requested.setting, result) for result in results_of_points)


def size(result: Result) -> tuple[int, int]:
    """Devices and nodes."""
    return result.devices, result.run.nodes or 1


def _base(points: Sequence[Result], case: str) -> tuple[Base, Result] | None:
    """What speedups of a setting are measured against, and its result: the point of that case where there is one, else
    the smallest that has a speed or may still get one. None where a single point has nothing to be compared with."""
    ordered = sorted(points, key=lambda result: (*size(result), result.requested.point))
    chosen = next((result for result in ordered if result.requested.case == case), None)
    may_have = (each.median_speed is not None or any(run.is_pending for run in each.runs) for each in ordered)
    first = next((at for at, may in enumerate(may_have) if may), 0)
    result = chosen or ordered[first]
    if not result.devices or (len(points) == 1 and result.devices > 1):
        return None
    base = Base(
        point=result.requested.point,
        case=result.requested.case,
        devices=result.devices,
        chosen=chosen is not None,
        smaller=() if chosen else tuple((other.requested.case, _end(other)) for other in ordered[:first]),
    )
    return base, result


def _end(result: Result) -> str:
    """What became of the runs of a point without a speed."""
    return " and ".join(dict.fromkeys(run.outcome_text for run in result.runs)) or UNREACHED


def _runs(loaded: Loaded) -> list[Run]:
    attempts: dict[str, list[Attempt]] = defaultdict(list)
    requested: dict[str, RequestedRun] = {run_requested.key: run_requested for run_requested in loaded.requested}
    for attempt in loaded.attempts:
        if attempt.requested is not None:
            attempts[attempt.requested.key].append(attempt)
            requested.setdefault(attempt.requested.key, attempt.requested)
            if attempt.requested.cpus_decided:  # which the records of an attempt without a trace do not say
                requested[attempt.requested.key] = attempt.requested
    stated = {each.setting for each in requested.values() if not each.cpus_decided}
    return [_run(_among(run_requested, stated), attempts[key]) for key, run_requested in requested.items()]


def _among(requested: RequestedRun, stated: Collection[str]) -> RequestedRun:
    """The run; one whose threads a launcher decided with these as its setting, where others request as many."""
    same = dataclasses.replace(requested, cpus_decided=False) if requested.cpus_decided else requested
    return same if same.setting in stated else requested


def _run(requested: RequestedRun, attempts: list[Attempt]) -> Run:
    return Run(
        requested=requested,
        attempt=deciding_attempt(attempts) if attempts else None,
        every=tuple(sorted(attempts, key=lambda attempt: attempt.number)),
    )


def of_runs(runs: Sequence[Run], planned: Collection[str] = ()) -> Result:
    """The result of one point from its runs, still without speedup; `planned` are the keys of the requested runs."""
    runs = sorted(runs, key=lambda run: run.requested.run.repeat)
    result = Result(
        requested=runs[0].requested,
        runs=tuple(runs),
        planned_runs=sum(run.requested.key in planned for run in runs) or None,
    )
    measured = [run.measured for run in runs if run.measured]
    if not measured:
        return result
    speeds = [numbers.throughput for numbers in measured]
    return dataclasses.replace(
        result,
        median_speed=stats.median(speeds),
        average_speed=stats.mean(speeds),
        cv=stats.coefficient_of_variation(speeds),
        interval=stats.median_interval(speeds),
        step_time_ms=_step_time_ms(measured),
        **_mfu(measured),
        meetings_ms={
            name: 1e3 * stats.mean([numbers.meetings_s[name] for numbers in measured])
            for name in measured[0].meetings_s
            if all(name in numbers.meetings_s for numbers in measured)
        },
    )


def _mfu(measured: Sequence[Measured]) -> dict[str, Any]:
    """`mfu` and `no_mfu` of a point; an MFU needs that of every run, against one peak."""
    its = [numbers.utilisation for numbers in measured]
    shares = [utilisation.share for utilisation in its if utilisation.share is not None]
    if reason := next((utilisation.reason for utilisation in its if utilisation.reason), ""):
        return {"no_mfu": reason}
    if len({utilisation.peak_tflops for utilisation in its}) > 1:
        return {"no_mfu": "its runs had devices of different peaks"}
    return {"mfu": stats.median(shares)} if shares else {}


def _step_time_ms(measured: Sequence[Measured]) -> dict[int, float]:
    """Percentiles over the steps of all runs, in no finer unit than that of the times; means over several steps are no
    step times."""
    of_steps = [numbers for numbers in measured if numbers.printed_every == 1 and len(numbers.step_s)]
    if not of_steps:
        return {}
    step_ms = np.percentile(np.concatenate([numbers.step_s for numbers in of_steps]) * 1e3, PERCENTILES)
    if unit_s := max(numbers.step_unit_s for numbers in of_steps):
        step_ms = np.round(step_ms, -math.floor(math.log10(1e3 * unit_s)))
    return dict(zip(PERCENTILES, step_ms.tolist(), strict=True))


def _with_speedup(result: Result, bases: Mapping[str, tuple[Base, Result] | None]) -> Result:
    """The result with its base and its speedup against it, or the reason why it has none."""
    base, of_base = (None if result.run.diagnostic else bases[result.requested.setting]) or (None, None)
    placeholders: tuple[str, ...] = ()
    speedup, reason = None, None
    if result.run.diagnostic:
        reason = NoSpeedup.NO_TRAINING
    elif result.median_speed is None:
        placeholders = _placeholders(result)
        ended = NoSpeedup.NO_SPEED if result.without_speed else NoSpeedup.NOT_OK
        reason = NoSpeedup.PLACEHOLDER if placeholders else ended
    elif not result.devices:
        reason = NoSpeedup.UNKNOWN_DEVICES
    elif of_base is None:
        reason = NoSpeedup.NO_BASE
    elif of_base.median_speed is None:
        placeholders = _placeholders(of_base)
        ended = NoSpeedup.BASE_NO_SPEED if of_base.without_speed else NoSpeedup.BASE_NOT_OK
        reason = NoSpeedup.BASE_PLACEHOLDER if placeholders else ended
    else:
        speedup = result.median_speed / of_base.median_speed
    return dataclasses.replace(result, base=base, speedup=speedup, no_speedup=reason, placeholders=placeholders)


def _placeholders(result: Result) -> tuple[str, ...]:
    """The document's words in the place of speeds."""
    return tuple(dict.fromkeys(run.placeholder for run in result.runs if run.placeholder))


def _order(result: Result) -> tuple[str, str, int, str, str, str, str, int, int]:
    """The sort key of its row in a table; unknown values sort like the simplest value.

    Measurements of one setting follow one another, the earliest first.
    """
    run, measurement = result.run, result.requested.measurement
    date, folder = (measurement.date, measurement.folder) if measurement else ("", "")
    return (
        run.workload or "?",
        run.backend,
        (run.global_batch_size if result.requested.strong else run.batch_size) or 1,
        run.precision or "fp32",
        dataclasses.replace(result.requested, measurement=None).setting,
        date,
        folder,
        result.devices,
        run.nodes or 1,
    )


# How a point scales, in the words of every output: conclusion, page, paper, ledger, charts.


def scaling_text(result: Result) -> tuple[str, str]:
    """`3.14 × as fast as 1n8g on 4 times the devices`, and `79 %` of ideal; over one device the case has the number."""
    assert result.speedup is not None and result.scaling_efficiency is not None and result.base
    on = "" if result.base.devices == 1 else f" on {times_devices(result)}"
    return f"{result.speedup:.2f} × as fast as {result.base.case}{on}", f"{result.scaling_efficiency * 100:.0f} %"


def times_devices(result: Result) -> str:
    """`4 times the devices`: those of the point, against those of its base."""
    match result.ideal:
        case 1:
            return "as many devices"
        case 2:
            return "twice the devices"
        case times:
            return f"{times:,.0f} times the devices" if times and times >= 1000 else f"{times:.3g} times the devices"


def ideal_text(base_devices: Iterable[int]) -> str:
    """The speedup of ideal scaling over bases of so many devices."""
    return "the number of devices" if all(devices == 1 for devices in base_devices) else "the ratio of the devices"
