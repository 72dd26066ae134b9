"""From events of a device to times of the host's clock, with their bounds: anchors, and what causality proves.

Pure functions, outside of a script's process. Everything is in ns; "device" means the clock of `elapsed_time`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hpc.model.clock_model import MAX_DRIFT, ROUNDING_NS, WANDER, ClockError, ClockModel
from hpc.observe import events as e
from hpc.observe.device_clock import LAUNCH_NS, ORIGIN_NS, WIDTH_UNIT_NS
from hpc.observe.events import HookEvent, ProcessEvents

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

RESOLUTION_NS = 500.0
"""Of a device's clock: CUDA states about 0.5 µs for events."""
CONTRADICTED = "the device's clock and the host's contradict each other"
UNKNOWN = "the device's times are not known"
OUT_OF_EVENTS = "the pool of device events was used up"
BEFORE_ALL = "the device's events begin with the first backward"
CAPTURED = "it was captured into a CUDA graph"


@dataclass(frozen=True, kw_only=True)
class ClockReadings:
    """What a device noted of `n` events, in the order in which they were written, and of `m` anchors."""

    device_ns: Ints
    """Of each event."""
    recorded_ns: Ints
    """The host's clock before the event was queued: the device was not there earlier."""
    seen_ns: Ints
    """The host's clock after the event was seen done: the device was there by then."""
    anchor_device_ns: Ints
    before_ns: Ints
    """The host's clock before the device reached an anchor."""
    after_ns: Ints
    rounding_ns: Floats
    """How much the float32 of all differences up to an event may have added, in the order of writing; [n]."""
    anchor_rounding_ns: Floats
    """The same up to the event from which an anchor was counted; [m]."""
    own_rounding_ns: Floats
    """That of the difference between the two; [m]."""
    slew_ns: Ints
    """CLOCK_MONOTONIC_RAW less the host's clock at an anchor, which changes where a time service corrects that; [m]."""


@dataclass(frozen=True, kw_only=True)
class PlacedEvents:
    """Each event on the host's clock, within `bound_ns`; NaN bounds, and nothing to go by, where it is `contradicted`.

    `reason` is why nothing could be placed at all; `jumps` counts the intervals between anchors in which the device's
    clock went on by what no clock drifts. `off_ns` is the most by which one of these is off, or causality is violated.
    """

    host_ns: Ints
    bound_ns: Floats
    contradicted: Bools
    jumps: int = 0
    off_ns: float = 0.0
    reason: str = ""


def place(readings: ClockReadings) -> PlacedEvents:
    """The device's times on the host's clock.

    Between anchors linear drift against CLOCK_MONOTONIC_RAW. The bound has five parts: the anchors', the wander of a
    clock between them, by how much an interval between anchors leaves the usual drift, how far the rate at which the
    host's clock is corrected changes there, and rounding. The limits of causality then narrow it.
    """
    device = readings.device_ns
    host, bound = np.zeros(len(device), np.int64), np.full(len(device), np.nan)
    contradicted = np.ones(len(device), bool)
    nowhere = PlacedEvents(host_ns=host, bound_ns=bound, contradicted=contradicted)
    if len(readings.anchor_device_ns) == 0:
        return replace(nowhere, reason="its clock has no anchor")
    if (back := np.diff(readings.anchor_device_ns) <= 0).any():
        off_ns = float((np.diff(readings.before_ns) - np.diff(readings.anchor_device_ns))[back].max())
        return replace(nowhere, reason="its clock went back", jumps=int(back.sum()), off_ns=off_ns)
    readings = _without_wide(readings)
    line = _Line.through(readings)
    off_ns = line.jump_ns
    for first, stop in line.segments:
        inside = line.inside(device, first, stop)
        host[inside], bound[inside], contradicted[inside], beyond_ns = _place_in(readings, line, first, stop, inside)
        off_ns = max(off_ns, beyond_ns)
    return replace(nowhere, jumps=len(line.segments) - 1, off_ns=off_ns)


def _without_wide(readings: ClockReadings) -> ClockReadings:
    """Those anchors that tell more than others do: a thread that loses its core while it takes one makes it wide.

    An anchor goes where the ones on both sides, or one alone, give a tighter bound at its place than it has itself.
    """
    device = readings.anchor_device_ns.astype(np.float64)
    width = (readings.after_ns - readings.before_ns) / 2 + readings.own_rounding_ns

    def of_earlier(at: Floats, its: Floats, rate: float) -> Floats:
        return np.concatenate([[np.inf], np.minimum.accumulate(its - rate * at)[:-1] + rate * at[1:]])

    def of_both(rate: float) -> tuple[Floats, Floats]:
        return of_earlier(device, width, rate), of_earlier(-device[::-1], width[::-1], rate)[::-1]

    between, single = np.maximum(*of_both(2 * WANDER)), np.minimum(*of_both(MAX_DRIFT))
    keep = width <= np.minimum(between, single)
    anchors = ("anchor_device_ns", "before_ns", "after_ns", "anchor_rounding_ns", "own_rounding_ns", "slew_ns")
    return replace(readings, **{name: getattr(readings, name)[keep] for name in anchors})


