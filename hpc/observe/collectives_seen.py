"""The collectives of a process, from its events."""

from __future__ import annotations

from dataclasses import dataclass

from hpc.model.timestamps import ABSENT
from hpc.observe import events as e
from hpc.observe.events import EventFile


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A collective that was called from Python.

    ns of its call; of the wait for its result, which for one that is waited for at once is that of the call; of its
    end. ABSENT for the last two: nobody waited for it.
    """

    name: str
    root: int
    arrives_ns: int
    waits_ns: int
    ends_ns: int
    bytes: int
    """0 for DDP's buffers, which are not counted."""


def collectives_of(recorded: EventFile) -> list[Collective]:
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
        Collective(
            name=recorded.names[call.which][0],
            root=recorded.names[call.which][1],
            arrives_ns=call.ns,
            waits_ns=waits.get(place, call.ns if place in ends else ABSENT),
            ends_ns=ends.get(place, ABSENT),
            bytes=call.number,
        )
        for place, call in calls
    ]
