"""The network of a point as text: findings with what to do, and the figures behind them."""

from __future__ import annotations

from collections.abc import Iterator

from hpc.system.text import inflect
from parse import stats
from parse.ledger.network import Basis, Fault, Network, NetworkFinding, Unknown
from parse.say.numbers import ms

MUTE = (Unknown.TWO_NODES, Unknown.NO_PAIRS, Unknown.FEW_SEGMENTS)
"""What a point without a fault lacks, too, is in the JSON only."""
ADVICE = {
    Fault.LATENCY: "fewer, larger reductions (--option bucket_cap_mb), a faster transport, nodes nearer to one another",
    Fault.BANDWIDTH: "see which interface is used (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME, NCCL_IB_HCA) and its speed",
    Fault.LOSS: "see the error counters of cables and switch ports between these nodes, their MTU and duplex mode",
    Fault.SLOW_LINK: "see cable, port and link speed; leave it out meanwhile (`exclude` of the site)",
}
HOW = {
    Unknown.NO_COLLECTIVES: "no collectives of these ranks are here (rankwise sweep --collectives)",
    Unknown.NOT_THE_WAY: "small all-reduces take longer than their messages' way: cores or software, not the network",
    Unknown.OUTSIDE: "the collectives here did not measure as many bytes as the gradients have",
}
"""Reasons with what to do; others alone."""


def median_trip(network: Network) -> float | None:
    """ms there and back between the first node and another; None where it is not known."""
    trips = [trip.ms for trip in network.round_trips]
    return stats.median(trips) if trips else None


def network_notes(network: Network | None) -> Iterator[str]:
    """The figures behind the findings, and why a finding is not known."""
    if network is None:
        return
    if figures := [*_figures(network)]:
        yield f"network: {'; '.join(figures)}"
    for slow in network.noted:
        yield f"network: {finding_text(slow)}; it costs nothing today: what is exposed is too little to be its doing"
    reasons: dict[Unknown, list[str]] = {}
    for missing in network.unknown:
        if missing.reason not in MUTE:
            reasons.setdefault(missing.reason, []).append(missing.kind)
    for reason, kinds in reasons.items():
        yield f"network: {' and '.join(kinds)} not known: {HOW.get(reason, str(reason))}"


def finding_text(finding: NetworkFinding, trip_ms: float | None = None) -> str:
    """A finding with its figures; `trip_ms` is the round trip between two nodes."""
    explains = "" if finding.explains is None else f", {ms(finding.explains)} of the exposed communication"
    match finding.kind, finding.basis:
        case Fault.LATENCY, Basis.CURVE:
            trip = "" if trip_ms is None else f"a round trip between nodes takes {ms(trip_ms)}, "
            text = f"communication is bound by latency: {trip}the smallest all-reduce {ms(finding.value)}{explains}"
        case Fault.LATENCY, Basis.ROUND_TRIPS:
            trip = f"a round trip between nodes takes {ms(2 * finding.value)}"
            text = f"communication is bound by latency: {trip}, at least{explains[1:]}"
        case Fault.LATENCY, _:
            text = f"the network takes {ms(finding.value)} one way, the site promises {ms(finding.usual or 0)}"
        case Fault.BANDWIDTH, Basis.CURVE:
            link = "" if finding.usual is None else f" (its link has {_rate(finding.usual)})"
            text = f"communication is bound by bandwidth: a node sends {_rate(finding.value)}{link}{explains}"
        case Fault.BANDWIDTH, Basis.LINK_SPEED:
            carried = (
                f"node {finding.nodes[0]} carries {_rate(finding.value)} of its link's {_rate(finding.usual or 0)}"
            )
            text = f"communication is bound by bandwidth: {carried}"
        case Fault.BANDWIDTH, _:
            text = f"a node sends {_rate(finding.value)}, the site promises {_rate(finding.usual or 0)}"
        case Fault.LOSS, _:
            others = "" if finding.usual is None else f" (at other points {_percent(finding.usual)})"
            text = f"packets are lost: {_percent(finding.value)} of the TCP segments{others}"
        case _:
            text = _slow_link(finding)
    return text


def _slow_link(finding: NetworkFinding) -> str:
    of_bandwidth = finding.quantity is Fault.BANDWIDTH
    write = _rate if of_bandwidth else ms
    small = "one way" if finding.basis is Basis.ROUND_TRIPS else "for a small message"
    figures = f"{write(finding.value)} {'each way' if of_bandwidth else small}"
    if finding.basis is Basis.CONNECTIONS:
        figures = f"{write(finding.value)} while data are on their way"
    figures += "" if finding.usual is None else f", others {write(finding.usual)}"
    figures += "" if finding.explains is None else f", which is {ms(finding.explains)} of the exposed communication"
    if len(finding.nodes) > 1:
        return f"the link between {finding.nodes[0]} and {finding.nodes[1]} is slow: {figures}"
    if finding.basis is Basis.ROUND_TRIPS:
        return f"the link from the first node to {finding.nodes[0]} is slow: {figures}"
    return f"the links of node {finding.nodes[0]} are slow: {figures}"


def _figures(network: Network) -> Iterator[str]:
    if trips := [trip.ms for trip in network.round_trips]:
        low, high = ms(min(trips)), ms(max(trips))
        yield f"{inflect(len(trips), 'round trip')} from the first node {low if low == high else f'{low} to {high}'}"
    if (reduction := network.reduction) is not None:
        parts = f"{ms(reduction.latency_ms)} of it latency, {ms(reduction.bandwidth_ms)} bandwidth"
        yield f"one all-reduce of the gradients by itself {ms(reduction.ms)}, {parts}"
    if network.bandwidth is not None:
        yield f"a node sends {_rate(network.bandwidth)} at least while communication is exposed"
    if rates := [1 / each.ms_per_mb for each in network.sent]:
        low, high = _rate(min(rates)), _rate(max(rates))
        both = low if low == high else f"{low} to {high}"
        yield f"TCP connections between nodes carry {both} while data are on their way"
    if (use := network.link_use) is not None:
        yield f"the busiest link (node {use.node}) carries {_rate(use.carried)} of {_rate(use.speed)}"
    if (segments := network.segments) is not None:
        needless = "" if segments.needless is None else f", {segments.needless:.0f} of them needlessly"
        resent = f"{segments.resent:.0f} of {segments.sent:.0f} TCP segments sent again{needless}"
        others = "" if network.usual_loss is None else f", other points {_percent(network.usual_loss)}"
        yield f"{resent}: {_percent(segments.share)} lost{others}"


def _rate(gigabytes: float) -> str:
    """GB/s as links are named."""
    mbit = gigabytes * 8e3
    return f"{mbit / 1e3:.3g} Gbit/s" if mbit >= 1e3 else f"{mbit:.3g} Mbit/s"


def _percent(share: float) -> str:
    return f"{share * 100:.2g} %"
