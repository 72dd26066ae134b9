"""Runs a prepared sweep: submits or joins the jobs of runs that are not final, follows them, reports the outcomes."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from hpc.model.outcome import Outcome, RecordError, exit_records, requested_reruns
from hpc.model.spec import COLLECTIVES
from hpc.system.sanitize import plain
from hpc.system.text import plural
from launch.cluster.local import LocalCluster
from launch.cluster.lock import FolderLock, LockError
from launch.cluster.query import StateError
from launch.cluster.slurm import SlurmCluster, SubmitError, warning_s
from launch.follow.follower import Follower, follow
from launch.jobs.plan import JobPlan, PlanError, WrittenJob, make_folders
from launch.jobs.site import SiteError
from launch.queue import Queue
from launch.sweep.finalize import cancelled_at_ns, close_attempts, close_ended, describe_runs, mend_records
from launch.sweep.prepare import Prepared, Say, prepare
from launch.sweep.rerun import RerunRequest, ask_for
from launch.sweep.run_status import pending_runs, run_statuses, whole
from launch.sweep.spec import SweepSpec
from launch.sweep.target import TargetError
from launch.sweep.time_limit import TimeBudget, TimeLimitTooShort, check_budget, durations_s

FAILURES = (SiteError, PlanError, SubmitError, StateError, TargetError, RecordError, LockError, TimeLimitTooShort,
            OSError)  # fmt: skip
MAX_IN_VAIN = 3
"""How many jobs of a script in a row may be preempted or lose a node unmeasured before a person must look."""
MANY_RUNS = 2_000
"""From this number of runs on, writing their files takes seconds and its progress is shown."""
DETACH_PATIENCE_S = 60
"""How long --detach retries after transient refusals of sbatch, in seconds."""


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """What to do with the sweep."""

    dry_run: bool = False
    detach: bool = False
    max_jobs: int | None = None
    rerun: RerunRequest = field(default_factory=RerunRequest)


def sweep(spec: SweepSpec, settings: Mapping[str, str], options: SweepOptions) -> int:
    """Plans and runs a sweep; the exit status of the command line."""
    console = Console(soft_wrap=True)
    prepared = prepare(spec, settings)
    say = echo(console)
    for line in prepared.check_sizes(_jobs_to_do(prepared, options)):
        say(f"warning: {line}")
    if options.dry_run:
        _show(prepared, console)
        return 0
    prepared.check()
    make_folders(prepared.folders)
    if prepared.nodes is not None and (reason := prepared.nodes.unreachable):
        site = prepared.plan.target.site
        raise SubmitError(f"no Slurm controller answers here, and site {site} is a Slurm site: {reason}")
    try:
        return Sweep(prepared, options, console).run()
    except KeyboardInterrupt:
        return 130


def _jobs_to_do(prepared: Prepared, options: SweepOptions) -> list[JobPlan]:
    """The jobs with a run still to be done: only these are submitted, so only their requests are checked."""
    traces = prepared.folders.traces
    if options.rerun != RerunRequest() or not traces.is_dir():
        return list(prepared.jobs)
    return [job for job in prepared.jobs if pending_runs([run.run_id for run in job.runs], traces)]


def echo(console: Console) -> Say:
    """A function that shows a line, with control characters made harmless."""

    def say(text: str) -> None:
        console.print(plain(text), markup=False, highlight=False, emoji=False)

    return say


def _show(prepared: Prepared, console: Console) -> None:
    """Shows the scripts instead of submitting them, and what is missing to run them."""
    say = echo(console)
    written = _write(prepared, console, dry_run=True)
    prepared.tell(written, say)
    for job in written:  # not by rich, which is slow for hundreds of thousands of lines
        lines = map(plain, f"\n===== {job.script}\n{job.text}".split("\n"))
        console.file.write("\n".join(lines) + "\n")
    for line in ("dry run: nothing was submitted", *(f"note: {line}" for line in prepared.missing)):
        say(line)


def _write(prepared: Prepared, console: Console, *, dry_run: bool = False) -> list[WrittenJob]:
    """Writes the sweep's files. If there are many, a terminal shows progress, a pipe gets one line."""
    runs = len(prepared.plan.runs)
    if runs < MANY_RUNS:
        return prepared.write(lambda written: None, dry_run=dry_run)
    if not console.is_terminal:
        console.print(f"writing the files of {runs} runs", highlight=False)
        return prepared.write(lambda written: None, dry_run=dry_run)
    with console.status(f"writing the files of {runs} runs") as status:

        def progress(written: int) -> None:
            if written % 500 == 0:
                status.update(f"writing the files of {runs} runs: {written}")

        return prepared.write(progress, dry_run=dry_run)


