"""What happened when, in one process of an unchanged training script: records of 16 bytes in a memory-mapped file.

A file is 64 KiB of header and texts, then records of two int64: nanoseconds of CLOCK_MONOTONIC
(`time.perf_counter_ns`), and kind + which × 2^8 + number × 2^24. Only its own process writes it, in place: what has
been written stays after any death of the process, and another process may read meanwhile. Standard library alone.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

KINDS = (
    "nothing",  # a record that was begun and not completed
    "iterate_in", "iterate_out",  # iter(loader); which: the loader
    "fetch_in", "fetch_out", "fetch_end",  # next(loader); which: the loader; number: samples, 0 if not known; exhausted
    "forward_in", "evaluate_in", "evaluate_out",  # of the model: with gradients, without
    "armed",  # DDP will reduce in a backward; which: the model, 0 before it is known; number: its bytes
    "backward_in", "gradient", "backward_out",  # gradient: that of the parameter which comes last; which: DDP's model
    "update_in", "update_out",  # Optimizer.step; which: the optimizer; number: UNSEEN, or 0
    "scaler_in", "scaler_out",  # GradScaler.step; which: the optimizer, 0 where the scaler is switched off
    "save_in", "save_out",  # torch.save
    "collective_in", "collective_wait", "collective_out",  # which: its name; number: bytes; else the record of its call
    "step_end",  # step() of the script
    "replay", "replay_out",  # of a CUDA graph, by the script itself: outside of a backward, with gradients
    "sync_in",  # the script waits for the device: Tensor.item() and the like
    "device_time",  # of the event at the place `number`; ns: of the device's own clock; which: 1 on another stream
    "device_seen",  # the device times since the last of these were there, when the host's clock showed ns
    "device_anchor",  # number: how much later than ns the device had been there; which: launch latency, 0.1 µs, if seen
    "device_at",  # of an anchor; ns: of the device's own clock
    "awake",  # number: µs that the thread that trains has been on a core, or ready for one, so far
    "garbage",  # a collection of Python's garbage has ended; which: its generation; number: how long it took, ns
    "written",  # a checkpoint has been written while the script went on; number: how long it went on meanwhile, µs
    "read_aside",  # a thread beside the one that trains has a batch; which, number: as of fetch_out
    "device_raw",  # of an anchor; ns: of CLOCK_MONOTONIC_RAW when the host's clock showed that of the anchor
)  # fmt: skip
"""Names of the kinds, by number."""
(
    NOTHING, ITERATE_IN, ITERATE_OUT, FETCH_IN, FETCH_OUT, FETCH_END, FORWARD_IN, EVALUATE_IN, EVALUATE_OUT, ARMED,
    BACKWARD_IN, GRADIENT, BACKWARD_OUT, UPDATE_IN, UPDATE_OUT, SCALER_IN, SCALER_OUT, SAVE_IN, SAVE_OUT,
    COLLECTIVE_IN, COLLECTIVE_WAIT, COLLECTIVE_OUT, STEP_END, REPLAY, REPLAY_OUT, SYNC_IN,
    DEVICE_TIME, DEVICE_SEEN, DEVICE_ANCHOR, DEVICE_AT, AWAKE, GARBAGE, WRITTEN, READ_ASIDE, DEVICE_RAW,
) = range(len(KINDS))  # fmt: skip

MARKED = frozenset((
    ITERATE_IN, FETCH_IN, FORWARD_IN, BACKWARD_IN, GRADIENT, BACKWARD_OUT, UPDATE_IN, UPDATE_OUT, SCALER_OUT,
    COLLECTIVE_IN, COLLECTIVE_WAIT, COLLECTIVE_OUT, STEP_END, REPLAY, REPLAY_OUT, SYNC_IN,
))  # fmt: skip
"""Kinds of which the device, too, notes when it got there."""
_OF_DEVICE = frozenset((DEVICE_TIME, DEVICE_SEEN, DEVICE_ANCHOR, DEVICE_AT, DEVICE_RAW))

_OF_RECORDS = frozenset((COLLECTIVE_WAIT, COLLECTIVE_OUT, DEVICE_TIME))
"""Kinds whose number is the place of another record."""
APART = (AWAKE, GARBAGE, WRITTEN, READ_ASIDE)
"""Kinds that have no place among what the thread that trains does."""

NO_ROOT, UNCLEAR = -1, -2
"""Root of a collective in which every rank waits for all others; of one in which it is not known who waits for whom:
one receives, or which ranks take part is not known."""
UNSEEN = 2
"""Number of an update that no hook saw (a compiled one): what it has changed shows at the next fetch or forward."""
ENDING = "ending_ns"
"""The fact that a script has come to its end, by itself or by an exception: when (perf_counter_ns)."""
FURTHER = "a collective of a further name or group"
"""What is called in a process that has called in so many groups that its file has no room for another."""
CAPACITY, PARTS, ENOUGH_STEPS = 1 << 20, 4, 128
"""Records of a file, 16 MiB; up to so many times as many, until it has that many steps. Then it is full: steps are
counted and not recorded."""
WHICH_BITS, NUMBER_BITS = 16, 39
_MAGIC = int.from_bytes(b"RWEVENT1", "little")
_HEADER_BYTES, _RECORD_BYTES, _TEXT_AT, _TEXT_STOP = 1 << 16, 16, 64, 1 << 16
MAX_NAMES = (1 << WHICH_BITS) - 1
"""The maximum of names of collectives, beside FURTHER."""
_FOR_FACTS = 1 << 14
"""Bytes of the texts that names and groups leave to facts."""
_MAX_RANKS = 1 << 20
_SPELLED = 4
"""Ranks of a group up to which they are written one by one, whatever they are."""
_MAGIC_CELL, _TEXT_BYTES_CELL, _PROCESS_CELL, STEPS_CELL, _OVERFLOW_CELL = range(5)
"""The last is that of a record, too: all that a full file has no room for is stored there, one over the other."""
FIRST_CELL = _HEADER_BYTES // 8
_RESERVED_AT_FIRST, _RECORDS_AT_ONCE = 1 << 15, 1 << 13


class HookEvent(NamedTuple):
    """One record. `number` of the end of a collective is the place of the record of its call."""

    ns: int
    kind: int
    which: int = 0
    number: int = 0
    device_ns: int | None = None
    """When the device of the process got here, on the host's clock; None where it did not note that."""

    @property
    def done_ns(self) -> int:
        """When it was done: on the device, where that noted it."""
        return self.ns if self.device_ns is None else self.device_ns


