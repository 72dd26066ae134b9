"""What explains a loss in compute, and whether the baseline was disturbed, from ledgers and telemetry by numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from parse.ledger.explain import lost_terms
from parse.ledger.finding import ComputeSplit, CoreLack, Finding, Symptom
from parse.ledger.readings import PointEvidence, PointRuns
from parse.ledger.symptoms import HELD_BACK, LIMITS, WAITS_FOR_A_CORE, contention, core_lack, explained, stragglers_part
from parse.ledger.telemetry import QUANTITIES, ConditionChange, Conditions, HostMean
from parse.ledger.types import Ledger, StragglerAtBase
from parse.ledger.verdict import ROTATING
from parse.ledger.verdicts import PointVerdicts
from parse.logs.benchmarks import NO_BENCHMARKS
from parse.say.findings import words
from tests.unit.ledgers import CROWD, LATE, NOBODY, around, two_nodes, whole_text

BY_NAME = {quantity.name: quantity for quantity in QUANTITIES}
NO_EVIDENCE = PointEvidence(
    result=two_nodes().result, runs=PointRuns(), base=PointRuns(), verdicts=PointVerdicts(runs=(), verdict=NOBODY),
    collectives=(), benchmarks=NO_BENCHMARKS, other_networks=(),
)  # fmt: skip
NO_RUNS = ComputeSplit(contention=None, interference=None, unexplained=0.0)


def change(name: str, value: float, usual: float | None, *hosts: str) -> ConditionChange:
    return ConditionChange(quantity=BY_NAME[name], value=value, usual=usual, hosts=hosts)


def losing(compute: float, *changes: ConditionChange, split: ComputeSplit = NO_RUNS) -> Ledger:
    """Two nodes that compute 27 ms longer than the baseline's 27 ms, or so."""
    return two_nodes(terms=CROWD | {"compute": compute}, telemetry=changes, split=split)


def split_of(ledger: Ledger) -> ComputeSplit:
    split = explained(ledger)
    assert split is not None
    return split


@pytest.mark.parametrize(
    ("changes", "explains", "unexplained"),
    [
        ((), [], 27.0),
        ((change(WAITS_FOR_A_CORE, 20.0, 0.0),), [20.0], 7.0),
        ((change(WAITS_FOR_A_CORE, 20.0, 10.0),), [10.0], 17.0),  # less what it is at the base
        ((change(WAITS_FOR_A_CORE, 20.0, 0.0, "n1"),), [10.0], 17.0),  # on one of the two nodes
        ((change("SM clock", 1000, 2000),), [27.0], 0.0),  # of 54 ms, half at the usual clock
        ((change("SM clock", 2000, 1000),), [], 27.0),  # a higher clock explains nothing
        ((change("minor page faults of a rank", 194_000, 300),), [None], 27.0),
        ((change("GPUs throttled (heat) in", 40, None),), [None], 27.0),
        ((change("GPU power", 400, 300), change("dropped or faulty packets", 9, 0)), [], 27.0),
    ],
)
def test_what_telemetry_explains(
    changes: Sequence[ConditionChange], explains: Sequence[float | None], unexplained: float
) -> None:
    split = split_of(losing(54.0, *changes))
    assert [each.explains for each in split.explanations] == [
        each if each is None else pytest.approx(each) for each in explains
    ]
    assert split.unexplained == pytest.approx(unexplained)


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ((), "Compute is unexplained. To do: rankwise sweep --no-sync"),
        (
            (change(WAITS_FOR_A_CORE, 20.0, 0.0),),
            "Telemetry shows: a rank ready to run waits for a core 20 ms a step (0 at the base). This explains up "
            "to 20.0 ms of compute; 7.00 ms are unexplained.",
        ),
        ((change(WAITS_FOR_A_CORE, 40.0, 0.0),), "This explains up to 27.0 ms of compute."),
        (
            (change("minor page faults of a rank", 194_000, 300),),
            " faults of a rank 194000 a step (300 at the base).",
        ),
    ],
)
def test_unexplained_stands_only_where_nothing_is_known(changes: Sequence[ConditionChange], note: str) -> None:
    ledger = losing(54.0, *changes)
    (finding,) = lost_terms(dataclasses.replace(ledger, split=split_of(ledger)), NO_EVIDENCE)
    line = ". ".join(words(finding, ledger).sentences) + "."
    assert note in line
    assert ("unexplained" in line) == ("unexplained" in note)