class Sweep:
    """One running sweep: the lock of its folder, its jobs, its scheduler. It is the owner of its queue."""

    def __init__(self, prepared: Prepared, options: SweepOptions, console: Console) -> None:
        self._prepared, self._options, self._console = prepared, options, console
        self.say = echo(console)
        self._traces = prepared.folders.traces
        self._lock = FolderLock(prepared.folders.jobs)
        self._cancelled_at_ns = cancelled_at_ns(prepared.folders, prepared.plan.sweep_id)
        self._forgotten: set[str] = set()  # scripts whose jobs the scheduler did not know any more
        self._ended: dict[str, str] = {}  # by script: how its last jobs ended, as text
        self._in_vain: Counter[str] = Counter()  # by script: jobs in a row that measured nothing
        local = prepared.site is None
        logs = prepared.folders.logs
        self._cluster = LocalCluster(logs, self._lock) if local else SlurmCluster(logs, max_jobs=options.max_jobs)

    def run(self) -> int:
        """Submits, follows and closes. On this machine the lock is held to the end, else only while submitting."""
        here = isinstance(self._cluster, LocalCluster)
        if here:
            _end_like_ctrl_c()
        with ExitStack() as stack:
            stack.enter_context(
                self._lock.held(lambda holder: self.say(f"waiting for {holder}: {_WAIT_REASONS[here]}"))
            )
            written = _write(self._prepared, self._console)
            self._prepared.tell(written, self.say)
            mend_records(self._prepared.folders, self.say)
            ask_for(self._options.rerun, self._prepared.plan.runs, self._traces, self._prepared.site, self.say)
            self._check_limits(written)
            queue = Queue(self._cluster, written, self, self._lock)
            if self._options.detach and here and any(map(self.remaining_runs, written)):
                if (process := _fork(self._prepared.folders.logs / "detached.out")) is not None:
                    self.say(f"running in process {process}")
                    return 0
                self._lock.sign()
            elif self._options.detach:
                return self._submit_and_leave(queue)
            before = {run.run_id: run.ended for run in run_statuses(_ids(written), self._traces) if not run.final}
            queue.advance()
            if not here:
                stack.close()
            if queue.waiting or queue.job_ids:
                self._follow(queue, written, before)
        return self._conclude(written, queue)

    def remaining_runs(self, job: WrittenJob) -> list[str]:
        """See Owner."""
        return pending_runs(_ids([job]), self._traces)

    def cancelled(self) -> bool:
        """See Owner."""
        return cancelled_at_ns(self._prepared.folders, self._prepared.plan.sweep_id) != self._cancelled_at_ns

    def _check_limits(self, written: Sequence[WrittenJob]) -> None:
        """Warns of time limits shorter than earlier attempts took; TimeLimitTooShort if not even the first run fits."""
        if self._prepared.site is None:
            return  # nothing limits what runs here
        records = exit_records(self._traces)
        took, cut_off = (
            durations_s(self._prepared.plan.runs, records, outcome) for outcome in (Outcome.OK, Outcome.TIMEOUT)
        )
        for job in written:
            remaining = set(self.remaining_runs(job))
            budget = TimeBudget(job=job.script.name, limit_s=60 * job.plan.time_min, margin_s=warning_s(job.plan))
            runs = [run for run in job.plan.runs if run.run_id in remaining]
            for line in check_budget(budget, runs, took, cut_off):
                self.say(f"warning: {line}")

    def _submit_and_leave(self, queue: Queue) -> int:
        """Submits without following; the exit status, 1 if a job could not be submitted."""
        until_s = time.monotonic() + DETACH_PATIENCE_S
        queue.advance()
        while queue.refusal and time.monotonic() < until_s:
            time.sleep(queue.poll_s)
            queue.advance()
        if not queue.waiting:
            return 0
        reason = queue.refusal or f"--max-jobs {self._options.max_jobs}"
        self.say(
            f"not submitted: {', '.join(queue.waiting)} ({reason}). A sweep that stays (without --detach) submits them "
            "as others end; the same command later submits what there is room for"
        )
        return 1

    def _follow(self, queue: Queue, written: Sequence[WrittenJob], before: Mapping[str, int]) -> None:
        jobs = {job.script.name: job for job in written if job.script.name in {*queue.waiting, *queue.job_ids}}
        try:
            follow(Follower(queue, jobs, self._traces, _speed, before), self._console)
        except BaseException as error:
            # Any error ends the runs on this machine; jobs of a scheduler go on by themselves.
            if isinstance(self._cluster, LocalCluster):
                ids = [job_id for its in queue.job_ids.values() for job_id in its]
                self._cluster.cancel(ids)
                close_attempts(self._cluster, ids, self._prepared.folders, self.say)
                self.say("stopped, and the runs on this machine with it")
            else:
                self.say("left; the jobs go on: the same command joins them")
            if isinstance(error, KeyboardInterrupt):
                raise SystemExit(130) from None
            raise
        ids = [job_id for its in queue.job_ids.values() for job_id in its]
        close_attempts(self._cluster, ids, self._prepared.folders, self.say)

    def ended(self, job: WrittenJob, job_ids: Sequence[str]) -> bool:
        """See Owner. Closes the job's attempts. The job is submitted again if

        - it measured something and only the scheduler cut off the rest,
        - a rerun was requested for a run that it had passed,
        - it was preempted or lost a node without a measurement, fewer than MAX_IN_VAIN times in a row,
        - the scheduler has forgotten it, once.
        """
        ends = self._cluster.ends(job_ids)
        self._ended[job.script.name] = ", ".join(
            f"job {job_id} {end.state}" for job_id, end in ends.items() if end.state
        )
        close_ended(ends, self._prepared.folders, self.say)
        remaining = self.remaining_runs(job)
        if not remaining or any(end.state.startswith("CANCELLED") for end in ends.values()):
            return False
        records, rerun_requests = exit_records(self._traces), requested_reruns(self._traces)
        last = {run: records[run][-1] for run in _ids([job]) if run in records}
        requested = {run for run, record in last.items() if record.stem in rerun_requests}
        forgotten = (
            job.script.name not in self._forgotten and bool(ends) and all(end.state == "" for end in ends.values())
        )
        no_fault = _CUT_OFF | {Outcome.LOST} if forgotten else _CUT_OFF
        cut_off = {run for run in remaining if run not in last or last[run].outcome in no_fault}
        measured = {run for run, record in last.items() if run not in remaining and record.job_id in job_ids}
        self._in_vain[job.script.name] = 0 if measured else self._in_vain[job.script.name] + 1
        taken = bool(ends) and {end.state for end in ends.values()} <= _TAKEN_AWAY
        taken &= self._in_vain[job.script.name] < MAX_IN_VAIN
        wanted = requested | cut_off >= set(remaining) and bool(measured or requested or forgotten or taken)
        if wanted and forgotten:
            self._forgotten.add(job.script.name)
            self.say(f"{job.script.name}: the scheduler has forgotten job {', '.join(job_ids)}: submitted again, once")
        return wanted

    def _conclude(self, written: Sequence[WrittenJob], queue: Queue) -> int:
        """Shows the outcomes of the whole sweep and the next command; the exit status, 0 if every run is ok."""
        runs = run_statuses(_ids(written), self._traces)
        for line in describe_runs(runs, self._prepared.folders):
            self.say(line)
        never = {run.run_id for run in runs if run.attempts == 0}
        for job in written:
            if (missing := len(never.intersection(_ids([job])))) and (job_ids := queue.job_ids.get(job.script.name)):
                output = self._cluster.output_of(job, job_ids[-1])
                where = f"see {output}" if output.exists() else f"there is no {output}"
                reason = "; ".join(filter(None, (self._ended.get(job.script.name), where)))
                self.say(f"  {plural(missing, 'run')} of {job.script.name} never began: {reason}")
        self.say(f"python -m parse.summarize {shlex.quote(str(self._traces))}")
        return 0 if whole(runs) else 1


