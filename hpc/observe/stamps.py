"""The time stamps inside a step, and the collectives of a process: on the host's clock or on the device's.

The rules are those of docs/observe_hooks.md. What comes before what is decided by the places of events in their list,
which is the order in which the host queued them; when each was done is `HookEvent.done_ns`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from hpc.model.groups import RankGroup
from hpc.model.timestamps import ABSENT, END, INNER
from hpc.observe import events as e
from hpc.observe.device_times import Contradiction, DeviceTimes
from hpc.observe.events import HookEvent, ProcessEvents
from hpc.observe.segments import Segment

# The collectives of a process, from its events.

IN_FORWARD, IN_BACKWARD = 1, 2
"""Where in its step a collective is called: from the batch to the first backward; until the last one has returned."""


@dataclass(kw_only=True)
class CollectiveCall:
    """A collective that was called from Python, or a message that was sent or received. `steps_of` gives it its phase.

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
    group: RankGroup | None = None
    """None: all ranks."""
    phase: int = field(default=0, compare=False)
    """IN_FORWARD, IN_BACKWARD; 0: elsewhere."""

    @property
    def waited_ns(self) -> int:
        """How long the process waited for its result; 0 where it did not."""
        return 0 if ABSENT in (self.waits_ns, self.ends_ns) else self.ends_ns - self.waits_ns


def placed_collectives(recorded: ProcessEvents, aside: Set[int] = frozenset()) -> list[tuple[int, CollectiveCall]]:
    """All of a process with the places of their calls.

    On a device those in `aside` were called on another stream than the training's: one that waits at once keeps that
    stream waiting alone. Each is waited for where the training's stream first does.
    """
    times: dict[int, dict[int, int]] = {e.COLLECTIVE_WAIT: {}, e.COLLECTIVE_OUT: {}}
    for place, event in enumerate(recorded.events):
        if event.kind in times and place not in aside:
            times[event.kind].setdefault(event.number, event.done_ns)
    waits, ends = times[e.COLLECTIVE_WAIT], times[e.COLLECTIVE_OUT]
    groups = [None if each.group is None else RankGroup(**each.group._asdict()) for each in recorded.names]
    return [
        (
            place,
            CollectiveCall(
                name=recorded.names[call.which].name,
                root=recorded.names[call.which].root,
                arrives_ns=call.done_ns,
                waits_ns=waits.get(place, call.done_ns if place in ends else ABSENT),
                ends_ns=ends.get(place, ABSENT),
                bytes=call.number,
                group=groups[call.which],
            ),
        )
        for place, call in enumerate(recorded.events)
        if call.kind == e.COLLECTIVE_IN
    ]


class ModelReduction(NamedTuple):
    """What models of DDP reduce in one backward: the place of their last gradient, when the backward began, and the
    reduction as a collective that waits from that gradient on until the backward returns."""

    place: int
    begins_ns: int
    call: CollectiveCall


def reductions_of(recorded: ProcessEvents) -> list[ModelReduction]:
    """Those of a process. A model reduces in the backward in which its last gradient comes, if a forward had armed it
    since it last did. A communication hook of the script arrives with the first collective that it calls behind that
    gradient: what it takes before is its rank's own, and what it calls later may have waited for other ranks.
    """
    wrapper, hooked = wrapper_of(recorded.facts) or {"ranks": None}, recorded.facts.get("comm_hook")
    ranks = wrapper["ranks"]
    group = None if ranks is None else RankGroup(ranks=tuple(ranks), dimension=wrapper["dimension"])
    armed: dict[int, int] = {}  # the bytes of each
    reducing: dict[int, int] = {}
    reductions = []
    begins_ns = last = 0
    for place, event in enumerate(recorded.events):
        if event.kind == e.ARMED:
            armed[event.which] = event.number
        elif event.kind == e.BACKWARD_IN:
            begins_ns, reducing = event.done_ns, {}
        elif event.kind == e.GRADIENT and event.which in armed:
            last, reducing[event.which] = place, armed[event.which]
        elif event.kind == e.BACKWARD_OUT and reducing:
            called = (x.done_ns for x in recorded.events[last:place] if hooked and x.kind == e.COLLECTIVE_IN)
            arrives_ns = max(recorded.events[last].done_ns, next(called, 0))
            call = CollectiveCall(
                name=e.OF_GRADIENTS, root=e.NO_ROOT, arrives_ns=arrives_ns, waits_ns=arrives_ns, ends_ns=event.done_ns,
                bytes=sum(reducing.values()), group=group,
            )  # fmt: skip
            reductions.append(ModelReduction(last, begins_ns, call))
            armed = {which: size for which, size in armed.items() if which not in reducing}
            reducing = {}
    return reductions


