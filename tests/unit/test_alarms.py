"""parse.alarms.table: each rule rings once and keeps quiet once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc.model.outcome import Outcome
from hpc.model.spec import COLLECTIVES
from parse.alarms.table import RULES, judge
from parse.attempt import Attempt
from parse.load import Loaded
from parse.result import Result, results
from tests.unit.traces import asked, judged, make_ranks, make_run, make_trace, point, repeats


def rung(found: Sequence[Result], name: str, case: str | None = None) -> list[str]:
    assert name in RULES
    return [
        alarm.text
        for result in found
        for alarm in result.alarms
        if alarm.name == name and case in (None, result.run.case)
    ]


def scaled(**speeds: Sequence[float]) -> tuple[Result, ...]:
    """Points 1n<N>g with those speeds: `scaled(g1=[…], g8=[…])`."""
    runs = {name: make_run(ranks_per_node=int(name[1:])) for name in speeds}
    return judged([trace for name, run in runs.items() for trace in point(run, speeds[name])])


FIVE = [100.0, 100.5, 101.0, 99.5, 99.0]


def times(factor: float, speeds: Sequence[float] = FIVE) -> list[float]:
    return [factor * speed for speed in speeds]


def test_a_clean_sweep_rings_nothing():
    found = scaled(g1=FIVE, g2=times(1.95), g4=times(3.8))
    assert [result.alarms for result in found] == [(), (), ()]


@pytest.mark.parametrize("changes", [{"reduction": "off"}, {"workload": COLLECTIVES}])
def test_what_is_no_training_rings_nothing_and_for_nothing(changes):
    training, probe = make_run(ranks_per_node=2), make_run(ranks_per_node=2, **changes)
    odd = {"evidence": "the loss is not finite", "ranks": make_ranks(training, affinity=[0])}
    alone = judged(point(training, FIVE))
    both = judged([*point(training, FIVE), *point(probe, times(9), **odd)])
    assert [result.alarms for result in both if result.run.diagnostic] == [()]
    assert [result.alarms for result in both if not result.run.diagnostic] == [alone[0].alarms]
    assert judged(point(training, FIVE, **odd))[0].alarms


# Scaling


def test_speedup_above_the_devices_rings_beyond_the_intervals():
    (said,) = rung(scaled(g1=FIVE, g2=times(2.2)), "superlinear")
    assert said == "speedup 2.20 on 2 devices, at least 2.16 by the intervals: more than linear"
    assert rung(scaled(g1=FIVE, g2=times(2.02)), "superlinear") == []


def test_one_run_has_no_interval_and_rings_no_scaling_alarm():
    found = scaled(g1=[100], g2=[300], g4=[900])
    assert rung(found, "superlinear") + rung(found, "rising") == []


def test_speed_per_device_that_rises_rings_beyond_the_intervals():
    # PLSC's published rows: 1n8g 2545.3 (start-up averaged in), 2n8g 5953.84, of 397.78 on one device.
    found = scaled(g1=times(3.9778), g8=times(25.453), g16=times(59.5384))
    (said,) = rung(found, "rising")
    assert rung(found, "rising", "1n16g") == [said]
    assert said.startswith("368.4 samples/s per device or more, on 1n8g at most 321.3")
    assert rung(found, "superlinear") == []
    assert rung(scaled(g1=times(3.9778), g8=times(30), g16=times(60.5)), "rising") == []


def test_more_devices_that_do_less_ring_beyond_the_intervals():
    # Paddle's DALI column: 6862.17 on 1n8g, 6018.46 on 2n8g.
    found = scaled(g1=times(8.8717), g8=times(68.6217), g16=times(60.1846))
    (said,) = rung(found, "falling")
    assert rung(found, "falling", "1n16g") == [said]
    assert said == "6078.64 samples/s at most on 16 devices, on 8 (1n8g) 6793.55 or more: more devices, less throughput"
    assert rung(scaled(g1=FIVE, g8=times(6.86), g16=times(6.83)), "falling") == []
    assert rung(scaled(g8=[686], g16=[601]), "falling") == []


def test_how_much_faster_stands_beside_a_rising_speed_per_device():
    (said,) = rung(scaled(g16=times(23.843), g32=times(55.5277)), "rising")
    assert said.endswith("; 2.33 times the speed on 2 times the devices")


def test_another_setting_is_no_smaller_case():
    slow = point(make_run(ranks_per_node=2, env={"A": "slow"}), times(0.5))
    fast = point(make_run(ranks_per_node=4, env={"A": "fast"}), times(4))
    assert rung(judged([*slow, *fast]), "rising") == []


# Runs of a point


def test_average_and_median_apart():
    # The published 1n8g row: packed jobs among the runs, median 2802.14, average 2014.63.
    packed = [2833.72, 688.8, 2808.11, 2806.66, 701.07, 2800.71, 2803.56, 674.42]
    (said,) = rung(scaled(g8=packed), "average_and_median")
    assert said == "average 2014.63 and median 2802.14 are -28.1% apart"
    assert rung(scaled(g8=packed[:1] + packed[2:4]), "average_and_median") == []


def test_fewer_ok_runs_than_asked():
    runs = repeats(make_run(), 5)
    traces = [make_trace(run) for run in runs]
    traces[1] = dataclasses.replace(traces[1], outcome=Outcome.TIMEOUT)
    assert rung(judged(traces[:4], runs), "fewer_runs") == ["3 of 5 runs asked for ended ok; 1 missing, 1 timeout"]
    assert rung(judged([traces[0], *traces[2:]], [runs[0], *runs[2:]]), "fewer_runs") == []
    assert rung(judged(traces), "fewer_runs") == []


def test_ok_runs_without_numbers():
    run = make_run()
    holed = Attempt(run_id="r", number=1, requested=asked(run), outcome=Outcome.OK, problem="no readable trace of it")
    loaded = Loaded(attempts=(holed,), requested=(), reduced=(), refusals=(), remarks=())
    assert rung(judge(results(loaded)), "unmeasured") == ["run 1: no readable trace of it"]
    assert rung(judged([make_trace(run)]), "unmeasured") == []


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("device", {"device": {"kind": "gpu", "name": "A100", "uuid": "GPU-x"}}),
        ("driver", {"nvidia_driver": "535.0"}),
        ("cpu", {"cpu_model": "Epyc"}),
        ("numpy", {"software": {"numpy": "1.26"}}),
    ],
)
def test_runs_that_met_different_machines(name, facts):
    run = make_run(gpus_per_node=1)
    traces = point(run, FIVE)
    other = make_trace(dataclasses.replace(run, repeat=6), ranks=make_ranks(run, **facts))
    (said,) = rung(judged([*traces, other]), "disagreement")
    assert said.startswith(f"runs or ranks differ in {name}: ")
    assert "(run 1, 2, 3, 4, 5)" in said
    assert "(run 6)" in said
    assert rung(judged(traces), "disagreement") == []


def test_runs_with_different_device_counts():
    # An attempt that is not what it says: one of two ranks, all samples.
    run = make_run(ranks_per_node=2)
    traces = point(run, FIVE)
    single = make_trace(make_run(repeat=6))
    other = dataclasses.replace(single, run=dataclasses.replace(run, repeat=6), run_id="r6", samples=2 * single.samples)
    found = judged([*traces, other])
    assert rung(found, "disagreement") == ["runs or ranks differ in ranks: 2 (run 1, 2, 3, 4, 5); 1 (run 6)"]
    assert rung(found, "not_as_asked") == [
        "run 6: 1 ranks, 10 steps, 80 samples were measured; asked for were 2, 10, 80"
    ]


def test_ranks_of_one_run_that_met_different_machines():
    run = make_run(nodes=2)
    ranks = make_ranks(run)
    ranks[1]["nvidia_driver"] = "535.0"
    (said,) = rung(judged([make_trace(run, ranks=ranks)]), "disagreement")
    assert said == "runs or ranks differ in driver: 535.0 and 570.1 (run 1)"


def test_a_baseline_of_another_machine():
    run = make_run(nodes=2)
    baseline = make_trace(run.baseline(), ranks=make_ranks(run.baseline(), nvidia_driver="535.0"))
    (said,) = rung(judged([baseline, make_trace(run)]), "baseline_elsewhere")
    assert said == "its baseline ran with another driver: 535.0, not 570.1"
    assert rung(judged([make_trace(run.baseline()), make_trace(run)]), "baseline_elsewhere") == []


def test_fewer_samples_than_asked():
    trace = make_trace()
    short = trace.samples.copy()
    short[0, -1] = 1
    found = judged([dataclasses.replace(trace, samples=short)])
    assert rung(found, "not_as_asked") == [
        "run 1: 1 ranks, 10 steps, 37 samples were measured; asked for were 1, 10, 40"
    ]
    assert rung(judged([trace]), "not_as_asked") == []


# Windows


def windows(step_s_of, runs: int = 5, steps: int = 100, seed: int = 0) -> tuple[Result, ...]:
    """A point whose runs' step times are made by `step_s_of(generator, measured steps)`."""
    generator = np.random.default_rng(seed)
    run = make_run(measured_steps=steps)
    warm_up = np.full(run.warmup_steps, 0.1)
    traces = [
        make_trace(one, step_s=np.concatenate([warm_up, step_s_of(generator, steps)])) for one in repeats(run, runs)
    ]
    return judged(traces)


