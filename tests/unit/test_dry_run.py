"""A dry run beside other sweeps: its files, and which commands see them."""

from __future__ import annotations

import io
import shutil
import socket
from pathlib import Path

import pytest
from rich.console import Console

from hpc import sweep
from hpc.model.outcome import BeginRecord, Outcome
from hpc.model.spec import RunSpec
from launch.sweep import prepare
from launch.sweep import submit as submission
from parse import summarize
from tests.unit.sweep_command import plan_of
from tests.unit.traces import put_exit_record

WORDS = ("--cluster", "local", "--nodes", "1", "--backend", "mpi", "--workload", "delay", "--repeats", "2", "--dry-run")


def summary(out: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = summarize.main([str(out / "traces")])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def dry_run(out: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert sweep.main([*WORDS, "--out", str(out), *more]) == 0
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
    assert sweep.main(["status", "--out", str(tmp_path)]) == 2
    assert "are dry runs alone" in capsys.readouterr().err

    class Planned(Exception):
        """In place of submitting anything."""

    def stop(*_: object) -> None:
        raise Planned

    monkeypatch.setattr(submission, "mend_records", stop)  # comes right after the files are written
    monkeypatch.setattr(submission.Prepared, "check", lambda self: None)  # whether or not there is an MPI here
    with pytest.raises(Planned):
        sweep.main([*WORDS[:-1], "--out", str(tmp_path)])
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
    assert sweep.main(["status", "--out", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert f"{first.run_id}  ok\n" in shown
    assert f"{second.run_id}  begun in job {begun.job_id}: no record, and the job is gone\n" in shown
    assert "1 ok, 1 begun" in shown


def test_a_pipe_gets_one_line_about_many_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "writing the files" not in dry_run(tmp_path, capsys)
    monkeypatch.setattr(submission, "MANY_RUNS", 2)
    assert dry_run(tmp_path, capsys).splitlines()[0] == "writing the files of 2 runs"


def test_a_terminal_sees_how_many_runs_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "MANY_RUNS", 2)
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=100)

    class Prepared:
        """Writes nothing, and says that it has."""

        class plan:
            runs = range(1000)

        def write(self, progress, *, dry_run):
            progress(500)
            return [dry_run]

    assert submission._write(Prepared(), console, dry_run=True) == [True]
    assert "writing the files of 1000 runs: 500" in shown.getvalue()


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
