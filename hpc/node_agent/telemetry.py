"""Reads clocks, power, load and counters of this node, a sample every interval."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import nan
from struct import Struct
from threading import Event
from time import perf_counter_ns

from hpc.node_agent.sources import UNREADABLE, RankProcess, Reading, Unread, sources_of_node

MAX_NAMED = 32
"""The maximum of series named that failed later."""


class Readings:
    """All readings of this node. Each is tried once; one that fails is `absent`, with the reason."""

    def __init__(self, sources: Mapping[str, Iterable[Reading]]) -> None:
        self.series: list[str] = []
        self.absent: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self._readings: list[Reading] = []
        for name, source in sources.items():
            try:
                for reading in source:
                    self._try(reading)
            except UNREADABLE as error:
                self.absent[name] = reason_of(error)

    def _try(self, reading: Reading) -> None:
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


def _gpus(uuids: Sequence[str]) -> Iterable[Reading]:
    try:
        import pynvml
    except ImportError:
        raise Unread("nvidia-ml-py is not installed: pip install nvidia-ml-py") from None
    from hpc.node_agent.nvidia import gpus

    yield from gpus(uuids, pynvml)
