"""Runs a prepared sweep: submits jobs for runs that are not final, follows them, reports the outcomes."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hpc.model.evidence import open_attempts
from hpc.model.outcome import Outcome, RecordError, exit_records, requested_reruns
from hpc.model.spec import SpecError
from hpc.model.verdict import JobEnd
from hpc.recovery.folders import life_sign
from hpc.system.sanitize import plain
from hpc.system.text import plural
from launch.follow import Follower, follow, print_whole, say
from launch.jobs.plan import JobPlan, PlanError, WrittenJob, make_folders
from launch.queue import Ended, Event, Queue
from launch.scheduler.local import Local
from launch.scheduler.lock import FolderLock, LockError
from launch.scheduler.protocol import JobScheduler, JobState, StateError, SubmitError
from launch.scheduler.table import site_scheduler
from launch.sweep.prepare import (
    Prepared,
    Say,
    TargetError,
    TimeLimitTooShort,
    check_limit,
    durations_s,
    prepare,
    with_jobs,
)
from launch.sweep.request import Request
from launch.sweep.run_status import (
    cancelled_at_ns,
    choose_reruns,
    close_ended,
    measured_in,
    mend_records,
    pending_runs,
    run_statuses,
    whole,
)
from launch.sweep.text import describe_event, describe_output, describe_plan, describe_runs

# Whether the script of a job that has ended is submitted again: a decision from its history alone.

MAX_IN_VAIN = 3
"""The number of a script's jobs in a row without a measurement (preempted, a node lost, no rank started) after which a
person must look."""
_CUT_OFF = frozenset({Outcome.TIMEOUT, Outcome.PREEMPTED, Outcome.NODE_FAIL})
"""Outcomes that the attempt did not cause, and that another job may not have."""
_ENDED_BY_SCHEDULER = frozenset({"PREEMPTED", "NODE_FAIL"})
"""Slurm's states of jobs that ended through no fault of their own."""
FORGOTTEN = ""
"""The state of an ended job that the scheduler has forgotten."""


class Decision(StrEnum):
    """The reason why a script is submitted again, or not."""

    DONE = "done"  # every run is final
    CANCELLED = "cancelled"  # a job was cancelled
    FAILED = "failed"  # a run ended by its own fault, and no rerun is requested
    IN_VAIN = "in_vain"  # no run was measured, and there is no reason to expect more of another job
    FORGOTTEN = "forgotten"  # the scheduler has forgotten the job: again, once
    REQUESTED = "requested"  # a rerun is requested for a run that the job had passed
    REST_CUT_OFF = "rest_cut_off"  # some runs were measured, and only the scheduler cut off the rest
    ENDED_BY_SCHEDULER = "ended_by_scheduler"  # the job was preempted or lost a node
    STEP_REFUSED = "step_refused"  # a run was not started, since the controller was away

    @property
    def resubmits(self) -> bool:
        """Whether the script is submitted again."""
        return self not in (self.DONE, self.CANCELLED, self.FAILED, self.IN_VAIN)


@dataclass(frozen=True, kw_only=True)
class JobHistory:
    """The end of a script's jobs, and the remaining runs.

    `states` are the last states of the jobs, in Slurm's words; `remaining` has by run that is not final the outcome of
    its last attempt, None before the first. `refused` are those of them whose last attempt started no rank, since the
    controller was away. `requested` are runs whose last attempt has a rerun request. `measured`:
    these jobs made a run final. `in_vain` counts jobs in a row that did not, these included. `forgotten_before`: the
    script was submitted again for that reason already.
    """

    states: frozenset[str]
    remaining: Mapping[str, Outcome | None]
    refused: frozenset[str] = frozenset()
    requested: frozenset[str] = frozenset()
    measured: bool = False
    in_vain: int = 0
    forgotten_before: bool = False


def resubmit(history: JobHistory) -> Decision:
    """Decides by the first of these that holds; see Decision."""
    forgotten = history.states == {FORGOTTEN} and not history.forgotten_before
    no_fault = _CUT_OFF | ({Outcome.LOST, None} if forgotten else {None})
    failed = {run for run, outcome in history.remaining.items() if outcome not in no_fault} - history.refused
    ended_by_scheduler = bool(history.states) and history.states <= _ENDED_BY_SCHEDULER
    rules = (
        (Decision.DONE, not history.remaining),
        (Decision.CANCELLED, any(state.startswith("CANCELLED") for state in history.states)),
        (Decision.FAILED, not history.requested.issuperset(failed)),
        (Decision.FORGOTTEN, forgotten),
        (Decision.REQUESTED, bool(history.requested)),
        (Decision.REST_CUT_OFF, history.measured),
        (Decision.ENDED_BY_SCHEDULER, ended_by_scheduler and history.in_vain < MAX_IN_VAIN),
        (Decision.STEP_REFUSED, bool(history.refused) and history.in_vain < MAX_IN_VAIN),
    )
    return next((decision for decision, holds in rules if holds), Decision.IN_VAIN)


