"""parse.ledger.network_reading: from traces of trainings and collectives to what is known of the network."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc.model.collective_plan import PAIRS, bus_factor, collectives_run, partner, plan_of
from hpc.model.spec import RunSpec
from hpc.model.timestamps import BEGIN, END
from hpc.model.trace import Telemetry, Trace, TraceError
from parse.ledger.finding import LateResult
from parse.ledger.network import Basis, Fault, LinkUse, Network, Promise, RoundTrip, Segments, Unknown
from parse.ledger.network_reading import reduce_network
from parse.ledger.point import ledgers
from parse.ledger.types import Ledger
from parse.report.export import as_json
from parse.report.summary import Summary
from parse.runs.load import load
from parse.runs.result import results
from parse.say.numbers import ms
from parse.say.paragraph import sentence
from tests.unit.ledger_traces import on, run_of, trace_of
from tests.unit.ledgers import whole_text
from tests.unit.test_summary_schema import hold
from tests.unit.traces import make_trace, put

MS = 1_000_000
THREE = run_of(nodes=3, ranks_per_node=1, measured_steps=200, site="here")
VOLUME = 65_536
SIZES = {"min_bytes": "1K", "max_bytes": "1M", "iterations": "4"}


def training(
    run: RunSpec = THREE, *, one_way_us: float = 20, communication: float = 2.0, start: dict[str, Any] | None = None,
    series: dict[str, tuple[float, float]] | None = None,
) -> Trace:  # fmt: skip
    """A training whose clocks were compared by messages of so many µs one way. `series`: first value and growth per s
    of each counter, on every node; six samples in the window."""
    trace = trace_of(
        run, communication=communication, bound_ns=one_way_us * 600, backend={"gradient_bytes": VOLUME}, noise=0.05
    )
    trace = dataclasses.replace(trace, clock_bound_ns=np.where(trace.clock_bound_ns > 0, one_way_us * 1e3, 0.0))
    ranks = [{**facts, **({"start": start} if start else {})} for facts in trace.ranks]
    if not series:
        return dataclasses.replace(trace, ranks=ranks)
    first, stop = trace.blocks[0]
    leaders = np.arange(0, run.ranks, run.ranks_per_node)
    begin_ns, end_ns = trace.stamps[leaders, first - 1, END], trace.stamps[leaders, stop - 1, END]
    local_ns = np.linspace(begin_ns, end_ns, 8, axis=1).astype(np.int64)
    since_s = (local_ns - local_ns[:, :1]) / 1e9
    values = np.stack([first + growth * since_s for first, growth in series.values()], axis=2)
    telemetry = Telemetry(ranks=leaders, local_ns=local_ns, values=values, series=tuple(series))
    return dataclasses.replace(trace, ranks=ranks, telemetry=telemetry)


def collectives(ranks: RunSpec, one_way_ms: float, bandwidth: float, slow: int | None = None, **options: str) -> Trace:
    """The collectives on a network of this latency and bandwidth in GB/s; on node `slow` messages take 20 times it."""
    run = collectives_run(ranks, ["all-reduce", PAIRS], {**SIZES, **options})
    described = [
        {
            "operation": each.operation, "bytes": each.bytes, "count": each.count, "dtype": "float32", "wrong": 0,
            "factor": bus_factor(each.operation, run.ranks), "in_place": False,
            **({} if each.turn is None else {"turn": each.turn}),
        }
        for each in plan_of(run)
    ]  # fmt: skip
    trace = make_trace(run, environment={"backend": {"transport": "mpi", "collectives": described}})
    for each, (first, stop) in zip(plan_of(run), run.blocks, strict=True):
        for rank in range(run.ranks):
            way_ms = one_way_ms + each.bytes / (bandwidth * 1e6)
            if each.turn is None:
                ms = 4 * one_way_ms * (20 if slow is not None else 1) + 4 / 3 * each.bytes / (bandwidth * 1e6)
            else:
                other = partner(rank, each.turn, run.nodes)
                ms = 0.001 if other is None else way_ms * (20 if slow in (rank, other) else 1)
            ends_ns = 10**9 * (first + 1) + np.rint(np.arange(1, stop - first + 1) * ms * MS).astype(np.int64)
            trace.stamps[rank, first:stop, END] = ends_ns
            trace.stamps[rank, first:stop, BEGIN] = ends_ns - round(ms * MS)
            trace.stamps[rank, first - 1, END] = ends_ns[0] - round(ms * MS)
    return trace


def network_of(folder: Path, *traces: Trace) -> tuple[Network, str]:
    """The network of the point of three nodes, and its sentence; its JSON is what the schema says."""
    folder.mkdir(exist_ok=True)
    for trace in traces:
        put(folder, trace)
    read = results(load([folder]))
    points = [result for result in read if not result.run.diagnostic]
    made = ledgers(points, [result for result in read if result.run.diagnostic])
    hold(as_json(Summary(results=tuple(points), ledgers=made)))
    (ledger,) = (ledger for ledger in made if ledger.result.run.nodes == 3 and ledger.result.run.site == "here")
    assert ledger.network is not None
    return ledger.network, sentence(ledger, "3n1g")


# One trace


def test_round_trips_are_twice_what_the_clocks_leave_open() -> None:
    trips = reduce_network(training(one_way_us=3000)).round_trips_ms
    assert trips == {host: pytest.approx(6.0, rel=1e-3) for host in trips}
    assert len(trips) == 2
    shared = dataclasses.replace(THREE, nodes=1, ranks_per_node=3)
    assert reduce_network(training(shared)).round_trips_ms == {}


def test_of_more_clocks_than_are_compared_directly_no_round_trip_is_known() -> None:
    trace = training(run_of(nodes=33, ranks_per_node=1, measured_steps=2))
    assert reduce_network(trace).round_trips_ms == {}
    assert len(reduce_network(training(run_of(nodes=32, ranks_per_node=1, measured_steps=2))).round_trips_ms) == 31


TCP = {
    "net.tcp_sent_segments": (5000.0, 10_000.0),
    "net.tcp_retransmitted_segments": (70.0, 100.0),
    "net.tcp_needlessly_retransmitted_segments": (7.0, 25.0),
}


def test_segments_are_counted_in_the_window_of_all_nodes() -> None:
    trace = training(series=TCP)
    first, stop = trace.blocks[0]
    seconds = float((trace.stamps[:, stop - 1, END] - trace.stamps[:, first - 1, END]).sum()) / 1e9
    segments = reduce_network(trace).segments
    assert segments is not None
    assert (segments.sent, segments.resent, segments.needless) == pytest.approx(
        (10_000 * seconds, 100 * seconds, 25 * seconds), rel=1e-3
    )
    assert segments.share == pytest.approx(75 / 10_100, rel=1e-6)


def test_what_is_not_counted_is_absent() -> None:
    """Kernels before 5.10 do not count needless repetitions."""
    old_kernel = {name: value for name, value in TCP.items() if "needlessly" not in name}
    segments = reduce_network(training(series=old_kernel)).segments
    assert segments is not None
    assert (segments.needless, segments.lost) == (None, segments.resent)
    uncounted = {name: value for name, value in TCP.items() if "sent_segments" not in name}
    assert reduce_network(training(series=uncounted)).segments is None
    assert reduce_network(training()).segments is None


def test_the_busiest_link_is_that_which_carries_most_of_its_speed() -> None:
    series = {
        "net.eth0.sent_bytes": (0.0, 1e8), "net.eth0.received_bytes": (0.0, 2e8),
        "net.eth0.link_bytes_per_s": (1.25e9, 0.0),
        "net.mlx5_0_port1.sent_bytes": (0.0, 8e9), "net.mlx5_0_port1.received_bytes": (0.0, 1e9),
        "net.mlx5_0_port1.link_bytes_per_s": (12.5e9, 0.0),
        "net.tap0.sent_bytes": (0.0, 1e12), "net.tap0.received_bytes": (0.0, 1e12),
    }  # fmt: skip
    use = reduce_network(training(series=series)).link_use
    assert isinstance(use, LinkUse)
    assert (use.carried, use.speed) == (pytest.approx(8.0), pytest.approx(12.5))
    assert reduce_network(training(series={"net.tap0.sent_bytes": (0.0, 1e12)})).link_use is None


def test_a_promise_is_that_of_the_start() -> None:
    start = {"network": {"latency_us": 3.0, "bandwidth_gbit": 200.0}}
    assert reduce_network(training(start=start)).promise == Promise(latency_ms=0.003, bandwidth=25.0)
    assert reduce_network(training()).promise == Promise()


# A point


def test_one_node_and_simulated_nodes_have_no_network(tmp_path: Path) -> None:
    simulated = training()
    simulated = dataclasses.replace(simulated, ranks=[{**facts, "nodes_simulated": True} for facts in simulated.ranks])
    for trace in (simulated, training(run_of(nodes=1, ranks_per_node=1))):
        put(tmp_path, trace)
    assert [ledger.network for ledger in ledgers(results(load([tmp_path])))] == [None, None]


def test_a_far_network_is_no_narrow_one(tmp_path: Path) -> None:
    far, text = network_of(
        tmp_path / "far", training(one_way_us=3000, communication=12.0), collectives(THREE, 3.0, 1.0)
    )
    (finding,) = far.findings
    assert (finding.kind, finding.basis, finding.value) == (Fault.LATENCY, Basis.CURVE, pytest.approx(12.0, rel=1e-3))
    assert far.reduction is not None
    assert (far.reduction.bytes, far.reduction.bandwidth_ms) == (VOLUME, pytest.approx(0.0874, rel=1e-2))
    assert far.round_trips[0] == RoundTrip(node=far.round_trips[0].node, ms=pytest.approx(6.0, rel=1e-3))
    assert "bound by latency: a round trip between nodes takes 6.00 ms, the smallest all-reduce 12.0 ms" in text
    assert [link.latency_ms for link in far.links] == pytest.approx([3.001] * 3, rel=1e-3)

    narrow, text = network_of(tmp_path / "narrow", training(communication=14.0), collectives(THREE, 0.02, 0.00625))
    (finding,) = narrow.findings
    assert (finding.kind, finding.value) == (Fault.BANDWIDTH, pytest.approx(0.00625, rel=1e-2))
    assert "bound by bandwidth: a node sends 50 Mbit/s" in text


def test_a_far_node_is_named(tmp_path: Path) -> None:
    network, text = network_of(tmp_path, training(communication=8.0), collectives(THREE, 0.1, 1.0, slow=1))
    assert [(finding.kind, finding.quantity) for finding in network.findings] == [(Fault.SLOW_LINK, Fault.LATENCY)]
    assert f"The links of node {network.findings[0].nodes[0]} are slow: 2.02 ms for a small message" in text


def test_loss_is_held_against_other_points_with_a_network(tmp_path: Path) -> None:
    """Another point loses as good as nothing; one of one node, which sends nothing, does not count."""
    quiet = {**TCP, "net.tcp_retransmitted_segments": (0.0, 26.0)}
    elsewhere = training(run_of(nodes=2, ranks_per_node=1, measured_steps=200), series=quiet)
    single_node = training(run_of(nodes=1, ranks_per_node=1, measured_steps=200), series=TCP)
    network, text = network_of(tmp_path, training(series=TCP), elsewhere, single_node)
    (finding,) = network.findings
    assert (finding.kind, finding.value) == (Fault.LOSS, pytest.approx(75 / 10_100, rel=1e-3))
    assert finding.usual == network.usual_loss == pytest.approx(1 / 10_026, rel=1e-2)
    assert "Packets are lost: 0.74 % of the TCP segments (at other points 0.01 %)" in text
    assert network.segments is not None
    assert isinstance(network.segments, Segments)


def test_without_a_fault_there_is_no_finding(tmp_path: Path) -> None:
    quiet = {**TCP, "net.tcp_retransmitted_segments": (70.0, 25.0)}
    network, text = network_of(tmp_path, training(communication=0.2, series=quiet), collectives(THREE, 0.02, 1.25))
    assert (network.findings, network.unknown) == ((), ())
    assert "bound by" not in text and "lost" not in text and "slow" not in text


def test_what_cannot_be_known_has_its_reason(tmp_path: Path) -> None:
    bare, _ = network_of(tmp_path / "bare", training(communication=5.0))
    assert {missing.kind: missing.reason for missing in bare.unknown} == {
        Fault.LOSS: Unknown.NO_COUNTERS,
        Fault.LATENCY: Unknown.NO_COLLECTIVES,
        Fault.BANDWIDTH: Unknown.NO_COLLECTIVES,
    }
    small = collectives(THREE, 0.02, 1.0, max_bytes="4K")
    beyond, _ = network_of(tmp_path / "beyond", training(communication=5.0), small)
    assert {missing.reason for missing in beyond.unknown} == {Unknown.NO_COUNTERS, Unknown.OUTSIDE}


# What nodes sent each other


def telling(trace: Trace, connections: dict[int, Any]) -> Trace:
    """With the facts of the helper of each node."""
    ranks = [
        {**facts, "telemetry": {**(facts.get("telemetry") or {}), "connections": connections[rank]}}
        if rank in connections else facts
        for rank, facts in enumerate(trace.ranks)
    ]  # fmt: skip
    return dataclasses.replace(trace, ranks=ranks)


def ring_facts(slow: int | None, steps: int) -> dict[int, Any]:
    """Rank r sends 24 kB a step to the one before it; from and to a slow node that takes eight times as long."""

    def piece(rank: int) -> list[float]:
        return [12_000 * steps, 0.0012 * steps * (8 if slow in (rank, (rank - 1) % 3) else 1)]

    return {
        rank: {
            "addresses": [f"10.0.0.{rank}"],
            "sent": [[f"10.0.0.{rank}", f"10.0.0.{(rank - 1) % 3}", 2e-5, piece(rank), piece(rank)]],
        }
        for rank in range(3)
    }


def test_what_a_node_sent_is_by_the_hosts_of_both_ends() -> None:
    facts = ring_facts(None, 10)
    facts[0]["sent"] += [
        ["10.0.0.0", "10.9.9.9", 1e-5, [10**9, 5.0]],
        ["10.0.0.0", "10.0.0.2", 1e-5, [10, 5.0]],
    ]  # no node; control
    hosts = [report.hostname for report in training().reports]
    sent = reduce_network(telling(training(), facts)).sent
    assert {*sent} == {(hosts[rank], hosts[(rank - 1) % 3]) for rank in range(3)}
    for its in sent.values():
        assert np.array(its.pieces) == pytest.approx(np.array([[120_000, 0.012]] * 2))
    for rank in range(3):
        facts[rank]["addresses"].append("172.17.0.1")  # all machines have it: whose is not known
        facts[rank]["sent"] = [["172.17.0.1", "172.17.0.1", 1e-5, [10**6, 1.0]]]
    assert reduce_network(telling(training(), facts)).sent == {}
    assert reduce_network(telling(training(), {0: {"problem": "the kernel does not tell"}})).sent == {}


@pytest.mark.parametrize(
    "entry",
    [
        "x",
        [],
        ["a", "b", 0.1],
        ["a", "b", 0.1, [-1, 1.0]],
        ["a", "b", 0.1, [10, "long"]],
        ["a", "b", -1.0, [10, 1.0]],
        ["a", "b", 0.1, [10, float("nan")]],
    ],
)
def test_damaged_traffic_is_refused(entry: Any) -> None:
    facts = {0: {"addresses": ["a"], "sent": [entry]}, 1: {"addresses": ["b"], "sent": []}}
    with pytest.raises(TraceError, match="no traffic"):
        reduce_network(telling(training(), facts))


def late_result(slow: int | None, run: RunSpec, late_ms: float = 4, **longer: Any) -> Trace:
    """A training in which the reduction's result reaches rank 1 later."""
    trace = trace_of(
        run,
        communication=18.0,
        bound_ns=12_000,
        backend={"gradient_bytes": VOLUME},
        noise=0.3,
        leave=on(1, ms=late_ms),
        **longer,
    )
    return telling(trace, ring_facts(slow, run.steps))


