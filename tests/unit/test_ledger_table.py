"""parse.ledger_table, parse.ledger.sentence, parse.ledger.notes: what a ledger looks like and what it never claims."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hpc.outcome import Outcome
from parse.layout import WIDTH
from parse.ledger.notes import notes
from parse.ledger.nouns import (
    CANNOT_TELL,
    NONE,
    PERSISTENT,
    ROTATING,
    TERMS,
    TRANSIENT,
    Alone,
    ComputeSplit,
    Ledger,
    Mean,
    Place,
    RunLedger,
    Term,
    Verdict,
)
from parse.ledger.sentence import numbers, sentence, share
from parse.ledger_table import NOTHING, PLACES, ledger_text, worth_a_row
from parse.result import Result
from parse.summary import Summary
from parse.table import FORMATS, text
from tests.unit.traces import ended, judged, make_run, make_trace, repeats

ALONE = {"data": 1.0, "compute": 27.0, "wait": 0.0, "transfer": 0.2, "update": 1.0}
CROWD = {"data": 1.0, "compute": 34.5, "wait": 22.5, "transfer": 4.1, "update": 1.0}
LATE = Verdict(
    kind=PERSISTENT, ranks=(3,), late=30.1, cause={"compute": 30.0, "data": 0.1}, share=0.97, costs=29.2, bound=0.0042,
    chance=0.002,
)  # fmt: skip
NOBODY = Verdict(kind=NONE, bound=0.0042, chance=0.4)


def around(value: float, margin: float | None = 0.05) -> Mean:
    return Mean(value=value) if margin is None else Mean(value=value, low=value - margin, high=value + margin)


def make_ledger(
    result: Result, terms: Mapping[str, float], baseline: Mapping[str, float] | None, margin: float | None = 0.05,
    **changes: Any,
) -> Ledger:  # fmt: skip
    """A ledger whose terms add up; ranks of a node are alike but for those of the verdict."""
    run = result.run
    step = sum(terms.values())
    loss = None if baseline is None else around(step - sum(baseline.values()), margin)
    made = []
    for name, value in terms.items():
        lost = None if baseline is None else around(value - baseline[name], margin)
        share = lost.value / loss.value if lost and loss and loss.resolved else None
        made.append(Term(name=name, mean=around(value), baseline=baseline and baseline[name], loss=lost, share=share))
    verdict = changes.get("verdict", NOBODY)
    last = [0.97 if rank in verdict.ranks else 0.01 for rank in range(run.ranks)]
    values = tuple(terms.values())
    ranks = tuple(Place(name=f"rank {rank}", ranks=(rank,), terms=values, last=last[rank]) for rank in range(run.ranks))
    on_node = [
        tuple(rank for rank in range(run.ranks) if rank // run.ranks_per_node == node) for node in range(run.nodes)
    ]
    nodes = tuple(
        Place(name=f"n{node}", ranks=there, terms=values, last=max(last[rank] for rank in there))
        for node, there in enumerate(on_node)
    )
    content: dict[str, Any] = {
        "result": result, "terms": tuple(made), "step": around(step), "median_step": step, "skew": 0.0004, "loss": loss,
        "no_loss": "" if loss else "it is the baseline", "merged": "", "verdict": verdict,
        "runs": tuple(
            RunLedger(run_id=one.asked.run_id, verdict=verdict, step=step, pauses=(), bound=0.0042)
            for one in result.runs
        ),
        "ranks": ranks, "nodes": nodes,
    }  # fmt: skip
    return Ledger(**(content | changes))


def results_of(*cases: tuple[int, int], **asked: Any) -> tuple[Result, ...]:
    return judged(
        [
            make_trace(one)
            for nodes, ranks in cases
            for one in repeats(
                make_run(nodes=nodes, ranks_per_node=ranks, workload="my|net.py:\x1b[31mNet", **asked), 2
            )
        ]
    )


def with_problem(ledger: Ledger, problem: str) -> Ledger:
    return dataclasses.replace(
        ledger, runs=(dataclasses.replace(ledger.runs[0], problems=(problem,)), *ledger.runs[1:])
    )


def weak() -> Summary:
    """A baseline and two points: a slow rank with all that can be said, and a node of eight with an incident."""
    one, two, eight = results_of((1, 1), (2, 2), (2, 8))
    slow = make_ledger(
        two, CROWD, ALONE, verdict=LATE, median_step=55.0, skew=0.02,
        split=ComputeSplit(contention=around(1.2), interference=around(0.3, 0.5), unexplained=6.0),
        alone=Alone(gradient_bytes=102_228_128, alone=18.1, exposed=4.1, run_id="2n2g_x_collectives_r1"),
        telemetry=("SM clock 1755 MHz against 1980 MHz alone (-11.4 %)",), remarks=("a\tremark",),
    )  # fmt: skip
    slow = with_problem(slow, "in 3 of 40 the reduced gradients are there before the last rank has its own\x1b[2J")
    paused = dataclasses.replace(slow.runs[1], pauses=(350.0, 410.0))
    slow = dataclasses.replace(slow, runs=(slow.runs[0], paused))
    at_times = Verdict(
        kind=TRANSIENT, ranks=(9,), steps=(21, 31, 41, 51, 61, 71), late=300.0, cause={"data": 299.0, "compute": 1.0},
        share=0.06, costs=18.0, bound=0.21, chance=0.0,
    )  # fmt: skip
    hiccup = make_ledger(eight, CROWD | {"transfer": 0.3}, ALONE, verdict=at_times)
    return Summary(results=(one, two, eight), ledgers=(make_ledger(one, ALONE, None), slow, hiccup))


def strong() -> Summary:
    """Strong scaling; a term in which three are one; clocks that cannot tell."""
    one, two = results_of((1, 1), (2, 1), scaling="strong", batch_size=8)
    together = {"data": 1.0, "compute+communication": 16.0, "update": 0.5}
    ideal = {"data": 0.5, "compute+communication": 13.6, "update": 0.5}
    unknown = Verdict(kind=CANNOT_TELL, because="clock", bound=0.21)
    merged = "ranks meet before their gradients are complete: synchronised batch norm"
    point = make_ledger(two, together, ideal, verdict=unknown, merged=merged)
    return Summary(results=(one, two), ledgers=(make_ledger(one, ALONE, None), point))


@pytest.mark.parametrize(("form", "ending"), [("table", "txt"), ("markdown", "md"), ("json", "json")])
@pytest.mark.parametrize("summary", [weak, strong])
def test_the_formats_are_as_in_the_golden_files(golden, summary, form, ending):
    golden(f"ledger_{summary.__name__}.{ending}", FORMATS[form](summary()))


@pytest.mark.parametrize("form", ["table", "markdown"])
@pytest.mark.parametrize("summary", [weak, strong])
def test_lines_fit_a_terminal_and_steer_nothing(summary, form):
    written = FORMATS[form](summary())
    assert "\x1b" not in written
    assert form == "markdown" or max(map(len, written.splitlines())) <= WIDTH


def test_without_the_question_there_is_no_ledger_and_without_traces_it_says_so():
    summary = weak()
    assert text(dataclasses.replace(summary, ledgers=None)) in text(summary)
    assert "ledgers" not in json.loads(FORMATS["json"](dataclasses.replace(summary, ledgers=None)))
    assert NOTHING in text(dataclasses.replace(summary, ledgers=()))


# The sentence


def two(**changes: Any) -> Ledger:
    terms = changes.pop("terms", CROWD)
    baseline = changes.pop("baseline", ALONE)
    return make_ledger(results_of((1, 1), (2, 2))[1], terms, baseline, **changes)


def test_a_culprit_that_costs_most_comes_first():
    assert sentence(two(verdict=LATE), "2n2g") == (
        "2n2g: a step takes 63.10 ms, 33.90 ms [33.85, 33.95] longer than 1n1g's 29.20 ms: rank 3 (n1) is late in "
        "97 % of the steps by 30.10 ms for its compute (+30.00 ms), which costs 29.20 ms a step; the loss by terms: "
        "wait +22.50 ms (66 %), compute +7.50 ms (22 %), transfer +3.90 ms (12 %)"
    )


def test_a_term_that_costs_more_than_the_culprit_comes_first():
    little = dataclasses.replace(LATE, costs=5.0)
    said = sentence(two(terms=CROWD | {"transfer": 60.2}, verdict=little), "2n2g")
    assert ": transfer +60.00 ms (67 %), wait +22.50 ms (25 %), compute +7.50 ms (8 %); rank 3" in said


def test_a_loss_within_the_scatter_has_no_cause_and_no_share():
    said = sentence(two(terms=ALONE | {"wait": 0.3}, margin=0.5), "2n2g")
    assert said == (
        "2n2g: a step takes 29.50 ms, 0.30 ms [-0.20, 0.80] longer than 1n1g's 29.20 ms: within the scatter, so no "
        "cause of it is named; no rank is late more than equal ranks would be"
    )


def test_a_loss_without_an_interval_has_causes_and_no_share():
    said = sentence(two(margin=None), "2n2g")
    assert "33.90 ms (too few steps for an interval) longer" in said
    assert "wait +22.50 ms, compute +7.50 ms, transfer +3.90 ms" in said
    assert "%" not in said


def test_a_term_within_its_own_scatter_shows_its_interval_and_no_share():
    ledger = two()
    terms = tuple(
        dataclasses.replace(term, loss=around(term.loss.value, 9.0)) if term.name == "compute" and term.loss else term
        for term in ledger.terms
    )
    said = sentence(dataclasses.replace(ledger, terms=terms), "2n2g")
    assert "wait +22.50 ms (66 %), compute +7.50 ms [-1.50, 16.50], transfer" in said


def test_a_term_beyond_its_scatter_has_no_share_of_a_loss_within_it():
    ledger = two(margin=0.5)
    loss = around(ledger.loss.value, 90.0)
    terms = tuple(dataclasses.replace(term, share=None) for term in ledger.terms)
    ledger = dataclasses.replace(ledger, loss=loss, terms=terms)
    assert all(share(term) == "" for term in terms) and any(term.loss.resolved for term in terms)
    assert not any("share" in line for line in ledger_text(Summary(results=(ledger.result,), ledgers=(ledger,))))


def test_a_step_that_takes_less_is_shorter_and_what_saves_most_comes_first():
    said = sentence(two(terms=ALONE | {"compute": 20.0, "wait": 1.0}), "2n2g")
    assert (
        "23.20 ms, 6.00 ms [5.95, 6.05] shorter than 1n1g's 29.20 ms: compute -7.00 ms (117 %), wait +1.00 ms (-17 %)"
        in said
    )


def test_without_a_baseline_the_terms_are_named_and_the_reason():
    ledger = two(baseline=None, no_loss="no 1n1g baseline with all else equal is here")
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
    assert sentence(two(terms=few, baseline=None), "2n2g").startswith("2n2g: a step takes 0.631 ms: compute 0.345 ms")


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
    assert said in sentence(two(verdict=verdict), "2n2g")


def test_an_error_of_the_measurement_is_in_the_sentence_and_above_it():
    broken = with_problem(two(), "transfer is negative")
    assert sentence(broken, "2n2g").endswith("; the measurement has errors")
    one, point = results_of((1, 1), (2, 2))
    lines = ledger_text(Summary(results=(one, point), ledgers=(broken,)))
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
    ) in [*notes(two(split=split))]
    none = ComputeSplit(contention=None, interference=None, unexplained=7.5)
    assert any("compute +7.50 ms: unexplained; no twin" in line for line in notes(two(split=none)))
    equal = two(terms=CROWD | {"compute": 27.0}, split=none)
    assert not any("unexplained" in line for line in notes(equal))


def test_what_of_the_loss_in_compute_is_the_culprits_is_told():
    none = ComputeSplit(contention=None, interference=None, unexplained=7.5)
    ledger = two(verdict=LATE, split=none)
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
    assert said in [*notes(two(alone=alone))]
    more = dataclasses.replace(alone, alone=30.0, gradient_bytes=800)
    assert any(
        "(800 bytes)" in n and "; 11.00 ms more are exposed than it takes alone" in n for n in notes(two(alone=more))
    )


def test_a_median_that_says_something_else_is_told():
    assert any("the median step takes 55.00 ms, 13 % less than the mean" in n for n in notes(two(median_step=55.0)))
    assert not any("median" in line for line in notes(two(median_step=62.0)))


def test_the_skew_between_throughput_and_ledger_is_told_with_the_clocks():
    assert "the clocks leave up to 4.2 µs open; the throughput's step is 0.12 ms shorter: end skew less start skew" in [
        *notes(two(skew=-0.12))
    ]
    ledger = two()
    same = tuple(dataclasses.replace(run, bound=0.0) for run in ledger.runs)
    assert any(line.startswith("all ranks read one clock; ") for line in notes(dataclasses.replace(ledger, runs=same)))


def test_runs_that_differ_in_their_verdict_are_told():
    ledger = two(verdict=LATE)
    runs = (ledger.runs[0], dataclasses.replace(ledger.runs[1], verdict=NOBODY))
    said = [*notes(dataclasses.replace(ledger, runs=runs))]
    assert "the runs differ in their culprit: run 1 persistent (3), run 2 none" in said
    assert not any("differ" in line for line in notes(ledger))


# Tables of places


def test_nodes_of_one_name_are_told_apart():
    ledger = two(verdict=LATE)
    simulated = dataclasses.replace(ledger, nodes=tuple(dataclasses.replace(one, name="vm") for one in ledger.nodes))
    lines = ledger_text(Summary(results=(ledger.result,), ledgers=(simulated,)))
    assert any("rank 3 (vm:1) is late" in line for line in lines)
    assert [line.split()[0] for line in lines if line.startswith("    vm:")] == ["vm:0", "vm:1"]


def test_of_many_ranks_those_are_shown_that_come_last_most_and_the_one_that_waits_most():
    result = results_of((4, 8))[0]
    ledger = make_ledger(result, CROWD, None, verdict=dataclasses.replace(LATE, ranks=(30,)))
    waits = dict.fromkeys(range(32), 22.5) | {17: 52.0}
    often = dict.fromkeys(range(32), 0.0) | {30: 0.3} | dict.fromkeys(range(7), 0.5)
    ranks = tuple(
        Place(name="", ranks=(rank,), terms=(1.0, 34.5, waits[rank], 4.1, 1.0), last=often[rank]) for rank in range(32)
    )
    shown = [place.ranks[0] for place in worth_a_row(ledger, ranks)]
    assert shown == [0, 1, 2, 3, 4, 5, 17, 30]
    assert len(shown) == PLACES
    lines = ledger_text(Summary(results=(result,), ledgers=(dataclasses.replace(ledger, ranks=ranks),)))
    assert "  by rank, ms (8 of 32: those that come last most, and the one that waits most):" in lines


def test_where_lateness_cannot_be_told_there_is_no_share_of_steps():
    ledger = two(verdict=Verdict(kind=CANNOT_TELL, because="clock"))
    ranks = tuple(dataclasses.replace(place, last=None) for place in ledger.ranks)
    lines = ledger_text(
        Summary(results=(ledger.result,), ledgers=(dataclasses.replace(ledger, ranks=ranks, nodes=()),))
    )
    row = next(line for line in lines if line.split()[:2] == ["0", "-"])
    assert row.split()[-1] == "-"


# JSON


def test_json_has_every_term_and_adds_up():
    ledgers = json.loads(FORMATS["json"](weak()))["ledgers"]
    assert [one["case"] for one in ledgers] == ["1n1g", "2n2g", "2n8g"]
    for one in ledgers:
        assert [term["name"] for term in one["terms"]] == list(TERMS)
        assert sum(term["mean"]["value"] for term in one["terms"]) == pytest.approx(one["step"]["value"])
        assert len(one["ranks"]) == {"1n1g": 1, "2n2g": 4, "2n8g": 16}[one["case"]]
    slow = ledgers[1]
    fields = {field.name for field in dataclasses.fields(Ledger)} - {"result"}
    assert fields <= slow.keys()
    assert slow["verdict"]["kind"] == "persistent" and slow["verdict"]["ranks"] == [3]
    assert slow["alone"]["hidden"] == pytest.approx(14.0)
    assert slow["sentence"].startswith("2n2g: a step takes 63.10 ms")
    assert slow["point_id"] in {one["point_id"] for one in json.loads(FORMATS["json"](weak()))["results"]}
    assert ledgers[0]["loss"] is None and ledgers[0]["no_loss"] == "it is the baseline"


def test_what_is_no_number_is_null_there():
    runs = tuple(dataclasses.replace(run, bound=float("inf")) for run in two().runs)
    ledger = two(runs=runs, median_step=float("nan"))
    written = json.loads(FORMATS["json"](Summary(results=(ledger.result,), ledgers=(ledger,))))["ledgers"][0]
    assert written["runs"][0]["bound"] is None and written["median_step"] is None


# Probes


def test_probes_stand_beside_the_points_and_nowhere_among_them():
    point = make_run(nodes=2, ranks_per_node=2)
    twin = dataclasses.replace(point, reduction="off")
    bench = dataclasses.replace(point, workload="collectives", batch_size=1)
    failed = [ended(repeats(twin, 2)[1], Outcome.RANK_FAIL, "boom\x1b[2J")]
    found = judged([make_trace(point), make_trace(twin), make_trace(bench)], [*repeats(twin, 2), bench], failed)
    summary = Summary(
        results=tuple(one for one in found if not one.run.probe), probes=tuple(one for one in found if one.run.probe)
    )
    written = text(summary)
    assert "beside the points: collectives of 2n2g 1/1 ok, twin of 2n2g 1/2 ok" in written
    assert "twin of 2n2g: run 2: rank_fail (boom\\x1b[2J)" in written
    assert len([line for line in written.splitlines() if line.startswith("2n2g ")]) == 1
    content = json.loads(FORMATS["json"](summary))
    assert [one["probe"] for one in content["probes"]] == ["collectives", "twin"]
    assert len(content["results"]) == 1
    assert "collectives" not in FORMATS["csv"](summary)


@pytest.mark.parametrize("form", ["table", "markdown", "json"])
def test_probes_alone_are_named(form):
    bench = make_run(nodes=2, workload="collectives", batch_size=1)
    written = FORMATS[form](Summary(results=(), probes=judged([make_trace(bench)], [bench]), ledgers=()))
    assert "collectives of 2n1g 1/1 ok" in written or json.loads(written)["probes"][0]["case"] == "2n1g"
