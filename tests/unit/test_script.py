from __future__ import annotations

import dataclasses
import json
import os
import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc.outcome import SETTLING, Outcome, ask_again, exit_records, read_exit_record
from hpc.spec import RunSpec
from launch import script
from launch.plan import plan_jobs
from launch.script import Folders, Guards, render_job, render_local
from launch.site import Site
from launch.slurm import SubmitError, header

HOSTILE = [
    "a'; touch pwned #",
    "two words",
    "$(touch pwned)",
    "`touch pwned`",
    'q"; touch pwned; "',
    "new\nline",
    "a\\b",
]
RUN = RunSpec(
    nodes=2, ranks_per_node=2, gpus_per_node=2, cpus_per_rank=4, backend="torch-ddp", workload="mlp", batch_size=8,
    precision="fp32", scaling="weak", warmup_steps=5, measured_steps=5, repeat=1, seed=0, site="golden",
    env={"NCCL_ALGO": "Ring"},
)  # fmt: skip
SITE = Site(
    name="golden", partition="gpu", account="p42", qos="high", constraint="a100", reservation="bench", exclude="node13",
    modules=("CUDA/12.4", "OpenMPI"), gpus_per_node=2,
)  # fmt: skip
FRAMEWORKS = {"torch-ddp": "torch"}


def test_script_equals_its_golden_file(golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "CHECKOUT", Path("/opt/rankwise"))
    monkeypatch.setattr(script, "here_python", lambda: "/opt/rankwise/.venv/bin/python")
    folders = Folders(jobs=Path("/scratch/sweep/jobs"), traces=Path("/scratch/sweep/traces"))
    runs = (RUN, dataclasses.replace(RUN, repeat=2, env={}))
    [job] = plan_jobs(runs, SITE, minutes_per_run=10, time_min=None)
    golden("2n.sh", render_job(job.runs, header(job, folders), SITE, folders, FRAMEWORKS))


def test_shell_and_python_mean_the_same_by_settled(tmp_path: Path) -> None:
    text = render_local([RUN], ["mpiexec"], Folders.under(tmp_path))
    words = re.search(r'"outcome": "\(([a-z_|]+)\)"', text)
    assert words is not None
    assert set(words[1].split("|")) == SETTLING


def test_a_module_system_may_read_variables_that_nobody_set(tmp_path: Path) -> None:
    folders = Folders.under(tmp_path)
    text = render_job([RUN], "#!/bin/bash\n", SITE, folders, FRAMEWORKS)
    until_modules, there, _ = text.partition("module load OpenMPI || exit 1\nset -u\n")
    module = "module() { echo $NOBODY_SET_IT loaded $2; }"
    done = subprocess.run(
        ["bash", "-c", f"{module}\n{until_modules}{there}echo went on"], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["loaded CUDA/12.4", "loaded OpenMPI", "went on"], done.stderr


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_reach_the_run_whole_and_run_nothing(tmp_path: Path, name: str) -> None:
    """The script is really run by bash; a program in place of mpiexec writes down what reached it."""
    out = tmp_path / name
    folders = Folders.under(out)
    folders.logs.mkdir(parents=True)
    folders.traces.mkdir()
    seen = tmp_path / "seen.json"
    spy = tmp_path / "spy"
    spy.write_text(
        "#!/usr/bin/env python3\nimport json, os, sys\n"
        f"json.dump([sys.argv[1:], os.environ['HOSTILE']], open({str(seen)!r}, 'w'))\n"
    )
    spy.chmod(0o755)
    run = dataclasses.replace(RUN, env={"HOSTILE": name})
    job = tmp_path / "job.sh"
    job.write_text(render_local([run], [str(spy)], folders))
    subprocess.run(["bash", str(job)], cwd=tmp_path, check=False, capture_output=True)
    argv, value = json.loads(seen.read_text())
    assert value == name
    assert argv[argv.index("hpc.rank") + 1] == str(folders.run_file(run))
    assert argv[argv.index("--traces") + 1] == str(folders.traces)
    assert not list(tmp_path.rglob("pwned"))
    assert json.loads((folders.traces / f"{run.run_id}.1.exit.json").read_text())["outcome"] == "launch_fail"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_cannot_leave_their_header_line(tmp_path: Path, name: str) -> None:
    folders = Folders.under(tmp_path / name)
    [job] = plan_jobs([RUN], dataclasses.replace(SITE, partition="p'; touch pwned #"), 10, None)
    if "\n" in name or "\\" in name:
        with pytest.raises(SubmitError, match="Slurm cannot write a job's output"):
            header(job, folders)
    else:
        lines = header(job, folders).splitlines()
        assert all(line == "" or line.startswith("#") for line in lines)


def fake_launcher(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "launcher"
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)
    return path


def write_job(tmp_path: Path, body: str) -> Path:
    """The script of one run, whose launcher does `body`."""
    folders = Folders.under(tmp_path)
    folders.logs.mkdir(parents=True, exist_ok=True)
    folders.traces.mkdir(exist_ok=True)
    job = tmp_path / "job.sh"
    job.write_text(render_local([RUN], [str(fake_launcher(tmp_path, body))], folders))
    return job


def outcome_of(tmp_path: Path, body: str, *arguments: str, **variables: str) -> tuple[dict[str, Any], str]:
    """Runs a one-run script whose launcher does `body`; the exit record and what the script printed."""
    argv = ["bash", str(write_job(tmp_path, body)), *arguments]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, env={**os.environ, **variables})
    records = sorted((tmp_path / "traces").glob("*.exit.json"))
    return (json.loads(records[-1].read_text()) if records else {}), done.stdout


