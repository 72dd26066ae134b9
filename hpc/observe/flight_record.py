"""Torch's own record of collectives, its flight recorder, which also has those that C++ calls: DDP's buckets, graphs.

The script's process writes it beside its events, in the warm-up and at its end: a dump takes 0.05 ms an entry, which no
measured step may pay. Afterwards it is cut into steps. Nothing of torch's own settings is changed: newer releases keep
the last 2000 collectives by default. Durations are there only for NCCL, and only with TORCH_NCCL_ENABLE_TIMING=1. Both
sides use this file; torch and the standard library alone.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_ENABLE_TIMING")
"""By which a person sets torch's record."""
WARMUP_VARIABLE = "RANKWISE_OBSERVE_WARMUP"
"""Has the number of warm-up steps."""
STEPS_BEFORE_WINDOW = 5
"""The record is written as many steps before the first that is measured: none of these may pay for it."""
SUFFIX = ".collectives"
MAX_ENTRIES = 20_000
"""Of a record that is written at the end of Python, where nothing is measured, but somebody waits: about a second."""
MAX_BYTES = 1 << 26
MAX_KINDS = 40
DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")  # of NCCL's groups, where torch has it; of others, or of all
_ITEM_BYTES = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8, "Double": 8,
    "ComplexFloat": 8, "ComplexDouble": 16, "Float8_e4m3fn": 1, "Float8_e5m2": 1,
}  # fmt: skip
"""By torch's names of types."""


class RecordedCollective(NamedTuple):
    """One entry. `bytes` is the larger of what went in and what came out, None for a type that is not known here;
    `called_ns` of CLOCK_MONOTONIC is when it was called; `duration_ms` is None where torch measured none."""

    name: str
    group: str
    bytes: int | None
    called_ns: int
    duration_ms: float | None


class CollectiveRecord(NamedTuple):
    """What a process wrote last: when, how many steps it had made, the entries in the order of their calls, and the
    variables that were set. `is_cut`: it may lack earlier ones."""

    written_ns: int
    steps: int
    entries: Sequence[RecordedCollective]
    is_cut: bool
    variables: dict[str, str]


class StepSpan(NamedTuple):
    """When the host called what a step has, ns of CLOCK_MONOTONIC: all of it, its backwards (0, 0: not known)."""

    begin: int
    end: int
    backward_begin: int = 0
    backward_end: int = 0

    def phase_of(self, called_ns: int) -> str:
        """Where in the step that is: `forward`, `backward`, `update`; empty where it is not known."""
        if not self.backward_end:
            return ""
        borders = (self.backward_begin, self.backward_end)
        return ("forward", "backward", "update")[sum(called_ns >= border for border in borders)]


class CollectiveRecordError(ValueError):
    """A file is no record of collectives; the text names it."""


# In the script's process.


def step_to_write() -> int:
    """After how many steps the warm-up's record is written; 0: never."""
    try:
        return max(0, int(os.environ.get(WARMUP_VARIABLE, "0")) - STEPS_BEFORE_WINDOW)
    except ValueError:
        return 0


def is_written_at_end() -> bool:
    """Whether the record that a person requested, if any did, is short enough for it."""
    sizes = [os.environ[name] for name in VARIABLES[:2] if name in os.environ]
    return all(size.isdigit() and int(size) <= MAX_ENTRIES for size in sizes)


def dump_functions() -> list[Any]:
    """Torch's functions that return its record."""
    import torch

    module = getattr(torch._C, "_distributed_c10d", None)
    return [getattr(module, name) for name in DUMPS if hasattr(module, name)]


_groups_of_one: set[str] = set()


def note_groups() -> None:
    """Notes in which process groups this rank is alone: its calls there meet nobody. Torch forgets that where a script
    ends its groups, before the record is written."""
    import torch.distributed as dist

    groups = dist.distributed_c10d._world.pg_names.items()
    _groups_of_one.update(name for group, name in groups if group.size() == 1)


def write(events: Path, steps: int) -> None:
    """Writes what torch has recorded beside the file of events; nothing where it records nothing. Raises OSError."""
    note_groups()
    header = {
        "unix_offset_ns": time.time_ns() - time.perf_counter_ns(), "written_ns": time.perf_counter_ns(), "steps": steps,
        "groups_of_one": sorted(_groups_of_one),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }  # fmt: skip
    texts = [dump(includeCollectives=True, onlyActive=False) for dump in dump_functions()]
    if not any((b'"entries"' if isinstance(text, bytes) else '"entries"') in text for text in texts):
        return
    beside = events.with_suffix(f"{SUFFIX}.new")
    with beside.open("wb") as file:
        for text in (json.dumps(header), *texts):
            file.write((text.encode() if isinstance(text, str) else text) + b"\n")
    beside.replace(events.with_suffix(SUFFIX))


# Afterwards.


