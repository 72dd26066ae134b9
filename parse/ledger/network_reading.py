"""What traces say of the network of a point: round trips, TCP segments, use of links, collectives by size and pair."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hpc.model.clock_model import STAR
from hpc.model.trace import Ints, Telemetry, Trace, TraceError
from parse import stats
from parse.ledger.network import (
    LinkUse,
    MeasuredNetwork,
    Network,
    Promise,
    Reduction,
    Segments,
    Sent,
    Unknown,
    hockney,
    judge,
)  # fmt: skip
from parse.ledger.standalone import MeasuredCollectives
from parse.ledger.telemetry import Quantity, node_figures, samples_in_window
from parse.runs.result import Result

_TCP = r"net\.tcp_{}_segments"


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What a connection sent in each of its pieces, bytes and seconds that these were on their way, and its shortest
    round trip."""

    pieces: tuple[tuple[int, float], ...]
    round_trip_ms: float

    @property
    def bytes(self) -> int:
        return sum(count for count, _ in self.pieces)


@dataclass(frozen=True, kw_only=True)
class NetworkReading:
    """One run's network. `round_trips_ms` by host, from the first node; `reductions` in a step, at least. `sent` is by
    host, and to which, what the busiest connection sent in so many `steps`: of each piece of the run bytes, and seconds
    that these were on their way. `simulated`: its nodes are groups of ranks on one machine, which has none."""

    simulated: bool = False
    round_trips_ms: Mapping[str, float] = field(default_factory=dict)
    segments: Segments | None = None
    link_use: LinkUse | None = None
    reductions: int = 1
    sent: Mapping[tuple[str, str], Traffic] = field(default_factory=dict)
    steps: int = 0
    promise: Promise = field(default_factory=Promise)


def reduce_network(trace: Trace) -> NetworkReading:
    """What a training's trace has of the network between its nodes."""
    telemetry = trace.telemetry
    block = None if telemetry is None else samples_in_window(trace, telemetry)
    buckets, sent = trace.reports[0].backend_fact("parameters_per_bucket"), _sent(trace)
    return NetworkReading(
        simulated=any(report.nodes_simulated for report in trace.reports),
        round_trips_ms=_with_connections(_round_trips(trace), sent),
        segments=None if telemetry is None or block is None else _segments(telemetry, block),
        link_use=None if telemetry is None or block is None else _link_use(trace, telemetry, block),
        reductions=len(buckets) if isinstance(buckets, Sequence) and buckets else 1,
        sent=sent,
        steps=trace.stamps.shape[1],
        promise=_promise(trace),
    )


def _round_trips(trace: Trace) -> dict[str, float]:
    """The fastest round trip of a message of MPI's between the first node and each other one, ms by host name.

    From the clocks: what causality leaves open of an offset is half a round trip (hpc.model.clock_model.estimate). None
    of nodes that share a clock, and none where clocks are compared in a tree.
    """
    if len({*trace.clock_domains}) > STAR or not trace.clock_local_ns.shape[1]:
        return {}
    bound_ns = trace.clock_bound_ns.min(axis=1)
    by_node: dict[int, float] = {}
    hosts: dict[int, str] = {}
    for rank, report in enumerate(trace.reports):
        node = report.node_rank or 0
        if bound_ns[rank] > 0:
            hosts[node] = report.hostname or f"node {node}"
            by_node[node] = min(by_node.get(node, np.inf), 2 * float(bound_ns[rank]) / 1e6)
    return {hosts[node]: ms for node, ms in by_node.items()}


def _with_connections(round_trips_ms: Mapping[str, float], sent: Mapping[tuple[str, str], Traffic]) -> dict[str, float]:
    """The same where a message of the clocks was never as fast as one of a connection, as between busy ranks."""
    fastest = dict(round_trips_ms)
    for nodes, traffic in sent.items():
        for node in fastest.keys() & nodes:
            if traffic.round_trip_ms > 0 and not fastest.keys() >= {*nodes}:  # the other is the first node
                fastest[node] = min(fastest[node], traffic.round_trip_ms)
    return fastest


