from __future__ import annotations

from pathlib import Path

import pytest

from hpc.outcome import Outcome
from launch.site import Site
from launch.slurm import SubmitError, controller_answers, nodes_of
from launch.state import JobState, job_state, outcome_from_scheduler, slurm_words


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """`command("squeue", script)`: a stand-in on the PATH for a command of Slurm's; the others are missing."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("squeue", "scontrol", "sacct", "sinfo", "sbatch"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 127\n")
        (tmp_path / name).chmod(0o755)

    def make(name: str, body: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")

    return make


def test_squeue_is_asked_first(command) -> None:  # type: ignore[no-untyped-def]
    command("squeue", "printf '1|RUNNING\\n2|TIMEOUT\\n'")
    command("scontrol", "echo JobState=FAILED")
    assert slurm_words(["1", "2"]) == {"1": "RUNNING", "2": "TIMEOUT"}


def test_scontrol_then_sacct_are_asked_for_jobs_that_squeue_forgot(command) -> None:  # type: ignore[no-untyped-def]
    command("scontrol", 'case "$4" in 1) echo "JobId=1 JobName=x JobState=NODE_FAIL Reason=None";; *) exit 1;; esac')
    command("sacct", 'echo "CANCELLED by 1000"')
    assert slurm_words(["1", "2"]) == {"1": "NODE_FAIL", "2": "CANCELLED"}


def test_what_nobody_knows_is_unknown(command) -> None:  # type: ignore[no-untyped-def]
    assert slurm_words(["1"]) == {"1": ""}
    assert job_state("") is JobState.UNKNOWN
    assert slurm_words([]) == {}


def test_words_and_what_they_mean() -> None:
    assert job_state("COMPLETING") is JobState.RUNNING
    assert job_state("CONFIGURING") is JobState.PENDING
    assert job_state("NODE_FAIL") is JobState.ENDED
    assert outcome_from_scheduler("PREEMPTED") is Outcome.PREEMPTED
    assert outcome_from_scheduler("TIMEOUT") is Outcome.TIMEOUT
    assert outcome_from_scheduler("COMPLETED") is Outcome.LOST
    assert outcome_from_scheduler("") is Outcome.LOST


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ("main*|gpu:8|64\\nmain*|gpu:8|64\\nold|gpu:2|8\\n", (8, 64)),
        ("main*|gpu:a100:4(S:0-1)|64\\n", (4, 64)),
        ("main*|gpu:a100:4(S:0-1),gpu:v100:2|64\\n", (6, 64)),
        ("main*|(null)|64\\n", (None, 64)),
        ("main*|gpu:8|64\\nmain*|gpu:4|32\\n", (None, None)),
    ],
)
def test_sizes_as_sinfo_says(command, rows: str, found: tuple[int | None, int | None]) -> None:  # type: ignore[no-untyped-def]
    command("sinfo", f"printf '{rows}'")
    assert nodes_of(Site(name="s")) == found


def test_a_partition_without_nodes_is_an_error(command) -> None:  # type: ignore[no-untyped-def]
    command("sinfo", "echo 'slurm_load_partitions: down' >&2; exit 1")
    with pytest.raises(SubmitError, match="knows no node of partition gpu: slurm_load_partitions: down"):
        nodes_of(Site(name="s", partition="gpu"))


def test_a_controller_that_is_down_does_not_answer(command) -> None:  # type: ignore[no-untyped-def]
    command("scontrol", "echo 'Slurmctld(primary) at head is DOWN'; exit 1")
    assert not controller_answers()
    command("scontrol", "echo 'Slurmctld(primary) at head is UP'")
    assert controller_answers()
