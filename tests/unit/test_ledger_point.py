"""parse.ledger.point: a point's terms against its baseline's, with intervals, and what explains them."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc.model.options import INPUT_FIGURES
from hpc.model.spec import RunSpec
from hpc.model.timestamps import BATCH_READY, BEGIN
from hpc.model.trace import Trace
from parse.ledger.input import InputCause
from parse.ledger.point import ledgers
from parse.ledger.types import Change, Ledger, NoLoss, Repeats, StragglerAtBase
from parse.ledger.verdict import NONE, PERSISTENT, TRANSIENT, Merged  # fmt: skip
from parse.ledger.what_if import what_ifs
from parse.runs.load import load
from parse.runs.result import results
from parse.say.paragraph import sentence
from tests.unit.ledger_traces import on, run_of, trace_of
from tests.unit.simulated import MS
from tests.unit.traces import put, put_plan

NOISE = 0.05
Made = Callable[[RunSpec, int], Trace]
SINGLE = run_of(nodes=1, ranks_per_node=1)
PAIR = run_of(nodes=1)
ALL_RANKS = (0, 1, 2, 3)


def make(**how: Any) -> Made:
    return lambda run, repeat: trace_of(run, **({"noise": NOISE, "seed": repeat} | how))


def repeated(run: RunSpec, count: int, made: Made) -> list[Trace]:
    return [made(dataclasses.replace(run, repeat=repeat), repeat) for repeat in range(1, count + 1)]


def by_case(folder: Path, traces: Iterable[Trace]) -> dict[str, Ledger]:
    """The ledgers of these traces by case; runs that are no training explain others."""
    for trace in traces:
        put(folder, trace)
    read = results(load([folder]))
    points, diagnostics = (
        [each for each in read if bool(each.run.diagnostic) == is_diagnostic] for is_diagnostic in (False, True)
    )
    return {ledger.result.requested.case: ledger for ledger in ledgers(points, diagnostics)}


def losses(ledger: Ledger) -> dict[str, float]:
    return {term.name: term.loss.value for term in ledger.terms if term.loss}


def test_the_loss_is_what_the_baseline_does_not_take(tmp_path: Path) -> None:
    baseline = repeated(SINGLE, 3, make(communication=0.5))
    two = repeated(run_of(), 3, make(communication=2.5, forward=on(1, ms=4.0)))
    of_cases = by_case(tmp_path, [*baseline, *two])
    ledger = of_cases["2n2g"]
    expected = {"data": 0.0, "compute": 1.0, "wait": 3.0, "communication": 2.0, "optimizer": 0.0}
    assert losses(ledger) == pytest.approx(expected, abs=0.15)
    assert ledger.loss is not None and ledger.loss.resolved
    assert sum(losses(ledger).values()) == pytest.approx(ledger.loss.value)
    assert sum(term.mean.value for term in ledger.terms) == pytest.approx(ledger.step.value)
    assert sum(term.share or 0.0 for term in ledger.terms) == pytest.approx(1.0)
    assert next(term.share for term in ledger.terms if term.name == "wait") == pytest.approx(0.5, abs=0.03)
    assert (of_cases["1n1g"].no_loss, of_cases["1n1g"].loss) == (NoLoss.IS_BASE, None)
    assert (ledger.verdict.kind, ledger.verdict.ranks) == (PERSISTENT, (1,))
    assert ledger.verdict.cause["compute"] == pytest.approx(4.0, abs=0.2)


def test_a_plan_that_names_the_same_run_otherwise_takes_nothing_from_its_ledger(tmp_path: Path) -> None:
    traces = [*repeated(SINGLE, 2, make()), *repeated(run_of(), 2, make(forward=on(1, ms=4.0)))]
    bare, planned = tmp_path / "bare", tmp_path / "planned"
    bare.mkdir()
    planned.mkdir()
    expected = by_case(bare, traces)["2n2g"]
    path = put_plan(planned, [trace.run for trace in traces])
    plan = json.loads(path.read_text())
    for run in plan["runs"]:
        run["run_id"] = f"of_before_{run['run_id']}"
    path.write_text(json.dumps(plan))
    ledger = by_case(planned, traces)["2n2g"]
    assert ledger.speed_with_pauses == expected.speed_with_pauses
    assert [each.speed for each in what_ifs(ledger)] == [each.speed for each in what_ifs(expected)]


def test_a_loss_within_its_interval_has_no_shares(tmp_path: Path) -> None:
    def drifting(run: RunSpec, repeat: int) -> Trace:
        return trace_of(run, noise=NOISE, seed=repeat, forward=on(*range(run.ranks), ms=repeat % 3))

    ledger = by_case(tmp_path, [*repeated(SINGLE, 3, drifting), *repeated(run_of(), 3, drifting)])["2n2g"]
    assert ledger.loss is not None and not ledger.loss.resolved
    assert all(term.share is None for term in ledger.terms)


def test_strong_scaling_divides_the_baseline_by_the_devices(tmp_path: Path) -> None:
    strong = {"scaling": "strong", "batch_size": 16}
    baseline = repeated(dataclasses.replace(SINGLE, **strong), 2, make(forward=on(0, ms=27.0), communication=0.0))
    ledger = by_case(tmp_path, [*baseline, *repeated(run_of(**strong), 2, make())])["2n2g"]
    assert {term.name: term.baseline for term in ledger.terms} == pytest.approx(
        {"data": 0.25, "compute": 9.0, "wait": 0.0, "communication": 0.0, "optimizer": 0.25}, abs=0.1
    )
    assert losses(ledger)["data"] == pytest.approx(0.75, abs=0.1)


def test_ranks_that_share_a_batch_have_their_share_of_the_baseline(tmp_path: Path) -> None:
    """Two stages of a pipeline that read one batch: each device has half of the work of the base's."""
    baseline = repeated(SINGLE, 2, make(forward=on(0, ms=27.0), communication=0.0))
    paired = repeated(PAIR, 2, make())
    own_folder, shared_folder = tmp_path / "own", tmp_path / "shared"
    own_folder.mkdir()
    shared_folder.mkdir()
    apart = by_case(own_folder, [*baseline, *paired])["1n2g"]
    for trace in paired:
        trace.samples[1] = 0
    shared = by_case(shared_folder, [*baseline, *paired])["1n2g"]
    assert (apart.scale, shared.scale) == (1.0, 0.5)
    assert [term.baseline for term in shared.terms] == pytest.approx([(term.baseline or 0) / 2 for term in apart.terms])


