"""From traces to the ledger of each point: means over its runs, held against the baseline's, and what explains them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpc.model.spec import COLLECTIVES
from hpc.model.trace import TraceError
from hpc.model.trace_file import open_trace
from parse import stats
from parse.ledger.breakdown import Account, account, merge, names
from parse.ledger.standalone import beside
from parse.ledger.straggler import incidents, verdict
from parse.ledger.telemetry import Conditions, compare_conditions, reduce_telemetry
from parse.ledger.types import CANNOT_TELL, Alone, ComputeSplit, Ledger, Mean, Place, RunLedger, Term, Verdict
from parse.result import Result

Floats = npt.NDArray[np.float64]
Progress = Callable[[Sequence[Result]], Iterable[Result]]


@dataclass(frozen=True, kw_only=True)
class _Read:
    """The runs of a point: their accounts, what telemetry says of them, and a line for each ok run without account."""

    accounts: tuple[Account, ...]
    conditions: tuple[Conditions, ...]
    remarks: tuple[str, ...] = ()


def ledgers(
    results: Sequence[Result], probes: Sequence[Result] = (), progress: Progress | None = None
) -> tuple[Ledger, ...]:
    """The ledger of every point that has an ok run with a trace. `probes` are runs that explain others."""
    reader = _Reader({result.asked.point: result for result in (*results, *probes)})
    collectives = [probe for probe in probes if probe.run.probe == COLLECTIVES]
    shown = progress(results) if progress else results
    return tuple(reader.ledger(result, collectives) for result in shown if reader.read(result).accounts)


class _Reader:
    """Reads every trace once."""

    def __init__(self, points: Mapping[str, Result]) -> None:
        self.points = points
        self._read: dict[str, _Read] = {}

    def read(self, result: Result) -> _Read:
        """The accounts of the point's ok runs."""
        if result.asked.point not in self._read:
            self._read[result.asked.point] = _accounts(result)
        return self._read[result.asked.point]

    def ledger(self, result: Result, collectives: Sequence[Result]) -> Ledger:
        """The ledger of a point that has accounts."""
        read = self.read(result)
        baseline = self.points.get(result.asked.baseline_point)
        against = self.read(baseline) if baseline and baseline is not result else _Read(accounts=(), conditions=())
        base = against.accounts
        borders = frozenset.intersection(*(one.borders for one in (*read.accounts, *base)))
        ours, theirs = _samples(read.accounts, borders), _samples(base, borders)
        if result.run.scaling == "strong":
            theirs = theirs / result.run.devices
        loss = _difference(ours.sum(axis=1), theirs.sum(axis=1)) if base else None
        step = _mean(ours.sum(axis=1))
        terms = _terms(names(borders), ours, theirs if base else None, loss)
        alone, remarks = _alone(result, read.accounts, terms, collectives)
        runs = tuple(_of_run(one) for one in read.accounts)
        return Ledger(
            result=result,
            terms=terms,
            step=step,
            median_step=stats.mean([one.median_step_ns / 1e6 for one in read.accounts]),
            skew=stats.mean([one.skew_ns / 1e6 for one in read.accounts]),
            loss=loss,
            no_loss="" if base else _no_loss(result, baseline),
            merged="; ".join(dict.fromkeys(one.merged for one in (*read.accounts, *base) if one.merged)),
            verdict=_together(runs),
            runs=runs,
            ranks=_ranks(read.accounts, borders),
            nodes=_nodes(read.accounts, borders),
            split=self._split(result, borders, ours, theirs) if base else None,
            telemetry=compare_conditions(read.conditions, against.conditions),
            alone=alone,
            remarks=(*read.remarks, *remarks),
        )

    def _split(self, result: Result, borders: frozenset[str], ours: Floats, theirs: Floats) -> ComputeSplit | None:
        """What the loss in compute consists of, where compute is a term."""
        if "compute" not in names(borders):
            return None
        at = names(borders).index("compute")
        twin = self._twin(result)
        if not twin:
            return ComputeSplit(
                contention=None, interference=None, unexplained=float(ours[:, at].mean() - theirs[:, at].mean())
            )
        alone = _samples(twin, frozenset.intersection(*(one.borders for one in twin)))[:, 1]
        return ComputeSplit(
            contention=_difference(alone, theirs[:, at]),
            interference=_difference(ours[:, at], alone),
            unexplained=0.0,
        )

    def _twin(self, result: Result) -> tuple[Account, ...]:
        """The runs of the same ranks at the same work with reduction switched off, where they tell compute apart."""
        asked = dataclasses.replace(result.asked, run=dataclasses.replace(result.run, reduction="off"))
        twin = self.points.get(asked.point)
        found = self.read(twin).accounts if twin else ()
        return tuple(one for one in found if names(one.borders)[1:2] == ("compute",))


