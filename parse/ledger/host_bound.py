"""How far devices wait for their hosts in a step of a script: by the hooks' events on the device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpc.model.timestamps import ABSENT
from hpc.model.trace import Trace
from hpc.observe.stamps import PHASES
from parse import stats
from parse.ledger.types import HostBound, HostPace

Floats = npt.NDArray[np.float64]
_CHUNK = 500_000
"""Ranks × steps that are read at once; it bounds the memory."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HostReading:
    """A run: how long hosts set the pace of their devices, mean ms of its measured steps, [rank, phase of PHASES]; and
    how often the script waits for the device in a step, by rank. NaN where a rank has none."""

    ms: Floats
    syncs: Floats


def reduce_host_bound(trace: Trace) -> HostReading | None:
    """None where no device of the run shows it."""
    if trace.host_bound_ns is None or list(trace.host_bound_phases) != [*PHASES]:
        return None
    ranks = len(trace.stamps)
    sums, counts = np.zeros((ranks, len(PHASES))), np.zeros((ranks, 1))
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
    return HostReading(ms=ms, syncs=np.array([_syncs(report.extra.get("script")) for report in trace.reports]))


def _syncs(script: object) -> float:
    """How often a step of the script waits for its device, by its rank's report; NaN where that does not have it."""
    record = script.get("host_bound") if isinstance(script, Mapping) else None
    syncs = record.get("syncs") if isinstance(record, Mapping) else None
    is_count = isinstance(syncs, (int, float)) and not isinstance(syncs, bool) and 0 <= syncs < math.inf
    return float(syncs) if is_count else math.nan  # type: ignore[arg-type]


def host_bound_of_point(readings: Sequence[HostReading]) -> HostBound | None:
    """The mean of the point's runs; None without any."""
    if not readings:
        return None
    ranks = tuple(_pace([(reading.ms[rank], reading.syncs[rank]) for reading in readings])
                  for rank in range(len(readings[0].ms)))  # fmt: skip
    known = [rank for rank in ranks if rank is not None]
    return HostBound(mean=mean_pace(known), ranks=ranks) if known else None


def _pace(runs: Sequence[tuple[Floats, float]]) -> HostPace | None:
    """That of one rank over the runs."""
    known = [(ms.tolist(), syncs) for ms, syncs in runs if not np.isnan(ms).any()]
    if not known:
        return None
    phases = {
        name: stats.mean(column)
        for name, column in zip(PHASES, zip(*(ms for ms, _ in known), strict=True), strict=True)
    }
    counted = [syncs for _, syncs in known if not math.isnan(syncs)]
    return HostPace(**phases, syncs=stats.mean(counted) if counted else None)


def mean_pace(paces: Sequence[HostPace]) -> HostPace:
    """That of several ranks."""
    counted = [pace.syncs for pace in paces if pace.syncs is not None]
    return HostPace(
        **{name: stats.mean([getattr(pace, name) for pace in paces]) for name in PHASES},
        syncs=stats.mean(counted) if counted else None,
    )
