"""parse.stats: the arithmetic of measurement.md."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parse import stats


def test_coefficient_of_variation():
    assert stats.coefficient_of_variation([9, 11]) == pytest.approx(2**0.5 / 10)
    assert stats.coefficient_of_variation([5, 5, 5]) == 0
    assert stats.coefficient_of_variation([5]) is None
    assert stats.coefficient_of_variation([5, float("nan")]) is stats.coefficient_of_variation([0, 0]) is None


@pytest.mark.parametrize(
    ("count", "from_the_ends", "coverage"),
    [(2, 1, 0.5), (3, 1, 0.75), (4, 1, 0.875), (5, 1, 0.9375), (6, 1, 0.96875), (8, 1, 0.9921875), (9, 2, 0.9609375)],
)
def test_the_interval_of_the_median_is_exact(count, from_the_ends, coverage):
    values = list(range(count))
    interval = stats.median_interval(values[::-1])
    assert interval == stats.Interval(from_the_ends - 1, count - from_the_ends, coverage)


def test_one_value_has_no_interval():
    assert stats.median_interval([3.0]) is None


@given(st.integers(6, 400))
def test_no_narrower_interval_reaches_95_percent(count):
    interval = stats.median_interval(list(range(count)))
    assert interval is not None
    assert interval.coverage >= 0.95
    narrower = int(interval.low) + 2
    assert 1 - 2 * sum(comb(count, i) for i in range(narrower)) / 2**count < 0.95


def test_thousands_of_values_keep_whole_numbers():
    interval = stats.median_interval(range(5000))
    assert interval is not None
    assert interval.coverage == pytest.approx(0.95, abs=0.005)


# Throughput


def window(step_ns, blocks, samples=8):
    ends = 10**15 + np.cumsum(np.array(step_ns, np.int64))
    return ends, np.full(len(step_ns), samples, np.int64), np.array(blocks, np.int64)


def test_throughput_is_wall_clock():
    ends, samples, blocks = window([1_000_000_000] * 5 + [100_000_000] * 8 + [200_000_000] * 2, [[5, 15]])
    assert stats.throughput(ends, samples, blocks) == pytest.approx(80 / 1.2)
    assert stats.mean_of_rates(ends, samples, blocks) == pytest.approx((8 * 80 + 2 * 40) / 10)


def test_what_lies_between_blocks_is_left_out():
    step_ns = [10] * 5 + [10] * 4 + [10**9, 10, 10] + [10] * 3
    whole = window(step_ns, [[5, 15]])
    blocks = window(step_ns, [[5, 9], [12, 15]])
    assert stats.throughput(*whole) < 1e6 < stats.throughput(*blocks)
    assert stats.throughput(*blocks) == pytest.approx(8 / 10e-9)
    assert stats.block_durations_ns(blocks[0], blocks[2]) == [40, 30]
    assert len(stats.step_times_s(blocks[0], blocks[2])) == 7


STEPS = st.lists(st.integers(1, 10**12), min_size=7, max_size=60)


@given(STEPS, st.integers(1, 10**6), st.data())
def test_throughput_of_any_window(step_ns, samples, data):
    first, stop = sorted(data.draw(st.sets(st.integers(1, len(step_ns)), min_size=2, max_size=2)))
    ends, counts, blocks = window(step_ns, [[first, stop]], samples)
    speed = stats.throughput(ends, counts, blocks)
    assert speed == pytest.approx(samples * (stop - first) / sum(step_ns[first:stop]) * 1e9, rel=1e-12)
    # Jensen: the mean of rates is never below the wall clock.
    assert stats.mean_of_rates(ends, counts, blocks) >= speed * (1 - 1e-9)
    rates = [samples / step * 1e9 for step in step_ns[first:stop]]
    assert min(rates) * (1 - 1e-9) <= speed <= max(rates) * (1 + 1e-9)


@given(STEPS)
def test_cutting_a_window_into_touching_blocks_changes_nothing(step_ns):
    half = len(step_ns) // 2
    whole = window(step_ns, [[1, len(step_ns)]])
    halves = window(step_ns, [[1, half], [half, len(step_ns)]])
    assert stats.throughput(*whole) == stats.throughput(*halves)
    np.testing.assert_array_equal(stats.step_times_s(whole[0], whole[2]), stats.step_times_s(halves[0], halves[2]))


@pytest.mark.parametrize(
    ("confidence", "freedom", "published"), [(0.95, 9, 2.262), (0.99, 4, 4.604), (0.998, 3, 10.215)]
)
def test_student_is_as_in_the_published_table(confidence, freedom, published):
    """NIST/SEMATECH e-Handbook, 1.3.6.7.2: two-sided, so the table's 0.975, 0.995, 0.999."""
    assert stats.student(confidence, freedom) == pytest.approx(published, abs=0.0006)


