"""From the events of one process to its optimizer steps; states with a reason whatever the events do not show.

The rules are those of docs/observe_hooks.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from hpc.model.timestamps import ABSENT, BATCH_READY, BEGIN, END, FORWARD_END, GRADS_READY, INNER, REDUCED, STAMPS
from hpc.observe import events as e
from hpc.observe.events import HookEvent, ProcessEvents
from hpc.system.text import grouped, plural

# The collectives of a process, from its events.


@dataclass(frozen=True, kw_only=True)
class CollectiveCall:
    """A collective that was called from Python.

    ns of its call; of the wait for its result, which for one that is waited for at once is that of the call; of its
    end. ABSENT for the last two: it was not waited for.
    """

    name: str
    root: int
    arrives_ns: int
    waits_ns: int
    ends_ns: int
    bytes: int
    """0 for DDP's buffers, which are not counted."""

    @property
    def waited_ns(self) -> int:
        """How long the process waited for its result; 0 where it did not."""
        return 0 if ABSENT in (self.waits_ns, self.ends_ns) else self.ends_ns - self.waits_ns


def collectives_of(recorded: ProcessEvents) -> list[CollectiveCall]:
    """All of a process, in the order of their calls."""
    waits: dict[int, int] = {}
    ends: dict[int, int] = {}
    for event in recorded.events:
        if event.kind == e.COLLECTIVE_WAIT:
            waits.setdefault(event.number, event.ns)
        elif event.kind == e.COLLECTIVE_OUT:
            ends.setdefault(event.number, event.ns)
    calls = [(place, event) for place, event in enumerate(recorded.events) if event.kind == e.COLLECTIVE_IN]
    return [
        CollectiveCall(
            name=recorded.names[call.which][0],
            root=recorded.names[call.which][1],
            arrives_ns=call.ns,
            waits_ns=waits.get(place, call.ns if place in ends else ABSENT),
            ends_ns=ends.get(place, ABSENT),
            bytes=call.number,
        )
        for place, call in calls
    ]


# Where steps are cut: a step ends with the last update after which the script trains on.


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The events after one step's last update, up to and with the next one's: places in the list of events."""

    first: int
    stop: int
    end_ns: int
    updated_in_backward: bool = False
    """The optimizer works inside the backward, whose return is the update's."""


def segments_of(events: Sequence[HookEvent]) -> list[Segment]:
    """One for each step. Where the script calls `step()` that alone ends steps."""
    marks = [at for at, event in enumerate(events) if event.kind == e.STEP_END]
    if marks:
        firsts = [0, *(at + 1 for at in marks[:-1])]
        return [Segment(first=a, stop=b + 1, end_ns=events[b].ns) for a, b in zip(firsts, marks, strict=True)]
    return _by_updates(events)


def _by_updates(events: Sequence[HookEvent]) -> list[Segment]:
    segments: list[Segment] = []
    first, updated = 0, -1  # where this step begins; its last update so far
    trains = in_backward = pending = in_this_backward = scaled = False
    for at, event in enumerate(events):
        kind = event.kind
        if kind in (e.FORWARD_IN, e.BACKWARD_IN):
            if updated >= 0:
                segments.append(_segment(events, first, updated, in_this_backward))
                first, updated, in_this_backward = updated + 1, -1, False
            trains = True
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
                updated, in_this_backward = at, False
    if updated >= 0:
        segments.append(_segment(events, first, updated, in_this_backward))
    return segments


def _segment(events: Sequence[HookEvent], first: int, updated: int, in_backward: bool) -> Segment:
    return Segment(first=first, stop=updated + 1, end_ns=events[updated].ns, updated_in_backward=in_backward)


# The time stamps inside a step: forward_end, grads_ready, reduced; or why one of them is not known.

Inner = tuple[int, int, int]


def inner_stamps(
    inside: Sequence[HookEvent], segment: Segment, recorded: ProcessEvents
) -> tuple[Inner, dict[str, str]]:
    """Those of the events inside a step, and the reason for each that is ABSENT, by its name."""
    reason = _why_unclear(inside, segment, recorded)
    if reason:
        return (ABSENT, ABSENT, ABSENT), dict.fromkeys(INNER, reason)
    last = max(event.ns for event in inside if event.kind == e.BACKWARD_IN)
    returned = max(event.ns for event in inside if event.kind == e.BACKWARD_OUT)
    facts = recorded.facts
    if facts.get("ddp"):
        gradients = [event.ns for event in inside if event.kind == e.GRADIENT and last <= event.ns <= returned]
        if gradients:
            return (last, gradients[-1], returned), {}
        return (last, ABSENT, returned), {INNER[1]: "DDP had not yet named the parameter whose gradient comes last"}
    scattered = [event.ns for event in _named(inside, recorded, "reduce-scatter") if last <= event.ns < returned]
    if scattered:
        return (last, scattered[-1], returned), {}
    if facts.get("size", 1) == 1:
        return (last, returned, returned), {}
    return _reduced_by_hand(inside, segment, recorded, last, returned)


