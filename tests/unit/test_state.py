from __future__ import annotations

from pathlib import Path

import pytest

from hpc.model.verdict import JobEnd
from launch.cluster import query as state
from launch.cluster.query import JobQuery, JobState, cluster_settings, ends, is_job_id, lives, look
from launch.cluster.slurm import controller_answers, slurm_is_installed, why_unreachable


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """`command("squeue", script)`: a stand-in on the PATH for a command of Slurm's; the others are missing."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    for name in ("squeue", "scontrol", "sacct", "sinfo", "sbatch"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 127\n")
        (tmp_path / name).chmod(0o755)

    def make(name: str, body: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")

    return make


ROW = "printf '%s\\n' '{}'"


def queue(*rows: str) -> str:
    return "\n".join(ROW.format(row) for row in rows)


def test_the_controllers_word_counts_while_it_knows_the_job(command) -> None:  # type: ignore[no-untyped-def]
    command("squeue", queue("1|RUNNING|n[1-2]|main|1|1|job|None|", "2|TIMEOUT|n1|main|0|1|job|TimeLimit|"))
    command("sacct", "echo '1|PREEMPTED|n1|main|job|None'; touch asked")
    seen = look(["1", "2"])
    assert seen["1"] == JobQuery(state=JobState.RUNNING, name="job", partition="main")
    end = JobEnd(state="TIMEOUT", source="squeue", name="job", reason="TimeLimit", nodelist="n1")
    assert seen["2"] == JobQuery(state=JobState.ENDED, name="job", partition="main", end=end)
    assert not Path("asked").exists()


def test_what_the_controller_has_forgotten_the_accounts_know(command) -> None:  # type: ignore[no-untyped-def]
    command("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    command("sacct", "printf '1|CANCELLED by 1000|n1|main|job|None\\n2|RUNNING|n1|main|job|None\\n'")
    seen = look(["1", "2", "3"])
    by_whom = JobEnd(state="CANCELLED", source="sacct", name="job", reason="by 1000 (user id)", nodelist="n1")
    assert seen["1"] == JobQuery(state=JobState.ENDED, name="job", partition="main", end=by_whom)
    # Accounts that lag are no life: who does not stand in the controller's memory has ended.
    assert seen["2"].state is JobState.UNKNOWN
    assert seen["2"].end == JobEnd(state="", source="squeue", reason="sacct still says RUNNING")
    assert (seen["3"].state, seen["3"].end) == (JobState.UNKNOWN, JobEnd(state="", source="squeue"))


def test_scontrol_is_asked_where_squeue_cannot_be_run(command) -> None:  # type: ignore[no-untyped-def]
    command("squeue", "exit 126")
    shown = "JobId=1 JobName=x Requeue=0 Restarts=2 JobState=NODE_FAIL Reason=NodeDown Partition=p NodeList=n7"
    unknown = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    command("scontrol", f'case "$4" in 1) echo "{shown}";; *) {unknown};; esac')
    seen = look(["1", "2"])
    assert seen["1"].end == JobEnd(
        state="NODE_FAIL", source="scontrol", name="x", reason="NodeDown, Requeue=0", nodelist="n7", restarts=2
    )
    assert seen["2"].state is JobState.UNKNOWN
    assert "sacct: exit status 127" in seen["2"].error


def test_a_controller_that_does_not_answer_has_ended_nothing(command) -> None:  # type: ignore[no-untyped-def]
    words = "Unable to contact slurm controller (connect failure)"
    command("squeue", f"echo 'slurm_load_jobs error: {words}' >&2; exit 1")
    command("scontrol", "touch asked; exit 1")
    command(
        "sacct",
        "printf '%s|job|None\\n' '1|RUNNING|n|m' '2|NODE_FAIL|n|m' '3|PREEMPTED|n|m' '4|FAILED|n|m'",
    )
    seen = look(["1", "2", "3", "4", "5"])
    assert [seen[job].state for job in "1235"] == [JobState.UNREACHABLE] * 4
    assert seen["4"].end == JobEnd(state="FAILED", source="sacct", name="job", nodelist="n")
    assert words in seen["1"].error
    assert list(ends(["1", "2", "3", "4", "5"])) == ["4"]
    assert not Path("asked").exists()  # it would not reach the controller either, and take as long


def test_a_command_that_hangs_is_ended(command, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(state, "COMMAND_TIMEOUT_S", 0.2)
    command("squeue", "exec sleep 1000")
    seen = look(["1"])["1"]
    assert seen.state is JobState.UNREACHABLE
    assert "squeue: no answer within 0.2 s" in seen.error


def test_missing_programs_are_no_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    seen = look(["1"])["1"]
    assert (seen.state, seen.end) == (JobState.UNREACHABLE, None)
    assert "squeue is not installed here" in seen.error
    assert ends(["1"]) == {}
    assert cluster_settings() is None
    assert look([]) == {}


CONFIG = """\
AccountingStorageType   = accounting_storage/none
MinJobAge               = 2 sec
PreemptMode             = REQUEUE
SlurmdTimeout           = 300 sec
"""


def test_the_settings_that_an_end_follows_from_are_kept_with_it(command) -> None:  # type: ignore[no-untyped-def]
    command("squeue", queue("1|PREEMPTED|n|low|0|1|job|None|", "2|PREEMPTED|n|main|0|0|job|None|",
                            "3|NODE_FAIL|n|main|0|0|job|x|", "4|COMPLETED|n|main|0|1|job|None|"))  # fmt: skip
    command("scontrol", f"""case "$2 $3" in
        "show partition") echo "PartitionName=low AllowGroups=ALL PreemptMode=CANCEL State=UP";;
        *) cat <<'END'\n{CONFIG}END\n;; esac""".replace("\\n", "\n"))  # fmt: skip
    found = ends(["1", "2", "3", "4", "5"])
    assert found["1"].reason == "Requeue=1, PreemptMode=CANCEL"
    assert found["2"].reason == "Requeue=0, PreemptMode=REQUEUE"
    assert found["3"].reason == "x, Requeue=0, SlurmdTimeout=300 sec"
    assert found["4"].reason == ""
    assert "MinJobAge=2 sec, AccountingStorageType=accounting_storage/none" in found["5"].reason


def test_the_accounts_keep_the_lives_of_a_job_that_went_back(command) -> None:  # type: ignore[no-untyped-def]
    command("squeue", queue())
    command(
        "sacct",
        "printf '7|PREEMPTED|n1|main|job|None\\n7|NODE_FAIL|n2|main|job|None\\n7|COMPLETED|n3|main|job|None\\n'",
    )
    assert [(life.state, life.nodelist, life.restarts, life.requeued) for life in lives("7")] == [
        ("PREEMPTED", "n1", 0, True), ("NODE_FAIL", "n2", 1, True), ("COMPLETED", "n3", 2, False),
    ]  # fmt: skip
    assert ends(["7"])["7"].restarts == 2


def test_why_a_job_is_pending_is_told_in_slurms_word(command) -> None:  # type: ignore[no-untyped-def]
    command("squeue", queue("1|PENDING|n|main|0|1|job|QOSMaxJobsPerUserLimit|", "2|RUNNING|n|main|0|1|job|None|",
                            "3|PENDING|n|main|0|1|job|None|"))  # fmt: skip
    assert {job_id: query.reason for job_id, query in look(["1", "2", "3"]).items()} == {
        "1": "QOSMaxJobsPerUserLimit", "2": "", "3": "",
    }  # fmt: skip


@pytest.mark.parametrize("word", ["COMPLETING", "SUSPENDED", "STAGE_OUT", "CONFIGURING", "REQUEUE_HOLD"])
def test_words_that_are_no_ends(command, word: str) -> None:  # type: ignore[no-untyped-def]
    command("squeue", queue(f"1|{word}|n|main|0|1|job|None|"))
    assert look(["1"])["1"].state in (JobState.PENDING, JobState.RUNNING)
    assert ends(["1"]) == {}


def test_a_job_of_another_name_with_that_number_means_that_ours_is_forgotten(command) -> None:  # type: ignore[no-untyped-def]
    """A controller that lost its state gives the numbers of its last seconds again."""
    command("squeue", queue("17|RUNNING|n|main|0|1|of a|colleague|None|", "18|RUNNING|n|main|0|1|ours|None|"))
    seen = look(["17", "18"], {"17": "ours", "18": "ours"})
    assert [seen[job].state for job in ("17", "18")] == [JobState.UNKNOWN, JobState.RUNNING]
    assert look(["17"])["17"].state is JobState.RUNNING  # nobody knows its name
    assert list(ends(["17", "18"], {"17": "ours", "18": "ours"})) == ["17"]
    assert ends(["17"], {"17": "ours"})["17"].reason == "17 is the number of another job now, of a"
    assert (look(["18"])["18"].name, look(["19"])["19"].name) == ("ours", "")


def test_accounts_of_another_job_with_that_number_are_not_ours(command) -> None:  # type: ignore[no-untyped-def]
    command("squeue", queue())
    command("sacct", "printf '17|FAILED|n1|main|colleague|None\\n17|PREEMPTED|n2|main|ours|None\\n'")
    assert look(["17"], {"17": "ours"})["17"].end == JobEnd(
        state="PREEMPTED", source="sacct", name="ours", nodelist="n2"
    )  # fmt: skip
    assert [life.nodelist for life in lives("17", "ours")] == ["n2"]
    assert [life.nodelist for life in lives("17")] == ["n1", "n2"]
    assert look(["17"], {"17": "other"})["17"].end == JobEnd(state="", source="squeue", name="other")


@pytest.mark.parametrize("text", ["--version", "-p", "", "17,18", "17 ", "1\n", "local-host-1-1", "١٧", "17_", "all"])
def test_what_is_no_job_id_reaches_no_command(command, text: str) -> None:  # type: ignore[no-untyped-def]
    for name in ("squeue", "sacct", "scontrol"):
        command(name, "touch asked")
    seen = look([text])[text]
    assert (seen.state, seen.name, lives(text)) == (JobState.UNKNOWN, "", [])
    assert seen.end is not None and seen.end.reason == f"{text!r} is no Slurm job id: the record is damaged"
    assert not Path("asked").exists()


def test_job_ids_are_numbers_array_tasks_and_components() -> None:
    assert all(map(is_job_id, ("17", "17_3", "17+1")))


def test_a_controller_that_is_down_does_not_answer(command) -> None:  # type: ignore[no-untyped-def]
    command("scontrol", "echo 'Slurmctld(primary) at head is DOWN'; exit 1")
    assert not controller_answers()
    assert why_unreachable() == "scontrol ping: scontrol: Slurmctld(primary) at head is DOWN"
    command("scontrol", "echo 'Slurmctld(primary) at UPS-1.UP.org is DOWN'")
    assert not controller_answers()
    for answer in ("Slurmctld(primary) at head is UP", "Slurmctld(primary/backup) at a/b are DOWN/UP"):
        command("scontrol", f"echo '{answer}'")
        assert controller_answers()


def test_why_a_controller_cannot_be_asked_is_told(  # type: ignore[no-untyped-def]
    command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    command("scontrol", "echo 'Slurmctld(primary) at head is UP'")
    assert (slurm_is_installed(), why_unreachable()) == (True, "")
    (tmp_path / "scontrol").chmod(0o644)
    assert why_unreachable() == f"scontrol cannot be run: {tmp_path / 'scontrol'}: Permission denied"
    (tmp_path / "scontrol").unlink()
    assert (slurm_is_installed(), why_unreachable()) == (True, "scontrol is not installed here")
    (tmp_path / "sbatch").unlink()
    assert not slurm_is_installed()


def test_a_controller_that_hangs_is_unreachable(command, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("launch.cluster.slurm.COMMAND_TIMEOUT_S", 0.2)
    command("scontrol", "exec sleep 1000")
    assert why_unreachable() == "scontrol ping: scontrol: no answer within 0.2 s"
