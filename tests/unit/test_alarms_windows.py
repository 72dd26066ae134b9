"""parse.alarms on simulated step times: trends, stalls; noise raises an alarm in few points."""

from __future__ import annotations

import numpy as np
import pytest

from parse.runs.result import Result
from tests.unit.alarm_figures import figures, same
from tests.unit.traces import judged, make_run, make_trace, repeats


def windows(step_s_of, runs: int = 5, steps: int = 100, seed: int = 0) -> tuple[Result, ...]:
    """A point whose runs' step times are made by `step_s_of(generator, measured steps)`."""
    generator = np.random.default_rng(seed)
    run = make_run(measured_steps=steps)
    warm_up = np.full(run.warmup_steps, 0.1)
    step_s = [np.concatenate([warm_up, step_s_of(generator, steps)]) for _ in range(runs)]
    return judged([make_trace(each, step_s=row) for each, row in zip(repeats(run, runs), step_s, strict=True)])


def noise(generator, steps, sigma=0.03):
    return 0.1 * np.exp(generator.normal(0, sigma, steps))


def wandering(generator, steps):
    """Neighbouring steps alike, over about three steps."""
    level = np.convolve(generator.normal(0, 0.03, steps + 2), np.ones(3) / 3, "valid")
    return 0.1 * np.exp(level)


def stalling(generator, steps):
    """The log of mistake 10: one step in ten takes 1.82 times as long."""
    return noise(generator, steps) * np.where(np.arange(steps) % 10 == 3, 1.82, 1)


def ordinary(sigma, shape):
    """Step times as they scatter on machines where nothing is wrong."""

    def step_s(generator, steps):
        if shape == "normal":
            return 0.1 * np.clip(1 + generator.normal(0, sigma, steps), 0.2, None)
        if shape == "gamma":
            return generator.gamma(1 / sigma**2, 0.1 * sigma**2, steps)
        return noise(generator, steps, sigma)

    return step_s


@pytest.mark.parametrize(("runs", "steps"), [(1, 100), (3, 100), (5, 100), (3, 10), (5, 10)])
def test_stalls_in_every_run_raise_an_alarm(runs, steps):
    for seed in range(20):
        (actual,) = figures(windows(stalling, runs=runs, steps=steps, seed=seed), "rates_and_wall_clock")
        expected = {"source": "steps", "steps": runs * steps, "long_step": 1.5}
        assert same(actual, expected | ({"long_steps": runs * steps // 10} if seed == 0 else {}))


@pytest.mark.parametrize("shape", ["lognormal", "normal", "gamma"])
@pytest.mark.parametrize("sigma", [0.01, 0.05, 0.1, 0.2])
@pytest.mark.parametrize(
    ("runs", "steps"),
    [(1, 100), (3, 10), *(pytest.param(*further, marks=pytest.mark.all) for further in ((3, 100), (5, 100), (1, 10)))],
)
def test_ordinary_scatter_of_steps_raises_an_alarm_in_few_points_of_a_hundred(shape, sigma, runs, steps):
    points = [windows(ordinary(sigma, shape), runs=runs, steps=steps, seed=seed) for seed in range(30)]
    assert sum(bool(figures(each, "rates_and_wall_clock")) for each in points) <= 3


@pytest.mark.parametrize("step_s_of", [noise, wandering])
@pytest.mark.parametrize("runs", [1, 3, pytest.param(5, marks=pytest.mark.all)])
def test_noise_is_unsteady_in_few_windows_of_a_hundred(step_s_of, runs):
    assert sum(len(figures(windows(step_s_of, runs=runs, seed=seed), "unsteady")) for seed in range(100)) <= 3


def single_long_step(generator, steps):
    return noise(generator, steps) * np.where(np.arange(steps) == 50, 5, 1)


def stalling_in_some_runs(generator, steps):
    return stalling(generator, steps) * generator.choice([1, 1.2])


def drifting_within_scatter(generator, steps):
    return noise(generator, steps, 0.001) * np.linspace(1, 1.03, steps) * generator.choice([1, 1.1])


def slow_start(generator, steps):
    """Warm-up too short: 20 of 100 steps at two thirds of the speed."""
    return noise(generator, steps) * np.where(np.arange(steps) < 20, 1.5, 1.0)


def slowing(generator, steps):
    return noise(generator, steps) * np.linspace(1, 1.3, steps)


def tripling(generator, steps):
    return 0.1 * np.linspace(1, 3, steps)


@pytest.mark.parametrize(
    ("name", "step_s_of", "arguments", "alarms"),
    [
        ("rates_and_wall_clock", single_long_step, {"runs": 1}, 0),
        ("rates_and_wall_clock", stalling_in_some_runs, {}, 0),
        ("unsteady", slowing, {"runs": 1}, 1),
        ("unsteady", slowing, {"runs": 3}, 1),
        ("unsteady", slowing, {"runs": 5}, 1),
        ("unsteady", slow_start, {}, 1),
        ("unsteady", drifting_within_scatter, {}, 0),
        ("unsteady", tripling, {"steps": 29}, 0),  # too short to be judged
        ("unsteady", tripling, {"steps": 30}, 1),
    ],
)
def test_windows_of_a_shape(name, step_s_of, arguments, alarms):
    assert len(figures(windows(step_s_of, **arguments), name)) == alarms
