"""What is known to explain that a point computes longer than its base: its straggler, and what telemetry shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from parse import stats
from parse.ledger.telemetry import ConditionChange
from parse.ledger.types import PERSISTENT, TRANSIENT, ComputeSplit, Explanation, Ledger, Place, Verdict

WAITS_FOR_A_CORE = "a rank ready to run waits for a core"
CLOCKS = ("SM clock", "CPU frequency")
"""Compute takes longer as these are lower."""
LOWER = (*CLOCKS, "GPU memory clock", "lowest CPU frequency")
"""Quantities that make compute longer where they are lower than the base's."""
HIGHER = (
    WAITS_FOR_A_CORE, "times that heat slowed cores down", "a rank loses its core", "major page faults of a rank",
    "minor page faults of a rank", "the hypervisor takes from the ranks", "swapped out",
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
    term = ledger.terms[names.index("compute")]
    part = max(0.0, stragglers_part(ledger.verdict, names, ledger.ranks) - ledger.straggler_at_base.compute)
    if split.contention is not None or term.loss is None:
        return replace(split, straggler=part)
    remaining = max(0.0, term.loss.value - part)
    explanations = tuple(_explanations(ledger, term.mean.value, remaining))
    known = sum(explanation.explains or 0.0 for explanation in explanations)
    return replace(split, straggler=part, explanations=explanations, unexplained=max(0.0, remaining - known))


def stragglers_part(verdict: Verdict, names: Sequence[str], ranks: Sequence[Place]) -> float:
    """What the straggler's ranks add to the mean compute by exceeding the median rank, ms; 0 where there is none.

    `names` are those of the terms of `ranks`, one place each.
    """
    if verdict.kind not in (PERSISTENT, TRANSIENT) or "compute" not in names:
        return 0.0
    ms = {rank: place.terms[names.index("compute")] for place in ranks for rank in place.ranks}
    median = stats.median([*ms.values()])
    return sum(max(0.0, ms[rank] - median) for rank in verdict.ranks) / len(ms)


def _explanations(ledger: Ledger, compute_ms: float, most_ms: float) -> Iterator[Explanation]:
    """What telemetry shows on all ranks or on some, weighted by the nodes that it is seen on; it explains `most_ms` at
    most."""
    base_step = sum(term.baseline or 0.0 for term in ledger.terms)
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
            explains = (value * ledger.step.value - usual * base_step) / 100 * seen_on
        elif name in CLOCKS and usual:
            explains = compute_ms * (1 - value / usual) * seen_on
        explains = None if explains is None else min(explains, most_ms)
        yield Explanation(quantity=name, unit=change.quantity.unit, value=value, usual=usual, explains=explains)