@pytest.mark.parametrize(
    ("freedom", "by_scipy"),
    [(1, 12.706204736174694), (1.3, 7.500529325562029), (1.9, 4.527118077100328), (2.5, 3.5746548420036817),
     (3.7, 2.8675207071911895), (7.4, 2.3389583950914736), (31.5, 2.0382021367118837), (1000, 1.9623390808264083)],
)  # fmt: skip
def test_student_of_any_degrees_of_freedom_is_that_of_scipy(freedom, by_scipy):
    """scipy 1.17.1, stats.t.ppf(0.975, freedom)."""
    assert stats.student(0.95, freedom) == pytest.approx(by_scipy, rel=1e-10)


@pytest.mark.parametrize(
    ("t", "freedom", "by_scipy"),
    [(0.1, 3, 0.9266523488008059), (2, 1.5, 0.22418833035605112), (12, 2.7, 0.002026866019396126),
     (40, 8, 1.6785718879145792e-10), (100, 50, 2.960898892025241e-59), (float("inf"), 4, 0.0), (1e-9, 4, 1.0)],
)  # fmt: skip
def test_the_p_value_of_any_degrees_of_freedom_is_that_of_scipy(t, freedom, by_scipy):
    """scipy 1.17.1, 2 · stats.t.sf(t, freedom)."""
    assert stats.student_p(t, freedom) == pytest.approx(by_scipy, rel=1e-9, abs=0)


@pytest.mark.parametrize(
    ("values", "others", "by_scipy"),
    [([10.0, 11.0], [5.0, 7.0], 6.918522830071064), ([10.0, 11.0], [5.0, 6.1], 3.2260094407535655),
     ([10.0, 11.0, 12.5], [5.0, 5.5, 6.0], 2.707594860731417), ([10.0, 11.0], [5.0, 5.0, 5.0], 6.353102368087347)],
)  # fmt: skip
def test_the_margin_of_few_runs_is_that_of_scipy(values, others, by_scipy):
    """Half the width of scipy 1.17.1's stats.ttest_ind(values, others, equal_var=False).confidence_interval(0.95)."""
    assert stats.difference_margin(values, others) == pytest.approx(by_scipy, rel=1e-10)


def test_the_margin_of_a_mean_is_that_of_scipy():
    """stats.t.ppf(0.975, 39) · stats.sem: beyond 30 degrees of freedom, too."""
    values = [*range(40)]
    assert stats.mean_margin(values) == pytest.approx(
        2.022690920036761 * (sum((v - 19.5) ** 2 for v in values) / 39 / 40) ** 0.5
    )


def test_sides_without_scatter_have_no_margin():
    assert stats.difference_margin([1.0, 1.0], [2.0, 2.0]) == 0.0 == stats.mean_margin([1.0, 1.0])
    assert stats.difference_margin([1.0], [2.0, 3.0]) is None is stats.mean_margin([1.0])


@pytest.mark.parametrize("part", [1.0, 0.5, 0.2])
def test_so_many_repeats_have_the_margin(part):
    values, others = [10.0, 11.0, 12.5, 9.0], [5.0, 5.5, 6.0, 5.2]
    margin = part * stats.difference_margin(values, others) * (1 + 1e-9)

    def margin_of(n):
        """Of n values that scatter as these."""
        return stats.difference_margin(
            *(
                (np.arange(n) * np.std(each, ddof=1) / np.std(np.arange(n), ddof=1)).tolist()
                for each in (values, others)
            )
        )

    count = stats.repeats_within(values, others, margin)
    assert margin_of(count) <= margin < margin_of(count - 1)


def test_repeats_that_are_no_advice():
    assert stats.repeats_within([1.0], [1.0, 2.0], 0.1) is None
    assert stats.repeats_within([1.0, 9.0], [1.0, 2.0], 0.001) is None
    assert stats.repeats_within([1.0, 1.0], [2.0, 2.0], 0.0) == 2
