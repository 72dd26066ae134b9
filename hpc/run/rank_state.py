"""What a rank of a run is started with, and how it ends: its note, the end of all ranks, the limit of its time."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hpc.backends import InvalidRun
from hpc.measure.connections import ConnectionLost
from hpc.measure.world import LaunchError
from hpc.model.files import AttemptFiles, TracesFolder
from hpc.model.options import OptionError
from hpc.model.outcome import Outcome, RankNote, after
from hpc.model.spec import RunSpec
from hpc.model.verdict import is_secondary
from hpc.preflight.run import Expectations, Preflight
from hpc.recovery.folders import JournalError, in_attempt_folder
from hpc.recovery.journal import Journal
from hpc.recovery.stacks import Stacks
from hpc.system.host import began_ns
from hpc.system.job_facts import RANKS
from hpc.system.sanitize import exception_text, without_secrets

if TYPE_CHECKING:
    from hpc.measure.connections import Communicator
    from hpc.model.trace import RankReport


EXIT_STATUS = {Outcome.RANK_FAIL: 1, Outcome.INVALID: 3, Outcome.OOM: 4, Outcome.LAUNCH_FAIL: 5}
MAX_NOTES = 64
MAX_SECONDARY_NOTES = 16
"""The maximum of ranks that leave a note, and a lower one for ranks that failed because they lost another one."""
EXIT_LIMIT_S = 120.0
"""Time limit for a rank to end once the trace is written: backend, threads, exit handlers, MPI_Finalize."""
_RANK_0_ENDS_S = 5.0
_OTHERS_END_S = 20.0
"""After that limit, which has shown the stacks: when rank 0 is ended, and when those that its end has not ended."""
_RESERVED = 2
_MAX_TRACEBACK_CHARACTERS = 1 << 18
_T = TypeVar("_T")


class ScriptFailed(Exception):
    """A script did not end by itself with exit status 0; the text has how it ended."""

    known_to_all = False
    """Whether every rank knows of it and ends by itself."""


class ScriptOutOfMemory(ScriptFailed, MemoryError):
    """The script failed for want of memory, by its own exception."""


class OtherScriptFailed(Exception):
    """The script of another rank failed, which leaves the note; `status` is the exit status of all ranks."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class NothingMeasured(InvalidRun):
    """A script made no step that counts, on all ranks."""

    known_to_all = True


class ReservedFiles:
    """File descriptors that are free again after `release`: a note can be written where a rank has used up all."""

    def __init__(self) -> None:
        self._files = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(_RESERVED)]

    def release(self) -> None:
        """Frees them."""
        while self._files:
            os.close(self._files.pop())


def outcome_of(error: BaseException, training: bool) -> Outcome:
    """The outcome of an exception; `training` is whether the first step was reached."""
    names = {f"{kind.__module__}.{kind.__name__}" for kind in type(error).__mro__}
    if isinstance(error, InvalidRun | OptionError) or "hpc.model.clock_model.ClockError" in names:
        return Outcome.INVALID
    # torch raises OutOfMemoryError for its devices, and a RuntimeError with these words for the host.
    of_torch = any(name.startswith("torch.") and name.endswith(".OutOfMemoryError") for name in names)
    of_tensorflow = any(name.startswith("tensorflow.") and name.endswith(".ResourceExhaustedError") for name in names)
    of_torch_on_cpu = "DefaultCPUAllocator: can't allocate memory" in exception_text(error)
    if isinstance(error, MemoryError) or of_torch or of_tensorflow or of_torch_on_cpu:
        return Outcome.OOM
    return Outcome.RANK_FAIL if training else Outcome.LAUNCH_FAIL


def attempted(problems: dict[str, str], what: str, call: Callable[[], _T], otherwise: _T) -> _T:
    """The result of `call`. If it raises: `otherwise`, with the reason in `problems[what]` and on standard error.

    For optional parts of a trace. InvalidRun (the run differs from the requested one) is raised.
    """
    try:
        return call()
    except InvalidRun:
        raise
    except Exception as error:  # noqa: BLE001 - a workload's own objects may raise anything
        problems[what] = f"{type(error).__name__}: {without_secrets(exception_text(error))}"
        with suppress(Exception):  # a workload may have closed it
            print(f"{what}: {problems[what]}", file=sys.stderr, flush=True)
        return otherwise


