"""Times of a device on the host's clock, against a simulated device whose true time is known."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from hpc.observe.device_times import ClockReadings, PlacedEvents, place

S, MS, US = 10**9, 10**6, 10**3


@dataclass
class Device:
    """A device whose clock runs at another rate than the host's, wanders, and may jump; truth is the host's time."""

    random: np.random.Generator
    ppm: float = 50.0
    jumps: list[tuple[int, int]] = field(default_factory=list)
    """Host's time of each jump, and by how much the device's clock then goes on, ns."""
    slewed: tuple[float, float, float] = (0, 0, 0)
    """From when to when, s, a time service has the host's clock run faster, and by how much."""

    def __post_init__(self) -> None:
        self.period_s, self.phase = self.random.uniform(20, 120), self.random.uniform(0, 6)

    def raw_ahead_ns(self, true_ns: float) -> int:
        """CLOCK_MONOTONIC_RAW less the host's clock."""
        begin_s, stop_s, rate = self.slewed
        return -round((min(max(true_ns, begin_s * S), stop_s * S) - begin_s * S) * rate)

    def shows(self, true_ns: float) -> int:
        """What the device's clock shows, in steps of half a microsecond; it wanders by up to 3 ppm."""
        wander = 3e-6 * self.period_s / 6.3 * S * np.sin(6.3 * true_ns / S / self.period_s + self.phase)
        jumped = sum(by for at, by in self.jumps if true_ns >= at)
        true_ns += self.raw_ahead_ns(true_ns)
        return round((7 * S + true_ns * (1 + self.ppm * 1e-6) + wander + jumped) / 500) * 500


def anchors_of(device: Device, stop_s: float, lost: tuple[float, float] = (0, 0)) -> list[tuple[int, int, int]]:
    """Before and after by the host's clock, and the device's, about once a second."""
    anchors, at = [], 0.0
    while at < stop_s:
        if not lost[0] < at < lost[1]:
            launch, back = (3_000 + int(device.random.exponential(4_000)) for _ in range(2))
            begin = int(at * S)
            anchors.append((begin, begin + launch + back, device.shows(begin + launch)))
        at += 0.2 if len(anchors) < 5 else 1 + 0.1 * device.random.random()
    return anchors


