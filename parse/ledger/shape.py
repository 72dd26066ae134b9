"""How a straggler's delay runs over the steps: constant, growing or falling, from a step on, or every so many steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np

from hpc.model.trace import Floats
from parse.ledger.verdict import Shape, ShapeKind
from parse.rules import EVENTS, HALF, MOSTLY, PIECES

BETTER = 25.0
"""A slope or a jump is real where it explains so many times the variance that it leaves, each by its degrees of
freedom (F): among ten pieces that differ by chance a slope does in one of a thousand cases."""
SHORTEST_PERIOD = 2


def course(delays: Sequence[Floats], first_step: int) -> Shape:
    """The shape of a delay in ms [step] of each run, of windows that begin at `first_step`; in means over runs."""
    steps = min(map(len, delays))
    constant = Shape(kind=ShapeKind.CONSTANT)
    if steps < 2 * PIECES:
        return constant
    means = np.mean([delay[:steps] for delay in delays], axis=0)
    pieces = _pieces(means)
    at = np.arange(PIECES) - (PIECES - 1) / 2
    slope = float(at @ pieces / (at @ at))
    cut = _jump(means)
    before, after = float(means[:cut].mean()), float(means[cut:].mean())
    whole, by_slope, by_jump = (
        float(((values - values.mean()) ** 2).sum())
        for values in (pieces, pieces - slope * at, _pieces(means - np.where(np.arange(steps) < cut, before, after)))
    )
    grows = by_slope <= by_jump
    residual, parameters = (by_slope, 2) if grows else (by_jump, 3)  # a jump has a place, too
    change = slope * PIECES if grows else after - before
    explained = (whole - residual) / (parameters - 1)
    if explained <= BETTER * residual / (PIECES - parameters) or abs(change) < HALF * abs(pieces.mean()):
        return constant
    if grows:
        kind = ShapeKind.GROWING if slope > 0 else ShapeKind.FALLING
        return Shape(kind=kind, per_100_steps=slope * PIECES / steps * 100)
    return Shape(kind=ShapeKind.BEGINS if after > before else ShapeKind.ENDS, step=first_step + cut)


def _pieces(values: Floats) -> Floats:
    return np.array([part.mean() for part in np.array_split(values, PIECES)])


def _jump(values: Floats) -> int:
    """The place before and from which the means differ so that they leave the least squares."""
    before = np.arange(1, len(values))
    after = len(values) - before
    sums = np.cumsum(values)[:-1]
    return 1 + int((before * after * (sums / before - (values.sum() - sums) / after) ** 2).argmax())


def rhythm(run_steps: Sequence[Sequence[int]]) -> Shape | None:
    """The period of the steps in which a straggler is late, run by run; None where they have none."""
    gaps = Counter(after - before for steps in run_steps for before, after in pairwise(steps))
    if sum(map(len, run_steps)) < EVENTS or not gaps:
        return None
    period, _ = gaps.most_common(1)[0]
    if period < SHORTEST_PERIOD:
        return None
    regular = expected = 0
    for steps in filter(None, run_steps):
        phase, in_phase = Counter(step % period for step in steps).most_common(1)[0]
        regular += in_phase
        expected += len(range(min(step for step in steps if step % period == phase), max(steps) + 1, period))
    if regular < MOSTLY * len([*chain.from_iterable(run_steps)]) or regular < MOSTLY * expected:
        return None
    return Shape(kind=ShapeKind.PERIODIC, period=period)
