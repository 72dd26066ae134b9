"""Records every collective that torch.distributed is called for from Python: SyncBatchNorm's, FSDP2's, a model's own.

Not seen are those of C++ callers: DDP's buckets, whose reduction is between two time stamps of the step, and those
inside compiled graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch.distributed as dist

from hpc.measure.meetings import Meetings
from hpc.observe.collective_names import BUFFERS, FROM_ONE, NAMES, TO_ONE, waits_at_once
from hpc.observe.events import NO_ROOT, UNCLEAR

COALESCED = "_broadcast_coalesced"


@contextmanager
def recorded(meetings: Meetings, about_to_call: Callable[[str], None] = lambda name: None) -> Iterator[None]:
    """Inside this context collectives are recorded; `about_to_call` gets the name of each before it is called."""
    world_size = dist.get_world_size()
    works: dict[int, tuple[int, bool]] = {}  # by the identity of its Work: a number in the step, and waits_at_once

    def collective(method: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(method)
        def call(group: Any, *values: Any, **named: Any) -> Any:
            about_to_call(name)
            size = group.size()
            if size == world_size:
                number = meetings.arrived(name, _root(name, values))
            else:
                number = meetings.arrived(f"{name} in a group of {size}", UNCLEAR)
            work = method(group, *values, **named)
            if work is None:
                meetings.ended(number)
            else:
                works[id(work)] = number, waits_at_once(values)
            return work

        return call

    def waiting(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def wait(work: Any, *values: Any, **named: Any) -> Any:
            number, at_once = works.pop(id(work), (None, False))
            if number is None:
                return method(work, *values, **named)
            if not at_once:
                meetings.waits(number)
            result = method(work, *values, **named)
            meetings.ended(number)
            return result

        return wait

    def broadcast(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(group: Any, tensors: Any, size: int, root: int = 0) -> Any:
            return meetings.meet(BUFFERS, function, group, tensors, size, root, root=root)

        return call

    changed = [
        _replaced(dist.ProcessGroup, method, collective(getattr(dist.ProcessGroup, method), name))
        for method, name in NAMES.items()
        if hasattr(dist.ProcessGroup, method)
    ]
    changed.append(_replaced(dist.Work, "wait", waiting(dist.Work.wait)))
    changed.append(_replaced(dist, COALESCED, broadcast(getattr(dist, COALESCED))))
    try:
        yield
    finally:
        for owner, name, original in reversed(changed):
            setattr(owner, name, original)


def _replaced(owner: Any, name: str, value: Any) -> tuple[Any, str, Any]:
    original = vars(owner)[name]  # a getattr would unwrap pybind's descriptor, and what is put back would not bind
    setattr(owner, name, value)
    return owner, name, original


def _root(name: str, values: tuple[Any, ...]) -> int:
    """The rank that sends, from the call's options or its last argument."""
    if name not in FROM_ONE:
        return UNCLEAR if name in TO_ONE else NO_ROOT
    root = getattr(values[-1], "rootRank", values[-1]) if values else None
    return root if isinstance(root, int) else UNCLEAR