def limit_exit(rank: int) -> None:
    """Ends this process soon after EXIT_LIMIT_S from now, with the stacks of all its threads on standard error.

    The trace is written by then. A backend, a thread or an exit handler that does not end would otherwise hold the run,
    and its job, for as long as the watchdog waits. The kernel ends the process, whoever holds the interpreter's lock;
    rank 0 first, because Open MPI's mpiexec may hang or crash where several ranks fail at the same moment.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, EXIT_LIMIT_S + (_RANK_0_ENDS_S if rank == 0 else _OTHERS_END_S))
    with suppress(Exception):  # standard error may be no file
        faulthandler.dump_traceback_later(EXIT_LIMIT_S)


_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PALS_RANKID", *RANKS)  # a job script has the scheduler's, too


@dataclass(frozen=True, kw_only=True)
class RankArguments:
    """The arguments of the command line. `run` and `script` are None where no sweep planned the run; `claim` takes a
    number in the traces for another run than was begun, and returns that run and its attempt. `script_arguments` are
    those of a script where the run has them without secrets. `cpus_decided`: nobody requested the run's
    `cpus_per_rank`, which a launcher or the machine decided."""

    run: Path | None
    attempt: int
    traces: Path
    script: Path | None
    simulate_nodes: bool
    copy_s: float = 10.0
    expectations: Expectations = field(default_factory=Expectations)
    claim: Callable[[RunSpec], tuple[RunSpec, int]] | None = None
    script_arguments: Sequence[str] | None = None
    cpus_decided: bool = False


class Rank:
    """The state of this rank that a failure reports, filled as the run goes on."""

    def __init__(self, arguments: RankArguments, run: RunSpec) -> None:
        self.arguments, self.run = arguments, run
        self.folder = TracesFolder.of(AttemptFiles(arguments.traces, run.run_id, arguments.attempt))
        self.number = _from_environment(_RANKS) or 0
        self.comm: Communicator | None = None  # once all requested ranks are known to be present
        self.journal: Journal | None = None
        self.stacks: Stacks | None = None
        self.preflight = Preflight(run, arguments.expectations)
        self.training = False
        self.script = ""
        self.problems: dict[str, str] = {}
        self.moments: dict[str, int] = {}
        if (process_ns := began_ns()) is not None:
            self.moments["process_ns"] = process_ns

    def pass_moment(self, name: str, report: RankReport, at_ns: int | None = None) -> RankReport:
        """The report with this moment, by default now, and those before it."""
        self.moments[name] = time.perf_counter_ns() if at_ns is None else at_ns
        return replace(report, moments=dict(self.moments))

    def fail(self, error: BaseException) -> int:
        """Reports that this rank fails and ends all ranks of the run; returns the exit status where there is no `comm`
        or all ranks end by themselves: MPI's banner would hide the script's own error."""
        known_to_all = getattr(error, "known_to_all", False)
        status = EXIT_STATUS[Outcome.RANK_FAIL]
        try:
            status = EXIT_STATUS[outcome_of(error, self.training)]
            self.report(error)
            sys.stdout.flush()
        except Exception:  # noqa: BLE001 - whatever else goes wrong, the other ranks must not wait for this one
            traceback.print_exc()
        finally:
            if self.comm is not None and not known_to_all:
                self.comm.Abort(status)
        if known_to_all:
            limit_exit(self.number)
        return status

    def report(self, error: BaseException) -> None:
        """Leaves the note, then shows the traceback on standard error."""
        outcome = outcome_of(error, self.training)
        step = -1 if self.journal is None else self.journal.steps_completed + self.journal.unmeasured[0] - 1
        self._leave_note(
            RankNote(
                rank=self.number,
                outcome=outcome,
                exception=type(error).__name__,
                message=exception_text(error),
                step=step,
                hostname=socket.gethostname(),
                local_copies=getattr(error, "local_copy", ""),  # gather.TraceKept: importing it here would load numpy
            )
        )
        if isinstance(error, NothingMeasured) and self.number != 0:
            return  # all ranks raise it, with the same text
        with suppress(Exception):
            for line in self.preflight.nccl_warnings():
                print(without_secrets(line), file=sys.stderr)
        if isinstance(error, InvalidRun | LaunchError | JournalError | ScriptFailed | ConnectionLost):
            text = f"rank {self.number}: {outcome}: {without_secrets(exception_text(error))}"
        else:
            shown = without_secrets("".join(traceback.format_exception(error))[-_MAX_TRACEBACK_CHARACTERS:])
            text = f"{shown}rank {self.number}: {outcome} {after(step)}"
        print(text, file=sys.stderr, flush=True)

    def _leave_note(self, note: RankNote) -> None:
        """Leaves the note in the traces folder; where that cannot be written, on this node, where `collect` finds it.

        Ranks that lost this one leave theirs too, maybe earlier: hpc.model.verdict separates causes from consequences.
        """
        path, stem = self.folder.path, self.folder.stem
        try:
            self.folder.require()
            before = len(AttemptFiles.of_stem(path, stem).rank_notes())
            if before < (MAX_SECONDARY_NOTES if is_secondary(note) else MAX_NOTES):
                replace(note, notes_before=before).write(path, stem)
        except OSError as error:
            print(f"no note can be left in {path}: {error}", file=sys.stderr, flush=True)
            with suppress(JournalError):  # the same words are on standard error
                in_attempt_folder(path, stem, "a note", lambda local: note.write(local, stem))


def _from_environment(names: Sequence[str]) -> int | None:
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), None)
