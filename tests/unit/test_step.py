"""launch.step, called by the job script as bash runs it; programs of a test replace launcher and scheduler."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc.model.outcome import Outcome, exit_records, read_exit_record, request_reruns
from hpc.model.verdict import WHO_KILLS
from hpc.recovery.folders import attempt_folder, attempt_folders
from hpc.system.version import code_version
from launch.jobs.script import Folders
from launch.scheduler.local import script_may_run
from launch.step.attempt import MAX_STARTS, memory_kills
from launch.sweep.text import describe_failure
from tests.unit.commands import process, sitecustomize
from tests.unit.job_scripts import RUN, STEM, begun, fake_slurm, in_queue, note, outcome_of, write_job
from tests.unit.traces import put_exit_record
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (STEM + 'touch "$stem.h5"', Outcome.OK),
        pytest.param("exit 0", Outcome.LAUNCH_FAIL, marks=pytest.mark.all),
        ("exit 7", Outcome.LAUNCH_FAIL),
        pytest.param(STEM + 'touch "$stem.h5"; exit 9', Outcome.LAUNCH_FAIL, marks=pytest.mark.all),  # it is empty
        (STEM + note(0, "invalid") + "exit 3", Outcome.INVALID),
        pytest.param(STEM + note(0, "rank_fail") + note(11, "oom") + "exit 3", Outcome.OOM, marks=pytest.mark.all),
        pytest.param(STEM + note(0, "launch_fail") + "exit 5", Outcome.LAUNCH_FAIL, marks=pytest.mark.all),
        ("echo 'slurmstepd: error: Detected 1 oom_kill event' >&2; exit 137", Outcome.OOM),
        pytest.param("kill -USR1 $PPID; exec sleep 60", Outcome.CANCELLED, marks=pytest.mark.all),
        ("kill -TERM $PPID; exec sleep 60", Outcome.CANCELLED),
        (STEM + """echo '{"text": "no step for long"}' >"$stem.hang.json"; exit 143""", Outcome.LAUNCH_FAIL),
    ],
)  # fmt: skip
def test_the_outcome_comes_from_the_files_of_the_attempt(tmp_path: Path, body: str, outcome: Outcome) -> None:
    record, _ = outcome_of(tmp_path, body)
    assert record["outcome"] == outcome
    assert (record["run_id"], record["attempt"]) == (RUN.run_id, 1)


def _remove_group(folder: Path) -> None:
    until(lambda: not (folder / "cgroup.procs").read_text(), "the group is empty")
    folder.rmdir()


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group that may have 256 MiB of memory."""
    versions = {"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"}
    for parent, limit in versions.items():
        folder = Path(parent, f"rankwise-test-{os.getpid()}")
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if not (folder / limit).exists():
                continue
            (folder / limit).write_text(f"{256 << 20}")
            for name, size in (("memory.memsw.limit_in_bytes", f"{256 << 20}"), ("memory.swap.max", "0")):
                if (folder / name).exists():
                    (folder / name).write_text(size)
            yield folder
            return
        finally:
            _remove_group(folder)
    pytest.skip("control groups that limit memory cannot be made here")


HOARD = f"{sys.executable} -c \"hoard = bytearray(b'x') * (1 << 30)\""


def recorded_in(group: Path, tmp_path: Path, body: str) -> dict[str, Any]:
    """The exit record of a job all of whose processes are in the group."""
    argv = ["bash", "-c", f'echo $$ >{group}/cgroup.procs; exec bash "$0"', str(write_job(tmp_path, body))]
    subprocess.run(argv, check=False, capture_output=True)
    [record] = (tmp_path / "traces").glob("*.exit.json")
    return json.loads(record.read_text())


def test_a_kill_by_the_memory_limit_of_a_control_group_is_oom(tmp_path: Path, small_group: Path) -> None:
    """Without Slurm nobody but the kernel's counter says why a process got signal 9."""
    record = recorded_in(small_group, tmp_path, f"{HOARD}; exit $?")
    assert (record["outcome"], record["exit_status"]) == ("oom", 137)
    assert "out of memory: processes of this node's control group that the kernel killed: 1" in record["evidence"][0]


