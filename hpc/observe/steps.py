"""From the events of one process to its optimizer steps; states with a reason whatever the events do not show.

The rules are those of docs/observe_hooks.md. On a device its times are those of the steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil
from typing import NamedTuple

from hpc.model.timestamps import ABSENT, BATCH_READY, BEGIN, END, FORWARD_END, GRADS_READY, REDUCED, STAMPS
from hpc.observe import events as e
from hpc.observe.device_times import BEFORE_ALL, Contradiction, DeviceTimes, is_timed, with_device_times
from hpc.observe.events import HookEvent, ProcessEvents
from hpc.observe.segments import Segment, looked_at, segments_of, training_loaders
from hpc.observe.stamps import (
    CollectiveCall,
    HostSpans,
    HostWait,
    host_bound_ns,
    host_spans,
    host_waits,
    inner_stamps,
    is_replayed,
    placed_collectives,
    replayed_stamps,
)
from hpc.system.text import grouped, plural

LONGEST_ROUND = 8
"""Optimizers that take turns make a round of at most so many updates."""
_OTHER = {
    e.EVALUATE_OUT: "evaluation", e.SAVE_OUT: "checkpoint",
    e.FETCH_OUT: "another loader", e.FETCH_END: "another loader", e.ITERATE_OUT: "another loader",
}  # fmt: skip
_BEHIND_UPDATE = {
    e.COLLECTIVE_IN, e.COLLECTIVE_WAIT, e.COLLECTIVE_OUT, e.SCALER_OUT, e.NOTHING,
    e.UNSHARD_IN, e.UNSHARD_OUT, e.SYNC_IN,
}  # fmt: skip
_OF_TRAINING = {e.FORWARD_IN, e.BACKWARD_IN, e.BACKWARD_OUT, e.UPDATE_OUT, e.REPLAY, e.REPLAY_OUT}
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
    bound_ns: int = 0
    """The error bound of its times: 0 on the host's clock, whose times they are."""
    called_ns: tuple[int, int] = (0, 0)
    """Its begin and end by the host's clock, of what the host queued for it: on a device earlier than `stamps`."""
    host_bound_ns: tuple[int, ...] = ()
    """On a device, how long the host set the pace, by hpc.observe.stamps.PHASES; empty where that is not known."""
    host_spans: HostSpans | None = None
    """On a device, what the host took; None where that is not known."""
    host_waits: tuple[HostWait, ...] = ()
    """On a device, when it waits for the host."""
    syncs: int = 0
    """How often the script waited for the device, as far as that is seen."""


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
    contradiction: Contradiction | None = None
    """Of a device's clock with the host's."""

    def early_remarks(self, warmup_steps: int) -> tuple[str, ...]:
        """The remarks that concern no step behind the warm-up."""
        return tuple(remark for remark in self.remarks if self.last_steps.get(remark, warmup_steps) < warmup_steps)


NO_TIMES = "no times of the device"
"""The pause before a step, and before the next, of which the device's times are not all known."""


class _Moment(NamedTuple):
    """A border of a step: the first place behind it, and its time."""

    place: int
    ns: int


@dataclass(frozen=True, kw_only=True)
class _Process:
    """What is known of a process before any of its steps."""

    recorded: ProcessEvents
    times: DeviceTimes | None
    segments: Sequence[Segment]
    loaders: Set[int]
    looked: Set[HookEvent]
    usual: Set[str]
    by_calls: bool

    @classmethod
    def of(cls, recorded: ProcessEvents, *, by_calls: bool) -> _Process:
        times = with_device_times(recorded) if is_timed(recorded) else None
        if times is not None:
            recorded = recorded._replace(events=times.events)
        segments = segments_of(recorded.events)
        if times is not None and "failed" not in recorded.facts["device_clock"]:
            last = max(times.bounds_ns, default=-1)  # what comes later the device was not seen to do
            segments = [segment for segment in segments if segment.stop - 1 <= last]
        loaders = training_loaders(recorded.events, segments)
        return cls(
            recorded=recorded,
            times=times,
            segments=segments,
            loaders=loaders,
            looked=looked_at(recorded.events, segments, loaders),
            usual=_usual(recorded.events, segments, loaders),
            by_calls=by_calls,
        )


