"""Reads clocks, power, load and counters of this node, a sample every interval."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from math import nan
from pathlib import Path
from random import uniform
from struct import Struct
from threading import Event
from time import perf_counter_ns
from typing import Any

from hpc.node_agent.sources import (
    UNREADABLE,
    RankProcess,
    SeriesReader,
    Unread,
    cpu_seconds,
    pid_namespace,
    sources_of_node,
)
from hpc.system.text import read_ranges

MAX_NAMED = 32
"""The maximum of series named that failed later."""
LOOKS = 10
"""So often between two samples it is looked at what only shows in a moment: ENOUGH (parse.rules), as each wakes this
process, which is most of what telemetry costs."""
CENSUS = 10
"""Every so many samples the ranks' threads and cores are looked at by name, first at FIRST_CENSUS."""
FIRST_CENSUS = 3


class Readings:
    """All readings of this node. Each is tried once; one that fails is `absent`, with the reason."""

    def __init__(self, sources: Mapping[str, Iterable[SeriesReader]]) -> None:
        self.series: list[str] = []
        self.absent: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self._readings: list[SeriesReader] = []
        for name, source in sources.items():
            try:
                for reading in source:
                    self._try(reading)
            except UNREADABLE as error:
                self.absent[name] = reason_of(error)

    def _try(self, reading: SeriesReader) -> None:
        try:
            numbers = len(reading.read())
        except UNREADABLE as error:
            self.absent |= dict.fromkeys(reading.series, reason_of(error))
            return
        if numbers != len(reading.series):
            raise Unread(f"{numbers} numbers for {', '.join(reading.series)}")
        self._readings.append(reading)
        self.series += reading.series

    def look(self) -> None:
        """Looks at what only shows in a moment."""
        for reading in self._readings:
            reading.look()

    def read(self) -> list[float]:
        """A number for each of the series, NaN where it could not be read now."""
        values: list[float] = []
        for reading in self._readings:
            try:
                values += reading.read()
            except UNREADABLE as error:
                values += [nan] * len(reading.series)
                if len(self.failed) < MAX_NAMED:
                    self.failed.setdefault(reading.series[0], reason_of(error))
        return values


def reason_of(error: Exception) -> str:
    """A short reason for the error."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) if isinstance(error, Unread) else f"{type(error).__name__}: {error}"


def read_telemetry(
    ranks: Sequence[RankProcess],
    gpus: Sequence[str] | None,
    interval_s: float,
    samples: int,
    stop: Event,
    report: Callable[..., None],
    due: Event | None = None,
) -> None:
    """Reports the series, writes a row of samples every interval until `stop` is set and one more then, and reports
    the series that failed meanwhile, and what ran within and beside the ranks by name. A missed round is skipped.
    `due` has a row written at once; it is set after `stop`, too.

    `gpus` are UUIDs, empty for all GPUs, None for none. A row in the file `samples` is an int64, the perf_counter_ns
    before the readings, and a float64 for each series.
    """
    readings = Readings({**sources_of_node(ranks), **({} if gpus is None else {"GPU": _gpus(gpus)})})
    report(series=readings.series, absent=readings.absent)
    row, interval_ns = Struct(f"=q{len(readings.series)}d"), int(interval_s * 1e9)
    census = Census(ranks)
    due_ns, stopped = perf_counter_ns(), False
    for number in count(1):
        os.write(samples, row.pack(perf_counter_ns(), *readings.read()))
        if stopped:
            break
        if number % CENSUS == FIRST_CENSUS:
            census.take()
        due_ns += -(-(perf_counter_ns() - due_ns) // interval_ns) * interval_ns
        stopped = _look_until(due_ns, interval_ns // LOOKS, stop, due or stop, readings)
    report(failed=readings.failed, **census.end())


def _look_until(due_ns: int, apart_ns: int, stop: Event, due: Event, readings: Readings) -> bool:
    """Looks until the next sample is due, by time or by the event; returns whether `stop` is set.

    Apart by chance: what comes and goes in a rhythm must not be met at the same place of it each time.
    """
    while (left_ns := due_ns - perf_counter_ns()) > 0:
        if due.wait(min(left_ns, apart_ns * uniform(0.5, 1.5)) / 1e9):
            if due is not stop:
                due.clear()
            break
        readings.look()
    return stop.is_set()


def _gpus(uuids: Sequence[str]) -> Iterable[SeriesReader]:
    from hpc.node_agent.gpus import driver_here, gpus

    yield from gpus(uuids, driver_here())


# What runs within and beside the ranks, by name: facts, since names come and go.

MAX_THREADS = 64
"""The maximum of a rank's threads that are looked at."""
NAMED = 3
"""The maximum of a rank's threads, and of processes beside the ranks, that are named."""
LEAST_S = 0.5
"""What ran less is not named."""
_Process = tuple[str, int, float, int]
"""Its name, its parent, its seconds on a core, and the core where it was last."""


