"""The collectives that a run of them calls, their sizes, and their bandwidths, in the conventions of nccl-tests.

Its doc/PERFORMANCE.md has the bandwidths: https://github.com/NVIDIA/nccl-tests
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.model.options import Option, OptionError, read_options
from hpc.model.spec import COLLECTIVES, MIN_WARMUP_STEPS, RunSpec
from hpc.model.timestamps import ABSENT, BEGIN, END
from hpc.model.trace import Trace, TraceError
from hpc.system.command_line import PIPE_WIDTH
from hpc.system.text import filled

OPERATIONS = ("all-reduce", "reduce-scatter", "all-gather", "broadcast")
ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST = OPERATIONS
PAIRS = "pairs"
"""Every pair of nodes exchanges messages, in turns in which each node has one partner at most."""
MAX_PAIR_BYTES = 2**24
"""The largest message of a pair: more only takes longer, and there are twice as many turns as nodes."""
DTYPE, ELEMENT_BYTES = "float32", 4
COMMUNICATION_OPTIONS = ("collective", "cycle_time_ms")
"""Options of backends that change the time of a collective: a training is compared with a run with equal ones."""
OPTIONS: Mapping[str, Option] = {
    "operations": Option(default="+".join((*OPERATIONS, PAIRS)), help="collectives, joined by +"),
    "min_bytes": Option(default="1K", help="smallest message, in bytes; K, M, G are powers of 1024"),
    "max_bytes": Option(default="256M", help="largest message", small="16M"),
    "factor": Option(
        default=4, help="each message is so many times as large as the one before, and the last is the largest"
    ),
    "iterations": Option(default=20, maximum=1_000_000, help="calls back to back whose mean is the time"),
}

_SHARED = (REDUCE_SCATTER, ALL_GATHER)
_SHARE_ELEMENTS = 4  # a rank's share is a multiple of 16 bytes, as in nccl-tests
_LARGEST_BYTES = 2**40
"""More than any device holds."""
_BYTES = re.compile(r"([0-9]{1,15})(?:([KMG])(?:iB)?)?")
_UNITS = {None: 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One operation at one size. `given` and `got` are the elements that every rank gives and gets (in a broadcast only
    the root gives any). `turn` is that of the pairs, None for other operations."""

    operation: str
    given: int
    got: int
    turn: int | None = None

    @property
    def bytes(self) -> int:
        """The size of the larger of a rank's two buffers."""
        return max(self.given, self.got) * ELEMENT_BYTES

    @property
    def count(self) -> int:
        """Elements; those of one rank's share in a reduce-scatter and an all-gather."""
        return min(self.given, self.got)


