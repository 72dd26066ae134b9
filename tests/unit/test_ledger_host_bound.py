"""The line of a ledger that says how far a device waits for its host."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from hpc.model.trace import Trace
from hpc.observe.stamps import PHASES
from parse.ledger.host_bound import host_bound
from parse.ledger.notes import notes
from parse.ledger.point import ledgers
from parse.runs.load import load
from parse.runs.result import results
from tests.unit.traces import make_run, make_trace, put

FOUR = make_run(nodes=2, ranks_per_node=2)


def record(compute: float = 4.0, syncs: float = 1.0, **changes: Any) -> dict[str, Any]:
    phases = dict(zip(PHASES, (0.5, compute, 0.0, 0.25), strict=True))
    return {"ms": phases, "step_ms": 20.0, "compute_ms": 12.0, "syncs": syncs, "steps": 100, **changes}


def with_records(*records: object) -> Trace:
    """A trace whose ranks have these records."""
    trace = make_trace(FOUR)
    ranks = [{**report, "script": {"host_bound": its}} for report, its in zip(trace.ranks, records, strict=False)]
    return dataclasses.replace(trace, ranks=[*ranks, *trace.ranks[len(ranks) :]])


def test_the_ledger_names_the_rank_whose_device_waits_most(tmp_path: Path) -> None:
    put(tmp_path, with_records(record(2.0), record()))
    (ledger,) = ledgers(results(load([tmp_path])))
    (line,) = [line for line in notes(ledger) if "waits for its host" in line]
    assert line == (
        "the device waits for its host in 21% of a step of rank 1: compute 12 ms, of it host-bound 4 ms, and "
        "0.25 ms of the optimizer's (CUDA graphs or torch.compile, fewer and larger kernels, no .item() in every "
        "step); the script waits for its device 1 times a step; input that it waits for is data"
    )


@pytest.mark.parametrize(
    "its",
    [
        record(0.5), None, [], {}, {"ms": 3}, record(ms={}), record(step_ms=0.0), record(step_ms=float("nan")),
        record(syncs=-1), record(compute_ms="12"),
    ],
)  # fmt: skip
def test_where_none_waits_or_the_record_is_none_nothing_is_said(its: object) -> None:
    assert host_bound(with_records(its)) == ""