# The launcher's last words are: … RUN.json --traces DIR --simulate-nodes --attempt N --script FILE
STEM = (
    'while [ $# -gt 0 ]; do case "$1" in --traces) t=$2;; --attempt) a=$2;; esac; shift; done; '
    f'stem="$t/{RUN.run_id}.$a"; '
)


def note(rank: int, outcome: str) -> str:
    """Shell commands that leave a rank's note."""
    values = {"rank": rank, "outcome": outcome, "exception": "E", "message": "m", "step": 3, "hostname": "h"}
    return f"""echo '{json.dumps(values)}' >"$stem.rank{rank}.json"; """


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (STEM + 'touch "$stem.h5"', Outcome.OK),
        ("exit 0", Outcome.LAUNCH_FAIL),
        ("exit 7", Outcome.LAUNCH_FAIL),
        (STEM + 'touch "$stem.h5"; exit 9', Outcome.RANK_FAIL),
        (STEM + note(0, "invalid") + "exit 3", Outcome.INVALID),
        (STEM + note(0, "rank_fail") + note(11, "oom") + "exit 3", Outcome.OOM),
        (STEM + note(0, "launch_fail") + "exit 5", Outcome.LAUNCH_FAIL),
        ("echo 'slurmstepd: error: Detected 1 oom_kill event' >&2; exit 137", Outcome.OOM),
        ("kill -USR1 $PPID; exec sleep 60", Outcome.TIMEOUT),
        ("kill -TERM $PPID; exec sleep 60", Outcome.CANCELLED),
        (STEM + """echo '{"text": "no step for long"}' >"$stem.hang.json"; exit 143""", Outcome.LAUNCH_FAIL),
    ],
)  # fmt: skip
def test_outcome_comes_from_what_the_attempt_left(tmp_path: Path, body: str, outcome: Outcome) -> None:
    record, _ = outcome_of(tmp_path, body)
    assert record["outcome"] == outcome
    assert (record["run_id"], record["attempt"]) == (RUN.run_id, 1)


@pytest.mark.parametrize(("status", "collected"), [(0, False), (9, True)])
def test_what_ranks_left_beside_a_whole_trace_is_collected_where_they_died_after_it(
    tmp_path: Path, status: int, collected: bool
) -> None:
    outcome_of(tmp_path, STEM + f'touch "$stem.h5"; exit {status}')
    [log] = (tmp_path / "jobs" / "logs").glob("*.out")
    assert ("collected the journals of" in log.read_text()) is collected


