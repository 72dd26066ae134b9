"""Updates and pauses of a larger step: optimizers that take turns, phases that recur, outer optimizers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hpc.model.spec import MIN_WARMUP_STEPS
from hpc.model.timestamps import ABSENT, BATCH_READY, END, FORWARD_END, STAMPS
from hpc.observe.stamps import NO_TIMES, ROLLOUT, ObservedStep, Pause
from hpc.system.text import grouped

# Optimizers that take turns: several updates are one step, where the turns repeat.

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


# Pauses that recur before one of few steps, through all of the run: no step would be measured between them.

MIN_PHASES, PHASE_SHARE = 4, 0.9
"""So many there are at least, before so many of the steps that would have one."""


def join_phases(steps: Sequence[ObservedStep]) -> list[str]:
    """Has those behind such pauses begin with them; a remark on each kind.

    A block of steps needs MIN_WARMUP_STEPS behind each pause: where pauses come so often that less than half of the
    steps would be in blocks, they are what the script does, and no end of a window. Evaluation is a rollout then.
    """
    paused = [(at, step.pause) for at, step in enumerate(steps) if step.pause and step.pause.kind != NO_TIMES]
    remarks = []
    for kind, places in grouped((pause.kind, at) for at, pause in paused).items():
        every = min((later - earlier for earlier, later in pairwise(places)), default=0)
        enough = len(places) >= max(MIN_PHASES, PHASE_SHARE * (len(steps) // max(1, every) - 1))
        if not enough or every >= 2 * MIN_WARMUP_STEPS or any((at - places[0]) % every for at in places):
            continue
        name = ROLLOUT if "evaluation" in kind else kind
        for at in places:
            step, before = steps[at], steps[at - 1]
            step.phase, step.pause = _phase(step, name), None
            step.stamps = (before.stamps[END], *step.stamps[1:])
            step.called_ns = before.called_ns[1], step.called_ns[1]
        remarks.append(f"a {name} before one of {every} steps is a part of it, in its data")
    return remarks


def _phase(step: ObservedStep, name: str) -> Pause:
    """All that is before the step's batch is requested; of one that no loader feeds, before its forward."""
    assert step.pause is not None
    until_ns = step.pause.end_ns if step.fetches else max(step.pause.end_ns, step.stamps[BATCH_READY])
    return replace(step.pause, kind=name, end_ns=until_ns)


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
    absent = {**last.absent, STAMPS[BATCH_READY]: first.absent.get(STAMPS[BATCH_READY], "")}
    return ObservedStep(
        stamps=(*first.stamps[:FORWARD_END], *last.stamps[FORWARD_END:]),
        absent={name: reason for name, reason in absent.items() if reason},
        samples=sum(samples) if samples else None,
        fetches=sum(part.fetches for part in parts),
        fetch_ns=sum(part.fetch_ns for part in parts),
        loader_ns=first.loader_ns,
        later_ns=_later_ns(parts),
        updated_ns=last.updated_ns,
        backwards=sum(part.backwards for part in parts),
        updates=tuple(which for part in parts for which in part.updates),
        skipped=any(part.skipped for part in parts),
        new_epoch=any(part.new_epoch for part in parts),
        collectives=tuple(collective for part in parts for collective in part.collectives),
        bound_ns=max(part.bound_ns for part in parts),
        called_ns=(first.called_ns[0], last.called_ns[1]),
        backward_ns=(first.backward_ns[0], last.backward_ns[1]),
        pause=next((part.pause for part in parts if part.pause), None),
        place=first.place,
    )


def _later_ns(parts: Sequence[ObservedStep]) -> int:
    """What loaders took behind the first forward of a round; ABSENT where that is not known of all its parts."""
    its = [part.later_ns for part in parts] + [part.loader_ns for part in parts[1:]]
    return ABSENT if ABSENT in its else sum(its)
