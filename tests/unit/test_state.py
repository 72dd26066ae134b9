from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from hpc.model.verdict import JobEnd
from launch.scheduler import slurm_jobs
from launch.scheduler.protocol import JobQuery, JobState
from launch.scheduler.slurm import Slurm
from launch.scheduler.slurm_jobs import (
    awaited_step,
    cluster_settings,
    ends,
    is_job_id,
    lives,
    look,
    step_refusal,
)
from tests.unit.fake_commands import Fake, fake_in

of_main = partial(JobEnd, name="job", partition="main")


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Fake commands; those of Slurm that are not made fail."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    fake = fake_in(tmp_path)
    for name in ("squeue", "scontrol", "sacct", "sbatch"):
        fake(name, "exit 127")
    return fake


def queue(*rows: str) -> str:
    return "\n".join(f"echo '{row}'" for row in rows)


def test_the_controller_is_believed_while_it_knows_the_job(command: Fake) -> None:
    command("squeue", queue("1|RUNNING|n[1-2]|main|1|1|job|None|", "2|TIMEOUT|n1|main|0|1|job|TimeLimit|"))
    command("sacct", "echo '1|PREEMPTED|n1|main|job|None'; touch called")
    queries = look(["1", "2"])
    assert queries["1"] == JobQuery(state=JobState.RUNNING, name="job")
    end = of_main(state="TIMEOUT", source="squeue", reason="TimeLimit", nodelist="n1")
    assert queries["2"] == JobQuery(state=JobState.ENDED, name="job", end=end)
    assert not Path("called").exists()


