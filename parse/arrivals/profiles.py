"""Reads the collectives in profiles of torch.profiler (Kineto) of all ranks: NCCL's kernels, by torch's own names.

torch writes into a kernel's `args` (torch/csrc/profiler/util.h) the collective, the process group with its ranks, and,
since it has one, `Seq`: the number of the call in its group, the same on all ranks. Without it calls are left out.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from hpc.system.regular_file import parse_json
from parse.arrivals.inspector import left_out_texts
from parse.arrivals.result import (
    MAX_COUNT,
    MAX_KERNEL_NS,
    MAX_RANKS,
    CallGroup,
    CallsKey,
    CollectiveRecording,
    Member,
    RankCalls,
    RecordingError,
)
from parse.trace_events.kineto import EVENTS, HEAD, NAMES, EventsError, head_of, values_of

RESOLUTION_NS = 1000
"""Times have nanoseconds, but devices' clocks may tick once in a microsecond."""
MAX_NS = 1 << 61
OPERATIONS = {
    "allreduce": "all-reduce", "all_reduce": "all-reduce", "allreduce_coalesced": "all-reduce",
    "allgather": "all-gather", "all_gather": "all-gather", "_allgather_base": "all-gather",
    "all_gather_single": "all-gather", "allgather_into_tensor_coalesced": "all-gather",
    "allgather_coalesced": "all-gather", "reduce_scatter": "reduce-scatter", "_reduce_scatter_base": "reduce-scatter",
    "reduce_scatter_single": "reduce-scatter", "reduce_scatter_tensor_coalesced": "reduce-scatter",
    "alltoall": "all-to-all", "all_to_all": "all-to-all", "alltoall_base": "all-to-all", "all_to_allv": "all-to-all",
    "all_to_all_single": "all-to-all", "broadcast": "broadcast", "reduce": "reduce", "barrier": "barrier",
}  # fmt: skip
"""By torch's "Collective name"; others keep theirs."""
_MESSAGES = ("send", "recv")
_BYTES = {
    "Double": 8,
    "Long": 8,
    "Float": 4,
    "Int": 4,
    "Half": 2,
    "BFloat16": 2,
    "Short": 2,
    "Byte": 1,
    "Char": 1,
    "Bool": 1,
}


@dataclass(frozen=True)
class _Call:
    operation: str
    bytes: int
    begin_ns: int
    duration_ns: int
    number: int | None


@dataclass
class _GroupCalls:
    """The calls in one process group, by rank of the world. `ranks` are all of it, None where torch shortened them."""

    name: str
    size: int
    ranks: tuple[int, ...] | None
    calls: dict[int, list[_Call]] = field(default_factory=dict)


def read_profiles(paths: Sequence[Path]) -> CollectiveRecording:
    """The collectives in the profiles of a run. Raises RecordingError, OSError."""
    groups: dict[str, _GroupCalls] = {}
    hosts: dict[int, str] = {}
    files: dict[int, Path] = {}
    left_out: Counter[str] = Counter()
    for path in paths:
        try:
            rank, host = _read_profile(path, groups, left_out)
        except EventsError as error:
            raise RecordingError(f"{path.name}: {error}") from None
        if rank in files:
            raise RecordingError(
                f"{files[rank].name} and {path.name} are both of rank {rank}; give one profile of each"
            )
        files[rank], hosts[rank] = path, host
    calls: dict[CallsKey, RankCalls] = {}
    members: dict[tuple[str, int], Member] = {}
    named: dict[str, CallGroup] = {}
    for group_id, group in groups.items():
        numbered = _numbered(group, left_out)
        if not numbered:
            continue
        named[group_id] = CallGroup(id=group_id, size=group.size, name=group.name)
        order = group.ranks or tuple(sorted(group.calls))
        if len(order) > group.size:
            raise RecordingError(
                f"{len(order)} profiles call in {group.name}, which has {group.size} ranks. Are they of one run?"
            )
        for rank, its_calls in numbered.items():
            place = order.index(rank)
            members[group_id, place] = Member(host=hosts[rank], process=f"rank {rank}")
            for operation in dict.fromkeys(call.operation for call in its_calls.values()):
                calls[group_id, operation, place] = _columns(
                    {number: call for number, call in its_calls.items() if call.operation == operation}
                )
    if not calls:
        reasons = (
            "; ".join(left_out) or "none of their kernels has a process group (torch.profiler with NCCL writes it)"
        )
        raise RecordingError(f"no collective of these profiles can be matched: {reasons}")
    return CollectiveRecording(
        source="torch.profiler", files=len(paths), groups=named, members=members, calls=calls,
        resolution_ns=RESOLUTION_NS, remarks=left_out_texts(left_out),
    )  # fmt: skip


def is_profile_name(path: Path) -> bool:
    """Whether profiles have such names."""
    return NAMES.fullmatch(path.name) is not None


