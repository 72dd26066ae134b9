"""Ledgers by numbers, as the tests of their texts need them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from parse.graph.findings import (
    Bubble,
    ChainLink,
    SlowLink,
    StageImbalance,
    StageWork,
    UnevenExperts,
)
from parse.ledger.finding import ComputeSplit, Finding, Symptom
from parse.ledger.telemetry import QUANTITIES, ConditionChange
from parse.ledger.types import (
    Change,
    DimensionPart,
    DimensionTerms,
    Ledger,
    NoLoss,
    Place,
    RunLedger,
    StampErrors,
    Standalone,
    Term,
    WhatIf,
)
from parse.ledger.verdict import PERSISTENT, TRANSIENT, Because, CannotTell, Merged, Nobody, Straggler
from parse.report.summary import Summary
from parse.runs.result import Result
from parse.say.paragraph import text_of
from parse.stats import Mean
from tests.unit.traces import judged, make_run, make_trace, repeats

ALONE = {"data": 1.0, "compute": 27.0, "wait": 0.0, "communication": 0.2, "optimizer": 1.0}
CROWD = {"data": 1.0, "compute": 34.5, "wait": 22.5, "communication": 4.1, "optimizer": 1.0}
LATE = Straggler(
    kind=PERSISTENT, ranks=(3,), arrival_skew=30.1, cause={"compute": 30.0, "data": 0.1}, share=0.97, costs=29.2,
    bound=0.0042, chance=0.002,
)  # fmt: skip
UNSPLIT = ComputeSplit(contention=None, interference=None, unexplained=7.5)
STANDALONE = Standalone(gradient_bytes=102_228_128, standalone=55.0, exposed=41.0, run_id="c_r1")
NOBODY = Nobody(bound=0.0042)
SM_CLOCK = next(quantity for quantity in QUANTITIES if quantity.name == "SM clock")


def around(value: float, margin: float | None = 0.05) -> Mean:
    """A mean with an interval of so much to either side, or with none."""
    if margin is None:
        return Mean(value=value)
    return Mean(value=value, low=value - margin, high=value + margin, coverage=0.95)


SPLIT = ComputeSplit(contention=around(6.0), interference=around(0.2, 0.5), unexplained=1.3)


def finding_of(what: Any) -> Finding:
    """The finding of a record that has its costs."""
    return Finding(what=what, costs=what.costs)


def make_ledger(
    result: Result, terms: Mapping[str, float], baseline: Mapping[str, float] | None, margin: float | None = 0.05,
    **changes: Any,
) -> Ledger:  # fmt: skip
    """A ledger whose terms add up; ranks of a node are alike but for those of the verdict. That is a finding where it
    names somebody, with `evidence` and the speed `without` it, before those of `findings`; what costs most is first."""
    run = result.run
    assert run.ranks is not None and run.ranks_per_node is not None and run.nodes is not None
    step = sum(terms.values())
    loss = None if baseline is None else around(step - sum(baseline.values()), margin)
    made = []
    for name, value in terms.items():
        lost = None if baseline is None else around(value - baseline[name], margin)
        share = lost.value / loss.value if lost and loss and loss.resolved else None
        ideal = baseline[name] if baseline else None
        made.append(Term(name=name, mean=around(value), baseline=ideal, loss=lost, share=share))
    verdict = changes.get("verdict", NOBODY)
    last = [0.97 if rank in verdict.ranks else 0.01 for rank in range(run.ranks)]
    values = tuple(terms.values())
    ranks = tuple(Place(name=f"rank {rank}", ranks=(rank,), terms=values, last=last[rank]) for rank in range(run.ranks))
    on_node = [
        tuple(rank for rank in range(run.ranks) if rank // run.ranks_per_node == node) for node in range(run.nodes)
    ]
    nodes = tuple(
        Place(name=f"n{node}", ranks=its, terms=values, last=max(last[rank] for rank in its))
        for node, its in enumerate(on_node)
    )
    content: dict[str, Any] = {
        "result": result, "terms": tuple(made), "step": around(step), "median_step": step, "skew": 0.0004, "loss": loss,
        "no_loss": None if loss else NoLoss.IS_BASE, "merged": (), "verdict": verdict,
        "runs": tuple(
            RunLedger(run_id=each.requested.run_id, verdict=verdict, step=step, pauses=(), bound=0.0042)
            for each in result.runs
        ),
        "ranks": ranks, "nodes": nodes,
    }  # fmt: skip
    evidence, without, findings = (changes.pop(name, default) for name, default in
                                   (("evidence", ()), ("without", None), ("findings", ())))  # fmt: skip
    if verdict.ranks:
        findings = (Finding(what=verdict, costs=verdict.costs, evidence=evidence, without=without), *findings)
    ledger = Ledger(**(content | changes))
    return dataclasses.replace(ledger, findings=tuple(sorted(findings, key=lambda each: -ledger.lost_to(each))))


def symptoms_of(ledger: Ledger) -> list[Symptom]:
    """What telemetry shows of the straggler that costs most."""
    return [
        each
        for finding, _ in ledger.findings_of(Straggler)[:1]
        for each in finding.evidence
        if isinstance(each, Symptom)
    ]


def whole_text(ledger: Ledger) -> str:
    """All that is said of it: the paragraph, and the further findings."""
    its = text_of(ledger)
    return " ".join([*its.paragraph, *its.further, *its.lesser])


def results_of(*cases: tuple[int, int], **fields: Any) -> tuple[Result, ...]:
    """Of two runs each, by nodes and ranks of a node; their workload's name is a hostile one."""
    workload = "my|net.py:\x1b[31mNet"
    runs = [make_run(nodes=nodes, ranks_per_node=ranks, workload=workload, **fields) for nodes, ranks in cases]
    return judged([make_trace(repeat) for run in runs for repeat in repeats(run, 2)])


