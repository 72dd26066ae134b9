"""What the steps of measured runs are made of: a rank's own time, split into what a node, a rank and a step add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpc.model.timestamps import ABSENT, BATCH_READY, END, GRADS_READY, REDUCED
from hpc.model.trace import Trace
from parse.ledger.breakdown import BORDERS, known_borders, step_terms
from parse.ledger.meetings import awaited_calls, lacks_meetings, local_meetings, meeting_kinds, read_pieces
from parse.ledger.types import TERMS

Floats = npt.NDArray[np.float64]
PHASES = ("data", "compute", "optimizer", "leave")
"""A rank's own times in a step; `leave` is by how much later than the first it has the result of the collectives."""
_OF_TERMS = tuple(map(TERMS.index, PHASES[:3]))
"""The first three of PHASES among the terms."""
SEGMENT_STEPS = 20
"""Steps that are drawn together, so that what lasts several stays whole; a fifth of the measured ones at most."""


class NotDrawable(ValueError):
    """Nothing can be drawn from these runs; the text says which, and why."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StepParts:
    """One run's own times, ns: their sum is what each rank took in each step, in the order of PHASES.

    `mean` [phase] over all ranks and steps; by how much a node [node, phase] and a rank [rank, phase] differ from that
    in all steps; by how much, besides, a step does on all ranks, on a node [node, step, phase] and on a rank
    [rank, step, phase]. `collectives` [step] are what all wait for together, `least` [phase] the least that was
    measured. `node_of` [rank] counts nodes from 0. `bound_ns` is that of the clocks,
    `samples` are those of a rank's step.
    """

    mean: Floats
    nodes: Floats
    ranks: Floats
    common: Floats
    node_steps: Floats
    rank_steps: Floats
    collectives: Floats
    least: Floats
    node_of: npt.NDArray[np.int64]
    bound_ns: float
    samples: float

    @property
    def segment_steps(self) -> int:
        """Steps that are drawn together."""
        return max(1, min(SEGMENT_STEPS, len(self.common) // 5))


def read_parts(trace: Trace) -> StepParts:
    """Those of a run. Raises NotDrawable where its time stamps do not show a rank's own time, TraceError as
    `Trace.to_global`."""
    if len(trace.stamps) < 2:
        raise NotDrawable(f"{trace.run_id}: one rank: how ranks differ, and what collectives take, is not known")
    own_ns, collectives_ns = _own_times(trace)
    nodes = [report.node_rank or 0 for report in trace.reports]
    bounds_ns = trace.clock_bound_ns[trace.clock_bound_ns > 0]
    samples = np.concatenate([trace.samples[:, first:stop] for first, stop in trace.blocks.tolist()], axis=1)
    return _parts(
        own_ns, collectives_ns, np.unique(nodes, return_inverse=True)[1],
        bound_ns=float(np.median(bounds_ns)) if bounds_ns.size else 0.0, samples=float(np.median(samples)),
    )  # fmt: skip


def _own_times(trace: Trace) -> tuple[Floats, Floats]:
    """What each rank takes by itself [rank, step, phase], and the collectives [step], ns."""
    kinds, known = meeting_kinds(trace), {*BORDERS}
    if trace.calls is not None or known_borders(trace, {})[0] < known:
        raise NotDrawable(f"{trace.run_id}: what a rank takes by itself cannot be told from its waits for others")
    pieces_ns = []
    blocks = [(first, stop) for first, stop in trace.blocks.tolist() if stop > first]
    for first, stop in blocks:
        if len(kinds) and lacks_meetings(local_meetings(trace, kinds, first - 1, stop), kinds).any():
            raise NotDrawable(f"{trace.run_id}: collectives inside some steps are not recorded")
        for piece in read_pieces(trace, kinds, [(first, stop)]):
            if (piece.local_ns[:, 1:, [BATCH_READY, GRADS_READY, REDUCED, END]] == ABSENT).any():
                raise NotDrawable(f"{trace.run_id}: time stamps inside some steps are absent")
            meetings_ns = piece.meetings_ns
            if meetings_ns is not None:
                bounds_ns = trace.bounds_of(np.ascontiguousarray(piece.local_ns[:, 1:, GRADS_READY]))
                meetings_ns = awaited_calls(meetings_ns, kinds, 2 * float(bounds_ns.max()))
            terms_ns = step_terms(piece.stamps_ns, frozenset(known), meetings_ns).astype(np.float64)
            pieces_ns.append(terms_ns)
    if not pieces_ns or sum(terms_ns.shape[1] for terms_ns in pieces_ns) < 2:
        raise NotDrawable(f"{trace.run_id}: fewer than two measured steps")
    terms_ns = np.concatenate(pieces_ns, axis=1)
    exposed_ns = terms_ns[:, :, TERMS.index("communication")]
    first_ns = exposed_ns.min(axis=0)
    own_ns = np.concatenate([terms_ns[:, :, _OF_TERMS], (exposed_ns - first_ns)[:, :, None]], axis=2)
    return own_ns, np.maximum(first_ns, 0)


def _parts(own_ns: Floats, collectives_ns: Floats, node_of: npt.NDArray[np.int64], **others: float) -> StepParts:
    """The times split level by level.

    A mean over few ranks or nodes carries a part of their noise, and what is left beside it lacks that part. So
    deviations are stretched by √(n / (n − 1)) and means shrunk, until each level has the variance of its own (the
    reflated residuals of Carpenter, Goldstein and Rasbash, Applied Statistics 52, 2003).
    """
    if np.bincount(node_of).max() == 1:  # a rank on each node: what nodes and ranks differ by is the same
        node_of = np.zeros_like(node_of)
    count = int(node_of.max()) + 1
    per_node = len(node_of) / count
    by_node = [np.flatnonzero(node_of == node) for node in range(count)]
    rank_mean = own_ns.mean(axis=1)
    node_mean = np.stack([rank_mean[ranks].mean(axis=0) for ranks in by_node])
    mean = node_mean.mean(axis=0)
    varies = own_ns - rank_mean[:, None]
    node_varies = np.stack([varies[ranks].mean(axis=0) for ranks in by_node])
    common = node_varies.mean(axis=0)
    rank_steps = (varies - node_varies[node_of]) * _inflated(per_node)
    node_steps = (node_varies - common) * _inflated(count)
    node_steps = _shrunk(node_steps, rank_steps.var(axis=(0, 1)) / per_node, (0, 1))
    common = _shrunk(common, node_steps.var(axis=(0, 1)) / count + rank_steps.var(axis=(0, 1)) / len(node_of), (0,))
    ranks = (rank_mean - node_mean[node_of]) * _inflated(per_node)
    ranks = _shrunk(ranks, _variance_of_mean(rank_steps), (0,))
    nodes = (node_mean - mean) * _inflated(count)
    nodes = _shrunk(nodes, ranks.var(axis=0) / per_node + _variance_of_mean(node_steps), (0,))
    return StepParts(
        mean=mean, nodes=nodes, ranks=ranks, common=common, node_steps=node_steps, rank_steps=rank_steps,
        collectives=collectives_ns, least=own_ns.min(axis=(0, 1)), node_of=node_of, **others,
    )  # fmt: skip


def _inflated(count: float) -> float:
    """What deviations from the mean of so many are multiplied by; 0 of one, which shows none."""
    return float(np.sqrt(count / (count - 1))) if count > 1 else 0.0


def _shrunk(effects: Floats, noise: Floats, axes: Sequence[int]) -> Floats:
    """The effects [..., phase] with the variance that they have beside that of the noise [phase] in them."""
    variance = effects.var(axis=tuple(axes))
    share = np.divide(np.maximum(variance - noise, 0), variance, out=np.zeros_like(variance), where=variance > 0)
    return np.asarray(effects * np.sqrt(share))


def _variance_of_mean(varies: Floats) -> Floats:
    """The variance [phase] of a mean over the steps of what varies [place, step, phase], from the means of segments,
    so that neighbours may resemble one another."""
    steps = varies.shape[1]
    count = max(2, min(10, steps // 2))
    means = np.stack([part.mean(axis=1) for part in np.array_split(varies, count, axis=1)], axis=1)
    return np.asarray(means.var(axis=(0, 1)) / count)
