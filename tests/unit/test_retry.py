"""`hpc.sweep retry` in a folder: which runs, which scripts, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from hpc.model.outcome import Outcome, exit_records, requested_reruns
from hpc.model.spec import RunSpec
from launch.jobs.script import Folders
from launch.queue import SUBMITTED
from launch.scheduler.slurm import Slurm
from launch.sweep import retry
from tests.unit.sweep_command import Completed, sweep
from tests.unit.traces import make_run, put_exit_record, put_plan, repeats

OK, FAILED, OOM = repeats(make_run(), 3)
TRY = make_run(search="batch-size")
RUNS = (OK, FAILED, OOM, TRY)
NODES_2 = make_run(nodes=2)


def put_script(
    folder: Path, name: str, runs: tuple[RunSpec, ...], job_ids: tuple[str, ...] = (), **changes: str
) -> Path:
    """A script that a sweep has submitted on this machine: it records that its runs without a final record end `ok`."""
    folders = Folders.under(folder)
    lines = [f"# {name}", f"traces={changes.get('traces', folders.traces)}"]
    for run in runs:
        record = put_exit_record(folder, run, Outcome.OK, 2)
        lines.append(f"cat >$traces/{record.name} <<'END'\n{record.read_text()}\nEND")
        record.unlink()
    script = folders.jobs / f"{name}.sh"
    script.write_text("\n".join(lines) + "\n")
    record = {
        "script": script.name, "job_name": changes.get("job_name", str(script)), "job_ids": job_ids,
        "runs": [run.run_id for run in runs],
    }  # fmt: skip
    with (folders.jobs / SUBMITTED).open("a") as file:
        file.write(json.dumps(record) + "\n")
    return script


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a sweep of four runs (ok, rank_fail, oom, and an oom that find-max sought) and one of two nodes."""
    monkeypatch.setattr(retry, "what_is_missing", list)
    monkeypatch.setattr(retry, "cannot_run", lambda backends, site: {})
    folders = Folders.under(tmp_path)
    folders.logs.mkdir(parents=True)
    folders.traces.mkdir()
    put_plan(folders.traces, RUNS)
    put_plan(folders.traces, [NODES_2])
    for run, outcome in zip(RUNS, (Outcome.OK, Outcome.RANK_FAIL, Outcome.OOM, Outcome.OOM), strict=True):
        put_exit_record(folders.traces, run, outcome)
    put_script(tmp_path, "1n", (OK, FAILED))
    put_script(tmp_path, "1n-part2", (OOM, TRY))
    put_script(tmp_path, "2n", (NODES_2,))
    return tmp_path


def attempts(folder: Path) -> dict[str, list[str]]:
    """The outcomes of all runs, in order."""
    return {run: [str(record.outcome) for record in of] for run, of in exit_records(folder / "traces").items()}


def retried(folder: Path, *arguments: str) -> Completed:
    return sweep(folder, "retry", *arguments)


def test_retry_alone_runs_what_ended_so_by_the_scripts_of_the_folder(folder: Path) -> None:
    """The other scripts are not started, and no sweep is planned: 2n.sh has a run that never ran."""
    plans = set((folder / "traces").glob("plan.*"))
    texts = {path: path.read_bytes() for path in (folder / "jobs").glob("*.sh")}
    done = retried(folder, "rank_fail")
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "retry rank_fail: 1 run once more" in done.stdout and "1n.sh: 1 of 2 runs\n" in done.stdout
    assert attempts(folder)[FAILED.run_id] == ["rank_fail", "ok"]
    assert attempts(folder)[OOM.run_id] == ["oom"] and NODES_2.run_id not in attempts(folder)
    assert requested_reruns(folder / "traces") == {f"{FAILED.run_id}.1"}
    assert set((folder / "traces").glob("plan.*")) == plans
    assert {path: path.read_bytes() for path in (folder / "jobs").glob("*.sh")} == texts


def test_several_outcomes_are_sought_in_every_sweep_of_the_folder(folder: Path) -> None:
    put_exit_record(folder / "traces", NODES_2, Outcome.INVALID)
    done = retried(folder, "rank_fail,invalid", "--dry-run")
    assert done.returncode == 0 and requested_reruns(folder / "traces") == set()
    assert "1n.sh: 1 of 2 runs\n" in done.stdout and "2n.sh: 1 of 1 run\n" in done.stdout
    assert done.stdout.splitlines()[-1] == "dry run: nothing was submitted"
    assert retried(folder, "rank_fail,invalid").returncode == 0
    assert attempts(folder)[NODES_2.run_id] == ["invalid", "ok"]


