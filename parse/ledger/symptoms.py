"""What telemetry explains: where a straggler differs from the others, longer compute, and what shares its cores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import isfinite, isnan, nan
from types import MappingProxyType

from hpc.model.trace import RankReport, Telemetry, Trace
from hpc.model.trace_file import open_trace
from hpc.system.text import plural
from parse import stats
from parse.ledger.causes import POLLS, Cause, RunRates, evidence_of, run_rates, step_samples
from parse.ledger.cells import sample_of
from parse.ledger.finding import ComputeSplit, CoreLack, Symptom
from parse.ledger.telemetry import (
    MS_A_STEP,
    QUANTITIES,
    STANDSTILL,
    ConditionChange,
    Conditions,
    Quantity,
    node_figures,
    samples_in_window,
    standstill_s,
)
from parse.ledger.types import Ledger, Place
from parse.ledger.verdict import PERSISTENT, ROTATING, TRANSIENT, Straggler, Verdict
from parse.rules import EVENTS, FEW, FIFTH, HALF, MANIFOLD, NOTABLE, WORTH_NAMING
from parse.runs.result import Result
from parse.term_kinds import COMMUNICATION, COMPUTE, WAIT

BY_NAME = {quantity.name: quantity for quantity in QUANTITIES}
OF_RANK = ("local_rank", "gpu")
"""Series of these names belong to a rank: the GPUs of a node are in the order of its ranks."""
CORE, LOSES = Cause.QUEUED.value, "a rank loses its core"
KERNEL = "a rank is in the kernel"
CLOCK_LOWER = 0.97
"""A clock of the straggler is notable up to this part of the others'."""


class Explains(StrEnum):
    """How much of a delay a symptom accounts for."""

    WAITING = "the share of the time, of a step"
    CLOCK = "the share that the clock is lower, of compute"
    KERNEL = "the share of the time that its main thread is in the kernel beyond the others', of a step"
    UNKNOWN = "unknown"


MAJOR = "major page faults of a rank"
SPECIFIC = {
    Cause.STORAGE: (MAJOR, "swapped out"),
    Cause.COMPUTES: ("minor page faults of a rank", "CPU frequency", "the hypervisor takes from the ranks"),
}
"""What a cause is by, where telemetry shows it."""
NAMED_CAUSES = frozenset(Cause) - {Cause.SAMPLES, Cause.COMPUTES, Cause.SLEEPS, Cause.QUEUED}
"""Those that say more than how a rank's main thread spends its time."""
DID_NOT_RUN = frozenset(
    {Cause.QUOTA, Cause.STOPPED, Cause.STORAGE, Cause.CHILDREN, Cause.NEIGHBOURS, Cause.OTHERS, Cause.COMPUTE_THREADS}
)
"""Those by which a rank itself leaves a meeting late."""
RULES = {
    CORE: Explains.WAITING, LOSES: Explains.UNKNOWN, MAJOR: Explains.UNKNOWN,
    "minor page faults of a rank": Explains.KERNEL,
    **dict.fromkeys(("SM clock", "GPU clock", "CPU frequency"), Explains.CLOCK),
    **{quantity.name: Explains.UNKNOWN for quantity in QUANTITIES if quantity.fault},
}  # fmt: skip
"""Quantities that can make a rank late, and what of the delay they explain."""


