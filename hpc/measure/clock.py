"""One time axis for all ranks: the offset of each rank's clock from rank 0's, and its error bound."""

from __future__ import annotations

import gc
import math
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpc.model.clock_model import (
    MAX_DRIFT,
    ROUNDING_NS,
    STAR,
    ClockError,
    ClockModel,
    SyncPoint,
    clock_fault,
    estimate,
    fault_text,
    neighbours,
    through,
)
from hpc.model.timestamps import ABSENT
from hpc.system.host import clock_domain
from hpc.system.text import grouped

if TYPE_CHECKING:
    from mpi4py.MPI import Prequest

    from hpc.measure.connections import Communicator, Persistent

    Ints = NDArray[np.int64]

LOOK_AGAIN_S = 1.0
"""After so long a clock whose offset moved too far is compared once more: one that is slewed has moved on."""
_REPORT = np.dtype("i8,i8,i8,f8,f8,i8,i8")
_REPORT.names = ("entered_ns", "left_ns", "local_ns", "offset_ns", "bound_ns", "wrong", "moved")
"""A rank's report to rank 0 at the end of a synchronisation: its barrier, its point, whether something is wrong, and
whether that is an offset that moved too far."""
_PING_TAG, _PONG_TAG, _WHEN_TAG, _PLACE_TAG = 77, 78, 79, 80


def slept_ns() -> tuple[int, int] | None:
    """Bounds of the time in ns for which this system has been suspended since it booted.

    CLOCK_BOOTTIME counts that time and CLOCK_MONOTONIC does not (clock_gettime(2)). None if a system lacks them.
    """
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    before_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return boot_ns - time.clock_gettime_ns(time.CLOCK_MONOTONIC), boot_ns - before_ns


def unix_offset_ns() -> tuple[int, int]:
    """Unix time − this process's `perf_counter_ns`, and how far that can be off, both ns: the narrowest of five
    readings."""

    def reading() -> tuple[int, int]:
        before_ns = time.perf_counter_ns()
        unix_ns = time.time_ns()
        width_ns = time.perf_counter_ns() - before_ns
        return unix_ns - before_ns - width_ns // 2, (width_ns + 1) // 2 + 1  # and 1 for readings in whole nanoseconds

    return min((reading() for _ in range(5)), key=lambda each: each[1])