# The time stamps inside a step: forward_end, grads_ready, reduced; or why one of them is not known.

Inner = tuple[int, int, int]


def inner_stamps(
    inside: Sequence[HookEvent],
    segment: Segment,
    recorded: ProcessEvents,
    reduction: ModelReduction | None,
    *,
    unnamed: bool = False,
    on_device: bool = False,
    by_calls: bool = False,
) -> tuple[Inner, dict[str, str]]:
    """Those of the events inside a step, and the reason for each that is ABSENT, by its name.

    `reduction` is the step's last by DDP; `unnamed`: a model of DDP did not name its last gradient by then.
    `on_device`: what the device noted of these events is known. `by_calls`: all that reduces gradients, but for DDP
    between several ranks, is calls that are recorded; then nothing else is between the gradients of this rank, complete
    when its last backward returns, and their reduction.
    """
    reason = _why_unclear(inside, segment, recorded, on_device=on_device)
    facts = recorded.facts
    by_ddp = facts.get("ddp") and not (by_calls and wrapper_of(facts) is None)
    if not reason and by_ddp and reduction is None and not unnamed:
        reason = OTHER_LAST if any(event.kind == e.ARMED for event in inside) else NO_REDUCTION
    if reason:
        return (ABSENT, ABSENT, ABSENT), dict.fromkeys(INNER, reason)
    kinds = [event.kind for event in reversed(inside)]
    entered, returns = (len(inside) - 1 - kinds.index(kind) for kind in (e.BACKWARD_IN, e.BACKWARD_OUT))
    backward, last, returned = inside[entered:returns], inside[entered].done_ns, inside[returns].done_ns
    if by_ddp and (unnamed or reduction is None):
        never = any(name.startswith("DistributedDataParallel.") for name in facts.get("lacking_hooks", {}))
        when = "does not name" if never else "had not yet named"
        return (last, ABSENT, returned), {INNER[1]: f"DDP {when} the parameter whose gradient comes last"}
    if by_ddp and reduction is not None:
        ends_ns = ABSENT if segment.updated_in_backward else reduction.call.ends_ns
        reasons = {INNER[2]: "the optimizer works inside the backward"} if segment.updated_in_backward else {}
        return (reduction.begins_ns, reduction.call.arrives_ns, ends_ns), reasons
    scattered = [event.done_ns for event in _named(backward, recorded, "reduce-scatter")]
    if scattered and not by_calls:
        return (last, scattered[-1], returned), {}
    if by_calls or facts.get("size", 1) == 1:
        return (last, returned, returned), {}
    return _reduced_by_hand(inside[returns + 1 :], recorded, last)


def is_replayed(inside: Sequence[HookEvent]) -> bool:
    """Whether forward and backward are replays of CUDA graphs."""
    kinds = {event.kind for event in inside}
    return e.REPLAY_OUT in kinds and e.BACKWARD_IN not in kinds


