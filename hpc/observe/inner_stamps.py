"""The time stamps inside a step: forward_end, grads_ready, reduced; or why one of them is not known."""

from __future__ import annotations

from collections.abc import Sequence

from hpc.model.timestamps import ABSENT, INNER
from hpc.observe import events as e
from hpc.observe.events import Event, EventFile
from hpc.observe.segments import Segment

Inner = tuple[int, int, int]


def inner_stamps(inside: Sequence[Event], segment: Segment, recorded: EventFile) -> tuple[Inner, dict[str, str]]:
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


def _why_unclear(inside: Sequence[Event], segment: Segment, recorded: EventFile) -> str:
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


def _named(inside: Sequence[Event], recorded: EventFile, name: str) -> list[Event]:
    return [x for x in inside if x.kind == e.COLLECTIVE_IN and recorded.names[x.which][0].startswith(name)]


def _reduced_by_hand(
    inside: Sequence[Event], segment: Segment, recorded: EventFile, last: int, returned: int
) -> tuple[Inner, dict[str, str]]:
    """Where the script itself reduces all gradients between backward and update."""
    calls = [x for x in _named(inside, recorded, "all-reduce") if returned <= x.ns < segment.end_ns]
    expected = recorded.facts.get("gradient_bytes", 0)
    if not expected or sum(call.number for call in calls) < expected:
        reason = "nothing was seen that reduces the gradients"
        return (ABSENT, ABSENT, ABSENT), dict.fromkeys(INNER, reason)
    ends = [x.ns for x in inside if x.kind == e.COLLECTIVE_OUT and calls[0].ns <= x.ns < segment.end_ns]
    if len(ends) < len(calls):
        return (last, calls[-1].ns, ABSENT), {INNER[2]: "nobody waited for the reduction of the gradients"}
    return (last, calls[-1].ns, ends[-1]), {}
