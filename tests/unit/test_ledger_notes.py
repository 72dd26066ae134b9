"""parse.ledger.notes: what stands below the sentence of a ledger, and what does not."""

from __future__ import annotations

import dataclasses

import pytest

from parse.ledger.symptoms import explained
from parse.ledger.types import Ledger  # fmt: skip
from parse.say.notes import notes
from tests.unit.ledgers import (
    LATE,
    NOBODY,
    STANDALONE,
    UNSPLIT,
    two_nodes,
)  # fmt: skip


def uneven(slow: tuple[float, ...], others: tuple[float, ...]) -> Ledger:
    """Rank 3 takes `slow` terms, the others theirs."""
    ledger = two_nodes(verdict=LATE, split=UNSPLIT)
    terms = (others, others, others, slow)
    ranks = (dataclasses.replace(place, terms=its) for place, its in zip(ledger.ranks, terms, strict=True))
    ledger = dataclasses.replace(ledger, ranks=tuple(ranks))
    return dataclasses.replace(ledger, split=explained(ledger))


def one_clock() -> Ledger:
    ledger = two_nodes()
    return dataclasses.replace(ledger, runs=tuple(dataclasses.replace(run, bound=0.0) for run in ledger.runs))


def runs_differ() -> Ledger:
    ledger = two_nodes(verdict=LATE)
    return dataclasses.replace(ledger, runs=(ledger.runs[0], dataclasses.replace(ledger.runs[1], verdict=NOBODY)))


@pytest.mark.parametrize(
    ("ledger", "note"),
    [
        (
            lambda: uneven((1.0, 57.0, 0.0, 4.1, 1.0), (1.0, 27.0, 30.0, 4.1, 1.0)),
            "compute +7.50 ms, +7.50 ms of it by rank 3 beyond the median rank",
        ),
        (
            lambda: two_nodes(standalone=STANDALONE),
            "communication: exposed 41.0 ms; this gradient volume (102 MB) takes 55.0 ms standalone; 14.0 ms are "
            "overlapped with compute (measured by c_r1)",
        ),
        (
            lambda: two_nodes(standalone=dataclasses.replace(STANDALONE, standalone=30.0, gradient_bytes=800)),
            "communication: exposed 41.0 ms; this gradient volume (800 bytes) takes 30.0 ms standalone; 11.0 ms "
            "more are exposed than it takes standalone",
        ),
        (lambda: two_nodes(median_step=55.0), "the median step takes 55.0 ms, 13 % less than the mean"),
        (
            lambda: two_nodes(skew=-0.12),
            "the clocks leave up to 4.20 µs of the ranks' order open",
        ),
        (runs_differ, "the runs differ in their straggler: run 1 persistent (3), run 2 none"),
    ],
)  # fmt: skip
def test_a_note(ledger, note):
    assert any(line.startswith(note) for line in notes(ledger()))


@pytest.mark.parametrize(
    ("ledger", "absent"),
    [
        (lambda: two_nodes(verdict=LATE, split=UNSPLIT), "beyond the median rank"),
        (lambda: two_nodes(median_step=62.0), "the median step"),
        (lambda: two_nodes(verdict=LATE), "differ"),
    ],
)
def test_a_note_that_is_not_there(ledger, absent):
    assert not any(absent in line for line in notes(ledger()))
