"""The steps of a trace as graphs, piece by piece."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from hpc.model.timestamps import ABSENT, BATCH_READY, END, GRADS_READY, REDUCED
from hpc.model.trace import Bools, Ints, Trace
from hpc.system.text import first_of
from parse.graph.peers import Peers
from parse.graph.step_graph import ARRIVES, ENDS, StepGraph, step_calls, step_graph
from parse.graph.terms import GraphSteps, read_calls

ORDERED_BY = 24
"""So many steps, where a trace has them, show in which order ranks call."""


class GraphReader:
    """Reads steps of a trace with a table of calls: those that have the same calls have one graph.

    `partial` counts the steps of meetings to which not all of their group come, by the number of the meeting and the
    ranks that do not.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace, self.calls = trace, step_calls(trace)
        self.partial: Counter[tuple[int, tuple[int, ...]]] = Counter()
        self._graphs: dict[bytes, StepGraph] = {}
        self._peers: dict[int, Peers] = {}
        if len(trace.blocks):
            first, stop = trace.blocks[0].tolist()
            self._add_graphs(first, min(stop, first + ORDERED_BY))

    def read(self, first: int, stamps_ns: Ints) -> Iterator[GraphSteps]:
        """Steps from `first` on whose stamps on the global clock are these, [rank, 1 + step, 6] with the step before
        them, in runs of the same calls. Raises TraceError where clocks cannot be compared, or calls form a circle."""
        stop = first + stamps_ns.shape[1] - 1
        calls_ns = read_calls(self.trace, self.calls, stamps_ns[:, 1:], first, stop)
        open_ns = self._open_ns(first, stop)
        has = _has(calls_ns)
        changes = np.flatnonzero((has[1:] != has[:-1]).any(axis=(1, 2, 3))) + 1
        edges = [0, *changes.tolist(), stop - first]
        for begin, end in pairwise(edges):
            its_ns, its_stamps = calls_ns[begin:end], stamps_ns[:, begin : end + 1]
            graph = self._graph(has[begin], its_ns, its_stamps[:, :-1, END].T, open_ns)
            for missing in graph.missing:
                self.partial[missing] += end - begin
            yield GraphSteps(
                first=first + begin, graph=graph, stamps_ns=its_stamps, calls_ns=its_ns, open_ns=open_ns
            )  # fmt: skip

    def segments(self, first: int, stop: int) -> Iterator[list[GraphSteps]]:
        """The steps from `first` to `stop` − 1 likewise, those that follow one another together, without the steps that
        lack a stamp of the reduction; the data of a step whose batch is ready at no known time is a part of its
        compute."""
        stamps_ns = self.trace.global_stamps(first - 1, stop)
        ready = stamps_ns[:, 1:, BATCH_READY]
        np.copyto(ready, stamps_ns[:, :-1, END], where=ready == ABSENT)
        edges = np.diff(_is_reduced(stamps_ns[:, 1:]).astype(np.int64), prepend=0, append=0)
        for begin, end in zip(np.flatnonzero(edges > 0).tolist(), np.flatnonzero(edges < 0).tolist(), strict=True):
            yield [*self.read(first + begin, stamps_ns[:, begin : end + 1])]

    def steps(self, first: int, stop: int) -> list[GraphSteps]:
        """All of these segments."""
        return [steps for segment in self.segments(first, stop) for steps in segment]

    def peers(self, steps: GraphSteps) -> Peers:
        """Those of the graph of these steps."""
        key = id(steps.graph)
        if key not in self._peers:
            self._peers[key] = Peers(steps)
        return self._peers[key]

    def unmatched(self) -> tuple[str, ...]:
        """The meetings to which not all came, in words, each with its steps."""
        total = int(np.diff(self.trace.blocks).sum())
        return tuple(
            f"{self.calls.label(meeting)}, to which {_ranks(missing)} not come in {count} of {total}"
            for (meeting, missing), count in sorted(self.partial.items())
        )

    def _open_ns(self, first: int, stop: int) -> float:
        return 2 * float(self.trace.bounds_of(self.trace.stamps[:, first:stop, END]).max())

    def _add_graphs(self, first: int, stop: int) -> None:
        stamps_ns = self.trace.global_stamps(first - 1, stop)
        calls_ns = read_calls(self.trace, self.calls, stamps_ns[:, 1:], first, stop)
        has = _has(calls_ns)
        remaining = np.flatnonzero(_is_reduced(stamps_ns[:, 1:]))
        while len(remaining):
            alike = (has[remaining] == has[remaining[0]]).all(axis=(1, 2, 3))
            steps = remaining[alike]
            self._graph(has[steps[0]], calls_ns[steps], stamps_ns[:, steps, END].T, self._open_ns(first, stop))
            remaining = remaining[~alike]

    def _graph(self, has: Bools, calls_ns: Ints, begin_ns: Ints, open_ns: float) -> StepGraph:
        key = np.packbits(has).tobytes()
        if key not in self._graphs:
            self._graphs[key] = step_graph(self.calls, calls_ns, begin_ns, open_ns)
        return self._graphs[key]


def _is_reduced(stamps_ns: Ints) -> Bools:
    """The steps [step] in which all ranks have the stamps of the reduction, from those of all [rank, step, 6]."""
    its: Bools = (stamps_ns[:, :, [GRADS_READY, REDUCED]] != ABSENT).all(axis=(0, 2))
    return its


def _has(calls_ns: Ints) -> Bools:
    """Which calls are made, and waited for, [step, rank, call, 2]."""
    has: Bools = np.stack([calls_ns[..., stamp] != ABSENT for stamp in (ARRIVES, ENDS)], axis=3)
    return has


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank {ranks[0]} does" if len(ranks) == 1 else f"ranks {first_of([*map(str, ranks)], 8)} do"
