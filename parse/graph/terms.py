"""What a rank of a graph of steps does itself, waits for and communicates: whole ns that add up to its step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpc.model.timestamps import ABSENT, END, GRADS_READY, REDUCED
from hpc.model.trace import Bools, Ints, Trace
from parse.graph.step_graph import ARRIVES, ENDS, NO_ROOT, WAITS, StepCalls, StepGraph
from parse.term_kinds import WORK

PHASES = tuple(kind.name for kind in WORK)
"""Those of a rank's own work; the last but one ends where its gradients are reduced."""

LEAST = -(2**62)
"""Before all moments, and far enough from the least int64 for differences."""


def read_calls(trace: Trace, calls: StepCalls, stamps_ns: Ints, first: int, stop: int) -> Ints:
    """The calls of steps `first` to `stop` − 1 on the global clock, int64 [step, rank, call, 3] as MEETING_STAMPS, with
    `stamps_ns` [rank, step, 6] the time stamps of these steps on it.

    A rank that begins to wait at no moment of its own does so when it calls. The wrapper's reduction is called where
    its gradients are ready.
    """
    assert trace.meetings is not None
    its_ns = trace.globally(np.asarray(trace.meetings[:, first:stop], np.int64))
    ranks, steps, width, _ = its_ns.shape
    calls_ns = np.empty((3, steps, ranks, width + 1), np.int64)
    calls_ns[..., :width] = its_ns.transpose(3, 1, 0, 2)
    calls_ns[..., width] = np.where(calls.reduces, stamps_ns[:, :, [GRADS_READY, GRADS_READY, REDUCED]].T, ABSENT)
    arrives, waits, ends = calls_ns
    np.copyto(waits, arrives, where=(waits == ABSENT) & (ends != ABSENT))
    return np.moveaxis(calls_ns, 0, 3)


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphSteps:
    """Consecutive steps of one graph, from `first` on, on the global clock.

    `stamps_ns` [rank, 1 + step, 6] begin with the step before, which is there for its end; `calls_ns` are the calls
    [step, rank, call, 3]. The clocks leave `open_ns` open between two ranks.
    """

    first: int
    graph: StepGraph
    stamps_ns: Ints
    calls_ns: Ints
    open_ns: float

    @property
    def begin_ns(self) -> Ints:
        """Of each step [step, rank]."""
        return self.stamps_ns[:, :-1, END].T

    @property
    def end_ns(self) -> Ints:
        """Of each step [step, rank]."""
        return self.stamps_ns[:, 1:, END].T

    @cached_property
    def latest_ns(self) -> Ints:
        """For each call the arrival of the last that its rank waits for [step, rank, call], ABSENT for nobody."""
        return latest_awaited(self.graph.calls, self.graph.complete, self.calls_ns, self.open_ns)

    @property
    def work_edges(self) -> list[Ints]:
        """When all of PHASES but the last end, [step, rank]: at their stamps, and the last of them where the gradients
        are reduced; of ranks whose calls reduce them where their own are ready."""
        now = self.stamps_ns[:, 1:]
        *before, grads = (now[:, :, kind.stamp].T for kind in WORK[:-1])
        return [*before, np.where(self.graph.calls.by_calls, grads, now[:, :, REDUCED].T)]

    @property
    def early_ns(self) -> Ints:
        """By how much results are there before all have called whom they need, beyond the clocks' bounds, [n]."""
        ahead = self.latest_ns - np.maximum(self.calls_ns[..., ENDS], LEAST)
        beyond: Ints = ahead[(self.latest_ns != ABSENT) & (ahead > self.open_ns)] - int(self.open_ns)
        return beyond


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphTerms:
    """ns of each step: a rank's own `work` [rank, step, phase] by PHASES, what it waits and what it communicates beyond
    that, `wait` and `communication` [rank, step, dimension]. They add up to its step."""

    work: Ints
    wait: Ints
    communication: Ints


