"""Ranks on different nodes wait for one another where MPI says so: at its end, a fence of PMIx that carries no data."""

from __future__ import annotations

import sys
from pathlib import Path

from launch.jobs.launchers import run_argv
from launch.jobs.site import Site
from tests.slurm.conftest import Command
from tests.unit.traces import make_run

RUN = make_run(nodes=2)

# The first rank gives the second two seconds to leave MPI, which it cannot before the first has come there too.
WORLD = """
import sys, time
from pathlib import Path
from mpi4py import MPI

left, first = Path(sys.argv[1]), MPI.COMM_WORLD.rank == 0
for _ in range(20):
    if first and not left.exists():
        time.sleep(0.1)
if first:
    print("the other left alone" if left.exists() else "together", flush=True)
MPI.Finalize()
left.touch()
"""


def test_no_node_leaves_mpi_before_the_others_have_come_there(command: Command, tmp_path: Path) -> None:
    (tmp_path / "world.py").write_text(WORLD)
    program = [sys.executable, str(tmp_path / "world.py"), str(tmp_path / "left")]
    # Without what the cluster's own environment says of fences: as on a cluster that says nothing.
    done = command(
        "env", "-u", "SLURM_PMIX_FENCE", *run_argv(RUN, Site(name="devcluster", gpus_per_node=0), program, ())
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "together\n"
    assert (tmp_path / "left").exists()