FAILURES = (PlanError, SubmitError, StateError, TargetError, RecordError, LockError, TimeLimitTooShort,
            OSError)  # fmt: skip
MANY_RUNS = 2_000
"""From this number of runs on, writing their files takes seconds."""
DETACH_PATIENCE_S = 60
"""Seconds for which --detach retries after transient refusals of the scheduler."""


Batches = Generator[Prepared, int, int]
"""Jobs to run, one batch after another: gets the status of each, 0 or 1, and returns the exit status of all."""


Producer = Callable[[Prepared, Say], Batches]


def once(prepared: Prepared, say: Say) -> Batches:
    """All jobs of the plan as one batch."""
    return (yield with_jobs(prepared))


def sweep(request: Request, produce: Producer = once) -> int:
    """Plans a request once, and runs the batches of jobs that `produce` makes of its plan; the exit status of the
    command line. A batch that is interrupted or could not be followed is the last one."""
    batches, status = produce(prepare(request), say), 0
    try:
        batch = next(batches)
        while (status := run_prepared(batch)) in (0, 1):
            batch = batches.send(status)
    except StopIteration as end:
        return int(end.value)
    return status


def run_prepared(prepared: Prepared) -> int:
    """Runs what was prepared; the exit status of the command line."""
    options = prepared.request.options
    if options.max_jobs is not None and prepared.site is None:
        raise SpecError("--max-jobs: of the queue of Slurm, and the runs are for this machine")
    for line in (*prepared.check_data(), *prepared.check_sizes(_jobs_to_do(prepared))):
        say(f"warning: {line}")
    if options.dry_run:
        _show(prepared)
        return 0
    prepared.check()
    for line in prepared.check_images():
        say(f"warning: {line}")
    make_folders(prepared.folders)
    if prepared.nodes is not None and (reason := prepared.nodes.unreachable):
        site = prepared.plan.target.site
        raise SubmitError(f"no Slurm controller answers here, and site {site} is a Slurm site: {reason}")
    try:
        return Sweep(prepared).run()
    except KeyboardInterrupt:
        return 130


def _jobs_to_do(prepared: Prepared) -> list[JobPlan]:
    """The jobs with a run still to be done: only these are submitted, so only their requests are checked."""
    traces = prepared.folders.traces
    if prepared.request.options.reruns or not os.path.isdir(traces):  # noqa: PTH112 - False, too, in a folder that may not be entered
        return list(prepared.jobs)
    return [job for job in prepared.jobs if pending_runs([run.run_id for run in job.runs], traces)]


def _show(prepared: Prepared) -> None:
    """Shows the scripts instead of submitting them, and the missing requirements to run them."""
    written = _write(prepared, dry_run=True)
    for line in describe_plan(prepared, written):
        say(line)
    for job in written:
        print(*map(plain, f"\n===== {job.script}\n{job.text}".split("\n")), sep="\n")
    for line in ("dry run: nothing was submitted", *(f"note: {line}" for line in prepared.missing)):
        say(line)


def _write(prepared: Prepared, *, dry_run: bool = False) -> list[WrittenJob]:
    """Writes the sweep's files; says so where there are many."""
    if (runs := len(prepared.plan.runs)) >= MANY_RUNS:
        say(f"writing the files of {runs} runs")
    return prepared.write(dry_run=dry_run)


