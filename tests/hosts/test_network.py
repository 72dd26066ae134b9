"""What traces record of a real network: its delay and its loss, between hosts with networks of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.network import Network, Paths
from hpc.model.trace_file import read_trace
from parse.ledger.network import Basis, Fault
from parse.ledger.network_reading import reduce_network
from tests.truth.network import HOSTS, ledger_of, spec, train

DELAY_MS = 2.0


def test_a_trace_knows_delay_and_loss(tmp_path: Path) -> None:
    """No message is faster than its path. Of what is lost each segment is sent again, whatever else keeps the hosts."""
    traces = tmp_path / "traces"
    traces.mkdir()
    run = spec("mpi", nodes=HOSTS, repeat=1, steps=200)
    with Network(Paths(name="delay and loss", delay_us=1e3 * DELAY_MS, loss_percent=2), HOSTS) as network:
        train(network, run, traces, "--expect-network", "latency_us=50")
    reading = reduce_network(read_trace(traces / f"{run.run_id}.1.h5"))
    assert sorted(reading.round_trips_ms) == ["h1", "h2"]
    assert min(reading.round_trips_ms.values()) >= 2 * DELAY_MS
    assert reading.promise.latency_ms == 0.05
    segments = reading.segments
    if segments is None:
        pytest.fail("no TCP segments were counted")
    if segments.needless is None:
        pytest.skip("TCPDSACKRecvSegs is not in /proc/net/netstat: this kernel does not count needless repetitions")
    # Lost acknowledgements are not sent again: the share of what is, lies between a quarter and twice that of frames.
    assert segments.sent > 1000
    assert 0.005 < segments.share < 0.04


def test_a_host_that_sends_slowly_is_named_by_what_its_connections_sent(tmp_path: Path) -> None:
    """Without collectives: 1 Mbit/s of one of three hosts. No rank is blamed for what reaches it late."""
    traces = tmp_path / "traces"
    traces.mkdir()
    run = spec("torch-ddp", nodes=HOSTS, repeat=1, steps=60)
    with Network(Paths(name="1 Mbit/s", rate_mbit=1, of_host=2), HOSTS) as network:
        train(network, run, traces)
    ledger = ledger_of(traces)
    assert ledger.network is not None
    assert {nodes for each in ledger.network.sent for nodes in each.nodes} == {"h0", "h1", "h2"}
    (finding,) = (each for each in ledger.network.findings if each.kind is Fault.SLOW_LINK)
    assert (finding.basis, finding.nodes) == (Basis.CONNECTIONS, ("h2",))
    assert not any(each.leaves_late for each in ledger.stragglers)
