"""From the events of one process to its optimizer steps; states with a reason whatever the events do not show.

The rules are those of docs/observe_hooks.md. On a device its times are those of the steps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import ceil
from operator import attrgetter, itemgetter
from typing import NamedTuple

from hpc.model.timestamps import ABSENT, BATCH_READY, BEGIN, END, FORWARD_END, GRADS_READY, REDUCED, STAMPS
from hpc.observe import events as e
from hpc.observe.device_times import BEFORE_ALL, DeviceTimes, is_timed, with_device_times
from hpc.observe.events import HookEvent, ProcessEvents
from hpc.observe.joined_steps import join_phases, rounds_of
from hpc.observe.remarks import lacking_stamps, remarks_on_process, remarks_on_steps, usually_absent, why_none
from hpc.observe.segments import Segment, looked_at, segments_of, training_loaders, without_guesses
from hpc.observe.stamps import (
    IN_BACKWARD,
    IN_FORWARD,
    NO_TIMES,
    CollectiveCall,
    ModelReduction,
    ObservedStep,
    ObservedSteps,
    Pause,
    host_bound_ns,
    host_spans,
    inner_stamps,
    is_replayed,
    placed_collectives,
    reductions_of,
    replayed_stamps,
    wrapper_of,
)

_OTHER = {
    e.EVALUATE_OUT: "evaluation", e.SAVE_OUT: "checkpoint",
    e.FETCH_OUT: "another loader", e.FETCH_END: "another loader", e.ITERATE_OUT: "another loader",
}  # fmt: skip
_OF_TRAINING = {e.FORWARD_IN, e.BACKWARD_IN, e.BACKWARD_OUT, e.UPDATE_OUT, e.REPLAY, e.REPLAY_OUT}
_LOADER_KINDS = (e.FETCH_OUT, e.FETCH_END, e.ITERATE_OUT)


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
    reductions: Sequence[ModelReduction]
    named: Mapping[int, int]
    """By model of DDP, the place at which its last gradient was first seen."""
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
            reductions=reductions_of(recorded),
            named={x.which: at for at, x in reversed([*enumerate(recorded.events)]) if x.kind == e.GRADIENT},
            by_calls=by_calls,
        )


def steps_of(recorded: ProcessEvents, *, by_calls: bool = False) -> ObservedSteps:
    """The steps of one process. Nothing is assumed where its events do not show it.

    `by_calls` as of hpc.observe.stamps.inner_stamps.
    """
    recorded = recorded._replace(events=without_guesses(recorded.events))
    process = _Process.of(recorded, by_calls=by_calls)
    events, segments = process.recorded.events, process.segments
    steps: list[ObservedStep] = []
    borders: list[tuple[_Moment, _Moment]] = []  # the end of the step before, the begin of each
    last: _Moment | None = None
    for segment in segments:
        begin, before, kinds = _begin(process, segment, last)
        if steps:
            _end(steps[-1], before)
        pause = Pause(kind=" and ".join(kinds), begin_ns=before.ns, end_ns=begin.ns) if steps and kinds else None
        steps.append(_step(begin, segment, process, pause))
        borders.append((before, begin))
        last = _Moment(segment.stop, steps[-1].stamps[END])
    if last is not None:
        end = _last_end(events, process.loaders, last)
        _end(steps[-1], end)
        borders.append((end, end))
    for step, ((_, begin), (end, _)) in zip(steps, pairwise(borders), strict=True):
        step.called_ns = _called_ns(process, begin), _called_ns(process, end)
    _add_device(steps, process, borders)
    _add_collectives(steps, borders, process)
    steps, turns, reason = rounds_of(steps)
    for step in steps:
        step.collectives = _without_last_reduction(step.collectives)
    phases = join_phases(steps)
    read = () if process.loaders else recorded.apart.get(e.READ_ASIDE, ())
    add_batches_read_aside(steps, read)
    lacking = lacking_stamps(steps)
    of_device = () if process.times is None else process.times.remarks
    remarks = (
        *remarks_on_process(recorded),
        *of_device,
        *turns,
        *phases,
        *lacking,
        *remarks_on_steps(
            steps,
            process.usual,
            len(process.looked),
            is_pipeline=bool(recorded.facts.get("pipelines")),
            read_aside=len(read),
        ),
    )
    return ObservedSteps(
        steps=tuple(steps),
        remarks=remarks,
        reason="" if steps else reason or _why_unseen(process) or why_none(recorded),
        absent=usually_absent(steps),
        last_steps=lacking,
        contradiction=None if process.times is None else process.times.contradiction,
        marked=any(segment.marked for segment in segments),
    )


MAX_READ_AHEAD = 16
"""Batches by which a thread that reads for the training may be ahead of it, for it to be known which step has which."""


def add_batches_read_aside(steps: Sequence[ObservedStep], read: Sequence[HookEvent]) -> None:
    """Gives the steps their samples, where another thread than the training's has read so many batches for each: `read`
    are its READ_ASIDE. Where it was ever too far ahead, or behind, none is known."""
    counts = [bisect_right(read, step.called_ns[1], key=attrgetter("ns")) for step in steps]  # so many by each end
    each = counts[-1] // len(steps) if steps else 0
    if not each or any(not 0 <= its - each * (at + 1) <= MAX_READ_AHEAD + each for at, its in enumerate(counts)):
        return
    for at, step in enumerate(steps):
        its = [event.number for event in read[each * at : each * (at + 1)]]
        step.fetches, step.samples = each, sum(its) if all(its) else None


def _called_ns(process: _Process, moment: _Moment) -> int:
    """When the host was at this place of its events."""
    if process.times is None:
        return moment.ns
    events = process.recorded.events
    later = (events[at].ns for at in range(moment.place, len(events)) if events[at].kind != e.NOTHING)
    return next(later, events[-1].ns)


def _end(step: ObservedStep, end: _Moment) -> None:
    step.stamps = (*step.stamps[:END], end.ns)


def _add_device(steps: Sequence[ObservedStep], process: _Process, borders: Sequence[tuple[_Moment, _Moment]]) -> None:
    """What the device shows of the steps. Those of which its times are not all known have no inner stamps, and are in
    no block."""
    segments, times = process.segments, process.times
    if times is None:
        return
    unknown: dict[int, str] = {}
    for number, segment in enumerate(segments):
        reasons = Counter(times.reasons[at] for at in range(segment.first, segment.stop) if at in times.reasons)
        if reasons:
            unknown[number] = reasons.most_common(1)[0][0]
    for number, step in enumerate(steps):
        segment = segments[number]
        bounds = [times.bounds_ns[at] for at in range(segment.first, segment.stop) if at in times.bounds_ns]
        step.bound_ns = ceil(max(bounds, default=0))
        if number in unknown:
            step.stamps = (step.stamps[BEGIN], *[ABSENT] * 4, step.stamps[END])
            step.absent = dict.fromkeys(STAMPS[BATCH_READY:END], unknown[number])
        if {unknown.get(number, BEFORE_ALL), unknown.get(number - 1, BEFORE_ALL)} != {BEFORE_ALL}:
            begin_ns = step.stamps[BEGIN]
            step.pause = step.pause or Pause(kind=NO_TIMES, begin_ns=begin_ns, end_ns=begin_ns)
        inner = tuple(step.stamps[at] for at in (BEGIN, BATCH_READY, GRADS_READY, REDUCED, END))
        first, stop = borders[number][1].place, borders[number + 1][0].place
        if ABSENT not in inner and not _is_aside(process, first, stop):
            noted = _noted(process, first, stop)
            step.host_bound_ns = host_bound_ns(noted, times, inner)
            step.syncs = sum(event.kind == e.SYNC_IN and first <= at < stop for at, event in noted)
            step.host_spans = host_spans(noted, _queued(process, noted), inner)


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
    kinds = [event.kind for event in events]
    begins = e.REPLAY if e.BACKWARD_IN not in kinds and is_replayed(events) else e.BACKWARD_IN
    return events[: kinds.index(begins) if begins in kinds else len(events)]


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
        opened = _Moment(first, next(event.done_ns for event in events if event.kind != e.NOTHING))
        begin = moment(requests[0]) if requests else opened if last is None else last
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
    passed = (e.COLLECTIVE_IN, e.COLLECTIVE_WAIT, e.COLLECTIVE_OUT, e.SCALER_OUT, e.NOTHING)
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
        earlier = bisect_left(process.reductions, segment.stop, key=attrgetter("place"))
        last = process.reductions[earlier - 1] if earlier else None
        unnamed = any(x.kind == e.ARMED and process.named.get(x.which, segment.stop) >= segment.stop for x in inside)
        inner, reasons = inner_stamps(
            inside, segment, recorded, last if last is not None and last.place >= begin.place else None,
            unnamed=unnamed, on_device=on_device, by_calls=process.by_calls,
        )  # fmt: skip
    stamps[FORWARD_END], stamps[GRADS_READY], stamps[REDUCED] = inner
    absent.update(reasons)
    opens = e.REPLAY if replayed else e.FORWARD_IN
    forward = next((at for at, event in enumerate(inside) if event.kind == opens), None)
    fed = None if forward is not None or not segment.marked else _fed(inside, loaders)
    if forward is not None:
        stamps[BATCH_READY] = inside[forward].done_ns
    elif fed is not None:
        forward, stamps[BATCH_READY] = fed + 1, inside[fed].done_ns
    else:
        absent[STAMPS[BATCH_READY]] = (
            "the script says by no data() when it has a batch" if segment.marked and "torch" not in recorded.facts
            else "no forward of a known model was seen (models are known from the first backward on)"
        )  # fmt: skip
    taken = [stamp for stamp in stamps if stamp != ABSENT]
    if taken != sorted(taken):
        absent |= dict.fromkeys(STAMPS[BATCH_READY:END], "the time stamps are not in the order of a step")
        stamps[BATCH_READY:END] = [ABSENT] * 4
    of_kind: dict[int, list[HookEvent]] = defaultdict(list)
    for event in inside:
        of_kind[event.kind].append(event)
    batches = [x for x in of_kind[e.FETCH_OUT] if x.which in loaders and x not in process.looked]
    updates = tuple(which for which, _ in groupby(event.which for event in of_kind[e.UPDATE_OUT]))
    scaled = tuple(event.which for event in of_kind[e.SCALER_OUT] if event.which)
    updated = (
        x for x in reversed(inside) if x.kind == e.SCALER_OUT or (x.kind == e.UPDATE_OUT and x.number != e.UNSEEN)
    )
    updated_ns = next((event.done_ns for event in updated), ABSENT)
    known = bool(loaders) and all(event.number for event in batches)
    loader_ns = later_ns = ABSENT
    if loaders and forward is not None and stamps[BATCH_READY] != ABSENT:
        before = (begin.ns, stamps[BATCH_READY]) if on_device else None
        loader_ns = _fetch_ns(inside[:forward], loaders, before)
        complete = stamps[GRADS_READY] if stamps[GRADS_READY] != ABSENT else end_ns
        later_ns = _fetch_ns(inside[forward:], loaders, (stamps[BATCH_READY], complete))
    return ObservedStep(
        stamps=tuple(stamps),
        absent=absent,
        samples=sum(event.number for event in batches) if known else None,
        fetches=len(batches),
        fetch_ns=_fetch_ns(inside, loaders),
        loader_ns=loader_ns,
        later_ns=later_ns,
        updated_ns=updated_ns,
        backwards=len(of_kind[e.BACKWARD_IN]),
        updates=(0,) if segment.updated_in_backward else updates or scaled,
        skipped=bool(scaled) and not updates,
        new_epoch=any(event.which in loaders for event in of_kind[e.FETCH_END] + of_kind[e.ITERATE_IN]),
        pause=pause,
        backward_ns=_backward_ns(inside),
        place=begin.place,
    )


def _backward_ns(inside: Sequence[HookEvent]) -> tuple[int, int]:
    """From the first entry of a backward to the last return, by the host's clock; (0, 0) without one."""
    times = [event.ns for event in inside if event.kind in (e.BACKWARD_IN, e.BACKWARD_OUT)]
    return (times[0], times[-1]) if times else (0, 0)


