"""parse.ledger.sentence, parse.ledger.notes: a ledger in words, and what they never claim."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from parse.ledger.notes import notes
from parse.ledger.sentence import numbers, sentence, share
from parse.ledger.types import CANNOT_TELL, NONE, PERSISTENT, ROTATING, TRANSIENT, Alone, ComputeSplit, Verdict
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
)

# The sentence


def test_a_straggler_that_costs_most_comes_first():
    assert sentence(two_nodes(verdict=LATE), "2n2g") == (
        "2n2g: a step takes 63.10 ms, 33.90 ms [33.85, 33.95] longer than 1n1g's 29.20 ms: rank 3 (n1) is late in "
        "97 % of the steps by 30.10 ms for its compute (+30.00 ms), which costs 29.20 ms a step; the loss by terms: "
        "wait +22.50 ms (66 %), compute +7.50 ms (22 %), transfer +3.90 ms (12 %)"
    )


def test_a_term_that_costs_more_than_the_straggler_comes_first():
    little = dataclasses.replace(LATE, costs=5.0)
    said = sentence(two_nodes(terms=CROWD | {"transfer": 60.2}, verdict=little), "2n2g")
    assert ": transfer +60.00 ms (67 %), wait +22.50 ms (25 %), compute +7.50 ms (8 %); rank 3" in said


def test_a_loss_within_the_scatter_has_no_cause_and_no_share():
    said = sentence(two_nodes(terms=ALONE | {"wait": 0.3}, margin=0.5), "2n2g")
    assert said == (
        "2n2g: a step takes 29.50 ms, 0.30 ms [-0.20, 0.80] longer than 1n1g's 29.20 ms: within the scatter, so no "
        "cause of it is named; no rank is late more than equal ranks would be"
    )


def test_a_loss_without_an_interval_has_causes_and_no_share():
    said = sentence(two_nodes(margin=None), "2n2g")
    assert "33.90 ms (too few steps for an interval) longer" in said
    assert "wait +22.50 ms, compute +7.50 ms, transfer +3.90 ms" in said
    assert "%" not in said


def test_a_term_within_its_own_scatter_shows_its_interval_and_no_share():
    ledger = two_nodes()
    terms = tuple(
        dataclasses.replace(term, loss=around(term.loss.value, 9.0)) if term.name == "compute" and term.loss else term
        for term in ledger.terms
    )
    said = sentence(dataclasses.replace(ledger, terms=terms), "2n2g")
    assert "wait +22.50 ms (66 %), compute +7.50 ms [-1.50, 16.50], transfer" in said


def test_a_term_beyond_its_scatter_has_no_share_of_a_loss_within_it():
    ledger = two_nodes(margin=0.5)
    loss = around(ledger.loss.value, 90.0)
    terms = tuple(dataclasses.replace(term, share=None) for term in ledger.terms)
    ledger = dataclasses.replace(ledger, loss=loss, terms=terms)
    assert all(share(term) == "" for term in terms) and any(term.loss.resolved for term in terms)
    assert not any(
        "share" in line for line in ledger_text(Summary(results=(ledger.result,), ledgers=(ledger,)), Page())
    )


def test_a_step_that_takes_less_is_shorter_and_what_saves_most_comes_first():
    said = sentence(two_nodes(terms=ALONE | {"compute": 20.0, "wait": 1.0}), "2n2g")
    assert (
        "23.20 ms, 6.00 ms [5.95, 6.05] shorter than 1n1g's 29.20 ms: compute -7.00 ms (117 %), wait +1.00 ms (-17 %)"
        in said
    )


def test_without_a_baseline_the_terms_are_named_and_the_reason():
    ledger = two_nodes(baseline=None, no_loss="no 1n1g baseline with all else equal is here")
    assert sentence(ledger, "2n2g") == (
        "2n2g: a step takes 63.10 ms: compute 34.50 ms, wait 22.50 ms, transfer 4.10 ms, the rest 2.00 ms; no rank is "
        "late more than equal ranks would be; no loss is given: no 1n1g baseline with all else equal is here"
    )
    first = sentence(dataclasses.replace(ledger, verdict=LATE), "2n2g")
    assert "63.10 ms: rank 3 (n1) is late in" in first and "; the step by terms: compute 34.50 ms" in first


def test_strong_scaling_says_what_it_compares_with():
    point = strong().ledgers[1]
    assert "2.90 ms [2.85, 2.95] longer than 1n1g's divided by 2 devices, 14.60 ms (strong scaling)" in sentence(
        point, "x"
    )


def test_short_steps_are_told_to_the_microsecond():
    few = {name: value / 100 for name, value in CROWD.items()}
    assert sentence(two_nodes(terms=few, baseline=None), "2n2g").startswith(
        "2n2g: a step takes 0.631 ms: compute 0.345 ms"
    )


def test_one_rank_waits_for_nobody():
    alone = make_ledger(results_of((1, 1))[0], ALONE, None)
    assert "late" not in sentence(alone, "1n1g")
    assert sentence(alone, "1n1g").endswith("; no loss is given: it is the baseline")


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (Verdict(kind=NONE), "no rank is late more than equal ranks would be"),
        (
            Verdict(kind=CANNOT_TELL, because="clock", bound=0.21),
            "who is waited for cannot be told (clock): the clocks leave 0.21 ms open",
        ),
        (Verdict(kind=CANNOT_TELL, because="steps"), "who is waited for cannot be told (steps)"),
        (
            Verdict(kind=PERSISTENT, ranks=(2, 3), node="n1", late=30.0, cause={"update": 10.0, "data": 20.0}, share=1),
            "node n1 (ranks 2, 3) is late in 100 % of the steps by 30.00 ms for its data (+20.00 ms) and its previous "
            "update (+10.00 ms)",
        ),
        (
            Verdict(kind=PERSISTENT, ranks=(1, 3), late=3.0, share=0.8, costs=2.5),
            "ranks 1, 3 are late in 80 % of the steps by 3.00 ms, which costs 2.50 ms a step",
        ),
        (
            Verdict(kind=TRANSIENT, ranks=(1,), steps=(21, 31, 41, 51, 61, 71), late=30.0, cause={"compute": 30.0}),
            "rank 1 (n0) is late in steps 21, 31, 41, 51, 61, … only, by 30.00 ms for its compute (+30.00 ms)",
        ),
        (Verdict(kind=TRANSIENT, ranks=(1,), steps=(21,), late=3.0), "rank 1 (n0) is late in step 21 only, by 3.00 ms"),
        (
            Verdict(kind=ROTATING, ranks=(0, 1, 2, 3), late=30.0, cause={"compute": 30.0}, share=0.95, costs=28.0),
            "ranks take turns in being late (0 to 3): in 95 % of the steps one is, by 30.00 ms for its compute (+30.00 "
            "ms), which costs 28.00 ms a step",
        ),
    ],
)  # fmt: skip
def test_every_verdict_has_its_words(verdict, said):
    assert said in sentence(two_nodes(verdict=verdict), "2n2g")


def test_an_error_of_the_measurement_is_in_the_sentence_and_above_it():
    broken = with_problem(two_nodes(), "transfer is negative")
    assert sentence(broken, "2n2g").endswith("; the measurement has errors")
    one, point = results_of((1, 1), (2, 2))
    lines = ledger_text(Summary(results=(one, point), ledgers=(broken,)), Page(width=200))
    assert next(line for line in lines if line.startswith("2n2g:")).startswith("2n2g: error of the measurement: ")


@pytest.mark.parametrize(
    ("ranks", "said"),
    [((0, 1, 2, 3), "0 to 3"), ((0, 1), "0, 1"), ((1, 4, 6, 8, 9, 12), "1, 4, 6, 8, 9, … (6)"), ((7,), "7")],
)
def test_ranks_in_few_words(ranks: Sequence[int], said: str):
    assert numbers(ranks) == said


# What stands below it


def test_a_twin_parts_the_loss_in_compute_and_without_one_all_is_unexplained():
    split = ComputeSplit(contention=around(6.0), interference=around(0.2, 0.5), unexplained=1.3)
    assert (
        "compute +7.50 ms: contention +6.00 ms (lost with reduction off, too), interference +0.20 ms [-0.30, 0.70] "
        "(what reducing beside it adds), unexplained +1.30 ms"
    ) in [*notes(two_nodes(split=split))]
    none = ComputeSplit(contention=None, interference=None, unexplained=7.5)
    assert any("compute +7.50 ms: unexplained; no twin" in line for line in notes(two_nodes(split=none)))
    equal = two_nodes(terms=CROWD | {"compute": 27.0}, split=none)
    assert not any("unexplained" in line for line in notes(equal))


def test_what_of_the_loss_in_compute_is_the_stragglers_is_told():
    none = ComputeSplit(contention=None, interference=None, unexplained=7.5)
    ledger = two_nodes(verdict=LATE, split=none)
    slow = dataclasses.replace(ledger.ranks[3], terms=(1.0, 57.0, 0.0, 4.1, 1.0))
    others = (dataclasses.replace(one, terms=(1.0, 27.0, 30.0, 4.1, 1.0)) for one in ledger.ranks[:3])
    uneven = dataclasses.replace(ledger, ranks=(*others, slow))
    part = "compute +7.50 ms, +7.50 ms of it by rank 3 beyond the median rank: unexplained"
    assert any(line.startswith(part) for line in notes(uneven))
    assert not any("beyond the median rank" in line for line in notes(ledger))


def test_what_is_hidden_behind_compute_and_what_is_exposed_beyond_need():
    alone = Alone(gradient_bytes=102_228_128, alone=55.0, exposed=41.0, run_id="c_r1")
    said = (
        "transfer: exposed 41.00 ms; this gradient volume (102 MB) alone would take 55.00 ms; 14.00 ms are hidden "
        "behind compute (measured by c_r1)"
    )
    assert said in [*notes(two_nodes(alone=alone))]
    more = dataclasses.replace(alone, alone=30.0, gradient_bytes=800)
    assert any(
        "(800 bytes)" in n and "; 11.00 ms more are exposed than it takes alone" in n
        for n in notes(two_nodes(alone=more))
    )


def test_a_median_that_says_something_else_is_told():
    assert any(
        "the median step takes 55.00 ms, 13 % less than the mean" in n for n in notes(two_nodes(median_step=55.0))
    )
    assert not any("median" in line for line in notes(two_nodes(median_step=62.0)))


def test_the_skew_between_throughput_and_ledger_is_told_with_the_clocks():
    assert "the clocks leave up to 4.2 µs open; the throughput's step is 0.12 ms shorter: end skew less start skew" in [
        *notes(two_nodes(skew=-0.12))
    ]
    ledger = two_nodes()
    same = tuple(dataclasses.replace(run, bound=0.0) for run in ledger.runs)
    assert any(line.startswith("all ranks read one clock; ") for line in notes(dataclasses.replace(ledger, runs=same)))


def test_runs_that_differ_in_their_verdict_are_told():
    ledger = two_nodes(verdict=LATE)
    runs = (ledger.runs[0], dataclasses.replace(ledger.runs[1], verdict=NOBODY))
    said = [*notes(dataclasses.replace(ledger, runs=runs))]
    assert "the runs differ in their straggler: run 1 persistent (3), run 2 none" in said
    assert not any("differ" in line for line in notes(ledger))
