"""What the measured points cost, in words."""

from __future__ import annotations

from collections.abc import Iterator

from hpc.system.text import plural
from parse.report.summary import Summary
from parse.runs.cost import Price, Spent, spent


def hours_text(hours: float) -> str:
    """`12.50`, of less than one hour three significant digits: `0.0123`."""
    return f"{hours:,.2f}" if hours >= 1 else f"{hours:.3g}"


def price_text(price: Price) -> str:
    return f"{price.amount:,.2f} {price.currency}"


def cost_line(summary: Summary) -> str:
    """What all attempts of the points and their diagnostic runs have taken; empty where no record says how long."""
    its = spent(summary.everything)
    return "" if not its.attempts else f"cost: {'; '.join(_parts(its))}"


def _parts(its: Spent) -> Iterator[str]:
    prices = "".join(f", {price_text(price)}" for price in its.prices)
    yield f"{hours_text(its.node_hours)} node hours of {plural(its.attempts, 'attempt')}{prices}"
    if its.prices and its.unpriced_node_hours:
        yield f"the site of {hours_text(its.unpriced_node_hours)} node hours states no price"
    if its.failed:
        share = f"{hours_text(its.failed_node_hours)} of them"
        yield f"{share} by {plural(its.failed, 'attempt')} that did not end ok"
    if its.unrecorded:
        yield f"{plural(its.unrecorded, 'attempt')} without a record of the end not counted"