def test_an_oom_that_find_max_sought_is_an_answer(folder: Path) -> None:
    done = retried(folder, "oom")
    assert "1n-part2.sh: 1 of 2 runs\n" in done.stdout, done
    assert requested_reruns(folder / "traces") == {f"{OOM.run_id}.1"}
    assert attempts(folder)[OOM.run_id] == ["oom", "ok"]


def test_the_same_retry_again_is_refused_and_one_that_was_interrupted_goes_on(folder: Path) -> None:
    (folder / "traces" / f"{FAILED.run_id}.1.rerun").touch()
    assert retried(folder, "rank_fail").returncode == 0
    assert attempts(folder)[FAILED.run_id] == ["rank_fail", "ok"]
    done = retried(folder, "rank_fail")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"hpc.sweep: no run in {folder / 'traces'} ended rank_fail; there are 1 never ran, 2 ok, 2 oom\n"
    )


def test_the_script_whose_job_made_the_attempt_runs_it_again(folder: Path) -> None:
    """Of two with the run; without such a job, the one that was submitted last."""
    put_script(folder, "1n.0123456789", (FAILED,))
    put_script(folder, "1n", (OK, FAILED))
    assert "jobs/1n.sh: " in retried(folder, "rank_fail", "--dry-run").stdout
    put_script(folder, "1n.0123456789", (FAILED,), ("17",))
    put_script(folder, "1n", (OK, FAILED))
    shown = retried(folder, "rank_fail", "--dry-run").stdout
    assert "jobs/1n.0123456789.sh: " in shown and "1n.sh" not in shown


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (SUBMITTED, "holds no script of .* that was submitted; the options of the sweep beside retry"),
        ("1n.sh", "1n.sh cannot be read .*; the options of the sweep beside retry .* rewrite its scripts"),
        ("moved", "1n.sh writes to /elsewhere, and not to .*: the folder was moved; the options of the sweep"),
        ("plan", "no plan in .* has .*_r1, of .*1n.sh; the options of the sweep"),
    ],
)
def test_what_the_folder_lacks_is_named_with_what_is_needed(folder: Path, damage: str, message: str) -> None:
    if damage == "moved":
        put_script(folder, "1n", (OK, FAILED), traces="/elsewhere")
    elif damage == "plan":
        for path in (folder / "traces").glob("plan.*"):
            path.unlink()
        put_plan(folder / "traces", [FAILED])
    else:
        (folder / "jobs" / damage).unlink()
    done = retried(folder, "rank_fail")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(f"hpc.sweep: .*{message}.*\n", done.stderr), done.stderr
    assert requested_reruns(folder / "traces") == set()


def test_a_changed_workload_file_is_another_workload(folder: Path) -> None:
    workload = folder / "mine.py"
    workload.write_text("class Mine: ...\n")
    run = dataclasses.replace(FAILED, workload=f"{workload}:Mine", code_digest="0123456789ab")
    put_plan(folder / "traces", [run])
    put_exit_record(folder / "traces", run, Outcome.INVALID)
    put_script(folder, "1n-mine", (run,))
    done = retried(folder, "invalid")
    assert done.returncode == 2 and "mine.py:Mine, or what it imports from its folder, has changed" in done.stderr


def test_jobs_of_slurm_are_not_started_where_none_answers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_script(folder, "1n", (OK, FAILED), ("17",), job_name="rankwise-1n-0a1b2c3d")
    monkeypatch.setattr(Slurm, "unreachable", lambda self: "nobody home")
    done = retried(folder, "rank_fail")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "hpc.sweep: 1n.sh: a job of Slurm, and no controller answers here: nobody home\n"


SWEEP = ("--cluster", "local", "--nodes", "1", "--ranks-per-node", "1", "--backend", "mpi", "--workload", "delay")


@pytest.mark.parametrize("words", [("retry", "rank_fail"), ("status",), ("cancel",)])
def test_options_of_a_sweep_that_the_folder_does_not_hold_are_refused(folder: Path, words: tuple[str, ...]) -> None:
    """And nothing is planned, which would train what nobody asked for."""
    plans = set((folder / "traces").glob("plan.*"))
    done = sweep(folder, *words, *SWEEP)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"no sweep with these options was planned in {folder / 'traces'}; there are " in done.stderr
    assert "mpi delay: 4 runs at 1n1g)" in done.stderr and "mpi delay: 1 run at 2n1g)" in done.stderr
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
    assert f"as they were written: leave out {option[0]}, or give the options of the sweep too" in done.stderr
