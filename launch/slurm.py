"""Slurm: what a site's nodes have, the script's header, submission. The only file that imports submitit."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.plan import JobPlan, RequestValue, WrittenJob
from launch.script import Folders
from launch.site import Site
from launch.state import COMMAND_TIMEOUT_S, JobState, job_state, slurm_words


class SubmitError(RuntimeError):
    """Slurm is not there or refused; the text holds its own words."""


def controller_answers() -> bool:
    """Whether a Slurm controller can be reached from here."""
    if shutil.which("scontrol") is None or shutil.which("sbatch") is None:
        return False
    try:
        done = subprocess.run(
            ["scontrol", "ping"], capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and "UP" in done.stdout


def nodes_of(site: Site) -> tuple[int | None, int | None]:
    """GPUs and CPUs per node of the site's partition, as sinfo says: None where it cannot tell them apart."""
    partition = ["-p", site.partition] if site.partition else []
    try:
        done = subprocess.run(
            ["sinfo", "-h", "-N", "-o", "%P|%G|%c", *partition],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SubmitError(f"sinfo did not answer within {COMMAND_TIMEOUT_S} s") from None
    rows = [line.strip().split("|") for line in done.stdout.splitlines() if line.count("|") == 2]
    if done.returncode != 0 or not rows:
        raise SubmitError(f"sinfo knows no node of partition {site.partition or '(default)'}: {done.stderr.strip()}")
    if not site.partition:
        rows = [row for row in rows if row[0].endswith("*")] or rows
    gpus = {sum(int(n) for n in re.findall(r"\bgpu(?::[^:,()]+)?:(\d+)", gres)) for _, gres, _ in rows}
    cpus = {int(count) for _, _, count in rows if count.isdigit()}
    # "(null)" is what sinfo says of a node without GPUs and of one whose GPUs nobody configured: unknown.
    known = len(gpus) == 1 and gpus != {0}
    return (gpus.pop() if known else None, cpus.pop() if len(cpus) == 1 else None)


def header(job: JobPlan, folders: Folders) -> str:
    """The script's first lines, as submitit writes them: `#!/bin/bash` and the `#SBATCH` lines."""
    from submitit.slurm.slurm import _make_sbatch_string

    for character in ("\n", "\r", "\\"):
        if character in str(folders.logs):
            raise SubmitError(f"Slurm cannot write a job's output to {str(folders.logs)!r}: it holds {character!r}")
    request = dict(job.request)
    # Options that submitit does not know, and its own defaults that would harm: its signal would reach the ranks,
    # ours reaches the script. A % in a path is doubled, or Slurm takes it for a pattern.
    extra: dict[str, RequestValue] = {key: request.pop(key) for key in list(request) if key in _UNKNOWN_TO_SUBMITIT}
    output = str(folders.logs / f"{job.name}").replace("%", "%%")
    extra |= {
        "signal": f"B:USR1@{60 if job.time_min >= 5 else 30}",
        "output": f"{output}.%j.out",
        "error": f"{output}.%j.err",
    }
    options: dict[str, Any] = {**request, "wckey": None, "use_srun": False, "additional_parameters": extra}
    text: str = _make_sbatch_string(command="", folder=folders.logs, **options)
    return text.partition("\n# command\n")[0].rstrip("\n") + "\n"


_UNKNOWN_TO_SUBMITIT = {"reservation"}


@dataclass
class SlurmCluster:
    """Submits scripts byte for byte and tells how their jobs are."""

    logs: Path
    words: dict[str, str] = field(default_factory=dict)
    poll_s: float = 3.0  # a controller serves many; whoever follows a sweep can wait

    def submit(self, job: WrittenJob, *, force: bool) -> str:
        """The id of the job that Slurm made of the script. Raises SubmitError with sbatch's own words.

        submitit keeps a copy of what it submitted as `jobs/logs/<job id>_submission.sh`.
        """
        from submitit.core.utils import FailedJobError, FailedSubmissionError
        from submitit.slurm.slurm import SlurmExecutor

        class ExactScript(SlurmExecutor):
            """Submits the text that was written, byte for byte, and nothing pickled."""

            def _make_submission_file_text(self, command: str, uid: str) -> str:
                return job.text

            def _make_submission_command(self, submission_file_path: Path) -> list[str]:
                return [*super()._make_submission_command(submission_file_path), *(["--force"] if force else [])]

        try:
            job_id = ExactScript(self.logs)._submit_command("").job_id
        except (FailedJobError, FailedSubmissionError, OSError, RuntimeError) as error:
            raise SubmitError(f"sbatch refused {job.script.name}: {error}") from None
        for link in self.logs.glob("submission_file_*.sh"):
            if link.is_symlink():
                link.unlink()
        return job_id

    def states(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Every job's state; Slurm's own words are kept in `words`."""
        self.words = slurm_words(job_ids)
        return {job_id: job_state(word) for job_id, word in self.words.items()}

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Ends the jobs named and no others."""
        if job_ids:
            subprocess.run(["scancel", *job_ids], timeout=COMMAND_TIMEOUT_S, check=False)
