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

from hpc.stamps import ABSENT

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

MAX_DRIFT = 200e-6
"""No two clocks' rates differ by more than this: crystals are sold with up to 100 ppm each."""
WANDER = 10e-6
"""How far a clock's rate at any moment may be from its mean rate between two synchronisations."""
ROUNDING_NS = 3.0
"""What readings and results in whole nanoseconds may add to a bound; so only a shared clock has a bound of 0."""
_PIECE = 8192  # stamps converted at a time: their scratch stays in the core's cache
_PING_TAG, _PONG_TAG = 77, 78


class ClockError(Exception):
    """What the clocks show cannot be: one was stepped, suspended, or is not the clock it was taken for."""


@dataclass(frozen=True)
class SyncPoint:
    """When the local clock showed `local_ns`, rank 0's showed `local_ns + offset_ns`, give or take `bound_ns`."""

    local_ns: int
    offset_ns: float
    bound_ns: float


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


def estimate(c1: Ints, p1: Ints, p2: Ints, c2: Ints, drift: float) -> SyncPoint:
    """The offset that a burst of messages proves, by causality alone: no path is taken to be symmetric.

    The child sends at c1, the parent receives at p1 and answers at p2, the child receives at c2 (all ns, [ping]).
    So offset ≤ p1 − c1 when the child's clock shows c1, and offset ≥ p2 − c2 when it shows c2. All limits are
    referred to one instant, the middle of the fastest exchange, with `drift` times the distance allowed for.
    Raises ClockError where a lower limit is above an upper one.
    """
    fastest = int(np.argmin((c2 - c1) - (p2 - p1)))
    at = int(c1[fastest]) + int(c2[fastest] - c1[fastest]) // 2
    near = int(p1[fastest] - c1[fastest])  # as an integer, so that the floats below stay small and exact
    upper = float(np.min(p1 - c1 - near + drift * np.abs(c1 - at)))
    lower = float(np.max(p2 - c2 - near - drift * np.abs(c2 - at)))
    if lower - upper > ROUNDING_NS:
        raise ClockError(f"its messages contradict one another by {(lower - upper) / 1e6:.3f} ms")
    offset = near + (lower + upper) / 2
    return SyncPoint(at, offset, (upper - lower) / 2 + ROUNDING_NS + float(np.spacing(abs(offset))))


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
            _check_points(*_rows([*self.points, point]))
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


@dataclass(frozen=True, eq=False)
class ClockModel:
    """One rank's synchronisation points [point], and the time axis they make. Raises ClockError where none fits them.

    Between two points the offset is interpolated, outside them carried on at their mean rate. A single point has no
    rate: its bound grows by MAX_DRIFT times the distance.
    """

    local_ns: Ints
    offset_ns: Floats
    bound_ns: Floats

    def __post_init__(self) -> None:
        _check_points(*self._rows())

    def to_global(self, local_ns: Ints) -> tuple[Ints, Floats]:
        """Rank 0's time and its bound, ns, in the shape of `local_ns`; an absent stamp stays so, its bound is NaN."""
        stamps = local_ns.reshape(1, -1)
        global_ns, bound_ns = offsets_to_global(stamps, *self._rows()), bounds_ns(stamps, *self._rows())
        return global_ns.reshape(local_ns.shape), bound_ns.reshape(local_ns.shape)

    def _rows(self) -> tuple[Ints, Floats, Floats]:
        return self.local_ns[np.newaxis], self.offset_ns[np.newaxis], self.bound_ns[np.newaxis]


def offsets_to_global(
    local_ns: Ints, point_local: Ints, point_offset: Floats, point_bound: Floats, out: Ints | None = None
) -> Ints:
    """Rank 0's time of each stamp [rank, n], from the ranks' points [rank, point], all ns; absent stays absent.

    `out` may be `local_ns` itself. Raises ClockError where the points contradict one another.
    """
    _check_points(point_local, point_offset, point_bound)
    out = np.empty_like(local_ns) if out is None else out
    knots, slopes = _offset_lines(point_local, point_offset, point_bound)
    whole = np.rint(point_offset[:, 0]).astype(np.int64)
    fraction = point_offset[:, 0] - whole
    for rank, stamps in enumerate(local_ns):
        if not point_offset[rank].any():
            np.copyto(out[rank], stamps)
            continue
        for piece, absent, elapsed in _pieces(stamps, point_local[rank, 0]):
            offset = _broken_line(elapsed, knots[rank], slopes[rank])
            offset += fraction[rank]
            shift = np.rint(offset, out=offset).astype(np.int64)
            shift += whole[rank]
            np.copyto(shift, 0, where=absent)
            np.add(stamps[piece], shift, out=out[rank, piece])
    return out


def bounds_ns(local_ns: Ints, point_local: Ints, point_offset: Floats, point_bound: Floats) -> Floats:
    """How far each stamp's time on the global clock may be off, ns, [rank, n]; NaN where the stamp is absent.

    Raises ClockError where the points contradict one another.
    """
    _check_points(point_local, point_offset, point_bound)
    out = np.empty(local_ns.shape, np.float64)
    knots, slopes = _bound_lines(point_local, point_offset, point_bound)
    for rank, stamps in enumerate(local_ns):
        for piece, absent, elapsed in _pieces(stamps, point_local[rank, 0]):
            np.add(_broken_line(elapsed, knots[rank], slopes[rank]), point_bound[rank, 0], out=out[rank, piece])
            np.copyto(out[rank, piece], np.nan, where=absent)
    return out