class GlobalClock:
    """Places this rank's clock on rank 0's time axis. Ranks that read the same clock need no exchange.

    `domain` is the name of this rank's clock, `points` its synchronisation points so far, `barrier_exits_ns` when
    this rank left the barriers that begin and end each of them (local clock), `unix_offsets_ns` what `unix_offset_ns`
    returned after each: profilers stamp with Unix time. A bound of exactly 0 means: this is rank 0's own clock. Ranks
    of one domain share their points, so between them there is no error at all.

    Above `star` domains they are compared in a tree; each hop adds its bound. A point is against rank 0 all the same.
    """

    def __init__(
        self,
        comm: Communicator,
        *,
        clock: Callable[[], int] = time.perf_counter_ns,
        slept: Callable[[], tuple[int, int] | None] = slept_ns,
        unix: Callable[[], tuple[int, int]] = unix_offset_ns,
        domain: str | None = None,
        pings: int = 50,
        star: int = STAR,
    ) -> None:
        self.domain = clock_domain() if domain is None else domain
        self.points: list[SyncPoint] = []
        self.barrier_exits_ns: list[int] = []
        self.unix_offsets_ns: list[tuple[int, int]] = []
        self._comm = comm.Dup()
        self._clock, self._slept, self._unix, self._pings = clock, slept, unix, pings
        self._slept_before: tuple[int, int] | None = None
        self._moved: SyncPoint | None = None
        places = self._comm.gather((self.domain, socket.gethostname())) or []
        self._domains = grouped((name, rank) for rank, (name, _) in enumerate(places))  # on rank 0 alone
        firsts = [(name, ranks[0], places[ranks[0]][1]) for name, ranks in self._domains.items()]
        firsts = self._comm.bcast(firsts)
        self._hosts = dict(enumerate(host for _, host in places)) | {rank: host for _, rank, host in firsts}
        leaders = [rank for _, rank, _ in firsts]
        self._leader = next(rank for name, rank, _ in firsts if name == self.domain)
        parent, children = neighbours(leaders.index(self._leader), len(leaders), star)
        self._parent = None if parent is None else leaders[parent]
        self._children = [leaders[child] for child in children]

    def synchronise(self) -> SyncPoint:
        """Adds a synchronisation point. Collective.

        Raises ClockError on every rank alike where the clocks of any contradict causality; no point is added then.
        """
        with _no_garbage_collection():
            entered_ns = self._clock()
            self._comm.Barrier()
            left_ns = self._clock()
            point, error = self._measure() if self._comm.rank == self._leader else (None, "")
            at_ns, offset_ns, bound_ns = (0, 0.0, 0.0) if point is None else astuple(point)
            flags = bool(error), self._moved is not None
            report = np.array([(entered_ns, left_ns, at_ns, offset_ns, bound_ns, *flags)], _REPORT)
            reports = np.empty(self._comm.size, _REPORT) if self._comm.rank == 0 else None
            self._comm.Gather(report.view(np.uint8), None if reports is None else reports.view(np.uint8))
            judged = self._comm.bcast(None if reports is None else self._judged(reports))
            if judged["moved"]:
                error = self._look_again() or error
            self._raise_errors(error, judged)
            self._comm.Barrier()
            end_ns = self._clock()
            unix = self._unix()
        self.points.append(SyncPoint(*judged["points"][self.domain]))
        self.barrier_exits_ns += [left_ns, end_ns]
        self.unix_offsets_ns.append(unix)
        return self.points[-1]

    @property
    def facts(self) -> dict[str, Any]:
        """All that it has measured, as JSON."""
        return {
            "domain": self.domain,
            "points": [[point.local_ns, point.offset_ns, point.bound_ns] for point in self.points],
            "barrier_exits_ns": self.barrier_exits_ns,
            "unix_offsets_ns": self.unix_offsets_ns,
        }

    def _measure(self) -> tuple[SyncPoint | None, str]:
        """This leader's point, and the error, which is returned because raising here would leave the others waiting."""
        point, model, error = (
            (SyncPoint(self._clock(), 0.0, 0.0), None, "") if self._parent is None else self._ask(self._parent)
        )
        for child in self._children:
            self._answer(child, model)
        return point, error or self._suspended()

    def _ask(self, parent: int) -> tuple[SyncPoint | None, ClockModel | None, str]:
        """This clock's point and model against rank 0 (None where there is none), and the error.

        A point that contradicts those before it is returned, without a model.

        The parent has been compared with rank 0 before.
        """
        stamps = self._exchange(parent)
        try:
            point, error = estimate(*stamps, drift=MAX_DRIFT), ""
        except ClockError as contradiction:
            point, error = None, self._contradiction(parent, f"{contradiction}: stepped or suspended meanwhile")
        if parent != 0:
            # The parent waits for this request in any case. A parent without a place of its own has reported why.
            parent_place = self._place_of(parent, ABSENT if point is None else point.local_ns + round(point.offset_ns))
            point = None if point is None or parent_place is None else through(point, parent_place)
        if point is None:
            return None, None, error
        try:
            return point, ClockModel.of([*self.points, point]), ""
        except ClockError as contradiction:
            self._moved = point
            return point, None, self._contradiction(0, contradiction)

    def _look_again(self) -> str:
        """Compares the clocks once more; the error that this proves of this leader's clock, else empty.

        Collective: every rank takes part where the offset of any clock moved too far.
        """
        moved, self._moved = self._moved, None
        time.sleep(LOOK_AGAIN_S)
        self._comm.Barrier()
        recent, _ = self._measure() if self._comm.rank == self._leader else (None, "")
        self._moved = None
        if moved is None:
            return ""
        fault = clock_fault([*self.points, moved, *([] if recent is None else [recent])])
        drift = f"clocks drift by {MAX_DRIFT * 1e6:.0f} ppm at most"
        return "" if fault is None else self._contradiction(0, f"{fault_text(fault)}; {drift}")

    def _exchange(self, parent: int) -> tuple[Ints, Ints, Ints, Ints]:
        ping, pong = np.zeros(1, np.int64), np.zeros(2, np.int64)
        stamps = np.zeros((1 + self._pings, 4), np.int64)
        sending = self._comm.Send_init(ping, parent, _PING_TAG)
        with _persistent(sending, self._comm.Recv_init(pong, parent, _PONG_TAG)) as (send, receive):
            for row in stamps:
                receive.Start()
                row[0] = self._clock()
                send.Start()
                receive.Wait()
                row[3] = self._clock()
                send.Wait()
                row[1:3] = pong
        c1, p1, p2, c2 = stamps[1:].T  # the first exchange waits for its turn and sets up the connection
        return c1, p1, p2, c2

    def _place_of(self, parent: int, parent_ns: int) -> SyncPoint | None:
        place = np.zeros(2, np.float64)
        self._comm.Send(np.array([parent_ns], np.int64), parent, _WHEN_TAG)
        self._comm.Recv(place, parent, _PLACE_TAG)
        offset_ns, bound_ns = place.tolist()
        return None if math.isnan(offset_ns) else SyncPoint(parent_ns, offset_ns, bound_ns)

    def _answer(self, child: int, model: ClockModel | None) -> None:
        """Answers a child's pings; a rank other than 0 then sends its offset and bound at the time the child names."""
        ping, pong = np.zeros(1, np.int64), np.zeros(2, np.int64)
        receiving = self._comm.Recv_init(ping, child, _PING_TAG)
        with _persistent(receiving, self._comm.Send_init(pong, child, _PONG_TAG)) as (receive, send):
            for _ in range(1 + self._pings):
                receive.Start()
                receive.Wait()
                pong[0] = self._clock()
                pong[1] = self._clock()
                send.Start()
                send.Wait()
        if self._parent is None:
            return
        self._comm.Recv(ping, child, _WHEN_TAG)
        answer = np.full(2, np.nan)  # not known
        if model is not None and ping[0] != ABSENT:
            place = model.place(int(ping[0]))
            answer[:] = place.offset_ns, place.bound_ns
        self._comm.Send(answer, child, _PLACE_TAG)

    def _suspended(self) -> str:
        before, self._slept_before = self._slept_before, self._slept()
        if before is None or self._slept_before is None:
            return ""
        slept_ns = self._slept_before[0] - before[1]
        if slept_ns <= ROUNDING_NS:
            return ""
        return (
            f"the system of {self._name(self._comm.rank)} was suspended for {slept_ns / 1e9:.3f} s since the "
            "synchronisation before; the times of this run are invalid"
        )

    def _contradiction(self, other: int, contradiction: ClockError | str) -> str:
        return (
            f"the clock of {self._name(self._comm.rank)} against that of {self._name(other)}: "
            f"{contradiction}; the times of this run are invalid"
        )

    def _judged(self, reports: NDArray[np.void]) -> dict[str, Any]:
        """On rank 0: whether an offset moved too far, whether anything is wrong, what contradicts shared clocks, and by
        domain its point."""
        errors = []
        for name, ranks in self._domains.items():
            # On a shared clock no rank can leave the barrier before another rank has entered it.
            last = ranks[int(np.argmax(reports["entered_ns"][ranks]))]
            first = ranks[int(np.argmin(reports["left_ns"][ranks]))]
            if (ahead_ns := int(reports["entered_ns"][last] - reports["left_ns"][first])) > 0:
                errors.append(
                    f"{self._name(last)} and {self._name(first)} both name their clock {name}, but the first is at "
                    f"least {ahead_ns / 1e6:.3f} ms ahead. Machines resumed from one image share a boot id: reboot them"
                )
        points = {name: reports[ranks[0]].item()[2:5] for name, ranks in self._domains.items()}
        moved, wrong = bool(reports["moved"].any()), bool(reports["wrong"].any())
        return {"moved": moved, "wrong": wrong, "errors": errors, "points": points}

    def _raise_errors(self, error: str, judged: Mapping[str, Any]) -> None:
        errors = [text for text in self._comm.allgather(error) if text] if judged["wrong"] else []
        if errors := [*errors, *judged["errors"]]:
            raise ClockError("; ".join(errors))

    def _name(self, rank: int) -> str:
        host = self._hosts.get(rank) or socket.gethostname()  # one that is not of a leader is this rank's
        return f"rank {rank} on {host}"


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _persistent(*requests: Prequest | Persistent) -> Iterator[tuple[Prequest | Persistent, ...]]:
    """Persistent requests, freed at the end: they start faster than new ones, which makes the bound smaller."""
    try:
        yield requests
    finally:
        for request in requests:
            request.Free()
