"""`rankwise sweep` interrupted, without a reader, or with odd files; and runs that never began."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpc import sweep
from hpc.model.outcome import BeginRecord, Outcome, read_exit_record
from launch.jobs.script import Folders
from launch.sweep.run_status import RunStatus
from launch.sweep.text import describe_output, describe_runs
from tests.processes import processes, signal_all
from tests.unit.fake_commands import write_program
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PLANNED = ("--cluster", "local", "--nodes", "1", "--backend", "mpi", "--workload", "delay", "--dry-run")


TWO_SIGNALS = """
import os, signal, sys
from pathlib import Path
from launch.scheduler import local
from launch.sweep import prepare

point, number, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
local._mpiexec = lambda: str(folder / "mpiexec")
prepare.what_is_missing = lambda: []


def interrupt():
    for _ in range(2):
        os.kill(os.getpid(), number)


class Lost:
    def __del__(self):
        interrupt()  # an exception in here is printed and ignored


class Process(local.subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        if point == "started" and "rankwise" in self.args:
            interrupt()

    def terminate(self):
        if point == "ending":
            interrupt()
        super().terminate()
        if point == "ending":
            interrupt()


states = local.Local.states


def look(cluster, job_ids):
    if (folder / "ranks").exists() and point in ("followed", "ending"):
        interrupt()
    elif (folder / "ranks").exists() and point == "lost":
        Lost()
    return states(cluster, job_ids)


local.subprocess.Popen = Process
local.Local.states = look
from hpc import sweep
sys.exit(sweep.main(sys.argv[4:]))
"""


USUAL = {"started": signal.SIGHUP, "followed": signal.SIGINT, "ending": signal.SIGTERM, "lost": signal.SIGINT}


@pytest.mark.parametrize(
    ("point", "number"),
    [
        pytest.param(point, number, marks=() if number is usual else pytest.mark.all)
        for point, usual in USUAL.items()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ],
)
def test_two_signals_at_once_leave_no_rank(tmp_path: Path, point: str, number: signal.Signals) -> None:
    """As `timeout -s INT` sends them: while a script is started, while it is followed, while it is being ended, and
    where the exception of the first gets lost."""
    write_program(tmp_path, "mpiexec", f"touch {tmp_path}/ranks; exec sleep 86400")
    mark = f"INTERRUPTED_SWEEP={tmp_path}"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "INTERRUPTED_SWEEP": str(tmp_path)}
    argv = [sys.executable, "-c", TWO_SIGNALS, point, str(number.value), str(tmp_path), *PLANNED[:-1], "--repeats", "1",
            "--out", str(tmp_path / "out")]  # fmt: skip
    try:
        done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        assert [process.words for process in processes() if mark in process.environ] == []
    finally:
        signal_all(lambda: (process for process in processes() if mark in process.environ), signal.SIGKILL)
    assert done.returncode == 130, done.stdout + done.stderr
    assert "stopped, and the runs on this machine with it" in done.stdout
    assert "Traceback" not in done.stderr or point == "lost"


@pytest.mark.parametrize("text", ["out = ['a']", "site = {}", "partition = ['a', 'b']"])
def test_a_setting_of_the_wrong_kind_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (tmp_path / "sweep.toml").write_text(text)
    assert sweep.main([*PLANNED, "--config", str(tmp_path / "sweep.toml")]) == 2
    assert capsys.readouterr().err.endswith(", not a text or a number\n")


def test_a_folder_whose_name_is_not_utf8_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.main([*PLANNED, "--out", f"{tmp_path}/b\udcff"]) == 2
    assert "b\\udcff/jobs' has a name that is not UTF-8" in capsys.readouterr().err


def test_a_script_changed_by_hand_is_kept_and_reported_as_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep.main([*PLANNED, "--out", str(tmp_path)]) == 0
    assert "which has these runs" not in capsys.readouterr().out
    script = tmp_path / "jobs" / "1n.sh"
    script.write_text(script.read_text().replace("--start-limit-s 600", "--start-limit-s 1200"))
    assert sweep.main([*PLANNED, "--out", str(tmp_path)]) == 0
    assert "not 1n.sh, which has these runs and another text (changed by hand," in capsys.readouterr().out
    assert "--start-limit-s 1200" in script.read_text()


def test_a_job_cancelled_before_it_began_has_no_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fakes of Slurm's commands: a job is taken, and gone when it is looked for."""
    argv = ("--nodes", "1", "--backend", "mpi", "--workload", "delay", "--out", f"{tmp_path}/two words",
            "--repeats", "1")  # fmt: skip
    job_name = f"$(sed -n 's/^#SBATCH --job-name=//p' '{tmp_path}/two words/jobs/1n.sh')"
    for name, body in {
        "scontrol": 'case "$1" in ping) echo "Slurmctld(primary) at here is UP" ;; *) exit 1 ;; esac',
        "sbatch": "echo Submitted batch job 7", "srun": "", "sacct": "exit 1",
        "squeue": f'case "$*" in *-O*) echo "7|CANCELLED||main|0|1|{job_name}|None|" ;; esac',
    }.items():  # fmt: skip
        write_program(tmp_path / "bin", name, body)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    (tmp_path / "site.toml").write_text("gpus_per_node = 0\ncpus_per_node = 2\n[interpreter]\ndefault = 'python3'\n")
    assert sweep.main([*argv, "--site", str(tmp_path / "site.toml")]) == 1
    stdout = capsys.readouterr().out
    output = tmp_path / "two words" / "jobs" / "logs" / "1n.7.out"
    assert f"1 run of 1n.sh never began: job 7 CANCELLED; there is no {output}" in stdout
    assert f"rankwise summarize '{tmp_path}/two words/traces'" in stdout


LMOD = """Lmod is automatically replacing "gcc".
Lmod has detected the following error:  The following module(s) are unknown: "CUDA/99"

Please check the spelling or version number. Also try "module spider ..."
"""


@pytest.mark.parametrize(
    ("out", "error", "text"),
    [
        (None, None, "there is no 1n.7.out"),
        ("", "", "see 1n.7.out, which is empty"),
        ("", LMOD, '1n.7.err: Lmod has detected the following error:  The following module(s) are unknown: "CUDA/99"'),
        ("Loading\n", "1n.sh: line 14: module: command not found\n",
         "1n.7.err: 1n.sh: line 14: module: command not found"),
        ("rankwise 2026-11-27 10:00:00: a_r1 is not begun: this job received SIGTERM\n", "an error of a profile\n",
         "1n.7.out: rankwise 2026-11-27 10:00:00: a_r1 is not begun: this job received SIGTERM"),
    ],
)  # fmt: skip
def test_why_a_job_began_nothing_is_quoted_from_the_file_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str | None, error: str | None, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    files = Path("1n.7.out"), Path("1n.7.err")
    for path, content in zip(files, (out, error), strict=True):
        if content is not None:
            path.write_text(content)
    assert describe_output(files) == text


def test_a_run_begun_by_another_job_is_reported_with_the_job(tmp_path: Path) -> None:
    begun = BeginRecord(run_id="a_r1", attempt=1, job_id="7", begin_unix_s=5)
    lines = describe_runs([RunStatus(run_id="a_r1", attempts=1, open=begun)], Folders.under(tmp_path))
    assert [*lines] == ["1 begun", "  a_r1: begun in job 7, no record yet; rankwise sweep status shows its state"]


@pytest.mark.parametrize("reused", [False, True])
def test_a_script_started_by_hand_runs_and_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reused: bool
) -> None:
    """As long as its process is there; one that started after the attempt has its number from another."""
    monkeypatch.chdir(tmp_path)
    assert sweep.main(PLANNED) == 0
    run_id = next(iter(json.loads(next(Path("jobs").glob("plan.*.json")).read_text())["runs"]))["run_id"]
    with subprocess.Popen(["sleep", "1000"]) as script:
        job = f"local-{socket.gethostname()}-{script.pid}-0"
        begin = BeginRecord(run_id=run_id, attempt=1, job_id=job, begin_unix_s=int(time.time()) - reused * 1000)
        assert begin.take(Path("traces"))
        capsys.readouterr()
        sweep.main(["status"])
        assert f"jobs/*.sh: {job} {'ended' if reused else 'running'}" in capsys.readouterr().out
        assert sweep.main(["cancel"]) == 0
        assert ("nothing runs" in capsys.readouterr().out) is reused
        script.terminate()
    outcomes = [read_exit_record(path).outcome for path in Path("traces").glob("*.exit.json")]
    assert outcomes == ([] if reused else [Outcome.CANCELLED])
