"""Reads the collectives in profiles of torch.profiler (Kineto) of all ranks: the kernels of NCCL, RCCL and MSCCL++.

torch writes into a kernel's `args` (torch/csrc/profiler/util.h) the collective, the process group with its ranks, and,
since it has one, `Seq`: the number of the call in its group, the same on all ranks. Calls without it are numbered by
what they are: each rank's calls are a piece of one sequence of operations and sizes. Kernels without a process group
are those of one group of all ranks where each rank has them on one stream.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from hpc.system.regular_file import parse_json
from hpc.system.text import plural
from parse.arrivals.inspector import OPERATIONS as OF_NCCL
from parse.arrivals.result import (
    MAX_COUNT,
    MAX_KERNEL_NS,
    MAX_RANKS,
    RESOLUTION_NS,
    WAIT_FOR_ALL,
    CallGroup,
    CollectiveRecording,
    Ints,
    Member,
    RecordingError,
)
from parse.trace_events.kineto import EVENTS, HEAD, NAMES, EventsError, head_of, values_of

MAX_NS = 1 << 61
OPERATIONS = {
    "allreduce": "all-reduce", "all_reduce": "all-reduce", "allreduce_coalesced": "all-reduce",
    "allgather": "all-gather", "all_gather": "all-gather", "_allgather_base": "all-gather",
    "all_gather_single": "all-gather", "_all_gather_base": "all-gather", "allgather_coalesced": "all-gather",
    "allgather_into_tensor_coalesced": "all-gather", "reduce_scatter": "reduce-scatter",
    "_reduce_scatter_base": "reduce-scatter", "reduce_scatter_single": "reduce-scatter",
    "reduce_scatter_tensor_coalesced": "reduce-scatter",
    "alltoall": "all-to-all", "all_to_all": "all-to-all", "alltoall_base": "all-to-all", "all_to_allv": "all-to-all",
    "all_to_all_single": "all-to-all", "broadcast": "broadcast", "reduce": "reduce", "barrier": "barrier",
}  # fmt: skip
"""By torch's "Collective name"; others keep theirs."""
_MESSAGES = ("send", "recv")
BYTES = {
    "Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2, "Byte": 1, "Char": 1, "Bool": 1,
}  # fmt: skip
"""Of an element, by torch's names of types; others have 1."""
_KERNEL = re.compile(r"[nr]ccl(?:Dev)?Kernel_(?P<function>[A-Za-z]+)")
"""What a kernel's name says that has nothing else: `ncclKernel_AllReduce_RING_LL_Sum_float(…)`."""
_UNNAMED = "all ranks (kernels without a process group)"


@dataclass(frozen=True)
class _Call:
    """`kind` is what the call is on every rank: the operation and the size, which only an all-to-all has by rank; else
    the kernel's name."""

    operation: str
    kind: str
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
    recording = CollectiveRecording(source="torch.profiler", files=len(paths))
    groups: dict[str, _GroupCalls] = {}
    hosts: dict[int, str] = {}
    files: dict[int, Path] = {}
    for path in paths:
        try:
            rank, host = _read_profile(path, groups, recording.left_out, len(paths))
        except EventsError as error:
            raise RecordingError(f"{path.name}: {error}") from None
        if rank in files:
            raise RecordingError(
                f"{files[rank].name} and {path.name} are both of rank {rank}; give one profile of each"
            )
        files[rank], hosts[rank] = path, host
    for group_id, group in groups.items():
        order = group.ranks or tuple(sorted(group.calls))
        if len(order) > group.size:
            raise RecordingError(
                f"{len(order)} profiles call in {group.name}, which has {group.size} ranks. Are they of one run?"
            )
        try:
            numbered = list(_numbered(group, hosts, recording.remarks))
        except RecordingError as error:
            recording.left_out[f"{group.name}: {error}"] += 1
            continue
        recording.groups[group_id] = CallGroup(id=group_id, size=group.size, name=group.name)
        for rank, number, call in numbered:
            place = order.index(rank)
            recording.members[group_id, place] = Member(host=hosts[rank], process=f"rank {rank}")
            recording.add((group_id, call.operation, place), number, call.bytes, call.duration_ns, call.begin_ns)
    if not recording.columns:
        reasons = "; ".join(recording.left_out) or "they have no kernels of NCCL (torch.profiler of CUDA writes them)"
        raise RecordingError(f"no collective of these profiles can be matched: {reasons}")
    return recording


def is_profile_name(path: Path) -> bool:
    """Whether profiles have such names."""
    return NAMES.fullmatch(path.name) is not None


