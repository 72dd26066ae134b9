"""Lets ranks exchange numbers while they have nothing else to do, without keeping a core busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

POLL_S = 0.02


class Agreement:
    """Exchanges over a communicator of its own. A rank that waits for others sleeps: MPI's own waits are busy loops."""

    def __init__(self, comm: Intracomm, pause: Callable[[float], object] = time.sleep) -> None:
        self._comm, self._pause = comm.Dup(), pause

    def exchange(self, *values: int) -> npt.NDArray[np.int64]:
        """The values of all ranks, int64 [rank, value]. Collective."""
        mine = np.array(values, np.int64)
        everyone = np.empty((self._comm.size, len(values)), np.int64)
        request = self._comm.Iallgather(mine, everyone)
        while not request.Test():
            self._pause(POLL_S)
        return everyone

    def share(self, text: str) -> Sequence[str]:
        """The texts of all ranks. Collective; for when all come at about the same time."""
        texts: Sequence[str] = self._comm.allgather(text)
        return texts