def test_a_base_of_several_ranks_has_wait_and_communication_of_its_own(tmp_path: Path) -> None:
    late = on(1, ms=4.0)
    base = repeated(PAIR, 3, make(communication=1.0, forward=late))
    of_cases = by_case(tmp_path, [*base, *repeated(run_of(), 3, make(communication=2.5, forward=late))])
    ledger = of_cases["2n2g"]
    expected = {"data": 0.0, "compute": -1.0, "wait": 1.0, "communication": 1.5, "optimizer": 0.0}
    assert losses(ledger) == pytest.approx(expected, abs=0.15)
    assert ledger.loss is not None and sum(losses(ledger).values()) == pytest.approx(ledger.loss.value)
    assert ledger.straggler_at_base.costs == pytest.approx(4.0, abs=0.3)
    assert ledger.straggler_at_base.compute == pytest.approx(2.0, abs=0.1)  # 4 ms of one of two
    text = sentence(ledger, "2n2g")
    assert re.search(r" ms a step slower than 1n2g \([\d.]+ instead of [\d.]+ ms; runs: [\d.]+ to [\d.]+\)\. ", text)
    assert "Cause: " not in text  # both have the straggler: what is lost is communication
    together = ledger.straggler_at_base.together
    assert together is not None and together.loss is not None and together.name == "compute+wait"
    assert together.loss.value == pytest.approx(losses(ledger)["compute"] + losses(ledger)["wait"])
    assert [term.name for term in ledger.causes] == ["data", "communication", "optimizer", "compute+wait"]
    assert re.search(r"\)\. Communication \+1\.\d\d ms( \(\d\d %\))?\. ", text)  # no 66 % of wait beside it
    assert re.search(r"This costs \d\.\d\d ms a step \(a straggler of 1n2g costs \d\.\d\d ms\)\.", text)
    assert (of_cases["1n2g"].no_loss, of_cases["1n2g"].loss) == (NoLoss.IS_BASE, None)


