"""Development clusters seen from outside: the command line, processes, and an MPI program to run on them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.processes import processes
from tests.sweeps import ROOT
from tests.waiting import LIMIT_S
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import Shape

NAMES = ["node1", "node2", "node3", "node4"]
ONE_NODE = Shape(nodes=1, cpus=2, gpus=0)


def devcluster(*args: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs `rankwise devcluster`."""
    return subprocess.run(
        [sys.executable, "-m", "launch.devcluster", *map(str, args)],
        cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def commands(text: str) -> dict[int, str]:
    """Process id → command line of the other processes with the text in their command line or environment."""
    command_lines = {process: " ".join(process.words) for process in processes()}
    return {
        process.pid: command
        for process, command in command_lines.items()
        if text in command or any(text in variable for variable in process.environ)
    }


def sleepers(nap: str) -> int:
    """Number of processes with this `sleep` command line; see the fixture `nap`."""
    return list(commands(nap).values()).count(nap)


def daemon_pids(cluster: DevCluster) -> set[int]:
    """Process ids of slurmctld and the slurmds of the cluster."""
    command_lines = commands(str(cluster.conf)).items()
    return {pid for pid, command in command_lines if re.match(r"\S*(slurmctld|slurmd) ", command)}
