"""Slurm: the script's header, submission, states of jobs. The only file that imports submitit."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from hpc.model.outcome import BeginRecord
from hpc.model.verdict import JobEnd
from hpc.system.job_facts import Job, outside_of_job, parent_variables
from hpc.system.tool import Failure, find_tool, run_tool
from launch.jobs.plan import JobPlan, RequestValue, WrittenJob
from launch.jobs.script import Folders, ScriptHead
from launch.jobs.site import Site
from launch.jobs.slurm_options import of_shell
from launch.scheduler.protocol import JobQuery, JobState, SubmitError, TransientSubmitError
from launch.scheduler.slurm_jobs import (
    COMMAND_TIMEOUT_S,
    CONTROLLER_AWAY,
    awaited_step,
    ends,
    is_job_id,
    job_now,
    job_steps,
    lives,
    look,
    step_refusal,
)
from launch.scheduler.slurm_nodes import partitions_of, read_cluster, site_file

_LIMITED = re.compile(
    r"(QOS|Assoc)(Max|Grp)Submit|temporarily (unable|unavailable|disabled)|presently disabled|job queue full",
    re.IGNORECASE,
)
"""Messages of sbatch about job count limits and about a controller that takes no jobs for a while."""


_COMMANDS = ("scontrol", "sbatch")
_UP = re.compile(r"(?<![\w.-])UP(?![\w.-])")  # the word, and no part of a host's name
MAX_RELEASES, AT_ONCE_S = 3, 30
_LAUNCH_FAILED = re.compile("launch.failed.requeued.held")


def job_name(job: JobPlan, jobs: Path) -> str:
    """The job's name in Slurm. It ends with a digest of its folder and its runs: by that a sweep recognises its jobs,
    also those submitted by hand, and no others."""
    digest = hashlib.sha256("\n".join([str(jobs), *sorted(run.run_id for run in job.runs)]).encode())
    return f"{job.request['job_name']}-{digest.hexdigest()[:8]}"


@dataclass
class Slurm:
    """Slurm, by its commands and by submitit: a SiteScheduler."""

    poll_s: float = 3.0  # a controller serves many users
    slow_poll_s: float = 60.0
    max_jobs: int | None = None
    queued: ClassVar[bool] = True
    submits: str = "sbatch"
    partitions = staticmethod(partitions_of)
    facts = staticmethod(read_cluster)
    site_file = staticmethod(site_file)
    now = staticmethod(job_now)
    steps = staticmethod(job_steps)
    step_refusal = staticmethod(step_refusal)
    awaited_step = staticmethod(awaited_step)
    error: str = ""
    reasons: Mapping[str, str] = field(default_factory=dict)
    _releases: dict[str, int] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)

    def installed(self) -> bool:
        return any(find_tool(name) for name in _COMMANDS)

    def unreachable(self) -> str:
        for name in _COMMANDS:
            path = find_tool(name)
            if path is None:
                return f"{name} is not installed here"
            if not os.access(path, os.X_OK):
                return f"{name} cannot be run: {path}: Permission denied"
        answer = run_tool(["scontrol", "ping"], timeout_s=COMMAND_TIMEOUT_S)
        if not answer.ok:
            return f"scontrol ping: {answer.describe()}"
        return "" if _UP.search(answer.stdout) else f"scontrol ping: {answer.output or 'no controller is named'}"

    def hostnames(self, option: str, nodes: str) -> frozenset[str]:
        answer = run_tool(["scontrol", "show", "hostnames", nodes], timeout_s=COMMAND_TIMEOUT_S)
        if not answer.ok:
            raise SubmitError(f"{option} {nodes!r}: {answer.describe()}")
        return frozenset(answer.stdout.split())

    def run_on_node(self, node: str, program: Sequence[str], site: Site) -> str:
        names = ("partition", "account", "qos", "reservation")
        options = [f"--{name}={value}" for name in names if (value := getattr(site, name))]
        limits = [f"--immediate={AT_ONCE_S}", "--time=2", "--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--mpi=none"]
        start = ["srun", "--job-name=rankwise-fetch", f"--nodelist={node}", *limits, *options]
        return run_tool([*start, *program], timeout_s=COMMAND_TIMEOUT_S, env=outside_of_job()).describe()

    def header(self, job: JobPlan, folders: Folders) -> ScriptHead:
        """As submitit writes it."""
        from submitit.slurm.slurm import _make_sbatch_string

        for character in ("\n", "\r", "\\"):
            if character in str(folders.logs):
                raise SubmitError(f"Slurm cannot write a job's output to {str(folders.logs)!r}: it holds {character!r}")
        request: dict[str, RequestValue] = {**job.request, "job_name": job_name(job, folders.jobs)}
        # With replacements for submitit's harmful defaults: its signal would reach the ranks, ours reaches the script.
        # A % in a path is doubled, or Slurm takes it for a pattern.
        output = str(folders.logs / job.name).replace("%", "%%")
        request |= {"signal": f"B:USR1@{job.warning_s}", "requeue": True}
        request |= {"output": f"{output}.%j.out", "error": f"{output}.%j.err"}
        options: dict[str, Any] = {"wckey": None, "use_srun": False, "additional_parameters": request}
        text: str = _make_sbatch_string(command="", folder=folders.logs, **options)
        text = text.partition("\n# command\n")[0].rstrip("\n") + "\n"
        return ScriptHead(text=text, submit=self.submits, warning_s=job.warning_s)

    def name_of(self, job: WrittenJob) -> str:
        return job_name(job.plan, job.script.parent)

    def output_of(self, job: WrittenJob, job_id: str) -> tuple[Path, Path]:
        output = job.logs / f"{job.plan.name}.{job_id}.out"
        return output, output.with_suffix(".err")

    def submit(self, job: WrittenJob) -> str:
        """By submitit, which keeps a copy of the submitted script as `jobs/logs/<job id>_submission.sh`."""
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        name = self.name_of(job)
        try:
            executor = self._executor
            executor.folder, executor.text = job.logs, job.text
            executor.request = [self.submits, f"--job-name={name}"]
            with contextlib.redirect_stderr(io.StringIO()):  # submitit also prints the error's text
                job_id: str = executor._submit_command("").job_id
        except (FailedJobError, FailedSubmissionError, OSError, RuntimeError) as error:
            for path in job.logs.glob(".submission_file_*.sh"):  # submitit leaves it
                path.unlink(missing_ok=True)
            message = " ".join(str(error).split())
            if _LIMITED.search(message) or CONTROLLER_AWAY.search(message) or _timed_out(error):
                raise TransientSubmitError(f"sbatch: {message or f'no answer within {COMMAND_TIMEOUT_S} s'}") from None
            raise SubmitError(f"sbatch refused {job.script.name}: {message}") from None
        executor.link.unlink(missing_ok=True)
        self._names[job_id] = name
        return job_id

    @cached_property
    def _executor(self) -> Any:
        """submitit's executor for the `text` of a script, which the command `request` submits; `link` is its link to
        the copy that it keeps. Raises RuntimeError where Slurm is not installed."""
        from submitit.slurm.slurm import SlurmExecutor

        # What a shell says to Slurm is in the script already. sbatch waits minutes for a full queue without output: it
        # is ended, and run again after the reason was shown.
        environ = dict(os.environ)  # os.environ decodes each variable at each look
        variables = {*parent_variables(environ), *(name for name, *_ in of_shell(environ))}
        unset = [argument for variable in sorted(variables) for argument in ("-u", variable)]
        start = ["timeout", "--kill-after=5", str(COMMAND_TIMEOUT_S), "env", *unset]

        class ExactScript(SlurmExecutor):
            text, request, link = "", (), Path()

            def _make_submission_file_text(self, command: str, uid: str) -> str:
                return self.text

            def _make_submission_command(self, submission_file_path: Path) -> list[str]:
                self.link = submission_file_path
                return [*start, *self.request, str(submission_file_path)]

        return ExactScript(Path())

    def active_jobs(self, names: Iterable[str], recorded: Mapping[str, str]) -> dict[str, str]:
        """By name from squeue, the `recorded` ones that this does not list as in `states`. Raises TransientSubmitError
        if squeue fails, SubmitError if it is not installed or not executable."""
        wanted = sorted(set(names))
        if not wanted:
            return {}
        answer = run_tool(["squeue", "-h", "-o", "%i|%j", "-n", ",".join(wanted)], timeout_s=COMMAND_TIMEOUT_S)
        if answer.failure in (Failure.ABSENT, Failure.FORBIDDEN):
            raise SubmitError(answer.describe())
        if not answer.ok:
            raise TransientSubmitError(answer.describe())
        rows = [line.strip().partition("|") for line in answer.stdout.splitlines()]
        jobs = {job_id: name for job_id, _, name in rows if name in wanted}
        unlisted = {job_id: name for job_id, name in recorded.items() if is_job_id(job_id) and job_id not in jobs}
        self._names |= unlisted | jobs
        for job_id, state in self.states(list(unlisted)).items() if unlisted else ():
            if state is JobState.UNREACHABLE:
                raise TransientSubmitError(self.error)
            if state is not JobState.ENDED and (state is not JobState.UNKNOWN or job_id in self.reasons):
                jobs[job_id] = unlisted[job_id]
        return dict(sorted(jobs.items(), key=lambda row: (len(row[0]), row[0])))

    def states(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """A controller that was killed forgets the jobs of its last seconds and reuses their numbers: if a job of
        another name has the number, the queried job is unknown. So is one that Slurm does not list; `reasons` has then
        what contradicts that."""
        queries = look(job_ids, self._names)
        silent = [query.error for query in queries.values() if query.state is JobState.UNREACHABLE]
        self.error = silent[0] if silent else ""
        self.reasons = {job_id: query.reason for job_id, query in queries.items() if query.reason}
        return {job_id: query.state for job_id, query in queries.items()}

    def ends(self, job_ids: Iterable[str]) -> dict[str, JobEnd]:
        return ends(list(job_ids), self._names)

    def query(self, begin: BeginRecord) -> JobQuery:
        self._names[begin.job_id] = begin.job_name
        return look([begin.job_id], self._names)[begin.job_id]

    def starts(self, begin: BeginRecord) -> list[JobEnd]:
        return lives(begin.job_id, begin.job_name)

    def starts_steps(self, launcher: str) -> bool:
        return launcher == "srun"

    def signal(self, job: Job, name: str) -> None:
        run_tool(["scancel", f"--signal={name}", job.job_id])

    def release_held(self, job_ids: Sequence[str]) -> dict[str, str]:
        """Each job is released MAX_RELEASES times at most; after that a person must look."""
        held = [job_id for job_id in job_ids if _LAUNCH_FAILED.search(self.reasons.get(job_id, ""))]
        to_release = [job_id for job_id in held if self._releases.setdefault(job_id, 0) < MAX_RELEASES]
        problems = {}
        for job_id in to_release:
            self._releases[job_id] += 1
            problems[job_id] = run_tool(["scontrol", "release", job_id], timeout_s=COMMAND_TIMEOUT_S).describe()
        return problems

    def cancel(self, job_ids: Sequence[str]) -> None:
        if not job_ids:
            return
        if damaged := [job_id for job_id in job_ids if not is_job_id(job_id)]:
            raise SubmitError(f"{damaged[0]!r} is no Slurm job id: nothing was cancelled")
        answer = run_tool(["scancel", *job_ids], timeout_s=COMMAND_TIMEOUT_S)
        if answer.failure is Failure.HANGING:
            raise SubmitError(f"{answer.describe()}: try again")
        # A job that has ended by itself meanwhile is no error.
        if not answer.ok and "already completing or completed" not in answer.stderr:
            raise SubmitError(f"scancel {' '.join(job_ids)}: {answer.output or answer.describe()}")


def _timed_out(error: Exception) -> bool:
    """Whether `timeout` ended sbatch: 124, or 137 where it had to be killed."""
    cause = error.__cause__
    return isinstance(cause, subprocess.CalledProcessError) and cause.returncode in (124, 137, -9)
