"""Measures what communication could cost at best: the collectives of a backend alone, on the ranks it is started on.

    mpiexec -n 4 rankwise collectives --backend torch-ddp
    srun -N2 --ntasks-per-node=8 --gpus-per-node=8 rankwise collectives --traces traces/
    srun -N2 --ntasks-per-node=8 --gpus-per-node=8 rankwise collectives --operations all-reduce --max-bytes 1G
    rankwise collectives --show traces/2n8g_torch-ddp_collectives_….h5

Every size is called --iterations times back to back, after one call whose result is checked element by element and five
not counted; a wrong result ends the run as invalid. Rank 0 prints a table in the conventions of nccl-tests (time
is the mean over calls and ranks, `slowest` that of the slowest rank) and leaves a trace like that of a training. Beside
trainings on the same ranks, `rankwise sweep … --collectives` adds it, and the ledger compares the two.

Exit status 0: measured, or shown; 1: a rank failed; 2: usage; 3: invalid; 4: out of memory; 5: the ranks did not start.
docs/collectives.md explains the table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc.backends import BACKENDS, operations_of
from hpc.backends.limits import DEFAULT_BACKEND
from hpc.by_hand import add_launch_options, place, run_by_hand, variables
from hpc.measure.world import start_mpi
from hpc.model.collective_plan import COMMUNICATION_OPTIONS, OPTIONS, collectives_run
from hpc.model.options import OptionError, read_options
from hpc.model.spec import COLLECTIVES, MIN_WARMUP_STEPS, RunSpec, SpecError
from hpc.preflight.run import read_expectations
from hpc.system.command_line import called, run, text_width
from hpc.system.command_parser import CommandParser
from hpc.system.job_facts import scheduled_job
from hpc.system.sanitize import deny_world_writing
from hpc.system.version import with_version

if TYPE_CHECKING:
    from hpc.measure.connections import Communicator


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of `rankwise collectives`, on every rank. 0: measured; 1, 3, 4, 5: as hpc.rank; 2: usage."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    expectations = read_expectations(vars(arguments), parser)
    deny_world_writing()
    if arguments.show is not None:
        defaults = vars(parser.parse_args([]))
        if given := [name for name, value in vars(arguments).items() if name != "show" and value != defaults[name]]:
            parser.error(f"--show measures nothing: leave out --{', --'.join(given).replace('_', '-')}")
        return _show(arguments.show)
    status, trace = run_by_hand("hpc.collectives", start_mpi, partial(_run, arguments), arguments, expectations)
    return status if trace is None else _show(trace)


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = CommandParser(prog="rankwise collectives", description=__doc__)
    having = ", ".join(name for name, entry in BACKENDS.items() if entry.collectives)
    add = parser.add_argument_group("what is measured").add_argument
    add("--backend", metavar="NAME", default=DEFAULT_BACKEND,
        help=f"whose collectives: {having} (default {DEFAULT_BACKEND})")  # fmt: skip
    add("--operations", metavar="NAME,…", help=f"{', '.join(_OPERATIONS)} (default: all that the backend has)")
    for name in ("min_bytes", "max_bytes", "factor", "iterations"):
        option = OPTIONS[name]
        small = f", on CPUs {option.small}" if option.small else ""
        add(f"--{name.replace('_', '-')}", metavar="N", help=f"{option.help} (default {option.default}{small})")
    add("--option", metavar="NAME=V", action="append", default=[],
        help=f"an option of the backend: {', '.join(COMMUNICATION_OPTIONS)}")  # fmt: skip
    about = "requested of a training alike, so that the two are compared"
    cpus = ": the scheduler's, else 1"
    where = add_launch_options(parser, cpus=cpus, env="the request", about=about, container=True)
    where.add_argument(
        "--show", metavar="TRACE.h5", type=Path, help="print the table of a trace that is there already, and exit"
    )
    return with_version(parser)


_OPERATIONS = str(OPTIONS["operations"].default).split("+")


def _run(arguments: argparse.Namespace, comm: Communicator) -> RunSpec:
    """The run that this rank takes part in. Collective as far as the outcome depends on other ranks; raises SpecError
    or OptionError."""
    if arguments.backend not in BACKENDS:
        raise SpecError(f"unknown backend {arguments.backend!r}; known: {', '.join(BACKENDS)}")
    if comm.size == 1:
        raise SpecError(
            "MPI sees one rank, and nothing goes from rank to rank: start several (mpiexec -n 4 rankwise "
            "collectives). Where the launcher did start several, it is not of the MPI that mpi4py loads"
        )
    if arguments.gpus_per_node is None and BACKENDS[arguments.backend].framework == "numpy":
        arguments.gpus_per_node = 0
    where, job, cpus = place(arguments, comm), scheduled_job(), arguments.cpus_per_rank
    if cpus is None:
        cpus = (job and job.cpus_per_rank) or 1
    on_gpus = where["gpus_per_node"] > 0
    ranks = RunSpec(
        **where, cpus_per_rank=cpus, backend=arguments.backend, workload=COLLECTIVES, batch_size=1, precision="fp32",
        scaling="weak", warmup_steps=MIN_WARMUP_STEPS, measured_steps=1, repeat=1, seed=0,
        container=arguments.container, options=_options(arguments), env=variables(arguments.env),
    )  # fmt: skip
    return collectives_run(ranks, operations_of(arguments.backend, on_gpus), _sizes(arguments, small=not on_gpus))


def _options(arguments: argparse.Namespace) -> dict[str, str]:
    """Options of the backend that change its collectives. Raises OptionError on others, which would have no effect."""
    options = {}
    for text in arguments.option:
        name, sign, value = text.partition("=")
        if not sign:
            raise OptionError(f"--option {text!r} is not of the form NAME=VALUE")
        options[name] = value
    known = {n: option for n, option in BACKENDS[arguments.backend].options.items() if n in COMMUNICATION_OPTIONS}
    read_options(known, options)
    return options


def _sizes(arguments: argparse.Namespace, small: bool) -> dict[str, str]:
    """The requested options of the collectives; with `small`, others get their small default."""
    requested: dict[str, Any] = {name: getattr(arguments, name) for name in OPTIONS}
    if requested["operations"] is not None:
        requested["operations"] = requested["operations"].replace(",", "+")
    chosen = {name: text for name, text in requested.items() if text is not None}
    shrunk = {name: option.small for name, option in OPTIONS.items() if small and option.small is not None}
    return {**shrunk, **chosen}


def _show(path: Path) -> int:
    """Prints the table of a trace; the exit status of the command line."""
    from hpc.model.collective_times import table
    from hpc.model.trace import TraceError
    from hpc.model.trace_file import read_trace

    try:
        print(table(read_trace(path), text_width()), f"trace: {path}", sep="\n", flush=True)
    except TraceError as error:
        print(f"{called('hpc.collectives')}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run(main, "hpc.collectives"))