def test_a_straggler_that_the_base_has_not_is_the_cause(tmp_path: Path) -> None:
    base = repeated(PAIR, 3, make())
    ledger = by_case(tmp_path, [*base, *repeated(run_of(), 3, make(forward=on(1, ms=4.0)))])["2n2g"]
    assert ledger.straggler_at_base == StragglerAtBase()
    assert "Rank 1 " in sentence(ledger, "2n2g")


def strongly(devices: int, compute_ms: float, repeats_: int = 2) -> list[Trace]:
    """Runs on so many devices of one node, all with the same global batch."""
    ms = compute_ms - 9.0  # what PHASES has of compute
    run = run_of(nodes=1, ranks_per_node=devices, scaling="strong", batch_size=16)
    return repeated(run, repeats_, make(noise=0.2, backward=on(*range(devices), ms=ms)))


def test_strong_scaling_names_the_compute_that_does_not_shrink(tmp_path: Path) -> None:
    traces = [trace for n in (1, 2, 4) for trace in strongly(n, 13 + 47 / n)]
    ledger = by_case(tmp_path, traces)["1n4g"]
    known = ledger.split.fixed
    assert known is not None and known.devices == (1, 2, 4) and known.fixed.resolved
    assert known.fixed.value == pytest.approx(13, abs=0.2) and known.shared == pytest.approx(47, abs=0.5)
    assert known.of_loss == pytest.approx(0.75 * known.fixed.value)
    assert ledger.split is not None and ledger.split.unexplained < 0.5
    text = sentence(ledger, "1n4g")
    assert ") of compute do not shrink with the devices: 9.7" in text
    assert " of the loss. On 1, 2, 4 devices it is 1" in text and "unexplained" not in text


@pytest.mark.parametrize("seeds", [(1, 2), (3, 4), (5, 6)])
def test_compute_that_does_not_shrink_at_all_is_fixed(seeds: tuple[int, int], tmp_path: Path) -> None:
    traces = [
        trace_of(trace.run, noise=0.2, seed=seeds[at] + n, backward=on(*range(n), ms=31))
        for n in (1, 2, 4)
        for at, trace in enumerate(strongly(n, 40))
    ]
    known = by_case(tmp_path, traces)["1n4g"].split.fixed
    assert known is not None and known.fixed.value == pytest.approx(40, abs=0.5) and 0 <= known.shared < 0.5


@pytest.mark.parametrize(
    "compute_ms",
    [
        pytest.param({1: 60.0, 2: 36.5}, id="two sizes"),
        pytest.param({1: 60.0, 2: 30.0, 4: 15.0}, id="all of it shrinks"),
        pytest.param({1: 60.0, 2: 30.0, 4: 28.0}, id="the line does not hold"),
        pytest.param({1: 20.0, 2: 30.0, 4: 35.0}, id="it grows"),
    ],
)
def test_no_fixed_compute_where_the_sizes_do_not_show_it(tmp_path: Path, compute_ms: dict[int, float]) -> None:
    traces = [trace for n, ms in compute_ms.items() for trace in strongly(n, ms)]
    ledger = by_case(tmp_path, traces)[f"1n{max(compute_ms)}g"]
    assert (ledger.split is None or ledger.split.fixed is None) and "do not shrink" not in sentence(ledger, "point")


def test_under_weak_scaling_compute_has_no_fixed_part(tmp_path: Path) -> None:
    traces = [
        trace
        for n in (1, 2, 4)
        for trace in repeated(run_of(nodes=1, ranks_per_node=n), 2, make(noise=0.2, backward=on(*range(n), ms=47 / n)))
    ]
    assert all((ledger.split is None or ledger.split.fixed is None) for ledger in by_case(tmp_path, traces).values())


def test_strong_scaling_takes_the_base_s_share_of_the_devices(tmp_path: Path) -> None:
    strong = {"scaling": "strong", "batch_size": 16}
    base = dataclasses.replace(PAIR, **strong)
    traces = [
        *repeated(base, 3, make(communication=3.0, forward=on(1, ms=4.0))),
        *repeated(run_of(**strong), 3, make()),
    ]
    ledger = by_case(tmp_path, traces)["2n2g"]
    expected = {"data": 0.5, "compute": 5.5, "wait": 1.0, "communication": 1.5, "optimizer": 0.5}
    assert {term.name: term.baseline for term in ledger.terms} == pytest.approx(expected, abs=0.1)
    assert ledger.straggler_at_base.costs == pytest.approx(2.0, abs=0.2)
    assert " slower than ideal strong scaling of 1n2g on twice the devices (" in sentence(ledger, "2n2g")


