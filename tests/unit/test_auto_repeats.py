"""`--repeats auto`: which runs are submitted after which, without a scheduler; what the same command does again.

And the decision: a table of cases, what is shown, and by simulation how often the intervals cover.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

import pytest

from hpc.model.outcome import Outcome
from hpc.model.spec import RunSpec, SpecError
from launch.sweep import submit
from launch.sweep.auto_repeats import RepeatReason, describe_repeats, expected_half_width, more_repeats
from launch.sweep.cli import main as hpc_sweep
from launch.sweep.cli import read_arguments
from launch.sweep.prepare import Prepared, prepare
from launch.sweep.request import SweepOptions
from launch.sweep.spec import FIRST_REPEATS
from parse import stats
from tests.unit.traces import make_trace, put, put_exit_record

Capture = pytest.CaptureFixture[str]
Round = list[tuple[str, int]]
ARGUMENTS = ("--cluster", "local", "--gpus-per-node", "0", "--nodes", "1,2", "--backend", "mpi", "--workload", "delay",
             "--repeats", "auto")  # fmt: skip


def steady(run: RunSpec) -> float:
    return 100.0


def scattered(run: RunSpec) -> float:
    """On two nodes the first six runs lie between -2 and +2 %, later ones between -0.5 and +0.5 %."""
    if run.nodes == 1:
        return 100.0
    return 100 + ((-2, 2, 0, 1, -1, 0)[run.repeat - 1] if run.repeat <= 6 else run.repeat % 3 / 2 - 0.5)


class Machine:
    """Runs what is submitted at once, at the speed that `speed_of` says; `outcomes` are those that are not ok, None a
    run that never ran."""

    def __init__(self, speed_of: Callable[[RunSpec], float]) -> None:
        self.speed_of = speed_of
        self.outcomes: dict[tuple[int, int], Outcome | None] = {}
        self.rounds: list[Round] = []
        self.options: list[SweepOptions] = []

    def run_prepared(self, prepared: Prepared) -> int:
        options = prepared.request.options
        self.options.append(options)
        prepared.folders.traces.mkdir(parents=True, exist_ok=True)
        (prepared.folders.jobs / "runs").mkdir(parents=True, exist_ok=True)
        prepared.write(dry_run=options.dry_run)
        self.rounds.append([(run.case, run.repeat) for run in prepared.plan.runs])
        if options.dry_run or options.detach:
            return 0
        self.end(prepared.plan.runs, prepared.folders.traces)
        return int(any(self.outcomes.get((run.nodes, run.repeat), "ok") != "ok" for run in prepared.plan.runs))

    def end(self, runs: Sequence[RunSpec], traces: Path) -> None:
        for run in runs:
            outcome = self.outcomes.get((run.nodes, run.repeat), Outcome.OK)
            attempt = 1 + len(list(traces.glob(f"{run.run_id}.*.exit.json")))
            if list(traces.glob(f"{run.run_id}.*.h5")):
                continue
            if outcome is Outcome.OK:
                put(traces, make_trace(run, speed=self.speed_of(run), attempt=attempt))
            if outcome is not None:
                put_exit_record(traces, run, outcome, attempt)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(scattered)
    monkeypatch.setattr(submit, "run_prepared", made.run_prepared)
    return made


def block(repeats: range, cases: Sequence[str] = ("1n1g", "2n1g")) -> Round:
    return [(case, repeat) for repeat in repeats for case in cases]


def test_repeats_are_added_where_the_scatter_is(tmp_path: Path, machine: Machine, capsys: Capture) -> None:
    arguments = [*ARGUMENTS, "--out", str(tmp_path)]
    assert hpc_sweep(arguments) == 0
    assert machine.rounds == [block(range(1, 7)), block(range(7, 13), ["2n1g"])]
    lines = [line for line in capsys.readouterr().out.splitlines() if "half width" in line]
    assert lines == [
        "1n1g: half width 0 % after 6 runs, at most 1 % as requested",
        "2n1g: half width 2 % after 6 runs; between-run scatter 1.4 %; 6 more runs",
        "1n1g: half width 0 % after 6 runs, at most 1 % as requested",
        "2n1g: half width 0.5 % after 12 runs, at most 1 % as requested",
    ]
    files = sorted(path.name for path in tmp_path.rglob("*"))

    assert hpc_sweep(arguments) == 0  # runs nothing, writes nothing
    assert machine.rounds[2:] == [block(range(1, 7))]
    assert sorted(path.name for path in tmp_path.rglob("*")) == files
    assert hpc_sweep([*arguments, "--repeats", "auto:0.1%:6"]) == 0
    assert "2n1g: half width 0.5 % after 12 runs; between-run scatter 1 %; not 0.1 %" in capsys.readouterr().out


def test_a_point_with_a_failed_run_gets_no_more(tmp_path: Path, machine: Machine, capsys: Capture) -> None:
    machine.outcomes = {(2, 3): Outcome.OOM}
    assert hpc_sweep([*ARGUMENTS, "--out", str(tmp_path)]) == 1
    assert machine.rounds == [block(range(1, 7))]
    assert "2n1g: 1 of 6 runs without a speed: none is added" in capsys.readouterr().out


@pytest.mark.parametrize("outcome", [None, Outcome.CANCELLED, Outcome.TIMEOUT])
def test_nothing_is_added_while_runs_are_to_be_done(
    tmp_path: Path, machine: Machine, capsys: Capture, outcome: Outcome | None
) -> None:
    """After a cancel, for one: the sweep must not go on with other points."""
    machine.outcomes = {(1, 3): outcome}
    assert hpc_sweep([*ARGUMENTS, "--out", str(tmp_path)]) == 1
    assert machine.rounds == [block(range(1, 7))]
    assert "1 run to be done: the same command goes on, and then decides" in capsys.readouterr().out


def test_a_detached_sweep_decides_when_it_is_started_again(tmp_path: Path, machine: Machine, capsys: Capture) -> None:
    arguments = [*ARGUMENTS, "--out", str(tmp_path), "--detach"]
    assert hpc_sweep(arguments) == hpc_sweep(arguments) == 0
    assert machine.rounds == [block(range(1, 7))] * 2
    assert "more repeats are decided on once these have ended, by that process" in capsys.readouterr().out
    runs = prepare(read_arguments(arguments)).plan.runs
    machine.end(runs, tmp_path / "traces")
    assert hpc_sweep(arguments) == 0
    assert machine.rounds[3:] == [block(range(7, 13), ["2n1g"])]
    capsys.readouterr()
    assert hpc_sweep(arguments) == 0  # what was added is still to be done: joined, not decided again
    assert machine.rounds[5:] == [block(range(7, 13), ["2n1g"])]
    assert "half width" not in capsys.readouterr().out

    assert hpc_sweep(["status", *arguments[:-1]]) == 1
    shown = capsys.readouterr().out
    assert shown.count("_r12  never ran") == 1 and "12 ok, 6 never ran" in shown


def test_a_dry_run_shows_what_would_come_next(tmp_path: Path, machine: Machine, capsys: Capture) -> None:
    arguments = [*ARGUMENTS, "--out", str(tmp_path)]
    assert hpc_sweep([*arguments, "--dry-run"]) == 0
    assert "more repeats are decided on once these have ended\n" in capsys.readouterr().out and machine.rounds == [
        block(range(1, 7))
    ]
    machine.end(prepare(read_arguments(arguments)).plan.runs, tmp_path / "traces")
    assert hpc_sweep([*arguments, "--dry-run"]) == 0
    assert machine.rounds[1:] == [block(range(1, 7)), block(range(7, 13), ["2n1g"])]


def test_retry_reaches_the_repeats_that_were_added_and_is_printed_once(tmp_path: Path, machine: Machine) -> None:
    machine.outcomes = {(2, 8): Outcome.RANK_FAIL}
    arguments = [*ARGUMENTS, "--out", str(tmp_path)]
    assert hpc_sweep(arguments) == 1
    machine.outcomes = {}
    assert hpc_sweep(["retry", "rank_fail", *arguments]) == 0
    assert machine.rounds[2:] == [block(range(1, 7)), block(range(7, 13), ["2n1g"])]
    assert [options.retry for options in machine.options[2:]] == [(Outcome.RANK_FAIL,)] * 2


def test_a_nested_sweep_gets_whole_blocks(tmp_path: Path, machine: Machine, capsys: Capture) -> None:
    assert hpc_sweep([*ARGUMENTS, "--out", str(tmp_path), "--placement", "nested"]) == 0
    assert [sorted(runs) for runs in machine.rounds] == [sorted(block(range(1, 7))), sorted(block(range(7, 13)))]
    arguments = [*ARGUMENTS[:-1], "12", "--out", str(tmp_path), "--placement", "nested"]
    whole = [(run.case, run.repeat) for run in prepare(read_arguments(arguments)).plan.runs]
    assert machine.rounds[0] + machine.rounds[1] == whole  # in the order of a sweep that asks for twelve
    assert "nested: every point gets 12 repeats" in capsys.readouterr().out


def test_points_of_an_earlier_sweep_count(tmp_path: Path, machine: Machine) -> None:
    """Eight repeats by number, then auto: the two beyond the first six are known, and the others follow them."""
    arguments = [*ARGUMENTS[:-1], "8", "--out", str(tmp_path)]
    prepared = prepare(read_arguments(arguments))
    machine.run_prepared(prepared)
    assert hpc_sweep([*ARGUMENTS, "--out", str(tmp_path)]) == 0
    assert machine.rounds[1:] == [block(range(1, 7)), block(range(9, 17), ["2n1g"])]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--repeats", "automatic"], "repeats: 'automatic' is not a whole number from 1 to 100000, or auto"),
        (["--repeats", "auto:1"], "repeats auto: '1' is not between 0 and 100 %; write 3% or 0.03"),
        (["--repeats", "auto:1%:5"], "repeats auto: '5' is not a whole number from 6 to 100000"),
    ],
)
def test_what_means_nothing_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(SpecError) as error:
        read_arguments(["--nodes", "1", *arguments])
    assert str(error.value) == message


def test_a_recipe_is_repeated_too(tmp_path: Path) -> None:
    request = read_arguments(["--recipe", "ngc-pytorch-resnet50", "--repeats", "auto:2%"])
    assert {(sweep.repeats, sweep.ci) for sweep in request.sweeps} == {("auto", 0.02)}


# The decision.

CI = 0.01
SPEEDS_2 = (98.0, 99.0, 100.0, 100.0, 101.0, 102.0)
"""Six runs from -2 % to +2 % around 100: half width 2 %, coefficient of variation 1.41 %."""


@pytest.mark.parametrize(
    ("speeds", "changes", "expected"),
    [
        ((), {}, ("few_runs", 6)),
        ((100.0, 101.0, 99.0), {}, ("few_runs", 3)),
        ((100.0,) * 5, {}, ("few_runs", 1)),
        ((100.0,) * 6, {}, ("narrow", 0)),
        ((99.1, 99.9, 100.0, 100.0, 100.1, 100.9), {}, ("narrow", 0)),
        (SPEEDS_2, {}, ("wide", 6)),  # twice as many at most
        (SPEEDS_2, {"ci": 0.0195}, ("wide", 3)),
        (SPEEDS_2, {"ci": 0.02}, ("narrow", 0)),
        (SPEEDS_2, {"max_repeats": 8}, ("wide", 2)),
        (SPEEDS_2, {"max_repeats": 6}, ("max_repeats", 0)),
        (SPEEDS_2, {"max_repeats": 6, "ci": 0.02}, ("narrow", 0)),
        (SPEEDS_2 * 2, {"ci": 0.005}, ("wide", 8)),  # 20 at most
        (SPEEDS_2 * 2, {"ci": 0.005, "max_repeats": 100}, ("wide", 12)),
        (SPEEDS_2 * 3, {"ci": 0.008, "max_repeats": 100}, ("wide", 12)),  # 30 runs: 0.47 of 1.6 %
        (SPEEDS_2, {"missing": 1}, ("not_ok", 0)),
        ((100.0,) * 6, {"missing": 1}, ("not_ok", 0)),
        ((), {"missing": 6}, ("not_ok", 0)),
    ],
)
def test_the_decision_follows_from_the_speeds(
    speeds: tuple[float, ...], changes: dict[str, Any], expected: tuple[str, int]
) -> None:
    decision = more_repeats(speeds, **({"ci": CI, "max_repeats": 20} | changes))
    assert (decision.reason, decision.more) == (RepeatReason(expected[0]), expected[1])
    assert decision.runs == len(speeds)


def test_the_figures_are_those_of_the_summary() -> None:
    decision = more_repeats(SPEEDS_2, CI, 20)
    interval = stats.median_interval(SPEEDS_2)
    assert interval is not None
    assert decision.half_width == pytest.approx((interval.high - interval.low) / 200)
    assert decision.scatter == stats.coefficient_of_variation(SPEEDS_2)
    assert more_repeats((99.0, 101.0), CI, 20).half_width is None  # min to max of two covers 50 %


def test_the_expected_half_width_falls_where_the_interval_gains_a_rank() -> None:
    """By the tables of normal order statistics (Harter 1961): 1.2672 for the largest of six, 0.9323 for the second of
    nine; of 20 runs the 15th."""
    assert expected_half_width(6) == pytest.approx(1.2672, abs=0.015)
    assert expected_half_width(9) == pytest.approx(0.9323, abs=0.005)
    assert expected_half_width(7) > expected_half_width(6) > expected_half_width(9) > expected_half_width(20)


@pytest.mark.parametrize(
    ("errors", "of_steps"),
    [
        ((), None),
        ((0.01, None, 0.01), None),
        ((0.0, 0.0, 0.0), 0.0),
        ((0.005, 0.005, 0.005), 0.25),
        ((0.01, 0.0, 0.0), 1 / 3),
        ((0.5, 0.5, 0.5), 1.0),
    ],
)
def test_the_part_of_steps_is_that_of_the_variance(errors: tuple[float | None, ...], of_steps: float | None) -> None:
    decision = more_repeats((99.0, 100.0, 101.0), CI, 20, step_errors=errors)  # scatter by 1 %
    assert decision.of_steps == (None if of_steps is None else pytest.approx(of_steps))


def test_every_decision_is_printed_with_its_figures() -> None:
    def text(*arguments: Any, **changes: Any) -> str:
        return describe_repeats(more_repeats(*arguments, **changes), arguments[1])

    assert text(SPEEDS_2, CI, 20) == "half width 2 % after 6 runs; between-run scatter 1.4 %; 6 more runs"
    assert text(SPEEDS_2, 0.02, 20) == "half width 2 % after 6 runs, at most 2 % as requested"
    assert text(SPEEDS_2, CI, 7, step_errors=[0.01] * 6) == (
        "half width 2 % after 6 runs; between-run scatter 1.4 %, 50 % of its square from steps within runs; 1 more run"
    )
    assert text(SPEEDS_2, CI, 6, step_errors=[0.012] * 6) == (
        "half width 2 % after 6 runs; between-run scatter 1.4 %, 72 % of its square from steps within runs: longer "
        "runs (--steps) would need fewer of them; not 1 %, and no more runs are allowed (--repeats auto:CI:MAX)"
    )
    assert text((99.0, 101.0), CI, 20) == "2 runs, too few for an interval of 95 %: 4 more"
    assert text((99.0,), CI, 20, 5) == "5 of 6 runs without a speed: none is added before these are looked at (retry)"


def test_the_error_of_a_series_respects_its_neighbours() -> None:
    """An AR(1) series with ρ = 0.6 has a mean with a variance of (1 + ρ) / (1 − ρ) = 4 times that of independent
    values: counted as independent the error would be half as large."""
    rng = random.Random(2)
    errors, means = [], []
    for _ in range(300):
        value, series = 0.0, []
        for _ in range(400):
            value = 0.6 * value + rng.gauss(0, 1)
            series.append(100 + value)
        error = stats.series_error(series)
        assert error is not None
        errors.append(error)
        means.append(stats.mean(series))
    true = stats.coefficient_of_variation(means)
    assert true is not None
    assert stats.mean(errors) == pytest.approx(true, rel=0.15)
    assert stats.series_error([1.0] * 39) is None and stats.series_error([1.0] * 40) == 0


def normal(rng: random.Random, scatter: float) -> float:
    return 100 * (1 + scatter * rng.gauss(0, 1))


def lognormal(rng: random.Random, scatter: float) -> float:
    return 100 * exp(3 * scatter * rng.gauss(0, 1)) if rng.random() < 0.1 else 100 * exp(scatter * rng.gauss(0, 1))


def slow_tail(rng: random.Random, scatter: float) -> float:
    """Most runs near the fastest, median 100."""
    return 100 * (1 + scatter * (log(2) - rng.expovariate(1)))


def two_modes(rng: random.Random, scatter: float) -> float:
    return 100 * (1 + scatter * (rng.choice((-0.5, 0.5)) + rng.gauss(0, 0.5)))


@pytest.mark.parametrize("draw", [pytest.param(normal, marks=pytest.mark.all), lognormal, slow_tail, two_modes])
def test_intervals_at_the_stop_cover_as_often_as_95_percent(draw: Callable[[random.Random, float], float]) -> None:
    """2,000 points, each with a scatter of its own from 0.3 to 2.5 %: at most one point below 95 %, which is two
    standard errors of the simulation; almost all of them reach the half width."""
    rng = random.Random(7)
    points, covered, narrow = 2_000, 0, 0
    for _ in range(points):
        scatter, speeds, more = rng.uniform(0.003, 0.025), [], FIRST_REPEATS
        while more:
            speeds += [draw(rng, scatter) for _ in range(more)]
            decision = more_repeats(speeds, CI, 60)
            more = decision.more
        interval = stats.median_interval(speeds)
        assert interval is not None and interval.coverage >= 0.95
        covered += interval.low <= 100 <= interval.high
        narrow += decision.reason is RepeatReason.NARROW
    assert covered / points >= 0.94
    assert narrow / points > 0.9