def run(
    device: Device, stop_s: float, count: int, lost: tuple[float, float] = (0, 0), wide_ns: int = 0
) -> tuple[PlacedEvents, np.ndarray]:
    """What is made of `count` events of it, and their true times. The host is 0 to 20 steps of 10 ms ahead.

    It loses its core for `wide_ns` in the middle one of its anchors.
    """
    random = device.random
    true = np.sort(random.uniform(0.001 * S, stop_s * S, count)).astype(np.int64)
    ahead = np.where(
        random.random(count) < 0.3, random.uniform(3 * US, 9 * US, count), random.uniform(0, 200 * MS, count)
    )
    seen = true + random.uniform(0, 200 * MS, count).astype(np.int64)
    anchors = anchors_of(device, stop_s, lost)
    before_ns, after_ns, shown_ns = anchors[len(anchors) // 2]
    anchors[len(anchors) // 2] = before_ns, after_ns + wide_ns, shown_ns
    before, after, shown = (np.array(values, np.int64) for values in zip(*anchors, strict=True))
    origin = shown[0]
    raw = np.array([device.shows(at) for at in true.tolist()], np.int64) - origin
    # As float32 of milliseconds from each event to the next.
    differences = np.diff(raw, prepend=0)
    rounded = (differences / 1e6).astype(np.float32)
    chain = np.cumsum(rounded.astype(np.float64) * 1e6)
    sums = np.cumsum(np.spacing(np.abs(rounded)).astype(np.float64) * 5e5)
    at = np.searchsorted(true, before)  # events that are done by an anchor
    anchor_raw = shown - origin
    nearest = ((anchor_raw - np.concatenate([[0], raw])[at]) / 1e6).astype(np.float32)
    anchor_chain = np.concatenate([[0.0], chain])[at] + nearest.astype(np.float64) * 1e6
    readings = ClockReadings(
        device_ns=S + np.rint(chain).astype(np.int64),
        recorded_ns=true - ahead.astype(np.int64),
        seen_ns=seen,
        anchor_device_ns=S + np.rint(anchor_chain).astype(np.int64),
        before_ns=before,
        after_ns=after,
        rounding_ns=sums,
        anchor_rounding_ns=np.concatenate([[0.0], sums])[at],
        own_rounding_ns=np.spacing(np.abs(nearest)).astype(np.float64) * 5e5,
        slew_ns=np.array([device.raw_ahead_ns(at) for at in before.tolist()], np.int64),
    )
    return place(readings), true


@pytest.mark.parametrize("ppm", [-50.0, 0.0, 50.0, 150.0])
@pytest.mark.parametrize("lost", [(0, 0), (20.0, 30.0)])
def test_the_true_time_of_each_event_is_within_its_bound(ppm: float, lost: tuple[float, float]) -> None:
    placed, true = run(Device(np.random.default_rng(round(ppm) + 1000), ppm), 60, 10_000, lost)
    assert not placed.contradicted.any() and placed.jumps == 0
    error = np.abs(placed.host_ns - true)
    assert (error <= placed.bound_ns).all()
    assert np.median(placed.bound_ns) < 20 * US


@pytest.mark.parametrize("seed", range(100))
def test_a_device_whose_clock_jumps_is_told_and_every_time_that_is_given_holds(seed: int) -> None:
    random = np.random.default_rng(seed)
    by = int(random.choice([-1, 1]) * 10 ** random.uniform(5.1, 9.5))  # 0.13 ms to 3 s, forward or back
    placed, true = run(Device(random, jumps=[(int(random.uniform(8, 22) * S), by)]), 30, 1000)
    assert placed.jumps and placed.contradicted.any()
    assert placed.off_ns == pytest.approx(abs(by), rel=0.02, abs=300 * US)
    given = ~placed.contradicted
    assert (np.abs(placed.host_ns - true)[given] <= placed.bound_ns[given]).all()


def test_an_anchor_during_which_the_host_lost_its_core_moves_no_time() -> None:
    (usual, _), (wide, true) = (run(Device(np.random.default_rng(2)), 30, 5000, wide_ns=ns) for ns in (0, 20 * MS))
    assert not wide.contradicted.any() and (np.abs(wide.host_ns - true) <= wide.bound_ns).all()
    assert wide.bound_ns.max() < 2 * usual.bound_ns.max()


@pytest.mark.parametrize("ppm", [-100, 100, 500, 5000])
def test_a_host_whose_clock_is_corrected_contradicts_no_device(ppm: int) -> None:
    """By an NTP service, for ten seconds; where that begins and ends between two anchors is not known."""
    placed, true = run(Device(np.random.default_rng(ppm + 200), slewed=(20.3, 30.7, ppm * 1e-6)), 60, 5000)
    assert not placed.contradicted.any() and placed.jumps == 0
    assert (np.abs(placed.host_ns - true) <= placed.bound_ns).all()
    assert np.median(placed.bound_ns) < 20 * US and np.quantile(placed.bound_ns, 0.85) < 25 * US


@pytest.mark.parametrize("by", [-40, -20, -5, 5, 20, 40])
def test_a_jump_that_anchors_do_not_prove_is_within_the_bounds(by: int) -> None:
    placed, true = run(Device(np.random.default_rng(by + 50), jumps=[(15 * S, by * US)]), 30, 5000)
    given = ~placed.contradicted
    assert given.mean() > 0.9
    assert (np.abs(placed.host_ns - true)[given] <= placed.bound_ns[given]).all()


def test_a_time_that_the_host_did_not_allow_is_no_number() -> None:
    device = Device(np.random.default_rng(3))
    before, after, shown = (np.array(values, np.int64) for values in zip(*anchors_of(device, 10), strict=True))
    true = np.array([2, 4, 6], np.int64) * S
    device_ns = np.array([device.shows(int(at)) for at in true], np.int64)
    nothing = np.zeros(3)
    placed = place(
        ClockReadings(
            device_ns=device_ns, recorded_ns=true - np.array([MS, -MS, MS]), seen_ns=true + np.array([MS, 2 * MS, -MS]),
            anchor_device_ns=shown, before_ns=before, after_ns=after, rounding_ns=nothing,
            anchor_rounding_ns=np.zeros(len(shown)), own_rounding_ns=np.zeros(len(shown)),
            slew_ns=np.zeros(len(shown), np.int64),
        )
    )  # fmt: skip
    assert placed.contradicted.tolist() == [False, True, True]  # before it was queued; after it was seen done


def test_without_an_anchor_nothing_is_placed() -> None:
    empty, single = np.zeros(0, np.int64), np.ones(1, np.int64)
    placed = place(
        ClockReadings(
            device_ns=single, recorded_ns=single, seen_ns=single,
            anchor_device_ns=empty, before_ns=empty, after_ns=empty,
            rounding_ns=np.zeros(1), anchor_rounding_ns=np.zeros(0), own_rounding_ns=np.zeros(0), slew_ns=empty,
        )
    )  # fmt: skip
    assert placed.contradicted.all() and placed.reason == "its clock has no anchor"