@dataclass(frozen=True, kw_only=True)
class _Line:
    """The anchors, and between which of them the device's clock ran as a clock does."""

    device_ns: Ints
    offset_ns: Floats
    """The host's clock, without its corrections since the first anchor, less the device's."""
    slew_ns: Floats
    """These corrections, to be taken off again."""
    bound_ns: Floats
    stray_ns: Floats
    """By how much the offset moved from one anchor to the next beside the usual drift, and what is not known of when
    the corrections changed; [anchor - 1]."""
    segments: list[tuple[int, int]]
    """First anchor and stop of each run of them without a jump."""
    jump_ns: float
    """By how much the largest jump leaves the usual drift."""

    @classmethod
    def through(cls, readings: ClockReadings) -> _Line:
        device = readings.anchor_device_ns
        middle = readings.before_ns + (readings.after_ns - readings.before_ns) // 2
        slew = (readings.slew_ns - readings.slew_ns[0]).astype(np.float64)
        offset = (middle - device).astype(np.float64) + slew
        bound = (readings.after_ns - readings.before_ns) / 2 + RESOLUTION_NS + ROUNDING_NS + readings.own_rounding_ns
        gap, moved, doubt = np.diff(device).astype(np.float64), np.diff(offset), bound[1:] + bound[:-1]
        rates, doubts = moved / gap, doubt / gap
        usual = float(np.median(rates)) if len(rates) > 2 else 0.0
        stray = np.abs(moved - usual * gap) if len(rates) > 2 else np.zeros_like(gap)
        allowed = doubt + gap * (2 * WANDER + (float(np.median(doubts)) if len(doubts) else 0.0))
        jumps = (np.abs(rates) - doubts > MAX_DRIFT) | (stray > allowed)
        borders = [0, *(np.flatnonzero(jumps) + 1).tolist(), len(device)]
        segments = list(pairwise(borders))
        jump_ns = float(np.abs(moved - usual * gap)[jumps].max(initial=0.0))
        changes = np.abs(np.diff(np.diff(slew) / gap))
        unknown = np.maximum(np.append(changes, 0.0), np.insert(changes, 0, 0.0)) * gap if len(gap) else gap
        return cls(
            device_ns=device, offset_ns=offset, slew_ns=slew, bound_ns=bound, stray_ns=stray + unknown,
            segments=segments, jump_ns=jump_ns,
        )  # fmt: skip

    def inside(self, device_ns: Ints, first: int, stop: int) -> Bools:
        """Which events are between these anchors; before the first and after the last of all, too."""
        low = np.ones(len(device_ns), bool) if first == 0 else device_ns >= self.device_ns[first]
        high = np.ones(len(device_ns), bool) if stop == len(self.device_ns) else device_ns <= self.device_ns[stop - 1]
        inside: Bools = low & high
        return inside


