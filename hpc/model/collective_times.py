"""The times of a trace's collectives and their table, in the conventions of nccl-tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.model.collective_plan import PAIRS, partner
from hpc.model.spec import COLLECTIVES
from hpc.model.timestamps import ABSENT, BEGIN, END
from hpc.model.trace import Trace, TraceError
from hpc.system.command_line import PIPE_WIDTH
from hpc.system.text import filled

_COLUMNS = (
    ("size", "B"), ("count", "elements"), ("time", "us"), ("slowest", "us"), ("algbw", "GB/s"), ("busbw", "GB/s"),
    ("#wrong", ""),
)  # fmt: skip
_PAIR_COLUMNS = (("nodes", ""), ("time", "us"), ("bandwidth", "GB/s"))
_CELL = 12
"""Width of a column."""
PAIRS_SHOWN = 20
"""So many pairs are in the table, beside the fastest."""


@dataclass(frozen=True, kw_only=True)
class CollectiveTime:
    """One operation at one size. `time_ns` is the mean of `iterations` calls back to back, over all ranks; `slowest_ns`
    is that mean on the rank where it is largest, `median_ns` the median call of the mean rank: a call that lost packets
    does not move it. `wrong` is the number of wrong elements of the checked call."""

    operation: str
    bytes: int
    count: int
    dtype: str
    in_place: bool
    iterations: int
    time_ns: float
    slowest_ns: float
    median_ns: float
    factor: float
    wrong: int

    @property
    def algorithm_bandwidth(self) -> float:
        """GB/s: size over time."""
        return self.bytes / self.time_ns

    @property
    def bus_bandwidth(self) -> float:
        """Traffic of a link in GB/s, independent of the number of ranks."""
        return self.algorithm_bandwidth * self.factor


@dataclass(frozen=True, kw_only=True)
class PairTime:
    """Two nodes that send each other so many bytes at once: the median call, and half of the fastest two that followed
    one another, means over the ranks of both.

    Two of these take at least twice the one-way latency: a call ends once the other node's message is there, which that
    node sent once it had this one's before. A single call may find its message there already.
    """

    nodes: tuple[int, int]
    bytes: int
    time_ns: float
    fastest_ns: float

    @property
    def bandwidth(self) -> float:
        """GB/s each way."""
        return self.bytes / self.time_ns


def collective_times(trace: Trace) -> tuple[CollectiveTime, ...]:
    """Every collective of the trace but the pairs, in the order of its blocks. Raises TraceError where it has none, or
    not all."""
    return tuple(
        _time(trace, description, int(first), int(stop))
        for description, first, stop in _described(trace)
        if description.get("operation") != PAIRS
    )


def pair_times(trace: Trace) -> tuple[PairTime, ...]:
    """Every pair of nodes at every size, in the order of their turns; none where they were not measured.

    Raises TraceError as collective_times.
    """
    pairs = []
    nodes = trace.run.nodes
    for description, first, stop in _described(trace):
        turn = description.get("turn")
        if description.get("operation") != PAIRS or not isinstance(turn, int):
            continue
        calls_ns = _calls_ns(trace, first, stop)
        of_node_ns = np.stack([np.median(calls_ns, axis=1), _fastest_two(calls_ns)]).reshape(2, nodes, -1).mean(axis=2)
        for node in range(nodes):
            other = partner(node, turn, nodes)
            if other is not None and node < other:
                time_ns, fastest_ns = of_node_ns[:, [node, other]].mean(axis=1).tolist()
                size = int(description["bytes"])
                pairs.append(PairTime(nodes=(node, other), bytes=size, time_ns=time_ns, fastest_ns=fastest_ns))
    return tuple(pairs)


def _described(trace: Trace) -> Iterator[tuple[dict[str, Any], int, int]]:
    """The description of each block, and its steps."""
    if trace.run.diagnostic != COLLECTIVES:
        raise TraceError(f"{trace.run_id} is a run of {trace.run.workload}, not of {COLLECTIVES}")
    described = trace.environment.get("backend", {}).get("collectives", [])
    if len(described) != len(trace.blocks):
        raise TraceError(f"{trace.run_id} describes {len(described)} collectives for {len(trace.blocks)} blocks")
    for description, (first, stop) in zip(described, trace.blocks.tolist(), strict=True):
        yield description, first, stop


def _calls_ns(trace: Trace, first: int, stop: int) -> npt.NDArray[np.int64]:
    """How long each call took, [rank, call], on a rank's own clock: no clock is compared with another."""
    begin_ns, end_ns = trace.stamps[:, first:stop, BEGIN], trace.stamps[:, first:stop, END]
    if (begin_ns == ABSENT).any() or (end_ns == ABSENT).any():
        raise TraceError(f"{trace.run_id}: ranks lack steps among {first} to {stop - 1}")
    calls_ns: npt.NDArray[np.int64] = end_ns - begin_ns
    return calls_ns


