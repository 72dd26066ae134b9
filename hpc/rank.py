"""What every rank of a run does: `python -m hpc.rank RUN.json --attempt N --traces DIR --script FILE`.

The job script has a launcher start it. Either rank 0 leaves a trace and all ranks end with 0, or the first rank that
fails leaves a note that says why, and takes all others with it.

Exit status 0: the trace is written; 1: rank_fail; 2: usage; 3: invalid; 4: oom; 5: launch_fail (docs/outcomes.md).
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc.backends import BACKENDS, Backend, InvalidRun, load_backend, load_collectives, missing_modules
from hpc.journal.file import Journal
from hpc.journal.folders import JournalError, attempt_folder
from hpc.options import OptionError
from hpc.outcome import Outcome, RankNote, after, stem
from hpc.outside import deny_world_writing, without_secrets
from hpc.preflight.run import Preflight, Promises, add_arguments, read_promises
from hpc.settings import options_of_run
from hpc.spec import COLLECTIVES, RunSpec, SpecError
from hpc.watchdog.stacks import Stacks
from hpc.workloads import code_digest, is_user_code, load_factory
from hpc.workloads.user_code import files_newer_than
from hpc.world import LaunchError, World, mpi_library, start_mpi, world_from_mpi

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.clock import GlobalClock

EXIT_STATUS = {Outcome.RANK_FAIL: 1, Outcome.INVALID: 3, Outcome.OOM: 4, Outcome.LAUNCH_FAIL: 5}
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PALS_RANKID", "SLURM_PROCID")  # a script has SLURM_PROCID, too


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The command line. `run` and `script` are None where no sweep has planned what the ranks do."""

    run: Path | None
    attempt: int
    traces: Path
    script: Path | None
    simulate_nodes: bool
    copy_s: float = 10.0
    promises: Promises = field(default_factory=Promises)


