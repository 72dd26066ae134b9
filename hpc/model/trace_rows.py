"""Datasets that stay in the file of a trace and are read by ranges of steps."""

from __future__ import annotations

import os
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.model.trace import TraceCutOff


class Rows:
    """A dataset [rank, step, …] in the file, read by ranges of steps.

    HDF5 would read much more than a short range of each row; the rows are contiguous, so they are read directly.
    """

    def __init__(self, dataset: Any, descriptor: int | None) -> None:
        assert descriptor is not None
        self.shape, self.dtype, self.ndim = dataset.shape, dataset.dtype, len(dataset.shape)
        self._descriptor, self._offset = descriptor, dataset.id.get_offset()
        self._step_bytes = self.dtype.itemsize * prod(self.shape[2:])

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        first, stop, _ = key[1].indices(self.shape[1])
        column = key[2:]
        if key[0] != slice(None) or key[1].step not in (None, 1) or not all(isinstance(at, int) for at in column):
            raise IndexError("what stays in the file is read as [:, first:stop] or [:, first:stop, column]")
        steps = max(0, stop - first)
        if not column:
            out = np.empty((self.shape[0], steps, *self.shape[2:]), self.dtype)
            for rank, row in enumerate(out if out.size else ()):
                self._read(rank, first, row)
            return out
        out, row = np.empty((self.shape[0], steps), self.dtype), np.empty((steps, *self.shape[2:]), self.dtype)
        for rank in range(self.shape[0] if row.size else 0):  # the row stays in the core's cache
            self._read(rank, first, row)
            out[rank] = row[(slice(None), *column)]
        return out

    def _read(self, rank: int, first: int, row: Any) -> None:
        """Reads what a rank recorded from a step on."""
        at = self._offset + (rank * self.shape[1] + first) * self._step_bytes
        if os.preadv(self._descriptor, [row], at) != row.nbytes:
            raise TraceCutOff(f"the file is cut off inside what rank {rank} recorded")
