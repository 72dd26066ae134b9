"""parse.alarms.table on runs read from logs: the same rules, worded for logs, each rung once and quiet once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hpc.model.outcome import Outcome
from parse.alarms.table import judge
from parse.attempt import Attempt, FromLog, Machine, Measured, RequestedRun
from parse.load import Loaded
from parse.result import Result, results
from tests.unit.test_alarms import rung
from tests.unit.traces import make_run

FIVE = [100.0, 100.5, 101.0, 99.5, 99.0]
NEVER_TOLD = ("ranks_per_node", "cpus_per_rank", "scaling", "seed", "site", "timing")


def read(
    devices: int = 1,
    repeat: int = 1,
    *,
    speed: float | None = 100.0,
    printed: float | None = None,
    wall_clock: float | None = None,
    step_s: Sequence[float] = (),
    printed_every: int = 1,
    clock_share: float = 0.0,
    remarks: tuple[str, ...] = (),
    problem: str = "",
    samples: int = 1,
    unknown: tuple[str, ...] = (),
    **facts: str,
) -> Attempt:
    """An attempt as the readers of logs make them."""
    run = make_run(gpus_per_node=devices, ranks_per_node=devices, backend="plsc", repeat=repeat)
    asked = RequestedRun(
        run=run, run_id=f"{devices}_{repeat}", extra={"folder": "logs"}, unknown=(*unknown, *NEVER_TOLD)
    )
    measured = speed and Measured(
        throughput=speed, mean_of_rates=printed, step_s=np.array(step_s, np.float64), samples=samples,
        clock_share=clock_share, printed_every=printed_every,
    )  # fmt: skip
    return Attempt(
        run_id=asked.run_id, number=1, requested=asked, outcome=Outcome.OK if speed else None,
        measured=measured or None,
        machine=Machine(ranks=devices, facts={name: (value,) for name, value in facts.items()}), problem=problem,
        log=FromLog(
            path=Path("a.log"), log_format="plsc", window="steps 20 to 120", wall_clock=wall_clock, printed=printed,
            remarks=remarks,
        ),
    )  # fmt: skip


def judged(*attempts: Attempt) -> tuple[Result, ...]:
    return judge(results(Loaded(attempts=attempts, requested=(), reduced=(), refusals=(), remarks=())))


def scaled(**speeds: Sequence[float]) -> tuple[Result, ...]:
    """Points 1n<N>g with those speeds: `scaled(g1=[…], g8=[…])`."""
    return judged(
        *(
            read(int(name[1:]), repeat, speed=speed)
            for name, there in speeds.items()
            for repeat, speed in enumerate(there, 1)
        )
    )


def times(factor: float) -> list[float]:
    return [factor * speed for speed in FIVE]


def test_clean_logs_ring_nothing():
    found = scaled(g1=FIVE, g2=times(1.95), g4=times(3.8))
    assert [result.alarms for result in found] == [(), (), ()]
    assert [result.speedup for result in found] == pytest.approx([1, 1.95, 3.8])


def test_logs_scale_by_the_same_rules():
    # PLSC's 1n8g with start-up lines averaged in: per device less than on 2n8g, though no case is superlinear.
    found = scaled(g1=times(3.9778), g8=times(25.453), g16=times(59.5384))
    assert [len(rung(found, name)) for name in ("rising", "superlinear", "falling")] == [1, 0, 0]
    assert len(rung(scaled(g1=FIVE, g2=times(2.2)), "superlinear")) == 1
    assert len(rung(scaled(g1=FIVE, g8=times(6.9), g16=times(6.0)), "falling")) == 1


def test_average_and_median_of_logs_apart():
    assert len(rung(scaled(g8=[2833.72, 688.8, 2808.11, 2806.66, 701.07]), "average_and_median")) == 1
    assert rung(scaled(g8=FIVE), "average_and_median") == []


def test_what_a_log_prints_against_its_time_stamps():
    # PLSC 2 with reader time and validation in the whole log: what its lines print leaves both out.
    (said,) = rung(judged(read(speed=6186.91, printed=6870.24, wall_clock=6186.91)), "rates_and_wall_clock")
    assert said == (
        "run 1: its log prints 6870.24 samples/s on average, +11.0% from the 6186.91 by its time stamps; "
        "the time stamps' speed is the result"
    )
    for quiet in (
        read(speed=100, printed=100.9, wall_clock=100),
        read(speed=110, printed=110, wall_clock=None),
        read(speed=100, printed=None, wall_clock=100),
        read(speed=100, printed=None, wall_clock=None),
    ):
        assert rung(judged(quiet), "rates_and_wall_clock") == []


def test_the_run_whose_two_speeds_are_furthest_apart_is_named():
    two = [read(repeat=n, speed=100, printed=100 * apart, wall_clock=100) for n, apart in ((1, 1.02), (2, 0.9))]
    (said,) = rung(judged(*two), "rates_and_wall_clock")
    assert said.startswith("run 2: its log prints 90.00 samples/s on average, -10.0% from")


def test_logs_of_different_versions():
    found = judged(read(repeat=1, pytorch="1.6"), read(repeat=2, pytorch="1.6"), read(repeat=3, pytorch="1.5"))
    assert rung(found, "disagreement") == ["runs or ranks differ in pytorch: 1.6 (run 1, 2); 1.5 (run 3)"]
    assert rung(judged(read(repeat=1, pytorch="1.6"), read(repeat=2, pytorch="1.6")), "disagreement") == []


def test_a_log_that_is_too_short_is_said_and_counted():
    short = read(repeat=2, speed=None, problem="it ends at step 80 of 120")
    found = judged(read(repeat=1), short, read(repeat=3))
    assert rung(found, "unmeasured") == ["run 2: it ends at step 80 of 120"]
    assert rung(found, "fewer_runs") == ["2 of 3 runs, by the numbers of their logs, have a speed; 1 no number"]
    assert found[0].median_speed == 100


def test_logs_whose_numbers_leave_one_out():
    found = judged(*(read(repeat=repeat) for repeat in (1, 2, 4, 5)))
    assert rung(found, "fewer_runs") == ["4 of 5 runs, by the numbers of their logs, have a speed; 1 missing (run 3)"]
    assert rung(judged(*(read(repeat=repeat) for repeat in (1, 2, 3))), "fewer_runs") == []
    dated = judged(*(read(repeat=repeat) for repeat in (1, 12, 22, 42)))
    assert rung(dated, "fewer_runs") == []
    unnumbered = judged(read(repeat=3, unknown=("repeat",)))
    assert rung(unnumbered, "fewer_runs") == []


def test_a_log_with_another_window_than_the_protocols_is_as_asked():
    # Printed every 100 steps, so the window is wider: 500 steps of more samples than 10 were asked for.
    found = judged(read(speed=100, samples=4000, step_s=[0.04] * 5, printed_every=100))
    assert rung(found, "not_as_asked") == []


def noise(count: int, seed: int = 0) -> np.ndarray:
    return 0.1 * np.exp(np.random.default_rng(seed).normal(0, 0.002, count))


def test_a_window_of_a_log_that_slows_down():
    drift = np.linspace(1, 1.3, 100)
    (said,) = rung(judged(read(step_s=noise(100) * drift)), "unsteady")
    assert said.startswith("the window is not steady: steps of its last third take +")
    assert rung(judged(read(step_s=noise(100))), "unsteady") == []


def test_a_log_that_prints_every_ten_steps_is_judged_over_its_runs():
    def five(drift: np.ndarray) -> list[Attempt]:
        return [read(repeat=n, step_s=noise(10, n) * drift, printed_every=10) for n in range(1, 6)]

    slowing = np.linspace(1, 1.3, 10)
    assert len(rung(judged(*five(slowing)), "unsteady")) == 1
    assert rung(judged(*five(np.ones(10))), "unsteady") == []
    # One such log has three batches in a third: too few to tell a drift from chance.
    assert rung(judged(five(slowing)[0]), "unsteady") == []


@pytest.mark.parametrize("step_s", [[], [0.1], [0.1] * 5])
def test_a_log_with_few_step_times_or_none_is_not_judged(step_s):
    (result,) = judged(read(step_s=step_s, printed_every=100))
    assert rung([result], "unsteady") == []
    assert result.step_time_ms == {}


def test_time_stamps_too_coarse_for_the_window():
    (said,) = rung(judged(read(clock_share=0.034), read(repeat=2, clock_share=0.02)), "loose_clocks")
    assert said == (
        "run 1: its window is too short for time stamps as coarse as its log's: they leave 3.4% of the speed open; "
        "--window all or more steps make it longer"
    )
    assert rung(judged(read(clock_share=0.009)), "loose_clocks") == []


def test_what_is_odd_about_logs_is_an_alarm_each():
    found = judged(
        read(repeat=1, remarks=("its name says 8 devices: the log is believed", "a pause")),
        read(repeat=2, remarks=("its name says 8 devices: the log is believed",)),
    )
    assert rung(found, "log_remarks") == [
        "run 1, 2: its name says 8 devices: the log is believed",
        "run 1: a pause",
    ]
    assert rung(judged(read()), "log_remarks") == []


def test_one_folder_of_logs_under_two_names():
    batch = [read(devices, speed=97.25 * devices) for devices in (1, 2)]
    other = []
    for attempt in batch:
        asked = attempt.requested
        assert asked
        run = dataclasses.replace(asked.run, batch_size=8)
        other.append(dataclasses.replace(attempt, requested=dataclasses.replace(asked, run=run)))
    assert rung(judged(*batch, *other), "copied") == [
        "the same figures as batch_size 8 in all 2 cases: one of the two columns is a copy, no measurement",
        "the same figures as batch_size 4 in all 2 cases: one of the two columns is a copy, no measurement",
    ]
    assert rung(judged(batch[0], other[0]), "copied") == []
