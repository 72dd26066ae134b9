"""What every rank of a run does: `python -m hpc.rank RUN.json --attempt N --traces DIR --script FILE`.

The job script has a launcher start it. Either rank 0 leaves a trace and all ranks end with 0, or the first rank that
fails leaves a note that says why, and takes all others with it.

Exit status 0: the trace is written; 1: rank_fail; 2: usage; 3: invalid; 4: oom; 5: launch_fail (docs/outcomes.md).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from hpc.backends import (
    BACKENDS,
    Backend,
    InvalidRun,
    load_backend,
    load_collectives,
    missing_modules,
)
from hpc.backends.refusals import refusal
from hpc.measure.connections import Connections
from hpc.measure.world import LaunchError, World, mpi_library, start_mpi, world_of
from hpc.model.files import AttemptFiles, TracesFolder
from hpc.model.outcome import Outcome
from hpc.model.spec import COLLECTIVES, RunSpec, SpecError
from hpc.preflight.run import add_arguments, read_expectations
from hpc.recovery.folders import attempt_folder
from hpc.recovery.journal import Journal
from hpc.recovery.stacks import Stacks
from hpc.run.rank_state import (
    EXIT_STATUS,
    OtherScriptFailed,
    Rank,
    RankArguments,
    ReservedFiles,
    attempted,
    limit_exit,
)
from hpc.system import removed
from hpc.system.regular_file import parse_json, read_text, read_whole
from hpc.system.sanitize import deny_world_writing, without_secrets
from hpc.workloads import code_digest, is_user_code, load_factory
from hpc.workloads.user_code import files_newer_than

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from hpc.measure.connections import Communicator
    from hpc.measure.timer import StepTimer
    from hpc.model.trace import RankReport
    from hpc.node_agent.agent import NodeAgent
    from hpc.run.train import WholeTraining

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of `python -m hpc.rank`."""
    arguments = _arguments(argv)
    assert arguments.run is not None
    deny_world_writing()
    try:
        run = RunSpec.from_json(parse_json(read_whole(arguments.run)))
    except (OSError, ValueError, SpecError) as error:
        print(f"{arguments.run}: no run to be read here: {error}", file=sys.stderr)
        return EXIT_STATUS[Outcome.LAUNCH_FAIL]
    set_threads(run)
    import numpy  # noqa: F401 - one that is broken is named in one line, before ranks meet

    return run_ranks(arguments, run)


def run_ranks(arguments: RankArguments, run: RunSpec, comm: Communicator | None = None) -> int:
    """Runs this rank and returns the exit status of its process, -N where signal N is to end it as it has ended its
    script. Collective; a failure ends all ranks.

    `comm` connects them, by default MPI.
    """
    reserved = ReservedFiles()
    rank = Rank(arguments, run)
    if comm is not None:
        rank.number = comm.rank
    try:
        rank.folder = TracesFolder.at_start(arguments.traces, rank.folder.stem)
        rank.stacks = Stacks(arguments.traces, rank.folder.stem, rank.number)
        world = _join(rank, comm)
        if run.is_script:
            return _run_script(rank, world)
        _run(rank, world)
    except OtherScriptFailed as error:
        limit_exit(rank.number)
        return error.status
    except BaseException as error:  # noqa: BLE001 - whatever a workload raises must end all ranks, with a note
        reserved.release()
        return rank.fail(error)
    return 0


