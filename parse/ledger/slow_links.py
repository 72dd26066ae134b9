"""Nodes and links that are slow beside the others. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parse import stats

MANIFOLD = 2.0
"""Slow is what takes so many times as long as the median of the others."""
FEW = 0.25
"""More nodes or links than this share are slow together, or none is an exception."""


@dataclass(frozen=True)
class SlowPlace:
    """A node, whose fastest link takes `time`, or the two ends of a link; `usual` is the median of the others."""

    nodes: tuple[str, ...]
    time: float
    usual: float


def slow_places(
    times: Mapping[tuple[str, str], float], above: float = 0.0, manifold: float = MANIFOLD
) -> list[SlowPlace]:
    """Nodes all of whose links are slow, the slowest first, then single slow links among the others.

    Slow is `manifold` times the median of the others, and more than `above` longer. Many of a kind are none: a fabric
    has levels, and links between racks are not as those within one. Takes time as the number of links, times that of
    slow nodes.
    """
    remaining = dict(times)
    max_links = max(1, len({node for pair in times for node in pair}) * FEW)
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


def exceptions(
    times: Sequence[tuple[tuple[str, ...], float]], above: float, manifold: float = MANIFOLD
) -> list[SlowPlace]:
    """Those that are slow beside the median of the others, the slowest first; none where they are many."""
    ordered = sorted(times, key=lambda place: place[1])
    half, odd = divmod(len(ordered) - 1, 2)
    slow = []
    for nodes, time in reversed(ordered[half + 1 :]):
        # What lies above the middle is not among those that make the median of all but itself.
        usual = ordered[half][1] if odd else (ordered[half - 1][1] + ordered[half][1]) / 2
        place = SlowPlace(nodes, time, usual)
        if not _is_slow(place, above, manifold):
            break
        slow.append(place)
    return slow if len(slow) <= max(1, len(times) * FEW) else []


def _is_slow(place: SlowPlace, above: float, manifold: float) -> bool:
    return place.time > manifold * place.usual and place.time - place.usual > above