def with_problem(ledger: Ledger) -> Ledger:
    """The same, with an error in its first run."""
    return dataclasses.replace(
        ledger,
        runs=(
            dataclasses.replace(ledger.runs[0], problems=StampErrors(total=40, early=3, early_ms=1.5)),
            *ledger.runs[1:],
        ),
    )


def two_nodes(**changes: Any) -> Ledger:
    """Of two nodes with two ranks each: CROWD against ALONE."""
    terms = changes.pop("terms", CROWD)
    baseline = changes.pop("baseline", ALONE)
    return make_ledger(results_of((1, 1), (2, 2))[1], terms, baseline, **changes)


def weak() -> Summary:
    """A baseline and two points: a slow rank with all that a text can name, and a node of eight with an incident."""
    single, two, eight = results_of((1, 1), (2, 2), (2, 8))
    slow = make_ledger(
        two, CROWD, ALONE, verdict=LATE, median_step=55.0, skew=0.02,
        split=ComputeSplit(contention=around(1.2), interference=around(0.3, 0.5), unexplained=6.0),
        standalone=Standalone(gradient_bytes=102_228_128, standalone=18.1, exposed=4.1, run_id="2n2g_x_collectives_r1"),
        telemetry=(ConditionChange(quantity=SM_CLOCK, value=1755, usual=1980),), remarks=("a\tremark",),
    )  # fmt: skip
    slow = with_problem(slow)
    paused = dataclasses.replace(slow.runs[1], pauses=(350.0, 410.0))
    slow = dataclasses.replace(slow, runs=(slow.runs[0], paused))
    at_times = Straggler(
        kind=TRANSIENT, ranks=(9,), steps=(21, 31, 41, 51, 61, 71), arrival_skew=300.0,
        cause={"data": 299.0, "compute": 1.0}, share=0.06, costs=18.0, bound=0.21, chance=0.0,
    )  # fmt: skip
    hiccup = make_ledger(eight, CROWD | {"communication": 0.3}, ALONE, verdict=at_times)
    return Summary(results=(single, two, eight), ledgers=(make_ledger(single, ALONE, None), slow, hiccup))


def in_groups() -> Summary:
    """Two nodes of four ranks: two stages of two replicas of two ranks that share a layer, and all there is to find."""
    (point,) = results_of((2, 4))
    terms = {"data": 1.0, "compute": 30.0, "wait": 12.0, "communication": 4.0, "optimizer": 1.0}
    waits = {"tp": (5.0, 1.0), "pp": (6.0, 0.5), "dp": (1.0, 2.5)}
    stages = tuple(
        StageWork(stage=at, ranks=tuple(range(4 * at, 4 * at + 4)), work=work) for at, work in enumerate((25.0, 31.0))
    )
    chain = (
        ChainLink(ranks=(7,), dimension="tp", waits=8.0), ChainLink(ranks=(2, 3), dimension="pp", waits=7.5),
        ChainLink(ranks=(0, 1), dimension="dp", waits=4.0),
    )  # fmt: skip
    ledger = make_ledger(
        point, terms, None,
        verdict=Straggler(kind=PERSISTENT, ranks=(6,), arrival_skew=8.5, cause={"compute": 8.5}, share=0.99, costs=8.0,
                        bound=0.01, chance=0.001, chain=chain),
        dimensions=tuple(
            DimensionTerms(
                dimension=name, wait=around(wait), communication=around(communication),
                ranks=tuple(
                    DimensionPart(wait=wait + (rank - 3.5) / 10, communication=communication) for rank in range(8)
                ),
            )
            for name, (wait, communication) in waits.items()
        ),
        findings=(
            finding_of(StageImbalance(stages=stages, slowest=1, microbatches=4, mean=28.0, runs_at=0.903, costs=3.0)),
            Finding(what=Bubble(waits=6.0, of_schedule=4.5)),
            finding_of(UnevenExperts(ranks=(5,), work=18.0, mean=15.0, bytes=3e5, mean_bytes=2e5, costs=2.5)),
            finding_of(SlowLink(
                sender=3, receiver=7, dimension="pp", takes=5.0, usual=0.1, messages=8.0, further=0, costs=6.5
            )),
        ),
        what_ifs=(
            WhatIf(change=Change.STRAGGLER, speed=200.0, interval=None, gain=0.2),
            WhatIf(change=Change.COMMUNICATION, dimension="tp", speed=190.0, interval=None, gain=0.14),
            WhatIf(change=Change.BUBBLE, speed=180.0, interval=None, gain=0.08),
        ),
    )  # fmt: skip
    return Summary(results=(point,), ledgers=(ledger,))


def strong() -> Summary:
    """Strong scaling; a term in which three are one; clocks that cannot tell."""
    single, two = results_of((1, 1), (2, 1), scaling="strong", batch_size=8)
    together = {"data": 1.0, "compute+wait+communication": 16.0, "optimizer": 0.5}
    ideal = {"data": 0.5, "compute+wait+communication": 13.6, "optimizer": 0.5}
    unknown = CannotTell(because=Because.CLOCK, bound=0.21)
    merged = (Merged(early_collectives=("synchronised batch norm",)),)
    point = make_ledger(two, together, ideal, verdict=unknown, merged=merged, scale=0.5)
    return Summary(results=(single, two), ledgers=(make_ledger(single, ALONE, None), point))
