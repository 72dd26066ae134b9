"""Inputs and expected results of collectives: whole numbers, so that sums are exact."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hpc.model.collective_plan import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    REDUCE_SCATTER,
    Collective,
    partner_rank,
    plan_of,
)  # fmt: skip
from hpc.model.options import OptionError
from hpc.model.spec import RunSpec

Float32s = npt.NDArray[np.float32]

ROOT = 0
_PERIOD = 251  # a prime, so that no power of two of elements or ranks hides a shift; sums stay exact to 67,000 ranks
_STEP = 17


class Collectives:
    """Element i of rank r is (i + 17 r) mod 251. Raises OptionError where the run's blocks are not its collectives."""

    def __init__(self, run: RunSpec, device: object, rank: int) -> None:
        self.plan = plan_of(run)
        if len(self.plan) != len(run.blocks):
            raise OptionError(
                f"the run has {len(run.blocks)} blocks for {len(self.plan)} collectives; start it by rankwise sweep "
                "--collectives or rankwise collectives, which plan both"
            )
        self._run, self._rank, self._ranks = run, rank, run.ranks
        per_rank = (np.arange(_PERIOD) + _STEP * np.arange(run.ranks)[:, None]) % _PERIOD
        self._sums = per_rank.sum(axis=0).astype(np.float32)

    def given(self, collective: Collective) -> Float32s:
        """This rank's input; in a broadcast, other ranks than the root have values that must be overwritten."""
        return _values(collective.given, self._rank)

    def wrong(self, collective: Collective, got: npt.NDArray[np.generic]) -> int:
        """The number of wrong elements in this rank's result; all, where the shape is wrong."""
        expected = self._expected(collective)
        return int(np.count_nonzero(got != expected)) if got.shape == expected.shape else collective.got

    def _expected(self, collective: Collective) -> Float32s:
        if collective.operation == ALL_REDUCE:
            return np.resize(self._sums, collective.got)
        if collective.operation == REDUCE_SCATTER:
            return np.resize(np.roll(self._sums, -self._rank * collective.got), collective.got)
        if collective.operation == ALL_GATHER:
            return np.concatenate([_values(collective.given, rank) for rank in range(self._ranks)])
        if collective.turn is not None:
            partner = partner_rank(self._run, self._rank, collective.turn)
            return _values(collective.got, self._rank if partner is None else partner)
        assert collective.operation == BROADCAST, collective.operation
        return _values(collective.got, ROOT)


def _values(count: int, rank: int) -> Float32s:
    return np.resize(((np.arange(_PERIOD) + _STEP * rank) % _PERIOD).astype(np.float32), count)
