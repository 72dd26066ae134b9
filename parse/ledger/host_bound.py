"""How far devices wait for their hosts in a step of a script: by the hooks' events on the device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np

from hpc.model.timestamps import ABSENT, DEVICE_PHASES
from hpc.model.trace import RankReport, Trace
from parse import stats
from parse.rules import FIFTH, READ_AT_ONCE, SMALL


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
    is_proven = max(pace.behind for pace in known.values()) >= SMALL * step_ms
    behind = {rank: pace.behind if is_proven else pace.most_behind for rank, pace in known.items()}
    rank = max(behind, key=lambda each: behind[each])
    if behind[rank] < (SMALL if is_proven else FIFTH) * step_ms:
        return None
    if behind[rank] - min(behind.values()) < SMALL * step_ms:
        return SlowHosts(rank=None, pace=host_bound.mean, is_proven=is_proven)
    return SlowHosts(rank=rank, pace=known[rank], is_proven=is_proven)


HostReading = tuple[HostPace | None, ...]
"""Of the ranks of a run, means over its measured steps; None where a rank has none."""


def reduce_host_bound(trace: Trace) -> HostReading | None:
    """None where no device of the run shows it."""
    if trace.host_bound_ns is None or list(trace.host_bound_phases) != [*DEVICE_PHASES]:
        return None
    ranks = len(trace.stamps)
    sums, counts = np.zeros((ranks, len(DEVICE_PHASES))), np.zeros((ranks, 1))
    length = max(1, READ_AT_ONCE // ranks)
    for first, stop in trace.blocks.tolist():
        for begin in range(first, stop, length):
            ns = np.asarray(trace.host_bound_ns[:, begin : min(begin + length, stop)])
            known = (ns != ABSENT).all(axis=2, keepdims=True)
            sums += np.where(known, ns, 0).sum(axis=1)
            counts += known.sum(axis=1)
    if not counts.any():
        return None
    records = [host_record(report) for report in trace.reports]
    return tuple(
        _pace(its_sums.tolist(), count, record)
        for its_sums, count, record in zip(sums / 1e6, counts[:, 0].tolist(), records, strict=True)
    )


def _pace(sums_ms: Sequence[float], count: float, record: Mapping[str, object]) -> HostPace | None:
    if not count:
        return None
    syncs = record.get("syncs")
    return HostPace(
        **{name: ms / count for name, ms in zip(DEVICE_PHASES, sums_ms, strict=True)},
        at_most=by_phase(record.get("idle_ms")) or None, syncs=float(syncs) if _is_number(syncs) else None,
    )  # fmt: skip


def host_record(report: RankReport) -> Mapping[str, object]:
    """What a rank's report has of it (hpc.run.script_steps.host_bound)."""
    record = report.script.get("host_bound")
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
    ranks = tuple(mean_pace(paces) for paces in zip(*readings, strict=True))
    mean = mean_pace(ranks)
    return None if mean is None else HostBound(mean=mean, ranks=ranks)


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
