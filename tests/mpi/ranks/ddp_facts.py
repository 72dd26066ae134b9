"""Facts of a torch-ddp run on real ranks, as JSON of rank 0: `ddp_facts.py RUN-FIELDS-AS-JSON [apart]`.

`apart` makes every rank believe that it has a network stack of its own, as ranks on different hosts have.
"""

import json
import sys
import traceback
from pathlib import Path

from mpi4py import MPI

from hpc.backends import InvalidRun, addresses, load_backend
from hpc.spec import RunSpec
from hpc.workloads import load_factory
from hpc.world import world_from_mpi


def listening():
    """Local addresses that this process listens on, from the kernel's own table."""
    own = {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    rows += [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    return sorted({row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own})


comm = MPI.COMM_WORLD
if "apart" in sys.argv:
    addresses._network_stack = lambda: (str(comm.rank), "")
before = listening()
usual = {
    "nodes": 1, "ranks_per_node": comm.size, "gpus_per_node": 0, "cpus_per_rank": 2, "backend": "torch-ddp",
    "workload": "mlp", "batch_size": 4, "precision": "fp32", "scaling": "weak", "warmup_steps": 5,
    "measured_steps": 3, "repeat": 1, "seed": 0, "site": "here",
}  # fmt: skip
run = RunSpec(**usual | json.loads(sys.argv[1]))
backend = load_backend(run.backend)
try:
    backend.join(run, world_from_mpi(comm), comm)
except InvalidRun:
    traceback.print_exc()
    comm.Abort(3)
after = listening()
backend.build(load_factory(run.workload, "torch"))
marks = backend.make_marks(run.steps)
marks.begin(0)
hooks = []
for step in range(3):
    backend.step(step, marks)
    hooks.append(sum(len(p._post_accumulate_grad_hooks or ()) for p in backend._parameters))
    backend.settle()
rows = [marks.stamps[6 * step : 6 * step + 6].tolist() for step in range(3)]
facts = {
    "listening": [address for address in after if address not in before],
    "hooks": hooks,
    "parameters": len(backend._parameters),
    "ordered": all(row == sorted(row) for row in rows),
    "losses": backend.losses()[:3],
    **backend.describe(),
}
backend.leave()
if comm.rank == 0:
    print(json.dumps(facts))
