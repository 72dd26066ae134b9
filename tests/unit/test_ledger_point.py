"""parse.ledger.point: a point's terms against its baseline's, with intervals, and what explains them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from hpc.model.spec import RunSpec
from hpc.model.trace import Trace
from parse import stats
from parse.ledger.point import ledgers
from parse.ledger.types import CANNOT_TELL, NONE, PERSISTENT, Ledger
from parse.load import load
from parse.result import results
from tests.unit.ledger_traces import on, run_of, trace_of
from tests.unit.traces import put

NOISE = 0.05
Made = Callable[[RunSpec, int], Trace]


def make(**how: Any) -> Made:
    return lambda run, repeat: trace_of(run, **({"noise": NOISE, "seed": repeat} | how))


def repeated(run: RunSpec, count: int, made: Made) -> list[Trace]:
    return [made(dataclasses.replace(run, repeat=repeat), repeat) for repeat in range(1, count + 1)]


def of(folder: Path, traces: Iterable[Trace]) -> dict[str, Ledger]:
    """The ledgers of these traces by case; runs that are no training explain others."""
    for trace in traces:
        put(folder, trace)
    found = results(load([folder]))
    points = [result for result in found if not result.run.diagnostic]
    return {
        one.result.requested.case: one for one in ledgers(points, [result for result in found if result.run.diagnostic])
    }


def means(one: Ledger) -> dict[str, float]:
    return {term.name: term.mean.value for term in one.terms}


def losses(one: Ledger) -> dict[str, float]:
    return {term.name: term.loss.value for term in one.terms if term.loss}


def test_the_loss_is_what_the_baseline_does_not_take(tmp_path: Path) -> None:
    alone = repeated(run_of(nodes=1, ranks_per_node=1), 3, make(transfer=0.5))
    two = repeated(run_of(), 3, make(transfer=2.5, forward=on(1, ms=4.0)))
    found = of(tmp_path, [*alone, *two])
    one = found["2n2g"]
    expected = {"data": 0.0, "compute": 1.0, "wait": 3.0, "transfer": 2.0, "update": 0.0}
    assert losses(one) == pytest.approx(expected, abs=0.15)
    assert one.loss is not None and one.loss.resolved
    assert sum(losses(one).values()) == pytest.approx(one.loss.value)
    assert sum(means(one).values()) == pytest.approx(one.step.value)
    assert sum(term.share or 0.0 for term in one.terms) == pytest.approx(1.0)
    assert next(term.share for term in one.terms if term.name == "wait") == pytest.approx(0.5, abs=0.03)
    assert found["1n1g"].no_loss == "it is the baseline"
    assert found["1n1g"].loss is None
    assert (one.verdict.kind, one.verdict.ranks) == (PERSISTENT, (1,))
    assert one.verdict.cause["compute"] == pytest.approx(4.0, abs=0.2)


def test_a_loss_within_its_interval_has_no_shares(tmp_path: Path) -> None:
    def drifting(run: RunSpec, repeat: int) -> Trace:
        return trace_of(run, noise=NOISE, seed=repeat, forward=on(*range(run.ranks), ms=repeat % 3))

    alone = repeated(run_of(nodes=1, ranks_per_node=1), 3, drifting)
    found = of(tmp_path, [*alone, *repeated(run_of(), 3, drifting)])["2n2g"]
    assert found.loss is not None and not found.loss.resolved
    assert all(term.share is None for term in found.terms)


def test_strong_scaling_divides_the_baseline_by_the_devices(tmp_path: Path) -> None:
    slow = run_of(nodes=1, ranks_per_node=1, scaling="strong", batch_size=16)
    four = run_of(scaling="strong", batch_size=16)
    alone = repeated(slow, 2, make(forward=on(0, ms=27.0), transfer=0.0))
    found = of(tmp_path, [*alone, *repeated(four, 2, make())])["2n2g"]
    baseline = {term.name: term.baseline for term in found.terms}
    assert baseline == pytest.approx(
        {"data": 0.25, "compute": 9.0, "wait": 0.0, "transfer": 0.0, "update": 0.25}, abs=0.1
    )
    assert losses(found)["data"] == pytest.approx(0.75, abs=0.1)


def test_without_a_baseline_there_is_no_loss(tmp_path: Path) -> None:
    found = of(tmp_path, repeated(run_of(), 2, make()))["2n2g"]
    assert found.loss is None
    assert found.no_loss == "no 1n1g baseline with all else equal is here"
    assert found.split is None
    assert all(term.loss is None and term.baseline is None for term in found.terms)


def test_one_run_has_the_interval_of_its_pieces(tmp_path: Path) -> None:
    alone = repeated(run_of(nodes=1, ranks_per_node=1), 1, make())
    found = of(tmp_path, [*alone, *repeated(run_of(), 1, make())])["2n2g"]
    assert found.step.low is not None and found.step.low < found.step.value
    assert found.loss is not None and found.loss.low is not None


def test_a_twin_parts_contention_from_interference(tmp_path: Path) -> None:
    alone = repeated(run_of(nodes=1, ranks_per_node=1), 3, make())
    everyone = on(0, 1, 2, 3, ms=3.0)
    twin = repeated(run_of(reduction="off"), 3, make(backward=on(0, 1, 2, 3, ms=1.0)))
    found = of(tmp_path, [*alone, *repeated(run_of(), 3, make(backward=everyone)), *twin])
    assert set(found) == {"1n1g", "2n2g"}
    split = found["2n2g"].split
    assert split is not None and split.contention is not None and split.interference is not None
    assert split.contention.value == pytest.approx(1.0, abs=0.15)
    assert split.interference.value == pytest.approx(2.0, abs=0.15)
    assert split.unexplained == 0.0
    assert split.contention.value + split.interference.value == pytest.approx(losses(found["2n2g"])["compute"])


def test_without_a_twin_compute_is_unexplained(tmp_path: Path) -> None:
    alone = repeated(run_of(nodes=1, ranks_per_node=1), 2, make())
    found = of(tmp_path, [*alone, *repeated(run_of(), 2, make(backward=on(0, 1, 2, 3, ms=3.0)))])["2n2g"]
    assert found.split is not None
    assert (found.split.contention, found.split.interference) == (None, None)
    assert found.split.unexplained == pytest.approx(losses(found)["compute"])


def test_point_and_baseline_have_the_same_terms(tmp_path: Path) -> None:
    alone = repeated(run_of(nodes=1, ranks_per_node=1), 2, make())
    meeting = repeated(run_of(), 2, make(backend={"meets_before_gradients": ["synchronised batch norm"]}))
    found = of(tmp_path, [*alone, *meeting])["2n2g"]
    assert [term.name for term in found.terms] == ["data", "compute+communication", "update"]
    assert "synchronised batch norm" in found.merged
    assert found.terms[1].baseline == pytest.approx(11.0, abs=0.1)


def test_places_are_ranks_and_nodes(tmp_path: Path) -> None:
    found = of(tmp_path, repeated(run_of(), 2, make(data=on(2, 3, ms=6.0))))["2n2g"]
    assert [place.name for place in found.ranks] == ["rank 0 (n0)", "rank 1 (n0)", "rank 2 (n1)", "rank 3 (n1)"]
    assert [place.name for place in found.nodes] == ["n0", "n1"]
    assert found.nodes[1].terms[0] == pytest.approx(7.0, abs=0.1)
    assert found.nodes[0].terms[2] == pytest.approx(6.0, abs=0.2)
    assert found.nodes[1].last == pytest.approx(1.0)
    assert found.ranks[0].last == 0.0
    assert found.verdict.node == "n1"


def test_where_runs_disagree_nobody_is_named(tmp_path: Path) -> None:
    def another(run: RunSpec, repeat: int) -> Trace:
        return trace_of(run, noise=NOISE, seed=repeat, data=on(repeat, ms=6.0))

    found = of(tmp_path, repeated(run_of(), 3, another))["2n2g"]
    assert (found.verdict.kind, found.verdict.because) == (CANNOT_TELL, "the runs disagree")
    assert [run.verdict.ranks for run in found.runs] == [(1,), (2,), (3,)]


def test_most_runs_decide(tmp_path: Path) -> None:
    def mostly(run: RunSpec, repeat: int) -> Trace:
        return trace_of(run, noise=NOISE, seed=repeat, data=on(3, ms=6.0 if repeat < 3 else 0.0))

    found = of(tmp_path, repeated(run_of(), 3, mostly))["2n2g"]
    assert (found.verdict.kind, found.verdict.ranks) == (PERSISTENT, (3,))
    assert found.runs[2].verdict.kind == NONE


def test_what_is_wrong_with_a_run_is_told(tmp_path: Path) -> None:
    traces = repeated(run_of(), 2, make())
    stamps = traces[0].stamps.copy()
    stamps[0, 20, 4] = stamps[0, 20, 3] - 1_000_000
    found = of(tmp_path, [dataclasses.replace(traces[0], stamps=stamps), traces[1]])["2n2g"]
    assert len(found.problems) >= 1
    assert all(traces[0].run_id in problem for problem in found.problems)


def test_an_interval_of_a_mean_is_student_s() -> None:
    """1, 2, 3: mean 2, standard deviation 1, t = 4.303."""
    assert stats.mean_margin([1.0, 2.0, 3.0]) == pytest.approx(4.303 / 3**0.5)
    assert stats.mean_margin([1.0]) is None


def test_an_interval_of_a_difference_is_welch_s() -> None:
    """Equal scatter, three values each: four degrees of freedom, t = 2.776."""
    margin = stats.difference_margin([1.0, 2.0, 3.0], [11.0, 12.0, 13.0])
    assert margin == pytest.approx(2.776 * (1 / 3 + 1 / 3) ** 0.5)
    assert stats.difference_margin([1.0, 2.0], [1.0]) is None
    assert stats.difference_margin([2.0, 2.0], [1.0, 1.0]) == 0.0


def test_the_bound_of_a_run_is_the_clocks_and_not_the_straggler_s(tmp_path: Path) -> None:
    """Ranks 2 and 3 read one clock: between them nothing is open, between the nodes it is."""
    found = of(tmp_path, repeated(run_of(), 1, make(data=on(3, ms=6.0), bound_ns=100_000)))["2n2g"]
    assert found.runs[0].bound == pytest.approx(0.1, rel=0.8)
    coarse = tmp_path / "coarse"
    coarse.mkdir()
    assert of(coarse, repeated(run_of(timing="step"), 1, make()))["2n2g"].runs[0].bound is None
