"""parse.ledger.network: what a network's figures come to, by networks whose truth is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from parse.ledger.finding import Finding
from parse.ledger.network import (
    LOST_SHARE,
    Basis,
    Fault,
    LinkUse,
    Promise,
    Segments,
    Unknown,
    hockney,
    judge,
    node_bandwidth,
)  # fmt: skip
from parse.say.findings import words
from parse.say.network import finding_text, network_notes
from tests.unit.ledgers import two_nodes
from tests.unit.networks import VOLUME, as_text, kinds, measured, ring, unknowns

# Latency and bandwidth


def test_the_parts_of_an_all_reduce_are_those_of_hockneys_law() -> None:
    reduction = hockney((1000, 10_000, 100_000), (2.01, 2.1, 3.0), 50_000, 2.5)
    assert (reduction.latency_ms, reduction.bandwidth_ms) == (pytest.approx(2.0), pytest.approx(0.5))
    assert (reduction.smallest_ms, reduction.ms) == (2.01, 2.5)
    flat = hockney((1000, 10_000), (2.0, 1.9), 5_000, 1.95)
    assert (flat.latency_ms, flat.bandwidth_ms) == (1.95, 0.0)
    steep = hockney((1000, 10_000), (0.1, 10.0), 9_000, 5.0)
    assert (steep.latency_ms, steep.bandwidth_ms) == (0.0, 5.0)


@pytest.mark.parametrize("nodes", [2, 3, 8, 64])
def test_what_binds_is_named_wherever_it_is_twice_the_other(nodes: int) -> None:
    """Of 100 networks between 1 µs and 10 ms, 1 Mbit/s and 400 Gbit/s: all that matter and are no tie."""
    random, named = np.random.default_rng(nodes), 0
    for _ in range(100):
        one_way_ms, bandwidth = 10 ** random.uniform(-3, 1), 10 ** random.uniform(-4, 1.7)
        latency_ms = 2 * (nodes - 1) * one_way_ms
        bytes_ms = ring(nodes, 0, bandwidth, VOLUME)
        if max(latency_ms, bytes_ms) < 2 * min(latency_ms, bytes_ms):
            continue
        network = judge(measured(nodes, one_way_ms, bandwidth), VOLUME)
        if latency_ms + bytes_ms < 0.05 * (60 + latency_ms + bytes_ms):
            assert network.findings == ()
            continue
        (finding,) = network.findings
        assert finding.kind is (Fault.LATENCY if latency_ms > bytes_ms else Fault.BANDWIDTH)
        assert finding.explains == pytest.approx(max(latency_ms, bytes_ms), rel=1e-6)
        if finding.kind is Fault.BANDWIDTH:
            assert finding.value == pytest.approx(bandwidth)
        named += 1
    assert named > 30


def test_little_communication_is_not_judged() -> None:
    """A slow network that nobody waits for, since compute hides it."""
    hidden = dataclasses.replace(measured(one_way_ms=3.0), exposed_ms=0.4, step_ms=15.4)
    assert judge(hidden, VOLUME).findings == ()
    assert unknowns(judge(hidden, VOLUME)) == {}


def test_latency_that_the_way_of_messages_cannot_explain_is_not_the_networks() -> None:
    """Small all-reduces take 1.65 ms where a round trip takes 37 µs: the ranks wait for cores."""
    slow_calls = hockney((1024, 4096, 65536), (1.65, 1.7, 2.0), 2000, 1.66)
    network = judge(measured(3, 0.0185, reduction=slow_calls, exposed_ms=3.5, step_ms=20.0), 2000)
    assert network.findings == ()
    assert unknowns(network) == {Fault.LATENCY: Unknown.NOT_THE_WAY, Fault.BANDWIDTH: Unknown.NOT_THE_WAY}
    assert any("cores or software, not the network" in line for line in network_notes(network))
    unknown_way = measured(3, reduction=slow_calls, exposed_ms=3.5, step_ms=20.0, round_trips_ms={}, links=())
    assert kinds(judge(unknown_way, 2000)) == [(Fault.LATENCY, Basis.CURVE)]


def test_more_exposed_than_all_reduces_take_is_not_the_networks() -> None:
    """An all-reduce takes 1.1 ms by itself and 6.3 ms in the training, whose ranks have too few cores."""
    reduction = hockney((1024, 65536, 1 << 20), (0.1, 1.0, 14.4), 75_776, 1.1)
    network = judge(measured(3, reduction=reduction, exposed_ms=6.3, step_ms=25.4), 75_776)
    assert (network.findings, unknowns(network)[Fault.BANDWIDTH]) == ((), Unknown.MORE_EXPOSED)
    twice = judge(measured(3, reduction=reduction, exposed_ms=2.2, step_ms=25.4), 75_776)
    assert [(each.kind, each.explains) for each in twice.findings] == [(Fault.BANDWIDTH, pytest.approx(1.03, rel=0.01))]


def test_without_collectives_round_trips_prove_what_no_all_reduce_can_do_without() -> None:
    """Two nodes 3 ms apart: each must hear of the other and be heard, 6 ms of the 14.4 exposed."""
    bare = measured(2, 3.0, exposed_ms=14.4, step_ms=30, reduction=None, links=(), no_reduction=Unknown.NO_COLLECTIVES)
    (finding,) = judge(bare, VOLUME).findings
    assert (finding.kind, finding.basis, finding.value) == (Fault.LATENCY, Basis.ROUND_TRIPS, 3.0)
    assert finding.explains == 6.0
    assert "a round trip between nodes takes 6.00 ms, at least 6.00 ms of the exposed" in finding_text(finding)
    near = dataclasses.replace(bare, round_trips_ms={"n1": 0.05})
    network = judge(near, VOLUME)
    assert network.findings == ()
    assert unknowns(network)[Fault.LATENCY] is unknowns(network)[Fault.BANDWIDTH] is Unknown.NO_COLLECTIVES
    several = dataclasses.replace(near, reductions=100)
    assert judge(several, VOLUME).findings[0].explains == pytest.approx(5.0)
    merged = dataclasses.replace(bare, exposed_ms=None)
    assert unknowns(judge(merged, VOLUME))[Fault.LATENCY] is Unknown.NO_VOLUME


def test_a_link_that_is_full_is_what_is_waited_for() -> None:
    full = measured(reduction=None, exposed_ms=10.0, step_ms=25.0, link_use=LinkUse(node="n2", carried=1.0, speed=1.25))
    (finding,) = judge(full, VOLUME).findings
    assert (finding.kind, finding.basis, finding.nodes) == (Fault.BANDWIDTH, Basis.LINK_SPEED, ("n2",))
    assert finding_text(finding) == (
        "communication is bound by bandwidth: node n2 carries 8 Gbit/s of its link's 10 Gbit/s"
    )
    beside = judge(measured(2, 0.02, 0.005, link_use=LinkUse(node="n1", carried=0.004, speed=1.25)), VOLUME)
    assert "a node sends 40 Mbit/s (its link has 10 Gbit/s), 200 ms of the exposed" in as_text(beside)
    idle = dataclasses.replace(full, link_use=LinkUse(node="n2", carried=0.5, speed=1.25))
    assert judge(idle, VOLUME).findings == ()


def test_the_bandwidth_of_a_node_is_what_it_must_send() -> None:
    """Half of the bytes to the other of two nodes and its sum back: the whole volume once."""
    assert node_bandwidth(10**9, 1000, 2) == 1.0
    assert node_bandwidth(10**9, 1000, 1000) == pytest.approx(1.998)
    exposed = ring(4, 0.02, 1.0, VOLUME)
    assert judge(measured(), VOLUME).bandwidth == pytest.approx(1.5 * VOLUME / exposed / 1e6)


# What the site promises


@pytest.mark.parametrize(
    ("one_way_ms", "bandwidth", "promise", "broken"),
    [
        (0.003, 20.0, Promise(latency_ms=0.003, bandwidth=25.0), []),
        (0.020, 20.0, Promise(latency_ms=0.003, bandwidth=25.0), []),  # MPI and Python are on the way, too
        (3.0, 20.0, Promise(latency_ms=0.003, bandwidth=25.0), [Fault.LATENCY]),
        (0.003, 1.25, Promise(latency_ms=0.003, bandwidth=25.0), [Fault.BANDWIDTH]),
        (3.0, 1.25, Promise(latency_ms=0.003, bandwidth=25.0), [Fault.LATENCY, Fault.BANDWIDTH]),
        (3.0, 1.25, Promise(), []),
    ],
)
def test_a_broken_promise_is_a_finding_even_where_nobody_waits(
    one_way_ms: float, bandwidth: float, promise: Promise, broken: Sequence[Fault]
) -> None:
    network = judge(measured(4, one_way_ms, bandwidth, promise=promise, exposed_ms=0.1, step_ms=100.0), VOLUME)
    assert kinds(network) == [(kind, Basis.PROMISE) for kind in broken]
    for finding in network.findings:
        assert "the site promises" in finding_text(finding)


def test_a_promise_is_held_against_all_reduces_where_no_pairs_were_measured() -> None:
    network = judge(measured(4, 0.003, 1.25, promise=Promise(bandwidth=25.0), links=()), VOLUME)
    (finding,) = network.findings
    assert (finding.basis, finding.value, finding.usual) == (Basis.PROMISE, pytest.approx(1.25, rel=0.01), 25.0)
    assert finding_text(finding) == "a node sends 10 Gbit/s, the site promises 200 Gbit/s"


# Loss


def test_segments_that_the_receiver_had_are_not_lost() -> None:
    """Probes of a sender whose receiver has no core: sent again and known to be needless, as on a busy machine."""
    quiet = measured(segments=Segments(sent=1_029_131, resent=72, needless=72))
    assert judge(quiet, VOLUME).findings == ()
    lossy = measured(segments=Segments(sent=619_843, resent=6638, needless=180))
    (finding,) = judge(lossy, VOLUME).findings
    assert (finding.kind, finding.value) == (Fault.LOSS, pytest.approx(0.0103, rel=0.01))
    assert finding_text(finding) == "packets are lost: 1 % of the TCP segments"


@pytest.mark.parametrize("share", [0.002, 0.005, 0.01, 0.1])
def test_what_is_lost_is_a_finding_and_what_is_not_is_none(share: float) -> None:
    """100 networks that lose this share of 20,000 segments, and repeat as many needlessly as 100 that lose none."""
    random = np.random.default_rng(1)
    for _ in range(100):
        lost, needless = float(random.binomial(20_000, share)), float(random.poisson(60))
        for resent, expected in ((lost + needless, [Fault.LOSS]), (needless, [])):
            network = judge(measured(segments=Segments(sent=20_000, resent=resent, needless=needless)), VOLUME)
            losses = [finding.kind for finding in network.findings if finding.kind is Fault.LOSS]
            assert losses == expected


def test_loss_is_a_share_and_held_against_other_points() -> None:
    segments = Segments(sent=100_000, resent=150, needless=0)
    assert kinds(judge(measured(segments=segments), VOLUME)) == [(Fault.LOSS, Basis.SEGMENTS)]
    assert judge(measured(segments=segments, usual_loss=0.0009), VOLUME).findings == ()
    (finding,) = judge(measured(segments=segments, usual_loss=0.00001), VOLUME).findings
    assert finding_text(finding) == "packets are lost: 0.15 % of the TCP segments (at other points 0.001 %)"
    # Other points lose as much: all of them are named, none is the measure of the others.
    assert kinds(judge(measured(segments=segments, usual_loss=2 * LOST_SHARE), VOLUME)) == [
        (Fault.LOSS, Basis.SEGMENTS)
    ]
    few = judge(measured(segments=Segments(sent=900, resent=9, needless=0)), VOLUME)
    assert (few.findings, unknowns(few)) == ((), {Fault.LOSS: Unknown.FEW_SEGMENTS})
    assert unknowns(judge(measured(segments=None), VOLUME)) == {Fault.LOSS: Unknown.NO_COUNTERS}
    old_kernel = measured(segments=Segments(sent=10_000, resent=100, needless=None))
    assert kinds(judge(old_kernel, VOLUME)) == [(Fault.LOSS, Basis.SEGMENTS)]


def test_loss_stands_in_place_of_what_it_does_to_all_reduces() -> None:
    lossy = measured(one_way_ms=3.0, segments=Segments(sent=100_000, resent=1000, needless=0))
    assert kinds(judge(lossy, VOLUME)) == [(Fault.LOSS, Basis.SEGMENTS)]


# Text


def test_sentences_say_what_to_do_and_the_lines_below_hold_the_figures() -> None:
    network = judge(measured(3, 3.0, 1.0, segments=Segments(sent=1000, resent=3, needless=3)), VOLUME)
    assert [*network_notes(network)] == [
        "network: round trips from the first node 6.00 ms; one all-reduce of the gradients by itself 13.3 ms, "
        "12.0 ms of it latency, 1.33 ms bandwidth; a node sends 800 Mbit/s at least while communication is exposed; "
        "3 of 1000 TCP segments sent again, 3 of them needlessly: 0 % lost",
    ]
    assert words(Finding(what=network.findings[0]), two_nodes(network=network)).sentences == [
        "Communication is bound by latency: a round trip between nodes takes 6.00 ms, the smallest all-reduce "
        "12.0 ms, 12.0 ms of the exposed communication",
        "To do: fewer, larger reductions (--option bucket_cap_mb), a faster transport, nodes nearer to one another",
    ]
    assert [*network_notes(None)] == []


def test_nothing_is_invented_on_networks_without_a_fault() -> None:
    """1000 networks of 10 Gbit/s and 20 µs, measured with 10 % scatter, from 2 to 33 nodes."""
    random = np.random.default_rng(7)
    for _ in range(1000):
        nodes = int(random.integers(2, 34))
        scatter = lambda size: np.exp(0.1 * random.standard_normal(size))  # noqa: E731
        quiet = measured(nodes, 0.02, 1.25, volume=75_776, compute_ms=200.0)
        links = [
            dataclasses.replace(link, latency_ms=link.latency_ms * factor, bandwidth=1.25 / other)
            for link, factor, other in zip(
                quiet.links, scatter(len(quiet.links)), scatter(len(quiet.links)), strict=True
            )
        ]
        trips = {
            node: ms * factor for (node, ms), factor in zip(quiet.round_trips_ms.items(), scatter(nodes), strict=False)
        }
        needless = float(random.poisson(50))
        network = judge(
            dataclasses.replace(
                quiet, links=tuple(links), round_trips_ms=trips,
                segments=Segments(sent=1e5, resent=needless + float(random.poisson(2)), needless=needless),
                promise=Promise(latency_ms=0.02, bandwidth=1.25),
            ),
            75_776,
        )  # fmt: skip
        assert network.findings == ()