def symptoms(ledger: Ledger, verdict: Straggler, stragglers: Set[int]) -> tuple[Symptom, ...]:
    """What distinguishes the straggler's ranks from the others in the telemetry of the same runs, in most
    of them or in as many as show the straggler; `stragglers` are the ranks of all.

    What explains the most of its delay comes first. Of single events their own steps are looked at, the whole window
    says nothing of them. Reads the traces again. Empty without a persistent or transient straggler.
    """
    ranks = verdict.ranks
    if verdict.kind not in (PERSISTENT, TRANSIENT) or len(ranks) >= len(ledger.ranks):
        return ()
    everybody = {*range(len(ledger.ranks))}
    compared = sorted(everybody - stragglers or everybody - {*ranks})
    others = [compared[at] for at in sample_of(len(compared)).tolist()]
    readings: list[Mapping[str, tuple[float, float]]] = []
    rates: list[RunRates] = []
    samples: list[tuple[float, float]] = []
    garbage: list[tuple[float, float, str]] = []
    runs = [run.trace for run in ledger.result.for_ledger if run.trace is not None]
    for at, path in enumerate(runs):
        with open_trace(path) as trace:
            readings.append(compare_ranks(trace, ranks, others, _waits(ledger)))
            # What the counters of these ranks and of the others grew by, where the run has them.
            counted = trace.telemetry and run_rates(trace, ranks, others, places(trace, trace.telemetry))
            rates += [counted] if counted else []
            late_steps = verdict.run_steps[at] if verdict.kind == TRANSIENT and at < len(verdict.run_steps) else None
            if late_steps is not None:
                in_late_steps = step_samples(trace, ranks, others, late_steps)
                samples += [] if in_late_steps is None else [in_late_steps]
            garbage += filter(None, [garbage_of(trace, ranks, others, late_steps)])
    caused = tuple(_collecting(verdict, garbage)) or evidence_of(rates, ledger.step.value, verdict.arrival_skew)
    if samples and all(each.quantity not in NAMED_CAUSES for each in caused):
        caused = _more_samples(ledger, verdict, others, samples) or caused
    if verdict.kind == TRANSIENT and sum(map(len, verdict.run_steps)) <= EVENTS:
        named = any(each.quantity in {*NAMED_CAUSES, Cause.SAMPLES} for each in caused)
        return caused if named else tuple(_standstill(ledger, verdict))
    return _together(caused, _compared(ledger, verdict, readings), decomposed=bool(rates))


def _more_samples(
    ledger: Ledger, verdict: Straggler, others: Sequence[int], samples: Sequence[tuple[float, float]]
) -> tuple[Symptom, ...]:
    """That the straggler trains on more samples than the others in the steps in which it is late, where their own work,
    grown by as much, explains the delay; empty where it does not."""
    value, usual = (stats.mean(values) for values in zip(*samples, strict=True))
    worked = [at for at, term in enumerate(ledger.terms) if term.name not in (WAIT.name, COMMUNICATION.name)]
    work = stats.median(
        [sum(place.terms[at] for at in worked) for place in ledger.ranks if {*place.ranks} <= {*others}]
    )
    skew = verdict.arrival_skew
    explains = min((value / usual - 1) * work, skew)
    if explains < HALF * skew:
        return ()
    unit = "samples a step"
    return (Symptom(quantity=Cause.SAMPLES, unit=unit, value=value, usual=usual, explains=explains),)


def _collecting(verdict: Straggler, garbage: Sequence[tuple[float, float, str]]) -> Iterator[Symptom]:
    """That the straggler collects garbage, where what that takes longer than on the others explains the delay."""
    if garbage:
        value, usual = stats.mean([its for its, _, _ in garbage]), stats.mean([others for _, others, _ in garbage])
        explains = min(value - usual, verdict.arrival_skew)
        if explains >= HALF * verdict.arrival_skew:
            yield Symptom(
                quantity=Cause.GARBAGE, unit=MS_A_STEP, value=value, usual=usual, explains=explains,
                detail=garbage[0][2],
            )  # fmt: skip


def _together(caused: Sequence[Symptom], compared: Sequence[Symptom], *, decomposed: bool) -> tuple[Symptom, ...]:
    """The causes, and what else differs, that which explains the most of the delay first.

    Page faults from the disk, and what else makes the same work take more processor time, are why a rank waits for
    storage, or computes more. Where the time of a rank's main thread is known, waiting for a core is a cause or none.
    """
    if decomposed:
        compared = [each for each in compared if each.quantity not in (CORE, LOSES)]
    by_name = {each.quantity: each for each in caused}
    for vague, specific in SPECIFIC.items():
        shown = next((each for each in compared if each.quantity in specific), None)
        if vague in by_name and shown is not None:
            explains = by_name.pop(vague).explains
            compared = [
                replace(each, explains=each.explains or explains) if each is shown else each for each in compared
            ]
    return tuple(sorted((*by_name.values(), *compared), key=lambda symptom: -(symptom.explains or 0.0)))


