"""The times of a trace's collectives and their table, in the conventions of nccl-tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from hpc.model.spec import COLLECTIVES
from hpc.model.timestamps import ABSENT, BEGIN, END
from hpc.model.trace import Trace, TraceError

_COLUMNS = (
    ("size", "B"), ("count", "elements"), ("time", "us"), ("slowest", "us"), ("algbw", "GB/s"), ("busbw", "GB/s"),
    ("#wrong", ""),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CollectiveTime:
    """One operation at one size. `time_ns` is the mean of `iterations` calls back to back, over all ranks; `slowest_ns`
    is that mean on the rank where it is largest. `wrong` is the number of wrong elements of the checked call."""

    operation: str
    bytes: int
    count: int
    dtype: str
    in_place: bool
    iterations: int
    time_ns: float
    slowest_ns: float
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


def collective_times(trace: Trace) -> tuple[CollectiveTime, ...]:
    """Every collective of the trace, in the order of its blocks. Raises TraceError where it has none, or not all."""
    if trace.run.diagnostic != COLLECTIVES:
        raise TraceError(f"{trace.run_id} is a run of {trace.run.workload}, not of {COLLECTIVES}")
    described = trace.environment.get("backend", {}).get("collectives", [])
    if len(described) != len(trace.blocks):
        raise TraceError(f"{trace.run_id} describes {len(described)} collectives for {len(trace.blocks)} blocks")
    return tuple(
        _time(trace, description, int(first), int(stop))
        for description, (first, stop) in zip(described, trace.blocks, strict=True)
    )


def _time(trace: Trace, described: dict[str, Any], first: int, stop: int) -> CollectiveTime:
    begin_ns, end_ns = trace.stamps[:, first, BEGIN], trace.stamps[:, stop - 1, END]
    if (begin_ns == ABSENT).any() or (end_ns == ABSENT).any():
        raise TraceError(f"{trace.run_id}: ranks lack steps among {first} to {stop - 1}")
    each_ns = (end_ns - begin_ns) / (stop - first)  # on a rank's own clock: no clock is compared with another
    try:
        return CollectiveTime(
            operation=str(described["operation"]), bytes=int(described["bytes"]), count=int(described["count"]),
            dtype=str(described["dtype"]), in_place=bool(described["in_place"]), iterations=stop - first,
            time_ns=float(each_ns.mean()), slowest_ns=float(each_ns.max()), factor=float(described["factor"]),
            wrong=int(described["wrong"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{trace.run_id}: a collective is described as {described!r} ({error!r})") from None


def table(trace: Trace) -> str:
    """The table that nccl-tests prints, one for each operation. Raises TraceError as collective_times."""
    run, backend = trace.run, trace.environment.get("backend", {})
    head = (
        f"# {run.backend} by {backend.get('transport')} on {run.nodes} nodes x {run.ranks_per_node} ranks, "
        f"{'GPUs' if run.gpus_per_node else 'CPUs'}"
    )
    parts = [head]
    for operation, rows in groupby(collective_times(trace), lambda row: row.operation):
        parts.append(_part(operation, tuple(rows)))
    return "\n\n".join(parts) + "\n"


def _part(operation: str, rows: Sequence[CollectiveTime]) -> str:
    first = rows[0]
    lines = [
        f"# {operation}, {'in place' if first.in_place else 'out of place'}, {first.dtype}: mean of {first.iterations} "
        f"calls back to back; busbw = algbw x {first.factor:g}",
        "#" + "".join(f"{name:>12}" for name, _ in _COLUMNS)[1:],
        "#" + "".join(f"{f'({unit})' if unit else '':>12}" for _, unit in _COLUMNS)[1:],
    ]
    for row in rows:
        cells = (
            str(row.bytes), str(row.count), f"{row.time_ns / 1e3:.2f}", f"{row.slowest_ns / 1e3:.2f}",
            f"{row.algorithm_bandwidth:.3f}", f"{row.bus_bandwidth:.3f}", str(row.wrong),
        )  # fmt: skip
        lines.append("".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)
