"""What scripts on real ranks share: the run of a few steps, sockets of this process, an end for all ranks."""

import json
import sys
import traceback
from pathlib import Path

from mpi4py import MPI

from hpc.model.spec import RunSpec

LISTENING, CONNECTED = "0A", "01"


def run_of(fields, **defaults):
    """The run of a tiny perceptron on all ranks of one node, with these fields changed."""
    usual = {
        "nodes": 1, "ranks_per_node": MPI.COMM_WORLD.size, "gpus_per_node": 0, "cpus_per_rank": 1, "workload": "mlp",
        "batch_size": 4, "precision": "fp32", "scaling": "weak", "warmup_steps": 5, "measured_steps": 3, "repeat": 1,
        "seed": 0, "site": "here",
    }  # fmt: skip
    return RunSpec(**{**usual, **defaults, **fields})


def requested_run(**defaults):
    """The run whose fields are the script's first argument, as JSON."""
    return run_of(json.loads(sys.argv[1]), **defaults)


def sockets(state):
    """Local addresses and inodes of this process's TCP sockets in a state, from the kernel's own table."""
    links = {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    return {(row[1].split(":")[0], row[9]) for row in rows if row[3] == state and f"socket:[{row[9]}]" in links}


def main_or_abort(main):
    """Calls `main(comm)`; where it raises, ends all ranks with status 3."""
    try:
        main(MPI.COMM_WORLD)
    except Exception:  # noqa: BLE001 - whatever it is, the other ranks must not wait for this one
        traceback.print_exc()
        MPI.COMM_WORLD.Abort(3)
