"""The global clock's arithmetic, against synthetic clocks whose truth is known."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.model.clock_model import MAX_DRIFT, ROUNDING_NS, WANDER, ClockError, ClockModel, SyncPoint, estimate
from hpc.model.timestamps import ABSENT
from tests.unit.synthetic_clocks import SECOND_NS, Path, SyntheticClock

untimed = settings(deadline=None)  # a slow machine is no failure


def convert(clock: ClockModel, local_ns):
    """Global time and bound of one rank's stamps, in their shape."""
    row = np.asarray(local_ns, np.int64).reshape(1, -1)
    return clock.to_global(row).reshape(np.shape(local_ns)), clock.bounds_ns(row).reshape(np.shape(local_ns))


def model(local: list[int], offset: list[float], bound: list[float]) -> ClockModel:
    return ClockModel.of([SyncPoint(*point) for point in zip(local, offset, bound, strict=True)])


offsets = st.integers(-1000 * SECOND_NS, 1000 * SECOND_NS)
drifts = st.floats(-50e-6, 50e-6)
delays = st.integers(0, 1_000_000)
children = st.builds(
    SyntheticClock, offset_ns=offsets, drift=drifts, wander=st.floats(0, 4e-6), period_ns=st.floats(1e9, 60e9)
)
roots = st.builds(SyntheticClock, offset_ns=offsets, drift=drifts)
paths = st.builds(Path, out_ns=delays, back_ns=delays, jitter_ns=st.integers(0, 100_000))


# One burst


@untimed
@given(children, roots, paths, st.integers(1, 40), st.integers(0, 2**32))
def test_the_bound_is_no_wider_than_half_the_fastest_exchange(child, root, path, pings, seed):
    (c1, p1, p2, c2), _ = path.burst(child, root, 0, pings, seed)
    fastest_ns = int(np.min((c2 - c1) - (p2 - p1)))
    hold_ns = int(np.max(c2 - c1))
    point = estimate(c1, p1, p2, c2, MAX_DRIFT)
    assert 0 < point.bound_ns <= fastest_ns / 2 + MAX_DRIFT * hold_ns + ROUNDING_NS + 1


@pytest.mark.parametrize("step_ns", [-1_000_000, 1_000_000])
@pytest.mark.parametrize("who", ["child", "root"])
def test_a_clock_stepped_in_mid_burst_is_refused(who, step_ns):
    stepped = SyntheticClock(step_at_ns=100_000, step_ns=step_ns)
    child, root = (stepped, SyntheticClock()) if who == "child" else (SyntheticClock(), stepped)
    stamps, end_ns = Path().burst(child, root, 0)
    assert end_ns > 200_000
    with pytest.raises(ClockError, match=r"contradict one another by 0\.9\d\d ms"):
        estimate(*stamps, MAX_DRIFT)


# Several synchronisations


@untimed
@given(
    children,
    roots,
    paths,
    st.integers(0, 30 * SECOND_NS),
    st.lists(st.integers(10**5, 30 * SECOND_NS), min_size=1, max_size=4),  # pauses after each synchronisation
    st.lists(st.integers(0, 180 * SECOND_NS), min_size=1, max_size=20),
    st.integers(0, 2**32),
)
def test_every_time_before_between_and_after_the_points_is_inside_its_bound(
    child, root, path, now_ns, pauses_ns, times_ns, seed
):
    points = []
    for pause_ns in pauses_ns:
        times_ns.append(now_ns)
        stamps, end_ns = path.burst(child, root, now_ns, pings=5, seed=seed)
        points.append(estimate(*stamps, MAX_DRIFT))
        now_ns = end_ns + pause_ns
    local_ns = np.array([child.read(t) for t in times_ns], np.int64)
    truth_ns = np.array([root.read(t) for t in times_ns], np.int64)
    global_ns, bound_ns = convert(ClockModel.of(points), local_ns)
    assert (np.abs(global_ns - truth_ns) <= bound_ns).all()


