"""Profiles of torch.profiler (Kineto) from the ranks of a run, placed on the run's global clock.

Kineto stamps with Unix time: `baseTimeNanoseconds` + `ts`, in microseconds. A trace has, at each synchronisation, Unix
time beside the rank's own clock. Both run at one rate, whatever a time service does, as long as Unix time is not set
(clock_gettime(2): adjtime and NTP adjust CLOCK_MONOTONIC, too): their difference is constant, which is checked.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from hpc.model.timestamps import ABSENT
from hpc.model.trace import Trace
from hpc.system.regular_file import open_regular
from parse.trace_events.event_file import EventFile, short

# Reads a trace-event file (JSON) piece by piece: profilers write gigabytes.

CHUNK = 1 << 20
MAX_VALUE = 1 << 26
"""Characters of one event, or of another value of the file."""
EVENTS = "traceEvents"
_SPACE = re.compile(r"[ \t\r\n]*")


class EventsError(ValueError):
    """A file holds no trace events."""


def values_of(path: Path) -> Iterator[tuple[str, Any]]:
    """The members of the file's object in order; of `traceEvents` each event by itself. A file that is only a list of
    events has nothing else.

    Raises EventsError where it is no such file, or damaged; OSError where it cannot be read.
    """
    try:
        with open_regular(path) as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with gzip.GzipFile(fileobj=raw) if packed else nullcontext(raw) as stream:
                yield from _members(_Text(io.TextIOWrapper(stream, "utf-8", errors="replace")))
    except EventsError:
        raise
    except (ValueError, gzip.BadGzipFile, EOFError, zlib.error, RecursionError) as error:
        raise EventsError(f"damaged, or no JSON ({type(error).__name__}: {error})") from None


def _members(text: _Text) -> Iterator[tuple[str, Any]]:
    begin = text.next_character()
    if begin == "[":
        for event in _elements(text):
            yield EVENTS, event
        return
    if begin != "{":
        raise EventsError("not the JSON of a trace: it begins with neither { nor [")
    while text.next_character(peek=True) != "}":
        name = text.value()
        if not isinstance(name, str) or text.next_character() != ":":
            raise EventsError("damaged: no name of a member where one is due")
        if name == EVENTS and text.next_character(peek=True) == "[":
            text.next_character()
            for event in _elements(text):
                yield EVENTS, event
        else:
            yield name, text.value()
        if text.next_character(peek=True) == ",":
            text.next_character()
        elif text.next_character(peek=True) != "}":
            raise EventsError("damaged: neither a comma nor the end behind a member")


def _elements(text: _Text) -> Iterator[Any]:
    while text.next_character(peek=True) != "]":
        yield text.value()
        if text.next_character(peek=True) == ",":
            text.next_character()
        elif text.next_character(peek=True) != "]":
            raise EventsError("damaged: neither a comma nor the end behind an event")
    text.next_character()


class _Text:
    """A text of which values are taken one after another."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._text, self._at, self._ended = stream, "", 0, False
        self._decoder = json.JSONDecoder()

    def _more(self) -> None:
        """Reads as much again as is waiting to be decoded, so that a long value is not tried too often."""
        chunk = self._stream.read(max(CHUNK, len(self._text) - self._at))
        self._ended = not chunk
        self._text, self._at = self._text[self._at :] + chunk, 0

    def next_character(self, *, peek: bool = False) -> str:
        """The next character that is no space, which stays there with `peek`."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]  # of any length, also none
            if self._at < len(self._text):
                break
            if self._ended:
                raise EventsError("cut off: it ends in the middle")
            self._more()
        character = self._text[self._at]
        self._at += not peek
        return character

    def value(self) -> Any:
        """The next value, decoded."""
        self.next_character(peek=True)
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
                if end < len(self._text) or self._ended:  # else a number may go on
                    self._at = end
                    return value
            except json.JSONDecodeError:
                if self._ended:
                    raise
            if len(self._text) - self._at > MAX_VALUE:
                raise EventsError(f"a value has more than {MAX_VALUE} characters, or is damaged")
            self._more()


NAMES = re.compile(r".+\.json(\.gz)?", re.IGNORECASE | re.DOTALL)
RANK_IN_NAME = re.compile(r"rank[_-]?(\d+)(?!\d)", re.IGNORECASE)
HEAD = ("baseTimeNanoseconds", "distributedInfo", "host_name")
"""Members of a profile that say what it is of."""
_BATCH = 8192
_MAX_NS = 1 << 61
"""Beyond such times sums would not fit into 64 bits."""
MAX_NAMES = 1 << 20
"""Names of processes and threads of a profile that are remembered."""


class KinetoError(EventsError):
    """A profile cannot be placed; the text says why."""


@dataclass(frozen=True, kw_only=True)
class ProfileHead:
    """What a profile says of itself: its rank, or its name does, of how many; its host; the Unix time of its 0, ns."""

    rank: int | None
    world_size: int | None
    host: str
    base_ns: int


def head_of(path: Path, members: Mapping[str, Any]) -> ProfileHead:
    """That of a profile with these members beside its events. Raises KinetoError where its base is no number."""
    base = members.get("baseTimeNanoseconds", 0)
    if type(base) is not int:
        raise KinetoError(f"has baseTimeNanoseconds {base!r:.40}, which is no number")
    distributed = _table(members.get("distributedInfo"))
    in_name = RANK_IN_NAME.search(path.name)
    rank, size = distributed.get("rank"), distributed.get("world_size")
    return ProfileHead(
        rank=rank if type(rank) is int else int(in_name[1]) if in_name else None,
        world_size=size if type(size) is int else None, host=str(members.get("host_name", "")), base_ns=base,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What a first reading of a profile shows: what it says of itself, the time that its events span in Unix ns, their
    number, the names of its processes, and how fine its times are, ns."""

    path: Path
    head: ProfileHead
    begin_ns: int
    end_ns: int
    events: int
    processes: Mapping[Any, str]
    resolution_ns: float


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A profile on the clock of one rank: own clock = Unix time − `unix_offset_ns`, which may be off by
    `unix_bound_ns`."""

    profile: Profile
    rank: int
    unix_offset_ns: int
    unix_bound_ns: int


@dataclass(kw_only=True)
class Drawn:
    """What came of a profile: events drawn, those outside of the steps drawn, those without a time, and by how much the
    others may be off on the time axis, ns."""

    placed: Placed
    events: int = 0
    out_of_range: int = 0
    untimed: int = 0
    bound_ns: float = 0.0


def read_profile(path: Path) -> Profile:
    """The first reading of a profile. Raises KinetoError where it is none."""
    members: dict[str, Any] = {}
    processes: dict[Any, str] = {}
    begin, end, events = np.inf, -np.inf, 0
    for name, value in _values(path):
        if name in HEAD:
            members[name] = value
        elif name == EVENTS and isinstance(value, Mapping):
            if value.get("ph") == "M" and value.get("name") == "process_name" and len(processes) < MAX_NAMES:
                processes[_key(value.get("pid"))] = str(_table(value.get("args")).get("name", ""))
            elif value.get("ph") != "M" and _is_timed(value):
                ts = float(value["ts"])
                begin, end = min(begin, ts), max(end, ts + (_number(value.get("dur")) or 0.0))
                events += 1
    if not events:
        raise KinetoError("has no events with a time")
    head = head_of(path, members)
    return Profile(
        path=path, head=head, begin_ns=head.base_ns + round(begin * 1000), end_ns=head.base_ns + round(end * 1000),
        events=events, processes=processes, resolution_ns=max(1.0, float(np.spacing(abs(end))) * 1000),
    )  # fmt: skip


def placed(profile: Profile, trace: Trace) -> Placed:
    """The profile on the clock of its rank of that run. Raises KinetoError where it is of another, or cannot be."""
    rank, size, host = profile.head.rank, profile.head.world_size, profile.head.host
    if rank is None:
        raise KinetoError("names no rank: record it after torch.distributed was initialised, or name it …rank3….json")
    ranks = len(trace.stamps)
    if not 0 <= rank < ranks or size not in (None, ranks):
        of = "" if size is None else f" of {size}"
        raise KinetoError(f"is of rank {rank}{of}; the run has {ranks} ranks")
    ran_on = trace.reports[rank].hostname
    if ran_on and host and ran_on.split(".")[0] != host.split(".")[0]:
        raise KinetoError(f"was recorded on {host:.80}; rank {rank} ran on {ran_on:.80}")
    if trace.unix_offset_ns is None or trace.unix_bound_ns is None or not trace.unix_offset_ns.shape[1]:
        raise KinetoError(
            "cannot be placed: the trace has no Unix time beside its synchronisations, as no clock was compared: "
            "measure again"
        )
    offsets_ns, bounds_ns = trace.unix_offset_ns[rank].tolist(), trace.unix_bound_ns[rank].tolist()
    lowest = max(offset - bound for offset, bound in zip(offsets_ns, bounds_ns, strict=True))
    highest = min(offset + bound for offset, bound in zip(offsets_ns, bounds_ns, strict=True))
    if lowest > highest:
        moved_ms = (max(offsets_ns) - min(offsets_ns)) / 1e6
        raise KinetoError(f"cannot be placed: Unix time of rank {rank} was set by {moved_ms:.3f} ms during the run")
    offset_ns, bound_ns = (lowest + highest) // 2, (highest - lowest + 1) // 2
    if max(abs(profile.begin_ns - offset_ns), abs(profile.end_ns - offset_ns)) > _MAX_NS:
        raise KinetoError("has times that no clock shows")
    _check_time(profile, trace, rank, offset_ns)
    return Placed(profile=profile, rank=rank, unix_offset_ns=offset_ns, unix_bound_ns=bound_ns)


def _check_time(profile: Profile, trace: Trace, rank: int, offset_ns: int) -> None:
    """Raises KinetoError where the profile is outside of the run's time."""
    clock = trace.barrier_exits_ns[rank] if trace.barrier_exits_ns.shape[1] else trace.clock_local_ns[rank]
    last = max(0, min(int(trace.steps_completed[rank]), trace.stamps.shape[1]) - 1)
    steps = [np.asarray(trace.stamps[:, step : step + 1])[rank].ravel() for step in (0, last)]
    known = np.concatenate([clock, *(stamps[stamps != ABSENT] for stamps in steps)])
    begin_ns, end_ns = int(known.min()) + offset_ns, int(known.max()) + offset_ns
    if profile.end_ns < begin_ns or profile.begin_ns > end_ns:
        before = profile.end_ns < begin_ns
        seconds = (begin_ns - profile.end_ns if before else profile.begin_ns - end_ns) / 1e9
        raise KinetoError(f"is of another time: it {'ends' if before else 'begins'} {seconds:.1f} s "
                          f"{'before the run begins' if before else 'after the run has ended'}")  # fmt: skip


