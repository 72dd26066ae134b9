"""Reads clocks, power, load and counters of this node, a sample every interval."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import nan
from pathlib import Path
from struct import Struct
from threading import Event
from time import perf_counter_ns

from hpc.node_agent.sources import UNREADABLE, RankProcess, SeriesReader, Unread, sources_of_node
from hpc.system.text import read_ranges

MAX_NAMED = 32
"""The maximum of series named that failed later."""


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
            count = len(reading.read())
        except UNREADABLE as error:
            self.absent |= dict.fromkeys(reading.series, reason_of(error))
            return
        if count != len(reading.series):
            raise Unread(f"{count} numbers for {', '.join(reading.series)}")
        self._readings.append(reading)
        self.series += reading.series

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
) -> None:
    """Reports the series, writes a row of samples every interval until `stop` is set and one more then, and reports
    the series that failed meanwhile. A missed round is skipped.

    `gpus` are UUIDs, empty for all GPUs, None for none. A row in the file `samples` is an int64, the perf_counter_ns
    before the readings, and a float64 for each series.
    """
    readings = Readings({**sources_of_node(ranks), **({} if gpus is None else {"GPU": _gpus(gpus)})})
    report(series=readings.series, absent=readings.absent)
    row, interval_ns = Struct(f"=q{len(readings.series)}d"), int(interval_s * 1e9)
    due_ns, stopped = perf_counter_ns(), False
    while True:
        os.write(samples, row.pack(perf_counter_ns(), *readings.read()))
        if stopped:
            break
        due_ns += -(-(perf_counter_ns() - due_ns) // interval_ns) * interval_ns
        stopped = stop.wait(max(0, due_ns - perf_counter_ns()) / 1e9)
    report(failed=readings.failed)


def _gpus(uuids: Sequence[str]) -> Iterable[SeriesReader]:
    try:
        import pynvml
    except ImportError:
        raise Unread("nvidia-ml-py is not installed: pip install nvidia-ml-py") from None
    from hpc.node_agent.sources import gpus

    yield from gpus(uuids, pynvml)


# Places the helper on a core that no rank of its node uses, if there is one.

_CPUS = Path("/sys/devices/system/cpu")
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


def thread_siblings(core: int, cpus: Path = _CPUS) -> set[int]:
    """The hardware threads of the same physical core, including this one; only this one if the list is absent."""
    try:
        return set(read_ranges((cpus / f"cpu{core}/topology/thread_siblings_list").read_text()))
    except (OSError, ValueError):
        return {core}