def test_settled_runs_are_passed_over_and_force_runs_them_again(tmp_path: Path) -> None:
    body = STEM + 'touch "$stem.h5"'
    assert outcome_of(tmp_path, body)[0]["attempt"] == 1
    record, printed = outcome_of(tmp_path, body)
    assert record["attempt"] == 1
    assert f"{RUN.run_id} is settled, passed over" in printed
    assert outcome_of(tmp_path, body, "--force")[0]["attempt"] == 2


def test_unsettled_runs_are_run_again_under_the_next_number(tmp_path: Path) -> None:
    assert outcome_of(tmp_path, "exit 1")[0]["attempt"] == 1
    assert outcome_of(tmp_path, "exit 1")[0]["attempt"] == 2


def test_somebody_asked_for_another_attempt(tmp_path: Path) -> None:
    body = STEM + 'touch "$stem.h5"'
    record, _ = outcome_of(tmp_path, body)
    ask_again(tmp_path / "traces", [read_exit_record(tmp_path / "traces" / f"{RUN.run_id}.1.exit.json")])
    record, _ = outcome_of(tmp_path, body)
    assert record["attempt"] == 2
    assert outcome_of(tmp_path, body)[0]["attempt"] == 2


def test_force_leaves_alone_what_the_same_job_settled_before_it_was_requeued(tmp_path: Path) -> None:
    body = STEM + 'touch "$stem.h5"'
    assert outcome_of(tmp_path, body, "--force", RANKWISE_JOB_ID="local-h-1-1")[0]["attempt"] == 1
    assert outcome_of(tmp_path, body, "--force", RANKWISE_JOB_ID="local-h-1-1")[0]["attempt"] == 1
    assert outcome_of(tmp_path, body, "--force", RANKWISE_JOB_ID="local-h-1-2")[0]["attempt"] == 2


def test_without_python_the_shell_writes_the_record(tmp_path: Path) -> None:
    job = write_job(tmp_path, "exit 7")
    job.write_text(re.sub("(?m)^python=.*$", "python=/nowhere/python", job.read_text()))
    subprocess.run(["bash", str(job)], check=False, capture_output=True)
    record = read_exit_record(tmp_path / "traces" / f"{RUN.run_id}.1.exit.json")
    assert (record.outcome, record.exit_status, record.attempt) == (Outcome.LAUNCH_FAIL, 7, 1)
    assert "hpc.evidence failed" in record.evidence[0]
    assert "/nowhere/python: No such file" in (tmp_path / "jobs" / "logs" / f"{RUN.run_id}.1.err").read_text()


def begun(tmp_path: Path, job_id: str) -> None:
    """An attempt that began in another job and has no record."""
    (tmp_path / "traces").mkdir(exist_ok=True)
    values = {"run_id": RUN.run_id, "attempt": 1, "job_id": job_id, "begin_unix_s": 5}
    (tmp_path / "traces" / f"{RUN.run_id}.1.begin.json").write_text(json.dumps(values) + "\n")


