"""A run without a plan: the ranks that a person started agree on it, and make it."""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc.measure.connections import ConnectionLost
from hpc.measure.world import LaunchError, world_of
from hpc.model.files import AttemptFiles
from hpc.model.options import OptionError
from hpc.model.outcome import BeginRecord, Outcome, RecordError, read_begin_record, read_own_record
from hpc.model.output_option import OutputFolder
from hpc.model.spec import RunSpec, SpecError, check_settings
from hpc.preflight.run import Expectations, add_arguments
from hpc.rank import run_ranks, set_threads
from hpc.run.rank_state import EXIT_STATUS, RankArguments
from hpc.run.rendezvous import TORCHRUN
from hpc.system.command_line import called
from hpc.system.gpus import gpus_of_kernel
from hpc.system.job_facts import scheduled_job

if TYPE_CHECKING:
    from hpc.measure.connections import Communicator

_PROCESS = re.compile(r"local-(?P<host>.+)-(?P<pid>\d+)-0")
"""The job of a launch that no job script made: its rank 0 (launch.scheduler.local reads these, too)."""


def add_launch_options(
    parser: argparse.ArgumentParser, *, cpus: str, env: str, about: str | None = None, container: bool = False
) -> argparse._ArgumentGroup:
    """Adds what a launch by hand is measured on, and where it goes; returns the group of the latter. `cpus` is
    what --cpus-per-rank is by default, `env` what a variable is a part of."""
    add = parser.add_argument_group("what it is measured on", about).add_argument
    add("--gpus-per-node", metavar="N", type=int,
        help="0 runs on CPUs (default: one for each rank where there are any)")  # fmt: skip
    add("--cpus-per-rank", metavar="N", type=int, help=f"threads of each rank (default{cpus})")
    add("--site", metavar="NAME", help="name of the cluster (default: the scheduler's, else local)")
    if container:
        add("--container", metavar="IMAGE", default="", help="image that the ranks run in, where they do")
    add("--env", metavar="NAME", action="append", default=[],
        help=f"a variable of this launch that is a part of {env}, as NCCL_ALGO")  # fmt: skip
    add("--simulate-nodes", metavar="N", type=int, default=0, help="take the ranks of one machine for those of N nodes")
    add_arguments(parser)
    where = parser.add_argument_group("where it goes")
    add = where.add_argument
    add("--traces", action=OutputFolder, metavar="DIR", type=Path, default=Path("traces"),
        help="folder of the trace (default traces)")  # fmt: skip
    add("--repeat", metavar="N", type=int,
        help="make run N of this point, as a further attempt where it was made before (default: the first that is "
        "neither measured nor running, so that each launch is a run of its own)")  # fmt: skip
    return where


def run_by_hand(
    program: str, connect: Callable[[], Communicator], make_run: Callable[[Communicator], RunSpec],
    options: argparse.Namespace, expectations: Expectations, script_arguments: Sequence[str] | None = None,
) -> tuple[int, Path | None]:  # fmt: skip
    """Connects the ranks, has them agree on a run and make it; the exit status of this one, and on rank 0 the trace
    where there is one. A script gets `script_arguments`: those of the run without what looks like a secret. Collective.
    """
    try:
        comm = connect()
    except LaunchError as error:
        print(f"{called(program)}: {error}", file=sys.stderr)
        return EXIT_STATUS[Outcome.LAUNCH_FAIL], None
    try:
        run = _agreed(comm, partial(make_run, comm))
        run, attempt = _claimed(options.traces, run, options.repeat, comm)
    except (SpecError, LaunchError) as error:  # on all ranks alike
        if comm.rank == 0:
            print(f"{called(program)}: {error}", file=sys.stderr)
        return EXIT_STATUS[Outcome.LAUNCH_FAIL] if isinstance(error, LaunchError) else 2, None
    except ConnectionLost as error:
        print(f"{called(program)}: {error}", file=sys.stderr)
        comm.Abort(EXIT_STATUS[Outcome.LAUNCH_FAIL])
    except BaseException:
        traceback.print_exc()
        comm.Abort(EXIT_STATUS[Outcome.RANK_FAIL])  # the other ranks wait for this one
        raise
    files = AttemptFiles(options.traces, run.run_id, attempt)

    def claim_other(other: RunSpec) -> tuple[RunSpec, int]:
        nonlocal files
        run, number = _taken(options.traces, other, options.repeat)
        files.begin_record.unlink(missing_ok=True)
        files = AttemptFiles(options.traces, run.run_id, number)
        return run, number

    arguments = RankArguments(
        run=None, attempt=attempt, traces=options.traces, script=None, simulate_nodes=options.simulate_nodes > 0,
        expectations=expectations, claim=claim_other, script_arguments=script_arguments,
        cpus_decided=vars(options).get("cpus_decided", False),
    )  # fmt: skip
    status = run_ranks(arguments, run, comm)
    return status, files.trace if comm.rank == 0 and files.trace.exists() else None


