"""One attempt of a run, from reading its records to writing its own. docs/outcomes.md has the rules."""

from __future__ import annotations

import ctypes
import hashlib
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import Signals
from types import FrameType
from typing import Any, BinaryIO

from hpc.model.evidence import (
    STARTED_AGAIN,
    AttemptOutput,
    TraceLook,
    close_attempts,
    describe,
    end_of_output,
    judge_ended,
    look_at_trace,
)
from hpc.model.files import AttemptFiles
from hpc.model.outcome import BeginRecord, Outcome
from hpc.model.verdict import GROUP_KILLS, JobEnd
from hpc.recovery.collect import bring_home, close_unidentified
from hpc.recovery.folders import attempt_folders
from hpc.system.atomic import write_durable
from hpc.system.host import began_ns, clock_domain, loopback_address, no_loopback
from hpc.system.job_facts import Job
from hpc.system.sanitize import plain
from hpc.system.version import WRITTEN_BY, code_version
from launch.jobs.launchers import once_per_node_argv
from launch.jobs.options import RunLimits
from launch.scheduler.table import scheduler_inside
from launch.step.claim import Claim, ClaimStatus
from launch.step.watch import Launcher, Watchdog

ENDING = ("TERM", "INT", "HUP")
"""Signals by which a job is ended; a USR1 warns."""
_ENDS = tuple(f"SIG{name}" for name in ENDING)


class SignalLog:
    """Notes the first and the last signal of these names. SIGCHLD ends a pause and is not noted."""

    def __init__(self, names: Sequence[str]) -> None:
        self.first = self.last = ""
        self.orphaned = False
        """Whether the parent has died, for which the kernel sends SIGTERM: that is no request to end."""
        self._parent = os.getppid()
        self._note: Path | None = None
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._reading = reading
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for name in names:
            number = signal.Signals[f"SIG{name}"]
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup: none is wanted
                signal.signal(number, self._received)

    def note_in(self, path: Path) -> None:
        """From now on writes the first signal to this file at once, with the time: this process may be killed soon
        after."""
        self._note = path
        if self.first and not self.orphaned:
            self._write()

    def add(self, name: str) -> None:
        """Notes a signal that another process has received for this one."""
        self.first, self.last = self.first or name, name

    def sleep(self, seconds: float) -> None:
        """Sleeps `seconds`; a signal of the log ends it early."""
        until_s, before = time.monotonic() + seconds, self.last
        while self.last == before and (remaining_s := until_s - time.monotonic()) > 0:
            self.pause(remaining_s)

    def pause(self, seconds: float) -> None:
        """Sleeps `seconds` at most: a signal ends it, or a child that ends or ended shortly before."""
        with suppress(InterruptedError):
            select.select([self._reading], [], [], max(0.0, seconds))
        with suppress(BlockingIOError):
            while os.read(self._reading, 512):
                pass

    def _received(self, number: int, _: FrameType | None) -> None:
        is_first = not self.first
        self.add(signal.Signals(number).name)
        if os.getppid() != self._parent:
            self.orphaned = True
        elif is_first:
            self._write()

    def _write(self) -> None:
        if self._note is not None and not self._note.exists():
            with suppress(OSError):  # the record will have it where it can be written
                self._note.write_text(f"{self.first} at {time.strftime('%F %T')}\n")


DONE, NOT_OK, INTERRUPTED, UNWRITABLE, DEFECT = 0, 10, 12, 13, 14
END_PATIENCE_S = 10.0
AWAY_PATIENCE_S = 120.0
"""Seconds to wait for a vanished folder of traces before the attempt is given up."""
LOWEST_PRIORITY = 19
MAX_STARTS, RESTART_PAUSE_S = 5, 2.0
"""How often a step is tried whose start finds the controller away; between two tries the controller answered."""
_WRITE_PAUSES_S = (0.2, 1.0, 4.0)
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def memory_kills(root: Path = Path("/")) -> int | None:
    """How many processes of this process's control group the kernel has killed because memory ran out; None where it
    does not say. Slurm says so itself, for its own groups."""
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):  # of version 2 and of version 1
                group = root / "sys/fs/cgroup" / controllers / path.lstrip("/")
                counts = group / ("memory.oom_control" if controllers else "memory.events")
                if counts.exists():
                    fields = dict(row.split() for row in counts.read_text().splitlines())
                    return int(fields["oom_kill"]) if "oom_kill" in fields else None
    return None


class StepError(Exception):
    """The attempt cannot be recorded; the text has the reason."""


