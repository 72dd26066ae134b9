"""How late ranks are by their own work, where they meet in several groups: what is found on graphs, as arrivals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from parse.graph.imbalance import PieceImbalance, figures
from parse.graph.peers import Peers
from parse.graph.roots import Compared, Roots, compared, roots
from parse.graph.step_graph import StepGraph
from parse.graph.terms import GraphSteps
from parse.ledger.arrivals import StepSkews
from parse.ledger.meetings import Ints
from parse.ledger.types import CAUSES

OF_CAUSES = {"data": 0, "compute": 1, "optimizer": 2}
"""By CAUSES the number of the phase in `parse.graph.terms.PHASES`. Nobody is late by leaving a meeting later."""


ONE_IN = 3
"""Stages, experts and links are looked at in one of so many pieces: they are as they are in all of a run."""


class OwnWork:
    """The steps of a run, piece by piece. `figures` are what they show of stages, experts and links."""

    def __init__(self, nodes: Sequence[int]) -> None:
        """`nodes` [rank] numbers each rank's node."""
        self.nodes = np.unique(nodes, return_inverse=True)[1].ravel()
        self._pieces = 0
        self.figures: list[PieceImbalance] = []
        self._peers: dict[int, tuple[StepGraph, Peers]] = {}

    def compared(self, steps: GraphSteps) -> Compared:
        """These steps beside what peers take."""
        if id(steps.graph) not in self._peers:
            self._peers[id(steps.graph)] = steps.graph, Peers(steps)
        return compared(self._peers[id(steps.graph)][1], steps)

    def add(self, piece: Iterable[GraphSteps]) -> StepSkews:
        """How late ranks are in the steps of a piece, which are those of several graphs where calls differ."""
        of_graphs = []
        for steps in piece:
            beside_peers = self.compared(steps)
            if self._pieces % ONE_IN == 0:
                self.figures.append(figures(beside_peers))
            of_graphs.append(roots(beside_peers, self.nodes))
        self._pieces += 1
        return at_own_work(of_graphs, int(self.nodes.max()) + 1)


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
