"""An attempt, reduced to the needs of a summary: its numbers and its machine, without its time stamps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.model.findings import CHECKS, CheckFinding, read_finding
from hpc.model.groups import GROUP, NAME, NO_CALL, CallTable
from hpc.model.outcome import FINAL_OUTCOMES, ExitRecord, Outcome, clock_shift_s
from hpc.model.run_fields import RunFields
from hpc.model.timestamps import ABSENT, END
from hpc.model.trace import RankReport, Trace, TraceError
from hpc.model.training import TrainingHistory
from hpc.system.text import grouped, natural
from parse import stats
from parse.runs.machine_use import Energy, Utilisation, apart, energy_of, nodes_simulated, oversubscribed, utilisation

COMMIT = "commit of this project"
"""The fact of a machine that is the commit of this project."""
CODE = "code of this project"
"""The fact that is the version of this project and the digest of what of it ran on the nodes."""


@dataclass(frozen=True, kw_only=True)
class MeasuredFolder:
    """A folder of traces that measured the same runs as another one, and the days (UTC) on which its first and its last
    attempt began: `2026-05-14` or `2026-05-14 to 2026-05-16`; empty if nothing records them."""

    folder: str
    date: str = ""


@dataclass(frozen=True, kw_only=True)
class RequestedRun:
    """A run as described by a plan, a trace, a log or a document, with the `run_id` of that description.

    `extra` are fields of a later version, and for a log the fields that distinguish its point (such as its folder).
    `target_env` are the environment variables that the target (a site, or this machine) sets for every
    run, from its plan: those of `run.env` that were not requested by `--env`. `measurement` is None unless the same
    runs were measured more than once.

    `setting_extra` and `strong` are of logs and act on their settings alone: fields in the place of those of `extra`,
    and whether the logs that are equal in all else have one global batch size. `cpus_decided`: a launcher or the
    machine decided its `cpus_per_rank`, which are a fact of the point and no setting.
    """

    run: RunFields
    run_id: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    target_env: Mapping[str, str] = field(default_factory=dict)
    measurement: MeasuredFolder | None = None
    setting_extra: Mapping[str, Any] | None = None
    strong: bool = False
    cpus_decided: bool = False

    @cached_property
    def distinction(self) -> Mapping[str, Any]:
        """The fields beside those of `run` that distinguish points."""
        return {**self.extra, "measurement": self.measurement.folder} if self.measurement else self.extra

    @cached_property
    def point(self) -> str:
        """Equal for exactly the repeats of a point in one measurement, whatever version named them."""
        return self.run.key(self.distinction, repeat=1)

    @cached_property
    def key(self) -> str:
        """Equal for the same run of one measurement, whatever version named it."""
        return self.run.key(self.distinction)

    @cached_property
    def setting(self) -> str:
        """Equal for points that differ in size only: the key of the one at 1n1g."""
        instead = {**self.run.on_one_rank, "repeat": 1}
        if self.strong:
            instead |= {"batch_size": self.run.global_batch_size, "scaling": "strong"}
        if self.cpus_decided:
            instead["cpus_per_rank"] = None
        extra = self.distinction if self.setting_extra is None else {**self.distinction, **self.setting_extra}
        return self.run.key(extra, **instead)

    @property
    def case(self) -> str:
        """As that of its fields, `2n8g` or `16g`."""
        return self.run.case

    @cached_property
    def partly(self) -> bool:
        """Whether fields of it are unknown."""
        return self.run.is_partial


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The numbers of a window; speeds and `samples` are in the run's unit.

    `clock_share`: the speed's uncertainty from the clocks' bounds, as a share.

    `step_s` are step times in s: of every step, or, if a log prints every `printed_every` steps, means over that many;
    empty if a log prints no times; `step_unit_s` is the finest unit that it prints, 0 of a trace. `mean_of_rates` is
    None if there are no rates. `pauses_s` are the times from the end of a block to the begin of the next, which no
    speed counts. `meetings_s` has, by name, the time that each collective that is recorded takes, a mean over ranks and
    steps, from a rank's arrival to its end; of ranks in groups all that they call, by name and dimension, `all-reduce
    (tp)`. `utilisation` is the MFU of a training whose FLOPs are recorded, `energy` what the steps took.
    `latest_end_ns` [step] is when the last rank ended each step that all ranks made, warm-up included, and `blocks` are
    the measured steps, (first, stop); None and empty for a log.
    """

    throughput: float
    mean_of_rates: float | None
    step_s: npt.NDArray[np.float64]
    samples: int
    clock_share: float
    printed_every: int = 1
    step_unit_s: float = 0.0
    pauses_s: tuple[float, ...] = ()
    meetings_s: Mapping[str, float] = field(default_factory=dict)
    utilisation: Utilisation = field(default_factory=Utilisation)
    energy: Energy = field(default_factory=Energy)
    latest_end_ns: npt.NDArray[np.int64] | None = None
    blocks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ClockContradiction:
    """The clocks of a rank's device and of its host exclude one another, by up to `off_ms`: `steps` of `of_steps` have
    no times. The device's clock made so many `jumps`."""

    rank: int
    steps: int
    of_steps: int
    jumps: int
    off_ms: float


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine of a run. `facts` (device, driver, versions, …) has all values of its ranks, sorted.

    `hosts` are the names of the nodes, sorted; fewer than the run's nodes if those are simulated.
    `oversubscribed`, `nodes_simulated`, `apart` and `built_otherwise` hold the reason, empty if they do not apply.
    `unfused`: the timing of phases split operations that the framework fuses. `synchronises`: the host waits for the
    device every step. `findings` are those of the checks at its start, `options` those of backend and workload in
    effect. `contradictions` are those of devices' clocks.
    """

    ranks: int
    facts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    oversubscribed: str = ""
    nodes_simulated: str = ""
    apart: str = ""
    unfused: bool = False
    synchronises: bool = False
    built_otherwise: str = ""
    findings: tuple[CheckFinding, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    contradictions: tuple[ClockContradiction, ...] = ()


def facts_of(machines: Iterable[Machine]) -> dict[str, set[str]]:
    """All facts of the machines, by name."""
    facts = grouped(pair for machine in machines for pair in machine.facts.items())
    return {name: set().union(*values) for name, values in facts.items()}


@dataclass(frozen=True, kw_only=True)
class FromLog:
    """The source of a run's numbers in a log. Speeds in the run's unit per second; None if the log has none.

    `window` is text: `steps 20 to 120 of epoch 0`. `wall_clock` comes from time stamps, `printed` is the mean
    of the printed speeds. `remarks` are peculiarities of this log, a line each. `steady_run` is the speed of the
    whole run from the window's begin on, pauses left out, by what gives the result; `steady_window` are its steps.
    `mlperf_s` is MLPerf's time to train, run_stop - run_start of a run that succeeded; `stated` the median of the rates
    that it states in tracked_stats, its own claim.
    """

    path: Path
    log_format: str
    window: str
    wall_clock: float | None
    printed: float | None
    remarks: tuple[str, ...] = ()
    steady_run: float | None = None
    steady_window: str = ""
    mlperf_s: float | None = None
    stated: float | None = None


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One launch of a run. No `outcome`: it began and has no record of its end.

    `record` is its exit record, where one is here. `begin_unix_s` is when it began, in s since 1970, None where neither
    trace nor record has it. `recovered`: its trace was made of what dead ranks left.
    `problem` is why it has no numbers although it should have. `log` is there where it was read from a log: then `ok`
    means that steps of the log could be counted, and there is no outcome where none could. `history` is that of a
    whole training. `lacks_samples`: its trace is whole but for its samples, so that it has a ledger and no speed.
    `summarized` is the trace that it had where it is read from a summary, which need not be there any more.
    `clock_shift_s` is by how much the wall clock of a node was set between two comparisons with its monotonic one.
    """

    run_id: str
    number: int
    requested: RequestedRun | None
    outcome: Outcome | None
    evidence: str = ""
    measured: Measured | None = None
    machine: Machine | None = None
    steps_completed: int | None = None
    trace: Path | None = None
    problem: str = ""
    record: ExitRecord | None = None
    begin_unix_s: int | None = None
    recovered: bool = False
    log: FromLog | None = None
    history: TrainingHistory | None = None
    lacks_samples: bool = False
    summarized: Path | None = None
    clock_shift_s: float = 0.0

    @property
    def counts(self) -> bool:
        """Whether it gives its run a number."""
        return self.outcome is Outcome.OK and self.measured is not None


