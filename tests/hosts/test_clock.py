"""The global clock between hosts with networks and clocks of their own, compared with the kernel's clocks."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.bench_clock import MethodResult, busy_cores
from benchmarks.network import APART_S, HOSTS, Network, Paths

SYNCHRONISATIONS = 3


@pytest.mark.parametrize(
    ("paths", "busy", "repeats"),
    [
        (Paths(name="quiet"), 0, 3),
        pytest.param(Paths(name="a jitter", delay_us=100, jitter_us=20), 0, 3, marks=pytest.mark.all),
        (Paths(name="one way three times the other", delay_us=100, back_us=300), 0, 3),
        (Paths(name="loss", delay_us=100, jitter_us=20, loss_percent=0.5), 0, 1),
        pytest.param(Paths(name="busy cores"), 2, 1, marks=pytest.mark.all),
    ],
    ids=lambda value: value.name if isinstance(value, Paths) else "",
)
def test_drifting_clocks_stay_inside_their_bounds(paths, busy, repeats):
    with Network(paths) as network, busy_cores(busy):
        printed = json.loads(network.run("-m", "benchmarks.clock_ranks", str(repeats)))
    ours = MethodResult.of(printed["ours"])
    assert ours.after.shape == (repeats, HOSTS - 1, SYNCHRONISATIONS)
    assert (ours.after <= ours.after_bound).all()
    assert (ours.between <= ours.between_bound).all()
    # No message was faster than its path: a bound below half of there and back would be a claim without a proof.
    round_trip_us = paths.delay_us + (paths.delay_us if paths.back_us is None else paths.back_us) - 2 * paths.jitter_us
    assert (ours.after_bound > round_trip_us / 2 * 1e3).all()


def test_hosts_with_separate_clocks_stay_inside_their_bounds():
    with Network(Paths(name="quiet")) as network:
        everybody = json.loads(network.run("tests/mpi/ranks/clock_namespaces.py"))
    assert [values["host"] for values in everybody] == [f"h{host}" for host in range(HOSTS)]
    assert [values["ahead_s"] for values in everybody] == [APART_S * host for host in range(HOSTS)]
    assert len({values["domain"] for values in everybody}) == HOSTS
    for host, values in enumerate(everybody):
        error_ns, bound_ns = np.abs(values["error_ns"]), np.array(values["bound_ns"])
        assert (error_ns <= bound_ns).all()
        assert (bound_ns > 0).all() == (host > 0)