def noise(generator, steps, sigma=0.03):
    return 0.1 * np.exp(generator.normal(0, sigma, steps))


def wandering(generator, steps):
    """Neighbouring steps alike, over about three steps."""
    level = np.convolve(generator.normal(0, 0.03, steps + 2), np.ones(3) / 3, "valid")
    return 0.1 * np.exp(level)


def stalling(generator, steps):
    """The log of mistake 10: one step in ten takes 1.82 times as long."""
    return noise(generator, steps) * np.where(np.arange(steps) % 10 == 3, 1.82, 1)


@pytest.mark.parametrize(("runs", "steps"), [(1, 100), (3, 100), (5, 100), (3, 10), (5, 10)])
def test_steps_that_stall_in_every_run_ring(runs, steps):
    rings = [rung(windows(stalling, runs=runs, steps=steps, seed=seed), "rates_and_wall_clock") for seed in range(20)]
    assert all(len(said) == 1 for said in rings)
    count = runs * steps
    assert rings[0][0].startswith(
        f"stalls: {count // 10} of {count} measured steps take 1.5 × their run's median step or more"
    )


def ordinary(sigma, shape):
    """Step times as they scatter on machines where nothing is wrong."""

    def step_s(generator, steps):
        if shape == "normal":
            return 0.1 * np.clip(1 + generator.normal(0, sigma, steps), 0.2, None)
        if shape == "gamma":
            return generator.gamma(1 / sigma**2, 0.1 * sigma**2, steps)
        return noise(generator, steps, sigma)

    return step_s