@pytest.mark.parametrize(
    ("groups", "file", "kills"),
    [
        ("0::/job\n", "sys/fs/cgroup/job/memory.events", 2),
        ("4:memory:/job\n1:cpu:/\n0::/\n", "sys/fs/cgroup/memory/job/memory.oom_control", 2),
        ("4:memory:/elsewhere\n", "sys/fs/cgroup/memory/job/memory.oom_control", None),
    ],
)
def test_the_kernels_count_of_kills_is_read_of_both_versions(
    tmp_path: Path, groups: str, file: str, kills: int | None
) -> None:
    for path, text in (("proc/self/cgroup", groups), (file, "oom 5\noom_kill 2\n")):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    assert memory_kills(tmp_path) == kills


def test_a_job_whose_code_is_gone_measures_by_no_other(tmp_path: Path) -> None:
    """The checkout was moved between submission and start; another one is installed in its Python."""
    script = write_job(tmp_path, STEM + 'touch "$stem.h5"')
    gone = tmp_path / "gone"
    script.write_text(script.read_text().replace(f"--code {ROOT}", f"--code {gone}"))
    done = subprocess.run(["bash", script], capture_output=True, text=True, check=False)
    [[record]] = exit_records(tmp_path / "traces").values()
    assert (done.returncode, record.outcome) == (1, Outcome.LAUNCH_FAIL)
    assert f"the code that wrote this job, {gone}, is gone, and {ROOT} is not it" in done.stdout + done.stderr


@pytest.mark.parametrize(("status", "collected"), [(0, False), (9, True)])
def test_journals_beside_a_whole_trace_are_collected_after_a_failure(
    tmp_path: Path, status: int, collected: bool
) -> None:
    outcome_of(tmp_path, STEM + f'touch "$stem.h5"; exit {status}')
    [log] = (tmp_path / "jobs" / "logs").glob("*.out")
    assert ("collected the journals of" in log.read_text()) is collected


def test_final_runs_are_passed_over_unless_forced(tmp_path: Path) -> None:
    body = STEM + 'touch "$stem.h5"'
    assert outcome_of(tmp_path, "exit 1")[0]["attempt"] == 1
    assert outcome_of(tmp_path, body)[0]["attempt"] == 2
    record, printed = outcome_of(tmp_path, body)
    assert record["attempt"] == 2
    assert f"{RUN.run_id} is final, passed over: `bash THIS_SCRIPT --force` makes a further attempt" in printed
    assert outcome_of(tmp_path, body, "--force")[0]["attempt"] == 3


def test_a_rerun_request_begins_one_more_attempt(tmp_path: Path) -> None:
    body = STEM + 'touch "$stem.h5"'
    outcome_of(tmp_path, body)
    request_reruns(tmp_path / "traces", [read_exit_record(tmp_path / "traces" / f"{RUN.run_id}.1.exit.json")])
    assert [outcome_of(tmp_path, body)[0]["attempt"] for _ in range(2)] == [2, 2]


def test_a_script_that_other_code_wrote_says_so_before_it_measures(tmp_path: Path) -> None:
    job = write_job(tmp_path, STEM + 'touch "$stem.h5"')
    written, here = job.read_text(), code_version()
    remark = f"{RUN.run_id}.{{}}: Rankwise 0.1.0+0123456789ab wrote this script, and {here} is at "
    for number, text in enumerate((written, written.replace(f" {here} ", " 0.1.0+0123456789ab ")), 1):
        job.write_text(text)
        done = subprocess.run(["bash", str(job), "--force"], check=True, capture_output=True, text=True)
        assert (remark.format(number) in done.stdout) is (number == 2), done.stdout


def test_without_python_the_shell_writes_the_record(tmp_path: Path) -> None:
    job = write_job(tmp_path, "exit 7")
    job.write_text(re.sub("(?m)^python=.*$", "python=/nowhere/python", job.read_text()))
    done = subprocess.run(["bash", str(job)], check=False, capture_output=True, text=True)
    record = read_exit_record(tmp_path / "traces" / f"{RUN.run_id}.1.exit.json")
    assert (record.outcome, record.exit_status, record.attempt) == (Outcome.LAUNCH_FAIL, 127, 1)
    assert record.evidence == (
        "/nowhere/python -m launch.step could not start: it is gone: was its environment removed?",
    )
    assert describe_failure(record, Folders.under(tmp_path)) == (
        f"{record.evidence[0]}; it left no output of its own: see its job's in {tmp_path / 'jobs' / 'logs'}"
    )
    assert "/nowhere/python: No such file" in done.stderr and done.returncode == 1


