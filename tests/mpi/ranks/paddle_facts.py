"""Facts of paddle-fleet runs on real ranks, a line of JSON each: `paddle_facts.py LIST-OF-RUN-FIELDS [SWITCH …]`.

One start of the ranks makes all runs: the first joins the group, each later one takes a copy of its backend.

Switches: `apart` makes every rank believe that it has a network stack of its own, as ranks on
different hosts have; `unnamed` gives Paddle an unknown transport. `paddle_facts.py taken ARGUMENTS-OF-hpc.rank` is one
rank of a whole run whose address is taken before Paddle binds it.
"""

import copy
import json
import os
import signal
import socket
import sys
import tempfile
import traceback
from pathlib import Path

from common import CONNECTED, LISTENING, run_of, sockets
from mpi4py import MPI

import hpc.rank
from hpc.backends import InvalidRun, addresses, load_backend, paddle_fleet
from hpc.measure.world import world_of
from hpc.model.timestamps import ABSENT
from hpc.workloads import load_factory

STEPS = 3


def catches(signal_number):
    """Whether this process has a handler of its own, Python's or not, for a signal."""
    caught = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signal_number - 1) & 1)


def endpoints_taken(comm, requested_interface):
    """The endpoints, of which somebody has taken rank 0's."""
    chosen = addresses.endpoints(comm, requested_interface)
    if comm.rank == 0:
        somebody.bind(("", int(chosen[0].rpartition(":")[2])))
    comm.Barrier()
    return chosen


if sys.argv[1] == "taken":
    somebody = socket.socket()
    paddle_fleet.endpoints = endpoints_taken
    sys.exit(hpc.rank.main(sys.argv[2:]))

comm = MPI.COMM_WORLD
switches = sys.argv[2:]
if "apart" in switches:
    addresses._network_stack = lambda: str(comm.rank)
if "unnamed" in switches:
    paddle_fleet.transport = lambda gpu: "auto"
    os.chdir(tempfile.mkdtemp())  # Paddle leaves an http.log where it is then
before = {state: sockets(state) for state in (LISTENING, CONNECTED)}
runs = [run_of(fields, cpus_per_rank=2, backend="paddle-fleet") for fields in json.loads(sys.argv[1])]
member = load_backend("paddle-fleet")
try:
    member.join(runs[0], world_of(comm), comm)
except InvalidRun:
    traceback.print_exc()
    comm.Abort(3)
opened = {state: sorted({address for address, _ in sockets(state) - before[state]}) for state in before}


def facts_of(run, backend):
    backend.build(load_factory(run.workload, "paddle"))
    timer = backend.make_timer(run.steps)
    timer.begin(0)
    for step in range(STEPS):
        backend.step(step, timer)
        backend.release()
    timer.resolve()
    rows = [timer.stamps[6 * step : 6 * step + 6].tolist() for step in range(STEPS)]
    taken = [[stamp for stamp in row if stamp != ABSENT] for row in rows]
    return {
        "listening": opened[LISTENING],
        "connected": opened[CONNECTED],
        "interface": os.environ.get("GLOO_SOCKET_IFNAME"),
        "catches_termination": catches(signal.SIGTERM),
        "others": [name for name in ("torch", "tensorflow", "horovod", "jax") if name in sys.modules],
        "stamps": [[number for number, stamp in enumerate(row) if stamp != ABSENT] for row in rows],
        "ordered": all(row == sorted(row) for row in taken),
        "losses": backend.losses(),
        **backend.describe().as_json(),
    }


for at, run in enumerate(runs):
    backend = copy.copy(member)
    if at:
        backend._begin(run, comm.rank)
    facts = facts_of(run, backend)
    if comm.rank == 0:
        print(json.dumps(facts), flush=True)
backend.leave()