def _read_profile(path: Path, groups: dict[str, _GroupCalls], left_out: Counter[str], profiles: int) -> tuple[int, str]:
    """Adds the calls of one profile; its rank of the world, and its host."""
    members: dict[str, Any] = {}
    read: list[Mapping[str, Any]] = []
    for name, value in values_of(path):
        if name != EVENTS:
            members |= {name: value} if name in HEAD else {}
        elif _is_collective(value):
            read.append(value)
    head = head_of(path, members)
    rank = head.rank
    if rank is None:
        raise RecordingError(f"{path.name} names no rank: record it after init_process_group, or name it …rank3….json")
    configured = _configured(members.get("distributedInfo"))
    streams = {str(event.get("tid")) for event in read if "Process Group Name" not in event["args"]}
    size = min(head.world_size or profiles, MAX_RANKS)
    everyone = _GroupCalls(name=_UNNAMED, size=size, ranks=tuple(range(size)))
    for event in read:
        if "Process Group Name" in event["args"]:
            call, group_id, group = _call(event, event["args"], head.base_ns, configured)
        elif len(streams) > 1:
            left_out["kernels on several streams without a process group: the group of each is not known"] += 1
            continue
        else:
            call, group_id, group = _unnamed(event, head.base_ns), "", everyone
        if call is None or group is None:
            left_out["kernels of NCCL without a time, or with a process group that is none"] += 1
        elif call.operation in _MESSAGES:
            left_out["messages between two ranks, to which nobody else comes"] += 1
        elif (known := groups.setdefault(group_id, group)).ranks is not None and rank not in known.ranks:
            raise RecordingError(f"{path.name} is of rank {rank}, and calls in {known.name}, which lacks that rank")
        else:
            known.calls.setdefault(rank, []).append(call)
    return rank, head.host


def _is_collective(event: Any) -> bool:
    """Whether it is a kernel that torch or its name say to be one of a collective, whatever library it is of."""
    if (
        not isinstance(event, dict)
        or event.get("cat") != "kernel"
        or not isinstance(event.setdefault("args", {}), dict)
    ):
        return False
    return "Process Group Name" in event["args"] or "ccl" in str(event.get("name")).lower()


def _unnamed(event: Mapping[str, Any], base_ns: int) -> _Call | None:
    """The call of a kernel that has only its name."""
    name = str(event.get("name"))
    match = _KERNEL.match(name)
    function = match["function"] if match else name
    operation = "send" if function == "SendRecv" else OF_NCCL.get(function, function)
    return _timed_call(event, base_ns, operation, name, 0, None)


def _configured(distributed: Any) -> Mapping[str, str]:
    """By name of the group the text of its ranks, which events have shortened where they are many."""
    groups = distributed.get("pg_config") if isinstance(distributed, dict) else None
    if not isinstance(groups, list):
        return {}
    return {str(group.get("pg_name")): json.dumps(group.get("ranks")) for group in groups if isinstance(group, dict)}


def _call(
    event: Mapping[str, Any], args: Mapping[str, Any], base_ns: int, configured: Mapping[str, str]
) -> tuple[_Call | None, str, _GroupCalls | None]:
    size, sequence = args.get("Group size"), args.get("Seq")
    ranks_text = str(args.get("Process Group Ranks", ""))
    if not (type(size) is int and 0 < size <= MAX_RANKS):
        return None, "", None
    name, about = str(args["Process Group Name"]), str(args.get("Process Group Description", ""))
    ranks = ranks_of(ranks_text, size) or ranks_of(configured.get(name, ""), size)
    group = _GroupCalls(
        name=" ".join(filter(None, (about if about != "undefined" else "", f"(group {name})", ranks_text))), size=size,
        ranks=ranks,
    )  # fmt: skip
    collective = str(args.get("Collective name", ""))
    operation = OPERATIONS.get(collective, collective)
    counts = [args.get("In msg nelems"), args.get("Out msg nelems")]
    count = max((each for each in counts if type(each) is int and 0 <= each < MAX_COUNT), default=0)
    size_bytes = count * BYTES.get(str(args.get("dtype", "")), 1)
    kind = operation if operation == "all-to-all" else f"{operation} {size_bytes}"
    number = sequence if type(sequence) is int and 0 <= sequence < MAX_COUNT else None
    return _timed_call(event, base_ns, operation, kind, size_bytes, number), f"{name} {ranks_text}", group


