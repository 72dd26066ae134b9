"""A real Slurm of four nodes on this machine, started once for all tests here and stopped after them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launch.devcluster.cluster import DevCluster
from launch.devcluster.config import Shape
from launch.devcluster.daemons import missing_programs
from launch.devcluster.processes import namespaces_refused

NewRoot = Callable[[], Path]


@pytest.fixture(scope="session")
def slurm_installed() -> None:
    """Skips, with the command that helps, where Slurm is not installed."""
    if missing := missing_programs():
        pytest.skip(missing)


@pytest.fixture(scope="session")
def cluster(slurm_installed: None) -> Iterator[DevCluster]:
    """Four nodes of 8 CPUs and 8 GPUs, each with a clock of its own where this machine allows it."""
    folder = Path(tempfile.mkdtemp(prefix="rw-", dir="/tmp"))  # short: sockets lie below it
    with DevCluster(folder, Shape(clocks=not namespaces_refused(clocks=True))) as running:
        yield running
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def slurm_env(cluster: DevCluster) -> dict[str, str]:
    """The environment of a process that means this cluster by `sbatch` and `srun`."""
    return cluster.environ


@pytest.fixture
def new_root(slurm_installed: None) -> Iterator[NewRoot]:
    """`new_root()`: an empty folder for one more cluster, which is stopped after the test."""
    folders: list[Path] = []

    def make() -> Path:
        folders.append(Path(tempfile.mkdtemp(prefix="rw-", dir="/tmp")))
        return folders[-1]

    yield make
    for folder in folders:
        DevCluster(folder).stop()
        shutil.rmtree(folder)
