"""One door to the scheduler: which files know its words, and who answers for a job."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpc.model.outcome import BeginRecord
from hpc.system.job_facts import SCHEDULERS, Job, job_here
from launch.scheduler.local import Local
from launch.scheduler.protocol import HERE, JobState
from launch.scheduler.slurm import Slurm
from launch.scheduler.table import SITE_SCHEDULERS, scheduler_inside, scheduler_of

ROOT = Path(__file__).resolve().parents[2]
WORDS = re.compile(r"\b(?:squeue|scontrol|sacct|sbatch)\b|SLURM_")
KNOWN = {
    "hpc/system/job_facts.py": "the variables of a job, for all who ask about theirs",
    "hpc/system/text.py": "words that a person may take for a command",
    "hpc/system/removed.py": "options that are gone, and what to say instead",
    "launch/jobs/options.py": "--sbatch NAME=V",
    "launch/jobs/site.py": "keys of a site file",
    "launch/jobs/slurm_options.py": "options and variables that a site file may have, and those that it may not",
    "launch/scheduler/slurm.py": "submission, from outside and inside of a job",
    "launch/scheduler/slurm_jobs.py": "the states of jobs",
    "launch/scheduler/slurm_nodes.py": "nodes, partitions, settings",
    "parse/comparison/machine.py": "the command that an administrator would drain a slow node by",
}
"""The files of the product that may have a word of Slurm's, and which."""


def test_ten_files_know_a_word_of_slurms() -> None:
    files = [path for name in ("hpc", "launch", "parse", "rankwise") for path in sorted((ROOT / name).rglob("*.py"))]
    with_words = {path.relative_to(ROOT).as_posix() for path in files if WORDS.search(path.read_text())}
    assert len(KNOWN) <= 10
    assert with_words == KNOWN.keys()


def test_every_scheduler_whose_variables_are_known_has_an_implementation() -> None:
    assert SITE_SCHEDULERS.keys() == SCHEDULERS.keys()


@pytest.mark.parametrize(
    ("environ", "kind"),
    [({"SLURM_JOB_ID": "7"}, Slurm), ({"RANKWISE_JOB_ID": "local-h-1-1"}, Local), ({}, Local)],
)
def test_who_answers_for_the_job_of_this_process(environ: dict[str, str], kind: type) -> None:
    job = job_here(environ)
    assert isinstance(scheduler_inside(job), kind)
    assert isinstance(scheduler_of(job.job_id), kind)


def test_nothing_schedules_a_script_of_this_machine() -> None:
    job, local = Job(job_id="local-nowhere-1-1"), Local()
    assert local.now(job) is None
    assert not local.steps(job).silent and not local.starts_steps("srun")
    begin = BeginRecord(run_id="a_r1", attempt=1, job_id=job_here({}).job_id, begin_unix_s=0)
    query = local.query(begin)  # a person's script that began after the attempt is another one
    assert query.state is JobState.ENDED and query.end is not None and query.end.source == HERE
