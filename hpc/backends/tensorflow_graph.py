"""What TensorFlow traced, looked through."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

REDUCING = ("Horovod", "Collective")
"""How the names of operations begin by which ranks meet."""


def nodes(graph: Any) -> Iterator[Any]:
    """The nodes of a traced graph and of the functions that it calls."""
    definition = graph.as_graph_def()
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def meetings(graph: Any) -> list[str]:
    """The operations of a graph by which ranks meet, `CollectiveReduceV2 (3)`."""
    met = Counter(node.op for node in nodes(graph) if node.op.startswith(REDUCING))
    return [f"{name} ({count})" for name, count in sorted(met.items())]
