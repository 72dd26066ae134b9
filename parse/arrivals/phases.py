"""Reads torchtitan's structured logs of all ranks: where all meet in a step, and how long each takes in its phases.

A rank's file has a JSON line where a phase begins and one where it ends, with the time it took on the host
(torchtitan/observability/structured_logger). In `collect_dist_metrics`, of the steps whose metrics are logged, it waits
for its device and then for all ranks. What comes before explains who is late there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from hpc.system.regular_file import parse_json
from hpc.system.text import grouped, plural
from parse.arrivals.inspector import count_of, lines_of
from parse.arrivals.result import (
    MAX_KERNEL_NS,
    MAX_RANKS,
    MS,
    CallGroup,
    CollectiveRecording,
    Member,
    RecordingError,
)
from parse.logs.engine.log_format import LogError

SUFFIXES = (".jsonl", ".jsonl.gz")
ENDS = b"_end"
MEETING, WHOLE = "collect_dist_metrics", "step"
"""The phase that ends when all ranks have come to it, and the one that has all others in it."""
OPERATION = "all-reduce"

PhaseTimes = Mapping[str, Mapping[int, list[float]]]
"""The times of each phase in ms, by rank."""


def is_phase_log(path: Path) -> bool:
    """Whether a file begins with such records. Raises LogError where it cannot be read."""
    if not path.name.endswith(SUFFIXES):
        return False
    return any(b'"global_rank"' in line and b'"log_type_name"' in line for line in next(lines_of(path), [])[:1])


def read_phase_logs(paths: Sequence[Path]) -> CollectiveRecording:
    """The meetings of all ranks of a run, and what takes a rank longest in remarks. Raises RecordingError."""
    read = CollectiveRecording(source="torchtitan's structured logs", files=len(paths))
    times: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in paths:
        for record in _ends(path, read.left_out):
            try:
                phase, source = record["log_type_name"].removesuffix(ENDS.decode()), f"{record['source']}"
                rank, step, end_us = (count_of(record[name]) for name in ("global_rank", "step", "time_us"))
                duration_ns = round(record["value"] * MS)
                member = Member(host=f"{record['host_name']}", process=f"pid {count_of(record['pid'])}")
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
                read.left_out[f"{path.name}: phases outside steps, and lines that are no whole record"] += 1
                continue
            if rank >= MAX_RANKS or not 0 <= duration_ns < MAX_KERNEL_NS:
                read.left_out[f"{path.name}: records with impossible numbers"] += 1
                continue
            times[phase][rank].append(duration_ns / MS)
            if phase != MEETING:
                continue
            if read.members.setdefault((source, rank), member) != member:
                raise RecordingError(
                    f"{path.name}: rank {rank} of {source} is two processes; give the files of one run"
                )
            read.add((source, OPERATION, rank), step, 0, duration_ns, end_us * 1000 - duration_ns)
    if not read.columns:
        raise RecordingError(f"no phase {MEETING}, where ranks meet, is in these structured logs of torchtitan")
    for source, ranks in grouped(read.members).items():
        read.groups[source] = CallGroup(id=source, size=1 + max(ranks), name=f"{MEETING} of {source}")
    read.remarks += _longest(times)
    return read


def _ends(path: Path, left_out: Counter[str]) -> Iterator[Mapping[str, Any]]:
    """The records of where phases end."""
    try:
        for line in chain.from_iterable(lines_of(path)):
            if ENDS + b'"' in line:
                try:
                    yield parse_json(line)
                except ValueError:
                    left_out[f"{path.name}: lines that are cut off"] += 1
    except LogError as error:
        left_out[f"the rest of a damaged file ({error})"] += 1


def _longest(times: PhaseTimes) -> Iterator[str]:
    """Of each phase that is in steps its time and the rank that takes longest in it, medians over steps."""
    for phase, of_ranks in times.items():
        if phase in (MEETING, WHOLE) or len(of_ranks) < 2:
            continue
        medians = {rank: float(np.median(its)) for rank, its in of_ranks.items()}
        longest = max(medians, key=medians.__getitem__)
        typical = f"{np.median([*medians.values()]):.2f} ms on {plural(len(medians), 'rank')}"
        yield f"{phase}: {typical}, {medians[longest]:.2f} ms on rank {longest}"
