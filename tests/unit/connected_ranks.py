"""Ranks that MPI does not connect: threads of this process, each with the connections of one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hpc.measure.clock import ClockError
from hpc.measure.connections import ConnectionLost, Connections
from hpc.measure.world import LaunchError
from hpc.run.rendezvous import join
from hpc.system.job_facts import Launch

LIMIT_S = 600.0


def launch(rank: int, size: int) -> Launch:
    return Launch(launcher="torchrun", rank=rank, size=size, one_node=True, identity="a test")


def together(size: int, folder: Path, of_rank: Callable[[Connections], Any]) -> list[Any]:
    """What the ranks return, or the exception that each raises."""

    def outcome(rank: int) -> Any:
        try:
            return of_rank(join(launch(rank, size), folder, LIMIT_S))
        except (ClockError, ConnectionLost, LaunchError, SystemExit) as error:
            return error

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(outcome, range(size)))
