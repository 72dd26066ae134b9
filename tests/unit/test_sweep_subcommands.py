"""The first argument of `rankwise sweep`, the flags that it replaces, the help, and what cancel says."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from hpc import sweep
from hpc.model.outcome import BeginRecord, Outcome
from launch.jobs.options import LaunchOptions
from launch.queue import SUBMITTED, SubmissionRecord
from launch.sweep import status
from launch.sweep.cli import read_arguments, sweep_parser
from launch.sweep.request import RETRIED, SUBCOMMANDS, Request, SweepOptions
from launch.sweep.spec import SweepSpec
from tests.unit.fake_commands import write_program
from tests.unit.traces import make_run, put_plan

ROOT = Path(__file__).resolve().parents[2]
Capture = pytest.CaptureFixture[str]


def refusal(capsys: Capture, *argv: str) -> str:
    """The one line with which a command line is refused, without the name of the command."""
    assert sweep.main(argv) == 2
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert (shown.out, line[:16]) == ("", "rankwise sweep: ")
    return line[16:]


def help_text(capsys: Capture, *argv: str) -> str:
    with pytest.raises(SystemExit) as ended:
        sweep.main(argv)
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("subcommand", ["status", "cancel"])
@pytest.mark.parametrize(("argv", "nodes"), [((), None), (("--nodes", "1,2", "--repeats", "3"), (1, 2))])
def test_status_and_cancel_take_a_folder_or_a_sweep(
    monkeypatch: pytest.MonkeyPatch, subcommand: str, argv: tuple[str, ...], nodes: tuple[int, ...] | None
) -> None:
    calls = []

    def record(name: str) -> Callable[..., int]:
        return lambda request: calls.append((name, request)) or 7

    monkeypatch.setattr(status, "show", record("status"))
    monkeypatch.setattr(status, "cancel", record("cancel"))
    assert sweep.main([subcommand, "--out", "here", *argv]) == 7
    ((name, request),) = calls
    assert (name, request.launch) == (subcommand, LaunchOptions(out=Path("here")))
    assert (tuple(request.sweeps[0].nodes) if request.sweeps else None) == nodes


def test_arguments_of_a_script_without_dashes_before_them_say_where_they_belong(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        read_arguments(["--nodes", "1", "--script", "train.py", "--lr", "0.1"])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.endswith(
        "--lr 0.1: no options of a sweep. Arguments of the script follow --, as in --script train.py -- --lr 0.1\n"
    )


def test_retry_takes_its_outcomes_and_the_options_of_the_sweep() -> None:
    request = read_arguments(["retry", "oom,rank_fail", "--nodes", "1", "--dry-run"])
    assert (request.subcommand, request.sweeps) == ("retry", (SweepSpec(nodes=(1,)),))
    assert request.options == SweepOptions(dry_run=True, retry=(Outcome.OOM, Outcome.RANK_FAIL))
    assert read_arguments(["--nodes", "1"]) == Request(subcommand="", sweeps=(SweepSpec(nodes=(1,)),))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("statsu", r"unknown word 'statsu'; the first argument is status, .* \(--help\)\. Did you mean status\?"),
        ("ls", "unknown word 'ls'; .*"),
        ("list sites", "list is no word of it any more: rankwise list"),
        ("help", r"unknown word 'help'; .*, or an option \(--help\)"),
        ("--nodes 1 status", "status must be the first argument, without dashes: rankwise sweep status"),
        ("--status", "status must be the first argument, without dashes: rankwise sweep status"),
        ("--retry=oom", "retry must be the first argument, without dashes: rankwise sweep retry OUTCOME,…"),
        ("retry", f"no outcome is named: the first argument of retry is a comma list of {', '.join(RETRIED)}"),
        ("retry ok", "retry ok: what ended ok is measured; --force runs everything again"),
        ("retry --nodes 1 oom", "outcomes are one comma list, .*; 'oom' is apart"),
        ("retry oom, invalid --nodes 1", "outcomes are one comma list, .*; 'invalid' is apart"),
        ("retry omm --nodes 1", "'omm' is no outcome of a retry: .*Did you mean oom\\?"),
        ("retry timeout --nodes 1", "retry timeout: such runs are repeated without retry.*"),
        ("cancel --dry-run", "cancel submits nothing: leave out --dry-run"),
        ("status --max-jobs=3", "status submits nothing: leave out --max-jobs=3"),
    ],
)
def test_wrong_first_arguments_are_refused_in_one_line(capsys: Capture, argv: str, message: str) -> None:
    answer = refusal(capsys, *argv.split())
    assert re.fullmatch(message, answer), answer


@pytest.mark.parametrize("argv", ["status more", "cancel --nodez 1"])
def test_unknown_arguments_are_refused_with_the_usage(capsys: Capture, argv: str) -> None:
    with pytest.raises(SystemExit) as ended:
        sweep.main(argv.split())
    assert ended.value.code == 2
    *hint, usage, error = capsys.readouterr().err.splitlines()
    assert hint == (["did you mean --nodes instead of --nodez?"] if "nodez" in argv else [])
    assert usage.startswith(f"usage: rankwise sweep {argv.split(maxsplit=1)[0]}")
    assert "error: unrecognized arguments: " in error


@pytest.mark.parametrize("columns", range(80, 121, 5))
def test_help_fits_and_shows_what_is_needed_daily(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = help_text(capsys, "--help").splitlines()
    assert len(lines) < 70
    assert max(map(len, lines)) <= 80 or columns > 80
    assert {"--nodes", "--dry-run", "--help-all"} <= {option for line in lines for option in line.split()}
    assert not any("--hang-steps" in line for line in lines)
    for subcommand, form in SUBCOMMANDS.items():
        shown = help_text(capsys, subcommand, "--help").splitlines()
        assert shown[0].startswith(f"usage: rankwise sweep {form}")
        assert len(shown) < 40
    assert all(any(f"rankwise sweep {name} " in line for line in lines) for name in SUBCOMMANDS)


@pytest.mark.parametrize("option", ["--help", "--help-all"])
def test_the_help_equals_its_golden_file(
    golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, capsys: Capture, option: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    golden(f"sweep{option[1:]}.txt", help_text(capsys, option))


def test_help_all_shows_every_option(capsys: Capture) -> None:
    shown = help_text(capsys, "--help-all").split()
    options = sweep_parser().long_options()
    assert len(options) > 40 and set(options) <= set(shown)
    assert "--hang-steps" in help_text(capsys, "status", "--help-all")
    assert ", ".join(RETRIED) in help_text(capsys, "retry", "--help")


@pytest.mark.parametrize("argv", ["--help", "--help-all", "status --help", "--status", "statsu"])
def test_help_and_refusals_import_nothing_heavy(argv: str) -> None:
    code = (
        "import sys, hpc.sweep\n"
        f"try: hpc.sweep.main({argv.split()!r})\n"
        "finally: print('loaded', *{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    loaded = set(done.stdout.rpartition("loaded")[2].split())
    assert "argparse" in loaded
    assert not loaded & {"torch", "numpy", "h5py", "rich", "submitit", "jinja2", "mpi4py"}


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a sweep, on a machine whose Slurm does not answer."""
    for name in ("jobs", "traces"):
        (tmp_path / name).mkdir()
    put_plan(tmp_path / "traces", [make_run()])
    for name in ("scontrol", "squeue", "scancel", "sbatch", "srun", "sacct"):
        write_program(tmp_path / "bin", name, 'echo "no configuration source" >&2; exit 1')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return tmp_path


