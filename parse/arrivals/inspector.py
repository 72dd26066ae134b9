"""Reads the JSON of NCCL Inspector, NCCL's profiler plugin: a record per collective and rank, one file per process.

Format: github.com/NVIDIA/nccl, plugins/profiler/inspector/inspector_json.cc, v4.0 to v4.2: `header` (id of the
communicator, rank in it, its size), `metadata` (host, process), `coll_perf` (collective, `coll_sn`, bytes, µs). NCCL
numbers the collectives of each function by itself (`comm->seqNumber[func]`, src/plugin/profiler.cc), so that function
and number together name one. Its times are of the device (`kernel_gpu`), else of the host that watches the kernel; with
NCCL_INSPECTOR_DUMP_VERBOSE=1 there are Unix times in µs at which the host saw each channel's kernel begin, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpc.system.regular_file import parse_json
from parse.arrivals.result import (
    ABSENT,
    MAX_KERNEL_NS,
    MAX_RANKS,
    CallGroup,
    CollectiveRecording,
    Member,
    RecordingError,
)
from parse.logs.engine.log_format import LogError
from parse.logs.engine.reader import pieces

MARK = b'"coll_perf"'
"""In each record of a collective."""
SUFFIXES = (".log", ".log.gz", ".jsonl", ".jsonl.gz", ".json")
SNIFFED_LINES = 64
MAX_SPREAD_LINES = 20_000
MAX_US = 1 << 51
OPERATIONS = {
    "AllReduce": "all-reduce", "AllGather": "all-gather", "AllGatherV": "all-gather", "ReduceScatter": "reduce-scatter",
    "AlltoAll": "all-to-all", "AllToAll": "all-to-all", "Broadcast": "broadcast", "Reduce": "reduce",
}  # fmt: skip
_OF_KERNELS = ("kernel_gpu", "kernel_cpu", "")
"""Where times are those of kernels; old versions do not say it. Others are of the call on the host."""


def is_inspector(path: Path) -> bool:
    """Whether a file begins with records of NCCL Inspector. Raises LogError where it cannot be read."""
    if not path.name.endswith(SUFFIXES):
        return False
    lines = (line for line in next(lines_of(path), [])[:SNIFFED_LINES] if line.lstrip().startswith(b"{"))
    return any(MARK in line or b'"p2p_perf"' in line for line in lines)


def read_inspector(paths: Sequence[Path]) -> CollectiveRecording:
    """The collectives in the files of all processes of a run. Raises RecordingError."""
    read = CollectiveRecording(source="NCCL Inspector", files=len(paths))
    for path in paths:
        try:
            for lines in lines_of(path):
                for line in lines:
                    _read_line(line, path, read)
        except LogError as error:
            read.left_out[f"the rest of a damaged file ({error})"] += 1
    if not read.columns:
        raise RecordingError("no record of a collective of NCCL Inspector is in these files")
    return read


def lines_of(path: Path) -> Iterator[list[bytes]]:
    """The lines of a file, packed or not, piece by piece; a record over several lines, as `jq` prints it, is one.
    Raises LogError."""
    spread: list[bytes] = []
    for buffer, size, _ in pieces(path):
        lines = bytes(memoryview(buffer)[:size]).splitlines()
        yield [*_joined(lines, spread)] if spread or b"{" in lines else lines


def _joined(lines: Sequence[bytes], spread: list[bytes]) -> Iterator[bytes]:
    """The lines, those from `{` to `}` as one; `spread` holds those of a record that is not at its end."""
    for line in lines:
        if not spread and line != b"{":
            yield line
            continue
        spread.append(line.strip())
        if line == b"}" or len(spread) > MAX_SPREAD_LINES:
            yield b"".join(spread)
            spread.clear()


def _read_line(line: bytes, path: Path, read: CollectiveRecording) -> None:
    if MARK not in line:
        if b'"p2p_perf"' in line:
            read.left_out["messages between two ranks, to which nobody else comes"] += 1
        return
    try:
        record = parse_json(line)
        header, metadata, perf = record["header"], record["metadata"], record["coll_perf"]
        group, rank, size = f"{header['id']}", count_of(header["rank"]), count_of(header["n_ranks"])
        number, size_bytes = count_of(perf["coll_sn"]), count_of(perf["coll_msg_size_bytes"])
        duration_ns, function = _duration_ns(perf["coll_exec_time_us"]), f"{perf['coll']}"
        source = f"{perf.get('coll_timing_source', '')}"
        member = Member(host=f"{metadata['hostname']}", process=f"pid {count_of(metadata['pid'])}")
        begin_ns = _begin_ns(perf)
    except (ValueError, KeyError, TypeError, AttributeError):
        read.left_out[f"{path.name}: lines that are no whole record"] += 1
        return
    if size > MAX_RANKS:
        read.left_out[f"{path.name}: records of a communicator of more than {MAX_RANKS:,} ranks"] += 1
        return
    if rank >= size:
        read.left_out[f"{path.name}: records of a rank that its communicator does not have"] += 1
        return
    if source not in _OF_KERNELS or not 0 < duration_ns < MAX_KERNEL_NS:
        read.left_out["collectives whose kernel was not timed (coll_timing_source)"] += 1
        return
    name = f"{header.get('comm_name', '')}"
    known = read.groups.setdefault(group, CallGroup(id=group, size=size, name="" if name == "unknown" else name))
    if known.size != size or read.members.setdefault((group, rank), member) != member:
        raise RecordingError(
            f"{path.name}: communicator {group} has rank {rank} of {size} on {member.host}, {member.process}; another "
            "file says otherwise. Are these the files of one run?"
        )
    read.add((group, OPERATIONS.get(function, function), rank), number, size_bytes, duration_ns, begin_ns)


def count_of(value: Any) -> int:
    """A whole number from 0 on. Raises ValueError."""
    if type(value) is not int or not 0 <= value < MAX_US:
        raise ValueError(value)
    return value


def _duration_ns(value: Any) -> int:
    """That of microseconds, which some versions write with a fraction. Raises ValueError."""
    return round(value * 1000) if type(value) is float and 0 <= value < MAX_US else count_of(value) * 1000


def _begin_ns(perf: Mapping[str, Any]) -> int:
    """When the first channel's kernel was seen to begin, Unix ns; ABSENT where that was not recorded."""
    trace = perf.get("event_trace_ts")
    if trace is None:
        return ABSENT
    begins = [count_of(channel["kernel_start_ts"]) for channel in trace["kernel_events"]]
    return min((begin * 1000 for begin in begins if begin), default=ABSENT)