def _compared(
    ledger: Ledger, verdict: Straggler, readings: Sequence[Mapping[str, tuple[float, float]]]
) -> list[Symptom]:
    """The quantities of RULES by which the straggler differs from the others."""
    in_few = 2 * verdict.in_runs <= verdict.of_runs
    needed = verdict.in_runs if in_few else len(readings) // 2 + 1
    shown = []
    for name, rule in RULES.items():
        quantity = BY_NAME[name]
        pairs = [reading[name] for reading in readings if name in reading]
        notable = [pair for pair in pairs if _notable(quantity, rule, *pair)]
        if notable and len(notable) >= needed:
            value, usual = (stats.mean(values) for values in zip(*(notable if in_few else pairs), strict=True))
            share = (value, usual) if rule is not Explains.KERNEL else _mean_pair(readings, KERNEL)
            explains = None if share is None else _explained(rule, ledger, verdict, *share)
            if explains is not None and explains < NOTABLE * verdict.arrival_skew:
                continue
            factor = quantity.in_step(ledger.step.value)
            shown.append(
                Symptom(
                    quantity=quantity.name, unit=quantity.unit_in_step, value=factor * value, usual=factor * usual,
                    explains=explains,
                )
            )  # fmt: skip
    return shown


def _mean_pair(readings: Sequence[Mapping[str, tuple[float, float]]], quantity: str) -> tuple[float, float] | None:
    """The means over the runs of what the straggler and the others have of it; None where no run has it."""
    pairs = [reading[quantity] for reading in readings if quantity in reading]
    if not pairs:
        return None
    value, usual = (stats.mean(values) for values in zip(*pairs, strict=True))
    return value, usual


def _standstill(ledger: Ledger, verdict: Straggler) -> Iterator[Symptom]:
    """How long the straggler did not run in the steps in which it is late, against the other ranks in the same."""
    stragglers: list[float] = []
    others: list[float] = []
    runs = [run for run in ledger.result.for_ledger if run.trace is not None]
    for run, steps in zip(runs, verdict.run_steps, strict=False):
        if run.trace is None or not steps:
            continue
        with open_trace(run.trace) as trace:
            if trace.telemetry is None:
                continue
            for rank, place in places(trace, trace.telemetry).items():
                seconds = standstill_s(trace, place, rank, steps)
                if seconds is not None:
                    (stragglers if rank in verdict.ranks else others).append(seconds)
    if stragglers and others and stats.mean(stragglers) > MANIFOLD * stats.mean(others):
        value, usual = stats.mean(stragglers), stats.mean(others)
        explains = min((value - usual) * 1e3, verdict.arrival_skew)
        yield Symptom(quantity=STANDSTILL, unit="s", value=value, usual=usual, explains=explains)


def _notable(quantity: Quantity, rule: Explains, value: float, usual: float) -> bool:
    if rule is Explains.CLOCK:
        return value < CLOCK_LOWER * usual
    return value - usual > quantity.floor and value > MANIFOLD * usual


def _explained(rule: Explains, ledger: Ledger, verdict: Straggler, value: float, usual: float) -> float | None:
    """In ms of the delay, at most all of it; None where nothing is known."""
    skew = verdict.arrival_skew
    if verdict.kind != PERSISTENT:
        return None  # it is in the figures of the whole window, and the delay in some of its steps
    if rule in (Explains.WAITING, Explains.KERNEL):
        return max(0.0, min((value - usual) / 100 * ledger.step.value, skew))
    if rule is Explains.CLOCK:
        compute = next((at for at, term in enumerate(ledger.terms) if term.name == COMPUTE.name), None)
        if compute is None or not usual:
            return None
        mean = stats.mean([place.terms[compute] for place in ledger.ranks if {*place.ranks} & {*verdict.ranks}])
        return min(mean * (1 - value / usual), skew)
    return None


def _waits(ledger: Ledger) -> Mapping[int, float]:
    """The share of the time in which each rank is in a reduction, %; empty where that is not known."""
    columns = [at for at, term in enumerate(ledger.terms) if term.name in (WAIT.name, COMMUNICATION.name)]
    return {place.ranks[0]: 100 * sum(place.terms[at] for at in columns) / sum(place.terms) for place in ledger.ranks}


