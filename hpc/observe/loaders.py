"""Which loaders feed the training, which evaluate or do something else, and which batches are only looked at."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from hpc.observe import events as e
from hpc.observe.events import Event
from hpc.observe.segments import Segment


@dataclass
class _Use:
    fetches: int = 0
    evaluated: int = 0
    steps: set[int] = field(default_factory=set)
    fed: set[int] = field(default_factory=set)


def training_loaders(events: Sequence[Event], segments: Sequence[Segment]) -> set[int]:
    """Their numbers.

    One whose batches are mostly evaluated (the next call of a model is without gradients) feeds no training. Of the
    others one does that is the last to be fetched before a step's forward in at least half of the steps in which it is
    fetched; or that is fetched in more than half of the steps between its first and last: one of two loaders of a step.
    """
    stops = [segment.stop for segment in segments]
    uses: dict[int, _Use] = {}
    since: list[int] = []  # loaders fetched since the last call of a model
    evaluates_next: dict[int, int] = {}
    for at, event in enumerate(events):
        step = bisect_right(stops, at)
        if event.kind == e.FETCH_OUT and step < len(segments):
            use = uses.setdefault(event.which, _Use())
            use.fetches += 1
            use.steps.add(step)
            since.append(event.which)
            evaluates_next[event.which] = evaluates_next.get(event.which, 0) + 1
        elif event.kind in (e.FORWARD_IN, e.BACKWARD_IN, e.EVALUATE_IN):
            if event.kind == e.EVALUATE_IN:
                for which, count in evaluates_next.items():
                    uses[which].evaluated += count
            elif since:
                uses[since[-1]].fed.add(step)
            since, evaluates_next = [], {}
    return {which for which, use in uses.items() if _trains(use)}


def looked_at(events: Sequence[Event], segments: Sequence[Segment], loaders: Set[int]) -> set[Event]:
    """The fetches of batches that are only looked at: the loader is begun anew before its end, and no model is called.

    None where most steps do so: then the script reads this way.
    """
    looked: set[Event] = set()
    steps = 0
    for segment in segments:
        unused: dict[int, list[Event]] = {}
        before = len(looked)
        for event in events[segment.first : segment.stop]:
            if event.kind == e.FETCH_OUT and event.which in loaders:
                unused.setdefault(event.which, []).append(event)
            elif event.kind == e.FETCH_END:
                unused.pop(event.which, None)
            elif event.kind in (e.FORWARD_IN, e.BACKWARD_IN):
                unused.clear()
            elif event.kind == e.ITERATE_IN:
                looked.update(unused.pop(event.which, ()))
        steps += len(looked) > before
    return set() if 2 * steps > len(segments) else looked


def _trains(use: _Use) -> bool:
    span = max(use.steps) - min(use.steps) + 1
    feeds = 2 * len(use.fed) >= len(use.steps)
    return 2 * use.evaluated <= use.fetches and (feeds or (len(use.steps) > 2 and 2 * len(use.steps) > span))
