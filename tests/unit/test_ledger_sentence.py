"""parse.ledger.sentence, parse.ledger.notes: the words of a ledger, and what they never claim."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from parse.ledger.notes import notes
from parse.ledger.sentence import merged_text, numbers, problem_texts, sentence, share
from parse.ledger.types import (
    CANNOT_TELL,
    NONE,
    PERSISTENT,
    ROTATING,
    TRANSIENT,
    Because,
    ComputeSplit,
    Ledger,
    Merged,
    NoLoss,
    StampErrors,
    Standalone,
    Verdict,
)  # fmt: skip
from parse.report.ledger import ledger_text
from parse.report.summary import Summary
from parse.text import Page
from tests.unit.ledgers import (
    ALONE,
    CROWD,
    LATE,
    NOBODY,
    around,
    make_ledger,
    results_of,
    strong,
    two_nodes,
    with_problem,
)  # fmt: skip

UNSPLIT = ComputeSplit(contention=None, interference=None, unexplained=7.5)
SPLIT = ComputeSplit(contention=around(6.0), interference=around(0.2, 0.5), unexplained=1.3)
STANDALONE = Standalone(gradient_bytes=102_228_128, standalone=55.0, exposed=41.0, run_id="c_r1")


def uncertain_compute() -> Ledger:
    """Its loss in compute is within its own interval."""
    ledger = two_nodes()
    data, compute, *others = ledger.terms
    assert compute.loss is not None
    wide = dataclasses.replace(compute, loss=around(compute.loss.value, 9.0))
    return dataclasses.replace(ledger, terms=(data, wide, *others))


def single_rank() -> Ledger:
    return make_ledger(results_of((1, 1))[0], ALONE, None)


# The sentence


@pytest.mark.parametrize(
    ("ledger", "parts"),
    [
        pytest.param(
            lambda: two_nodes(terms=CROWD | {"communication": 60.2}, verdict=dataclasses.replace(LATE, costs=5.0)),
            [": communication +60.00 ms (67 %), wait +22.50 ms (25 %), compute +7.50 ms (8 %); rank 3"],
            id="a term that costs more than the straggler is first",
        ),
        pytest.param(
            lambda: two_nodes(terms=ALONE | {"wait": 0.3}, margin=0.5),
            [": within the scatter, so no cause of it is named; no rank is late"], id="within the scatter",
        ),
        pytest.param(
            lambda: two_nodes(margin=None),
            ["33.90 ms (too few steps for an interval) longer",
             "wait +22.50 ms, compute +7.50 ms, communication +3.90 ms"],
            id="no interval, no share",
        ),
        pytest.param(
            uncertain_compute, ["wait +22.50 ms (66 %), compute +7.50 ms [-1.50, 16.50], communication"],
            id="a term within its scatter",
        ),
        pytest.param(
            lambda: two_nodes(terms=ALONE | {"compute": 20.0, "wait": 1.0}),
            ["6.00 ms [5.95, 6.05] shorter than 1n1g's 29.20 ms: compute -7.00 ms (117 %), wait +1.00 ms (-17 %)"],
            id="shorter",
        ),
        pytest.param(
            lambda: two_nodes(baseline=None, no_loss=NoLoss.NO_BASELINE),
            ["2n2g: a step takes 63.10 ms: compute 34.50 ms, wait 22.50 ms, communication 4.10 ms, the rest 2.00 ms; ",
             "; no loss is given: no 1n1g baseline with all else equal is here"],
            id="no baseline",
        ),
        pytest.param(
            lambda: two_nodes(baseline=None, verdict=LATE),
            ["63.10 ms: rank 3 (n1) is late in", "; the step by terms: compute 34.50 ms"], id="straggler, no baseline",
        ),
        pytest.param(
            lambda: strong().ledgers[1],
            ["2.90 ms [2.85, 2.95] longer than 1n1g's divided by 2 devices, 14.60 ms (strong scaling)"], id="strong",
        ),
        pytest.param(
            lambda: two_nodes(terms={name: ms / 100 for name, ms in CROWD.items()}, baseline=None),
            ["2n2g: a step takes 0.631 ms: compute 0.345 ms"], id="a short step",
        ),
        pytest.param(single_rank, ["; no loss is given: it is the baseline"], id="the baseline"),
        pytest.param(lambda: with_problem(two_nodes()), ["; the measurement has errors"], id="errors"),
    ],
)  # fmt: skip
def test_parts_of_the_sentence(ledger, parts):
    text = sentence(ledger(), "2n2g")
    assert [part for part in parts if part not in text] == [], text


def test_no_share_without_intervals_and_no_straggler_among_one_rank():
    assert "%" not in sentence(two_nodes(margin=None), "2n2g")
    assert "late" not in sentence(single_rank(), "1n1g")


def test_a_term_beyond_its_scatter_has_no_share_of_a_loss_within_it():
    ledger = two_nodes(margin=0.5)
    loss = around(ledger.loss.value, 90.0)
    terms = tuple(dataclasses.replace(term, share=None) for term in ledger.terms)
    ledger = dataclasses.replace(ledger, loss=loss, terms=terms)
    assert all(share(term) == "" for term in terms) and any(term.loss.resolved for term in terms)
    lines = ledger_text(Summary(results=(ledger.result,), ledgers=(ledger,)), Page())
    assert not any("share" in line for line in lines)


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (Verdict(kind=NONE), "no rank is late more than equal ranks would be"),
        (
            Verdict(kind=CANNOT_TELL, because=Because.CLOCK, bound=0.21),
            "who is waited for cannot be told (clock): the clocks leave 0.21 ms open",
        ),
        (Verdict(kind=CANNOT_TELL, because=Because.FEW_STEPS), "who is waited for cannot be told (steps)"),
        (
            Verdict(
                kind=PERSISTENT, ranks=(2, 3), node="n1", arrival_skew=30.0, cause={"optimizer": 10.0, "data": 20.0},
                share=1,
            ),
            "node n1 (ranks 2, 3) is late in 100 % of the steps by 30.00 ms for its data (+20.00 ms) and its previous "
            "optimizer step (+10.00 ms)",
        ),
        (
            Verdict(kind=PERSISTENT, ranks=(1, 3), arrival_skew=3.0, share=0.8, costs=2.5),
            "ranks 1, 3 are late in 80 % of the steps by 3.00 ms, which costs 2.50 ms a step",
        ),
        (
            Verdict(kind=TRANSIENT, ranks=(1,), steps=(*range(21, 72, 10),), arrival_skew=30.0, cause={"data": 30.0}),
            "rank 1 (n0) is late in steps 21, 31, 41, 51, 61, … only, by 30.00 ms for its data (+30.00 ms)",
        ),
        (
            Verdict(kind=TRANSIENT, ranks=(1,), steps=(21,), arrival_skew=3.0),
            "rank 1 (n0) is late in step 21 only, by 3.00 ms",
        ),
        (
            Verdict(
                kind=ROTATING, ranks=(0, 1, 2, 3), arrival_skew=30.0, cause={"compute": 30.0}, share=0.95, costs=28.0
            ),
            "ranks take turns in being late (0 to 3): in 95 % of the steps one is, by 30.00 ms for its compute (+30.00 "
            "ms), which costs 28.00 ms a step",
        ),
    ],
)  # fmt: skip
def test_every_verdict_has_its_words(verdict, text):
    assert text in sentence(two_nodes(verdict=verdict), "2n2g")


@pytest.mark.parametrize(
    ("ranks", "text"),
    [((0, 1, 2, 3), "0 to 3"), ((0, 1), "0, 1"), ((1, 4, 6, 8, 9, 12), "1, 4, 6, 8, 9, … (6)"), ((7,), "7")],
)
def test_ranks_in_few_words(ranks: Sequence[int], text: str):
    assert numbers(ranks) == text


def test_reasons_and_errors_in_words():
    merged = Merged(missing=(("reduced", 164, 160), ("batch_ready", 1, 160)), not_reduced=True)
    assert merged_text([merged, Merged(early_collectives=("a", "b"))]) == (
        "reduced was not recorded in any step; batch_ready was not recorded in 1 of 160 (ranks × steps); gradients are "
        "not reduced; ranks meet before their gradients are complete: a, b"
    )
    assert problem_texts(StampErrors(total=160, disordered=2, gaps=3, early=1, early_ms=2.98)) == [
        "2 stamps of 160 (ranks × steps) lie before one that must come before them",
        "3 steps of 160 (ranks × steps) do not begin where the one before them ended",
        "in 1 of 160 (ranks × steps) the reduced gradients are there before the last rank has its own, by up to 2.980 "
        "ms more than the clocks' bounds: the stamps or the clocks are wrong",
    ]
    assert problem_texts(StampErrors(total=160)) == problem_texts(None) == []


def test_a_reason_that_point_and_baseline_share_is_given_once() -> None:
    point, baseline = (Merged(missing=(("reduced", ranks * 100, ranks * 100),)) for ranks in (2, 1))
    assert merged_text([point, baseline]) == "reduced was not recorded in any step"


# The notes below it


def uneven(slow: tuple[float, ...], others: tuple[float, ...]) -> Ledger:
    """Rank 3 takes `slow` terms, the others theirs."""
    ledger = two_nodes(verdict=LATE, split=UNSPLIT)
    terms = (others, others, others, slow)
    ranks = (dataclasses.replace(place, terms=its) for place, its in zip(ledger.ranks, terms, strict=True))
    return dataclasses.replace(ledger, ranks=tuple(ranks))


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
            lambda: two_nodes(split=SPLIT),
            "compute +7.50 ms: contention +6.00 ms (lost with reduction off, too), interference +0.20 ms [-0.30, 0.70] "
            "(what reducing beside it adds), unexplained +1.30 ms",
        ),
        (lambda: two_nodes(split=UNSPLIT), "compute +7.50 ms: unexplained; no "),
        (
            lambda: uneven((1.0, 57.0, 0.0, 4.1, 1.0), (1.0, 27.0, 30.0, 4.1, 1.0)),
            "compute +7.50 ms, +7.50 ms of it by rank 3 beyond the median rank: unexplained",
        ),
        (
            lambda: two_nodes(standalone=STANDALONE),
            "communication: exposed 41.00 ms; this gradient volume (102 MB) takes 55.00 ms standalone; 14.00 ms are "
            "overlapped with compute (measured by c_r1)",
        ),
        (
            lambda: two_nodes(standalone=dataclasses.replace(STANDALONE, standalone=30.0, gradient_bytes=800)),
            "communication: exposed 41.00 ms; this gradient volume (800 bytes) takes 30.00 ms standalone; 11.00 ms "
            "more are exposed than it takes standalone",
        ),
        (lambda: two_nodes(median_step=55.0), "the median step takes 55.00 ms, 13 % less than the mean"),
        (
            lambda: two_nodes(skew=-0.12),
            "the clocks leave up to 4.2 µs open; the throughput's step is 0.12 ms shorter: end skew less start skew",
        ),
        (one_clock, "all ranks read one clock; "),
        (runs_differ, "the runs differ in their straggler: run 1 persistent (3), run 2 none"),
    ],
)  # fmt: skip
def test_a_note(ledger, note):
    assert any(line.startswith(note) for line in notes(ledger()))


@pytest.mark.parametrize(
    ("ledger", "absent"),
    [
        (lambda: two_nodes(terms=CROWD | {"compute": 27.0}, split=UNSPLIT), "unexplained"),
        (lambda: two_nodes(verdict=LATE, split=UNSPLIT), "beyond the median rank"),
        (lambda: two_nodes(median_step=62.0), "the median step"),
        (lambda: two_nodes(verdict=LATE), "differ"),
    ],
)
def test_a_note_that_is_not_there(ledger, absent):
    assert not any(absent in line for line in notes(ledger()))
