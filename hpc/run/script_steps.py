"""What the hooks recorded in the processes of a script, as the steps of its rank."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpc.measure.meetings import Meetings
from hpc.model.timestamps import ABSENT, GRADS_READY, MEETING_STAMPS, STAMPS
from hpc.observe.events import EVALUATE_OUT, EventFileError, read_events, steps_counted
from hpc.observe.steps import ObservedStep, ObservedSteps, steps_of
from hpc.recovery.journal import Journal

_WIDTH = len(STAMPS)
Kind = tuple[str, int]
"""Name and root of a collective."""


@dataclass(frozen=True, kw_only=True)
class RankSteps:
    """The steps of a rank's script, what the hooks state of it, and how many batches it evaluated."""

    observed: ObservedSteps
    facts: Mapping[str, Any] = field(default_factory=dict)
    evaluated: int = 0

    @property
    def steps(self) -> Sequence[ObservedStep]:
        return self.observed.steps


def count_steps(folder: Path) -> int:
    """The steps that the script has made so far, by the count of its hooks."""
    return max(map(_counted, folder.glob("*.events")), default=0)


def read_steps(folder: Path) -> RankSteps:
    """The steps that the script has made so far. Without any, `observed.reason` is why nothing is measured."""
    paths = sorted(folder.glob("*.events"), key=_counted, reverse=True)
    if not paths:
        reason = "no process of the script imported torch where hooks could see it (python -I and -E keep them out)"
        return RankSteps(observed=ObservedSteps(steps=(), remarks=(), reason=reason))
    training = [path for path in paths if _counted(path)]
    if len(training) > 1:
        reason = (
            f"{len(training)} processes of one rank's script train, and a rank is one process that trains: "
            "start as many ranks instead (--ranks-per-node)"
        )
        return RankSteps(observed=ObservedSteps(steps=(), remarks=(), reason=reason))
    try:
        recorded = read_events(paths[0])
    except (EventFileError, OSError) as error:
        return RankSteps(observed=ObservedSteps(steps=(), remarks=(), reason=str(error)))
    evaluated = sum(event.kind == EVALUATE_OUT for event in recorded.events)
    return RankSteps(observed=steps_of(recorded), facts=recorded.facts, evaluated=evaluated)


def _counted(path: Path) -> int:
    try:
        return steps_counted(path)
    except OSError:  # it is being made
        return 0


def write_steps(journal: Journal, steps: Sequence[ObservedStep], stated: int) -> int:
    """Stores the steps in the journal, as far as it reaches; returns how many it has now.

    `stated` are the samples of a step of which it was not seen how many it takes.
    """
    count = min(len(steps), len(journal.samples))
    for number, step in enumerate(steps[:count]):
        journal.stamps[number * _WIDTH : (number + 1) * _WIDTH] = array("q", step.stamps)
        journal.samples[number] = stated if step.samples is None else step.samples
    return count


def pauses_of(steps: Sequence[ObservedStep]) -> list[dict[str, Any]]:
    """The pauses as facts of the rank: before which step, of what kind, how long."""
    return [
        {"step": number, "kind": step.pause.kind, "seconds": (step.pause.end_ns - step.pause.begin_ns) / 1e9}
        for number, step in enumerate(steps) if step.pause is not None
    ]  # fmt: skip


def usual_collectives(steps: Sequence[ObservedStep]) -> tuple[Kind, ...]:
    """The collectives of most of these steps, in the order of their calls."""
    counts = Counter(_kinds(step) for step in steps)
    return counts.most_common(1)[0][0] if counts else ()


def unlike_others(steps: Sequence[ObservedStep], blocks: Sequence[Sequence[int]], kinds: Sequence[Kind]) -> list[int]:
    """The last steps of blocks with other collectives than `kinds`.

    Where a pause follows, or nothing, a step ends with its update: it lacks what others call between that and the next.
    """
    return [stop - 1 for _, stop in blocks if _kinds(steps[stop - 1]) != tuple(kinds)]


def meetings_of(steps: Sequence[ObservedStep], kinds: Sequence[Kind]) -> Meetings:
    """The collectives inside the steps; a step with others than these is absent as a whole."""
    width = len(MEETING_STAMPS)
    stamps = array("q", [ABSENT]) * (len(steps) * len(kinds) * width)
    for number, step in enumerate(steps):
        if _kinds(step) == tuple(kinds):
            for at, call in enumerate(step.collectives):
                first = (number * len(kinds) + at) * width
                stamps[first : first + width] = array("q", (call.arrives_ns, call.waits_ns, call.ends_ns))
    return Meetings.recorded([name for name, _ in kinds], [root for _, root in kinds], memoryview(stamps))


def early_collectives(steps: Sequence[ObservedStep]) -> list[str]:
    """In words, the collectives that a rank calls before its own gradients are complete, as of most steps."""
    early: Counter[str] = Counter()
    for step in steps:
        complete_ns = step.stamps[GRADS_READY]
        early.update(call.name for call in step.collectives if complete_ns == ABSENT or call.arrives_ns < complete_ns)
    return [f"{count / len(steps):.3g} {name} a step" for name, count in sorted(early.items())]


def _kinds(step: ObservedStep) -> tuple[Kind, ...]:
    return tuple((call.name, call.root) for call in step.collectives)
