"""Datasets that stay in the file of a trace and are read by ranges of steps."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc.model.timestamps import ABSENT, MEETING_STAMPS
from hpc.model.trace import TraceError


class Rows:
    """A dataset [rank, step, …] in the file, read by ranges of steps.

    HDF5 would read much more than a short range of each row; the rows are contiguous, so they are read directly.
    """

    def __init__(self, dataset: Any, descriptor: int | None) -> None:
        assert descriptor is not None
        self.shape, self.dtype, self.ndim = dataset.shape, dataset.dtype, len(dataset.shape)
        self._dataset, self._descriptor, self._offset = dataset, descriptor, dataset.id.get_offset()

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        first, stop, _ = key[1].indices(self.shape[1])
        if key[0] != slice(None) or key[2:] or key[1].step not in (None, 1):
            raise IndexError("what stays in the file is read as [:, first:stop]")
        if self._offset is None:  # another tool stored it in chunks
            return np.asarray(self._dataset[:, first:stop])
        out = np.empty((self.shape[0], max(0, stop - first), *self.shape[2:]), self.dtype)
        row_bytes = self.dtype.itemsize * int(np.prod(self.shape[1:]))
        at = self._offset + first * row_bytes // max(1, self.shape[1])
        for rank, row in enumerate(out if out.size else ()):
            if os.preadv(self._descriptor, [row], at + rank * row_bytes) != row.nbytes:
                raise TraceError(f"the file is cut off inside what rank {rank} recorded")
        return out


class _RowsWithoutWaits:
    """Meetings [rank, step, meeting, 2], read as if the moment at which a rank begins to wait stood between."""

    def __init__(self, rows: Any) -> None:
        self._rows, self.dtype, self.ndim = rows, rows.dtype, 4
        self.shape = (*rows.shape[:3], len(MEETING_STAMPS))

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        return np.insert(self._rows[key], 1, ABSENT, axis=3)


def with_waits(meetings: Any) -> Any:
    """With the moment at which a rank begins to wait, absent; older files have arrival and end alone."""
    return _RowsWithoutWaits(meetings) if meetings.shape[3:] == (2,) else meetings
