"""Rankwise listens on loopback only; MPI and frameworks open only the sockets listed in docs/backends.md."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from pathlib import Path

import pytest

from hpc.backends import TRAINERS, missing_modules
from launch.scheduler.local import ranks_env
from tests.mpi.attempts import HERE, Ranks, spec

LOOPBACK = ("127.", "00000000:00000000:00000000:00000001")
EVERYWHERE = {"tensorflow-multiworker": 2, "paddle-fleet": 1}
"""Sockets on all interfaces over both ranks of a run: a server on each rank, or a store on rank 0."""

Sockets = Counter[tuple[str, str]]


def beyond_this_machine(ranks: Ranks, *arguments: str) -> Sockets:
    """(process, address) of every socket that listens on more than loopback."""
    mark = f"mark-{uuid.uuid4()}"
    done = ranks(2, HERE / "sockets.py", mark, *arguments, env={"SOCKETS_MARK": mark, **ranks_env()})
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("[[")]
    return Counter((role, address) for role, address in json.loads(line) if not address.startswith(LOOPBACK))


@pytest.fixture(scope="module")
def mpi_sockets() -> dict[str, Sockets]:
    """Cache of the sockets that MPI itself opens."""
    return {}


@pytest.mark.parametrize(
    "backend",
    [
        # The others' connections are made by MPI, or docs/backends.md says where they listen.
        pytest.param(name, marks=() if name in {"mpi", "torch-ddp"} else pytest.mark.all)
        for name, entry in TRAINERS.items()
        if not entry.one_rank_per_node
    ],
)
def test_a_run_listens_only_on_documented_sockets(
    ranks: Ranks, tmp_path: Path, backend: str, mpi_sockets: dict[str, Sockets]
) -> None:
    if missing := missing_modules(backend):
        pytest.skip("; ".join(missing))
    if not mpi_sockets:
        mpi_sockets["alone"] = beyond_this_machine(ranks)
    run = spec(backend=backend, workload="delay" if backend == "mpi" else "mlp", env=ranks_env())
    (tmp_path / "run.json").write_text(json.dumps(run.to_json()))
    (tmp_path / "job.sh").touch()
    arguments = ["--attempt", "1", "--traces", str(tmp_path), "--script", str(tmp_path / "job.sh")]
    result = beyond_this_machine(ranks, str(tmp_path / "run.json"), *arguments) - mpi_sockets["alone"]
    assert sum(result.values()) == EVERYWHERE.get(backend, 0), result
    assert {role for role, _ in result} <= {"rank"}, "a helper of ours listens"
