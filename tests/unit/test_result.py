"""parse.runs.result: from attempts to the result of each point."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc.model.outcome import Outcome
from hpc.model.run_fields import RunFields
from hpc.model.spec import COLLECTIVES, RunSpec
from hpc.model.timestamps import ABSENT, END
from parse.report.summary import no_speedup_text
from parse.runs.attempt import RequestedRun
from parse.runs.load import load
from parse.runs.result import MISSING, UNENDED, UNMEASURED, BaseError, NoSpeedup, Result, against_base, results
from tests.unit.traces import cut_short, make_ranks, make_run, make_trace, put, put_exit_record, put_plan, repeats


def case(point_results: tuple[Result, ...], name: str) -> Result:
    (result,) = (result for result in point_results if result.run.case == name)
    return result


def test_step_times_are_pooled_over_the_ok_runs(tmp_path):
    run = make_run()
    put(tmp_path, make_trace(run, step_s=0.1))
    put(tmp_path, make_trace(dataclasses.replace(run, repeat=2), step_s=0.3))
    put(tmp_path, make_trace(dataclasses.replace(run, repeat=3), step_s=99, outcome=Outcome.RANK_FAIL))
    (result,) = results(load([tmp_path]))
    assert result.step_time_ms == pytest.approx({5: 100, 50: 200, 95: 300, 99: 300})


# What speedups are measured against


def requested(run: RunSpec) -> RequestedRun:
    return RequestedRun(run=RunFields.of(run), run_id=run.run_id)


def put_cases(folder, speeds: dict[int, float], **changes) -> None:
    """Traces of 8 ranks a node, by nodes; a node count of 0 is 1n1g."""
    for nodes, speed in speeds.items():
        ranks = 8 if nodes else 1
        run = make_run(nodes=max(1, nodes), ranks_per_node=ranks, gpus_per_node=ranks, **changes)
        put(folder, make_trace(run, speed=speed))


def test_a_chosen_case_is_the_base_of_every_setting_that_has_it(tmp_path):
    put_cases(tmp_path, {0: 15, 1: 110, 2: 210})
    put_cases(tmp_path, {2: 50, 4: 90}, seed=7)
    scaled = against_base(results(load([tmp_path])), "1n8g")
    assert [(result.base.case, result.base.chosen, round(result.speedup, 2)) for result in scaled] == [
        ("1n8g", True, 0.14), ("1n8g", True, 1.0), ("1n8g", True, 1.91), ("2n8g", False, 1.0), ("2n8g", False, 1.8),
    ]  # fmt: skip
    assert scaled[0].ideal == 1 / 8 and scaled[0].scaling_efficiency == pytest.approx(15 / 110 * 8)
    with pytest.raises(BaseError, match="no point is of the case 3n8g; known here are 1n1g, 1n8g, 2n8g, 4n8g"):
        against_base(scaled, "3n8g")


def test_a_case_alone_has_nothing_to_be_compared_with(tmp_path):
    run = make_run(nodes=2)
    put(tmp_path, make_trace(run))
    for other in (make_run(batch_size=8), make_run(env={"A": "1"}), make_run(seed=3), make_run(precision="bf16")):
        put(tmp_path, make_trace(other))
    result = case(results(load([tmp_path])), "2n1g")
    assert result.base is None and result.speedup is None and result.ideal is None
    assert result.scaling_efficiency is None
    assert result.no_speedup is NoSpeedup.NO_BASE
    assert no_speedup_text(result) == "no other case with all else equal is here"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"reduction": "off"}, "a no-sync run is no training: its gradients are not reduced"),
        ({"workload": COLLECTIVES}, "collectives are no training"),
        ({"search": "batch-size"}, "a try of find-max is no measurement"),
    ],
)
def test_what_is_no_training_has_no_speedup_and_is_no_base(tmp_path, changes, text):
    for nodes in (1, 2):
        put(tmp_path, make_trace(make_run(nodes=nodes, **changes)))
    put(tmp_path, make_trace(make_run(nodes=2)))
    *diagnostics, training = sorted(results(load([tmp_path])), key=lambda result: not result.run.diagnostic)
    assert [(result.speedup, result.no_speedup) for result in diagnostics] == [(None, NoSpeedup.NO_TRAINING)] * 2
    assert {no_speedup_text(result) for result in diagnostics} == {text}
    assert (training.speedup, training.no_speedup) == (None, NoSpeedup.NO_BASE)


@pytest.mark.parametrize("outcome", [Outcome.OOM, Outcome.RANK_FAIL, Outcome.INVALID])
def test_a_smaller_case_that_will_get_no_speed_is_passed_over_and_named(tmp_path, outcome):
    put_cases(tmp_path, {1: 110, 2: 210})
    put(tmp_path, cut_short(make_trace(make_run(gpus_per_node=1)), 3, outcome))
    single, eight, sixteen = results(load([tmp_path]))
    assert (single.speedup, single.no_speedup) == (None, NoSpeedup.NOT_OK)
    assert (eight.base.case, eight.base.smaller) == ("1n8g", (("1n1g", outcome.value),))
    assert sixteen.scaling_efficiency == pytest.approx(210 / 110 / 2)


@pytest.mark.parametrize("outcome", [Outcome.PREEMPTED, Outcome.TIMEOUT, Outcome.NODE_FAIL])
def test_a_smaller_case_that_is_still_to_be_measured_is_the_base(tmp_path, outcome):
    put_cases(tmp_path, {1: 110, 2: 210})
    put(tmp_path, cut_short(make_trace(make_run(gpus_per_node=1)), 3, outcome))
    point_results = results(load([tmp_path]))
    sixteen = case(point_results, "2n8g")
    assert (sixteen.speedup, sixteen.no_speedup) == (None, NoSpeedup.BASE_NOT_OK)
    text = "no run of 1n1g ended ok, which it is measured against; --base CASE chooses another"
    assert no_speedup_text(sixteen) == text
    assert case(point_results, "1n1g").no_speedup is NoSpeedup.NOT_OK
    assert case(against_base(point_results, "1n8g"), "2n8g").speedup == pytest.approx(210 / 110)


def test_a_smaller_case_that_is_planned_and_missing_is_the_base(tmp_path):
    run = make_run(nodes=2, ranks_per_node=8, gpus_per_node=8)
    put_plan(tmp_path, [run.baseline(), run])
    put_cases(tmp_path, {1: 110, 2: 210})
    assert case(results(load([tmp_path])), "2n8g").no_speedup is NoSpeedup.BASE_NOT_OK


@given(
    st.dictionaries(st.sampled_from([1, 2, 4, 8, 16, 32, 64]), st.floats(1e-3, 1e6), min_size=2, max_size=6),
    st.sampled_from(["weak", "strong"]),
    st.data(),
)
def test_speedups_are_ratios_to_the_base_in_every_setting(speeds, scaling, data):
    runs = {n: make_run(nodes=n, ranks_per_node=8, gpus_per_node=8, scaling=scaling, batch_size=512) for n in speeds}
    points = {n: Result(requested=requested(run), runs=(), planned_runs=None, median_speed=speeds[n])
              for n, run in runs.items()}  # fmt: skip
    chosen = data.draw(st.sampled_from([None, *speeds]))
    scaled = against_base(points.values(), "" if chosen is None else f"{chosen}n8g")
    base = chosen or min(speeds)
    for n, result in zip(speeds, scaled, strict=True):
        assert (result.base.case, result.base.devices, result.base.chosen) == (
            f"{base}n8g",
            8 * base,
            chosen is not None,
        )
        assert result.speedup == pytest.approx(speeds[n] / speeds[base])
        assert result.ideal == n / base
        per_device = speeds[n] / n / (speeds[base] / base)
        assert result.scaling_efficiency == pytest.approx(per_device)


def test_strong_scaling_compares_equal_global_batches(tmp_path):
    for nodes, speed in ((1, 100), (4, 300)):
        put(tmp_path, make_trace(make_run(nodes=nodes, scaling="strong", batch_size=16), speed=speed))
    result = case(results(load([tmp_path])), "4n1g")
    assert result.run.local_batch_size == 4
    assert result.speedup == pytest.approx(3)
    assert result.scaling_efficiency == pytest.approx(0.75)


def test_a_baseline_under_an_old_name_counts(tmp_path):
    put(tmp_path, make_trace(make_run(), run_id="1n1g_old_r1", point_id="1n1g_old"))
    put(tmp_path, make_trace(make_run(nodes=2), step_s=0.1))
    assert case(results(load([tmp_path])), "2n1g").speedup == pytest.approx(2)


def test_what_only_a_later_version_asks_for_keeps_points_apart(tmp_path):
    for fabric in ("ib", "tcp"):
        for nodes in (1, 2):
            run = make_run(nodes=nodes)
            put(tmp_path, make_trace(run, run_id=f"{run.point_id}{fabric}_r1", run_extra={"fabric": fabric}))
    point_results = results(load([tmp_path]))
    assert len(point_results) == 4
    assert all(len(result.runs) == 1 and result.speedup for result in point_results)


# Which runs


def test_runs_that_did_not_end_ok_are_kept_apart_and_named(tmp_path):
    runs = repeats(make_run(), 6)
    put_plan(tmp_path, runs)
    put(tmp_path, make_trace(runs[0], step_s=0.1))
    put(tmp_path, cut_short(make_trace(runs[1]), 2, Outcome.RANK_FAIL))
    put_exit_record(tmp_path, runs[2], Outcome.NODE_FAIL)
    (tmp_path / f"{runs[3].run_id}.1.begin.json").write_text("{}")
    put_exit_record(tmp_path, runs[4], Outcome.OK)
    (result,) = results(load([tmp_path]))
    assert [run.outcome_text for run in result.runs] == ["ok", "rank_fail", "node_fail", UNENDED, UNMEASURED, MISSING]
    assert result.planned_runs == 6
    assert len(result.ok) == 1
    assert result.average_speed == result.median_speed == pytest.approx(40)


def test_a_later_attempt_settles_a_run(tmp_path):
    run = make_run()
    put_exit_record(tmp_path, run, Outcome.PREEMPTED, attempt=1)
    put(tmp_path, make_trace(run, attempt=2))
    put_exit_record(tmp_path, run, Outcome.OK, attempt=2)
    (result,) = results(load([tmp_path]))
    (run,) = result.runs
    assert (run.outcome_text, run.attempt.number, run.attempts) == ("ok", 2, 2)


def test_planned_points_that_nobody_ran_are_results_without_numbers_in_the_order_of_nodes(tmp_path):
    for nodes in (16, 2, 1000):
        put_plan(tmp_path, repeats(make_run(nodes=nodes), 3))
    point_results = results(load([tmp_path]))
    assert [result.run.case for result in point_results] == ["2n1g", "16n1g", "1000n1g"]
    result = point_results[0]
    assert [run.outcome_text for run in result.runs] == [MISSING] * 3
    assert result.median_speed is None


def test_without_a_plan_the_number_of_requested_runs_is_unknown(tmp_path):
    put(tmp_path, make_trace())
    put_plan(tmp_path, [make_run(nodes=2)])
    point_results = results(load([tmp_path]))
    assert case(point_results, "1n1g").planned_runs is None
    assert case(point_results, "2n1g").planned_runs == 1


def test_flags_come_from_the_runs_that_count(tmp_path):
    run = make_run(nodes=2)
    crowded = make_ranks(run, boot_id="one", affinity=[0])
    put(tmp_path, make_trace(run))
    put(tmp_path, make_trace(dataclasses.replace(run, repeat=2), ranks=crowded, outcome=Outcome.RANK_FAIL))
    (result,) = results(load([tmp_path]))
    assert (result.oversubscribed, result.nodes_simulated) == ("", "")
    put(tmp_path, make_trace(dataclasses.replace(run, repeat=3), ranks=crowded))
    (result,) = results(load([tmp_path]))
    assert result.oversubscribed
    assert result.nodes_simulated


def test_a_run_that_was_cut_off_owes_no_numbers(tmp_path):
    """Its outcome says why there are none; that its window has holes says nothing more."""
    run = make_run()
    holed = make_trace(run).stamps.copy()
    holed[0, 9:, END] = ABSENT
    put(tmp_path, dataclasses.replace(make_trace(run), stamps=holed, outcome=Outcome.TIMEOUT, recovered=True))
    put(tmp_path, dataclasses.replace(make_trace(dataclasses.replace(run, repeat=2)), stamps=holed))
    cut_off, ok = load([tmp_path]).attempts
    assert (cut_off.outcome, cut_off.measured, cut_off.problem) == (Outcome.TIMEOUT, None, "")
    assert ok.outcome is Outcome.OK and "lack the end of a step" in ok.problem