def _fed(inside: Sequence[HookEvent], loaders: Set[int]) -> int | None:
    """Where a step of which no forward is seen has what it begins with: a batch of each loader; None without any."""
    last, fetched = None, set[int]()
    for at, event in enumerate(inside):
        if event.kind == e.FETCH_OUT and event.which in loaders:
            if event.which in fetched:
                break
            last, fetched = at, fetched | {event.which}
    return last


def _fetch_ns(inside: Sequence[HookEvent], loaders: Set[int], within: tuple[int, int] | None = None) -> int:
    """What loaders take by the host's clock; `within` two times of it, where a device need not idle for all of it from
    when it has done what was queued before."""
    total = begin = 0
    for event in inside:
        if event.which in loaders and event.kind in (e.FETCH_IN, e.ITERATE_IN):
            begin = event.ns if within is None else event.done_ns
        elif event.which in loaders and event.kind in _LOADER_KINDS and begin:
            first, stop = (begin, event.ns) if within is None else (max(begin, within[0]), min(event.ns, within[1]))
            total, begin = total + max(stop - first, 0), 0
    return total


def _add_collectives(
    steps: Sequence[ObservedStep], borders: Sequence[tuple[_Moment, _Moment]], process: _Process
) -> None:
    """Each collective, and reduction by DDP, goes to the step in which it is called; those in pauses to none, but count
    as waits there."""
    aside = frozenset[int]() if process.times is None else process.times.aside
    collectives = placed_collectives(process.recorded, aside)
    if wrapper_of(process.recorded.facts) is not None:
        collectives = sorted(
            [*collectives, *((each.place, each.call) for each in process.reductions)], key=itemgetter(0)
        )
    at = 0
    for number, step in enumerate(steps):
        before, begin, end = borders[number][0].place, borders[number][1].place, borders[number + 1][0].place
        waited_ns = 0
        while at < len(collectives) and collectives[at][0] < begin:
            if collectives[at][0] >= before:
                waited_ns += collectives[at][1].waited_ns
            at += 1
        first = at
        while at < len(collectives) and collectives[at][0] < end:
            at += 1
        step.pause = None if step.pause is None else replace(step.pause, waited_ns=waited_ns)
        step.collectives = _of_script(_with_phases(collectives[first:at], process.recorded.events, begin, end))


