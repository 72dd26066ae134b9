"""parse.ledger.point: a point's terms against its baseline's, with intervals, and what explains them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from hpc.model.spec import RunSpec
from hpc.model.trace import Trace
from parse.ledger.point import ledgers
from parse.ledger.types import CANNOT_TELL, NONE, PERSISTENT, Because, Ledger, Merged, NoLoss
from parse.load import load
from parse.result import results
from tests.unit.ledger_traces import on, run_of, trace_of
from tests.unit.traces import put

NOISE = 0.05
Made = Callable[[RunSpec, int], Trace]
SINGLE = run_of(nodes=1, ranks_per_node=1)
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
    points, diagnostics = ([each for each in read if bool(each.run.diagnostic) == probe] for probe in (False, True))
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
    assert (of_cases["1n1g"].no_loss, of_cases["1n1g"].loss) == (NoLoss.IS_BASELINE, None)
    assert (ledger.verdict.kind, ledger.verdict.ranks) == (PERSISTENT, (1,))
    assert ledger.verdict.cause["compute"] == pytest.approx(4.0, abs=0.2)


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


def test_without_a_baseline_there_is_no_loss(tmp_path: Path) -> None:
    ledger = by_case(tmp_path, repeated(run_of(), 2, make()))["2n2g"]
    assert (ledger.loss, ledger.no_loss, ledger.split) == (None, NoLoss.NO_BASELINE, None)
    assert all(term.loss is None and term.baseline is None for term in ledger.terms)


def test_one_run_has_the_interval_of_its_pieces(tmp_path: Path) -> None:
    ledger = by_case(tmp_path, [*repeated(SINGLE, 1, make()), *repeated(run_of(), 1, make())])["2n2g"]
    assert ledger.step.low is not None and ledger.step.low < ledger.step.value
    assert ledger.loss is not None and ledger.loss.low is not None


def test_runs_without_reduction_tell_contention_from_interference(tmp_path: Path) -> None:
    no_sync = repeated(run_of(reduction="off"), 3, make(backward=on(*ALL_RANKS, ms=1.0)))
    traces = [*repeated(SINGLE, 3, make()), *repeated(run_of(), 3, make(backward=on(*ALL_RANKS, ms=3.0)))]
    alone = by_case(tmp_path, traces)["2n2g"]
    assert alone.split is not None
    assert (alone.split.contention, alone.split.interference) == (None, None)
    assert alone.split.unexplained == pytest.approx(losses(alone)["compute"])
    of_cases = by_case(tmp_path, no_sync)
    assert set(of_cases) == {"1n1g", "2n2g"}
    split = of_cases["2n2g"].split
    assert split is not None and split.contention is not None and split.interference is not None
    assert split.contention.value == pytest.approx(1.0, abs=0.15)
    assert split.interference.value == pytest.approx(2.0, abs=0.15)
    assert split.unexplained == 0.0
    assert split.contention.value + split.interference.value == pytest.approx(losses(of_cases["2n2g"])["compute"])


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
    ("delays", "kind", "because", "ranks", "of_runs"),
    [
        # (rank, ms) of each run
        (((1, 6.0), (2, 6.0), (3, 6.0)), CANNOT_TELL, Because.RUNS_DISAGREE, (), [(1,), (2,), (3,)]),
        (((3, 6.0), (3, 6.0), (3, 0.0)), PERSISTENT, None, (3,), [(3,), (3,), ()]),
    ],
)
def test_most_runs_decide(
    tmp_path: Path, delays: Any, kind: str, because: Because | None, ranks: tuple[int, ...], of_runs: list[Any]
) -> None:
    def delayed(run: RunSpec, repeat: int) -> Trace:
        rank, ms = delays[repeat - 1]
        return trace_of(run, noise=NOISE, seed=repeat, data=on(rank, ms=ms))

    ledger = by_case(tmp_path, repeated(run_of(), 3, delayed))["2n2g"]
    assert (ledger.verdict.kind, ledger.verdict.because, ledger.verdict.ranks) == (kind, because, ranks)
    assert [run.verdict.ranks for run in ledger.runs] == of_runs
    assert all((run.verdict.kind == NONE) == (run.verdict.ranks == ()) for run in ledger.runs)


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
    assert coarse.runs[0].bound is None
