"""parse.alarms on runs read from logs: the same rules, with the figures of logs, alarming once and silent once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hpc.model.outcome import Outcome
from hpc.model.run_fields import RunFields
from parse.alarms.table import judge
from parse.runs.attempt import Attempt, FromLog, Machine, Measured, RequestedRun
from parse.runs.load import Loaded
from parse.runs.result import Result, results
from tests.unit.alarm_figures import figures, same
from tests.unit.traces import make_run

UNKNOWN = ("ranks_per_node", "cpus_per_rank", "scaling", "seed", "site", "timing")


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
    is_numbered: bool = True,
    steady_run: float | None = None,
    **facts: str,
) -> Attempt:
    """An attempt as the readers of logs make them."""
    spec = make_run(gpus_per_node=devices, ranks_per_node=devices, backend="plsc", repeat=repeat)
    run = dataclasses.replace(RunFields.of(spec), **dict.fromkeys(UNKNOWN), is_numbered=is_numbered)  # type: ignore[arg-type]  # None for each
    request = RequestedRun(run=run, run_id=f"{devices}_{repeat}", extra={"folder": "logs"})
    measured = speed and Measured(
        throughput=speed, mean_of_rates=printed, step_s=np.array(step_s, np.float64), samples=samples,
        clock_share=clock_share, printed_every=printed_every,
    )  # fmt: skip
    return Attempt(
        run_id=request.run_id, number=1, requested=request, outcome=Outcome.OK if speed else None,
        measured=measured or None,
        machine=Machine(ranks=devices, facts={name: (value,) for name, value in facts.items()}), problem=problem,
        log=FromLog(
            path=Path("a.log"), log_format="plsc", window="steps 20 to 120", wall_clock=wall_clock, printed=printed,
            remarks=remarks, steady_run=steady_run, steady_window="steps 20 to 900" if steady_run else "",
        ),
    )  # fmt: skip


def judged(*attempts: Attempt) -> tuple[Result, ...]:
    return judge(results(Loaded(attempts=attempts, requested=(), reduced=(), refusals=(), remarks=())))


def scaled(**speeds: Sequence[float]) -> tuple[Result, ...]:
    """Points 1n<N>g with those speeds: `scaled(g1=[…], g8=[…])`."""
    return judged(
        *(
            read(int(name[1:]), repeat, speed=speed)
            for name, of_case in speeds.items()
            for repeat, speed in enumerate(of_case, 1)
        )
    )


def test_the_printed_speed_of_a_log_and_its_time_stamps():
    # PLSC 2 with reader time and validation in the whole log: what its lines print leaves both out.
    plsc = judged(read(speed=6186.91, printed=6870.24, wall_clock=6186.91))
    (actual,) = figures(plsc, "rates_and_wall_clock")
    assert same(actual, {"source": "log", "run": 1, "printed": 6870.24, "wall_clock": 6186.91, "difference": 0.1104})
    assert plsc[0].alarms[0].text == (
        "run 1: its log prints 6870.24 samples/s, +11.0% from the 6186.91 by its time stamps, which are the result"
    )
    apart = [read(repeat=n, speed=100, printed=100 * share, wall_clock=100) for n, share in ((1, 1.02), (2, 0.9))]
    (actual,) = figures(judged(*apart), "rates_and_wall_clock")
    assert same(actual, {"run": 2, "printed": 90.0, "difference": -0.1})


@pytest.mark.parametrize(
    ("speed", "printed", "wall_clock"), [(100, 100.9, 100), (110, 110, None), (100, None, 100), (100, None, None)]
)
def test_printed_speeds_without_an_alarm(speed, printed, wall_clock):
    log = read(speed=speed, printed=printed, wall_clock=wall_clock)
    assert figures(judged(log), "rates_and_wall_clock") == []


@pytest.mark.parametrize(("other", "drift", "raised"), [(125.0, 0.0, True), (125.0, 0.3, False), (108.0, 0.0, False)])
def test_two_runs_whose_steps_scatter_little_are_no_repeats(other: float, drift: float, raised: bool) -> None:
    steps = [1 + drift * (step > 60) for step in range(100)]
    results = judged(read(repeat=1, step_s=steps), read(repeat=2, speed=other, step_s=steps))
    texts = [alarm.text for alarm in results[0].alarms if alarm.name == "two_groups"]
    expected = "run 1 (100.00) and run 2 (125.00) are 25.0% apart: not by chance alone"
    assert texts == [expected] * raised
    assert figures(scaled(g1=[100.0, 125.0]), "two_groups") == []


@pytest.mark.parametrize(("speed", "raised"), [(95.5, False), (104.5, False), (94.0, True), (106.0, True)])
def test_a_window_and_the_whole_steady_run(speed, raised):
    attempts = [
        read(repeat=repeat, speed=value, wall_clock=value, steady_run=100.0)
        for repeat, value in ((1, 100.0), (2, speed))
    ]
    alarms = figures(judged(*attempts), "window_and_steady_run")
    assert bool(alarms) == raised
    if raised:
        assert same(alarms[0], {"run": 2, "speed": speed, "steady_run": 100.0, "difference": speed / 100 - 1})
        (text,) = [alarm.text for alarm in judged(*attempts)[0].alarms if alarm.name == "window_and_steady_run"]
        assert text == (
            f"run 2: steps 20 to 120 is the result, {speed:.2f} samples/s: {speed / 100 - 1:+.1%} from the 100.00 of "
            "the whole steady run (steps 20 to 900)"
        )


def test_a_log_that_is_too_short():
    short = read(repeat=2, speed=None, problem="it ends at step 80 of 120")
    results_of_logs = judged(read(repeat=1), short, read(repeat=3))
    assert figures(results_of_logs, "unmeasured") == [{"runs": [2], "of": 3, "reason": "it ends at step 80 of 120"}]
    (actual,) = figures(results_of_logs, "fewer_runs")
    assert same(actual, {"ok": 2, "runs": 3, "outcomes": {"no number": 1}, "missing": []})
    assert results_of_logs[0].median_speed == 100


def noise(count: int, seed: int = 0) -> np.ndarray:
    return 0.1 * np.exp(np.random.default_rng(seed).normal(0, 0.002, count))


def five(drift: np.ndarray) -> list[Attempt]:
    """Five logs that print every ten steps."""
    return [read(repeat=n, step_s=noise(10, n) * drift, printed_every=10) for n in range(1, 6)]


@pytest.mark.parametrize(
    ("attempts", "alarms"),
    [
        ([read(step_s=noise(100) * np.linspace(1, 1.3, 100))], 1),
        ([read(step_s=noise(100))], 0),
        (five(np.linspace(1, 1.3, 10)), 1),
        (five(np.ones(10)), 0),
        # One such log has three batches in a third: too few to tell a drift from chance.
        (five(np.linspace(1, 1.3, 10))[:1], 0),
        ([read(step_s=[], printed_every=100)], 0),
        ([read(step_s=[0.1], printed_every=100)], 0),
        ([read(step_s=[0.1] * 5, printed_every=100)], 0),
    ],
)
def test_windows_of_logs_that_slow_down(attempts, alarms):
    assert len(figures(judged(*attempts), "unsteady")) == alarms


def test_time_stamps_too_coarse_for_the_window():
    (alarm,) = judged(read(clock_share=0.034), read(repeat=2, clock_share=0.02))[0].alarms
    assert (alarm.name, alarm.figures) == ("loose_clocks", {"share": 0.034, "run": 1, "source": "log"})
    assert alarm.text == "run 1: coarse times of its log leave 3.4% of the speed open: --window all or more steps help"
    assert figures(judged(read(clock_share=0.009)), "loose_clocks") == []


def test_each_remark_on_logs_is_an_alarm():
    remark = "its name says 8 devices: the log is believed"
    odd = judged(read(repeat=1, remarks=(remark, "a pause")), read(repeat=2, remarks=(remark,)))
    shared = {"runs": [1, 2], "of": 2, "remark": remark}
    assert figures(odd, "log_remarks") == [shared, {"runs": [1], "of": 2, "remark": "a pause"}]
    assert [alarm.text for alarm in odd[0].alarms[:2]] == [f"all 2 runs: {remark}", "run 1: a pause"]
    assert figures(judged(read()), "log_remarks") == []
