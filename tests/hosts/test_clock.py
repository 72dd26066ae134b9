"""The global clock between hosts with networks and clocks of their own, compared with the kernel's clocks."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.bench_clock import MethodResult, busy_cores
from benchmarks.network import APART_S, HOSTS, Network, NetworkError, Paths
from tests.processes import lives

SYNCHRONISATIONS = 3


@pytest.mark.parametrize(
    ("paths", "busy", "repeats"),
    [
        (Paths(name="quiet"), 0, 3),
        (Paths(name="a jitter", delay_us=100, jitter_us=20), 0, 3),
        (Paths(name="one way three times the other", delay_us=100, back_us=300), 0, 3),
        (Paths(name="loss", delay_us=100, jitter_us=20, loss_percent=0.5), 0, 1),
        (Paths(name="busy cores"), 2, 1),
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


def test_a_failure_on_a_host_raises_its_error():
    with Network(Paths(name="quiet")) as network, pytest.raises(NetworkError, match=r"ended with(.|\n)*out of luck"):
        network.run("-c", "raise SystemExit('out of luck')")


LEAVES_A_PROCESS = """
import subprocess, sys
from pathlib import Path

from mpi4py import MPI

process = subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
(Path(sys.argv[1]) / f"{MPI.COMM_WORLD.rank}.pid").write_text(str(process.pid))
"""


def test_no_process_outlives_its_host(tmp_path):
    (tmp_path / "leaves.py").write_text(LEAVES_A_PROCESS)
    with Network(Paths(name="quiet")) as network:
        # To files: what several ranks print may come without a newline between them.
        network.run(tmp_path / "leaves.py", tmp_path)
        pids = [int(path.read_text()) for path in tmp_path.glob("*.pid")]
        assert len(pids) == HOSTS
        assert all(lives(pid) for pid in pids)
    assert not [pid for pid in pids if lives(pid)]


def test_an_invalid_rule_is_refused():
    class Wrong(Paths):
        rules = ("here:there",)

    with pytest.raises(NetworkError, match="a rule is FROM:TO"), Network(Wrong(name="wrong")):
        pass