def _fastest_two(calls_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Half of each rank's fastest two calls in a row, [rank]; its only call where there is but one."""
    two_ns = calls_ns[:, 1:] + calls_ns[:, :-1] if calls_ns.shape[1] > 1 else 2 * calls_ns
    half_ns: npt.NDArray[np.float64] = two_ns.min(axis=1) / 2
    return half_ns


def _time(trace: Trace, described: dict[str, Any], first: int, stop: int) -> CollectiveTime:
    calls_ns = _calls_ns(trace, first, stop)
    each_ns = calls_ns.mean(axis=1)
    try:
        return CollectiveTime(
            operation=str(described["operation"]), bytes=int(described["bytes"]), count=int(described["count"]),
            dtype=str(described["dtype"]), in_place=bool(described["in_place"]), iterations=stop - first,
            time_ns=float(each_ns.mean()), slowest_ns=float(each_ns.max()),
            median_ns=float(np.median(calls_ns.mean(axis=0))), factor=float(described["factor"]),
            wrong=int(described["wrong"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{trace.run_id}: a collective is described as {described!r} ({error!r})") from None


def table(trace: Trace, width: int = PIPE_WIDTH) -> str:
    """The table that nccl-tests prints, one for each operation, in lines of `width` characters. Raises TraceError as
    collective_times."""
    run, backend = trace.run, trace.environment.get("backend", {})
    head = (
        f"{run.backend} by {backend.get('transport')} on {run.nodes} nodes x {run.ranks_per_node} ranks, "
        f"{'GPUs' if run.gpus_per_node else 'CPUs'}"
    )
    parts = ["\n".join(_comment(head, width))]
    for operation, rows in groupby(collective_times(trace), lambda row: row.operation):
        parts.append(_part(operation, tuple(rows), width))
    parts += [_pairs_part(rows, width) for rows in _by_size(pair_times(trace))]
    return "\n\n".join(parts) + "\n"


def _part(operation: str, rows: Sequence[CollectiveTime], width: int) -> str:
    first = rows[0]
    head = (
        f"{operation}, {'in place' if first.in_place else 'out of place'}, {first.dtype}: mean of {first.iterations} "
        f"calls back to back; busbw = algbw x {first.factor:g}"
    )
    cells = [
        (
            str(row.bytes), str(row.count), f"{row.time_ns / 1e3:.2f}", f"{row.slowest_ns / 1e3:.2f}",
            f"{row.algorithm_bandwidth:.3f}", f"{row.bus_bandwidth:.3f}", str(row.wrong),
        )
        for row in rows
    ]  # fmt: skip
    return "\n".join([*_comment(head, width), *_in_columns(_COLUMNS, cells, width)])


def _comment(text: str, width: int) -> list[str]:
    return [f"# {line}" for line in filled(text, width - 2)]


def _in_columns(heads: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The heads as comments, and the rows; where columns are too wide even without needless blanks, in several tables
    below one another that each begin with the first column."""
    table = [[name for name, _ in heads], [f"({unit})" if unit else "" for _, unit in heads], *rows]
    narrow, longest = width // len(heads), max(len(cell) for row in table for cell in row)
    cell = min(_CELL, narrow) if narrow > longest else _CELL
    per_table = max(1, width // cell - 1)
    lines: list[str] = []
    for first in range(1, len(heads), per_table):
        parts = [
            "".join(f"{text:>{cell}}" for text in (row[0], *row[first : first + per_table])).rstrip() for row in table
        ]
        lines += [*([""] if lines else []), *(f"#{head[1:]}" for head in parts[:2]), *parts[2:]]
    return lines


def _by_size(pairs: Sequence[PairTime]) -> list[list[PairTime]]:
    """The pairs of each size, the slowest first."""
    sizes = sorted({pair.bytes for pair in pairs})
    return [sorted((p for p in pairs if p.bytes == size), key=lambda p: (-p.time_ns, p.nodes)) for size in sizes]


def _pairs_part(rows: Sequence[PairTime], width: int) -> str:
    """The slowest pairs, and the fastest one."""
    count = len(rows)
    shown = [*rows] if count <= PAIRS_SHOWN + 1 else [*rows[:PAIRS_SHOWN], rows[-1]]
    some = "" if len(shown) == count else f", the slowest {PAIRS_SHOWN} of {count} and the fastest"
    head = f"pairs of nodes, {rows[0].bytes} bytes each way at once: median call{some}"
    cells = [(f"{row.nodes[0]}-{row.nodes[1]}", f"{row.time_ns / 1e3:.2f}", f"{row.bandwidth:.3f}") for row in shown]
    return "\n".join([*_comment(head, width), *_in_columns(_PAIR_COLUMNS, cells, width)])