def put_submission(folder: Path, job_name: str, *job_ids: str) -> None:
    """The record of a script of the sweep."""
    record = SubmissionRecord(script="1n.sh", job_name=job_name, job_ids=job_ids, runs=(make_run().run_id,))
    (folder / "jobs" / SUBMITTED).write_text(json.dumps(asdict(record)))


@pytest.mark.parametrize(
    ("job_ids", "text"),
    [((), "no job of this sweep was submitted"), (("local-HERE-1-1",), "every job of this sweep has ended")],
)
def test_a_cancel_of_a_sweep_of_this_machine_says_that_nothing_runs(
    planned: Path, capsys: Capture, job_ids: Sequence[str], text: str
) -> None:
    """Slurm, which does not answer, has no part in it."""
    put_submission(planned, f"{planned}/jobs/1n.sh", *(name.replace("HERE", socket.gethostname()) for name in job_ids))
    assert sweep.main(["cancel", "--out", str(planned)]) == 0
    assert capsys.readouterr().out == f"nothing runs: {text}\n"


def test_a_cancel_of_a_job_of_slurm_that_does_not_answer_fails(planned: Path, capsys: Capture) -> None:
    """Also where the record was made before the number of the job was known."""
    put_submission(planned, "rankwise-0123456789-1n")
    assert sweep.main(["cancel", "--out", str(planned)]) == 1
    assert re.fullmatch("rankwise sweep: nothing was cancelled: .*no configuration source\n", capsys.readouterr().err)


def test_a_cancel_of_a_job_by_hand_ends_no_other_of_its_name(
    planned: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """`sbatch -J bert 1n.sh`, by a person who has other jobs of that name."""
    monkeypatch.setattr(status, "PATIENCE_S", 0)
    begin = BeginRecord(run_id=make_run().run_id, attempt=1, job_id="7", begin_unix_s=1, job_name="bert")
    assert begin.take(planned / "traces")
    write_program(planned / "bin", "squeue", '[ "$3" != "%i|%j" ] || printf "7|bert\\n8|bert\\n"')
    write_program(planned / "bin", "scancel", f'echo "$@" >> {planned}/cancelled')
    assert sweep.main(["cancel", "--out", str(planned)]) == 1
    assert "job 7: has not ended yet" in (shown := capsys.readouterr().out) and "job 8" not in shown
    assert (planned / "cancelled").read_text().split() == ["7"]


def test_a_cancel_in_a_folder_without_records_of_jobs_is_refused(planned: Path, capsys: Capture) -> None:
    (planned / "jobs").rmdir()
    assert sweep.main(["cancel", "--out", str(planned)]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"rankwise sweep: nothing was cancelled: there is no folder {planned}/jobs, which records")
    assert "--out" in line and line.count("\n") == 1


def test_a_cancel_that_cannot_be_marked_fails(planned: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "x.cancel")

    monkeypatch.setattr(status, "note_cancel", read_only)  # root may write everywhere
    assert sweep.main(["cancel", "--out", str(planned)]) == 1
    line = capsys.readouterr().err
    assert line.startswith(
        f"rankwise sweep: nothing was cancelled: {planned}/jobs cannot be written (Read-only file system)"
    )


def test_an_error_of_a_file_is_named_without_its_number(
    planned: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def failing(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/x/jobs")

    monkeypatch.setattr(status, "show", failing)
    assert sweep.main(["status", "--out", str(planned)]) == 1
    assert capsys.readouterr().err == "rankwise sweep: /x/jobs: Permission denied\n"
