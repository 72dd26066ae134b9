"""How late ranks are by their own work, where they meet in several groups: what is found on graphs, as arrivals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parse.graph.roots import Roots
from parse.ledger.arrivals import StepSkews
from parse.ledger.meetings import Ints
from parse.ledger.types import CAUSES

OF_CAUSES = {"data": 0, "compute": 1, "optimizer": 2}
"""By CAUSES the number of the phase in `parse.graph.terms.PHASES`. Nobody is late by leaving a meeting later."""


def at_own_work(of_graphs: Sequence[Roots], nodes: int) -> StepSkews:
    """Delays by own work beyond that of peers; of the latest rank, and the latest of so many nodes, what a step would
    be shorter without it. A rank's optimizer step counts in the step that it ends."""
    late, by_phase, last, gap, last_node, node_gap = (
        np.concatenate([getattr(its, name) for its in of_graphs], axis=-1)
        for name in ("late", "parts", "last", "gap", "last_node", "node_gap")
    )
    row = np.arange(late.shape[1])
    held_up, by_node = np.zeros_like(late), np.zeros((nodes, len(row)), np.int64)
    held_up[last, row], by_node[last_node, row] = gap, node_gap

    def parts(of: Ints | slice, at: Ints | slice) -> Sequence[Ints]:
        none = np.zeros_like(late[of, at])
        return [by_phase[OF_CAUSES[cause]][of, at] if cause in OF_CAUSES else none for cause in CAUSES]

    return StepSkews(late=late, parts=parts, work=late, held_up=held_up, held_up_by_node=by_node)
