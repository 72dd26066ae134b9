"""What is true of a run whose clocks' distances are known: nothing here comes from hpc.measure.clock or parse.ledger.

Two truths of the same run, which err in different ways. `stamped` is exact: the raw stamps, put on one time axis by
the distances that the kernel was given. `slept` knows no stamp at all: the recorded sleeps alone, in a world in which
nothing else takes time. Where a ledger differs from `stamped` the ledger is wrong; where `stamped` differs from
`slept`, the machine needed that time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpc.model.timestamps import ABSENT
from hpc.model.trace import Trace, TraceError

Ms = npt.NDArray[np.float64]
Ns = npt.NDArray[np.int64]

TERMS = ("data", "compute", "wait", "communication", "optimizer")
CAUSES = ("release", "optimizer", "data", "compute")
PHASES = ("data", "compute", "transfer", "update")
CALL, _, END = range(3)
DATA, COMPUTE, WAIT, COMMUNICATION, OPTIMIZER = range(len(TERMS))


@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    """`terms` float64 [rank, step, 5] ms, by TERMS; `causes` float64 [rank, step, 4] ms, by CAUSES: what lies between
    the step before's latest entry into the reduction and this rank's entry now. Only the measured steps."""

    terms: Ms
    causes: Ms

    @property
    def per_rank(self) -> Ms:
        """Means over the steps, [rank, 5] ms."""
        return self.terms.mean(axis=1)

    @property
    def entries(self) -> Ms:
        """How much later than the first rank each entered the reduction, [rank, step] ms."""
        entry = self.causes.sum(axis=2)
        return entry - entry.min(axis=0)


def stamped(
    stamps: Ns, ahead_ns: Sequence[int], blocks: Ns, meetings: Ns | None = None, roots: Sequence[int] = ()
) -> Truth:
    """From raw stamps int64 [rank, step, 6] ns, each rank's clock being exactly so far ahead of one that all share.

    `meetings` int64 [rank, step, meeting, 3] are the other collectives of a step: when a rank called it, began to wait
    (or ABSENT) and had the result. What it waits and communicates there is no data, compute or optimizer of its own.
    """
    shared = stamps - np.array(ahead_ns, np.int64)[:, None, None]
    steps = measured(blocks)
    now, before = shared[:, steps], shared[:, steps - 1]
    begin, ready, _, grads, reduced, end = np.moveaxis(now, 2, 0)
    latest = grads.max(axis=0)
    latest_before = before[:, :, 3].max(axis=0)
    terms = _ms(ready - begin, grads - ready, latest - grads, reduced - latest, end - reduced)
    causes = _ms(before[:, :, 4] - latest_before, before[:, :, 5] - before[:, :, 4], ready - begin, grads - ready)
    if meetings is not None:
        spent = spent_in_meetings(stamps, ahead_ns, meetings, roots) / 1e6
        here, ahead = spent[:, steps], spent[:, steps - 1]
        for phase, (term, cause) in enumerate(((DATA, 2), (COMPUTE, 3))):
            terms[:, :, term] -= here[:, :, phase].sum(axis=2)
            causes[:, :, cause] -= here[:, :, phase].sum(axis=2)
        terms[:, :, OPTIMIZER] -= here[:, :, 2].sum(axis=2)
        causes[:, :, 1] -= ahead[:, :, 2].sum(axis=2)
        terms[:, :, WAIT] += here[..., 0].sum(axis=2)
        terms[:, :, COMMUNICATION] += here[..., 1].sum(axis=2)
    return Truth(terms=terms, causes=causes)


def spent_in_meetings(stamps: Ns, ahead_ns: Sequence[int], meetings: Ns, roots: Sequence[int]) -> Ns:
    """What each rank waits and communicates in its data, compute and optimizer: int64 [rank, step, phase 3, 2] ns.

    It waits for the last of those whom it needs, and communicates for the rest of the time until it has the result.
    In a broadcast (`roots` ≥ 0) it needs the ranks that called after another began to wait and before that one had
    the result; else all of them. Written out rank by rank, unlike the ledger's.
    """
    ranks, steps = meetings.shape[:2]
    spent = np.zeros((ranks, steps, 3, 2), np.int64)
    for step in range(steps):
        for at, root in enumerate(roots):
            moments = meetings[:, step, at]
            if (moments[:, CALL] == ABSENT).any() or (moments[:, END] == ABSENT).any():
                continue  # warm-up, in which the collectives are learned; nobody waits for it
            moments = np.where(moments == ABSENT, moments[:, [CALL]], moments) - np.array(ahead_ns, np.int64)[:, None]
            stays = [(call, begin, end) for call, begin, end in moments.tolist()]
            calls = [call for call, _, _ in stays]
            if root >= 0:
                calls = [min(calls)] + [its for its in calls if any(begin < its < end for _, begin, end in stays)]
            for rank, (_, begin, end) in enumerate(stays):
                ready, grads, reduced = (int(stamps[rank, step, stamp]) - ahead_ns[rank] for stamp in (1, 3, 4))
                phase = 0 if begin < ready else 1 if begin < grads else 2 if begin >= reduced else None
                if phase is not None:
                    waited = max(0, min(end, max(calls)) - begin)
                    spent[rank, step, phase] += (waited, end - begin - waited)
    return spent


def slept(injected_ns: Ns, blocks: Ns) -> Truth:
    """From recorded sleeps int64 [rank, step, phase] ns: all ranks leave a reduction when the last has entered it."""
    steps = measured(blocks)
    data, compute, transfer, update = np.moveaxis(injected_ns[:, steps], 2, 0)
    transfer_before, update_before = np.moveaxis(injected_ns[:, steps - 1, 2:], 2, 0)
    entry = transfer_before + update_before + data + compute
    return Truth(
        terms=_ms(data, compute, entry.max(axis=0) - entry, transfer, update),
        causes=_ms(transfer_before, update_before, data, compute),
    )


def measured(blocks: Ns) -> Ns:
    """The numbers of the measured steps."""
    return np.concatenate([np.arange(first, stop) for first, stop in blocks])


def _ms(*parts: Ns) -> Ms:
    return np.stack(parts, axis=2) / 1e6


@dataclass(frozen=True, kw_only=True, eq=False)
class Known:
    """What is known of one run: both truths of its measured steps, their numbers [step], and what the clocks of two
    ranks may be apart by the trace's own bounds."""

    run_id: str
    stamped: Truth
    slept: Truth
    steps: Ns
    open_ms: float


def stamped_of(trace: Trace, distance_s: int) -> Truth:
    """The exact truth of a run on the development cluster, whose node k reads a clock k times that many seconds
    ahead."""
    ahead_ns = [int(facts["hostname"].removeprefix("node")) * distance_s * 10**9 for facts in trace.ranks]
    return stamped(trace.stamps, ahead_ns, trace.blocks, trace.meetings, trace.meeting_roots)


def known_of(trace: Trace, distance_s: int) -> Known:
    """The truth of a run on the development cluster, whose node k reads a clock k times that many seconds ahead.

    Raises TraceError where the trace has no record of sleeps.
    """
    if trace.injected_ns is None or tuple(trace.injected_phases) != PHASES:
        raise TraceError(f"{trace.run_id}: no sleeps are recorded in {', '.join(PHASES)}")
    return Known(
        run_id=trace.run_id,
        stamped=stamped_of(trace, distance_s),
        slept=slept(trace.injected_ns, trace.blocks),
        steps=measured(trace.blocks),
        open_ms=2 * float(trace.clock_bound_ns.max()) / 1e6,
    )