def deciding_attempt(attempts: Iterable[Attempt]) -> Attempt:
    """The attempt that its run's outcome is taken from: the latest ok one with numbers, the latest ok, the latest that
    is final, else the last. A rerun of a final run (--force) therefore counts."""
    ordered = sorted(attempts, key=lambda attempt: attempt.number)
    ranks = (
        [attempt for attempt in ordered if attempt.counts],
        [attempt for attempt in ordered if attempt.outcome is Outcome.OK],
        [attempt for attempt in ordered if attempt.outcome in FINAL_OUTCOMES],
        ordered,
    )
    return next(rank[-1] for rank in ranks if rank)


class NoSamplesError(TraceError):
    """The window is whole, and how many samples its steps take is not known: it has no speed."""


def measure(trace: Trace) -> Measured:
    """The numbers of the trace's window. Raises NoSamplesError where it counts no samples, TraceError where it is not
    whole."""
    if not len(trace.blocks):
        raise TraceError("it has no measured block")
    ends_ns = trace.stamps[:, :, END]
    for first, stop in trace.blocks:
        if (ends_ns[:, first - 1 : stop] == ABSENT).any():
            raise TraceError(f"ranks lack the end of a step among {first - 1} to {stop - 1}")
    latest_end_ns = trace.globally(ends_ns).max(axis=0)
    samples = trace.samples[:, :].sum(axis=0, dtype=np.int64)
    counted = sum(int(samples[first:stop].sum()) for first, stop in trace.blocks)
    if counted <= 0:
        script = trace.reports[0].extra.get("script")
        known = script.get("data_replicas") if isinstance(script, Mapping) else None
        if isinstance(known, Mapping) and known.get("reason"):
            raise NoSamplesError(str(known["reason"]))
        stated = "; --batch-size N states how many a rank's step takes" if trace.run.is_script else ""
        raise NoSamplesError(f"it counts no samples in its measured blocks{stated}")
    step_s = stats.step_times_s(latest_end_ns, trace.blocks)
    if step_s.min() <= 0:
        raise TraceError("a step ends before the one in front of it")
    duration_ns = sum(stats.block_durations_ns(latest_end_ns, trace.blocks))
    edges = np.concatenate([trace.blocks[:, 0], trace.blocks[:, 1]]) - 1
    throughput = stats.throughput(latest_end_ns, samples, trace.blocks)
    return Measured(
        throughput=throughput,
        mean_of_rates=stats.mean_of_rates(latest_end_ns, samples, trace.blocks),
        step_s=step_s,
        samples=counted,
        pauses_s=stats.pauses_s(latest_end_ns, trace.blocks),
        clock_share=float(trace.bounds_of(ends_ns[:, edges]).max(axis=0).sum()) / duration_ns,
        meetings_s=_meetings_s(trace),
        utilisation=utilisation(trace, throughput),
        energy=energy_of(trace, ends_ns),
        latest_end_ns=latest_end_ns[: int(trace.steps_completed.min())],
        blocks=tuple((first, stop) for first, stop in trace.blocks.tolist()),
    )