def _segments(telemetry: Telemetry, block: Ints) -> Segments | None:
    """The sum over the nodes; None where segments sent are not counted."""
    counts = {}
    for name in ("sent", "retransmitted", "needlessly_retransmitted"):
        figures = node_figures(Quantity(name=name, series="", kind="count"), _TCP.format(name), telemetry, block)
        if figures is not None and not np.isnan(figures[0]).all():
            counts[name] = float(np.nansum(figures[0]))
    if not {"sent", "retransmitted"} <= {*counts}:
        return None
    return Segments(
        sent=counts["sent"], resent=counts["retransmitted"], needless=counts.get("needlessly_retransmitted")
    )


def _link_use(trace: Trace, telemetry: Telemetry, block: Ints) -> LinkUse | None:
    """The link that carries the largest share of its speed; None where no speed is known."""
    uses = []
    for name in telemetry.series:
        link = re.fullmatch(r"(net\..+)\.link_bytes_per_s", name)
        if link is None:
            continue
        speed = node_figures(Quantity(name=name, series=""), re.escape(name), telemetry, block)
        for direction in ("received", "sent"):
            series = rf"{re.escape(link[1])}\.{direction}_bytes"
            carried = node_figures(Quantity(name=name, series="", kind="rate"), series, telemetry, block)
            if speed is None or carried is None:
                continue
            for rank, at_most, rate in zip(telemetry.ranks.tolist(), speed[0], carried[0], strict=True):
                if at_most > 0 and rate >= 0:  # not NaN
                    host = trace.reports[rank].hostname or f"rank {rank}"
                    uses.append(LinkUse(node=host, carried=float(rate) / 1e9, speed=float(at_most) / 1e9))
    return max(uses, key=lambda use: use.carried / use.speed, default=None)


def _sent(trace: Trace) -> dict[tuple[str, str], Traffic]:
    """From node to node; not where two nodes have one address. Raises TraceError where the facts are damaged."""
    by_host: dict[str, Mapping[str, object]] = {}
    for rank, report in enumerate(trace.reports):
        facts = (report.telemetry or {}).get("connections")
        if isinstance(facts, Mapping) and "sent" in facts:
            by_host[report.hostname or f"rank {rank}"] = facts
    hosts: dict[str, set[str]] = {}
    for host, facts in by_host.items():
        for address in _listed(facts, "addresses"):
            hosts.setdefault(str(address), set()).add(host)
    sent: dict[tuple[str, str], Traffic] = {}
    for host, facts in by_host.items():
        for entry in _listed(facts, "sent"):
            remote, traffic = _traffic(entry, host)
            others = hosts.get(remote, set())
            if len(others) == 1 and others != {host}:
                (other,) = others
                pair = host, other
                sent[pair] = max((traffic, sent.get(pair, traffic)), key=lambda its: its.bytes)
    return sent


def _traffic(entry: object, host: str) -> tuple[str, Traffic]:
    """To which address a connection leads, and what it sent. Raises TraceError."""
    its = entry if isinstance(entry, Sequence) and len(entry) > 3 else (None,) * 4
    pieces = []
    for piece in ((1, its[2]), *its[3:]):
        count, seconds = piece if isinstance(piece, Sequence) and len(piece) == 2 else (None, None)
        if not isinstance(count, int) or not isinstance(seconds, int | float) or not (count >= 0 <= seconds < 1e9):
            raise TraceError(f"the connections of {host} have {str(entry)[:80]}, which is no traffic")
        pieces.append((count, float(seconds)))
    (_, round_trip_s), *sent = pieces
    return str(its[1]), Traffic(pieces=tuple(piece for piece in sent if piece[0]), round_trip_ms=1e3 * round_trip_s)


def _listed(facts: Mapping[str, object], name: str) -> Sequence[object]:
    its = facts.get(name, ())
    return its if isinstance(its, Sequence) and not isinstance(its, str) else ()