def test_a_base_without_a_trace_is_named(tmp_path: Path) -> None:
    of_cases = by_case(tmp_path, [*repeated(PAIR, 2, make()), *repeated(run_of(), 2, make())])
    ledger = dataclasses.replace(of_cases["2n2g"], loss=None, no_loss=NoLoss.BASE_NOT_OK)
    assert "No loss is given: no run of its base, 1n2g, ended ok with a trace." in sentence(ledger, "2n2g")


@settings(max_examples=15)
@given(
    base_nodes=st.sampled_from([1, 2]), scaling=st.sampled_from(["weak", "strong"]), seed=st.integers(0, 99),
    late_ms=st.lists(st.floats(0.0, 8.0), min_size=4, max_size=4), communication=st.floats(0.1, 6.0),
    data_ms=st.floats(0.0, 5.0),
)  # fmt: skip
def test_the_terms_of_any_loss_add_up_whatever_the_base(
    base_nodes: int, scaling: str, seed: int, late_ms: list[float], communication: float, data_ms: float
) -> None:
    of_sweep = {"scaling": scaling, "batch_size": 24}
    base_run, run = run_of(nodes=base_nodes, **of_sweep), run_of(nodes=3, **of_sweep)
    late = {"forward": lambda rank, step: late_ms[rank % 4], "data": on(0, ms=data_ms, every=3)}
    with TemporaryDirectory() as folder:
        traces = [
            *repeated(base_run, 2, make(communication=communication, seed=seed, **late)),
            *repeated(run, 2, make(seed=seed + 1, **late)),
        ]
        of_cases = by_case(Path(folder), traces)
    base, ledger = of_cases[base_run.case], of_cases[run.case]
    scale = base_run.devices / run.devices if scaling == "strong" else 1.0
    assert ledger.loss is not None
    assert [term.baseline for term in ledger.terms] == pytest.approx([scale * term.mean.value for term in base.terms])
    assert sum(losses(ledger).values()) == pytest.approx(ledger.loss.value)
    assert ledger.loss.value == pytest.approx(ledger.step.value - scale * base.step.value)
    for term in ledger.terms:
        assert term.loss is not None and term.baseline is not None
        assert term.loss.value == pytest.approx(term.mean.value - term.baseline)


def test_without_a_baseline_there_is_no_loss(tmp_path: Path) -> None:
    ledger = by_case(tmp_path, repeated(run_of(), 2, make()))["2n2g"]
    assert (ledger.loss, ledger.no_loss, ledger.split) == (None, NoLoss.NO_BASE, None)
    assert all(term.loss is None and term.baseline is None for term in ledger.terms)


def test_one_run_has_the_interval_of_its_pieces(tmp_path: Path) -> None:
    ledger = by_case(tmp_path, [*repeated(SINGLE, 1, make()), *repeated(run_of(), 1, make())])["2n2g"]
    assert ledger.step.low is not None and ledger.step.low < ledger.step.value
    assert ledger.loss is not None and ledger.loss.low is not None


def test_runs_without_reduction_tell_contention_from_interference(tmp_path: Path) -> None:
    no_sync = repeated(run_of(reduction="off"), 3, make(backward=on(*ALL_RANKS, ms=1.0)))
    traces = [*repeated(SINGLE, 3, make()), *repeated(run_of(), 3, make(backward=on(*ALL_RANKS, ms=3.0)))]
    without_others = by_case(tmp_path, traces)["2n2g"]
    assert without_others.split is not None
    assert (without_others.split.contention, without_others.split.interference) == (None, None)
    assert without_others.split.unexplained == pytest.approx(losses(without_others)["compute"])
    of_cases = by_case(tmp_path, no_sync)
    assert set(of_cases) == {"1n1g", "2n2g"}
    split = of_cases["2n2g"].split
    assert split is not None and split.contention is not None and split.interference is not None
    assert split.contention.value == pytest.approx(1.0, abs=0.15)
    assert split.interference.value == pytest.approx(2.0, abs=0.15)
    assert split.unexplained == 0.0
    assert split.contention.value + split.interference.value == pytest.approx(losses(of_cases["2n2g"])["compute"])