def _join(rank: Rank, comm: Communicator | None) -> World:
    """Joins the other ranks, and checks that run and ranks are as requested; loads no framework."""
    arguments, run = rank.arguments, rank.run
    wrong_environment = _wrong_environment(run)
    set_threads(run)
    comm = start_mpi() if comm is None else comm
    assert rank.stacks is not None
    rank.stacks.catch_crashes()
    rank.number = comm.rank
    rank.preflight.started(comm.size, mpi_library(comm))
    rank.preflight.demand()
    rank.comm = comm
    if wrong_environment:
        raise InvalidRun(wrong_environment)
    if instead := removed.BACKENDS.get(run.backend):
        raise InvalidRun(f"backend {run.backend} is gone: {instead}")
    world = world_of(comm, run.ranks_per_node if arguments.simulate_nodes else None)
    rank.preflight.met(comm, world)
    rank.preflight.demand()
    if reason := refusal(run):
        raise InvalidRun(f"backend {run.backend}: {reason}")
    _check_code(run, arguments.run)
    if comm.rank == 0 and arguments.script is not None:
        rank.script = attempted(rank.problems, "script", partial(_script_text, arguments.script), "")
    rank.preflight.enable_nccl_log(attempt_folder(arguments.traces, rank.folder.stem))
    return world


def _run_script(rank: Rank, world: World) -> int:
    from hpc.run.script import ScriptRun

    assert rank.comm is not None
    return ScriptRun(rank, world, _report(rank.comm, world, {})).measure()


def _run(rank: Rank, world: World) -> None:
    """The whole run on this rank, from MPI to the trace."""
    arguments, run, comm = rank.arguments, rank.run, rank.comm
    assert comm is not None
    assert not isinstance(comm, Connections)  # frameworks start by MPI
    # From here on numpy and the framework are loaded: the threads are set.
    from hpc.measure.clock import GlobalClock
    from hpc.model.trace_file import load_hdf5
    from hpc.node_agent.agent import sample, start_agent
    from hpc.run.gather import RankPayload, write_gathered
    from hpc.run.train import train

    backend = _imported(rank)
    backend.join(run, world, comm)
    workloads: list[Any] = []

    def factory(*args: Any) -> Any:
        workloads.append(_factory(run)(*args))
        return workloads[-1]

    backend.build(factory)
    if comm.rank == 0:
        load_hdf5()
    whole = _whole_training(rank, comm, backend, workloads[0]) if run.epochs else None
    journal = rank.journal = _make_journal(rank, whole)
    clock = GlobalClock(comm)
    report = replace(_report(comm, world, backend.describe().as_json()), input=_input_facts(workloads[0]))
    if journal.passed_over:
        report = replace(report, journal={"folder": str(journal.folder), "passed_over": journal.passed_over})
    preflight = rank.preflight
    report = preflight.built(comm, report)

    def note() -> None:
        journal.note(run=run.to_json(), attempt=arguments.attempt, facts=report.as_json(), clock=clock.facts)

    def synchronise() -> None:
        nonlocal report
        sample(agent)  # a block has ended
        if len(clock.points) == 1:  # the steps before the window were made: NCCL has connected
            report = preflight.stepped(comm, report)
        clock.synchronise()
        sample(agent)
        attempted(rank.problems, "the journal's latest clock", note, None)

    timer = _make_timer(backend, run, journal)
    note()
    partial_folder = AttemptFiles(arguments.traces, run.run_id, arguments.attempt).partial
    agent = start_agent(comm, world, run, report.gpu_uuids, journal.folder, partial_folder, arguments.copy_s)
    comm.Barrier()
    rank.training, report = True, rank.pass_moment("built_ns", report)
    if whole is None:
        train(backend, run, timer, journal.samples, synchronise)
    history = None if whole is None else whole.train(timer, journal, synchronise)
    report = attempted(rank.problems, "preflight", lambda: preflight.stepped(comm, report), report)
    payload = RankPayload(
        journal=journal, clock=clock, losses=backend.losses,
        report=replace(rank.pass_moment("ended_ns", report), stamp_bound_ns=timer.bound_ns),
        workload=workloads[0], meetings=backend.meetings(), agent=agent, problems=rank.problems, history=history,
        steps=run.steps, blocks=run.blocks,
    )  # fmt: skip
    write_gathered(comm, run, arguments.attempt, payload, rank.folder, rank.script)
    limit_exit(comm.rank)
    _leave(whole, backend, journal, agent)