class ProfileTracks:
    """Writes a placed profile: its processes and threads unchanged, on the axis that begins at `origin_ns`."""

    def __init__(self, file: EventFile, trace: Trace, placed: Placed, prefix: str, origin_ns: int) -> None:
        self.file, self.trace, self.placed, self.prefix, self.origin_ns = file, trace, placed, prefix, origin_ns
        self.drawn = Drawn(placed=placed)
        self._processes: dict[Any, int] = {}
        self._threads: dict[tuple[int, Any], int] = {}

    def write(self, begin_ns: int | None, end_ns: int | None) -> Drawn:
        """Writes the events between these times on the axis, None: all. Raises KinetoError where the file changed."""
        batch: list[dict[str, Any]] = []
        for name, event in _values(self.placed.profile.path):
            if name != EVENTS or not isinstance(event, dict):
                continue
            if event.get("ph") == "M":
                self._name(event)
            elif not _is_timed(event):
                self.drawn.untimed += 1
            else:
                batch.append(event)
            if len(batch) == _BATCH:
                self._write_batch(batch, begin_ns, end_ns)
                batch = []
        self._write_batch(batch, begin_ns, end_ns)
        return self.drawn

    def _write_batch(self, batch: list[dict[str, Any]], begin_ns: int | None, end_ns: int | None) -> None:
        if not batch:
            return
        placed, profile = self.placed, self.placed.profile
        times = [(float(event["ts"]), _number(event.get("dur"))) for event in batch]
        shift_ns = profile.head.base_ns - placed.unix_offset_ns
        begins = np.array([round(ts * 1000) + shift_ns for ts, _ in times], np.int64)
        ends = np.array([round((ts + (dur or 0.0)) * 1000) + shift_ns for ts, dur in times], np.int64)
        on_axis, bounds_ns = self.trace.rank_globally(placed.rank, np.concatenate([begins, ends]))
        on_axis = on_axis - self.origin_ns
        own_ns = placed.unix_bound_ns + profile.resolution_ns
        self.drawn.bound_ns = max(self.drawn.bound_ns, float(bounds_ns.max()) + own_ns)
        for event, (_, dur), begin, end in zip(
            batch, times, on_axis[: len(batch)].tolist(), on_axis[len(batch) :].tolist(), strict=True
        ):
            if (begin_ns is not None and end < begin_ns) or (end_ns is not None and begin > end_ns):
                self.drawn.out_of_range += 1
                continue
            self._place(event)
            self.file.copied_event(event, begin, None if dur is None else end - begin)
            self.drawn.events += 1

    def _name(self, event: dict[str, Any]) -> None:
        """Names of threads; those of processes are written with the process."""
        if str(event.get("name", "")).startswith("thread_") and "pid" in event and "tid" in event:
            self._place(event)
            self.file.copied_event(event, 0, None)

    def _place(self, event: dict[str, Any]) -> None:
        """Gives an event the process, thread and flow of the merged file."""
        process = self._process(event.get("pid"))
        event["pid"], event["tid"] = process, self._thread(process, event.get("tid"))
        if "id" in event or "id2" in event:  # by category, name and number, else arrows would join profiles
            event["cat"] = f"{event.get('cat', '')} (rank {self.placed.rank})"
        event.pop("bind_id", None)  # the same of events that Kineto does not write

    def _process(self, pid: Any) -> int:
        key = _key(pid)
        if key not in self._processes:
            if len(self._processes) >= MAX_NAMES:
                raise KinetoError(f"has more than {MAX_NAMES} processes")
            name = short(self.placed.profile.processes.get(key) or str(pid))
            self._processes[key] = self.file.process(f"{self.prefix}torch.profiler of rank {self.placed.rank}: {name}")
        return self._processes[key]

    def _thread(self, process: int, tid: Any) -> int:
        if isinstance(tid, int) and 0 <= tid < 1 << 31:
            return tid
        at = process, _key(tid)
        if at not in self._threads and len(self._threads) >= MAX_NAMES:
            raise KinetoError(f"has more than {MAX_NAMES} threads")
        if at not in self._threads:
            self._threads[at] = track = self.file.track(process, short(str(tid))).thread
            return track
        return self._threads[at]


def _values(path: Path) -> Iterator[tuple[str, Any]]:
    """As `values_of`, every error as a KinetoError: one of the profile, not of the file that is written."""
    try:
        yield from values_of(path)
    except (EventsError, OSError) as error:
        raise KinetoError(str(error.strerror if isinstance(error, OSError) else error)) from None


def _is_timed(event: Mapping[str, Any]) -> bool:
    """Whether an event has a time, and a duration that is none or possible."""
    duration = _number(event.get("dur", 0))
    known = _number(event.get("ts")) is not None and isinstance(event.get("ph"), str)
    return known and duration is not None and duration >= 0


def _number(value: Any) -> float | None:
    """A finite number, however it was written; else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < _MAX_NS / 1000 else None


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _key(value: Any) -> Any:
    """The value, or its text where it cannot be a key."""
    return value if isinstance(value, str | int | float | None) else repr(value)