def test_interference_of_a_base_of_several_ranks_is_none_of_the_loss(tmp_path: Path) -> None:
    def all_ranks(ms: float) -> Made:
        return make(backward=on(*ALL_RANKS, ms=ms))

    traces = [*repeated(PAIR, 3, all_ranks(0.5)), *repeated(run_of(), 3, all_ranks(3.0))]
    no_sync = repeated(run_of(reduction="off"), 3, all_ranks(1.0))
    half = by_case(tmp_path, [*traces, *no_sync])["2n2g"].split
    assert half is not None and (half.contention, half.interference) == (None, None)  # the base's is not known
    ledger = by_case(tmp_path, repeated(dataclasses.replace(PAIR, reduction="off"), 3, all_ranks(0.2)))["2n2g"]
    split = ledger.split
    assert split is not None and split.contention is not None and split.interference is not None
    assert split.contention.value == pytest.approx(0.8, abs=0.1)
    assert split.interference.value == pytest.approx(1.7, abs=0.1)
    assert split.contention.value + split.interference.value == pytest.approx(losses(ledger)["compute"])
    assert split.interference.high is not None and split.interference.high > split.interference.value


def test_point_and_baseline_have_the_same_terms(tmp_path: Path) -> None:
    early = repeated(run_of(), 2, make(backend={"meets_before_gradients": ["synchronised batch norm"]}))
    ledger = by_case(tmp_path, [*repeated(SINGLE, 2, make()), *early])["2n2g"]
    assert [term.name for term in ledger.terms] == ["data", "compute+wait+communication", "optimizer"]
    assert ledger.merged == (Merged(early_collectives=("synchronised batch norm",)),)
    assert ledger.terms[1].baseline == pytest.approx(11.0, abs=0.1)


def test_places_are_ranks_and_nodes(tmp_path: Path) -> None:
    ledger = by_case(tmp_path, repeated(run_of(), 2, make(data=on(2, 3, ms=6.0))))["2n2g"]
    assert [place.name for place in ledger.ranks] == ["rank 0 (n0)", "rank 1 (n0)", "rank 2 (n1)", "rank 3 (n1)"]
    assert [place.name for place in ledger.nodes] == ["n0", "n1"]
    assert ledger.nodes[1].terms[0] == pytest.approx(7.0, abs=0.1)
    assert ledger.nodes[0].terms[2] == pytest.approx(6.0, abs=0.2)
    assert ledger.nodes[1].last == pytest.approx(1.0)
    assert ledger.ranks[0].last == 0.0
    assert ledger.verdict.node == "n1"


@pytest.mark.parametrize(
    ("delays", "named", "of_runs"),
    [
        # (rank, ms) of each run
        (((1, 6.0), (2, 6.0), (3, 6.0)), [((1,), 1), ((2,), 1), ((3,), 1)], [(1,), (2,), (3,)]),
        (((3, 6.0), (3, 6.0), (3, 0.0)), [((3,), 2)], [(3,), (3,), ()]),
    ],
)
def test_each_is_named_with_the_number_of_its_runs(
    tmp_path: Path, delays: Any, named: list[Any], of_runs: list[Any]
) -> None:
    def delayed(run: RunSpec, repeat: int) -> Trace:
        rank, ms = delays[repeat - 1]
        return trace_of(run, noise=NOISE, seed=repeat, data=on(rank, ms=ms))

    ledger = by_case(tmp_path, repeated(run_of(), 3, delayed))["2n2g"]
    assert sorted((each.ranks, each.in_runs) for each in ledger.stragglers) == named
    assert ledger.verdict.costs == pytest.approx(6.0 * named[0][1] / 3, abs=0.3)
    without = ledger.findings[0].without
    assert without is not None
    shorter = ledger.step.value - ledger.verdict.costs
    assert without.speed == pytest.approx(without.recorded * ledger.step.value / shorter)
    assert [run.verdict.ranks for run in ledger.runs] == of_runs
    assert all((run.verdict.kind == NONE) == (run.verdict.ranks == ()) for run in ledger.runs)