_CUT_OFF = frozenset({Outcome.TIMEOUT, Outcome.PREEMPTED, Outcome.NODE_FAIL})
"""Outcomes that the attempt did not cause, and that another job may not have."""
_TAKEN_AWAY = frozenset({"PREEMPTED", "NODE_FAIL"})
"""Slurm's states of jobs that ended through no fault of their own."""
_WAIT_REASONS = {
    True: "runs on one machine would measure each other; what is left afterwards is run then",
    False: "it is submitting",
}


def _ids(jobs: Sequence[WrittenJob]) -> list[str]:
    return [run.run_id for job in jobs for run in job.plan.runs]


def _end_like_ctrl_c() -> None:
    """Makes SIGTERM and SIGHUP end this process as Ctrl-C does: with the runs that it started."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)


def _fork(log: Path) -> int | None:
    """Forks: the id of the child, and in the child None. The child has its own session and prints to `log`."""
    sys.stdout.flush()
    sys.stderr.flush()
    if process := os.fork():
        return process
    os.setsid()
    with Path(os.devnull).open("rb") as nothing, log.open("ab") as output:
        for file, number in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(file.fileno(), number)
    return None


def _speed(path: Path) -> float | None:
    from hpc.model.trace import TraceError
    from hpc.model.trace_file import read_trace
    from parse.attempt import measure

    try:
        trace = read_trace(path)
        return None if trace.run.diagnostic == COLLECTIVES else measure(trace).throughput
    except TraceError:
        return None  # shown as no speed; the summary names the file and what is wrong with it
