"""Times of a device against the truth, on the simulated accelerator: a few samples of what `make truth` has more of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpc.observe import events as e
from hpc.observe.device_clock import ENOUGH_NS
from hpc.observe.device_times import with_device_times
from hpc.observe.steps import steps_of
from hpc.run.script_steps import clock_contradiction
from tests.simulated_device import MS
from tests.simulated_training import START_NS, VirtualRun, train


def wrong_times(runs: list[VirtualRun]) -> list[int]:
    """How many of each rank's times lie outside of their bound."""
    wrong = []
    for run in runs:
        times = with_device_times(run.recorded)
        assert len(times.bounds_ns) > 0.99 * len(run.true_ns)
        errors = {at: abs(times.events[at].done_ns - run.true_ns[at]) for at in times.bounds_ns}
        wrong.append(sum(error > times.bounds_ns[at] for at, error in errors.items()))
    return wrong


@pytest.mark.parametrize("ahead", [1, 5, 20])
def test_times_lie_within_their_bounds_however_far_the_host_is_ahead(tmp_path: Path, ahead: int) -> None:
    runs = train(tmp_path, steps=150, ahead=ahead, rate=50e-6)
    assert wrong_times(runs) == [0, 0]
    assert all(run.errors == [] for run in runs)


def test_a_full_device_holds_no_host_back_and_times_stay_right(tmp_path: Path) -> None:
    """For 10 s no anchor is had: the host waits a millisecond for each that it tries, and goes on."""
    held = (START_NS + 2_000 * MS, START_NS + 12_000 * MS)
    usual = train(tmp_path / "usual", steps=1000)
    runs = train(tmp_path / "held", steps=1000, held=[held])
    assert wrong_times(runs) == [0, 0]
    for run, without in zip(runs, usual, strict=True):
        later_ns = run.device.clock.now_ns() - without.device.clock.now_ns()
        assert later_ns < 12 * ENOUGH_NS
        inside = [
            bound
            for at, bound in with_device_times(run.recorded).bounds_ns.items()
            if held[0] <= run.true_ns[at] < held[1]
        ]
        assert len(inside) > 1000
        assert max(inside) < 0.3 * MS


@pytest.mark.parametrize("by_ns", [60_000, -60_000, 3 * MS, -3 * MS])
def test_a_clock_that_jumps_is_an_alarm_and_no_number(tmp_path: Path, by_ns: int) -> None:
    runs = train(tmp_path, steps=300, jumps=[(START_NS + 3_000 * MS, by_ns)])
    for run in runs:
        times = with_device_times(run.recorded)
        assert any("contradict" in remark for remark in times.remarks)
        assert times.contradiction is not None and 0 < times.contradiction.events < times.contradiction.of_events
        assert times.contradiction.off_ns == pytest.approx(abs(by_ns), abs=0.3 * MS)
        contradiction = clock_contradiction(steps_of(run.recorded))
        assert contradiction is not None and 0 < contradiction["steps"] < contradiction["of_steps"] <= 300
        assert all(abs(times.events[at].done_ns - run.true_ns[at]) <= bound for at, bound in times.bounds_ns.items())


def test_an_anchor_during_which_the_host_lost_its_core_moves_no_time(tmp_path: Path) -> None:
    """One of the anchors is 20 ms wide, the events beside it have no wider bounds."""
    (run, _), (beside, _) = train(tmp_path, steps=300), train(tmp_path / "beside", steps=300)
    anchors = [at for at, record in enumerate(run.recorded.device) if record.kind == e.DEVICE_ANCHOR]
    device = list(run.recorded.device)
    middle = anchors[len(anchors) // 2]
    device[middle] = device[middle]._replace(ns=device[middle].ns - 18 * MS, number=20 * MS)
    wide = replace(run, recorded=run.recorded._replace(device=device))
    assert wrong_times([wide]) == [0]
    bounds = with_device_times(wide.recorded).bounds_ns
    assert max(bounds.values()) < 2 * max(with_device_times(beside.recorded).bounds_ns.values())
