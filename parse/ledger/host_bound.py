"""How far devices wait for their hosts in a step of a script: by the hooks' events on the device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from hpc.model.timestamps import ABSENT, DEVICE_PHASES
from hpc.model.trace import Trace
from parse import stats

Floats = npt.NDArray[np.float64]
_CHUNK = 500_000
"""Ranks × steps that are read at once; it bounds the memory."""


@dataclass(frozen=True, kw_only=True)
class HostPace:
    """How long the host of a device sets its pace, ms a step, by the phases of a step on a device
    (hpc.model.timestamps.DEVICE_PHASES).

    `at_most`, by phase, is the longest that the device can have waited for its host, with what no event shows; `syncs`
    how often the script waits for the device in a step. None where that is not known.
    """

    data: float
    compute: float
    reduction: float
    optimizer: float
    at_most: Mapping[str, float] | None
    syncs: float | None

    @property
    def behind(self) -> float:
        """Without data, which a device waits for whoever is slow: that is a term of its own."""
        return self.compute + self.reduction + self.optimizer

    @property
    def most_behind(self) -> float:
        """As `behind`, with what no event shows."""
        if self.at_most is None:
            return self.behind
        return max(self.behind, sum(ms for phase, ms in self.at_most.items() if phase != "data"))

    @property
    def most_of_compute(self) -> float:
        """The longest that the device can have waited in compute."""
        return self.compute if self.at_most is None else max(self.compute, self.at_most["compute"])


@dataclass(frozen=True, kw_only=True)
class HostBound:
    """How long hosts set the pace of their devices, over the ok runs: of each rank, None where that is not known, and
    the mean of the others."""

    mean: HostPace
    ranks: tuple[HostPace | None, ...]

    def compute_of(self, ranks: Sequence[int]) -> tuple[float, float] | None:
        """The means of these ranks in compute, ms a step, and at most; None where that of one is not known."""
        known = [(pace.compute, pace.most_of_compute) for rank in ranks if (pace := self.ranks[rank]) is not None]
        if len(known) < len(ranks):
            return None
        least, longest = (sum(column) / len(known) for column in zip(*known, strict=True))
        return least, longest


HOST_BOUND = 0.05
"""A device whose host sets the pace for a smaller share of the step is no finding."""
MAY_IDLE = 0.2
"""The same where events only leave open that the device waits: hosts that are not behind queue kernels, too."""


@dataclass(frozen=True, kw_only=True)
class SlowHosts:
    """Devices that wait for their hosts for a notable part of the step: that of `rank`, None: of all ranks, at its
    `pace`. Where that is not proven their events only leave it open."""

    rank: int | None
    pace: HostPace
    is_proven: bool


def slow_hosts(host_bound: HostBound | None, step_ms: float) -> SlowHosts | None:
    """The device that waits most for its host, or all, where they are alike; None where hosts are hardly behind."""
    paces = {} if host_bound is None else dict(enumerate(host_bound.ranks))
    known = {rank: pace for rank, pace in paces.items() if pace is not None}
    if host_bound is None or not known:
        return None
    is_proven = max(pace.behind for pace in known.values()) >= HOST_BOUND * step_ms
    behind = {rank: pace.behind if is_proven else pace.most_behind for rank, pace in known.items()}
    rank = max(behind, key=lambda each: behind[each])
    if behind[rank] < (HOST_BOUND if is_proven else MAY_IDLE) * step_ms:
        return None
    if behind[rank] - min(behind.values()) < HOST_BOUND * step_ms:
        return SlowHosts(rank=None, pace=host_bound.mean, is_proven=is_proven)
    return SlowHosts(rank=rank, pace=known[rank], is_proven=is_proven)


@dataclass(frozen=True, kw_only=True, eq=False)
class HostReading:
    """A run: how long hosts set the pace of their devices, mean ms of its measured steps, [rank, DEVICE_PHASES]; how
    long at most the devices can have waited for them, alike; and how often the script waits for the device in a step,
    by rank. NaN where a rank has none."""

    ms: Floats
    at_most: Floats
    syncs: Floats


def reduce_host_bound(trace: Trace) -> HostReading | None:
    """None where no device of the run shows it."""
    if trace.host_bound_ns is None or list(trace.host_bound_phases) != [*DEVICE_PHASES]:
        return None
    ranks = len(trace.stamps)
    sums, counts = np.zeros((ranks, len(DEVICE_PHASES))), np.zeros((ranks, 1))
    length = max(1, _CHUNK // ranks)
    for first, stop in trace.blocks.tolist():
        for begin in range(first, stop, length):
            ns = np.asarray(trace.host_bound_ns[:, begin : min(begin + length, stop)])
            known = (ns != ABSENT).all(axis=2, keepdims=True)
            sums += np.where(known, ns, 0).sum(axis=1)
            counts += known.sum(axis=1)
    if not counts.any():
        return None
    ms = np.divide(sums, 1e6 * counts, out=np.full_like(sums, np.nan), where=counts > 0)
    records = [_record(report.extra.get("script")) for report in trace.reports]
    at_most = [list(by_phase(record.get("idle_ms")).values()) or [math.nan] * len(DEVICE_PHASES) for record in records]
    syncs = [its if _is_number(its := record.get("syncs")) else math.nan for record in records]
    return HostReading(ms=ms, at_most=np.array(at_most, np.float64), syncs=np.array(syncs, np.float64))


def _record(script: object) -> Mapping[str, object]:
    """What a rank's report has of it (hpc.run.script_steps.host_bound)."""
    record = script.get("host_bound") if isinstance(script, Mapping) else None
    return record if isinstance(record, Mapping) else {}