@pytest.mark.parametrize("shape", ["lognormal", "normal", "gamma"])
@pytest.mark.parametrize("sigma", [0.01, 0.05, 0.1, 0.2])
@pytest.mark.parametrize(("runs", "steps"), [(1, 100), (3, 100), (5, 100), (1, 10), (3, 10)])
def test_ordinary_scatter_of_steps_rings_in_few_points_of_a_hundred(shape, sigma, runs, steps):
    made = [windows(ordinary(sigma, shape), runs=runs, steps=steps, seed=seed) for seed in range(30)]
    assert sum(bool(rung(found, "rates_and_wall_clock")) for found in made) <= 3


def test_a_single_long_step_or_a_single_run_with_stalls_does_not_ring():
    def one_long_step(generator, steps):
        return noise(generator, steps) * np.where(np.arange(steps) == 50, 5, 1)

    assert rung(windows(one_long_step, runs=1), "rates_and_wall_clock") == []
    calm = iter([True, True, False])
    one_run = windows(lambda g, steps: noise(g, steps) if next(calm) else stalling(g, steps), runs=3)
    assert rung(one_run, "rates_and_wall_clock") == []


def test_stalls_within_the_runs_scatter_do_not_ring():
    def step_s(generator, steps):
        return stalling(generator, steps) * generator.choice([1, 1.2])

    assert rung(windows(step_s), "rates_and_wall_clock") == []