def read(events: Path) -> CollectiveRecord | None:
    """What the process of this file of events wrote last, without calls in groups of one rank; None where it wrote
    nothing. Raises CollectiveRecordError, OSError."""
    path = events.with_suffix(SUFFIX)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(content) > MAX_BYTES:
        raise CollectiveRecordError(f"{path} has more than {MAX_BYTES} bytes")
    try:
        header, *dumps = map(json.loads, content.splitlines())
        offset = int(header["unix_offset_ns"])
        raw = {  # each once: in a later torch than 2.13 both dumps have all groups
            (each["record_id"], each["time_created_ns"], each["profiling_name"]): each
            for dump in dumps
            for each in dump.get("entries", ())
            if each["process_group"][0] not in header["groups_of_one"]
        }
        entries = sorted((_entry(each, offset) for each in raw.values()), key=lambda entry: entry.called_ns)
        is_cut = any(min((int(each["record_id"]) for each in dump.get("entries", ())), default=0) for dump in dumps)
        return CollectiveRecord(
            written_ns=int(header["written_ns"]), steps=int(header["steps"]), entries=entries, is_cut=is_cut,
            variables={str(name): str(value) for name, value in header["variables"].items()},
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CollectiveRecordError(f"{path} cannot be read: {type(error).__name__}: {error}") from None


def _entry(entry: dict[str, Any], unix_offset_ns: int) -> RecordedCollective:
    duration = entry.get("duration_ms")
    return RecordedCollective(
        name=_name(str(entry["profiling_name"])), group=str(entry["process_group"][1]),
        bytes=_larger(_bytes(entry, "input"), _bytes(entry, "output")),
        called_ns=int(entry["time_created_ns"]) - unix_offset_ns,
        duration_ms=float(duration) if isinstance(duration, (int, float)) and duration > 0 else None,
    )  # fmt: skip


def _name(profiled: str) -> str:
    """`nccl:_all_gather_base` as all-gather."""
    return profiled.rpartition(":")[2].removeprefix("_").removesuffix("_base").replace("_", "-")


def _bytes(entry: dict[str, Any], what: str) -> int | None:
    total = 0
    for sizes, kind in zip(entry[f"{what}_sizes"], entry[f"{what}_dtypes"], strict=True):
        if kind not in _ITEM_BYTES:
            return None
        items = 1
        for size in sizes:
            items *= int(size)
        total += items * _ITEM_BYTES[kind]
    return total


def _larger(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else max(first, second)


def by_step(record: CollectiveRecord, spans: Iterable[StepSpan]) -> dict[str, Any]:
    """What a step's collectives are, as facts: over the steps that the record has whole.

    `kinds` has each name, group and size with how often a step calls it, the phase of its first call, how long behind
    the step's begin that is (a median), and its median duration where torch measured it. A step whose number of calls
    is another one than that of most is counted in `unlike`, and in no kind.
    """
    entries = record.entries
    first_ns = entries[0].called_ns if entries else 0
    calls: list[tuple[StepSpan, list[RecordedCollective]]] = []
    place = 0
    for span in spans:
        if span.end > record.written_ns or (record.is_cut and span.begin <= first_ns):
            continue
        while place < len(entries) and entries[place].called_ns < span.begin:
            place += 1
        its = []
        while place < len(entries) and entries[place].called_ns < span.end:
            its.append(entries[place])
            place += 1
        calls.append((span, its))
    counts = Counter(len(its) for _, its in calls)
    usual = counts.most_common(1)[0][0] if counts else 0
    alike = [(span, its) for span, its in calls if len(its) == usual]
    kinds = Counter((each.name, each.group, each.bytes) for _, its in alike for each in its)
    facts: dict[str, Any] = {
        "after_steps": record.steps, "steps": len(alike), "unlike": len(calls) - len(alike),
        "variables": record.variables, "kinds": [],
    }  # fmt: skip
    for (name, group, size), count in kinds.most_common(MAX_KINDS):
        of_kind = [(span, [x for x in its if (x.name, x.group, x.bytes) == (name, group, size)]) for span, its in alike]
        firsts = [(span, its[0].called_ns) for span, its in of_kind if its]
        durations = [each.duration_ms for _, its in of_kind for each in its if each.duration_ms is not None]
        kind: dict[str, Any] = {
            "name": name, "group": group, "bytes": size, "per_step": round(count / len(alike), 3),
            "phase": Counter(span.phase_of(ns) for span, ns in firsts).most_common(1)[0][0],
            "after_ms": median(ns - span.begin for span, ns in firsts) / 1e6,
        }  # fmt: skip
        if durations:
            kind["duration_ms"] = median(durations)
        facts["kinds"].append(kind)
    if len(kinds) > MAX_KINDS:
        facts["further_kinds"] = len(kinds) - MAX_KINDS
    return facts