def _agreed(comm: Communicator, make_run: Callable[[], RunSpec]) -> RunSpec:
    """The run of this launch. Collective; raises SpecError on all ranks where any rank cannot take part."""
    run, problem = None, ""
    try:
        run = make_run()
    except (SpecError, OptionError) as error:
        problem = str(error)
    reasons: list[str] = comm.allgather(problem)
    if any(reasons):
        rank = next(rank for rank, reason in enumerate(reasons) if reason)
        raise SpecError(reasons[rank] if all(reasons) else f"rank {rank}: {reasons[rank]}")
    assert run is not None
    return run


def place(options: argparse.Namespace, comm: Communicator) -> dict[str, Any]:
    """Where the run is, as fields of its specification. Collective. Raises SpecError where nodes differ in their
    ranks."""
    nodes, ranks_per_node = _layout(options.simulate_nodes, comm)
    gpus = options.gpus_per_node
    if gpus is None:
        gpus = ranks_per_node if min(comm.allgather(gpus_of_kernel() or 0)) else 0
    job = scheduled_job()
    site = options.site or (job and job.cluster) or "local"
    return {"nodes": nodes, "ranks_per_node": ranks_per_node, "gpus_per_node": gpus, "site": site}


def _layout(simulated_nodes: int, comm: Communicator) -> tuple[int, int]:
    """The nodes, and the ranks on each."""
    if simulated_nodes:
        if comm.size % simulated_nodes:
            raise SpecError(f"{comm.size} ranks do not make {simulated_nodes} nodes of equal size")
        return simulated_nodes, comm.size // simulated_nodes
    world = world_of(comm)
    sizes = sorted(set(comm.allgather(world.local_size)))
    if len(sizes) > 1:
        raise SpecError(
            f"nodes have {' and '.join(map(str, sizes))} ranks: give each as many (srun --ntasks-per-node, mpiexec "
            "--map-by ppr:N:node)"
        )
    return world.nodes, sizes[0]


def variables(names: Sequence[str]) -> dict[str, str]:
    """These variables of the launch. Raises SpecError where one is not set, or looks like a secret."""
    if missing := [name for name in names if name not in os.environ]:
        raise SpecError(f"--env {', '.join(missing)}: not set here; set it for the launcher, and name it only")
    check_settings("--env", {name: [os.environ[name]] for name in names}, "leave it out of --env, the ranks inherit it")
    return {name: os.environ[name] for name in names}


def claim(traces: Path, run: RunSpec, here: BeginRecord, repeat: int | None = None) -> BeginRecord:
    """Takes the number of this launch in the folder, and returns the begin record that holds it.

    A launch makes the first repeat of its point that is neither measured nor running: a new attempt of one that did not
    end ok, else a new repeat. `here` describes the launch, `repeat` requests a number. Raises OSError where the folder
    cannot be written.
    """
    traces.mkdir(parents=True, exist_ok=True)
    lost: dict[int, int] = {}
    while True:
        attempts = _attempts(traces, run.point_id)
        pending = (n for n in count(1) if n not in lost and _is_pending(traces, run.repeated(n), attempts[n], here))
        number = next(pending) if repeat is None else repeat
        attempt = max({*attempts[number], lost.get(number, 0)}, default=0) + 1
        record = replace(here, run_id=run.repeated(number).run_id, attempt=attempt)
        if record.take(traces):
            return record
        lost[number] = attempt  # to another launch, which begins at this moment


