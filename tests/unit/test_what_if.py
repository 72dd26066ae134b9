"""What a change would be worth: recorded steps replayed, against runs in which nothing was late to begin with."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from math import isnan
from statistics import median

import numpy as np
import pytest

from hpc.model.options import LOADER_FIGURES
from hpc.model.spec import SCRIPT
from hpc.model.timestamps import ABSENT
from hpc.model.trace_file import write_trace
from parse.ledger.graph_what_if import ReplayCase
from parse.ledger.types import Change
from parse.ledger.what_if import replayed_speeds
from parse.runs.attempt import measure
from parse.summarize import main
from tests.unit.ledger_traces import on, per_rank, run_of, trace_of, with_telemetry
from tests.unit.test_ledger_meetings import HEAD, PLANS, run_with

TERMS = frozenset({"data", "compute", "wait", "communication", "optimizer"})


def speed(trace, change, ranks=(), late=None, terms=TERMS):
    return speed_without(trace, change, [(tuple(ranks), None if late is None else tuple(late))], terms)


def speed_without(trace, change, cells, terms=TERMS):
    case = None if change is None else ReplayCase(change=change)
    return replayed_speeds(trace, terms, [case], [cells])[0]


@pytest.mark.parametrize("terms", [TERMS, TERMS - {"data"}, TERMS - {"communication"}])
@pytest.mark.parametrize("changes", [{}, {"measured_steps": 90, "block_steps": 20}])
def test_without_a_change_the_recorded_speed_comes_back(terms, changes):
    trace = trace_of(run_of(**changes), noise=0.3, data=on(1, ms=4, every=3))
    assert speed(trace, None, terms=terms) == pytest.approx(measure(trace).throughput, rel=1e-9)


@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer"])
@pytest.mark.parametrize("ranks", [(1,), (2, 3)])
def test_without_the_straggler_the_speed_is_that_of_the_run_without_its_delay(phase, ranks):
    late = trace_of(run_of(), noise=0.1, **{phase: on(*ranks, ms=7)})
    usual = measure(trace_of(run_of(), noise=0.1)).throughput
    assert measure(late).throughput < 0.75 * usual
    assert speed(late, Change.STRAGGLER, ranks) == pytest.approx(usual, rel=0.01)


def test_of_a_straggler_that_is_late_now_and_then_only_those_steps_change():
    late = trace_of(run_of(), noise=0.1, optimizer=on(2, ms=40, every=5))
    steps = [step + 1 for step in range(0, run_of().steps, 5)]  # the optimizer delays the step that follows
    usual = measure(trace_of(run_of(), noise=0.1)).throughput
    assert speed(late, Change.STRAGGLER, (2,), steps) == pytest.approx(usual, rel=0.02)
    assert speed(late, Change.STRAGGLER, (2,), [step + 1 for step in steps]) < 0.9 * usual


def test_of_ranks_that_take_turns_none_is_late_any_more():
    late = trace_of(run_of(), noise=0.1, backward=lambda rank, step: 9.0 * (step % 4 == rank))
    usual = measure(trace_of(run_of(), noise=0.1)).throughput
    cells = [((rank,), tuple(range(rank, 1000, 4))) for rank in range(4)]
    assert speed_without(late, Change.STRAGGLER, cells) == pytest.approx(usual, rel=0.02)


def test_a_rank_without_its_delay_scatters_as_the_others_do():
    late = trace_of(run_of(measured_steps=200), noise=2.0, backward=on(3, ms=5))
    usual = measure(trace_of(run_of(measured_steps=200), noise=2.0)).throughput
    assert speed(late, Change.STRAGGLER, [3]) == pytest.approx(usual, rel=0.01)


def test_every_rank_at_the_median_is_no_wait():
    trace = trace_of(run_of(), backward=on(3, ms=5), data=on(0, ms=2))
    assert speed(trace, Change.MEDIAN) == pytest.approx(measure(trace_of(run_of())).throughput, rel=1e-3)


def test_free_communication_and_input_take_no_time():
    trace = trace_of(run_of(), communication=6.0)
    usual = 13.0 + 4.0  # 1 data, 9 compute, 1 optimizer and 6 communication are 17 ms
    assert speed(trace, None) * usual == pytest.approx(speed(trace, Change.COMMUNICATION) * 11.0, rel=1e-3)
    assert speed(trace, None) * usual == pytest.approx(speed(trace, Change.INPUT) * 16.0, rel=1e-3)


def of_script(trace, loader_ms=None):
    """The trace as that of a script whose loaders took so much of the data of each step; None: not recorded."""
    run = dataclasses.replace(trace.run, backend=SCRIPT, workload="train.py", precision="unknown")
    trace = dataclasses.replace(trace, run=run, run_id="", point_id="")
    if loader_ms is None:
        return trace
    figures = np.zeros((*trace.samples.shape, len(LOADER_FIGURES)), np.int64)
    figures[..., 0] = round(loader_ms * 1e6)
    return dataclasses.replace(trace, input=figures, input_names=LOADER_FIGURES)


def test_of_a_script_only_what_its_loaders_took_is_input(tmp_path, capsys):
    usual = 10.0 + 1 + 9 + 1 + 2  # 10 ms more before the forward than PHASES has
    trace = of_script(trace_of(run_of(), data=on(0, 1, 2, 3, ms=10)), loader_ms=4)
    assert speed(trace, None) * usual == pytest.approx(speed(trace, Change.INPUT) * (usual - 4), rel=1e-3)
    more = of_script(trace, loader_ms=400)  # than all of its data
    assert speed(trace, None) * usual == pytest.approx(speed(more, Change.INPUT) * (usual - 11), rel=1e-3)
    written(tmp_path, trace)
    assert main([str(tmp_path), "--what-if", "--verbose"]) == 0
    assert "input always ready: " in capsys.readouterr().out


def test_of_a_script_without_a_loader_what_input_is_worth_is_not_known(tmp_path, capsys):
    trace = of_script(trace_of(run_of(), data=on(0, 1, 2, 3, ms=10)))
    assert isnan(speed(trace, Change.INPUT))
    absent = dataclasses.replace(
        of_script(trace, loader_ms=4), input=np.full_like(of_script(trace, loader_ms=4).input, ABSENT)
    )
    assert isnan(speed(absent, Change.INPUT))
    written(tmp_path, trace)
    assert main([str(tmp_path), "--what-if", "--verbose"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "input always ready: not known, since it is not recorded what the script's loaders took" in out
    assert "communication for free: " in out


# On the command line


def written(folder, trace):
    write_trace(folder / f"{trace.run_id}.1.h5", trace)


def test_what_pays_most_stands_first(tmp_path, capsys):
    runs = [run_of(repeat=repeat) for repeat in (1, 2, 3)]
    for run in runs:
        written(tmp_path, trace_of(run, noise=0.1, seed=run.repeat, data=on(1, ms=6)))
    usual = median(measure(trace_of(run, noise=0.1, seed=run.repeat)).throughput for run in runs)
    assert main([str(tmp_path), "--what-if", "--verbose"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.endswith(" % more")]
    assert lines[0].startswith("  input always ready: ")
    assert main([str(tmp_path), "--what-if", "--format", "json"]) == 0
    (ledger,) = json.loads(capsys.readouterr().out)["ledgers"]
    gains = [what_if["gain"] for what_if in ledger["what_ifs"]]
    assert gains == sorted(gains, reverse=True)
    speeds = {what_if["change"]: what_if["speed"] for what_if in ledger["what_ifs"]}
    assert speeds["without the straggler"] == pytest.approx(usual, rel=0.01)


def test_no_interval_of_two_runs_is_called_one_of_95_percent(tmp_path, capsys):
    for repeat, case in itertools.product((1, 2), ((1, 1), (2, 2))):
        run = run_of(repeat=repeat, nodes=case[0], ranks_per_node=case[1])
        written(tmp_path, trace_of(run, noise=0.3, seed=repeat, data=on(1, ms=6)))
    assert main([str(tmp_path), "--what-if", "--verbose"]) == 0
    text = capsys.readouterr().out
    whole = " ".join(text.split())
    assert "95 %" not in whole and re.search(r" slower than 1n1g \([\d.]+ instead of [\d.]+ ms; runs: ", whole)
    speeds = [line for line in text.splitlines() if "samples/s [" in line]
    assert speeds and all("], " in line for line in speeds)
    assert main([str(tmp_path), "--what-if", "--format", "json"]) == 0
    of_points = json.loads(capsys.readouterr().out)["ledgers"]
    assert {term["mean"]["coverage"] for ledger in of_points for term in ledger["terms"]} == {0.9}
    assert {each["interval"]["coverage"] for ledger in of_points for each in ledger["what_ifs"] or ()} == {0.5}


@pytest.mark.parametrize(
    ("cores", "waits_ms", "is_shared"), [(4, 0, False), (2, 0, True), (4, 200, True), (4, 20, False)]
)
def test_where_ranks_share_cores_a_what_if_is_a_range(tmp_path, capsys, cores, waits_ms, is_shared):
    for repeat in (1, 2):
        trace = trace_of(run_of(repeat=repeat), noise=0.1, seed=repeat, backward=on(1, ms=6))
        ranks = [{**rank, "affinity": list(range(cores)), "boot_id": "one"} for rank in trace.ranks]
        trace = dataclasses.replace(trace, ranks=ranks)
        series = per_rank("main_thread_queued_s", {}, waits_ms / 1e3)
        written(tmp_path, with_telemetry(trace, series))
    assert main([str(tmp_path), "--what-if", "--format", "json"]) == 0
    (ledger,) = json.loads(capsys.readouterr().out)["ledgers"]
    assert ledger["shares_cores"] is is_shared
    for value in (*ledger["what_ifs"], ledger["findings"][0]["without"]):
        low, high = value["interval"]["low"], value["interval"]["high"]
        expected = {"low": pytest.approx(low / 1.10), "high": pytest.approx(high / 0.79)} if is_shared else None
        assert value["possible"] == expected
    assert main([str(tmp_path), "--what-if", "--verbose"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert ("; ranks share cores, so that others gain or lose by it: " in text) is is_shared
    assert ("as ranks share cores), " in text or "as ranks share cores). " in text) is is_shared


def test_steps_of_a_transient_straggler_are_those_of_each_run(tmp_path, capsys):
    for repeat in (1, 2, 3):
        late = lambda rank, step, repeat=repeat: 60.0 * (rank == 2 and step % 7 == repeat)  # noqa: E731
        written(tmp_path, trace_of(run_of(repeat=repeat, measured_steps=60), noise=0.1, seed=repeat, data=late))
    usual = measure(trace_of(run_of(measured_steps=60), noise=0.1)).throughput
    assert main([str(tmp_path), "--what-if", "--format", "json"]) == 0
    (ledger,) = json.loads(capsys.readouterr().out)["ledgers"]
    assert ledger["verdict"]["kind"] == "transient"
    speeds = {what_if["change"]: what_if["speed"] for what_if in ledger["what_ifs"]}
    assert speeds["without the straggler"] == pytest.approx(usual, rel=0.02)


def test_where_arrivals_cannot_be_compared_the_reason_is_given(tmp_path, capsys):
    written(tmp_path, trace_of(run_of(), backend={"meets_before_gradients": ["batch norm"]}))
    assert main([str(tmp_path), "--what-if", "--verbose"]) == 0
    assert "no what-if: it takes the order in which ranks arrive" in capsys.readouterr().out


# Several meetings a step


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_without_a_change_the_recorded_speed_of_several_meetings_comes_back(plan):
    trace = run_with(plan, ("forward", 1, 5), ("data", 2, 3)).trace
    assert speed(trace, None) == pytest.approx(measure(trace).throughput, rel=1e-9)


@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_without_the_straggler_of_several_meetings_the_speed_is_that_without_its_delay(plan, phase):
    late, usual = run_with(plan, (phase, 1, 6)).trace, measure(run_with(plan).trace).throughput
    assert measure(late).throughput < 0.75 * usual
    assert speed(late, Change.STRAGGLER, (1,)) == pytest.approx(usual, rel=0.02)


def test_free_communication_leaves_the_work_and_the_waiting():
    trace = run_with(HEAD, spread=1e-6).trace
    usual, free = (trace.run.global_batch_size / speed(trace, change) * 1e3 for change in (None, Change.COMMUNICATION))
    assert usual - free == pytest.approx(2 + len(HEAD) * 0.2, abs=0.2)