def ledger_of(folder: Path, trace: Trace) -> Ledger:
    folder.mkdir(exist_ok=True)
    put(folder, trace)
    (ledger,) = ledgers(results(load([folder])))
    hold(as_json(Summary(results=(ledger.result,), ledgers=(ledger,))))
    return ledger


def test_who_leaves_the_reduction_late_for_a_slow_link_is_not_blamed(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, late_result(2, THREE))
    assert ledger.stragglers == ()
    assert [late.straggler.ranks for _, late in ledger.findings_of(LateResult)] == [(1,)]
    assert ledger.network is not None
    (finding,) = ledger.network.findings
    host = ledger.nodes[2].name
    assert finding.nodes == (host,)
    text = whole_text(ledger)
    slow, late = f"he links of node {host} are slow", "he reduction's result reaches rank 1"
    assert slow in text and late in text and "leaves the reduction" not in text
    assert text.index(slow) < text.index(late)


def test_what_a_late_result_costs_is_what_the_steps_are_shorter_by_without_it(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path / "late", late_result(None, THREE))
    usual = ledger_of(tmp_path / "usual", late_result(None, THREE, late_ms=0))
    ((finding, late),) = ledger.findings_of(LateResult)
    assert finding.costs == pytest.approx(ledger.step.value - usual.step.value, rel=0.1)
    assert finding.without is not None
    saved = ledger.step.value * (1 - finding.without.recorded / finding.without.speed)
    assert finding.costs == pytest.approx(saved, rel=1e-6)
    assert f". That is the network's delay and costs {ms(finding.costs)} a step. Without it: " in sentence(
        ledger, "3n1g"
    )
    assert late.straggler.ranks == (1,)


