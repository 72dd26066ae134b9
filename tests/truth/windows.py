"""Long runs cut into windows, each a run by itself, so that a point costs no start of its own; and their ledgers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hpc.model.trace import Trace
from hpc.model.trace_file import write_trace
from parse.ledger.point import ledgers
from parse.ledger.types import Ledger
from parse.runs.load import load
from parse.runs.result import results


def cut(trace: Trace, window: int, apart: int = 0) -> list[Trace]:
    """The run's windows of so many steps, `apart` steps between two of them, each after as many warm-up steps as the
    run has: those before it."""
    first, stop = trace.run.warmup_steps, trace.stamps.shape[1]
    return [_from(trace, at - first, at + window) for at in range(first, stop - window + 1, window + apart)]


def _from(trace: Trace, begin: int, stop: int) -> Trace:
    steps = stop - begin
    run = replace(trace.run, measured_steps=steps - trace.run.warmup_steps, block_steps=0)
    return replace(
        trace, run=run, run_id="", point_id="", stamps=trace.stamps[:, begin:stop],
        samples=trace.samples[:, begin:stop], losses=trace.losses[:, begin:stop],
        steps_completed=np.full(run.ranks, steps),
        blocks=np.array(run.blocks, np.int64),
        injected_ns=None if trace.injected_ns is None else trace.injected_ns[:, begin:stop],
        meetings=None if trace.meetings is None else trace.meetings[:, begin:stop],
        input=None if trace.input is None else trace.input[:, begin:stop],
        host_bound_ns=None if trace.host_bound_ns is None else trace.host_bound_ns[:, begin:stop],
    )  # fmt: skip


def ledger_of(runs: Sequence[Trace], folder: Path) -> Ledger:
    """The ledger of the point of these runs, which are alike; their traces are written to `folder`."""
    folder.mkdir(parents=True)
    for repeat, trace in enumerate(runs, 1):
        its = replace(trace, run=replace(trace.run, repeat=repeat), run_id="", point_id="")
        write_trace(folder / f"{its.run_id}.1.h5", its)
    (ledger,) = ledgers(results(load([folder])))
    return ledger
