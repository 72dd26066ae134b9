"""Simulated training whose ranks meet several times a step, with the truth of it, on nodes with clocks of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpc.model.spec import RunSpec
from hpc.model.timestamps import STAMPS
from tests.unit.simulated import (
    ENTRY_SKEW_NS,
    ORIGIN_NS,
    SYNCHRONISATION_NS,
    Clock,
    Durations,
    Int64,
    Simulated,
    _recorded,
    _segments,
)


@dataclass(frozen=True)
class Meeting:
    """A collective in the middle of forward, backward or the optimizer step.

    `root` sends to the others, -1: all wait for all. `ahead` is called before the one in front of it is waited for.
    """

    name: str
    phase: str
    root: int = -1
    ahead: bool = False


def of_fsdp(layers: int) -> list[Meeting]:
    """An all-gather before each layer, called ahead, in forward and again in backward, and a reduce-scatter after each
    layer's backward but the first layer's, which is the reduction that ends a step."""
    forward = [Meeting("all-gather", "forward", ahead=at > 0) for at in range(layers)]
    backward = [
        meeting
        for _ in range(layers - 1)
        for meeting in (Meeting("all-gather", "backward"), Meeting("reduce-scatter", "backward"))
    ]
    return [*forward, *backward]


def simulate_meetings(
    run: RunSpec, durations: Durations, meetings: Sequence[Meeting], clocks: Sequence[Clock],
    generator: np.random.Generator, *, transfer_ns: int = 200_000, bound_ns: float = 10_000,
) -> Simulated:  # fmt: skip
    """The run with those durations; these phases are cut into equal parts between their meetings.

    Each meeting takes `transfer_ns` after the last one that it waits for has called.
    """
    steps, ranks = run.steps, run.ranks
    global_ns = np.empty((ranks, steps, len(STAMPS)), np.int64)
    meetings_ns = np.empty((ranks, steps, len(meetings), 3), np.int64)
    now_ns, compared_ns = ORIGIN_NS, []
    for first, stop in _segments(run):
        compared_ns.append(now_ns)
        now_ns += SYNCHRONISATION_NS
        now = now_ns + generator.integers(0, ENTRY_SKEW_NS, ranks)
        for step in range(first, stop):
            now = _step(durations, meetings, step, now, transfer_ns, global_ns[:, step], meetings_ns[:, step])
        now_ns = int(now.max()) + ENTRY_SKEW_NS
    trace = _recorded(run, global_ns, [*compared_ns, now_ns], clocks, generator, bound_ns, None)
    local_ns = np.empty_like(meetings_ns)
    for node, clock in enumerate(clocks):
        ours = slice(node * run.ranks_per_node, (node + 1) * run.ranks_per_node)
        local_ns[ours] = meetings_ns[ours] if node == 0 else clock.read(meetings_ns[ours])
    backend = {**trace.environment["backend"], "meets_before_gradients": ["it does"], "unrecorded_collectives": []}
    return Simulated(
        trace=dataclasses.replace(
            trace, meetings=local_ns, meeting_names=[each.name for each in meetings],
            meeting_roots=[each.root for each in meetings], environment={**trace.environment, "backend": backend},
        ),
        global_ns=global_ns,
    )  # fmt: skip


def _step(
    durations: Durations,
    meetings: Sequence[Meeting],
    step: int,
    now: Int64,
    transfer_ns: int,
    stamps: Int64,
    met: Int64,
) -> Int64:
    """One step of all ranks from `now` [rank]; writes what happened, and returns when each ends."""
    stamps[:, 0] = now
    now = now + durations.data[:, step]
    stamps[:, 1] = now
    for stamp, phase in ((2, "forward"), (3, "backward"), (5, "optimizer")):
        its = [at for at, meeting in enumerate(meetings) if meeting.phase == phase]
        whole = getattr(durations, phase)[:, step]
        part = whole // (len(its) + 1)
        now = now + whole - part * len(its)
        for place, at in enumerate(its):
            if not meetings[at].ahead:
                met[:, at, 0] = now
            following = its[place + 1] if place + 1 < len(its) else None
            if following is not None and meetings[following].ahead:
                met[:, following, 0] = now
            met[:, at, 1] = now
            now = _met(met[:, at, 0], now, meetings[at].root, transfer_ns)
            met[:, at, 2] = now
            now = now + part
        stamps[:, stamp] = now
        if phase == "backward":
            now = now.max() + durations.communication[step] + durations.leave[:, step]
            stamps[:, 4] = now
    return now


def _met(called: Int64, now: Int64, root: int, transfer_ns: int) -> Int64:
    end: Int64 = np.maximum(now, called.max() if root < 0 else called[root]) + transfer_ns
    return end
