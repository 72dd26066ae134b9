"""rankwise summarize: what goes where, and how it ends."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpc.model.outcome import Outcome
from hpc.model.timestamps import ABSENT
from parse.summarize import main
from tests.unit.simulated_graph import Mesh, Model, simulate_graph
from tests.unit.traces import make_run, make_trace, point, put, put_exit_record, put_plan, repeats

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def traces(tmp_path):
    """1n1g and 2n1g, two runs each; one run missing, one file broken."""
    folder = tmp_path / "traces"
    folder.mkdir()
    runs = [run for nodes in (1, 2) for run in repeats(make_run(nodes=nodes, workload="resnet50"), 2)]
    put_plan(folder, runs)
    for run in runs[:3]:
        put(folder, make_trace(run))
        put_exit_record(folder, run, Outcome.OK)
    (folder / "broken.h5").write_text("step time")
    return folder


def test_the_table_goes_to_stdout_and_ends_with_0(traces, capsys):
    assert main([str(traces), "--verbose"]) == 0
    out, err = capsys.readouterr()
    unwrapped = " ".join(out.split("\n  "))
    assert "2n1g       1/2" in out
    assert "2n1g: run 2: missing" in unwrapped
    assert f"not read: {traces / 'broken.h5'}: not an HDF5 file" in unwrapped
    assert err == ""


def test_without_a_path_it_is_the_folder_traces(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main([])
    assert "PATH is missing, and no folder traces is here" in capsys.readouterr().err
    (tmp_path / "traces").mkdir()
    (tmp_path / "others").mkdir()
    put(tmp_path / "traces", make_trace())
    assert main([]) == 0
    assert "1 of 1 runs ok" in capsys.readouterr().out
    put(tmp_path / "others", make_trace(make_run(nodes=2)))
    assert main(["others"]) == 0
    assert "2n1g" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["csv", "dlperf"])
def test_machine_output_stands_alone_and_warnings_on_stderr(traces, capsys, form):
    assert main([str(traces), "--format", form]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("point_id,case" if form == "csv" else "{")
    assert "broken.h5" not in out
    assert "2n1g: run 2: missing" in err
    assert "broken.h5: not an HDF5 file" in err
    assert main([str(traces), "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert "broken.h5" in json.loads(out)["refusals"][0] and err == ""


def test_the_ledger_stands_below_the_table_and_names_what_is_lost(tmp_path, capsys):
    for nodes, step_s in ((1, 0.1), (2, 0.15)):
        for run in repeats(make_run(nodes=nodes), 2):
            put(tmp_path, make_trace(run, step_s=step_s))
    assert main([str(tmp_path), "--verbose"]) == 0
    table_alone = capsys.readouterr().out
    assert main([str(tmp_path), "--ledger", "--verbose"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(table_alone)
    assert "\n2n1g: 50.0 ms a step slower than 1n1g (150 instead of 100 ms; runs: 50.0 to 50.0). " in out
    assert main([str(tmp_path), "--ledger", "--format", "json"]) == 0
    ledgers = json.loads(capsys.readouterr().out)["ledgers"]
    assert [ledger["case"] for ledger in ledgers] == ["1n1g", "2n1g"]
    assert sum(term["loss"]["value"] for term in ledgers[1]["terms"]) == pytest.approx(50.0)


def test_the_ledger_of_chosen_points_has_their_baseline(tmp_path, capsys):
    for nodes in (1, 2):
        put(tmp_path, make_trace(make_run(nodes=nodes)))
    assert main([str(tmp_path), "--ledger", "--where", "case=2n1g"]) == 0
    out = capsys.readouterr().out
    assert "\n2n1g: 0 ms a step slower than 1n1g (100 instead of 100 ms; 95 %: 0.0 to 0.0), which is within" in out
    assert "\n1n1g" not in out


def test_diagnostic_runs_are_no_points_of_the_table(tmp_path, capsys):
    run = make_run(nodes=2, workload="resnet50")
    no_sync = repeats(dataclasses.replace(run, reduction="off"), 2)
    put_plan(tmp_path, [run, *no_sync])
    for each in (run, no_sync[0]):
        put(tmp_path, make_trace(each))
        put_exit_record(tmp_path, each, Outcome.OK)
    put_exit_record(tmp_path, no_sync[1], Outcome.TIMEOUT)
    assert main([str(tmp_path), "--verbose"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n2n1g ") == 1
    assert "\nbeside the points: no-sync of 2n1g 1/2 ok\nno-sync of 2n1g: run 2: timeout" in out
    assert main([str(tmp_path), "--format", "dlperf"]) == 0
    out, err = capsys.readouterr()
    assert list(json.loads(out)["r50"]) == ["2n1g"]
    assert "no-sync of 2n1g: run 2: timeout" in err
    assert main([str(tmp_path), "--format", "csv"]) == 0
    assert capsys.readouterr().out.count("\n") == 2


@pytest.mark.parametrize(
    ("read", "cached", "says"),
    [
        ((82, 81, 83), (100, 101, 99), "input costs you 18 %: 82.00 samples/s against 100.00 with --data-cache device"),
        ((82, 81, 99.5), (100, 101, 99), "input costs nothing beyond the scatter of the runs: 82.00"),
        ((102, 103, 104), (100, 101, 99), "input costs nothing beyond the scatter of the runs: 103.00"),
        ((82,), (100,), "input costs you 18 %: 82.00 samples/s against 100.00 with --data-cache device; too few runs"),
        ((82, 81, 83), (), ""),
    ],
)
def test_what_input_costs_stands_below_the_table(tmp_path, capsys, read, cached, says):
    run = make_run(backend="torch-ddp", workload="resnet50", data="imagefolder:/x")
    for trace in [*point(run, read), *point(dataclasses.replace(run, data_cache="device"), cached)]:
        put(tmp_path, trace)
        put_exit_record(tmp_path, trace.run, Outcome.OK)
    assert main([str(tmp_path), "--verbose"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("input costs") == bool(says) and says in out


def test_what_meetings_inside_a_step_take_stands_below_the_table(tmp_path, capsys):
    """Two ranks, steps of 100 ms: a gather of 3 ms on rank 0 and 5 on rank 1, a sum of 1 ms on both."""
    for devices in (1, 2):
        run = make_run(nodes=devices, workload="arcface")
        meetings = np.zeros((devices, run.steps, 3, 3), np.int64)
        meetings[..., 2] = 1_000_000
        meetings[:, :, 0, 2] += np.array([2_000_000, 4_000_000])[:devices, None]
        meetings[:, : run.warmup_steps] *= 100  # outside the window
        meetings[:, :, 1, 0] = ABSENT + 1  # called long before it is waited for
        meetings[:, :, 2, 1] = ABSENT  # waited for at once
        names = ["gather", "sum", "sum"]
        put(tmp_path, make_trace(run, meetings=meetings, meeting_names=names, meeting_roots=[-1] * 3))
        put_exit_record(tmp_path, run, Outcome.OK)
    assert main([str(tmp_path), "--verbose"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("collectives take") == 1
    takes = "take 6.00 of 100 ms a step (6 %)"
    of_each = "waiting included: gather 4.00, sum 2.00"
    assert f"2n1g: collectives {takes}, {of_each}" in out
    assert main([str(tmp_path), "--format", "json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [result["meetings_ms"] for result in results] == [{"gather": 3.0, "sum": 2.0}, {"gather": 4.0, "sum": 2.0}]


def test_meetings_that_a_rank_lacks_are_not_counted(tmp_path, capsys):
    run = make_run(nodes=2)
    meetings = np.full((2, run.steps, 2, 3), 7, np.int64)
    meetings[1, -1, 0, 2] = ABSENT
    put(tmp_path, make_trace(run, meetings=meetings, meeting_names=["gather", "sum"], meeting_roots=[-1, -1]))
    put_exit_record(tmp_path, run, Outcome.OK)
    assert main([str(tmp_path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["meetings_ms"] == {"sum": 0.0}


def test_meetings_of_groups_are_by_name_and_dimension(tmp_path, capsys):
    run = make_run(ranks_per_node=8, measured_steps=8)
    truth = simulate_graph(Mesh(pp=2, dp=2, tp=2), Model(), np.random.default_rng(0), run=run, bound_ns=0)
    put(tmp_path, truth.trace)
    put_exit_record(tmp_path, run, Outcome.OK)
    assert main([str(tmp_path), "--format", "json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    taken_ns = (truth.wait_ns + truth.communication_ns)[:, run.warmup_steps :].mean(axis=(0, 1))
    of_dimension = dict(zip(truth.dimensions, (taken_ns / 1e6).tolist(), strict=True))
    assert result["meetings_ms"] == {
        "all-reduce (tp)": pytest.approx(of_dimension["tp"]),
        "message (pp)": pytest.approx(of_dimension["pp"]),
        "all-reduce (dp)": pytest.approx(of_dimension["dp"]),
    }
    assert main([str(tmp_path), "--verbose"]) == 0
    assert "collectives take" in " ".join(capsys.readouterr().out.split())
    assert main([str(tmp_path), "--format", "csv"]) == 0
    assert "meeting_ms_all-reduce (tp)" in capsys.readouterr().out


def test_a_plan_alone_is_summarised_as_missing(tmp_path, capsys):
    put_plan(tmp_path, repeats(make_run(nodes=2), 3))
    assert main([str(tmp_path), "--verbose", "--ledger"]) == 0
    out = capsys.readouterr().out
    assert "2n1g: run 1, 2, 3: missing" in out
    assert "no ledger: no run here has a trace and ended ok" in out


# As a command


def command(*words: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "parse.summarize", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_help_imports_nothing_heavy():
    done = command("--help", env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "argparse" in imported
    assert not imported & {"numpy", "h5py", "rich", "json", "hpc.model.trace", "torch", "mpi4py"}


def test_a_summary_imports_neither_torch_nor_mpi(traces):
    done = command(str(traces), env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "h5py" in imported
    assert not imported & {"torch", "mpi4py", "launch", "submitit", "tensorflow"}


def test_the_module_reads_no_pickle():
    for path in [*(ROOT / "parse").rglob("*.py"), *(ROOT / "hpc" / "model").glob("*.py")]:
        names = {
            alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert not names & {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
