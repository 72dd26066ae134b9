"""Files that are no trace of pipeline operations, or not a whole one, are refused with the reason."""

from __future__ import annotations

import math
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from parse.pipeline import read
from parse.pipeline.read import PipelineTraceError, read_pipeline_trace
from parse.pipeline.result import pipeline_result
from tests.unit.pipeline.made import columns, write

REDUCED = Path(__file__).parent / "ST-3-steps.parquet"
Rows = dict[str, list[Any]]


def row_of(rows: Rows, kind: str, **values: int) -> int:
    """The place of the first operation of a kind with these values."""
    return next(
        at for at, each in enumerate(rows["optype"])
        if each == kind and all(rows[name][at] == value for name, value in values.items())
    )  # fmt: skip


def without(rows: Rows, *kinds: str, **values: int) -> Rows:
    """The rows without those of these kinds with these values."""
    remaining = [
        at for at, kind in enumerate(rows["optype"])
        if kind not in kinds or any(rows[name][at] != value for name, value in values.items())
    ]  # fmt: skip
    return {name: [column[at] for at in remaining] for name, column in rows.items()}


def changed(rows: Rows, column: str, value: object, at: int = 5) -> Rows:
    return rows | {column: [value if place == at else each for place, each in enumerate(rows[column])]}


def repeated(rows: Rows) -> Rows:
    return {name: [*column, column[7]] for name, column in rows.items()}


def turned_round(rows: Rows) -> Rows:
    """The backward pass of stage 0 is recorded before its forward pass, in all steps and ranks."""
    late = {"forward-compute": 500.0}
    return rows | {"start_ts": [
        start + (late.get(kind, 0.0) if stage == 0 else 0.0)
        for start, kind, stage in zip(rows["start_ts"], rows["optype"], rows["stage"], strict=True)
    ]}  # fmt: skip


