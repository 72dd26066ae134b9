"""The command line, as far as it goes without a scheduler: planning, writing, refusing."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc.model.outcome import BeginRecord, Outcome
from hpc.model.spec import RunSpec
from hpc.sweep import main as hpc_sweep
from launch.queue import SUBMITTED
from launch.sweep import prepare
from launch.sweep import submit as submission
from parse import summarize
from tests.sweeps import ROOT
from tests.unit.fake_commands import write_program
from tests.unit.sweep_command import NO_SLURM, plan_of, sweep
from tests.unit.traces import make_run, put_exit_record, put_plan

CLUSTER = ("--cluster", "slurm", "--gpus-per-node", "0", "--repeats", "1", "--dry-run")


def planned(tmp_path: Path, *argv: str) -> list[dict[str, Any]]:
    """The runs of a sweep for a cluster of CPUs."""
    done = sweep(tmp_path, *CLUSTER, *argv, path=NO_SLURM)
    assert done.returncode == 0, done.stderr
    runs: list[dict[str, Any]] = plan_of(tmp_path)["runs"]
    return runs


def test_a_dry_run_writes_and_shows_everything_without_slurm(tmp_path: Path) -> None:
    done = sweep(
        tmp_path, "--nodes", "1,2", *CLUSTER, "--gpus-per-node", "4", "--repeats", "2", path=NO_SLURM,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "3 points, 6 runs in 2 jobs" in done.stdout
    assert "requests 1.3 node-hours at most" in done.stdout
    assert "dry run: nothing was submitted" in done.stdout
    for name in ("1n.sh", "2n.sh"):
        assert (tmp_path / "jobs" / name).read_text() in done.stdout
    assert len(plan_of(tmp_path)["runs"]) == 6 == len(list((tmp_path / "jobs" / "runs").iterdir()))


def test_a_dry_run_submits_nothing(tmp_path: Path) -> None:
    called = tmp_path / "called"
    for name in ("sbatch", "scontrol", "squeue", "scancel", "sacct", "srun"):
        write_program(tmp_path, name, f"echo {name} $* >> {called}\n[ {name} = scontrol ] && echo UP")
    argv = ("--nodes", "1", "--cpus-per-rank", "1", *CLUSTER)
    done = sweep(tmp_path, *argv, path=f"{tmp_path}:/usr/bin:/bin")
    assert done.returncode == 0, done.stderr
    shown = ["ping", "-o show partition", "-o show node"]  # whether a controller answers, and what fits
    assert called.read_text() == "".join(f"scontrol {words}\n" for words in shown)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "1", "--backend", "torch-dpp"], "unknown backend 'torch-dpp'; known: torch-ddp"),
        (["--nodes", "1", "--workload", "resnet"], "unknown workload 'resnet'; known: resnet50"),
        (["--nodes", "1", "--workload", "my.py:F"], "there is no file"),
        (["--nodes", "1", "--workload", "my.py"], "say which factory of the file"),
        (
            ["--nodes", "1", "--backend", "mpi"],
            "is written for torch, tensorflow, paddle; backend mpi trains numpy",
        ),
        (["--nodes", "1", "--option", "xla=on"], "unknown option xla; torch-ddp with resnet50 know"),
        (["--nodes", "1", "--config", "none.toml"], "config none.toml: No such file"),
        (["--nodes", "1", "--cluster", "slurm"], "how many GPUs has a node of site slurm?"),
        (["--nodes", "1", "--cluster", "local", "--data", "imagefolder:none", "--dry-run"], "/none: no such file or"),
    ],
)
def test_invalid_usage_is_refused_with_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "my.txt").write_text("")
    done = sweep(tmp_path, *arguments, path=NO_SLURM)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert not (tmp_path / "traces").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "1", "--cluster", "slurm", "--gpus-per-node", "0"], "no Slurm controller answers here"),
        (["--nodes", "1", "--out", "file", "--gpus-per-node", "0", "--cluster", "slurm"], "cannot be written"),
    ],
)
def test_missing_parts_are_named_with_the_fix(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "file").write_text("")
    done = sweep(tmp_path, *arguments, path=NO_SLURM)
    assert done.returncode == 1, done.stdout + done.stderr
    assert message in done.stderr


def test_no_sync_runs_are_planned_and_backends_without_them_are_named(tmp_path: Path) -> None:
    done = sweep(
        tmp_path, "--cases", "1n1g,1n2g", "--backend", "torch-ddp,torch-dp", "--gpus-per-node", "2", "--repeats", "1",
        "--cluster", "slurm", "--dry-run", "--no-sync", "--telemetry", "off",
        path=NO_SLURM,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "backend torch-dp has no no-sync runs: one rank drives all GPUs" in done.stdout
    assert "backend torch-ddp has no" not in done.stdout
    runs = plan_of(tmp_path)["runs"]
    assert [(run["backend"], run["gpus_per_node"]) for run in runs if run["reduction"] == "off"] == [("torch-ddp", 2)]
    assert {run["telemetry"] for run in runs} == {"off"}
    assert len(runs) == 5


@pytest.mark.parametrize(
    ("gpus", "line", "gpus_per_node"),
    [
        (0, "no GPU for the runs", 0),
        (1, "CPUs instead of GPUs: 4 simulated nodes cannot share the 1 of this machine", 0),
        (8, "3 points, 15 runs", 2),
    ],
)
def test_simulated_nodes_share_the_gpus_of_this_machine(
    tmp_path: Path, gpus: int, line: str, gpus_per_node: int
) -> None:
    write_program(tmp_path, "nvidia-smi", "".join(f"echo 'GPU {i}: mock (UUID: GPU-{i})'\n" for i in range(gpus)))
    write_program(tmp_path, "mpiexec", "")
    done = sweep(tmp_path, "--nodes", "1,4", "--cluster", "local", "--dry-run", path=f"{tmp_path}:/usr/bin:/bin")
    assert done.returncode == 0, done.stderr
    plan = plan_of(tmp_path)
    assert {run["gpus_per_node"] for run in plan["runs"] if run["nodes"] == 4} == {gpus_per_node}
    assert line in done.stdout
    assert bool(plan["reduced"]) == (gpus_per_node == 0)


def test_xla_is_an_option_of_the_backends_that_have_it(tmp_path: Path) -> None:
    runs = planned(tmp_path, "--nodes", "1", "--backend", "tensorflow-multiworker,torch-ddp", "--option", "xla=on")
    assert {run["backend"]: run["options"].get("xla") for run in runs} == {
        "tensorflow-multiworker": "on", "torch-ddp": None,
    }  # fmt: skip


def test_a_site_without_its_controller_does_not_train_on_the_login_node(tmp_path: Path) -> None:
    code = (
        "import launch.jobs.site, socket, sys; import hpc.sweep; from pathlib import Path; "
        f"launch.jobs.site.SITES = Path({str(tmp_path)!r}); "
        "launch.jobs.site.find_site.__defaults__ = (None, launch.jobs.site.SITES); "
        "sys.exit(hpc.sweep.main(['--nodes', '1', '--gpus-per-node', '1', '--repeats', '1']))"
    )
    (tmp_path / "here.toml").write_text('hostname_pattern = ".*"\n')
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": NO_SLURM}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "no Slurm controller answers here, and site here is a Slurm site" in done.stderr


def begun_run(tmp_path: Path, **begin: str) -> RunSpec:
    """A run that was planned, submitted as job 7 and begun there."""
    run = make_run()
    for folder in ("traces", "jobs"):
        (tmp_path / folder).mkdir()
    put_plan(tmp_path / "traces", [run])
    record = {"script": "1n.sh", "job_name": "rankwise-1n-x", "job_ids": ["7"], "runs": [run.run_id]}
    (tmp_path / "jobs" / SUBMITTED).write_text(json.dumps(record))
    values = {"run_id": run.run_id, "attempt": 1, "job_id": "7", "begin_unix_s": 1, **begin}
    (tmp_path / "traces" / f"{run.run_id}.1.begin.json").write_text(json.dumps(values))
    return run


def test_status_needs_no_scheduler_and_no_command(tmp_path: Path) -> None:
    nothing = sweep(tmp_path, "status", path=NO_SLURM)
    assert (nothing.returncode, "no sweep was planned in" in nothing.stderr) == (2, True)
    run = begun_run(tmp_path)
    done = sweep(tmp_path, "status", path=NO_SLURM)
    assert done.returncode == 1, done.stderr
    assert f"{run.run_id}  begun in job 7: no record, and no scheduler here to query\n" in done.stdout
    assert "rankwise-1n-x: 7 unknown\n" in done.stdout and ": 1 begun\n" in done.stdout
    put_exit_record(tmp_path / "traces", run, Outcome.OK)
    done = sweep(tmp_path, "status", path=NO_SLURM)
    assert (done.returncode, f"{run.run_id}  ok\n" in done.stdout) == (0, True)


@pytest.mark.parametrize(
    ("job_name", "status"),
    [("rankwise-1n-x", "running in job 7"), ("", "running in job 7"),
     ("rankwise-1n-before", "begun in job 7: no record, and the job is gone")],
)  # fmt: skip
def test_a_job_of_another_name_is_not_that_of_the_attempt(tmp_path: Path, job_name: str, status: str) -> None:
    """Job 7 runs and is this sweep's; the attempt began in a job 7 that the controller has forgotten."""
    run = begun_run(tmp_path, job_name=job_name)
    for name, body in {
        "scontrol": "echo UP", "sbatch": "",
        "squeue": 'n="rankwise-1n-x"; case "$*" in *-O*) echo "7|RUNNING|n1|main|0|1|$n|None|";; *) echo "7|$n";; esac',
    }.items():  # fmt: skip
        write_program(tmp_path, name, body)
    done = sweep(tmp_path, "status", path=f"{tmp_path}:/usr/bin:/bin")
    assert f"{run.run_id}  {status}" in done.stdout, done.stdout + done.stderr