def replayed_stamps(inside: Sequence[HookEvent], recorded: ProcessEvents) -> tuple[Inner, dict[str, str]]:
    """Those of such a step, on a device. Its compute is one term, from the begin of the first replay to the end of the
    last one.

    Where nothing behind it reduces the gradients, they were reduced in it, and when its own were complete is not known.
    """
    last = max(at for at, event in enumerate(inside) if event.kind == e.REPLAY_OUT)
    done, reason = inside[last].done_ns, "forward and backward are replays of CUDA graphs"
    if recorded.facts.get("size", 1) == 1:
        return (ABSENT, done, done), {INNER[0]: reason}
    inner, reasons = _reduced_by_hand(inside[last + 1 :], recorded, ABSENT)
    if inner[1] == ABSENT:
        return (ABSENT, ABSENT, done), dict.fromkeys(INNER[:2], f"{reason}, which reduce the gradients, too")
    return inner, {INNER[0]: reason, **reasons}


def wrapper_of(facts: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """`ranks` (None: all) and `dimension` of the group of several ranks between which DDP reduces; None without one."""
    several: list[Mapping[str, Any]] = [
        group for group in facts.get("ddp_groups", ()) if group["ranks"] is None or len(group["ranks"]) > 1
    ]
    if not several:
        return {"ranks": None, "dimension": ""} if facts.get("ddp") and "ddp_groups" not in facts else None
    return several[0]


ARMING, BUFFER_CALL = "Reducer.prepare_for_backward", "_broadcast_coalesced"
FUNCTIONAL = "torch.distributed._functional_collectives"
"""Hooks, as they are named where a torch lacks them: whether DDP reduces; broadcasts of its buffers; functional
collectives."""
NOT_REDUCED = "nothing was seen that reduces the gradients"
NO_REDUCTION = "DDP reduces in no backward of the step"
OTHER_LAST = "the gradient that DDP had named as the last did not come"


def _why_unclear(inside: Sequence[HookEvent], segment: Segment, recorded: ProcessEvents, *, on_device: bool) -> str:
    """Why none of them can be known; empty if they may be."""
    kinds, facts = [event.kind for event in inside], recorded.facts
    if not on_device and (reason := why_no_device(facts)):
        return reason
    if on_device and facts.get("compiled_autograd"):
        return "compiled autograd calls no hook where a gradient is complete"
    if e.BACKWARD_IN not in kinds:
        marked = "of a step its end alone is marked, and waits inside it are not seen apart"
        return marked if segment.marked else "no backward was seen"
    if kinds.count(e.BACKWARD_OUT) < kinds.count(e.BACKWARD_IN):
        return "a backward did not return"
    if facts.get("ddp") and ARMING in facts.get("lacking_hooks", {}):
        return f"in which backward DDP reduces is not seen: this torch has no place for the hook on {ARMING}"
    return ""


def why_no_device(facts: Mapping[str, object]) -> str:
    """Why the host's clock alone is known of a training on a device; empty where it trains on the host, too."""
    devices = facts.get("devices") or ()
    others = [device for device in devices if device != "cpu"] if isinstance(devices, Sequence) else []
    if not others:
        return ""
    clock = facts.get("device_clock") or {}
    refused = clock.get("refused") or clock.get("failed") if isinstance(clock, Mapping) else None
    text = f"on {', '.join(others)} the host's clock shows when work was queued, not when it was done"
    return f"{text}: {refused}" if refused else text


def _named(events: Sequence[HookEvent], recorded: ProcessEvents, name: str) -> list[HookEvent]:
    return [x for x in events if x.kind == e.COLLECTIVE_IN and recorded.names[x.which].name.startswith(name)]


def _reduced_by_hand(after: Sequence[HookEvent], recorded: ProcessEvents, last: int) -> tuple[Inner, dict[str, str]]:
    """Where the script itself reduces all gradients between the return of the backward and the update."""
    calls = _named(after, recorded, "all-reduce")
    expected = recorded.facts.get("gradient_bytes", 0)
    if not expected or sum(call.number for call in calls) < expected:
        return (ABSENT, ABSENT, ABSENT), dict.fromkeys(INNER, NOT_REDUCED)
    first = after.index(calls[0])
    ends = [x.done_ns for x in after[first:] if x.kind == e.COLLECTIVE_OUT]
    if len(ends) < len(calls):
        return (last, calls[-1].done_ns, ABSENT), {INNER[2]: "the reduction of the gradients was not waited for"}
    return (last, calls[-1].done_ns, ends[-1]), {}


# Where the device waits for the host.


def host_bound_ns(
    events: Sequence[tuple[int, HookEvent]], times: DeviceTimes, borders: Sequence[int]
) -> tuple[int, ...]:
    """How long the host set the pace, in each part of a step between `borders`; ns.

    `events` are those of one stream that the device noted, with their places, from one before the step on. Where the
    device was at an event as soon as that was queued, it had nothing else to do: all since the event before was paced
    by the host. Kernels that ran meanwhile are in it, unless the script waited for them and that was seen.
    """
    paced = [0] * (len(borders) - 1)
    for (_, before), (place, event) in pairwise(events):
        if event.device_ns is None or before.device_ns is None:
            continue
        if event.device_ns - event.ns <= times.launches_ns[place] + times.bounds_ns[place]:
            _add_overlaps(paced, borders, before.device_ns, event.device_ns)
    return tuple(paced)


def _add_overlaps(sums: list[int], borders: Sequence[int], begin: int, end: int) -> None:
    """To each part between the borders what it has of an interval."""
    for part, (first, stop) in enumerate(pairwise(borders)):
        sums[part] += max(min(end, stop) - max(begin, first), 0)


@dataclass(frozen=True, kw_only=True)
class HostSpans:
    """The host beside its device in a step, by DEVICE_PHASES, ns.

    `idle_ns` is the longest that the device can have waited for the host: from an event on until the host queued the
    next. What was queued before the device got to the first of the two never had it wait. `host_ns` is what the host
    took from one border to the next, without waits for the device or for collectives; `ahead_ns` how far it was ahead,
    at least, at an event of the phase.
    """

    idle_ns: tuple[int, ...]
    host_ns: tuple[int, ...]
    ahead_ns: tuple[int, ...]


_REQUESTS = {e.ITERATE_IN, e.FETCH_IN}
_NEXT_BATCH = _REQUESTS | {e.UPDATE_OUT, e.SCALER_OUT, e.STEP_END, e.BACKWARD_OUT}
_AT_BORDERS = (
    _NEXT_BATCH, {e.FORWARD_IN, e.REPLAY}, {e.GRADIENT, e.COLLECTIVE_IN, e.BACKWARD_OUT, e.REPLAY_OUT},
    {e.BACKWARD_OUT, e.COLLECTIVE_OUT, e.REPLAY_OUT}, _NEXT_BATCH,
)  # fmt: skip
"""Kinds of events at the borders of DEVICE_PHASES: with nothing in between, the device is at several events at once."""


def host_spans(
    noted: Sequence[tuple[int, HookEvent]], queued: Sequence[tuple[int, HookEvent]], borders: Sequence[int]
) -> HostSpans | None:
    """`noted` are as those of `host_bound_ns`, `queued` all events of the host from the first of these on to the last.

    None where the host's time at a border is not known.
    """
    times = []
    for border, kinds in zip(borders, _AT_BORDERS, strict=True):
        reached = [event for _, event in queued if event.kind in kinds and event.device_ns == border]
        if not reached:
            return None
        times.append(next((event.ns for event in reached if event.kind in _REQUESTS), reached[0].ns))
    idle, waited = [0] * (len(borders) - 1), [0] * (len(borders) - 1)
    ahead: list[list[int]] = [[] for _ in idle]
    for (_, before), (_, event) in pairwise(noted):
        if event.device_ns is None or before.device_ns is None:
            continue
        _add_overlaps(idle, borders, before.device_ns, min(event.device_ns, event.ns))
        for part, (first, stop) in enumerate(pairwise(borders)):
            if min(event.device_ns, stop) > max(before.device_ns, first):
                ahead[part] += [max(each.device_ns - each.ns, 0) for each in (before, event) if each.device_ns]
    for begin, end in _waits_of_host(queued):
        _add_overlaps(waited, times, begin, end)
    spans = [stop - first - its for (first, stop), its in zip(pairwise(times), waited, strict=True)]
    return HostSpans(
        idle_ns=tuple(idle), host_ns=tuple(max(span, 0) for span in spans),
        ahead_ns=tuple(min(its, default=0) for its in ahead),
    )  # fmt: skip


def _waits_of_host(queued: Sequence[tuple[int, HookEvent]]) -> Iterator[tuple[int, int]]:
    """From when to when the host waited for the device, or in a collective."""
    begun: dict[int, int] = {}
    for place, event in queued:
        if event.kind == e.SYNC_IN and event.device_ns is not None:
            yield event.ns, max(event.device_ns, event.ns)
        elif event.kind == e.COLLECTIVE_IN:
            begun[place] = event.ns
        elif event.kind == e.COLLECTIVE_WAIT:
            begun[event.number] = event.ns
        elif event.kind == e.COLLECTIVE_OUT and event.number in begun:
            yield begun.pop(event.number), event.ns


# The steps of a process: each with its time stamps, and the reasons for those that are absent.


@dataclass(frozen=True, kw_only=True)
class Pause:
    """What else than training is between two steps: from the end of one to the beginning of the next."""

    kind: str  # "evaluation", "checkpoint", "another loader", joined by " and "; ROLLOUT
    begin_ns: int
    end_ns: int
    waited_ns: int = 0
    """The part of it in which the process waited for the results of collectives."""


@dataclass(kw_only=True)
class ObservedStep:
    """One optimizer step, from where the script requests its batch to where it requests the next.

    `steps_of` completes it in place: copies are most of what its steps would cost.
    """

    stamps: tuple[int, ...]
    """As hpc.model.timestamps.STAMPS, ns of CLOCK_MONOTONIC; ABSENT where it was not seen."""
    absent: Mapping[str, str]
    """For each stamp that is ABSENT, by its name: the reason."""
    samples: int | None
    """None where the script reads by no loader that hooks can see, or reads what has no length."""
    fetches: int
    fetch_ns: int
    """All of its fetches together."""
    loader_ns: int = ABSENT
    """What its loaders took between `begin` and `batch_ready`; ABSENT where no loader was seen."""
    later_ns: int = ABSENT
    """What they took behind that, until `grads_ready` or, where that is absent, the update; ABSENT as `loader_ns`."""
    updated_ns: int = ABSENT
    """When its last update, or a gradient scaler that skipped it, had returned; ABSENT where that was not seen."""
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
    phase: Pause | None = None
    """What it begins with, as one of few steps does through all of the run: a part of it."""
    bound_ns: int = 0
    """The error bound of its times: 0 on the host's clock, whose times they are."""
    called_ns: tuple[int, int] = (0, 0)
    """Its begin and end by the host's clock, of what the host queued for it: on a device earlier than `stamps`."""
    backward_ns: tuple[int, int] = (0, 0)
    """From when to when its backwards are, by the host's clock as `called_ns`; (0, 0) where none was seen."""
    host_bound_ns: tuple[int, ...] = ()
    """On a device, how long the host set the pace, by DEVICE_PHASES of the model; empty where that is not known."""
    host_spans: HostSpans | None = None
    """On a device, what the host took; None where that is not known."""
    syncs: int = 0
    """How often the script waited for the device, as far as that is seen."""
    place: int = 0
    """The first of its events behind what is no part of it."""

    @property
    def after_ns(self) -> int:
        """From its last update to its end; ABSENT where that was not seen."""
        return ABSENT if self.updated_ns == ABSENT else max(0, self.stamps[END] - self.updated_ns)


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
    marked: bool = False
    """The script, or its trainer, says where steps end."""

    def early_remarks(self, warmup_steps: int) -> tuple[str, ...]:
        """The remarks that concern no step behind the warm-up."""
        return tuple(remark for remark in self.remarks if self.last_steps.get(remark, warmup_steps) < warmup_steps)


ROLLOUT = "rollout"
"""Forwards without gradients that recur as a phase: the script makes the data of its next steps."""
NO_TIMES = "no times of the device"
"""The pause before a step, and before the next, of which the device's times are not all known."""
