"""How ranks exchange numbers without waiting busily."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from hpc.measure.connections import Communicator

POLL_S = 0.02


class Agreement:
    """Exchanges over a communicator of its own. A rank that waits for others sleeps: MPI's own waits are busy loops."""

    def __init__(self, comm: Communicator, pause: Callable[[float], object] = time.sleep) -> None:
        self._comm, self._pause = comm.Dup(), pause

    def exchange(self, *values: int, limit_s: float = math.inf) -> npt.NDArray[np.int64]:
        """The values of all ranks, int64 [rank, value]. Collective. Raises TimeoutError where it takes longer."""
        mine = np.array(values, np.int64)
        everyone = np.empty((self._comm.size, len(values)), np.int64)
        request = self._comm.Iallgather(mine, everyone)
        end_s = time.monotonic() + limit_s
        while not request.Test():
            if time.monotonic() > end_s:
                raise TimeoutError
            self._pause(POLL_S)
        return everyone

    def share(self, text: str) -> Sequence[str]:
        """The texts of all ranks. Collective; for when all come at about the same time."""
        texts: Sequence[str] = self._comm.allgather(text)
        return texts
