"""Looking at development clusters from outside: the command line, processes, and a program for their ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.processes import processes
from tests.sweeps import ROOT
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import Shape

NAMES = ["node1", "node2", "node3", "node4"]
ONE = Shape(nodes=1, cpus=2, gpus=0)
DEADLINE_S = 300
"""Far beyond what is ever needed: it only ends a test that waits for what does not come."""

WORLD = """
import os, socket
from mpi4py import MPI
world = MPI.COMM_WORLD
node = world.Split_type(MPI.COMM_TYPE_SHARED)
rows = world.gather((world.rank, world.size, node.size, socket.gethostname(), os.environ["SLURMD_NODENAME"]))
total = world.allreduce(world.rank)
if world.rank == 0:
    for row in rows:
        print(*row, total)
"""


def devcluster(*args: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """The command line, as a person would call it."""
    return subprocess.run(
        [sys.executable, "-m", "launch.devcluster", *map(str, args)],
        cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip


def commands(word: str) -> dict[int, str]:
    """Process id → command line of all but this one that have the word in their command line or environment."""
    found = {process: " ".join(process.words) for process in processes()}
    return {
        process.pid: command
        for process, command in found.items()
        if word in command or any(word in variable for variable in process.environ)
    }


def sleepers(nap: str) -> int:
    """How many processes sleep so; see the fixture `nap`."""
    return list(commands(nap).values()).count(nap)


def daemon_pids(cluster: DevCluster) -> set[int]:
    """The controller's and the slurmds' processes, by their command lines."""
    found = commands(str(cluster.conf)).items()
    return {pid for pid, command in found if re.match(r"\S*(slurmctld|slurmd) ", command)}
