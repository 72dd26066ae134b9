"""parse.ledger.input: whether steps wait for input from files, and the cause that its line names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpc.model.options import INPUT_FIGURES
from hpc.model.timestamps import ABSENT
from hpc.model.trace import Trace
from hpc.model.trace_file import open_trace
from parse.ledger.input import InputCause, InputReading, input_of_point, reduce_input
from parse.say.evidence import input_text, input_words
from tests.unit.traces import make_ranks, make_run, make_trace, put

MS = 1_000_000
STEP_MS = 100


def traced(
    *, workers: int = 2, work_ms: float = 60, reading_ms: float = 5, processor_ms: float = 55, late_ms: float = 0,
    workers_are: str = "processes", ranks: int = 1, **changes: Any,
) -> Trace:  # fmt: skip
    """Steps of 100 ms that ask at their begin; a batch is done `late_ms` after that, or, below 0, before it."""
    run = make_run(nodes=ranks, backend="torch-ddp", workload="resnet50", data="imagefolder:/x", **changes)
    figures = np.zeros((ranks, run.steps, len(INPUT_FIGURES)), np.int64)
    requested = np.arange(run.steps) * STEP_MS * MS + 10**12
    done = requested + round(late_ms * MS)
    figures[:] = np.stack(
        [requested, np.maximum(requested, done) + MS, done - round(work_ms * MS), done,
         *(np.full(run.steps, round(ms * MS)) for ms in (reading_ms, work_ms - reading_ms, processor_ms))], -1
    )  # fmt: skip
    facts = {"workers": workers, "prefetched_batches": 2 * workers, "workers_are": workers_are}
    return make_trace(
        run, input=figures, input_names=INPUT_FIGURES, ranks=make_ranks(run, input=facts), step_s=STEP_MS / 1e3
    )


def reading_of(*traces: Trace) -> InputReading:
    readings = [reduce_input(trace) for trace in traces]
    point = input_of_point([reading for reading in readings if reading is not None], STEP_MS)
    assert point is not None
    return point


def line(trace: Trace) -> str:
    reading = reading_of(trace)
    return ". ".join((input_text(reading), *input_words(reading)))


def test_input_that_is_ready_has_no_cause() -> None:
    reading = reading_of(traced(late_ms=-250))
    assert (reading.cause, reading.late, reading.late_share) == (None, 0, 0)
    assert reading.busy == pytest.approx(0.3) and reading.work == 60 and reading.decoding == 55
    assert reading.ready == 3  # done 250 ms before: this one, the next, and the one after
    assert input_text(reading) == (
        "input is ready when a step needs it, 3.0 batches on average; 2 workers per rank busy 30 % of the time"
    )


def test_only_the_window_counts() -> None:
    trace = traced(late_ms=-250)
    assert trace.input is not None
    trace.input[:, : trace.run.warmup_steps, 3] += 500 * MS
    assert reading_of(trace).late == 0


@pytest.mark.parametrize(
    ("figures", "cause", "text"),
    [
        ({"work_ms": 195, "processor_ms": 190}, InputCause.WORKERS,
         "input is late by 30.0 ms a step, in 100 % of the steps, with 2 workers per rank busy 98 % of the time. A "
         "batch takes 195 ms, 3 % of it for reading files. 2 workers per rank are too few: 3 with cores of their own "
         "would keep up. --option workers=3"),
        ({"work_ms": 195, "reading_ms": 120, "processor_ms": 70}, InputCause.STORAGE,
         "62 % of it for reading files. Storage is slow: 62 % of the 195 ms"),
        ({"work_ms": 195, "processor_ms": 95}, InputCause.CORES,
         "decodes has a core for 50 % of the time. Too few cores for the rank and its 2 workers"),
        ({"work_ms": 100}, InputCause.BURSTS, "reading files. Single batches come late, as where an epoch begins: "),
        ({"workers": 0, "work_ms": 30}, InputCause.NO_WORKERS,
         "The rank reads and decodes its batches itself. --option workers=N"),
    ],
    ids=lambda value: str(value) if isinstance(value, InputCause) else "",
)  # fmt: skip
def test_the_cause_of_late_input_is_named(figures: dict[str, Any], cause: InputCause, text: str) -> None:
    trace = traced(late_ms=30, **figures)
    assert reading_of(trace).cause is cause
    assert text in line(trace)


def test_threads_that_share_a_batch_are_busy_for_what_they_all_took() -> None:
    trace = traced(workers_are="threads", work_ms=150, processor_ms=60, late_ms=30)
    assert trace.input is not None
    trace.input[:, :, 2] = trace.input[:, :, 3] - 90 * MS  # two threads made 150 ms of work in 90 ms
    reading = reading_of(trace)
    assert reading.busy == pytest.approx(0.75) and reading.work == 150 and reading.threads
    trace = traced(workers_are="threads", work_ms=195, processor_ms=95, late_ms=30)
    assert "has a core for 50 % of the time, or its threads wait for each other in Python. Too few cores" in line(trace)


def test_a_hundredth_of_a_step_is_not_late() -> None:
    assert reading_of(traced(late_ms=0.9)).cause is None
    assert reading_of(traced(late_ms=1.1)).cause is not None


def test_ranks_blocks_and_runs_are_averaged() -> None:
    two = traced(late_ms=20, ranks=2, measured_steps=20, block_steps=10)
    assert two.input is not None
    two.input[1, :, 2:4] += 20 * MS
    assert reading_of(two).late == pytest.approx(30)
    assert reading_of(two, traced(late_ms=10)).late == pytest.approx(20)


def test_figures_in_the_file_are_read_as_those_in_memory(tmp_path):
    trace = traced(late_ms=30, ranks=2, measured_steps=20, block_steps=10)
    with open_trace(put(tmp_path, trace)) as opened:
        assert reduce_input(opened) == reduce_input(trace)


def test_runs_without_figures_have_no_reading() -> None:
    assert reduce_input(make_trace()) is None
    trace = traced()
    assert trace.input is not None
    trace.input[0, -1, 0] = ABSENT
    assert reduce_input(trace) is None
    assert input_of_point([], STEP_MS) is None
    different = [reading for workers in (1, 2) if (reading := reduce_input(traced(workers=workers)))]
    assert len(different) == 2 and input_of_point(different, STEP_MS) is None
