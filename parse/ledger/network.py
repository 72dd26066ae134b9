"""What the network does to a point: latency, bandwidth, loss, a slow link. Pure: figures in, findings out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil, log2

from parse import stats
from parse.rules import FAR, HALF, LASTS, NOTABLE, SMALL, WORTH_NAMING

# Nodes and links that are slow beside the others. Pure.

SLOW = 2.0
"""Slow is what takes so many times as long as the median of the others."""
QUARTER = 0.25
"""More nodes or links than this share are slow together, or none is an exception; what explains less of exposed
communication is not what it is bound by."""


@dataclass(frozen=True)
class SlowPlace:
    """A node, whose fastest link takes `time`, or the two ends of a link; `usual` is the median of the others."""

    nodes: tuple[str, ...]
    time: float
    usual: float


def slow_places(times: Mapping[tuple[str, str], float], above: float = 0.0, manifold: float = SLOW) -> list[SlowPlace]:
    """Nodes all of whose links are slow, the slowest first, then single slow links among the others.

    Slow is `manifold` times the median of the others, and more than `above` longer. Many of a kind are none: a fabric
    has levels, and links between racks are not as those within one. Takes time as the number of links, times that of
    slow nodes.
    """
    remaining = dict(times)
    max_links = max(1, len({node for pair in times for node in pair}) * QUARTER)
    slow: list[SlowPlace] = []
    while len(slow) <= max_links:
        slowest = _slowest_node(remaining)
        if slowest is None or not _is_slow(slowest, above, manifold):
            break
        slow.append(slowest)
        remaining = {pair: time for pair, time in remaining.items() if slowest.nodes[0] not in pair}
    if len(slow) > max_links:
        slow, remaining = [], dict(times)
    return [*slow, *exceptions([*remaining.items()], above, manifold)]


def _slowest_node(times: Mapping[tuple[str, str], float]) -> SlowPlace | None:
    """The node whose fastest link is the slowest, and the median of the links without it; None where it has no two, or
    others none."""
    by_node: dict[str, list[float]] = {}
    for pair, time in times.items():
        for node in pair:
            by_node.setdefault(node, []).append(time)
    slowest = max(by_node, key=lambda node: min(by_node[node]), default="")
    others = [time for pair, time in times.items() if slowest not in pair]
    if not others or len(by_node[slowest]) < 2:
        return None
    return SlowPlace((slowest,), min(by_node[slowest]), stats.median(others))


def exceptions(times: Sequence[tuple[tuple[str, ...], float]], above: float, manifold: float = SLOW) -> list[SlowPlace]:
    """Those that are slow beside the median of the others, the slowest first; none where they are many."""
    ordered = sorted(times, key=lambda place: place[1])
    half, odd = divmod(len(ordered) - 1, 2)
    slow = []
    for nodes, time in reversed(ordered[half + 1 :]):
        # Values above the middle are not among those that make the median of all but itself.
        usual = ordered[half][1] if odd else (ordered[half - 1][1] + ordered[half][1]) / 2
        place = SlowPlace(nodes, time, usual)
        if not _is_slow(place, above, manifold):
            break
        slow.append(place)
    return slow if len(slow) <= max(1, len(times) * QUARTER) else []


def _is_slow(place: SlowPlace, above: float, manifold: float) -> bool:
    return place.time > manifold * place.usual and place.time - place.usual > above


LOST_SHARE = 1e-3
"""TCP does not notice less."""
MIN_LOST, MIN_SENT = 10, 1000
"""Fewer segments are no share."""
SOFTWARE_MS = 0.02
"""What MPI and Python add to the one-way latency of a fabric, at most."""
LONG = 4.0
"""So many times as long on their way are the bytes of a single slow link; between busy hosts it is three times as long
at times, but not on all links of a node (FAR)."""
BUSY_LINK = 0.7
"""A link that carries this share of its speed over a whole window is what is waited for."""


class Fault(StrEnum):
    """Four different things that a network can have."""

    LATENCY = "latency"
    BANDWIDTH = "bandwidth"
    LOSS = "loss"
    SLOW_LINK = "slow link"


class Basis(StrEnum):
    """What a finding is concluded from."""

    CURVE = "collectives by size"
    ROUND_TRIPS = "round trips of the clocks' messages"
    PROMISE = "promise of the site"
    LINK_SPEED = "speed of the link"
    SEGMENTS = "TCP segments"
    PAIRS = "pairs of nodes"
    CONNECTIONS = "TCP connections between nodes"


class Unknown(StrEnum):
    """Why one of the four findings cannot be made."""

    NO_COLLECTIVES = "no collectives of these ranks"
    NOT_THE_WAY = "small all-reduces take longer than their messages' way: cores or software"
    MORE_EXPOSED = "more is exposed than all-reduces by themselves take: cores, or many small pieces"
    NO_VOLUME = "the bytes of the gradients, or the exposed communication of the gradients alone, are not known"
    OUTSIDE = "the collectives did not measure as many bytes as the gradients"
    NO_COUNTERS = "no counters of TCP segments"
    FEW_SEGMENTS = "too few TCP segments"
    TWO_NODES = "two nodes have one link"
    NO_PAIRS = "neither pairs of nodes nor the round trips of several nodes"


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What the site promises of the network between two nodes: one-way latency in ms, GB/s of a node each way."""

    latency_ms: float | None = None
    bandwidth: float | None = None


