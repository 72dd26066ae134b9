"""What the page shows of single runs, read from their traces: step times, who arrives late, telemetry, all bounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hpc.model.timestamps import ABSENT, END, GRADS_READY
from hpc.model.trace import Telemetry, Trace, TraceError
from hpc.model.trace_file import open_trace
from parse.ledger.telemetry import QUANTITIES, Quantity, series_of

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BINS = 250
"""At most so many points of a run along its steps; of more steps, several make one."""
ROWS = 128
"""At most so many rows of a heat map; of more ranks, several that follow on one another make one."""
COURSES = 6
"""Quantities of the telemetry that are drawn, at most: the likeliest causes first."""
PIECE_STAMPS = 500_000
"""Ranks × steps that are read at once; it bounds the memory."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StepTimes:
    """Step times of a run along its steps, warm-up included, from latest end to latest end.

    Per bin [bin]: its `first` step, the mean and the maximum in ms; `width` steps make a bin. `blocks` are the measured
    steps, (first, stop); `steps` is their number with those that are not measured.
    """

    first: Ints
    mean_ms: Floats
    max_ms: Floats
    width: int
    blocks: tuple[tuple[int, int], ...]
    steps: int


@dataclass(frozen=True, kw_only=True, eq=False)
class DelayMap:
    """By how many ms ranks have their gradients ready after the median rank of the step, [row, bin]: the largest delay
    in a cell, which holds `ranks_per_row` ranks and `width` steps. `first` [bin] is the first step of a bin."""

    delay_ms: Floats
    first: Ints
    width: int
    ranks_per_row: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Course:
    """A quantity of the telemetry along the steps of a run: by node its host, and [sample] the step (a part of one is
    the time gone of it) and the value."""

    quantity: Quantity
    hosts: tuple[str, ...]
    steps: tuple[Floats, ...]
    values: tuple[Floats, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class RunReading:
    """What the page shows of a run: `delays` is None where ranks' arrivals are not recorded or cannot be compared."""

    times: StepTimes
    delays: DelayMap | None
    courses: tuple[Course, ...]


def read_run(path: Path, *, with_ranks: bool) -> RunReading:
    """Step times of the run in a trace; `with_ranks` its delays and telemetry, too.

    Raises TraceError where it cannot be read or has no common clock.
    """
    with open_trace(path) as trace:
        steps = int(trace.steps_completed.min())
        ends_ns, delay_ns = _read(trace, steps, with_ranks=with_ranks)
        if (ends_ns == ABSENT).any():
            raise TraceError(f"{path}: steps of its {steps} whole ones have no end")
        times = step_times(ends_ns, [(begin, stop) for begin, stop in trace.blocks.tolist()])
        delays = None if delay_ns is None or not with_ranks else _binned(delay_ns, times.width)
        return RunReading(times=times, delays=delays, courses=tuple(_courses(trace)) if with_ranks else ())


def step_times(ends_ns: Ints, blocks: Sequence[tuple[int, int]]) -> StepTimes:
    """From the latest end of each step [step], none absent, and the measured steps."""
    width = max(1, -(-len(ends_ns) // BINS))
    first = np.arange(1, len(ends_ns), width)
    times_ms = np.diff(ends_ns) / 1e6
    return StepTimes(
        first=first,
        mean_ms=np.array([times_ms[at : at + width].mean() for at in first - 1]),
        max_ms=np.array([times_ms[at : at + width].max() for at in first - 1]),
        width=width,
        blocks=tuple(blocks),
        steps=len(ends_ns),
    )


def _read(trace: Trace, steps: int, *, with_ranks: bool) -> tuple[Ints, Floats | None]:
    """The latest end of each step [step], and the delay of each rank in ns [rank, step], None where a stamp is absent
    or there is one rank."""
    if not steps:
        return np.empty(0, np.int64), None
    ranks = len(trace.stamps)
    length = max(1, PIECE_STAMPS // ranks)
    ends_ns, delays = [], []
    for first in range(0, steps, length):
        stop = min(first + length, steps)
        ends_ns.append(trace.globally(trace.stamps[:, first:stop, END]).max(axis=0))
        if with_ranks and ranks > 1:
            ready_ns = trace.stamps[:, first:stop, GRADS_READY]
            if (ready_ns == ABSENT).any():
                with_ranks = False
                continue
            global_ns = trace.globally(ready_ns)
            median_ns = np.partition(global_ns, (ranks - 1) // 2, axis=0)[(ranks - 1) // 2]
            delays.append((global_ns - median_ns).astype(np.float64))
    return np.concatenate(ends_ns), np.concatenate(delays, axis=1) if with_ranks and delays else None


def _binned(delay_ns: Floats, width: int) -> DelayMap:
    """The largest delay of each cell of at most ROWS × BINS; steps are counted as those of StepTimes."""
    ranks, steps = delay_ns.shape
    rows = -(-ranks // ROWS)
    by_row = np.maximum.reduceat(delay_ns[:, 1:], np.arange(0, ranks, rows), axis=0)
    first = np.arange(1, steps, width)
    return DelayMap(
        delay_ms=np.maximum.reduceat(by_row, first - 1, axis=1) / 1e6, first=first, width=width, ranks_per_row=rows
    )


def _courses(trace: Trace) -> Iterator[Course]:
    """The first COURSES quantities of the telemetry with a sample in some step."""
    telemetry, count = trace.telemetry, 0
    if telemetry is None:
        return
    ends_ns = trace.stamps[:, :, END][telemetry.ranks]
    for quantity in QUANTITIES:
        course = None if count == COURSES else _course(trace, telemetry, quantity, ends_ns)
        if course is not None:
            count += 1
            yield course


def _course(trace: Trace, telemetry: Telemetry, quantity: Quantity, ends_ns: Ints) -> Course | None:
    """The quantity on the nodes that have it, where it is other than 0 in some sample."""
    read = series_of(quantity, telemetry)
    if read is None:
        return None
    hosts, steps, values = [], [], []
    for node, rank in enumerate(telemetry.ranks.tolist()):
        its_ends = ends_ns[node][ends_ns[node] != ABSENT]
        at_ns, value = telemetry.local_ns[node], read[node]
        shown = (at_ns != ABSENT) & np.isfinite(value)
        if len(its_ends) > 1:
            shown &= (at_ns >= its_ends[0]) & (at_ns <= its_ends[-1])
        if len(its_ends) < 2 or not shown.any():
            continue
        hosts.append(trace.reports[rank].hostname or f"rank {rank}")
        thinned = np.flatnonzero(shown)[:: max(1, -(-int(shown.sum()) // BINS))]
        # Differences from the first end keep whole nanoseconds in a float.
        gone = (its_ends - its_ends[0]).astype(np.float64)
        steps.append(np.interp((at_ns[thinned] - its_ends[0]).astype(np.float64), gone, np.arange(len(its_ends))))
        values.append(value[thinned])
    if not any(each.any() for each in values):
        return None
    return Course(quantity=quantity, hosts=tuple(hosts), steps=tuple(steps), values=tuple(values))
