"""Step times, delays and telemetry of a run as the page reads them from its trace."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from hpc.model.outcome import Outcome
from hpc.model.timestamps import ABSENT, GRADS_READY
from hpc.model.trace import TraceError
from parse.page.points import BINS, ROWS, read_run
from tests.unit.ledger_traces import on, run_of, trace_of
from tests.unit.page_folders import with_telemetry
from tests.unit.traces import cut_short, make_run, make_trace, put


def test_step_times_are_those_between_latest_ends_warm_up_included(tmp_path: Path) -> None:
    step_s = [0.1] * 5 + [0.2, 0.3] + [0.1] * 8
    reading = read_run(put(tmp_path, make_trace(step_s=step_s)), with_ranks=True)
    assert reading.times.first.tolist() == list(range(1, 15))
    assert reading.times.mean_ms.tolist() == pytest.approx([1e3 * value for value in step_s[1:]])
    assert reading.times.blocks == ((5, 15),) and reading.delays is None


def test_many_steps_are_binned_and_the_longest_of_each_bin_stays(tmp_path: Path) -> None:
    run = make_run(measured_steps=3 * BINS)
    step_s = np.full(run.steps, 0.01)
    step_s[400] = 0.5
    times = read_run(put(tmp_path, make_trace(run, step_s=step_s.tolist())), with_ranks=False).times
    assert len(times.first) <= BINS and times.width == 4
    assert times.max_ms.max() == pytest.approx(500) and times.mean_ms.max() == pytest.approx((500 + 30) / 4)
    at = int(times.max_ms.argmax())
    assert times.first[at] <= 400 < times.first[at] + times.width


def test_the_late_rank_is_behind_the_median_and_the_others_are_not(tmp_path: Path) -> None:
    delays = read_run(put(tmp_path, trace_of(run_of(), backward=on(3, ms=6.0))), with_ranks=True).delays
    assert delays is not None and delays.delay_ms.shape == (4, 45)
    late = np.median(delays.delay_ms, axis=1)
    assert late[3] == pytest.approx(6.0, abs=0.1) and np.abs(late[:3]).max() < 0.1


def test_rows_of_a_heat_map_are_bounded_and_keep_the_latest_rank(tmp_path: Path) -> None:
    run = run_of(nodes=2, ranks_per_node=ROWS + 1)
    delays = read_run(put(tmp_path, trace_of(run, backward=on(200, ms=6.0))), with_ranks=True).delays
    assert delays is not None and len(delays.delay_ms) <= ROWS and delays.ranks_per_row == 3
    assert delays.delay_ms.mean(axis=1).argmax() == 200 // 3


def test_delays_are_absent_where_stamps_are(tmp_path: Path) -> None:
    trace = trace_of(run_of())
    stamps = trace.stamps.copy()
    stamps[1, 7, GRADS_READY] = ABSENT
    reading = read_run(put(tmp_path, dataclasses.replace(trace, stamps=stamps)), with_ranks=True)
    assert reading.delays is None and len(reading.times.first)


def test_a_run_that_ended_early_has_the_steps_that_it_made(tmp_path: Path) -> None:
    path = put(tmp_path, cut_short(make_trace(), 4, Outcome.TIMEOUT))
    assert read_run(path, with_ranks=False).times.first.tolist() == [1, 2, 3]


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_without_two_steps_has_no_step_time(tmp_path: Path, steps: int) -> None:
    times = read_run(put(tmp_path, cut_short(make_trace(), steps, Outcome.TIMEOUT)), with_ranks=True).times
    assert not len(times.first)


def test_telemetry_lies_at_the_steps_of_its_moments(tmp_path: Path) -> None:
    trace = with_telemetry(trace_of(run_of()), samples=11)
    clock, power = read_run(put(tmp_path, trace), with_ranks=True).courses
    assert clock.quantity.name == "SM clock" and clock.hosts == ("n0", "n1")
    assert clock.steps[0][0] == 0 and clock.steps[0][-1] == trace.run.steps - 1
    assert (np.diff(clock.steps[0]) > 0).all()
    assert clock.values[0].tolist() == [1980.0] * 11 and clock.values[1].tolist() == [1500.0] * 11
    assert power.values[0].tolist() == [480.0 + 3 * at for at in range(11)]


def test_a_counter_is_shown_as_its_rate(tmp_path: Path) -> None:
    trace = with_telemetry(trace_of(run_of()))
    assert trace.telemetry is not None
    counted = np.cumsum(np.ones(trace.telemetry.values.shape[:2]), axis=1)[:, :, None] * 1000
    telemetry = dataclasses.replace(trace.telemetry, values=counted, series=["local_rank0.minor_faults"])
    (course,) = read_run(put(tmp_path, dataclasses.replace(trace, telemetry=telemetry)), with_ranks=True).courses
    span_s = np.diff(telemetry.local_ns[0]) / 1e9
    assert course.values[0].tolist() == pytest.approx((1000 / span_s).tolist())


def test_a_file_that_is_no_trace_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.h5").write_bytes(b"nothing")
    with pytest.raises(TraceError, match=r"x\.h5"):
        read_run(tmp_path / "x.h5", with_ranks=True)
