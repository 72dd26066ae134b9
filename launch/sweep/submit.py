"""Runs a prepared sweep: submits what is not settled and joins what is there, follows it, and says how it ended."""

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

from hpc.model.outcome import Outcome, RecordError, asked_again, exit_records, stem
from hpc.model.spec import COLLECTIVES
from hpc.system.sanitize import plain
from launch.cluster.local import LocalCluster
from launch.cluster.lock import FolderLock, LockError
from launch.cluster.query import StateError
from launch.cluster.slurm import SlurmCluster, SubmitError, warning_s
from launch.follow.follower import Follower, follow
from launch.jobs.plan import JobPlan, PlanError, WrittenJob, make_folders
from launch.jobs.site import SiteError
from launch.queue import Queue
from launch.sweep.finalize import cancelled_at_ns, close_attempts, close_ended, in_words, mend_records
from launch.sweep.prepare import Prepared, Say, count, prepare
from launch.sweep.rerun import Wish, ask_for
from launch.sweep.run_status import left_of, standings, whole
from launch.sweep.spec import SweepSpec
from launch.sweep.target import TargetError
from launch.sweep.time_limit import Room, TooShort, check_room, cut_off_s, durations_s

FAILURES = (SiteError, PlanError, SubmitError, StateError, TargetError, RecordError, LockError, TooShort,
            OSError)  # fmt: skip
MOST_IN_VAIN = 3
"""So many jobs of a script in a row may be taken away before they measured anything; then a person has to look."""
MANY_RUNS = 2_000
"""The files of so many runs take seconds: how far it is is shown."""
DETACH_PATIENCE_S = 60
"""How long a sweep that does not stay asks again where sbatch refuses for a reason that passes."""


@dataclass(frozen=True, kw_only=True)
class How:
    """What is done with the sweep."""

    dry_run: bool = False
    detach: bool = False
    max_jobs: int | None = None
    wish: Wish = field(default_factory=Wish)


def sweep(asked: SweepSpec, settings: Mapping[str, str], how: How) -> int:
    """Plans and runs a sweep; the exit status of the command line."""
    console = Console(soft_wrap=True)
    prepared = prepare(asked, settings)
    say = sayer(console)
    for line in prepared.check_sizes(_jobs_to_do(prepared, how)):
        say(f"warning: {line}")
    if how.dry_run:
        _show(prepared, console)
        return 0
    prepared.check()
    make_folders(prepared.folders)
    if prepared.nodes is not None and (reason := prepared.nodes.unreachable):
        site = prepared.plan.target.site
        raise SubmitError(f"no Slurm controller answers here, and site {site} is a Slurm site: {reason}")
    try:
        return Sweep(prepared, how, console).run()
    except KeyboardInterrupt:
        return 130


def _jobs_to_do(prepared: Prepared, how: How) -> list[JobPlan]:
    """The jobs of which a run is still to be done: the others will not be submitted, and may ask for what they like."""
    traces = prepared.folders.traces
    if how.wish != Wish() or not traces.is_dir():
        return list(prepared.jobs)
    return [job for job in prepared.jobs if left_of([run.run_id for run in job.runs], traces)]


def sayer(console: Console) -> Say:
    """Shows a line; whatever came into it from outside cannot steer the terminal."""

    def say(text: str) -> None:
        console.print(plain(text), markup=False, highlight=False, emoji=False)

    return say


def _show(prepared: Prepared, console: Console) -> None:
    """The scripts, in place of submitting them, and what a run would want."""
    say = sayer(console)
    written = _write(prepared, console, dry_run=True)
    prepared.tell(written, say)
    for job in written:  # hundreds of thousands of lines, maybe: rich would take a while for them
        lines = map(plain, f"\n===== {job.script}\n{job.text}".split("\n"))
        console.file.write("\n".join(lines) + "\n")
    for line in ("dry run: nothing was submitted", *(f"note: {line}" for line in prepared.missing)):
        say(line)


