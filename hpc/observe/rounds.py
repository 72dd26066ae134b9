"""Steps of optimizers that take turns: several updates are one step, where the turns repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hpc.model.timestamps import ABSENT, BATCH_READY, BEGIN, END, FORWARD_END, STAMPS
from hpc.observe.types import ObservedStep

LONGEST_ROUND = 8
"""Optimizers that take turns make a round of at most so many updates."""


def rounds_of(steps: list[ObservedStep]) -> tuple[list[ObservedStep], list[str], str]:
    """Joins the updates of optimizers that take turns into one step, where the turns repeat.

    The steps, remarks, and why there are none.
    """
    turns = [step.updates for step in steps]
    kinds = set(turns)
    if len(kinds) <= 1:
        return steps, [], ""
    changes = [at for at in range(1, len(turns)) if turns[at] != turns[at - 1]]
    if len(changes) == len(kinds) - 1:
        return steps, [f"the optimizer changes at step {', '.join(map(str, changes))}"], ""
    for n in range(2, LONGEST_ROUND + 1):
        if len(turns) >= 2 * n and turns[n:] == turns[:-n]:
            rounds = [_join(steps[at : at + n]) for at in range(0, len(steps) - n + 1, n)]
            return rounds, [f"{n} updates of optimizers that take turns are one step"], ""
    counts = ", ".join(f"{'+'.join(map(str, turn))}: {count}" for turn, count in Counter(turns).most_common(4))
    return (
        [],
        [],
        f"optimizers are stepped in no pattern that repeats (by number {counts}): steps cannot be recognised",
    )


def _join(parts: Sequence[ObservedStep]) -> ObservedStep:
    first, last = parts[0], parts[-1]
    samples = [part.samples for part in parts if part.samples is not None]
    reason = f"{len(parts)} updates of optimizers that take turns are one step"
    inner = dict.fromkeys(STAMPS[FORWARD_END:END], reason)
    return ObservedStep(
        stamps=(first.stamps[BEGIN], first.stamps[BATCH_READY], ABSENT, ABSENT, ABSENT, last.stamps[END]),
        absent={
            **{name: why_absent for name, why_absent in first.absent.items() if name == STAMPS[BATCH_READY]},
            **inner,
        },
        samples=sum(samples) if samples else None,
        fetches=sum(part.fetches for part in parts),
        fetch_ns=sum(part.fetch_ns for part in parts),
        loader_ns=first.loader_ns,
        later_ns=_later_ns(parts),
        backwards=sum(part.backwards for part in parts),
        updates=tuple(which for part in parts for which in part.updates),
        skipped=any(part.skipped for part in parts),
        new_epoch=any(part.new_epoch for part in parts),
        collectives=tuple(collective for part in parts for collective in part.collectives),
        bound_ns=max(part.bound_ns for part in parts),
        called_ns=(first.called_ns[0], last.called_ns[1]),
        pause=next((part.pause for part in parts if part.pause), None),
    )


def _later_ns(parts: Sequence[ObservedStep]) -> int:
    """What loaders took behind the first forward of a round; ABSENT where that is not known of all its parts."""
    its = [part.later_ns for part in parts] + [part.loader_ns for part in parts[1:]]
    return ABSENT if ABSENT in its else sum(its)
