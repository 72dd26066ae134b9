"""The cause that makes a rank late, by the counters of its processes: named where it explains size and timing.

In the time by which the straggler's own work is longer than the others', its main thread computes, is ready without a
core, or sleeps; the three add up to the delay. What keeps it from running is named by a quantity of its own: a quota, a
stop, storage, other threads, children, a neighbour or another process on its cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from hpc.model.timestamps import ABSENT, GRADS_READY, REDUCED
from hpc.model.trace import Bools, Floats, Ints, Telemetry, Trace
from hpc.system.text import plural
from parse.graph.step_graph import ARRIVES, ENDS
from parse.ledger.finding import Symptom
from parse.ledger.meetings import meeting_kinds
from parse.ledger.telemetry import MS_A_STEP, samples_in_window
from parse.rules import ENOUGH, FAR, FEW, HALF, READ_AT_ONCE

POLLS = 1000.0
"""A thread that loses its core so often in a second polls while it waits: it gives the core away each time."""
PROCESSOR_TIME = "ms of processor time a step"


class Cause(StrEnum):
    """Why a rank is late, as the name of the quantity that shows it."""

    QUOTA = "a quota holds a rank back"
    STOPPED = "a rank is stopped"
    STORAGE = "a rank waits for storage"
    COMPUTE_THREADS = "compute threads of a rank share its cores"
    PYTHON_THREADS = "another Python thread of a rank runs"
    OTHER_THREADS = "other threads of a rank run"
    CHILDREN = "processes of a rank run on its cores"
    NEIGHBOURS = "ranks share cores"
    OTHERS = "other processes run on a rank's cores"
    GARBAGE = "a rank collects garbage"
    SAMPLES = "a rank trains on more samples"
    COMPUTES = "a rank computes more"
    QUEUED = "a rank ready to run waits for a core"
    SLEEPS = "a rank sleeps in its own work"


@dataclass(frozen=True, kw_only=True)
class RunRates:
    """The intervals between two samples in a run's window: `seconds` [interval], and by quantity what grew in them on
    the straggler and on the others in the median, seconds or counts. `details` by cause, as far as facts have them.
    `samples` are those of a step, of the straggler and of the others."""

    seconds: Floats
    straggler: Mapping[str, Floats]
    others: Mapping[str, Floats]
    details: Mapping[Cause, str] = field(default_factory=dict)
    on_gpu: bool = False
    samples: tuple[float, float] | None = None


# From a trace to what grew between its samples.

COUNTERS = {
    "cpu": "main_thread_cpu_s", "queued": "main_thread_queued_s", "process": "cpu_s", "quota": "throttled_s",
    "storage": "main_thread_storage_s", "children": "children_cpu_s", "busy": "cores_busy_s",
    "switches": "main_thread_involuntary_switches", "sleeping_looks": "main_thread_sleeping_looks",
    "storage_looks": "main_thread_uninterruptible_looks", "stopped_looks": "main_thread_stopped_looks",
}  # fmt: skip
"""By the names here, series of a rank."""
NEEDED = ("cpu", "queued", "waits")


def run_rates(trace: Trace, ranks: Sequence[int], others: Sequence[int], places: Places) -> RunRates | None:
    """What grew on these ranks and on the others; None where counters, stamps, or a clock for both are missing.

    `places` is by rank the row of its node in the telemetry, and its place among the ranks of that row.
    """
    telemetry = trace.telemetry
    if telemetry is None or ranks[0] not in places or not len(trace.blocks):
        return None
    row = places[ranks[0]][0]
    block = samples_in_window(trace, telemetry)[row]
    inside = np.flatnonzero(block >= 0)
    if len(inside) < FEW:
        return None
    same = block[inside[1:]] == block[inside[:-1]]
    grid = _moments(trace, telemetry, row)[inside]
    waits = _waits(trace, [*ranks, *others], grid)
    if waits is None:
        return None
    counted = _Counted(trace, telemetry, places, grid)
    grown = {rank: counted.of(rank) | {"waits": waits[rank]} for rank in (*ranks, *others) if rank in places}
    sides = []
    for side, reduce in ((ranks, np.mean), (others, np.median)):
        table: dict[str, Floats] = {}
        for name in {name for rank in side if rank in grown for name in grown[rank]}:
            known = [grown[rank][name] for rank in side if rank in grown and name in grown[rank]]
            table[name] = np.asarray(reduce([np.diff(each)[same] for each in known], axis=0))
        sides.append(table)
    straggler, usual = sides
    if any(name not in side for side in sides for name in NEEDED) or not same.any():
        return None
    return RunRates(
        seconds=np.diff(grid)[same] / 1e9, straggler=straggler, others=usual,
        details=dict(counted.details(ranks)), on_gpu=trace.run.gpus_per_node > 0,
        samples=step_samples(trace, ranks, others),
    )  # fmt: skip


def step_samples(
    trace: Trace, ranks: Sequence[int], others: Sequence[int], steps: Sequence[int] | None = None
) -> tuple[float, float] | None:
    """The samples of a step, in these `steps`, None for all of the window: of the ranks in the mean, of the others in
    the median; None where they are unknown."""
    window = np.concatenate([np.arange(first, stop) for first, stop in trace.blocks.tolist()] or [np.arange(0)])
    chosen = window if steps is None else np.intersect1d(window, np.asarray(steps, np.int64))
    if not len(chosen):
        return None
    by_rank = np.asarray(trace.samples[:, int(chosen[0]) : int(chosen[-1]) + 1])[:, chosen - chosen[0]].mean(axis=1)
    straggler, usual = float(by_rank[list(ranks)].mean()), float(np.median(by_rank[list(others)]))
    return (straggler, usual) if straggler > 0 and usual > 0 else None


Places = Mapping[int, tuple[int, int]]


def _moments(trace: Trace, telemetry: Telemetry, row: int) -> Floats:
    """When the samples of a node were taken, on the global clock, ns; NaN after its last."""
    local_ns = telemetry.local_ns[row]
    known = local_ns != ABSENT
    moments = np.full(len(local_ns), np.nan)
    moments[known] = trace.rank_globally(int(telemetry.ranks[row]), local_ns[known])[0]
    return moments


class _Counted:
    """Counters of ranks at the moments of `grid`, between two samples of theirs in proportion."""

    def __init__(self, trace: Trace, telemetry: Telemetry, places: Places, grid: Floats) -> None:
        self._places, self._grid, self._telemetry = places, grid, telemetry
        self._columns = {name: column for column, name in enumerate(telemetry.series)}
        self._moments = {row: _moments(trace, telemetry, row) for row in {row for row, _ in places.values()}}
        self._facts = {
            rank: _table(trace.reports[int(telemetry.ranks[row])].telemetry) for rank, (row, _) in places.items()
        }
        self._reports = trace.reports
        self._cores = {rank: self._cores_of(rank) for rank in places}

    def _cores_of(self, rank: int) -> frozenset[int]:
        now = _table(self._facts[rank].get("cores")).get(str(self._places[rank][1]))
        cores = now if isinstance(now, list) else self._reports[rank].affinity
        return frozenset(core for core in cores or () if isinstance(core, int))

    def of(self, rank: int) -> dict[str, Floats]:
        """What there is of it."""
        row, _ = self._places[rank]
        read = {name: self._read(rank, series) for name, series in COUNTERS.items()}
        counted = {name: values for name, values in read.items() if values is not None}
        if {"process", "cpu"} <= counted.keys():
            counted["threads"] = counted["process"] - counted["cpu"]
        on_node = [other for other, (at, _) in self._places.items() if at == row and other != rank]
        zero = np.zeros(len(self._grid))
        neighbours = sum((self._on_cores_of(rank, other) for other in on_node), start=zero)
        if not np.isnan(neighbours).any():
            counted["neighbours"] = neighbours
            its = counted.get("process", zero * np.nan) + counted.get("children", zero)
            if "busy" in counted:
                counted["others"] = counted["busy"] - its - neighbours
        return {name: values for name, values in counted.items() if not np.isnan(values).any()}

    def _on_cores_of(self, rank: int, other: int) -> Floats:
        """The time of another rank, with its children, that falls on this one's cores if it spreads over its own."""
        cores = self._cores[other]
        part = len(cores & self._cores[rank]) / len(cores) if cores else 0.0
        process, children = self._read(other, "cpu_s"), self._read(other, "children_cpu_s")
        if not part or process is None:
            return np.full(len(self._grid), 0.0 if not part else np.nan)
        return part * (process + (0.0 if children is None else children))

    def _read(self, rank: int, series: str) -> Floats | None:
        row, place = self._places[rank]
        column = self._columns.get(f"local_rank{place}.{series}")
        if column is None:
            return None
        values, moments = self._telemetry.values[row, :, column], self._moments[row]
        known = ~np.isnan(values) & ~np.isnan(moments)
        if known.sum() < FEW:
            return None
        return np.interp(self._grid, moments[known], values[known])

    def details(self, ranks: Sequence[int]) -> Iterator[tuple[Cause, str]]:
        """Who it is, by cause; the first of these ranks stands for all."""
        rank = ranks[0]
        facts, place, cores = self._facts[rank], str(self._places[rank][1]), self._cores[rank]
        script = _table(self._reports[rank].script.get("facts"))
        by_number = _table(script.get("python_threads"))
        ran = [str(by_number.get(str(each[0]), "")) for each in _rows(_table(facts.get("threads")).get(place))]
        if named := next(filter(None, ran), ""):
            yield Cause.PYTHON_THREADS, named
        threads = script.get("compute_threads", self._reports[rank].backend_fact("threads"))
        if isinstance(threads, int) and cores and threads > len(cores):
            yield Cause.COMPUTE_THREADS, f"{threads} on {plural(len(cores), 'core')}"
        sharing = [str(other) for other in self._places if other not in ranks and self._cores[other] & cores]
        yield Cause.NEIGHBOURS, ", ".join(sharing)
        beside = [each for each in _rows(facts.get("beside")) if len(each) > 3 and each[3] in cores]
        yield Cause.OTHERS, ", ".join(dict.fromkeys(str(each[1]) for each in beside))