@pytest.mark.parametrize("runs", [1, 3, 5])
def test_a_window_that_slows_down_rings(runs):
    (said,) = rung(windows(lambda g, steps: noise(g, steps) * np.linspace(1, 1.3, steps), runs=runs), "unsteady")
    assert said.startswith("the window is not steady: steps of its last third take +")


def test_a_window_with_a_slow_start_rings():
    # Warm-up too short: 20 of 100 steps at two thirds of the speed.
    def step_s(generator, steps):
        return noise(generator, steps) * np.where(np.arange(steps) < 20, 1.5, 1.0)

    assert len(rung(windows(step_s), "unsteady")) == 1


@pytest.mark.parametrize("step_s_of", [noise, wandering])
@pytest.mark.parametrize("runs", [1, 3, 5])
def test_noise_rings_in_few_windows_of_a_hundred(step_s_of, runs):
    rings = sum(len(rung(windows(step_s_of, runs=runs, seed=seed), "unsteady")) for seed in range(100))
    assert rings <= 3


def test_a_drift_within_the_runs_scatter_does_not_ring():
    def step_s(generator, steps):
        return noise(generator, steps, 0.001) * np.linspace(1, 1.03, steps) * generator.choice([1, 1.1])

    assert rung(windows(step_s), "unsteady") == []


def test_a_short_window_is_not_judged():
    assert rung(windows(lambda g, steps: 0.1 * np.linspace(1, 3, steps), steps=29), "unsteady") == []
    assert len(rung(windows(lambda g, steps: 0.1 * np.linspace(1, 3, steps), steps=30), "unsteady")) == 1


def test_loose_clocks():
    run = make_run(nodes=2)
    (said,) = rung(judged([make_trace(run, clock_bound_ns=np.full((2, 2), 2e7))]), "loose_clocks")
    assert said == "the ranks' clocks are known so loosely that they leave 4.0% of the speed open"
    assert rung(judged([make_trace(run, clock_bound_ns=np.full((2, 2), 2e6))]), "loose_clocks") == []


def test_a_run_that_ended_ok_twice_counts_once():
    twice = [make_trace(step_s=0.2, attempt=3), make_trace(step_s=0.1, attempt=1)]
    found = judged(twice)
    assert rung(found, "repeated") == ["run 1: attempts 1, 3 ended ok; attempt 3 counts"]
    assert found[0].median_speed == pytest.approx(20)
    assert rung(judged(twice[:1]), "repeated") == []


def test_what_an_ok_run_found_odd_about_itself():
    odd = make_trace(evidence="the loss is not finite on 1 of 1 ranks, first in step 3")
    assert rung(judged([odd]), "noted") == ["run 1: the loss is not finite on 1 of 1 ranks, first in step 3"]
    assert rung(judged([make_trace()]), "noted") == []


# What must be known before any number is read


def test_oversubscription():
    run = make_run(ranks_per_node=2)
    crowded = make_trace(run, ranks=make_ranks(run, affinity=[0]))
    (said,) = rung(judged([crowded]), "oversubscribed")
    assert said == "oversubscribed: not a scaling result (2 ranks of 1 core each on a machine with 1 for them)"
    assert rung(judged([make_trace(run)]), "oversubscribed") == []


def test_simulated_nodes():
    run = make_run(nodes=2)
    (said,) = rung(judged([make_trace(run, ranks=make_ranks(run, boot_id="one"))]), "nodes_simulated")
    assert said.startswith("nodes_simulated: not a scaling result over nodes (2 nodes on 1 machine")
    assert rung(judged([make_trace(run)]), "nodes_simulated") == []


def backend_says(**facts):
    """A trace whose backend says this of itself."""
    software = {"numpy": "2.0", "torch": "2.13.0+cpu", "horovod": "0.28.1"}
    return make_trace(environment={"software": software, "backend": {"transport": "mpi", **facts}})