def test_what_one_of_two_runs_shows_is_named_with_that_run(tmp_path: Path) -> None:
    def delayed(run: RunSpec, repeat: int) -> Trace:
        late = {1: range(5, 66, 10), 2: ()}[repeat]
        return trace_of(run, noise=NOISE, seed=repeat, data=lambda rank, step: 6.0 * (rank == 3 and step in late))

    ledger = by_case(tmp_path, repeated(run_of(measured_steps=60), 2, delayed))["2n2g"]
    assert [run.verdict.ranks for run in ledger.runs] == [(3,), ()]
    assert (ledger.verdict.kind, ledger.verdict.ranks, ledger.verdict.in_runs) == (TRANSIENT, (3,), 1)


def test_incidents_of_most_runs_are_named_run_by_run(tmp_path: Path) -> None:
    def stopped(run: RunSpec, repeat: int) -> Trace:
        late = {1: (), 2: (20,), 3: (33,)}[repeat]
        return trace_of(run, noise=NOISE, seed=repeat, data=lambda rank, step: 2000.0 * (rank == 2 and step in late))

    verdict = by_case(tmp_path, repeated(run_of(), 3, stopped))["2n2g"].verdict
    assert (verdict.kind, verdict.ranks, verdict.steps) == (TRANSIENT, (2,), ())
    assert (verdict.run_steps, verdict.in_runs, verdict.of_runs) == (((), (20,), (33,)), 2, 3)


def test_stamp_errors_are_those_of_their_run(tmp_path: Path) -> None:
    traces = repeated(run_of(), 2, make())
    stamps = traces[0].stamps.copy()
    stamps[0, 20, 4] = stamps[0, 20, 3] - 1_000_000
    ledger = by_case(tmp_path, [dataclasses.replace(traces[0], stamps=stamps), traces[1]])["2n2g"]
    assert [bool(run.problems) for run in ledger.runs] == [True, False]


def test_the_bound_of_a_run_is_the_clocks_and_not_the_straggler_s(tmp_path: Path) -> None:
    """Ranks 2 and 3 read one clock: between them nothing is open, between the nodes it is."""
    ledger = by_case(tmp_path, repeated(run_of(), 1, make(data=on(3, ms=6.0), bound_ns=100_000)))["2n2g"]
    assert ledger.runs[0].bound == pytest.approx(0.1, rel=0.8)
    (folder := tmp_path / "coarse").mkdir()
    coarse = by_case(folder, repeated(run_of(timing="step"), 1, make()))["2n2g"]
    assert coarse.runs[0].bound == pytest.approx(0.01, rel=0.8)  # of where a step begins


# What the sentence is made of


def test_the_speed_without_the_straggler_is_that_of_runs_without_its_delay(tmp_path: Path) -> None:
    late = by_case(tmp_path, repeated(run_of(), 3, make(backward=on(3, ms=7.0))))["2n2g"]
    (folder := tmp_path / "usual").mkdir()
    usual = by_case(folder, repeated(run_of(), 3, make()))["2n2g"]
    without = late.findings[0].without
    assert without is not None and without.interval is not None
    assert without.recorded == pytest.approx(late.result.median_speed, rel=1e-9)
    assert without.recorded < 0.75 * without.speed
    assert without.speed == pytest.approx(usual.result.median_speed, rel=0.01)
    assert without.interval.low <= without.speed <= without.interval.high
    changes = {what_if.change: what_if.speed for what_if in what_ifs(late)}
    assert changes[Change.STRAGGLER] == without.speed
    assert not usual.findings and usual.verdict.limit is not None


def test_of_a_straggler_that_differs_from_run_to_run_its_own_steps_are_replayed(tmp_path: Path) -> None:
    def stopped(run: RunSpec, repeat: int) -> Trace:
        late = {1: 12, 2: 20, 3: 33}[repeat]
        return trace_of(run, noise=NOISE, seed=repeat, data=lambda rank, step: 2000.0 * (rank == 2 and step == late))

    ledger = by_case(tmp_path, repeated(run_of(), 3, stopped))["2n2g"]
    assert ledger.findings[0].without is not None
    assert ledger.findings[0].without.speed == pytest.approx(4 * ledger.findings[0].without.recorded, rel=0.5)
    text = sentence(ledger, "2n2g")
    assert [*ledger.verdict.run_steps] == [(12,), (20,), (33,)]
    assert "longer for its data than the median rank. It is late in 3 steps of 3 runs (run 1: 12). " in text


