"""Whether a point's base had its machine for itself, by its telemetry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parse import stats
from parse.ledger.telemetry import QUANTITIES, Conditions
from parse.ledger.types import Contention

LIMITS = {
    "a rank ready to run waits for a core": 5.0,
    "the hypervisor takes from the ranks": 0.05,
    "swapped out": 1.0,
}
"""By quantity, in its unit: what more than this makes a base slower than its machine is."""


def contention(base: Sequence[Conditions]) -> Iterator[Contention]:
    """The quantities in which the runs of a base, in the mean, are beyond LIMITS."""
    for quantity in QUANTITIES:
        figures = [figure.mean for run in base for figure in run.figures.get(quantity.name, {}).values()]
        if quantity.name in LIMITS and figures and (value := stats.mean(figures)) > LIMITS[quantity.name]:
            yield Contention(quantity=quantity.name, unit=quantity.unit, value=value)