def bus_factor(operation: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth; the former does not depend on the number of ranks."""
    shares = {ALL_REDUCE: 2 * (ranks - 1), REDUCE_SCATTER: ranks - 1, ALL_GATHER: ranks - 1, BROADCAST: ranks}
    shares[PAIRS] = ranks
    return shares[operation] / ranks


def collectives(operations: Sequence[str], sizes: Sequence[int], ranks: int) -> tuple[Collective, ...]:
    """Every operation at every size in bytes, without duplicates.

    A size that does not divide by the ranks is rounded down; no share is smaller than 16 bytes.
    """
    plan = []
    for operation in operations:
        for size in sizes:
            share = max(1, size // (ELEMENT_BYTES * ranks * _SHARE_ELEMENTS)) * _SHARE_ELEMENTS
            whole = share * ranks if operation in _SHARED else max(1, size // ELEMENT_BYTES)
            plan.append(
                Collective(
                    operation=operation,
                    given=share if operation == ALL_GATHER else whole,
                    got=share if operation == REDUCE_SCATTER else whole,
                )
            )
    return tuple(dict.fromkeys(plan))


def turns(nodes: int) -> int:
    """In so many turns every pair of nodes meets once, as in a tournament."""
    return nodes - 1 + nodes % 2


def partner(node: int, turn: int, nodes: int) -> int | None:
    """The node that a node exchanges messages with in a turn; None where an odd number of nodes leaves it alone."""
    count = turns(nodes)
    if node == count:  # of an even number, the last one: it meets whom the others would leave alone
        return turn * (count + 1) // 2 % count
    other = (turn - node) % count
    if other == node:
        return count if count < nodes else None
    return other


def partner_rank(run: RunSpec, rank: int, turn: int) -> int | None:
    """The rank with the same place on the partner node; None where this node has none. Ranks lie in blocks."""
    node = partner(rank // run.ranks_per_node, turn, run.nodes)
    return None if node is None else node * run.ranks_per_node + rank % run.ranks_per_node


def plan_of(run: RunSpec) -> tuple[Collective, ...]:
    """The collectives that a run calls, one for each of its blocks. Raises OptionError on options that make none."""
    options = read_options(OPTIONS, {name: text for name, text in run.options.items() if name in OPTIONS})
    return _planned(options, run)


def collectives_run(ranks: RunSpec, operations: Sequence[str], requested: Mapping[str, str]) -> RunSpec:
    """The run that calls only the collectives, on the same ranks as `ranks`; `requested` are options of OPTIONS.

    Raises OptionError where a size is malformed or the backend lacks an operation.
    """
    requested = {"operations": "+".join(operations), **requested}
    options = read_options(OPTIONS, requested)
    chosen = str(options["operations"]).split("+")
    if ranks.nodes == 1 and PAIRS in chosen:
        chosen.remove(PAIRS)
        if not chosen:
            raise OptionError(f"operations: {PAIRS} alone was requested of one node; it takes two")
        requested["operations"] = options["operations"] = "+".join(chosen)
    if missing := [operation for operation in chosen if operation not in operations]:
        raise OptionError(
            f"operations: {', '.join(missing)} was requested; {ranks.backend} has {', '.join(operations)} on "
            f"{'GPUs' if ranks.gpus_per_node else 'CPUs'}"
        )
    iterations = int(options["iterations"])
    if iterations < 1:
        raise OptionError(f"iterations is {iterations}; it must be at least 1")
    communication = {name: text for name, text in ranks.options.items() if name in COMMUNICATION_OPTIONS}
    return dataclasses.replace(
        ranks, workload=COLLECTIVES, batch_size=1, precision="fp32", scaling="weak", data="synthetic", data_cache="off",
        epochs=0, target_accuracy=0.0, eval_every=1, timing="phases", reduction="on", telemetry="off", code_digest="",
        seed=0, repeat=1, warmup_steps=MIN_WARMUP_STEPS,
        measured_steps=iterations * len(_planned(options, ranks)), block_steps=iterations,
        options={**communication, **requested},
    )  # fmt: skip


def collectives_beside(
    trainings: Iterable[RunSpec], requested: Sequence[Mapping[str, str]], operations: Mapping[str, tuple[str, ...]]
) -> Iterator[RunSpec]:
    """The collectives runs of each training on several ranks, one for each of `requested`; duplicates are not removed.

    `operations` has those of each backend. Raises OptionError as collectives_run.
    """
    for training in trainings:
        if training.ranks > 1 and training.backend in operations:
            for options in requested:
                if training.nodes == 1 and options.get("operations") == PAIRS:
                    continue
                yield collectives_run(training, operations[training.backend], options)


def _planned(options: Mapping[str, object], run: RunSpec) -> tuple[Collective, ...]:
    smallest, largest = (_bytes_of(name, str(options[name])) for name in ("min_bytes", "max_bytes"))
    factor = int(str(options["factor"]))
    if factor < 2:
        raise OptionError(f"factor is {factor}; it must be at least 2")
    if largest > _LARGEST_BYTES:
        raise OptionError(f"max_bytes {options['max_bytes']} was requested; it must be at most {_LARGEST_BYTES >> 30}G")
    if not ELEMENT_BYTES <= smallest <= largest:
        raise OptionError(
            f"sizes from min_bytes {options['min_bytes']} to max_bytes {options['max_bytes']} were requested; the "
            f"first must be at least {ELEMENT_BYTES} bytes and not larger than the second"
        )
    sizes = []
    while smallest < largest:
        sizes.append(smallest)
        smallest *= factor
    sizes.append(largest)
    operations = str(options["operations"]).split("+")
    planned = collectives([operation for operation in operations if operation != PAIRS], sizes, run.ranks)
    return (*planned, *_pairs(sizes, run.nodes)) if PAIRS in operations else planned


def _pairs(sizes: Sequence[int], nodes: int) -> Iterator[Collective]:
    """Every turn with the smallest size, then with the largest: for latency and for bandwidth."""
    for size in dict.fromkeys((sizes[0], max(sizes[0], min(sizes[-1], MAX_PAIR_BYTES)))):
        elements = max(1, size // ELEMENT_BYTES)
        for turn in range(turns(nodes)):
            yield Collective(operation=PAIRS, given=elements, got=elements, turn=turn)


def _bytes_of(name: str, text: str) -> int:
    match = _BYTES.fullmatch(text)
    if not match:
        raise OptionError(f"option {name}: {text!r} is no number of bytes, as 4096, 64K, 16M, 1G")
    return int(match[1]) * _UNITS[match[2]]


# The times of a trace's collectives and their table, in the conventions of nccl-tests.

_COLUMNS = (
    ("size", "B"), ("count", "elements"), ("time", "us"), ("slowest", "us"), ("algbw", "GB/s"), ("busbw", "GB/s"),
    ("#wrong", ""),
)  # fmt: skip
_PAIR_COLUMNS = (("nodes", ""), ("time", "us"), ("bandwidth", "GB/s"))
_CELL = 12
"""Width of a column."""
PAIRS_SHOWN = 20
"""So many pairs stand in the table, beside the fastest."""


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