def _place_in(
    readings: ClockReadings, line: _Line, first: int, stop: int, inside: Bools
) -> tuple[Ints, Floats, Bools, float]:
    """Host times, bounds and contradictions of the events in one segment of anchors, and by how much one is off."""
    device, anchors = readings.device_ns[inside], line.device_ns[first:stop]
    try:
        model = ClockModel(anchors[None], line.offset_ns[None, first:stop], line.bound_ns[None, first:stop])
        host, bound = model.to_global(device[None])[0], model.bounds_ns(device[None])[0]
    except ClockError:
        return np.zeros(len(device), np.int64), np.full(len(device), np.nan), np.ones(len(device), bool), 0.0
    interval = np.clip(np.searchsorted(anchors, device) - 1, 0, max(stop - first - 2, 0))
    stray, slew = line.stray_ns[first : stop - 1], line.slew_ns[first:stop]
    moved, corrected = np.zeros(len(device)), np.full(len(device), slew[0])
    if len(stray):
        gaps = (device - anchors[interval]) / np.diff(anchors)[interval]
        moved = stray[interval] * np.maximum(np.abs(gaps), 1.0)
        corrected = slew[interval] + np.diff(slew)[interval] * gaps
    host -= np.rint(corrected).astype(np.int64)
    rounding = readings.rounding_ns[inside]
    ends = readings.anchor_rounding_ns[first:stop]
    rounding = np.abs(rounding - ends[interval]) + np.abs(ends[np.minimum(interval + 1, len(ends) - 1)] - rounding)
    bound = bound + moved + rounding + RESOLUTION_NS + ROUNDING_NS
    low = np.maximum(-bound, (readings.recorded_ns[inside] - host).astype(np.float64))
    high = np.minimum(bound, (readings.seen_ns[inside] - host).astype(np.float64))
    wrong, beyond_ns = low > high, float((low - high).max(initial=0.0))
    # No event's error differs from another's by more than the clock's rate can have, and the sum of what is odd.
    doubts = (line.bound_ns[first : stop - 1] + line.bound_ns[first + 1 : stop] + stray) / np.diff(anchors)
    rate = WANDER + float(doubts.max(initial=0.0)) if len(doubts) else 2 * MAX_DRIFT
    low[wrong], high[wrong] = -np.inf, np.inf
    slack = moved + 2 * (rounding + RESOLUTION_NS)
    low, high = (
        np.maximum(low, _spread(device, low, rate) - slack),
        np.minimum(high, -_spread(device, -high, rate) + slack),
    )
    wrong |= low > high + ROUNDING_NS
    beyond_ns = max(beyond_ns, float((low - high)[wrong].max(initial=0.0)))
    low, high = np.where(wrong, np.nan, low), np.where(wrong, np.nan, high)
    middle, half = (low + high) / 2, np.maximum((high - low) / 2, 0) + ROUNDING_NS
    return host + np.where(wrong, 0, np.rint(middle)).astype(np.int64), half, wrong, beyond_ns


def _spread(device_ns: Ints, low: Floats, rate: float) -> Floats:
    """The greatest lower limit that any event has for each of them, if limits fall by `rate` from event to event."""
    order = np.argsort(device_ns, kind="stable")
    elapsed = (device_ns[order] - device_ns[order[0]]).astype(np.float64) * rate if len(order) else np.zeros(0)
    after = np.maximum.accumulate(low[order] + elapsed) - elapsed
    before = np.maximum.accumulate((low[order] - elapsed)[::-1])[::-1] + elapsed
    spread = np.empty_like(low)
    spread[order] = np.maximum(after, before)
    return spread


# The events of a process with the times of its device.


@dataclass(frozen=True, kw_only=True)
class Contradiction:
    """The clocks of a device and its host exclude one another: `events` of the device's `of_events` have no time, its
    clock made so many `jumps`, and `off_ns` is the most by which one of these is off."""

    events: int
    of_events: int
    jumps: int
    off_ns: int


@dataclass(frozen=True, kw_only=True)
class DeviceTimes:
    """What the device of a process knows of its events, by their places.

    `events` have their `device_ns`, on the host's clock; `bounds_ns` the bound of each that has one, `reasons` why one
    that the device was to note has none; `launches_ns` how much later than its host a device with nothing to do is
    there. `aside` are those on another stream than the training's.
    """

    events: Sequence[HookEvent]
    bounds_ns: Mapping[int, float]
    reasons: Mapping[int, str]
    launches_ns: Mapping[int, float] = field(default_factory=dict)
    aside: Set[int] = frozenset()
    remarks: tuple[str, ...] = ()
    contradiction: Contradiction | None = None


def is_timed(recorded: ProcessEvents) -> bool:
    """Whether a device noted times of this process' events, at least for a while."""
    return "name" in recorded.facts.get("device_clock", {})


def with_device_times(recorded: ProcessEvents) -> DeviceTimes:
    """The events of a process, those that its device noted with its time."""
    facts = recorded.facts.get("device_clock", {})
    noted, readings, launches = _readings_of(recorded)
    placed = place(readings)
    events, reasons, bounds = list(recorded.events), dict[int, str](), dict[int, float]()
    contradiction = _contradiction(placed)
    unplaced = UNKNOWN if contradiction is None else CONTRADICTED
    unplaced = f"{unplaced}: {placed.reason}" if placed.reason else unplaced
    for at, ns, bound, wrong in zip(
        noted, placed.host_ns.tolist(), placed.bound_ns.tolist(), placed.contradicted.tolist(), strict=True
    ):
        if wrong:
            reasons[at] = unplaced
        else:
            events[at], bounds[at] = events[at]._replace(device_ns=ns), bound
    missing, first = _why_missing(facts), 0 if facts.get("left_out") else min(noted, default=len(events))
    for at, event in enumerate(events):
        if event.kind in e.MARKED and event.device_ns is None:
            reasons.setdefault(at, missing if at >= first else BEFORE_ALL)
    aside = {record.number for record in recorded.device if record.kind == e.DEVICE_TIME and record.which}
    return DeviceTimes(
        events=events, bounds_ns=bounds, reasons=reasons, launches_ns=launches, aside=aside,
        remarks=_remarks(contradiction, unplaced if placed.reason else "", facts), contradiction=contradiction,
    )  # fmt: skip