def compare_ranks(
    trace: Trace, ranks: Sequence[int], others: Sequence[int], waits: Mapping[int, float] = MappingProxyType({})
) -> Mapping[str, tuple[float, float]]:
    """By quantity: the mean over these ranks, or over their nodes, and the median over these others, in the run's
    window.

    Empty without telemetry; without the quantities of which either side has no figure. `waits` is by rank the share of
    the time, %, in which it is in a reduction: as long as that a rank that polls may wait for a core and be none the
    later.
    """
    if trace.telemetry is None:
        return {}
    figures = _Figures(trace, trace.telemetry, waits)
    compared = [rank for rank in others if rank in figures.places]
    read = {}
    for quantity in QUANTITIES:
        values = figures.of(quantity, ranks)
        theirs = figures.of(quantity, compared, without_nodes_of=ranks)
        if values and theirs:
            read[quantity.name] = (stats.mean(values), stats.median(theirs))
    return read


class _Figures:
    """The figures of ranks in a run's window: those of their own series, else those of their nodes."""

    def __init__(self, trace: Trace, telemetry: Telemetry, waits: Mapping[int, float]) -> None:
        self.waits = waits
        self.telemetry, self.block = telemetry, samples_in_window(trace, telemetry)
        enough = (self.block >= 0).sum(axis=1) >= FEW
        self.places = {rank: place for rank, place in places(trace, telemetry).items() if enough[place[0]]}
        self._means: dict[tuple[str, str], list[float]] = {}

    def of(self, quantity: Quantity, ranks: Sequence[int], without_nodes_of: Sequence[int] = ()) -> list[float]:
        """What there is of it, of each of these ranks; of a node's figure once, and not of the nodes of the others."""
        name, number, rest = quantity.series.partition(r"\d+")
        known = [self.places[rank] for rank in ranks if rank in self.places]
        if quantity.name == CORE:
            values = [self._queued(quantity, rank) for rank in ranks if rank in self.places]
        elif number and name in OF_RANK:
            values = [self._mean(quantity, f"{name}{place}{rest}", node) for node, place in known]
        else:
            left_out = {self.places[rank][0] for rank in without_nodes_of if rank in self.places}
            nodes = dict.fromkeys(node for node, _ in known if node not in left_out)
            values = [self._mean(quantity, quantity.series, node) for node in nodes]
        return [value for value in values if not isnan(value)]

    def _queued(self, quantity: Quantity, rank: int) -> float:
        """The share of the time in which it waits for a core, %, without what may be part of its waiting for others."""
        node, place = self.places[rank]
        queued, lost = (
            self._mean(each, each.series.replace(r"\d+", str(place)), node) for each in (quantity, BY_NAME[LOSES])
        )
        return max(0.0, queued - self.waits.get(rank, 0.0)) if lost > POLLS else queued

    def _mean(self, quantity: Quantity, series: str, node: int) -> float:
        key = quantity.name, series
        if key not in self._means:
            figures = node_figures(quantity, series, self.telemetry, self.block)
            self._means[key] = [nan] * len(self.block) if figures is None else figures[0].tolist()
        return self._means[key][node]


def places(trace: Trace, telemetry: Telemetry) -> dict[int, tuple[int, int]]:
    """For each rank the row of its node in the telemetry, and its place among the ranks of that row.

    Nodes that are simulated on one machine have one row together.
    """
    single = len(telemetry.ranks) == 1
    node_of = [0 if single else report.node_rank for report in trace.reports]
    rows = {node_of[rank]: row for row, rank in enumerate(telemetry.ranks.tolist())}
    places: dict[int, tuple[int, int]] = {}
    counts: Counter[int] = Counter()
    for rank, node in enumerate(node_of):
        if (row := rows.get(node)) is not None:
            places[rank] = row, counts[row]
            counts[row] += 1
    return places


# What is known to explain that a point computes longer than its base: its straggler, and what telemetry shows.

WAITS_FOR_A_CORE, HELD_BACK = CORE, Cause.QUOTA.value
CLOCKS = ("SM clock", "GPU clock", "CPU frequency")
"""Compute takes longer as these are lower."""
LOWER = (*CLOCKS, "GPU memory clock", "lowest CPU frequency")
"""Quantities that make compute longer where they are lower than the base's."""
HIGHER = (
    WAITS_FOR_A_CORE, HELD_BACK, "times that heat slowed cores down", "a rank loses its core",
    "major page faults of a rank", "minor page faults of a rank", "the hypervisor takes from the ranks", "swapped out",
)  # fmt: skip
"""Those that do where they are higher, with all that begin with THROTTLED."""
THROTTLED = "GPUs throttled"


