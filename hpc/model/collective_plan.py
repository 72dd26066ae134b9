"""The collectives that a run of them calls, their sizes, and their bandwidths, in the conventions of nccl-tests.

Its doc/PERFORMANCE.md has the bandwidths: https://github.com/NVIDIA/nccl-tests
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpc.model.options import Option, OptionError, read_options
from hpc.model.spec import COLLECTIVES, MIN_WARMUP_STEPS, RunSpec

OPERATIONS = ("all-reduce", "reduce-scatter", "all-gather", "broadcast")
ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST = OPERATIONS
PAIRS = "pairs"
"""Every pair of nodes exchanges messages, in turns in which each node has one partner at most."""
MAX_PAIR_BYTES = 2**24
"""The largest message of a pair: more only takes longer, and there are twice as many turns as nodes."""
DTYPE, ELEMENT_BYTES = "float32", 4
_OF_RANKS = (
    "nodes", "ranks_per_node", "gpus_per_node", "cpus_per_rank", "backend", "placement", "site", "container", "env",
    "job_options", "by_nodes",
)  # fmt: skip
"""Settings of ranks; the others of a run are of what it trains."""
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
    """The rank with the same place on the partner node; None where this node has none. Ranks are in blocks."""
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
    return RunSpec(
        **{name: getattr(ranks, name) for name in _OF_RANKS}, workload=COLLECTIVES, batch_size=1, precision="fp32",
        scaling="weak", telemetry="off", seed=0, repeat=1, warmup_steps=MIN_WARMUP_STEPS,
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