# What the collectives and messages that ranks wait for take of a step, by name.

PIECE_STAMPS = 3_000_000
"""Stamps of calls in groups that are read at once; it bounds the memory."""


def _meetings_s(trace: Trace) -> dict[str, float]:
    """Means over all ranks and measured steps, those of one name together; of ranks in groups those of one dimension,
    `all-reduce (tp)`. Empty without any."""
    if trace.meetings is None:
        return {}
    return _of_all(trace) if trace.calls is None else _by_dimension(trace, trace.calls)


def _of_all(trace: Trace) -> dict[str, float]:
    """Of ranks that all call the same; without those that a rank lacks in some step."""
    assert trace.meetings is not None
    taken_ns, whole = np.zeros(len(trace.meeting_names)), np.ones(len(trace.meeting_names), bool)
    for first, stop in trace.blocks:
        arrives, waits, ends = np.moveaxis(np.asarray(trace.meetings[:, first:stop]), 3, 0)
        whole &= ((arrives != ABSENT) & (ends != ABSENT)).all(axis=(0, 1))
        begin = np.where(waits == ABSENT, arrives, waits)
        taken_ns += np.where(whole, ends - begin, 0).mean(axis=0).sum(axis=0)
    steps = int(np.diff(trace.blocks).sum())
    total_s: dict[str, float] = {}
    for name, its_ns, known in zip(trace.meeting_names, taken_ns.tolist(), whole, strict=True):
        if known:
            total_s[name] = total_s.get(name, 0.0) + its_ns / steps / 1e9
    return total_s


def _by_dimension(trace: Trace, table: CallTable) -> dict[str, float]:
    """Of ranks in groups; a rank or a step that has none of a name counts as 0, a call whose result nobody waits for
    takes nothing. Left out are names for whose results no rank waits in any step."""
    assert trace.meetings is not None
    taken_ns, ever = np.zeros(table.calls.shape[:2], np.int64), np.zeros(table.calls.shape[:2], np.bool_)
    for first, stop in _pieces(trace, table):
        arrives, waits, ends = np.moveaxis(np.asarray(trace.meetings[:, first:stop], np.int64), 3, 0)
        present = (arrives != ABSENT) & (ends != ABSENT)
        begin = np.where(waits == ABSENT, arrives, waits)
        taken_ns += np.where(present, ends - begin, 0).sum(axis=1)
        ever |= present.any(axis=1)
    counted = len(table.calls) * int(np.diff(trace.blocks).sum())
    total_s: dict[str, float] = {}
    for rank, call in np.argwhere(ever & (table.calls[..., NAME] != NO_CALL)).tolist():
        name, group = table.names[table.calls[rank, call, NAME]], table.groups[table.calls[rank, call, GROUP]]
        label = f"{name} ({group.dimension})" if group.dimension else name
        total_s[label] = total_s.get(label, 0.0) + int(taken_ns[rank, call]) / counted / 1e9
    return total_s


