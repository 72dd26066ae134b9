"""A real Slurm of several nodes on this machine: one slurmctld and a slurmd per node, on the loopback interface alone.

Every node has a host name of its own, and with `--clocks` a CLOCK_MONOTONIC of its own, so that jobs, MPI and the
measurement of clocks meet what they meet on a cluster. CPUs, GPUs and memory are as requested, whatever there is.
Every node has its own /dev/shm, /tmp and spool folder; the folder of the start is shared also where it is below /tmp.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from hpc.system.command_line import run
from hpc.system.command_parser import CommandParser
from hpc.system.version import with_version
from tools.devcluster import config
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import DevClusterError, Shape

EXAMPLE = """\
example:
  rankwise devcluster start --nodes 4 --gpus 8 --clocks
  eval "$(rankwise devcluster env)"
  srun --nodes 4 --ntasks 4 --gpus-per-node 8 sh -c 'echo $(hostname) $CUDA_VISIBLE_DEVICES $(cat /proc/uptime)'
  rankwise devcluster status
  rankwise devcluster stop

The folder is ~/.cache/rankwise/devcluster, or below $XDG_CACHE_HOME; --root names another, and several clusters can run
side by side. It needs no rights that a normal user has not. It trusts everyone on this machine (auth/none): do not
start it, least of all as root, where people log in whom you would not let run commands as you.

Exit status 0: done; 1: it could not be done, or nothing runs; 2: usage.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Exit status 0: done; 1: it failed or nothing runs; 2: usage."""
    args = make_parser().parse_args(argv)
    os.umask(os.umask(0o022) | 0o002)  # files created here must not be writable for others
    try:
        return int(args.command(args))
    except DevClusterError as error:
        print(f"devcluster: {error}", file=sys.stderr)
        return 1


def _start(args: argparse.Namespace) -> int:
    shape = Shape(nodes=args.nodes, cpus=args.cpus, gpus=args.gpus, clocks=args.clocks)
    cluster = DevCluster(args.root, shape)
    started = cluster.start()
    notes = [*cluster.host.notes, *filter(None, [cluster.host.private_folders])]
    if shape.gpus:
        notes.append("the GPUs are links to /dev/null; Slurm gives them to jobs, and nothing can compute on them")
    root = f" --root {shlex.quote(str(cluster.root))}" if args.root else ""
    lines = [
        f"{'started' if started else 'running already'}: {shape}",
        *(f"note: {note}" for note in notes),
        f"site file: {cluster.site_file}",
        f'next: eval "$(rankwise devcluster env{root})"',
        f'      rankwise sweep --nodes {counts(shape.nodes)} --ranks-per-node 2 --site "$RANKWISE_SITE"',
    ]
    print("\n".join(lines))
    return 0


def counts(nodes: int) -> str:
    """Node counts for a sweep on so many nodes: `1,2,4`, then all."""
    doubled = [1 << power for power in range(nodes.bit_length()) if 1 << power < nodes]
    return ",".join(map(str, [*doubled, nodes]))


def _stop(args: argparse.Namespace) -> int:
    cluster = DevCluster(args.root)
    print("stopped" if cluster.stop() else f"nothing runs in {cluster.root}")
    return 0


def _env(args: argparse.Namespace) -> int:
    cluster = DevCluster.running(args.root)
    print("\n".join(config.shell_lines(os.environ, {**cluster.environ, "RANKWISE_SITE": str(cluster.site_file)})))
    return 0


def _status(args: argparse.Namespace) -> int:
    cluster = DevCluster(args.root)
    if not cluster.is_running():
        print(f"not running: {cluster.root}")
        return 1
    cluster = DevCluster.running(args.root)
    alive = cluster.daemons()
    lines = [f"running: {cluster.shape}, in {cluster.root}", f"{'node':8}{'state':14}slurmd"]
    for name, state in cluster.states().items():
        lines.append(f"{name:8}{state:14}{'alive' if name in alive else 'dead'}")
    print("\n".join(lines), cluster.run("squeue").rstrip(), sep="\n")
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = CommandParser(
        prog="rankwise devcluster", description=__doc__, epilog=EXAMPLE
    )  # fmt: skip
    commands = parser.add_subparsers(required=True, metavar="start | stop | status | env")
    for name, command, text in (
        ("start", _start, "start the cluster unless it runs already"),
        ("stop", _stop, "end all its processes, those of its jobs too"),
        ("status", _status, "nodes, daemons and jobs; exit status 1 where it is not running"),
        ("env", _env, "print what a shell has to evaluate so that sbatch and srun mean this cluster"),
    ):
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument("--root", type=Path, metavar="DIR", help="its folder; another folder is another cluster")
        sub.set_defaults(command=command)
        if name == "start":
            for size, default, what in (
                ("nodes", Shape.nodes, "how many nodes"), ("cpus", Shape.cpus, "CPUs that a node claims"),
                ("gpus", Shape.gpus, "GPUs that a node claims"),
            ):  # fmt: skip
                sub.add_argument(f"--{size}", type=int, default=default, metavar="N", help=f"{what} (%(default)s)")
            sub.add_argument("--clocks", action="store_true", help="give every node a CLOCK_MONOTONIC of its own")
    return with_version(parser)


if __name__ == "__main__":
    sys.exit(run(main, "launch.devcluster"))