def test_fine_stamps_that_keep_reduction_from_overlapping():
    (said,) = rung(judged([backend_says(fused=False)]), "unfused")
    assert said.startswith("with --timing phases gradients are reduced when the last of them is there")
    assert said.endswith("--timing step measures the framework's own way")
    assert rung(judged([backend_says(fused=True)]), "unfused") == []
    assert rung(judged([make_trace()]), "unfused") == []


def test_a_host_that_waits_for_its_device():
    found = judged([backend_says(synchronises_every_step=True)])
    assert rung(found, "synchronises") == ["the host waits for the device in every step"]
    assert rung(judged([backend_says(synchronises_every_step=False)]), "synchronises") == []


def test_a_horovod_built_against_another_framework():
    old = judged([backend_says(horovod_built_against={"torch": "2.12.0+cpu", "tensorflow": "2.20.0"})])
    assert rung(old, "built_otherwise") == [
        "Horovod was built against torch 2.12.0+cpu and ran with 2.13.0+cpu: make horovod builds it anew"
    ]
    fits = judged([backend_says(horovod_built_against={"torch": "2.13.0+cpu", "tensorflow": "2.20.0"})])
    assert rung(fits, "built_otherwise") == []


def test_one_rank_that_drives_several_gpus_is_judged_by_its_devices():
    run = make_run(backend="torch-dp", gpus_per_node=4)
    found = judged([*point(run.baseline(), FIVE), *point(run, times(3.9))])
    assert [(result.run.case, result.run.ranks) for result in found] == [("1n1g", 1), ("1n4g", 1)]
    assert found[1].scaling_efficiency == pytest.approx(3.9 / 4)
    assert [result.alarms for result in found] == [(), ()]
    assert len(rung(judged([*point(run.baseline(), FIVE), *point(run, times(5))]), "superlinear")) == 1


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_test(rule):
    tests = ("test_alarms.py", "test_alarms_logs.py", "test_placement.py", "test_published_alarms.py")
    assert any(f'"{rule}"' in Path(__file__).with_name(name).read_text(encoding="utf-8") for name in tests)


# What the checks at the start found


def checked(name: str, state: str, level: str = "alarm", text: str = "node0: 1.50 cores") -> dict[str, Any]:
    return {"preflight": {name: {"name": name, "level": level, "state": state, "text": text, "cure": "wait"}}}


def test_what_a_check_found_stands_beside_the_point_once():
    runs = repeats(make_run(), 3)
    traces = [make_trace(runs[0]), *(make_trace(run, environment=checked("load", "failed")) for run in runs[1:])]
    assert rung(judged(traces), "preflight") == ["load: node0: 1.50 cores (run 2; run 3 too)"]
    fine = [make_trace(run, environment=checked("load", "ok")) for run in runs]
    assert rung(judged(fine), "preflight") == []


def test_a_check_that_could_not_be_made_rings_where_a_run_may_not_fail_it():
    unseen = make_trace(make_run(), environment=checked("transport", "unknown", "fatal", "NCCL_DEBUG is WARN"))
    assert rung(judged([unseen]), "preflight") == ["transport: could not be looked at: NCCL_DEBUG is WARN (run 1)"]
    assert rung(judged([make_trace(environment=checked("load", "unknown"))]), "preflight") == []


def test_load_on_a_machine_with_too_few_cores_says_nothing_more():
    run = make_run(ranks_per_node=2)
    crowded = {"ranks": make_ranks(run, affinity=[0])}
    load, memory = checked("load", "failed"), checked("host_memory", "failed")
    assert rung(judged([make_trace(run, environment=load, **crowded)]), "preflight") == []
    assert rung(judged([make_trace(run, environment=memory, **crowded)]), "preflight") != []


def test_what_no_version_of_ours_has_said_is_no_finding():
    odd = {
        "preflight": {"load": {"level": "deadly"}, "later": checked("later", "failed")["preflight"]["later"], "x": 3}
    }
    assert rung(judged([make_trace(environment=odd)]), "preflight") == ["later: node0: 1.50 cores (run 1)"]
