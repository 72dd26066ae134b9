"""Nothing of ours listens beyond this machine; what MPI and frameworks open to all is what docs/backends.md says."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path

import pytest

from hpc.backends import BACKENDS, missing_modules
from launch.cluster.local import ranks_env
from tests.mpi.attempts import HERE, Ranks, spec
from tests.mpi.ranks.sockets import sockets

LOOPBACK = ("127.", "00000000:00000000:00000000:00000001")
EVERYWHERE = {"tensorflow-multiworker": 2, "paddle-fleet": 1}
"""Sockets on all interfaces in all ranks of a run of two: a server in each, a store in the first."""

Found = Counter[tuple[str, str]]


def beyond_this_machine(ranks: Ranks, *arguments: str) -> Found:
    """(process, address) of what listens on more than loopback."""
    mark = f"mark-{uuid.uuid4()}"
    done = ranks(2, HERE / "sockets.py", mark, *arguments, env={"SOCKETS_MARK": mark, **ranks_env()})
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("[[")]
    return Counter((role, address) for role, address in json.loads(line) if not address.startswith(LOOPBACK))


@pytest.fixture(scope="module")
def mpi_sockets() -> dict[str, Found]:
    """What MPI opens by itself, once it is known."""
    return {}


@pytest.mark.parametrize("backend", [name for name, entry in BACKENDS.items() if not entry.one_rank_per_node])
def test_a_run_listens_only_where_the_documents_say(
    ranks: Ranks, tmp_path: Path, backend: str, mpi_sockets: dict[str, Found]
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


def test_a_listening_socket_is_found() -> None:
    mark = f"mark-{uuid.uuid4()}"
    code = (
        "import socket, sys\n"
        "held = [socket.create_server((address, 0)) for address in ('127.0.0.1', '0.0.0.0')]\n"
        "print('listening', flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], env={"SOCKETS_MARK": mark}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as listener:  # fmt: skip
        assert listener.stdout is not None
        assert listener.stdout.readline() == b"listening\n"
        assert [address for _, address in sockets(mark)] == ["0.0.0.0", "127.0.0.1"]
        listener.communicate(b"")
    assert sockets(mark) == []