REFUSED: dict[str, tuple[Callable[[Rows], Rows], str]] = {
    "no column": (lambda rows: {name: rows[name] for name in rows if name not in ("mc", "step")}, "missing: step, mc"),
    "no row": (lambda rows: {name: pa.array([], pa.table(rows)[name].type) for name in rows}, "holds no operation"),
    "texts for numbers": (lambda rows: rows | {"stage": [str(stage) for stage in rows["stage"]]}, "column stage holds"),
    "numbers for kinds": (lambda rows: rows | {"optype": rows["stage"]}, "column optype holds int64, not texts"),
    "whole times": (lambda rows: rows | {"duration": rows["stage"]}, "column duration holds int64"),
    "an empty value": (lambda rows: changed(rows, "duration", None), "column duration has empty values"),
    "NaN": (lambda rows: changed(rows, "duration", math.nan), "column duration has values that are no seconds"),
    "infinity": (lambda rows: changed(rows, "start_ts", -math.inf), "column start_ts has values that are no seconds"),
    "nanoseconds": (lambda rows: changed(rows, "start_ts", 1.7e18), "column start_ts has values that are no seconds"),
    "a negative time": (lambda rows: changed(rows, "duration", -1.0), "column duration has negative values"),
    "no time": (lambda rows: rows | {"duration": [0.0] * len(rows["stage"])}, "no operation takes any time"),
    "a negative stage": (lambda rows: changed(rows, "stage", -1), "column stage has -1"),
    "an absent stage": (lambda rows: rows | {"stage": [2 * stage for stage in rows["stage"]]}, "2 stages, numbered up"),
    "a huge stage": (lambda rows: changed(rows, "stage", 2**62), "stages, numbered up to"),
    "an unknown kind": (lambda rows: changed(rows, "optype", "\x1b[2Jsend"), "operations of kind \x1b[2Jsend are not"),
    "several chunks": (lambda rows: changed(rows, "mc", 1), "several chunks of the model"),
    "several ranks": (lambda rows: changed(rows, "rank", 77), "operations of several ranks"),
    "an operation twice": (repeated, "is there 2 times in step 0"),
    "an operation too few": (
        lambda rows: without(rows, "gc", stage=1, step=1, dp_rank=1),
        "gc 0 of stage 1 is there 0 times in step 1 of data-parallel rank 1",
    ),
    "no compute": (lambda rows: without(rows, "forward-compute", stage=1), "stage 1 has no forward-compute"),
    "too few transfers": (lambda rows: without(rows, "forward-recv", seq_id=1), "stage 1 has 1 forward-recv for 2"),
    "nobody receives": (lambda rows: without(rows, "forward-recv"), "stage 0 has 2 forward-send, and 0 forward-recv"),
    "nobody sends": (lambda rows: without(rows, "backward-send"), "stage 1 has 0 backward-send, and 2 backward-recv"),
    "clips on one stage": (lambda rows: without(rows, "optimizer-clip-main-grad", stage=0), "stages differ in the"),
    "another order in one step": (
        lambda rows: changed(
            rows, "start_ts", 5000.0, row_of(rows, "forward-compute", stage=0, step=1, dp_rank=0, seq_id=0)
        ),
        "does not compute in the same order",
    ),
    "a circle": (turned_round, "wait for one another in a circle"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_whole_trace_is_refused(tmp_path: Path, what: str) -> None:
    change, reason = REFUSED[what]
    path = write(tmp_path / "trace.parquet", change(columns(micro_batches=2, steps=2)))
    with pytest.raises(PipelineTraceError) as refusal:
        pipeline_result(read_pipeline_trace(path))
    assert reason in str(refusal.value) and "\n" not in str(refusal.value)


def test_the_trace_that_is_changed_above_is_read(tmp_path: Path) -> None:
    trace = read_pipeline_trace(write(tmp_path / "trace.parquet", columns(micro_batches=2, steps=2)))
    assert (trace.stages, trace.steps, trace.dp_ranks) == (2, (0, 1), (0, 1))
    assert trace.ranks.tolist() == [[0, 2], [1, 3]]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.table(columns())
    path = write(tmp_path / "trace.parquet", table.append_column("stage", table["stage"]))
    with pytest.raises(PipelineTraceError, match="several columns stage"):
        read_pipeline_trace(path)


def test_columns_that_are_not_used_are_not_read(tmp_path: Path) -> None:
    table = pa.table(columns())
    path = write(tmp_path / "trace.parquet", table.append_column("mb_id", pa.array([{"x": 1}] * len(table))))
    assert read_pipeline_trace(path).stages == 2


@pytest.mark.parametrize("texts", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
@pytest.mark.parametrize("whole", [pa.int8(), pa.uint64()])
def test_narrow_and_wide_columns_are_read(tmp_path: Path, texts: pa.DataType, whole: pa.DataType) -> None:
    table = pa.table(columns())
    for name, kind in (("optype", texts), ("stage", whole), ("duration", pa.float32())):
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(kind))
    assert pipeline_result(read_pipeline_trace(write(tmp_path / "trace.parquet", table))).operations == table.num_rows


@pytest.mark.parametrize(
    ("limit", "refused"),
    [("MAX_OPERATIONS", "it holds 44 operations"), ("MAX_OF_A_STEP", "a step has 22 operations")],
)
def test_more_operations_than_the_memory_holds_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, refused: str
) -> None:
    path = write(tmp_path / "trace.parquet", columns())
    monkeypatch.setattr(read, limit, 10)
    with pytest.raises(PipelineTraceError, match=f"{refused}; 10 are read at most"):
        read_pipeline_trace(path)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1PAR1", b"time,stage\n1,2\n", bytes(range(256)) * 16])
def test_what_is_no_parquet_is_refused(tmp_path: Path, content: bytes) -> None:
    (path := tmp_path / "trace.parquet").write_bytes(content)
    with pytest.raises(PipelineTraceError, match="it cannot be read as Parquet"):
        read_pipeline_trace(path)


def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    """300 files with some bytes changed, or cut off: never another error, never without a reason."""
    content, path, refused = REDUCED.read_bytes(), tmp_path / "trace.parquet", 0
    for seed in range(300):
        chance = random.Random(seed)
        damaged = bytearray(content[: chance.choice((len(content), chance.randrange(len(content))))])
        for _ in range(chance.choice((1, 1, 3, 20))):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            pipeline_result(read_pipeline_trace(path))
        except PipelineTraceError as error:
            refused += 1
            assert str(error) and "\n" not in str(error)
    assert refused > 200


@pytest.mark.parametrize(
    ("offset", "byte", "reason"),
    [(766, 230, "Dictionary indices invalid"), (274, 1, "it holds no operation"), (7560, 249, "it holds no operation")],
)
def test_one_byte_that_pyarrow_overlooks_is_noticed(tmp_path: Path, offset: int, byte: int, reason: str) -> None:
    """A kind that is not in its dictionary; rows that the footer promises and that are not there."""
    damaged = bytearray(REDUCED.read_bytes())
    damaged[offset] = byte
    (path := tmp_path / "trace.parquet").write_bytes(damaged)
    with pytest.raises(PipelineTraceError, match=reason):
        read_pipeline_trace(path)


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PipelineTraceError, match=r"pyarrow.* is not installed here: pip install -e '\.\[parquet\]'"):
        read_pipeline_trace(REDUCED)


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "trace.parquet")
    with pytest.raises(OSError, match="no regular file"):
        read_pipeline_trace(path)


def test_the_reduced_trace_has_its_columns() -> None:
    assert parquet.read_metadata(REDUCED).num_rows == 636
