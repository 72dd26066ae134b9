"""The global clock on several ranks, with synthetic clocks whose true offset is known to the nanosecond."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from hpc.measure.clock import STAR, GlobalClock
from hpc.measure.connections import Connections
from hpc.model.clock_model import ClockError, ClockModel
from tests.unit.connected_ranks import together
from tests.unit.synthetic_clocks import SECOND_NS, SyntheticClock

HOUR_NS = 3600 * SECOND_NS
SYNCHRONISATIONS, READINGS_WITHOUT_EXCHANGE = 3, 3


def shown(seed: int) -> SyntheticClock:
    """A clock with an offset, a drift and a wandering rate of its seed; seed 0 shows the truth."""
    random = np.random.default_rng(seed)
    offset_ns, drift = int(random.integers(-(10**12), 10**12)), float(random.uniform(-50e-6, 50e-6))
    return SyntheticClock(offset_ns, drift, wander=4e-6, period_ns=7e9) if seed else SyntheticClock()


class RankClock:
    """A rank's clock. The true time is the machine's; `skip` lets it pass at once, which all ranks do alike."""

    def __init__(self, comm: Connections, shows: SyntheticClock) -> None:
        self.rank, self.last, self.shows = comm.rank, comm.rank == comm.size - 1, shows
        self.readings = self.slept_ns = self.ahead_ns = 0
        self.jump_after, self.jump_ns = -1, 0
        self.waits: Callable[[], None] = lambda: None
        """What happens while the ranks wait to compare their clocks once more."""
        self._skipped_ns = -comm.bcast(time.perf_counter_ns())

    def now_ns(self) -> int:
        return time.perf_counter_ns() + self._skipped_ns

    def skip(self, seconds: int) -> None:
        self._skipped_ns += seconds * SECOND_NS

    def jump(self, after: int, ns: int) -> None:
        """Behind so many readings it shows so much more."""
        self.jump_after, self.jump_ns = after, ns

    def slept(self) -> tuple[int, int]:
        return self.slept_ns, self.slept_ns + 500

    def __call__(self) -> int:
        self.readings += 1
        jumped = 0 <= self.jump_after < self.readings
        return self.shows.read(self.now_ns()) + self.ahead_ns + (self.jump_ns if jumped else 0)


class Synchronised(NamedTuple):
    """A rank's clocks after three synchronisations; errors at times before, between and after them."""

    its: GlobalClock
    readings: int
    error_ns: np.ndarray
    bound_ns: np.ndarray