def test_the_accounts_answer_for_forgotten_jobs(command: Fake) -> None:
    command("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    command("sacct", "printf '1|CANCELLED by 1000|n1|main|job|None\\n2|RUNNING|n1|main|job|None\\n'")
    queries = look(["1", "2", "3"])
    cancelled = JobEnd(
        state="CANCELLED", source="sacct", name="job", partition="main", reason="by 1000 (user id)", nodelist="n1"
    )
    assert queries["1"] == JobQuery(state=JobState.ENDED, name="job", end=cancelled)
    # The accounts lag: a job that the controller has forgotten is not running.
    assert queries["2"].state is JobState.UNKNOWN
    assert queries["2"].end == JobEnd(state="", source="squeue", reason="sacct still says RUNNING")
    assert (queries["3"].state, queries["3"].end) == (JobState.UNKNOWN, JobEnd(state="", source="squeue"))


def test_scontrol_replaces_a_squeue_that_cannot_run(command: Fake) -> None:
    command("squeue", "exit 126")
    shown = "JobId=1 JobName=x Requeue=0 Restarts=2 JobState=NODE_FAIL Reason=NodeDown Partition=p NodeList=n7"
    unknown = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    command("scontrol", f'case "$4" in 1) echo "{shown}";; *) {unknown};; esac')
    queries = look(["1", "2"])
    assert queries["1"].end == JobEnd(
        state="NODE_FAIL",
        source="scontrol",
        name="x",
        partition="p",
        reason="NodeDown, Requeue=0",
        nodelist="n7",
        restarts=2,
    )
    assert queries["2"].state is JobState.UNKNOWN
    assert "sacct: exit status 127" in queries["2"].error


def test_a_silent_controller_ends_no_job(command: Fake) -> None:
    message = "Unable to contact slurm controller (connect failure)"
    command("squeue", f"echo 'slurm_load_jobs error: {message}' >&2; exit 1")
    command("scontrol", "touch called; exit 1")
    command(
        "sacct",
        "printf '%s|job|None\\n' '1|RUNNING|n|m' '2|NODE_FAIL|n|m' '3|PREEMPTED|n|m' '4|FAILED|n|m'",
    )
    queries = look(["1", "2", "3", "4", "5"])
    assert [queries[job].state for job in "1235"] == [JobState.UNREACHABLE] * 4
    assert queries["4"].end == JobEnd(state="FAILED", source="sacct", name="job", partition="m", nodelist="n")
    assert message in queries["1"].error
    assert list(ends(["1", "2", "3", "4", "5"])) == ["4"]
    assert not Path("called").exists()  # it would not reach the controller either, and take as long


def test_a_command_that_hangs_is_ended(command: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_jobs, "COMMAND_TIMEOUT_S", 0.2)
    command("squeue", "exec sleep 1000")
    answer = look(["1"])["1"]
    assert answer.state is JobState.UNREACHABLE
    assert "squeue: no answer within 0.2 s" in answer.error


def test_missing_programs_are_no_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = look(["1"])["1"]
    assert (answer.state, answer.end) == (JobState.UNREACHABLE, None)
    assert "squeue is not installed here" in answer.error
    assert ends(["1"]) == {}
    assert cluster_settings("main") == {}
    assert look([]) == {}


CONFIG = """\
AccountingStorageType   = accounting_storage/none
MinJobAge               = 2 sec
PreemptMode             = REQUEUE
SlurmdTimeout           = 300 sec
"""


def test_a_reason_includes_the_settings_behind_an_end(command: Fake) -> None:
    command("squeue", queue("1|PREEMPTED|n|low|0|1|job|None|", "2|PREEMPTED|n|main|0|0|job|None|",
                            "3|NODE_FAIL|n|main|0|0|job|x|", "4|COMPLETED|n|main|0|1|job|None|"))  # fmt: skip
    command("scontrol", f"""case "$2 $3" in
        "show partition") echo "PartitionName=low AllowGroups=ALL PreemptMode=CANCEL State=UP";;
        *) cat <<'END'\n{CONFIG}END\n;; esac""".replace("\\n", "\n"))  # fmt: skip
    job_ends = ends(["1", "2", "3", "4", "5"])
    assert job_ends["1"].reason == "Requeue=1, PreemptMode=CANCEL"
    assert job_ends["2"].reason == "Requeue=0, PreemptMode=REQUEUE"
    assert job_ends["3"].reason == "x, Requeue=0, SlurmdTimeout=300 sec"
    assert job_ends["4"].reason == ""
    assert "MinJobAge=2 sec, AccountingStorageType=accounting_storage/none" in job_ends["5"].reason


def test_the_accounts_list_every_start_of_a_requeued_job(command: Fake) -> None:
    command("squeue", queue())
    command(
        "sacct",
        "printf '7|PREEMPTED|n1|main|job|None\\n7|NODE_FAIL|n2|main|job|None\\n7|COMPLETED|n3|main|job|None\\n'",
    )
    assert [(life.state, life.nodelist, life.restarts, life.requeued) for life in lives("7")] == [
        ("PREEMPTED", "n1", 0, True), ("NODE_FAIL", "n2", 1, True), ("COMPLETED", "n3", 2, False),
    ]  # fmt: skip
    assert ends(["7"])["7"].restarts == 2


def test_pending_jobs_have_slurms_reason(command: Fake) -> None:
    command("squeue", queue("1|PENDING|n|main|0|1|job|QOSMaxJobsPerUserLimit|", "2|RUNNING|n|main|0|1|job|None|",
                            "3|PENDING|n|main|0|1|job|None|"))  # fmt: skip
    assert {job_id: query.reason for job_id, query in look(["1", "2", "3"]).items()} == {
        "1": "QOSMaxJobsPerUserLimit", "2": "", "3": "",
    }  # fmt: skip


@pytest.mark.parametrize("state", ["COMPLETING", "SUSPENDED", "STAGE_OUT", "CONFIGURING", "REQUEUE_HOLD"])
def test_states_that_are_no_ends(command: Fake, state: str) -> None:
    command("squeue", queue(f"1|{state}|n|main|0|1|job|None|"))
    assert look(["1"])["1"].state in (JobState.PENDING, JobState.RUNNING)
    assert ends(["1"]) == {}


def test_a_job_whose_number_has_another_name_is_forgotten(command: Fake) -> None:
    """A controller that lost its state gives the numbers of its last seconds again."""
    command("squeue", queue("17|RUNNING|n|main|0|1|of a|colleague|None|", "18|RUNNING|n|main|0|1|ours|None|"))
    queries = look(["17", "18"], {"17": "ours", "18": "ours"})
    assert [queries[job].state for job in ("17", "18")] == [JobState.UNKNOWN, JobState.RUNNING]
    assert look(["17"])["17"].state is JobState.RUNNING  # nobody knows its name
    assert list(ends(["17", "18"], {"17": "ours", "18": "ours"})) == ["17"]
    assert ends(["17"], {"17": "ours"})["17"].reason == "17 is the number of another job now, of a"
    assert (look(["18"])["18"].name, look(["19"])["19"].name) == ("ours", "")


def test_accounts_of_another_name_are_ignored(command: Fake) -> None:
    command("squeue", queue())
    command("sacct", "printf '17|FAILED|n1|main|colleague|None\\n17|PREEMPTED|n2|main|ours|None\\n'")
    assert look(["17"], {"17": "ours"})["17"].end == JobEnd(
        state="PREEMPTED", source="sacct", name="ours", partition="main", nodelist="n2"
    )  # fmt: skip
    assert [life.nodelist for life in lives("17", "ours")] == ["n2"]
    assert [life.nodelist for life in lives("17")] == ["n1", "n2"]
    assert look(["17"], {"17": "other"})["17"].end == JobEnd(state="", source="squeue", name="other")


@pytest.mark.parametrize("text", ["--version", "-p", "", "17,18", "17 ", "1\n", "local-host-1-1", "١٧", "17_", "all"])
def test_a_text_that_is_no_job_id_reaches_no_command(command: Fake, text: str) -> None:
    for name in ("squeue", "sacct", "scontrol"):
        command(name, "touch called")
    answer = look([text])[text]
    assert (answer.state, answer.name, lives(text)) == (JobState.UNKNOWN, "", [])
    assert answer.end is not None and answer.end.reason == f"{text!r} is no Slurm job id: the record is damaged"
    assert not Path("called").exists()


def test_job_ids_are_numbers_array_tasks_and_components() -> None:
    assert all(map(is_job_id, ("17", "17_3", "17+1")))


def test_a_controller_that_is_down_does_not_answer(command: Fake) -> None:
    command("scontrol", "echo 'Slurmctld(primary) at head is DOWN'; exit 1")
    assert Slurm().unreachable() == "scontrol ping: scontrol: Slurmctld(primary) at head is DOWN"
    command("scontrol", "echo 'Slurmctld(primary) at UPS-1.UP.org is DOWN'")
    assert Slurm().unreachable()
    for answer in ("Slurmctld(primary) at head is UP", "Slurmctld(primary/backup) at a/b are DOWN/UP"):
        command("scontrol", f"echo '{answer}'")
        assert not Slurm().unreachable()


def test_missing_and_forbidden_commands_are_named(
    command: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    command("scontrol", "echo 'Slurmctld(primary) at head is UP'")
    assert (Slurm().installed(), Slurm().unreachable()) == (True, "")
    (tmp_path / "scontrol").chmod(0o644)
    assert Slurm().unreachable() == f"scontrol cannot be run: {tmp_path / 'scontrol'}: Permission denied"
    (tmp_path / "scontrol").unlink()
    assert (Slurm().installed(), Slurm().unreachable()) == (True, "scontrol is not installed here")
    (tmp_path / "sbatch").unlink()
    assert not Slurm().installed()


@pytest.mark.parametrize("reason", [
    "Unable to contact slurm controller (connect failure)", "Unable to contact slurm controller (send failure)",
    "Unable to contact slurm controller (receive failure)", "Unable to contact slurm controller (shutdown failure)",
    "Communication connection failure", "Message send failure", "Message receive failure",
    "Socket timed out on send/recv operation", "Zero Bytes were transmitted or received",
    "Slurm backup controller in standby mode", "Controller is in standby mode, try a different controller",
    "Connection refused", "Transport endpoint is not connected", "Resource temporarily unavailable",
])  # fmt: skip
def test_a_step_that_did_not_reach_the_controller_is_recognised(reason: str) -> None:
    """The texts are those of Slurm's src/common/slurm_errno.c and of errno."""
    for what in ("confirm allocation for", "create step for"):
        text = f"Unable to {what} job 7: {reason}"
        assert step_refusal(f"x\nsrun: error: {text}\nsrun: Check SLURM_JOB_ID environment variable.\n") == text


@pytest.mark.parametrize("reason", [
    "Invalid job id specified", "Requested node configuration is not available", "Access/permission denied",
    "More processors requested than permitted", "Job/step already completing or completed", "Memory required by task",
])  # fmt: skip
def test_a_step_that_the_controller_refuses_is_no_outage(reason: str) -> None:
    assert step_refusal(f"srun: error: Unable to create step for job 7: {reason}\n") == ""


def test_a_step_is_awaited_from_the_first_of_sruns_messages_to_the_last() -> None:
    """As srun 22.05 and 24.05 print them; srun 2.2 left out the number of the job."""
    text = ""
    for line, awaited in (
        ("x", ""),
        (
            "srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)",
            "Job 7 step creation t",
        ),
        ("rankwise: watchdog: a.1: waits", "Job 7 step creation t"),
        ("srun: Job 7 step creation still disabled, retrying (Requested nodes are busy)", "Job 7 step creation still"),
        ("srun: Step created for StepId=7.3", ""),
        ("srun: Job step creation temporarily disabled, retrying", "Job step creation temporarily"),
        ("srun: Step created for job 7", ""),
    ):
        text += f"{line}\n"
        assert awaited_step(text).startswith(awaited) and bool(awaited_step(text)) is bool(awaited), line