class GroupRecord(NamedTuple):
    """The ranks of a group, in its order (of a message: sender, receiver); its dimension; the tag of a message."""

    ranks: tuple[int, ...]
    dimension: str = ""
    tag: int = 0


class CollectiveName(NamedTuple):
    """A collective, or a message: its name, the rank of the world that sends (or NO_ROOT, UNCLEAR), its group, None for
    all ranks."""

    name: str
    root: int
    group: GroupRecord | None = None


class ProcessEvents(NamedTuple):
    """What a process recorded: its events, in the order of their places, and its facts.

    A record that was begun and not completed is an event of kind NOTHING, as is one of the device, or of a kind APART:
    `device` has these, and `apart` by kind, in their order. `names` has the collectives, by `which`.
    """

    process: int
    events: Sequence[HookEvent]
    facts: Mapping[str, Any]
    names: Sequence[CollectiveName]
    device: Sequence[HookEvent] = ()
    apart: Mapping[int, Sequence[HookEvent]] = MappingProxyType({})


class EventFileError(ValueError):
    """A file is no file of events; the text names it."""


class Recorder:
    """Writes the events of this process. Raises OSError where there is no room for its file.

    `cells` is the file as int64, `place` returns the cell of the next record, until `make_room` replaces it. Where the
    file is full that is a cell of which nothing is read.
    """

    def __init__(self, folder: str, capacity: int = CAPACITY) -> None:
        # A process that replaces itself keeps its number.
        self.path = Path(folder) / f"{os.getpid()}.{time.perf_counter_ns()}.events"
        self._capacity = capacity
        with self.path.open("xb+") as file:
            # A store into a page that the file system has no room for would kill the process.
            os.posix_fallocate(file.fileno(), 0, _HEADER_BYTES + min(capacity, _RESERVED_AT_FIRST) * _RECORD_BYTES)
            file.truncate(self._bytes(PARTS))
            self._map = mmap.mmap(file.fileno(), self._bytes(PARTS))
        self.cells = memoryview(self._map).cast("q")
        self.cells[_PROCESS_CELL] = os.getpid()
        self.cells[_MAGIC_CELL] = _MAGIC
        self._parts: list[Any] = []  # iterators over cells
        self._add_part()
        self._names: dict[CollectiveName, int] = {}
        self._groups: dict[GroupRecord, int] = {}

    def _bytes(self, parts: int) -> int:
        return _HEADER_BYTES + parts * self._capacity * _RECORD_BYTES

    def _add_part(self) -> None:
        begin = FIRST_CELL + 2 * self._capacity * len(self._parts)
        self._parts.append(iter(range(begin, begin + 2 * self._capacity, 2)))
        self.place: Callable[[], int] = itertools.chain(*self._parts, itertools.repeat(_OVERFLOW_CELL)).__next__

    def reserve(self) -> None:
        """Room for all records so far: this process trains. Raises OSError where there is none."""
        with self.path.open("rb+") as file:
            os.posix_fallocate(file.fileno(), 0, self._bytes(len(self._parts)))

    def make_room(self, steps: int) -> bool:
        """Called after each step: room for two further ones like these, if they are not yet enough; whether there is
        any. Raises OSError where the file system has none."""
        remaining: int = sum(part.__length_hint__() for part in self._parts)
        used = len(self._parts) * self._capacity - remaining
        if remaining * steps < 2 * used and 0 < steps < ENOUGH_STEPS and remaining and len(self._parts) < PARTS:
            with self.path.open("rb+") as file:
                os.posix_fallocate(file.fileno(), 0, self._bytes(len(self._parts) + 1))
            self._add_part()
        return remaining > 0

    def note(self, ns: int, kind: int, which: int = 0, number: int = 0) -> int:
        """Writes one event; returns the place of its record."""
        at = self.place()
        self.cells[at + 1] = kind | which << 8 | number << 24
        self.cells[at] = ns
        return (at - FIRST_CELL) // 2

    def name(self, name: str, root: int = NO_ROOT, group: GroupRecord | None = None) -> int:
        """The `which` of a collective; that of FURTHER where there is no room for its name or group."""
        key = CollectiveName(name, root, group)
        which = self._names.get(key)
        if which is not None:
            return which
        room = len(self._names) < MAX_NAMES and self.cells[_TEXT_BYTES_CELL] < _TEXT_STOP - _TEXT_AT - _FOR_FACTS
        if room and group is not None and group not in self._groups:
            room = self._describe(group)
        if not room and name != FURTHER:
            return self.name(FURTHER, UNCLEAR)
        which = self._names[key] = len(self._names)
        entry: list[Any] = [name, root] if group is None else [name, root, self._groups[group]]
        self._write({"collective": entry})
        return which

    def _describe(self, group: GroupRecord) -> bool:
        """Writes the group; returns whether there was room for it."""
        entry = {"group": [spelled_ranks(group.ranks), group.dimension, group.tag]}
        room = self.cells[_TEXT_BYTES_CELL] + len(json.dumps(entry)) < _TEXT_STOP - _TEXT_AT - _FOR_FACTS
        if room:
            self._groups[group] = len(self._groups)
            self._write(entry)
        return room

    def state(self, **facts: Any) -> None:
        """Keeps facts beside the events; a later value replaces an earlier one."""
        self._write({"facts": facts})

    def _write(self, entry: dict[str, Any]) -> None:
        line, begin = json.dumps(entry).encode() + b"\n", _TEXT_AT + self.cells[_TEXT_BYTES_CELL]
        if begin + len(line) > _TEXT_STOP:
            raise OverflowError(f"the texts of {self.path.name} take more than {_TEXT_STOP - _TEXT_AT} bytes")
        self._map[begin : begin + len(line)] = line
        self.cells[_TEXT_BYTES_CELL] = begin + len(line) - _TEXT_AT


