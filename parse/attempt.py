"""An attempt, reduced to what a summary needs: its numbers and what it ran on, without its stamps."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.model.checks import CHECKS
from hpc.model.findings import Finding, read_finding
from hpc.model.outcome import FINAL_OUTCOMES, ExitRecord, Outcome
from hpc.model.spec import RunSpec
from hpc.model.timestamps import ABSENT, END
from hpc.model.trace import Trace, TraceError
from hpc.system.text import plural
from parse import stats


@dataclass(frozen=True, kw_only=True)
class RequestedRun:
    """A run as a plan, a trace or a log describes it; `extra` are the fields that only a later version knows, and of a
    log those that tell its point from others (the folder it lies in).

    `unknown` names the fields of `run` that nobody knows, because a log does not say them: what stands in them is a
    placeholder, never shown and never compared. `nodes` among them: only the number of devices is known; `repeat`: its
    number is not its name's. `target_env` are the environment variables that the target (a site, or this machine) sets
    for every run, as its plan says: those of `run.env` that nobody asked for by `--env`.
    """

    run: RunSpec
    run_id: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    target_env: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def point(self) -> str:
        """Equal for the repeats of a point and for nothing else, whatever version named them."""
        return _key(dataclasses.replace(self.run, repeat=1), self.extra, self.unknown)

    @cached_property
    def key(self) -> str:
        """Equal for the same run, whatever version named it."""
        return _key(self.run, self.extra, self.unknown)

    @cached_property
    def baseline_point(self) -> str:
        """The point at 1n1g with all else equal; one device is on one node, whoever says so or not."""
        unknown = tuple(name for name in self.unknown if name != "nodes")
        return _key(dataclasses.replace(self.run.baseline(), repeat=1), self.extra, unknown)

    @property
    def case(self) -> str:
        """Nodes and devices of each, `2n8g`; only the devices, `16g`, where nobody knows on how many nodes."""
        return f"{self.run.devices}g" if "nodes" in self.unknown else self.run.case

    @property
    def partly(self) -> bool:
        """Whether it is known only in part, as from a log: what it lacks is then not known, rather than not asked."""
        return bool(self.unknown)


_FIELDS = tuple(field_of_run.name for field_of_run in dataclasses.fields(RunSpec))


def _key(run: RunSpec, extra: Mapping[str, Any], unknown: Sequence[str]) -> str:
    known = {name: getattr(run, name) for name in _FIELDS if name == "repeat" or name not in unknown}
    return json.dumps([known, extra], sort_keys=True)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The numbers of a window. `clock_share`: how much of the speed the clocks' bounds leave open, as a share.

    `step_s` are step times in s: of every step, or, where a log prints every `printed_every` steps, means over as many;
    empty where a log prints nothing they could come from. `mean_of_rates` is None where there are no rates. `pauses_s`
    are the times between blocks, from the end of one to where the next begins, that no speed counts.
    """

    throughput: float
    mean_of_rates: float | None
    step_s: npt.NDArray[np.float64]
    samples: int
    clock_share: float
    printed_every: int = 1
    pauses_s: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a run found. Of `facts` (device, driver, versions, …) all values that its ranks have, sorted.

    `hosts` are the names of the nodes, sorted; fewer than the run has nodes where those are simulated.
    `oversubscribed`, `nodes_simulated` and `built_otherwise` hold the reason, empty where they are not so. `unfused`:
    the timing of phases took apart what the framework does in one. `synchronises`: the host waits for the device every
    step.
    `findings` are those of the checks at its start.
    """

    ranks: int
    facts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    oversubscribed: str = ""
    nodes_simulated: str = ""
    unfused: bool = False
    synchronises: bool = False
    built_otherwise: str = ""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FromLog:
    """Where a run's numbers come from that was read from a log. Speeds in samples/s; None where the log has none.

    `window` says it in words: `steps 20 to 120 of epoch 0`. `wall_clock` comes from time stamps, `printed` is the mean
    of what the log prints. `remarks` are what is odd about this log, each a line.
    """

    path: Path
    log_format: str
    window: str
    wall_clock: float | None
    printed: float | None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One launch of a run. No `outcome`: it began and nothing says how it ended.

    `record` is its exit record, where one is here.
    `problem` says why it has no numbers although it should have. `log` is there where it was read from a log: then `ok`
    means that the log reaches the end of the window, and there is no outcome where it does not.
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
    log: FromLog | None = None

    @property
    def counts(self) -> bool:
        """Whether it gives its run a number."""
        return self.outcome is Outcome.OK and self.measured is not None


def settling(attempts: Iterable[Attempt]) -> Attempt:
    """The attempt that its run's outcome is taken from: the latest ok one with numbers, the latest ok, the latest that
    is final, else the last. Who runs a final run again (--force) wants the new one to count."""
    ordered = sorted(attempts, key=lambda attempt: attempt.number)
    ranks = (
        [attempt for attempt in ordered if attempt.counts],
        [attempt for attempt in ordered if attempt.outcome is Outcome.OK],
        [attempt for attempt in ordered if attempt.outcome in FINAL_OUTCOMES],
        ordered,
    )
    return next(rank[-1] for rank in ranks if rank)


def measure(trace: Trace) -> Measured:
    """The numbers of the trace's window. Raises TraceError where the window is not whole."""
    if not len(trace.blocks):
        raise TraceError("it has no measured block")
    for first, stop in trace.blocks:
        if (trace.stamps[:, first - 1 : stop, END] == ABSENT).any():
            raise TraceError(f"ranks lack the end of a step among {first - 1} to {stop - 1}")
    latest_end_ns = trace.to_global(END).max(axis=0)
    samples = trace.samples.sum(axis=0, dtype=np.int64)
    step_s = stats.step_times_s(latest_end_ns, trace.blocks)
    if step_s.min() <= 0:
        raise TraceError("a step ends before the one in front of it")
    duration_ns = sum(stats.block_durations_ns(latest_end_ns, trace.blocks))
    edges = np.concatenate([trace.blocks[:, 0], trace.blocks[:, 1]]) - 1
    return Measured(
        throughput=stats.throughput(latest_end_ns, samples, trace.blocks),
        mean_of_rates=stats.mean_of_rates(latest_end_ns, samples, trace.blocks),
        step_s=step_s,
        samples=sum(int(samples[first:stop].sum()) for first, stop in trace.blocks),
        pauses_s=stats.pauses_s(latest_end_ns, trace.blocks),
        clock_share=float(trace.bounds_ns(END, edges).max(axis=0).sum()) / duration_ns,
    )


