"""Slow links and slow nodes: named where they are, with their figures, none where there are none."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from parse.ledger.network import (
    Basis,
    Fault,
    MeasuredNetwork,
    NetworkFinding,
    Segments,
    Sent,
    Unknown,
    exceptions,
    judge,
    slow_places,
)  # fmt: skip
from parse.say.network import network_notes
from tests.unit.networks import VOLUME, as_text, kinds, links_of, measured, unknowns


def noisy(nodes: int, seed: int, scatter: float = 0.1) -> dict[tuple[str, str], float]:
    """Links of about 0.05 ms, lognormal."""
    random = np.random.default_rng(seed)
    pairs = [(f"n{first}", f"n{second}") for first in range(nodes) for second in range(first + 1, nodes)]
    return {pair: float(0.05 * np.exp(scatter * random.standard_normal())) for pair in pairs}


@pytest.mark.parametrize("nodes", [3, 4, 7, 16, 64])
def test_a_slow_node_a_slow_link_and_none(nodes: int) -> None:
    for seed in range(20):
        random, times = np.random.default_rng(seed), noisy(nodes, seed)
        assert slow_places(times) == []
        node = f"n{random.integers(nodes)}"
        slowed = {pair: time * 4 if node in pair else time for pair, time in times.items()}
        assert [place.nodes for place in slow_places(slowed)] == [(node,)]
        pair = [*times][random.integers(len(times))]
        (place,) = slow_places({**times, pair: 0.3})
        assert (place.nodes, place.time) == (pair, 0.3)
        assert place.usual == pytest.approx(0.05, rel=0.2)


def test_many_links_take_little_time() -> None:
    """512 nodes: 130,816 links."""
    times = noisy(512, 3)
    slowed = {pair: time * 4 if "n77" in pair else time for pair, time in times.items()}
    assert [place.nodes for place in slow_places(slowed)] == [("n77",)]


def test_the_others_of_a_link_are_all_but_that_link() -> None:
    """The medians of two, three and four others."""
    for times, usual in (((1, 3, 9), 2), ((1, 2, 3, 9), 2), ((1, 2, 4, 5, 19), 3)):
        named = [((f"{place}", "x"), float(time)) for place, time in enumerate(times)]
        (place,) = exceptions(named, 0)
        assert (place.time, place.usual) == (times[-1], usual)
    assert exceptions([(("a",), 9.0)], 0) == exceptions([], 0) == []


def test_two_slow_nodes_are_two() -> None:
    times = noisy(8, 1)
    slowed = {pair: time * (5 if "n2" in pair else 1) * (9 if "n6" in pair else 1) for pair, time in times.items()}
    assert [place.nodes for place in slow_places(slowed)] == [("n6",), ("n2",)]


def test_levels_of_a_fabric_are_no_slow_links() -> None:
    """Two racks: links between them take three times as long as those within."""
    for nodes in (4, 8, 32):
        times = noisy(nodes, 2)
        racked = {
            (first, second): time * (3 if (int(first[1:]) < nodes // 2) != (int(second[1:]) < nodes // 2) else 1)
            for (first, second), time in times.items()
        }
        assert slow_places(racked) == []


def with_times(changes: Mapping[tuple[str, str], float], nodes: int = 3, **values: Any) -> MeasuredNetwork:
    links = [
        dataclasses.replace(link, latency_ms=changes.get(link.nodes, link.latency_ms))
        for link in links_of(nodes, 0.05, 1.0)
    ]
    return measured(nodes, 0.05, 1.0, links=tuple(links), **values)


def test_a_slow_node_is_named_with_its_figures() -> None:
    far = with_times({("n0", "n2"): 3.1, ("n1", "n2"): 3.2}, exposed_ms=10.0, step_ms=26.0)
    (finding,) = judge(far, VOLUME).findings
    assert finding == NetworkFinding(
        kind=Fault.SLOW_LINK, basis=Basis.PAIRS, value=3.1, usual=0.05, quantity=Fault.LATENCY, nodes=("n2",)
    )
    assert as_text(judge(far, VOLUME)) == "The links of node n2 are slow: 3.10 ms for a small message, others 50.0 µs"
    first = with_times({("n0", "n2"): 3.1}, exposed_ms=10.0, step_ms=26.0)
    assert (
        as_text(judge(first, VOLUME))
        == "The link between n0 and n2 is slow: 3.10 ms for a small message, others 50.0 µs"
    )


def test_a_slow_link_that_is_nothing_of_what_is_exposed_is_none() -> None:
    """An all-reduce of three nodes goes by a link four times: 0.12 ms more are nothing of the 5 ms that are exposed."""
    network = judge(with_times({("n1", "n2"): 0.17}, exposed_ms=5.0, step_ms=90.0), VOLUME)
    assert (Fault.SLOW_LINK, Basis.PAIRS) not in kinds(network) and network.noted == ()
    costly = judge(with_times({("n1", "n2"): 0.19}, exposed_ms=5.0, step_ms=90.0), VOLUME)
    assert kinds(costly) == [(Fault.SLOW_LINK, Basis.PAIRS)]
    assert judge(with_times({("n1", "n2"): 0.14}, exposed_ms=0.1, step_ms=110.0), VOLUME).findings == ()  # not far
    merged = with_times({("n1", "n2"): 0.19}, exposed_ms=None, step_ms=100.0)
    assert judge(merged, VOLUME).findings[0].kind is Fault.SLOW_LINK


@pytest.mark.parametrize(
    ("exposed_ms", "step_ms"),
    [pytest.param(0.9, 12.0, id="less is exposed than a message takes"), pytest.param(3.5, 90.0, id="hidden")],
)
def test_a_slow_link_that_costs_nothing_today_is_a_note(exposed_ms: float, step_ms: float) -> None:
    slow = {("n0", "n2"): 3.14, ("n1", "n2"): 3.2}
    network = judge(with_times(slow, exposed_ms=exposed_ms, step_ms=step_ms), VOLUME)
    assert (Fault.SLOW_LINK, Basis.PAIRS) not in kinds(network) and Fault.SLOW_LINK not in unknowns(network)
    assert [finding.nodes for finding in network.noted] == [("n2",)] and "slow" not in as_text(network)
    (note,) = [line for line in network_notes(network) if "slow" in line]
    assert note.startswith(
        "network: the links of node n2 are slow: 3.14 ms for a small message, others 50.0 µs; it cost"
    )
    costly = judge(with_times(slow, exposed_ms=13.0, step_ms=90.0), VOLUME)
    assert len(costly.findings) == 1 and costly.noted == ()


def test_a_node_with_a_slow_card_is_known_by_its_bandwidth() -> None:
    links = tuple(
        dataclasses.replace(link, bandwidth=0.0025 if "n1" in link.nodes else 1.0) for link in links_of(3, 0.05, 1.0)
    )
    network = judge(measured(3, 0.05, 1.0, links=links, exposed_ms=500.0, step_ms=560.0), VOLUME)
    assert as_text(network) == "The links of node n1 are slow: 20 Mbit/s each way, others 8 Gbit/s"
    far = tuple(
        dataclasses.replace(link, latency_ms=3.0 if "n1" in link.nodes else 0.05) for link in links
    )  # what is far is slow as well, and named once
    (finding,) = judge(measured(3, 0.05, 1.0, links=far, exposed_ms=20.0, step_ms=80.0), VOLUME).findings
    assert finding.quantity is Fault.LATENCY
    (finding,) = judge(measured(3, 0.05, 1.0, links=far, exposed_ms=500.0, step_ms=560.0), VOLUME).findings
    assert finding.quantity is Fault.BANDWIDTH  # its messages are nothing of so much


def test_without_pairs_the_clocks_tell_the_links_of_the_first_node() -> None:
    trips = {"n1": 0.1, "n2": 6.2, "n3": 0.11, "n4": 0.09}
    network = judge(measured(5, 0.05, 1.0, links=(), round_trips_ms=trips, exposed_ms=10.0, step_ms=26.0), VOLUME)
    assert kinds(network) == [(Fault.SLOW_LINK, Basis.ROUND_TRIPS)]
    assert as_text(network) == "The link from the first node to n2 is slow: 3.10 ms one way, others 50.0 µs"
    alike = measured(5, 0.05, 1.0, links=(), round_trips_ms=dict.fromkeys(trips, 6.2), exposed_ms=0.1, step_ms=26.0)
    assert judge(alike, VOLUME).findings == ()
    second = judge(measured(2, links=()), VOLUME)
    assert unknowns(second) == {Fault.SLOW_LINK: Unknown.TWO_NODES}
    none = judge(measured(3, links=(), round_trips_ms={}), VOLUME)
    assert unknowns(none) == {Fault.SLOW_LINK: Unknown.NO_PAIRS}


def ring_of(nodes: int, ms_per_mb: Mapping[tuple[str, str], float]) -> tuple[Sent, ...]:
    """Each node sends 24 kB a step to the one before it, 100 ms a MB but where it is another."""
    pairs = [(f"n{node}", f"n{(node - 1) % nodes}") for node in range(nodes)]
    return tuple(
        Sent(nodes=pair, megabytes=0.024, ms_per_mb=(ms := ms_per_mb.get(pair, 100.0)), pieces=(ms, ms))
        for pair in pairs
    )


def connected(slow: Mapping[tuple[str, str], float], nodes: int = 3, **values: Any) -> MeasuredNetwork:
    usual: dict[str, Any] = {"links": (), "round_trips_ms": {}, "exposed_ms": 22.2, "step_ms": 45.0}
    return measured(nodes, 0.05, 1.0, sent=ring_of(nodes, slow), **(usual | values))


@pytest.mark.parametrize("nodes", [3, 8])
def test_connections_name_the_node_that_sends_slowly_and_what_that_costs(nodes: int) -> None:
    """It sends slowly, and the acknowledgements of what it gets wait behind that."""
    last = f"n{nodes - 1}"
    network = judge(connected({(last, f"n{nodes - 2}"): 830.0, ("n0", last): 720.0}, nodes), VOLUME)
    (finding,) = network.findings
    assert (finding.kind, finding.basis, finding.nodes) == (Fault.SLOW_LINK, Basis.CONNECTIONS, (last,))
    assert finding.explains == pytest.approx(0.024 * 730)
    assert as_text(network) == (
        f"The links of node {last} are slow: 11.1 Mbit/s while data are on their way, others 80 Mbit/s, which is "
        "17.5 ms of the exposed communication"
    )
    assert any(
        "TCP connections between nodes carry 9.64 Mbit/s to 80 Mbit/s" in line for line in network_notes(network)
    )


def test_a_slow_direction_of_a_single_link_names_both_ends() -> None:
    (finding,) = judge(connected({("n2", "n1"): 600.0}), VOLUME).findings
    assert finding.nodes == ("n1", "n2")


def test_a_slow_link_costs_no_more_than_its_share_of_what_is_exposed() -> None:
    (finding,) = judge(connected({("n2", "n1"): 5_000.0, ("n0", "n2"): 5_000.0}), VOLUME).findings
    assert finding.explains == pytest.approx(22.2 * (1 - 100 / 5_000))


@pytest.mark.parametrize(
    "values",
    [
        {"slow": {("n2", "n1"): 280.0, ("n0", "n2"): 280.0}},  # as connections of busy hosts differ
        {"slow": {("n2", "n1"): 380.0}},  # as connections of busy hosts differ
        {"slow": {("n2", "n1"): 830.0, ("n0", "n2"): 720.0}, "exposed_ms": 1.0},  # hidden
        {"slow": {("n2", "n1"): 830.0, ("n0", "n2"): 720.0}, "segments": Segments(sent=1e5, resent=900, needless=0)},
        {"slow": dict.fromkeys((("n2", "n1"), ("n1", "n0"), ("n0", "n2")), 900.0)},  # all alike
    ],
)
def test_connections_invent_no_slow_link(values: dict[str, Any]) -> None:
    network = judge(connected(**values), VOLUME)
    assert Fault.SLOW_LINK not in {finding.kind for finding in (*network.findings, *network.noted)}


@pytest.mark.parametrize("seed", range(20))
def test_equal_links_have_none(seed: int) -> None:
    """As on hosts that are busy at times: pieces of a run differ by more than links."""
    random = np.random.default_rng(seed)
    sent = []
    for each in ring_of(3, {}):
        pieces = tuple((100 * np.exp(0.4 * random.standard_normal(2))).tolist())
        sent.append(dataclasses.replace(each, ms_per_mb=sum(pieces) / 2, pieces=pieces))
    assert judge(dataclasses.replace(connected({}), sent=tuple(sent)), VOLUME).findings == ()


def test_a_link_that_is_slow_in_one_piece_alone_is_none() -> None:
    slow = {("n2", "n1"): 830.0, ("n0", "n2"): 720.0}
    sent = [dataclasses.replace(each, pieces=(100.0, 2 * each.ms_per_mb - 100)) for each in ring_of(3, slow)]
    assert judge(dataclasses.replace(connected({}), sent=tuple(sent)), VOLUME).findings == ()


def test_a_far_node_by_the_clocks_is_far_by_its_connections_too() -> None:
    trips = {"n1": 0.1, "n2": 6.2, "n3": 0.11}
    near = judge(connected({}, 4, round_trips_ms=trips), VOLUME)
    assert near.findings == near.noted == ()
    far = judge(connected({("n3", "n2"): 900.0, ("n2", "n1"): 900.0}, 4, round_trips_ms=trips), VOLUME)
    assert [(finding.basis, finding.nodes) for finding in far.findings] == [(Basis.ROUND_TRIPS, ("n2",))]


def test_the_few_bytes_of_a_ring_s_other_direction_say_nothing() -> None:
    """As measured between equal hosts: 1.1 MB of 226 MB took 1.3 s."""
    answers = Sent(nodes=("n0", "n1"), megabytes=0.0001, ms_per_mb=1170.0, pieces=(1170.0,))
    assert judge(dataclasses.replace(connected({}), sent=(*ring_of(3, {}), answers)), VOLUME).findings == ()