def _read_profile(path: Path, groups: dict[str, _GroupCalls], left_out: Counter[str]) -> tuple[int, str]:
    """Adds the calls of one profile; its rank of the world, and its host."""
    members: dict[str, Any] = {}
    read: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
    for name, value in values_of(path):
        if name != EVENTS:
            members |= {name: value} if name in HEAD else {}
        elif _is_of_nccl(value):
            read.append((value, value["args"]))
    head = head_of(path, members)
    rank = head.rank
    if rank is None:
        raise RecordingError(f"{path.name} names no rank: record it after init_process_group, or name it …rank3….json")
    configured = _configured(members.get("distributedInfo"))
    for event, args in read:
        call, group_id, group = _call(event, args, head.base_ns, configured)
        if call is None or group is None:
            left_out["kernels of NCCL without a time, or with a process group that is none"] += 1
        elif call.operation in _MESSAGES:
            left_out["messages between two ranks, to which nobody else comes"] += 1
        elif group.ranks is not None and rank not in group.ranks:
            raise RecordingError(f"{path.name} is of rank {rank}, and calls in a group of ranks {list(group.ranks)}")
        else:
            known = groups.setdefault(group_id, group)
            known.calls.setdefault(rank, []).append(call)
    return rank, head.host


def _is_of_nccl(event: Any) -> bool:
    """Whether it is a kernel of NCCL with what torch says of its process group."""
    if not isinstance(event, dict) or event.get("cat") != "kernel" or "nccl" not in str(event.get("name")).lower():
        return False
    args = event.get("args")
    return isinstance(args, dict) and "Process Group Name" in args


def _configured(distributed: Any) -> Mapping[str, str]:
    """By name of the group the text of its ranks, which events have shortened where they are many."""
    groups = distributed.get("pg_config") if isinstance(distributed, dict) else None
    if not isinstance(groups, list):
        return {}
    return {str(group.get("pg_name")): json.dumps(group.get("ranks")) for group in groups if isinstance(group, dict)}


def _call(
    event: Mapping[str, Any], args: Mapping[str, Any], base_ns: int, configured: Mapping[str, str]
) -> tuple[_Call | None, str, _GroupCalls | None]:
    ts, duration = event.get("ts"), event.get("dur")
    size, elements, sequence = args.get("Group size"), args.get("In msg nelems"), args.get("Seq")
    ranks_text = str(args.get("Process Group Ranks", ""))
    if not (_is_time(ts) and _is_time(duration) and type(size) is int and 0 < size <= MAX_RANKS):
        return None, "", None
    name, about = str(args["Process Group Name"]), str(args.get("Process Group Description", ""))
    ranks = _ranks(ranks_text, size) or _ranks(configured.get(name, ""), size)
    group = _GroupCalls(
        name=" ".join(filter(None, (about if about != "undefined" else "", f"(group {name})", ranks_text))), size=size,
        ranks=ranks,
    )  # fmt: skip
    collective = str(args.get("Collective name", ""))
    count = elements if type(elements) is int and 0 <= elements < MAX_COUNT else 0
    call = _Call(
        operation=OPERATIONS.get(collective, collective),
        bytes=count * _BYTES.get(str(args.get("dtype", "")), 1),
        begin_ns=base_ns + round(float(ts) * 1000),
        duration_ns=round(float(duration) * 1000),
        number=sequence if type(sequence) is int and 0 <= sequence < MAX_COUNT else None,
    )
    is_kernel = abs(call.begin_ns) < MAX_NS and 0 < call.duration_ns < MAX_KERNEL_NS
    return (call if is_kernel else None), f"{name} {ranks_text}", group


def _is_time(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and math.isfinite(value) and 0 <= value < MAX_NS / 1000


def _ranks(text: str, size: int) -> tuple[int, ...] | None:
    """All ranks of a group, ascending; None where the text has not all of them."""
    try:
        ranks = parse_json(text)
    except ValueError:
        return None
    if not isinstance(ranks, list) or len({*map(str, ranks)}) != size or not all(type(rank) is int for rank in ranks):
        return None
    return tuple(ranks)


def _numbered(group: _GroupCalls, left_out: Counter[str]) -> dict[int, dict[int, _Call]]:
    """The calls of each rank by number; empty where calls of ranks cannot be told to be one collective."""
    if all(call.number is not None for calls in group.calls.values() for call in calls):
        numbered: dict[int, dict[int, _Call]] = defaultdict(dict)
        for rank, calls in group.calls.items():
            counts = Counter(call.number for call in calls)
            if twice := sum(count > 1 for count in counts.values()):
                left_out[f"collectives of {group.name} that rank {rank} has twice"] += twice
            numbered[rank] = {
                call.number: call for call in calls if call.number is not None and counts[call.number] == 1
            }
        return dict(numbered)
    left_out[f"{group.name}: its calls have no sequence number (Seq): record them with a newer torch"] += 1
    return {}


def _columns(calls: Mapping[int, _Call]) -> RankCalls:
    numbers = sorted(calls)
    return RankCalls(
        number=np.array(numbers, dtype=np.int64),
        bytes=np.array([calls[number].bytes for number in numbers], dtype=np.int64),
        duration_ns=np.array([calls[number].duration_ns for number in numbers], dtype=np.int64),
        begin_ns=np.array([calls[number].begin_ns for number in numbers], dtype=np.int64),
    )