def test_a_run_whose_job_is_pending_is_not_one_that_never_ran(tmp_path: Path) -> None:
    run = begun_run(tmp_path, job_name="rankwise-1n-x")
    for path in (tmp_path / "traces").glob("*.begin.json"):
        path.unlink()
    for name, body in {
        "scontrol": "echo UP", "sbatch": "",
        "squeue": 'n=rankwise-1n-x; case "$*" in *-O*) echo "7|PENDING||m|0|1|$n|Resources|";; *) echo "7|$n";; esac',
    }.items():  # fmt: skip
        write_program(tmp_path, name, body)
    done = sweep(tmp_path, "status", path=f"{tmp_path}:/usr/bin:/bin")
    assert f"{run.run_id}  pending (Resources) in job 7\n" in done.stdout, done.stdout + done.stderr
    assert ": 1 pending\n" in done.stdout and "never ran" not in done.stdout


def test_a_time_limit_too_short_for_the_first_run_is_refused(tmp_path: Path) -> None:
    """A mock of Slurm that takes whatever it is given; it is not given anything."""
    for name in ("sbatch", "scontrol", "squeue", "srun"):
        write_program(tmp_path, name, f"echo {name} >>{tmp_path}/called; echo UP")
    argv = ["--nodes", "1", "--backend", "mpi", "--workload", "delay", "--repeats", "2", "--no-baseline",
            "--cluster", "slurm", "--gpus-per-node", "0", "--cpus-per-rank", "1"]  # fmt: skip
    path = f"{tmp_path}:/usr/bin:/bin"
    assert sweep(tmp_path, *argv, "--dry-run", path=path).returncode == 0
    run_id = plan_of(tmp_path)["runs"][0]["run_id"]
    record = {"run_id": run_id, "attempt": 1, "outcome": "ok", "exit_status": 0, "job_id": "1", "restart_count": 0,
              "nodelist": "a", "begin_unix_s": 0, "end_unix_s": 400}  # fmt: skip
    (tmp_path / "traces" / f"{run_id}.1.exit.json").write_text(json.dumps(record))
    done = sweep(tmp_path, *argv, "--time", "5", "--minutes-per-run", "5", path=path)
    assert done.returncode == 1
    assert "has 5 min, less 60 s before its end: its first run" in done.stderr
    assert "took 400 s: raise --minutes-per-run or --time" in done.stderr
    assert "sbatch" not in (tmp_path / "called").read_text()