def steps_of(recorded: ProcessEvents, *, by_calls: bool = False) -> ObservedSteps:
    """The steps of one process. Nothing is assumed where its events do not show it.

    `by_calls` as of hpc.observe.stamps.inner_stamps.
    """
    process = _Process.of(recorded, by_calls=by_calls)
    events, segments = process.recorded.events, process.segments
    steps: list[ObservedStep] = []
    borders: list[tuple[_Moment, _Moment]] = []  # the end of the step before, the begin of each
    last: _Moment | None = None
    for segment in segments:
        begin, before, kinds = _begin(process, segment, last)
        if steps:
            steps[-1] = _ended(steps[-1], before)
        pause = Pause(kind=" and ".join(kinds), begin_ns=before.ns, end_ns=begin.ns) if steps and kinds else None
        steps.append(_step(begin, segment, process, pause))
        borders.append((before, begin))
        last = _Moment(segment.stop, steps[-1].stamps[END])
    if last is not None:
        end = _last_end(events, process.loaders, last)
        steps[-1] = _ended(steps[-1], end)
        borders.append((end, end))
    called = [(_called_ns(process, begin), _called_ns(process, end)) for (_, begin), (end, _) in pairwise(borders)]
    steps = [replace(step, called_ns=its) for step, its in zip(steps, called, strict=True)]
    steps = _by_device(steps, process, borders)
    steps = _with_collectives(steps, borders, process)
    steps, turns, reason = _rounds(steps)
    lacking = _lacking(steps)
    of_device = () if process.times is None else process.times.remarks
    remarks = (
        *_of_process(recorded),
        *of_device,
        *turns,
        *lacking,
        *_remarks(steps, process.usual, len(process.looked), is_pipeline=bool(recorded.facts.get("pipelines"))),
    )
    return ObservedSteps(
        steps=tuple(steps),
        remarks=remarks,
        reason="" if steps else reason or _why_unseen(process) or _why_none(recorded.events),
        absent=_absent(steps),
        last_steps=lacking,
        contradiction=None if process.times is None else process.times.contradiction,
    )


def _called_ns(process: _Process, moment: _Moment) -> int:
    """When the host was at this place of its events."""
    if process.times is None:
        return moment.ns
    events = process.recorded.events
    later = (events[at].ns for at in range(moment.place, len(events)) if events[at].kind != e.NOTHING)
    return next(later, events[-1].ns)


def _ended(step: ObservedStep, end: _Moment) -> ObservedStep:
    return replace(step, stamps=(*step.stamps[:END], end.ns))


