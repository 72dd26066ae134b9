"""One time axis for all ranks: how each rank's clock stands against rank 0's, and how far off that may be."""

from __future__ import annotations

import gc
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpc.clock_model import MAX_DRIFT, ClockError, ClockModel, SyncPoint, estimate

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    Ints = NDArray[np.int64]

_PING_TAG, _PONG_TAG = 77, 78


def clock_domain(proc: Path = Path("/proc")) -> str:
    """Names the clock that this process reads: equal names, same clock.

    That is the same boot of the same kernel and the same time namespace. Where the system does not tell, every
    process is taken to have a clock of its own.
    """
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{socket.gethostname()}/{os.getpid()}"
    namespace = proc / "self/ns/time"
    # Kernels before 5.6 have no time namespaces, so all processes share the only one.
    return f"{boot}/{namespace.readlink() if namespace.is_symlink() else 'time'}"


@dataclass(frozen=True)
class _Report:
    """What a rank tells all others at the end of a synchronisation."""

    entered_ns: int
    left_ns: int
    point: SyncPoint | None
    error: str


class GlobalClock:
    """Places this rank's clock on rank 0's time axis. Ranks that read the same clock need no exchange.

    `domain` is the name of this rank's clock, `points` its synchronisation points so far, `barrier_exits_ns` when
    this rank left the barriers that begin and end each of them (local clock). A bound of exactly 0 means: this is
    rank 0's own clock. Ranks of one domain share their points, so between them there is no error at all.
    """

    def __init__(
        self,
        comm: Intracomm,
        *,
        clock: Callable[[], int] = time.perf_counter_ns,
        domain: str | None = None,
        pings: int = 50,
    ) -> None:
        if pings < 1:
            raise ValueError(f"pings is {pings}; a synchronisation takes at least 1")
        self.domain = clock_domain() if domain is None else domain
        self.points: list[SyncPoint] = []
        self.barrier_exits_ns: list[int] = []
        self._comm = comm.Dup()
        self._clock = clock
        self._pings = pings
        places = self._comm.allgather((self.domain, socket.gethostname()))
        self._hosts = [host for _, host in places]
        self._domains: dict[str, list[int]] = {}
        for rank, (name, _) in enumerate(places):
            self._domains.setdefault(name, []).append(rank)

    def synchronise(self) -> SyncPoint:
        """Adds a synchronisation point. Collective.

        Raises ClockError on every rank alike where the clocks of any contradict causality; no point is added then.
        """
        leader = self._domains[self.domain][0]
        with _no_garbage_collection():
            entered_ns = self._clock()
            self._comm.Barrier()
            left_ns = self._clock()
            point, error = self._measure() if self._comm.rank == leader else (None, "")
            reports: list[_Report] = self._comm.allgather(_Report(entered_ns, left_ns, point, error))
            if errors := [report.error for report in reports if report.error] + self._false_domains(reports):
                raise ClockError("; ".join(errors))
            self._comm.Barrier()
            end_ns = self._clock()
        point = reports[leader].point
        assert point is not None
        self.points.append(point)
        self.barrier_exits_ns += [left_ns, end_ns]
        return point

    def _measure(self) -> tuple[SyncPoint | None, str]:
        """This leader's point, or what is wrong with it: told to all, because raising here would leave them waiting."""
        if self._comm.rank == 0:
            for ranks in self._domains.values():
                if ranks[0] != 0:
                    self._answer(ranks[0])
            return SyncPoint(self._clock(), 0.0, 0.0), ""
        stamps = self._ask()
        try:
            point = estimate(*stamps, drift=MAX_DRIFT)
            ClockModel.of([*self.points, point])
        except ClockError as error:
            return None, (
                f"the clock of {self._name(self._comm.rank)} against that of {self._name(0)}: {error}. One of them was "
                "stepped or suspended (a virtual machine moved or paused?); the times of this run mean nothing"
            )
        return point, ""

    def _answer(self, child: int) -> None:
        from mpi4py import MPI

        ping, pong = np.zeros(1, np.int64), np.zeros(2, np.int64)
        receive, send = (ping, 1, MPI.INT64_T), (pong, 2, MPI.INT64_T)
        comm, clock = self._comm, self._clock
        for _ in range(1 + self._pings):
            comm.Recv(receive, child, _PING_TAG)
            pong[0] = clock()
            pong[1] = clock()
            comm.Send(send, child, _PONG_TAG)

    def _ask(self) -> tuple[Ints, Ints, Ints, Ints]:
        from mpi4py import MPI

        ping, pong = np.zeros(1, np.int64), np.zeros(2, np.int64)
        send, receive = (ping, 1, MPI.INT64_T), (pong, 2, MPI.INT64_T)
        comm, clock = self._comm, self._clock
        stamps = np.zeros((1 + self._pings, 4), np.int64)
        for row in stamps:
            sent_ns = clock()
            comm.Send(send, 0, _PING_TAG)
            comm.Recv(receive, 0, _PONG_TAG)
            row[3] = clock()
            row[0], row[1], row[2] = sent_ns, pong[0], pong[1]
        c1, p1, p2, c2 = stamps[1:].T  # the first exchange waits for its turn and sets up the connection
        return c1, p1, p2, c2

    def _false_domains(self, reports: list[_Report]) -> list[str]:
        """Domains whose ranks cannot be reading one clock: one had left the barrier before another entered it."""
        errors = []
        for name, ranks in self._domains.items():
            last = max(ranks, key=lambda rank: reports[rank].entered_ns)
            first = min(ranks, key=lambda rank: reports[rank].left_ns)
            if (ahead_ns := reports[last].entered_ns - reports[first].left_ns) > 0:
                errors.append(
                    f"{self._name(last)} and {self._name(first)} both name their clock {name}, but the first is at "
                    f"least {ahead_ns / 1e6:.3f} ms ahead. Machines resumed from one image share a boot id: reboot them"
                )
        return errors

    def _name(self, rank: int) -> str:
        return f"rank {rank} on {self._hosts[rank]}"


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
