"""What the collectives and messages that ranks wait for take of a step, by name."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from hpc.model.groups import GROUP, NAME, NO_CALL, CallTable
from hpc.model.timestamps import ABSENT
from hpc.model.trace import Trace

Ints = npt.NDArray[np.int64]
PIECE_STAMPS = 3_000_000
"""Stamps of calls in groups that are read at once; it bounds the memory."""


def meetings_s(trace: Trace) -> dict[str, float]:
    """Means over all ranks and measured steps, those of one name together; of ranks in groups those of one dimension,
    `all-reduce (tp)`. Empty without any."""
    if trace.meetings is None:
        return {}
    return _of_all(trace) if trace.calls is None else _by_dimension(trace, trace.calls)


def _of_all(trace: Trace) -> dict[str, float]:
    """Of ranks that all call the same; without those that a rank lacks in some step."""
    assert trace.meetings is not None
    taken_ns, whole = np.zeros(len(trace.meeting_names)), np.ones(len(trace.meeting_names), bool)
    for first, stop in trace.blocks:
        arrives, waits, ends = np.moveaxis(np.asarray(trace.meetings[:, first:stop]), 3, 0)
        whole &= ((arrives != ABSENT) & (ends != ABSENT)).all(axis=(0, 1))
        begin = np.where(waits == ABSENT, arrives, waits)
        taken_ns += np.where(whole, ends - begin, 0).mean(axis=0).sum(axis=0)
    steps = int(np.diff(trace.blocks).sum())
    total_s: dict[str, float] = {}
    for name, its_ns, known in zip(trace.meeting_names, taken_ns.tolist(), whole, strict=True):
        if known:
            total_s[name] = total_s.get(name, 0.0) + its_ns / steps / 1e9
    return total_s


def _by_dimension(trace: Trace, table: CallTable) -> dict[str, float]:
    """Of ranks in groups; a rank or a step that has none of a name counts as 0, a call whose result nobody waits for
    takes nothing. Left out are names for whose results no rank waits in any step."""
    assert trace.meetings is not None
    taken_ns, ever = np.zeros(table.calls.shape[:2], np.int64), np.zeros(table.calls.shape[:2], np.bool_)
    for first, stop in _pieces(trace, table):
        arrives, waits, ends = np.moveaxis(np.asarray(trace.meetings[:, first:stop], np.int64), 3, 0)
        present = (arrives != ABSENT) & (ends != ABSENT)
        begin = np.where(waits == ABSENT, arrives, waits)
        taken_ns += np.where(present, ends - begin, 0).sum(axis=1)
        ever |= present.any(axis=1)
    counted = len(table.calls) * int(np.diff(trace.blocks).sum())
    total_s: dict[str, float] = {}
    for rank, call in np.argwhere(ever & (table.calls[..., NAME] != NO_CALL)).tolist():
        name, group = table.names[table.calls[rank, call, NAME]], table.groups[table.calls[rank, call, GROUP]]
        label = f"{name} ({group.dimension})" if group.dimension else name
        total_s[label] = total_s.get(label, 0.0) + int(taken_ns[rank, call]) / counted / 1e9
    return total_s


def _pieces(trace: Trace, table: CallTable) -> Iterator[tuple[int, int]]:
    """First step and stop of each piece of the measured blocks."""
    length = max(1, PIECE_STAMPS // max(1, 3 * table.calls[..., NAME].size))
    for first, stop in trace.blocks.tolist():
        for begin in range(first, stop, length):
            yield begin, min(begin + length, stop)