def _why_unclear(inside: Sequence[HookEvent], segment: Segment, recorded: ProcessEvents) -> str:
    """Why none of them can be known; empty if they may be."""
    backwards = [event.ns for event in inside if event.kind == e.BACKWARD_IN]
    returns = sum(event.kind == e.BACKWARD_OUT for event in inside)
    updates = [event.ns for event in inside if event.kind == e.UPDATE_IN]
    armed = [event.ns for event in inside if event.kind == e.ARMED]
    unseen = [event for event in inside if event.kind == e.UPDATE_OUT and event.number]
    devices = [device for device in recorded.facts.get("devices", []) if device != "cpu"]
    ddp = recorded.facts.get("ddp")
    reasons = {
        f"on {', '.join(devices)} the host's clock shows when work was queued, not when it was done": bool(devices),
        "no backward was seen": not backwards,
        "a backward did not return": returns < len(backwards),
        "the optimizer works inside the backward": segment.updated_in_backward,
        "the optimizer calls backward several times in one step": any(
            sum(at >= updated for at in backwards) > 1 for updated in updates
        ),
        "whether the optimizer called backward was not yet seen": bool(unseen) and len(backwards) > 1,
        f"DDP reduces {len(armed)} times in the step, not once": ddp and len(armed) != 1,
        "DDP reduces in a backward that is not the last of the step": ddp
        and any(at > armed[0] for at in backwards[:-1] if armed),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _named(inside: Sequence[HookEvent], recorded: ProcessEvents, name: str) -> list[HookEvent]:
    return [x for x in inside if x.kind == e.COLLECTIVE_IN and recorded.names[x.which][0].startswith(name)]


def _reduced_by_hand(
    inside: Sequence[HookEvent], segment: Segment, recorded: ProcessEvents, last: int, returned: int
) -> tuple[Inner, dict[str, str]]:
    """Where the script itself reduces all gradients between backward and update."""
    calls = [x for x in _named(inside, recorded, "all-reduce") if returned <= x.ns < segment.end_ns]
    expected = recorded.facts.get("gradient_bytes", 0)
    if not expected or sum(call.number for call in calls) < expected:
        reason = "nothing was seen that reduces the gradients"
        return (ABSENT, ABSENT, ABSENT), dict.fromkeys(INNER, reason)
    ends = [x.ns for x in inside if x.kind == e.COLLECTIVE_OUT and calls[0].ns <= x.ns < segment.end_ns]
    if len(ends) < len(calls):
        return (last, calls[-1].ns, ABSENT), {INNER[2]: "the reduction of the gradients was not waited for"}
    return (last, calls[-1].ns, ends[-1]), {}


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
        elif event.kind in (e.FORWARD_IN, e.BACKWARD_IN, e.EVALUATE_IN):
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


LONGEST_ROUND = 8
"""Optimizers that take turns make a round of at most so many updates."""
_OTHER = {
    e.EVALUATE_OUT: "evaluation", e.SAVE_OUT: "checkpoint",
    e.FETCH_OUT: "another loader", e.FETCH_END: "another loader", e.ITERATE_OUT: "another loader",
}  # fmt: skip
_LOADER_KINDS = (e.FETCH_OUT, e.FETCH_END, e.ITERATE_OUT)


@dataclass(frozen=True, kw_only=True)
class Pause:
    """What else than training is between two steps: from the end of one to the beginning of the next."""

    kind: str  # "evaluation", "checkpoint", "another loader", joined by " and "
    begin_ns: int
    end_ns: int
    waited_ns: int = 0
    """The part of it in which the process waited for the results of collectives."""


@dataclass(frozen=True, kw_only=True)
class ObservedStep:
    """One optimizer step, from where the script requests its batch to where it requests the next."""

    stamps: tuple[int, ...]
    """As hpc.model.timestamps.STAMPS, ns of CLOCK_MONOTONIC; ABSENT where it was not seen."""
    absent: Mapping[str, str]
    """For each stamp that is ABSENT, by its name: the reason."""
    samples: int | None
    """None where the script reads by no loader that hooks can see, or reads what has no length."""
    fetches: int
    fetch_ns: int
    """All of its fetches together; with accumulation only the first is between `begin` and `batch_ready`."""
    loader_ns: int = ABSENT
    """What its loaders took between `begin` and `batch_ready`; ABSENT where no loader was seen."""
    backwards: int
    updates: tuple[int, ...]
    """The optimizers that were stepped, by number, in order."""
    skipped: bool
    """A gradient scaler skipped the update."""
    new_epoch: bool
    """The loader was exhausted, or restarted, before it: its first fetch includes the start of an iterator."""
    collectives: tuple[CollectiveCall, ...] = ()
    pause: Pause | None = None
    """What is before it: a step of the measurement must not span it."""


@dataclass(frozen=True, kw_only=True)
class ObservedSteps:
    """The steps of a process in order; sentences on what was seen and what was not; without steps, the reason."""

    steps: tuple[ObservedStep, ...]
    remarks: tuple[str, ...]
    reason: str = ""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Stamps that more than half of the later steps lack, by name, with the most frequent reason."""
    last_steps: Mapping[str, int] = field(default_factory=dict)
    """By remark on steps that lack a stamp: the last of these."""

    def early_remarks(self, warmup_steps: int) -> tuple[str, ...]:
        """The remarks that concern no step behind the warm-up."""
        return tuple(remark for remark in self.remarks if self.last_steps.get(remark, warmup_steps) < warmup_steps)


def steps_of(recorded: ProcessEvents) -> ObservedSteps:
    """The steps of one process. Nothing is assumed where its events do not show it."""
    segments = segments_of(recorded.events)
    loaders = training_loaders(recorded.events, segments)
    usual = _usual(recorded.events, segments, loaders)
    looked = looked_at(recorded.events, segments, loaders)
    steps: list[ObservedStep] = []
    for segment in segments:
        events = recorded.events[segment.first : segment.stop]
        begin, before, kinds = _begin(events, steps[-1].stamps[END] if steps else None, loaders, usual)
        if steps:
            stamps = steps[-1].stamps
            steps[-1] = replace(steps[-1], stamps=(*stamps[:END], before))
        pause = Pause(kind=" and ".join(kinds), begin_ns=before, end_ns=begin) if steps and kinds else None
        steps.append(_step(begin, events, segment, recorded, loaders, looked, pause))
    if steps:
        stamps = steps[-1].stamps
        end = _last_end(recorded.events[segments[-1].stop :], loaders, stamps[END])
        steps[-1] = replace(steps[-1], stamps=(*stamps[:END], end))
    steps = _with_collectives(steps, collectives_of(recorded))
    steps, turns, reason = _rounds(steps)
    lacking = _lacking(steps)
    remarks = (*_of_process(recorded), *turns, *lacking, *_remarks(steps, usual, len(looked)))
    return ObservedSteps(
        steps=tuple(steps),
        remarks=remarks,
        reason="" if steps else reason or _why_none(recorded.events),
        absent=_absent(steps),
        last_steps=lacking,
    )


def _lead(events: Sequence[HookEvent]) -> Sequence[HookEvent]:
    """What comes before the first backward of a segment."""
    return events[: next((at for at, event in enumerate(events) if event.kind == e.BACKWARD_IN), len(events))]


def _others(lead: Sequence[HookEvent], loaders: Set[int]) -> list[tuple[int, str]]:
    """Places of what is no training, and what it is."""
    return [
        (at, _OTHER[event.kind])
        for at, event in enumerate(lead)
        if event.kind in _OTHER and not (event.kind in _LOADER_KINDS and event.which in loaders)
    ]


def _usual(events: Sequence[HookEvent], segments: Sequence[Segment], loaders: Set[int]) -> set[str]:
    """What more than half of the steps contain is a part of a step and no pause: a teacher's forward, a checkpoint."""
    counts: Counter[str] = Counter()
    for segment in segments:
        lead = _lead(events[segment.first : segment.stop])
        counts.update({kind for _, kind in _others(lead, loaders)})
    return {kind for kind, count in counts.items() if 2 * count > len(segments) > 2}


def _begin(
    events: Sequence[HookEvent], last_end: int | None, loaders: Set[int], usual: Set[str]
) -> tuple[int, int, list[str]]:
    """When a step requests its batch; when the step before it ended; what is between the two, if anything.

    `last_end` is the return of the last update; None for the first step.
    """
    lead = _lead(events)
    pauses = [(at, kind) for at, kind in _others(lead, loaders) if kind not in usual]
    requests = [
        at for at, event in enumerate(lead) if event.kind in (e.ITERATE_IN, e.FETCH_IN) and event.which in loaders
    ]
    if not pauses:
        begin = lead[requests[0]].ns if requests else events[0].ns if last_end is None else last_end
        return begin, begin, []
    first, last = pauses[0][0], pauses[-1][0]
    after = [at for at in requests if at > last]
    early = [at for at in requests if at < first]
    begin = lead[after[0]].ns if after else lead[last].ns
    end = lead[early[0]].ns if early else begin if last_end is None else last_end
    return begin, end, sorted({kind for _, kind in pauses})


def _last_end(after: Sequence[HookEvent], loaders: Set[int], returned_ns: int) -> int:
    """The end of the last step: where the script next requests a batch, though none comes; else the update's return.

    So the collectives behind the update belong to the last step as to all others.
    """
    collectives = (e.COLLECTIVE_IN, e.COLLECTIVE_WAIT, e.COLLECTIVE_OUT, e.SCALER_OUT)
    follows = next((event for event in after if event.kind not in collectives), None)
    requests = follows is not None and follows.kind in (e.FETCH_IN, e.ITERATE_IN) and follows.which in loaders
    return follows.ns if follows is not None and requests else returned_ns


def _step(
    begin: int,
    events: Sequence[HookEvent],
    segment: Segment,
    recorded: ProcessEvents,
    loaders: Set[int],
    looked: Set[HookEvent],
    pause: Pause | None,
) -> ObservedStep:
    inside = [event for event in events if event.ns >= begin]
    stamps, absent = [begin, ABSENT, ABSENT, ABSENT, ABSENT, segment.end_ns], dict[str, str]()
    inner, reasons = inner_stamps(inside, segment, recorded)
    stamps[FORWARD_END], stamps[GRADS_READY], stamps[REDUCED] = inner
    absent.update(reasons)
    forwards = [event.ns for event in inside if event.kind == e.FORWARD_IN]
    if forwards:
        stamps[BATCH_READY] = forwards[0]
    else:
        absent[STAMPS[BATCH_READY]] = (
            "no forward of a known model was seen (models are known from the first backward on)"
        )
    taken = [stamp for stamp in stamps if stamp != ABSENT]
    if taken != sorted(taken):
        absent |= dict.fromkeys(STAMPS[BATCH_READY:END], "the time stamps are not in the order of a step")
        stamps[BATCH_READY:END] = [ABSENT] * 4
    fetched = [event for event in inside if event.kind == e.FETCH_OUT and event.which in loaders]
    batches = [event for event in fetched if event not in looked]
    updates = tuple(event.which for event in inside if event.kind == e.UPDATE_OUT)
    scaled = tuple(event.which for event in inside if event.kind == e.SCALER_OUT and event.which)
    known = bool(loaders) and all(event.number for event in batches)
    return ObservedStep(
        stamps=tuple(stamps),
        absent=absent,
        samples=sum(event.number for event in batches) if known else None,
        fetches=len(batches),
        fetch_ns=_fetch_ns(inside, loaders),
        loader_ns=_fetch_ns([event for event in inside if event.ns <= stamps[BATCH_READY]], loaders)
        if loaders and stamps[BATCH_READY] != ABSENT
        else ABSENT,
        backwards=sum(event.kind == e.BACKWARD_IN for event in inside),
        updates=(0,) if segment.updated_in_backward else updates or scaled,
        skipped=bool(scaled) and not updates,
        new_epoch=any(event.kind in (e.FETCH_END, e.ITERATE_IN) and event.which in loaders for event in inside),
        pause=pause,
    )


def _fetch_ns(inside: Sequence[HookEvent], loaders: Set[int]) -> int:
    total = begin = 0
    for event in inside:
        if event.which in loaders and event.kind in (e.FETCH_IN, e.ITERATE_IN):
            begin = event.ns
        elif event.which in loaders and event.kind in _LOADER_KINDS and begin:
            total, begin = total + event.ns - begin, 0
    return total


def _with_collectives(steps: Sequence[ObservedStep], collectives: Sequence[CollectiveCall]) -> list[ObservedStep]:
    """Each collective goes to the step in which it is called; those in pauses to none, but count as waits there."""
    result, at = [], 0
    for step in steps:
        waited_ns, pause = 0, step.pause
        while at < len(collectives) and collectives[at].arrives_ns < step.stamps[BEGIN]:
            if pause is not None and collectives[at].arrives_ns >= pause.begin_ns:
                waited_ns += collectives[at].waited_ns
            at += 1
        first = at
        while at < len(collectives) and collectives[at].arrives_ns < step.stamps[END]:
            at += 1
        pause = None if pause is None else replace(pause, waited_ns=waited_ns)
        result.append(replace(step, collectives=tuple(collectives[first:at]), pause=pause))
    return result


def _rounds(steps: list[ObservedStep]) -> tuple[list[ObservedStep], list[str], str]:
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
        backwards=sum(part.backwards for part in parts),
        updates=tuple(which for part in parts for which in part.updates),
        skipped=any(part.skipped for part in parts),
        new_epoch=any(part.new_epoch for part in parts),
        collectives=tuple(collective for part in parts for collective in part.collectives),
        pause=next((part.pause for part in parts if part.pause), None),
    )


