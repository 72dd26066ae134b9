"""Slurm against fake commands of Slurm, scripts that print one answer."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from launch.jobs.plan import WrittenJob, plan_jobs
from launch.jobs.site import Site
from launch.scheduler.protocol import JobState, SubmitError, TransientSubmitError
from launch.scheduler.slurm import Slurm, job_name
from launch.scheduler.slurm_jobs import step_refusal
from tests.unit.fake_commands import Fake, fake_in
from tests.unit.traces import make_run

RUN = make_run()
AUTHENTICATION = (
    "Munge encode failed: Failed to access /run/munge/munge.socket.2: No such file or directory",
    "Munge decode failed: Rewound credential", "Invalid authentication credential", "Protocol authentication error",
    "Zero Bytes were transmitted or received",
    "slurm_send_node_msg: auth_g_create: REQUEST_SUBMIT_BATCH_JOB has authentication error",
)  # fmt: skip


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    fake = fake_in(tmp_path / "bin")
    fake("srun", "")
    return fake


@pytest.fixture
def job(tmp_path: Path) -> WrittenJob:
    (tmp_path / "logs").mkdir()
    [plan] = plan_jobs([RUN], Site(name="s"), 10, None)
    return WrittenJob(plan=plan, script=tmp_path / "1n.sh", text="#!/bin/bash\ntrue\n")


@pytest.mark.parametrize(
    "message",
    [
        "QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
        "(job submit limit, user's size and/or time limits)",
        "AssocMaxSubmitJobLimit", "AssocGrpSubmitJobsLimit",
        "Batch job submission failed: Socket timed out on send/recv operation",
        "Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "Batch job submission failed: Resource temporarily unavailable",
        "Slurm temporarily unable to accept job, sleeping and retrying", "Slurm job queue full, sleeping and retrying",
        "Job creation temporarily disabled, retrying",
        *(f"Batch job submission failed: {reason}" for reason in AUTHENTICATION),
    ],
)  # fmt: skip
def test_transient_refusals(fake: Fake, job: WrittenJob, message: str, tmp_path: Path) -> None:
    fake("sbatch", f"printf '%s\\n' \"sbatch: error: {message}\" >&2; exit 1")
    with pytest.raises(TransientSubmitError, match=r"^sbatch: sbatch: error: "):
        Slurm().submit(job)
    assert not list((tmp_path / "logs").iterdir())


@pytest.mark.parametrize(
    "message",
    [
        "invalid partition specified: nowhere", "QOSMaxWallDurationPerJobLimit", "AssocMaxNodePerJobLimit",
        "Batch job submission failed: Invalid account or account/partition combination specified",
        "Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
    ],
)  # fmt: skip
def test_final_refusals(fake: Fake, job: WrittenJob, message: str, tmp_path: Path) -> None:
    fake("sbatch", f"echo 'sbatch: error: {message}' >&2; echo refused >&2; exit 1")
    with pytest.raises(SubmitError, match=r"^sbatch refused 1n\.sh: sbatch: error: .* refused$"):
        Slurm().submit(job)


def test_an_sbatch_that_times_out_is_transient(fake: Fake, job: WrittenJob, tmp_path: Path) -> None:
    fake("timeout", "exit 124")
    with pytest.raises(TransientSubmitError, match="no answer within 60 s"):
        Slurm().submit(job)


def test_a_job_has_its_name_whatever_the_environment_says(
    fake: Fake, job: WrittenJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_JOB_NAME", "mine")
    fake("sbatch", f'echo "$@" >{tmp_path}/arguments; echo Submitted batch job 17')
    assert Slurm().submit(job) == "17"
    assert f"--job-name={job_name(job.plan, tmp_path)}" in (tmp_path / "arguments").read_text().split()
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["17_submission.sh"]


def test_a_job_inherits_nothing_of_the_job_that_submits_it(
    fake: Fake, job: WrittenJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`srun --pty bash` leaves its binding in the environment, and a requeued job how often it was started."""
    of_the_job = ("SLURM_JOB_ID", "SLURM_CPU_BIND", "SLURM_RESTART_COUNT", "PMIX_RANK")
    for name in (*of_the_job, "SLURM_CONF", "OMPI_MCA_btl"):
        monkeypatch.setenv(name, "5")
    fake("sbatch", f"env >{tmp_path}/variables; echo Submitted batch job 7")
    assert Slurm().submit(job) == "7"
    variables = {line.partition("=")[0] for line in (tmp_path / "variables").read_text().splitlines()}
    assert variables >= {"SLURM_CONF", "OMPI_MCA_btl", "PATH"} and not variables.intersection(of_the_job)