# A dry run beside other sweeps: its files, and which commands see them.

WORDS = ("--cluster", "local", "--nodes", "1", "--backend", "mpi", "--workload", "delay", "--repeats", "2", "--dry-run")


def summary(out: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = summarize.main([str(out / "traces")])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def dry_run(out: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert hpc_sweep([*WORDS, "--out", str(out), *more]) == 0
    return capsys.readouterr().out


def test_a_dry_run_beside_a_sweep_leaves_the_summary_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dry_run(tmp_path, capsys)
    [plan] = (tmp_path / "jobs").glob("plan.*.json")
    shutil.move(plan, tmp_path / "traces" / plan.name)  # as if it had been no dry run
    for values in plan_of(tmp_path)["runs"]:
        put_exit_record(tmp_path / "traces", RunSpec.from_json(values), Outcome.OOM)
    before = summary(tmp_path, capsys)
    files = sorted((tmp_path / "traces").iterdir())
    dry_run(tmp_path, capsys, "--steps", "30")
    assert sorted((tmp_path / "traces").iterdir()) == files
    assert summary(tmp_path, capsys) == before
    assert "missing" not in before[1]


def test_the_plan_of_a_dry_run_is_written_with_the_traces_by_the_sweep_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dry_run(tmp_path, capsys)
    [plan] = (tmp_path / "jobs").glob("plan.*.json")
    assert not list((tmp_path / "traces").iterdir())
    assert hpc_sweep(["status", "--out", str(tmp_path)]) == 2
    assert "are dry runs alone" in capsys.readouterr().err

    class Planned(Exception):
        """In place of submitting anything."""

    def stop(*_: object) -> None:
        raise Planned

    monkeypatch.setattr(submission, "mend_records", stop)  # comes right after the files are written
    monkeypatch.setattr(submission.Prepared, "check", lambda self: None)  # whether or not there is an MPI here
    with pytest.raises(Planned):
        hpc_sweep([*WORDS[:-1], "--out", str(tmp_path)])
    [written] = (tmp_path / "traces").iterdir()
    assert (written.name, written.read_text()) == (plan.name, plan.read_text())
    assert [path.name for path in (tmp_path / "jobs").glob("*.sh")] == ["1n.sh"]


def test_a_dry_run_whose_script_a_person_started_has_a_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dry_run(tmp_path, capsys)
    first, second = (RunSpec.from_json(values) for values in plan_of(tmp_path)["runs"])
    put_exit_record(tmp_path / "traces", first, Outcome.OK)
    begun = BeginRecord(run_id=second.run_id, attempt=1, job_id=f"local-{socket.gethostname()}-1-0", begin_unix_s=5)
    begun.take(tmp_path / "traces")
    assert hpc_sweep(["status", "--out", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert f"{first.run_id}  ok\n" in shown
    assert f"{second.run_id}  begun in job {begun.job_id}: no record, and the job is gone\n" in shown
    assert "1 ok, 1 begun" in shown


def test_one_line_is_about_the_files_of_many_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "writing the files" not in dry_run(tmp_path, capsys)
    monkeypatch.setattr(submission, "MANY_RUNS", 2)
    assert dry_run(tmp_path, capsys).splitlines()[0] == "writing the files of 2 runs"


def test_more_gpus_than_this_machine_has_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = ("--backend", "torch-ddp", "--workload", "mlp", "--gpus-per-node", "8")
    for here, text in ((0, "this machine has no GPU (0 of 8)"), (2, "this machine has 2 of these 8 GPUs")):
        monkeypatch.setattr(prepare, "gpus_here", lambda here=here: here)
        monkeypatch.setattr(prepare, "gpus_of_kernel", lambda: None)
        assert f"warning: --gpus-per-node 8: {text}" in dry_run(tmp_path, capsys, *torch)
    monkeypatch.setattr(prepare, "gpus_here", lambda: 8)
    assert "this machine has" not in dry_run(tmp_path, capsys, *torch)
    monkeypatch.setattr(prepare, "gpus_here", lambda: 0)
    assert "this machine has" not in dry_run(tmp_path, capsys, "--gpus-per-node", "0")