class Census:
    """The threads and the cores of the ranks, and the processes that run beside them.

    A rank of another PID namespace, or that has ended, has what was last seen of it.
    """

    def __init__(self, ranks: Sequence[RankProcess], proc: Path = Path("/proc")) -> None:
        here = pid_namespace(proc)
        self._ranks = [rank if here and rank.pid_namespace == here else None for rank in ranks]
        self._proc = proc
        self._threads: dict[str, list[tuple[int, str, float]]] = {}
        self._cores: dict[str, list[int]] = {}
        self._before = self._beside()

    def take(self) -> None:
        """Looks at the ranks that live."""
        for place, rank in enumerate(self._ranks):
            if rank is not None:
                folder = self._proc / str(rank.pid)
                with suppress(*UNREADABLE):
                    rows = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
                    self._cores[str(place)] = list(read_ranges(rows["Cpus_allowed_list"].strip()))
                    self._threads[str(place)] = _threads(folder)

    def end(self) -> dict[str, Any]:
        """`threads` and `cores` by the rank's place on its node, and `beside`, the processes that ran most."""
        self.take()
        ran = [
            (pid, name, cpu_s - self._before.get(pid, ("", 0, 0.0, 0))[2], core)
            for pid, (name, _, cpu_s, core) in self._beside().items()
        ]
        beside = sorted((each for each in ran if each[2] >= LEAST_S), key=lambda each: -each[2])
        return {"threads": self._threads, "cores": self._cores, "beside": beside[:NAMED]}

    def _beside(self) -> dict[int, _Process]:
        """The processes of this machine, by number, without the ranks, what they started, and this helper."""
        processes: dict[int, _Process] = {}
        for folder in self._proc.glob("[0-9]*"):
            with suppress(*UNREADABLE):
                before, _, after = (folder / "stat").read_text().rpartition(")")
                fields = after.split()
                name = before.partition("(")[2]
                processes[int(folder.name)] = name, int(fields[1]), cpu_seconds(fields), int(fields[36])
        theirs = {os.getpid(), *(rank.pid for rank in self._ranks if rank is not None)}
        for pid in list(processes):
            line = [pid]
            while line[-1] in processes and line[-1] not in theirs and len(line) <= len(processes):
                line.append(processes[line[-1]][1])
            if line[-1] in theirs:
                theirs.update(line)
        return {pid: process for pid, process in processes.items() if pid not in theirs}


def _threads(folder: Path) -> list[tuple[int, str, float]]:
    """The threads of a process besides its main thread that ran longest: number, name, seconds on a core."""
    threads = []
    for task in sorted(int(path.name) for path in (folder / "task").iterdir())[:MAX_THREADS]:
        with suppress(*UNREADABLE):  # it has ended
            ran_s = int((folder / "task" / str(task) / "schedstat").read_text().split()[0]) / 1e9
            if ran_s >= LEAST_S and str(task) != folder.name:
                threads.append((task, (folder / "task" / str(task) / "comm").read_text().strip(), ran_s))
    return sorted(threads, key=lambda thread: -thread[2])[:NAMED]


# Places the helper on a core that no rank of its node uses, if there is one.

LOWEST_PRIORITY = 19


def spare_core(usable: set[int], of_ranks: set[int], siblings: Callable[[int], set[int]]) -> int | None:
    """The core for the helper: the last that no rank uses, if it can be one whose hardware threads no rank uses either.

    The last, because interrupts and daemons keep to the first ones. None where every core is a rank's.
    """
    spare = usable - of_ranks
    quiet = {core for core in spare if not siblings(core) & of_ranks}
    return max(quiet or spare, default=None)


def stand_aside(of_ranks: set[int]) -> str:
    """Moves this process to a core without ranks; returns a description of its new place.

    Its priority is always the lowest: without confinement the core may belong to another job.
    """
    os.setpriority(os.PRIO_PROCESS, 0, LOWEST_PRIORITY)
    try:
        os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF")))  # the kernel leaves what this job may use
        core = spare_core(os.sched_getaffinity(0), of_ranks, thread_siblings)
        if core is not None:
            os.sched_setaffinity(0, {core})
    except OSError as error:
        return f"where its rank runs, at the lowest priority: it may not choose a core ({error.strerror})"
    if core is not None:
        shared = " (a hardware thread of a core that ranks use)" if thread_siblings(core) & of_ranks else ""
        return f"on core {core}, which no rank uses{shared}"
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError as error:
        return f"on the ranks' cores, there is no other; at the lowest priority, but not idle ({error.strerror})"
    return "on the ranks' cores, there is no other; runs where they leave a core idle"


def thread_siblings(core: int) -> set[int]:
    """The hardware threads of the same physical core, including this one; only this one if the list is absent."""
    try:
        path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        return set(read_ranges(path.read_text()))
    except (OSError, ValueError):
        return {core}