def synchronised(folder: Path, size: int, *, ranks_per_clock: int = 1, star: int = STAR) -> list[Synchronised]:
    """Ten seconds apart."""

    def of_rank(comm: Connections) -> Synchronised:
        clock = RankClock(comm, shown(seed := comm.rank // ranks_per_clock))
        clock.skip(5)
        its = GlobalClock(comm, clock=clock, domain=f"clock {seed}", star=star)
        first_ns = clock.now_ns()
        for _ in range(SYNCHRONISATIONS):
            its.synchronise()
            clock.skip(10)
        true_ns = np.linspace(first_ns - 5 * SECOND_NS, clock.now_ns(), 100).astype(np.int64)
        local_ns = np.array([[clock.shows.read(int(at)) for at in true_ns]])
        model = ClockModel.of(its.points)
        return Synchronised(its, clock.readings, model.to_global(local_ns)[0] - true_ns, model.bounds_ns(local_ns)[0])

    return together(size, folder, of_rank)


def test_the_error_of_every_rank_is_within_its_bound(tmp_path: Path) -> None:
    for rank, (its, _, error_ns, bound_ns) in enumerate(synchronised(tmp_path, 4)):
        assert (np.abs(error_ns) <= bound_ns).all()
        assert (bound_ns > 0).all() == (rank > 0)
        local_ns = [point.local_ns for point in its.points]
        exits_ns = np.reshape(its.barrier_exits_ns, (SYNCHRONISATIONS, 2))
        assert (exits_ns[:, 0] <= local_ns).all()
        assert (local_ns <= exits_ns[:, 1]).all()


def test_the_error_in_a_tree_is_within_the_sum_of_hop_bounds(tmp_path: Path) -> None:
    served = [3, 0, 1, 0, 2, 0, 1, 0]  # in stars of two
    for rank, (its, readings, error_ns, bound_ns) in enumerate(synchronised(tmp_path, 8, star=2)):
        assert (np.abs(error_ns) <= bound_ns).all()
        assert len(its.points) == SYNCHRONISATIONS
        exchanges = served[rank] + (rank > 0)
        assert readings == SYNCHRONISATIONS * (exchanges * 2 * 51 + READINGS_WITHOUT_EXCHANGE + (rank == 0))


def test_ranks_that_share_a_clock_share_points_without_exchange(tmp_path: Path) -> None:
    ranks = synchronised(tmp_path, 4, ranks_per_clock=2)
    points = [rank.its.points for rank in ranks]
    assert points[0] == points[1] and points[2] == points[3]
    assert {(point.offset_ns, point.bound_ns) for point in points[1]} == {(0.0, 0.0)}
    assert all(point.bound_ns > 0 for point in points[3])
    for member in (ranks[1], ranks[3]):
        assert (np.abs(member.error_ns) <= member.bound_ns).all()
        assert member.readings == SYNCHRONISATIONS * READINGS_WITHOUT_EXCHANGE
    assert ranks[2].readings > SYNCHRONISATIONS * 50 * 2


def test_ranks_on_the_same_machine_need_no_exchange(tmp_path: Path) -> None:
    def of_rank(comm: Connections) -> GlobalClock:
        its = GlobalClock(comm)
        its.synchronise()
        return its

    clocks = together(3, tmp_path, of_rank)
    assert len({its.domain for its in clocks}) == 1
    if Path("/proc/self/ns/time").is_symlink():
        assert str(Path("/proc/self/ns/time").readlink()) in clocks[0].domain
    assert [(point.offset_ns, point.bound_ns) for its in clocks for point in its.points] == [(0.0, 0.0)] * 3


class Refused(NamedTuple):
    """What a rank hears of the next synchronisation, and how many points it had before and has now."""

    error: str
    before: int
    its: GlobalClock


Breaks = Callable[[RankClock, GlobalClock], None]


def refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, breaks: Breaks, size: int = 3, star: int = STAR, domain: str = ""
) -> list[Refused]:
    clocks, sleep = dict[int, RankClock](), time.sleep

    def wait(seconds: float) -> None:
        clock = clocks.get(threading.get_ident())
        sleep(seconds) if clock is None else clock.waits()

    def of_rank(comm: Connections) -> Refused:
        clocks[threading.get_ident()] = clock = RankClock(comm, SyntheticClock())
        its = GlobalClock(comm, clock=clock, slept=clock.slept, domain=domain or f"clock {comm.rank}", star=star)
        breaks(clock, its)
        before, error = len(its.points), ""
        try:
            its.synchronise()
        except ClockError as caught:
            error = str(caught)
        return Refused(error, before, its)

    monkeypatch.setattr(time, "sleep", wait)
    return together(size, folder, of_rank)


def steps(clock: RankClock, its: GlobalClock) -> None:
    if clock.last:
        clock.jump(50, HOUR_NS)


def is_suspended(clock: RankClock, its: GlobalClock) -> None:
    its.synchronise()
    clock.skip(2 * 3600)  # so that its own time goes on, and only the comparison can tell
    if clock.last:
        clock.jump(0, -HOUR_NS)


def is_slewed(clock: RankClock, its: GlobalClock) -> None:
    """It gains 500 ppm, also while the ranks wait to compare it once more."""

    def pass_time() -> None:
        clock.skip(10_000)
        clock.ahead_ns += 5 * SECOND_NS * clock.last

    its.synchronise()
    pass_time()
    clock.waits = pass_time


def has_slept(clock: RankClock, its: GlobalClock) -> None:
    """Less than what two readings leave open on one rank, 90 s on the next."""
    its.synchronise()
    clock.slept_ns = [0, 400, 90 * SECOND_NS][clock.rank]


def pretends(clock: RankClock, its: GlobalClock) -> None:
    if clock.last:
        clock.jump(0, HOUR_NS)


AGAINST = ("the clock of rank 2 on ", "against that of rank 0 on ")


@pytest.mark.parametrize(
    ("breaks", "points", "parts"),
    [
        (steps, 0, [*AGAINST, "contradict", "suspended"]),
        # The error of a measurement is of ms.
        (is_suspended, 1, [*AGAINST, r": stepped or suspended: it fell back by (35999|36000)\d\d\."]),
        (is_slewed, 1, [*AGAINST, r": slewed: it gains (49|50)\d ppm, ", "200 ppm"]),
        (has_slept, 1, ["the system of rank 2 on ", "was suspended for 90.000 s", "since the synchronisation before"]),
        (pretends, 0, ["rank 2 on ", "and rank ", "one for all", "reboot"]),
    ],
)
def test_an_impossible_clock_is_named_on_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: Breaks, points: int, parts: list[str]
) -> None:
    ranks = refused(tmp_path, monkeypatch, breaks, domain="one for all" if breaks is pretends else "")
    (error,) = {rank.error for rank in ranks}
    assert [part for part in parts if not re.search(part, error)] == [], error
    for _, before, its in ranks:
        assert len(its.points) == before == points
        assert len(its.barrier_exits_ns) == 2 * points


def test_a_clock_at_the_drift_limit_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drifts(clock: RankClock, its: GlobalClock) -> None:
        clock.shows = SyntheticClock(drift=199e-6 * clock.last)
        its.synchronise()
        clock.skip(10_000)

    assert [(rank.error, len(rank.its.points)) for rank in refused(tmp_path, monkeypatch, drifts)] == [("", 2)] * 3


def test_an_impossible_parent_clock_is_named_instead_of_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a tree of six with stars of two, rank 4 serves rank 5."""

    def breaks(clock: RankClock, its: GlobalClock) -> None:
        clock.ahead_ns = clock.rank * HOUR_NS
        its.synchronise()
        if clock.rank == 4:
            clock.jump(clock.readings + 50, HOUR_NS)

    ranks = refused(tmp_path, monkeypatch, breaks, size=6, star=2)
    (error,) = {rank.error for rank in ranks}
    assert error.startswith("the clock of rank 4 on ")
    assert "against that of rank 0 on " in error
    assert "rank 5" not in error
    assert [len(rank.its.points) for rank in ranks] == [1] * 6
