"""The checks alone, by the ranks of a launcher: `srun … rankwise hpc.preflight --run RUN.json --out FILE`.

Looks at all that needs no framework, and measures nothing. Rank 0 prints the findings, and writes them and the
facts of every rank. docs/cluster.md lists the checks.

Exit status 0: no fatal check failed; 1: FILE cannot be written; 2: usage; 3: a fatal check failed; 5: there is no MPI,
or no run to be read.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from hpc.backends import InvalidRun
from hpc.measure.world import LaunchError, mpi_library, start_mpi, world_of
from hpc.model.findings import State
from hpc.model.output_option import OutputFile
from hpc.model.spec import RunSpec, SpecError
from hpc.preflight.run import Preflight, add_arguments, read_expectations
from hpc.system.atomic import write_output
from hpc.system.command_line import run
from hpc.system.command_parser import CommandParser
from hpc.system.regular_file import parse_json, read_whole
from hpc.system.sanitize import deny_world_writing, plain

INVALID, LAUNCH_FAIL = 3, 5


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of `rankwise hpc.preflight`, on every rank."""
    parser = CommandParser(prog="rankwise hpc.preflight", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, metavar="RUN.json", help="the description of a run")
    parser.add_argument(
        "--out", action=OutputFile, type=Path, required=True, metavar="FILE", help="findings and facts, as JSON"
    )
    parser.add_argument("--simulate-nodes", action="store_true", help="nodes are groups of ranks on one machine")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    deny_world_writing()
    expectations = read_expectations(vars(arguments), parser)
    try:
        run = RunSpec.from_json(parse_json(read_whole(arguments.run)))
        comm = start_mpi()
    except (OSError, ValueError, SpecError, LaunchError) as error:
        print(f"hpc.preflight on {socket.gethostname()}: {error}", file=sys.stderr)
        return LAUNCH_FAIL
    preflight = Preflight(run, expectations)
    preflight.started(comm.size, mpi_library(comm))
    if comm.size == run.ranks:
        preflight.met(comm, world_of(comm, run.ranks_per_node if arguments.simulate_nodes else None))
    if comm.rank == 0:
        try:
            write(arguments.out, preflight)
        except OSError as error:
            print(f"hpc.preflight: {plain(str(arguments.out))}: cannot be written ({error.strerror})", file=sys.stderr)
            return 1
        for finding in preflight.findings:
            fix = f"\n    {plain(finding.fix)}" if finding.state is State.FAILED else ""
            print(f"{finding.state} {finding.name}: {plain(finding.text)}{fix}", flush=True)
    try:
        preflight.demand()
    except InvalidRun:
        return INVALID
    return 0


def write(path: Path, preflight: Preflight) -> None:
    """Writes the report whole: several singletons, each of which believes to be rank 0, may write the same file."""
    report = {
        "launched": dataclasses.asdict(preflight.launched),
        "ranks": [dataclasses.asdict(rank) for rank in preflight.ranks],
        "findings": [finding.to_json() for finding in preflight.findings],
    }
    write_output(path, json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(run(main, "hpc.preflight"))