ROOT = Path(__file__).resolve().parents[2]
"""The folder of this code: a checkout, or the packages of an environment."""


def _option(help: str, **how: Any) -> Any:
    """A field that is an option of the command line, as argparse declares it."""
    return field(metadata={"help": help, **how})


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """The command line. `command` starts the ranks, `container` is what stands before a program on the nodes."""

    # fmt: off
    run: str = _option("the run", required=True, metavar="ID")
    traces: Path = _option(  # noqa: RUF009 - a field, as dataclasses.field makes it
        "folder of the traces and records", type=Path, required=True, metavar="DIR")
    logs: Path = _option("folder of what the ranks print", type=Path, required=True, metavar="DIR")  # noqa: RUF009
    launcher: str = _option(
        "what starts a program on each node, to fetch what dead ranks left there",
        choices=("srun", "openmpi", "mpich", "local"), required=True)
    nodes: int = _option("how many nodes the run uses (%(default)s)", type=int, default=1, metavar="N")
    nodelist: str = _option("which ones, with commas (default: those of the job)", default="", metavar="NODES")
    container: Sequence[str] = _option(
        "the words in front of a program in a container, as a shell has them", type=shlex.split, default=[],
        metavar="WORDS")
    code: Path = _option(  # noqa: RUF009
        "the checkout that the job script was written by", type=Path, default=ROOT, metavar="DIR")
    hand_on: bool = _option("hand signals on to the ranks, whose scripts end by themselves", action="store_true")
    force: bool = _option("begin an attempt of a final run, too", action="store_true")
    signal: str = _option("the signal that the job script has received before", default="", metavar="SIGNAL")
    unready: str = _option(
        "the line before the runs that has failed: no rank is started", default="", metavar="LINE")
    warning_s: float = _option(
        "how long before its time limit the job gets USR1", type=float, default=60.0, metavar="S")
    # fmt: on
    limits: RunLimits
    command: Sequence[str]


