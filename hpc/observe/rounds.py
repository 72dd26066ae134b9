"""Steps of optimizers that take turns: several updates are one step, where the turns repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

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
    changes = _changes(turns)
    if len(changes) == len(kinds) - 1:
        return steps, [f"the optimizer changes at step {', '.join(map(str, changes))}"], ""
    if (outer := outer_steps(steps)) is not None:
        its = f"1 of {outer.every}" if outer.every else f"{outer.count} of {len(steps)}"
        named = f"optimizer {' and '.join(map(str, outer.optimizers))} (by number)"
        return steps, [f"{named} is stepped behind others in {its} steps: an outer one; the inner step is the step"], ""
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


def _changes(turns: Sequence[tuple[int, ...]]) -> list[int]:
    """The steps with other updates than the step before."""
    return [at for at in range(1, len(turns)) if turns[at] != turns[at - 1]]


@dataclass(frozen=True, kw_only=True)
class OuterSteps:
    """Steps in which further optimizers are stepped behind those of all steps: DiLoCo's. `every`: one in so many steps,
    0 where they come in no such order, or there is one; `first` counts from 0."""

    optimizers: tuple[int, ...]
    count: int
    first: int
    every: int


def outer_steps(steps: Sequence[ObservedStep]) -> OuterSteps | None:
    """Those of a script where most steps have the updates with which all others begin; None where that is not so, or
    where the optimizers change once and for all."""
    turns = [step.updates for step in steps]
    (inner, count), *others = Counter(turns).most_common() or [((), 0)]
    if len(_changes(turns)) == len(others):
        return None
    if 2 * count < len(steps) or any(turn[: len(inner)] != inner for turn, _ in others):
        return None
    places = [at for at, step in enumerate(steps) if step.updates != inner]
    distances = {later - earlier for earlier, later in pairwise(places)}
    optimizers = sorted({which for turn, _ in others for which in turn[len(inner) :]})
    every = distances.pop() if len(distances) == 1 else 0
    return OuterSteps(optimizers=tuple(optimizers), count=len(places), first=places[0], every=every)


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