def _by_device(
    steps: Sequence[ObservedStep], process: _Process, borders: Sequence[tuple[_Moment, _Moment]]
) -> list[ObservedStep]:
    """What the device shows of the steps. Those of which its times are not all known have no inner stamps, and are in
    no block."""
    segments, times = process.segments, process.times
    if times is None:
        return list(steps)
    unknown: dict[int, str] = {}
    for number, segment in enumerate(segments):
        reasons = Counter(times.reasons[at] for at in range(segment.first, segment.stop) if at in times.reasons)
        if reasons:
            unknown[number] = reasons.most_common(1)[0][0]
    result = []
    launch_ns = int(process.recorded.facts["device_clock"].get("launch_ns", 0))
    for number, step in enumerate(steps):
        segment = segments[number]
        bounds = [times.bounds_ns[at] for at in range(segment.first, segment.stop) if at in times.bounds_ns]
        changed = replace(step, bound_ns=ceil(max(bounds, default=0)))
        if number in unknown:
            stamps = (step.stamps[BEGIN], *[ABSENT] * 4, step.stamps[END])
            changed = replace(changed, stamps=stamps, absent=dict.fromkeys(STAMPS[BATCH_READY:END], unknown[number]))
        if {unknown.get(number, BEFORE_ALL), unknown.get(number - 1, BEFORE_ALL)} != {BEFORE_ALL}:
            begin_ns = step.stamps[BEGIN]
            pause = step.pause or Pause(kind=NO_TIMES, begin_ns=begin_ns, end_ns=begin_ns)
            changed = replace(changed, pause=pause)
        inner = tuple(changed.stamps[at] for at in (BEGIN, BATCH_READY, GRADS_READY, REDUCED, END))
        first, stop = borders[number][1].place, borders[number + 1][0].place
        if ABSENT not in inner and not _is_aside(process, first, stop):
            noted = _noted(process, first, stop)
            paced = host_bound_ns(noted, times.bounds_ns, launch_ns, inner)
            syncs = sum(event.kind == e.SYNC_IN and first <= at < stop for at, event in noted)
            spans = host_spans(noted, _queued(process, noted), inner)
            waits = host_waits(noted, times.bounds_ns, launch_ns, inner[0], inner[-1])
            changed = replace(changed, host_bound_ns=paced, host_spans=spans, host_waits=waits, syncs=syncs)
        result.append(changed)
    return result


def _noted(process: _Process, first: int, stop: int) -> list[tuple[int, HookEvent]]:
    """The events of the training's stream that the device noted, from the last before these places to one behind."""
    events, times = process.recorded.events, process.times
    assert times is not None
    inside = [(at, events[at]) for at in range(first, stop) if at in times.bounds_ns and at not in times.aside]
    before = next((at for at in range(first - 1, -1, -1) if at in times.bounds_ns and at not in times.aside), None)
    after = next((at for at in range(stop, len(events)) if at in times.bounds_ns and at not in times.aside), None)
    return (
        [(at, events[at]) for at in (before,) if at is not None]
        + inside
        + [(at, events[at]) for at in (after,) if at is not None]
    )


def _is_aside(process: _Process, first: int, stop: int) -> bool:
    """Whether the step runs on several streams of the script: when the device had nothing to do is not known."""
    events, times = process.recorded.events, process.times
    assert times is not None
    return any(at in times.aside and events[at].kind in _OF_TRAINING for at in range(first, min(stop, len(events))))


def _queued(process: _Process, noted: Sequence[tuple[int, HookEvent]]) -> list[tuple[int, HookEvent]]:
    """All events of the host from the first of these to the last."""
    return [(at, process.recorded.events[at]) for at in range(noted[0][0], noted[-1][0] + 1)]


def _lead(events: Sequence[HookEvent]) -> Sequence[HookEvent]:
    """What comes before the first backward of a segment, or before the replay of a graph that has it."""
    begins = e.REPLAY if is_replayed(events) else e.BACKWARD_IN
    return events[: next((at for at, event in enumerate(events) if event.kind == begins), len(events))]


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


def _begin(process: _Process, segment: Segment, last: _Moment | None) -> tuple[_Moment, _Moment, list[str]]:
    """When a step requests its batch; when the step before it ended; what is between the two, if anything.

    `last` is the return of the last update; None for the first step. No moment is before it.
    """
    loaders, first = process.loaders, segment.first
    events = process.recorded.events[first : segment.stop]
    lead = _lead(events)

    def moment(at: int) -> _Moment:
        event = lead[at]
        unknown = process.times is not None and event.kind in e.MARKED and event.device_ns is None
        ns = event.done_ns if last is None else last.ns if unknown else max(event.done_ns, last.ns)
        return _Moment(first + at, ns)

    pauses = [(at, kind) for at, kind in _others(lead, loaders) if kind not in process.usual]
    requests = [
        at for at, event in enumerate(lead) if event.kind in (e.ITERATE_IN, e.FETCH_IN) and event.which in loaders
    ]
    if not pauses:
        begin = moment(requests[0]) if requests else _Moment(first, events[0].done_ns) if last is None else last
        return begin, begin, []
    opens, closes = pauses[0][0], pauses[-1][0]
    after = [at for at in requests if at > closes]
    early = [at for at in requests if at < opens]
    begin = moment(after[0]) if after else moment(closes)
    end = moment(early[0]) if early else begin if last is None else last
    return begin, end, sorted({kind for _, kind in pauses})


