"""The phases of a rank's step as slices: those that its time stamps separate, by the names of the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpc.model.timestamps import ABSENT, BATCH_READY, BEGIN, END, FORWARD_END, GRADS_READY, REDUCED
from parse.ledger.types import TERMS

_STAMP_OF = {"batch_ready": BATCH_READY, "grads_ready": GRADS_READY, "reduced": REDUCED}


@dataclass(frozen=True, slots=True)
class Phase:
    """A slice of a step, ns on the axis of the stamps, with the slices inside it."""

    name: str
    begin_ns: int
    end_ns: int
    inside: tuple[Phase, ...] = ()


def phases_of_step(stamps_ns: Sequence[int], borders: frozenset[str], last_ns: int | None) -> list[Phase] | None:
    """The phases between a step's six stamps; None where a stamp is before an earlier one.

    A border that is not among `borders`, or whose stamp is absent, separates nothing: its terms are one, joined by `+`.
    `last_ns` is when the last rank arrives, None where this rank's wait for it is not proven. Empty phases are left
    out. Measured to be reduced before that moment, which only clocks' bounds explain, `wait` ends with the reduction.
    """
    edges: list[int | None] = [
        None if border not in borders or stamps_ns[_STAMP_OF[border]] == ABSENT else stamps_ns[_STAMP_OF[border]]
        for border in ("batch_ready", "grads_ready", "reduced")
    ]
    ready, grads, reduced = edges
    if grads is None or last_ns is None:
        last_ns = None
    elif reduced is not None:
        last_ns = min(last_ns, reduced)
    phases: list[Phase] = []
    begin, names = stamps_ns[BEGIN], []
    for name, edge in zip(TERMS, (ready, grads, last_ns, reduced, stamps_ns[END]), strict=True):
        names.append(name)
        if edge is None:
            continue
        if edge < begin:
            return None
        if edge > begin:
            joined = "+".join(names)
            inside = _forward_and_backward(begin, stamps_ns[FORWARD_END], edge) if joined == "compute" else ()
            phases.append(Phase(joined, begin, edge, inside))
        begin, names = edge, []
    return phases


def _forward_and_backward(begin: int, forward_end: int, end: int) -> tuple[Phase, ...]:
    if not begin < forward_end < end:  # absent, too
        return ()
    return Phase("forward", begin, forward_end), Phase("backward", forward_end, end)
