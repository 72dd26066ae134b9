"""How late ranks are by their own work, where they meet in several groups: what is found on graphs, as arrivals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parse.graph.roots import Roots
from parse.graph.terms import PHASES
from parse.ledger.arrivals import StepSkews
from parse.ledger.meetings import Ints
from parse.term_kinds import CAUSES, WORK

OF_CAUSES = {kind.cause: PHASES.index(kind.name) for kind in WORK}
"""By CAUSES the number of the phase in `parse.graph.terms.PHASES`. Nobody is late by leaving a meeting later."""


def at_own_work(of_graphs: Sequence[Roots]) -> StepSkews:
    """Delays by own work beyond that of peers. A rank's optimizer step counts in the step that it ends."""
    late = np.concatenate([its.late for its in of_graphs], axis=-1)
    by_phase = np.concatenate([its.parts for its in of_graphs], axis=-1)

    def parts(of: Ints | slice, at: Ints | slice) -> Sequence[Ints]:
        none = np.zeros_like(late[of, at])
        return [by_phase[OF_CAUSES[cause]][of, at] if cause in OF_CAUSES else none for cause in CAUSES]

    return StepSkews(late=late, parts=parts, several=True)