def test_a_job_gets_nothing_from_a_shell_that_its_script_does_not_say(
    fake: Fake, job: WrittenJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SBATCH_MEM_PER_NODE", "SBATCH_GRES", "SLURM_CPU_BIND", "SLURM_NETWORK", "SLURM_PMIX_FENCE"):
        monkeypatch.setenv(name, "5")
    fake("sbatch.tinygpu", f"env >{tmp_path}/variables; echo Submitted batch job 7")
    Slurm(submits="sbatch.tinygpu").submit(job)
    variables = (tmp_path / "variables").read_text().splitlines()
    assert [each for each in variables if each.startswith(("SBATCH_", "SLURM_"))] == ["SLURM_PMIX_FENCE=5"]


def test_a_job_name_identifies_its_folder_and_its_runs(job: WrittenJob, tmp_path: Path) -> None:
    [longer] = plan_jobs([RUN], Site(name="s", partition="p"), 20, None)
    [more] = plan_jobs([RUN, dataclasses.replace(RUN, repeat=2)], Site(name="s"), 10, None)
    name = job_name(job.plan, tmp_path)
    assert name.startswith("rankwise-delay-1n-") and len(name) == len("rankwise-delay-1n-") + 8
    assert job_name(longer, tmp_path) == name
    assert len({name, job_name(more, tmp_path), job_name(job.plan, tmp_path / "other")}) == 3


def test_a_recorded_job_that_squeue_does_not_list_is_asked_for_by_scontrol(fake: Fake, tmp_path: Path) -> None:
    """squeue is a wrapper that answers with nothing."""
    fake("squeue", "exit 0")
    fake("sacct", "exit 0")
    shown = "JobId=9 JobName=rankwise-1n-a JobState=RUNNING Reason=None Partition=p NodeList=n1"
    fake("scontrol", f'case "$4" in 9) echo "{shown}";; *) echo "Invalid job id specified" >&2; exit 1;; esac')
    cluster, name = Slurm(), "rankwise-1n-a"
    assert cluster.active_jobs([name], {"9": name, "10": name, "local-n1-5-0": name}) == {"9": name}


def test_an_authentication_of_a_step_that_fails_for_a_moment_is_an_outage() -> None:
    for message in AUTHENTICATION:
        assert step_refusal(f"srun: error: Unable to create step for job 7: {message}\n")
        assert step_refusal(f"srun: error: Task launch for StepId=7.0 failed on node n1: {message}\n")


def test_active_jobs_are_listed_by_name(fake: Fake, tmp_path: Path) -> None:
    cluster = Slurm()
    fake("squeue", "printf '12|rankwise-1n-a\\n9|rankwise-2n-b\\n10|rankwise-1n-ab\\n'")
    assert cluster.active_jobs(["rankwise-1n-a", "rankwise-2n-b"], {}) == {"9": "rankwise-2n-b", "12": "rankwise-1n-a"}
    assert cluster.active_jobs([], {}) == {}
    fake("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(TransientSubmitError, match="squeue: slurm_load_jobs error: Unable to contact"):
        cluster.active_jobs(["rankwise-1n-a"], {})


def test_a_reused_job_id_is_not_the_job(fake: Fake, job: WrittenJob, tmp_path: Path) -> None:
    """A controller that was killed gives the numbers of its last seconds twice."""
    fake("sbatch", "echo Submitted batch job 17")
    fake("scontrol", "exit 1")
    fake("sacct", "exit 1")
    cluster = Slurm()
    cluster.submit(job)
    for name, state in ((job_name(job.plan, tmp_path), JobState.RUNNING), ("rankwise-9n-of-another", JobState.UNKNOWN)):
        fake("squeue", f"printf '17|RUNNING|node1|main|0|1|{name}|None|\\n'")
        assert cluster.states(["17"]) == {"17": state}
        ends = cluster.ends(["17"])
        assert [end.state for end in ends.values()] == ([] if state is JobState.RUNNING else [""])
    assert ends["17"].reason == "17 is the number of another job now, rankwise-9n-of-another"


def test_a_job_held_after_a_failed_launch_is_released_three_times_at_most(fake: Fake, tmp_path: Path) -> None:
    row = "%s|PENDING||main|0|1|n|%s|\\n"
    fake("squeue", f"printf '{row}' 17 launch_failed_requeued_held 18 JobHeldUser 19 Priority")
    fake("scontrol", f'echo "$@" >>{tmp_path}/calls')
    cluster = Slurm()
    cluster.states(["17", "18", "19"])
    assert [cluster.release_held(["17", "18", "19"]) for _ in range(2)] == [{"17": ""}, {"17": ""}]
    fake("scontrol", f'echo "$@" >>{tmp_path}/calls; echo "Access/permission denied for job 17" >&2; exit 1')
    denied = {"17": "scontrol: Access/permission denied for job 17"}
    assert [cluster.release_held(["17", "18", "19"]) for _ in range(2)] == [denied, {}]
    assert (tmp_path / "calls").read_text() == "release 17\n" * 3


def test_a_text_that_is_no_job_id_is_not_cancelled(fake: Fake, tmp_path: Path) -> None:
    fake("scancel", f"touch {tmp_path}/calls")
    with pytest.raises(SubmitError, match="'--version' is no Slurm job id: nothing was cancelled"):
        Slurm().cancel(["17", "--version"])
    assert not (tmp_path / "calls").exists()


@pytest.mark.parametrize("broken", ["squeue", "scancel"])
def test_commands_without_execute_permission_are_named(fake: Fake, tmp_path: Path, broken: str) -> None:
    fake(broken, "true")
    (tmp_path / "bin" / broken).chmod(0o644)
    os.environ["PATH"] = f"{tmp_path}/bin"  # set back by the fixture
    with pytest.raises(SubmitError, match=rf"{broken} cannot be run: .*/bin/{broken}: Permission denied"):
        Slurm().active_jobs(["n"], {}) if broken == "squeue" else Slurm().cancel(["5"])


def test_a_failed_cancel_raises_its_message(fake: Fake, tmp_path: Path) -> None:
    fake("scancel", "echo 'scancel: error: Kill job error on job id 5: Access/permission denied' >&2; exit 1")
    with pytest.raises(SubmitError, match=r"scancel 5: .*Access/permission denied"):
        Slurm().cancel(["5"])
    fake("scancel", "echo 'scancel: error: … Job/step already completing or completed' >&2; exit 1")
    Slurm().cancel(["5"])
    Slurm().cancel([])
