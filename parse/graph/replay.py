"""The steps of a graph replayed: each rank's own work between its calls and waits, some of it changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parse.graph.step_graph import ARRIVES, NONE, Ints, StepGraph
from parse.graph.terms import LEAST, GraphSteps

# A rank that has done its own work until a call arrives at that meeting. A wait is over when all have arrived whom the
# graph says that it depends on, and what is exposed of the communication beyond has passed. Without a change that gives
# back the recorded ends to the nanosecond. Communication that was hidden behind own work stays so.


@dataclass(frozen=True, kw_only=True, eq=False)
class Pieces:
    """Steps as what each rank does, ns: `work` [phase, step, rank, 1 + event], by PHASES, until each event of its graph
    and at last until the end of the step, and `exposed` [step, rank, call], what passes after the last whom a wait
    depends on has arrived (with nobody, after it begins)."""

    work: Ints
    exposed: Ints


def recorded_pieces(recorded: GraphSteps) -> Pieces:
    """Those of recorded steps."""
    graph, events = recorded.graph, recorded.graph.events
    begin, end, calls_ns = recorded.begin_ns, recorded.end_ns, recorded.calls_ns
    steps, ranks, width, _ = calls_ns.shape
    begins, ends = (_in_order_of_calls(graph, each) for each in (recorded.waits.begins, recorded.waits.ends))
    last = events.shape[1]
    since = np.empty((steps, ranks, last + 1), np.int64)  # the end of the wait before, where an event's piece begins
    until = np.empty_like(since)
    until[..., last] = end
    is_wait, number = events >= width, np.where(events == NONE, 0, events % width)
    arrives = np.ascontiguousarray(calls_ns[..., ARRIVES])
    of_events = (np.take_along_axis(each, number[None], axis=2) for each in (arrives, begins, ends))
    its_arrives, its_begins, its_ends = of_events
    until[..., :last] = np.where(is_wait, its_begins, its_arrives)
    since[..., 0] = begin
    since[..., 1:] = np.where(is_wait, its_ends, its_arrives)
    none = np.append(events == NONE, np.zeros((ranks, 1), np.bool_), axis=1)
    if none.any():  # behind the last event of a rank: nothing, from its last event on
        lasts = np.maximum((events != NONE).sum(axis=1), 0)
        of_last = np.take_along_axis(since, lasts[None, :, None], axis=2)
        since = np.where(np.append(none[:, :1], none[:, :-1], axis=1) | none, of_last, since)
        since[..., last] = of_last[..., 0]
        until = np.where(none, since, until)
    low, high = (edge[..., None] for edge in recorded.work_edges)
    data = np.minimum(until, low) - np.minimum(since, low)
    optimizer = np.maximum(until, high) - np.maximum(since, high)
    work = np.stack([data, until - since - data - optimizer, optimizer])
    awaited = np.full((steps, ranks, width), LEAST)
    need = _needed(graph, arrives)
    awaited[:, graph.wait_rank, _wait_calls(graph)] = need
    return Pieces(work=work, exposed=ends - np.maximum(begins, awaited))


def _in_order_of_calls(graph: StepGraph, moments: Ints) -> Ints:
    if graph.wait_order is None:
        return moments
    back: Ints = np.empty_like(moments)
    np.put_along_axis(back, np.broadcast_to(graph.wait_order[None], moments.shape), moments, axis=2)
    return back


def _wait_calls(graph: StepGraph) -> Ints:
    """The call of each wait of the graph."""
    calls: Ints = graph.events[graph.wait_rank, graph.wait_event] - graph.present.shape[1]
    return calls


def _needed(graph: StepGraph, arrives: Ints) -> Ints:
    """When all have arrived whom each wait of the graph depends on, [step, wait]; LEAST for nobody."""
    call = graph.events[graph.arrival_rank, graph.arrival_event]
    its = np.maximum(arrives[:, graph.arrival_rank, call], LEAST)
    if not len(graph.need_starts):
        return np.full((len(arrives), len(graph.wait_need)), LEAST)
    last = np.maximum.reduceat(its, graph.need_starts, axis=1)
    needed: Ints = np.where(graph.wait_need == NONE, LEAST, last[:, graph.wait_need])
    return needed


def replay(graph: StepGraph, ends: Ints, cases: Sequence[Pieces]) -> Ints:
    """The end of each rank and step [case, step, rank], from the ranks' ends before them [case, rank]."""
    prepared = [_prepared(graph, case) for case in cases]
    until, offsets, exposed, rest = (np.stack(each, axis=1) for each in zip(*prepared, strict=True))  # [step, case, …]
    steps, ranks = len(until), ends.shape[1]
    result = np.empty((len(cases), steps, ranks), np.int64)
    waits = len(graph.wait_rank)
    # The moments of a step, [case, moment]: the end of the step before of each rank, then the end of each wait.
    moments = np.empty((len(cases), ranks + waits), np.int64)
    needs = np.empty((len(cases), len(graph.need_starts) + 1), np.int64)
    needs[:, -1] = LEAST  # of who needs nobody, whose number is NONE
    before = np.where(graph.wait_before == NONE, graph.wait_rank, ranks + graph.wait_before)
    behind = np.where(graph.arrival_behind == NONE, graph.arrival_rank, ranks + graph.arrival_behind)
    last = np.where(graph.last_wait == NONE, np.arange(ranks), ranks + graph.last_wait)
    levels = [
        (
            level, slice(ranks + level.waits.start, ranks + level.waits.stop), before[level.waits],
            graph.wait_need[level.waits], behind[level.arrivals],
            graph.need_starts[level.needs] - level.arrivals.start,
        )
        for level in graph.levels
    ]  # fmt: skip
    for step in range(steps):
        moments[:, :ranks] = ends
        for level, its, its_before, its_need, its_behind, starts in levels:
            if len(starts):
                arrives = moments[:, its_behind] + offsets[step, :, level.arrivals]
                np.maximum.reduceat(arrives, starts, axis=1, out=needs[:, level.needs])
            begins = moments[:, its_before] + until[step, :, level.waits]
            moments[:, its] = np.maximum(begins, needs[:, its_need]) + exposed[step, :, level.waits]
        ends = moments[:, last] + rest[step]
        result[:, step] = ends
    return result


def _prepared(graph: StepGraph, pieces: Pieces) -> tuple[Ints, Ints, Ints, Ints]:
    """By step: the own work until each wait, until each arrival (both from the wait before on), what is exposed of each
    wait, and the own work after the last wait of each rank; waits and arrivals in the order of the levels."""
    work = pieces.work.sum(axis=0)
    until = np.cumsum(work, axis=2)
    steps, ranks, width = until.shape
    flat = until.reshape(steps, ranks * width)
    at_wait = graph.wait_rank * width + graph.wait_event
    at_arrival = graph.arrival_rank * width + graph.arrival_event
    of_waits = flat[:, at_wait]
    until_waits = of_waits - _of(of_waits, graph.wait_before)
    offsets = flat[:, at_arrival] - _of(of_waits, graph.arrival_behind)
    exposed = pieces.exposed[:, graph.wait_rank, _wait_calls(graph)]
    rest = until[..., -1] - _of(of_waits, graph.last_wait)
    return until_waits, offsets, exposed, rest


def _of(of_waits: Ints, waits: Ints) -> Ints:
    """The values of these waits [step, wait], 0 of NONE."""
    if not of_waits.shape[1]:
        return np.zeros((len(of_waits), len(waits)), np.int64)
    chosen: Ints = np.where(waits == NONE, 0, of_waits[:, waits])
    return chosen
