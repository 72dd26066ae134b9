"""Sentences on ranks in groups: with whom a straggler is compared, who waits for it, what else is found."""

from __future__ import annotations

import dataclasses

import pytest

from parse.graph.findings import Bubble, ChainLink, SlowLink, StageImbalance, StageWork, UnevenExperts
from parse.ledger.finding import Finding
from parse.ledger.types import Ledger
from parse.ledger.verdict import ROTATING, Verdict
from parse.say.paragraph import text_of
from tests.unit.ledgers import LATE, finding_of, in_groups, two_nodes, whole_text


def grouped(*findings: Finding) -> Ledger:
    """Ranks in groups with these findings; without any with all that there is to find."""
    (ledger,) = in_groups().ledgers
    first = findings[0].what if findings else None
    ledger = dataclasses.replace(ledger, verdict=first) if isinstance(first, Verdict) else ledger
    return dataclasses.replace(ledger, findings=findings) if findings else ledger


def test_a_straggler_is_compared_with_its_peers():
    verdict = grouped().verdict
    assert "Rank 6 (n1) computes 8.50 ms longer than its peers in 99 % of the steps" in whole_text(grouped())
    two = dataclasses.replace(verdict, ranks=(5, 6))
    assert "Ranks 5, 6 compute 8.50 ms longer than their peers" in whole_text(grouped(finding_of(two)))
    turns = dataclasses.replace(verdict, kind=ROTATING, ranks=(5, 6))
    assert "one of them computes 8.50 ms longer than its peers" in whole_text(grouped(finding_of(turns)))
    single = dataclasses.replace(verdict, peers=1)
    assert "Rank 6 (n1) computes 8.50 ms longer than its peer in 99 %" in whole_text(grouped(finding_of(single)))
    assert "longer than the median rank" in whole_text(two_nodes(verdict=LATE))


def test_who_waits_for_it_and_for_whom_these_make_wait():
    chain = "Rank 7 waits 8.00 ms for it in tp. Ranks 2, 3 wait 7.50 ms each for that one in pp. Ranks 0, 1 wait "
    assert f"{chain}4.00 ms each for these in dp." in whole_text(grouped())
    verdict = dataclasses.replace(
        grouped().verdict, ranks=(5, 6), chain=(ChainLink(ranks=(0,), dimension="", waits=2.0),)
    )
    assert "Rank 0 waits 2.00 ms for them." in whole_text(grouped(finding_of(verdict)))
    further = dataclasses.replace(grouped().verdict, ranks=(2,), chain=verdict.chain)
    both = whole_text(grouped(finding_of(verdict), finding_of(further)))
    assert both.index("Rank 0 waits 2.00 ms for it.") > both.index("Rank 2 (n0) computes")


STAGES = StageImbalance(
    stages=tuple(StageWork(stage=at, ranks=(at,), work=work) for at, work in enumerate((20.0, 28.0, 20.0))), slowest=1,
    microbatches=0, mean=68 / 3, runs_at=0.8095, costs=2.0,
)  # fmt: skip


def of_layers(layers: int) -> StageImbalance:
    return dataclasses.replace(
        STAGES, stages=tuple(dataclasses.replace(stage, layers=layers) for stage in STAGES.stages)
    )


LINK = SlowLink(sender=0, receiver=4, dimension="", takes=5.0, usual=0.1, messages=1.0, further=0, costs=4.0)
UNEVEN = (
    "Pipeline stage 1 (of 0 to 2; rank 1) takes 28.0 ms a step, the mean stage 22.7 ms. The pipeline runs at 81 %: "
    "uneven stages cost 2.00 ms a step."
)


@pytest.mark.parametrize(
    ("finding", "texts"),
    [
        (finding_of(STAGES), [UNEVEN, "To do: move a layer to another stage."]),
        (finding_of(of_layers(4)), [UNEVEN, "To do: move a layer to another stage."]),
        (
            finding_of(of_layers(3)),
            [UNEVEN, "To do: cut the work of stage 1 inside a layer: moving one of its 3 layers gains "
             "nothing."],
        ),
        (
            finding_of(of_layers(1)),
            [UNEVEN, "To do: cut the work of stage 1 inside a layer: moving its only layer gains nothing."],
        ),
        (
            finding_of(dataclasses.replace(STAGES, microbatches=4)),
            ["Pipeline stage 1 (of 0 to 2; rank 1) takes 7.00 ms a micro-batch, the mean stage 5.67 ms. The pipeline "
             "runs at 81 %: uneven stages cost 2.00 ms a step.",
             "To do: move a layer to another stage."],
        ),
        (
            Finding(what=Bubble(waits=6.0, of_schedule=0.0)),
            ["Ranks wait 6.00 ms a step for messages of the pipeline."],
        ),
        (
            Finding(what=Bubble(waits=6.0, of_schedule=4.5)),
            ["Ranks wait 6.00 ms a step for messages of the pipeline. 4.50 ms of that come from the schedule, even "
             "with equal stages.", "To do: more micro-batches, or a schedule that interleaves."],
        ),
        (
            finding_of(UnevenExperts(ranks=(1, 5), work=12.0, mean=8.0, bytes=0, mean_bytes=0, costs=2.0)),
            ["The experts of ranks 1, 5 take 12.0 ms a step behind all-to-alls (mean 8.00 ms). Uneven experts cost "
             "2.00 ms a step."],
        ),
        (
            finding_of(UnevenExperts(ranks=(1,), work=12.0, mean=8.0, bytes=3e6, mean_bytes=2e6, costs=2.0)),
            ["The experts of rank 1 get 1.50 × the mean tokens (3.00 MB an all-to-all, mean 2.00 MB). "
             "They take 12.0 ms a step behind all-to-alls (mean 8.00 ms). Uneven experts cost 2.00 ms a step.",
             "To do: balance the tokens of experts, by an auxiliary loss or a capacity."],
        ),
        (
            finding_of(LINK),
            ["Messages from rank 0 (n0) to rank 4 (n1) take 5.00 ms each, others 0.1 ms. 1 message a "
             "step cost 4.00 ms."],
        ),
        (
            finding_of(dataclasses.replace(LINK, further=1)),
            ["Messages from rank 0 (n0) to rank 4 (n1) take 5.00 ms each, others 0.1 ms. With 1 further "
             "slow link they cost 4.00 ms a step."],
        ),
    ],
)  # fmt: skip
def test_what_is_found_beside_who_is_late(finding, texts):
    assert text_of(grouped(finding)).paragraph[1:] == texts


def test_what_costs_most_is_first_and_the_bubble_last():
    texts = whole_text(grouped())
    places = [
        texts.index(each) for each in ("Messages from rank 3", "Pipeline stage 1", "The experts", "Ranks wait 6.00 ms")
    ]
    assert places == sorted(places)
