"""What communication takes by itself, beside what of it a training waits for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.model.collective_plan import collectives_run
from hpc.model.outcome import Outcome
from hpc.model.spec import RunSpec
from hpc.model.trace import Trace, TraceError
from parse.ledger.standalone import Curve, alone, beside, matching
from parse.load import load
from parse.result import Result, results
from tests.unit.test_collectives import described, measured
from tests.unit.traces import make_run, make_trace, put, put_exit_record

FOUR = make_run(nodes=2, ranks_per_node=2, env={"NCCL_ALGO": "Ring"}, options={"cycle_time_ms": "5", "width": "8"})
SIZES = {"min_bytes": "1K", "max_bytes": "4K", "iterations": "3"}
"""1 KiB takes 1.125 ms and 4 KiB 2.25 ms, as `measured` makes it."""


def collectives_of(ranks: RunSpec, **options: str) -> RunSpec:
    return collectives_run(ranks, ["all-reduce", "broadcast"], {**SIZES, **options})


def read(folder: Path, *traces: Trace) -> list[Result]:
    for trace in traces:
        put(folder, trace)
    return list(results(load([folder])))


def training(folder: Path, run: RunSpec = FOUR) -> tuple[Result, list[Result]]:
    """The training among what is in the folder, and its probes."""
    found = read(folder, make_trace(run))
    return next(one for one in found if not one.run.diagnostic), [one for one in found if one.run.diagnostic]


def test_times_lie_on_a_straight_line_of_logarithms_between_the_sizes() -> None:
    curve = Curve(operation="all-reduce", sizes=(1024, 4096, 65536), ms=(1.0, 4.0, 8.0))
    assert [curve.time_ms(size) for size in (1024, 4096, 65536)] == [1.0, 4.0, 8.0]
    assert curve.time_ms(2048) == pytest.approx(2.0)
    assert curve.time_ms(16384) == pytest.approx(4.0 * 2**0.5)


def test_outside_the_sizes_there_is_no_time() -> None:
    curve = Curve(operation="all-reduce", sizes=(1024, 4096), ms=(1.0, 4.0))
    assert curve.time_ms(1023) is curve.time_ms(4097) is curve.time_ms(0) is None
    assert Curve(operation="all-reduce", sizes=(), ms=()).time_ms(1024) is None


@given(
    points=st.dictionaries(st.integers(1, 2**40), st.floats(1e-6, 1e6), min_size=1, max_size=8),
    size=st.integers(1, 2**40),
)
def test_a_time_lies_between_those_of_its_neighbours(points: dict[int, float], size: int) -> None:
    sizes = tuple(sorted(points))
    found = Curve(operation="x", sizes=sizes, ms=tuple(points[one] for one in sizes)).time_ms(size)
    if not sizes[0] <= size <= sizes[-1]:
        assert found is None
        return
    low, high = (points[max(s for s in sizes if s <= size)], points[min(s for s in sizes if s >= size)])
    assert found is not None
    assert min(low, high) * (1 - 1e-9) <= found <= max(low, high) * (1 + 1e-9)


def test_a_trace_has_a_curve_for_each_operation() -> None:
    curves = alone(measured(collectives_of(FOUR)))
    assert {name: (curve.sizes, curve.ms) for name, curve in curves.items()} == {
        "all-reduce": ((1024, 4096), (1.125, 2.25)),
        "broadcast": ((1024, 4096), (3.375, 4.5)),
    }
    with pytest.raises(TraceError, match="not of collectives"):
        alone(make_trace())


def test_what_is_hidden_is_what_it_takes_alone_less_what_is_exposed(tmp_path: Path) -> None:
    run = collectives_of(FOUR)
    put(tmp_path, measured(run))
    result, probes = training(tmp_path)
    found, remarks = beside(result, 2048, 0.7, probes)
    assert remarks == ()
    assert found is not None
    assert (found.gradient_bytes, found.exposed, found.run_id) == (2048, 0.7, run.run_id)
    assert found.alone == pytest.approx((1.125 * 2.25) ** 0.5)
    assert found.hidden == pytest.approx(found.alone - 0.7)


def test_what_was_not_measured_at_that_size_is_said_and_never_extrapolated(tmp_path: Path) -> None:
    put(tmp_path, measured(collectives_of(FOUR)))
    result, probes = training(tmp_path)
    found, (remark,) = beside(result, 100_000_000, 0.7, probes)
    assert found is None
    assert "what 100000000 bytes of gradients would take alone is not known" in remark
    assert "from 1024 to 4096 bytes (--option max_bytes=100000000)" in remark
    assert "--option min_bytes=32)" in beside(result, 32, 0.7, probes)[1][0]


def test_of_several_runs_the_one_that_reaches_the_size_counts(tmp_path: Path) -> None:
    wide = collectives_of(FOUR, max_bytes="64K", factor="64")
    put(tmp_path, measured(collectives_of(FOUR)))
    put(tmp_path, measured(wide))
    result, probes = training(tmp_path)
    assert len(probes) == 2
    found, remarks = beside(result, 32768, 0.1, probes)
    assert (found and found.run_id, remarks) == (wide.run_id, ())


@pytest.mark.parametrize(
    "other",
    [
        {"nodes": 4}, {"nodes": 1, "ranks_per_node": 4}, {"gpus_per_node": 2}, {"cpus_per_rank": 2}, {"site": "there"},
        {"container": "x.sif"}, {"env": {"NCCL_ALGO": "Tree"}}, {"options": {"cycle_time_ms": "1"}}, {"options": {}},
        {"backend": "torch-ddp"},
    ],
)  # fmt: skip
def test_collectives_of_other_ranks_do_not_count(tmp_path: Path, other: dict[str, Any]) -> None:
    ranks = dataclasses.replace(FOUR, **other)
    run = collectives_of(ranks)
    put(tmp_path, make_trace(run, environment=described(run)))
    result, probes = training(tmp_path)
    assert len(probes) == 1
    assert matching(result, probes) == ()
    assert beside(result, 2048, 0.7, probes) == (None, ())


@pytest.mark.parametrize(
    "same", [{"batch_size": 64}, {"precision": "bf16"}, {"workload": "mlp"}, {"timing": "step"}, {"seed": 3}]
)
def test_what_a_training_asks_for_beside_its_ranks_does_not_matter(tmp_path: Path, same: dict[str, Any]) -> None:
    put(tmp_path, measured(collectives_of(FOUR)))
    result, probes = training(tmp_path, dataclasses.replace(FOUR, **same))
    assert matching(result, [*probes, result]) == tuple(probes)
    assert matching(probes[0], probes) == ()
    from_log = dataclasses.replace(result, requested=dataclasses.replace(result.requested, unknown=("cpus_per_rank",)))
    assert matching(from_log, probes) == ()


def test_collectives_that_did_not_end_ok_are_said(tmp_path: Path) -> None:
    put_exit_record(tmp_path, collectives_of(FOUR), Outcome.INVALID)
    put(tmp_path, cut := measured(collectives_of(FOUR)))
    result, probes = training(tmp_path)
    assert cut.run_id == probes[0].runs[0].requested.run_id
    found, (remark,) = beside(result, 2048, 0.7, probes)
    assert found is None
    assert remark == "what communication costs alone is not known: the collectives of 2n2g invalid"