def _pieces(trace: Trace, table: CallTable) -> Iterator[tuple[int, int]]:
    """First step and stop of each piece of the measured blocks."""
    length = max(1, PIECE_STAMPS // max(1, 3 * table.calls[..., NAME].size))
    for first, stop in trace.blocks.tolist():
        for begin in range(first, stop, length):
            yield begin, min(begin + length, stop)


def clock_shift_of(trace: Trace) -> float:
    """By how much the wall clock of a rank's node was set during the trace, in s: the largest; 0 where none was."""
    if trace.unix_offset_ns is None or trace.unix_offset_ns.shape[1] < 2:
        return 0.0
    offset_s = (trace.unix_offset_ns - trace.unix_offset_ns[:, :1]) / 1e9
    span_s = (trace.clock_local_ns - trace.clock_local_ns[:, :1]) / 1e9
    shifts = [clock_shift_s(span + offset, span) for offset, span in zip(offset_s.flat, span_s.flat, strict=True)]
    return max(shifts, key=abs)


def cpus_decided(reports: Sequence[RankReport]) -> bool:
    """Whether nobody requested the threads of these ranks: a launcher decided, or the machine."""
    return _table(reports[0].extra, "script").get("cpus_decided") is True


def describe(trace: Trace) -> Machine:
    """The machine as the trace describes it."""
    reports, project = trace.reports, _table(trace.environment, "project")
    compared = (pair for report in reports for pair in _compared(report, project).items())
    values = grouped((name, str(value)) for name, value in compared if value is not None)
    return Machine(
        ranks=len(reports),
        facts={name: tuple(sorted({*met})) for name, met in sorted(values.items())},
        hosts=tuple(sorted({report.hostname for report in reports if report.hostname}, key=natural)),
        oversubscribed=oversubscribed(trace.run, reports),
        nodes_simulated=nodes_simulated(trace.run, reports),
        apart=apart(reports),
        unfused=any(report.backend_fact("fused") is False for report in reports),
        synchronises=any(report.backend_fact("synchronises_every_step") is True for report in reports),
        built_otherwise=next((difference for report in reports if (difference := _built_otherwise(report))), ""),
        findings=_findings(trace.environment),
        options={name: _option_text(value) for name, value in _table(trace.environment, "options").items()},
        contradictions=tuple(_contradictions(reports)),
    )


def _contradictions(reports: Sequence[RankReport]) -> Iterator[ClockContradiction]:
    for rank, report in enumerate(reports):
        record = _table(_table(report.extra, "script"), "clock_contradiction")
        numbers: list[Any] = [record.get(name) for name in ("steps", "of_steps", "jumps", "off_ns")]
        if all(type(value) is int and value >= 0 for value in numbers):
            steps, of_steps, jumps, off = numbers
            yield ClockContradiction(rank=rank, steps=steps, of_steps=of_steps, jumps=jumps, off_ms=off / 1e6)


def _option_text(value: object) -> str:
    """The value of an option as on the command line."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _findings(environment: Mapping[str, Any]) -> tuple[CheckFinding, ...]:
    """The findings of the checks at the start, in their order, without checks of a later version."""
    checks = _table(environment, "preflight")
    findings = []
    for name in [*(name for name in CHECKS if name in checks), *sorted(set(checks) - set(CHECKS))]:
        try:
            findings.append(read_finding(checks[name]))
        except ValueError:
            continue
    return tuple(findings)


def _compared(report: RankReport, project: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that make two runs incomparable where they differ."""
    device, commit = report.device or {}, project.get("commit")
    return {
        **(report.software or {}),
        "device": device.get("name", device.get("kind")),
        "driver": report.nvidia_driver or report.amdgpu_driver,
        "cpu": report.cpu_model,
        "transport": report.backend_fact("transport"),
        COMMIT: commit and f"{commit}{' with changes' if project.get('dirty') else ''}",
        CODE: project.get("code"),
    }


def _built_otherwise(report: RankReport) -> str:
    """The differences between the framework that ran and the one that the rank's Horovod was compiled with."""
    built, ran = _table(report.backend or {}, "horovod_built_against"), report.software or {}
    return "; ".join(
        f"Horovod was built against {name} {built[name]} and ran with {ran[name]}"
        for name in ("torch", "tensorflow")
        if built.get(name) and ran.get(name) and built[name] != ran[name]
    )


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = values.get(name)
    return table if isinstance(table, Mapping) else {}
