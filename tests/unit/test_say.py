"""parse.say: what is said of a ledger, and what is never claimed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from parse.ledger.finding import ComputeSplit, CoreLack, Finding, Symptom, UnevenWork, Without
from parse.ledger.input import InputCause, InputReading
from parse.ledger.symptoms import WAITS_FOR_A_CORE
from parse.ledger.types import Ledger, NoLoss, Repeats, StampErrors
from parse.ledger.verdict import (
    PERSISTENT,
    ROTATING,
    TRANSIENT,
    Because,
    CannotTell,
    Doubt,
    FasterRanks,
    Merged,
    Nobody,
    Paced,
    Shape,
    ShapeKind,
    SharedDelay,
    Straggler,
)
from parse.report.ledger import ledger_text
from parse.report.summary import Summary
from parse.say.numbers import numbers, share
from parse.say.paragraph import TEXTS, largest, sentence, text_of
from parse.say.reasons import merged_text, problem_texts
from parse.stats import Mean
from parse.text import Page
from tests.unit.ledgers import (
    ALONE,
    CROWD,
    LATE,
    around,
    finding_of,
    make_ledger,
    results_of,
    strong,
    two_nodes,
    whole_text,
    with_problem,
)  # fmt: skip
from tests.unit.traces import judged, make_ranks, make_run, make_trace, repeats

QUEUED = Symptom(quantity=WAITS_FOR_A_CORE, unit="ms a step", value=54.0, usual=0.3, explains=10.2)
BEHIND = dataclasses.replace(LATE, ranks=(0,), arrival_skew=9.0, cause={"data": 9.0}, share=0.8, costs=8.0)


def uncertain_compute() -> Ledger:
    """Its loss in compute is within its own interval."""
    ledger = two_nodes()
    data, compute, *others = ledger.terms
    assert compute.loss is not None
    wide = dataclasses.replace(compute, loss=around(compute.loss.value, 9.0))
    return dataclasses.replace(ledger, terms=(data, wide, *others))


def single_rank() -> Ledger:
    return make_ledger(results_of((1, 1))[0], ALONE, None)


@pytest.mark.parametrize(
    ("ledger", "parts"),
    [
        pytest.param(
            lambda: two_nodes(verdict=LATE, repeats=Repeats(point=2, baseline=3, for_half=4)),
            ["2n2g: 33.9 ms a step slower than 1n1g (63.1 instead of 29.2 ms; 95 %: 33.85 to 33.95). Wait +22.5 ms "
             "(66 %), compute +7.50 (22 %), communication +3.90 (12 %). Rank 3 (n1) computes 30.0 ms longer than "
             "the median rank in 97 % of the steps. This costs 29.2 ms a step."],
            id="a straggler is the cause",
        ),
        pytest.param(
            lambda: two_nodes(terms=CROWD | {"communication": 60.2}, verdict=dataclasses.replace(LATE, costs=5.0)),
            ["). Communication +60.0 ms (67 %), wait +22.5 (25 %), compute +7.50 (8 %). Rank 3"],
            id="a term that costs more than the straggler is first",
        ),
        pytest.param(
            lambda: two_nodes(terms=ALONE | {"wait": 0.3}, margin=0.5),
            ["0.3 ms a step slower than 1n1g (29.5 instead of 29.2 ms; 95 %: 0.2 faster to 0.8 slower), which is "
             "within the scatter. No straggler: no rank is late"],
            id="within the scatter",
        ),
        pytest.param(
            lambda: two_nodes(
                terms=ALONE | {"wait": 0.3}, margin=0.5,
                findings=(Finding(what=CoreLack(ms=66.2, base_ms=1.0), costs=65.2),),
            ),
            [", which is within the scatter. Ranks wait 66.2 ms a step for a core (1.00 ms at 1n1g): too "
             "few cores are left to them. No straggler"], id="too few cores",
        ),
        pytest.param(
            lambda: two_nodes(margin=None),
            ["33.9 ms a step slower than 1n1g (63.1 instead of 29.2 ms; too few steps for an interval). Wait +22.5 ms, "
             "compute +7.50, communication +3.90. "],
            id="no interval, no share",
        ),
        pytest.param(
            uncertain_compute, ["Wait +22.5 ms (66 %), compute +7.50 (-1.5 to 16.5), communication"],
            id="a term within its scatter",
        ),
        pytest.param(
            lambda: two_nodes(terms=ALONE | {"compute": 20.0, "wait": 1.0}),
            ["6.00 ms a step faster than 1n1g (23.2 instead of 29.2 ms; 95 %: 5.95 to 6.05). Compute -7.00 ms, wait "
             "+1.00. "],
            id="shorter",
        ),
        pytest.param(
            lambda: two_nodes(baseline=None, no_loss=NoLoss.NO_BASE),
            ["2n2g: A step takes 63.1 ms: compute 34.5 ms, wait 22.5, communication 4.10, the rest 2.00. "],
            id="no baseline",
        ),
        pytest.param(
            lambda: two_nodes(baseline=None, verdict=LATE),
            ["63.1 ms: compute 34.5 ms", ". Rank 3 (n1) computes "], id="straggler, no baseline",
        ),
        pytest.param(
            lambda: strong().ledgers[1],
            ["2.90 ms a step slower than ideal strong scaling of 1n1g on twice the devices (17.5 instead of 14.6 ms; "
             "95 %: 2.85 to 2.95). Compute+wait"],
            id="strong",
        ),
        pytest.param(
            lambda: two_nodes(terms={name: ms / 100 for name, ms in CROWD.items()}, baseline=None),
            ["2n2g: A step takes 0.63 ms: compute 0.34 ms"], id="a short step",
        ),
        pytest.param(single_rank, [": A step takes 29.2 ms: compute 27.0 ms, the rest 2.20."], id="the baseline"),
        pytest.param(lambda: with_problem(two_nodes()), [" would be. The measurement has errors."], id="errors"),
        pytest.param(
            lambda: two_nodes(
                verdict=LATE, without=Without(speed=4210.4, interval=None, recorded=298.04),
            ),
            ["This costs 29.2 ms a step. Without it: 4,210 instead of 298 samples/s."], id="without it",
        ),
        pytest.param(
            lambda: two_nodes(verdict=LATE, evidence=(QUEUED,)),
            ["ms a step. It is ready to run but not running 54 ms a step (others 0.3): 34 % of its delay. To do: see "
             "what takes its core: a CPU quota, its own threads, another process (check `load`)."],
            id="why, and what to do",
        ),
        pytest.param(
            lambda: two_nodes(
                verdict=dataclasses.replace(LATE, ranks=(1, 3), in_runs=2, of_runs=3), findings=(finding_of(BEHIND),)
            ),
            [". Ranks 1, 3 compute 30.0 ms longer than the median rank. They are late in 97 % of the steps of 2 of 3 "
             "runs. This costs 29.2 ms a step. Rank 0 (n0) waits 9.00 ms longer for its data than the median rank on "
             "average. It is late in 80 % of the steps. This costs 8.00 ms a step more."],
            id="two stragglers",
        ),
        pytest.param(
            lambda: two_nodes(contention=(Symptom(quantity=WAITS_FOR_A_CORE, unit="% of the time", value=21.4),)),
            [". 1n1g shared its machine (a rank waits for a core 21.4 % of the time): the loss is larger than this."],
            id="a contended baseline",
        ),
    ],
)  # fmt: skip
def test_parts_of_the_sentence(ledger, parts):
    text = sentence(ledger(), "2n2g")
    assert [part for part in parts if part not in text] == [], text
    assert ".." not in text and ". ." not in text and text.endswith(".")


@pytest.mark.parametrize(
    ("margin", "repeats", "interval", "text"),
    [
        (20.0, Repeats(point=2, baseline=2, for_half=3), "14 to 54",
         " 3 runs of each (--repeats 3) would halve the interval."),
        (2.0, Repeats(point=5, baseline=5, for_half=18), "31.9 to 35.9", ""),
        (20.0, Repeats(point=2, baseline=2, for_half=None), "14 to 54", ""),
        (20.0, Repeats(point=1, baseline=1, for_half=None), "14 to 54",
         " The interval is of this window only: --repeats 3 or more shows how runs differ."),
    ],
)  # fmt: skip
def test_what_more_runs_would_give(margin: float, repeats: Repeats, interval: str, text: str) -> None:
    line = sentence(two_nodes(margin=margin, repeats=repeats), "2n2g")
    assert f"(63.1 instead of 29.2 ms; 95 %: {interval}). " in line
    assert line.endswith(f"no rank is late more than equal ranks would be.{text}")


def test_none_is_a_limit() -> None:
    line = sentence(two_nodes(verdict=Nobody(limit=1.8, seldom_limit=9.0)), "2n2g")
    assert line.endswith("No straggler: 1.80 ms in every step would show, 9.00 ms in one of ten.")


def test_ranks_that_are_faster_and_what_all_share_stand_beside_the_verdict() -> None:
    faster = FasterRanks(ranks=(0,), by=4.0)
    shared = SharedDelay(longer=5.0, share=0.06, costs=0.3, shape=Shape(kind=ShapeKind.PERIODIC, period=50))
    findings = (Finding(what=shared, costs=0.3), Finding(what=faster))
    line = whole_text(two_nodes(verdict=Nobody(limit=1.8), findings=findings))
    assert "Rank 0 (n0) is 4.00 ms a step faster than all others, and waits for them." in line
    assert "All ranks are 5.00 ms slower together in 6 % of the steps, one in 50. This costs 0.3 ms a step." in line


def test_an_assurance_is_withdrawn_where_a_rank_costs_as_much():
    doubt = Doubt(rank=2, costs=3.0, steps=2, of_steps=80)
    text = "rank 2 (n1) costs 3.00 ms a step more, half of it in 2 of 80 steps: perhaps chance"
    unknown = CannotTell(because=Because.SOME_STEPS, doubt=doubt)
    assert f"Who is waited for is not known: {text}." in sentence(two_nodes(verdict=unknown), "2n2g")
    limited = sentence(two_nodes(verdict=Nobody(limit=1.8, doubt=doubt)), "2n2g")
    assert f"1.80 ms in every step would show. Yet {text}." in limited


def test_a_gain_has_no_cause_though_a_rank_is_late():
    shorter = two_nodes(
        terms=ALONE | {"compute": 20.0, "wait": 1.0}, verdict=LATE,
        contention=(Symptom(quantity=WAITS_FOR_A_CORE, unit="% of the time", value=21.4),),
    )  # fmt: skip
    text = sentence(shorter, "2n2g")
    assert "2n2g: 6.00 ms a step faster than 1n1g" in text and "the gain is smaller than this" in text
    assert ". Rank 3 (n1) computes" in text
    assert largest(shorter).figure == "nothing"


def test_within_the_scatter_the_straggler_is_named():
    loss = Mean(value=2.0, low=-36.0, high=40.0)
    straggler = Straggler(kind=PERSISTENT, ranks=(3,), share=1.0, arrival_skew=1.7, cause={"optimizer": 1.7}, costs=1.7)
    first, second, *_ = text_of(two_nodes(loss=loss, verdict=straggler)).paragraph
    assert first.endswith("which is within the scatter.")
    assert second.startswith("Rank 3 (n1) takes 1.70 ms longer for its previous optimizer step")


def test_of_a_loss_below_one_per_cent_nothing_is_worth_naming():
    ledger = two_nodes(verdict=Nobody(limit=1.0, seldom_limit=9.0))
    little = dataclasses.replace(ledger, loss=Mean(value=0.3, low=0.2, high=0.4))
    first, second, *_ = text_of(little).paragraph
    assert first.endswith(": less than 1 % of the step, nothing worth naming.")
    assert second.startswith("No straggler")


READING = InputReading(
    workers=1, late=48.0, late_share=0.96, work=190.0, reading=20.0, processor=150.0, busy=0.98, ready=0.1
)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"cause": InputCause.WORKERS, "enough": 8},
         "1 worker per rank is too few: 8 with cores of their own would keep up. To do: --option workers=8."),
        ({"cause": InputCause.STORAGE},
         "Storage is slow: 11 % of the 190 ms that a batch takes are for reading files."),
        ({"cause": InputCause.CORES}, "Too few cores for the rank and its 1 worker."),
        ({"cause": InputCause.BURSTS}, "Single batches come late, as where an epoch begins: 1 worker per rank"),
        ({"cause": InputCause.NO_WORKERS}, "The rank reads and decodes its batches itself. To do: --option "),
    ],
)  # fmt: skip
def test_why_data_is_late(changes: dict[str, Any], text: str) -> None:
    reading = dataclasses.replace(READING, **changes)
    late = two_nodes(findings=(Finding(what=reading, costs=reading.late),))
    assert "Input is late by 48.0 ms a step, in 96 % of the steps, with 1 worker per rank busy 98 % of" in whole_text(
        late
    )
    assert f". {text}" in sentence(late, "2n2g")
    of_straggler = two_nodes(verdict=LATE, evidence=(reading,))
    assert f" a step. {text}" in sentence(of_straggler, "2n2g")


def crowded(ms: float | None = 40.0, **changes: Any) -> Ledger:
    """Four ranks that share one core, with how long they wait for it."""
    run = make_run(nodes=2, ranks_per_node=2)
    runs = [*repeats(make_run(nodes=1, ranks_per_node=1), 2), *repeats(run, 2)]
    result = judged([make_trace(each, ranks=make_ranks(each, affinity=[0])) for each in runs])[1]
    lack = () if ms is None else (
        Finding(what=CoreLack(ms=ms, base_ms=1.5, oversubscribed=result.oversubscribed), costs=ms - 1.5),
    )  # fmt: skip
    return make_ledger(result, CROWD, ALONE, findings=lack, **changes)


def test_more_ranks_than_cores_are_first_where_more_is_lost_to_them():
    lack = (
        ". More ranks than cores: 2 ranks of 1 core on 1 core. Ranks wait 40.0 ms a step for a core (1.50 ms at "
        "1n1g). To do: start fewer ranks."
    )
    assert lack in sentence(crowded(), "2n2g")
    assert f"{lack} Rank 3 (n1) computes" in sentence(crowded(verdict=LATE), "2n2g")
    assert largest(crowded(verdict=LATE)).of == "of the loss is waiting for a core"
    first = text_of(crowded(ms=10.0, verdict=LATE)).paragraph[1]
    assert first.startswith("Rank 3 (n1) computes") and largest(crowded(ms=10.0, verdict=LATE)).figure == "86 %"
    perhaps = dataclasses.replace(LATE, paced=Paced.PERHAPS)
    assert largest(crowded(ms=10.0, verdict=perhaps)).figure == "≤ 86 %"


def test_that_ranks_share_cores_is_a_caution_where_what_it_costs_is_not_known():
    text = sentence(crowded(ms=None, verdict=LATE), "2n2g")
    assert "(12 %). Rank 3 " in text and text.endswith("a step. More ranks than cores: 2 ranks of 1 core on 1 core.")
    assert largest(crowded(ms=None)).figure == "oversubscribed"
    assert largest(crowded(ms=None, verdict=LATE)).of == "of the loss is the straggler"


def test_a_paragraph_has_at_most_five_texts_and_the_other_findings_follow_whole():
    behind = dataclasses.replace(finding_of(BEHIND), evidence=(QUEUED,))
    ledger = with_problem(two_nodes(verdict=LATE, evidence=(QUEUED,), findings=(behind,)))
    its = text_of(ledger)
    assert len(its.paragraph) == TEXTS
    assert its.paragraph[1].startswith("Rank 3") and its.paragraph[-1] == "The measurement has errors."
    (further,) = its.further
    assert further.startswith("Rank 0 (n0) waits 9.00 ms longer") and "It is ready to run but not running" in further
    assert "To do" not in further  # the same was said of the first


COMPUTES = CROWD | {"compute": 90.0}
CORES = Symptom(quantity=WAITS_FOR_A_CORE, unit="ms a step", value=54.0, usual=0.3, explains=62.0)


@pytest.mark.parametrize(
    ("split", "text"),
    [
        (ComputeSplit(contention=None, interference=None, unexplained=63.0),
         ". Compute is unexplained. To do: rankwise sweep --no-sync, to separate contention from interference."),
        (ComputeSplit(contention=None, interference=None, straggler=40.0, unexplained=23.0),
         ". Of compute 23.0 ms are unexplained. To do: "),
        (ComputeSplit(contention=None, interference=None, explanations=(CORES,), unexplained=1.0),
         ". Telemetry shows: a rank ready to run waits for a core 54 ms a step (0.3 at the base). This explains "
         "up to 62.0 ms of compute."),
        (ComputeSplit(contention=around(60.0), interference=around(3.0), unexplained=0.0),
         ". Compute, by no-sync runs: contention +60.0 ms (without reduction, too), interference +3.00 ms (by the "
         "reduction beside it), unexplained +0 ms."),
    ],
)  # fmt: skip
def test_compute_is_unexplained_only_where_nothing_is_known(split: ComputeSplit, text: str) -> None:
    ledger = two_nodes(terms=COMPUTES, findings=(Finding(what=split, costs=63.0 - split.straggler),))
    assert text in sentence(ledger, "2n2g")


def test_a_wait_for_cores_has_one_number() -> None:
    split = ComputeSplit(contention=None, interference=None, explanations=(CORES,), unexplained=1.0)
    lack = Finding(what=CoreLack(ms=54.0, base_ms=0.3), costs=53.7)
    text = whole_text(two_nodes(terms=COMPUTES, findings=(lack, Finding(what=split, costs=63.0))))
    assert text.count("54") == 1
    assert "Ranks wait 54.0 ms a step for a core" in text
    assert ". That explains up to 62.0 ms of compute." in text


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
        (Nobody(), "No straggler: no rank is late more than equal ranks would be."),
        (
            CannotTell(because=Because.CLOCK, bound=0.21),
            "Who is waited for is not known (clock): the clocks leave 0.21 ms open.",
        ),
        (CannotTell(because=Because.FEW_STEPS), "Who is waited for is not known (too few steps to exclude chance)."),
        (
            Straggler(
                kind=PERSISTENT, ranks=(2, 3), node="n1", arrival_skew=30.0, cause={"optimizer": 10.0, "data": 20.0},
                share=1,
            ),
            "Node n1 (ranks 2, 3) waits 20.0 ms longer for its data than the median rank in every step. It also "
            "takes 10.0 ms longer for its previous optimizer step.",
        ),
        (
            Straggler(kind=PERSISTENT, ranks=(1, 3), arrival_skew=3.0, share=0.8, costs=2.5),
            "Ranks 1, 3 come to the reduction 3.00 ms later than the median rank on average. They are late in 80 % of "
            "the steps. This costs 2.50 ms a step.",
        ),
        (
            Straggler(
                kind=PERSISTENT, ranks=(3,), arrival_skew=4.0, cause={"compute": 4.0}, share=0.9,
                shape=Shape(kind=ShapeKind.GROWING, per_100_steps=8.0),
            ),
            "than the median rank on average. It is late in 90 % of the steps, growing by 8.00 ms in 100 steps.",
        ),
        (
            Straggler(
                kind=PERSISTENT, ranks=(3,), arrival_skew=4.0, cause={"compute": 4.0}, share=0.9,
                meetings={"all-gather of layer 12": 3.0, "all-gather of layer 3": 0.9},
            ),
            "It is late in 90 % of the steps, by 3.00 ms before all-gather of layer 12.",
        ),
        (
            Straggler(
                kind=PERSISTENT, ranks=(3,), arrival_skew=4.0, cause={"release": 4.0}, share=0.5,
                shape=Shape(kind=ShapeKind.BEGINS, step=60),
            ),
            "Rank 3 (n1) leaves the previous reduction 4.00 ms later than the median rank. It is late in 50 % of the "
            "steps, from step 60 on.",
        ),
        (
            Straggler(
                kind=TRANSIENT, ranks=(1,), steps=(*range(21, 72, 10),), arrival_skew=30.0, cause={"data": 30.0},
                shape=Shape(kind=ShapeKind.PERIODIC, period=10),
            ),
            "Rank 1 (n0) waits 30.0 ms longer for its data than the median rank. It is late in steps 21, 31, 41, 51, "
            "61, … only, one in 10.",
        ),
        (
            Straggler(
                kind=TRANSIENT, ranks=(1,), steps=(10, 15), arrival_skew=20.0, cause={"optimizer": 20.0},
                meetings={"all-reduce": 7.5, "reduction of the gradients": 0.5},
            ),
            "than the median rank. It is late in steps 10, 15 only, before all-reduce.",
        ),
        (
            Straggler(kind=TRANSIENT, ranks=(1,), run_steps=((21,), (7, 9)), arrival_skew=3.0),
            "Rank 1 (n0) comes to the reduction 3.00 ms later than the median rank. It is late in 3 steps of 2 runs "
            "(run 1: 21).",
        ),
        (
            Straggler(kind=TRANSIENT, ranks=(1,), run_steps=((), (7, 9)), in_runs=1, of_runs=2, arrival_skew=3.0),
            "than the median rank. It is late in 2 steps of 1 of 2 runs (run 2: 7, 9).",
        ),
        (
            Straggler(
                kind=ROTATING, ranks=(0, 1, 2, 3), arrival_skew=30.0, cause={"compute": 30.0}, share=0.95, costs=28.0
            ),
            "Ranks 0 to 3 take turns. In 95 % of the steps one of them computes 30.0 ms longer than the median rank. "
            "This costs 28.0 ms a step.",
        ),
        (
            Straggler(
                kind=ROTATING, ranks=(0, 1, 2, 3), node="n0, n1", arrival_skew=3.0, cause={"data+compute": 3.0},
                share=0.95,
            ),
            "Nodes n0, n1 take turns. In 95 % of the steps one of them takes 3.00 ms longer for data and compute than",
        ),
    ],
)  # fmt: skip
def test_every_verdict_has_its_words(verdict, text):
    assert text in sentence(two_nodes(verdict=verdict), "2n2g")


@pytest.mark.parametrize("run_steps", [(), ((),), ((), ())])
def test_nobody_is_late_in_steps_that_are_not_named(run_steps: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match=r"ranks \(1,\) are late in some steps, and none is named"):
        Straggler(kind=TRANSIENT, ranks=(1,), run_steps=run_steps, arrival_skew=3.0)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [((0, 1, 2, 3), "0 to 3"), ((0, 1), "0, 1"), ((1, 4, 6, 8, 9, 12), "1, 4, 6, 8, 9, … (6)"), ((7,), "7")],
)
def test_ranks_in_few_words(ranks: Sequence[int], text: str):
    assert numbers(ranks) == text


def test_reasons_and_errors_in_words():
    merged = Merged(missing=(("reduced", 164, 160), ("batch_ready", 1, 160)), not_reduced=True)
    assert merged_text([merged, Merged(early_collectives=("a", "b"))]) == (
        "the end of the reduction was not recorded in any step; the end of data was not recorded in 1 of 160 (ranks × "
        "steps); gradients are not reduced; ranks meet before their gradients are complete: a, b"
    )
    assert problem_texts(StampErrors(total=160, disordered=2, gaps=3, early=1, early_ms=2.98)) == [
        "2 stamps of 160 (ranks × steps) are earlier than one that must precede them",
        "3 steps of 160 (ranks × steps) do not begin where the one before them ended",
        "in 1 of 160 (ranks × steps) the reduced gradients are there before the last rank has its own, by up to 2.980 "
        "ms more than the clocks' bounds: the stamps or the clocks are wrong",
    ]
    assert problem_texts(StampErrors(total=160)) == problem_texts(None) == []


def test_a_reason_that_point_and_baseline_share_is_given_once() -> None:
    point, baseline = (Merged(missing=(("reduced", ranks * 100, ranks * 100),)) for ranks in (2, 1))
    assert merged_text([point, baseline]) == "the end of the reduction was not recorded in any step"


def test_what_all_runs_repeat_follows_the_straggler():
    uneven = Finding(what=UnevenWork(correlation=0.94, stragglers=(3,)))
    text = whole_text(two_nodes(verdict=LATE, findings=(uneven,)))
    others = (
        "Among the others, the same ranks are late in the same steps of each run (correlation 0.94). Their work is "
    )
    assert f". {others}uneven, by batches, lengths or tokens: it is not their machines." in text
    assert text.index(others) > text.index("This costs 29.2 ms a step")