def _last_end(events: Sequence[HookEvent], loaders: Set[int], returned: _Moment) -> _Moment:
    """The end of the last step: where the script next requests a batch, though none comes; else the update's return.

    So the collectives behind the update belong to the last step as to all others.
    """
    passed = (
        e.COLLECTIVE_IN,
        e.COLLECTIVE_WAIT,
        e.COLLECTIVE_OUT,
        e.SCALER_OUT,
        e.NOTHING,
        e.UNSHARD_IN,
        e.UNSHARD_OUT,
    )
    follows = next((at for at in range(returned.place, len(events)) if events[at].kind not in passed), None)
    if follows is None:
        return returned
    event = events[follows]
    requests = event.kind in (e.FETCH_IN, e.ITERATE_IN) and event.which in loaders
    return _Moment(follows, max(event.done_ns, returned.ns)) if requests else returned


def _step(begin: _Moment, segment: Segment, process: _Process, pause: Pause | None) -> ObservedStep:
    recorded, loaders = process.recorded, process.loaders
    inside = recorded.events[begin.place : segment.stop]
    end_ns = max(begin.ns, segment.end_ns)  # that of an update of which the device's time is not known may be earlier
    stamps, absent = [begin.ns, ABSENT, ABSENT, ABSENT, ABSENT, end_ns], dict[str, str]()
    on_device = process.times is not None
    replayed = on_device and is_replayed(inside)
    if replayed:
        inner, reasons = replayed_stamps(inside, recorded)
    else:
        inner, reasons = inner_stamps(inside, segment, recorded, on_device=on_device, by_calls=process.by_calls)
    stamps[FORWARD_END], stamps[GRADS_READY], stamps[REDUCED] = inner
    absent.update(reasons)
    opens = e.REPLAY if replayed else e.FORWARD_IN
    forward = next((at for at, event in enumerate(inside) if event.kind == opens), None)
    if forward is not None:
        stamps[BATCH_READY] = inside[forward].done_ns
    else:
        absent[STAMPS[BATCH_READY]] = (
            "no forward of a known model was seen (models are known from the first backward on)"
        )
    taken = [stamp for stamp in stamps if stamp != ABSENT]
    if taken != sorted(taken):
        absent |= dict.fromkeys(STAMPS[BATCH_READY:END], "the time stamps are not in the order of a step")
        stamps[BATCH_READY:END] = [ABSENT] * 4
    fetched = [event for event in inside if event.kind == e.FETCH_OUT and event.which in loaders]
    batches = [event for event in fetched if event not in process.looked]
    updates = tuple(event.which for event in inside if event.kind == e.UPDATE_OUT)
    scaled = tuple(event.which for event in inside if event.kind == e.SCALER_OUT and event.which)
    known = bool(loaders) and all(event.number for event in batches)
    loader_ns = ABSENT
    if loaders and forward is not None and stamps[BATCH_READY] != ABSENT:
        within = (begin.ns, stamps[BATCH_READY]) if on_device else None
        loader_ns = _fetch_ns(inside[:forward], loaders, within)
    return ObservedStep(
        stamps=tuple(stamps),
        absent=absent,
        samples=sum(event.number for event in batches) if known else None,
        fetches=len(batches),
        fetch_ns=_fetch_ns(inside, loaders),
        loader_ns=loader_ns,
        backwards=sum(event.kind == e.BACKWARD_IN for event in inside),
        updates=(0,) if segment.updated_in_backward else updates or scaled,
        skipped=bool(scaled) and not updates,
        new_epoch=any(event.kind in (e.FETCH_END, e.ITERATE_IN) and event.which in loaders for event in inside),
        pause=pause,
    )