def cell_of(place: int) -> int:
    """The cell of a record, as `Recorder.place` returned it."""
    return FIRST_CELL + 2 * place


def place_of(cell: int) -> int:
    """The place of a record, from what `Recorder.place` returned."""
    return (cell - FIRST_CELL) // 2


def read_events(path: Path, first: int = 0) -> ProcessEvents:
    """All that is in a file by now from the record at this place on, from which its places are counted. Raises
    EventFileError, OSError."""
    events: list[HookEvent] = []
    with path.open("rb") as file:
        if int.from_bytes(file.read(8), "little") != _MAGIC:
            raise EventFileError(f"{path} is no file of events")
        file.seek(_HEADER_BYTES + first * _RECORD_BYTES)
        for begin in itertools.count(0, _RECORDS_AT_ONCE):
            block = file.read(_RECORD_BYTES * _RECORDS_AT_ONCE)
            block = block[: len(block) // _RECORD_BYTES * _RECORD_BYTES].rstrip(b"\0")
            if not block:
                break
            events += [HookEvent(0, NOTHING)] * (begin - len(events))
            cells = memoryview(block + bytes(-len(block) % _RECORD_BYTES)).cast("q").tolist()
            events += [
                HookEvent(ns, code & 0xFF, code >> 8 & 0xFFFF, code >> 24) if ns and code else HookEvent(0, NOTHING)
                for ns, code in zip(cells[0::2], cells[1::2], strict=True)
            ]
        file.seek(0)
        header = file.read(_HEADER_BYTES)  # last, so that it has the name of every collective above
    if first:
        events = [
            event._replace(number=event.number - first) if event.kind in _OF_RECORDS else event for event in events
        ]
    device = [event for event in events if event.kind in _OF_DEVICE]
    apart = {kind: its for kind in APART if (its := [event for event in events if event.kind == kind])}
    if device or apart:
        others = _OF_DEVICE | apart.keys()
        events = [HookEvent(0, NOTHING) if event.kind in others else event for event in events]
    while events and events[-1].kind == NOTHING:
        events.pop()
    facts, names = _texts(path, header)
    if any(header[8 * _OVERFLOW_CELL : 8 * _OVERFLOW_CELL + _RECORD_BYTES]):
        facts["full"] = True
    if any(event.kind == COLLECTIVE_IN and event.which >= len(names) for event in events):
        raise EventFileError(f"{path} has collectives without a name")
    process = int.from_bytes(header[8 * _PROCESS_CELL : 8 * _PROCESS_CELL + 8], "little")
    return ProcessEvents(process=process, events=events, facts=facts, names=names, device=device, apart=apart)


def _texts(path: Path, header: bytes) -> tuple[dict[str, Any], list[CollectiveName]]:
    """Facts and names of a file. Raises EventFileError."""
    facts: dict[str, Any] = {}
    names: list[CollectiveName] = []
    groups: list[GroupRecord] = []
    size = int.from_bytes(header[8 * _TEXT_BYTES_CELL : 8 * _TEXT_BYTES_CELL + 8], "little")
    try:
        for line in header[_TEXT_AT : min(_TEXT_AT + size, _TEXT_STOP)].decode().splitlines():
            entry = json.loads(line)
            facts.update(entry.get("facts", {}))
            if "group" in entry:
                spelled, dimension, tag = entry["group"]
                groups.append(GroupRecord(read_ranks(spelled), str(dimension), int(tag)))
            if "collective" in entry:
                name, root, *group = entry["collective"]
                names.append(CollectiveName(str(name), int(root), groups[int(group[0])] if group else None))
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise EventFileError(f"the texts in {path} cannot be read: {error}") from None
    return facts, names


def spelled_ranks(ranks: Sequence[int]) -> Any:
    """Ranks in little room, as `read_ranks` reads them."""
    steps = {later - earlier for earlier, later in pairwise(ranks)}
    if len(ranks) > _SPELLED and len(steps) == 1:
        return {"first": ranks[0], "step": steps.pop(), "count": len(ranks)}
    return list(ranks)


def read_ranks(spelled: Any) -> tuple[int, ...]:
    """The ranks of `spelled_ranks`. Raises ValueError, KeyError, TypeError."""
    if isinstance(spelled, dict):
        first, step, count = (int(spelled[name]) for name in ("first", "step", "count"))
        if not 0 < count <= _MAX_RANKS:
            raise ValueError(f"a group of {count} ranks")
        return tuple(first + step * at for at in range(count))
    return tuple(map(int, spelled))


def read_facts(path: Path) -> dict[str, Any]:
    """The facts in a file, without its events. Raises EventFileError, OSError."""
    with path.open("rb") as file:
        return _texts(path, file.read(_HEADER_BYTES))[0]


def steps_counted(path: Path) -> int:
    """How many updates of optimizers the process has gone on from, by its own count; while it runs. Raises OSError."""
    with path.open("rb") as file:
        file.seek(8 * STEPS_CELL)
        return int.from_bytes(file.read(8), "little")


# What torch's collectives are called in a trace, by the names of the methods of a process group.

BUFFERS = "broadcast of buffers"
"""DDP's, from rank 0 before a forward."""
OF_GRADIENTS = "all-reduce of gradients"
"""DDP's, in a backward; in a step's last one it is no collective of the step but its time stamps."""
MESSAGE, MESSAGES = "message", "messages"
"""What one rank sends to another; the dimension of those in a process group that has no name."""
REPLICAS, STAGES = "dp", "pp"
"""Where nobody named them, the dimensions of ranks between which DDP reduces, and of messages between the stages of a
pipeline."""
FROM_ANY = "message from any rank"
"""One that a rank waits for, as long as it is not known who sends it."""
NAMES = {
    "allreduce": "all-reduce", "allreduce_coalesced": "all-reduce", "allgather": "all-gather",
    "allgather_coalesced": "all-gather", "_allgather_base": "all-gather", "all_gather_single": "all-gather",
    "allgather_into_tensor_coalesced": "all-gather", "all_gather_single_coalesced": "all-gather",
    "reduce_scatter": "reduce-scatter", "_reduce_scatter_base": "reduce-scatter",
    "reduce_scatter_single": "reduce-scatter", "reduce_scatter_tensor_coalesced": "reduce-scatter",
    "reduce_scatter_single_coalesced": "reduce-scatter", "broadcast": "broadcast", "reduce": "reduce",
    "gather": "gather", "scatter": "scatter", "alltoall": "all-to-all", "alltoall_base": "all-to-all",
    "all_to_all_single": "all-to-all", "barrier": "barrier",
    "monitored_barrier": "barrier",
}  # fmt: skip
"""By the names that methods of a process group have in this torch or another."""
NEWER = {
    "_allgather_base": "all_gather_single", "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "_reduce_scatter_base": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced", "alltoall_base": "all_to_all_single",
}  # fmt: skip
"""The later name of a process group's method by its first one: a torch has one or both."""


class BatchRole(StrEnum):
    """What the ranks of a group have in common: the same batch, of which each computes a part; nothing, as each reads
    its own; or it is not known."""

    MODEL = "model"
    DATA = "data"
    UNKNOWN = "unknown"
    NONE = ""


_OF_MODEL = {"tp", "pp", "cp", "sp", "mp", "tensor", "pipe", "pipeline", "stage", "stages", "context", "sequence",
             "seq", "ulysses", "ring", "model"}  # fmt: skip
_OF_DATA = {"dp", "ddp", "fsdp", "hsdp", "ep", "edp", "data", "replicate", "replica", "shard", "expert", "experts",
            "batch"}  # fmt: skip


def role_of(dimension: str) -> BatchRole:
    """By the words of its name; NONE where it has none of either kind, or of both (`dp_shard_cp`).

    Experts are spread over ranks that read batches of their own.
    """
    words = {*re.split(r"[^a-z]+", dimension.lower())}
    of_data, of_model = words & _OF_DATA, words & _OF_MODEL
    if of_data & {"ep", "expert", "experts"}:
        of_model -= {"model"}
    if of_data and of_model:
        return BatchRole.NONE
    return BatchRole.DATA if of_data else BatchRole.MODEL if of_model else BatchRole.NONE


FROM_ONE, TO_ONE = ("broadcast", "scatter"), ("reduce", "gather")


def waits_at_once(values: Sequence[object]) -> bool:
    """Whether the caller of a process group's method, with these arguments, waits for the result (`async_op=False`).

    Then all of it is the collective: on a CPU much of it can be in the call itself, whose thread takes the core.
    """
    return bool(values) and getattr(values[-1], "asyncOp", True) is False