def _absent(steps: Sequence[ObservedStep]) -> dict[str, str]:
    late = steps[len(steps) // 2 :]
    lacking = {name: Counter(step.absent[name] for step in late if name in step.absent) for name in STAMPS}
    return {name: reasons.most_common(1)[0][0] for name, reasons in lacking.items() if 2 * reasons.total() > len(late)}


def _of_process(recorded: ProcessEvents) -> list[str]:
    facts, remarks = recorded.facts, []
    if "failed" in facts:
        remarks.append(f"a hook raised {facts['failed']}: all hooks were removed; the script went on unmeasured")
    if facts.get("full"):
        remarks.append(f"recording ended after {len(recorded.events)} events: the file was full")
    if facts.get("world_size", 1) > 1 and not facts.get("joined", True):
        remarks.append(f"WORLD_SIZE is {facts['world_size']}, but it is in no process group: it trains alone")
    return remarks


def _why_none(events: Sequence[HookEvent]) -> str:
    counts = Counter(event.kind for event in events)
    if not counts[e.BACKWARD_IN]:
        return (
            "no backward was seen: nothing trains with torch here, or all of it inside a compiled graph; "
            "step() of hpc.observe marks steps that hooks cannot see"
        )
    backwards = plural(counts[e.BACKWARD_IN], "backward")
    return (
        f"{backwards} and no step of an optimizer were seen: parameters are updated by hand or inside a compiled "
        "graph; step() of hpc.observe marks such an update"
    )


def _remarks(steps: Sequence[ObservedStep], usual: Set[str], looked: int) -> list[str]:
    if not steps:
        return []
    late = steps[len(steps) // 2 :]
    pauses = [step.pause for step in steps if step.pause]
    kinds = Counter(pause.kind for pause in pauses)
    epochs = [step for step in steps[1:] if step.new_epoch]
    skipped = sum(step.skipped for step in steps)
    later = [(step.fetch_ns - step.stamps[BATCH_READY] + step.stamps[BEGIN]) / 1e6 for step in late if step.fetches > 1]
    remarks = []
    for kind, count in kinds.items():
        length = sum(pause.end_ns - pause.begin_ns for pause in pauses if pause.kind == kind) / 1e9
        remarks.append(f"{plural(count, 'pause')} for {kind}, {length:.3f} s in all, in no step")
    remarks += [f"{kind} in more than half of the steps is a part of them" for kind in sorted(usual)]
    if not any(step.fetches for step in late):
        remarks.append("no DataLoader: a step begins where the update before it returned")
    elif any(step.samples is None for step in late):
        remarks.append("how many samples a batch has is not known")
    elif unread := sum(not step.fetches for step in late):
        remarks.append(f"{unread} of the last {len(late)} steps read nothing: batches are read ahead, or used again")
    if looked:
        remarks.append(
            f"{plural(looked, 'time')} a batch was fetched and its loader restarted: not trained, not counted"
        )
    if epochs:
        remarks.append(f"{plural(len(epochs), 'step')} after the end of an epoch: data includes a new iterator")
    if skipped:
        remarks.append(f"the gradient scaler skipped {skipped} of {len(steps)} updates")
    for count, times in sorted(Counter(step.backwards for step in late).items()):
        if count > 1:
            remarks.append(f"{count} backwards a step in {times} of the last {len(late)} steps")
    if later and sum(later) > 0:
        remarks.append(
            f"of several fetches a step the first is data; the others, {sum(later) / len(later):.3f} ms, are compute"
        )
    return remarks


def _lacking(steps: Sequence[ObservedStep]) -> dict[str, int]:
    """A remark for each reason why steps lack stamps, with the last of these steps."""
    lacking = grouped(
        (f"{', '.join(names)} absent: {reason}", number)
        for number, step in enumerate(steps)
        for reason, names in _by_reason(step).items()
    )
    return {f"{reason}: {len(numbers)} of {len(steps)} steps": numbers[-1] for reason, numbers in lacking.items()}


def _by_reason(step: ObservedStep) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for name, reason in step.absent.items():
        names.setdefault(reason, []).append(name)
    return names