def _of_script(calls: Sequence[CollectiveCall]) -> tuple[CollectiveCall, ...]:
    """Without those by which DDP itself reduces, where the script gave it a communication hook: of these nobody waits
    for the result in Python."""
    if all(call.name != e.OF_GRADIENTS for call in calls):
        return tuple(calls)
    return tuple(call for call in calls if call.phase != IN_BACKWARD or call.ends_ns != ABSENT)


def _without_last_reduction(calls: tuple[CollectiveCall, ...]) -> tuple[CollectiveCall, ...]:
    """Those of a step without that which its time stamps are."""
    last = max((at for at, call in enumerate(calls) if call.name == e.OF_GRADIENTS), default=len(calls))
    return calls[:last] + calls[last + 1 :]


def _with_phases(
    called: Sequence[tuple[int, CollectiveCall]], events: Sequence[HookEvent], begin: int, end: int
) -> tuple[CollectiveCall, ...]:
    """The collectives of a step between these places, with where in it each was called."""
    if not called:
        return ()
    kinds = [event.kind for event in events[begin:end]]
    backward = begin + kinds.index(e.BACKWARD_IN) if e.BACKWARD_IN in kinds else end
    returned = end - kinds[::-1].index(e.BACKWARD_OUT) if e.BACKWARD_OUT in kinds else end
    fed = min((begin + kinds.index(kind) for kind in (e.FETCH_OUT, e.FORWARD_IN) if kind in kinds), default=backward)
    for place, call in called:
        if fed < place < returned:
            call.phase = IN_FORWARD if place < backward else IN_BACKWARD
    return tuple(call for _, call in called)


def _why_unseen(process: _Process) -> str:
    """Why no step is left of those that the host made; empty where it made none."""
    if process.times is None or not segments_of(process.recorded.events):
        return ""
    return "; ".join(process.times.remarks) or "the device was not seen to end a step"
