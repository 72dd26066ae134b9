"""What communication takes by itself, beside what of it a training waits for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.model.collective_plan import collectives_run
from hpc.model.outcome import Outcome
from hpc.model.spec import RunSpec
from hpc.model.trace import Trace, TraceError
from parse.ledger.point import ledgers
from parse.ledger.standalone import (
    Curve,
    curves,
    matching,
    read_collectives,
    recorded_collectives,
    standalone_reduction,
)
from parse.ledger.types import Standalone
from parse.runs.load import load
from parse.runs.result import Result, results
from parse.say.notes import notes
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
    """The training among what is in the folder, and its diagnostics."""
    read_results = read(folder, make_trace(run))
    (point,) = (result for result in read_results if not result.run.diagnostic)
    return point, [result for result in read_results if result.run.diagnostic]


def test_times_lie_on_a_straight_line_of_logarithms_between_the_sizes() -> None:
    curve = Curve(sizes=(1024, 4096, 65536), ms=(1.0, 4.0, 8.0))
    assert [curve.time_ms(size) for size in (1024, 4096, 65536)] == [1.0, 4.0, 8.0]
    assert curve.time_ms(2048) == pytest.approx(2.0)
    assert curve.time_ms(16384) == pytest.approx(4.0 * 2**0.5)
    assert curve.time_ms(1023) is curve.time_ms(65537) is curve.time_ms(0) is None
    assert Curve(sizes=(), ms=()).time_ms(1024) is None


@given(
    points=st.dictionaries(st.integers(1, 2**40), st.floats(1e-6, 1e6), min_size=1, max_size=8),
    size=st.integers(1, 2**40),
)
def test_a_time_lies_between_those_of_its_neighbours(points: dict[int, float], size: int) -> None:
    sizes = tuple(sorted(points))
    ms = Curve(sizes=sizes, ms=tuple(points[each] for each in sizes)).time_ms(size)
    if not sizes[0] <= size <= sizes[-1]:
        assert ms is None
        return
    low, high = (points[max(s for s in sizes if s <= size)], points[min(s for s in sizes if s >= size)])
    assert ms is not None
    assert min(low, high) * (1 - 1e-9) <= ms <= max(low, high) * (1 + 1e-9)


def test_a_trace_has_a_curve_for_each_operation() -> None:
    by_operation = curves(measured(collectives_of(FOUR)))
    assert {name: (curve.sizes, curve.ms) for name, curve in by_operation.items()} == {
        "all-reduce": ((1024, 4096), (1.125, 2.25)),
        "broadcast": ((1024, 4096), (3.375, 4.5)),
    }
    with pytest.raises(TraceError, match="not of collectives"):
        curves(make_trace())


def reduction(
    result: Result, gradient_bytes: int, exposed_ms: float, diagnostics: Sequence[Result]
) -> tuple[Standalone | None, tuple[str, ...]]:
    read, remarks = read_collectives(result, diagnostics)
    standalone, further = standalone_reduction(read, gradient_bytes, exposed_ms)
    return standalone, (*remarks, *further)


def test_what_is_overlapped_is_the_standalone_time_less_what_is_exposed(tmp_path: Path) -> None:
    run = collectives_of(FOUR)
    put(tmp_path, measured(run))
    result, diagnostics = training(tmp_path)
    standalone, remarks = reduction(result, 2048, 0.7, diagnostics)
    assert remarks == ()
    assert standalone is not None
    assert (standalone.gradient_bytes, standalone.exposed, standalone.run_id) == (2048, 0.7, run.run_id)
    assert standalone.standalone == pytest.approx((1.125 * 2.25) ** 0.5)
    assert standalone.overlapped == pytest.approx(standalone.standalone - 0.7)


def test_beyond_the_measured_sizes_nothing_is_extrapolated(tmp_path: Path) -> None:
    put(tmp_path, measured(collectives_of(FOUR)))
    result, diagnostics = training(tmp_path)
    standalone, (remark,) = reduction(result, 100_000_000, 0.7, diagnostics)
    assert standalone is None
    assert "how long 100000000 bytes of gradients take standalone is not known" in remark
    assert "from 1024 to 4096 bytes (--option max_bytes=100000000)" in remark
    assert "--option min_bytes=32)" in reduction(result, 32, 0.7, diagnostics)[1][0]


def test_of_several_runs_the_one_that_reaches_the_size_counts(tmp_path: Path) -> None:
    wide = collectives_of(FOUR, max_bytes="64K", factor="64")
    put(tmp_path, measured(collectives_of(FOUR)))
    put(tmp_path, measured(wide))
    result, diagnostics = training(tmp_path)
    assert len(diagnostics) == 2
    standalone, remarks = reduction(result, 32768, 0.1, diagnostics)
    assert (standalone and standalone.run_id, remarks) == (wide.run_id, ())


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
    result, diagnostics = training(tmp_path)
    assert len(diagnostics) == 1
    assert matching(result, diagnostics) == ()
    assert reduction(result, 2048, 0.7, diagnostics) == (None, ())


@pytest.mark.parametrize(
    "same", [{"batch_size": 64}, {"precision": "bf16"}, {"workload": "mlp"}, {"timing": "step"}, {"seed": 3}]
)
def test_what_a_training_asks_for_beside_its_ranks_does_not_matter(tmp_path: Path, same: dict[str, Any]) -> None:
    put(tmp_path, measured(collectives_of(FOUR)))
    result, diagnostics = training(tmp_path, dataclasses.replace(FOUR, **same))
    assert matching(result, [*diagnostics, result]) == tuple(diagnostics)
    assert matching(diagnostics[0], diagnostics) == ()
    of_log = dataclasses.replace(result.requested, run=dataclasses.replace(result.run, cpus_per_rank=None))
    from_log = dataclasses.replace(result, requested=of_log)
    assert matching(from_log, diagnostics) == ()


def test_collectives_that_did_not_end_ok_are_a_remark(tmp_path: Path) -> None:
    put_exit_record(tmp_path, collectives_of(FOUR), Outcome.INVALID)
    put(tmp_path, cut := measured(collectives_of(FOUR)))
    result, diagnostics = training(tmp_path)
    assert cut.run_id == diagnostics[0].runs[0].requested.run_id
    standalone, (remark,) = reduction(result, 2048, 0.7, diagnostics)
    assert standalone is None
    assert remark == "how long communication takes standalone is not known: the collectives of 2n2g invalid"


BUCKET = {"name": "all-reduce", "group": "default_pg", "bytes": 26_214_400, "per_step": 4.0}


def with_record(*records: object) -> Trace:
    """A trace whose ranks have these records."""
    trace = make_trace(FOUR)
    ranks = [
        {**report, "script": {"collective_record": its}} for report, its in zip(trace.ranks, records, strict=False)
    ]
    return dataclasses.replace(trace, ranks=[*ranks, *trace.ranks[len(ranks) :]])


@pytest.mark.parametrize(
    ("kinds", "text"),
    [
        ([BUCKET, BUCKET | {"bytes": 4_000, "per_step": 0.5, "duration_ms": 0.25}],
         "4 × all-reduce of 26.2 MB, 0.5 × all-reduce of 4 kB (0.25 ms each)"),
        ([BUCKET | {"bytes": None}], "4 × all-reduce"),
        ([BUCKET] * 7, ", ".join(["4 × all-reduce of 26.2 MB"] * 3) + ", 4 further kinds"),
        ([BUCKET, {"name": "\x1b[31m", "per_step": 1}, {"name": "all-gather", "per_step": "1"}, 7,
          {"name": "all-gather", "per_step": True}, {"name": "all-gather", "per_step": float("inf")}],
         "4 × all-reduce of 26.2 MB"),
    ],
)  # fmt: skip
def test_what_a_step_calls_by_torchs_own_record(kinds: list[Any], text: str) -> None:
    assert recorded_collectives(with_record({}, {"kinds": kinds})) == (f"a step of rank 1 by torch's record: {text}")


IN_GRAPH = BUCKET | {"bytes": 4_096, "per_step": 1.0, "phase": "forward"}


@pytest.mark.parametrize(
    ("kinds", "bound_ns", "text"),
    [
        ([IN_GRAPH | {"after_ms": 5.0}, IN_GRAPH | {"after_ms": 45.0}], 0.0,
         "1 × all-reduce of 4.1 kB in the forward, 5 ms behind the step's begin; "
         "rank 1 comes 40 ms after the first to the all-reduce of 4.1 kB"),
        # On a device when it was called says nothing; it is short where the others have come.
        ([IN_GRAPH | {"after_ms": 1.0, "duration_ms": 40.5}, IN_GRAPH | {"after_ms": 9.0, "duration_ms": 0.5}], 9.0,
         "1 × all-reduce of 4.1 kB in the forward, 1 ms behind the step's begin (40.5 ms each); "
         "rank 1 comes 40 ms after the first to the all-reduce of 4.1 kB"),
        ([IN_GRAPH | {"after_ms": 1.0}, IN_GRAPH | {"after_ms": 41.0}], 9.0,
         "1 × all-reduce of 4.1 kB in the forward, 1 ms behind the step's begin"),
        ([IN_GRAPH | {"after_ms": 5.0}, IN_GRAPH | {"after_ms": 5.9}], 0.0,
         "1 × all-reduce of 4.1 kB in the forward, 5 ms behind the step's begin"),
        ([IN_GRAPH | {"after_ms": 5.0, "group": "tp"}, IN_GRAPH | {"after_ms": 45.0, "group": "tp"}], 0.0,
         "1 × all-reduce of 4.1 kB in the forward, 5 ms behind the step's begin"),
    ],
)  # fmt: skip
def test_who_comes_last_to_a_collective_of_a_compiled_graph(
    kinds: list[dict[str, Any]], bound_ns: float, text: str
) -> None:
    trace = make_trace(FOUR)
    kinds += [kinds[0]] * (len(trace.ranks) - 2)
    script = {"unseen_ways": ["1 all-reduce a step of compiled graphs or C++ (by torch's own record)"]}
    ranks = [
        {**report, "stamp_bound_ns": bound_ns, "script": {**script, "collective_record": {"kinds": [its]}}}
        for report, its in zip(trace.ranks, kinds, strict=True)
    ]
    assert recorded_collectives(dataclasses.replace(trace, ranks=ranks)) == (
        f"a step of rank 0 by torch's record: {text}"
    )


@pytest.mark.parametrize("record", [{}, {"reason": "damaged"}, {"kinds": []}, {"kinds": 7}, {"kinds": [{}]}, [], None])
def test_without_such_a_record_nothing_is_said_of_it(record: object) -> None:
    assert recorded_collectives(with_record(record)) == ""


def test_the_ledger_has_it_below_its_sentence(tmp_path: Path) -> None:
    put(tmp_path, with_record({"kinds": [BUCKET]}))
    (ledger,) = ledgers(results(load([tmp_path])))
    (line,) = [line for line in notes(ledger) if "torch's record" in line]
    assert line == "a step of rank 0 by torch's record: 4 × all-reduce of 26.2 MB"