def _contradiction(placed: PlacedEvents) -> Contradiction | None:
    count = int(placed.contradicted.sum())
    if not placed.jumps and (placed.reason or not count):
        return None
    return Contradiction(
        events=count, of_events=len(placed.contradicted), jumps=placed.jumps, off_ns=round(placed.off_ns)
    )


def _why_missing(facts: Mapping[str, object]) -> str:
    if "failed" in facts:
        return f"the device's events ended: {facts['failed']}"
    if facts.get("captured"):
        return CAPTURED if not facts.get("left_out") else f"{CAPTURED}, or {OUT_OF_EVENTS}"
    return OUT_OF_EVENTS if facts.get("left_out") else "the device was not seen to get there"


def _remarks(contradiction: Contradiction | None, unplaced: str, facts: Mapping[str, object]) -> tuple[str, ...]:
    """`unplaced` is why no event has a time, empty where some have."""
    remarks = []
    if contradiction is None and unplaced:
        remarks.append(unplaced)
    if contradiction is not None:
        jumps = f"; it jumped {contradiction.jumps} times" if contradiction.jumps else ""
        events = f"{contradiction.events} of {contradiction.of_events} events"
        remarks.append(f"{CONTRADICTED} at {events}{jumps}: these have no time")
    if facts.get("left_out"):
        remarks.append(f"{OUT_OF_EVENTS} {facts['left_out']} times: steps have no time stamps of the device")
    return tuple(remarks)


def _readings_of(recorded: ProcessEvents) -> tuple[list[int], ClockReadings, dict[int, float]]:
    """The places of the events that the device noted, the readings of both clocks, and the launch latency by place."""
    times: list[tuple[int, int, int, int, int]] = []  # place, device, recorded, number of its look, aside
    seen: list[int] = []
    anchors: list[tuple[int, int, int, int, int, int]] = []  # before, width, launch, slew, device, events before it
    pending: HookEvent | None = None
    slew_ns = 0
    for record in recorded.device:
        if record.kind == e.DEVICE_TIME and 0 <= record.number < len(recorded.events):
            times.append((record.number, record.ns, recorded.events[record.number].ns, len(seen), record.which))
        elif record.kind == e.DEVICE_SEEN:
            seen.append(record.ns)
        elif record.kind == e.DEVICE_ANCHOR:
            pending = record
        elif record.kind == e.DEVICE_RAW and pending is not None:
            slew_ns = record.ns - pending.ns
        elif record.kind == e.DEVICE_AT and pending is not None:
            launch_ns = WIDTH_UNIT_NS * pending.which
            anchors.append((pending.ns, pending.number, launch_ns, slew_ns, record.ns, len(times)))
            pending = None
    times = [
        time for time in times if time[3] < len(seen)
    ]  # the process ended before it recorded that the others were done
    places, device, begun, looks, aside = np.array(times, np.int64).reshape(-1, 5).T
    before, width, launch, slew, anchor_device, counts = np.array(anchors, np.int64).reshape(-1, 6).T
    # Each was counted from the last before it on the training's stream.
    chain = np.concatenate([[ORIGIN_NS], device[aside == 0]])
    sums = np.concatenate([[0.0], np.cumsum(_half_spacing(np.diff(chain)))])
    passed = np.concatenate([[0], np.cumsum(aside == 0)])
    counts, origins = passed[np.minimum(counts, len(device))], passed[:-1]
    readings = ClockReadings(
        device_ns=device,
        recorded_ns=begun,
        seen_ns=np.array(seen, np.int64)[looks] if len(looks) else looks,
        anchor_device_ns=anchor_device,
        before_ns=before,
        after_ns=before + width,
        rounding_ns=sums[origins] + _half_spacing(device - chain[origins]),
        anchor_rounding_ns=sums[counts],
        own_rounding_ns=_half_spacing(anchor_device - chain[counts]),
        slew_ns=slew,
    )
    empty = launch > 0  # else the anchor was an event of the training
    launches = np.interp(begun, before[empty], launch[empty]) if empty.any() else np.full(len(begun), LAUNCH_NS)
    return places.tolist(), readings, dict(zip(places.tolist(), launches.tolist(), strict=True))


def _half_spacing(difference_ns: Ints) -> Floats:
    """The most that a difference loses as a float32 of milliseconds."""
    return np.spacing(np.abs(difference_ns / 1e6).astype(np.float32)).astype(np.float64) * 5e5