def _attempts(traces: Path, point_id: str) -> Mapping[int, set[int]]:
    """The attempts of each repeat of the point that have any file in the folder."""
    name = re.compile(rf"{re.escape(point_id)}_r(\d+)\.(\d+)\..+")
    attempts: dict[int, set[int]] = defaultdict(set)
    for path in traces.iterdir():
        if match := name.fullmatch(path.name):
            attempts[int(match[1])].add(int(match[2]))
    return attempts


def _is_pending(traces: Path, run: RunSpec, attempts: Collection[int], here: BeginRecord) -> bool:
    """Whether none of these attempts of the run has ended ok, or may be running."""
    return all(_has_failed(AttemptFiles(traces, run.run_id, number), here) for number in attempts)


def _has_failed(files: AttemptFiles, here: BeginRecord) -> bool:
    """Whether the attempt has ended, and not ok. False where that cannot be known: it is not attempted again then."""
    from hpc.model.trace import TraceError
    from hpc.model.trace_file import open_trace

    try:
        if files.trace.exists():
            with open_trace(files.trace) as trace:
                return trace.outcome is not Outcome.OK
        if files.exit_record.exists():
            return read_own_record(files.exit_record).outcome is not Outcome.OK
        if files.rank_notes() or not files.begin_record.exists():  # it was removed, or could not be written
            return True
        begin = read_begin_record(files.begin_record)
    except (TraceError, RecordError, OSError):  # a begin record may be written at this moment
        return False
    restarted = begin.launch != "" and begin.launch == here.launch and begin.restart_count < here.restart_count
    return restarted or not _may_run(begin.job_id)


def _may_run(job_id: str) -> bool:
    """Whether rank 0 of a launch may be running; True also where that cannot be known, as on another machine."""
    match = _PROCESS.fullmatch(job_id)
    return match is None or match["host"] != socket.gethostname() or Path(f"/proc/{match['pid']}").exists()


def _this_launch(environ: Mapping[str, str] = os.environ) -> BeginRecord:
    """This launch, by its launcher's variables and rank 0's process; without a run."""
    launch, job = "", scheduled_job(environ)
    count_of_restarts = environ.get("TORCHELASTIC_RESTART_COUNT", "")
    restarts = int(count_of_restarts) if count_of_restarts.isdigit() else 0
    if environ.get(TORCHRUN, "none") != "none":  # what torchrun says where --rdzv-id is not given
        launch = f"torchrun {environ[TORCHRUN]}"
    elif TORCHRUN not in environ and job is not None:
        launch, restarts = f"job {job.cluster} {job.job_id}", job.restarts
    host = socket.gethostname()
    return BeginRecord(
        run_id="", attempt=0, job_id=f"local-{host}-{os.getpid()}-0", begin_unix_s=int(time.time()), launch=launch,
        restart_count=restarts, nodelist=host,
    )  # fmt: skip


def _taken(traces: Path, run: RunSpec, repeat: int | None) -> tuple[RunSpec, int]:
    """The run with the repeat that this launch makes, and the number of its attempt. Raises OSError."""
    record = claim(traces, run, _this_launch(), repeat)
    return run.repeated(int(record.run_id.rpartition("_r")[2])), record.attempt


def _claimed(traces: Path, run: RunSpec, repeat: int | None, comm: Communicator) -> tuple[RunSpec, int]:
    """The run with the repeat that this launch makes, and the number of its attempt.

    Collective. Raises LaunchError on all ranks where rank 0 cannot write to the folder, and SpecError.
    """
    if repeat is not None and repeat < 1:
        raise SpecError(f"--repeat is {repeat}; it must be at least 1")
    set_threads(run)  # reading a trace loads numpy
    claimed: tuple[int, int] | str = ""
    if comm.rank == 0:
        try:
            taken, attempt = _taken(traces, run, repeat)
            claimed = taken.repeat, attempt
        except OSError as error:
            claimed = f"--traces {traces} cannot be written ({error.strerror or error}): name a folder that can be"
    claimed = comm.bcast(claimed)
    if isinstance(claimed, str):
        raise LaunchError(claimed)
    return run.repeated(claimed[0]), claimed[1]
