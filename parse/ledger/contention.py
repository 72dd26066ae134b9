"""Whether a point's base had its machine for itself, and whether the point's ranks lack cores, by telemetry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parse import stats
from parse.ledger.compute_loss import WAITS_FOR_A_CORE
from parse.ledger.telemetry import QUANTITIES, Conditions
from parse.ledger.types import Contention, CoreWait

LIMITS = {
    WAITS_FOR_A_CORE: 5.0,
    "the hypervisor takes from the ranks": 0.05,
    "swapped out": 1.0,
}
"""By quantity, in its unit: what more than this makes a base slower than its machine is."""
LACKING = 20.0
"""Ranks that wait so long for a core, % of the time beyond those of the base, lack cores."""


def contention(base: Sequence[Conditions]) -> Iterator[Contention]:
    """The quantities in which the runs of a base, in the mean, are beyond LIMITS."""
    for quantity in QUANTITIES:
        value = _mean(base, quantity.name)
        if quantity.name in LIMITS and value is not None and value > LIMITS[quantity.name]:
            yield Contention(quantity=quantity.name, unit=quantity.unit, value=value)


def core_wait(point: Sequence[Conditions], base: Sequence[Conditions]) -> CoreWait | None:
    """How long the point's ranks wait for a core, where that is so long that they lack cores."""
    value, usual = _mean(point, WAITS_FOR_A_CORE), _mean(base, WAITS_FOR_A_CORE)
    if value is None or value - (usual or 0.0) < LACKING:
        return None
    return CoreWait(value=value, usual=usual)


def _mean(runs: Sequence[Conditions], quantity: str) -> float | None:
    figures = [figure.mean for run in runs for figure in run.figures.get(quantity, {}).values()]
    return stats.mean(figures) if figures else None