def _imported(rank: Rank) -> Backend:
    rank.moments["met_ns"] = perf_counter_ns()
    backend = (load_collectives if rank.run.diagnostic == COLLECTIVES else load_backend)(rank.run.backend)
    rank.moments["imported_ns"] = perf_counter_ns()
    return backend


def _leave(whole: WholeTraining | None, backend: Backend, journal: Journal, agent: NodeAgent | None) -> None:
    """Removes what the written trace makes needless; a failure is one line on standard error."""
    last = {
        "removing the checkpoints": None if whole is None else whole.remove_checkpoints,
        "leaving the group of ranks": backend.leave,
        "removing the journal": journal.remove,
        "removing the copies": None if agent is None else agent.end,
    }
    for what, call in last.items():
        if call is not None:
            attempted({}, what, call, None)


def _whole_training(rank: Rank, comm: Intracomm, backend: Backend, workload: Any) -> WholeTraining:
    """The run as a whole training, on the images that the workload reads."""
    from hpc.run.train import Input, WholeTraining

    facts = workload.reader.record.facts
    listings = facts["listing_sha256"], facts["evaluation_listing_sha256"]
    data = Input(
        steps_per_epoch=workload.reader.steps_per_epoch,
        samples_per_epoch=facts["images"],
        evaluation_samples=workload.reader.evaluation_images,
        images_sha256=hashlib.sha256("".join(listings).encode()).hexdigest(),
    )
    return WholeTraining(comm, rank.run, rank.folder, backend, data, rank.problems)


def _make_journal(rank: Rank, whole: WholeTraining | None) -> Journal:
    arguments, unmeasured = rank.arguments, 0 if whole is None else whole.unmeasured_steps
    return Journal(arguments.traces, rank.folder.stem, rank.number, rank.run.steps, unmeasured=unmeasured)


def _make_timer(backend: Backend, run: RunSpec, journal: Journal) -> StepTimer:
    """The backend's, which records into the journal, and its meetings into these."""
    timer = backend.make_timer(run.steps)
    timer.record_into(journal.stamps)
    if (meetings := backend.meetings()) is not None:
        timer.record_meetings(meetings)
    return timer


def _arguments(argv: Sequence[str] | None) -> RankArguments:
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
    values = vars(parser.parse_args(argv))
    expectations = read_expectations(values, parser)
    return RankArguments(**values, expectations=expectations)


def _wrong_environment(run: RunSpec) -> str:
    wrong = [
        f"{name} should be {value!r} and is {os.environ.get(name, 'not set')!r}"
        for name, value in run.env.items()
        # prterun keeps its own settings to itself.
        if os.environ.get(name) != value and not name.startswith("PRTE_")
    ]
    return "" if not wrong else f"the environment is not the run's: {'; '.join(wrong)}; start it by its job script"


def set_threads(run: RunSpec) -> None:
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


def _report(comm: Communicator, world: World, described: dict[str, Any]) -> RankReport:
    from hpc.model.trace import RankReport
    from hpc.system.environment import describe_host, describe_software, describe_variables

    library = mpi_library(comm)
    mpi = {"mpi": library} if library else {}
    return RankReport.from_json(
        {
            **asdict(world),
            **describe_host(),
            "device": described.pop("device", {}),
            "software": {**describe_software(), **mpi, **described.pop("versions", {})},
            "connections": "mpi" if mpi else "tcp",
            "variables": describe_variables(os.environ),
            "backend": described,
        }
    )


def _input_facts(workload: Any) -> Mapping[str, Any] | None:
    """How the workload reads files; None where it reads none."""
    from hpc.measure.meetings import input_record_of

    record = input_record_of(workload)
    return None if record is None else record.facts


def _script_text(path: Path) -> str:
    return without_secrets(read_text(path, errors="replace"))


if __name__ == "__main__":
    sys.exit(main())