def _accounts(result: Result) -> _Read:
    accounts, conditions, remarks = [], [], []
    for run in result.ok:
        assert run.attempt is not None
        if run.attempt.trace is None:
            remarks.append(f"{run.asked.run_id}: read from a log, which has no stamps")
            continue
        try:
            with open_trace(run.attempt.trace) as trace:
                accounts.append(account(trace))
                conditions.append(reduce_telemetry(trace))
        except TraceError as error:
            remarks.append(str(error))
    known = tuple(one for one in conditions if one is not None)
    return _Read(accounts=tuple(accounts), conditions=known, remarks=tuple(remarks))


def _samples(accounts: Sequence[Account], borders: frozenset[str]) -> Floats:
    """Mean terms in ms of every run, [run, term]; where there is one run, of every piece of its window."""
    if len(accounts) == 1:
        # Pieces differ in length by a step: their plain mean is not the run's.
        own = accounts[0]
        return merge(own.piece_ns + (own.mean_ns - own.piece_ns.mean(axis=0)), borders) / 1e6
    if not accounts:
        return np.empty((0, len(names(borders))))
    return merge(np.stack([one.mean_ns for one in accounts]), borders) / 1e6


def _terms(of: Sequence[str], ours: Floats, theirs: Floats | None, loss: Mean | None) -> tuple[Term, ...]:
    found = []
    for at, name in enumerate(of):
        mine = _mean(ours[:, at])
        if theirs is None or loss is None:
            found.append(Term(name=name, mean=mine))
            continue
        lost = _difference(ours[:, at], theirs[:, at])
        share = lost.value / loss.value if loss.resolved else None
        found.append(Term(name=name, mean=mine, baseline=float(theirs[:, at].mean()), loss=lost, share=share))
    return tuple(found)


def _mean(values: Floats) -> Mean:
    return _with_margin(float(values.mean()), stats.mean_margin(values.tolist()))


def _difference(values: Floats, others: Floats) -> Mean:
    margin = stats.difference_margin(values.tolist(), others.tolist())
    return _with_margin(float(values.mean() - others.mean()), margin)


def _with_margin(value: float, margin: float | None) -> Mean:
    return Mean(value=value) if margin is None else Mean(value=value, low=value - margin, high=value + margin)


def _no_loss(result: Result, baseline: Result | None) -> str:
    if baseline is result:
        return "it is the baseline"
    if baseline is None:
        return "no 1n1g baseline with all else equal is here"
    return "no run of its 1n1g baseline ended ok with a trace"


def _alone(
    result: Result, accounts: Sequence[Account], terms: Sequence[Term], collectives: Sequence[Result]
) -> tuple[Alone | None, tuple[str, ...]]:
    """What the gradients' all-reduce costs by itself, where its volume and what is exposed of it are known."""
    volumes = {one.gradient_bytes for one in accounts}
    exposed = [term.mean.value for term in terms if term.name == "transfer"]
    volume = volumes.pop() if len(volumes) == 1 else None
    return beside(result, volume, exposed[0], collectives) if volume and exposed else (None, ())


