"""Reads the dumps of torch's flight recorder of all ranks: each collective's group, number, size, state and duration.

torch writes one per rank (nccl_trace_rank_0, comm_lib_trace_rank_0) where a collective hangs
(torch/csrc/distributed/c10d/FlightRecorder.hpp): a pickle of tables, lists, numbers and texts, or JSON. The pickle is
taken apart here by its opcodes: those that name or call something are refused, so that no file can run code.
"""

from __future__ import annotations

import pickletools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpc.system.regular_file import open_regular, parse_json, read_whole
from hpc.system.text import plural
from parse.arrivals.profiles import BYTES, OPERATIONS, ranks_of
from parse.arrivals.result import (
    ABSENT,
    MAX_COUNT,
    MAX_KERNEL_NS,
    CallGroup,
    CollectiveRecording,
    Member,
    RecordingError,
)
from parse.trace_events.kineto import RANK_IN_NAME

SNIFFED_BYTES = 1 << 16
MAX_BYTES = 1 << 27
_MEMBERS = (b"collective_seq_id", b"pg_status", b"pg_config")
_PUSHED: Mapping[str, Callable[[Any], Any]] = {
    "EMPTY_DICT": lambda _: {}, "EMPTY_LIST": lambda _: [], "EMPTY_TUPLE": lambda _: (), "NONE": lambda _: None,
    "NEWTRUE": lambda _: True, "NEWFALSE": lambda _: False,
} | dict.fromkeys(
    ("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    lambda arg: arg,
)  # fmt: skip
"""What opcodes of a pickle (protocol 2 and later) put on its stack, by their argument."""
_TAKEN = {"APPEND": 1, "SETITEM": 2, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
"""How many values they take from it; those below take all down to the last mark."""
_TAKEN_TO_MARK = ("APPENDS", "SETITEMS", "TUPLE")


def is_flight_dump(path: Path) -> bool:
    """Whether a file begins as a dump does. Raises OSError."""
    with open_regular(path) as file:
        head = file.read(SNIFFED_BYTES)
    return head[:1] in (b"{", b"\x80") and b"traceEvents" not in head and any(name in head for name in _MEMBERS)


@dataclass
class _Dump:
    """What is read of a rank's dump: its groups with their ranks; per call group, operation, number, bytes and duration
    in ns; the calls that are not completed; what is left out. `dimensions` may be read yet: no more than it has bytes,
    as one list of a pickle may stand in many calls."""

    rank: int
    dimensions: int
    groups: dict[str, tuple[CallGroup, tuple[int, ...]]] = field(default_factory=dict)
    calls: list[tuple[str, str, int, int, int]] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, entry: Any, configured: Any) -> None:
        """Adds an entry. Raises what tables and texts do that are none."""
        name, about = map(_text, entry["process_group"])
        ranks_text = _text(configured[name]["ranks"])
        collective = _text(entry["profiling_name"]).rpartition(":")[2]
        operation, state = OPERATIONS.get(collective, collective), _text(entry["state"])
        if entry.get("is_p2p") is True:
            self.left_out["messages between two ranks, to which nobody else comes"] += 1
            return
        group_id = f"{name} {ranks_text}"
        if group_id not in self.groups:
            ranks = ranks_of(ranks_text, ranks_text.count(",") + 1)
            if ranks is None or self.rank not in ranks:
                raise ValueError(f"{ranks_text:.40} are no ranks with rank {self.rank}")
            group = CallGroup(id=group_id, size=len(ranks), name=f"{about} (group {name}) {ranks_text}")
            self.groups[group_id] = group, ranks
        number, duration_ms = entry["collective_seq_id"], entry.get("duration_ms")
        if type(number) is not int or not 0 <= number < MAX_COUNT:
            raise ValueError("a collective_seq_id that is no number")
        is_timed = type(duration_ms) in (int, float) and 0 < duration_ms < MAX_KERNEL_NS / 1e6
        duration_ns = max(1, round(duration_ms * 1e6)) if is_timed else ABSENT
        if state != "completed":
            self.unfinished.append(f"{operation} {number} of {self.groups[group_id][0].name}, {state}")
        size_bytes = max(self._bytes(entry, "input"), self._bytes(entry, "output"))
        self.calls.append((group_id, operation, number, size_bytes, duration_ns))

    def _bytes(self, entry: Any, what: str) -> int:
        total = 0
        for sizes, kind in zip(entry[f"{what}_sizes"], entry[f"{what}_dtypes"], strict=True):
            elements = BYTES.get(_text(kind), 1)
            for size in sizes:
                elements *= size if type(size) is int else -1
                self.dimensions -= 1
                if self.dimensions < 0 or not 0 <= elements < MAX_COUNT:
                    raise ValueError(f"{what} sizes that no collective has")
            total += elements
        return min(total, MAX_COUNT)


def read_flight_dumps(paths: Sequence[Path]) -> CollectiveRecording:
    """The collectives in the dumps of a run. Raises RecordingError, OSError."""
    dumps: dict[int, tuple[Path, _Dump]] = {}
    for path in paths:
        match = RANK_IN_NAME.search(path.name)
        if match is None:
            raise RecordingError(f"{path.name} names no rank: torch writes a dump as nccl_trace_rank_0")
        rank, content = int(match[1]), read_whole(path, MAX_BYTES)
        dump = _Dump(rank=rank, dimensions=len(content))
        try:
            value = _unpickled(content) if content[:1] == b"\x80" else parse_json(content)
            for entry in value["entries"]:
                dump.add(entry, value["pg_config"])
        except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise RecordingError(f"{path.name} is no whole dump of torch's flight recorder ({reason})") from None
        if rank in dumps and dumps[rank][1].calls != dump.calls:
            raise RecordingError(f"{dumps[rank][0].name} and {path.name} are both of rank {rank}; give one of each")
        dumps[rank] = path, dump
    recording = CollectiveRecording(source="torch's flight recorder", files=len(paths))
    for rank, (_, dump) in sorted(dumps.items()):
        recording.left_out += dump.left_out
        for group_id, operation, *call in dump.calls:
            recording.groups[group_id], ranks = dump.groups[group_id]
            place = ranks.index(rank)
            recording.members[group_id, place] = Member(host="", process=f"rank {rank}")
            recording.add((group_id, operation, place), *call, ABSENT)
        if its := dump.unfinished:
            recording.remarks.append(
                f"rank {rank} has not completed {plural(len(its), 'collective')}; the first: {its[0]}"
            )
    if not recording.columns:
        reasons = ["these dumps of torch's flight recorder have no collective", *recording.left_out]
        raise RecordingError("; ".join(reasons))
    if not any((its.duration_ns > 0).any() for its in recording.calls.values()):
        recording.remarks.append(
            "these dumps of torch's flight recorder have no durations: TORCH_NCCL_ENABLE_TIMING=1 records them"
        )
    return recording


def _text(value: Any) -> str:
    """A text. Raises TypeError for others, which may be lists that hold themselves."""
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} in place of a text")
    return value


def _unpickled(content: bytes) -> Any:
    """The value of a pickle of tables, lists, numbers and texts. Raises ValueError for all others; calls nothing."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}
    for opcode, arg, _ in pickletools.genops(content):
        name = opcode.name
        if name in _PUSHED:
            stack.append(_PUSHED[name](arg))
        elif name in _TAKEN or name in _TAKEN_TO_MARK:
            begin = len(stack) - _TAKEN[name] if name in _TAKEN else marks.pop()
            values, stack[begin:] = stack[begin:], []
            if name.startswith("APPEND"):
                stack[-1].extend(values)
            elif name.startswith("SETITEM"):
                stack[-1].update(zip(values[::2], values[1::2], strict=True))
            else:
                stack.append(tuple(values))
        elif name == "MARK":
            marks.append(len(stack))
        elif name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            memo[len(memo) if name == "MEMOIZE" else arg] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[arg])
        elif name == "STOP":
            return stack.pop()
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"a pickle with {name}, which no dump has; it is not run")
    raise ValueError("cut off")
