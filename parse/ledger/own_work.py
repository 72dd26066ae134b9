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

    def __init__(self) -> None:
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
            of_graphs.append(roots(beside_peers))
        self._pieces += 1
        return at_own_work(of_graphs)


def at_own_work(of_graphs: Sequence[Roots]) -> StepSkews:
    """Delays by own work beyond that of peers. A rank's optimizer step counts in the step that it ends."""
    late = np.concatenate([its.late for its in of_graphs], axis=-1)
    by_phase = np.concatenate([its.parts for its in of_graphs], axis=-1)

    def parts(of: Ints | slice, at: Ints | slice) -> Sequence[Ints]:
        none = np.zeros_like(late[of, at])
        return [by_phase[OF_CAUSES[cause]][of, at] if cause in OF_CAUSES else none for cause in CAUSES]

    return StepSkews(late=late, parts=parts, several=True)
