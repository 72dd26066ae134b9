"""Where the events of a process are cut into steps, and which loaders feed them; rules: docs/observe_hooks.md."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from hpc.observe import events as e
from hpc.observe.events import HookEvent

# Where steps are cut: a step ends with the last update after which the script trains on.


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The events after one step's last update, up to and with the next one's: places in the list of events."""

    first: int
    stop: int
    end_ns: int
    updated_in_backward: bool = False
    """The optimizer works inside the backward, whose return is the update's."""
    marked: bool = False
    """The script, or its trainer, says where it ends."""


def without_guesses(events: Sequence[HookEvent]) -> Sequence[HookEvent]:
    """The events without updates that show by changed parameters alone, where hooks see updates: LBFGS changes them
    between its backwards."""
    updates = [event.number == e.UNSEEN for event in events if event.kind == e.UPDATE_OUT]
    if not any(updates) or all(updates):
        return events
    return [
        HookEvent(0, e.NOTHING) if event.kind == e.UPDATE_OUT and event.number == e.UNSEEN else event
        for event in events
    ]


def segments_of(events: Sequence[HookEvent]) -> list[Segment]:
    """One for each step. Where the script calls `step()` that alone ends steps."""
    marks = [at for at, event in enumerate(events) if event.kind == e.STEP_END]
    if marks:
        firsts = [0, *(at + 1 for at in marks[:-1])]
        pairs = zip(firsts, marks, strict=True)
        return [Segment(first=a, stop=b + 1, end_ns=events[b].done_ns, marked=True) for a, b in pairs]
    return _by_updates(events)


def _by_updates(events: Sequence[HookEvent]) -> list[Segment]:
    segments: list[Segment] = []
    first, updated = 0, -1  # where this step begins; its last update so far
    trains = in_backward = pending = in_this_backward = scaled = False
    stepped = set[int]()  # optimizers since the last forward or backward
    shadowed = -1  # the last update before a second one of these
    for at, event in enumerate(events):
        kind = event.kind
        if kind in (e.FORWARD_IN, e.BACKWARD_IN, e.REPLAY):
            if updated >= 0:
                segments.append(_segment(events, first, updated, in_this_backward))
                first, updated, in_this_backward = updated + 1, -1, False
            trains, shadowed = True, -1
            stepped.clear()
        if kind == e.BACKWARD_IN:
            in_backward, pending = True, False
        elif kind == e.BACKWARD_OUT:
            if pending:
                updated, in_this_backward = at, True
            in_backward = pending = False
        elif kind == e.SCALER_IN:
            scaled = False
        elif trains and (kind == e.UPDATE_OUT or (kind == e.SCALER_OUT and event.which and not scaled)):
            scaled = True  # and where there was no update inside the scaler's call, the scaler has skipped it
            if in_backward:
                pending = True
            else:
                if kind == e.UPDATE_OUT and event.which in stepped and shadowed < 0:
                    shadowed = updated
                stepped.add(event.which)
                updated, in_this_backward = at, False
    if updated >= 0:  # behind the last step a rank may update in the shadow of others that train on (Join)
        segments.append(_segment(events, first, updated if shadowed < 0 else shadowed, in_this_backward))
    return segments


def _segment(events: Sequence[HookEvent], first: int, updated: int, in_backward: bool) -> Segment:
    return Segment(first=first, stop=updated + 1, end_ns=events[updated].done_ns, updated_in_backward=in_backward)


# Which loaders feed the training, which evaluate or do something else, and which batches are only looked at.


@dataclass
class _Use:
    fetches: int = 0
    evaluated: int = 0
    steps: set[int] = field(default_factory=set)
    fed: set[int] = field(default_factory=set)


def training_loaders(events: Sequence[HookEvent], segments: Sequence[Segment]) -> set[int]:
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
        elif event.kind in (e.FORWARD_IN, e.BACKWARD_IN, e.REPLAY, e.EVALUATE_IN):
            if event.kind == e.EVALUATE_IN:
                for which, count in evaluates_next.items():
                    uses[which].evaluated += count
            elif since:
                uses[since[-1]].fed.add(step)
            since, evaluates_next = [], {}
    return {which for which, use in uses.items() if _trains(use)}


def looked_at(events: Sequence[HookEvent], segments: Sequence[Segment], loaders: Set[int]) -> set[HookEvent]:
    """The fetches of batches that are only looked at: the loader is restarted before its end, and no model is called.

    None where most steps do so: then the script reads this way.
    """
    looked: set[HookEvent] = set()
    steps = 0
    for segment in segments:
        unused: dict[int, list[HookEvent]] = {}
        before = len(looked)
        for event in events[segment.first : segment.stop]:
            if event.kind == e.FETCH_OUT and event.which in loaders:
                unused.setdefault(event.which, []).append(event)
            elif event.kind == e.FETCH_END:
                unused.pop(event.which, None)
            elif event.kind in (e.FORWARD_IN, e.BACKWARD_IN, e.REPLAY):
                unused.clear()
            elif event.kind == e.ITERATE_IN:
                looked.update(unused.pop(event.which, ()))
        steps += len(looked) > before
    return set() if 2 * steps > len(segments) else looked


def _trains(use: _Use) -> bool:
    span = max(use.steps) - min(use.steps) + 1
    feeds = 2 * len(use.fed) >= len(use.steps)
    return 2 * use.evaluated <= use.fetches and (feeds or (len(use.steps) > 2 and 2 * len(use.steps) > span))