def explained(ledger: Ledger) -> ComputeSplit | None:
    """The ledger's split of the loss in compute, with what explains it; None without one.

    Runs without reduction explain all of it already: contention and interference.
    """
    split = ledger.split
    if split is None:
        return None
    names = [term.name for term in ledger.terms]
    term = ledger.terms[names.index(COMPUTE.name)]
    part = max(0.0, stragglers_part(ledger.verdict, names, ledger.ranks) - ledger.straggler_at_base.compute)
    if split.contention is not None or term.loss is None:
        return replace(split, straggler=part)
    remaining = max(0.0, term.loss.value - part - split.fixed_loss)
    explanations = tuple(_explanations(ledger, term.mean.value, remaining))
    known = sum(explanation.explains or 0.0 for explanation in explanations)
    return replace(split, straggler=part, explanations=explanations, unexplained=max(0.0, remaining - known))


def stragglers_part(verdict: Verdict, names: Sequence[str], ranks: Sequence[Place]) -> float:
    """What the straggler's ranks add to the mean compute by exceeding the median of the others, ms; 0 where there is
    none.

    `names` are those of the terms of `ranks`, one place each.
    """
    if not isinstance(verdict, Straggler) or verdict.kind is ROTATING or COMPUTE.name not in names:
        return 0.0
    ms = {rank: place.terms[names.index(COMPUTE.name)] for place in ranks for rank in place.ranks}
    median = stats.median([its for rank, its in ms.items() if rank not in verdict.ranks] or [*ms.values()])
    return sum(max(0.0, ms[rank] - median) for rank in verdict.ranks) / len(ms)


def _explanations(ledger: Ledger, compute_ms: float, most_ms: float) -> Iterator[Symptom]:
    """What telemetry shows on all ranks or on some, weighted by the nodes that it is seen on; it explains `most_ms` at
    most."""
    for change in ledger.telemetry:
        if not isinstance(change, ConditionChange):
            continue
        name, value, usual = change.quantity.name, change.value, change.usual
        is_low = name in LOWER and usual is not None and value < usual
        is_high = (name in HIGHER or name.startswith(THROTTLED)) and value > (usual or 0.0)
        if not (is_low or is_high):
            continue
        seen_on = len(change.hosts) / len(ledger.nodes) if change.hosts and ledger.nodes else 1.0
        explains = None
        if name == WAITS_FOR_A_CORE and usual is not None:
            explains = (value - usual) * seen_on
        elif name in CLOCKS and usual:
            explains = compute_ms * (1 - value / usual) * seen_on
        explains = None if explains is None else min(explains, most_ms)
        yield Symptom(quantity=name, unit=change.quantity.unit_in_step, value=value, usual=usual, explains=explains)


# Whether a point's base had its machine for itself, and whether the point's ranks lack cores, by telemetry.

LIMITS = {
    WAITS_FOR_A_CORE: 5.0,
    "the hypervisor takes from the ranks": 0.05,
    "swapped out": 1.0,
}
"""By quantity, in its unit: what more than this makes a base slower than its machine is."""


def contention(base: Sequence[Conditions]) -> Iterator[Symptom]:
    """The quantities in which the runs of a base, in the mean, are beyond LIMITS."""
    for quantity in QUANTITIES:
        value = _mean(base, quantity.name)
        if quantity.name in LIMITS and value is not None and value > LIMITS[quantity.name]:
            yield Symptom(quantity=quantity.name, unit=quantity.unit, value=value)