def _of_run(one: Account) -> RunLedger:
    found = verdict(one)
    return RunLedger(
        run_id=one.run_id,
        verdict=found,
        step=one.step_ns / 1e6,
        pauses=tuple(pause / 1e6 for pause in one.pauses_ns),
        bound=None if one.arrivals is None else one.arrivals.bound / 1e6,
        incidents=incidents(one),
        problems=one.problems,
    )


def _together(runs: Sequence[RunLedger]) -> Verdict:
    """The verdict that most of the runs have: of the same kind on the same ranks, else on the same node."""
    found = [run.verdict for run in runs]
    by_rank = [(one.kind, one.because, one.ranks) for one in found]
    by_node = [(one.kind, one.because, one.node or one.ranks) for one in found]
    of_runs: Sequence[tuple[object, ...]]
    for of_runs in (by_rank, by_node):
        most, count = Counter(of_runs).most_common(1)[0]
        if 2 * count > len(runs):
            return _averaged([one for one, its in zip(found, of_runs, strict=True) if its == most])
    return Verdict(kind=CANNOT_TELL, because="the runs disagree", bound=max(run.bound or 0.0 for run in runs))


def _averaged(verdicts: Sequence[Verdict]) -> Verdict:
    """The first, with the means of all; the steps of a transient one only where all name the same."""
    first = verdicts[0]
    return dataclasses.replace(
        first,
        steps=first.steps if all(one.steps == first.steps for one in verdicts) else (),
        cause={name: stats.mean([one.cause[name] for one in verdicts]) for name in first.cause},
        chance=None if any(one.chance is None for one in verdicts) else max(one.chance or 0 for one in verdicts),
        late=stats.mean([one.late for one in verdicts]),
        share=stats.mean([one.share for one in verdicts]),
        costs=stats.mean([one.costs for one in verdicts]),
        bound=stats.mean([one.bound for one in verdicts]),
    )


def _ranks(accounts: Sequence[Account], borders: frozenset[str]) -> tuple[Place, ...]:
    ns = np.mean([merge(one.rank_ns, borders) for one in accounts], axis=0)
    last = _last(accounts, "last", "gap", range(len(ns)))
    hosts = [{one.hosts[rank] for one in accounts} for rank in range(len(ns))]
    return tuple(
        Place(
            name=f"rank {rank} ({host})" if len(on) == 1 and (host := next(iter(on))) else f"rank {rank}",
            ranks=(rank,),
            terms=tuple((ns[rank] / 1e6).tolist()),
            last=None if last is None else last[rank],
        )
        for rank, on in enumerate(hosts)
    )


def _nodes(accounts: Sequence[Account], borders: frozenset[str]) -> tuple[Place, ...]:
    """The nodes, where the runs agree on which rank lies on which."""
    nodes = accounts[0].nodes
    if any(one.nodes != nodes for one in accounts):
        return ()
    ns = np.mean([merge(one.rank_ns, borders) for one in accounts], axis=0)
    numbers = sorted(set(nodes))
    last = _last(accounts, "node_last", "node_gap", numbers)
    found = []
    for at, node in enumerate(numbers):
        ranks = tuple(rank for rank, on in enumerate(nodes) if on == node)
        hosts = {one.hosts[ranks[0]] for one in accounts}
        name = next(iter(hosts)) if len(hosts) == 1 else ""
        terms = tuple((ns[list(ranks)].mean(axis=0) / 1e6).tolist())
        found.append(
            Place(name=name or f"node {node}", ranks=ranks, terms=terms, last=None if last is None else last[at])
        )
    return tuple(found)


def _last(accounts: Sequence[Account], who: str, gap: str, numbers: Sequence[int]) -> list[float] | None:
    """Of each of them the share of steps in which it is provably last; None where that cannot be told."""
    arrivals = [one.arrivals for one in accounts if one.arrivals is not None]
    if len(arrivals) < len(accounts):
        return None
    shares = []
    for one in arrivals:
        provable = getattr(one, gap) > getattr(one, f"{gap}_bound")
        shares.append([float((provable & (getattr(one, who) == number)).mean()) for number in numbers])
    mean: list[float] = np.mean(shares, axis=0).tolist()
    return mean
