"""`hpc.sweep retry` in a folder: which sweeps, by which commands, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpc.model.outcome import Outcome, requested_reruns
from hpc.model.spec import RunSpec
from launch.sweep import retry
from launch.sweep.cli import read_arguments
from launch.sweep.request import Request
from tests.unit.fake_commands import fake_in
from tests.unit.sweep_command import Completed, sweep
from tests.unit.traces import make_run, put_exit_record, put_plan

SITE = """launcher = "srun"
cpus_per_node = 8
gpus_per_node = 0
submit_command = "sbatch.tiny"
max_running = 2
"""
PLANNED = ("--site", "site.toml", "--backend", "mpi", "--workload", "delay", "--no-baseline", "--detach")
ENDED = (Outcome.OK, Outcome.RANK_FAIL, Outcome.OOM)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder below that in which two sweeps were submitted: the runs of one node ended as ENDED, those of two, three
    and five nodes are in jobs that are gone. The site submits by a command of its own, which writes what it gets."""
    fake = fake_in(tmp_path / "bin")
    fake(
        "scontrol",
        "case $1 in ping) echo 'Slurmctld at c is UP';; *) echo 'Invalid job id specified' >&2; exit 1; esac",
    )
    fake("sbatch.tiny", f'echo "$@" >>{tmp_path}/submitted; echo Submitted batch job $$')
    fake("sbatch", "exit 9")
    for name in ("squeue", "sacct", "srun"):
        fake(name, "exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    (tmp_path / "site.toml").write_text(SITE)
    out = tmp_path / "out"
    for nodes, repeats_of_each in (("1", "3"), ("2,3,5", "1")):
        status = sweep(
            tmp_path, *PLANNED, "--out", "out", "--nodes", nodes, "--repeats", repeats_of_each, "--time", "40"
        )
        assert status.returncode in (0, 1), status
    for run, outcome in zip(planned(out)["1n1g"], ENDED, strict=True):
        put_exit_record(out / "traces", run, outcome)
    (tmp_path / "submitted").unlink()
    return out


def planned(folder: Path) -> dict[str, list[RunSpec]]:
    """The runs of the folder's plans by case, in the order of their repeats."""
    plans = [json.loads(path.read_text()) for path in (folder / "traces").glob("plan.*")]
    runs = sorted((RunSpec.from_json(run) for plan in plans for run in plan["runs"]), key=lambda run: run.repeat)
    return {case: [run for run in runs if run.case == case] for case in dict.fromkeys(run.case for run in runs)}


def submitted(folder: Path) -> list[str]:
    """What the site's command got, without the scripts' names."""
    return (folder.parent / "submitted").read_text().splitlines() if (folder.parent / "submitted").exists() else []


def files(folder: Path) -> dict[Path, bytes]:
    """The plans and scripts."""
    return {path: path.read_bytes() for path in [*folder.glob("traces/plan.*"), *folder.glob("jobs/*.sh")]}


def retried(folder: Path, *arguments: str) -> Completed:
    """From inside the folder, where the site file's path leads nowhere."""
    return sweep(folder, "retry", *arguments)


@pytest.mark.parametrize("out", [(), ("--out", "../out")])
def test_retry_alone_gives_the_command_again_that_planned_what_ended_so(folder: Path, out: tuple[str, ...]) -> None:
    """By the site's command and with its options; plans and scripts stay as they are, other sweeps are not started."""
    before, (_, failed, oom) = files(folder), planned(folder)["1n1g"]
    done = retried(folder, "rank_fail", "--detach", *out)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "retry rank_fail: 1 run once more" in done.stdout and "1n.sh: submitted as " in done.stdout
    assert len(submitted(folder)) == 1 and "--job-name=rankwise-delay-1n-" in submitted(folder)[0]
    assert requested_reruns(folder / "traces") == {f"{failed.run_id}.1"} != {f"{oom.run_id}.1"}
    assert files(folder) == before


def test_the_limit_of_the_site_holds_for_what_is_retried(folder: Path) -> None:
    put_exit_record(folder / "traces", planned(folder)["2n1g"][0], Outcome.INVALID)
    done = retried(folder, "invalid", "--detach")
    assert done.returncode == 1 and "max_running of the site" in done.stdout
    assert len(submitted(folder)) == 2


def test_several_outcomes_are_sought_in_every_sweep_of_the_folder(folder: Path) -> None:
    put_exit_record(folder / "traces", planned(folder)["2n1g"][0], Outcome.INVALID)
    done = retried(folder, "rank_fail,invalid", "--dry-run")
    assert done.returncode == 0 and requested_reruns(folder / "traces") == set() and not submitted(folder)
    assert done.stdout.count("dry run: nothing was submitted") == 2
    assert "jobs/1n.sh: 3 runs, 40 min on 1 node" in done.stdout and "jobs/2n.sh: 1 run" in done.stdout


def test_the_child_of_a_detached_sweep_gives_no_further_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for the fork of a sweep on this machine, whose parent gives the others."""
    put_exit_record(folder / "traces", planned(folder)["2n1g"][0], Outcome.RANK_FAIL)
    request, given = read_arguments(["retry", "rank_fail", "--out", str(folder), "--detach"]), list[Request]()

    def run(request: Request) -> int:
        given.append(request)
        return 0

    assert (retry.retry(request, run), len(given)) == (0, 2)
    monkeypatch.setattr(os, "getpid", lambda: len(given))
    assert (retry.retry(request, run), len(given)) == (0, 3)


def test_a_folder_that_was_moved_is_written_to_where_it_is(folder: Path) -> None:
    moved = folder.rename(folder.parent / "moved")
    done = retried(moved, "rank_fail", "--detach")
    assert (done.returncode, done.stderr) == (0, ""), done
    assert not folder.exists() and len(submitted(moved)) == 1
    assert any(str(moved / "traces") in path.read_text() for path in moved.glob("jobs/*.sh"))


def test_where_the_folder_of_the_command_is_away_it_is_named_with_what_to_do(folder: Path) -> None:
    for plan in (folder / "traces").glob("plan.*.json"):
        content = json.loads(plan.read_text())
        content["command"]["folder"] = str(folder / "away")
        plan.write_text(json.dumps(content))
    done = retried(folder, "rank_fail", "--detach")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        f"rankwise sweep: {folder / 'away'}, where the sweep was planned and to which its paths"
    )
    assert submitted(folder) == []


def test_an_oom_that_find_max_sought_is_an_answer(folder: Path) -> None:
    (folder / "traces" / "plan.extra.json").unlink(missing_ok=True)
    search = make_run(search="batch-size", repeat=9)
    put_plan(folder / "traces", [search])
    put_exit_record(folder / "traces", search, Outcome.OOM)
    done = retried(folder, "oom", "--detach")
    assert done.returncode == 0 and "retry oom: 1 run once more" in done.stdout, done
    assert requested_reruns(folder / "traces") == {f"{planned(folder)['1n1g'][2].run_id}.1"}


def test_the_same_retry_again_goes_on_until_nothing_ended_so(folder: Path) -> None:
    _, failed, _ = planned(folder)["1n1g"]
    (folder / "traces" / f"{failed.run_id}.1.rerun").touch()
    assert retried(folder, "rank_fail", "--detach").returncode == 0
    put_exit_record(folder / "traces", failed, Outcome.OK, 2)
    done = retried(folder, "rank_fail")
    assert (done.returncode, done.stdout) == (2, "")
    expected = f"rankwise sweep: no run in {folder / 'traces'} ended rank_fail; there are 2 ok, 1 oom, 3 never ran\n"
    assert done.stderr.replace("3 never ran, 2 ok, 1 oom", "2 ok, 1 oom, 3 never ran") == expected


def test_a_plan_that_keeps_no_command_is_named_with_what_is_needed(folder: Path) -> None:
    run = make_run(repeat=9)
    path = put_plan(folder / "traces", [run])
    put_exit_record(folder / "traces", run, Outcome.INVALID)
    done = retried(folder, "invalid")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{path} keeps no command to give again" in done.stderr and "retry and the outcomes before" in done.stderr


def test_the_command_of_a_changed_workload_file_starts_nothing(folder: Path) -> None:
    """It is another workload now."""
    workload = folder.parent / "mine.py"
    workload.write_text("class Mine: ...\n")
    argv = [*PLANNED, "--out", "out", "--nodes", "1", "--repeats", "1"]
    argv[argv.index("delay")] = f"{workload}:Mine"
    assert sweep(folder.parent, *argv).returncode == 0
    (run,) = [run for run in planned(folder)["1n1g"] if "Mine" in run.workload]
    put_exit_record(folder / "traces", run, Outcome.INVALID)
    workload.write_text("class Mine: ...\nclass Other: ...\n")
    done = retried(folder, "invalid")
    assert done.returncode == 2 and "no sweep with these options was planned" in done.stderr
    assert "an edited workload file is another workload" in done.stderr


def test_nothing_is_retried_where_no_slurm_answers(folder: Path) -> None:
    (folder.parent / "bin" / "scontrol").write_text("#!/bin/sh\necho nobody home >&2; exit 1\n")
    done = retried(folder, "rank_fail", "--detach")
    assert done.returncode == 1 and "no Slurm controller answers here" in done.stderr and "nobody home" in done.stderr


SWEEP = ("--cluster", "local", "--nodes", "1", "--ranks-per-node", "1", "--backend", "mpi", "--workload", "delay")


@pytest.mark.parametrize("words", [("retry", "rank_fail"), ("status",), ("cancel",)])
def test_options_of_a_sweep_that_the_folder_does_not_hold_are_refused(folder: Path, words: tuple[str, ...]) -> None:
    """And nothing is planned, which would train what nobody asked for."""
    plans = set((folder / "traces").glob("plan.*"))
    done = sweep(folder, *words, *SWEEP)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"no sweep with these options was planned in {folder / 'traces'}; there are " in done.stderr
    assert "mpi delay: 3 runs at 1n1g)" in done.stderr and "mpi delay: 3 runs at 2n1g, 3n1g, 5n1g)" in done.stderr
    assert set((folder / "traces").glob("plan.*")) == plans and not list((folder / "jobs").glob("plan.*"))


def test_forgotten_options_in_an_empty_folder_start_nothing(tmp_path: Path) -> None:
    done = sweep(tmp_path, "retry", "rank_fail")
    assert done.returncode == 2 and "no sweep was planned in" in done.stderr
    done = sweep(tmp_path, "retry", "rank_fail", *SWEEP)
    assert done.returncode == 2 and "and no other: name the folder of the sweep with --out" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_options_of_a_dry_run_show_its_scripts(tmp_path: Path) -> None:
    """They can be submitted by hand."""
    assert sweep(tmp_path, *SWEEP, "--dry-run").returncode == 0
    done = sweep(tmp_path, "status", *SWEEP)
    assert (done.returncode, done.stderr) == (1, "") and "never ran" in done.stdout


@pytest.mark.parametrize("option", [("--site", "x.toml"), ("--time", "30"), ("--hang-steps", "5")])
def test_options_that_would_change_the_jobs_need_those_of_the_sweep(folder: Path, option: tuple[str, ...]) -> None:
    done = retried(folder, "rank_fail", *option)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"were planned with: leave out {option[0]}, or give those of a sweep too" in done.stderr
