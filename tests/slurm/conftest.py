"""A real Slurm of four nodes on this machine, started once for all tests here and stopped after them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.slurm.devclusters import commands
from tests.slurm.jobs import new_cluster
from tests.sweeps import sweep_argv, with_checkout
from tests.waiting import LIMIT_S
from tools.devcluster.cluster import DevCluster
from tools.devcluster.config import TMP, Shape
from tools.devcluster.daemons import missing_programs
from tools.devcluster.processes import namespaces_refused

os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/var/tmp")  # where pytest makes tmp_path: nodes do not share /tmp

Command = Callable[..., subprocess.CompletedProcess[str]]
NewRoot = Callable[..., Path]


LONGEST = (
    "test_readme",
    "test_torture",
    "test_outcomes",
    "test_accept",
    "test_training",
    "test_nested",
    "test_idempotent",
    "test_hang",
    "test_sweep",
)
"""Files that take minutes; side by side with others they begin first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


@pytest.fixture(scope="session")
def slurm_installed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips, with the command that helps, where Slurm is not installed."""
    base = tmp_path_factory.getbasetemp()
    assert TMP not in base.parents, f"--basetemp is {base}: nodes have a {TMP} of their own, name a folder outside it"
    if missing := missing_programs():
        pytest.skip(missing)


@pytest.fixture(scope="session")
def cluster(slurm_installed: None) -> Iterator[DevCluster]:
    """Four nodes of 8 CPUs and 8 GPUs, each with a clock of its own where this machine allows it."""
    with new_cluster(Shape(clocks=not namespaces_refused(clocks=True))) as running:
        yield running


@pytest.fixture(scope="session")
def slurm_env(cluster: DevCluster) -> dict[str, str]:
    """The environment of a process that means this cluster by `sbatch` and `srun`."""
    return cluster.environ


@pytest.fixture
def command(tmp_path: Path, slurm_env: dict[str, str]) -> Iterator[Command]:
    """Runs a command as a person logged in to the cluster would; afterwards no job of this test is left.

    Those that Slurm is still ending may be.
    """

    def run(*argv: str, cwd: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        env = with_checkout(slurm_env)
        return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=LIMIT_S)

    yield run
    run("scancel", "-u", str(os.getuid()))


@pytest.fixture
def sweep(command: Command, cluster: DevCluster) -> Command:
    """`sweep(*arguments, site=FILE)`: a sweep on the cluster, by its own site file where no other is named."""

    def run(*arguments: str, site: Path = cluster.site_file) -> subprocess.CompletedProcess[str]:
        return command(*sweep_argv("--site", str(site), *arguments))

    return run


@pytest.fixture
def mpirun_site(cluster: DevCluster, tmp_path: Path) -> Path:
    """A site file of the cluster with Open MPI's mpirun in place of srun."""
    path = tmp_path / "mpirun.toml"
    text = cluster.site_file.read_text().replace('launcher = "srun"', 'launcher = "mpirun"')
    path.write_text(text.replace('mpi = "pmix"', 'mpi = "openmpi"'))
    return path


@pytest.fixture
def nap(request: pytest.FixtureRequest) -> Iterator[str]:
    """A command that sleeps for days, and whose number no other test of any other session has."""
    command = f"/bin/sleep {1_000_000 + os.getpid()}{request.session.items.index(request.node):04}"
    yield command
    for pid in commands(command):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def new_root(slurm_installed: None) -> Iterator[NewRoot]:
    """`new_root()`: an empty folder for one more cluster, which is stopped after the test."""
    folders: list[Path] = []

    def make(place: Path = Path("/var/tmp")) -> Path:
        folders.append(Path(tempfile.mkdtemp(prefix="rw-", dir=place)))
        return folders[-1]

    yield make
    for folder in folders:
        DevCluster(folder).stop()
        shutil.rmtree(folder)