def test_the_straggler_s_part_is_what_it_exceeds_the_median_rank_by() -> None:
    ledger = two_nodes(verdict=LATE, split=NO_RUNS)
    slow = [27.0, 27.0, 27.0, 57.0]
    ranks = [
        dataclasses.replace(place, terms=(1.0, ms, 0.0, 4.1, 1.0)) for place, ms in zip(ledger.ranks, slow, strict=True)
    ]
    ledger = dataclasses.replace(ledger, ranks=tuple(ranks))
    names = [term.name for term in ledger.terms]
    assert stragglers_part(LATE, names, ledger.ranks) == pytest.approx(7.5)
    assert split_of(ledger).unexplained == 0.0
    at_base = dataclasses.replace(ledger, straggler_at_base=StragglerAtBase(costs=30.0, compute=7.0))
    assert (split_of(at_base).straggler, split_of(at_base).unexplained) == pytest.approx((0.5, 7.0))
    assert stragglers_part(dataclasses.replace(LATE, kind=ROTATING), names, ledger.ranks) == 0.0


def test_no_sync_runs_explain_all_by_themselves() -> None:
    split = ComputeSplit(contention=around(20.0), interference=around(7.0), unexplained=0.0)
    assert split_of(losing(54.0, change(WAITS_FOR_A_CORE, 20.0, 0.0), split=split)) == split
    assert explained(two_nodes()) is None


@pytest.mark.parametrize(
    ("means", "shown"),
    [
        (
            {WAITS_FOR_A_CORE: [20.0, 0.0, 4.0]},
            [Symptom(quantity=WAITS_FOR_A_CORE, unit="% of the time", value=8.0)],
        ),
        ({WAITS_FOR_A_CORE: [4.9]}, []),
        ({"minor page faults of a rank": [194_000.0], "GPU power": [700.0]}, []),
        ({"swapped out": [3.0]}, [Symptom(quantity="swapped out", unit="MB a second", value=3.0)]),
        ({}, []),
    ],
)  # fmt: skip
def test_a_baseline_that_was_disturbed(means: dict[str, list[float]], shown: list[Symptom]) -> None:
    count = max(map(len, means.values()), default=1)
    runs = [
        Conditions(figures={name: {"n0": HostMean(values[run], 0.0)} for name, values in means.items()}, step_ms=100.0)
        for run in range(count)
    ]
    assert list(contention(runs)) == shown


@pytest.mark.parametrize(
    ("point", "base", "shown"),
    [
        ([64.0, 68.0], [1.0], CoreLack(ms=66.0, base_ms=1.0)),
        ([66.0], [], CoreLack(ms=66.0, base_ms=None)),
        ([66.0], [60.0], None),  # the base lacks cores as much
        ([15.0], [0.0], None),
        ([], [0.0], None),
    ],
)
def test_ranks_that_lack_cores(point: list[float], base: list[float], shown: CoreLack | None) -> None:
    sides = (
        [Conditions(figures={WAITS_FOR_A_CORE: {"n0": HostMean(value, 0.0)}}, step_ms=step_ms) for value in values]
        for values, step_ms in ((point, 100.0), (base, 100.0))
    )
    assert core_lack(two_nodes().result, *sides) == shown


@pytest.mark.parametrize(("held", "shown"), [(40.0, 40.0), (30.0, None), (0.0, None)])
def test_ranks_that_a_quota_holds_back_lack_no_cores(held: float, shown: float | None) -> None:
    """Half of what they wait more than the base at least."""
    point = {WAITS_FOR_A_CORE: {"n0": HostMean(66.0, 0.0)}, HELD_BACK: {"n0": HostMean(held, 0.0)}}
    base = {WAITS_FOR_A_CORE: {"n0": HostMean(1.0, 0.0)}, HELD_BACK: {"n0": HostMean(0.0, 0.0)}}
    sides = ([Conditions(figures=figures, step_ms=100.0)] for figures in (point, base))
    wait = core_lack(two_nodes().result, *sides)
    assert wait is not None
    assert wait == CoreLack(ms=66.0, base_ms=1.0, quota_ms=shown)
    text = whole_text(two_nodes(findings=(Finding(what=wait, costs=65.0),)))
    assert ("CPU quotas hold them back" in text) is (shown is not None)
    assert ("too few cores" in text) is (shown is None)


def test_every_limit_is_of_a_quantity_that_is_read() -> None:
    assert {*LIMITS} <= {*BY_NAME}