def describe(trace: Trace) -> Machine:
    """What the trace says of the machine that it met."""
    ranks = [_facts_of_rank(facts, trace.environment) for facts in trace.ranks]
    values: dict[str, set[str]] = {}
    for rank in ranks:
        for name, value in _compared(rank).items():
            if value is not None:
                values.setdefault(name, set()).add(str(value))
    return Machine(
        ranks=len(ranks),
        facts={name: tuple(sorted(met)) for name, met in sorted(values.items())},
        hosts=tuple(sorted({str(rank["hostname"]) for rank in ranks if rank.get("hostname")})),
        oversubscribed=_oversubscribed(trace.run, ranks),
        nodes_simulated=_nodes_simulated(trace.run, ranks),
        unfused=any(rank["backend"].get("fused") is False for rank in ranks),
        synchronises=any(rank["backend"].get("synchronises_every_step") is True for rank in ranks),
        built_otherwise=next((difference for rank in ranks if (difference := _built_otherwise(rank))), ""),
        findings=_findings(trace.environment),
    )


def _findings(environment: Mapping[str, Any]) -> tuple[Finding, ...]:
    """What the checks at the start found, in their order; those that only a later version knows are left out."""
    checks = _table(environment, "preflight")
    findings = []
    for name in [*(name for name in CHECKS if name in checks), *sorted(set(checks) - set(CHECKS))]:
        try:
            findings.append(read_finding(checks[name]))
        except ValueError:
            continue
    return tuple(findings)


def _facts_of_rank(of_rank: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """A rank's facts with those that all ranks share and that are therefore stored once."""
    facts = dict(of_rank)
    for group in ("software", "backend"):
        facts[group] = {**_table(shared, group), **_table(of_rank, group)}
    facts["project"] = _table(shared, "project")
    return facts


def _compared(rank: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that make two runs incomparable where they differ."""
    device, project = _table(rank, "device"), rank["project"]
    commit = project.get("commit")
    return {
        **rank["software"],
        "device": device.get("name", device.get("kind")),
        "driver": rank.get("nvidia_driver"),
        "cpu": rank.get("cpu_model"),
        "transport": rank["backend"].get("transport"),
        "commit of this project": commit and f"{commit}{' with changes' if project.get('dirty') else ''}",
    }


def _oversubscribed(run: RunSpec, ranks: list[dict[str, Any]]) -> str:
    uuids = [str(_table(rank, "device").get("uuid") or "") for rank in ranks]
    if run.gpus_per_node and all(uuids) and len(set(uuids)) < len(ranks):
        return f"{len(ranks)} ranks share {plural(len(set(uuids)), 'GPU')}"
    for hosts_ranks in _by_host(ranks).values():
        cores = _cores(hosts_ranks)
        if cores and len(hosts_ranks) * run.cpus_per_rank > cores:
            each = plural(run.cpus_per_rank, "core")
            return f"{plural(len(hosts_ranks), 'rank')} of {each} each on a machine with {cores} for them"
    return ""


def _nodes_simulated(run: RunSpec, ranks: list[dict[str, Any]]) -> str:
    machines = len(_by_host(ranks))
    if run.nodes > 1 and (machines < run.nodes or any(rank.get("nodes_simulated") for rank in ranks)):
        return f"{plural(run.nodes, 'node')} on {plural(machines, 'machine')}"
    return ""


def _built_otherwise(rank: Mapping[str, Any]) -> str:
    """What of the framework that ran is not what the rank's Horovod was compiled with."""
    built, ran = _table(rank["backend"], "horovod_built_against"), rank["software"]
    return "; ".join(
        f"Horovod was built against {name} {built[name]} and ran with {ran[name]}"
        for name in ("torch", "tensorflow")
        if built.get(name) and ran.get(name) and built[name] != ran[name]
    )


def _by_host(ranks: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The ranks of each machine; a boot id is one machine's, a host name may be a container's."""
    hosts: dict[str, list[dict[str, Any]]] = {}
    for rank in ranks:
        hosts.setdefault(str(rank.get("boot_id") or rank.get("hostname")), []).append(rank)
    return hosts


def _cores(ranks: list[dict[str, Any]]) -> int | None:
    """How many cores the ranks of one machine may use between them; None where they do not say."""
    affinities = [rank.get("affinity") for rank in ranks]
    if all(isinstance(affinity, list) and affinity for affinity in affinities):
        return len({str(core) for affinity in affinities if affinity for core in affinity})
    cpus = ranks[0].get("cpus")
    return cpus if isinstance(cpus, int) else None


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = values.get(name)
    return table if isinstance(table, Mapping) else {}