def _timed_call(
    event: Mapping[str, Any], base_ns: int, operation: str, kind: str, size_bytes: int, number: int | None
) -> _Call | None:
    """The call of a kernel; None where its times are those of none."""
    ts, duration = event.get("ts"), event.get("dur")
    if not (_is_time(ts) and _is_time(duration)):
        return None
    begin_ns, duration_ns = base_ns + round(float(ts) * 1000), round(float(duration) * 1000)
    is_kernel = abs(begin_ns) < MAX_NS and 0 < duration_ns < MAX_KERNEL_NS
    return _Call(operation, kind, size_bytes, begin_ns, duration_ns, number) if is_kernel else None


def _is_time(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and math.isfinite(value) and 0 <= value < MAX_NS / 1000


def ranks_of(text: str, size: int) -> tuple[int, ...] | None:
    """All ranks of a group, ascending; None where the text has not all of them."""
    try:
        ranks = parse_json(text)
    except ValueError:
        return None
    if not isinstance(ranks, list) or len({*map(str, ranks)}) != size or not all(type(rank) is int for rank in ranks):
        return None
    return tuple(ranks)


def _numbered(group: _GroupCalls, hosts: Mapping[int, str], remarks: list[str]) -> Iterator[tuple[int, int, _Call]]:
    """Each rank's calls with their numbers, torch's or those of their places. Raises RecordingError where calls of
    ranks are not known to be one collective."""
    if all(call.number is not None for calls in group.calls.values() for call in calls):
        for rank, calls in group.calls.items():
            yield from ((rank, call.number, call) for call in calls if call.number is not None)
        return
    ordered = {rank: sorted(calls, key=lambda call: call.begin_ns) for rank, calls in sorted(group.calls.items())}
    longest = max(ordered, key=lambda rank: len(ordered[rank]))
    shifts: list[str] = []
    for rank, calls in ordered.items():
        shift = _shift(ordered[longest], calls, hosts[longest] == hosts[rank] != "")
        if shift is None:
            raise RecordingError(
                f"its calls have no sequence number (Seq), and the {plural(len(calls), 'call')} of rank {rank} are no "
                f"certain piece of the {len(ordered[longest])} of rank {longest}"
            )
        shifts += [f"rank {rank} {'begins' if shift > 0 else 'began'} {plural(abs(shift), 'call')} "
                   f"{'later' if shift > 0 else 'earlier'}"] if shift else []  # fmt: skip
        yield from ((rank, shift + place, call) for place, call in enumerate(calls))
    by_what = "order alone" if group.name == _UNNAMED else "order and size"
    remarks.append(
        f"{group.name}: no sequence numbers (Seq); calls are paired by {by_what}, "
        f"{'; '.join(shifts) or 'equal on all ranks'}"
    )


def _shift(calls: Sequence[_Call], others: Sequence[_Call], one_clock: bool) -> int | None:
    """By how many calls `others` begin later in the sequence than `calls`: where most of theirs are the same calls, and
    nothing else fits as many. With `one_clock` kernels of one collective run at the same time. None where nothing
    fits, or several do."""
    numbers: dict[str, int] = {}
    kinds, other_kinds = (
        np.array([numbers.setdefault(call.kind, len(numbers)) for call in each]) for each in (calls, others)
    )
    first = np.flatnonzero(kinds == other_kinds[0]).tolist() + (-np.flatnonzero(other_kinds == kinds[0])).tolist()
    fitting: dict[int, list[int]] = defaultdict(list)
    for shift in dict.fromkeys(first):
        begin, end = max(shift, 0), min(len(calls), shift + len(others))
        if 2 * (end - begin) <= len(others) or len(fitting[end - begin]) > 1:
            continue
        same = np.array_equal(kinds[begin:end], other_kinds[begin - shift : end - shift])
        if same and (not one_clock or _run_together(calls[begin:end], others[begin - shift : end - shift])):
            fitting[end - begin].append(shift)
    best = fitting[max((size for size, shifts in fitting.items() if shifts), default=0)]
    return best[0] if len(best) == 1 else None


def _run_together(calls: Sequence[_Call], others: Sequence[_Call]) -> bool:
    """Whether most of the kernels that wait for all ranks run at the same time as those beside them."""
    times: list[Ints] = [
        np.array([(call.begin_ns, call.begin_ns + call.duration_ns) for call in each if call.operation in WAIT_FOR_ALL])
        for each in (calls, others)
    ]
    if not len(times[0]):
        return True
    latest, earliest = np.maximum(*times)[:, 0], np.minimum(*times)[:, 1]
    return bool((latest <= earliest + RESOLUTION_NS).mean() > 0.5)
