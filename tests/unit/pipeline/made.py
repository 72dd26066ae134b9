"""Traces of pipeline operations whose times are known: a schedule with one forward and one backward in turn (1F1B)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

Key = tuple[str, int, int]
"""Kind, stage, number."""
Seconds = Callable[[str, int, int, int, int], float]
"""The time of an operation by kind, stage, number, step and data-parallel rank."""
FIXED = {
    "params-all-gather": 0.5, "forward-compute": 1.0, "backward-compute": 2.0, "send": 0.5, "gc": 0.0,
    "layernorm-grads-all-reduce": 0.0, "embedding-grads-all-reduce": 0.25, "grads-reduce-scatter": 0.25,
    "optimizer-clip-main-grad": 0.25, "optimizer": 0.5,
}  # fmt: skip
END = ("gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "grads-reduce-scatter",
       "optimizer-clip-main-grad", "optimizer")  # fmt: skip


def fixed(kind: str, stage: int, number: int, step: int, dp_rank: int) -> float:
    """FIXED for every operation."""
    return FIXED["send" if kind.endswith(("send", "recv")) else kind]


def slow(seconds: Seconds, factor: float, *, stage: int | None = None, dp_rank: int | None = None) -> Seconds:
    """Times of which the computations of a stage, a data-parallel rank or a worker are so many times as long."""

    def slowed(kind: str, at: int, number: int, step: int, rank: int) -> float:
        hit = kind.endswith("-compute") and stage in (None, at) and dp_rank in (None, rank)
        return seconds(kind, at, number, step, rank) * (factor if hit else 1)

    return slowed


def columns(
    seconds: Seconds = fixed, *, stages: int = 2, dp_ranks: int = 2, micro_batches: int = 1, steps: int = 1
) -> dict[str, list[Any]]:  # fmt: skip
    """The columns of a trace without gaps between operations; step n begins at 1000·n s."""
    rows: dict[str, list[Any]] = {
        name: [] for name in ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc")
    }
    for step in range(steps):
        for (key, dp_rank), (start, end) in _times(seconds, stages, dp_ranks, micro_batches, step).items():
            kind, stage, number = key
            of_chunk = 0 if kind.endswith("-compute") else -1
            row = (dp_rank, stage, stage * dp_ranks + dp_rank, step, kind, 1000 * step + start, end - start, number,
                   of_chunk)  # fmt: skip
            for name, value in zip(rows, row, strict=True):
                rows[name].append(value)
    return rows


def write(path: Path, rows: dict[str, list[Any]] | pa.Table) -> Path:
    """The file with these columns."""
    parquet.write_table(rows if isinstance(rows, pa.Table) else pa.table(rows), path)
    return path


def _times(
    seconds: Seconds, stages: int, dp_ranks: int, micro_batches: int, step: int
) -> dict[tuple[Key, int], tuple[float, float]]:  # fmt: skip
    """Start and end of each operation of each data-parallel rank: all are moved back until none starts too early."""
    before = _before(stages, micro_batches)
    times = {(key, rank): (0.0, 0.0) for key in before for rank in range(dp_ranks)}
    while True:
        changed = False
        starts = {
            (key, rank): max((times[earlier, rank][1] for earlier in before[key]), default=0.0) for key, rank in times
        }
        for (kind, stage, number), rank in times:
            met = [starts[key, other] for key, other in _met(kind, stage, number, rank, stages, dp_ranks)]
            at = (kind, stage, number), rank
            new = starts[at], max(met) + seconds(kind, stage, number, step, rank)
            changed |= new != times[at]
            times[at] = new
        if not changed:
            return times


def _before(stages: int, micro_batches: int) -> dict[Key, list[Key]]:
    """What each operation follows on its own worker."""
    before: dict[Key, list[Key]] = {}
    for stage in range(stages):
        previous: Key = ("params-all-gather", stage, 0)
        before[previous] = []
        warmup = min(micro_batches, stages - stage - 1)
        order = [("forward", number) for number in range(warmup)]
        for number in range(micro_batches - warmup):
            order += [("forward", warmup + number), ("backward", number)]
        order += [("backward", number) for number in range(micro_batches - warmup, micro_batches)]
        for way, number in order:
            key = (f"{way}-compute", stage, number)
            before[key] = [previous]
            previous = key
            if stage != (0 if way == "forward" else stages - 1):
                recv = (f"{way}-recv", stage, number)
                before[key].append(recv)
                before[recv] = [(kind, stage, number - 1) for kind in (f"{way}-compute", f"{way}-recv") if number]
            if stage != (stages - 1 if way == "forward" else 0):
                before[f"{way}-send", stage, number] = [key, *([(f"{way}-send", stage, number - 1)] if number else [])]
        for kind in END:
            if kind != "embedding-grads-all-reduce" or stage in (0, stages - 1):
                before[kind, stage, 0] = [previous]
                previous = (kind, stage, 0)
    return before


def _met(kind: str, stage: int, number: int, rank: int, stages: int, dp_ranks: int) -> list[tuple[Key, int]]:
    """The operations that an operation begins to work with, itself among them."""
    ranks, at = [rank], [(kind, stage)]
    if kind in ("params-all-gather", "grads-reduce-scatter", "optimizer-clip-main-grad"):
        ranks = [*range(dp_ranks)]
    if kind == "optimizer-clip-main-grad":
        at = [(kind, other) for other in range(stages)]
    if kind == "embedding-grads-all-reduce":
        at = [(kind, other) for other in {0, stages - 1}]
    way, _, end = kind.partition("-")
    if end in ("send", "recv"):
        towards = (1 if way == "forward" else -1) * (1 if end == "send" else -1)
        at.append((f"{way}-{'recv' if end == 'send' else 'send'}", stage + towards))
    return [((met, other, number), each) for met, other in at for each in ranks]