class Sweep:
    """One running sweep: the lock of its folder, its jobs, its scheduler."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared, self._options, self._folders = prepared, prepared.request.options, prepared.folders
        self._traces = self._folders.traces
        self.lock = FolderLock(self._folders.jobs)
        self._cancelled_at_ns = self._last_cancelled()
        self._forgotten: set[str] = set()  # scripts whose jobs the scheduler had forgotten
        self._last_lines: dict[str, str] = {}  # by attempt: the last line about what became of its files
        self._ended: dict[str, str] = {}  # by script: how its last jobs ended, as text
        self._in_vain: Counter[str] = Counter()  # by script: jobs in a row without a measurement
        site = prepared.site
        self._local = Local(self.lock) if site is None else None
        self.scheduler: JobScheduler = self._local or site_scheduler()
        if site is not None:
            self.scheduler.slow_poll_s = float(site.squeue_interval_s)
            self.scheduler.submits = site.submit_command or self.scheduler.submits
            self.scheduler.max_jobs = self._options.max_jobs or site.at().max_running

    def begin(self) -> list[WrittenJob]:
        """Writes and shows the jobs, and requests reruns of their final runs that are wanted again. The folder is
        locked."""
        written = _write(self._prepared)
        for line in describe_plan(self._prepared, written):
            say(line)
        site = self._prepared.site
        fetch = None if site is None else (lambda node, program: site_scheduler().run_on_node(node, program, site.at()))
        mend_records(self._folders, say, fetch)
        choose_reruns(self._options, self._prepared.plan.runs, self._traces, site, say)
        self._check_limits(written)
        return written

    def run(self) -> int:
        """Submits, follows and closes. On this machine the lock is held to the end, else only while submitting."""
        here = self._local is not None
        if self._local is not None:
            self._local.end_by_signals()
        with ExitStack() as stack:
            stack.enter_context(self.lock.held(lambda holder: say(f"waiting for {holder}: {_WAIT_REASONS[here]}")))
            written = self.begin()
            self._jobs = {job.script.name: job for job in written}
            queue = Queue(self.scheduler, written, self, self.lock)
            if self._options.detach and here and any(map(self.remaining, written)):
                if (process := _fork(self._folders.logs / "detached.out")) is not None:
                    say(f"running in process {process}")
                    return 0
                self.lock.sign()
            elif self._options.detach:
                return self._submit_and_leave(queue)
            before = {run.run_id: run.ended for run in run_statuses(_ids(written), self._traces) if not run.final}
            with self._ending(queue):
                self._take(queue, queue.advance())
                if not here:
                    stack.close()
                if queue.waiting or queue.job_ids:
                    self._follow(queue, before)
        return self._conclude(written, queue)

    def remaining(self, job: WrittenJob) -> list[str]:
        return pending_runs(_ids([job]), self._traces)

    def to_do(self, jobs: Sequence[WrittenJob]) -> dict[str, list[str]]:
        pending = set(pending_runs(_ids(jobs), self._traces))
        return {job.script.name: [run_id for run_id in _ids([job]) if run_id in pending] for job in jobs}

    def cancelled(self) -> bool:
        return self._last_cancelled() != self._cancelled_at_ns

    def life_sign(self, job_ids: Sequence[str]) -> str:
        stems = (begin.stem for job_id in job_ids for begin in open_attempts(self._traces, job_id))
        return next(filter(None, (life_sign(self._traces, stem) for stem in stems)), "")

    def _last_cancelled(self) -> int:
        return cancelled_at_ns(self._folders, self._prepared.plan.sweep_id)

    def _take(self, queue: Queue, events: Iterable[Event]) -> None:
        """Shows events; has a script submitted again whose jobs have ended and did not do all."""
        for event in events:
            if not isinstance(event, Ended):
                say(describe_event(event))
            elif self._closes(event).resubmits:
                queue.submit_again(event.script)

    def _closes(self, event: Ended) -> Decision:
        """Closes the attempts of jobs that have ended, and decides on their script."""
        ends = self.scheduler.ends(event.job_ids)
        self._ended[event.script] = ", ".join(f"job {job_id} {end.state}" for job_id, end in ends.items() if end.state)
        close_ended(ends, self._folders, say, self._last_lines)
        decision = resubmit(self._history(event, ends))
        if decision is Decision.FORGOTTEN:
            self._forgotten.add(event.script)
            lost = ", ".join(event.job_ids)
            say(f"{event.script}: the scheduler has forgotten job {lost}: submitted again, once")
        return decision

    def _history(self, event: Ended, ends: Mapping[str, JobEnd]) -> JobHistory:
        job = self._jobs[event.script]
        remaining = self.remaining(job)
        records, rerun_requests = exit_records(self._traces), requested_reruns(self._traces)
        last = {run: records[run][-1] for run in _ids([job]) if run in records}
        measured = any(record.job_id in event.job_ids for run, record in last.items() if run not in remaining)
        self._in_vain[event.script] = 0 if measured else self._in_vain[event.script] + 1
        return JobHistory(
            states=frozenset(end.state for end in ends.values()),
            remaining={run: last[run].outcome if run in last else None for run in remaining},
            refused=frozenset(run for run in remaining if run in last and last[run].step_refusal),
            requested=frozenset(run for run, record in last.items() if record.stem in rerun_requests),
            measured=measured, in_vain=self._in_vain[event.script], forgotten_before=event.script in self._forgotten,
        )  # fmt: skip

    def _submit_and_leave(self, queue: Queue) -> int:
        """Submits without following; the exit status, 1 if a job could not be submitted."""
        until_s = time.monotonic() + DETACH_PATIENCE_S
        self._take(queue, queue.advance())
        while queue.refusal and time.monotonic() < until_s:
            time.sleep(self.scheduler.poll_s)
            self._take(queue, queue.advance())
        if not queue.waiting:
            return 0
        reason = queue.refusal or f"{self.scheduler.max_jobs} at the same time: --max-jobs, or max_running of the site"
        say(
            f"not submitted: {', '.join(queue.waiting)} ({reason}). A sweep that stays (without --detach) submits them "
            "as others end; the same command later submits what there is room for"
        )
        return 1

    def _follow(self, queue: Queue, before: Mapping[str, int]) -> None:
        jobs = {script: job for script, job in self._jobs.items() if script in {*queue.waiting, *queue.job_ids}}
        scheduler = self.scheduler
        follower = Follower(jobs, self._traces, _speed, before, queued=scheduler.queued)

        def poll() -> tuple[Mapping[str, JobState], str]:
            self._take(queue, queue.poll())
            return queue.job_states, queue.error

        follow(poll, follower, scheduler.poll_s, scheduler.slow_poll_s)
        self._close(queue.all_job_ids)

    @contextmanager
    def _ending(self, queue: Queue) -> Iterator[None]:
        """Any error ends the runs on this machine; jobs of a scheduler go on by themselves."""
        try:
            yield
        except BaseException as error:
            if self._local is not None:
                say("ends the runs on this machine")
                self._close(self._local.end_all())
                say("stopped, and the runs on this machine with it")
            elif queue.job_ids:
                say("detached: jobs keep running; rerun this command to follow them")
            if isinstance(error, KeyboardInterrupt):
                raise SystemExit(130) from None
            raise

    def _close(self, job_ids: Sequence[str]) -> None:
        close_ended(self.scheduler.ends(job_ids), self._folders, say, self._last_lines)

    def _conclude(self, written: Sequence[WrittenJob], queue: Queue) -> int:
        """Shows the outcomes of the whole sweep and the next command; the exit status, 0 if every run is ok."""
        runs = run_statuses(_ids(written), self._traces)
        for line in describe_runs(runs, self._folders):
            say(line)
        never = {run.run_id for run in runs if run.attempts == 0}
        for job in written:
            if (missing := len(never.intersection(_ids([job])))) and (job_ids := queue.job_ids.get(job.script.name)):
                where = describe_output(self.scheduler.output_of(job, job_ids[-1]))
                reason = "; ".join(filter(None, (self._ended.get(job.script.name), where)))
                say(f"  {plural(missing, 'run')} of {job.script.name} never began: {reason}")
        against = "" if (recipe := self._prepared.request.recipe) is None else f" --against {recipe.name}"
        print_whole(f"rankwise summarize {shlex.quote(str(self._traces))}{against}")
        return 0 if whole(runs) else 1

    def _check_limits(self, written: Sequence[WrittenJob]) -> None:
        """Raises TimeLimitTooShort if not even the first run of a job fits."""
        if self._prepared.site is None:
            return  # no scheduler limits the jobs here
        took = durations_s({run.run_id: run.point_id for run in self._prepared.plan.runs}, exit_records(self._traces))
        for job in written:
            remaining = self.remaining(job)
            if first := next((run for run in job.plan.runs if run.run_id in remaining), None):
                check_limit(job, job.plan.warning_s, first, took)


_WAIT_REASONS = {
    True: "runs on one machine would measure each other; what is left afterwards is run then",
    False: "it is submitting",
}


def _ids(jobs: Sequence[WrittenJob]) -> list[str]:
    return [run.run_id for job in jobs for run in job.plan.runs]


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
    measured = measured_in(path)
    return None if measured is None else measured.throughput  # None is shown as no speed
