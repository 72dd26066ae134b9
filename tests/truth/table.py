"""What is known and what a ledger says, side by side, as text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parse.ledger.types import Ledger
from tests.truth.compare import MERGED, Comparison
from tests.truth.exact import TERMS, Known
from tests.truth.verdicts import Miss, describe

_NAME, _CELL = 69, 17


def heading() -> str:
    """The table's head."""
    terms = " ".join(f"{name:>{_CELL}}" for name in TERMS)
    return (
        "\nmeans over ranks and steps in ms: ledger/sleeps+background; largest difference over ranks and means\n"
        f"{'':{_NAME}} runs {terms} {'of sleeps':>9} {'of stamps':>9}  misses, verdict"
    )


def line(name: str, runs: int, compared: Comparison, misses: int) -> str:
    """One point."""
    cells = []
    for term, *ms in zip(compared.names, compared.means, compared.slept, compared.beside, strict=True):
        width = len(MERGED.get(term, (term,))) * (_CELL + 1) - 1  # a merged term is as wide as those that it stands for
        cells.append(f"{'{:.2f}/{:.2f}+{:.2f}'.format(*ms):>{width}}")
    return (
        f"{name:{_NAME}} {runs:>4} {' '.join(cells)} {compared.from_slept_ms:>6.2f} ms "
        f"{compared.from_stamped_ms * 1e3:>6.2f} µs  {misses or '-'} {compared.verdict}"
    )


def misses_of(name: str, ledger: Ledger, misses: Sequence[Miss]) -> str:
    """Every miss of a point, with everything needed to explain it; empty where there is none."""
    if not misses:
        return ""
    lines = [f"\n{name} ({ledger.result.requested.run_id}):"]
    lines += [f"  {'machine' if miss.machine else 'LEDGER'}: {miss.text}" for miss in misses]
    return "\n".join(lines) + "\n"


def durations(name: str, runs: Sequence[Known], ledger: Ledger) -> str:
    """What each rank's own clock shows: how long it steps, and how long forward, backward and reduction take."""
    terms = np.mean([known.stamped.per_rank for known in runs], axis=0)
    shown = [f"\n{name}"]
    for what, ms in (("step", terms.sum(axis=1)), ("forward, backward and reduction", terms[:, 1:4].sum(axis=1))):
        figures = ", ".join(f"{value:.2f}" for value in ms)
        shown.append(f"  durations, {what} of rank 0 to {len(ms) - 1}: {figures} ms")
    shown.append(f"  the ledger: {describe(ledger.verdict)}")
    return "\n".join(shown)