def _pieces(stamps: Ints, origin_ns: np.int64) -> Iterator[tuple[slice, NDArray[np.bool_], Floats]]:
    """Which stamps, which of them are absent, and their distance from the origin (exact: integers are subtracted)."""
    for start in range(0, len(stamps), _PIECE):
        piece = slice(start, start + _PIECE)
        absent = stamps[piece] == ABSENT
        elapsed = stamps[piece] - origin_ns
        np.copyto(elapsed, 0, where=absent)
        yield piece, absent, elapsed.astype(np.float64)


def _broken_line(x: Floats, knots: Floats, slopes: Floats) -> Floats:
    """The line that is 0 at x = 0, has the first slope up to the first knot, the second up to the next, and so on."""
    y: Floats = x * slopes[0]
    beyond = np.empty_like(x)
    for knot, bend in zip(knots, np.diff(slopes), strict=True):
        if bend:
            np.subtract(x, knot, out=beyond)
            np.maximum(beyond, 0.0, out=beyond)
            beyond *= bend
            y += beyond
    return y


def _offset_lines(local: Ints, offset: Floats, bound: Floats) -> tuple[Floats, Floats]:
    """Knots [rank, point] and slopes [rank, point + 1] of the offset."""
    knots = (local - local[:, :1]).astype(np.float64)
    rate, _ = _rates(knots, offset, bound)
    return knots, np.hstack([rate, np.diff(offset) / np.diff(knots), rate])


def _bound_lines(local: Ints, offset: Floats, bound: Floats) -> tuple[Floats, Floats]:
    """Knots and slopes of the bound: between two points it rises with WANDER to the middle and falls again."""
    points = (local - local[:, :1]).astype(np.float64)
    _, doubt = _rates(points, offset, bound)
    wander = np.where(bound.any(axis=1, keepdims=True), WANDER, 0.0)
    knots = np.empty((len(points), 2 * points.shape[1] - 1))
    knots[:, ::2], knots[:, 1::2] = points, (points[:, :-1] + points[:, 1:]) / 2
    slopes = np.empty((len(points), 2 * points.shape[1]))
    slopes[:, :1], slopes[:, -1:] = -doubt, doubt
    slopes[:, 1:-1:2] = np.diff(bound) / np.diff(points) + wander
    slopes[:, 2:-1:2] = np.diff(bound) / np.diff(points) - wander
    return knots, slopes


def _rates(elapsed: Floats, offset: Floats, bound: Floats) -> tuple[Floats, Floats]:
    """The rate at which the offset goes on outside the points, and how far off it may be; [rank, 1] each.

    The points prove an interval for the mean rate between them, the prior ±MAX_DRIFT cuts it, and cuts the rate
    itself too: two points close together have a wild one.
    """
    same_clock = ~bound.any(axis=1, keepdims=True)
    if elapsed.shape[1] == 1:
        return np.zeros_like(elapsed), np.where(same_clock, 0.0, MAX_DRIFT)
    span = elapsed[:, -1:]
    rate = (offset[:, -1:] - offset[:, :1]) / span
    doubt = (bound[:, :1] + bound[:, -1:]) / span + WANDER
    lowest, highest = np.maximum(rate - doubt, -MAX_DRIFT), np.minimum(rate + doubt, MAX_DRIFT)
    rate = np.clip(rate, -MAX_DRIFT, MAX_DRIFT)
    return rate, np.where(same_clock, 0.0, np.maximum(highest - rate, rate - lowest))


def _rows(points: list[SyncPoint]) -> tuple[Ints, Floats, Floats]:
    """One rank's points as arrays [1, point]."""
    return (
        np.array([[point.local_ns for point in points]], np.int64),
        np.array([[point.offset_ns for point in points]]),
        np.array([[point.bound_ns for point in points]]),
    )


def _check_points(local: Ints, offset: Floats, bound: Floats) -> None:
    """Raises ClockError unless a clock that drifts by no more than MAX_DRIFT can have all the points [rank, point]."""
    if not local.shape == offset.shape == bound.shape or local.ndim != 2:
        raise ClockError(f"points of shapes {local.shape}, {offset.shape} and {bound.shape}; want one of each a point")
    if local.shape[1] == 0:
        raise ClockError("no synchronisation point: these clocks were never compared")
    if not (np.isfinite(offset) & np.isfinite(bound) & (bound >= 0)).all():
        raise ClockError("an offset is not finite, or a bound is not finite or is negative")
    elapsed = local - local[:, :1]
    if len(bad := np.flatnonzero((np.diff(elapsed) <= 0).any(axis=1))):
        raise ClockError(f"the local times of the points do not increase{_which(bad, len(local))}")
    moved = offset - offset[:, :1]
    lower, upper, allowance = moved - bound, moved + bound, MAX_DRIFT * elapsed
    # Each point against all before it: it may be no further from any than the drift allows.
    above = lower - allowance - np.minimum.accumulate(upper - allowance, axis=1)
    below = np.maximum.accumulate(lower + allowance, axis=1) - upper - allowance
    excess: Floats = np.maximum(above, below).max(axis=1)
    if len(bad := np.flatnonzero(excess > ROUNDING_NS)):
        raise ClockError(
            f"the offset jumped by {excess.max() / 1e6:.3f} ms more than clocks drift ({MAX_DRIFT * 1e6:.0f} ppm) "
            f"between synchronisations{_which(bad, len(local))}"
        )


def _which(bad: NDArray[np.intp], ranks: int) -> str:
    return f" (rank {', '.join(map(str, bad[:8]))})" if ranks > 1 else ""