@dataclass(frozen=True, kw_only=True)
class Segments:
    """TCP segments of all nodes in the windows of the runs. `sent` has none that only repeat; of the `resent` ones the
    receiver had `needless` already, None where the kernel does not count these."""

    sent: float
    resent: float
    needless: float | None

    @property
    def lost(self) -> float:
        """Segments sent again because they were lost; all sent again, where the kernel does not separate them."""
        return max(0.0, self.resent - (self.needless or 0.0))

    @property
    def share(self) -> float:
        """The lost of all that went out."""
        return self.lost / max(1.0, self.sent + self.resent)


@dataclass(frozen=True, kw_only=True)
class LinkUse:
    """The busiest link: GB/s that it carried over the windows in its busier direction, and its speed."""

    node: str
    carried: float
    speed: float


@dataclass(frozen=True, kw_only=True)
class Link:
    """A pair of nodes: an exchange of the smallest message in ms, which is one way where its sender needs no handshake
    (gloo does), and GB/s each way of the largest; None where that was not measured."""

    nodes: tuple[str, str]
    latency_ms: float
    bandwidth: float | None = None


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What a node sent to another by its busiest TCP connection: the MB of a step, and how many ms each MB was on its
    way, until the other had acknowledged it; the same of each of the `pieces` of all runs."""

    nodes: tuple[str, str]
    megabytes: float
    ms_per_mb: float
    pieces: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """One all-reduce of a step's gradients by the collectives, `ms` long: Hockney's α + n β. `bandwidth_ms` is what its
    bytes take at the rate of the largest messages, `latency_ms` the rest; `smallest_ms` the smallest all-reduce."""

    bytes: int
    ms: float
    latency_ms: float
    bandwidth_ms: float
    smallest_ms: float
    run_id: str = ""


@dataclass(frozen=True, kw_only=True)
class NetworkFinding:
    """One of the four. Latencies in ms, bandwidths in GB/s of a node each way, loss as a share.

    `usual` is what it was held against: a promise, a speed, other links, other points; None where there is none.
    `quantity` of a slow link says in what it is slow; `nodes` are the ends of a slow link, or a node all of whose links
    are slow. `explains`: ms of exposed communication, None where that is not known.
    """

    kind: Fault
    basis: Basis
    value: float
    usual: float | None = None
    quantity: Fault | None = None
    nodes: tuple[str, ...] = ()
    explains: float | None = None


@dataclass(frozen=True, kw_only=True)
class MeasuredNetwork:
    """What is known of a point's network. `exposed_ms` and `step_ms` are means; `round_trips_ms` by node, from the
    first node; `reductions` in a step, at least."""

    nodes: int
    step_ms: float
    exposed_ms: float | None
    reductions: int = 1
    round_trips_ms: Mapping[str, float] = field(default_factory=dict)
    reduction: Reduction | None = None
    no_reduction: Unknown | None = None
    links: tuple[Link, ...] = ()
    sent: tuple[Sent, ...] = ()
    segments: Segments | None = None
    usual_loss: float | None = None
    link_use: LinkUse | None = None
    promise: Promise = field(default_factory=Promise)


@dataclass(frozen=True, kw_only=True)
class RoundTrip:
    """The fastest way of a message from the first node to this one and back, ms."""

    node: str
    ms: float


@dataclass(frozen=True, kw_only=True)
class NotKnown:
    """Why a finding of this kind cannot be made."""

    kind: Fault
    reason: Unknown


@dataclass(frozen=True, kw_only=True)
class Network:
    """The findings on a point's network, the figures behind them, and why a kind without a finding is not known.

    `noted` are slow links that cost nothing today: less is exposed than they would take, or compute hides it.

    `bandwidth` is that of a node in GB/s: the bytes that an all-reduce of the gradients must send from each node, over
    the exposed communication.
    """

    findings: tuple[NetworkFinding, ...]
    noted: tuple[NetworkFinding, ...] = ()
    round_trips: tuple[RoundTrip, ...]
    reduction: Reduction | None
    bandwidth: float | None
    segments: Segments | None
    usual_loss: float | None
    link_use: LinkUse | None
    links: tuple[Link, ...]
    sent: tuple[Sent, ...] = ()
    unknown: tuple[NotKnown, ...]


def judge(measured: MeasuredNetwork, gradient_bytes: int) -> Network:
    """The findings, the most specific first: a slow link and loss replace what they do to all-reduces."""
    places, no_slow = _slow_links(measured, gradient_bytes)
    lost, no_lost = _loss(measured)
    slow = _each_once(
        (
            *(finding for finding in places if _costs(finding, measured, gradient_bytes)),
            *(_slow_connections(measured) if not measured.links and not lost else ()),
        )
    )
    noted = [each for each in _each_once(places) if each.nodes not in {finding.nodes for finding in slow}]
    promised = _broken_promises(measured)
    bound, no_bound = _bound_by(measured) if not slow and not lost else ((), None)
    kinds = {finding.kind for finding in promised}
    findings = (*slow, *lost, *promised, *(finding for finding in bound if finding.kind not in kinds))
    unknown = {Fault.SLOW_LINK: no_slow, Fault.LOSS: no_lost, Fault.LATENCY: no_bound, Fault.BANDWIDTH: no_bound}
    named = {finding.kind for finding in (*findings, *places)}
    exposed = measured.exposed_ms
    return Network(
        findings=findings,
        noted=tuple(noted),
        round_trips=tuple(RoundTrip(node=node, ms=ms) for node, ms in measured.round_trips_ms.items()),
        reduction=measured.reduction,
        bandwidth=node_bandwidth(gradient_bytes, exposed, measured.nodes) if gradient_bytes and exposed else None,
        segments=measured.segments, usual_loss=measured.usual_loss, link_use=measured.link_use, links=measured.links,
        sent=tuple(_bulk(measured.sent)),
        unknown=tuple(
            NotKnown(kind=kind, reason=reason)
            for kind, reason in unknown.items()
            if reason is not None and kind not in named
        ),
    )  # fmt: skip


def node_bandwidth(size_bytes: int, ms: float, nodes: int) -> float:
    """GB/s that a node sends at least in an all-reduce: 2 (nodes − 1) / nodes of its bytes (Patarasuk, Yuan 2009)."""
    return 2 * (nodes - 1) / nodes * size_bytes / (ms * 1e6)


def hockney(sizes: Sequence[int], ms: Sequence[float], size_bytes: int, at_ms: float, run_id: str = "") -> Reduction:
    """What an all-reduce of `size_bytes`, which takes `at_ms`, consists of; sizes ascend, two at least.

    β is the slope between the two largest messages, not a fit through all: algorithms change with the size.
    """
    slope = max(0.0, (ms[-1] - ms[-2]) / (sizes[-1] - sizes[-2]))
    by_bytes = min(at_ms, slope * size_bytes)
    return Reduction(
        bytes=size_bytes, ms=at_ms, latency_ms=at_ms - by_bytes, bandwidth_ms=by_bytes, smallest_ms=ms[0], run_id=run_id
    )


def _bound_by(measured: MeasuredNetwork) -> tuple[tuple[NetworkFinding, ...], Unknown | None]:
    """What exposed communication consists of, where it is notable."""
    exposed = measured.exposed_ms
    if exposed is None:
        return (), Unknown.NO_VOLUME
    if exposed < SMALL * measured.step_ms:
        return (), None
    finding = _by_link(measured.link_use)
    if finding is None and measured.reduction is not None:
        finding = _by_curve(measured.reduction, exposed, measured)
        if finding.kind is Fault.LATENCY and not _on_the_way(measured, measured.reduction):
            return (), Unknown.NOT_THE_WAY
        if (finding.explains or 0.0) < QUARTER * exposed:
            return (), Unknown.MORE_EXPOSED
    if finding is None:
        finding = _by_trips(measured, exposed)
    return ((), measured.no_reduction) if finding is None else ((finding,), None)


def _on_the_way(measured: MeasuredNetwork, reduction: Reduction) -> bool:
    """Whether the latency of an all-reduce may be that of its messages: 2 (nodes − 1) one after another in a ring."""
    trips = [*measured.round_trips_ms.values()]
    return not trips or reduction.latency_ms <= LONG * (measured.nodes - 1) * stats.median(trips)


def _by_link(use: LinkUse | None) -> NetworkFinding | None:
    if use is None or use.carried < BUSY_LINK * use.speed:
        return None
    return NetworkFinding(
        kind=Fault.BANDWIDTH, basis=Basis.LINK_SPEED, value=use.carried, usual=use.speed, nodes=(use.node,)
    )


def _by_curve(reduction: Reduction, exposed_ms: float, measured: MeasuredNetwork) -> NetworkFinding:
    """Exposed communication is taken to consist of the same as the whole all-reduce, hidden or not."""
    latency, at_most_ms = reduction.latency_ms / reduction.ms, min(exposed_ms, reduction.ms)
    if latency >= HALF:
        explains = latency * at_most_ms
        return NetworkFinding(kind=Fault.LATENCY, basis=Basis.CURVE, value=reduction.smallest_ms, explains=explains)
    value, speed = node_bandwidth(reduction.bytes, reduction.bandwidth_ms, measured.nodes), None
    if measured.link_use is not None:
        speed = measured.link_use.speed
    explains = (1 - latency) * at_most_ms
    return NetworkFinding(kind=Fault.BANDWIDTH, basis=Basis.CURVE, value=value, usual=speed, explains=explains)


def _by_trips(measured: MeasuredNetwork, exposed_ms: float) -> NetworkFinding | None:
    """The least that a step's all-reduces take by their messages' way alone: there and back through a tree of nodes,
    whose depth is log2 of their number, all at the median round trip."""
    trips = [*measured.round_trips_ms.values()]
    if not trips:
        return None
    least_ms = measured.reductions * ceil(log2(measured.nodes)) * stats.median(trips)
    if least_ms < QUARTER * exposed_ms:
        return None
    value, explains = stats.median(trips) / 2, min(exposed_ms, least_ms)
    return NetworkFinding(kind=Fault.LATENCY, basis=Basis.ROUND_TRIPS, value=value, explains=explains)


def _loss(measured: MeasuredNetwork) -> tuple[tuple[NetworkFinding, ...], Unknown | None]:
    segments, usual = measured.segments, measured.usual_loss
    if segments is None:
        return (), Unknown.NO_COUNTERS
    if segments.sent < MIN_SENT:
        return (), Unknown.FEW_SEGMENTS
    ordinary = usual is not None and usual < LOST_SHARE and segments.share < SLOW * usual
    if segments.lost < MIN_LOST or segments.share < LOST_SHARE or ordinary:
        return (), None
    return (NetworkFinding(kind=Fault.LOSS, basis=Basis.SEGMENTS, value=segments.share, usual=usual),), None


def _broken_promises(measured: MeasuredNetwork) -> tuple[NetworkFinding, ...]:
    """Of the best that was measured: the fastest way between two nodes, the largest messages."""
    findings = []
    trips = [*measured.round_trips_ms.values()]
    latency_ms = measured.promise.latency_ms
    if latency_ms is not None and trips and stats.median(trips) / 2 > SLOW * latency_ms + SOFTWARE_MS:
        findings.append(
            NetworkFinding(kind=Fault.LATENCY, basis=Basis.PROMISE, value=stats.median(trips) / 2, usual=latency_ms)
        )
    achieved, bandwidth = _best_bandwidth(measured), measured.promise.bandwidth
    if bandwidth is not None and achieved is not None and achieved * SLOW < bandwidth:
        findings.append(NetworkFinding(kind=Fault.BANDWIDTH, basis=Basis.PROMISE, value=achieved, usual=bandwidth))
    return tuple(findings)


def _best_bandwidth(measured: MeasuredNetwork) -> float | None:
    """GB/s of the median link; the bytes of the gradients at the rate of the largest all-reduces without links."""
    by_link = [link.bandwidth for link in measured.links if link.bandwidth is not None]
    if by_link:
        return stats.median(by_link)
    reduction = measured.reduction
    if reduction is None or not reduction.bandwidth_ms:
        return None
    return node_bandwidth(reduction.bytes, reduction.bandwidth_ms, measured.nodes)


def _slow_links(measured: MeasuredNetwork, gradient_bytes: int) -> tuple[tuple[NetworkFinding, ...], Unknown | None]:
    """By pairs of nodes; without them by the round trips from the first node, which show its own links only."""
    if measured.nodes < 3:
        return (), Unknown.TWO_NODES
    worth_ms = min(_worth_ms(measured), WORTH_NAMING * measured.step_ms)
    way_ms = max(SOFTWARE_MS, worth_ms / _messages(measured))
    if measured.links:
        latencies = {link.nodes: link.latency_ms for link in measured.links}
        slow = [*_findings(slow_places(latencies, way_ms, FAR), Fault.LATENCY, Basis.PAIRS)]
        # As times, so that more is slower: ms for a MB.
        ms_per_mb = {link.nodes: 1 / link.bandwidth for link in measured.links if link.bandwidth}
        if gradient_bytes:
            by_bandwidth = _findings(
                slow_places(ms_per_mb, worth_ms * 1e6 / gradient_bytes), Fault.BANDWIDTH, Basis.PAIRS
            )
            slow += by_bandwidth
        return tuple(slow), None
    if len(measured.round_trips_ms) < 2:
        return (), None if measured.sent else Unknown.NO_PAIRS
    one_way_ms = [((node,), ms / 2) for node, ms in measured.round_trips_ms.items()]
    far = _findings(exceptions(one_way_ms, way_ms, FAR), Fault.LATENCY, Basis.ROUND_TRIPS)
    sent = _bulk(measured.sent)
    ms_per_mb = _by_pair(sent, [each.ms_per_mb for each in sent])
    by_connections = {node for place in slow_places(ms_per_mb) for node in place.nodes}
    return tuple(each for each in far if not measured.sent or by_connections.issuperset(each.nodes)), None


def _slow_connections(measured: MeasuredNetwork) -> Iterator[NetworkFinding]:
    """By what was on its way longer for as many bytes, in each piece of each run: what a link costs a step is what its
    bytes take longer than on the others, in the direction in which that is most, and no more than that share of what is
    exposed."""
    exposed = measured.exposed_ms
    if measured.nodes < 3 or (exposed is not None and exposed < SMALL * measured.step_ms):
        return
    sent = _bulk(measured.sent)
    in_pieces = [
        {place.nodes for place in slow_places(_by_pair(sent, [each.pieces[at] for each in sent]))}
        for at in range(min((len(each.pieces) for each in sent), default=0))
    ]
    for place in slow_places(_by_pair(sent, [each.ms_per_mb for each in sent]), manifold=FAR):
        # A busy host acknowledges late at times.
        lasts = sum(place.nodes in named for named in in_pieces) >= LASTS * len(in_pieces)
        if not lasts or (len(place.nodes) > 1 and place.time < LONG * place.usual):
            continue
        its = [each for each in sent if {*place.nodes} <= {*each.nodes}]
        costs_ms = max(each.megabytes * (each.ms_per_mb - place.usual) for each in its)
        if costs_ms > _worth_ms(measured):
            of_exposed = costs_ms if exposed is None else exposed * (1 - place.usual / place.time)
            yield NetworkFinding(
                kind=Fault.SLOW_LINK, basis=Basis.CONNECTIONS, value=1 / place.time, usual=1 / place.usual,
                quantity=Fault.BANDWIDTH, nodes=place.nodes, explains=min(costs_ms, of_exposed),
            )  # fmt: skip


def _bulk(sent: Sequence[Sent]) -> list[Sent]:
    """What says something of a link: few bytes, as answers in a ring's other direction, take as long as a busy host."""
    largest = max((each.megabytes for each in sent), default=0.0)
    return [each for each in sent if each.megabytes >= NOTABLE * largest]


