"""What points cost: node hours, and what the site asks for these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpc.model.outcome import ExitRecord, Outcome
from hpc.model.rates import Rates
from hpc.model.spec import SAMPLES, TOKENS
from parse.runs.result import Result

MILLION = 1e6
LOCAL = "local"
"""The site of runs on this machine, whose nodes are simulated."""
JobKey = tuple[str, str, str]
"""A job by its measurement's folder, its site and its id."""


def node_hours_of_work(nodes: float, speed: float, work: float = MILLION) -> float:
    """The node hours that so many samples take at a speed of all nodes, in samples/s."""
    return nodes * work / speed / 3600


@dataclass(frozen=True, kw_only=True)
class Price:
    """An amount of money."""

    amount: float
    currency: str


@dataclass(frozen=True, kw_only=True)
class WorkCost:
    """What a million samples (tokens) take at a point's median speed; no price where its site states none."""

    node_hours: float
    price: Price | None = None


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What attempts have taken, each from its begin to its end on all nodes of its job: what a job does before, between
    and after them is not in it. `failed` are attempts that did not end ok, `unrecorded` those without a record of their
    end, which are in no sum. `prices` are by currency; `unpriced_node_hours` are those of sites that state none.
    """

    node_hours: float = 0.0
    attempts: int = 0
    failed_node_hours: float = 0.0
    failed: int = 0
    unrecorded: int = 0
    unpriced_node_hours: float = 0.0
    prices: tuple[Price, ...] = ()


def work_cost(result: Result) -> WorkCost | None:
    """What a million samples or tokens take; None where the nodes or the speed are not known."""
    nodes = machines(result)
    if not nodes or not result.median_speed or result.run.unit not in (SAMPLES, TOKENS):
        return None
    hours, rates = node_hours_of_work(nodes, result.median_speed), result.requested.rates
    return WorkCost(node_hours=hours, price=_price(rates, hours))


def _price(rates: Rates, node_hours: float) -> Price | None:
    amount = rates.price(node_hours)
    return None if amount is None else Price(amount=amount, currency=rates.currency)


def machines(result: Result) -> int | None:
    """Its nodes, of simulated ones the one machine; None where they are not known."""
    simulated = result.nodes_simulated or (result.run.site == LOCAL and not result.machines)
    return 1 if simulated else result.run.nodes


def spent(results: Sequence[Result], among: Sequence[Result] = ()) -> Spent:
    """What all attempts of these points have taken. A job holds the nodes of its largest point, of those in `among`
    too: smaller nested points leave some idle."""
    held: dict[JobKey, int] = {}
    for result in (*results, *among):
        for record in _records(result):
            job = _job(result, record)
            held[job] = max(held.get(job, 0), machines(result) or 0)
    total, failed, unpriced, failures = 0.0, 0.0, 0.0, 0
    attempts, prices = 0, dict[str, float]()
    for result in results:
        for record in _records(result):
            hours = held[_job(result, record)] * max(0, record.end_unix_s - record.begin_unix_s) / 3600
            total, attempts = total + hours, attempts + 1
            if record.outcome is not Outcome.OK:
                failed, failures = failed + hours, failures + 1
            if (price := _price(result.requested.rates, hours)) is None:
                unpriced += hours
            else:
                prices[price.currency] = prices.get(price.currency, 0.0) + price.amount
    return Spent(
        node_hours=total, attempts=attempts, failed_node_hours=failed, failed=failures, unrecorded=_unrecorded(results),
        unpriced_node_hours=unpriced, prices=_sorted(prices),
    )  # fmt: skip


def _records(result: Result) -> Iterable[ExitRecord]:
    return (record for run in result.runs for record in run.records if machines(result))


def _job(result: Result, record: ExitRecord) -> JobKey:
    measurement = result.requested.measurement
    return (measurement.folder if measurement else "", result.run.site or "", record.job_id or record.stem)


def _unrecorded(results: Iterable[Result]) -> int:
    """Attempts of traces without an exit record; logs and documents have none of either."""
    return sum(run.attempts - len(run.records) for result in results for run in result.runs if not _is_read(result))


def _is_read(result: Result) -> bool:
    """Whether it is of a log or a document."""
    return result.published is not None or any(run.log for run in result.runs)


def _sorted(prices: Mapping[str, float]) -> tuple[Price, ...]:
    return tuple(Price(amount=prices[name], currency=name) for name in sorted(prices))