def _write(prepared: Prepared, console: Console, *, dry_run: bool = False) -> list[WrittenJob]:
    """Writes the sweep's files. Where there are many, a terminal sees how many are written, a pipe gets one line."""
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
    """One sweep on its way: the lock of its folder, its jobs, its scheduler. It owns the queue of its jobs."""

    def __init__(self, prepared: Prepared, how: How, console: Console) -> None:
        self._prepared, self._how, self._console = prepared, how, console
        self.say = sayer(console)
        self._traces = prepared.folders.traces
        self._lock = FolderLock(prepared.folders.jobs)
        self._cancelled_at_ns = cancelled_at_ns(prepared.folders, prepared.plan.sweep_id)
        self._forgotten: set[str] = set()  # scripts whose jobs the scheduler did not know any more
        self._ended: dict[str, str] = {}  # by script: how its last jobs ended, in words
        self._in_vain: Counter[str] = Counter()  # by script: jobs in a row that measured nothing
        local = prepared.site is None
        logs = prepared.folders.logs
        self._cluster = LocalCluster(logs, self._lock) if local else SlurmCluster(logs, max_jobs=how.max_jobs)

    def run(self) -> int:
        """Submits, follows and closes; on this machine the lock is held to the end, else while it submits."""
        here = isinstance(self._cluster, LocalCluster)
        if here:
            _end_like_ctrl_c()
        with ExitStack() as stack:
            stack.enter_context(self._lock.held(lambda holder: self.say(f"waiting for {holder}: {_WHY_WAIT[here]}")))
            written = _write(self._prepared, self._console)
            self._prepared.tell(written, self.say)
            mend_records(self._prepared.folders, self.say)
            ask_for(self._how.wish, self._prepared.plan.runs, self._traces, self._prepared.site, self.say)
            self._check_limits(written)
            queue = Queue(self._cluster, written, self, self._lock)
            if self._how.detach and here and any(map(self.remaining_runs, written)):
                if (process := _fork(self._prepared.folders.logs / "detached.out")) is not None:
                    self.say(f"running in process {process}")
                    return 0
                self._lock.sign()
            elif self._how.detach:
                return self._submit_and_leave(queue)
            before = {run.run_id: run.ended for run in standings(_ids(written), self._traces) if not run.settled}
            queue.advance()
            if not here:
                stack.close()
            if queue.waiting or queue.job_ids:
                self._follow(queue, written, before)
        return self._conclude(written, queue)

    def remaining_runs(self, job: WrittenJob) -> list[str]:
        """See Owner."""
        return left_of(_ids([job]), self._traces)

    def cancelled(self) -> bool:
        """See Owner."""
        return cancelled_at_ns(self._prepared.folders, self._prepared.plan.sweep_id) != self._cancelled_at_ns

    def _check_limits(self, written: Sequence[WrittenJob]) -> None:
        """Warns of time limits that are too short by what was measured before; TooShort where nothing can fit."""
        if self._prepared.site is None:
            return  # nothing limits what runs here
        records = exit_records(self._traces)
        took = durations_s(self._prepared.plan.runs, records)
        cut_off = cut_off_s(self._prepared.plan.runs, records)
        for job in written:
            left = set(self.remaining_runs(job))
            room = Room(job=job.script.name, limit_s=60 * job.plan.time_min, margin_s=warning_s(job.plan))
            runs = [run for run in job.plan.runs if run.run_id in left]
            for line in check_room(room, runs, took, cut_off):
                self.say(f"warning: {line}")

    def _submit_and_leave(self, queue: Queue) -> int:
        """Submits what can be; 1 where something could not."""
        until_s = time.monotonic() + DETACH_PATIENCE_S
        queue.advance()
        while queue.refusal and time.monotonic() < until_s:
            time.sleep(queue.poll_s)
            queue.advance()
        if not queue.waiting:
            return 0
        why = queue.refusal or f"--max-jobs {self._how.max_jobs}"
        self.say(
            f"not submitted: {', '.join(queue.waiting)} ({why}). A sweep that stays (without --detach) submits them as "
            "others end; the same command later submits what there is room for"
        )
        return 1

    def _follow(self, queue: Queue, written: Sequence[WrittenJob], before: Mapping[str, int]) -> None:
        jobs = {job.script.name: job for job in written if job.script.name in {*queue.waiting, *queue.job_ids}}
        try:
            follow(Follower(queue, jobs, self._traces, _speed, before), self._console)
        except BaseException as error:
            # Whatever ends the following ends what runs on this machine; jobs of a scheduler go on by themselves.
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
        """See Owner. Closes the job's attempts; it is wanted again where it measured something and only the scheduler
        kept it from the rest, where somebody asked again for a run that it had passed, a few times where it was taken
        away before it measured anything, and once where the scheduler has forgotten it."""
        ends = self._cluster.ends(job_ids)
        self._ended[job.script.name] = ", ".join(f"job {job_id} {end.word}" for job_id, end in ends.items() if end.word)
        close_ended(ends, self._prepared.folders, self.say)
        left = self.remaining_runs(job)
        if not left or any(end.word.startswith("CANCELLED") for end in ends.values()):
            return False
        records, again = exit_records(self._traces), asked_again(self._traces)
        last = {run: records[run][-1] for run in _ids([job]) if run in records}
        asked = {run for run, record in last.items() if stem(run, record.attempt) in again}
        forgotten = (
            job.script.name not in self._forgotten and bool(ends) and all(end.word == "" for end in ends.values())
        )
        no_fault = _CUT_OFF | {Outcome.LOST} if forgotten else _CUT_OFF
        cut_off = {run for run in left if run not in last or last[run].outcome in no_fault}
        measured = {run for run, record in last.items() if run not in left and record.job_id in job_ids}
        self._in_vain[job.script.name] = 0 if measured else self._in_vain[job.script.name] + 1
        taken = bool(ends) and {end.word for end in ends.values()} <= _TAKEN_AWAY
        taken &= self._in_vain[job.script.name] < MOST_IN_VAIN
        wanted = asked | cut_off >= set(left) and bool(measured or asked or forgotten or taken)
        if wanted and forgotten:
            self._forgotten.add(job.script.name)
            self.say(f"{job.script.name}: the scheduler has forgotten job {', '.join(job_ids)}: submitted again, once")
        return wanted

    def _conclude(self, written: Sequence[WrittenJob], queue: Queue) -> int:
        """Counts outcomes over the whole sweep and names the next command; 0 where every run is ok."""
        found = standings(_ids(written), self._traces)
        for line in in_words(found, self._prepared.folders):
            self.say(line)
        never = {run.run_id for run in found if run.attempts == 0}
        for job in written:
            if (missing := len(never.intersection(_ids([job])))) and (job_ids := queue.job_ids.get(job.script.name)):
                output = self._cluster.output_of(job, job_ids[-1])
                where = f"see {output}" if output.exists() else f"there is no {output}"
                why = "; ".join(filter(None, (self._ended.get(job.script.name), where)))
                self.say(f"  {count(missing, 'run')} of {job.script.name} never began: {why}")
        self.say(f"python -m parse.summarize {shlex.quote(str(self._traces))}")
        return 0 if whole(found) else 1


_CUT_OFF = frozenset({Outcome.TIMEOUT, Outcome.PREEMPTED, Outcome.NODE_FAIL})
"""What becomes of attempts through no fault of theirs, and may go well in another job."""
_TAKEN_AWAY = frozenset({"PREEMPTED", "NODE_FAIL"})
"""Slurm's words for that."""
_WHY_WAIT = {
    True: "runs on one machine would measure each other; what is left afterwards is run then",
    False: "it is submitting",
}


def _ids(jobs: Sequence[WrittenJob]) -> list[str]:
    return [run.run_id for job in jobs for run in job.plan.runs]


def _end_like_ctrl_c() -> None:
    """Lets SIGTERM and a lost terminal end this process as Ctrl-C does: with the runs that it started."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)


def _fork(log: Path) -> int | None:
    """The process that goes on where this one leaves; in that process None: a session of its own, printing to `log`."""
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
        return None if trace.run.probe == COLLECTIVES else measure(trace).throughput
    except TraceError:
        return None  # shown as no speed; the summary names the file and what is wrong with it