def fake_slurm(tmp_path: Path, squeue: str) -> str:
    """A PATH on which `squeue` is a fake, and scontrol does not answer."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    for name, body in (("squeue", squeue), ("scontrol", "exit 1"), ("sleep", "exit 0")):
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("squeue", "runs"),
    [
        ("echo RUNNING", False),
        ("echo PENDING", False),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", False),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", True),
        ("exit 0", True),
    ],
)
def test_a_run_that_another_slurm_job_began_is_done_only_when_that_has_ended(
    tmp_path: Path, squeue: str, runs: bool
) -> None:
    begun(tmp_path, "4711")
    _, printed = outcome_of(tmp_path, STEM + 'touch "$stem.h5"', PATH=fake_slurm(tmp_path, squeue))
    records = exit_records(tmp_path / "traces").get(RUN.run_id, [])
    assert [record.outcome for record in records] == (["lost", "ok"] if runs else [])
    assert ("is left to job 4711, which began it" in printed) is not runs


def test_a_run_that_another_job_takes_at_this_very_moment_is_left_to_it(tmp_path: Path) -> None:
    """A fake `date`, which the script calls just before it takes the number, lets another living job take it first."""
    path = fake_slurm(tmp_path, "exit 1")
    begin = tmp_path / "traces" / f"{RUN.run_id}.1.begin.json"
    other = f'{{"run_id": "{RUN.run_id}", "attempt": 1, "job_id": "local-{socket.gethostname()}-{os.getpid()}-0"}}'
    date = tmp_path / "bin" / "date"
    date.write_text(f"#!/bin/bash\n[ -e '{begin}' ] || echo '{other}' >'{begin}'\nexec /bin/date \"$@\"\n")
    date.chmod(0o755)
    record, printed = outcome_of(tmp_path, STEM + 'touch "$stem.h5"', PATH=path)
    assert record == {}
    assert "is left to job local-" in printed
    assert [file.name for file in (tmp_path / "traces").glob("*.begin.json")] == [begin.name]


def test_runs_wait_for_a_controller_that_is_away(tmp_path: Path) -> None:
    """A fake `squeue` that fails twice and then answers."""
    away = f"""echo . >>'{tmp_path}/asked'
    [ "$(wc -l <'{tmp_path}/asked')" -gt 2 ] && echo RUNNING && exit
    echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"""
    variables = {"PATH": fake_slurm(tmp_path, away), "SLURM_JOB_ID": "4711"}
    record, printed = outcome_of(tmp_path, STEM + 'touch "$stem.h5"', **variables)
    assert (record["outcome"], record["job_id"]) == ("ok", "4711")
    assert printed.count("waits for slurmctld, which does not answer: slurm_load_jobs error: Unable to contact") == 1
    assert len((tmp_path / "asked").read_text().splitlines()) == 3


def test_a_launcher_that_does_not_end_when_told_is_killed(tmp_path: Path) -> None:
    """A fake `timeout` spares the ten seconds: it says that they are over."""
    body = "trap '' TERM; kill -TERM $PPID; while :; do sleep 1; done"
    path = fake_slurm(tmp_path, "exit 1")
    (tmp_path / "bin" / "timeout").write_text("#!/bin/bash\nexit 124\n")
    (tmp_path / "bin" / "timeout").chmod(0o755)
    (tmp_path / "bin" / "sleep").unlink()
    record, printed = outcome_of(tmp_path, body, PATH=path)
    assert (record["outcome"], record["exit_status"]) == ("cancelled", 137)
    assert "has not ended 10 s after SIGTERM: SIGKILL" in printed


@pytest.mark.parametrize(
    ("host", "process", "number", "runs"),
    [
        ("", "this", 0, False),
        ("", "gone", 0, True),
        ("", "gone", 1, True),
        ("", "its", 1, False),
        ("", "this", 1, True),  # not the script that a sweep started: the number is another process's by now
        ("elsewhere", "gone", 1, False),
    ],
)
def test_a_run_that_a_job_of_this_machine_began_is_done_only_when_its_process_is_gone(
    tmp_path: Path, host: str, process: str, number: int, runs: bool
) -> None:
    local = f"local-{host or socket.gethostname()}"
    ended = subprocess.Popen(["true"])
    ended.wait()
    become = f"export RANKWISE_JOB_ID={local}-$$-1; exec sh -c 'echo ready; read end'"
    with subprocess.Popen(["bash", "-c", become], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as lives:
        assert lives.stdout is not None and lives.stdout.readline() == b"ready\n"
        begun(tmp_path, f"{local}-{({'this': os.getpid(), 'gone': ended.pid, 'its': lives.pid})[process]}-{number}")
        outcome_of(tmp_path, STEM + 'touch "$stem.h5"')
    records = exit_records(tmp_path / "traces").get(RUN.run_id, [])
    assert [record.outcome for record in records] == (["lost", "ok"] if runs else [])


def test_a_script_of_another_user_is_there_though_it_cannot_be_signalled(tmp_path: Path) -> None:
    """Asked by a user who is not root about a process of root."""
    text = render_local([RUN], ["mpiexec"], Folders.under(tmp_path))
    lives = text[text.index("lives() {") : text.index("# Of attempts")]
    asked = ["bash", "-c", f'{lives}\nlives "local-$HOSTNAME-1-$1"', "bash"]
    user = 65534 if os.geteuid() == 0 else os.geteuid()
    assert [subprocess.run([*asked, number], user=user, cwd="/", check=False).returncode for number in "01"] == [0, 0]


@pytest.mark.parametrize(("step", "bound"), [({}, "cores"), ({"SLURM_STEP_ID": "0"}, "")])
def test_the_binding_of_a_step_that_it_is_submitted_from_is_not_taken(
    tmp_path: Path, step: dict[str, str], bound: str
) -> None:
    body = f'{STEM} touch "$stem.h5"; echo "${{SLURM_CPU_BIND:-}}${{SLURM_CPU_BIND_TYPE:-}}" >\'{tmp_path}/bound\''
    record, _ = outcome_of(tmp_path, body, SLURM_CPU_BIND_TYPE="cores", **step)
    assert (record["outcome"], (tmp_path / "bound").read_text().strip()) == ("ok", bound)


def test_a_script_may_be_edited_while_it_runs(tmp_path: Path) -> None:
    """In place, as some editors do it: bash reads a script as it goes, and would go on in the middle of a line."""
    body = f"yes 'touch {tmp_path}/pwned' | head -c 99999 >'{tmp_path}/job.sh'; {STEM} touch \"$stem.h5\""
    record, printed = outcome_of(tmp_path, body)
    assert record["outcome"] == "ok"
    assert not (tmp_path / "pwned").exists(), printed


def test_a_job_that_was_started_anew_closes_what_its_former_life_left(tmp_path: Path) -> None:
    begun(tmp_path, "local-h-1-1")
    variables = {"RANKWISE_JOB_ID": "local-h-1-1", "SLURM_RESTART_COUNT": "2"}
    record, printed = outcome_of(tmp_path, STEM + 'touch "$stem.h5"', **variables)
    assert (record["attempt"], record["outcome"], record["restart_count"]) == (2, "ok", 2)
    assert f"{RUN.run_id}.1: node_fail" in printed
    assert exit_records(tmp_path / "traces")[RUN.run_id][0].outcome is Outcome.NODE_FAIL


def test_guards_reach_the_ranks_and_the_watchdog(tmp_path: Path) -> None:
    text = render_local([RUN], ["mpiexec"], Folders.under(tmp_path), Guards(copy_s=1, hang_steps=2.5))
    assert "copy_s=1 " in text and "hang_steps=2.5 " in text and "start_limit_s=600 " in text


def test_traces_that_cannot_be_written_end_the_job_in_words(tmp_path: Path) -> None:
    folders = Folders.under(tmp_path)
    folders.logs.mkdir(parents=True)
    job = tmp_path / "job.sh"
    job.write_text(render_local([RUN], ["/bin/true"], folders))
    done = subprocess.run(["bash", str(job)], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"cannot write to {folders.traces}" in done.stdout


def test_a_begin_record_that_has_no_room_ends_the_job_and_leaves_nothing(tmp_path: Path) -> None:
    """No file may grow here, as on a disk that is full: names can be made still."""
    job = write_job(tmp_path, "true")
    full = "trap '' XFSZ; ulimit -f 0; exec bash \"$0\""
    done = subprocess.run(["bash", "-c", full, str(job)], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"cannot write to {tmp_path / 'traces'}" in done.stdout
    assert list((tmp_path / "traces").iterdir()) == []


def test_what_a_site_promises_reaches_the_ranks(tmp_path: Path) -> None:
    site = dataclasses.replace(SITE, expect_transport="ib", preflight={"load": "fatal", "cores": "off"})
    text = render_job([RUN], "#!/bin/bash\n", site, Folders.under(tmp_path), FRAMEWORKS)
    assert "--expect-transport ib --check cores=off --check load=fatal" in " ".join(text.replace("\\\n", " ").split())
    assert "--check" not in render_job([RUN], "#!/bin/bash\n", SITE, Folders.under(tmp_path), FRAMEWORKS)