class Step:
    def __init__(self, options: StepOptions, job: Job, signals: SignalLog, script: bytes) -> None:
        self._options, self._job, self._signals, self._script = options, job, signals, script
        self._scheduler = scheduler_inside(job)
        self._collected = ""
        """What the collecting of the ranks' files printed to standard error."""
        self._refusal = ""
        """The launcher's message if its last start found the controller away."""
        self._steps_before: frozenset[str] = frozenset()
        """The steps of this job before the launch."""
        self._begun_s = 0.0
        """When the attempt began, by the monotonic clock."""
        self._claim = Claim(
            options.run, options.traces, options.logs, job, force=options.force, say=say, close=self._close,
            pause=signals.sleep,
        )  # fmt: skip

    def run(self) -> int:
        """Runs the attempt unless the run is final or elsewhere; returns the exit status of this process."""
        options = self._options
        if self._job.restarts:
            self._close(self._job.job_id, JobEnd(
                state="", source="the scheduler's count of starts", restarts=self._job.restarts, requeued=True
            ), before=self._job.restarts)  # fmt: skip
        for line in bring_home(options.traces):
            say(line)
        try:
            have_ended = close_unidentified(
                options.traces, options.logs, run_id=options.run, recover=self._recover, say=say
            )
        except OSError as problem:
            raise self._unwritable(problem) from None
        if not have_ended:
            return NOT_OK
        begin = self._take()
        if isinstance(begin, int):
            return begin
        name, files = begin.stem, begin.files(options.traces)
        self._signals.note_in(files.signal)
        say(f"{name}: begins on {begin.nodelist}")
        if (stamp := WRITTEN_BY.search(self._script)) and (written_by := stamp[1].decode()) != code_version():
            say(f"{name}: Rankwise {written_by} wrote this script, and {code_version()} is at {ROOT} and measures now")
        with self._open_log(name, "out") as out, self._open_log(name, "err") as error:
            exit_status = self._launch(name, out, error)
            for _ in range(MAX_STARTS - 1):
                self._refusal = self._step_refusal(name) if exit_status else ""
                if not self._refusal or self._signals.last:
                    break
                say(f"{name}: no step was created, tried again: {self._refusal}")
                self._signals.sleep(RESTART_PAUSE_S)
                self._await_controller()
                _add(error, f"{STARTED_AGAIN}{plain(self._refusal)}\n".encode(errors="replace"))
                exit_status = self._launch(name, out, error)
        if self._signals.orphaned:  # the scheduler may have the reason why the script was killed
            say(f"{name}: no record: the job script has died")
            return INTERRUPTED
        ends_now = self._signals.last in _ENDS
        # srun ends with 0 also if a node fails; only before the recovery is a trace known to be rank 0's.
        look = look_at_trace(files.trace, expected=True, trusted=True) if not exit_status else None
        recovers = look is None or not look.whole
        if recovers and not ends_now:
            try:
                self._await_traces(begin)  # nothing can be brought to them while they are away
            finally:
                self._recover(name)  # or says where on the nodes it stays
        status = self._record(begin, exit_status, look)
        if recovers and ends_now:  # little time remained: the record came first
            self._recover(name)
        if self._signals.last == "SIGUSR1":
            self._await_preemption()
        return INTERRUPTED if self._signals.last else status

    def _take(self) -> BeginRecord | int:
        options = self._options
        self._await_controller()
        while True:
            attempt = self._claim.next_attempt()  # before the status, which then sees what others take or end meanwhile
            status = self._claim.status()
            if status is ClaimStatus.FINAL:
                force = f"`{self._scheduler.submits} THIS_SCRIPT --force` makes a further attempt"
                say(f"{options.run} is final, passed over: {force}")
                return DONE
            if status is ClaimStatus.ELSEWHERE:
                return NOT_OK
            if last := self._signals.last:
                say(f"{options.run} is not begun: this job received {last}")
                if last == "SIGUSR1":
                    self._await_preemption()
                return INTERRUPTED
            self._begun_s = time.monotonic()
            job_began_ns = began_ns(os.getppid())
            begin = BeginRecord(
                run_id=options.run, attempt=attempt, job_id=self._job.job_id, begin_unix_s=int(time.time()),
                restart_count=self._job.restarts, nodelist=options.nodelist, job_name=self._job.name,
                begin_ms=round(1e3 * self._begun_s), clock=clock_domain(),
                job_begin_ms=-1 if job_began_ns is None else job_began_ns // 10**6,
            )  # fmt: skip
            try:
                if begin.take(options.traces):
                    return begin
            except OSError as error:
                raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> StepError:
        return StepError(f"cannot write to {self._options.traces}: no run can be recorded there ({error.strerror})")

    def _launch(self, name: str, out: BinaryIO, error: BinaryIO) -> int:
        options, signals = self._options, self._signals
        if options.unready:
            _add(error, f"rankwise: a line of the site failed, before any run: {options.unready}\n".encode())
            return 1

        def say_beside(text: str) -> None:
            _add(error, f"rankwise: watchdog: {name}: {plain(text)}\n".encode(errors="replace"))

        attempt = name.rpartition(".")[2]
        command = [*options.command, "--attempt", attempt, "--script", str(self._keep_script()),
                   "--copy-s", f"{options.limits.copy_s:g}"]  # fmt: skip
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=error,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - this process has one thread
            )  # fmt: skip
        except OSError as problem:
            _add(error, f"{command[0]}: {problem.strerror}\n".encode())
            return 126 if isinstance(problem, PermissionError) else 127
        launcher, kills = Launcher(process, signals.pause), memory_kills()
        watchdog = Watchdog(
            options.traces, name, launcher, options.limits, say_beside, why_absent=self._why_no_step,
            awaited=lambda: self._scheduler.awaited_step(end_of_output(self._log(name, "err"))),
        )  # fmt: skip
        next_look_s = time.monotonic() + watchdog.pause_s
        while launcher.is_alive and not signals.last:
            signals.pause(max(0.0, next_look_s - time.monotonic()))
            if launcher.is_alive and not signals.last and time.monotonic() >= next_look_s:
                watchdog.look()
                if watchdog.has_ranks and os.nice(0) < LOWEST_PRIORITY:
                    os.nice(LOWEST_PRIORITY)  # not before: the ranks of a launcher that is started again inherit it
                next_look_s = time.monotonic() + watchdog.pause_s
        if options.hand_on:
            self._await_scripts(name, launcher)
        if signals.last and launcher.is_alive:
            say(f"{signals.last}: {name} is ended, no further run is started")
            if launcher.end(END_PATIENCE_S):
                say(f"the launcher has not ended {END_PATIENCE_S:.0f} s after SIGTERM: SIGKILL")
        if launcher.exit_status and kills is not None and (killed := (memory_kills() or 0) - kills) > 0:
            # Not in Slurm's words, which count even against a rank's note: others may share the group.
            text = f"out of memory: {GROUP_KILLS}: {killed}"
            _add(error, f"rankwise: {name}: {text}\n".encode())
        if launcher.exit_status and not watchdog.has_ranks and not loopback_address():
            _add(error, f"rankwise: {name}: {no_loopback()}\n".encode())
        return launcher.exit_status

    def _await_scripts(self, name: str, launcher: Launcher) -> None:
        """Hands each signal on to the ranks, and waits for their scripts: the sender's patience is theirs. Returns at
        once where a signal cannot be handed on."""
        signals, handed_on = self._signals, ""
        while signals.last and launcher.is_alive and not signals.orphaned:
            if signals.last != handed_on:
                handed_on = signals.last
                number = Signals[handed_on]
                if number is not Signals.SIGUSR1 and self._scheduler.starts_steps(self._options.launcher):
                    # On TERM such a launcher kills the ranks. A job that is cancelled was sent the same before.
                    self._scheduler.signal(self._job, handed_on[3:])
                elif not launcher.forward(number, to_ranks=number is not Signals.SIGUSR1):
                    return
                say(f"{handed_on}: handed on to {name}, whose scripts end by themselves; no further run is started")
            signals.pause(1.0)

    def _step_refusal(self, name: str) -> str:
        """The launcher's message if it found the controller away; empty if a rank may have begun."""
        partial = AttemptFiles.of_stem(self._options.traces, name).partial
        if partial.exists() or attempt_folders(self._options.traces, name):
            return ""
        return self._scheduler.step_refusal(end_of_output(self._log(name, "err")))

    def _why_no_step(self) -> str:
        """The reason if the scheduler has no step of this job but those from before the launch, some of which it may
        only believe to run; empty where another launcher than its own starts ranks without a step."""
        if not self._scheduler.starts_steps(self._options.launcher):
            return ""
        steps = self._scheduler.steps(self._job)
        is_absent = steps.listed and not steps.numbers - self._steps_before
        return steps.silent or (f"{self._job.scheduler} has not created the step of this run" if is_absent else "")

    def _keep_script(self) -> Path:
        """Keeps the job script in the traces, named by its digest: ranks on other nodes have no other copy."""
        folder = self._options.traces / "scripts"
        path = folder / f"{hashlib.sha256(self._script).hexdigest()[:16]}.sh"
        try:
            if not path.exists():
                folder.mkdir(exist_ok=True)
                write_durable(path, self._script)
        except OSError as error:  # the trace will lack its script, and records that
            say(f"the job script cannot be kept in {folder}: {error.strerror}")
        return path

    def _record(self, begin: BeginRecord, exit_status: int, look: TraceLook | None) -> int:
        options, name, files = self._options, begin.stem, begin.files(self._options.traces)
        self._await_traces(begin)
        was_signalled = bool(self._signals.first)
        on_node = attempt_folders(options.traces, name)
        output = AttemptOutput(error=self._log(name, "err"), on_node=on_node, collected=self._collected)
        record = judge_ended(
            begin, options.traces, output, exit_status=exit_status,
            job=self._scheduler.now(self._job) if was_signalled else None, warning_s=options.warning_s, look=look,
        )  # fmt: skip
        if record is None:
            say(f"{name}: no record yet: only the scheduler knows why this job ends")
            return NOT_OK
        record = replace(record, duration_ms=round(1e3 * (time.monotonic() - self._begun_s)))
        if record.outcome is Outcome.LAUNCH_FAIL and self._refusal:
            record = replace(record, step_refusal=self._refusal)
        final_record = record
        if not self._try_to_write(lambda: final_record.write(options.traces)):
            record_name = files.exit_record.name
            say(f"cannot write {record_name} to {options.traces}: who follows the sweep, or the next job, will")
            return NOT_OK
        self._try_to_write(lambda: files.signal.unlink(missing_ok=True))  # the record has it
        say(f"{name}: {describe(record)}")
        return DONE if record.outcome is Outcome.OK else NOT_OK

    def _try_to_write(self, write: Callable[[], object]) -> bool:
        """Writes, with retries: a file system may be away for a moment. False if all tries failed."""
        for pause_s in (*_WRITE_PAUSES_S, None):
            try:
                write()
                return True
            except OSError as error:
                if pause_s is None:
                    say(f"{error.filename or self._options.traces}: {error.strerror}")
                else:
                    self._signals.sleep(pause_s)
        return False

    def _await_traces(self, begin: BeginRecord) -> None:
        """Waits until the folder of traces has the attempt's begin record, and so is the one that it began in.

        Raises StepError after AWAY_PATIENCE_S: nothing is written into another folder in its place.
        """
        path = begin.files(self._options.traces).begin_record
        until_s, is_reported = time.monotonic() + AWAY_PATIENCE_S, False
        while True:
            try:
                path.stat()
                return
            except OSError as error:
                reason = error.strerror
            if not is_reported:
                say(f"waits for {self._options.traces}, which has no {path.name} any more ({reason})")
                is_reported = True
            if time.monotonic() > until_s:
                raise StepError(f"{self._options.traces} is not the folder that {path.name} was written to: {reason}")
            self._signals.sleep(1.0)

    def _recover(self, name: str) -> None:
        """Makes a trace of what the attempt's ranks wrote. A job that is being ended can start no step on its nodes:
        then only this node's files and the copies from the others are used."""
        options = self._options
        python, command = sys.executable, [sys.executable, "-m", "hpc.recovery", "collect"]
        ends_now = self._signals.last in _ENDS
        if not ends_now:
            self._await_controller()
            command = once_per_node_argv(
                options.launcher, options.nodes, options.nodelist, options.container, [python, *command[1:]]
            )
        collects = [*command, "--stem", name, "--to", str(options.traces)]
        for _ in range(1 if ends_now else MAX_STARTS):
            self._collected = self._run_logged(name, collects, 20 if ends_now else 120)
            if ends_now or not self._scheduler.step_refusal(self._collected):
                break
            self._await_controller()
        self._run_logged(name, [python, "-m", "hpc.recovery", "recover", str(options.traces), "--stem", name], None)

    def _run_logged(self, name: str, command: Sequence[str], timeout_s: float | None) -> str:
        """Runs a command to its end; what it printed to standard error, which is also in the attempt's log where that
        takes it."""
        memory = os.fdopen(os.memfd_create("stderr"), "w+b", buffering=0)  # the logs' file system may be full
        with memory as printed, self._open_log(name, "out") as out, self._open_log(name, "err") as error:
            try:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=printed)
            except OSError as problem:
                _add(error, f"{command[0]}: {problem.strerror}\n".encode())
                return ""
            launcher = Launcher(process, self._signals.pause)
            if not launcher.wait(timeout_s if timeout_s is not None else 1e9) and launcher.end(5.0):
                printed.write(f"rankwise: {name}: {command[0]} was killed after {timeout_s:.0f} s\n".encode())
            printed.seek(0)
            text = printed.read()
            _add(error, text)
        return text.decode(errors="replace")

    def _close(self, job_id: str, end: JobEnd, before: int | None = None) -> None:
        close_attempts(
            self._options.traces, self._options.logs, job_id, end, before=before, recover=self._recover, say=say,
            on_node=attempt_folders,
        )  # fmt: skip

    def _await_controller(self) -> None:
        """Waits while the controller is away: without it a launcher fails within a minute or two."""
        is_reported = False
        while not self._signals.last:
            steps = self._scheduler.steps(self._job)
            if not steps.silent:
                self._steps_before = steps.numbers
                return
            if not is_reported:
                say(f"waits for the controller: {steps.silent}")
                is_reported = True
            self._signals.sleep(5.0)

    def _await_preemption(self) -> None:
        """Waits until a preempted job is ended: only jobs that are still running are requeued."""
        now = self._scheduler.now(self._job)
        if now is not None and now.end is not None and now.end.state == "PREEMPTED":
            say(f"waits for {self._job.scheduler} to preempt this job")
            while self._signals.last == "SIGUSR1":
                self._signals.sleep(1.0)

    def _open_log(self, name: str, kind: str) -> BinaryIO:
        """The file for the attempt's output; the job's own output if the file cannot be opened after some tries."""
        path, opened = self._log(name, kind), list[BinaryIO]()
        if self._try_to_write(lambda: opened.append(path.open("ab", buffering=0))):
            return opened[0]
        say(f"what {name} prints comes here: {path} cannot be opened")
        return os.fdopen(os.dup(1 if kind == "out" else 2), "ab", buffering=0)

    def _log(self, name: str, kind: str) -> Path:
        return self._options.logs / f"{name}.{kind}"


def say(text: str) -> None:
    """Prints a line into the job's output."""
    print(f"rankwise {time.strftime('%F %T')}: {plain(text)}", flush=True)


def _add(log: BinaryIO, content: bytes) -> None:
    """Writes to a log of the attempt, as far as it takes it: a full disk must not end a measurement."""
    with suppress(OSError):
        log.write(content)


def end_with_parent() -> None:
    """Has the kernel send this process SIGTERM when its parent dies, so that it ends with it. There is no signal if the
    parent dies just before the call."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(Signals.SIGTERM))
