"""The tree in which many hosts' clocks are compared: its shape, and what its bounds are worth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.clock_tree import Hosts, synchronise
from hpc.model.clock_model import MAX_DRIFT, ClockModel, SyncPoint, neighbours, through

SECOND_NS = 10**9


@given(st.integers(1, 300), st.integers(2, 40))
def test_every_domain_has_one_parent_which_serves_it(domains, star):
    served = {child: parent for parent in range(domains) for child in neighbours(parent, domains, star)[1]}
    assert served == {child: neighbours(child, domains, star)[0] for child in range(1, domains)}
    assert neighbours(0, domains, star)[0] is None


def depth(index: int, domains: int, star: int) -> int:
    parent = neighbours(index, domains, star)[0]
    return 0 if parent is None else 1 + depth(parent, domains, star)


@pytest.mark.parametrize(
    ("domains", "levels", "served"), [(1, 0, 0), (2, 1, 1), (32, 1, 31), (33, 2, 10), (1024, 2, 62), (4096, 3, 45)]
)
def test_the_tree_is_as_flat_as_stars_of_32_allow_and_no_wider(domains, levels, served):
    assert max(depth(index, domains, 32) for index in range(domains)) == levels
    assert max(len(neighbours(index, domains, 32)[1]) for index in range(domains)) == served


def test_bounds_add_up_on_the_way_to_rank_0_and_the_parent_drifts_meanwhile():
    point = through(SyncPoint(1000, 50.0, 1e6), SyncPoint(1050, -7.0, 300.0))
    assert (point.local_ns, point.offset_ns) == (1000, 43.0)
    assert point.bound_ns == pytest.approx(1e6 + 300 + MAX_DRIFT * 1e6, abs=1e-6)


@pytest.mark.parametrize(("count", "star", "rounds"), [(4, 32, 3), (40, 32, 11), (40, 2, 6), (4096, 32, 45)])
def test_every_host_is_inside_its_bound(count, star, rounds):
    hosts, points = Hosts.drawn(count, path_ns=20_000, seed=count), [[] for _ in range(count)]
    first = synchronise(hosts, points, SECOND_NS, star)
    assert (np.abs(first.error_ns) <= first.bound_ns).all()
    # Half of there and back (20 to 44 µs, as drawn) a hop, and what a parent drifts until its child is served.
    limit_ns = first.hops * 45_000 + MAX_DRIFT * first.took_ns * (first.hops - 1).clip(0)
    assert (first.bound_ns <= limit_ns).all()
    assert (first.bound_ns[1:] >= first.hops[1:] * 20_000).all()
    assert first.rounds == rounds


def test_the_second_time_a_parent_knows_its_rate():
    hosts, points = Hosts.drawn(100, path_ns=20_000, seed=1), [[] for _ in range(100)]
    first = synchronise(hosts, points, SECOND_NS, 32)
    second = synchronise(hosts, points, 20 * SECOND_NS, 32)
    far = second.hops == 2
    assert (np.abs(second.error_ns) <= second.bound_ns).all()
    assert second.bound_ns[far].mean() < first.bound_ns[far].mean()
    between_ns = 10 * SECOND_NS
    for host, of_host in enumerate(points):
        local_ns = hosts.read(host, np.array([[between_ns]]))
        model = ClockModel.of(of_host)
        assert abs(model.to_global(local_ns)[0, 0] - between_ns) <= model.bounds_ns(local_ns)[0, 0]