@untimed
@given(children, drifts, st.integers(0, 2**32))
def test_order_on_a_rank_is_order_on_the_global_clock(child, drift, seed):
    root = SyntheticClock(drift=drift)
    starts_ns = (5 * SECOND_NS, 6 * SECOND_NS, 20 * SECOND_NS)
    clock = ClockModel.of([estimate(*Path().burst(child, root, start, seed=seed)[0], MAX_DRIFT) for start in starts_ns])
    times_ns = np.sort(np.random.default_rng(seed).integers(0, 30 * SECOND_NS, 200))
    global_ns, _ = convert(clock, np.array([child.read(int(t)) for t in times_ns], np.int64))
    assert (np.diff(global_ns) >= 0).all()


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_clock_that_wanders_more_than_is_allowed_and_shows_it_has_a_wider_bound(sign):
    # 30 ppm fast for ten seconds, 30 ppm slow for the next, between points that are good to 20 µs.
    change, rate_ns = sign * 30e-6, sign * 30e-6 * 10 * SECOND_NS
    clock = model([0, 10 * SECOND_NS, 20 * SECOND_NS], [0.0, rate_ns, 0.0], [20_000.0] * 3)
    proven = abs(change) - 4e-6  # two bounds in ten seconds, on either side
    assert convert(clock, [5 * SECOND_NS])[1][0] == pytest.approx(20_000 + proven * 5 * SECOND_NS)
    assert convert(clock, [15 * SECOND_NS])[1][0] == pytest.approx(20_000 + proven * 5 * SECOND_NS)
    # Beyond the points: by how much the mean of twenty seconds is known, and the wander.
    assert convert(clock, [30 * SECOND_NS])[1][0] == pytest.approx(20_000 + (2e-6 + proven) * 10 * SECOND_NS)
    # Where the points' own bounds explain it, nothing is proven.
    poor = model([0, 10 * SECOND_NS, 20 * SECOND_NS], [0.0, rate_ns, 0.0], [120_000.0] * 3)
    assert convert(poor, [5 * SECOND_NS])[1][0] == pytest.approx(120_000 + WANDER * 5 * SECOND_NS)


# Between and beyond the points, in figures

TWO = model([10 * SECOND_NS, 20 * SECOND_NS], [1000.0, 101_000.0], [400.0, 600.0])  # 10 ppm, known to 0.1 ppm


@pytest.mark.parametrize(
    ("local_s", "offset_ns", "bound_ns"),
    [
        (10, 1_000, 400),
        (20, 101_000, 600),
        (15, 51_000, 500 + WANDER * 5e9),
        (12, 21_000, 440 + WANDER * 2e9),
        (18, 81_000, 560 + WANDER * 2e9),
        (5, -49_000, 400 + (1e-7 + WANDER) * 5e9),
        (30, 201_000, 600 + (1e-7 + WANDER) * 10e9),
    ],
)
def test_interpolation_inside_and_extrapolation_outside(local_s, offset_ns, bound_ns):
    global_ns, bound = convert(TWO, np.array([local_s * SECOND_NS], np.int64))
    assert global_ns[0] - local_s * SECOND_NS == offset_ns
    assert bound[0] == pytest.approx(bound_ns, abs=0.01)


def test_a_single_point_allows_for_the_whole_drift():
    single = model([SECOND_NS], [500.0], [10.0])
    global_ns, bound = convert(single, np.array([0, SECOND_NS, 3 * SECOND_NS], np.int64))
    assert (global_ns - [0, SECOND_NS, 3 * SECOND_NS]).tolist() == [500, 500, 500]
    assert bound == pytest.approx([10 + 200_000, 10, 10 + 400_000])


def test_a_shared_clock_has_no_error_anywhere():
    shared = model([SECOND_NS, 2 * SECOND_NS], [0.0, 0.0], [0.0, 0.0])
    local_ns = np.array([-5, 0, 1_500_000_000, 10**18, ABSENT], np.int64)
    global_ns, bound = convert(shared, local_ns)
    assert global_ns.tolist() == local_ns.tolist()
    assert bound[:4].tolist() == [0.0] * 4
    assert math.isnan(bound[4])
    one_point = model([SECOND_NS], [0.0], [0.0])
    assert convert(one_point, local_ns)[1][:4].tolist() == [0.0] * 4


@untimed
@given(
    st.integers(10**16 - 10**12, 10**16 + 10**12),
    st.integers(1_000_000, 10**11),
    st.integers(-(10**12), 10**12),
    st.floats(-150e-6, 150e-6),
    st.lists(st.floats(-2, 3), min_size=1, max_size=20),
)
def test_times_of_1e16_ns_keep_every_nanosecond(first_ns, span_ns, offset_ns, drift, fractions):
    offset2_ns = offset_ns + drift * span_ns
    clock = model([first_ns, first_ns + span_ns], [offset_ns, offset2_ns], [10.0, 10.0])
    local_ns = [first_ns + int(f * span_ns) for f in fractions]
    rate = (Fraction(offset2_ns) - offset_ns) / span_ns
    exact = [t + offset_ns + rate * (t - first_ns) for t in local_ns]
    global_ns, _ = convert(clock, np.array(local_ns, np.int64))
    for converted_ns, expected in zip(global_ns.tolist(), exact, strict=True):
        assert abs(converted_ns - expected) <= Fraction(501, 1000)