def test_a_replaced_folder_of_traces_starts_no_second_attempt_1(tmp_path: Path) -> None:
    """What the first one left on the node is no copy of the next one's."""
    body = STEM + 'touch "$stem.h5"'
    assert outcome_of(tmp_path, body)[0]["attempt"] == 1
    traces = tmp_path / "traces"
    on_node = attempt_folder(traces, f"{RUN.run_id}.1")
    try:
        (on_node / f"{RUN.run_id}.1.h5").write_text("the first one's trace")
        traces.rename(tmp_path / "old")
        record, _ = outcome_of(tmp_path, body)
        assert (record["attempt"], record["outcome"], record["local_copies"]) == (2, "ok", "")
        assert (on_node / f"{RUN.run_id}.1.h5").exists()
    finally:
        shutil.rmtree(on_node)


def test_a_machine_without_loopback_is_named_as_the_reason(tmp_path: Path) -> None:
    lonely = ["unshare", "--net", *([] if os.getuid() == 0 else ["--user", "--map-root-user"])]
    if subprocess.run([*lonely, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user may not make a network namespace")
    job = write_job(tmp_path, "echo cannot continue >&2; exit 1")
    subprocess.run([*lonely, "bash", str(job)], check=False, capture_output=True)
    [record] = exit_records(tmp_path / "traces")[RUN.run_id]
    assert any("has no loopback interface" in sentence for sentence in record.evidence)


@pytest.mark.parametrize(
    ("squeue", "runs"),
    [
        (in_queue("RUNNING"), False),
        pytest.param(in_queue("PENDING"), False, marks=pytest.mark.all),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", False),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", True),
        pytest.param("exit 0", True, marks=pytest.mark.all),
        pytest.param(in_queue("COMPLETED"), True, marks=pytest.mark.all),
    ],
)
def test_a_run_of_another_slurm_job_waits_for_its_end(tmp_path: Path, squeue: str, runs: bool) -> None:
    begun(tmp_path, "4711")
    _, printed = outcome_of(tmp_path, STEM + 'touch "$stem.h5"', PATH=fake_slurm(tmp_path, squeue))
    records = exit_records(tmp_path / "traces").get(RUN.run_id, [])
    assert [record.outcome for record in records] == (["lost", "ok"] if runs else [])
    assert ("is left to job 4711, which began it" in printed) is not runs


def test_a_job_with_fresh_copies_is_not_forgotten_however_empty_squeue_is(tmp_path: Path) -> None:
    begun(tmp_path, "4711")
    partial = tmp_path / "traces" / f"{RUN.run_id}.1.partial"
    partial.mkdir()
    (partial / "n1.beat").write_text("5")
    _, printed = outcome_of(tmp_path, STEM + 'touch "$stem.h5"', PATH=fake_slurm(tmp_path, "exit 0"))
    assert exit_records(tmp_path / "traces") == {}
    assert "the scheduler does not list job 4711, but it runs: its time stamps were copied" in printed


def test_a_run_that_another_job_takes_meanwhile_is_left_to_it(tmp_path: Path) -> None:
    """A fake `squeue`, called for a dead job while the run is looked at, lets a living job take the next attempt."""
    begun(tmp_path, "4711")
    begin = tmp_path / "traces" / f"{RUN.run_id}.2.begin.json"
    other = {"run_id": RUN.run_id, "attempt": 2, "job_id": f"local-{socket.gethostname()}-{os.getpid()}-0"}
    text = json.dumps({**other, "begin_unix_s": int(time.time())})
    path = fake_slurm(tmp_path, f"echo '{text}' >'{begin}'; echo 'error: Invalid job id specified' >&2; exit 1")
    _, printed = outcome_of(tmp_path, STEM + 'touch "$stem.h5"', PATH=path)
    assert "is left to job local-" in printed
    records = exit_records(tmp_path / "traces")[RUN.run_id]
    assert [(record.attempt, record.outcome) for record in records] == [(1, "lost")]
    assert json.loads(begin.read_text())["job_id"] == other["job_id"]


def test_runs_wait_for_a_controller_that_is_away(tmp_path: Path) -> None:
    """A fake `squeue` that fails twice and then answers."""
    away = f"""echo . >>'{tmp_path}/called'
    [ "$(wc -l <'{tmp_path}/called')" -gt 2 ] && echo RUNNING && exit
    echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"""
    variables = {"PATH": fake_slurm(tmp_path, away), "SLURM_JOB_ID": "4711"}
    record, printed = outcome_of(tmp_path, STEM + 'touch "$stem.h5"', **variables)
    assert (record["outcome"], record["job_id"]) == ("ok", "4711")
    waits = "waits for the controller: slurmctld does not answer: squeue: slurm_load_jobs error: Unable to contact"
    assert printed.count(waits) == 1
    assert len((tmp_path / "called").read_text().splitlines()) == 3


AWAY = "srun: error: Unable to confirm allocation for job 4711: Unable to contact slurm controller (connect failure)"
STILL_AWAY = "srun: error: Unable to create step for job 4711: Socket timed out on send/recv operation"
REFUSED = "srun: error: Unable to create step for job 4711: More processors requested than permitted"


def starts(tmp_path: Path, *errors: str, then: str) -> str:
    """What a launcher does that fails with these errors, one after another, and then does something else."""
    count = f"n=$(wc -l <'{tmp_path}/starts'); echo >>'{tmp_path}/starts'; "
    fails = "".join(f"[ $n = {n} ] && {{ echo '{text}' >&2; exit 1; }}; " for n, text in enumerate(errors))
    (tmp_path / "starts").touch()
    return count + fails + STEM + then


def in_slurm(tmp_path: Path, body: str, job: str = "4711", **more: str) -> tuple[dict[str, Any], str]:
    """As `outcome_of`, in a job of Slurm's that runs."""
    return outcome_of(tmp_path, body, PATH=fake_slurm(tmp_path, "echo RUNNING"), SLURM_JOB_ID=job, **more)


def test_a_step_that_found_the_controller_away_is_started_again(tmp_path: Path) -> None:
    record, printed = in_slurm(tmp_path, starts(tmp_path, AWAY, STILL_AWAY, then='touch "$stem.h5"'))
    assert (record["outcome"], record["attempt"], record["step_refusal"]) == ("ok", 1, "")
    assert printed.count("no step was created, tried again: Unable to ") == 2


def test_what_an_earlier_start_printed_decides_nothing(tmp_path: Path) -> None:
    record, _ = in_slurm(
        tmp_path, starts(tmp_path, AWAY, then="echo 'srun: error: node2: task 3: Killed' >&2; exit 137")
    )
    assert (record["outcome"], record["step_refusal"]) == ("launch_fail", "")
    assert record["evidence"][0] == f"standard error: rank 3 on node2: Killed{WHO_KILLS}"


def test_a_controller_that_stays_away_at_each_start_is_recorded(tmp_path: Path) -> None:
    """The record says that no rank was started, for the sweep that follows to submit the job again."""
    record, _ = in_slurm(tmp_path, starts(tmp_path, *[AWAY] * 9, then="exit 1"))
    assert len((tmp_path / "starts").read_text().splitlines()) == MAX_STARTS
    assert (record["outcome"], record["step_refusal"]) == ("launch_fail", AWAY.removeprefix("srun: error: "))


@pytest.mark.parametrize(("error", "job"), [(REFUSED, "4711"), (AWAY, "")])
def test_a_request_that_is_refused_is_not_repeated(tmp_path: Path, error: str, job: str) -> None:
    """Nor is anything outside of a job of Slurm's."""
    record, _ = in_slurm(tmp_path, starts(tmp_path, error, then='touch "$stem.h5"'), job)
    assert (record["outcome"], record["step_refusal"]) == ("launch_fail", "")
    assert record["evidence"][0] == f"standard error: {error.removeprefix('srun: error: ')}"


def test_a_step_with_a_rank_is_not_started_again(tmp_path: Path) -> None:
    """A program may print what srun prints."""
    program = f"PYTHONPATH={shlex.quote(str(ROOT))} {sys.executable} -c {shlex.quote(LEAVES_A_JOURNAL)}"
    in_slurm(tmp_path, starts(tmp_path, then=f'{program} "$t" "{RUN.run_id}.$a"; echo "{AWAY}" >&2; exit 1'))
    assert len((tmp_path / "starts").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("host", "process", "number", "may_run"),
    [
        ("", "this", 0, True),
        ("", "gone", 0, False),
        ("", "gone", 1, False),
        ("", "its", 1, True),
        # Not the script: the number is another process's by now.
        ("", "this", 1, False),
        ("", "later", 0, False),
        ("elsewhere", "gone", 0, True),
    ],
)
def test_a_local_job_may_run_while_its_process_does(host: str, process: str, number: int, may_run: bool) -> None:
    local = f"local-{host or socket.gethostname()}"
    ended = subprocess.Popen(["true"])
    ended.wait()
    become = f"export RANKWISE_JOB_ID={local}-$$-1; exec sh -c 'echo ready; read end'"
    with subprocess.Popen(["bash", "-c", become], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as lives:
        assert lives.stdout is not None and lives.stdout.readline() == b"ready\n"
        pid = {"gone": ended.pid, "its": lives.pid}.get(process, os.getpid())
        begin_unix_s = int(time.time()) - 1_000_000 * (process == "later")
        assert script_may_run(f"{local}-{pid}-{number}", begin_unix_s) is may_run


def test_a_script_of_another_user_may_run() -> None:
    """Asked by a user who is not root about a process of root."""
    host = socket.gethostname()
    for number in (0, 1):  # 0: started by hand
        child = os.fork()
        if not child:
            try:
                os.setuid(65534)
                os._exit(0 if script_may_run(f"local-{host}-1-{number}", int(time.time())) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("step", [{}, {"SLURM_STEP_ID": "0"}])
def test_the_cpu_binding_of_a_surrounding_step_or_shell_is_dropped(tmp_path: Path, step: dict[str, str]) -> None:
    body = f'{STEM} touch "$stem.h5"; echo "${{SLURM_CPU_BIND:-}}${{SLURM_CPU_BIND_TYPE:-}}" >\'{tmp_path}/bound\''
    record, _ = outcome_of(tmp_path, body, SLURM_CPU_BIND_TYPE="cores", **step)
    assert (record["outcome"], (tmp_path / "bound").read_text().strip()) == ("ok", "")


def test_a_script_may_be_edited_while_it_runs(tmp_path: Path) -> None:
    """In place, as some editors do it: bash reads a script as it goes, and would go on in the middle of a line."""
    body = f"yes 'touch {tmp_path}/pwned' | head -c 99999 >'{tmp_path}/job.sh'; {STEM} touch \"$stem.h5\""
    record, printed = outcome_of(tmp_path, body)
    assert record["outcome"] == "ok"
    assert not (tmp_path / "pwned").exists(), printed


def test_a_requeued_job_closes_the_attempts_of_its_earlier_start(tmp_path: Path) -> None:
    begun(tmp_path, "4711")
    record, printed = in_slurm(tmp_path, STEM + 'touch "$stem.h5"', SLURM_RESTART_COUNT="2")
    assert (record["attempt"], record["outcome"], record["restart_count"]) == (2, "ok", 2)
    assert f"{RUN.run_id}.1: node_fail" in printed
    assert exit_records(tmp_path / "traces")[RUN.run_id][0].outcome is Outcome.NODE_FAIL


LEAVES_A_JOURNAL = """
import sys
from pathlib import Path
from hpc.recovery.journal import Journal
Journal(Path(sys.argv[1]), sys.argv[2], 0, 9)
"""
LEAVES_ITS_NOTE_ON_THE_NODE = """
import json, sys
from pathlib import Path
from hpc.recovery.folders import attempt_folder
traces, stem = Path(sys.argv[1]), sys.argv[2]
note = {"rank": 0, "outcome": "oom", "exception": "E", "message": "m", "step": 3, "hostname": "h"}
(attempt_folder(traces, stem) / f"{stem}.rank0.json").write_text(json.dumps(note))
traces.rename(traces.with_name("away"))
"""


def test_what_ranks_left_is_fetched_when_the_traces_are_back(tmp_path: Path) -> None:
    """The traces go before the ranks end, and come back when the step says that it waits for them."""
    program = f"PYTHONPATH={shlex.quote(str(ROOT))} {sys.executable} -c {shlex.quote(LEAVES_ITS_NOTE_ON_THE_NODE)}"
    job, traces = write_job(tmp_path, f'{STEM}{program} "$t" "{RUN.run_id}.$a"; exit 9'), tmp_path / "traces"
    with subprocess.Popen(["bash", str(job)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(f"waits for {traces}" in line for line in process.stdout)
        (tmp_path / "away").rename(traces)
        process.communicate()
    record = read_exit_record(traces / f"{RUN.run_id}.1.exit.json")
    assert (record.outcome, record.local_copies) == (Outcome.OOM, "")
    assert attempt_folders(traces, f"{RUN.run_id}.1") == []


def test_a_full_disk_ends_the_job_and_leaves_no_file(tmp_path: Path) -> None:
    """No file may grow here, as on a disk that is full: names can be made still."""
    job = write_job(tmp_path, "true")
    full = "trap '' XFSZ; ulimit -f 0; exec bash \"$0\""
    done = subprocess.run(["bash", "-c", full, str(job)], check=False, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1
    assert f"cannot write to {tmp_path / 'traces'}" in done.stdout
    assert list((tmp_path / "traces").iterdir()) == []


def test_a_wall_clock_that_is_set_while_the_attempt_runs_does_not_make_it_longer(tmp_path: Path) -> None:
    """The launcher sets the clock of launch.step forward by an hour."""
    for name in ("traces", "logs"):
        (tmp_path / name).mkdir()
    flag = tmp_path / "set"
    env = sitecustomize(
        tmp_path / "site",
        f"import os, time\nreal = time.time\ntime.time = lambda: real() + 3600 * os.path.exists({str(flag)!r})\n",
    )
    step = ["-m", "launch.step", "--run", "r1", "--traces", "traces", "--logs", "logs", "--launcher", "local"]
    done = process([sys.executable, *step, "--", "sh", "-c", 'touch "$0"', str(flag)], tmp_path, env)
    record = read_exit_record(tmp_path / "traces" / "r1.1.exit.json")
    assert record.end_unix_s - record.begin_unix_s >= 3600, done.stderr
    assert record.elapsed_s is not None and 0 <= record.elapsed_s < 3600
    assert record.clock_shift_s > 3000


def test_a_record_without_a_monotonic_duration_is_read_and_has_that_of_the_wall_clock(tmp_path: Path) -> None:
    path = put_exit_record(tmp_path, RUN, Outcome.OK)
    values = json.loads(path.read_text())
    del values["duration_ms"]
    path.write_text(json.dumps(values))
    assert (read_exit_record(path).elapsed_s, read_exit_record(path).clock_shift_s) == (100.0, 0.0)
    path.write_text(json.dumps(values | {"end_unix_s": values["begin_unix_s"] - 9}))
    assert read_exit_record(path).elapsed_s is None


ORPHAN = """
import sys
from pathlib import Path
from launch.step.attempt import SignalLog, end_with_parent
folder, signals = Path(sys.argv[1]), SignalLog(("TERM",))
end_with_parent()
(folder / "ready").touch()
while not signals.first:
    signals.pause(0.1)
signals.note_in(folder / "note")
(folder / "done").write_text(str(signals.orphaned))
"""


def test_the_death_of_the_script_is_noted_as_no_signal_to_the_job(tmp_path: Path) -> None:
    """Also where it dies between the record of the begin and the place of the note."""
    argv = ["bash", "-c", '"$@" & wait', "bash", sys.executable, "-c", ORPHAN, str(tmp_path)]
    script = subprocess.Popen(argv, cwd=ROOT)
    until((tmp_path / "ready").exists, "the step has begun")
    script.kill()
    script.wait()
    until(lambda: (tmp_path / "done").exists() and (tmp_path / "done").read_text(), "the step has seen it")
    assert (tmp_path / "done").read_text() == "True"
    assert not (tmp_path / "note").exists()
