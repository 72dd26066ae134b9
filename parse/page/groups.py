"""Ranks in groups on the page: whose own work is long, in the mesh's order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpc.model.timestamps import ABSENT, BEGIN, END
from hpc.model.trace import Trace
from parse.graph.mesh import rank_mesh
from parse.graph.step_graph import ENDS, NONE, WAITS, Ints, StepCalls, step_calls
from parse.graph.terms import read_calls

PIECE_STAMPS = 1_000_000
"""Stamps of calls that are read at once; it bounds the memory."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupReading:
    """Of a run of ranks in groups: the ranks in the order of their mesh, where they have one, with their names, and how
    much longer the own work of each takes than the median of its peers in the step, ns [rank, step]; of a rank without
    peers, than its own median."""

    order: tuple[int, ...]
    names: tuple[str, ...]
    beyond_ns: Ints


def read_groups(trace: Trace, steps: int) -> GroupReading | None:
    """Of the first steps of a trace; None where its ranks have no groups, or one lacks a begin or an end."""
    if trace.calls is None or not steps:
        return None
    calls = step_calls(trace)
    own_ns = _own_work(trace, calls, steps)
    if own_ns is None:
        return None
    beyond_ns = np.empty_like(own_ns)
    for role in np.unique(calls.roles).tolist():
        its = np.flatnonzero(calls.roles == role)
        usual = _lower_median(own_ns[its]) if len(its) > 1 else _lower_median(own_ns[its[0]])
        beyond_ns[its] = own_ns[its] - usual
    mesh = rank_mesh(calls)
    order, names = tuple(range(len(own_ns))), tuple(f"rank {rank}" for rank in range(len(own_ns)))
    if mesh is not None:
        places = [(row, column) for row, column in np.argwhere(mesh.ranks != NONE).tolist()]
        order = tuple(int(mesh.ranks[place]) for place in places)
        names = tuple(
            f"rank {rank}: {', '.join(filter(None, (mesh.rows[row], mesh.columns[column])))}"
            for rank, (row, column) in zip(order, places, strict=True)
        )
    return GroupReading(order=order, names=names, beyond_ns=beyond_ns)


def _own_work(trace: Trace, calls: StepCalls, steps: int) -> Ints | None:
    """The steps of each rank without what it waits for, ns [rank, step]; None where a begin or an end is absent."""
    ranks, width = calls.meeting.shape
    length = max(1, PIECE_STAMPS // (3 * ranks * width))
    own_ns = []
    for first in range(0, steps, length):
        stop = min(first + length, steps)
        stamps_ns = trace.globally(np.ascontiguousarray(trace.stamps[:, first:stop]))
        begin, end = stamps_ns[..., BEGIN], stamps_ns[..., END]
        if (begin == ABSENT).any() or (end == ABSENT).any():
            return None
        its = read_calls(trace, calls, stamps_ns, first, stop)
        own_ns.append(end - begin - _covered(its[..., WAITS], its[..., ENDS], begin.T, end.T).T)
    return np.concatenate(own_ns, axis=1)


def _covered(waits: Ints, ends: Ints, begin: Ints, end: Ints) -> Ints:
    """How much of steps, [step, rank] from `begin` to `end`, is in waits [step, rank, call]; ABSENT is before all."""
    order = np.argsort(ends, axis=2)
    waits, ends = (np.take_along_axis(each, order, axis=2) for each in (waits, ends))
    low, high = begin[..., None], end[..., None]
    ends = np.clip(ends, low, high)
    before = np.concatenate([low, np.maximum.accumulate(ends, axis=2)[..., :-1]], axis=2)
    covered: Ints = np.maximum(0, ends - np.maximum(np.clip(waits, low, high), before)).sum(axis=2)
    return covered


def _lower_median(values: Ints) -> Ints:
    """Over the first axis."""
    middle = (len(values) - 1) // 2
    median: Ints = np.partition(values, middle, axis=0)[middle]
    return median