def core_lack(
    result: Result, point: Sequence[Conditions], base: Sequence[Conditions], scale: float = 1.0
) -> CoreLack | None:
    """How long the point's ranks wait for a core in a step, where that is so long that they lack cores; else None.
    `scale` is what the base's step is multiplied by."""
    value, usual = _mean_in_step(point, WAITS_FOR_A_CORE), _mean_in_step(base, WAITS_FOR_A_CORE, scale)
    if value is None or value - (usual or 0.0) < FIFTH * stats.mean([run.step_ms for run in point]):
        return None
    quota, usual_quota = _mean_in_step(point, HELD_BACK), _mean_in_step(base, HELD_BACK, scale)
    more = None if quota is None else quota - (usual_quota or 0.0)
    explains = more is not None and more >= HALF * (value - (usual or 0.0))
    return CoreLack(
        ms=value, base_ms=usual, quota_ms=quota if explains else None, oversubscribed=result.oversubscribed,
    )  # fmt: skip


def shares_cores(result: Result, point: Sequence[Conditions]) -> bool:
    """Whether ranks have fewer cores than threads that can run: by their numbers, or since ranks of a node that are
    ready to run wait for a core."""
    figures = (figure.mean for run in point for figure in run.figures.get(WAITS_FOR_A_CORE, {}).values())
    return bool(result.oversubscribed) or max(figures, default=0.0) > LIMITS[WAITS_FOR_A_CORE]


def _mean_in_step(runs: Sequence[Conditions], name: str, scale: float = 1.0) -> float | None:
    figures = [figure.mean for run in runs for figure in run.in_step(BY_NAME[name], scale).values()]
    return stats.mean(figures) if figures else None


def _mean(runs: Sequence[Conditions], quantity: str) -> float | None:
    figures = [figure.mean for run in runs for figure in run.figures.get(quantity, {}).values()]
    return stats.mean(figures) if figures else None


# Garbage that Python collects.


@dataclass(frozen=True, kw_only=True)
class Garbage:
    """Of a rank: `count` collections in `steps` measured steps, mean ms a step, and those of the steps with most."""

    count: int = 0
    steps: int = 0
    ms: float = 0.0
    by_step: Mapping[int, float] = field(default_factory=dict)

    def of(self, steps: Sequence[int] | None) -> float:
        """Its mean in these steps, ms; None: in all."""
        return self.ms if not steps else sum(self.by_step.get(step, 0.0) for step in steps) / len(steps)

    @property
    def often(self) -> str:
        """`8 times in 80 steps`."""
        return f"{plural(self.count, 'time')} in {plural(self.steps, 'step')}"


def _garbage(report: RankReport) -> Garbage:
    """What a rank states; nothing where that is none."""
    stated = report.script.get("garbage")
    if not isinstance(stated, Mapping):
        return Garbage()
    try:
        count, steps, ms = int(stated["count"]), int(stated["steps"]), float(stated["ms"])
        by_step = {int(step): float(each) for step, each in stated["by_step"]}
    except (TypeError, ValueError, KeyError, OverflowError):
        return Garbage()
    its = Garbage(count=count, steps=steps, ms=ms, by_step=by_step)
    return its if count > 0 and steps > 0 and all(map(isfinite, [ms, *by_step.values()])) else Garbage()


def garbage_of(
    trace: Trace, ranks: Sequence[int], others: Sequence[int], steps: Sequence[int] | None
) -> tuple[float, float, str] | None:
    """What collections take in these steps, ms, None: in all: on these ranks in the mean, on the others in the median;
    how often the first of the ranks collects. None where these ranks do not."""
    its, theirs = ([_garbage(trace.reports[rank]) for rank in side] for side in (ranks, others))
    if not any(each.count for each in its):
        return None
    value, usual = stats.mean([each.of(steps) for each in its]), stats.median([each.of(steps) for each in theirs])
    return value, usual, its[0].often


def garbage_remarks(trace: Trace, step_ms: float) -> Iterator[str]:
    """The ranks whose collections take a material part of the step, and how often they collect."""
    by_rank = {rank: _garbage(report) for rank, report in enumerate(trace.reports)}
    longest = sorted((rank for rank in by_rank if by_rank[rank].count), key=lambda rank: -by_rank[rank].ms)
    if not longest or by_rank[longest[0]].ms < WORTH_NAMING * step_ms:
        return
    named = [f"{by_rank[rank].ms:.2f} ms a step on rank {rank} ({by_rank[rank].often})" for rank in longest[:2]]
    further = f", less on {plural(len(longest) - 2, 'further rank')}" if longest[2:] else ""
    yield f"Python collects its garbage for {', '.join(named)}{further}"
