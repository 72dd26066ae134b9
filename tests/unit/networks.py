"""What is measured on a network of known latency and bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpc.system.text import capitalized
from parse.ledger.network import (
    Basis,
    Fault,
    Link,
    MeasuredNetwork,
    Network,
    Segments,
    Unknown,
    hockney,
)  # fmt: skip
from parse.say.network import finding_text, median_trip

SIZES = tuple(4**power for power in range(5, 13))  # 1 KiB to 16 MiB


VOLUME = 1_000_000


def ring(nodes: int, one_way_ms: float, bandwidth: float, size_bytes: int) -> float:
    """ms of an all-reduce in a ring: 2 (nodes − 1) messages one after another, and 2 (nodes − 1) / nodes of the bytes
    through each link of so many GB/s."""
    return 2 * (nodes - 1) * (one_way_ms + size_bytes / nodes / (bandwidth * 1e6))


def links_of(nodes: int, one_way_ms: float, bandwidth: float) -> tuple[Link, ...]:
    return tuple(
        Link(nodes=(f"n{first}", f"n{second}"), latency_ms=one_way_ms, bandwidth=bandwidth)
        for first in range(nodes)
        for second in range(first + 1, nodes)
    )


def measured(
    nodes: int = 4, one_way_ms: float = 0.02, bandwidth: float = 1.0, *, compute_ms: float = 60.0,
    volume: int = VOLUME, **changes: Any,
) -> MeasuredNetwork:  # fmt: skip
    """What is measured on a network of this latency and bandwidth, nothing overlapped, nothing noisy."""
    ms = [ring(nodes, one_way_ms, bandwidth, size) for size in SIZES]
    exposed = ring(nodes, one_way_ms, bandwidth, volume)
    values: dict[str, Any] = {
        "nodes": nodes, "step_ms": compute_ms + exposed, "exposed_ms": exposed,
        "reduction": hockney(SIZES, ms, volume, exposed, "collectives_r1"),
        "round_trips_ms": {f"n{node}": 2 * one_way_ms for node in range(1, nodes)},
        "links": links_of(nodes, one_way_ms, bandwidth), "segments": Segments(sent=1e5, resent=30, needless=30),
    }  # fmt: skip
    return MeasuredNetwork(**(values | changes))


def kinds(network: Network) -> list[tuple[Fault, Basis]]:
    return [(finding.kind, finding.basis) for finding in network.findings]


def unknowns(network: Network) -> Mapping[Fault, Unknown]:
    return {missing.kind: missing.reason for missing in network.unknown}


def as_text(network: Network) -> str:
    """The first finding as a sentence."""
    return capitalized(finding_text(network.findings[0], median_trip(network))) if network.findings else ""