def _by_pair(sent: Sequence[Sent], ms_per_mb: Sequence[float]) -> dict[tuple[str, str], float]:
    """Of each pair of nodes the slower direction."""
    by_pair: dict[tuple[str, str], float] = {}
    for each, ms in zip(sent, ms_per_mb, strict=True):
        first, second = sorted(each.nodes)
        by_pair[first, second] = max(ms, by_pair.get((first, second), 0.0))
    return by_pair


def _each_once(slow: Iterable[NetworkFinding]) -> tuple[NetworkFinding, ...]:
    """The first of each node or link."""
    return tuple({finding.nodes: finding for finding in [*slow][::-1]}.values())[::-1]


def _messages(measured: MeasuredNetwork) -> int:
    """How often a step's all-reduces go by a link, through a tree of nodes."""
    return 2 * measured.reductions * ceil(log2(measured.nodes))


def _worth_ms(measured: MeasuredNetwork) -> float:
    """What a link must cost to be waited for."""
    exposed = measured.exposed_ms
    return NOTABLE * (SMALL * measured.step_ms if exposed is None else exposed)


def _costs(slow: NetworkFinding, measured: MeasuredNetwork, gradient_bytes: int) -> bool:
    """Whether a slow link can be what is waited for today; where exposed communication is not known, it may.

    That is notable then, and no shorter than the one message that at least goes by the link after the last rank came.
    """
    exposed, usual = measured.exposed_ms, slow.usual or 0.0
    if slow.quantity is Fault.BANDWIDTH:
        message_ms, cost_ms = 0.0, gradient_bytes / 1e6 * (1 / slow.value - 1 / usual)
    else:
        message_ms = slow.value - usual
        cost_ms = message_ms * _messages(measured)
    is_exposed = exposed is None or (exposed >= SMALL * measured.step_ms and exposed >= message_ms)
    return is_exposed and cost_ms > _worth_ms(measured)


def _findings(slow: Sequence[SlowPlace], quantity: Fault, basis: Basis) -> Iterator[NetworkFinding]:
    for place in slow:
        value, usual = place.time, place.usual
        if quantity is Fault.BANDWIDTH:
            value, usual = 1 / value, 1 / usual
        yield NetworkFinding(
            kind=Fault.SLOW_LINK, basis=basis, value=value, usual=usual, quantity=quantity, nodes=place.nodes
        )