# Many ranks at once


@pytest.fixture(params=[1, 3, 40])
def block(request):
    """Five ranks, some points each, more stamps than are converted at a time; rank 0 is the clock itself."""
    rng = np.random.default_rng(0)
    local = 10**16 + np.sort(rng.integers(0, 10**11, (5, request.param)), axis=1)
    offset = rng.integers(-(10**12), 10**12, (5, 1)) + 40e-6 * (local - 10**16) + rng.uniform(-9, 9, local.shape)
    bound = rng.uniform(10, 20_000, local.shape)
    offset[0], bound[0] = 0, 0
    stamps = 10**16 + np.sort(rng.integers(-(10**10), 12 * 10**10, (5, 20_000)), axis=1)
    stamps[:, 7::13] = ABSENT
    stamps[3] = ABSENT
    stamps[4, 1000] = local[4, -1]  # on a point itself
    return stamps, ClockModel(local, offset, bound)


def row_of(clock: ClockModel, rank: int) -> ClockModel:
    return ClockModel(*(values[rank : rank + 1] for values in (clock.local_ns, clock.offset_ns, clock.bound_ns)))


def test_a_block_of_ranks_is_its_stamps_one_by_one(block):
    stamps, clock = block
    global_ns, bound_ns = clock.to_global(stamps), clock.bounds_ns(stamps)
    for rank in range(5):
        row = row_of(clock, rank)
        # The result must not hang on the order of the stamps or on what is converted beside them.
        for chosen in (slice(None, None, -1), slice(5000, 5040), *([i] for i in range(0, 20_000, 997))):
            few_ns, few_bound_ns = convert(row, stamps[rank, chosen])
            assert np.array_equal(global_ns[rank, chosen], few_ns)
            assert np.array_equal(bound_ns[rank, chosen], few_bound_ns, equal_nan=True)
    assert np.array_equal(global_ns[0], stamps[0])
    assert (global_ns[1:3] != stamps[1:3]).mean() > 0.9
    assert (global_ns[3] == ABSENT).all()
    assert np.isnan(bound_ns[3]).all()


def test_stamps_of_other_ranks_are_refused():
    with pytest.raises(ValueError, match="stamps of 2 ranks for points of 1"):
        TWO.to_global(np.zeros((2, 3), np.int64))


# Points that cannot be


@pytest.mark.parametrize(
    ("points", "words"),
    [
        (([0, 10**9], [0.0], [1.0, 1.0]), "shapes"),
        (([], [], []), "never compared"),
        (([0], [math.nan], [1.0]), "not finite"),
        (([0], [0.0], [math.inf]), "not finite"),
        (([0], [1e308], [1.0]), "longer than a century"),
        (([0], [0.0], [1e308]), "longer than a century"),
        (([-(2**63) + 1], [0.0], [1.0]), "longer than a century"),
        (([0], [0.0], [-1.0]), "negative"),
        (([10**9, 10**9], [0.0, 0.0], [1.0, 1.0]), "do not increase"),
        (([2 * 10**9, 10**9], [0.0, 0.0], [1.0, 1.0]), "do not increase"),
        (([0, 10**9], [0.0, 300_000.0], [10.0, 10.0]), r"moved by 0\.100 ms more"),
        (([0, 10**9], [0.0, -300_000.0], [10.0, 10.0]), r"moved by 0\.100 ms more"),
    ],
)
def test_points_that_no_clock_can_have_are_refused(points, words):
    local, offset, bound = points
    with pytest.raises(ClockError, match=words):
        ClockModel(np.array([local], np.int64), np.array([offset]), np.array([bound]))


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_jump_is_seen_between_points_that_are_not_neighbours(sign):
    local, offset, bound = [0, 1000, 2000], [0.0, sign * 100.0, sign * 200.0], [10.0, 100.0, 10.0]
    for pair in pairwise(range(3)):
        model(*([values[i] for i in pair] for values in (local, offset, bound)))
    with pytest.raises(ClockError, match="moved"):
        model(local, offset, bound)