def _fetch_ns(inside: Sequence[HookEvent], loaders: Set[int], within: tuple[int, int] | None = None) -> int:
    """What loaders take by the host's clock; `within` two times, where a device need not idle for all of it."""
    total = begin = 0
    for event in inside:
        if event.which in loaders and event.kind in (e.FETCH_IN, e.ITERATE_IN):
            begin = event.ns
        elif event.which in loaders and event.kind in _LOADER_KINDS and begin:
            first, stop = (begin, event.ns) if within is None else (max(begin, within[0]), min(event.ns, within[1]))
            total, begin = total + max(stop - first, 0), 0
    return total


def _with_collectives(
    steps: Sequence[ObservedStep], borders: Sequence[tuple[_Moment, _Moment]], process: _Process
) -> list[ObservedStep]:
    """Each collective goes to the step in which it is called; those in pauses to none, but count as waits there."""
    aside = frozenset[int]() if process.times is None else process.times.aside
    collectives = placed_collectives(process.recorded, aside)
    result, at = [], 0
    for number, step in enumerate(steps):
        before, begin, end = borders[number][0].place, borders[number][1].place, borders[number + 1][0].place
        waited_ns, pause = 0, step.pause
        while at < len(collectives) and collectives[at][0] < begin:
            if pause is not None and collectives[at][0] >= before:
                waited_ns += collectives[at][1].waited_ns
            at += 1
        first = at
        while at < len(collectives) and collectives[at][0] < end:
            at += 1
        pause = None if pause is None else replace(pause, waited_ns=waited_ns)
        result.append(replace(step, collectives=tuple(call for _, call in collectives[first:at]), pause=pause))
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
        bound_ns=max(part.bound_ns for part in parts),
        called_ns=(first.called_ns[0], last.called_ns[1]),
        pause=next((part.pause for part in parts if part.pause), None),
    )


def _absent(steps: Sequence[ObservedStep]) -> dict[str, str]:
    late = steps[len(steps) // 2 :]
    lacking = {name: Counter(step.absent[name] for step in late if name in step.absent) for name in STAMPS}
    return {name: reasons.most_common(1)[0][0] for name, reasons in lacking.items() if 2 * reasons.total() > len(late)}


def _of_process(recorded: ProcessEvents) -> list[str]:
    facts, remarks = recorded.facts, []
    if any(call.name == e.FURTHER for call in recorded.names):
        remarks.append(
            f"it called in more groups, or by more names or tags, than the {len(recorded.names) - 1} that its record "
            "has room for: of the others it is not known who meets"
        )
    if "failed" in facts:
        remarks.append(f"a hook raised {facts['failed']}: all hooks were removed; the script went on unmeasured")
    if facts.get("full"):
        remarks.append(f"recording ended after {len(recorded.events)} events: the file was full")
    if facts.get("world_size", 1) > 1 and not facts.get("joined", True):
        remarks.append(f"WORLD_SIZE is {facts['world_size']}, but it is in no process group: it trains alone")
    return remarks


def _why_unseen(process: _Process) -> str:
    """Why no step is left of those that the host made; empty where it made none."""
    if process.times is None or not segments_of(process.recorded.events):
        return ""
    return "; ".join(process.times.remarks) or "the device was not seen to end a step"


def _why_none(events: Sequence[HookEvent]) -> str:
    counts = Counter(event.kind for event in events)
    if counts[e.REPLAY]:
        return (
            f"{plural(counts[e.REPLAY], 'replay')} of CUDA graphs were seen, in which no hook is called: "
            "step() of hpc.observe marks such steps"
        )
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


def _remarks(steps: Sequence[ObservedStep], usual: Set[str], looked: int, *, is_pipeline: bool) -> list[str]:
    if not steps:
        return []
    late = steps[len(steps) // 2 :]
    pauses = [step.pause for step in steps if step.pause and step.pause.kind != NO_TIMES]
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
        if count > 1 and not is_pipeline:  # which has one for each micro-batch
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