def _table(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _rows(value: object) -> list[list[object]]:
    """The entries of a table of facts that have several values."""
    return [each for each in value if isinstance(each, list) and len(each) > 1] if isinstance(value, list) else []


def _waits(trace: Trace, ranks: Sequence[int], grid: Floats) -> dict[int, Floats] | None:
    """By rank how long it has been in collectives until each of these moments, s, without the
    steps in which one rank lacks a stamp; None where these are too many."""
    kinds = meeting_kinds(trace)
    spans: dict[int, list[Ints]] = {rank: [] for rank in ranks}
    lacking = steps = 0
    per_piece = max(1, READ_AT_ONCE // len(trace.stamps))
    for first, stop in trace.blocks.tolist():
        for begin in range(first - 1, stop, per_piece):
            end = min(stop, begin + per_piece)
            stamps = trace.stamps[:, begin:end]
            complete = (stamps[:, :, [GRADS_READY, REDUCED]] != ABSENT).all(axis=(0, 2))
            lacking, steps = lacking + int((~complete).sum()), steps + len(complete)
            meetings = None if trace.meetings is None or not len(kinds) else np.asarray(trace.meetings[:, begin:end])
            for rank in ranks:
                spans[rank].append(stamps[rank][complete][:, [GRADS_READY, REDUCED]])
                if meetings is not None:
                    calls = meetings[rank][:, list(kinds.columns)][..., [ARRIVES, ENDS]].reshape(-1, 2)
                    spans[rank].append(calls[(calls != ABSENT).all(axis=1)])
    if lacking > HALF * steps:
        return None
    waits = {}
    for rank, pieces in spans.items():
        of_rank = np.concatenate(pieces)
        begins, ends = (trace.rank_globally(rank, np.ascontiguousarray(of_rank[:, at]))[0] for at in (0, 1))
        order = np.argsort(begins)
        edges = np.maximum.accumulate(np.stack([begins[order], ends[order]], axis=1).ravel())
        lengths = np.diff(edges, prepend=edges[0])
        lengths[::2] = 0
        waits[rank] = np.interp(grid, edges, np.cumsum(lengths) / 1e9)
    return waits


# From what grew to the cause.

Shown = tuple[Symptom, float]
"""A cause, and the part of the delay that its quantity accounts for."""


class _Pooled:
    """The rates of the delay and of all quantities, in seconds a second: the straggler's, and the others' median.

    Where the delay is uneven, those of the intervals with most of it.
    """

    def __init__(self, runs: Sequence[RunRates]) -> None:
        names = set.intersection(*({*run.straggler} & {*run.others} for run in runs))
        seconds = np.concatenate([run.seconds for run in runs])
        sides = [
            {name: np.concatenate([side[name] for side in chosen]) for name in names}
            for chosen in ([run.straggler for run in runs], [run.others for run in runs])
        ]
        delay = (sides[1]["waits"] - sides[0]["waits"]) / seconds
        late = delay > (delay * seconds).sum() / seconds.sum()
        of_late, of_rest = (
            (delay * seconds)[chosen].sum() / max(seconds[chosen].sum(), 1e-9) for chosen in (late, ~late)
        )
        self.uneven = bool(late.any() and (~late).any() and of_late > FAR * max(of_rest, 0.0))
        chosen = late if self.uneven else np.ones(len(late), bool)
        self.straggler, self.others = (_side(side, seconds, chosen) for side in sides)
        self._rest = [_side(side, seconds, ~chosen) for side in sides] if self.uneven else None
        self.delay = self.others["waits"] - self.straggler["waits"]
        # How much of its waiting a main thread sleeps, and how much it polls: the others wait most.
        waits, asleep = self.others["waits"], self.others["asleep"]
        self.polls = self.others.get("switches", 0.0) > POLLS
        self.sleeps = 0.0 if self.polls else min(1.0, asleep / waits) if waits > 0 else 1.0

    def excess(self, name: str) -> float:
        """What the straggler has more of a quantity than the others, while it is late."""
        return self.straggler.get(name, 0.0) - self.others.get(name, 0.0)

    def is_apart(self, name: str) -> bool:
        """Whether the quantity is there, too, while the straggler is not late, and it runs all the same."""
        if self._rest is None:
            return False
        straggler, others = self._rest
        rest = straggler.get(name, 0.0) - others.get(name, 0.0)
        idle = straggler["own_queued"] + max(0.0, straggler["asleep"] - self.sleeps * straggler["waits"])
        return rest > self.excess(name) / 2 and idle < rest / 2


def _side(side: Mapping[str, Floats], seconds: Floats, chosen: Bools) -> Mapping[str, float]:
    """The rates of one side over these intervals, with those that follow: how its main thread spends its own work."""
    total = float(seconds[chosen].sum())
    rates = {name: float(values[chosen].sum()) / total for name, values in side.items()}
    waits, asleep = rates["waits"], max(0.0, 1 - rates["cpu"] - rates["queued"])
    queued = rates["queued"]
    if rates.get("switches", 0.0) > POLLS:
        queued = max(0.0, queued - waits)
    looks = [rates.get(f"{state}_looks", 0.0) for state in ("sleeping", "storage", "stopped")]
    if sum(looks) * total >= ENOUGH:
        rates["stopped"] = asleep * looks[2] / sum(looks)
        rates.setdefault("storage", asleep * looks[1] / sum(looks))
    rates["asleep"], rates["own_queued"] = asleep, queued
    return rates


def evidence_of(runs: Sequence[RunRates], step_ms: float, delay_ms: float) -> tuple[Symptom, ...]:
    """The causes that account for HALF of a delay of so many ms at least, the largest first; where none does, what is
    known of the main thread meanwhile. Empty without a delay in these intervals."""
    if not runs:
        return ()
    pooled = _Pooled(runs)
    if pooled.delay <= 0:
        return ()
    details = {cause: detail for run in reversed(runs) for cause, detail in run.details.items()}
    samples = [run.samples for run in runs if run.samples is not None]
    more = _more_samples(pooled, [(its / usual - 1, its, usual) for its, usual in samples])
    judged = _judged(pooled, details, step_ms, more, on_gpu=any(run.on_gpu for run in runs))
    return tuple(replace(each, explains=min(1.0, share) * delay_ms) for each, share in judged)


def _more_samples(pooled: _Pooled, of_runs: Sequence[tuple[float, float, float]]) -> Shown | None:
    """That the straggler trains on more samples, where the others' own work, grown by as much, explains the delay.

    `of_runs` are the part by which they are more, its samples and those of the others.
    """
    if not of_runs:
        return None
    part, value, usual = (float(np.mean(figures)) for figures in zip(*of_runs, strict=True))
    share = part * (1 - pooled.others["waits"]) / pooled.delay
    if share < HALF:
        return None
    return Symptom(quantity=Cause.SAMPLES, unit="samples a step", value=value, usual=usual), share


def _judged(
    pooled: _Pooled, details: Mapping[Cause, str], step_ms: float, more_samples: Shown | None, *, on_gpu: bool,
) -> Iterator[Shown]:  # fmt: skip
    delay, straggler, others = pooled.delay, pooled.straggler, pooled.others
    queued = max(0.0, pooled.excess("own_queued"))
    asleep = max(0.0, pooled.excess("asleep") + pooled.sleeps * delay)
    computes = pooled.excess("cpu") + (1 - pooled.sleeps) * delay
    if pooled.polls:  # who polls gives its core away, too: how much of its waiting has one is not known
        computes = min(computes, delay - asleep - queued)
    idle = queued + asleep

    def shown(cause: Cause, name: str, at_most: float, unit: str = MS_A_STEP) -> Shown | None:
        share = min(pooled.excess(name), at_most) / delay
        if share < HALF or pooled.is_apart(name):
            return None
        value, usual = (step_ms * side.get(name, 0.0) for side in (straggler, others))
        detail = details.get(cause, "")
        return Symptom(quantity=cause, unit=unit, value=value, usual=max(0.0, usual), detail=detail), share

    named = [
        each
        for each in (
            shown(Cause.QUOTA, "quota", idle),
            shown(Cause.STOPPED, "stopped", asleep),
            shown(Cause.STORAGE, "storage", asleep),
        )
        if each is not None
    ]
    if not named:
        threads = _kind_of_threads(details, enough_queued=queued >= HALF * delay)
        indirect = [
            (pooled.excess(name), each)
            for name, each in (
                ("threads", shown(threads, "threads", idle, PROCESSOR_TIME) if threads else None),
                ("children", shown(Cause.CHILDREN, "children", queued, PROCESSOR_TIME)),
                ("neighbours", shown(Cause.NEIGHBOURS, "neighbours", queued, PROCESSOR_TIME)),
                ("others", shown(Cause.OTHERS, "others", queued, PROCESSOR_TIME)),
            )
            if each is not None
        ]
        named = [each for _, each in sorted(indirect, key=lambda pair: -pair[0])]
    yield from sorted(named, key=lambda each: -min(1.0, each[1]))
    if more_samples and not named and (on_gpu or queued < HALF * delay):
        named = [more_samples]
        yield more_samples
    if named or (on_gpu and queued < HALF * delay):
        return
    for cause, rate, side in ((Cause.COMPUTES, computes, "cpu"), (Cause.SLEEPS, asleep, "")):
        if rate >= HALF * delay and not on_gpu:
            usual = others["cpu"] if side else 0.0
            value = step_ms * (usual + rate)
            yield Symptom(quantity=cause, unit=MS_A_STEP, value=value, usual=step_ms * usual), rate / delay
    if queued >= HALF * delay:
        value, usual = (step_ms * side["own_queued"] for side in (straggler, others))
        yield Symptom(quantity=Cause.QUEUED, unit=MS_A_STEP, value=value, usual=usual), queued / delay


def _kind_of_threads(details: Mapping[Cause, str], *, enough_queued: bool) -> Cause | None:
    """Which threads those of a rank can be that keep its main thread from running; None where they need not do so."""
    for cause in (Cause.PYTHON_THREADS, Cause.COMPUTE_THREADS):
        if details.get(cause):
            return cause
    return Cause.OTHER_THREADS if enough_queued else None