class Rank:
    """How far this rank has come: what a failure needs to know, filled as the run goes on."""

    def __init__(self, asked: Asked, run: RunSpec) -> None:
        self.asked, self.run = asked, run
        self.stem = stem(run.run_id, asked.attempt)
        self.number = _from_environment(_RANKS) or 0
        self.comm: Intracomm | None = None  # once all ranks asked for are known to be there
        self.journal: Journal | None = None
        self.stacks: Stacks | None = None
        self.preflight = Preflight(run, asked.promises)
        self.training = False

    @property
    def last_step(self) -> int:
        """The last step that this rank completed; -1 before the first."""
        return -1 if self.journal is None else self.journal.steps_completed - 1

    def fail(self, error: BaseException) -> int:
        """Leaves a note, shows the traceback, ends all ranks of the run; returns the exit status if still here."""
        outcome = outcome_of(error, self.training)
        note = RankNote(
            rank=self.number,
            outcome=outcome,
            exception=type(error).__name__,
            message=str(error),
            step=self.last_step,
            hostname=socket.gethostname(),
            kept=getattr(error, "kept", ""),  # of gather.TraceKept, which only ranks that came so far have loaded
        )
        self._leave(note)
        for line in self.preflight.nccl_warnings():
            print(without_secrets(line), file=sys.stderr)
        if isinstance(error, InvalidRun | LaunchError):
            print(f"rank {self.number}: {outcome}: {without_secrets(str(error))}", file=sys.stderr, flush=True)
        else:
            print(without_secrets("".join(traceback.format_exception(error))), end="", file=sys.stderr)
            print(f"rank {self.number}: {outcome} {after(self.last_step)}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        status = EXIT_STATUS[outcome]
        if self.comm is not None:
            self.comm.Abort(status)
        return status

    def _leave(self, note: RankNote) -> None:
        """Leaves the note with the traces; where these cannot be written, on this node, from where `collect` brings it.

        Ranks whose peer is gone fail too, a little later: the cause is in the note that was there first.
        """
        try:
            if not any(self.asked.traces.glob(f"{escape(self.stem)}.rank*.json")):
                note.write(self.asked.traces, self.stem)
        except OSError as error:
            print(f"no note can be left in {self.asked.traces}: {error}", file=sys.stderr, flush=True)
            with suppress(OSError, JournalError):  # the same words are on standard error
                note.write(attempt_folder(self.asked.traces, self.stem), self.stem)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of `python -m hpc.rank`."""
    asked = _arguments(argv)
    assert asked.run is not None
    deny_world_writing()
    try:
        run = RunSpec.from_json(json.loads(asked.run.read_text()))
    except (OSError, ValueError, SpecError) as error:
        print(f"{asked.run}: no run to be read here: {error}", file=sys.stderr)
        return EXIT_STATUS[Outcome.LAUNCH_FAIL]
    return run_ranks(asked, run)


def run_ranks(asked: Asked, run: RunSpec) -> int:
    """The run on this rank, collective with all others; the exit status of its process. What fails ends all ranks."""
    rank = Rank(asked, run)
    try:
        rank.stacks = Stacks(asked.traces, rank.stem, rank.number)
        _run(rank)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a workload raises must end all ranks, with a note
        return rank.fail(error)
    return 0


def outcome_of(error: BaseException, training: bool) -> Outcome:
    """The outcome that an exception stands for; `training` says whether the first step was reached."""
    names = {f"{kind.__module__}.{kind.__name__}" for kind in type(error).__mro__}
    if isinstance(error, InvalidRun | OptionError) or "hpc.clock_model.ClockError" in names:
        return Outcome.INVALID
    # torch says OutOfMemoryError of its devices, and of the host a RuntimeError with these words.
    of_torch = any(name.startswith("torch.") and name.endswith(".OutOfMemoryError") for name in names)
    of_tensorflow = any(name.startswith("tensorflow.") and name.endswith(".ResourceExhaustedError") for name in names)
    its_words = "DefaultCPUAllocator: can't allocate memory" in str(error)
    if isinstance(error, MemoryError) or of_torch or of_tensorflow or its_words:
        return Outcome.OOM
    return Outcome.RANK_FAIL if training else Outcome.LAUNCH_FAIL


def _join(rank: Rank) -> World:
    """Joins the other ranks, and checks that run and ranks are what was asked; loads no framework."""
    asked, run = rank.asked, rank.run
    wrong_environment = _wrong_environment(run)
    _set_threads(run)
    comm = start_mpi()
    assert rank.stacks is not None
    rank.stacks.catch_crashes()
    rank.number = comm.rank
    rank.preflight.started(comm.size, mpi_library())
    rank.preflight.demand()
    rank.comm = comm
    if wrong_environment:
        raise InvalidRun(wrong_environment)
    world = world_from_mpi(comm, run.ranks_per_node if asked.simulate_nodes else None)
    rank.preflight.met(comm, world)
    rank.preflight.demand()
    options_of_run(run)
    _check_code(run, asked.run)
    rank.preflight.let_nccl_tell(attempt_folder(asked.traces, rank.stem))
    return world


def _run(rank: Rank) -> None:
    """The whole run on this rank, from MPI to the trace."""
    world = _join(rank)
    asked, run, comm = rank.asked, rank.run, rank.comm
    assert comm is not None
    # From here on numpy and the framework are loaded: the threads are set.
    from hpc.clock import GlobalClock
    from hpc.gather import Own, write_gathered
    from hpc.journal.copying import start_copier
    from hpc.telemetry.nodes import start_telemetry
    from hpc.train import train

    backend = (load_collectives if run.probe == COLLECTIVES else load_backend)(run.backend)
    backend.join(run, world, comm)
    workloads: list[Any] = []

    def factory(*args: Any) -> Any:
        workloads.append(_factory(run)(*args))
        return workloads[-1]

    backend.build(factory)
    journal = rank.journal = Journal(asked.traces, rank.stem, world.rank, run.steps)
    clock = GlobalClock(comm)
    facts = _facts(world, backend)
    preflight = rank.preflight
    preflight.built(comm, facts)
    recorder = start_telemetry(comm, world, run, facts)

    def note() -> None:
        journal.note(run=run.to_json(), attempt=asked.attempt, facts=facts, clock=_clock_facts(clock))

    def synchronise() -> None:
        if len(clock.points) == 1:  # the steps before the window were made: NCCL has connected
            preflight.stepped(comm, facts)
        clock.synchronise()
        note()

    marks = backend.make_marks(run.steps)
    marks.record_into(journal.stamps)
    note()
    copier = start_copier(comm, world, journal.folder, asked.traces, rank.stem, asked.copy_s)
    comm.Barrier()
    rank.training = True
    blocks = train(backend, run, marks, journal.samples, synchronise)
    preflight.stepped(comm, facts)
    facts["stamp_bound_ns"] = marks.bound_ns
    if copier is not None:
        facts["copies"] = copier.facts()
    own = Own(
        journal=journal,
        clock=clock,
        losses=backend.losses(),
        injected_ns=getattr(workloads[0], "injected_ns", None),
        facts=facts,
        recording=None if recorder is None else recorder.stop(),
    )
    write_gathered(comm, run, asked.attempt, blocks, own, asked.traces / f"{rank.stem}.h5", asked.script)
    backend.leave()
    journal.remove()
    if copier is not None:
        copier.end()


def _arguments(argv: Sequence[str] | None) -> Asked:
    parser = argparse.ArgumentParser(
        prog="python -m hpc.rank", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN.json", help="the run's description")
    parser.add_argument("--attempt", type=int, required=True, metavar="N", help="number of this attempt, from 1")
    parser.add_argument("--traces", type=Path, required=True, metavar="DIR", help="folder of the traces and records")
    parser.add_argument("--script", type=Path, required=True, metavar="FILE", help="the job script, kept in the trace")
    parser.add_argument(
        "--copy-s", type=float, default=10.0, metavar="S",
        help="seconds between copies of the stamps to the traces (%(default)g); 0: none",
    )  # fmt: skip
    parser.add_argument("--simulate-nodes", action="store_true", help="nodes are groups of ranks on one machine")
    add_arguments(parser)
    told = vars(parser.parse_args(argv))
    promises = read_promises(told.pop("expect_transport"), told.pop("check"), parser)
    return Asked(**told, promises=promises)


def _wrong_environment(run: RunSpec) -> str:
    wrong = [
        f"{name} should be {value!r} and is {os.environ.get(name, 'not set')!r}"
        for name, value in run.env.items()
        # prterun keeps its own settings to itself.
        if os.environ.get(name) != value and not name.startswith("PRTE_")
    ]
    return "" if not wrong else f"the environment is not the run's: {'; '.join(wrong)}; start it by its job script"


def _set_threads(run: RunSpec) -> None:
    """Threads per rank are `cpus_per_rank` in every library, unless the run itself sets the variable."""
    for name in THREAD_VARIABLES:
        if name not in run.env:
            os.environ[name] = str(run.cpus_per_rank)


def _check_code(run: RunSpec, run_file: Path | None) -> None:
    """Raises InvalidRun where the workload's code has changed, LaunchError where the backend's modules are missing."""
    try:
        digest = code_digest(run.workload)
        since_s = None if run_file is None else run_file.stat().st_mtime
        changed = [] if digest == run.code_digest or since_s is None else files_newer_than(run.workload, since_s)
    except (OSError, SpecError) as error:
        raise InvalidRun(f"{run.workload} is not the file that was planned: {error}") from None
    if digest != run.code_digest:
        written = f" (written since the run was planned: {', '.join(changed)})" if changed else ""
        raise InvalidRun(
            f"{run.workload} is not the file that was planned, or what it imports from its folder is not{written}: the "
            f"digest was {run.code_digest} and is {digest}; plan again, and it is another workload"
        )
    if missing := missing_modules(run.backend):
        raise LaunchError(f"backend {run.backend} cannot run on {socket.gethostname()}: {'; '.join(missing)}")


def _factory(run: RunSpec) -> Any:
    """Loads the workload only where the backend wants it: after its devices and threads are set."""
    if is_user_code(run.workload):
        sys.path.insert(0, str(Path(run.workload.partition(":")[0]).resolve().parent))
    return load_factory(run.workload, BACKENDS[run.backend].framework)


def _facts(world: World, backend: Backend) -> dict[str, Any]:
    """What this rank's entry in the trace is made of."""
    from hpc.environment import describe_host, describe_software, describe_variables

    described = backend.describe()
    return {
        **asdict(world),
        **describe_host(),
        "device": described.pop("device", {}),
        "software": {**describe_software(), "mpi": mpi_library(), **described.pop("versions", {})},
        "variables": describe_variables(os.environ),
        "backend": described,
    }


def _clock_facts(clock: GlobalClock) -> dict[str, Any]:
    return {
        "domain": clock.domain,
        "points": [[point.local_ns, point.offset_ns, point.bound_ns] for point in clock.points],
        "barrier_exits_ns": clock.barrier_exits_ns,
    }


def _from_environment(names: Sequence[str]) -> int | None:
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), None)


if __name__ == "__main__":
    sys.exit(main())