def _promise(trace: Trace) -> Promise:
    promised = (trace.reports[0].start or {}).get("network") or {}
    latency_us, gbit = promised.get("latency_us"), promised.get("bandwidth_gbit")
    return Promise(
        latency_ms=None if latency_us is None else float(latency_us) / 1e3,
        bandwidth=None if gbit is None else float(gbit) / 8,
    )


def network_of_point(
    result: Result, readings: Sequence[NetworkReading], others: Sequence[NetworkReading],
    step_ms: float, exposed_ms: float | None, gradient_bytes: int, measured: Sequence[MeasuredCollectives],
) -> Network | None:  # fmt: skip
    """The network of a point of several nodes; None of one node. `others` are runs of other points with a network,
    `measured` collectives of the same ranks.

    `exposed_ms` is None where communication is no term of its own, `gradient_bytes` 0 where they are not known.
    """
    nodes = result.run.nodes or 1
    if nodes < 2 or not readings or readings[0].simulated:
        return None
    reduction, no_reduction = _reduction(measured, gradient_bytes)
    shares = [reading.segments.share for reading in others if reading.segments is not None]
    network = MeasuredNetwork(
        nodes=nodes, step_ms=step_ms, exposed_ms=exposed_ms if gradient_bytes else None,
        reductions=max(reading.reductions for reading in readings),
        round_trips_ms=_fastest([reading.round_trips_ms for reading in readings]),
        reduction=reduction, no_reduction=no_reduction,
        links=next((each.links for each in measured if each.links), ()), sent=tuple(_sent_in_steps(readings)),
        segments=_sum([reading.segments for reading in readings]),
        usual_loss=stats.median(shares) if shares else None,
        link_use=max(
            (reading.link_use for reading in readings if reading.link_use is not None),
            key=lambda use: use.carried / use.speed, default=None,
        ),
        promise=readings[0].promise,
    )  # fmt: skip
    return judge(network, gradient_bytes)


def _sent_in_steps(runs: Sequence[NetworkReading]) -> Iterator[Sent]:
    """Of all runs together."""
    for nodes in dict.fromkeys(nodes for run in runs for nodes in run.sent):
        its = [run for run in runs if nodes in run.sent]
        pieces = [piece for run in its for piece in run.sent[nodes].pieces]
        sent_mb, busy_s = sum(count for count, _ in pieces) / 1e6, sum(busy_s for _, busy_s in pieces)
        if busy_s > 0:
            yield Sent(
                nodes=nodes, megabytes=sent_mb / sum(run.steps for run in its), ms_per_mb=1e3 * busy_s / sent_mb,
                pieces=tuple(1e9 * busy_s / count for count, busy_s in pieces),
            )  # fmt: skip


def _fastest(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    fastest: dict[str, float] = {}
    for run in runs:
        for host, ms in run.items():
            fastest[host] = min(ms, fastest.get(host, ms))
    return fastest


def _sum(runs: Sequence[Segments | None]) -> Segments | None:
    """Of the runs that have them; the needless are known where all of these know them."""
    counted = [segments for segments in runs if segments is not None]
    if not counted:
        return None
    needless = [segments.needless for segments in counted]
    return Segments(
        sent=sum(segments.sent for segments in counted),
        resent=sum(segments.resent for segments in counted),
        needless=None if None in needless else sum(count for count in needless if count is not None),
    )


def _reduction(measured: Sequence[MeasuredCollectives], gradient_bytes: int) -> tuple[Reduction | None, Unknown | None]:
    """The gradients' all-reduce by collectives of the same ranks, or why it is not known."""
    reason = Unknown.NO_COLLECTIVES if gradient_bytes else Unknown.NO_VOLUME
    for each in measured if gradient_bytes else ():
        if (curve := each.median) is not None:
            at_ms = curve.time_ms(gradient_bytes)
            if at_ms is not None and len(curve.sizes) > 1:
                return hockney(curve.sizes, curve.ms, gradient_bytes, at_ms, each.run_id), None
            reason = Unknown.OUTSIDE
    return None, reason