@pytest.mark.parametrize("runs", [1, 2, 3])
@pytest.mark.parametrize("every", [5, 10, 40])
@pytest.mark.parametrize("same", [True, False])
def test_what_is_late_in_some_steps_has_its_steps_in_the_sentence(
    tmp_path: Path, runs: int, every: int, same: bool
) -> None:
    """Whatever the runs, no sentence says that somebody is late in steps without naming one."""

    def at_times(run: RunSpec, repeat: int) -> Trace:
        phase = 7 if same else 7 + repeat
        extra = lambda rank, step: 60.0 * (rank == 1 and step % every == phase % every)  # noqa: E731
        return trace_of(run, noise=NOISE, seed=repeat, backward=extra)

    ledger = by_case(tmp_path, repeated(run_of(), runs, at_times))["2n2g"]
    assert (ledger.verdict.kind, ledger.verdict.ranks) == (TRANSIENT, (1,))
    assert len(ledger.verdict.run_steps) == runs and all(ledger.verdict.run_steps)
    few = r" It is late in steps? \d[\d, …]* only"
    if not same and runs > 1:
        few = rf" It is late in {sum(map(len, ledger.verdict.run_steps))} steps of {runs} runs \(run 1: 8[\d, …]*\)"
    assert re.search(few, sentence(ledger, "2n2g"))


def test_the_runs_behind_a_loss(tmp_path: Path) -> None:
    def drifting(run: RunSpec, repeat: int) -> Trace:
        return trace_of(run, noise=NOISE, seed=repeat, forward=on(*range(run.ranks), ms=repeat % 3))

    ledger = by_case(tmp_path, [*repeated(SINGLE, 3, drifting), *repeated(run_of(), 4, drifting)])["2n2g"]
    repeats = ledger.repeats
    assert repeats is not None and (repeats.point, repeats.baseline) == (4, 3)
    assert repeats.for_half is not None and 6 <= repeats.for_half <= 20
    (folder := tmp_path / "single").mkdir()
    single = by_case(folder, [*repeated(SINGLE, 1, drifting), *repeated(run_of(), 1, drifting)])
    assert single["2n2g"].repeats == Repeats(point=1, baseline=1, for_half=None)
    assert single["1n1g"].repeats is None


def test_why_a_straggler_s_data_is_late_is_that_of_its_own_reader(tmp_path: Path) -> None:
    """Rank 1 reads with one of eight workers: its batches take 26 ms, nearly a step."""

    def reading(run: RunSpec, repeat: int) -> Trace:
        trace = trace_of(run, noise=NOISE, seed=repeat, data=on(1, ms=14.0))
        begin, ready = trace.stamps[..., BEGIN], trace.stamps[..., BATCH_READY]
        slow = np.arange(run.ranks)[:, None] == 1
        done = np.where(slow, ready, begin - MS)
        work = np.where(slow, 26 * MS, 2 * MS) + 0 * begin
        figures = np.stack([begin, ready, done - work, done, work // 8, work - work // 8, work - work // 8], axis=-1)
        workers = [1 if rank == 1 else 8 for rank in range(run.ranks)]
        inputs = [{"workers": count, "prefetched_batches": 2 * count} for count in workers]
        ranks = [{**facts, "input": each} for facts, each in zip(trace.ranks, inputs, strict=True)]
        return dataclasses.replace(trace, input=figures, input_names=INPUT_FIGURES, ranks=ranks)

    ledger = by_case(tmp_path, repeated(run_of(), 2, reading))["2n2g"]
    its_input = ledger.findings[0].evidence[-1]
    assert its_input is not None and (its_input.workers, its_input.usual_workers, its_input.cause) == (
        1,
        8,
        InputCause.WORKERS,
    )
    assert its_input.late == pytest.approx(15.0, abs=0.2) and its_input.work == pytest.approx(26.0)
    assert its_input.enough == 3
    assert (
        ". Its reader has 1 of 8 workers: 1 worker per rank is too few: 3 with cores of their own would keep up. "
        "To do: --option workers=3."
    ) in sentence(ledger, "2n2g")