def test_so_it_is_where_no_link_is_slow_and_what_a_rank_does_itself_is_named_all_the_same(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, late_result(None, THREE, backward=on(2, ms=2)))
    assert [late.straggler.ranks for _, late in ledger.findings_of(LateResult)] == [(1,)]
    assert ledger.verdict.ranks == (2,)
    assert max(ledger.verdict.cause, key=lambda name: ledger.verdict.cause[name]) == "compute"
    assert ledger.network is not None and ledger.network.findings == ()
    assert "rankwise sweep --collectives shows each link" in sentence(ledger, "3n1g")


def test_on_one_node_it_is_its_own(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, late_result(None, run_of(nodes=1, ranks_per_node=3, measured_steps=200)))
    assert ledger.verdict.ranks == (1,)
    assert ledger.findings_of(LateResult) == []


def test_no_message_is_slower_than_one_of_a_connection(tmp_path: Path) -> None:
    """The clocks' messages of busy ranks took 6 ms there and back, one of a connection 0.02: latency binds nothing."""
    far, _ = network_of(tmp_path / "far", training(one_way_us=3000, communication=12.0))
    assert [finding.kind for finding in far.findings] == [Fault.LATENCY]
    run = training(one_way_us=3000, communication=12.0)
    near, text = network_of(tmp_path / "near", telling(run, ring_facts(None, 10)))
    assert [trip.ms for trip in near.round_trips] == pytest.approx([0.02, 0.02])
    assert near.findings == () and "latency" not in text
