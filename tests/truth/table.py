"""What is known and what a ledger says, side by side, as text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parse.ledger.nouns import Ledger
from tests.truth.cases import Sweep
from tests.truth.compare import Comparison
from tests.truth.exact import TERMS, Known, Ms
from tests.truth.verdicts import Miss, said

_NAME = 62


def background_line(backend: str, beside: Ms) -> str:
    """What a step takes beside its sleeps."""
    parts = ", ".join(f"{name} {ms:.2f}" for name, ms in zip(TERMS, beside, strict=True))
    return f"{backend}: beside the sleeps a step takes (ms): {parts}"


def heading() -> str:
    """The table's head."""
    terms = " ".join(f"{name:>15}" for name in TERMS)
    return (
        f"\nmeans over ranks and steps in ms: ledger/truth (sleeps and what is beside them); largest difference over "
        f"ranks and means\n{'':{_NAME}} runs {terms} {'of sleeps':>9} {'of stamps':>9}  misses, verdict"
    )


def line(sweep: Sweep, value: str, runs: int, compared: Comparison, misses: int) -> str:
    """One point."""
    parts = dict(zip(compared.names, zip(compared.found, compared.truth, strict=True), strict=True))
    cells = [f"{parts[name][0]:.2f}/{parts[name][1]:.2f}" if name in parts else "" for name in TERMS]
    if "compute+communication" in parts:
        cells[TERMS.index("wait")] = "{:.2f}/{:.2f}".format(*parts["compute+communication"])
    terms = " ".join(f"{cell:>15}" for cell in cells)
    name = f"{sweep.name} {sweep.varied}={value}"
    return (
        f"{name:{_NAME}} {runs:>4} {terms} {compared.from_slept_ms:>6.2f} ms "
        f"{compared.from_stamped_ms * 1e3:>6.2f} µs  {misses or '-'} {compared.verdict}"
    )


def misses_of(sweep: Sweep, value: str, ledger: Ledger, misses: Sequence[Miss]) -> str:
    """Every miss of a point, with everything needed to explain it; empty where there is none."""
    if not misses:
        return ""
    lines = [f"\n{sweep.name} {sweep.varied}={value} ({ledger.result.asked.point}):"]
    lines += [f"  {'MACHINE' if miss.machine else 'LEDGER'}: {miss.text}" for miss in misses]
    return "\n".join(lines) + "\n"


def durations(sweep: Sweep, value: str, runs: Sequence[Known], ledger: Ledger) -> str:
    """What each rank's own clock shows: how long it steps, and how long forward, backward and reduction take."""
    terms = np.mean([known.stamped.per_rank for known in runs], axis=0)
    step, inside = terms.sum(axis=1), terms[:, 1:4].sum(axis=1)
    shown = [f"\n{sweep.name} {sweep.varied}={value}"]
    for what, ms in (("step", step), ("forward, backward and reduction", inside)):
        figures = ", ".join(f"{value:.2f}" for value in ms)
        shown.append(f"  durations, {what} of rank 0 to {len(ms) - 1}: {figures} ms; the longest is rank {ms.argmax()}")
    shown.append(f"  the ledger: {said(ledger.verdict)}")
    return "\n".join(shown)