def by_phase(record: object) -> dict[str, float]:
    """What a rank's report has by phase, in their order; empty where a phase lacks, or is no time."""
    values = {name: record.get(name) for name in DEVICE_PHASES} if isinstance(record, Mapping) else {}
    figures = {name: float(value) for name, value in values.items() if _is_number(value)}
    return figures if len(figures) == len(DEVICE_PHASES) else {}


def _is_number(value: object) -> TypeGuard[float]:
    """Finite, and not below 0."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


def host_bound_of_point(readings: Sequence[HostReading]) -> HostBound | None:
    """The mean of the point's runs; None without any."""
    if not readings:
        return None
    ranks = tuple(mean_pace([_pace(reading, rank) for reading in readings]) for rank in range(len(readings[0].ms)))
    mean = mean_pace(ranks)
    return None if mean is None else HostBound(mean=mean, ranks=ranks)


def _pace(reading: HostReading, rank: int) -> HostPace | None:
    if np.isnan(reading.ms[rank]).any():
        return None
    at_most, syncs = reading.at_most[rank], float(reading.syncs[rank])
    return HostPace(
        **dict(zip(DEVICE_PHASES, reading.ms[rank].tolist(), strict=True)),
        at_most=None if np.isnan(at_most).any() else dict(zip(DEVICE_PHASES, at_most.tolist(), strict=True)),
        syncs=None if math.isnan(syncs) else syncs,
    )


def mean_pace(paces: Sequence[HostPace | None]) -> HostPace | None:
    """That of several runs, or ranks, as far as it is known."""
    known = [pace for pace in paces if pace is not None]
    if not known:
        return None
    bounded = [pace.at_most for pace in known if pace.at_most is not None]
    counted = [pace.syncs for pace in known if pace.syncs is not None]
    return HostPace(
        **{name: stats.mean([getattr(pace, name) for pace in known]) for name in DEVICE_PHASES},
        at_most={name: stats.mean([each[name] for each in bounded]) for name in DEVICE_PHASES} if bounded else None,
        syncs=stats.mean(counted) if counted else None,
    )