def latest_awaited(calls: StepCalls, complete: Bools, calls_ns: Ints, open_ns: float) -> Ints:
    """For each call the arrival of the last that its rank waits for [step, rank, call], ABSENT for nobody; `complete`
    are the meetings [meeting] to which all of their group come.

    Of a meeting without a root that is the last of all. With one it is the root's, or that of another who calls before
    the rank has the result, where the clocks leave `open_ns` open: a rank that has it before did not wait for that one.
    So it is, without the root, where it is not known who waits for whom. A meeting to which not all come holds nobody.
    """
    steps, ranks, width, _ = calls_ns.shape
    arrives = np.ascontiguousarray(calls_ns[..., ARRIVES]).reshape(steps, ranks * width)
    latest = np.full(arrives.shape, ABSENT)
    of_members = arrives[:, calls.members]
    last = np.maximum.reduceat(of_members, calls.starts, axis=1) if len(calls.starts) else of_members[:, :0]
    for_all = complete & (calls.root == NO_ROOT)
    of_member = np.repeat(np.arange(len(calls.starts)), calls.sizes)
    chosen = for_all[of_member]
    latest[:, calls.members[chosen]] = last[:, of_member[chosen]]
    rooted = complete & ~for_all
    if rooted.any():
        ends = np.ascontiguousarray(calls_ns[..., ENDS]).reshape(steps, ranks * width)
        for size in np.unique(calls.sizes[rooted]).tolist():
            meetings = np.flatnonzero(rooted & (calls.sizes == size))
            members = calls.members[calls.starts[meetings][:, None] + np.arange(size)]
            is_root = members // width == calls.root[meetings][:, None]  # none where it is not known
            its = arrives[:, members]
            from_root = np.where(is_root, its, ABSENT).max(axis=2, keepdims=True)
            latest[:, members] = np.maximum(_latest_before(its, ends[:, members] + int(open_ns)), from_root)
    return latest.reshape(steps, ranks, width)


def _latest_before(arrives: Ints, ends: Ints) -> Ints:
    """Of each member the latest arrival of its meeting that is not after its end, both [step, meeting, member]."""
    if arrives.shape[2] == 2:
        others = arrives[..., ::-1]
        latest: Ints = np.where(others <= ends, np.maximum(others, arrives), arrives)
        return latest
    in_order = np.sort(arrives, axis=2)
    latest = np.empty_like(arrives)
    for at in np.ndindex(*arrives.shape[:2]):
        so_many = np.searchsorted(in_order[at], ends[at], side="right")
        latest[at] = in_order[at][np.maximum(so_many - 1, 0)]
    return np.maximum(latest, arrives)


def _waits(steps: GraphSteps) -> tuple[Ints, Ints, Ints]:
    """When ranks begin and end to wait, [step, rank, call] in the order of their waits, none before the end of the one
    before, none outside their step; and the arrival of the last whom they wait for, ABSENT for nobody."""
    begins, ends, latest = steps.calls_ns[..., WAITS], steps.calls_ns[..., ENDS], steps.latest_ns
    begin_ns, end_ns = steps.begin_ns[..., None], steps.end_ns[..., None]
    if (order := steps.graph.wait_order) is not None:
        begins, ends, latest = (np.take_along_axis(each, order[None], axis=2) for each in (begins, ends, latest))
    until = np.maximum.accumulate(ends, axis=2)
    before = np.empty_like(until)
    before[..., :1] = begin_ns
    np.maximum(until[..., :-1], begin_ns, out=before[..., 1:])
    np.minimum(before, end_ns, out=before)
    begins = np.clip(begins, before, end_ns)
    ends = np.minimum(np.maximum(ends, begins), np.maximum(end_ns, begins))
    return begins, ends, latest


def graph_terms(steps: GraphSteps) -> GraphTerms:
    """Of recorded steps."""
    begins, ends, latest = _waits(steps)
    waited = np.minimum(ends, np.maximum(latest, begins)) - begins
    exposed = ends - begins
    covered = exposed.sum(axis=2)
    edges = [steps.begin_ns, *steps.work_edges, steps.end_ns]
    until = [np.zeros_like(covered), *(_covered(begins, ends, edge) for edge in edges[1:-1]), covered]
    work = np.stack([edges[at + 1] - edges[at] - (until[at + 1] - until[at]) for at in range(len(PHASES))], axis=2)
    exposed -= waited
    in_dimension = _by_dimension(steps.graph)
    wait, communication = (np.einsum("src,rcd->srd", part, in_dimension) for part in (waited, exposed))
    return GraphTerms(
        work=work.swapaxes(0, 1), wait=wait.swapaxes(0, 1), communication=communication.swapaxes(0, 1)
    )  # fmt: skip


def _covered(begins: Ints, ends: Ints, until: Ints) -> Ints:
    """How much of the time until a moment [step, rank] is in waits."""
    covered: Ints = np.maximum(0, np.minimum(ends, until[..., None]) - begins).sum(axis=2)
    return covered


def _by_dimension(graph: StepGraph) -> Ints:
    """1 where a rank's wait is in the dimension, else 0: [rank, call in the order of waits, dimension]."""
    dimension = graph.calls.call_dimension
    if graph.wait_order is not None:
        dimension = np.take_along_axis(dimension, graph.wait_order, axis=1)
    inside: Bools = dimension[..., None] == np.arange(len(graph.calls.dimensions))
    return inside.astype(np.int64)
